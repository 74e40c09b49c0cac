//! Server-Sent Events: a conversation's stream, and the personal one.
//!
//! A browser's EventSource stops for ever at a status other than 200. So where the client accepts an event stream,
//! overload, unavailability and drain answer 200 with `retry:` and an event `reconnect`, and end.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use conch_core::ids::{ConvRef, Seq};
use conch_core::refusal::{Code, Refusal};
use conch_core::wire::sse::{self, Position};
use futures_util::future::BoxFuture;
use futures_util::stream;
use http::{HeaderMap, HeaderValue, header};
use serde::Deserialize;
use tokio::time::Instant;

use super::errors::HttpError;
use super::input::{Path, Query, conversation_ref};
use super::queue::Queue;
use super::{Caller, Gateway, Shutdown, Slot};
use crate::auth::grants::{Permission, Principal};
use crate::delivery::Batch;
use crate::frame::Frame;
use crate::hub::Join;
use crate::hub::sink::{FrameSink, Joined, Push, Sink};

/// Time between two comments, which keep proxies from closing an idle stream.
pub(super) const COMMENT: Duration = Duration::from_secs(5);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StreamQuery {
    after: Option<u64>,
    log: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NoQuery {}

/// `GET /v1/conversations/{id}/stream`.
pub(super) async fn conversation(
    State(gateway): State<Gateway>,
    Caller(principal): Caller,
    Path(id): Path<String>,
    headers: HeaderMap,
    Query(query): Query<StreamQuery>,
) -> Result<Response, HttpError> {
    let conversation = conversation_ref(&id)?;
    let (after, log) = position(&headers, query)?;
    if let Err(refusal) = gateway.refuse_newcomers().and_then(|()| gateway.take_join_rate(&principal)) {
        return Ok(refused(&gateway, &headers, refusal));
    }
    gateway.require(&principal, Permission::Read, &conversation).await?;
    match open(&gateway, &principal, &conversation, after, log).await {
        Ok(response) => Ok(response),
        Err(refusal) => Ok(refused(&gateway, &headers, refusal)),
    }
}

/// `Last-Event-ID` names a position in a log and wins over the query.
fn position(headers: &HeaderMap, query: StreamQuery) -> Result<(Option<Seq>, Option<String>), Refusal> {
    let Some(last) = headers.get("last-event-id").filter(|value| !value.is_empty()) else {
        return Ok((query.after.map(Seq), query.log));
    };
    let invalid = |detail: String| Refusal::new(Code::InvalidRequest, detail);
    let text = last.to_str().map_err(|_| invalid("last-event-id: is not printable ASCII".to_owned()))?;
    let Position { log, seq } = text.parse().map_err(|error: conch_core::ids::InvalidId| invalid(error.to_string()))?;
    Ok((Some(seq), Some(log)))
}

async fn open(
    gateway: &Gateway,
    principal: &Principal,
    conversation: &ConvRef,
    after: Option<Seq>,
    log: Option<String>,
) -> Result<Response, Refusal> {
    gateway.refuse_if_draining()?;
    let slot = take_slot(gateway)?;
    let queue = Arc::new(Queue::new(gateway.limits().outbox_bytes));
    let join = Join {
        sink: Arc::new(EventSink(Arc::clone(&queue))),
        sub: principal.sub.clone(),
        name: principal.name.as_deref().map(Into::into),
        after,
        log,
    };
    let session = gateway.hubs().join_by(principal.right_to_read(conversation), conversation, join).await?;
    // Who was removed while the join was under way was perhaps not there yet to be cut off.
    gateway.require(principal, Permission::Read, conversation).await?;
    Ok(respond(gateway, principal, queue, (session, slot)))
}

/// `GET /v1/stream`.
pub(super) async fn personal(
    State(gateway): State<Gateway>,
    Caller(principal): Caller,
    headers: HeaderMap,
    Query(NoQuery {}): Query<NoQuery>,
) -> Result<Response, HttpError> {
    let slot = match gateway.refuse_newcomers().and_then(|()| take_slot(&gateway)) {
        Ok(slot) => slot,
        Err(refusal) => return Ok(refused(&gateway, &headers, refusal)),
    };
    let queue = Arc::new(Queue::new(gateway.limits().outbox_bytes));
    let session = gateway.people().join(principal.sub.clone(), Arc::new(EventSink(Arc::clone(&queue))));
    Ok(respond(&gateway, &principal, queue, (session, slot)))
}

pub(super) fn take_slot(gateway: &Gateway) -> Result<Slot, Refusal> {
    gateway
        .take_stream_slot()
        .ok_or_else(|| Refusal::retry(Code::Overloaded, "the node has its limit of streams", gateway.reconnect_retry()))
}

/// A refusal as an EventSource understands it, if the client is one and a retry can help.
fn refused(gateway: &Gateway, headers: &HeaderMap, refusal: Refusal) -> Response {
    let accepts = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let is_event_source =
        accepts.flat_map(|value| value.split(',')).any(|part| part.trim().starts_with("text/event-stream"));
    if !is_event_source || refusal.retry.is_none() {
        return HttpError(refusal).into_response();
    }
    gateway.node().metrics.refused(refusal.code);
    event_stream(Body::from(reconnect(gateway)))
}

/// The end of a stream whose client shall come back at a moment of its own.
fn reconnect(gateway: &Gateway) -> String {
    let after_ms = gateway.reconnect_retry().after_ms;
    let event = sse::event(None, "reconnect", &format!(r#"{{"after_ms":{after_ms}}}"#));
    format!("{}{event}", sse::retry(after_ms))
}

pub(super) fn event_stream(body: Body) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// `held` is dropped with the stream: it leaves the hub and gives the slot back.
fn respond<T: Send + 'static>(gateway: &Gateway, principal: &Principal, queue: Arc<Queue<Bytes>>, held: T) -> Response {
    let reading = Reading {
        queue,
        shutdown: gateway.shutdown(),
        gateway: gateway.clone(),
        expires: end_of_token(gateway, principal),
        stage: Stage::Begins,
        _held: held,
    };
    let body = stream::unfold(reading, |mut reading| async move {
        let bytes = reading.next().await?;
        Some((Ok::<_, Infallible>(bytes), reading))
    });
    event_stream(Body::from_stream(body))
}

/// When a stream has to end because its token does.
pub(super) fn end_of_token(gateway: &Gateway, principal: &Principal) -> Instant {
    let now = gateway.node().seams.clock.wall();
    Instant::now() + Duration::from_millis(u64::try_from(principal.expires_at.0 - now.0).unwrap_or(0))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nothing was sent; a first comment makes proxies and clients see the response.
    Begins,
    Runs,
    Ended,
}

/// The reading side of a stream.
struct Reading<T> {
    queue: Arc<Queue<Bytes>>,
    shutdown: Shutdown,
    gateway: Gateway,
    expires: Instant,
    stage: Stage,
    _held: T,
}

impl<T> Reading<T> {
    async fn next(&mut self) -> Option<Bytes> {
        match self.stage {
            Stage::Begins => {
                self.stage = Stage::Runs;
                return Some(sse::comment("conch").into());
            }
            Stage::Ended => return None,
            Stage::Runs => {}
        }
        // Here, too: a stream that is busy, or whose client reads slowly, does not wait for the timer below.
        if Instant::now() >= self.expires {
            return None;
        }
        // All branches are cancel safe.
        tokio::select! {
            biased;
            () = self.shutdown.begun() => {
                self.stage = Stage::Ended;
                Some(reconnect(&self.gateway).into())
            }
            next = self.queue.next() => next,
            // The client comes back with its old token and is told then.
            () = tokio::time::sleep_until(self.expires) => None,
            () = tokio::time::sleep(COMMENT) => Some(sse::comment("").into()),
        }
    }
}

impl<T> Drop for Reading<T> {
    fn drop(&mut self) {
        self.queue.close();
    }
}

struct EventSink(Arc<Queue<Bytes>>);

impl FrameSink for EventSink {
    fn push(&self, frame: &Arc<Frame>) -> Push {
        let event = frame.event_stream();
        self.0.push(event.clone(), event.len(), frame.class())
    }

    fn push_joined(&self, batch: &Batch) -> Push {
        let events = batch.event_stream();
        self.0.push_joined(events.clone(), events.len())
    }

    fn room(&self) -> BoxFuture<'static, ()> {
        let queue = Arc::clone(&self.0);
        Box::pin(async move { queue.room().await })
    }

    fn end(&self, _reason: &Refusal) {
        self.0.close();
    }
}

impl Sink for EventSink {
    fn joined(&self, _joined: &Joined) {}
}
