//! A signal that comes while a node still starts: it ends at once and in order, and leaves nothing behind.

use std::net::TcpListener;

use conch_store::postgres::testing::{Disk, TestServer};
use rustix::process::Signal;

use crate::node::{Home, Node};

const SECRET: &str = "a secret of these tests, long enough";

/// Starts a node on this store that would wait for it far longer than the test does.
fn start(home: &Home, scratch: &std::path::Path, store: &str, more: &[&str]) -> Node {
    let mut serve = home.serve_on(store);
    serve.env("CONCH_AUTH_SECRET", SECRET).args(["--set", "postgres.connect_patience_ms=600000"]).args(more);
    Node::launch(serve, home.operations(), &scratch.join("log"))
}

fn said(scratch: &std::path::Path) -> String {
    std::fs::read_to_string(scratch.join("log")).expect("it was made")
}

#[test]
fn a_signal_while_the_store_is_waited_for_ends_the_start_with_0() {
    for (signal, leases) in [(Signal::TERM, false), (Signal::INT, false), (Signal::HUP, false), (Signal::TERM, true)] {
        let scratch = tempfile::tempdir().expect("a directory");
        let home = Home::new(&scratch.path().join("data"));
        // Takes connections, and says nothing.
        let hangs = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let place = hangs.local_addr().expect("bound");
        let etcd = format!("etcd://{place}");
        let more: &[&str] = if leases { &["--leases", &etcd] } else { &[] };
        let node = start(&home, scratch.path(), &format!("postgres://u@{place}/d"), more);
        let _taken = hangs.accept().expect("the node dials");
        assert_eq!(node.stop(signal).code(), Some(0), "{signal:?}: {}", said(scratch.path()));
    }
}

#[test]
fn a_signal_while_the_node_registers_ends_the_start_with_0_and_leaves_no_row() {
    let server = TestServer::start(Disk::Synced, &[]);
    let url = server.url("postgres");
    let scratch = tempfile::tempdir().expect("a directory");
    let home = Home::new(&scratch.path().join("data"));
    let first = home.start_with({
        let mut serve = home.serve_on(&url);
        serve.env("CONCH_AUTH_SECRET", SECRET);
        serve
    });
    assert_eq!(first.terminate().code(), Some(0));

    let waits = "SELECT FROM pg_locks WHERE NOT granted AND relation = 'node_lease'::regclass";
    // The registration is refused by the lock's time-out; or it succeeds, and has to be given back.
    for lock_ends_first in [false, true] {
        server.sql("BEGIN; LOCK TABLE node_lease IN ACCESS EXCLUSIVE MODE");
        let node = start(&home, scratch.path(), &url, &[]);
        server.sql(&format!(
            "DO $$ BEGIN FOR i IN 1..3000 LOOP IF EXISTS ({waits}) THEN RETURN; END IF; PERFORM pg_sleep(0.01); END LOOP;
               RAISE 'the node does not register'; END $$"
        ));
        node.signal(Signal::TERM);
        if lock_ends_first {
            server.sql("COMMIT");
        }
        assert_eq!(node.wait().code(), Some(0), "{}", said(scratch.path()));
        if !lock_ends_first {
            server.sql("COMMIT");
        }
        server.sql("DO $$ BEGIN ASSERT NOT EXISTS (SELECT FROM node_lease); END $$");
    }
}

#[test]
fn off_a_terminal_the_log_says_that_the_node_stops_and_has_no_colours() {
    let scratch = tempfile::tempdir().expect("a directory");
    let home = Home::new(&scratch.path().join("data"));
    let mut node = Node::launch(home.serve_on(&home.store()), home.operations(), &scratch.path().join("log"));
    node.wait_until_ready();
    assert_eq!(node.terminate().code(), Some(0));
    let said = said(scratch.path());
    for words in ["Conch stops:", "Conch has stopped: everything is finished"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(!said.contains('\u{1b}'), "{said}");
}
