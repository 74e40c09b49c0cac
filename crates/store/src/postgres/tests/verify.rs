//! The check of a whole database.

use super::super::error::OpenError;
use super::super::testing::TestServer;
use super::super::{PostgresStore, verify};
use super::fixture::{Clock, database, options};
use super::rig::{A, create, draft, register, take};
use crate::{AppendOutcome, Batch, DueChange, LogStore};

/// More records than a page has.
const RECORDS: u64 = 700;

#[tokio::test]
async fn a_whole_log_is_clean_and_a_changed_one_is_not() {
    let (database, client) = database(Clock::Real).await;
    let store = PostgresStore::open(&database.url(), options("a")).await.expect("opens");
    register(&store, A).await;
    let (long, short) = (create(&store, "long").await, create(&store, "short").await);
    let reign = take(&store, &long, A, None).await;
    let records: Vec<_> =
        (1..=RECORDS).map(|number| (conch_core::ids::Seq(number), draft(&format!("k{number}")))).collect();
    let hi = conch_core::ids::Seq(RECORDS);
    let batch = Batch {
        conversation: long.clone(),
        epoch: reign.epoch,
        generation: reign.generation,
        prev: reign.last_seq,
        hi,
        reserve: hi,
        due: DueChange::Keep,
        records,
    };
    let outcome = store.append(A, vec![batch]).await.expect("answers");
    assert!(matches!(outcome[..], [AppendOutcome::Landed { .. }]), "{outcome:?}");
    store.move_cursor(&long, &"alice".parse().expect("valid"), hi).await.expect("answers");
    take(&store, &short, A, None).await;

    let mut seen = 0;
    let report = verify(&database.url(), &options("check"), |_| seen += 1).await.expect("reads");
    assert!(report.is_clean(), "{:?}", report.violations);
    assert_eq!((report.conversations, report.records, report.cursors, seen), (2, RECORDS, 1, 2));

    for (sql, what) in [
        ("UPDATE record SET body = '{\"text\":\"other\"}' WHERE seq = 300", "a body that is not its hash's"),
        ("UPDATE record SET epoch = 9 WHERE seq = 400", "an epoch that falls behind it"),
        ("UPDATE conv_head SET last_seq = 699 WHERE last_seq = 700", "a record beyond the head"),
    ] {
        client.execute(sql, &[]).await.expect("damages it");
        let report = verify(&database.url(), &options("check"), |_| {}).await.expect("reads");
        assert!(!report.is_clean(), "{what} is found");
    }
}

#[tokio::test]
async fn an_empty_database_is_refused_and_left_empty() {
    let database = TestServer::shared().database();
    for _ in 0..2 {
        let error = verify(&database.url(), &options("check"), |_| {}).await.expect_err("nothing is there");
        assert!(matches!(error, OpenError::Command(_)), "{error}");
    }
}
