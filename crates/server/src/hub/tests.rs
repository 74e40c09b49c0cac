//! Limits of a gateway's hubs, and who may stay.

use conch_store::faulty::{Call, Fault, FaultPlan, FaultyStore};
use conch_store::memory::MemoryStore;

use super::catch_up_tests::Counting;
use super::*;
use crate::config::Config;
use crate::rules::{Rule, Rules};
use crate::testing::{self, hits};

fn conversation(id: &str) -> ConvRef {
    id.parse::<conch_core::ids::ConversationId>().expect("valid").into()
}

#[tokio::test]
async fn sessions_are_bounded_over_all_hubs() {
    let mut config = Config::default();
    config.limits.sessions = 2;
    let node = testing::node(&config, testing::empty_store());
    let hubs = Hubs::new(Arc::clone(&node), testing::router(&node), config.hub_limits());
    let first = hubs.enter(&conversation("a")).expect("there is room");
    let second = hubs.enter(&conversation("b")).expect("there is room");
    let refusal = hubs.enter(&conversation("a")).err().expect("there is no room");
    assert_eq!(refusal.code, Code::Overloaded);
    assert_eq!(refusal.retry, Some(Retry { after_ms: 1_000, budget_ms: 120_000 }));
    assert!(refusal.detail.contains("2 sessions"), "{refusal:?}");
    let page = node.metrics.encode("").1;
    assert!(page.contains("conch_limit_hits_total{queue=\"sessions\"} 1"), "{page}");
    drop(first);
    let third = hubs.enter(&conversation("a")).expect("there is room again");
    assert_eq!(hubs.connected(&conversation("a")), Some(1));
    drop((second, third));
    assert_eq!(hubs.table().sessions, 0);
}

#[tokio::test]
async fn commands_over_a_hubs_limit_are_counted() {
    let mut config = Config::default();
    config.limits.hub_commands = 1;
    let node = testing::node(&config, testing::empty_store());
    let hubs = Hubs::new(Arc::clone(&node), testing::router(&node), config.hub_limits());
    let session = hubs.enter(&conversation("a")).expect("there is room");
    // The hub's task does not run between these.
    session.typing("alice".parse().expect("valid"), None);
    assert_eq!(hits(&node, "hub_commands"), 0);
    session.typing("alice".parse().expect("valid"), None);
    assert_eq!(hits(&node, "hub_commands"), 1);
}

/// Tells when it was ended.
#[derive(Default)]
struct Ending(tokio::sync::Notify);

impl sink::FrameSink for Ending {
    fn push(&self, _frame: &Arc<crate::frame::Frame>) -> sink::Push {
        sink::Push::Accepted
    }

    fn room(&self) -> futures_util::future::BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    fn end(&self, reason: &Refusal) {
        assert_eq!(reason.code, Code::Forbidden);
        self.0.notify_one();
    }
}

impl Sink for Ending {
    fn joined(&self, _joined: &sink::Joined) {}
}

/// The notice of a removal on another node was lost.
#[tokio::test(start_paused = true)]
async fn who_is_no_member_any_more_is_cut_off_in_time() {
    let config = Config::default();
    let node = testing::node(&config, testing::empty_store());
    let _lease = crate::cluster::heartbeat::start(&node, String::new()).await.expect("registered");
    let conversation = testing::channel(&node, "c").await;
    let hubs = Hubs::new(Arc::clone(&node), testing::router(&node), config.hub_limits());
    let (mut sinks, mut sessions) = (Vec::new(), Vec::new());
    for (sub, right) in [("bob", Right::Membership), ("carol", Right::Membership), ("dave", Right::Grant)] {
        let sub: Subject = sub.parse().expect("valid");
        node.store.add_member(&conversation, &sub).await.expect("added");
        let sink = Arc::new(Ending::default());
        let join = Join { sink: Arc::clone(&sink) as Arc<dyn Sink>, sub, name: None, after: None, log: None };
        sessions.push(hubs.join_by(right, &conversation, join).await.expect("joined"));
        sinks.push(sink);
    }
    testing::see_a_peer(&node);
    for sub in ["bob", "dave"] {
        node.store.remove_member(&conversation, &sub.parse().expect("valid")).await.expect("removed");
    }
    let in_time = |sink: Arc<Ending>| async move {
        tokio::time::timeout(Duration::from_secs(85), sink.0.notified()).await.is_ok()
    };
    assert!(in_time(Arc::clone(&sinks[0])).await, "bob is cut off");
    assert!(!in_time(Arc::clone(&sinks[1])).await, "carol is a member");
    assert!(!in_time(Arc::clone(&sinks[2])).await, "dave has a grant");
}

