//! A socket's task: reads frames, answers pushes, writes what the outbox could not write at once.
//!
//! Invariant: an idle connection holds no read buffer and an empty queue. The order of a client's pushes to one topic is
//! the order in which they reach its owner.

use std::hash::{DefaultHasher, Hasher};
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use conch_core::refusal::{Code, Refusal};
use conch_core::wire::phoenix::{self, ClientFrame, Status, Topic};
use conch_core::wire::websocket::{self, CloseCode, Incoming, Reader, Side};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::channel::{Channel, ChannelSink, Membership, Sending};
use super::outbox::{Flush, Outbox};
use super::pushes::{Joining, Lane, Pushes};
use crate::auth::grants::{Permission, Principal};
use crate::gateway::errors::{IntoRefusal, channel_error};
use crate::gateway::input::from_json;
use crate::gateway::{Gateway, Shutdown, Slot};
use crate::hub::Join;
use crate::metrics::Queue;
use crate::rules::Rule;

/// Bytes read at once. On the stack: an idle connection holds none.
const READ_BYTES: usize = 4 * 1024;
/// A client sends a heartbeat every 30 s; one that is silent for this long is gone.
const IDLE: Duration = Duration::from_secs(75);
/// Frames handled before the outbox gets its turn.
const FRAMES_PER_TURN: usize = 64;
/// How long a closing connection may take to write its last bytes.
const LAST_WRITE: Duration = Duration::from_secs(5);
/// How long a closed connection waits for its peer to close, too.
const LINGER: Duration = Duration::from_secs(2);

pub(super) struct Connection {
    pub(super) gateway: Gateway,
    pub(super) principal: Arc<Principal>,
    stream: Arc<TcpStream>,
    pub(super) outbox: Arc<Outbox>,
    reader: Reader,
    buffer: BytesMut,
    /// Few: a search through them costs less memory than a map, most of which would be empty.
    channels: Vec<Joined>,
    pub(super) under_way: Arc<Pushes>,
    last_read: Instant,
    shutdown: Shutdown,
    _slot: Slot,
}

/// A joined channel and the lane of its pushes.
pub(super) struct Joined {
    /// Of its topic. Found by it, without a look at each topic's text, which lies somewhere else in memory.
    digest: u64,
    pub(super) channel: Arc<Channel>,
    pub(super) lane: Lane,
}

impl Joined {
    fn new(channel: Arc<Channel>) -> Self {
        Self { digest: digest(&channel.topic), channel, lane: Lane::default() }
    }
}

/// Equal topics have equal digests; others seldom do.
fn digest(topic: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(topic.as_bytes());
    hasher.finish()
}

/// Whether the connection goes on.
enum Next {
    /// Wait for something.
    GoOn,
    /// There is more in the buffer.
    More,
    End,
}

impl Connection {
    pub(super) fn new(
        gateway: Gateway,
        principal: Arc<Principal>,
        stream: TcpStream,
        read_ahead: &[u8],
        slot: Slot,
    ) -> Self {
        let stream = Arc::new(stream);
        let limits = gateway.limits();
        let worker = Arc::clone(gateway.hubs().workers().pin());
        let outbox = Arc::new(Outbox::new(Arc::clone(&stream), limits.outbox_bytes, worker));
        let frame_bytes = u32::try_from(limits.frame_bytes).unwrap_or(u32::MAX);
        Self {
            principal,
            outbox,
            reader: Reader::new(Side::Server, frame_bytes),
            buffer: BytesMut::from(read_ahead),
            channels: Vec::new(),
            under_way: Arc::default(),
            last_read: Instant::now(),
            shutdown: gateway.shutdown(),
            stream,
            gateway,
            _slot: slot,
        }
    }

    /// Serves the socket to its end. Boxed, and in two parts that take turns in the same bytes: what this future holds is
    /// what an idle socket costs.
    pub(super) async fn run(mut self: Box<Self>) {
        self.serve().await;
        self.end().await;
    }

