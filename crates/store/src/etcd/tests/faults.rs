//! What etcd's troubles do, on clusters of the tests' own, in real time.

use std::time::{Duration, Instant};

use conch_core::ids::{ConvRef, Incarnation};

use super::super::EtcdStore;
use super::super::testing::TestCluster;
use super::proxy::Proxy;
use crate::postgres::testing::TestDatabase;
use crate::postgres::tests::fixture::{Clock, connect, database, options};
use crate::postgres::tests::rig::{
    A, B, GAP, append, batch, claim, create, register, registration, seqs, take, until, write,
};
use crate::{AppendOutcome, Armed, ClaimOutcome, ClaimRequest, Held, LeaseStore, LogStore, StoreError};

/// etcd counts whole seconds, and grants no less than two.
const TTL: Duration = Duration::from_secs(3);
const BEAT: Duration = Duration::from_secs(1);
const MARGIN: Duration = Duration::from_millis(600);
/// So long the leader is stopped: more than a lease, and more than an election takes.
const STOPPED: Duration = Duration::from_secs(10);

async fn store(etcd: &str) -> (EtcdStore, TestDatabase<'static>) {
    let (database, _) = database(Clock::Real).await;
    (EtcdStore::open(etcd, &database.url(), options("a")).await.expect("opens"), database)
}

/// The first claim, with the margin of so short a lease.
async fn take_at_once(store: &EtcdStore, conversation: &ConvRef, me: Incarnation) -> Armed {
    let request = ClaimRequest { margin: MARGIN, ..claim(conversation, me, None) };
    match store.claim(&request).await.expect("answers") {
        ClaimOutcome::Won(armed) => armed,
        ClaimOutcome::Lost => panic!("a first claim was lost"),
    }
}

/// As the heartbeat does: a beat is given up after a beat. The moment until which the node may act, if it was renewed.
async fn beat(store: &EtcdStore) -> Result<Option<Instant>, StoreError> {
    let sent = Instant::now();
    match tokio::time::timeout(BEAT, store.renew(A, TTL)).await {
        Ok(Ok(Some(_))) => Ok(Some(sent + TTL - MARGIN)),
        Ok(Ok(None)) => Ok(None),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(StoreError::Unavailable("no answer within a beat".to_owned())),
    }
}

#[tokio::test]
async fn a_stopped_leader_leads_to_one_owner_and_a_whole_log() {
    let etcd = TestCluster::start();
    let (old, database) = store(&etcd.url()).await;
    let new = EtcdStore::open(&etcd.url(), &database.url(), options("b")).await.expect("opens");
    old.register(&registration(A, None), TTL).await.expect("registers");
    let conversation = create(&old, "c").await;
    let mut reign = take_at_once(&old, &conversation, A).await;
    let leader = etcd.leader();
    etcd.pause(leader);
    let (stopped, mut valid_until, mut number) = (Instant::now(), Instant::now() + TTL - MARGIN, 0);
    let mut lost = false;
    while stopped.elapsed() < STOPPED && !lost {
        match beat(&old).await {
            Ok(Some(until)) => valid_until = until,
            Ok(None) => lost = true,
            Err(error) => assert!(!matches!(error, StoreError::Damaged(_)), "{error}"),
        }
        if Instant::now() < valid_until && !lost {
            number += 1;
            write(&old, &conversation, A, &mut reign, &format!("k{number}")).await;
        }
        tokio::time::sleep(BEAT / 4).await;
    }
    etcd.resume(leader);
    etcd.wait_for_quorum();
    new.expel(A).await.expect("answers");
    new.register(&registration(B, None), TTL * 5).await.expect("registers");
    let mut next = take(&new, &conversation, B, Some((reign.epoch, Some(A)))).await;
    assert_eq!(append(&old, A, batch(&conversation, reign, "late")).await, AppendOutcome::Fenced);
    write(&new, &conversation, B, &mut next, "after").await;
    assert_eq!(seqs(&new, &conversation).await.len(), number + 1, "what was acknowledged, and nothing else");
}

#[tokio::test]
async fn a_killed_leader_is_passed_over() {
    let etcd = TestCluster::start();
    let (store, _database) = store(&etcd.url()).await;
    register(&store, A).await;
    let conversation = create(&store, "c").await;
    let mut reign = take(&store, &conversation, A, None).await;
    let leader = etcd.leader();
    etcd.kill(leader);
    until("the rest renews", || async { matches!(store.renew(A, TTL).await, Ok(Some(_))) }).await;
    write(&store, &conversation, A, &mut reign, "k1").await;
    let next = take(&store, &conversation, A, Some((reign.epoch, Some(A)))).await;
    assert!(next.epoch > reign.epoch);
    assert_eq!(next.first_seq.0, reign.last_seq.0 + GAP + 1);
    etcd.restart(leader);
    etcd.wait_for_quorum();
    assert_eq!(store.nodes().await.expect("answers").len(), 1);
}

