//! What a start refuses, and how it names it; nodes that start together; a restored database.

use std::time::Duration;

use super::super::error::OpenError;
use super::super::session::{Dialer, not_dialled};
use super::super::testing::TestServer;
use super::super::{Durability, NodesInEtcd, Options, PostgresStore, restored, url};
use super::fixture::{Clock, connect, database, options};
use super::rig::{A, create, register, take};
use crate::{LeaseStore, LogStore, StoreError};

async fn refusal(url: &str, options: Options) -> OpenError {
    PostgresStore::open(url, options).await.expect_err("is refused")
}

#[tokio::test]
async fn a_server_without_fsync_is_refused() {
    let (database, _client) = database(Clock::Real).await;
    let mut options = options("a");
    options.durability = Durability::Checked;
    let error = refusal(&database.url(), options).await;
    assert!(error.to_string().contains("fsync=off"), "{error}");
}

/// It may have been restarted under a running node.
#[tokio::test]
async fn a_server_without_fsync_gets_no_new_session_of_a_running_node() {
    let server = TestServer::shared();
    let target = url::parse(&server.url("postgres")).expect("valid");
    let dialer = Dialer::new(target, "a".to_owned(), Durability::Checked);
    let Err(error) = dialer.dial("append").await else { panic!("it does not sync") };
    let error = not_dialled(&dialer, error);
    assert!(matches!(&error, StoreError::Unavailable(text) if text.contains("fsync=off")), "{error}");
}

