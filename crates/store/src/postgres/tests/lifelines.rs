//! Lifelines: evidence that a process lives, and what must not be taken for its end.

use std::time::Duration;

use tokio::sync::oneshot::error::RecvError;

use super::super::PostgresStore;
use super::super::testing::{Disk, TestServer};
use super::fixture::{Clock, connect, database, options};
use super::rig::{A, B, TTL, registration, terminate, until};
use crate::{LeaseStore, Lifeline, StoreError};

#[tokio::test]
async fn a_process_is_declared_dead_only_when_nobody_holds_its_lifeline() {
    let (database, _client) = database(Clock::Real).await;
    let store = PostgresStore::open(&database.url(), options("a")).await.expect("opens");
    let lifelines = store.lifelines().expect("it has some");
    let held = lifelines.hold().await.expect("holds");
    store.register(&registration(A, Some(held.key)), TTL).await.expect("registers");
    let row = &store.nodes().await.expect("answers")[0];
    assert_eq!(row.registration.lifeline, Some(held.key));

    let seen = lifelines.observe().await.expect("observes");
    assert_eq!(seen.held, [held.key]);
    assert_eq!(store.declare_process_dead(A, 0, held.key).await, Ok(false), "it is held");
    let key = held.key;
    drop(held);
    until("the lock is free", || async { lifelines.observe().await.expect("observes").held.is_empty() }).await;
    let after = lifelines.observe().await.expect("observes");
    assert_eq!(after.observer, seen.observer, "the observing session is unbroken");
    assert_eq!(store.declare_process_dead(A, 1, key).await, Ok(false), "another beat");
    assert_eq!(store.declare_process_dead(A, 0, Lifeline(key.0 ^ 1)).await, Ok(false), "another lifeline");
    assert_eq!(store.declare_process_dead(B, 0, key).await, Ok(false), "another incarnation");
    assert_eq!(store.declare_process_dead(A, 0, key).await, Ok(true), "as seen, and free");
    assert_eq!(store.renew(A, TTL).await, Ok(None));
}

/// False evidence of death: the lifeline's server process of a live node is ended.
#[tokio::test]
async fn a_lost_lifeline_is_noticed_and_replaced() {
    let (database, client) = database(Clock::Real).await;
    let store = PostgresStore::open(&database.url(), options("a")).await.expect("opens");
    let lifelines = store.lifelines().expect("it has some");
    let held = lifelines.hold().await.expect("holds");
    store.register(&registration(A, Some(held.key)), TTL).await.expect("registers");
    let observer = lifelines.observe().await.expect("observes").observer;
    assert_eq!(terminate(&client, "lifeline").await, 1);
    let lost: Result<std::convert::Infallible, RecvError> = held.lost.await;
    assert!(lost.is_err(), "the holder is told");
    assert_eq!(store.renew(A, TTL).await, Ok(Some(1)), "its lease is another matter");

    let next = lifelines.hold().await.expect("holds another one");
    assert_ne!(next.key, held.key);
    assert_eq!(store.replace_lifeline(A, TTL, next.key).await, Ok(Some(2)), "it counts as a beat");
    let seen = lifelines.observe().await.expect("observes");
    assert_eq!((seen.observer, seen.held), (observer, vec![next.key]));
    assert_eq!(store.declare_process_dead(A, 1, held.key).await, Ok(false), "what was seen before is void");
    assert_eq!(store.replace_lifeline(B, TTL, next.key).await, Ok(None), "nobody else's row");
}

/// All lifelines lost at once: an unrelated server process is killed, and the server ends all sessions.
#[tokio::test]
async fn a_crash_of_the_server_is_told_from_a_death() {
    let server = TestServer::start(Disk::NotSynced, &[]);
    let database = server.database();
    let store = PostgresStore::open(&database.url(), options("a")).await.expect("opens");
    let lifelines = store.lifelines().expect("it has some");
    let (mine, peers) = (lifelines.hold().await.expect("holds"), lifelines.hold().await.expect("holds"));
    store.register(&registration(A, Some(mine.key)), TTL).await.expect("registers");
    store.register(&registration(B, Some(peers.key)), TTL).await.expect("registers");
    let before = lifelines.observe().await.expect("observes");
    assert_eq!(before.held.len(), 2);

    let unrelated = connect(&database.url()).await;
    let pid: i32 = unrelated.query_one("SELECT pg_backend_pid()", &[]).await.expect("answers").get(0);
    let pid = rustix::process::Pid::from_raw(pid).expect("a process id");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("our own server's process");
    let _ = (mine.lost.await, peers.lost.await);

    until("the server is back", || {
        let lifelines = store.lifelines().expect("it has some");
        async move { lifelines.observe().await.is_ok() }
    })
    .await;
    let seen = lifelines.observe().await.expect("observes");
    assert_ne!(seen.observer, before.observer, "the observer's own session broke: what it saw proves nothing");
    assert!(seen.held.is_empty());
    until("the lease is renewed again", || async { store.renew(A, TTL).await.is_ok_and(|beat| beat.is_some()) }).await;
    assert_eq!(store.nodes().await.expect("answers").len(), 2, "nobody died");
}

/// The heartbeat's own thread answers with an error, and in time, when the server does not.
#[tokio::test]
async fn a_server_that_is_gone_is_an_error_and_no_hang() {
    let server = TestServer::start(Disk::NotSynced, &[]);
    let database = server.database();
    let store = PostgresStore::open(&database.url(), options("a")).await.expect("opens");
    store.register(&registration(A, None), TTL).await.expect("registers");
    let url = database.url();
    drop(database);
    // The test's server is stopped; what its directory held is gone.
    server.crash();
    let answer = tokio::time::timeout(Duration::from_secs(20), store.renew(A, TTL)).await.expect("in time");
    assert!(answer.is_err(), "{answer:?}");
    let answer = store.renew(A, TTL).await;
    assert!(matches!(answer, Err(StoreError::Unavailable(_))), "definite: it was not sent; {answer:?} at {url}");
}
