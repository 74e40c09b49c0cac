//! One joined topic of a socket, as the hub and the personal stream see it.

use std::sync::{Arc, Mutex, Weak};

use conch_core::ids::{ConvRef, Subject};
use conch_core::refusal::{Code, Refusal};
use conch_core::wire::phoenix::{self, Status};
use conch_core::wire::websocket;
use futures_util::future::BoxFuture;

use super::outbox::{Gate, Outbox};
use crate::delivery::Batch;
use crate::frame::Frame;
use crate::hub::Session;
use crate::hub::sink::{FrameSink, Joined, Push, Sink};
use crate::people::PersonalSession;

/// What a channel is joined to.
pub(super) enum Membership {
    /// A conversation, whose session leaves when this is dropped.
    Conversation(Session),
    /// The personal stream.
    Me(#[expect(dead_code, reason = "held for its Drop, which leaves the stream")] PersonalSession),
}

/// Whether messages may be sent on a channel; judged when it is joined. Who is no member any more is cut off.
#[derive(Debug, Clone)]
pub(super) enum Sending {
    Allowed,
    Refused(Refusal),
}

/// How far a channel has come.
pub(super) enum Stage {
    /// The join is under way.
    Joining,
    /// The client was told that it has joined, and may push; the session is about to be put here.
    Answered(Sending),
    Joined(Membership, Sending),
    Left,
}

/// A topic of a socket, from its join to its end.
pub(super) struct Channel {
    pub(super) topic: Arc<str>,
    pub(super) join_ref: Option<Arc<str>>,
    /// The conversation; `None` for the personal stream.
    pub(super) conversation: Option<ConvRef>,
    pub(super) outbox: Arc<Outbox>,
    pub(super) gate: Arc<Gate>,
    stage: Mutex<Stage>,
}

impl Channel {
    pub(super) fn new(
        topic: Arc<str>,
        join_ref: Option<Arc<str>>,
        conversation: Option<ConvRef>,
        outbox: Arc<Outbox>,
    ) -> Self {
        let gate = Arc::new(Gate::open());
        Self { topic, join_ref, conversation, outbox, gate, stage: Mutex::new(Stage::Joining) }
    }

    /// The session of a join that succeeded. When the client has left meanwhile, it is dropped at once.
    pub(super) fn joined(&self, membership: Membership, sending: Sending) {
        let mut stage = self.stage.lock().expect("no holder of the stage panics");
        if matches!(*stage, Stage::Joining | Stage::Answered(_)) {
            *stage = Stage::Joined(membership, sending);
        }
    }

    /// The join's reply goes out: a client may push as soon as it has it, which can be before [`Channel::joined`].
    fn answered(&self, sending: Sending) {
        let mut stage = self.stage.lock().expect("no holder of the stage panics");
        if matches!(*stage, Stage::Joining) {
            *stage = Stage::Answered(sending);
        }
    }

    /// Ends the channel; its session leaves. What its hub shows until it knows is not sent: the client may have joined anew.
    pub(super) fn leave(&self) {
        self.outbox.shut(&self.gate);
        let ended = {
            let mut stage = self.stage.lock().expect("no holder of the stage panics");
            std::mem::replace(&mut *stage, Stage::Left)
        };
        // Dropped without the lock: leaving takes locks of its own.
        drop(ended);
    }

    pub(super) fn is_joining(&self) -> bool {
        matches!(*self.stage.lock().expect("no holder of the stage panics"), Stage::Joining)
    }

    pub(super) fn has_left(&self) -> bool {
        matches!(*self.stage.lock().expect("no holder of the stage panics"), Stage::Left)
    }

    /// # Errors
    /// `forbidden` to those who may only read, `not_found` to those who are not joined any more.
    pub(super) fn may_send(&self) -> Result<(), Refusal> {
        match &*self.stage.lock().expect("no holder of the stage panics") {
            Stage::Joined(_, Sending::Allowed) | Stage::Answered(Sending::Allowed) => Ok(()),
            Stage::Joined(_, Sending::Refused(refusal)) | Stage::Answered(Sending::Refused(refusal)) => {
                Err(refusal.clone())
            }
            Stage::Joining | Stage::Left => Err(Refusal::new(Code::NotFound, "topic: is not joined on this socket")),
        }
    }

    pub(super) fn typing(&self, sub: &Subject, name: Option<Arc<str>>) {
        if let Stage::Joined(Membership::Conversation(session), _) =
            &*self.stage.lock().expect("no holder of the stage panics")
        {
            session.typing(sub.clone(), name);
        }
    }

    pub(super) fn reply(&self, reference: Option<&str>, status: Status, response_json: &str) {
        let text = phoenix::reply(self.join_ref.as_deref(), reference, &self.topic, status, response_json);
        self.outbox.answer(websocket::text_frame(&text));
    }

    pub(super) fn refuse(&self, reference: Option<&str>, refusal: &Refusal) {
        self.reply(reference, Status::Error, &super::super::errors::channel_error(refusal));
    }

