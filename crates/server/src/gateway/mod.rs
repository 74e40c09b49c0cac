//! The gateway: client connections, from the TCP accept to the router and the hubs.
//!
//! HTTP calls, Server-Sent Events and Phoenix Channels are thin: they parse, authenticate, authorise and limit, then ask
//! the router (writes), the hubs (watching) or the store (reads).
//!
//! Invariant 12 is kept here: every call goes through [`Gateway::authenticate`] and [`Gateway::require`].
//!
//! Deliberately absent: who owns what, numbering, and anything durable.

mod agents;
mod ai;
mod console;
mod conversations;
mod development;
pub mod errors;
mod input;
mod listener;
mod members;
mod messages;
mod nodes;
mod operations;
mod queue;
mod socket;
mod stall;
mod streams;
mod turns;
mod unread;
mod worker;

#[cfg(test)]
mod limits_tests;
#[cfg(test)]
mod openapi_tests;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router as HttpRouter;
use axum::extract::{FromRequestParts, Request};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use conch_core::ids::AgentName;
use conch_core::limit::SenderLimits;
use conch_core::refusal::{Code, Refusal};
use conch_core::shed::Rung;
use conch_core::time::Monotonic;
use http::request::Parts;
use http::{HeaderMap, Method, Uri, header};
use tokio::sync::{Semaphore, watch};

use crate::agents::Callbacks;
use crate::auth::extract;
use crate::auth::grants::Principal;
use crate::auth::origin::{Origin, OriginPolicy, Page};
use crate::auth::secret::Mode;
use crate::auth::token::TokenKey;
use crate::config::{Limits, Rate};
use crate::cursors::Cursors;
use crate::hub::Hubs;
use crate::link::notices::Notices;
use crate::metrics::{Queue, Shed};
use crate::node::Node;
use crate::people::People;
use crate::router::{Router, draining};
use crate::seams::Seams;
use crate::turn::agents::Agents;
use errors::HttpError;
pub use listener::{ListenError, Listener};

/// Every path of the public listener, with its methods. The OpenAPI document and the router are held against it.
pub const ROUTES: &[(&str, &[&str])] = &[
    ("/v1/agents", &["GET"]),
    ("/v1/conversations", &["GET"]),
    ("/v1/conversations/{id}", &["GET", "PATCH", "PUT"]),
    ("/v1/conversations/{id}/awaits/{await}", &["POST"]),
    ("/v1/conversations/{id}/cursor", &["PUT"]),
    ("/v1/conversations/{id}/members", &["GET"]),
    ("/v1/conversations/{id}/members/{sub}", &["DELETE", "PUT"]),
    ("/v1/conversations/{id}/messages", &["GET", "POST"]),
    ("/v1/conversations/{id}/presence", &["GET"]),
    ("/v1/conversations/{id}/stream", &["GET"]),
    ("/v1/conversations/{id}/turns", &["POST"]),
    ("/v1/conversations/{id}/turns/{turn}", &["GET"]),
    ("/v1/conversations/{id}/turns/{turn}/cancel", &["POST"]),
    ("/v1/nodes", &["GET"]),
    ("/v1/nodes/events", &["GET"]),
    ("/v1/nodes/owned", &["GET"]),
    ("/v1/nodes/{name}/drain", &["POST"]),
    ("/v1/stream", &["GET"]),
    ("/v1/worker/{token}/steps/{key}", &["POST"]),
    ("/v1/openapi.json", &["GET"]),
    ("/ai/chat", &["POST"]),
    ("/ai/chat/{id}/messages", &["GET"]),
    ("/ai/chat/{id}/stream", &["GET"]),
    ("/dev/login", &["POST"]),
];

/// The shortest window over which clients spread their return, in milliseconds.
const RECONNECT_LEAST_MS: u64 = 500;
/// What each connected client adds to it, in milliseconds: a hundred a second come back.
const RECONNECT_SPREAD_MS: u64 = 10;

/// Pages of history read from the store at once, over all clients.
const HISTORY_READS: usize = 2;

