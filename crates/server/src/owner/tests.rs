//! An owner at its limits, and on its way out.
//!
//! The store's gate holds a call back until the test lets it go, so that what waits behind it is known.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use conch_core::body::Body;
use conch_core::conversation::{ConversationKind, SecondMessage, Settings};
use conch_core::ids::ConvRef;
use conch_core::record::{Draft, RecordKind};
use conch_core::refusal::Code;
use conch_core::sequencer::Outcome;
use conch_store::faulty::{BoxFuture, Call, Fault, FaultPlan, FaultyStore};
use conch_store::memory::MemoryStore;
use conch_store::{ConversationPatch, Store};
use futures_util::FutureExt;
use tokio::sync::watch;

use super::{FollowFrame, OwnerHandle};
use crate::cluster::heartbeat;
use crate::config::Config;
use crate::node::Node;
use crate::router::{Place, Router};
use crate::testing::{self, create, hit, hits};

/// Holds one kind of call back until it is opened.
struct Gate {
    call: Call,
    hold: fn(BoxFuture<()>) -> Fault,
    arrived: watch::Sender<usize>,
    open: watch::Sender<bool>,
}

impl Gate {
    fn closed_to(call: Call) -> Arc<Self> {
        Self::holding(call, Fault::DelayBefore)
    }

    /// The calls are made; their answers are held back.
    fn closed_to_answers_of(call: Call) -> Arc<Self> {
        Self::holding(call, Fault::DelayAfter)
    }

    fn holding(call: Call, hold: fn(BoxFuture<()>) -> Fault) -> Arc<Self> {
        Arc::new(Self { call, hold, arrived: watch::Sender::new(0), open: watch::Sender::new(false) })
    }

    fn open(&self) {
        self.open.send_replace(true);
    }

    fn close(&self) {
        self.open.send_replace(false);
    }

    /// Waits until so many calls have come to it.
    async fn arrived(&self, count: usize) {
        let mut arrived = self.arrived.subscribe();
        arrived.wait_for(|arrived| *arrived >= count).await.expect("the gate is there");
    }
}

impl FaultPlan for Gate {
    fn next(&self, call: Call) -> Fault {
        if call != self.call {
            return Fault::None;
        }
        self.arrived.send_modify(|arrived| *arrived += 1);
        let mut open = self.open.subscribe();
        (self.hold)(Box::pin(async move { drop(open.wait_for(|open| *open).await) }))
    }
}

/// A store whose calls of one kind wait at a gate.
fn gated(gate: &Arc<Gate>) -> Arc<dyn Store> {
    let store = Arc::new(MemoryStore::new("test", Arc::new(|| 0)));
    Arc::new(FaultyStore::new(store, Arc::clone(gate) as Arc<dyn FaultPlan>, Arc::new(|late| drop(tokio::spawn(late)))))
}

/// The owner, which must run on this node.
async fn here(router: &Router, conversation: &ConvRef) -> OwnerHandle {
    match router.place(conversation, None).await.expect("claimed") {
        Place::Here(owner) => owner,
        Place::There(_) => panic!("there is no other node"),
    }
}

fn input(key: usize, text: &str) -> Vec<Draft> {
    let body = Body::of(&serde_json::json!({"text": text}));
    let key = key.to_string().parse().expect("valid");
    vec![Draft::new(RecordKind::Message, "alice".parse().expect("valid"), key, body)]
}

#[tokio::test]
async fn a_retry_is_the_same_message_even_when_the_turn_queue_is_full() {
    let config = Config::default();
    let node = testing::node(&config, testing::empty_store());
    let _lease = heartbeat::start(&node, String::new()).await.expect("registered");
    let conversation = create(&node, "s", ConversationKind::Session).await;
    let router = testing::router(&Arc::clone(&node));

    let first = router.append(&conversation, input(0, "hi")).await.expect("accepted")[0];
    let mut refused = None;
    for key in 1..2_000 {
        if let Err(refusal) = router.append(&conversation, input(key, "hi")).await {
            refused = Some((key, refusal));
            break;
        }
    }
    let (key, refusal) = refused.expect("a queue is bounded");
    assert!(refusal.code == Code::Overloaded && refusal.retry.is_some(), "{refusal:?}");
    assert_eq!(hits(&node, "turns"), 1);

    let again = router.append(&conversation, input(0, "hi")).await.expect("the same message")[0];
    assert_eq!((again.seq, again.at, again.outcome), (first.seq, first.at, Outcome::Duplicate));
    let reused = router.append(&conversation, input(0, "other")).await.expect_err("another body");
    assert_eq!(reused.code, Code::IdempotencyKeyReused);
    let new = router.append(&conversation, input(key, "hi")).await.expect_err("still full");
    assert_eq!(new.code, Code::Overloaded);
}

