//! The composition root: puts a node together from its configuration, runs it, and takes it down in order.
//!
//! Start: load the key, lock and open the store, bind the listeners, register the lease, then be ready. Stop: be ready no
//! more, stop accepting, close what is connected, finish appends and release every lease, take the node's row away. Who is told
//! to stop while starting waits for nothing of the store's, and gives back what was registered.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use conch_core::death::DeathWatch;
use conch_core::ids::Incarnation;
use conch_core::lease::LeaseTiming;
use conch_store::{Store, StoreError};
use tokio::sync::watch;

use crate::agents::Callbacks;
use crate::auth::origin::OriginPolicy;
use crate::auth::secret::{Mode, NotLoopback, SigningKey, may_bind};
use crate::auth::token::{TokenError, TokenKey};
use crate::cluster::apart;
use crate::cluster::heartbeat::{self, LeaseState};
use crate::cluster::membership;
use crate::cluster::nodes::View;
use crate::config::agents::OPENAI_BASE_URL;
use crate::config::{AgentKind, Config};
use crate::cursors::Cursors;
use crate::gateway::{Components, Gateway, ListenError, Listener};
use crate::hub::Hubs;
use crate::link::notices::Notices;
use crate::link::port::{LinkOpenError, LinkPort, OpenLink};
use crate::link::service::NodeService;
use crate::node::Node;
use crate::ops::{Ops, OpsListener, ProgressBoard, Readiness, ReadinessState};
use crate::people::People;
use crate::router::{Parts, Router};
use crate::rules::Rules;
use crate::runtime;
use crate::stores::{self, OpenStoreError};
use crate::turn::agents::{Agents, InvalidAgents};

/// Time between two signs of progress; a small part of the least `limits.wedged_ms` counts as busy.
const PROGRESS: Duration = Duration::from_millis(100);

