//! Nodes that end in order.

use rustix::process::Signal;

use super::load::{Load, end_clean};
use super::rig::Cluster;
use crate::node::{message, until};

fn refusals(load: &Load) -> Vec<String> {
    load.met.refusals.lock().expect("nobody panicked").clone()
}

#[test]
fn a_rolling_restart_refuses_nothing() {
    let mut cluster = Cluster::started(3);
    let load = Load::start(&cluster, 3, 4);
    for index in 0..3 {
        load.go_on(50);
        let before = load.reconnects(index);
        assert_eq!(cluster.take(index).terminate().code(), Some(0), "it ends in order");
        until("who watched there to be sent away", || (load.reconnects(index) > before).then_some(()));
        load.go_on(50);
        cluster.start(index);
    }
    load.go_on(50);
    assert_eq!(refusals(&load), Vec::<String>::new());
    end_clean(load, &cluster, &[0, 1, 2]);
}

#[test]
fn lease_kept_after_shutdown() {
    let mut cluster = Cluster::started(3);
    let mut load = Load::start(&cluster, 6, 4);
    load.go_on(50);
    let two = [cluster.take(0), cluster.take(1)];
    for node in &two {
        node.signal(Signal::TERM);
    }
    for node in two {
        assert_eq!(node.wait().code(), Some(0), "two at once end in order");
    }
    load.go_on(50);
    let registered = "SELECT node_name FROM node_lease";
    assert_eq!(cluster.rows(registered), ["c"]);
    load.finish_writing(&cluster);
    assert_eq!(cluster.take(2).terminate().code(), Some(0), "the last one ends in order");
    assert_eq!(cluster.rows(registered), Vec::<String>::new());
    assert_eq!(cluster.rows("SELECT owner FROM conv_head WHERE owner IS NOT NULL"), Vec::<String>::new());
    cluster.start(1);
    // Sent once: there is nothing to wait for.
    let client = cluster.client(1, &cluster.token("next"));
    cluster.runtime.block_on(client.attempt(&message(&load.rooms[0], "next", "next"))).expect("acknowledged at once");
    end_clean(load, &cluster, &[1]);
}
