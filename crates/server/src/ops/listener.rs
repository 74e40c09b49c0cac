//! The operations listener: `/livez`, `/readyz`, `/metrics`, on a thread and a runtime of its own.
//!
//! Connections are few and short: one request each, [`CONNECTIONS_MAX`] at once, [`CONNECTION_MAX`] long.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use conch_core::refusal::{Code, Refusal};
use conch_core::wire::problem::Problem;
use http::header::{ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};

use super::progress::{ProgressBoard, WorkerState, WorkerView};
use super::readiness::{Readiness, ReadinessState};
use crate::metrics::Metrics;
use crate::seams::Clock;

/// Most connections at once; further ones wait in the listener's backlog.
pub const CONNECTIONS_MAX: usize = 64;
/// Most bytes of a request's head.
pub const HEADER_MAX_BYTES: usize = 8 * 1024;
/// Longest time that a request's head may take.
const HEADER_MAX: Duration = Duration::from_secs(2);
/// Longest life of a connection.
const CONNECTION_MAX: Duration = Duration::from_secs(5);
/// Longest time that a stop waits for answers under way.
const STOP_MAX: Duration = Duration::from_secs(1);
/// Pause after a connection could not be accepted, which happens when the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What the listener reports.
#[derive(Clone)]
pub struct Ops {
    /// Whether the node wants traffic.
    pub readiness: Readiness,
    /// Which workers make progress.
    pub progress: ProgressBoard,
    /// What it counts.
    pub metrics: Arc<Metrics>,
    /// Judges how long a worker was quiet.
    pub clock: Arc<dyn Clock>,
}

/// The running listener. Dropping it stops it without waiting.
pub struct OpsListener {
    addr: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl OpsListener {
    /// Binds the address and starts the thread.
    ///
    /// # Errors
    /// When the address cannot be bound, or no thread can be had.
    pub fn start(addr: SocketAddr, ops: Ops) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind(addr)?;
        listener.set_nonblocking(true)?;
        let addr = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("conch-ops".to_owned()).spawn(move || {
            runtime.block_on(async move {
                match TcpListener::from_std(listener) {
                    Ok(listener) => serve(listener, ops, stopped).await,
                    Err(error) => tracing::error!(%error, "the operations listener cannot run"),
                }
            });
        })?;
        Ok(Self { addr, stop: Some(stop), thread: Some(thread) })
    }

    /// Where it listens, with the port that a 0 became.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Stops accepting, lets answers under way finish for at most a second, and ends the thread. Blocks meanwhile.
    pub fn stop(mut self) {
        self.signal();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the operations thread panicked");
        }
    }

    fn signal(&mut self) {
        if let Some(stop) = self.stop.take() {
            // An error says that the thread has ended already.
            let _ = stop.send(());
        }
    }
}

impl Drop for OpsListener {
    fn drop(&mut self) {
        self.signal();
    }
}

/// Accepts until stopped. Every branch of the `select!` is cancel safe: a permit, an accept and the stop signal lose nothing.
async fn serve(listener: TcpListener, ops: Ops, mut stopped: oneshot::Receiver<()>) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let permit = tokio::select! {
            _ = &mut stopped => break,
            permit = permits.clone().acquire_owned() => permit.expect("the semaphore is never closed"),
        };
        let accepted = tokio::select! {
            _ = &mut stopped => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let ops = ops.clone();
                tokio::spawn(async move {
                    connection(stream, ops).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "an operations connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    let all = u32::try_from(CONNECTIONS_MAX).unwrap_or(u32::MAX);
    // Whether they finished or the time is over: the thread ends.
    let _ = tokio::time::timeout(STOP_MAX, permits.acquire_many(all)).await;
}

async fn connection(stream: TcpStream, ops: Ops) {
    let service = hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| {
        let answer = answer(&ops, request.method(), request.uri().path(), request.headers());
        async move { Ok::<_, Infallible>(answer) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_MAX)
        .max_buf_size(HEADER_MAX_BYTES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(CONNECTION_MAX, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "an operations connection ended early"),
        Err(_) => tracing::debug!("an operations connection was cut, being too slow"),
    }
}

type Answer = Response<Full<Bytes>>;

/// The answer to one request; pure but for the clock.
fn answer(ops: &Ops, method: &Method, path: &str, headers: &HeaderMap) -> Answer {
    let known = matches!(path, "/livez" | "/readyz" | "/metrics");
    if !known {
        return problem(&Refusal::new(Code::NotFound, "the operations listener knows /livez, /readyz and /metrics"));
    }
    if !matches!(*method, Method::GET | Method::HEAD) {
        let mut answer = problem(&Refusal::new(Code::MethodNotAllowed, format!("{path} answers GET and HEAD")));
        answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return answer;
    }
    match path {
        "/livez" => live(ops),
        "/readyz" => ready(ops),
        _ => {
            let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
            let (content_type, page) = ops.metrics.encode(accept);
            respond(StatusCode::OK, content_type, page)
        }
    }
}

#[derive(Serialize)]
struct Liveness {
    status: &'static str,
    reason: String,
    workers: Vec<WorkerView>,
}

fn live(ops: &Ops) -> Answer {
    let workers = ops.progress.view(ops.clock.now());
    let named = |state: WorkerState| {
        let names: Vec<&str> = workers.iter().filter(|view| view.state == state).map(|view| &*view.name).collect();
        names.join(", ")
    };
    let (wedged, busy) = (named(WorkerState::Wedged), named(WorkerState::Busy));
    let (code, status, reason) = if !wedged.is_empty() {
        (StatusCode::SERVICE_UNAVAILABLE, "wedged", format!("no progress: {wedged}"))
    } else if !busy.is_empty() {
        (StatusCode::OK, "busy", format!("slow progress: {busy}"))
    } else {
        (StatusCode::OK, "live", "every worker makes progress".to_owned())
    };
    json(code, &Liveness { status, reason, workers })
}

#[derive(Serialize)]
struct ReadinessAnswer {
    status: &'static str,
    reason: &'static str,
}

fn ready(ops: &Ops) -> Answer {
    let state = ops.readiness.state();
    let code = if state == ReadinessState::Ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    json(code, &ReadinessAnswer { status: state.as_str(), reason: state.reason() })
}

fn json(code: StatusCode, body: &impl Serialize) -> Answer {
    let body = serde_json::to_string(body).expect("these structs have nothing that JSON cannot hold");
    respond(code, "application/json", body)
}

fn problem(refusal: &Refusal) -> Answer {
    let code = StatusCode::from_u16(refusal.code.status()).expect("every code has a valid status");
    respond(code, "application/problem+json", Problem::from(refusal).to_json())
}

fn respond(code: StatusCode, content_type: &'static str, body: String) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(body)));
    *answer.status_mut() = code;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

#[cfg(test)]
#[path = "listener_tests.rs"]
mod tests;
