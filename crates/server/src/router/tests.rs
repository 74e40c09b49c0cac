//! What the simulation does not show of the router.

use std::collections::BTreeMap;
use std::pin::pin;

use conch_core::ids::ConversationId;
use conch_store::RESOLVE_MANY_MAX;
use conch_store::faulty::{Call, Fault, FaultPlan, FaultyStore};
use conch_store::memory::MemoryStore;
use futures_util::FutureExt as _;
use futures_util::future::join_all;

use super::*;
use crate::config::Config;
use crate::testing;

#[tokio::test]
async fn a_look_that_began_before_a_call_says_nothing_of_its_peer() {
    let node = testing::node(&Config::default(), testing::empty_store());
    let router = testing::router(&node);
    let peer = Peer { incarnation: Incarnation(7), addr: "127.0.0.1:1".to_owned() };
    let before = node.seams.now();
    let call = std::future::pending::<Result<(), LinkError>>();
    let mut waiting = pin!(router.while_it_lives(&peer, call));
    assert!(waiting.as_mut().now_or_never().is_none(), "nobody looked");
    node.nodes.set(Vec::new(), Monotonic(before.0 - 1));
    assert!(waiting.as_mut().now_or_never().is_none(), "the peer may have come since");
    node.nodes.set(Vec::new(), node.seams.now());
    let answer = waiting.as_mut().now_or_never();
    assert!(matches!(answer, Some(Err(LinkError::Ambiguous(_)))), "{answer:?}");
}

/// Counts the store's calls.
#[derive(Default)]
struct Counting(Mutex<BTreeMap<Call, usize>>);

impl FaultPlan for Counting {
    fn next(&self, call: Call) -> Fault {
        *self.0.lock().expect("no panic").entry(call).or_default() += 1;
        Fault::None
    }
}

impl Counting {
    fn resolved(&self) -> (usize, usize) {
        let counts = self.0.lock().expect("no panic");
        let count = |call| counts.get(&call).copied().unwrap_or_default();
        (count(Call::Resolve), count(Call::ResolveMany))
    }
}

fn counted() -> (Arc<Counting>, Arc<Node>) {
    let counting = Arc::new(Counting::default());
    let memory = Arc::new(MemoryStore::new("test", Arc::new(|| 0)));
    let store = FaultyStore::new(memory, Arc::clone(&counting) as Arc<dyn FaultPlan>, Arc::new(|_| {}));
    let mut config = Config::default();
    // Nobody is told to come again.
    config.limits.claims_burst = 1_000;
    (counting, testing::node(&config, Arc::new(store)))
}

/// How many statements it takes to find, at once, the owners of so many conversations and of some that do not exist: those for one,
/// and those for several.
async fn follow_at_once(conversations: usize, missing: usize) -> (usize, usize) {
    let (counting, node) = counted();
    let _lease = crate::cluster::heartbeat::start(&node, String::new()).await.expect("registered");
    let router = testing::router(&node);
    let mut all = Vec::new();
    for number in 0..conversations {
        all.push(testing::channel(&node, &format!("c-{number}")).await);
    }
    let nowhere = |number| ConvRef::from(format!("nowhere-{number}").parse::<ConversationId>().expect("valid"));
    all.extend((0..missing).map(nowhere));
    let followed = join_all(all.iter().map(|conversation| router.follow(conversation))).await;
    for (number, followed) in followed.into_iter().enumerate() {
        let code = followed.err().map(|refusal| refusal.code);
        assert_eq!(code, (number >= conversations).then_some(Code::NotFound), "number {number}");
    }
    counting.resolved()
}

/// Who comes back resumes all that it held.
#[tokio::test]
async fn owners_that_are_looked_for_at_once_are_looked_up_together() {
    assert_eq!(follow_at_once(1, 0).await, (0, 1));
    assert_eq!(follow_at_once(30, 10).await, (0, 1));
    assert_eq!(follow_at_once(RESOLVE_MANY_MAX * 3, 0).await, (0, 3), "each statement is bounded");
}

#[tokio::test]
async fn who_waits_for_an_owner_is_looked_up_alone() {
    let (counting, node) = counted();
    let _lease = crate::cluster::heartbeat::start(&node, String::new()).await.expect("registered");
    let conversation = testing::channel(&node, "c").await;
    testing::router(&node).append(&conversation, vec![testing::message("k")]).await.expect("written");
    assert_eq!(counting.resolved(), (1, 0));
}
