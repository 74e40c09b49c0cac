//! What the database does to nodes, and what an operator does in it.

use conch_store::postgres::testing::{Disk, TestServer};
use rustix::process::{Pid, Signal, kill_process};

use super::load::{Load, end_clean};
use super::rig::Cluster;
use crate::node::until;

/// Ends the session that holds the lifeline of the node `a`.
const END_LIFELINE: &str = "SELECT pg_terminate_backend(l.pid) FROM node_lease n JOIN pg_locks l
    ON l.locktype = 'advisory' AND l.objsubid = 1 AND ((l.classid::bigint << 32) | l.objid::bigint) = n.lifeline
    WHERE n.node_name = 'a' AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())";
/// Beats of an observer within which it would have judged: more than it leaves a loss alone, and asks an address.
const BEATS: u64 = 8;

#[test]
fn lost_lease_not_noticed() {
    let mut cluster = Cluster::started(2);
    let load = Load::start(&cluster, 2, 3);
    load.go_on(50);
    cluster.rows("DELETE FROM node_lease WHERE node_name = 'a'");
    let ended = cluster.take(0).wait();
    assert_ne!(ended.code(), Some(0), "a process without a row ends");
    load.go_on(50);
    assert_eq!(cluster.owned(&load.rooms[0]), 1);
    end_clean(load, &cluster, &[1]);
}

#[test]
fn all_lifelines_lost_at_once() {
    let server = TestServer::start(Disk::Synced, &[]);
    let database = server.database();
    let mut cluster = Cluster::planned_on(&database.url(), 3);
    cluster.start_all();
    let load = Load::start(&cluster, 3, 4);
    load.go_on(50);
    let before: Vec<_> = (0..3).map(|index| cluster.incarnations(index)).collect();
    // A session of nobody's: when the server finds that one died so, it ends all others and starts anew.
    let mut unrelated = std::process::Command::new("psql");
    unrelated
        .args(["--no-psqlrc", "-c", "SELECT pg_sleep(600)", &server.url("postgres")])
        .stderr(std::process::Stdio::null());
    let mut unrelated = unrelated.spawn().expect("psql starts");
    let find = "SELECT pid FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600)'";
    let pid = until("the session", || cluster.rows(find).first().cloned());
    let pid = Pid::from_raw(pid.parse().expect("a number")).expect("not 0");
    kill_process(pid, Signal::KILL).expect("it is our server's");
    unrelated.wait().expect("it is our child");
    load.go_on(100);
    let after: Vec<_> = (0..3).map(|index| cluster.incarnations(index)).collect();
    assert_eq!(before, after, "nobody was declared dead");
    end_clean(load, &cluster, &[0, 1, 2]);
}

/// The first of three nodes is stopped for a moment, and its lifeline ends meanwhile. Returns its row when the others must have
/// judged, if it is there.
fn false_evidence(cluster: &mut Cluster) -> Option<String> {
    for place in &mut cluster.places {
        // A lease that does not run out here, so that the lifeline is all there is.
        place.settings.retain(|setting| !setting.starts_with("lease.ttl_ms"));
        place.settings.push("lease.ttl_ms=60000".to_owned());
    }
    cluster.start_all();
    let beat = |cluster: &Cluster, name: &str| {
        let rows = cluster.rows(&format!("SELECT beat FROM node_lease WHERE node_name = '{name}'"));
        rows.first().map(|beat| beat.parse::<u64>().expect("a number"))
    };
    // Each of the others must have seen it held.
    let goal = beat(cluster, "c").expect("it lives") + BEATS;
    until("the others to look", || (beat(cluster, "c")? >= goal).then_some(()));
    cluster.node(0).signal(Signal::STOP);
    assert_eq!(cluster.rows(END_LIFELINE), ["t"]);
    let goal = beat(cluster, "c").expect("it lives") + BEATS;
    until("the others to judge", || (beat(cluster, "c")? >= goal).then_some(()));
    let row = cluster.incarnations(0).first().cloned();
    cluster.node(0).signal(Signal::CONT);
    row
}

#[test]
fn false_evidence_of_death() {
    let mut cluster = Cluster::planned(3);
    assert!(false_evidence(&mut cluster).is_some(), "it was declared dead, though it lives");
    let before = cluster.incarnations(0);
    let load = Load::start(&cluster, 3, 3);
    load.go_on(50);
    // Once more while it runs: it freezes, renews with a new lifeline, and goes on.
    let lifeline = "SELECT lifeline FROM node_lease WHERE node_name = 'a'";
    let old = cluster.rows(lifeline);
    assert_eq!(cluster.rows(END_LIFELINE), ["t"]);
    until("a new lifeline", || (cluster.rows(lifeline) != old).then_some(()));
    load.go_on(50);
    assert_eq!(cluster.incarnations(0), before);
    end_clean(load, &cluster, &[0, 1, 2]);
}

#[test]
fn without_the_second_channel_a_living_node_is_declared_dead() {
    let mut cluster = Cluster::planned(3);
    for place in &mut cluster.places[1..] {
        place.variables.push(("CONCH_MUTANT", "second_channel".to_owned()));
    }
    assert_eq!(false_evidence(&mut cluster), None);
    assert_ne!(cluster.take(0).wait().code(), Some(0), "and ends, though it was well");
}