    async fn serve(&mut self) {
        let expiry = Instant::now() + self.expires_in();
        let timer = tokio::time::sleep_until(expiry.min(self.last_read + IDLE));
        tokio::pin!(timer);
        let (mut writable, mut draining) = (false, false);
        loop {
            // Who takes no answers is asked for nothing more: what waits for it stays bounded.
            let reads = !self.outbox.is_over();
            match if reads { self.handle_buffer() } else { Next::GoOn } {
                Next::End => break,
                Next::More => {
                    writable = self.outbox.flush() == Flush::Blocked;
                    tokio::task::yield_now().await;
                    continue;
                }
                Next::GoOn => {}
            }
            tokio::select! {
                biased;
                // All branches are cancel safe: readiness is kept by the stream, notifications by their notifier.
                () = self.outbox.work() => {}
                ready = self.stream.writable(), if writable => drop(ready),
                ready = self.stream.readable(), if reads => {
                    if ready.is_err() || matches!(self.read(), Next::End) {
                        break;
                    }
                    continue;
                }
                // What is under way is answered first; what comes now is refused.
                () = self.shutdown.begun() => draining = true,
                () = self.under_way.none(), if draining => {
                    self.close(CloseCode::RESTART, "the node shuts down");
                    break;
                }
                () = &mut timer => {
                    if Instant::now() >= expiry {
                        self.close(CloseCode::POLICY, "the token has expired");
                        break;
                    }
                    if self.last_read.elapsed() >= IDLE {
                        self.outbox.abort();
                        break;
                    }
                    timer.as_mut().reset(expiry.min(self.last_read + IDLE));
                }
            }
            match self.outbox.flush() {
                Flush::Empty => writable = false,
                Flush::Blocked => writable = true,
                Flush::Done => break,
            }
        }
    }

    fn expires_in(&self) -> Duration {
        let now = self.gateway.node().seams.clock.wall();
        Duration::from_millis(u64::try_from(self.principal.expires_at.0 - now.0).unwrap_or(0))
    }

    fn close(&self, code: CloseCode, reason: &str) {
        self.outbox.finish(websocket::close_frame(code, reason));
    }

    /// Lets the last bytes go, a bounded time, and leaves every channel.
    async fn end(&mut self) {
        for joined in self.channels.drain(..) {
            joined.channel.leave();
        }
        let last_bytes = async {
            while self.outbox.flush() == Flush::Blocked {
                if self.stream.writable().await.is_err() {
                    return;
                }
            }
        };
        // A peer that takes nothing loses its last bytes.
        if tokio::time::timeout(LAST_WRITE, last_bytes).await.is_ok() {
            // Over time it is gone anyway.
            let _ = tokio::time::timeout(LINGER, self.linger()).await;
        }
        self.outbox.abort();
    }

    /// Waits for the peer to close. A socket that is dropped with unread bytes resets the connection, and a reset takes
    /// the close frame with it.
    async fn linger(&self) {
        if socket2::SockRef::from(&*self.stream).shutdown(std::net::Shutdown::Write).is_err() {
            return;
        }
        while self.stream.readable().await.is_ok() && self.drops_what_came() {}
    }

    /// Drops what came; whether there may be more. No part of the future above, so that no idle socket holds the bytes.
    fn drops_what_came(&self) -> bool {
        let mut unread = [0; READ_BYTES];
        match self.stream.try_read(&mut unread) {
            Ok(count) => count > 0,
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        }
    }

    /// Takes what has come. A read that leaves room has taken everything: the socket counts as read out, as if another read
    /// had found nothing, and the next bytes make it readable again.
    fn read(&mut self) -> Next {
        let mut bytes = [0; READ_BYTES];
        let mut count = None;
        let read = self.stream.try_io(Interest::READABLE, || {
            let taken = *count.insert(rustix::io::read(&*self.stream, &mut bytes)?);
            if (1..READ_BYTES).contains(&taken) { Err(ErrorKind::WouldBlock.into()) } else { Ok(()) }
        });
        match (count, read) {
            (Some(0), _) => Next::End,
            (Some(count), _) => {
                self.buffer.extend_from_slice(&bytes[..count]);
                self.last_read = Instant::now();
                Next::GoOn
            }
            (None, Err(error)) if error.kind() != ErrorKind::WouldBlock => Next::End,
            (None, _) => Next::GoOn,
        }
    }

