//! What the scenes of routing and following do and see, beyond what every scene does.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use conch_core::ids::{ConvRef, Epoch, Incarnation, Seq};
use conch_core::record::{Record, RecordKind};
use conch_core::refusal::Refusal;
use conch_core::sequencer::Receipt;
use conch_server::events::{EVENTS_MAX, Event};
use conch_server::frame::Frame;
use conch_server::hub::sink::{FrameSink, Joined, Push, Sink};
use conch_server::hub::{Join, Session};
use conch_store::{Direction, Held, LeaseStore as _, LogStore as _, RangeQuery};
use futures_util::future::BoxFuture;

use crate::scene::Scene;

/// A session that takes everything and remembers the keys of the messages that it was shown.
#[derive(Clone, Default)]
pub(crate) struct Viewer(Arc<Mutex<Shown>>);

#[derive(Default)]
struct Shown {
    messages: Vec<String>,
    others: Vec<&'static str>,
}

impl FrameSink for Viewer {
    fn push(&self, frame: &Arc<Frame>) -> Push {
        let mut shown = self.0.lock().expect("one thread");
        if frame.event() == "message" {
            let json: serde_json::Value = serde_json::from_str(frame.json()).expect("frames hold JSON");
            shown.messages.push(json["client_msg_id"].as_str().expect("a message has a key").to_owned());
        } else {
            shown.others.push(frame.event());
        }
        Push::Accepted
    }

    fn room(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    fn end(&self, _reason: &Refusal) {}
}

impl Sink for Viewer {
    fn joined(&self, _joined: &Joined) {}
}

impl Viewer {
    pub(crate) fn saw(&self) -> Vec<String> {
        self.0.lock().expect("one thread").messages.clone()
    }

    /// How many events of this name it was shown.
    pub(crate) fn saw_events(&self, name: &str) -> usize {
        self.0.lock().expect("one thread").others.iter().filter(|event| **event == name).count()
    }
}

impl Scene {
    /// Somebody watches through a node, from the beginning.
    pub(crate) async fn watch(&self, node: usize) -> (Viewer, Session) {
        let (viewer, session) = self.watch_room(&self.room, node).await;
        (viewer, session.expect("a calm store lets it in"))
    }

    pub(crate) async fn watch_room(&self, room: &ConvRef, node: usize) -> (Viewer, Result<Session, Refusal>) {
        self.watch_after(room, node, Seq(0)).await
    }

    /// Somebody watches who has seen all up to a position.
    pub(crate) async fn watch_after(
        &self,
        room: &ConvRef,
        node: usize,
        after: Seq,
    ) -> (Viewer, Result<Session, Refusal>) {
        let viewer = Viewer::default();
        let sub = "bob".parse().expect("valid");
        let join = Join { sink: Arc::new(viewer.clone()), sub, name: None, after: Some(after), log: None };
        let session = self.nodes[node].hubs.join(room, join).await;
        (viewer, session)
    }

    /// A channel that nobody has claimed yet.
    pub(crate) fn fresh_room(&self) -> ConvRef {
        self.site.conversations[1].clone()
    }

    pub(crate) async fn epoch_and_owner(&self, room: &ConvRef) -> (Epoch, Option<Incarnation>) {
        let info = self.site.recorder.conversation(room).await.expect("the memory store does not fail");
        let head = info.expect("it was created").head.expect("it was claimed");
        (head.epoch, head.owner)
    }

    /// The log.
    pub(crate) async fn records(&self) -> Vec<Record> {
        self.records_after(Seq(0), 10_000).await
    }

    /// The log from a position on.
    pub(crate) async fn records_after(&self, after: Seq, limit: usize) -> Vec<Record> {
        let (direction, conversation) = (Direction::After(after), self.room.clone());
        let query = RangeQuery { conversation, direction, limit, kinds: Vec::new() };
        let page = self.site.recorder.range(&query).await.expect("the memory store does not fail");
        page.expect("it was created").records
    }

    /// The keys of the log, in its order.
    pub(crate) async fn log(&self) -> Vec<String> {
        let keys = self.records().await.into_iter().filter_map(|record| record.client_msg_id);
        keys.map(|key| key.to_string()).collect()
    }

    /// The kinds of the log's records, in its order.
    pub(crate) async fn kinds(&self) -> Vec<RecordKind> {
        self.records().await.into_iter().map(|record| record.kind).collect()
    }

    /// Passes the channel on as its first owner would, in the store alone: nobody is told.
    pub(crate) async fn hand_off_unheard(&self, to: usize) {
        let held = Held { conversation: self.room.key, epoch: Epoch(1), me: self.nodes[0].me };
        let margin = Duration::from_secs(1);
        let info = self.site.recorder.conversation(&self.room).await.expect("the memory store does not fail");
        let first_seq = info.and_then(|info| info.head).expect("it was claimed").last_seq.0 + 1;
        let armed = self.site.recorder.hand_off(&held, self.nodes[to].me, Seq(first_seq), margin).await;
        assert!(armed.expect("the memory store does not fail").is_some(), "the first node owned it");
    }

    /// Restarts a node in order, and nobody starts it again.
    pub(crate) async fn stop(&self, node: usize) {
        self.machines[node].drain(Duration::from_secs(1)).await;
        self.machines[node].shut_down(Duration::from_secs(5)).await;
    }

    /// What happened to ownership on a node.
    pub(crate) fn events(&self, node: usize) -> Vec<Event> {
        let page = self.nodes[node].node.events.after(0, EVENTS_MAX);
        page.events.into_iter().map(|recorded| recorded.event).collect()
    }

    pub(crate) fn forwarded(&self) -> u64 {
        self.nodes.iter().map(|node| node.node.metrics.forwarded.get()).sum()
    }

    pub(crate) fn complaints(&self) -> Vec<String> {
        self.site.complaints.lock().expect("one thread").clone()
    }
}

pub(crate) fn acked(answer: Option<Result<Receipt, Refusal>>) -> Receipt {
    answer.expect("an answer").expect("an ack")
}
