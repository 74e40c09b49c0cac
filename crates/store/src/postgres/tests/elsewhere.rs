//! Leases in another store: arming the fence, giving up, due work, and moving the leases.

use std::time::Duration;

use conch_core::ids::{ConvRef, Epoch, Incarnation};

use super::super::error::OpenError;
use super::super::{ArmOutcome, LeaseMode, NodesInEtcd, PostgresStore, switch_leases};
use super::fixture::{Clock, database, options};
use super::rig::{A, B, GAP, append, batch, create, register, seqs, take, write};
use crate::{AppendOutcome, Armed, Batch, DueChange, DueWhy, Held, LeaseStore};

fn etcd() -> super::super::Options {
    let mut options = options("a");
    options.lease_mode = LeaseMode::Etcd { cluster_id: 0xabc };
    options
}

async fn armed(store: &PostgresStore, name: &ConvRef, epoch: u64, me: Incarnation) -> Armed {
    match store.arm(name.key, Epoch(epoch), me, GAP).await.expect("answers") {
        ArmOutcome::Armed(armed) => armed,
        ArmOutcome::Fenced => panic!("epoch {epoch} was fenced"),
    }
}

#[tokio::test]
async fn arming_raises_the_fence_and_never_lowers_it() {
    let (database, _client) = database(Clock::Real).await;
    let store = PostgresStore::open(&database.url(), etcd()).await.expect("opens");
    let conversation = create(&store, "c").await;
    let mut first = armed(&store, &conversation, 100, A).await;
    assert_eq!((first.epoch, first.first_seq.0), (Epoch(100), 1));
    assert_eq!(armed(&store, &conversation, 100, A).await, first, "repeating it changes nothing");
    assert_eq!(store.arm(conversation.key, Epoch(100), B, GAP).await, Ok(ArmOutcome::Fenced), "nor for another owner");
    write(&store, &conversation, A, &mut first, "k1").await;

    let next = armed(&store, &conversation, 170, B).await;
    assert_eq!(next.first_seq.0, 1 + GAP + 1, "the first one did not give it up");
    assert_eq!(append(&store, A, batch(&conversation, first, "late")).await, AppendOutcome::Fenced);
    assert_eq!(store.arm(conversation.key, Epoch(100), A, GAP).await, Ok(ArmOutcome::Fenced));
    let held = |epoch| Held { conversation: conversation.key, epoch: Epoch(epoch), me: B };
    assert_eq!(store.release_elsewhere(&held(100), next.first_seq).await, Ok(false));
    assert_eq!(store.release_elsewhere(&held(170), next.first_seq).await, Ok(true));
    let last = armed(&store, &conversation, 171, A).await;
    assert_eq!(last.first_seq, next.first_seq, "after a clean release there is no hole");
    let held = Held { conversation: conversation.key, epoch: last.epoch, me: A };
    assert_eq!(store.release_wedged_elsewhere(&held, GAP).await, Ok(true));
    let wedged = armed(&store, &conversation, 180, B).await;
    assert_eq!(wedged.first_seq.0, last.first_seq.0 + GAP);
    assert_eq!(seqs(&store, &conversation).await, [1]);
}

fn due_query(limit: usize) -> crate::DueQuery {
    crate::DueQuery { region: "north".parse().expect("valid"), after: None, limit }
}

#[tokio::test]
async fn due_work_is_that_of_owners_who_are_not_listed() {
    let (database, _client) = database(Clock::Real).await;
    let store = PostgresStore::open(&database.url(), etcd()).await.expect("opens");
    for (name, owner, epoch) in [("c1", A, 1), ("c2", B, 2)] {
        let conversation = create(&store, name).await;
        let reign = armed(&store, &conversation, epoch, owner).await;
        let due = DueChange::Set(DueWhy::Turn, Duration::ZERO);
        let batch = Batch { due, ..batch(&conversation, reign, "k") };
        assert!(matches!(append(&store, owner, batch).await, AppendOutcome::Landed { .. }));
    }
    let names = |rows: Vec<crate::DueRow>| rows.iter().map(|row| row.conversation.to_string()).collect::<Vec<_>>();
    assert_eq!(names(store.due_unowned(&[A, B], &due_query(10)).await.expect("answers")), Vec::<String>::new());
    assert_eq!(names(store.due_unowned(&[A], &due_query(10)).await.expect("answers")), ["c2"]);
    assert_eq!(names(store.due_unowned(&[], &due_query(10)).await.expect("answers")), ["c1", "c2"]);
    assert_eq!(names(store.due_unowned(&[], &due_query(1)).await.expect("answers")), ["c1"]);
}

#[tokio::test]
async fn leases_move_when_all_nodes_are_down_and_epochs_go_on() {
    let (database, _client) = database(Clock::Real).await;
    let store = PostgresStore::open(&database.url(), options("a")).await.expect("opens");
    register(&store, A).await;
    let conversation = create(&store, "c").await;
    let first = take(&store, &conversation, A, None).await;
    let last = take(&store, &conversation, A, Some((first.epoch, Some(A)))).await;
    let error = PostgresStore::open(&database.url(), etcd()).await.expect_err("another mode");
    assert!(matches!(error, OpenError::LeaseMode { .. }), "{error}");
    for part in ["this database", "the etcd cluster abc", "conch leases switch"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    let nobody_looked = NodesInEtcd::NoneIn(Vec::new());
    let error = switch_leases(&database.url(), &etcd(), &nobody_looked).await.expect_err("a node is registered");
    assert!(error.to_string().contains("node-1"), "{error}");
    store.deregister(A).await.expect("answers");
    switch_leases(&database.url(), &etcd(), &nobody_looked).await.expect("switches");
    let there = PostgresStore::open(&database.url(), etcd()).await.expect("opens");
    assert_eq!(there.epoch_base(), last.epoch.0);
    let mut other = etcd();
    other.lease_mode = LeaseMode::Etcd { cluster_id: 0xdef };
    let error = PostgresStore::open(&database.url(), other).await.expect_err("another etcd");
    assert!(error.to_string().contains("the etcd cluster def"), "{error}");

    // Back again: not without a look into that etcd, or the word that it is lost.
    let back = |nodes: NodesInEtcd| {
        let url = database.url();
        async move { switch_leases(&url, &options("a"), &nodes).await.map_err(|error| error.to_string()) }
    };
    let error = back(nobody_looked).await.expect_err("nobody has looked");
    for part in ["the etcd cluster abc", "nobody has looked", "--from etcd://", "--etcd-is-lost"] {
        assert!(error.contains(part), "{error}");
    }
    let error = back(NodesInEtcd::NoneIn(vec![0xdef])).await.expect_err("into another one");
    assert!(error.contains("the etcd cluster abc") && error.contains("the etcd cluster def"), "{error}");
    assert_eq!(back(NodesInEtcd::NoneIn(vec![0xdef, 0xabc])).await, Ok(()));
    switch_leases(&database.url(), &etcd(), &NodesInEtcd::Lost).await.expect("there is none to lose");
    assert_eq!(back(NodesInEtcd::Lost).await, Ok(()));
}