    /// Handles what is in the buffer.
    fn handle_buffer(&mut self) -> Next {
        for _ in 0..FRAMES_PER_TURN {
            match self.reader.next(&mut self.buffer) {
                Ok(None) => {
                    let holds_nothing = self.gateway.node().rules.hold(Rule::IdleHoldsNothing);
                    if self.buffer.is_empty() && self.buffer.capacity() > 0 && holds_nothing {
                        self.buffer = BytesMut::new();
                    }
                    return Next::GoOn;
                }
                Ok(Some(Incoming::Text(text))) => self.text(&text),
                Ok(Some(Incoming::Ping(payload))) => self.outbox.answer(websocket::pong_frame(&payload)),
                Ok(Some(Incoming::Pong(_))) => {}
                Ok(Some(Incoming::Close(code))) => {
                    self.close(code.unwrap_or(CloseCode::NORMAL), "");
                    return Next::End;
                }
                Ok(Some(Incoming::Binary(_))) => {
                    self.close(CloseCode(1003), "binary frames are not part of this protocol");
                    return Next::End;
                }
                Err(error) => {
                    if error.close_code() == CloseCode::TOO_BIG {
                        self.gateway.node().metrics.limit_hit(Queue::Frame);
                    }
                    self.close(error.close_code(), &error.to_string());
                    return Next::End;
                }
            }
        }
        // The outbox and the other connections get their turn first.
        Next::More
    }

    fn text(&mut self, text: &str) {
        match ClientFrame::parse(text) {
            Ok(frame) if frame.is_heartbeat() => {
                let reply = phoenix::reply(None, frame.reference.as_deref(), "phoenix", Status::Ok, "{}");
                self.outbox.answer(websocket::text_frame(&reply));
            }
            Ok(frame) => self.frame(&frame),
            Err(error) => {
                let refusal = Refusal::from(&error);
                self.gateway.node().metrics.refused(refusal.code);
                let response = channel_error(&refusal);
                let (join_ref, reference, topic) = match &error.reply_to {
                    Some(to) => (to.join_ref.as_deref(), Some(to.reference.as_str()), to.topic.as_str()),
                    None => (None, None, "phoenix"),
                };
                let reply = phoenix::reply(join_ref, reference, topic, Status::Error, &response);
                self.outbox.answer(websocket::text_frame(&reply));
            }
        }
    }

    fn frame(&mut self, frame: &ClientFrame<'_>) {
        match &*frame.event {
            "phx_join" => self.join(frame),
            "phx_leave" => {
                let reference = frame.reference.as_deref();
                // A leave that comes after a newer join of the topic is about the older one, which has ended.
                let current = self.joined(&frame.topic).is_some_and(|joined| {
                    frame.join_ref.is_none() || joined.channel.join_ref.as_deref() == frame.join_ref.as_deref()
                });
                if current && let Some(joined) = self.joined(&frame.topic) {
                    self.outbox.shut(&joined.channel.gate);
                }
                self.reply(frame, reference, Status::Ok, "{}");
                if current {
                    self.leave(&frame.topic);
                }
            }
            _ => match self.joined(&frame.topic) {
                Some(joined)
                    if joined.channel.join_ref.as_deref() == frame.join_ref.as_deref()
                        && !joined.channel.has_left() =>
                {
                    self.push(joined, frame);
                }
                _ => {
                    let refusal = Refusal::new(Code::NotFound, "topic: is not joined on this socket");
                    self.refuse(frame, &refusal);
                }
            },
        }
    }

    fn joined(&self, topic: &str) -> Option<&Joined> {
        let digest = digest(topic);
        self.channels.iter().find(|joined| joined.digest == digest && *joined.channel.topic == *topic)
    }

    /// Leaves a topic, if it is joined, and tells the client.
    fn leave(&mut self, topic: &str) {
        for left in self.channels.extract_if(.., |joined| *joined.channel.topic == *topic) {
            left.channel.leave();
            left.channel.send_close();
        }
    }

    fn reply(&self, frame: &ClientFrame<'_>, reference: Option<&str>, status: Status, response_json: &str) {
        let text = phoenix::reply(frame.join_ref.as_deref(), reference, &frame.topic, status, response_json);
        self.outbox.answer(websocket::text_frame(&text));
    }

    fn join(&mut self, frame: &ClientFrame<'_>) {
        if let Err(refusal) = self.try_join(frame) {
            self.refuse(frame, &refusal);
        }
    }

    fn refuse(&self, frame: &ClientFrame<'_>, refusal: &Refusal) {
        self.gateway.node().metrics.refused(refusal.code);
        self.reply(frame, frame.reference.as_deref(), Status::Error, &channel_error(refusal));
    }

