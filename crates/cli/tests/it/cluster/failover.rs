//! The promotion of a standby that lacks what was acknowledged last.

use conch_store::postgres::testing::{Disk, TestServer};

use super::load::{Load, judge};
use super::rig::{Cluster, rows};
use crate::node::until;

#[test]
fn takeover_itself_lost_in_a_failover() {
    let primary = TestServer::start(Disk::Synced, &[]);
    let standby = primary.standby(Disk::Synced, &[]);
    let (first, second) = (primary.directory().display(), standby.directory().display());
    let store = format!("postgres://postgres@/postgres?host={first},{second}&port=5432,5432");
    let mut cluster = Cluster::planned_on(&store, 3);
    cluster.start_all();
    let load = Load::start(&cluster, 2, 3);
    load.go_on(60);
    let generation = "SELECT store_gen()";
    let before = cluster.rows(generation);
    // The standby stops following, and what is acknowledged from here on is the primary's alone: a takeover among it.
    rows(&standby.url("postgres"), "ALTER SYSTEM SET primary_conninfo = ''");
    rows(&standby.url("postgres"), "SELECT pg_reload_conf()");
    let followers = "SELECT pid FROM pg_stat_replication";
    until("the standby to stop", || rows(&primary.url("postgres"), followers).is_empty().then_some(()));
    let owner = cluster.owned(&load.rooms[0]);
    cluster.take(owner).kill();
    cluster.taken_from(&load.rooms[0], owner);
    load.go_on(60);
    primary.crash();
    standby.promote();
    let log = rows(&standby.url("postgres"), "SELECT system_id || '.' || store_gen() FROM cluster_meta");
    load.failed_over(log[0].parse().expect("a log's id"));
    load.go_on(60);
    let after = rows(&standby.url("postgres"), generation);
    assert_ne!(before, after, "another generation");
    let others: Vec<usize> = (0..3).filter(|node| *node != owner).collect();
    let history = load.end(&cluster, &others);
    let verdict = judge(&cluster, &history);
    assert_eq!((verdict.history, verdict.store), (Vec::new(), Vec::new()));
    let lost = verdict.report["lost_total"].as_u64();
    assert!(lost > Some(10), "the standby lacked what was acknowledged last: {}", verdict.report);
    // Unless it is said that the store failed over, each of these is a loss like any other.
    let is_failover = |line: &String| line.starts_with(r#"{"event":"failover""#);
    let silent: Vec<String> = history.into_iter().filter(|line| !is_failover(line)).collect();
    let noticed = judge(&cluster, &silent).report["violations_total"].as_u64();
    assert!(noticed >= lost, "{noticed:?} of {lost:?}");
}
