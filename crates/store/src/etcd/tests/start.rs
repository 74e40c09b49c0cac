//! What a start refuses, and moving the leases.

use std::time::Duration;

use serde_json::json;

use super::super::client::{Client, Repeat};
use super::super::error::CallError;
use super::super::testing::TestCluster;
use super::super::{EtcdStore, KeptIn, OpenError, restored, switch_to_etcd, switch_to_postgres, url};
use crate::LeaseStore;
use crate::postgres::tests::fixture::{Clock, database, options};
use crate::postgres::tests::rig::{A, B, create, register, take, until, write};
use crate::postgres::{Options, PostgresStore};

fn impatient() -> Options {
    let mut options = options("a");
    options.connect_patience = Duration::from_millis(300);
    options
}

#[tokio::test]
async fn what_is_not_etcd_is_named() {
    let (database, _client) = database(Clock::Real).await;
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("binds");
    let nobody = free.local_addr().expect("bound");
    drop(free);
    let url = format!("etcd://{nobody}");
    let error = EtcdStore::open(&url, &database.url(), impatient()).await.expect_err("nobody is there");
    assert!(matches!(error, OpenError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains(&nobody.to_string()), "{error}");

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let place = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        use tokio::io::AsyncWriteExt;
        while let Ok((mut client, _)) = listener.accept().await {
            let page = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi";
            let _ = client.write_all(page).await;
        }
    });
    let url = format!("etcd://{place}");
    let error = EtcdStore::open(&url, &database.url(), impatient()).await.expect_err("a web server");
    assert!(matches!(error, OpenError::NotEtcd { .. }), "{error}");
}

#[tokio::test]
async fn a_cluster_without_quorum_is_refused_after_the_patience() {
    let (database, _client) = database(Clock::Real).await;
    let etcd = TestCluster::start();
    etcd.kill(0);
    etcd.kill(1);
    let error = EtcdStore::open(&etcd.url(), &database.url(), impatient()).await.expect_err("one of three");
    assert!(matches!(error, OpenError::NoQuorum { .. }), "{error}");
    assert!(error.to_string().contains("has no quorum"), "{error}");
}

#[tokio::test]
async fn an_etcd_with_authentication_is_named_as_that_at_once() {
    let (database, _client) = database(Clock::Real).await;
    let etcd = TestCluster::start();
    let client = Client::new(url::parse(&etcd.url()).expect("valid"));
    for (path, body) in [
        ("/v3/auth/user/add", json!({"name": "root", "password": "pw"})),
        ("/v3/auth/role/add", json!({"name": "root"})),
        ("/v3/auth/user/grant", json!({"user": "root", "role": "root"})),
        ("/v3/auth/enable", json!({})),
    ] {
        // A slow machine's answer may come too late: then it says that this was done.
        let done = ["already", "user name is empty"];
        until("etcd to take it", || async {
            match client.call(path, &body, Repeat::Never).await {
                Ok(_) => true,
                Err(CallError::Refused(_, text)) => done.iter().any(|part| text.contains(part)),
                Err(_) => false,
            }
        })
        .await;
    }
    let mut patient = options("a");
    patient.connect_patience = Duration::from_secs(600);
    let error = EtcdStore::open(&etcd.url(), &database.url(), patient).await.expect_err("it asks for a name");
    assert!(matches!(error, OpenError::Refused { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("authentication is enabled") && !text.contains("quorum"), "{text}");
}

#[tokio::test]
async fn another_cluster_or_mode_is_refused_and_leases_move_with_all_nodes_down() {
    let (database, _client) = database(Clock::Real).await;
    let (etcd, other) = (TestCluster::shared(), TestCluster::start());
    let mixed = format!("etcd://{},{}", etcd.place(0), other.place(0));
    let error = EtcdStore::open(&mixed, &database.url(), impatient()).await.expect_err("two clusters");
    assert!(matches!(error, OpenError::Mixed { .. }), "{error}");

    let store = PostgresStore::open(&database.url(), options("a")).await.expect("opens");
    register(&store, A).await;
    let conversation = create(&store, "c").await;
    let mut reign = take(&store, &conversation, A, None).await;
    write(&store, &conversation, A, &mut reign, "k1").await;
    let error = EtcdStore::open(&etcd.url(), &database.url(), impatient()).await.expect_err("another mode");
    assert!(error.to_string().contains("keeps its leases in this database"), "{error}");
    let to_etcd = |to: &TestCluster, kept: Option<&str>| {
        let (to, kept, database) = (to.url(), kept.map(str::to_owned), database.url());
        async move {
            let kept = kept.as_deref().map_or(KeptIn::Unsaid, KeptIn::Etcd);
            switch_to_etcd(&to, kept, &database, &impatient()).await
        }
    };
    let error = to_etcd(etcd, None).await.expect_err("a node is registered");
    assert!(error.to_string().contains("node-1"), "{error}");
    store.deregister(A).await.expect("answers");
    to_etcd(etcd, None).await.expect("moves");

    let there = EtcdStore::open(&etcd.url(), &database.url(), impatient()).await.expect("opens");
    register(&there, B).await;
    let mut next = take(&there, &conversation, B, None).await;
    assert!(next.epoch > reign.epoch, "epochs go on: {next:?}");
    write(&there, &conversation, B, &mut next, "k2").await;
    let error = EtcdStore::open(&other.url(), &database.url(), impatient()).await.expect_err("another cluster");
    assert!(error.to_string().contains("the etcd cluster"), "{error}");
    let (from, elsewhere, url) = (etcd.url(), other.url(), database.url());
    let url = url.as_str();
    let to_postgres = |kept| async move { switch_to_postgres(kept, url, &impatient()).await };
    for (error, named) in [
        (to_postgres(KeptIn::Etcd(&from)).await, "node-2"),
        (to_postgres(KeptIn::Unsaid).await, "--from etcd://"),
        (to_etcd(&other, None).await, "--from etcd://"),
        (to_etcd(&other, Some(&from)).await, "node-2"),
        (restored(KeptIn::Unsaid, url, &impatient(), 9).await.map(drop), "--from etcd://"),
        (restored(KeptIn::Etcd(&from), url, &impatient(), 9).await.map(drop), "node-2"),
    ] {
        let error = error.expect_err("a node is registered there").to_string();
        assert!(error.contains(named), "{named}: {error}");
    }
    there.deregister(B).await.expect("answers");
    to_etcd(&other, Some(&from)).await.expect("moves on");
    let error = to_postgres(KeptIn::Etcd(&from)).await.expect_err("they are in another one by now");
    assert!(error.to_string().contains("what was looked into"), "{error}");
    to_postgres(KeptIn::Etcd(&elsewhere)).await.expect("moves back");

    let back = PostgresStore::open(&database.url(), options("a")).await.expect("opens");
    register(&back, A).await;
    let last = take(&back, &conversation, A, Some((next.epoch, Some(B)))).await;
    assert!(last.epoch > next.epoch, "epochs go on: {last:?}");
}
