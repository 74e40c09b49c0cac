//! What the benchmarks rely on: a schema of their own, and counts of what was written. And the cost of a heartbeat.

use super::super::bench::{Area, Writes};
use super::super::error::OpenError;
use super::super::{PostgresStore, url};
use super::fixture::{Clock, database, options};
use super::rig::{A, TTL, batch, create, register, take, until};
use crate::LeaseStore;

/// Beats of the test.
const BEATS: u64 = 7;

/// A hundred thousand conversations, one row a beat (design: why a heartbeat costs one row).
#[tokio::test]
async fn a_beat_writes_one_row_whatever_the_node_owns() {
    let (database, _client) = database(Clock::Real).await;
    let area = Area::create(&database.url(), "owned").await.expect("is made");
    let store = PostgresStore::open(area.url(), options("a")).await.expect("opens");
    register(&store, A).await;
    area.conversations("idle-", 100_000).await.expect("are made");
    assert_eq!(area.own_all(A).await, Ok(100_000));
    let before = area.writes().await.expect("answers");
    assert!(before.others >= 200_000, "conversations and heads were counted: {before:?}");
    for beat in 1..=BEATS {
        assert_eq!(store.renew(A, TTL).await, Ok(Some(beat)));
    }
    // A session tells what it wrote at its end, at the latest.
    drop(store);
    until("the beats are counted", || async {
        area.writes().await.expect("answers").node_rows >= before.node_rows + BEATS
    })
    .await;
    let expected = Writes { node_rows: before.node_rows + BEATS, others: before.others, beats: before.beats + BEATS };
    assert_eq!(area.writes().await, Ok(expected));
}

#[tokio::test]
async fn an_area_is_apart_and_leaves_nothing() {
    let (database, client) = database(Clock::Real).await;
    let area = Area::create(&database.url(), "apart").await.expect("is made");
    let store = PostgresStore::open(area.url(), options("a")).await.expect("opens");
    register(&store, A).await;
    let conversation = create(&store, "general").await;
    let armed = take(&store, &conversation, A, None).await;
    let one = batch(&conversation, armed, "k");
    let unfenced = area.unfenced().await.expect("is made");
    assert_eq!(unfenced.append(std::slice::from_ref(&one)).await, Ok(1));
    assert_eq!(unfenced.append(&[one]).await, Ok(0), "it is there");
    area.unfenced().await.expect("a bench has several such sessions");
    let records = client.query_one("SELECT count(*) FROM apart.record", &[]).await.expect("answers");
    assert_eq!(records.get::<_, i64>(0), 0, "the log has nothing without a fence");
    let elsewhere = client.query_one("SELECT count(*) FROM public.conversation", &[]).await.expect("answers");
    assert_eq!(elsewhere.get::<_, i64>(0), 0, "another schema's tables are another store");

    drop((store, unfenced));
    area.remove().await.expect("is dropped");
    let left = client.query_one("SELECT count(*) FROM pg_namespace WHERE nspname = 'apart'", &[]).await;
    assert_eq!(left.expect("answers").get::<_, i64>(0), 0);
}

#[tokio::test]
async fn an_area_refuses_what_it_cannot_name() {
    let (database, _client) = database(Clock::Real).await;
    for name in ["", "Upper", "a b", "a;drop"] {
        let refused = Area::create(&database.url(), name).await.err().expect("refused");
        assert!(refused.to_string().contains("is no name for a schema"), "{refused}");
    }
    let taken = format!("{}&options=-csearch_path%3Dx", database.url());
    assert!(url::parse(&taken).is_ok());
    let refused = Area::create(&taken, "fine").await.err().expect("refused");
    assert!(matches!(refused, OpenError::Url { part: "options", .. }), "{refused}");
}
