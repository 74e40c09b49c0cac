//! Nodes that end in order, and one that joins.

use conch_cli::client::HttpClient;
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

/// How many conversations each node owns, by place.
fn owned(cluster: &Cluster) -> Vec<usize> {
    let rows = cluster
        .rows("SELECT n.node_name, count(*) FROM conv_head h JOIN node_lease n ON n.incarnation = h.owner GROUP BY 1");
    let count = |name: &str| {
        let row = rows.iter().find_map(|row| row.strip_prefix(name)?.strip_prefix('|'));
        row.map_or(0, |count| count.parse().expect("a number"))
    };
    cluster.places.iter().map(|place| count(&place.name)).collect()
}

#[test]
fn a_node_that_joins_gets_its_share_and_nobody_notices() {
    let mut cluster = Cluster::planned(3);
    for place in &mut cluster.places {
        place.settings.push("hibernation.memory_ms=1000".to_owned());
    }
    cluster.start(0);
    cluster.start(1);
    let clients: Vec<HttpClient> = cluster.clients(&cluster.token("quiet"));
    let quiet: Vec<String> = (0..60).map(|number| format!("quiet-{number}")).collect();
    for (number, room) in quiet.iter().enumerate() {
        let client = &clients[number % 2];
        cluster.create(client, room);
        cluster.runtime.block_on(client.attempt(&message(room, "begin", "begin"))).expect("acknowledged");
    }
    let load = Load::start(&cluster, 2, 3);
    load.go_on(50);
    assert_eq!(owned(&cluster), [31, 31, 0]);
    cluster.start(2);
    until("about as many at each node", || owned(&cluster).iter().all(|owned| (17..=24).contains(owned)).then_some(()));
    load.go_on(100);
    for (number, room) in quiet.iter().enumerate() {
        // Sent once: whoever owns it now, there is nothing to wait for.
        let client = &clients[number % 3];
        cluster.runtime.block_on(client.attempt(&message(room, "end", "end"))).expect("acknowledged at once");
    }
    assert_eq!(owned(&cluster).iter().sum::<usize>(), 62, "none is left without an owner");
    assert_eq!(refusals(&load), Vec::<String>::new());
    end_clean(load, &cluster, &[0, 1, 2]);
}