#[tokio::test]
async fn a_database_or_role_that_is_not_there_is_named() {
    let server = TestServer::shared();
    let error = refusal(&server.url("nowhere"), options("a")).await;
    assert!(matches!(error, OpenError::Refused { .. }) && error.to_string().contains("\"nowhere\""), "{error}");
    let url = server.url("postgres").replace("postgres@", "nobody@");
    let error = refusal(&url, options("a")).await;
    assert!(error.to_string().contains("\"nobody\""), "{error}");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_tried_for_a_while() {
    let mut options = options("a");
    options.connect_patience = Duration::from_millis(500);
    let begun = tokio::time::Instant::now();
    let error = refusal("postgres://u:secret@/d?host=/tmp/conch-no-such-directory", options).await;
    assert!(begun.elapsed() >= Duration::from_millis(500), "all of its patience, not only whole pauses");
    let OpenError::Connect { tries, .. } = &error else { panic!("{error}") };
    assert!(*tries > 1, "{error}");
    assert!(!error.to_string().contains("secret"), "{error}");
}

#[tokio::test]
async fn a_role_without_rights_is_refused() {
    let server = TestServer::shared();
    let database = server.database();
    server.sql("DO $$ BEGIN IF to_regrole('weak') IS NULL THEN CREATE ROLE weak LOGIN; END IF; END $$");
    let url = database.url().replace("postgres@", "weak@");
    let error = refusal(&url, options("a")).await;
    assert!(matches!(error, OpenError::Rights { .. }), "{error}");
    assert!(error.to_string().contains("public"), "{error}");
}

#[tokio::test]
async fn a_read_only_database_is_refused() {
    let server = TestServer::shared();
    let database = server.database();
    server.sql(&format!("ALTER DATABASE {} SET default_transaction_read_only = on", database.name()));
    let error = refusal(&database.url(), options("a")).await;
    assert!(matches!(error, OpenError::ReadOnly { .. }), "{error}");
}

#[tokio::test]
async fn another_programs_tables_are_refused_and_kept() {
    let database = TestServer::shared().database();
    let client = connect(&database.url()).await;
    client.batch_execute("CREATE TABLE member(id int); CREATE TABLE cluster_meta(one bool)").await.expect("makes them");
    let error = refusal(&database.url(), options("a")).await;
    assert!(matches!(&error, OpenError::Foreign { schema, .. } if schema == "public"), "{error}");
    client.batch_execute("DROP TABLE cluster_meta").await.expect("drops it");
    let error = refusal(&database.url(), options("a")).await;
    assert!(matches!(&error, OpenError::Foreign { table, .. } if table == "member"), "{error}");
    let count =
        client.query_one("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'", &[]).await.expect("answers");
    assert_eq!(count.get::<_, i64>(0), 1, "nothing was added");
}

#[tokio::test]
async fn a_newer_schema_is_refused_with_both_versions() {
    let (database, client) = database(Clock::Real).await;
    client.execute("UPDATE cluster_meta SET schema_version = 99", &[]).await.expect("updates");
    let error = refusal(&database.url(), options("a")).await.to_string();
    assert!(error.contains("schema version 99") && error.contains("up to 1"), "{error}");
}

#[tokio::test]
async fn another_secret_is_refused_and_not_shown() {
    let (database, client) = database(Clock::Real).await;
    PostgresStore::open(&database.url(), options("a")).await.expect("the first one decides");
    PostgresStore::open(&database.url(), options("b")).await.expect("the same secret");
    let mut other = options("c");
    other.secret_fingerprint = [8; 32];
    assert!(matches!(refusal(&database.url(), other).await, OpenError::Secret));
    let sql =
        "SELECT count(*) FROM cluster_meta WHERE position($1 IN secret_hash) > 0 OR position($1 IN secret_salt) > 0";
    let shown: i64 = client.query_one(sql, &[&&[7_u8; 4][..]]).await.expect("answers").get(0);
    assert_eq!(shown, 0, "the database keeps no fingerprint");
}

#[tokio::test]
async fn nodes_that_start_together_make_the_tables_once() {
    let database = TestServer::shared().database();
    let starts: Vec<_> = (0..6)
        .map(|number| {
            let url = database.url();
            tokio::spawn(async move { PostgresStore::open(&url, options(&format!("n{number}"))).await.map(drop) })
        })
        .collect();
    for start in starts {
        start.await.expect("does not panic").expect("opens");
    }
}

/// A database of its own that is a copy is refused until an operator says that it takes the original's place.
#[tokio::test]
async fn a_copied_database_is_refused_until_it_is_declared() {
    let (original, client) = database(Clock::Real).await;
    let store = PostgresStore::open(&original.url(), options("a")).await.expect("opens");
    register(&store, A).await;
    let conversation = create(&store, "c").await;
    let reign = take(&store, &conversation, A, None).await;
    drop((store, client));
    let others =
        format!("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = '{}'", original.name());
    TestServer::shared().sql(&others);
    let copy = TestServer::shared().database_like(original.name());
    let error = refusal(&copy.url(), options("a")).await;
    assert!(
        matches!(error, OpenError::Copied { .. }) && error.to_string().contains("conch restored --above"),
        "{error}"
    );

    let nowhere = NodesInEtcd::NoneIn(Vec::new());
    let error = restored(&copy.url(), &options("a"), 0, &nowhere).await.expect_err("below the stored one");
    assert!(error.to_string().contains("--above 0 is below the generation 1"), "{error}");
    let error = restored(&copy.url(), &options("a"), u64::MAX, &nowhere).await.expect_err("beyond all numbers");
    assert!(error.to_string().contains("beyond the largest"), "{error}");
    let above = 3 * 65_536 + 7;
    let generation = restored(&copy.url(), &options("a"), above, &nowhere).await.expect("declared");
    assert_eq!(generation.0, 4 * 65_536 + 1);
    assert!(
        restored(&copy.url(), &options("a"), above, &nowhere).await.is_err(),
        "not twice: the first one has used it"
    );

    let store = PostgresStore::open(&copy.url(), options("a")).await.expect("opens");
    assert!(store.nodes().await.expect("answers").is_empty(), "node rows are of the backup's time");
    register(&store, super::rig::B).await;
    let next = take(&store, &conversation, super::rig::B, Some((reign.epoch, Some(A)))).await;
    assert_eq!(next.generation, generation);
    assert_eq!(next.first_seq.0, (generation.0 - 1) * 1_000_000 + 1, "a million numbers a generation");
    assert!(store.log().await.expect("answers").as_str().ends_with(&format!(".{generation}")));
}
