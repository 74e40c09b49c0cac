//! Nodes that cannot reach each other, or their database.

use super::gate::{Gate, Way};
use super::load::{Load, end_clean};
use super::network::Network;
use super::rig::{Cluster, shared_server};
use crate::node::{free_address, message, until};

#[test]
fn duplicate_activation() {
    let network = Network::new(3);
    let mut cluster = Cluster::planned(3);
    network.place(&mut cluster);
    for place in &mut cluster.places {
        // A sender hears soon that a node cannot reach the owner, and goes to another one.
        place.settings.push("limits.route_ms=500".to_owned());
    }
    cluster.start_all();
    let load = Load::start(&cluster, 3, 4);
    load.go_on(60);
    let before: Vec<_> = (0..3).map(|index| cluster.incarnations(index)).collect();
    let owner = cluster.owned(&load.rooms[0]);
    network.isolate(owner);
    // It reaches the database and its clients: it goes on to own, and the others do not take what is its.
    load.go_on(30);
    let after: Vec<_> = (0..3).map(|index| cluster.incarnations(index)).collect();
    assert_eq!(before, after, "a cut between nodes is nobody's death");
    network.heal(owner);
    load.go_on(60);
    end_clean(load, &cluster, &[0, 1, 2]);
}

#[test]
fn a_node_without_its_database_fences_itself() {
    let mut cluster = Cluster::planned(2);
    let directory = tempfile::tempdir_in("/tmp").expect("a directory");
    let (gate, host) = Gate::before_socket(shared_server().directory(), directory.path());
    let server = shared_server().directory().to_str().expect("UTF-8");
    let store = cluster.places[0].store.replace(server, host.to_str().expect("UTF-8"));
    cluster.places[0].store = store;
    cluster.start_all();
    let load = Load::start(&cluster, 2, 3);
    load.go_on(60);
    assert_eq!(cluster.owned(&load.rooms[0]), 0);
    gate.hold(Way::There);
    assert_eq!(cluster.taken_from(&load.rooms[0], 0), 1);
    load.go_on(60);
    gate.let_go();
    assert_ne!(cluster.take(0).wait().code(), Some(0), "it ends because it lost its lease");
    load.go_on(30);
    end_clean(load, &cluster, &[1]);
}

#[test]
fn ambiguous_commit_retried() {
    let mut cluster = Cluster::planned(2);
    let advertised = free_address();
    let gate = Gate::before_address(&advertised, &cluster.places[0].link);
    cluster.places[0].advertised = Some(advertised);
    cluster.start_all();
    let load = Load::start(&cluster, 2, 0);
    assert_eq!(cluster.owned(&load.rooms[0]), 0);
    let client = cluster.client(1, &cluster.token("reset"));
    let send = |key: &'static str| {
        let (client, asked) = (client.clone(), message(&load.rooms[0], key, key));
        cluster.runtime.spawn(async move { client.attempt(&asked).await })
    };
    cluster.runtime.block_on(send("before")).expect("no panic").expect("it is forwarded");
    gate.hold(Way::Back);
    let waiting = send("reset");
    let stored = "SELECT seq FROM record WHERE client_msg_id = 'reset'";
    until("the record", || (cluster.rows(stored).len() == 1).then_some(()));
    gate.cut();
    let answer = cluster.runtime.block_on(waiting).expect("no panic").expect("found again by its key");
    assert_eq!(cluster.rows(stored), [answer.body["seq"].to_string()], "one record, and the one that was acknowledged");
    let writer = load.writer(&cluster, "after", 0);
    cluster.runtime.block_on(writer.send(&load.rooms[0], "after", 1));
    end_clean(load, &cluster, &[0, 1]);
}
