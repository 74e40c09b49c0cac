//! What stops `conch serve` before it serves anybody, and peers that a node turns away: each refusal names what is wrong.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use conch_core::wire::link::VERSION;
use conch_store::etcd::testing::TestCluster;
use conch_store::postgres::testing::{Disk, Pooler, TestServer};

use crate::node::{Done, Home, Node, PATIENCE, conch, free_address, until};

const SECRET: &str = "a secret of these tests, long enough";
const OTHER_SECRET: &str = "another secret, which is long enough too";

/// A place to start nodes in.
struct Place {
    _scratch: tempfile::TempDir,
    home: Home,
}

impl Place {
    fn new() -> Self {
        let scratch = tempfile::tempdir().expect("a directory");
        let home = Home::new(&scratch.path().join("data"));
        Self { _scratch: scratch, home }
    }

    fn serve(&self, store: &str, more: &[&str]) -> Command {
        let mut serve = self.home.serve_on(store);
        serve.env("CONCH_AUTH_SECRET", SECRET).args(["--set", "postgres.connect_patience_ms=500"]).args(more);
        serve
    }

    /// Starts a node that must end by itself, and say each of these.
    fn refuses(&self, serve: Command, code: i32, said: &[&str]) -> Done {
        let done = self.home.start_refused_with(serve);
        assert_eq!(done.code, code, "{done:?}");
        for part in said {
            assert!(done.stderr.contains(part), "{part:?} is not said: {done:?}");
        }
        assert!(!done.stderr.contains(SECRET) && !done.stderr.contains("panicked"), "{done:?}");
        done
    }
}

/// A server whose disk is as it should be, and its first database.
fn server() -> (TestServer, String) {
    let server = TestServer::start(Disk::Synced, &[]);
    let url = server.url("postgres");
    (server, url)
}

#[test]
fn a_wrong_database_url_is_named_part_by_part() {
    let place = Place::new();
    let nobody = free_address();
    let gone = format!("postgres://u:hidden@{nobody}/d");
    let cases: [(&str, i32, &[&str]); 6] = [
        ("mysql://u:hidden@h/d", 2, &["store", "postgres://USER@HOST/DATABASE"]),
        ("postgres://u:hidden@h:port/d", 1, &["the database URL", "port"]),
        ("postgres://u:hidden@h", 1, &["the database URL", "database", "is missing"]),
        ("postgres://h/d", 1, &["the database URL", "user", "is missing"]),
        ("postgres://u:hidden@h/d?sslmod=require", 1, &["the database URL", "sslmod", "is not known"]),
        (&gone, 1, &["cannot connect to the database", &nobody]),
    ];
    for (url, code, said) in cases {
        let done = place.refuses(place.serve(url, &[]), code, said);
        assert!(!done.stderr.contains("hidden"), "the password is shown: {done:?}");
    }
    let (server, _) = server();
    let place = Place::new();
    place.refuses(place.serve(&server.url("nowhere"), &[]), 1, &["refuses the connection", "nowhere"]);
}

#[test]
fn a_database_that_will_not_do_is_refused_with_the_reason() {
    let (server, url) = server();
    let place = Place::new();
    let without_rights = server.url("postgres").replace("postgres@", "weak@");
    server.sql("CREATE ROLE weak LOGIN");
    place.refuses(place.serve(&without_rights, &[]), 1, &["the database role lacks rights", "public"]);

    // As an older server says of itself.
    let older = server.database();
    server.sql(&format!("ALTER DATABASE {} SET search_path = public, pg_catalog", older.name()));
    let says_so = "CREATE FUNCTION public.current_setting(text) RETURNS text LANGUAGE sql AS $$ SELECT CASE $1
        WHEN 'server_version_num' THEN '140011' WHEN 'server_version' THEN '14.11' ELSE pg_catalog.current_setting($1) END $$";
    psql(&older.url(), says_so);
    place.refuses(place.serve(&older.url(), &[]), 1, &["has version 14.11", "version 15 or later"]);

    let node = place.home.start_with(place.serve(&url, &[]));
    assert_eq!(node.terminate().code(), Some(0));
    server.sql("UPDATE cluster_meta SET schema_version = 99");
    place.refuses(place.serve(&url, &[]), 1, &["schema version 99", "update this node"]);
    server.sql("UPDATE cluster_meta SET schema_version = 1");
    server.sql("ALTER DATABASE postgres SET default_transaction_read_only = on");
    place.refuses(place.serve(&url, &[]), 1, &["read-only", "primary"]);
}

/// Runs a statement in a database of a test.
fn psql(url: &str, sql: &str) {
    let ran =
        Command::new("psql").args(["--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1", "-c", sql, url]).output();
    let ran = ran.expect("psql starts");
    assert!(ran.status.success(), "{ran:?}");
}

#[test]
fn a_server_that_forgets_and_a_pooler_that_mixes_sessions_are_refused() {
    let place = Place::new();
    let forgetful = TestServer::start(Disk::NotSynced, &[]);
    place.refuses(place.serve(&forgetful.url("postgres"), &[]), 1, &["fsync=off", "postgresql.conf"]);
    let (server, url) = server();
    let node = place.home.start_with(place.serve(&url, &[]));
    assert_eq!(node.terminate().code(), Some(0), "there are tables");
    let pooler = Pooler::start(&server, "transaction", "");
    let url = pooler.url("postgres");
    let said = ["a pooler that shares sessions", "session mode"];
    // Whatever the ones before have left in the pooler.
    for _ in 0..3 {
        place.refuses(place.serve(&url, &[]), 1, &said);
    }
    let commands: [&[&str]; 5] = [
        &["canary"],
        &["verify"],
        &["expel", "00000000-0000-4000-8000-000000000001"],
        &["restored", "--above", "9"],
        &["leases", "switch", "--leases", "postgres"],
    ];
    for command in commands {
        let done = beside(command, &url);
        assert!(done.code == 1 && said.iter().all(|part| done.stderr.contains(part)), "{command:?}: {done:?}");
    }
}

