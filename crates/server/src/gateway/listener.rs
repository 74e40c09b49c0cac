//! The public listener: accepts connections within a bound, and checks what every request has in common.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{ConnectInfo, MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use conch_core::refusal::{Code, Refusal, Retry};
use http::{HeaderValue, Method, StatusCode, header};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tower::ServiceExt;

use super::errors::HttpError;
use super::stall::Stalling;
use super::unread::{self, Lent};
use super::{Gateway, Slot};
use crate::auth::extract;
use crate::auth::origin::Page;
use crate::config::Limits;

/// Pause after a connection could not be accepted, which happens when the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Room for the request line beside the headers.
const REQUEST_LINE_BYTES: usize = 16 * 1024;

/// Why the gateway does not listen.
#[derive(Debug, thiserror::Error)]
#[error("listen ({addr}): {source}")]
pub struct ListenError {
    addr: SocketAddr,
    source: io::Error,
}

/// A bound public listener.
pub struct Listener {
    listener: TcpListener,
    addr: SocketAddr,
}

impl Listener {
    /// Binds the address.
    ///
    /// # Errors
    /// When it cannot be bound.
    pub async fn bind(addr: SocketAddr) -> Result<Self, ListenError> {
        let error = |source| ListenError { addr, source };
        let listener = TcpListener::bind(addr).await.map_err(error)?;
        let addr = listener.local_addr().map_err(error)?;
        Ok(Self { listener, addr })
    }

    /// Where it listens, with the port that a 0 became.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Serves until the gateway shuts down; then stops accepting. Connections under way go on.
    pub async fn serve(self, gateway: Gateway) {
        let service = gateway.service();
        let mut shutdown = gateway.shutdown();
        loop {
            // Both branches are cancel safe.
            let accepted = tokio::select! {
                biased;
                () = shutdown.at_last() => return,
                accepted = self.listener.accept() => accepted,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection was not accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let metrics = &gateway.node().metrics;
            let Some(slot) =
                Slot::take(&gateway.shared.connections, gateway.limits().connections, &metrics.connections)
            else {
                metrics.limit_hit(crate::metrics::Queue::Connections);
                continue; // Dropped: the peer sees a reset and comes back.
            };
            // Small frames must not wait for the acknowledgement of the ones before.
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "TCP_NODELAY was not set");
            }
            let service = service.clone();
            tokio::spawn(connection(gateway.clone(), service, stream, peer, slot));
        }
    }
}

async fn connection(gateway: Gateway, service: axum::Router, stream: TcpStream, peer: SocketAddr, slot: Slot) {
    let (stream, back) = Lent::new(Stalling::new(stream));
    let ended = serve_connection(&gateway, service, stream, peer).await;
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "a connection ended");
        if let Some(stream) = back.owed() {
            let refusal = unread::refusal(&error, headers_too_large(gateway.limits()));
            gateway.node().metrics.refused(refusal.code);
            if let Err(error) = unread::answer(stream, refusal).await {
                tracing::debug!(%peer, %error, "a refusal did not reach its client");
            }
        }
    }
    drop(slot);
}

/// Lets hyper serve a connection; whatever becomes of it, the stream is back when this returns.
async fn serve_connection(
    gateway: &Gateway,
    service: axum::Router,
    stream: Lent<Stalling>,
    peer: SocketAddr,
) -> hyper::Result<()> {
    let limits = gateway.limits();
    let service = service.map_request(move |mut request: http::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(ConnectInfo(peer));
        request.map(Body::new)
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_millis(limits.header_timeout_ms))
        // The limit itself is checked by `common_checks`, which can say so; this bounds what is read before.
        .max_headers(limits.headers * 2)
        .max_buf_size((limits.header_bytes * 2 + REQUEST_LINE_BYTES).max(8192));
    let serving = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service)).with_upgrades();
    tokio::pin!(serving);
    let mut shutdown = gateway.shutdown();
    // Both branches are cancel safe: the connection is pinned outside.
    tokio::select! {
        ended = &mut serving => ended,
        () = shutdown.at_last() => {
            serving.as_mut().graceful_shutdown();
            // Requests under way are answered; a peer that does not take its answer is left behind.
            let limit = Duration::from_millis(limits.request_timeout_ms);
            tokio::time::timeout(limit, serving).await.unwrap_or_else(|_| {
                tracing::debug!(%peer, "a connection did not end");
                Ok(())
            })
        }
    }
}

/// What every request goes through: header limits, the page's origin, time, and the count.
pub(super) async fn common_checks(State(gateway): State<Gateway>, mut request: Request, next: Next) -> Response {
    let started = gateway.node().seams.now();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let origin = request.headers().get(header::ORIGIN).cloned();
    let shown = tracing::enabled!(tracing::Level::DEBUG).then(|| extract::redacted(request.uri()));
    let method = request.method().clone();
    let response = match checked(&gateway, &request) {
        Ok(Page::Foreign) if method == Method::OPTIONS => preflight(&request),
        Ok(page) => {
            request.extensions_mut().insert(page);
            let mut response = answered_in_time(&gateway, request, next).await;
            if page == Page::Foreign {
                allow_origin(&mut response, origin);
            }
            response
        }
        Err(refusal) => HttpError(refusal).into_response(),
    };
    let took = gateway.node().seams.now().since(started);
    tracing::debug!(%method, path = shown, status = response.status().as_u16(), "answered");
    if let Some(code) = response.extensions().get::<Code>() {
        gateway.node().metrics.refused(*code);
    }
    gateway.node().metrics.answered(route.as_ref().map(MatchedPath::as_str), response.status().as_u16(), took);
    response
}

/// The handler's answer, or the refusal of one that took too long, be it that its body trickled in or that the store hangs.
async fn answered_in_time(gateway: &Gateway, request: Request, next: Next) -> Response {
    let limit_ms = gateway.limits().request_timeout_ms;
    if let Ok(response) = tokio::time::timeout(Duration::from_millis(limit_ms), next.run(request)).await {
        return response;
    }
    gateway.node().metrics.limit_hit(crate::metrics::Queue::RequestTime);
    let retry = Retry { after_ms: 1_000, budget_ms: 20_000 };
    let detail =
        format!("the request was not answered within {limit_ms} ms; what it asked for may happen all the same");
    HttpError(Refusal::retry(Code::ConversationUnavailable, detail, retry)).into_response()
}

fn checked(gateway: &Gateway, request: &Request) -> Result<Page, Refusal> {
    let limits = gateway.limits();
    let bytes: usize = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    if bytes > limits.header_bytes || request.headers().len() > limits.headers {
        return Err(headers_too_large(limits));
    }
    gateway.check_origin(request)
}

fn headers_too_large(limits: &Limits) -> Refusal {
    let detail = format!("at most {} headers of {} bytes in all are allowed", limits.headers, limits.header_bytes);
    Refusal::new(Code::HeadersTooLarge, detail)
}

/// The answer to a browser that asks before it calls from another site.
fn preflight(request: &Request) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    allow_origin(&mut response, request.headers().get(header::ORIGIN).cloned());
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, PUT, PATCH, DELETE"));
    headers.insert(
        header::ACCESS_CONTROL_ALLOW_HEADERS,
        HeaderValue::from_static("authorization, content-type, idempotency-key, last-event-id"),
    );
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    response
}

fn allow_origin(response: &mut Response, origin: Option<HeaderValue>) {
    let headers = response.headers_mut();
    if let Some(origin) = origin {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    }
    headers.append(header::VARY, HeaderValue::from_static("origin"));
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("retry-after"));
}
