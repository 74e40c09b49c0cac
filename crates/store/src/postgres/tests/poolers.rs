//! What lies between a node and its server: a pooler in session mode will do, any other one is refused.

use super::super::error::OpenError;
use super::super::session::{Dialer, SETTINGS};
use super::super::testing::{Pooler, TestServer};
use super::super::{Durability, PostgresStore, start, url};
use super::fixture::{Clock, database, options};
use super::rig::{A, B, TTL, create, registration, seqs, take, until, write};
use crate::LeaseStore;

/// Twice: the second node gets server processes that were the first one's.
#[tokio::test]
async fn nodes_run_through_a_pooler_in_session_mode_one_after_the_other() {
    let (database, _client) = database(Clock::Real).await;
    let pooler = Pooler::start(TestServer::shared(), "session", "");
    for (me, name) in [(A, "one"), (B, "two")] {
        let store = PostgresStore::open(&pooler.url(database.name()), options("a")).await.expect("opens");
        let lifelines = store.lifelines().expect("it has some");
        let held = lifelines.hold().await.expect("holds");
        store.register(&registration(me, Some(held.key)), TTL).await.expect("registers");
        assert_eq!(lifelines.observe().await.expect("observes").held, [held.key]);
        assert_eq!(store.renew(me, TTL).await, Ok(Some(1)));
        let conversation = create(&store, name).await;
        let mut reign = take(&store, &conversation, me, None).await;
        write(&store, &conversation, me, &mut reign, "k").await;
        assert_eq!(seqs(&store, &conversation).await, [reign.last_seq.0]);
        drop(held);
        until("the lock is free", || async { lifelines.observe().await.expect("observes").held.is_empty() }).await;
        store.deregister(me).await.expect("answers");
    }
}

#[tokio::test]
async fn every_session_runs_with_the_settings_directly_and_through_a_pooler() {
    let (database, _client) = database(Clock::Real).await;
    let pooler = Pooler::start(TestServer::shared(), "session", "");
    let set_there = format!("ALTER DATABASE {} SET statement_timeout = '7s'", database.name());
    TestServer::shared().sql(&set_there);
    for database in [database.url(), pooler.url(database.name())] {
        let target = url::parse(&database).expect("valid");
        let dialer = Dialer::new(target, "a".to_owned(), Durability::Unchecked).with(&[("jit", "off")]);
        // The first one has brought the tables up to date, under other time-outs.
        let prepared = start::prepare(&dialer, &options("a")).await.expect("will do");
        let dialled = dialer.dial("test").await.expect("connects");
        for session in [prepared, dialled] {
            for (name, value) in SETTINGS.iter().chain(&[("jit", "off")]) {
                let row = session.first("SELECT current_setting($1)", &[name]).await.expect("answers").expect("a row");
                assert_eq!(row.get::<_, &str>(0), *value, "{name} at {database}");
            }
        }
    }
}

#[tokio::test]
async fn a_pooler_that_shares_sessions_is_refused() {
    let (database, _client) = database(Clock::Real).await;
    for (mode, settings, evidence) in [
        // As it comes, and as it is told to take what other programs set in their URLs.
        ("transaction", "", "one session ran in the server processes"),
        ("transaction", "ignore_startup_parameters = options", "one session ran in the server processes"),
        ("transaction", "default_pool_size = 1", "a session waits for another one's transaction"),
        ("statement", "", "it refuses transactions"),
    ] {
        let pooler = Pooler::start(TestServer::shared(), mode, settings);
        let error = PostgresStore::open(&pooler.url(database.name()), options("a")).await.expect_err("is refused");
        assert!(matches!(error, OpenError::Pooler { .. }), "{mode}, {settings}: {error}");
        assert!(error.to_string().contains(evidence), "{mode}, {settings}: {error}");
    }
}

/// Its own settings are Conch's business; what the operator asks for in the URL is refused by the pooler, which is told so.
#[tokio::test]
async fn options_of_the_url_that_a_pooler_does_not_pass_on_are_named() {
    let (database, _client) = database(Clock::Real).await;
    let pooler = Pooler::start(TestServer::shared(), "session", "");
    let url = format!("{}&options=-csearch_path%3Dpublic", pooler.url(database.name()));
    let error = PostgresStore::open(&url, options("a")).await.expect_err("is refused");
    assert!(matches!(error, OpenError::Refused { .. }), "{error}");
    assert!(error.to_string().contains("what the URL's options set"), "{error}");
}
