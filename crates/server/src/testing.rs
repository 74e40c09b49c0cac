//! A node and a gateway for this crate's tests, over a store in memory.

use std::sync::Arc;
use std::time::Duration;

use conch_core::body::Body;
use conch_core::conversation::{ConversationKind, Settings};
use conch_core::ids::{ConvRef, ConversationId, Incarnation};
use conch_core::record::{Draft, RecordKind};
use conch_core::shed::{Permille, Rung};
use conch_core::time::{Monotonic, Timestamp};
use conch_store::memory::MemoryStore;
use conch_store::{NewConversation, NodeRow, Registration, Store};
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use crate::agents::Callbacks;
use crate::auth::origin::OriginPolicy;
use crate::auth::secret::{Mode, Secret};
use crate::auth::token::TokenKey;
use crate::config::Config;
use crate::cursors::Cursors;
use crate::gateway::{Components, Gateway};
use crate::hub::Hubs;
use crate::link::NoLink;
use crate::link::notices::Notices;
use crate::node::Node;
use crate::people::People;
use crate::router::{Parts, Router};
use crate::runtime;
use crate::seams::{Clock, Seams};
use crate::turn::agents::Agents;

/// A store without a conversation.
pub(crate) fn empty_store() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new("test", Arc::new(|| 0)))
}

/// A node that has no lease.
pub(crate) fn node(config: &Config, store: Arc<dyn Store>) -> Arc<Node> {
    Arc::new(Node::new(config, store, runtime::seams()))
}

/// The runtime's time, which is paused: nobody waits for it.
struct Paused(Instant);

impl Clock for Paused {
    fn now(&self) -> Monotonic {
        Monotonic(u64::try_from(self.0.elapsed().as_nanos()).expect("a short test"))
    }

    fn wall(&self) -> Timestamp {
        Timestamp(0)
    }

    fn sleep_until(&self, at: Monotonic) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep_until(self.0 + Duration::from_nanos(at.0)))
    }
}

/// A node that has no lease, on the runtime's time: for tests that pause it.
pub(crate) fn paused_node(config: &Config, store: Arc<dyn Store>) -> Arc<Node> {
    let seams = Seams { clock: Arc::new(Paused(Instant::now())), ..runtime::seams() };
    Arc::new(Node::new(config, store, seams))
}

/// A new channel in a node's store.
pub(crate) async fn channel(node: &Node, id: &str) -> ConvRef {
    create(node, id, ConversationKind::Channel).await
}

/// A new conversation in a node's store; a session is with the demo agent.
pub(crate) async fn create(node: &Node, id: &str, kind: ConversationKind) -> ConvRef {
    let conversation = ConvRef::from(id.parse::<ConversationId>().expect("valid"));
    let new = NewConversation {
        conversation: conversation.clone(),
        kind,
        regions: Vec::new(),
        home: node.region.clone(),
        title: None,
        agent: (kind == ConversationKind::Session).then(|| "demo".parse().expect("valid")),
        settings: Settings::default(),
        creator: "alice".parse().expect("valid"),
        members: Vec::new(),
    };
    node.store.create_conversation(&new).await.expect("created");
    conversation
}

/// A message of alice's.
pub(crate) fn message(key: &str) -> Draft {
    let body = Body::of(&serde_json::json!({"text": "hi"}));
    Draft::new(RecordKind::Message, "alice".parse().expect("valid"), key.parse().expect("valid"), body)
}

/// Puts so much pressure on a node, in its future, that it sheds as this rung says.
pub(crate) fn press(node: &Node, rung: Rung) {
    let mut now = node.seams.now();
    while node.pressure.rung() < rung {
        node.pressure.busy(0, Duration::from_millis(250));
        node.pressure.late(0, Permille::ALL);
        now = now + Duration::from_millis(250);
        node.pressure.look(now);
    }
}

/// How often a limit was hit, as the metrics say.
pub(crate) fn hits(node: &Node, queue: &str) -> u64 {
    let page = node.metrics.encode("").1;
    let name = format!("conch_limit_hits_total{{queue=\"{queue}\"}} ");
    let value = page.lines().find_map(|line| line.strip_prefix(&name)).expect("every queue is there");
    value.parse().expect("a number")
}

/// Lets the other tasks run until a limit was hit, or for long enough to say that it is not.
pub(crate) async fn hit(node: &Node, queue: &str) {
    for _ in 0..10_000 {
        if hits(node, queue) > 0 {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("the limit {queue} was not hit");
}

/// Lets a node believe in one other that it can reach, for an hour.
pub(crate) fn see_a_peer(node: &Node) {
    let registration = Registration {
        incarnation: Incarnation(7),
        node: "peer".parse().expect("a name"),
        region: node.region.clone(),
        addr: "127.0.0.1:1".to_owned(),
        lifeline: None,
    };
    let row = NodeRow { registration, beat: 1, draining: false, expires_in_ms: 3_600_000 };
    node.nodes.set(vec![row], node.seams.now());
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
        callbacks: Callbacks::new(&Secret::new([7; 32]), "http://localhost".to_owned()),
        chat_agent: config.ai.agent.clone(),
        key: TokenKey::new(&Secret::new(vec![7; 32])).expect("long enough"),
        mode: Mode::Development,
        origins: OriginPolicy { mode: Mode::Development, allowed: Vec::new() },
        client_urls: Vec::new(),
        limits: config.limits.clone(),
        rate: config.rate.clone(),
        reconnect_jitter_ms: config.fanout.reconnect_jitter_ms,
        token_ttl_ms: config.auth.token_ttl_ms,
        node,
    })
}