    fn try_join(&mut self, frame: &ClientFrame<'_>) -> Result<(), Refusal> {
        self.gateway.refuse_if_draining()?;
        let topic: Topic = frame.topic.parse().map_err(IntoRefusal::into_refusal)?;
        let payload: JoinPayload = from_json(frame.payload.get())?;
        self.leave(&frame.topic);
        self.channels.retain(|joined| !joined.channel.has_left());
        let limit = self.gateway.limits().topics_per_socket;
        if self.channels.len() >= limit {
            let detail = format!("topic: at most {limit} may be joined on one socket");
            self.gateway.node().metrics.limit_hit(Queue::Topics);
            return Err(Refusal::new(Code::UnprocessableRequest, detail));
        }
        self.gateway.take_join_rate(&self.principal)?;
        // A topic that is joined again and again has no more of them than there may be topics.
        let joining = Joining::begin(&self.under_way, limit)
            .inspect_err(|_| self.gateway.node().metrics.limit_hit(Queue::Topics))?;
        let conversation = match topic {
            Topic::Conversation(id) => Some(id.into()),
            Topic::Me => None,
        };
        let join_ref = frame.join_ref.as_deref().map(Into::into);
        let name: Arc<str> = (&*frame.topic).into();
        let channel = Arc::new(Channel::new(name, join_ref, conversation, Arc::clone(&self.outbox)));
        // One at a time: most sockets join one topic or two, and room for four would be left empty.
        self.channels.reserve_exact(1);
        self.channels.push(Joined::new(Arc::clone(&channel)));
        let reference: Option<Arc<str>> = frame.reference.as_deref().map(Into::into);
        let (gateway, principal) = (self.gateway.clone(), Arc::clone(&self.principal));
        let task = join_task(gateway, principal, channel, reference, payload);
        tokio::spawn(async move {
            task.await;
            drop(joining);
        });
        Ok(())
    }
}

/// What a join may say.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct JoinPayload {
    after: Option<u64>,
    log: Option<String>,
}

async fn join_task(
    gateway: Gateway,
    principal: Arc<Principal>,
    channel: Arc<Channel>,
    reference: Option<Arc<str>>,
    payload: JoinPayload,
) {
    let sink = ChannelSink {
        outbox: Arc::clone(&channel.outbox),
        gate: Arc::clone(&channel.gate),
        channel: Arc::downgrade(&channel),
        reference: reference.clone(),
        reconnect_jitter_ms: gateway.reconnect_jitter_ms(),
        sending: Sending::Allowed,
    };
    let result = match &channel.conversation {
        Some(conversation) => join_conversation(&gateway, &principal, conversation, sink, payload).await,
        None => {
            channel.reply(reference.as_deref(), Status::Ok, "{}");
            Ok((Membership::Me(gateway.people().join(principal.sub.clone(), Arc::new(sink))), Sending::Allowed))
        }
    };
    match result {
        Ok((membership, sending)) => {
            channel.joined(membership, sending);
            // Who was removed while the join was under way was perhaps not there yet to be cut off.
            if let Some(conversation) = &channel.conversation
                && gateway.require(&principal, Permission::Read, conversation).await.is_err()
            {
                channel.leave();
                channel.send_close();
            }
        }
        Err(refusal) => {
            gateway.node().metrics.refused(refusal.code);
            // Left first: the client may use the topic's room as soon as it has the answer.
            channel.leave();
            channel.refuse(reference.as_deref(), &refusal);
        }
    }
}

async fn join_conversation(
    gateway: &Gateway,
    principal: &Principal,
    conversation: &conch_core::ids::ConvRef,
    sink: ChannelSink,
    payload: JoinPayload,
) -> Result<(Membership, Sending), Refusal> {
    gateway.require(principal, Permission::Read, conversation).await?;
    let sending = match gateway.require(principal, Permission::Send, conversation).await {
        Ok(()) => Sending::Allowed,
        Err(refusal) => Sending::Refused(refusal),
    };
    let join = Join {
        sink: Arc::new(ChannelSink { sending: sending.clone(), ..sink }),
        sub: principal.sub.clone(),
        name: principal.name.as_deref().map(Into::into),
        after: payload.after.map(conch_core::ids::Seq),
        log: payload.log,
    };
    let session = gateway.hubs().join_by(principal.right_to_read(conversation), conversation, join).await?;
    Ok((Membership::Conversation(session), sending))
}
