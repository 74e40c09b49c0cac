//! What an operator does to a cluster on PostgreSQL: the canary, a drain through another node, a restored backup, the place of
//! the leases.

use std::process::Command;

use conch_store::etcd::testing::TestCluster;
use conch_store::postgres::testing::{Disk, TestServer};
use serde_json::json;

use crate::node::{Done, Home, conch, free_address, until};

const SECRET: &str = "a secret of these tests, long enough";

/// A command that shares the secret of the database.
fn with_secret(mut command: Command) -> Command {
    command.env("CONCH_AUTH_SECRET", SECRET).env("USER", "tester");
    command
}

fn run(arguments: &[&str]) -> Done {
    Done::of(with_secret(conch(arguments)).output().expect("the binary starts"))
}

/// A server whose first database is the store: its contents can be asked for.
fn server() -> (TestServer, String) {
    let server = TestServer::start(Disk::Synced, &[]);
    let url = server.url("postgres");
    (server, url)
}

#[test]
fn the_canary_finds_a_good_database_good_and_leaves_no_node() {
    let (server, url) = server();
    let done = run(&["canary", "--store", &url]);
    assert_eq!(done.code, 0, "{done:?}");
    let mut lines = done.lines();
    assert_eq!(lines.pop(), Some(json!({"doubts": 0})));
    assert_eq!(lines.len(), 8, "{lines:?}");
    assert!(lines.iter().all(|step| step["shown"] == true), "{lines:?}");
    assert!(lines.iter().any(|step| step["step"] == "stale_write_is_fenced"), "{lines:?}");
    server.sql("DO $$ BEGIN ASSERT (SELECT count(*) FROM node_lease) = 0; END $$");
    server.sql("DO $$ BEGIN ASSERT (SELECT count(*) FROM conv_head WHERE owner IS NOT NULL) = 0; END $$");
    assert_eq!(run(&["verify", "--store", &url]).code, 0);
}

#[test]
fn a_directory_is_refused_where_a_database_is_needed() {
    let scratch = tempfile::tempdir().expect("a directory");
    let store = format!("sqlite:{}", scratch.path().display());
    let refused: [(&[&str], &str); 3] = [
        (&["canary"], "belongs to one process"),
        (&["restored", "--above", "1"], "needs a postgres:// store"),
        (&["leases", "switch", "--leases", "postgres"], "needs a postgres:// store"),
    ];
    for (arguments, why) in refused {
        let done = run(&[arguments, &["--store", &store]].concat());
        assert!(done.code == 2 && done.stderr.contains(why), "{arguments:?}: {done:?}");
    }
}

#[test]
fn a_restored_database_goes_above_what_was_ever_seen() {
    let (_server, url) = server();
    let restored = |above: &str| run(&["restored", "--above", above, "--store", &url]);
    let done = restored("70000");
    assert_eq!(done.code, 0, "{done:?}");
    let generation = done.line()["generation"].as_u64().expect("a number");
    assert!(generation > 70_000, "{done:?}");
    let again = restored("70000");
    assert!(again.code == 1 && again.stderr.contains("below the generation"), "{again:?}");
    let far = restored("9000000000000");
    assert!(far.code == 1 && far.stderr.contains("largest generation"), "{far:?}");
    assert_eq!(run(&["canary", "--store", &url]).code, 0, "nodes start on it");
}

#[test]
fn a_drain_goes_through_any_node_and_ends_the_named_one_in_order() {
    let (_server, url) = server();
    let scratch = tempfile::tempdir().expect("a directory");
    let homes = ["a", "b"].map(|name| (name, Home::new(&scratch.path().join(name))));
    let [a, b] = homes.each_ref().map(|(name, home)| {
        let mut serve = with_secret(home.serve_on(&url));
        serve.args(["--node", name, "--link-listen", &free_address()]);
        home.start_with(serve)
    });
    let ask = |arguments: &[&str]| {
        let mut command = with_secret(conch(arguments));
        command.env("CONCH_URL", homes[0].1.url()).env("CONCH_STORE", &url);
        Done::of(command.output().expect("the binary starts"))
    };
    let fresh = ask(&["nodes", "--url", &homes[1].1.url()]).lines();
    assert!(fresh.iter().any(|row| row["name"] == "b"), "a node that is ready has seen itself: {fresh:?}");
    until("both nodes to be seen", || (ask(&["nodes"]).lines().len() == 2).then_some(()));

    let moved = run(&["leases", "switch", "--leases", "postgres", "--store", &url]);
    assert!(moved.code == 1 && moved.stderr.contains("stop them first"), "{moved:?}");
    let etcd = run(&["leases", "switch", "--leases", "etcd://127.0.0.1:1", "--store", &url]);
    assert!(etcd.code == 1 && etcd.stderr.contains("cannot connect to etcd at 127.0.0.1:1"), "{etcd:?}");

    let nobody = ask(&["drain", "c"]);
    assert!(nobody.code == 3 && nobody.stderr.contains("no live node is called c"), "{nobody:?}");
    let drained = ask(&["drain", "b"]);
    assert_eq!((drained.code, &drained.line()["name"]), (0, &json!("b")), "{drained:?}");
    assert_eq!(b.end().code(), Some(0));
    until("the other node to see that it went", || (ask(&["nodes"]).lines().len() == 1).then_some(()));
    assert_eq!(ask(&["create", "room"]).code, 0);
    let both = format!("{},{}", homes[1].1.url(), homes[0].1.url());
    let sent = ask(&["send", "room", "still here", "--url", &both]);
    assert_eq!(sent.code, 0, "the first server of the list is gone: {sent:?}");
    assert_eq!(a.terminate().code(), Some(0), "the last one has nobody to give to");

    let switched = run(&["leases", "switch", "--leases", "postgres", "--store", &url]);
    assert_eq!((switched.code, switched.line()), (0, json!({"leases": "postgres"})));
}

