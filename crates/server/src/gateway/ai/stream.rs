//! A turn's stream to one client.
//!
//! Invariant: a stream ends in order only when its turn did. Whatever else ends it (what was sent cannot be taken back, the
//! token's end, a node that goes away, a hub that lets go) breaks the connection in the middle of the body: clients take an end in
//! order for an answer that is whole. While an owner is lost the stream stays open, and the hub finds the next one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use conch_core::ids::{ConvRef, Seq};
use conch_core::record::RecordKind;
use conch_core::refusal::{Code, Refusal};
use conch_core::turn::live::LiveEvent;
use conch_core::wire::ai::{DONE, Next, Told, TurnStream};
use conch_core::wire::sse;
use futures_util::future::BoxFuture;
use futures_util::stream;
use http::HeaderValue;
use tokio::time::Instant;

use crate::auth::grants::{Permission, Principal};
use crate::frame::Frame;
use crate::gateway::queue::Queue;
use crate::gateway::streams::{COMMENT, end_of_token, event_stream};
use crate::gateway::{Gateway, Shutdown, Slot};
use crate::hub::sink::{CatchUp, FrameSink, Joined, Push, Sink};
use crate::hub::{Join, Session};

/// Tells clients which kind of stream it is.
const PROTOCOL: (&str, &str) = ("x-vercel-ai-ui-message-stream", "v1");

/// Opens the stream of a turn, from its input on.
///
/// # Errors
/// When the conversation's hub is not joined.
pub(super) async fn open(
    gateway: &Gateway,
    principal: &Principal,
    conversation: &ConvRef,
    turn: Seq,
    slot: Slot,
) -> Result<Response, Refusal> {
    let watch = Watch::join(gateway, principal, conversation, turn).await?;
    let now = Instant::now();
    let reading = Reading {
        gateway: gateway.clone(),
        principal: principal.clone(),
        conversation: conversation.clone(),
        watch,
        shutdown: gateway.shutdown(),
        expires: end_of_token(gateway, principal),
        comment_due: now,
        stage: Stage::Runs,
        _slot: slot,
    };
    let body = stream::unfold(reading, |mut reading| async move {
        let bytes = reading.next().await?;
        if let Err(broken) = &bytes {
            tracing::debug!(conversation = %reading.conversation.id, turn = %reading.watch.turn.turn(), %broken, "a chat's stream breaks");
        }
        Some((bytes, reading))
    });
    let mut response = event_stream(Body::from_stream(body));
    response.headers_mut().insert(PROTOCOL.0, HeaderValue::from_static(PROTOCOL.1));
    Ok(response)
}

/// Why a connection is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum Broken {
    #[error("what was sent cannot be taken back")]
    Retracted,
    #[error("the token has expired")]
    Expired,
    #[error("the node shuts down")]
    ShutDown,
    #[error("the conversation is not followed any more")]
    LetGo,
}

/// A turn that is watched.
struct Watch {
    turn: TurnStream,
    queue: Arc<Queue<Arc<Frame>>>,
    _session: Session,
}

