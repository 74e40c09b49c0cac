//! What a network, an operator and a tired server do to a node (the classes of failure "Ownership").

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use super::super::PostgresStore;
use super::super::testing::TestServer;
use super::fixture::{Clock, connect, database, options};
use super::proxy::{Proxy, Traffic};
use super::rig::{A, B, MARGIN, TTL, append, batch, create, register, seqs, take, terminate, until, write};
use crate::{AppendOutcome, LeaseStore, LogStore, StoreError};

/// Late write lands on the new owner's data: one statement is held up on its way until the next owner has written.
#[tokio::test]
async fn a_write_that_arrives_after_the_takeover_changes_nothing() {
    let (database, _client) = database(Clock::Real).await;
    let proxy = Proxy::start(TestServer::shared().directory());
    let late = PostgresStore::open(&proxy.url(database.name()), options("a")).await.expect("opens");
    let other = PostgresStore::open(&database.url(), options("b")).await.expect("opens");
    register(&other, A).await;
    register(&other, B).await;
    let conversation = create(&other, "c").await;
    let mut armed = take(&late, &conversation, A, None).await;
    write(&late, &conversation, A, &mut armed, "k1").await;
    let before = armed;

    proxy.set(Traffic::HeldUp);
    let held_up = {
        let (late, batch) = (late.clone(), batch(&conversation, armed, "late"));
        tokio::spawn(async move { append(&late, A, batch).await })
    };
    assert!(other.expel(A).await.expect("answers"));
    let mut next = take(&other, &conversation, B, Some((armed.epoch, Some(A)))).await;
    write(&other, &conversation, B, &mut next, "k2").await;
    let log = seqs(&other, &conversation).await;
    proxy.set(Traffic::Passes);

    assert_eq!(held_up.await.expect("does not panic"), AppendOutcome::Fenced);
    assert_eq!(append(&late, A, batch(&conversation, before, "later")).await, AppendOutcome::Fenced);
    assert_eq!(seqs(&other, &conversation).await, log, "nothing of it was written");
}

/// Pause between check and write: the head's lock is held while the takeover is committed, so that the append that waits for
/// it has to look at the newest row.
#[tokio::test]
async fn a_write_that_waits_for_the_takeovers_lock_is_fenced() {
    let (database, mut client) = database(Clock::Real).await;
    let store = PostgresStore::open(&database.url(), options("a")).await.expect("opens");
    register(&store, A).await;
    let conversation = create(&store, "c").await;
    let armed = take(&store, &conversation, A, None).await;
    let transaction = client.transaction().await.expect("begins");
    let sql = "UPDATE conv_head SET epoch = epoch + 1, owner = gen_random_uuid()";
    transaction.execute(sql, &[]).await.expect("takes it over");
    let waiting = {
        let (store, batch) = (store.clone(), batch(&conversation, armed, "k1"));
        tokio::spawn(async move { append(&store, A, batch).await })
    };
    let watcher = connect(&database.url()).await;
    until("the append waits for the lock", || async {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'conch/a/append' AND wait_event_type = 'Lock'";
        watcher.query_one(sql, &[]).await.expect("answers").get::<_, i64>(0) == 1
    })
    .await;
    transaction.commit().await.expect("commits");
    assert_eq!(waiting.await.expect("does not panic"), AppendOutcome::Fenced);
    assert!(seqs(&store, &conversation).await.is_empty());
}

/// Ambiguous commit retried: the reply is lost after the commit.
#[tokio::test]
async fn a_lost_reply_is_ambiguous_and_the_write_is_found_by_its_key() {
    let (database, client) = database(Clock::Real).await;
    let proxy = Proxy::start(TestServer::shared().directory());
    let store = PostgresStore::open(&proxy.url(database.name()), options("a")).await.expect("opens");
    register(&store, A).await;
    let conversation = create(&store, "c").await;
    let mut armed = take(&store, &conversation, A, None).await;
    write(&store, &conversation, A, &mut armed, "k1").await;
    write(&store, &conversation, A, &mut armed, "k2").await;
    proxy.set(Traffic::AnswersLost);
    let lost = batch(&conversation, armed, "k3");
    let outcome = append(&store, A, lost.clone()).await;
    assert!(matches!(outcome, AppendOutcome::Failed(StoreError::Ambiguous(_))), "{outcome:?}");
    proxy.set(Traffic::Passes);
    until("the statement ran", || async {
        client.query_one("SELECT count(*) FROM record", &[]).await.expect("answers").get::<_, i64>(0) == 3
    })
    .await;

    assert!(matches!(append(&store, A, lost).await, AppendOutcome::Landed { .. }), "sent again, it had landed");
    let next = take(&store, &conversation, A, Some((armed.epoch, Some(A)))).await;
    let again = batch(&conversation, next, "k3");
    let AppendOutcome::Landed { duplicates, .. } = append(&store, A, again).await else { panic!("it lands") };
    assert_eq!(duplicates.iter().map(|duplicate| duplicate.original.seq.0).collect::<Vec<_>>(), [3]);
    assert_eq!(seqs(&store, &conversation).await, [1, 2, 3], "one record");
}