/// An operator's command on a store.
fn beside(arguments: &[&str], url: &str) -> Done {
    let mut command = conch(arguments);
    command.args(["--store", url]).env("CONCH_AUTH_SECRET", SECRET);
    Done::of(command.output().expect("the binary starts"))
}

#[test]
fn a_pooler_in_session_mode_carries_a_node_and_the_commands_beside_it() {
    let (server, _) = server();
    let pooler = Pooler::start(&server, "session", "default_pool_size = 60");
    let (url, place) = (pooler.url("postgres"), Place::new());
    let run = |arguments: &[&str]| {
        let mut command = place.home.command(arguments);
        command.env("CONCH_STORE", &url).env("CONCH_AUTH_SECRET", SECRET);
        Done::of(command.output().expect("the binary starts"))
    };
    for text in ["first", "second"] {
        let node = place.home.start_with(place.serve(&url, &[]));
        assert_eq!(run(&["create", "room"]).code, 0);
        let sent = run(&["send", "room", text]);
        assert_eq!(sent.code, 0, "{sent:?}");
        assert_eq!(beside(&["canary"], &url).code, 0);
        assert_eq!(node.terminate().code(), Some(0));
    }
    let history = run(&["verify"]);
    assert_eq!(history.code, 0, "{history:?}");
}

#[test]
fn an_etcd_without_quorum_is_refused() {
    let (_server, url) = server();
    let etcd = TestCluster::start();
    for member in [0, 1] {
        etcd.kill(member);
    }
    let place = Place::new();
    let serve = place.serve(&url, &["--leases", &etcd.url()]);
    place.refuses(serve, 1, &["has no quorum", &etcd.place(2), "start the majority"]);
}

#[test]
fn nodes_of_one_database_agree_on_the_place_of_the_leases_and_on_the_secret() {
    let (_server, url) = server();
    let (first, second) = (Place::new(), Place::new());
    let node = first.home.start_with(first.serve(&url, &["--node", "a"]));
    let etcd = TestCluster::shared().url();
    let said =
        ["keeps its leases in this database", "told the etcd cluster", "set CONCH_LEASES", "conch leases switch"];
    second.refuses(second.serve(&url, &["--node", "b", "--leases", &etcd]), 1, &said);
    let mut other = second.serve(&url, &["--node", "b"]);
    other.env("CONCH_AUTH_SECRET", OTHER_SECRET);
    let done = second.refuses(other, 1, &["a cluster with another secret", "CONCH_AUTH_SECRET"]);
    assert!(!done.stderr.contains(OTHER_SECRET), "{done:?}");
    let mut none = second.serve(&url, &["--node", "b"]);
    none.env_remove("CONCH_AUTH_SECRET");
    second.refuses(none, 1, &["auth.secret", "CONCH_AUTH_SECRET"]);
    assert_eq!(node.terminate().code(), Some(0), "the first one goes on");
}

fn log_of(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Starts a node with a link; its log is in the file.
fn linked(place: &Place, url: &str, name: &str, secret: &str, log: &Path) -> (Node, String) {
    let link = free_address();
    let mut serve = place.serve(url, &["--node", name, "--link-listen", &link]);
    serve.env("CONCH_LINK_SECRET", secret);
    let mut node = Node::launch(serve, place.home.operations(), log);
    node.wait_until_ready();
    (node, link)
}

#[test]
fn a_peer_with_another_secret_or_version_is_turned_away_and_named() {
    let (_server, url) = server();
    let scratch = tempfile::tempdir().expect("a directory");
    let logs = ["a", "b"].map(|name| scratch.path().join(name));
    let (first, second) = (Place::new(), Place::new());
    let (_a, link) = linked(&first, &url, "a", SECRET, &logs[0]);

    // A hello of version 2.
    let mut hello = vec![0, 0, 0, 17, 1];
    hello.extend_from_slice(b"conch-link");
    hello.extend_from_slice(&[0, 2, 0, 0, 9, 9]);
    let mut stream = TcpStream::connect(&link).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out can be set");
    stream.write_all(&hello).expect("open");
    let mut answer = Vec::new();
    // A reset after the goodbye is an end too.
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let ours = format!("this node {VERSION}");
    assert!(answer.contains("cannot be understood: it speaks version 2.0") && answer.contains(&ours), "{answer:?}");
    until("the log to name the version", || log_of(&logs[0]).contains("version 2.0").then_some(()));

    let (_b, _) = linked(&second, &url, "b", OTHER_SECRET, &logs[1]);
    let ask = |place: &Place, arguments: &[&str]| {
        let mut command = conch(arguments);
        command.env("CONCH_URL", place.home.url()).env("CONCH_STORE", &url).env("CONCH_AUTH_SECRET", SECRET);
        Done::of(command.env("USER", "tester").output().expect("the binary starts"))
    };
    assert_eq!(ask(&first, &["create", "room"]).code, 0);
    assert_eq!(ask(&first, &["send", "room", "mine"]).code, 0);
    // The other one has to pass it on.
    let refused = ask(&second, &["send", "room", "theirs", "--budget", "1s"]);
    assert_eq!(refused.code, 4, "a directive until the budget is spent: {refused:?}");
    until("the log to name the secret", || log_of(&logs[0]).contains("the link's secret differs").then_some(()));
    for log in logs.each_ref().map(|path| log_of(path)) {
        assert!(!log.contains(SECRET) && !log.contains(OTHER_SECRET), "{log}");
    }
}