/// Why a node does not start, or did not end well.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The store, or the key that it needs.
    #[error(transparent)]
    Store(#[from] OpenStoreError),
    /// The key of tokens is not usable.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// Without a configured key only loopback may be bound.
    #[error(transparent)]
    NotLoopback(#[from] NotLoopback),
    /// The public listener.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The operations listener.
    #[error("ops_listen ({addr}): {source}")]
    OpsListen {
        /// What was asked for.
        addr: SocketAddr,
        /// Why not.
        source: std::io::Error,
    },
    /// The link.
    #[error(transparent)]
    Link(#[from] LinkOpenError),
    /// An agent of the configuration.
    #[error(transparent)]
    Agents(#[from] InvalidAgents),
    /// The node could not be registered.
    #[error("the node could not be registered: {0}")]
    Register(StoreError),
    /// The lease was lost: another process declared this one dead.
    #[error("the node's lease was lost; restart the process to register again")]
    LeaseLost,
}

/// Where a running node listens.
#[derive(Debug, Clone, Copy)]
pub struct Started {
    /// The public listener.
    pub listen: SocketAddr,
    /// The operations listener.
    pub ops_listen: SocketAddr,
    /// Whether a key is configured.
    pub mode: Mode,
    /// This registration, for whoever has to declare the process dead.
    pub incarnation: Incarnation,
}

/// How a node ended that was told to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Everything that was begun is finished, and every lease released.
    InOrder,
    /// The time for that ran out; what is left is left to the fence.
    OutOfTime,
}

/// Runs a node until `stop` completes, its row is marked as draining, or its lease is lost. `started` is called once the node
/// is ready.
///
/// # Errors
/// As [`ServeError`] lists.
pub async fn run(
    config: Config,
    started: impl FnOnce(Started),
    stop: impl Future<Output = ()>,
) -> Result<Ended, ServeError> {
    run_with(config, |agents| agents, started, stop).await
}

/// As [`run`], with agents of the caller's own: `embed` is given those of the configuration.
///
/// # Errors
/// As [`ServeError`] lists.
pub async fn run_with(
    config: Config,
    embed: impl FnOnce(Agents) -> Agents,
    started: impl FnOnce(Started),
    stop: impl Future<Output = ()>,
) -> Result<Ended, ServeError> {
    let key = stores::signing_key(&config, fresh_secret)?;
    may_bind("listen", config.listen, key.mode)?;
    may_bind("ops_listen", config.ops_listen, key.mode)?;
    let mut stop = std::pin::pin!(stop);
    let store = tokio::select! {
        biased;
        // Not cancel safe; what it leaves undone was not registered, and ends with its connections.
        opened = stores::open(&config, &key) => opened?,
        () = &mut stop => return Ok(Ended::InOrder),
    };
    serve(store, key, config, embed, started, stop).await
}

/// As [`run`], on a store that is open already.
///
/// # Errors
/// As [`ServeError`] lists.
pub async fn run_on(
    store: Arc<dyn Store>,
    key: SigningKey,
    config: Config,
    started: impl FnOnce(Started),
    stop: impl Future<Output = ()>,
) -> Result<Ended, ServeError> {
    serve(store, key, config, |agents| agents, started, stop).await
}

async fn serve(
    store: Arc<dyn Store>,
    key: SigningKey,
    config: Config,
    embed: impl FnOnce(Agents) -> Agents,
    started: impl FnOnce(Started),
    stop: impl Future<Output = ()>,
) -> Result<Ended, ServeError> {
    let mut stop = std::pin::pin!(stop);
    let listener = Listener::bind(config.listen).await?;
    let callbacks = config.callbacks(&key, listener.addr());
    let agents = Answering { agents: Arc::new(embed(config.agents(&callbacks)?)), callbacks };
    let node = Arc::new(Node { rules: rules(), ..Node::new(&config, store, runtime::seams()) });
    log_models(&config);
    let readiness = Readiness::new();
    let progress = ProgressBoard::new(Duration::from_millis(config.limits.wedged_ms));
    let ops = Ops {
        readiness: readiness.clone(),
        progress: progress.clone(),
        metrics: Arc::clone(&node.metrics),
        clock: Arc::clone(&node.seams.clock),
    };
    let ops = OpsListener::start(config.ops_listen, ops)
        .map_err(|source| ServeError::OpsListen { addr: config.ops_listen, source })?;
    let port = LinkPort::bind(&config, &key, &node).await?;
    let limit = Duration::from_millis(config.limits.drain_ms);
    let mut lease = match register(&node, port.advertised.clone(), stop.as_mut(), limit).await? {
        Registered::Holds(lease) => lease,
        Registered::Stopped(ended) => return Ok(ended),
    };
    let Assembled { gateway, router, open } = assemble(&node, port, agents, &key, &config)?;
    gateway
        .hubs()
        .workers()
        .report_to(&progress, node.seams.now())
        .expect("there are fewer than the board has room for");
    node.seams.spawn("progress", report_progress(Arc::clone(&node), progress));
    let addresses = Started { listen: listener.addr(), ops_listen: ops.addr(), mode: key.mode, incarnation: node.me };
    let serving = tokio::spawn(listener.serve(gateway.clone()));
    let told = async {
        if first_view(stop.as_mut(), node.nodes.watch()).await == Start::Stopped {
            return;
        }
        readiness.advance(ReadinessState::Ready);
        started(addresses);
        stop_or_drain(stop, node.nodes.watch(), node.me).await;
    };
    let outcome = match wait_for_end(told, &mut lease).await {
        LeaseState::Lost => {
            readiness.advance(ReadinessState::LeaseLost);
            Err(ServeError::LeaseLost)
        }
        LeaseState::Held => {
            readiness.advance(ReadinessState::Draining);
            Ok(shut_down(&node, &gateway, &router, open, limit).await)
        }
    };
    // The heart beats until everything is released.
    drop(lease);
    serving.abort();
    ops.stop();
    outcome
}

/// Says which models answer: one of them may have been chosen by nobody.
fn log_models(config: &Config) {
    for (agent, settings) in &config.agents.0 {
        if let (AgentKind::Openai, Some(model)) = (settings.kind, &settings.model) {
            let base_url = settings.base_url.as_deref().unwrap_or(OPENAI_BASE_URL);
            tracing::info!(%agent, model, base_url, "a model answers as this agent");
        }
    }
}

/// How a registration ended.
enum Registered {
    /// The node has its lease.
    Holds(watch::Receiver<LeaseState>),
    /// It was told to stop meanwhile, and has given back what was registered.
    Stopped(Ended),
}

/// Registers the node, unless it is told to stop. A registration that is under way then is awaited, within `limit`, because
/// nobody could tell whether to give it back.
async fn register(
    node: &Arc<Node>,
    address: String,
    stop: impl Future<Output = ()>,
    limit: Duration,
) -> Result<Registered, ServeError> {
    let mut registering = std::pin::pin!(heartbeat::start(node, address));
    tokio::select! {
        biased;
        lease = &mut registering => return lease.map(Registered::Holds).map_err(ServeError::Register),
        () = stop => {}
    }
    let in_order = async {
        let lease = registering.await;
        if let Err(StoreError::Unavailable(_) | StoreError::Full(_)) = lease {
            // It was refused: there is nothing to give back.
            return Ok(());
        }
        node.store.deregister(node.me).await.map(drop)
    };
    Ok(Registered::Stopped(match tokio::time::timeout(limit, in_order).await {
        Ok(Ok(())) => Ended::InOrder,
        // If there is a row, it stays until it expires.
        Ok(Err(_)) | Err(_) => Ended::OutOfTime,
    }))
}

/// What runs on a node that has its lease.
struct Assembled {
    gateway: Gateway,
    router: Router,
    open: OpenLink,
}

/// Who answers in sessions, and where workers among them call back.
struct Answering {
    agents: Arc<Agents>,
    callbacks: Callbacks,
}

/// Puts together what routes, follows and answers, for clients and for other nodes.
fn assemble(
    node: &Arc<Node>,
    port: LinkPort,
    Answering { agents, callbacks }: Answering,
    key: &SigningKey,
    config: &Config,
) -> Result<Assembled, ServeError> {
    let people = People::new(Arc::clone(node));
    let notices = Notices::start(Arc::clone(node), Arc::clone(&port.link));
    let publishing = (people.clone(), notices.clone());
    let on_published = Arc::new(move |conversation: &_, seq| {
        publishing.0.published(conversation);
        publishing.1.published(conversation, seq);
    });
    let parts = Parts { agents: Arc::clone(&agents), on_published, link: Arc::clone(&port.link) };
    let router = Router::start(Arc::clone(node), parts);
    let hubs = Hubs::new(Arc::clone(node), router.clone(), config.hub_limits());
    if !port.link.exists() {
        node.seams.spawn("others", apart::warn(Arc::clone(node)));
    }
    let watching = membership::run_with(Arc::clone(node), router.clone(), port.evidence(), death_watch(node.timing));
    node.seams.spawn("membership", watching);
    let service =
        NodeService { node: Arc::clone(node), router: router.clone(), hubs: hubs.clone(), people: people.clone() };
    let open = port.serve(Arc::new(service));
    let gateway = Gateway::new(Components {
        hubs,
        router: router.clone(),
        people,
        notices,
        cursors: Cursors::start(Arc::clone(node)),
        agents,
        callbacks,
        chat_agent: config.ai.agent.clone(),
        key: TokenKey::new(&key.secret)?,
        mode: key.mode,
        origins: OriginPolicy { mode: key.mode, allowed: config.allowed_origins() },
        client_urls: config.client_urls.clone(),
        limits: config.limits.clone(),
        rate: config.rate.clone(),
        reconnect_jitter_ms: config.fanout.reconnect_jitter_ms,
        token_ttl_ms: config.auth.token_ttl_ms,
        node: Arc::clone(node),
    });
    Ok(Assembled { gateway, router, open })
}

/// Whether a start goes on.
#[derive(PartialEq, Eq)]
enum Start {
    GoesOn,
    Stopped,
}

/// Waits for the first look at the nodes' rows: before it the node knows of no other one, nor of itself, and would say so.
async fn first_view(stop: impl Future<Output = ()>, mut views: watch::Receiver<Arc<View>>) -> Start {
    // Both branches are cancel safe.
    tokio::select! {
        biased;
        () = stop => Start::Stopped,
        // An error: nobody looks any more, and there is nothing to wait for.
        _ = views.wait_for(|view| view.read_at.is_some()) => Start::GoesOn,
    }
}

/// Completes when the process is told to stop, or the node to drain: an operator marks its row, through whichever node.
async fn stop_or_drain(stop: impl Future<Output = ()>, mut views: watch::Receiver<Arc<View>>, me: Incarnation) {
    let marked = async {
        let mine = |view: &Arc<View>| view.rows.iter().any(|row| row.draining && row.registration.incarnation == me);
        if views.wait_for(mine).await.is_err() {
            // Nobody looks at the rows any more, so nobody can be told.
            std::future::pending::<()>().await;
        }
        tracing::info!("the node's row is marked as draining: the node stops in order");
    };
    // Both branches are cancel safe; the first to complete ends the other.
    tokio::select! {
        biased;
        () = stop => {}
        () = marked => {}
    }
}

/// The rules of the product: all of them.
#[cfg(not(feature = "mutants"))]
fn rules() -> Rules {
    Rules::default()
}

/// The same, but without those that the variable `CONCH_MUTANT` names: a process of a test, which that test must catch.
#[cfg(feature = "mutants")]
fn rules() -> Rules {
    Rules::without(&crate::mutants::rules())
}

/// Who judges whether others are dead.
#[cfg(not(feature = "mutants"))]
fn death_watch(timing: LeaseTiming) -> DeathWatch {
    DeathWatch::new(timing)
}

/// The same, but without the guards that the variable `CONCH_MUTANT` names: a process of a test, which that test must catch.
#[cfg(feature = "mutants")]
fn death_watch(timing: LeaseTiming) -> DeathWatch {
    DeathWatch::without(timing, &crate::mutants::guards())
}

/// How the lease stands when the node is to end.
async fn wait_for_end(stop: impl Future<Output = ()>, lease: &mut watch::Receiver<LeaseState>) -> LeaseState {
    // Both branches are cancel safe; each is polled once more at most.
    tokio::select! {
        biased;
        lost = lease.wait_for(|state| *state == LeaseState::Lost) => {
            // An error is a heartbeat that is gone: validity runs out by itself, and what is left is given up in order.
            lost.map_or(LeaseState::Held, |state| *state)
        }
        () = stop => LeaseState::Held,
    }
}

/// Takes the node down in order, within `limit`. Where others go on, its conversations go to them first, then its clients,
/// and what comes meanwhile is passed on; so nobody is refused.
async fn shut_down(node: &Arc<Node>, gateway: &Gateway, router: &Router, open: OpenLink, limit: Duration) -> Ended {
    let in_order = async {
        let others_go_on = !node.nodes.takers(node.me, node.seams.now()).is_empty();
        if others_go_on {
            if let Err(error) = node.store.set_draining(node.me).await {
                tracing::warn!(%error, "the others are not told that this node drains");
            }
            router.drain(limit / 2).await;
            let window = Duration::from_millis(gateway.reconnect_jitter_ms());
            gateway.send_away(window.min(limit / 4)).await;
        }
        gateway.shut_down();
        if others_go_on {
            // A request that came before its connection heard of the end is passed on as well. What takes longer is refused.
            let _ = tokio::time::timeout(limit / 8, gateway.drained()).await;
        }
        router.shut_down().await;
        gateway.drained().await;
        if let Err(error) = node.store.deregister(node.me).await {
            tracing::warn!(%error, "the node's row stays until it expires");
        }
        open.close().await;
    };
    if tokio::time::timeout(limit, in_order).await.is_err() {
        tracing::warn!(limit_ms = limit.as_millis(), "the shutdown took too long; what is left is left to the fence");
        return Ended::OutOfTime;
    }
    Ended::InOrder
}

/// The runtime proves now and then that it runs tasks.
async fn report_progress(node: Arc<Node>, progress: ProgressBoard) {
    let worker = progress.register("runtime", node.seams.now()).expect("there are fewer than the board has room for");
    loop {
        node.seams.sleep(PROGRESS).await;
        worker.tick(node.seams.now());
    }
}

fn fresh_secret() -> [u8; 32] {
    rand::random()
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use conch_core::time::Monotonic;
    use futures_util::FutureExt;

    use super::*;
    use crate::cluster::nodes::Nodes;

    #[tokio::test]
    async fn a_start_waits_for_the_first_look_at_the_nodes_or_for_its_end() {
        let nodes = Nodes::default();
        let mut waits = std::pin::pin!(first_view(pending(), nodes.watch()));
        assert!(waits.as_mut().now_or_never().is_none());
        assert!(first_view(ready(()), nodes.watch()).await == Start::Stopped);
        nodes.set(Vec::new(), Monotonic::default());
        assert!(waits.await == Start::GoesOn);
    }
}
