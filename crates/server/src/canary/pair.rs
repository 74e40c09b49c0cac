//! One of the canary's two nodes: registered, with a heart, a router and hubs as `conch serve` has them; without a link, a
//! listener, a view of others and agents.

use std::sync::Arc;
use std::time::Duration;

use conch_core::ids::{ConvRef, Epoch, Incarnation, Region};
use conch_core::record::Draft;
use conch_core::refusal::Refusal;
use conch_core::sequencer::Receipt;
use conch_store::{Store, StoreError};
use futures_util::future::BoxFuture;
use tokio::sync::watch;

use super::watcher::{Seen, Watcher};
use crate::cluster::heartbeat::{self, LeaseState};
use crate::config::Config;
use crate::events::{EVENTS_MAX, Event};
use crate::hub::{Hubs, Join};
use crate::link::{Hops, NoLink};
use crate::node::Node;
use crate::router::{Parts, Router};
use crate::runtime;
use crate::seams::{Seams, Spawn};
use crate::turn::agents::Agents;

/// How long the way out may take; what is left then is left to the fence.
const END_WITHIN: Duration = Duration::from_secs(10);

pub(super) struct CanaryNode {
    node: Arc<Node>,
    router: Router,
    hubs: Hubs,
    lease: watch::Receiver<LeaseState>,
    heart: watch::Sender<bool>,
}

impl CanaryNode {
    /// Registers a node and starts its heart.
    pub(super) async fn start(name: &str, store: Arc<dyn Store>, config: &Config) -> Result<Self, StoreError> {
        let (heart, stopped) = watch::channel(false);
        let seams = runtime::seams();
        let spawner = Arc::new(StoppableHeart { inner: Arc::clone(&seams.spawner), stopped });
        let seams = Seams { spawner, ..seams };
        let name = name.parse().expect("a valid name");
        let node = Arc::new(Node { name, ..Node::new(config, store, seams) });
        let lease = heartbeat::start(&node, String::new()).await?;
        let agents = Arc::new(Agents::default());
        let parts = Parts { agents, on_published: Arc::new(|_, _| {}), link: Arc::new(NoLink) };
        let router = Router::start(Arc::clone(&node), parts);
        let hubs = Hubs::new(Arc::clone(&node), router.clone(), config.hub_limits());
        Ok(Self { node, router, hubs, lease, heart })
    }

    pub(super) fn me(&self) -> Incarnation {
        self.node.me
    }

    /// Something that nobody else has.
    pub(super) fn incarnation_like(&self) -> Incarnation {
        self.node.seams.incarnation()
    }

    pub(super) fn region(&self) -> Region {
        self.node.region.clone()
    }

    pub(super) fn store(&self) -> &dyn Store {
        &*self.node.store
    }

    /// From here on this node claims nothing more, and nobody counts on it.
    pub(super) async fn set_draining(&self) -> Result<bool, StoreError> {
        self.node.store.set_draining(self.node.me).await
    }

    pub(super) async fn expel(&self, other: Incarnation) -> Result<bool, StoreError> {
        self.node.store.expel(other).await
    }

    /// The heart stops as if its thread hung: nobody tells the node that it is dead.
    pub(super) fn stop_heart(&self) {
        self.heart.send_replace(true);
    }

    /// Whether the node takes its lease for certain.
    pub(super) fn believes(&self) -> bool {
        let moment = self.node.moment();
        moment.now < moment.valid_until
    }

    pub(super) fn was_fenced(&self, conversation: &ConvRef, in_epoch: Epoch) -> bool {
        self.node.events.after(0, EVENTS_MAX).events.iter().any(|recorded| {
            matches!(&recorded.event, Event::Fenced { conversation: id, epoch } if *id == conversation.id && *epoch == in_epoch)
        })
    }

    pub(super) async fn watch(&self, conversation: &ConvRef) -> Result<Watcher, Refusal> {
        let seen = Arc::new(Seen::default());
        let sink: Arc<Seen> = Arc::clone(&seen);
        let join = Join { sink, sub: super::sender(), name: None, after: None, log: None };
        let session = self.hubs.join(conversation, join).await?;
        Ok(Watcher { seen, _session: session })
    }

    pub(super) async fn write(&self, conversation: &ConvRef, draft: Draft) -> Result<Vec<Receipt>, Refusal> {
        self.router.append(conversation, vec![draft]).await
    }

    /// Without looking for another owner when this node is none any more.
    pub(super) async fn write_once(&self, conversation: &ConvRef, draft: Draft) -> Result<Vec<Receipt>, Refusal> {
        self.router.append_within(conversation, vec![draft], Hops::START, Duration::ZERO).await
    }

    /// Gives up what is owned, and takes the node's row away.
    pub(super) async fn end(self) {
        let Self { node, router, hubs, lease, heart } = self;
        drop((hubs, lease));
        heart.send_replace(true);
        let in_order = async {
            router.shut_down().await;
            node.store.deregister(node.me).await
        };
        match tokio::time::timeout(END_WITHIN, in_order).await {
            Ok(Ok(_was_there)) => {}
            Ok(Err(error)) => tracing::warn!(%error, "a canary's row stays until it expires"),
            Err(_) => tracing::warn!("a canary's row stays until it expires: the store does not answer in time"),
        }
    }
}

/// Tasks as they are, but for the heart, which ends when it is told to.
struct StoppableHeart {
    inner: Arc<dyn Spawn>,
    stopped: watch::Receiver<bool>,
}

impl Spawn for StoppableHeart {
    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>) {
        self.inner.spawn(name, task);
    }

    fn spawn_dedicated(&self, name: &'static str, task: BoxFuture<'static, ()>) {
        let mut stopped = self.stopped.clone();
        let task = async move {
            // Both branches are cancel safe, or dropped for good.
            tokio::select! {
                biased;
                // An error is a canary that is gone.
                _ = stopped.wait_for(|stopped| *stopped) => {}
                () = task => {}
            }
        };
        self.inner.spawn_dedicated(name, Box::pin(task));
    }
}