#[tokio::test]
async fn writes_and_commands_over_an_owners_limits_are_refused_and_counted() {
    let mut config = Config::default();
    (config.limits.owner_queue_records, config.limits.owner_commands) = (1, 16);
    let gate = Gate::closed_to(Call::Append);
    let node = testing::node(&config, gated(&gate));
    let _lease = heartbeat::start(&node, String::new()).await.expect("registered");
    let conversation = create(&node, "c", ConversationKind::Channel).await;
    let owner = here(&testing::router(&node), &conversation).await;

    let mut under_way = Box::pin(owner.append(input(0, "hi")));
    assert!(under_way.as_mut().now_or_never().is_none());
    gate.arrived(1).await;
    let mut waits = Box::pin(owner.append(input(1, "hi")));
    assert!(waits.as_mut().now_or_never().is_none());
    assert_eq!(hits(&node, "owner"), 0);
    let refusal = owner.append(input(2, "hi")).await.expect_err("one may wait, and one does");
    assert!(refusal.code == Code::Overloaded && refusal.retry.is_some(), "{refusal:?}");
    assert_eq!(hits(&node, "owner"), 1);

    // The owner's task does not run between these, so its queue of commands fills.
    let refused = Arc::new(Mutex::new(Vec::new()));
    for key in 3..3 + 16 + 1 {
        assert_eq!(hits(&node, "owner_commands"), 0);
        let refused = Arc::clone(&refused);
        let reply = move |result: Result<_, _>| refused.lock().expect("no panic").extend(result.err());
        owner.submit(input(key, "hi"), Box::new(reply));
    }
    assert_eq!(hits(&node, "owner_commands"), 1);
    let refused = std::mem::take(&mut *refused.lock().expect("no panic"));
    assert!(matches!(&refused[..], [one] if one.code == Code::Overloaded), "{refused:?}");

    gate.open();
    under_way.await.expect("written");
    waits.await.expect("written");
}

#[tokio::test]
async fn conversations_over_the_commits_limit_are_refused_and_counted() {
    let mut config = Config::default();
    (config.limits.commit_queue, config.limits.commit_batches) = (1, 1);
    let gate = Gate::closed_to(Call::Append);
    let node = testing::node(&config, gated(&gate));
    let _lease = heartbeat::start(&node, String::new()).await.expect("registered");
    let router = testing::router(&node);
    let mut owners = Vec::new();
    for id in ["a", "b", "c"] {
        let conversation = create(&node, id, ConversationKind::Channel).await;
        owners.push(here(&router, &conversation).await);
    }
    let mut under_way = Box::pin(owners[0].append(input(0, "hi")));
    assert!(under_way.as_mut().now_or_never().is_none());
    gate.arrived(1).await;
    let mut others =
        Box::pin(futures_util::future::join(owners[1].append(input(0, "hi")), owners[2].append(input(0, "hi"))));
    // Both ask; the owners' tasks do the rest.
    assert!(others.as_mut().now_or_never().is_none(), "the gate is closed");
    hit(&node, "commit").await;
    assert_eq!(hits(&node, "commit"), 1);
    gate.open();
    under_way.await.expect("written");
    let (second, third) = others.await;
    let refused: Vec<_> = [second, third].into_iter().filter_map(Result::err).collect();
    assert!(matches!(&refused[..], [one] if one.code == Code::StoreUnavailable && one.retry.is_some()), "{refused:?}");
}

#[tokio::test]
async fn claims_over_their_limit_wait_and_are_counted() {
    let mut config = Config::default();
    config.limits.claims = 1;
    let gate = Gate::closed_to(Call::Resolve);
    let node = testing::node(&config, gated(&gate));
    let _lease = heartbeat::start(&node, String::new()).await.expect("registered");
    let router = testing::router(&node);
    let (a, b) =
        (create(&node, "a", ConversationKind::Channel).await, create(&node, "b", ConversationKind::Channel).await);
    let mut owners = Box::pin(futures_util::future::join(here(&router, &a), here(&router, &b)));
    assert!(owners.as_mut().now_or_never().is_none());
    gate.arrived(1).await;
    hit(&node, "claims").await;
    gate.open();
    // Whoever waited has its turn.
    owners.await;
    assert_eq!(hits(&node, "claims"), 1);
}

#[tokio::test]
async fn a_follower_over_its_limit_is_dropped_and_counted() {
    let mut config = Config::default();
    config.limits.follower_frames = 2;
    let node = testing::node(&config, testing::empty_store());
    let _lease = heartbeat::start(&node, String::new()).await.expect("registered");
    let conversation = create(&node, "c", ConversationKind::Channel).await;
    let router = testing::router(&node);
    let mut follow = router.follow(&conversation).await.expect("followed");
    for key in 0..3 {
        router.append(&conversation, input(key, "hi")).await.expect("written");
    }
    // The owner publishes after it acks; what is asked next comes after that.
    router.follow(&conversation).await.expect("followed");
    assert_eq!(hits(&node, "followers"), 1);
    let mut records = 0;
    while let Some(frame) = follow.frames.recv().await {
        records += usize::from(matches!(frame, FollowFrame::Record(_)));
    }
    assert!(records <= 2, "what was queued before the end is still there: {records}");
}

