//! What must not keep a node from renewing its lease.

use super::load::{Load, end_clean};
use super::rig::Cluster;
use crate::node::until;

/// Beats after which it is clear that a heart goes on.
const BEATS: u64 = 4;
/// Ends the session on which the node `a` renews its lease, in the middle of a renewal: that one waits for the row.
const END_RENEWAL: &str = "DO $$ DECLARE renewing int; BEGIN
    PERFORM 1 FROM node_lease WHERE node_name = 'a' FOR UPDATE;
    LOOP
        PERFORM pg_stat_clear_snapshot();
        SELECT pid INTO renewing FROM pg_stat_activity WHERE datname = current_database()
            AND application_name = 'conch/a/heartbeat' AND wait_event_type = 'Lock';
        EXIT WHEN renewing IS NOT NULL;
        PERFORM pg_sleep(0.01);
    END LOOP;
    PERFORM pg_terminate_backend(renewing);
END $$";
/// Holds, for longer than a lease, what every read and write of a conversation needs and no renewal does.
const HOLD: &str = "BEGIN; LOCK TABLE conversation, conv_head IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(6)";

/// The beat of a registration, while its row is there.
fn beat(cluster: &Cluster, incarnation: &str) -> Option<u64> {
    let rows = cluster.rows(&format!("SELECT beat FROM node_lease WHERE incarnation = '{incarnation}'"));
    rows.first().map(|beat| beat.parse().expect("a number"))
}

/// One renewal of the node `a` loses its connection. Does its row stay, and beat?
fn after_one_error(mutant: &str) -> bool {
    let mut cluster = Cluster::planned(2);
    cluster.places[0].variables.push(("CONCH_MUTANT", mutant.to_owned()));
    cluster.start_all();
    let load = Load::start(&cluster, 2, 3);
    load.go_on(30);
    let me = cluster.incarnations(0).remove(0);
    let goal = beat(&cluster, &me).expect("it lives") + BEATS;
    cluster.rows(END_RENEWAL);
    let lives = until("beats, or the row's end", || match beat(&cluster, &me) {
        Some(beat) => (beat >= goal).then_some(true),
        None => Some(false),
    });
    load.go_on(30);
    end_clean(load, &cluster, if lives { &[0, 1] } else { &[1] });
    lives
}

#[test]
fn one_error_kills_the_heartbeat_for_good() {
    assert!(after_one_error("none"));
}

#[test]
fn a_heart_that_ends_at_an_error_loses_its_lease() {
    assert!(!after_one_error("errors_pass"));
}

#[test]
fn exhausted_pool_starves_renewal() {
    let mut cluster = Cluster::planned(2);
    for place in &mut cluster.places {
        place.settings.push("postgres.pool=2".to_owned());
    }
    cluster.start_all();
    let load = Load::start(&cluster, 2, 4);
    load.go_on(30);
    let before: Vec<_> = (0..2).map(|node| cluster.incarnations(node)).collect();
    let beats: Vec<u64> = before.iter().map(|one| beat(&cluster, &one[0]).expect("it lives")).collect();
    let mut holder = std::process::Command::new("psql");
    holder.args(["--no-psqlrc", "-c", HOLD, &cluster.store]).stdout(std::process::Stdio::null());
    let mut holder = holder.spawn().expect("psql starts");
    let waiting = "SELECT pid FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock' AND application_name LIKE 'conch/%/pool'";
    until("every pooled connection of a node to wait", || (cluster.rows(waiting).len() >= 2).then_some(()));
    assert!(holder.wait().expect("it is our child").success());
    for (one, beats) in before.iter().zip(beats) {
        assert!(beat(&cluster, &one[0]).expect("it kept its lease") >= beats + BEATS, "it beat all the while");
    }
    load.go_on(60);
    let after: Vec<_> = (0..2).map(|node| cluster.incarnations(node)).collect();
    assert_eq!(before, after);
    end_clean(load, &cluster, &[0, 1]);
}

#[test]
fn a_node_that_is_killed_keeps_its_lease() {
    // What an end in order takes away; nobody else is there who could.
    let mut cluster = Cluster::started(1);
    let load = Load::start(&cluster, 1, 1);
    load.go_on(10);
    cluster.take(0).kill();
    assert_eq!(cluster.rows("SELECT node_name FROM node_lease"), ["a"]);
    assert_eq!(cluster.rows("SELECT count(*) FROM conv_head WHERE owner IS NOT NULL"), ["1"]);
}