/// What a gateway is made of.
pub struct Components {
    /// The node.
    pub node: Arc<Node>,
    /// The way to owners.
    pub router: Router,
    /// The fan-out.
    pub hubs: Hubs,
    /// The personal streams.
    pub people: People,
    /// What the other nodes are told.
    pub notices: Notices,
    /// The read cursors.
    pub cursors: Cursors,
    /// The agents that a session may have.
    pub agents: Arc<Agents>,
    /// Whose workers' callbacks are taken.
    pub callbacks: Callbacks,
    /// The agent of a chat that is created by its first message, if it is a certain one.
    pub chat_agent: Option<AgentName>,
    /// The key of tokens.
    pub key: TokenKey,
    /// Whether the key is configured.
    pub mode: Mode,
    /// Which pages may call.
    pub origins: OriginPolicy,
    /// Where the cluster's nodes are reached.
    pub client_urls: Vec<Origin>,
    /// Bounds.
    pub limits: Limits,
    /// The senders' rate.
    pub rate: Rate,
    /// The window over which clients spread their return, in milliseconds.
    pub reconnect_jitter_ms: u64,
    /// How long a token of the development login is good, in milliseconds.
    pub token_ttl_ms: u64,
}

/// See the module's description. Cheap to clone.
#[derive(Clone)]
pub struct Gateway {
    shared: Arc<Shared>,
}

struct Shared {
    node: Arc<Node>,
    router: Router,
    hubs: Hubs,
    people: People,
    notices: Notices,
    cursors: Cursors,
    agents: Arc<Agents>,
    callbacks: Callbacks,
    chat_agent: Option<AgentName>,
    key: TokenKey,
    mode: Mode,
    origins: OriginPolicy,
    console: console::Console,
    limits: Limits,
    rate: Rate,
    rates: Mutex<SenderLimits>,
    join_rates: Mutex<SenderLimits>,
    /// Pages of history read at once, so that they leave the store's readers to others, too.
    history_reads: Semaphore,
    reconnect_jitter_ms: u64,
    /// HTTP connections, until they become sockets.
    connections: Arc<AtomicUsize>,
    token_ttl_ms: u64,
    sockets: Arc<AtomicUsize>,
    streams: Arc<AtomicUsize>,
    shutdown: watch::Sender<Phase>,
}

/// Where the gateway is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Serving,
    /// Everything is served, but each socket and stream is told to go, at a random moment before this one.
    Leaving(Monotonic),
    ShuttingDown,
}

/// Tells a connection that the gateway shuts down.
#[derive(Clone)]
pub(crate) struct Shutdown {
    phase: watch::Receiver<Phase>,
    seams: Seams,
    /// When this connection is told to go, once the node leaves.
    turn: Option<Monotonic>,
    told: bool,
}

impl Shutdown {
    /// Completes once, when this connection has to go: stock clients come back at once, so the server spreads them. Cancel
    /// safe.
    pub(crate) async fn begun(&mut self) {
        if !self.told {
            self.turn_comes().await;
            self.told = true;
            return;
        }
        std::future::pending().await
    }

    async fn turn_comes(&mut self) {
        loop {
            match *self.phase.borrow_and_update() {
                Phase::ShuttingDown => return,
                Phase::Leaving(until) if self.turn.is_none() => {
                    let now = self.seams.now();
                    self.turn = Some(now + self.seams.jitter(until.since(now)));
                }
                Phase::Leaving(_) | Phase::Serving => {}
            }
            let turn = async {
                match self.turn {
                    Some(turn) => self.seams.clock.sleep_until(turn).await,
                    None => std::future::pending().await,
                }
            };
            // Both branches are cancel safe: the turn is drawn once.
            tokio::select! {
                biased;
                changed = self.phase.changed() => {
                    if changed.is_err() {
                        // The gateway is gone without a word; connections end with the process.
                        std::future::pending::<()>().await;
                    }
                }
                () = turn => return,
            }
        }
    }

