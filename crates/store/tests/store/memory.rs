//! What only the memory store has: shared clones, snapshots and failovers.

use std::sync::Arc;
use std::time::Duration;

use conch_core::body::{Body, Limits};
use conch_core::conversation::{ConversationKind, Settings};
use conch_core::ids::{ConvRef, ConversationId, Epoch, Incarnation, Seq};
use conch_core::record::{Draft, RecordKind};
use conch_store::memory::MemoryStore;
use conch_store::{
    AppendOutcome, Armed, Batch, ClaimOutcome, ClaimRequest, Direction, DueChange, LeaseStore, LogStore,
    NewConversation, RangeQuery, Registration,
};

pub(crate) const TTL: Duration = Duration::from_secs(15);
pub(crate) const ME: Incarnation = Incarnation(1);

pub(crate) fn store() -> MemoryStore {
    MemoryStore::new("test", Arc::new(|| 1_796_000_000_000))
}

pub(crate) fn conversation() -> ConvRef {
    ConvRef::from("c".parse::<ConversationId>().expect("valid"))
}

pub(crate) fn registration(incarnation: Incarnation) -> Registration {
    let (node, region) = ("n".parse().expect("valid"), "north".parse().expect("valid"));
    Registration { incarnation, node, region, addr: String::new(), lifeline: None }
}

/// Registers [`ME`] and creates the conversation.
pub(crate) async fn prepare(store: &(impl LeaseStore + LogStore)) {
    store.register(&registration(ME), TTL).await.expect("registers");
    let new = NewConversation {
        conversation: conversation(),
        kind: ConversationKind::Channel,
        regions: Vec::new(),
        home: "north".parse().expect("valid"),
        title: None,
        agent: None,
        settings: Settings::default(),
        creator: "alice".parse().expect("valid"),
        members: Vec::new(),
    };
    store.create_conversation(&new).await.expect("creates");
}

pub(crate) fn claim(me: Incarnation, seen: Option<(Epoch, Incarnation)>) -> ClaimRequest {
    ClaimRequest {
        conversation: conversation().key,
        me,
        seen_epoch: seen.map(|(epoch, _)| epoch),
        seen_owner: seen.map(|(_, owner)| owner),
        margin: Duration::from_secs(3),
        gap: 1_000,
    }
}

pub(crate) async fn won(store: &impl LeaseStore, request: ClaimRequest) -> Armed {
    match store.claim(&request).await.expect("answers") {
        ClaimOutcome::Won(armed) => armed,
        ClaimOutcome::Lost => panic!("the claim {request:?} was lost"),
    }
}

/// One message with this key, as the first after `armed`.
pub(crate) fn batch(armed: Armed, key: &str) -> Batch {
    let body = Body::parse_message(r#"{"text":"hi"}"#, Limits::default()).expect("valid");
    let draft = Draft::new(RecordKind::Message, "alice".parse().expect("valid"), key.parse().expect("valid"), body);
    let seq = armed.first_seq;
    Batch {
        conversation: conversation(),
        epoch: armed.epoch,
        generation: armed.generation,
        prev: armed.last_seq,
        hi: seq,
        reserve: seq,
        due: DueChange::Keep,
        records: vec![(seq, draft)],
    }
}

pub(crate) async fn seqs(store: &impl LogStore) -> Vec<Seq> {
    let direction = Direction::After(Seq(0));
    let query = RangeQuery { conversation: conversation(), direction, limit: 100, kinds: Vec::new() };
    let page = store.range(&query).await.expect("answers").expect("exists");
    page.records.iter().map(|record| record.seq).collect()
}

#[tokio::test]
async fn clones_are_one_store() {
    let store = store();
    let other = store.clone();
    prepare(&store).await;
    assert_eq!(other.nodes().await.expect("answers").len(), 1);
}

#[tokio::test]
async fn a_failover_loses_what_came_later_and_its_numbers_are_never_given_again() {
    let store = store();
    prepare(&store).await;
    let armed = won(&store, claim(ME, None)).await;
    let standby = store.snapshot();
    let log = store.log().await.expect("answers");
    let outcome = store.append(ME, vec![batch(armed, "k1")]).await.expect("answers");
    assert!(matches!(outcome[..], [AppendOutcome::Landed { .. }]), "{outcome:?}");
    assert_eq!(seqs(&store).await, [armed.first_seq]);

    let generation = store.fail_over(&standby);
    assert_eq!(generation.0, armed.generation.0 + 1);
    assert_ne!(store.log().await.expect("answers"), log);
    assert!(seqs(&store).await.is_empty(), "the standby had not seen it");
    let outcome = store.append(ME, vec![batch(armed, "k2")]).await.expect("answers");
    assert_eq!(outcome, [AppendOutcome::Rewound]);

    let again = won(&store, claim(ME, Some((armed.epoch, ME)))).await;
    assert_eq!(again.generation, generation);
    assert!(again.first_seq > armed.first_seq && again.epoch > armed.epoch, "{again:?}");
    store.append(ME, vec![batch(again, "k1")]).await.expect("answers");
    assert_eq!(seqs(&store).await, [again.first_seq], "the retry is accepted under another number");
}

#[tokio::test]
async fn a_claim_that_a_failover_lost_shares_no_epoch_with_the_next() {
    let store = store();
    prepare(&store).await;
    let standby = store.snapshot();
    let lost = won(&store, claim(ME, None)).await;
    store.fail_over(&standby);
    let other = Incarnation(2);
    store.register(&registration(other), TTL).await.expect("registers");
    let next = won(&store, claim(other, None)).await;
    assert!(next.epoch > lost.epoch && next.first_seq > lost.first_seq, "{next:?} after {lost:?}");
    let outcome = store.append(ME, vec![batch(lost, "k1")]).await.expect("answers");
    assert_eq!(outcome, [AppendOutcome::Fenced]);
}

#[tokio::test]
async fn generations_rise_whatever_is_restored() {
    let store = store();
    prepare(&store).await;
    let armed = won(&store, claim(ME, None)).await;
    let old = store.snapshot();
    assert_eq!(store.bump_generation().0, 2);
    assert_eq!(store.fail_over(&old).0, 3, "above the present one, not above the snapshot's");
    assert_eq!(store.restore(&old).0, 3 + 65_536);
    assert_eq!(store.generation().0, 3 + 65_536);
    let held = conch_store::Held { conversation: conversation().key, epoch: armed.epoch, me: ME };
    let peer = Incarnation(2);
    store.register(&registration(peer), TTL).await.expect("registers");
    let handed = store.hand_off(&held, peer, Seq(1), Duration::from_secs(3)).await.expect("answers");
    assert_eq!(handed, None, "across generations numbers must skip, which only a claim does");
}