/// Once begun, an append runs to its end, though nobody waits for it any more.
#[tokio::test]
async fn a_dropped_append_is_not_cut() {
    let (database, _client) = database(Clock::Real).await;
    let proxy = Proxy::start(TestServer::shared().directory());
    let store = PostgresStore::open(&proxy.url(database.name()), options("a")).await.expect("opens");
    let direct = PostgresStore::open(&database.url(), options("b")).await.expect("opens");
    register(&store, A).await;
    let conversation = create(&store, "c").await;
    let armed = take(&store, &conversation, A, None).await;
    proxy.set(Traffic::HeldUp);
    let mut dropped = Box::pin(store.append(A, vec![batch(&conversation, armed, "k1")]));
    let waits = std::future::poll_fn(|context| Poll::Ready(dropped.as_mut().poll(context).is_pending())).await;
    assert!(waits);
    drop(dropped);
    proxy.set(Traffic::Passes);
    until("it lands", || async { seqs(&direct, &conversation).await == [1] }).await;
}

/// Exhausted pool starves renewal.
#[tokio::test]
async fn a_node_keeps_its_lease_while_the_pool_is_exhausted() {
    let (database, _client) = database(Clock::Real).await;
    let mut options = options("a");
    options.pool = 2;
    let store = PostgresStore::open(&database.url(), options).await.expect("opens");
    register(&store, A).await;
    let held = (store.inner.pool.take().await, store.inner.pool.take().await);
    assert!(held.0.is_ok() && held.1.is_ok());
    assert_eq!(store.renew(A, TTL).await, Ok(Some(1)));
    assert_eq!(store.nodes().await.expect("answers").len(), 1);
    let refused = store.log().await.expect_err("there is no connection");
    assert!(refused.to_string().contains("all 2 pooled connections"), "{refused}");
    drop(held);
    store.log().await.expect("there is one again");
}

/// A waker that wakes a thread: the smallest executor there is.
struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut work = pin!(work);
    loop {
        match work.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// Starved heartbeat: the only thread of the caller's runtime is blocked while another thread renews.
#[tokio::test]
async fn a_heartbeat_needs_nothing_of_the_callers_runtime() {
    let (database, _client) = database(Clock::Real).await;
    let store = PostgresStore::open(&database.url(), options("a")).await.expect("opens");
    register(&store, A).await;
    let heartbeat = std::thread::spawn(move || {
        let beats: Vec<_> = (0..3).map(|_| block_on(store.renew(A, TTL))).collect();
        (beats, block_on(store.nodes()).map(|nodes| nodes.len()))
    });
    let (beats, nodes) = heartbeat.join().expect("does not panic");
    assert_eq!(beats, [Ok(Some(1)), Ok(Some(2)), Ok(Some(3))]);
    assert_eq!(nodes, Ok(1));
}

/// One error kills the heartbeat for good.
#[tokio::test]
async fn a_heartbeat_outlives_its_connection() {
    let (database, client) = database(Clock::Real).await;
    let store = PostgresStore::open(&database.url(), options("a")).await.expect("opens");
    register(&store, A).await;
    assert_eq!(terminate(&client, "heartbeat").await, 1);
    // This one may fail, if the loss is not seen yet.
    let _ = store.renew(A, TTL).await;
    assert!(matches!(store.renew(A, TTL).await, Ok(Some(_))), "the next beat renews");
}

/// Lost lease not noticed; zombie fences the real owner.
#[tokio::test]
async fn a_dead_incarnation_renews_claims_and_writes_nothing() {
    let (database, client) = database(Clock::Real).await;
    let store = PostgresStore::open(&database.url(), options("a")).await.expect("opens");
    register(&store, A).await;
    let conversation = create(&store, "c").await;
    let armed = take(&store, &conversation, A, None).await;
    client.execute("DELETE FROM node_lease", &[]).await.expect("an operator deletes the row");
    assert_eq!(store.renew(A, TTL).await, Ok(None), "the process must exit");
    register(&store, B).await;
    let next = take(&store, &conversation, B, Some((armed.epoch, Some(A)))).await;
    for seen in [(armed.epoch, Some(A)), (next.epoch, Some(B)), (next.epoch, None)] {
        let outcome = store.claim(&super::rig::claim(&conversation, A, Some(seen))).await.expect("answers");
        assert_eq!(outcome, crate::ClaimOutcome::Lost);
    }
    assert_eq!(append(&store, A, batch(&conversation, armed, "k")).await, AppendOutcome::Fenced);
    assert_eq!(store.declare_expired(B, 0, TTL, MARGIN).await, Ok(false), "and the living one is not harmed");
}

/// A definite error of one conversation's statement harms no other.
#[tokio::test]
async fn one_bad_row_fails_alone() {
    let (database, _client) = database(Clock::Real).await;
    let store = PostgresStore::open(&database.url(), options("a")).await.expect("opens");
    register(&store, A).await;
    let mut batches = Vec::new();
    for name in ["c1", "c2", "c3"] {
        let conversation = create(&store, name).await;
        let armed = take(&store, &conversation, A, None).await;
        batches.push(batch(&conversation, armed, "k1"));
    }
    // PostgreSQL keeps no NUL in a text.
    batches[1].records[0].1.name = Some(Arc::from("a\0b"));
    let outcomes = store.append(A, batches).await.expect("answers");
    assert!(matches!(outcomes[0], AppendOutcome::Landed { .. }), "{outcomes:?}");
    assert!(matches!(&outcomes[1], AppendOutcome::Failed(error) if !error.is_ambiguous()), "{outcomes:?}");
    assert!(matches!(outcomes[2], AppendOutcome::Landed { .. }), "{outcomes:?}");
}
