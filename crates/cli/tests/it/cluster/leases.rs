//! Leases in etcd: its three members and the nodes each have a namespace of their own, so that a node can lose the lease store
//! and keep the database, or lose everything but that.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use conch_cli::client::{HttpClient, Request};
use conch_core::history::Event;
use conch_core::ids::{ClientMsgId, ConversationId, Epoch, Seq, Subject};
use conch_store::etcd::testing::{MEMBERS, Place, TestCluster};
use serde::Deserialize;
use serde_json::Value;
use tokio::task::JoinHandle;

use super::load::{History, Load, Verdict, end_clean, judge};
use super::metronome::Metronome;
use super::network::Network;
use super::rig::Cluster;
use crate::node::{message, until};

/// etcd counts whole seconds, and grants no less than two.
const LEASE: Duration = Duration::from_secs(3);
const SETTINGS: [&str; 5] = [
    "lease.ttl_ms=3000",
    "lease.beat_ms=1000",
    "lease.margin_ms=600",
    "fanout.reconnect_jitter_ms=500",
    "limits.route_ms=500",
];
/// Longest outage of a conversation whose owner is cut off.
const OUTAGE: Duration = Duration::from_secs(4);
/// So long the leader is stopped: more than a lease, and more than an election takes.
const STOPPED: Duration = Duration::from_secs(10);
/// A read or a write that takes longer has failed.
const ANSWER: Duration = Duration::from_secs(3);
/// The port of a member for clients, and for the others.
const PORTS: [u16; 2] = [2379, 2380];

/// Nodes, then the members of etcd, on one network. The nodes end first.
struct Field {
    cluster: Cluster,
    etcd: TestCluster,
    network: Network,
}

impl Field {
    /// None of the nodes is started.
    fn planned(nodes: usize) -> Self {
        let network = Network::new(nodes + MEMBERS);
        let mut cluster = Cluster::planned(nodes);
        network.place(&mut cluster);
        let places = std::array::from_fn(|member| {
            let (prefix, address) = network.spot(nodes + member);
            let [client, peer] = PORTS.map(|port| format!("{address}:{port}"));
            Place { client, peer, prefix }
        });
        let etcd = TestCluster::start_at(&places);
        for place in &mut cluster.places {
            place.settings = SETTINGS.map(str::to_owned).to_vec();
            place.variables.push(("CONCH_LEASES", etcd.url()));
        }
        Self { cluster, etcd, network }
    }

    fn nodes(&self) -> usize {
        self.cluster.places.len()
    }

    /// Cuts a node from all members of etcd, and from nothing else.
    fn cut_from_etcd(&self, node: usize) {
        self.network.cut_from(node, self.nodes()..self.nodes() + MEMBERS);
    }

    fn mend_to_etcd(&self, node: usize) {
        self.network.mend_from(node, self.nodes()..self.nodes() + MEMBERS);
    }