fn joins(sub: &str) -> Join {
    let sink = Arc::new(Counting::default());
    Join { sink, sub: sub.parse().expect("valid"), name: None, after: None, log: None }
}

/// More than a task does before the others have their turn, so that it never finds the queue empty.
const ASKING: usize = 8;

#[tokio::test]
async fn who_leaves_is_gone_however_much_is_asked_meanwhile() {
    let config = Config::default();
    let node = testing::node(&config, testing::empty_store());
    let _lease = crate::cluster::heartbeat::start(&node, String::new()).await.expect("registered");
    let conversation = testing::channel(&node, "c").await;
    let hubs = Hubs::new(Arc::clone(&node), testing::router(&node), config.hub_limits());
    let stays = hubs.join(&conversation, joins("alice")).await.expect("joined");
    let leaves = hubs.join(&conversation, joins("bob")).await.expect("joined");
    assert_eq!(node.metrics.sessions.get(), 2);
    let asking: Vec<_> = (0..ASKING)
        .map(|_| {
            let commands = stays.hub.commands.clone();
            tokio::spawn(async move {
                while commands.send(Command::Present { answer: oneshot::channel().0 }).await.is_ok() {}
            })
        })
        .collect();
    hit_full(&stays.hub).await;
    drop(leaves);
    for _ in 0..1_000 {
        if node.metrics.sessions.get() == 1 {
            break;
        }
        tokio::task::yield_now().await;
    }
    assert_eq!(node.metrics.sessions.get(), 1, "who has left is not there any more");
    for asking in asking {
        asking.abort();
    }
}

/// Waits until there is no room among a hub's commands.
async fn hit_full(hub: &HubHandle) {
    while hub.commands.capacity() > 0 {
        tokio::task::yield_now().await;
    }
}

/// How many hubs are left a while after somebody asked for a conversation that there is not.
async fn hubs_left(rules: &[Rule]) -> i64 {
    let config = Config::default();
    let node = Node::new(&config, testing::empty_store(), crate::runtime::seams());
    let node = Arc::new(Node { rules: Rules::without(rules), ..node });
    let _lease = crate::cluster::heartbeat::start(&node, String::new()).await.expect("registered");
    let hubs = Hubs::new(Arc::clone(&node), testing::router(&node), config.hub_limits());
    let refusal =
        hubs.join(&conversation("nowhere"), joins("alice")).await.err().expect("there is no such conversation");
    assert_eq!(refusal.code, Code::NotFound);
    assert_eq!(node.metrics.hubs.get(), 1);
    // Of the runtime's time, which nobody waits for; what a hub lingers for is measured on the node's own clock.
    tokio::time::sleep(Duration::from_secs(2)).await;
    node.metrics.hubs.get()
}

#[tokio::test(start_paused = true)]
async fn who_asks_for_what_there_is_not_leaves_no_hub_behind() {
    assert_eq!(hubs_left(&[]).await, 0);
    assert_eq!(hubs_left(&[Rule::NowhereEndsAtOnce]).await, 1);
}

/// Counts reads of ranges.
#[derive(Default)]
struct Ranges(std::sync::atomic::AtomicUsize);

impl FaultPlan for Ranges {
    fn next(&self, call: Call) -> Fault {
        if call == Call::Range {
            self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
        Fault::None
    }
}

/// A storm of positions beyond the head would otherwise hold up everybody who watches, a read of the store for each.
#[tokio::test]
async fn who_waits_for_a_look_at_the_head_needs_none_of_their_own() {
    let config = Config::default();
    let ranges = Arc::new(Ranges::default());
    let plan = Arc::clone(&ranges) as Arc<dyn FaultPlan>;
    let store = FaultyStore::new(Arc::new(MemoryStore::new("test", Arc::new(|| 0))), plan, Arc::new(|_| {}));
    let node = testing::node(&config, Arc::new(store));
    let _lease = crate::cluster::heartbeat::start(&node, String::new()).await.expect("registered");
    let conversation = testing::channel(&node, "c").await;
    let hubs = Hubs::new(Arc::clone(&node), testing::router(&node), config.hub_limits());
    let _stays = hubs.join(&conversation, joins("alice")).await.expect("joined");
    let read = || ranges.0.load(std::sync::atomic::Ordering::SeqCst);
    let before = read();
    let beyond =
        (0..100).map(|number| hubs.join(&conversation, Join { after: Some(Seq(999 + number)), ..joins("bob") }));
    for joined in futures_util::future::join_all(beyond).await {
        joined.expect("told to begin anew");
    }
    assert_eq!(read() - before, 1);
    hubs.join(&conversation, Join { after: Some(Seq(999)), ..joins("bob") }).await.expect("joined");
    assert_eq!(read() - before, 2, "who asks later may have seen more");
}