/// An owner that is about to hibernate takes nothing more, but still has its lease to hand over.
#[tokio::test]
async fn a_shutdown_waits_for_owners_that_are_on_their_way_out() {
    let mut config = Config::default();
    config.hibernation.memory_ms = 1;
    let gate = Gate::closed_to(Call::SaveCheckpoint);
    let node = testing::node(&config, gated(&gate));
    let _lease = heartbeat::start(&node, String::new()).await.expect("registered");
    let conversation = create(&node, "s", ConversationKind::Session).await;
    let router = testing::router(&node);
    let owner = here(&router, &conversation).await;
    gate.arrived(1).await;
    assert!(owner.is_gone(), "it hibernates");
    let mut shut_down = Box::pin(router.shut_down());
    let early = tokio::time::timeout(Duration::from_millis(100), shut_down.as_mut()).await;
    assert!(early.is_err(), "the owner has not ended");
    gate.open();
    shut_down.await;
    let resolution = node.store.resolve(&conversation).await.expect("there").expect("there");
    assert!(resolution.owner.is_none(), "its lease was given back: {resolution:?}");
}

/// Writes what becomes of a second message.
async fn change(node: &Node, conversation: &ConvRef, second_message: SecondMessage) {
    let settings = Some(Settings { second_message: Some(second_message), ..Settings::default() });
    let patch = ConversationPatch { settings, ..ConversationPatch::default() };
    node.store.patch_conversation(conversation, &patch).await.expect("written").expect("it is there");
}

/// Whether a message is taken while the turn of another one runs.
async fn takes_a_second(router: &Router, conversation: &ConvRef) -> bool {
    router.append(conversation, input(0, "hi")).await.expect("the first one");
    match router.append(conversation, input(1, "hi")).await {
        Ok(_) => true,
        Err(refusal) if refusal.code == Code::Conflict => false,
        Err(refusal) => panic!("{refusal:?}"),
    }
}

#[tokio::test]
async fn an_owner_ends_with_the_last_change_of_its_settings_whichever_is_heard_last() {
    let gate = Gate::closed_to_answers_of(Call::Conversation);
    gate.open();
    let node = testing::node(&Config::default(), gated(&gate));
    let _lease = heartbeat::start(&node, String::new()).await.expect("registered");
    let conversation = create(&node, "s", ConversationKind::Session).await;
    let router = testing::router(&node);
    here(&router, &conversation).await;

    gate.close();
    change(&node, &conversation, SecondMessage::Reject).await;
    let mut first = Box::pin(router.read_again(&conversation));
    assert!(first.as_mut().now_or_never().is_none(), "it has read the first change");
    change(&node, &conversation, SecondMessage::Queue).await;
    let mut second = Box::pin(router.read_again(&conversation));
    assert!(second.as_mut().now_or_never().is_none(), "and this one the second");
    gate.open();
    second.await;
    first.await;
    assert!(takes_a_second(&router, &conversation).await);
}

#[tokio::test]
async fn a_claim_that_read_before_a_change_hears_of_it() {
    let gate = Gate::closed_to(Call::Claim);
    let node = testing::node(&Config::default(), gated(&gate));
    let _lease = heartbeat::start(&node, String::new()).await.expect("registered");
    let conversation = create(&node, "s", ConversationKind::Session).await;
    let router = testing::router(&node);
    let mut claiming = Box::pin(here(&router, &conversation));
    assert!(claiming.as_mut().now_or_never().is_none());
    gate.arrived(1).await;
    change(&node, &conversation, SecondMessage::Reject).await;
    let mut hears = Box::pin(router.read_again(&conversation));
    assert!(hears.as_mut().now_or_never().is_none(), "nobody is there who could");
    gate.open();
    claiming.await;
    hears.await;
    assert!(!takes_a_second(&router, &conversation).await);
}

#[tokio::test]
async fn what_is_at_rest_hears_of_a_change() {
    let mut config = Config::default();
    config.hibernation.memory_ms = 1;
    let node = testing::node(&config, testing::empty_store());
    let _lease = heartbeat::start(&node, String::new()).await.expect("registered");
    let conversation = create(&node, "s", ConversationKind::Session).await;
    let router = testing::router(&node);
    let owner = here(&router, &conversation).await;
    while !owner.is_gone() {
        tokio::task::yield_now().await;
    }
    change(&node, &conversation, SecondMessage::Reject).await;
    router.read_again(&conversation).await;
    assert!(!takes_a_second(&router, &conversation).await);
}