    /// Completes once, when nothing is served any more. Cancel safe.
    pub(crate) async fn at_last(&mut self) {
        // An error is a gateway that is gone without a word; connections end with the process.
        if self.phase.wait_for(|phase| *phase == Phase::ShuttingDown).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// One of a bounded number of connections of a kind.
pub(crate) struct Slot {
    count: Arc<AtomicUsize>,
    gauge: prometheus_client::metrics::gauge::Gauge,
}

impl Slot {
    fn take(count: &Arc<AtomicUsize>, limit: usize, gauge: &prometheus_client::metrics::gauge::Gauge) -> Option<Self> {
        let taken = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| (held < limit).then_some(held + 1));
        taken.ok()?;
        gauge.inc();
        Some(Self { count: Arc::clone(count), gauge: gauge.clone() })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
        self.gauge.dec();
    }
}

impl Gateway {
    /// Puts a gateway together.
    #[must_use]
    pub fn new(parts: Components) -> Self {
        let Components {
            node,
            router,
            hubs,
            people,
            notices,
            cursors,
            agents,
            callbacks,
            chat_agent,
            key,
            mode,
            origins,
            client_urls,
            limits,
            rate,
            reconnect_jitter_ms,
            token_ttl_ms,
        } = parts;
        let rates = SenderLimits::new(rate.per_second, rate.burst, rate.senders);
        let join_rates = SenderLimits::new(rate.joins_per_second, rate.joins_burst, rate.senders);
        let shared = Shared {
            node,
            router,
            hubs,
            people,
            notices,
            cursors,
            agents,
            callbacks,
            chat_agent,
            key,
            mode,
            origins,
            console: console::Console::new(&client_urls, mode),
            limits,
            rate,
            rates: Mutex::new(rates),
            join_rates: Mutex::new(join_rates),
            history_reads: Semaphore::new(HISTORY_READS),
            reconnect_jitter_ms,
            connections: Arc::default(),
            token_ttl_ms,
            sockets: Arc::default(),
            streams: Arc::default(),
            shutdown: watch::Sender::new(Phase::Serving),
        };
        Self { shared: Arc::new(shared) }
    }

    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.shared.node
    }

    pub(crate) fn router(&self) -> &Router {
        &self.shared.router
    }

    pub(crate) fn hubs(&self) -> &Hubs {
        &self.shared.hubs
    }

    pub(crate) fn people(&self) -> &People {
        &self.shared.people
    }

    pub(crate) fn notices(&self) -> &Notices {
        &self.shared.notices
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.shared.limits
    }

    /// The window over which clients spread their return, in milliseconds: it grows with their number, up to the configured
    /// one, so that a few people who chat do not wait half a minute for a node that is back in a second.
    pub(crate) fn reconnect_jitter_ms(&self) -> u64 {
        let Shared { sockets, streams, .. } = &*self.shared;
        let connected = sockets.load(Ordering::Relaxed) + streams.load(Ordering::Relaxed);
        let spread = connected as u64 * RECONNECT_SPREAD_MS;
        self.shared.reconnect_jitter_ms.min(RECONNECT_LEAST_MS + spread)
    }

    pub(crate) fn shutdown(&self) -> Shutdown {
        let (phase, seams) = (self.shared.shutdown.subscribe(), self.node().seams.clone());
        Shutdown { phase, seams, turn: None, told: false }
    }

    /// Tells sockets and streams to go, each at a random moment within `window`, and returns when they have had it. Everything
    /// else is served meanwhile.
    pub async fn send_away(&self, window: std::time::Duration) {
        let Shared { sockets, streams, .. } = &*self.shared;
        let until = self.node().seams.now() + window;
        self.shared.shutdown.send_replace(Phase::Leaving(until));
        let anybody = || sockets.load(Ordering::Relaxed) + streams.load(Ordering::Relaxed) > 0;
        while anybody() && self.node().seams.now() < until {
            self.node().seams.sleep(std::time::Duration::from_millis(20)).await;
        }
    }

    /// Tells every connection to end: sockets close with 1012, streams send `reconnect`.
    pub fn shut_down(&self) {
        self.shared.shutdown.send_replace(Phase::ShuttingDown);
    }

    /// Completes when every connection has ended, after [`Gateway::shut_down`]: answers under way are written first.
    pub async fn drained(&self) {
        let Shared { connections, sockets, .. } = &*self.shared;
        while connections.load(Ordering::Relaxed) + sockets.load(Ordering::Relaxed) > 0 {
            self.node().seams.sleep(std::time::Duration::from_millis(20)).await;
        }
    }

    pub(crate) fn refuse_if_draining(&self) -> Result<(), Refusal> {
        match *self.shared.shutdown.borrow() {
            Phase::Serving | Phase::Leaving(_) => Ok(()),
            Phase::ShuttingDown => Err(draining()),
        }
    }

    /// Whether anybody new is let in.
    pub(crate) fn refuse_newcomers(&self) -> Result<(), Refusal> {
        self.refuse_if_draining()?;
        if self.node().pressure.rung() < Rung::NoNewcomers {
            return Ok(());
        }
        self.node().metrics.shed(Shed::Newcomers);
        Err(Refusal::retry(
            Code::Overloaded,
            "the node is under too much load to let anybody in",
            self.reconnect_retry(),
        ))
    }

    pub(crate) fn take_socket_slot(&self) -> Option<Slot> {
        let shared = &self.shared;
        let metrics = &shared.node.metrics;
        let slot = Slot::take(&shared.sockets, shared.limits.sockets, &metrics.sockets);
        slot.or_else(|| {
            metrics.limit_hit(Queue::Sockets);
            None
        })
    }

