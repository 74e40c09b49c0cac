//! The rules that need two processes to be seen, each shown to be missed when it is taken out.

use std::time::Duration;

use super::super::ownership::NodeKeyGuard;
use super::super::testing::TestCluster;
use super::super::{EtcdStore, Guards};
use crate::postgres::ArmGuard;
use crate::postgres::tests::fixture::{Clock, database, options};
use crate::postgres::tests::rig::{A, B, GAP, append, batch, claim, create, register, seqs, take, write};
use crate::postgres::{ArmOutcome, testing::TestDatabase};
use crate::{AppendOutcome, ClaimOutcome, LeaseStore};

const TTL: Duration = Duration::from_secs(15);

/// Two processes' stores of one cluster.
async fn pair(guards: Guards) -> (EtcdStore, EtcdStore, TestDatabase<'static>) {
    let (database, _) = database(Clock::Real).await;
    let etcd = TestCluster::shared().url();
    let one = EtcdStore::open_with(&etcd, &database.url(), options("a"), guards).await.expect("opens");
    let two = EtcdStore::open_with(&etcd, &database.url(), options("b"), guards).await.expect("opens");
    (one, two, database)
}

/// How claims end that another process has made void: of a node that was expelled, and against a living owner.
async fn void_claims(guards: Guards) -> [ClaimOutcome; 2] {
    let (one, two, _database) = pair(guards).await;
    register(&one, A).await;
    register(&two, B).await;
    let theirs = create(&one, "theirs").await;
    let reign = take(&two, &theirs, B, None).await;
    let against_a_living = one.claim(&claim(&theirs, A, Some((reign.epoch, Some(B))))).await.expect("answers");
    let free = create(&one, "free").await;
    assert_eq!(two.expel(A).await, Ok(true));
    let of_the_dead = one.claim(&claim(&free, A, None)).await.expect("answers");
    [of_the_dead, against_a_living]
}

#[tokio::test]
async fn a_claim_looks_at_the_node_keys() {
    assert_eq!(void_claims(Guards::default()).await, [ClaimOutcome::Lost; 2]);
    let won = void_claims(Guards { node_key: NodeKeyGuard::Off, ..Guards::default() }).await;
    assert!(won.iter().all(|outcome| matches!(outcome, ClaimOutcome::Won(_))), "the mutant: {won:?}");
}

/// What becomes of an arming that was held up while another reign began.
async fn late_arming(guards: Guards) -> (ArmOutcome, AppendOutcome) {
    let (one, two, _database) = pair(guards).await;
    register(&one, A).await;
    register(&two, B).await;
    let conversation = create(&one, "c").await;
    let epoch = one.inner.ownerships.claim(&one.inner.claims, &claim(&conversation, A, None)).await.expect("answers");
    let late = epoch.expect("wins in etcd");
    assert_eq!(two.expel(A).await, Ok(true));
    let mut reign = take(&two, &conversation, B, Some((late, Some(A)))).await;
    assert!(reign.epoch > late, "{reign:?}");
    write(&two, &conversation, B, &mut reign, "k1").await;
    let armed = one.records().arm(conversation.key, late, A, GAP).await.expect("answers");
    let next = append(&two, B, batch(&conversation, reign, "k2")).await;
    (armed, next)
}

#[tokio::test]
async fn a_late_arming_is_refused() {
    let (armed, next) = late_arming(Guards::default()).await;
    assert_eq!(armed, ArmOutcome::Fenced);
    assert!(matches!(next, AppendOutcome::Landed { .. }), "{next:?}");
    let mut guards = Guards::default();
    guards.records.arm = ArmGuard::EpochOff;
    let (armed, next) = late_arming(guards).await;
    assert!(matches!(armed, ArmOutcome::Armed(_)), "the mutant: {armed:?}");
    assert_eq!(next, AppendOutcome::Fenced, "the mutant has thrown out the owner");
}

#[tokio::test]
async fn a_reign_that_was_never_armed_is_claimed_again() {
    let (one, two, _database) = pair(Guards::default()).await;
    register(&one, A).await;
    register(&two, B).await;
    let conversation = create(&one, "c").await;
    let begun = one.inner.ownerships.claim(&one.inner.claims, &claim(&conversation, A, None)).await.expect("answers");
    let resolution = two.resolve(&conversation).await.expect("answers").expect("exists");
    let owner = resolution.owner.expect("owned");
    assert_eq!((resolution.epoch, owner.incarnation), (begun, A));
    assert!(owner.node.is_some(), "whom others ask: it claims its own");
    let mut reign = take(&one, &conversation, A, begun.map(|epoch| (epoch, Some(A)))).await;
    assert!(Some(reign.epoch) > begun);
    assert_eq!(reign.first_seq.0, 1, "nobody ever wrote");
    write(&one, &conversation, A, &mut reign, "k").await;
    assert_eq!(seqs(&two, &conversation).await, [1]);
}

#[tokio::test]
async fn a_revoked_lease_ends_the_process() {
    let (one, two, _database) = pair(Guards::default()).await;
    register(&one, A).await;
    assert_eq!(one.renew(A, TTL).await, Ok(Some(1)));
    assert_eq!(two.renew(A, TTL).await, Ok(Some(2)), "by whatever store of the process");
    assert_eq!(two.expel(A).await, Ok(true));
    assert_eq!(one.renew(A, TTL).await, Ok(None));
    assert_eq!(one.renew(A, TTL).await, Ok(None), "for good");
}

#[tokio::test]
async fn a_drain_mark_of_another_process_counts() {
    let (one, two, _database) = pair(Guards::default()).await;
    register(&one, A).await;
    let conversation = create(&one, "c").await;
    assert_eq!(two.set_draining(A).await, Ok(true));
    assert_eq!(one.claim(&claim(&conversation, A, None)).await, Ok(ClaimOutcome::Lost));
    assert_eq!(one.renew(A, TTL).await, Ok(Some(1)), "and the lease goes on");
}

#[tokio::test]
async fn a_lease_is_never_shorter_than_asked() {
    let (one, _two, _database) = pair(Guards::default()).await;
    let ttl = Duration::from_millis(2_500);
    one.register(&crate::postgres::tests::rig::registration(A, None), ttl).await.expect("registers");
    assert_eq!(one.renew(A, ttl).await, Ok(Some(1)));
    let row = one.nodes().await.expect("answers").remove(0);
    assert!(row.expires_in_ms >= 2_000, "three whole seconds were granted: {row:?}");
    let error = one.renew(A, TTL).await.expect_err("the grant is fixed");
    assert!(error.to_string().contains("etcd grants 3 s"), "{error}");
}

/// The store was opened on a runtime that stands still; a renewal needs none of it.
#[test]
fn a_renewal_needs_nothing_of_the_runtime() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
    let stands_still = runtime();
    let (store, _other, _database) = stands_still.block_on(async {
        let pair = pair(Guards::default()).await;
        register(&pair.0, A).await;
        pair
    });
    assert_eq!(runtime().block_on(store.renew(A, TTL)), Ok(Some(1)));
    assert_eq!(runtime().block_on(store.nodes()).expect("answers").len(), 1);
}
