//! A database that swallows what it is sent: every call ends, what waits is bounded, and nothing stale is left for afterwards.
//!
//! The limits themselves are waited for here; nothing is said about how quick anything is, but for what would be a hang.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::super::session::{CALL_LIMIT, DIAL_LIMIT, Dialer, Slot};
use super::super::testing::TestServer;
use super::super::url;
use super::super::{Durability, PostgresStore};
use super::fixture::{Clock, connect, database, options};
use super::proxy::{Proxy, Traffic};
use super::rig::{A, TTL, batch, create, register, take, until};
use crate::own_thread::{HEARTBEAT_MAX_CALLS, MEMBERSHIP_MAX_CALLS};
use crate::{LeaseStore, LogStore, StoreError};

/// More than a call may take, on a busy machine too.
const HANG: Duration = CALL_LIMIT.saturating_add(DIAL_LIMIT).saturating_mul(6);

async fn ends<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(HANG, work).await.unwrap_or_else(|_| panic!("{what} hangs"))
}

/// All of them, side by side.
async fn all<T: Send + 'static>(calls: impl Iterator<Item = impl Future<Output = T> + Send + 'static>) -> Vec<T> {
    let mut tasks: JoinSet<T> = calls.collect();
    let mut answers = Vec::new();
    while let Some(answer) = ends("a call", tasks.join_next()).await {
        answers.push(answer.expect("does not panic"));
    }
    answers
}

#[tokio::test]
async fn all_who_wait_for_a_connection_wait_for_one_dial() {
    const CALLERS: usize = 24;
    let (database, _client) = database(Clock::Real).await;
    let proxy = Proxy::start(TestServer::shared().directory());
    proxy.set(Traffic::Swallowed);
    let target = url::parse(&proxy.url(database.name())).expect("valid");
    let (dialer, slot) =
        (Arc::new(Dialer::new(target, "a".to_owned(), Durability::Unchecked)), Arc::new(Slot::new("test")));
    let answers = all((0..CALLERS).map(|_| {
        let (dialer, slot) = (Arc::clone(&dialer), Arc::clone(&slot));
        async move { slot.get(&dialer).await.map(drop) }
    }));
    for answer in answers.await {
        let error = answer.expect_err("there is no server");
        assert!(matches!(&error, StoreError::Unavailable(text) if text.contains("cannot connect")), "{error}");
    }
    assert_eq!(proxy.connections(), 1, "nobody dialled again for himself");
    proxy.set(Traffic::Passes);
    let (_, number) = slot.numbered(&dialer).await.expect("the next one dials anew");
    let (_, again) = slot.numbered(&dialer).await.expect("it lives");
    assert_eq!((proxy.connections(), number, again), (2, 2, 2));
}

#[tokio::test]
async fn calls_about_leases_are_bounded_and_a_full_lane_leaves_the_other_free() {
    let (database, _client) = database(Clock::Real).await;
    let proxy = Proxy::start(TestServer::shared().directory());
    let store = PostgresStore::open(&proxy.url(database.name()), options("a")).await.expect("opens");
    register(&store, A).await;
    proxy.set(Traffic::Swallowed);
    // Looks first, and more than there is room for; what has no room is refused before anything else is answered.
    let mut tasks = JoinSet::new();
    for _ in 0..MEMBERSHIP_MAX_CALLS + 5 {
        let store = store.clone();
        tasks.spawn(async move { store.nodes().await.map(drop) });
    }
    for _ in 0..5 {
        let refused = ends("a call", tasks.join_next()).await.expect("is there").expect("does not panic");
        let error = refused.expect_err("there is no room");
        assert!(error.to_string().contains("calls about the nodes are under way"), "{error}");
    }
    // The heartbeat has room of its own.
    let beats = all((0..HEARTBEAT_MAX_CALLS + 3).map(|_| {
        let store = store.clone();
        async move { store.renew(A, TTL).await }
    }))
    .await;
    let no_room = |answer: &&Result<Option<u64>, StoreError>| matches!(answer, Err(StoreError::Unavailable(text)) if text.contains("calls about the node's own lease"));
    assert_eq!(beats.iter().filter(no_room).count(), 3, "{beats:?}");
    assert!(beats.iter().all(Result::is_err), "{beats:?}");
    while let Some(look) = ends("a look", tasks.join_next()).await {
        assert!(look.expect("does not panic").is_err());
    }
    proxy.set(Traffic::Passes);
    // What was under way has made room.
    until("a look is answered", || async { store.nodes().await.is_ok() }).await;
}

#[tokio::test]
async fn an_outage_leaves_no_renewals_and_no_looks_behind() {
    let (database, client) = database(Clock::Real).await;
    let proxy = Proxy::start(TestServer::shared().directory());
    let store = PostgresStore::open(&proxy.url(database.name()), options("a")).await.expect("opens");
    register(&store, A).await;
    assert_eq!(store.renew(A, TTL).await, Ok(Some(1)));
    proxy.set(Traffic::Swallowed);
    let lost = ends("a renewal", store.renew(A, TTL)).await;
    assert!(matches!(lost, Err(StoreError::Ambiguous(_))), "it was sent: {lost:?}");
    // From here on there is no connection. Each caller gives up while the dial is under way, which succeeds in the end.
    proxy.set(Traffic::HeldUp);
    for _ in 0..HEARTBEAT_MAX_CALLS * 2 {
        let given_up = tokio::time::timeout(Duration::from_millis(1), store.renew(A, TTL)).await;
        assert!(!matches!(given_up, Ok(Ok(_))), "{given_up:?}");
    }
    proxy.set(Traffic::Passes);
    until("a renewal is answered", || async { matches!(store.renew(A, TTL).await, Ok(Some(_))) }).await;
    let beat: i64 = client.query_one("SELECT beat FROM node_lease", &[]).await.expect("answers").get(0);
    assert_eq!(beat, 2, "that of the one who still wanted it");
}

#[tokio::test]
async fn an_append_waits_a_bounded_time_for_its_turn() {
    let (database, _client) = database(Clock::Real).await;
    let mut options = options("a");
    options.writers = 1;
    let store = PostgresStore::open(&database.url(), options).await.expect("opens");
    register(&store, A).await;
    let conversation = create(&store, "c").await;
    let armed = take(&store, &conversation, A, None).await;
    let (most, all) = store.inner.writers.occupy().await;
    let refused = ends("an append", store.append(A, vec![batch(&conversation, armed, "k")])).await;
    let error = refused.expect_err("it is never its turn");
    assert!(
        matches!(&error, StoreError::Unavailable(text) if text.contains(&format!("all {most} appends"))),
        "{error}"
    );
    drop(all);
    store.append(A, vec![batch(&conversation, armed, "k")]).await.expect("now it is");
    let other = connect(&database.url()).await;
    let count: i64 = other.query_one("SELECT count(*) FROM record", &[]).await.expect("answers").get(0);
    assert_eq!(count, 1, "what was refused was not sent");
}