    /// For a while does what a supervisor does: starts again whatever node has ended because its lease had been ended. An etcd
    /// whose leader was stopped may end them all: etcd-io/etcd#15247, mended in 3.4.31 and 3.5.13.
    fn restart_ended(&mut self, length: Duration) {
        let begun = Instant::now();
        while begun.elapsed() < length {
            for node in 0..self.nodes() {
                if let Some(status) = self.cluster.ended(node) {
                    assert_eq!(status.code(), Some(1), "it ended itself");
                    drop(self.cluster.take(node));
                    self.cluster.start(node);
                }
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Which node owns a conversation, as another one says.
    fn owner(&self, asked: &HttpClient, room: &str) -> Option<usize> {
        let request = Request::get(&["v1", "conversations", room]);
        let answer = self.cluster.runtime.block_on(asked.attempt(&request)).ok()?;
        let name = answer.body["owner"]["node"].as_str()?;
        self.cluster.places.iter().position(|place| place.name == name)
    }
}

/// Reads a conversation's history through one node, again and again.
struct Reading {
    stop: Arc<AtomicBool>,
    reads: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Reading {
    fn start(cluster: &Cluster, node: usize, room: &str) -> Self {
        let client = cluster.client(node, &cluster.token("reader"));
        let request = Request::get(&["v1", "conversations", room, "messages"])
            .with_query("after", Some("0".to_owned()))
            .with_query("limit", Some("5".to_owned()));
        let (stop, reads) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&reads));
        let task = cluster.runtime.spawn(async move {
            while !stopped.load(Ordering::Relaxed) {
                let answer = tokio::time::timeout(ANSWER, client.attempt(&request)).await;
                answer.expect("history is read in time").expect("history is readable throughout");
                count.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        Self { stop, reads, task }
    }

    /// Ends it: it must have read all the while.
    fn end(self, cluster: &Cluster) {
        self.stop.store(true, Ordering::Relaxed);
        cluster.runtime.block_on(self.task).expect("history was readable throughout");
        assert!(self.reads.load(Ordering::Relaxed) > 10, "it read");
    }
}

#[test]
fn an_owner_that_reaches_the_records_and_not_the_leases_is_replaced_within_a_lease() {
    let mut field = Field::planned(3);
    field.cluster.start_all();
    let load = Load::start(&field.cluster, 2, 4);
    load.go_on(60);
    let reader = field.cluster.client(1, &field.cluster.token("reader"));
    assert_eq!(field.owner(&reader, &load.rooms[0]), Some(0));
    let readings: Vec<Reading> = (0..3).map(|node| Reading::start(&field.cluster, node, &load.rooms[0])).collect();
    let metronome = Metronome::start();
    let cut = Instant::now();
    field.cut_from_etcd(0);
    until("another owner", || field.owner(&reader, &load.rooms[0]).filter(|owner| *owner != 0));
    load.go_on(100);
    let (outage, lost) = (load.longest_pause(&load.rooms[0], cut), metronome.lost());
    assert!(outage <= OUTAGE + lost, "nothing was acknowledged for {outage:?}, of which the machine lost {lost:?}");
    for reading in readings {
        reading.end(&field.cluster);
    }
    field.mend_to_etcd(0);
    assert_ne!(field.cluster.take(0).wait().code(), Some(0), "it ends because it lost its lease");
    load.go_on(30);
    end_clean(load, &field.cluster, &[1, 2]);
}

/// That a message of `old` was acknowledged.
fn note_ack(history: &History, room: &str, key: String, answer: &Value) {
    let client = "old".to_owned();
    let conversation: ConversationId = room.parse().expect("valid");
    let sender: Subject = "old".parse().expect("valid");
    let client_msg_id: ClientMsgId = key.parse().expect("valid");
    let (who, what, whose, which) = (client.clone(), conversation.clone(), sender.clone(), client_msg_id.clone());
    history.add(|t_us| Event::Invoked { client: who, conversation: what, sender: whose, client_msg_id: which, t_us });
    let seq = Seq::deserialize(&answer["seq"]).expect("a seq");
    let epoch = Epoch::deserialize(&answer["epoch"]).expect("an epoch");
    history.add(|t_us| Event::Acked { client, conversation, sender, client_msg_id, seq, epoch, t_us });
}

/// What came of an owner that goes on in the belief that its lease stands.
struct Believer {
    /// How many of its writes were acknowledged.
    acked: usize,
    /// Numbers that two records have.
    twice: Vec<String>,
    verdict: Verdict,
}

/// The first of two nodes is cut from etcd and does not notice that its lease ran out. Nothing but the fence is between it and
/// the next owner's numbers: the key of the table of records is taken away as well.
fn believer(mutants: &str) -> Believer {
    /// More than lie between the two owners' numbers.
    const WRITES: usize = 80;
    /// One after the other is refused: it has understood.
    const REFUSALS: usize = 5;
    let mut field = Field::planned(2);
    for place in &mut field.cluster.places {
        place.settings.extend(["sequencer.block=10".to_owned(), "sequencer.gap=10".to_owned()]);
    }
    field.cluster.places[0].variables.push(("CONCH_MUTANT", mutants.to_owned()));
    field.cluster.start_all();
    field.cluster.rows("ALTER TABLE record DROP CONSTRAINT record_pkey");
    let load = Load::start(&field.cluster, 1, 0);
    let room = load.rooms[0].clone();
    let next = load.writer(&field.cluster, "next", 1);
    let old = field.cluster.client(0, &field.cluster.token("old"));
    field.cut_from_etcd(0);
    let next_owns = field.cluster.client(1, &field.cluster.token("reader"));
    let runtime = &field.cluster.runtime;
    runtime.block_on(async {
        for number in 0..20 {
            old.attempt(&message(&room, &format!("before-{number}"), &format!("before-{number}")))
                .await
                .expect("owned");
        }
    });
    let asks = field.cluster.client(1, &field.cluster.token("asks"));
    until("the next owner", || {
        let asked = runtime.block_on(asks.attempt(&message(&room, "asks", "asks")));
        (asked.is_ok() && field.owner(&next_owns, &room) == Some(1)).then_some(())
    });
    for number in 0..WRITES / 2 {
        runtime.block_on(next.send(&room, &format!("next-{number}"), 1));
    }
    let (mut acked, mut refused) = (0, 0);
    while acked < WRITES && refused < REFUSALS {
        let key = format!("old-{}", acked + refused);
        match runtime.block_on(old.attempt(&message(&room, &key, &key))) {
            Ok(answer) => {
                acked += 1;
                note_ack(&load.history(), &room, key, &answer.body);
            }
            Err(_) => refused += 1,
        }
    }
    let twice = field.cluster.rows("SELECT seq FROM record GROUP BY conv_id, seq HAVING count(*) > 1");
    field.mend_to_etcd(0);
    // It finds out in the end, mutant or not.
    assert_ne!(field.cluster.take(0).wait().code(), Some(0), "it ends because it lost its lease");
    let lines = load.end(&field.cluster, &[1]);
    let verdict = judge(&field.cluster, &lines);
    Believer { acked, twice, verdict }
}

#[test]
fn the_fence_alone_stops_an_owner_that_believes_in_its_lease() {
    let Believer { acked, twice, verdict } = believer("validity_ends");
    assert_eq!((acked, twice), (0, Vec::new()));
    assert_eq!((verdict.history, verdict.store), (Vec::new(), Vec::new()));
}

#[test]
fn without_the_fence_such_an_owner_gives_numbers_twice() {
    let Believer { acked, twice, verdict } = believer("validity_ends,fence");
    assert!(acked > 0 && !twice.is_empty(), "{acked} were acknowledged, {twice:?} twice");
    assert!(!verdict.history.is_empty() && !verdict.store.is_empty(), "and the product's own checks see it");
}

#[test]
fn a_region_that_loses_all_but_the_records_and_then_is_gone_is_taken_over() {
    let mut field = Field::planned(3);
    for (place, region) in field.cluster.places.iter_mut().zip(["north", "south", "south"]) {
        place.variables.push(("CONCH_REGION", region.to_owned()));
    }
    field.cluster.start_all();
    let load = Load::start(&field.cluster, 2, 4);
    load.go_on(60);
    let room = load.rooms[0].clone();
    let reader = field.cluster.client(1, &field.cluster.token("reader"));
    assert_eq!(field.owner(&reader, &room), Some(0), "at home");
    // One that is written to no more once it was taken over: what is at rest goes home.
    let quiet = "quiet";
    let northerner = field.cluster.client(0, &field.cluster.token("northerner"));
    field.cluster.create(&northerner, quiet);
    let sent = field.cluster.runtime.block_on(northerner.attempt(&message(quiet, "first", "first")));
    assert!(sent.is_ok() && field.owner(&reader, quiet) == Some(0), "at home, too");
    let [north, south] = [0, 1].map(|node| Reading::start(&field.cluster, node, &room));
    let metronome = Metronome::start();
    let cut = Instant::now();
    field.network.isolate(0);
    // A sender of the south, who never asks the north.
    let south_sends = field.cluster.client(1, &field.cluster.token("south"));
    let own = |room: &str| {
        until("the south to own", || {
            let asked = field.cluster.runtime.block_on(south_sends.attempt(&message(room, "south", "south")));
            (asked.is_ok() && field.owner(&reader, room) != Some(0)).then_some(())
        });
    };
    own(&room);
    let (took, lost) = (cut.elapsed(), metronome.lost());
    assert!(took <= OUTAGE + lost, "the south accepted after {took:?}, of which the machine lost {lost:?}");
    own(quiet);
    load.go_on(30);
    let outage = load.longest_pause(&room, cut);
    assert!(outage <= OUTAGE + metronome.lost(), "nothing was acknowledged for {outage:?}");
    north.end(&field.cluster);
    field.cluster.take(0).kill();
    load.go_on(60);
    south.end(&field.cluster);
    field.network.heal(0);
    field.cluster.start(0);
    until("home to own what is at rest", || (field.owner(&reader, quiet) == Some(0)).then_some(()));
    load.go_on(60);
    end_clean(load, &field.cluster, &[0, 1, 2]);
}

#[test]
fn consensus_leader_wedged() {
    let mut field = Field::planned(3);
    field.cluster.start_all();
    let load = Load::start(&field.cluster, 3, 4);
    load.go_on(60);
    let leader = field.etcd.leader();
    field.etcd.pause(leader);
    // The length of the incident. Nobody waits for anything in it.
    std::thread::sleep(STOPPED);
    load.go_on(30);
    field.etcd.resume(leader);
    field.etcd.wait_for_quorum();
    field.restart_ended(LEASE);
    load.go_on(60);
    end_clean(load, &field.cluster, &[0, 1, 2]);
}

/// Two of three members are stopped for longer than a lease. How many writes were acknowledged once every lease had run out.
fn acked_without_a_quorum(mutants: &str) -> u64 {
    let mut field = Field::planned(2);
    for place in &mut field.cluster.places {
        place.variables.push(("CONCH_MUTANT", mutants.to_owned()));
    }
    field.cluster.start_all();
    let load = Load::start(&field.cluster, 2, 3);
    load.go_on(60);
    let leader = field.etcd.leader();
    let stopped = [leader, (leader + 1) % MEMBERS];
    for member in stopped {
        field.etcd.pause(member);
    }
    // What was sent before this moment keeps no lease beyond it.
    std::thread::sleep(LEASE);
    let before = load.acks();
    for node in 0..field.nodes() {
        let client = field.cluster.client(node, &field.cluster.token("asks"));
        let key = format!("asks-{node}");
        let asked =
            async { tokio::time::timeout(ANSWER, client.attempt(&message(&load.rooms[node], &key, &key))).await };
        if let Ok(Ok(_)) = field.cluster.runtime.block_on(asked) {
            return load.acks() - before + 1;
        }
    }
    let acked = load.acks() - before;
    for member in stopped {
        field.etcd.resume(member);
    }
    field.etcd.wait_for_quorum();
    acked
}

#[test]
fn without_a_quorum_nodes_fence_themselves() {
    assert_eq!(acked_without_a_quorum("none"), 0);
}

#[test]
fn a_node_that_ignores_its_validity_acks_without_a_quorum() {
    assert!(acked_without_a_quorum("validity_ends") > 0);
}
