//! Lifelines in the database of nodes that are listed in etcd.

use super::super::EtcdStore;
use super::super::testing::TestCluster;
use crate::postgres::tests::fixture::{Clock, database, options};
use crate::postgres::tests::rig::{A, B, TTL, registration, until};
use crate::{LeaseStore, Lifeline};

#[tokio::test]
async fn a_process_that_is_gone_is_declared_dead_before_its_lease_ends() {
    let (database, client) = database(Clock::Real).await;
    let etcd = TestCluster::shared().url();
    let store = EtcdStore::open(&etcd, &database.url(), options("a")).await.expect("opens");
    let lifelines = store.lifelines().expect("the database's");
    let (line, other) = (lifelines.hold().await.expect("holds"), lifelines.hold().await.expect("holds"));
    store.register(&registration(A, Some(line.key)), TTL).await.expect("registers");
    store.register(&registration(B, Some(other.key)), TTL).await.expect("registers");
    client.execute("SELECT pg_advisory_lock(77)", &[]).await.expect("another program's lock");
    let mut both = vec![line.key, other.key];
    both.sort();
    let seen = lifelines.observe().await.expect("answers");
    assert_eq!(seen.held, both, "those that nodes name");

    assert_eq!(store.declare_process_dead(A, 0, line.key).await, Ok(false), "it is held");
    let key = line.key;
    drop(line);
    let gone = || async { !lifelines.observe().await.expect("answers").held.contains(&key) };
    until("the lock goes with its session", gone).await;
    assert_eq!(lifelines.observe().await.expect("answers").observer, seen.observer, "by an unbroken session");
    assert_eq!(store.declare_process_dead(A, 1, key).await, Ok(false), "another beat was seen");
    assert_eq!(store.declare_process_dead(A, 0, Lifeline(key.0 ^ 1)).await, Ok(false), "another lifeline was seen");
    assert_eq!(store.declare_process_dead(A, 0, key).await, Ok(true));
    assert_eq!(store.renew(A, TTL).await, Ok(None));
    assert_eq!(store.renew(B, TTL).await, Ok(Some(1)), "the other one lives");
}

#[tokio::test]
async fn a_lifeline_is_replaced_on_the_same_lease() {
    let (database, _client) = database(Clock::Real).await;
    let etcd = TestCluster::shared().url();
    let store = EtcdStore::open(&etcd, &database.url(), options("a")).await.expect("opens");
    store.register(&registration(A, Some(Lifeline(1))), TTL).await.expect("registers");
    assert_eq!(store.replace_lifeline(A, TTL, Lifeline(2)).await, Ok(Some(1)));
    let row = store.nodes().await.expect("answers").remove(0);
    assert_eq!((row.registration.lifeline, row.beat), (Some(Lifeline(2)), 1));
    let conversation = crate::postgres::tests::rig::create(&store, "c").await;
    crate::postgres::tests::rig::take(&store, &conversation, A, None).await;
    assert_eq!(store.expel(A).await, Ok(true));
    assert_eq!(store.nodes().await, Ok(Vec::new()), "the key went with its lease");
    assert_eq!(store.replace_lifeline(A, TTL, Lifeline(3)).await, Ok(None));
}
