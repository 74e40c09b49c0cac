//! Calls to etcd's JSON gateway over HTTP/1.1: one request a call, on a connection that nobody else uses meanwhile.
//!
//! Invariants: every call is bounded in time; what only reads, or may be repeated, is asked of the other members in turn when
//! one does not answer; a transaction that was sent is never sent again; an answer of another cluster's member is refused.
//!
//! Deliberately absent: streams. etcd's watches and keep-alive streams do not come back by themselves, and nothing here
//! needs them: a keep-alive is a request, and the nodes are read each half second.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;

use super::error::CallError;
use super::url::{Endpoint, Target};
use super::wire;
use crate::StoreError;

/// Longest call, with all its tries.
const CALL_LIMIT: Duration = Duration::from_secs(4);
/// Longest wait for a connection.
const DIAL_LIMIT: Duration = Duration::from_secs(1);
/// Longest wait for one member's answer to what another member may be asked as well.
const TRY_LIMIT: Duration = Duration::from_millis(1_200);
/// Calls under way at once, of one client.
const CALLS_MAX: usize = 64;
/// Connections that are kept for the next call.
const IDLE_MAX: usize = 8;
/// Largest answer: that of the list of all nodes.
const ANSWER_MAX_BYTES: usize = 4 * 1024 * 1024;

/// Whether a call may be repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    /// It only reads, or a second time changes nothing more.
    Harmless,
    /// It may be sent once.
    Never,
}

struct Connection {
    endpoint: usize,
    sender: SendRequest<Full<Bytes>>,
}

/// A way to the cluster. Its connections live on the runtime that calls it.
pub(super) struct Client {
    target: Target,
    /// 0: not known yet.
    cluster_id: AtomicU64,
    preferred: AtomicUsize,
    idle: Mutex<Vec<Connection>>,
    permits: Semaphore,
}

impl Client {
    pub(super) fn new(target: Target) -> Arc<Self> {
        Arc::new(Self {
            target,
            cluster_id: AtomicU64::new(0),
            preferred: AtomicUsize::new(0),
            idle: Mutex::default(),
            permits: Semaphore::new(CALLS_MAX),
        })
    }

    pub(super) fn target(&self) -> &Target {
        &self.target
    }

    /// From here on only members of this cluster are believed.
    pub(super) fn expect_cluster(&self, id: u64) {
        self.cluster_id.store(id, Ordering::Relaxed);
    }