    /// Tells the client that the channel is over for good.
    pub(super) fn send_close(&self) {
        let text = phoenix::push(self.join_ref.as_deref(), &self.topic, "phx_close", "{}");
        self.outbox.answer(websocket::text_frame(&text));
    }
}

/// The sink of a channel.
pub(super) struct ChannelSink {
    pub(super) outbox: Arc<Outbox>,
    pub(super) gate: Arc<Gate>,
    pub(super) channel: Weak<Channel>,
    pub(super) reference: Option<Arc<str>>,
    pub(super) reconnect_jitter_ms: u64,
    pub(super) sending: Sending,
}

impl FrameSink for ChannelSink {
    fn push(&self, frame: &Arc<Frame>) -> Push {
        self.outbox.push(&self.gate, frame.websocket(), frame.class())
    }

    fn push_joined(&self, batch: &Batch) -> Push {
        self.outbox.push_joined(&self.gate, batch.websocket())
    }

    fn worker(&self) -> Option<usize> {
        Some(self.outbox.worker())
    }

    fn room(&self) -> BoxFuture<'static, ()> {
        let outbox = Arc::clone(&self.outbox);
        Box::pin(async move { outbox.room().await })
    }

    fn end(&self, _reason: &Refusal) {
        if let Some(channel) = self.channel.upgrade() {
            channel.leave();
            channel.send_close();
        }
    }
}

impl Sink for ChannelSink {
    fn joined(&self, joined: &Joined) {
        let Some(channel) = self.channel.upgrade() else { return };
        let Joined { head_seq, log, epoch, catch_up } = joined;
        let response = format!(
            r#"{{"head_seq":{head_seq},"log":"{log}","epoch":{epoch},"catchup":"{}","reconnect_jitter_ms":{}}}"#,
            catch_up.as_str(),
            self.reconnect_jitter_ms
        );
        let reference = self.reference.as_deref();
        // A client pushes as soon as it sees the reply.
        channel.answered(self.sending.clone());
        let text = phoenix::reply(channel.join_ref.as_deref(), reference, &channel.topic, Status::Ok, &response);
        // Queued whatever the fill: what follows must come after it.
        self.outbox.answer(websocket::text_frame(&text));
    }
}

#[cfg(test)]
mod tests {
    use conch_core::ids::{Epoch, Generation, LogId, Seq};
    use conch_core::refusal::Code;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::hub::sink::CatchUp;

    async fn channel() -> Arc<Channel> {
        connected().await.1
    }

    /// The peer's side, and a channel.
    async fn connected() -> (TcpStream, Arc<Channel>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let stream = TcpStream::connect(listener.local_addr().expect("bound")).await.expect("connects");
        let (peer, _) = listener.accept().await.expect("it is there");
        let gateway = crate::testing::gateway(&crate::config::Config::default());
        let worker = Arc::clone(gateway.hubs().workers().pin());
        let outbox = Arc::new(Outbox::new(Arc::new(stream), 1024, worker));
        (peer, Arc::new(Channel::new("conversation:c".into(), Some("1".into()), None, outbox)))
    }

    fn sink(channel: &Arc<Channel>, sending: Sending) -> ChannelSink {
        let outbox = Arc::clone(&channel.outbox);
        let gate = Arc::clone(&channel.gate);
        ChannelSink { outbox, gate, channel: Arc::downgrade(channel), reference: None, reconnect_jitter_ms: 0, sending }
    }

    fn reply() -> Joined {
        Joined { head_seq: Seq(0), log: LogId::new("s", Generation(1)), epoch: Epoch(1), catch_up: CatchUp::Streaming }
    }

    /// A client pushes as soon as it has the reply, which can be before the join's task goes on.
    #[tokio::test]
    async fn pushes_are_taken_from_the_reply_on() {
        let channel = channel().await;
        assert!(channel.is_joining());
        sink(&channel, Sending::Allowed).joined(&reply());
        assert!(!channel.is_joining() && channel.may_send().is_ok());
    }

    #[tokio::test]
    async fn who_may_only_read_may_not_send_from_the_reply_on() {
        let channel = channel().await;
        let refusal = Refusal::new(Code::Forbidden, "reads only");
        sink(&channel, Sending::Refused(refusal.clone())).joined(&reply());
        assert_eq!(channel.may_send(), Err(refusal));
    }

    #[tokio::test]
    async fn a_channel_that_was_left_meanwhile_stays_left() {
        let channel = channel().await;
        channel.leave();
        sink(&channel, Sending::Allowed).joined(&reply());
        assert!(channel.has_left() && !channel.is_joining());
    }

    #[tokio::test]
    async fn what_is_shown_after_a_channel_was_left_is_not_sent() {
        let (_peer, channel) = connected().await;
        let sink = sink(&channel, Sending::Allowed);
        let address = crate::frame::Address { topic: "conversation:c".into(), log: reply().log };
        let frame = Arc::new(Frame::caught_up(&address, Seq(1)));
        assert_eq!(sink.push(&frame), Push::Accepted);
        channel.leave();
        assert_eq!(sink.push(&frame), Push::Closed);
    }
}