impl Watch {
    async fn join(
        gateway: &Gateway,
        principal: &Principal,
        conversation: &ConvRef,
        turn: Seq,
    ) -> Result<Self, Refusal> {
        let queue = Arc::new(Queue::new(gateway.limits().outbox_bytes));
        let sink = Arc::new(TurnSink { queue: Arc::clone(&queue), is_too_late: AtomicBool::new(false) });
        let join = Join {
            sink: Arc::clone(&sink) as Arc<dyn Sink>,
            sub: principal.sub.clone(),
            name: principal.name.as_deref().map(Into::into),
            after: Some(Seq(turn.0.saturating_sub(1))),
            log: None,
        };
        let session = gateway.hubs().join_by(principal.right_to_read(conversation), conversation, join).await?;
        if sink.is_too_late.load(Ordering::Relaxed) {
            let limit = gateway.limits().catch_up_records;
            let detail = format!("turn: {turn} began more than {limit} records ago; read its messages");
            return Err(Refusal::new(Code::Conflict, detail));
        }
        // Who was removed while the join was under way was perhaps not there yet to be cut off.
        gateway.require(principal, Permission::Read, conversation).await?;
        Ok(Self { turn: TurnStream::new(turn), queue, _session: session })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.queue.close();
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Runs,
    /// The turn is told to its end.
    Ended,
}

struct Reading {
    gateway: Gateway,
    principal: Principal,
    conversation: ConvRef,
    watch: Watch,
    shutdown: Shutdown,
    expires: Instant,
    /// The first comes at once, so that proxies and clients see the response.
    comment_due: Instant,
    stage: Stage,
    _slot: Slot,
}

impl Reading {
    /// What is sent next; `None`: the end. Nothing is read after an error.
    async fn next(&mut self) -> Option<Result<Bytes, Broken>> {
        if self.stage == Stage::Ended {
            return None;
        }
        loop {
            // All branches are cancel safe.
            let frame = tokio::select! {
                biased;
                () = self.shutdown.begun() => return Some(Err(Broken::ShutDown)),
                () = tokio::time::sleep_until(self.expires) => return Some(Err(Broken::Expired)),
                // Before the frames: those of other turns do not put a comment off.
                () = tokio::time::sleep_until(self.comment_due) => {
                    self.comment_due = Instant::now() + COMMENT;
                    return Some(Ok(sse::comment("").into()));
                }
                frame = self.watch.queue.next() => frame,
            };
            let Some(frame) = frame else { return Some(Err(Broken::LetGo)) };
            match self.tell(&frame).await {
                Ok(text) if text.is_empty() => {}
                Ok(text) => {
                    self.comment_due = Instant::now() + COMMENT;
                    return Some(Ok(text.into()));
                }
                Err(broken) => return Some(Err(broken)),
            }
        }
    }

    /// The text of a frame for the client.
    async fn tell(&mut self, frame: &Frame) -> Result<String, Broken> {
        let Told { parts, next } = match told(&mut self.watch.turn, frame) {
            Some(told) => told,
            // Another history, or too much happened since the turn began: it cannot be told any more.
            None => return Err(Broken::LetGo),
        };
        let mut text: String = parts.iter().map(conch_core::wire::ai::Part::frame).collect();
        match next {
            Next::GoOn => {}
            Next::Ended => {
                text.push_str(DONE);
                self.stage = Stage::Ended;
            }
            Next::Retracted => return Err(Broken::Retracted),
            Next::Joined(into) => {
                let Self { gateway, principal, conversation, .. } = &*self;
                let joined = Watch::join(gateway, principal, conversation, into).await;
                self.watch = joined.map_err(|_| Broken::LetGo)?;
            }
        }
        Ok(text)
    }
}

/// `None`: the history that the turn is in is gone.
fn told(turn: &mut TurnStream, frame: &Frame) -> Option<Told> {
    if frame.event() == RESYNC {
        return None;
    }
    if let Some(event) = LiveEvent::decode(frame.event(), frame.json()) {
        return Some(turn.live(&event));
    }
    let record =
        serde_json::from_str(frame.json()).expect("only records and live events are taken, as they were written");
    Some(turn.record(&record))
}

const RESYNC: &str = "resync";

/// What a turn's stream is made from.
fn is_told(frame: &Frame) -> bool {
    let live = ["delta", "turn.snapshot", "step.reset", "turn.resumed"];
    let event = frame.event();
    event == RESYNC || live.contains(&event) || RecordKind::ALL.iter().any(|kind| kind.as_str() == event)
}

struct TurnSink {
    queue: Arc<Queue<Arc<Frame>>>,
    /// The turn began too long ago to be told from its beginning.
    is_too_late: AtomicBool,
}

impl FrameSink for TurnSink {
    fn push(&self, frame: &Arc<Frame>) -> Push {
        if !is_told(frame) {
            return Push::Accepted;
        }
        self.queue.push(Arc::clone(frame), frame.json().len(), frame.class())
    }

    fn room(&self) -> BoxFuture<'static, ()> {
        let queue = Arc::clone(&self.queue);
        Box::pin(async move { queue.room().await })
    }

    fn end(&self, _reason: &Refusal) {
        self.queue.close();
    }
}

impl Sink for TurnSink {
    fn joined(&self, joined: &Joined) {
        self.is_too_late.store(joined.catch_up == CatchUp::Resync, Ordering::Relaxed);
    }
}
