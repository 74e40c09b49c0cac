//! Small scenes that a seed found once, played on purpose.

use std::sync::Arc;
use std::time::Duration;

use conch_core::body::Body;
use conch_core::conversation::{ConversationKind, Settings};
use conch_core::ids::{ConvRef, ConversationId, Seq};
use conch_core::record::{Draft, RecordKind};
use conch_core::refusal::Refusal;
use conch_server::frame::{Class, Frame};
use conch_server::hub::sink::{FrameSink, Joined, Push, Sink};
use conch_server::hub::{HubLimits, Join};
use conch_server::node::OwnerLimits;
use conch_sim::coverage::Tally;
use conch_sim::dice::Dice;
use conch_sim::executor::{Executor, Limits, Process};
use conch_sim::history::History;
use conch_sim::machine::{Machine, NodeLimits, Proof, Removed, Running, Site};
use conch_sim::network::Network;
use conch_sim::outside::Outside;
use conch_sim::recorder::{Answer, Recorder};
use conch_sim::scenario::TIMING;
use conch_sim::shared::Shared;
use conch_sim::trace::TraceMode;
use conch_store::memory::MemoryStore;
use conch_store::{LogStore as _, NewConversation};
use futures_util::future::BoxFuture;
use tokio::sync::mpsc;

/// A connection that holds `max_capacity` frames and is read by the scene.
struct Connection(mpsc::Sender<Arc<Frame>>);

impl Sink for Connection {
    fn joined(&self, _joined: &Joined) {}
}

impl FrameSink for Connection {
    fn push(&self, frame: &Arc<Frame>) -> Push {
        if frame.class() == Class::Live {
            return Push::Behind;
        }
        match self.0.try_send(frame.clone()) {
            Ok(()) => Push::Accepted,
            Err(mpsc::error::TrySendError::Full(_)) => Push::Behind,
            Err(mpsc::error::TrySendError::Closed(_)) => Push::Closed,
        }
    }

    fn room(&self) -> BoxFuture<'static, ()> {
        let queue = self.0.clone();
        Box::pin(async move { drop(queue.reserve_owned().await) })
    }

    fn end(&self, _reason: &Refusal) {}
}

/// One node on a calm store, one channel.
struct Scene {
    world: Process,
    site: Site,
    room: ConvRef,
    running: Running,
}

fn play<F: Future<Output = ()> + Send + 'static>(scene: impl FnOnce(Scene) -> F + Send + 'static) {
    let executor = Executor::new(1, Limits::default(), TraceMode::Digest);
    let (world, tally) = (executor.world(), Tally::default());
    let room: ConvRef = "room".parse::<ConversationId>().expect("valid").into();
    let store = MemoryStore::new("sim", Arc::new(|| 0));
    let history = History::new(executor.clone());
    let conversations = vec![room.clone()];
    let recorder = Recorder::new(store, history, world.clone(), &conversations, tally.clone(), Answer::AfterCommit);
    let limits = NodeLimits { timing: TIMING, owner: OwnerLimits::default(), hub: HubLimits::default() };
    let complaints = Shared::default();
    let site = Site {
        executor: executor.clone(),
        recorder,
        limits,
        proof: Proof::Lock,
        network: Network::new(executor.world(), Dice::new(1, 77), tally.clone()),
        removed: Removed::default(),
        tally,
        conversations,
        complaints,
        metrics: Shared::default(),
        outside: Outside::default(),
    };
    let ended = executor.run(async move {
        create(&site, &room).await;
        let machine = Machine::new("node", "local", site.clone(), Dice::new(1, 99));
        machine.start();
        while machine.running().is_none() {
            world.sleep(Duration::from_millis(10)).await;
        }
        let running = machine.running().expect("it was waited for");
        scene(Scene { world, site, room, running }).await;
    });
    assert_eq!(ended, Ok(()));
}

async fn create(site: &Site, room: &ConvRef) {
    let new = NewConversation {
        conversation: room.clone(),
        kind: ConversationKind::Channel,
        regions: Vec::new(),
        home: "local".parse().expect("valid"),
        title: None,
        agent: None,
        settings: Settings::default(),
        creator: "alice".parse().expect("valid"),
        members: Vec::new(),
    };
    site.recorder.create_conversation(&new).await.expect("the memory store does not fail");
}

impl Scene {
    async fn say(&self, key: &str) -> Seq {
        let body = Body::of(&serde_json::json!({ "text": key }));
        let (sender, id) = ("alice".parse().expect("valid"), key.parse().expect("valid"));
        let draft = Draft::new(RecordKind::Message, sender, id, body);
        self.running.router.append(&self.room, vec![draft]).await.expect("a calm store takes it")[0].seq
    }

    async fn watch(&self, capacity: usize) -> (mpsc::Receiver<Arc<Frame>>, conch_server::hub::Session) {
        let (queue, frames) = mpsc::channel(capacity);
        let sink = Arc::new(Connection(queue));
        let join = Join { sink, sub: "bob".parse().expect("valid"), name: None, after: Some(Seq(0)), log: None };
        let session = self.running.hubs.join(&self.room, join).await.expect("a calm store lets it in");
        (frames, session)
    }

    async fn wait(&self, seconds: u64) {
        self.world.sleep(Duration::from_secs(seconds)).await;
    }
}

fn durable(frames: &mut mpsc::Receiver<Arc<Frame>>, shown: &mut Vec<String>) {
    while let Ok(frame) = frames.try_recv() {
        if frame.class() == Class::Durable {
            let text = std::str::from_utf8(frame.event_stream()).expect("text");
            let id = text.lines().find_map(|line| line.strip_prefix("id: ")).expect("durable frames have an id");
            shown.push(format!("{} {id}", frame.event()));
        }
    }
}

#[test]
fn a_slow_session_is_told_of_another_history_before_it_sees_it() {
    // With one message its queue of two is just full (`caught_up` came first), with four it is catching up.
    for messages in [1, 4] {
        play(move |scene| async move {
            let (mut frames, _session) = scene.watch(2).await;
            for number in 0..messages {
                scene.say(&format!("before-{number}")).await;
            }
            scene.wait(1).await;
            scene.site.recorder.inner().bump_generation();
            scene.say("after").await;
            scene.wait(5).await;
            let mut shown = Vec::new();
            for _ in 0..20 {
                durable(&mut frames, &mut shown);
                scene.wait(2).await;
            }
            let first_new = shown.iter().position(|event| event.contains("sim.2")).expect("the new history is shown");
            assert!(shown[first_new].starts_with("resync "), "{messages}: {shown:?}");
            assert!(shown[first_new..].iter().all(|event| event.contains("sim.2")), "{messages}: {shown:?}");
        });
    }
}

#[test]
fn a_hole_before_a_record_does_not_show_it_twice() {
    play(|scene| async move {
        let (mut frames, _session) = scene.watch(256).await;
        scene.wait(1).await;
        let first = scene.say("a").await;
        // Beyond the keys that an owner remembers, a repetition is found by the store and leaves a hole.
        for number in 0..OwnerLimits::default().sequencer.recent_keys {
            scene.say(&format!("between-{number}")).await;
        }
        assert_eq!(scene.say("a").await, first);
        let last = scene.say("b").await;
        scene.wait(5).await;
        let mut shown = Vec::new();
        durable(&mut frames, &mut shown);
        let times = shown.iter().filter(|event| **event == format!("message sim.1:{last}")).count();
        assert_eq!(times, 1, "{shown:?}");
    });
}
