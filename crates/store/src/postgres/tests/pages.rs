//! What a page and a look for a key cost: about their own records, however long the conversation is.

use conch_core::ids::{ConvRef, Seq};
use conch_core::turn::context::CONTEXT_KINDS;

use super::super::PostgresStore;
use super::super::bench::Area;
use super::super::testing::TestDatabase;
use super::fixture::{Clock, database, options};
use super::rig::{create, until};
use crate::{Direction, LogStore, RangeQuery};

/// Records of the conversation; every fifth one is of the kind that is asked for.
const RECORDS: u32 = 20_000;
const PAGES: u64 = 8;
const PAGE: usize = 200;

/// A store whose one conversation is long. The tables have no statistics, as those of a new database: a server that plans for a few
/// records reads all of them.
async fn long() -> (TestDatabase<'static>, Area, PostgresStore, ConvRef) {
    let (database, client) = database(Clock::Real).await;
    let area = Area::create(&database.url(), "pages").await.expect("is made");
    let store = PostgresStore::open(area.url(), options("a")).await.expect("opens");
    let conversation = create(&store, "long").await;
    let insert = "INSERT INTO pages.record(conv_id, seq, epoch, kind, sender, client_msg_id, at, body_hash, body)
                  SELECT conv_id, seq, 1, CASE seq % 5 WHEN 0 THEN 1 ELSE 4 END, 'a', seq::text, 1, decode(repeat('00', 16), 'hex'), '{}'
                  FROM pages.conversation, generate_series(1, $1::bigint) AS seq";
    client.execute(insert, &[&i64::from(RECORDS)]).await.expect("are written");
    (database, area, store, conversation)
}

/// What was read since `before`, at least so much, when the store's sessions have told.
async fn read_since(area: &Area, store: PostgresStore, before: u64, least: u64) -> u64 {
    // A session tells what it read at its end, at the latest.
    drop(store);
    until("what was read is counted", || async { area.rows_read().await.expect("answers") >= before + least }).await;
    area.rows_read().await.expect("answers") - before
}

#[tokio::test]
async fn a_page_of_some_kinds_reads_no_more_than_lies_between_its_records() {
    let (_database, area, store, conversation) = long().await;
    let before = area.rows_read().await.expect("answers");
    let mut below = Seq(u64::from(RECORDS) + 1);
    for _ in 0..PAGES {
        let query = RangeQuery {
            conversation: conversation.clone(),
            direction: Direction::Before(below),
            limit: PAGE,
            kinds: CONTEXT_KINDS.to_vec(),
        };
        let page = store.range(&query).await.expect("answers").expect("is there");
        assert_eq!(page.records.len(), PAGE);
        below = page.records[0].seq;
    }
    let least = PAGES * PAGE as u64;
    let read = read_since(&area, store, before, least).await;
    // Four others lie between two, and each page looks one record further; what the rest of a statement reads is as much again
    // at the most.
    let most = 2 * 5 * (least + PAGES);
    assert!(read <= most, "{read} rows were read for {least} records; at most {most}");
}

#[tokio::test]
async fn a_look_for_a_key_reads_its_record_alone() {
    let (_database, area, store, conversation) = long().await;
    let before = area.rows_read().await.expect("answers");
    for key in 1..=PAGES {
        let (sender, id) = ("a".parse().expect("valid"), key.to_string().parse().expect("valid"));
        let found = store.find(&conversation, &sender, &id).await.expect("answers");
        assert_eq!(found.expect("is there").seq, Seq(key));
    }
    let read = read_since(&area, store, before, PAGES).await;
    assert!(read <= 20 * PAGES, "{read} rows were read for {PAGES} keys");
}
