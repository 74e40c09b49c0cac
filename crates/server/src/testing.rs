//! A node and a gateway for this crate's tests, over a store in memory.

use std::sync::Arc;

use conch_store::Store;
use conch_store::memory::MemoryStore;

use crate::auth::origin::OriginPolicy;
use crate::auth::secret::{Mode, Secret};
use crate::auth::token::TokenKey;
use crate::cluster::nodes::Nodes;
use crate::config::Config;
use crate::cursors::Cursors;
use crate::events::Events;
use crate::gateway::{Components, Gateway};
use crate::hub::Hubs;
use crate::link::NoLink;
use crate::link::notices::Notices;
use crate::metrics::Metrics;
use crate::node::{Node, Validity};
use crate::people::People;
use crate::router::{Parts, Router};
use crate::runtime;
use crate::turn::agents::Agents;

/// A store without a conversation.
pub(crate) fn empty_store() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new("test", Arc::new(|| 0)))
}

/// A node that has no lease.
pub(crate) fn node(config: &Config, store: Arc<dyn Store>) -> Arc<Node> {
    let seams = runtime::seams();
    Arc::new(Node {
        me: seams.incarnation(),
        name: config.node.clone(),
        region: config.region.clone(),
        store,
        nodes: Nodes::default(),
        events: Events::new(Arc::clone(&seams.clock)),
        seams,
        timing: config.lease.timing(),
        validity: Validity::default(),
        limits: config.owner_limits(),
        metrics: Arc::new(Metrics::new()),
    })
}

/// A router of a node.
pub(crate) fn router(node: &Arc<Node>) -> Router {
    let parts =
        Parts { agents: Arc::new(Agents::default()), on_published: Arc::new(|_, _| {}), link: Arc::new(NoLink) };
    Router::start(Arc::clone(node), parts)
}

/// A gateway in development mode.
pub(crate) fn gateway(config: &Config) -> Gateway {
    let node = node(config, empty_store());
    let router = router(&node);
    Gateway::new(Components {
        hubs: Hubs::new(Arc::clone(&node), router.clone(), config.hub_limits()),
        people: People::new(Arc::clone(&node)),
        notices: Notices::start(Arc::clone(&node), Arc::new(NoLink)),
        cursors: Cursors::start(Arc::clone(&node)),
        router,
        agents: Arc::new(Agents::default()),
        key: TokenKey::new(&Secret::new(vec![7; 32])).expect("long enough"),
        mode: Mode::Development,
        origins: OriginPolicy { mode: Mode::Development, allowed: Vec::new() },
        limits: config.limits.clone(),
        rate: config.rate.clone(),
        reconnect_jitter_ms: config.fanout.reconnect_jitter_ms,
        token_ttl_ms: config.auth.token_ttl_ms,
        node,
    })
}
