//! What nodes believe of an owner, and what becomes of those who believe it.

use conch_cli::client::HttpClient;
use rustix::process::Signal;
use serde_json::Value;
use tokio::task::JoinSet;

use super::load::{Kind, Load, end_clean};
use super::rig::Cluster;
use crate::node::{message, until};

/// How many sent at once to a conversation that nobody owned.
const FIRST: usize = 24;

async fn send(client: &HttpClient, room: &str, key: &str) -> Option<Value> {
    Some(client.attempt(&message(room, key, key)).await.ok()?.body)
}

#[test]
fn duplicate_activation_by_many_first_claims() {
    let cluster = Cluster::started(3);
    let load = Load::start(&cluster, 1, 1);
    let clients = cluster.clients(&cluster.token("many"));
    cluster.create(&clients[0], "new");
    let epochs: Vec<Value> = cluster.runtime.block_on(async {
        let mut sends = JoinSet::new();
        for number in 0..FIRST {
            let client = clients[number % clients.len()].clone();
            sends.spawn(async move { send(&client, "new", &format!("first-{number}")).await });
        }
        sends.join_all().await.into_iter().map(|body| body.expect("acknowledged")["epoch"].clone()).collect()
    });
    assert!(epochs.iter().all(|epoch| *epoch == epochs[0]), "one epoch: {epochs:?}");
    let heads = "SELECT h.epoch FROM conv_head h JOIN conversation v USING (conv_id) WHERE v.id = 'new'";
    assert_eq!(cluster.rows(heads), [epochs[0].to_string()], "claimed once");
    let seqs = "SELECT r.seq FROM record r JOIN conversation v USING (conv_id) WHERE v.id = 'new'";
    assert_eq!(cluster.rows(seqs).len(), FIRST);
    end_clean(load, &cluster, &[0, 1, 2]);
}

#[test]
fn stale_owner_cache_outlives_the_owner() {
    let mut cluster = Cluster::started(3);
    let load = Load::start(&cluster, 1, 1);
    let room = load.rooms[0].clone();
    assert_eq!(cluster.owned(&room), 0);
    let clients = cluster.clients(&cluster.token("forwards"));
    let say = |node: usize, key: &str| cluster.runtime.block_on(send(&clients[node], &room, key));
    assert!(say(1, "b-knows").is_some() && say(2, "c-knows").is_some(), "they pass it on");
    // It hangs, and its address still takes connections.
    cluster.node(0).signal(Signal::STOP);
    cluster.taken_from(&room, 0);
    for (node, key) in [(1, "through-b"), (2, "through-c")] {
        until("whoever believed in it to look for the owner again", || say(node, key));
    }
    cluster.node(0).signal(Signal::CONT);
    assert_ne!(cluster.take(0).wait().code(), Some(0), "it ends because it lost its lease");
    load.go_on(30);
    end_clean(load, &cluster, &[1, 2]);
}

#[test]
fn viewer_stranded_after_release() {
    let mut cluster = Cluster::planned(3);
    for place in &mut cluster.places {
        place.settings.extend(["hibernation.memory_ms=300".to_owned(), "hibernation.release_ms=600".to_owned()]);
    }
    cluster.start_all();
    // One that is watched at every node, and one that nobody watches until it is released.
    let mut load = Load::start(&cluster, 1, 0);
    let client = cluster.client(0, &cluster.token("quiet"));
    cluster.create(&client, "quiet");
    cluster.runtime.block_on(send(&client, "quiet", "quiet")).expect("acknowledged");
    let owned = "SELECT h.owner FROM conv_head h JOIN conversation v USING (conv_id) WHERE v.id = 'quiet' AND h.owner IS NOT NULL";
    until("the release", || cluster.rows(owned).is_empty().then_some(()));
    load.rooms.push("quiet".to_owned());
    load.watch(&cluster, "quiet", 1, Kind::Sse);
    for room in ["quiet", "room-0"] {
        let writer = load.writer(&cluster, &format!("writes-to-{room}"), 2);
        cluster.runtime.block_on(writer.send(room, &format!("to-{room}"), 2));
    }
    load.all_see(&[0, 1, 2]);
    end_clean(load, &cluster, &[0, 1, 2]);
}

#[test]
fn pause_between_check_and_write() {
    /// How often the owner is stopped. It has many writes under way, some of which are between the two.
    const PAUSES: usize = 2;
    let mut cluster = Cluster::started(3);
    let load = Load::start(&cluster, 3, 6);
    for _ in 0..PAUSES {
        load.go_on(60);
        let owner = cluster.owned(&load.rooms[0]);
        cluster.node(owner).signal(Signal::STOP);
        cluster.taken_from(&load.rooms[0], owner);
        load.go_on(60);
        let paused = cluster.take(owner);
        paused.signal(Signal::CONT);
        assert_ne!(paused.wait().code(), Some(0), "it ends because it lost its lease");
        cluster.start(owner);
    }
    load.go_on(30);
    end_clean(load, &cluster, &[0, 1, 2]);
}
