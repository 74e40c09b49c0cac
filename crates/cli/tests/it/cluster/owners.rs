//! An owner that goes away, or seems to.

use rustix::process::Signal;

use super::gate::{Gate, Way};
use super::load::{Load, Verdict, end_clean, judge};
use super::rig::{Cluster, shared_server};
use crate::node::{message, until};

/// Messages after which every connection of a node that writes has written.
const WARM: usize = 12;
/// How often an owner is killed.
const KILLS: usize = 5;

#[test]
fn a_killed_owner_loses_doubles_and_reorders_nothing() {
    let mut cluster = Cluster::started(3);
    let load = Load::start(&cluster, 3, 4);
    let others_reconnected = |load: &Load, killed: usize| {
        (0..3).filter(|node| *node != killed).map(|node| load.reconnects(node)).sum::<u64>()
    };
    for _ in 0..KILLS {
        load.go_on(60);
        let owner = cluster.owned(&load.rooms[0]);
        let before = others_reconnected(&load, owner);
        cluster.take(owner).kill();
        cluster.taken_from(&load.rooms[0], owner);
        load.go_on(60);
        assert_eq!(others_reconnected(&load, owner), before, "who watches elsewhere keeps the connection");
        cluster.start(owner);
        load.all_see(&[0, 1, 2]);
    }
    end_clean(load, &cluster, &[0, 1, 2]);
}

#[test]
fn same_name_other_process() {
    let mut cluster = Cluster::started(2);
    let load = Load::start(&cluster, 2, 3);
    load.go_on(60);
    let owner = cluster.owned(&load.rooms[0]);
    let first = cluster.take(owner);
    first.signal(Signal::STOP);
    // The twin cannot listen where the first still does.
    let mut twin = cluster.places[owner].clone();
    (twin.listen, twin.operations, twin.link) =
        (crate::node::free_address(), crate::node::free_address(), crate::node::free_address());
    let twin = cluster.launch(&twin);
    let incarnations = cluster.incarnations(owner);
    until("the first one's death", || (cluster.incarnations(owner).len() == 1).then_some(()));
    load.go_on(60);
    first.signal(Signal::CONT);
    let ended = first.wait();
    assert_ne!(ended.code(), Some(0), "it ends because it lost its lease");
    assert!(incarnations.contains(&cluster.incarnations(owner)[0]), "the twin goes on: {incarnations:?}");
    load.go_on(60);
    end_clean(load, &cluster, &[1 - owner]);
    assert_eq!(twin.terminate().code(), Some(0));
}

/// The first of two nodes writes, is stopped before its write reaches the database, and goes on when its lease ran out and the
/// other one has written. Returns what is wrong in the end.
fn late_write(variables: &[(&'static str, String)]) -> Verdict {
    let mut cluster = Cluster::planned(2);
    let directory = tempfile::tempdir_in("/tmp").expect("a directory");
    let (gate, host) = Gate::before_socket(shared_server().directory(), directory.path());
    let server = shared_server().directory().to_str().expect("UTF-8");
    let store = cluster.places[0].store.replace(server, host.to_str().expect("UTF-8"));
    cluster.places[0].store = store;
    cluster.places[0].variables.extend_from_slice(variables);
    cluster.start_all();
    let mut load = Load::start(&cluster, 1, 0);
    assert_eq!(cluster.owned(&load.rooms[0]), 0);
    let late = cluster.client(0, &cluster.token("late"));
    // Each connection that writes has its statement prepared.
    let early = load.writer(&cluster, "early", 0);
    for number in 0..WARM {
        cluster.runtime.block_on(early.send(&load.rooms[0], &format!("early-{number}"), 0));
    }
    // What asks is let through; only the write is held.
    gate.hold_only(Way::There, "conch/a/append");
    let asked = message(&load.rooms[0], "late", "late");
    let unanswered = cluster.runtime.spawn(async move { late.attempt(&asked).await });
    gate.wait_for("\"late\"");
    cluster.node(0).signal(Signal::STOP);
    load.add_writers(&cluster, 3);
    assert_eq!(cluster.taken_from(&load.rooms[0], 0), 1);
    load.go_on(30);
    // Nobody holds the head, which would be reason enough to leave the late write out.
    load.finish_writing(&cluster);
    gate.let_go();
    // All that it sent has been answered, and what it wrote is there or refused.
    let busy = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'conch/a/%' AND state <> 'idle' AND datname = current_database()";
    until("the late write to arrive", || cluster.rows(busy).is_empty().then_some(()));
    let first = cluster.take(0);
    first.signal(Signal::CONT);
    assert_ne!(first.wait().code(), Some(0), "it ends because it lost its lease");
    let answer = cluster.runtime.block_on(unanswered).expect("no panic");
    assert!(answer.is_err(), "nothing is acknowledged that came too late: {answer:?}");
    let writer = load.writer(&cluster, "late", 0);
    cluster.runtime.block_on(writer.send(&load.rooms[0], "late", 1));
    load.add_writers(&cluster, 3);
    load.go_on(30);
    let history = load.end(&cluster, &[1]);
    judge(&cluster, &history)
}

#[test]
fn late_write_lands_on_the_new_owners_data() {
    let verdict = late_write(&[]);
    assert_eq!((verdict.history, verdict.store), (Vec::new(), Vec::new()));
}

#[test]
fn without_the_fence_the_late_write_is_found() {
    let verdict = late_write(&[("CONCH_MUTANT", "fence".to_owned())]);
    assert!(!verdict.history.is_empty(), "the late write was not there, or nobody noticed");
}