#[test]
fn leases_leave_an_etcd_and_a_restore_is_declared_only_after_a_look_at_it() {
    let (server, url) = server();
    let etcd = TestCluster::shared().url();
    let scratch = tempfile::tempdir().expect("a directory");
    let home = Home::new(&scratch.path().join("a"));
    let mut serve = with_secret(home.serve_on(&url));
    serve.args(["--node", "wanderer", "--leases", &etcd]);
    let node = home.start_with(serve);
    let switch = |more: &[&str]| run(&[&["leases", "switch", "--leases", "postgres", "--store", &url], more].concat());
    let restored = |more: &[&str]| run(&[&["restored", "--above", "70000", "--store", &url], more].concat());
    for command in [&switch as &dyn Fn(&[&str]) -> Done, &restored] {
        let unseen = command(&[]);
        assert!(unseen.code == 1 && unseen.stderr.contains("the leases are in the etcd cluster"), "{unseen:?}");
        assert!(unseen.stderr.contains("--from etcd://") && unseen.stderr.contains("--etcd-is-lost"), "{unseen:?}");
        let lives = command(&["--from", &etcd]);
        assert!(lives.code == 1 && lives.stderr.contains("wanderer; stop them first"), "{lives:?}");
        let both = command(&["--from", &etcd, "--etcd-is-lost"]);
        assert!(both.code == 2 && both.stderr.contains("--etcd-is-lost"), "{both:?}");
        let none = command(&["--from", "postgres"]);
        assert!(none.code == 2 && none.stderr.contains("--from"), "{none:?}");
    }
    server.sql("DO $$ BEGIN ASSERT (SELECT lease_mode FROM cluster_meta) = 'etcd'; END $$");
    assert_eq!(node.terminate().code(), Some(0));

    let declared = restored(&["--from", &etcd]);
    assert!(declared.code == 0 && declared.line()["generation"].as_u64() > Some(70_000), "{declared:?}");
    assert_eq!(switch(&[]).code, 1, "that nobody is there has to be seen");
    let switched = switch(&["--from", &etcd]);
    assert_eq!((switched.code, switched.line()), (0, json!({"leases": "postgres"})), "{switched:?}");
    assert_eq!(switch(&[]).code, 0, "they are there already");
    let there = run(&["leases", "switch", "--leases", &etcd, "--store", &url]);
    assert_eq!(there.code, 0, "{there:?}");
    assert_eq!(switch(&["--etcd-is-lost"]).code, 0, "on the operator's word");
}

#[test]
fn an_exit_hook_knows_which_registration_it_may_declare_dead() {
    let (server, url) = server();
    let scratch = tempfile::tempdir().expect("a directory");
    let file = scratch.path().join("incarnation");
    let home = Home::new(&scratch.path().join("a"));
    let start = || {
        let mut serve = with_secret(home.serve_on(&url));
        serve.arg("--incarnation-file").arg(&file);
        home.start_with(serve)
    };
    let named = || until("the file to name it", || std::fs::read_to_string(&file).ok().filter(|text| !text.is_empty()));

    let node = start();
    let first = named();
    assert_eq!(node.terminate().code(), Some(0));
    assert!(!file.exists(), "after an end in order there is nothing to declare");

    let node = start();
    let second = named();
    assert_ne!(first, second);
    node.kill();
    assert_eq!(std::fs::read_to_string(&file).expect("it stays"), second);
    let expelled = run(&["expel", second.trim(), "--store", &url]);
    assert_eq!((expelled.code, &expelled.line()["expelled"]), (0, &json!(true)), "{expelled:?}");
    server.sql("DO $$ BEGIN ASSERT (SELECT count(*) FROM node_lease) = 0; END $$");

    let mut serve = with_secret(home.serve_on(&url));
    serve.args(["--incarnation-file", "/nowhere/at/all"]);
    let refused = Done::of(serve.output().expect("the binary starts"));
    assert!(refused.code == 1 && refused.stderr.contains("--incarnation-file /nowhere/at/all"), "{refused:?}");
}