    pub(crate) fn take_stream_slot(&self) -> Option<Slot> {
        let shared = &self.shared;
        let metrics = &shared.node.metrics;
        let slot = Slot::take(&shared.streams, shared.limits.streams, &metrics.streams);
        slot.or_else(|| {
            metrics.limit_hit(Queue::Streams);
            None
        })
    }

    /// Who asks.
    ///
    /// # Errors
    /// `unauthenticated`.
    pub(crate) fn authenticate(&self, headers: &HeaderMap, uri: &Uri) -> Result<Principal, Refusal> {
        let token = extract::token(headers, uri)?
            .ok_or_else(|| Refusal::new(Code::Unauthenticated, "the request has no token"))?;
        self.shared.key.verify(&token, self.node().seams.clock.wall())
    }

    /// Judges the page that asks.
    ///
    /// # Errors
    /// `forbidden` for a page that is not allowed.
    pub(crate) fn check_origin(&self, request: &Request) -> Result<Page, Refusal> {
        let text = |name| request.headers().get(name).and_then(|value: &http::HeaderValue| value.to_str().ok());
        if request.headers().get_all(header::HOST).iter().count() > 1 {
            return Err(Refusal::new(Code::InvalidRequest, "Host: is there more than once"));
        }
        // The target's own host wins over the header (RFC 9112, 3.2.2).
        let host = request.uri().authority().map(http::uri::Authority::as_str).or_else(|| text(header::HOST));
        self.shared.origins.check(text(header::ORIGIN), host)
    }

    /// The HTTP service: every route, behind the checks that all have in common.
    pub fn service(&self) -> HttpRouter {
        HttpRouter::new()
            .route("/v1/agents", get(agents::list))
            .route("/v1/conversations", get(conversations::list))
            .route(
                "/v1/conversations/{id}",
                put(conversations::create).get(conversations::show).patch(conversations::patch),
            )
            .route("/v1/conversations/{id}/awaits/{await}", post(turns::resolve))
            .route("/v1/conversations/{id}/cursor", put(members::move_cursor))
            .route("/v1/conversations/{id}/members", get(members::list))
            .route("/v1/conversations/{id}/members/{sub}", put(members::add).delete(members::remove))
            .route("/v1/conversations/{id}/messages", post(messages::send).get(messages::history))
            .route("/v1/conversations/{id}/presence", get(members::presence))
            .route("/v1/conversations/{id}/stream", get(streams::conversation))
            .route("/v1/conversations/{id}/turns", post(turns::start))
            .route("/v1/conversations/{id}/turns/{turn}", get(turns::show))
            .route("/v1/conversations/{id}/turns/{turn}/cancel", post(turns::cancel))
            .route("/v1/nodes", get(nodes::list))
            .route("/v1/nodes/events", get(nodes::survey::events))
            .route("/v1/nodes/owned", get(nodes::survey::owned))
            .route("/v1/nodes/{name}/drain", post(nodes::drain))
            .route("/v1/stream", get(streams::personal))
            .route("/v1/worker/{token}/steps/{key}", post(worker::step))
            .route("/v1/openapi.json", get(console::openapi))
            .route("/ai/chat", post(ai::chat))
            .route("/ai/chat/{id}/messages", get(ai::messages))
            .route("/ai/chat/{id}/stream", get(ai::resume))
            .route("/dev/login", post(development::login))
            .route("/socket/websocket", get(socket::upgrade))
            .route("/console.json", get(console::settings))
            .route("/", get(console::index))
            .fallback(console::asset_or_not_found)
            .method_not_allowed_fallback(method_not_allowed)
            .layer(axum::middleware::from_fn_with_state(self.clone(), listener::common_checks))
            .with_state(self.clone())
    }
}

async fn method_not_allowed(method: Method, uri: Uri) -> Response {
    let detail = format!("{} does not take {method}", uri.path());
    HttpError(Refusal::new(Code::MethodNotAllowed, detail)).into_response()
}

/// The caller of an HTTP request.
pub(crate) struct Caller(pub(crate) Principal);

impl FromRequestParts<Gateway> for Caller {
    type Rejection = HttpError;

    async fn from_request_parts(parts: &mut Parts, gateway: &Gateway) -> Result<Self, HttpError> {
        Ok(Self(gateway.authenticate(&parts.headers, &parts.uri)?))
    }
}
