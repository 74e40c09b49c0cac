//! Pushes on a joined channel: messages, history, cursors, typing, and what is asked of turns.
//!
//! A message goes straight to its owner's queue when the owner runs here, in the order of the socket's frames. While it
//! does not (a claim is under way), the topic's pushes gather in a [`Lane`] and go one after another, so that the order
//! holds there too.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use conch_core::ids::{ConvRef, Seq};
use conch_core::record::{Draft, RecordKind};
use conch_core::refusal::{Code, Refusal, Retry};
use conch_core::sequencer::Receipt;
use conch_core::turn::cancel::CancelMode;
use conch_core::wire::phoenix::{ClientFrame, Status};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::{Notify, Semaphore};

use super::channel::Channel;
use super::connection::{Connection, Joined};
use crate::auth::grants::Principal;
use crate::gateway::Gateway;
use crate::gateway::input::from_json;
use crate::gateway::operations::{HistoryRequest, receipt_json};
use crate::metrics::Queue;
use crate::owner::{OwnerHandle, Reply};
use crate::router::Place;
use crate::rules::Rule;

/// How long a page of history waits for room in the socket's queue.
const ROOM: Duration = Duration::from_secs(5);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MessagePush<'a> {
    client_msg_id: String,
    #[serde(borrow)]
    body: &'a RawValue,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HistoryPush {
    after: Option<u64>,
    before: Option<u64>,
    limit: Option<usize>,
    kinds: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CursorPush {
    seq: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CancelPush {
    turn: Seq,
    mode: Option<CancelMode>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RegeneratePush {
    client_msg_id: String,
    turn: Seq,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ResolvePush<'a> {
    r#await: String,
    #[serde(borrow)]
    payload: &'a RawValue,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Empty {}

/// Messages of one topic that wait for their owner, in order. Bounded by the socket's limit of pushes under way.
#[derive(Clone, Default)]
pub(super) struct Lane(Arc<Mutex<Option<VecDeque<Message>>>>);

/// A message on its way: what to append, and whom to answer.
struct Message {
    drafts: Vec<Draft>,
    to: Answer,
}

/// Whom to answer. One push under way is counted for as long as this lives.
struct Answer {
    gateway: Gateway,
    channel: Arc<Channel>,
    reference: Option<Arc<str>>,
    _under_way: UnderWay,
}

/// The pushes of a socket that are under way, and its joins.
pub(super) struct Pushes {
    count: AtomicUsize,
    fewer: Notify,
    joins: AtomicUsize,
    /// A page of history is large: one at a time.
    history: Semaphore,
}

impl Default for Pushes {
    fn default() -> Self {
        let (count, joins) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { count, fewer: Notify::new(), joins, history: Semaphore::new(1) }
    }
}

impl Pushes {
    /// Completes when none is under way. Cancel safe.
    pub(super) async fn none(&self) {
        while self.count.load(Ordering::Acquire) > 0 {
            self.fewer.notified().await;
        }
    }
}

struct UnderWay(Arc<Pushes>);

impl UnderWay {
    fn begin(pushes: &Arc<Pushes>, limit: usize) -> Result<Self, Refusal> {
        let before = pushes.count.fetch_add(1, Ordering::Relaxed);
        // Made first, so that a refusal counts down again.
        let under_way = Self(Arc::clone(pushes));
        if before >= limit {
            let retry = Retry { after_ms: 100, budget_ms: 20_000 };
            let detail = format!("at most {limit} pushes of one socket may be under way");
            return Err(Refusal::retry(Code::Overloaded, detail, retry));
        }
        Ok(under_way)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::Release) == 1 {
            self.0.fewer.notify_one();
        }
    }
}

/// A join under way; counted until its task ends, also if the client has left or joined anew by then.
pub(super) struct Joining(Arc<Pushes>);

impl Joining {
    /// # Errors
    /// `overloaded` when so many are under way already.
    pub(super) fn begin(pushes: &Arc<Pushes>, limit: usize) -> Result<Self, Refusal> {
        let before = pushes.joins.fetch_add(1, Ordering::Relaxed);
        // Made first, so that a refusal counts down again.
        let joining = Self(Arc::clone(pushes));
        if before >= limit {
            let retry = Retry { after_ms: 1_000, budget_ms: 20_000 };
            let detail = format!("topic: at most {limit} joins of one socket may be under way");
            return Err(Refusal::retry(Code::Overloaded, detail, retry));
        }
        Ok(joining)
    }
}

impl Drop for Joining {
    fn drop(&mut self) {
        self.0.joins.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Answer {
    fn settle(&self, result: &Result<Vec<Receipt>, Refusal>) {
        let reference = self.reference.as_deref();
        match result {
            Ok(receipts) => {
                let receipt = receipts.first().expect("one draft, one receipt");
                self.channel.reply(reference, Status::Ok, &receipt_json(receipt));
            }
            Err(refusal) => {
                self.gateway.node().metrics.refused(refusal.code);
                self.channel.refuse(reference, refusal);
            }
        }
    }
}

impl Connection {
    pub(super) fn push(&self, joined: &Joined, frame: &ClientFrame<'_>) {
        if let Err(refusal) = self.try_push(joined, frame) {
            self.gateway.node().metrics.refused(refusal.code);
            joined.channel.refuse(frame.reference.as_deref(), &refusal);
        }
    }

    fn try_push(&self, joined: &Joined, frame: &ClientFrame<'_>) -> Result<(), Refusal> {
        let Joined { channel, lane, .. } = joined;
        let not_built = || Refusal::new(Code::NotFound, format!("event: there is no {:?} here", frame.event));
        let conversation = channel.conversation.as_ref().ok_or_else(not_built)?;
        if channel.is_joining() {
            let detail = "the join is still under way";
            return Err(Refusal::retry(Code::ConversationUnavailable, detail, Retry::SOON));
        }
        self.gateway.refuse_if_draining()?;
        match &*frame.event {
            "message" => self.message(channel, lane, conversation, frame),
            "history" => {
                let HistoryPush { after, before, limit, kinds } = parse(frame.payload)?;
                let request = HistoryRequest { after, before, limit, kinds };
                let (under_way, outbox) = (Arc::clone(&self.under_way), Arc::clone(&self.outbox));
                self.answer_later(channel, frame, conversation, move |gateway, _, conversation| async move {
                    // One page at a time, and none while the client has not taken the one before.
                    if !gateway.node().rules.hold(Rule::OneUnreadPage) {
                        return gateway.history(&conversation, &request).await;
                    }
                    let turn = under_way.history.acquire().await;
                    if tokio::time::timeout(ROOM, outbox.room()).await.is_err() {
                        let retry = Retry { after_ms: 1_000, budget_ms: 20_000 };
                        return Err(Refusal::retry(Code::Overloaded, "the client takes no answers", retry));
                    }
                    let page = gateway.history(&conversation, &request).await;
                    drop(turn);
                    page
                })
            }
            "cursor" => {
                let CursorPush { seq } = parse(frame.payload)?;
                self.answer_later(channel, frame, conversation, move |gateway, principal, conversation| async move {
                    gateway.move_cursor(&principal, &conversation, seq).await
                })
            }
            "typing" => {
                let Empty {} = parse(frame.payload)?;
                channel.may_send()?;
                self.take_live_rate()?;
                channel.typing(&self.principal.sub, self.principal.name.as_deref().map(Into::into));
                channel.reply(frame.reference.as_deref(), Status::Ok, "{}");
                Ok(())
            }
            "turn.cancel" | "turn.regenerate" | "await.resolve" => self.ask(channel, conversation, frame),
            _ => Err(not_built()),
        }
    }

    /// What is asked of the conversation's turns; its owner decides.
    fn ask(&self, channel: &Arc<Channel>, conversation: &ConvRef, frame: &ClientFrame<'_>) -> Result<(), Refusal> {
        match &*frame.event {
            "turn.cancel" => {
                let CancelPush { turn, mode } = parse(frame.payload)?;
                self.answer_later(channel, frame, conversation, move |gateway, principal, conversation| async move {
                    Ok(gateway.cancel_turn(&principal, &conversation, turn, mode).await?.to_json())
                })
            }
            "turn.regenerate" => {
                let RegeneratePush { client_msg_id: key, turn } = parse(frame.payload)?;
                self.answer_later(channel, frame, conversation, move |gateway, principal, conversation| async move {
                    Ok(gateway.regenerate_turn(&principal, &conversation, &key, turn).await?.to_json())
                })
            }
            _ => {
                let ResolvePush { r#await: wait, payload } = parse(frame.payload)?;
                let payload = self.gateway.payload(payload)?;
                self.answer_later(channel, frame, conversation, move |gateway, principal, conversation| async move {
                    Ok(gateway.resolve_await(&principal, &conversation, &wait, payload).await?.to_json())
                })
            }
        }
    }

    /// Typing counts towards the same rate as messages: it costs everybody who watches.
    fn take_live_rate(&self) -> Result<(), Refusal> {
        self.gateway.take_rate(&self.principal)
    }

    fn message(
        &self,
        channel: &Arc<Channel>,
        lane: &Lane,
        conversation: &ConvRef,
        frame: &ClientFrame<'_>,
    ) -> Result<(), Refusal> {
        let MessagePush { client_msg_id, body } = parse(frame.payload)?;
        channel.may_send()?;
        let draft = self.gateway.draft(&self.principal, RecordKind::Message, &client_msg_id, body)?;
        self.gateway.take_rate(&self.principal)?;
        let to = self.answer_to(channel, frame)?;
        let message = Message { drafts: vec![draft], to };
        lane.send(&self.gateway, conversation, message);
        Ok(())
    }

    fn answer_to(&self, channel: &Arc<Channel>, frame: &ClientFrame<'_>) -> Result<Answer, Refusal> {
        let limit = self.gateway.limits().pushes_per_socket;
        let under_way = UnderWay::begin(&self.under_way, limit)
            .inspect_err(|_| self.gateway.node().metrics.limit_hit(Queue::Pushes))?;
        Ok(Answer {
            gateway: self.gateway.clone(),
            channel: Arc::clone(channel),
            reference: frame.reference.as_deref().map(Into::into),
            _under_way: under_way,
        })
    }

    /// Answers a push from a task of its own.
    fn answer_later<F>(
        &self,
        channel: &Arc<Channel>,
        frame: &ClientFrame<'_>,
        conversation: &ConvRef,
        work: impl FnOnce(Gateway, Arc<Principal>, ConvRef) -> F,
    ) -> Result<(), Refusal>
    where
        F: Future<Output = Result<String, Refusal>> + Send + 'static,
    {
        let to = self.answer_to(channel, frame)?;
        let work = work(self.gateway.clone(), Arc::clone(&self.principal), conversation.clone());
        tokio::spawn(async move {
            match work.await {
                Ok(json) => to.channel.reply(to.reference.as_deref(), Status::Ok, &json),
                Err(refusal) => {
                    to.gateway.node().metrics.refused(refusal.code);
                    to.channel.refuse(to.reference.as_deref(), &refusal);
                }
            }
        });
        Ok(())
    }
}

impl Lane {
    /// Sends a message in its turn: at once if nothing waits and the owner runs here.
    fn send(&self, gateway: &Gateway, conversation: &ConvRef, message: Message) {
        let mut waiting = self.0.lock().expect("no holder of a lane panics");
        if let Some(waiting) = &mut *waiting {
            return waiting.push_back(message);
        }
        if let Some(owner) = gateway.router().active(conversation) {
            return submit(&owner, conversation, message);
        }
        *waiting = Some(VecDeque::from([message]));
        drop(waiting);
        tokio::spawn(self.clone().drain(gateway.clone(), conversation.clone()));
    }

    /// Sends what waits, in order, once there is an owner; then the lane is open again.
    async fn drain(self, gateway: Gateway, conversation: ConvRef) {
        let place = gateway.router().place(&conversation, None).await;
        loop {
            let message = {
                let mut waiting = self.0.lock().expect("no holder of a lane panics");
                let message = waiting.as_mut().and_then(VecDeque::pop_front);
                if message.is_none() {
                    *waiting = None;
                }
                message
            };
            match (message, &place) {
                (None, _) => return,
                (Some(message), Ok(Place::Here(owner))) => submit(owner, &conversation, message),
                // The router passes it on, or waits and asks again inside its own bounds. Once polled, it is on its way, so
                // the messages of a lane leave in their order.
                (Some(message), _) => {
                    let mut sending = Box::pin(send(conversation.clone(), message));
                    if futures_util::poll!(&mut sending).is_pending() {
                        tokio::spawn(sending);
                    }
                }
            }
        }
    }
}

/// Hands a message to an owner; its answer goes to the client unless ownership is moving.
fn submit(owner: &OwnerHandle, conversation: &ConvRef, message: Message) {
    let conversation = conversation.clone();
    let drafts = message.drafts.clone();
    let reply: Reply = Box::new(move |result| match result {
        Err(refusal) if refusal.code == Code::ConversationUnavailable => send_again(conversation, message),
        result => message.to.settle(&result),
    });
    owner.submit(drafts, reply);
}

/// The owner went away with the message in its hands: ask again under the same key.
fn send_again(conversation: ConvRef, message: Message) {
    tokio::spawn(send(conversation, message));
}

async fn send(conversation: ConvRef, message: Message) {
    let Message { drafts, to } = message;
    let result = to.gateway.router().append(&conversation, drafts).await;
    to.settle(&result);
}

fn parse<'a, T: Deserialize<'a>>(payload: &'a RawValue) -> Result<T, Refusal> {
    from_json(payload.get())
}