#[tokio::test]
async fn without_a_quorum_nothing_is_claimed_and_nobody_dies() {
    let etcd = TestCluster::start();
    let (store, _database) = store(&etcd.url()).await;
    register(&store, A).await;
    let (conversation, free) = (create(&store, "c").await, create(&store, "free").await);
    let mut reign = take(&store, &conversation, A, None).await;
    let gone = [etcd.leader(), (etcd.leader() + 1) % 3];
    for member in gone {
        etcd.kill(member);
    }
    let refused = |error: StoreError| matches!(error, StoreError::Unavailable(_));
    assert!(store.resolve(&free).await.is_err_and(refused));
    assert!(store.nodes().await.is_err_and(refused));
    assert!(store.renew(A, TTL).await.is_err(), "an error, and not the end");
    assert!(store.claim(&claim(&free, A, None)).await.is_err());
    write(&store, &conversation, A, &mut reign, "k1").await;
    assert_eq!(seqs(&store, &conversation).await, [1], "records need no etcd");
    let info = store.conversation(&conversation).await.expect("nor does a conversation").expect("exists");
    assert_eq!(info.head.map(|head| head.owner_node), Some(None), "but for the name of its owner's node");
    for member in gone {
        etcd.restart(member);
    }
    etcd.wait_for_quorum();
    until("it is renewed", || async { matches!(store.renew(A, TTL).await, Ok(Some(_))) }).await;
}

#[tokio::test]
async fn a_lease_that_ran_out_is_gone_without_a_declaration() {
    let (store, database) = store(&TestCluster::shared().url()).await;
    let other = EtcdStore::open(&TestCluster::shared().url(), &database.url(), options("b")).await.expect("opens");
    store.register(&registration(A, None), TTL).await.expect("registers");
    register(&other, B).await;
    let conversation = create(&store, "c").await;
    let reign = take_at_once(&store, &conversation, A).await;
    let request = ClaimRequest { margin: MARGIN, ..claim(&conversation, B, Some((reign.epoch, Some(A)))) };
    assert_eq!(other.claim(&request).await, Ok(ClaimOutcome::Lost), "its owner lives");
    until("etcd ends it", || async { matches!(other.claim(&request).await, Ok(ClaimOutcome::Won(_))) }).await;
    assert_eq!(store.renew(A, TTL).await, Ok(None));
    assert_eq!(append(&store, A, batch(&conversation, reign, "late")).await, AppendOutcome::Fenced);
}

/// A standby takes over between a hand-off's two steps: etcd has moved the key, and the records are of another generation.
#[tokio::test]
async fn a_hand_off_that_was_half_done_is_ambiguous_and_the_receiver_claims() {
    let (store, database) = store(&TestCluster::shared().url()).await;
    for node in [A, B] {
        register(&store, node).await;
    }
    let conversation = create(&store, "c").await;
    let mut reign = take(&store, &conversation, A, None).await;
    write(&store, &conversation, A, &mut reign, "k1").await;
    let client = connect(&database.url()).await;
    let sql = "CREATE OR REPLACE FUNCTION store_gen() RETURNS bigint LANGUAGE sql STABLE AS 'SELECT 9::bigint'";
    client.batch_execute(sql).await.expect("the generation rises");

    let held = Held { conversation: conversation.key, epoch: reign.epoch, me: A };
    let outcome = store.hand_off(&held, B, reign.first_seq, MARGIN).await;
    assert!(matches!(outcome, Err(StoreError::Ambiguous(_))), "it is not the giver's any more: {outcome:?}");
    let seen = store.resolve(&conversation).await.expect("answers").expect("exists");
    assert_eq!(seen.owner.map(|owner| owner.incarnation), Some(B));
    let next = take(&store, &conversation, B, Some((seen.epoch.expect("owned"), Some(B)))).await;
    assert_eq!(next.generation.0, 9);
    let late = append(&store, A, batch(&conversation, reign, "late")).await;
    assert!(matches!(late, AppendOutcome::Fenced), "{late:?}");
}

/// The incident to survive: the old owner reaches the records, and not the leases.
#[tokio::test]
async fn an_owner_cut_off_from_etcd_is_fenced_after_the_takeover() {
    let etcd = TestCluster::shared();
    let proxy = Proxy::start((0..3).map(|number| etcd.place(number)).collect()).await;
    let (old, database) = store(&proxy.url()).await;
    let new = EtcdStore::open(&etcd.url(), &database.url(), options("b")).await.expect("opens");
    old.register(&registration(A, None), TTL).await.expect("registers");
    register(&new, B).await;
    let conversation = create(&old, "c").await;
    let mut reign = take_at_once(&old, &conversation, A).await;
    write(&old, &conversation, A, &mut reign, "k1").await;
    proxy.cut();
    assert!(old.renew(A, TTL).await.is_err());
    let request = claim(&conversation, B, Some((reign.epoch, Some(A))));
    until("the lease runs out", || async { matches!(new.claim(&request).await, Ok(ClaimOutcome::Won(_))) }).await;
    assert_eq!(append(&old, A, batch(&conversation, reign, "late")).await, AppendOutcome::Fenced);
    assert_eq!(seqs(&old, &conversation).await, [1], "it reads on");
}