    /// Asks the members in turn, the one that answered last first.
    pub(super) async fn call(&self, path: &'static str, body: &Value, repeat: Repeat) -> Result<Value, CallError> {
        let deadline = Instant::now() + CALL_LIMIT;
        let Ok(Ok(_permit)) = timeout_at(deadline, self.permits.acquire()).await else {
            return Err(CallError::NotSent(format!("{CALLS_MAX} calls to etcd are under way")));
        };
        let count = self.target.endpoints.len();
        let first = self.preferred.load(Ordering::Relaxed) % count;
        let mut last = CallError::NotSent("etcd was not asked".to_owned());
        for offset in 0..count {
            let endpoint = (first + offset) % count;
            let limit = match repeat {
                Repeat::Harmless => (Instant::now() + TRY_LIMIT).min(deadline),
                Repeat::Never => deadline,
            };
            match self.ask(endpoint, path, body, limit).await {
                Ok(answer) => {
                    self.preferred.store(endpoint, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(error) => {
                    let again = match (&error, repeat) {
                        (CallError::NotSent(_), _) => true,
                        (_, Repeat::Never) => false,
                        (error, Repeat::Harmless) => error.may_pass(),
                    };
                    if error.may_pass() {
                        // Whoever comes next asks another one first.
                        self.preferred.store((endpoint + 1) % count, Ordering::Relaxed);
                    }
                    last = error;
                    if !again || Instant::now() >= deadline {
                        break;
                    }
                }
            }
        }
        Err(last)
    }

    /// Asks one member.
    pub(super) async fn ask(
        &self,
        endpoint: usize,
        path: &'static str,
        body: &Value,
        deadline: Instant,
    ) -> Result<Value, CallError> {
        let place = &self.target.endpoints[endpoint];
        let mut connection = match self.take_idle(endpoint) {
            Some(connection) => connection,
            None => self.dial(endpoint, deadline).await?,
        };
        let request = Request::post(path)
            .header(HOST, place.to_string())
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body.to_string())))
            .map_err(|error| CallError::NotSent(error.to_string()))?;
        let exchange = async {
            let response = connection.sender.send_request(request).await?;
            let status = response.status();
            let body = Limited::new(response.into_body(), ANSWER_MAX_BYTES).collect().await?.to_bytes();
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>((status, body))
        };
        let (status, answer) = match timeout_at(deadline, exchange).await {
            Ok(Ok(answered)) => answered,
            Ok(Err(error)) => return Err(CallError::Lost(format!("etcd at {place}: {error}"))),
            Err(_) => return Err(CallError::Lost(format!("etcd at {place} did not answer in time"))),
        };
        self.keep(connection);
        self.judge(place, status, &answer)
    }

    fn judge(&self, place: &Endpoint, status: StatusCode, answer: &[u8]) -> Result<Value, CallError> {
        let Ok(value) = serde_json::from_slice::<Value>(answer) else {
            return Err(wire::odd(format!("{place} answered {status} without JSON")).into());
        };
        let error = [&value["error"], &value["result"]["error"]].into_iter().find(|error| !error.is_null());
        if error.is_some() || !status.is_success() {
            // Of a request the error is a text with its number beside it; of a stream, an object.
            let object = error.filter(|error| error.is_object()).unwrap_or(&value);
            let code = object["code"].as_i64().or_else(|| object["grpc_code"].as_i64()).unwrap_or(2);
            let text = object["message"].as_str().or_else(|| object["error"].as_str()).unwrap_or("no reason given");
            return Err(CallError::Refused(code, format!("etcd at {place}: {text}")));
        }
        let header = if value["result"].is_object() { &value["result"]["header"] } else { &value["header"] };
        let (found, expected) = (wire::unsigned(header, "cluster_id")?, self.cluster_id.load(Ordering::Relaxed));
        if expected != 0 && found != expected {
            let text = format!("etcd at {place} belongs to the cluster {found:x}, not to {expected:x}");
            return Err(StoreError::Unavailable(text).into());
        }
        Ok(value)
    }

    fn take_idle(&self, endpoint: usize) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|connection| !connection.sender.is_closed());
        let index =
            idle.iter().position(|connection| connection.endpoint == endpoint && connection.sender.is_ready())?;
        Some(idle.swap_remove(index))
    }

    fn keep(&self, connection: Connection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX && !connection.sender.is_closed() {
            idle.push(connection);
        }
    }

    async fn dial(&self, endpoint: usize, deadline: Instant) -> Result<Connection, CallError> {
        let place = &self.target.endpoints[endpoint];
        let limit = deadline.saturating_duration_since(Instant::now()).min(DIAL_LIMIT);
        let failed = |problem: &dyn std::fmt::Display| CallError::NotSent(format!("etcd at {place}: {problem}"));
        let sender = match timeout(limit, connect(&self.target, place)).await {
            Ok(Ok(sender)) => sender,
            Ok(Err(error)) => return Err(failed(&error)),
            Err(_) => return Err(failed(&"no connection in time")),
        };
        Ok(Connection { endpoint, sender })
    }
}

type Problem = Box<dyn std::error::Error + Send + Sync>;

async fn connect(target: &Target, place: &Endpoint) -> Result<SendRequest<Full<Bytes>>, Problem> {
    let stream = TcpStream::connect((place.host.as_str(), place.port)).await?;
    stream.set_nodelay(true)?;
    match &target.tls {
        None => drive(TokioIo::new(stream)).await,
        Some(config) => {
            let name = ServerName::try_from(place.host.clone())?;
            let stream = TlsConnector::from(Arc::clone(config)).connect(name, stream).await?;
            drive(TokioIo::new(stream)).await
        }
    }
}

async fn drive<S>(stream: S) -> Result<SendRequest<Full<Bytes>>, Problem>
where
    S: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let (sender, connection) = http1::handshake(stream).await?;
    // Ends with the sender, or with the connection; its error is seen by the call.
    tokio::spawn(async move {
        let _ = connection.await;
    });
    Ok(sender)
}
