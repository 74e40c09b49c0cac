//! What clients see is the same through any node: presence, typing, counts, personal streams, memberships.

use std::collections::BTreeMap;

use conch_server::auth::grants::Permission::{Read, Send};
use serde_json::{Value, json};

use crate::harness::{Client, Cluster, Node, Socket, Topic, until, within};

const TOPIC: &str = "conversation:c";

/// Who is present, as the stock client keeps it: the references of each subject's sessions.
#[derive(Default)]
struct Seen(BTreeMap<String, Vec<String>>);

fn references(metas: &Value) -> Vec<String> {
    let metas = metas["metas"].as_array().expect("metas");
    metas.iter().map(|meta| meta["phx_ref"].as_str().expect("a reference").to_owned()).collect()
}

impl Seen {
    /// What phoenix.js does with the frame.
    fn apply(&mut self, frame: &Topic) {
        let entries = |value: &Value| value.as_object().expect("an object").clone();
        match frame.event.as_str() {
            "presence_state" => {
                self.0 = entries(&frame.payload).iter().map(|(sub, metas)| (sub.clone(), references(metas))).collect();
            }
            "presence_diff" => {
                for (sub, metas) in entries(&frame.payload["joins"]) {
                    let known = self.0.entry(sub).or_default();
                    let joined = references(&metas);
                    known.retain(|reference| !joined.contains(reference));
                    known.extend(joined);
                }
                for (sub, metas) in entries(&frame.payload["leaves"]) {
                    let left = references(&metas);
                    if let Some(known) = self.0.get_mut(&sub) {
                        known.retain(|reference| !left.contains(reference));
                    }
                }
                self.0.retain(|_, known| !known.is_empty());
            }
            _ => {}
        }
        let mut all: Vec<&String> = self.0.values().flatten().collect();
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count, "references are unique over all gateways: {:?}", self.0);
    }

    /// The order is that in which they were told of.
    fn sorted(&self) -> BTreeMap<String, Vec<String>> {
        let mut sorted = self.0.clone();
        sorted.values_mut().for_each(|references| references.sort());
        sorted
    }

    fn sessions(&self) -> Vec<(&str, usize)> {
        self.0.iter().map(|(sub, metas)| (sub.as_str(), metas.len())).collect()
    }
}

/// A socket in the channel with what it has been shown.
struct Watcher {
    socket: Socket,
    seen: Seen,
}

impl Watcher {
    async fn join(node: &Node, client: &Client) -> Self {
        let mut socket = Socket::connect(node, client).await;
        socket.join(TOPIC, json!({})).await.response("ok");
        Self { socket, seen: Seen::default() }
    }

    /// Reads on until so many sessions of each are shown.
    async fn sees(&mut self, wanted: &[(&str, usize)]) {
        while self.seen.sessions() != wanted {
            let frame = self.socket.next().await;
            self.seen.apply(&frame);
        }
    }
}

async fn present(client: &Client, connected: u64) -> Value {
    until("the connected to be counted", async || {
        let shown = client.get("/v1/conversations/c").await.ok(200);
        let presence = client.get("/v1/conversations/c/presence").await.ok(200);
        (shown["connected"] == connected && presence["count"] == connected).then_some(presence)
    })
    .await
}

#[tokio::test]
async fn presence_and_counts_are_the_same_through_any_node() {
    let cluster = Cluster::start(3).await;
    let [one, two, three] = &cluster.nodes[..] else { panic!("three nodes") };
    one.client("alice").channel("c").await;
    let mut alice = Watcher::join(one, &one.client("alice")).await;
    let mut bob = Watcher::join(two, &two.client("bob")).await;
    let more = Watcher::join(two, &two.client("alice")).await;
    alice.sees(&[("alice", 2), ("bob", 1)]).await;
    bob.sees(&[("alice", 2), ("bob", 1)]).await;
    assert_eq!(alice.seen.sorted(), bob.seen.sorted());
    for node in [one, two, three] {
        let presence = present(&node.client("carol"), 3).await;
        let alice: Vec<String> = references(&presence["present"]["alice"]);
        assert_eq!(alice.len(), 2, "{presence}");
    }
    more.socket.close().await;
    alice.sees(&[("alice", 1), ("bob", 1)]).await;
    bob.sees(&[("alice", 1), ("bob", 1)]).await;
    bob.socket.close().await;
    alice.sees(&[("alice", 1)]).await;
    present(&three.client("carol"), 1).await;
}

#[tokio::test]
async fn a_crowd_is_counted_over_all_nodes() {
    let cluster = Cluster::start_with(2, |config| config.fanout.presence_count_from = 4).await;
    let [one, two] = &cluster.nodes[..] else { panic!("two nodes") };
    one.client("alice").channel("c").await;
    let mut sockets = Vec::new();
    for node in [one, two, one, two] {
        sockets.push(Socket::joined(node, &node.client("alice"), "c").await);
    }
    for node in [one, two] {
        assert_eq!(present(&node.client("carol"), 4).await, json!({"count": 4, "present": null}));
    }
    for socket in &mut sockets {
        let counted = socket.take(|frame| frame.event == "presence_count" && frame.payload["count"] == 4).await;
        assert_eq!(counted.payload, json!({"count": 4}));
    }
}

#[tokio::test]
async fn typing_is_shown_on_every_node() {
    let cluster = Cluster::start(2).await;
    let [one, two] = &cluster.nodes[..] else { panic!("two nodes") };
    one.client("alice").channel("c").await;
    let mut alice = Socket::joined(one, &one.client("alice"), "c").await;
    let mut bob = Socket::joined(two, &two.client("bob"), "c").await;
    alice.push(TOPIC, "typing", json!({})).await.response("ok");
    assert_eq!(bob.until_event("typing").await.payload, json!({"sender": "alice"}));
    bob.push(TOPIC, "typing", json!({})).await.response("ok");
    alice.take(|frame| frame.event == "typing" && frame.payload["sender"] == "bob").await;
}

#[tokio::test]
async fn the_presence_of_a_node_vanishes_with_it() {
    let mut cluster = Cluster::start(2).await;
    cluster.nodes[0].client("alice").channel("c").await;
    let mut watchers = Vec::new();
    for (index, sub) in [(0, "alice"), (1, "bob")] {
        let node = &cluster.nodes[index];
        watchers.push(Watcher::join(node, &node.client(sub)).await);
    }
    for watcher in &mut watchers {
        watcher.sees(&[("alice", 1), ("bob", 1)]).await;
    }
    let other = 1 - cluster.owner_of("c").await;
    let mut left = watchers.swap_remove(1 - other);
    cluster.kill(other);
    let stays = if other == 1 { "alice" } else { "bob" };
    left.sees(&[(stays, 1)]).await;
}

#[tokio::test]
async fn nobody_flaps_when_the_owner_is_lost() {
    let mut cluster = Cluster::start(3).await;
    cluster.nodes[0].client("alice").channel("c").await;
    let names = ["alice", "bob", "carol"];
    let mut watchers = Vec::new();
    for (node, sub) in cluster.nodes.iter().zip(names) {
        watchers.push(Watcher::join(node, &node.client(sub)).await);
    }
    for watcher in &mut watchers {
        watcher.sees(&[("alice", 1), ("bob", 1), ("carol", 1)]).await;
    }
    let owner = cluster.owner_of("c").await;
    cluster.kill(owner);
    let lost = names[owner];
    let stay: Vec<(&str, usize)> = names.into_iter().filter(|sub| *sub != lost).map(|sub| (sub, 1)).collect();
    for (index, watcher) in watchers.iter_mut().enumerate().filter(|(index, _)| *index != owner) {
        while watcher.seen.sessions() != stay {
            let frame = watcher.socket.next().await;
            watcher.seen.apply(&frame);
            for (sub, _) in &stay {
                assert!(watcher.seen.0.contains_key(*sub), "{sub} flaps at node {index}: {frame:?}");
            }
        }
    }
    let taker = cluster.owner_of("c").await;
    assert_ne!(taker, owner);
}

async fn personal(node: &Node, client: &Client) -> Socket {
    let mut socket = Socket::connect(node, client).await;
    socket.join("user:me", json!({})).await.response("ok");
    socket.until_event("caught_up").await;
    socket
}

#[tokio::test]
async fn personal_streams_hear_of_what_happens_on_other_nodes() {
    let cluster = Cluster::start(2).await;
    let [one, two] = &cluster.nodes[..] else { panic!("two nodes") };
    let (alice, bob) = (one.client("alice"), two.client("bob"));
    let mut stream = personal(two, &bob).await;
    alice.channel_of("c", &["bob"]).await;
    let added = stream.until_event("membership").await;
    assert_eq!(added.payload, json!({"conversation": "c", "change": "added"}));
    stream.until_event("conversation").await;
    let seq = alice.sent("c", "1", "hi").await;
    stream.take(|frame| frame.event == "conversation" && frame.payload["unread"] == 1).await;
    alice.call("PATCH", "/v1/conversations/c", json!({"title": "New"})).await.ok(200);
    stream.take(|frame| frame.event == "conversation" && frame.payload["title"] == "New").await;
    let elsewhere = one.client("bob");
    elsewhere.put("/v1/conversations/c/cursor", json!({"seq": seq})).await.ok(200);
    stream.take(|frame| frame.event == "conversation" && frame.payload["cursor"] == seq).await;
    alice.delete("/v1/conversations/c/members/bob").await.ok(204);
    let removed = stream.until_event("membership").await;
    assert_eq!(removed.payload, json!({"conversation": "c", "change": "removed"}));
}

#[tokio::test]
async fn a_removed_member_is_cut_off_on_every_node() {
    let cluster = Cluster::start(2).await;
    let [one, two] = &cluster.nodes[..] else { panic!("two nodes") };
    one.client("alice").channel_of("c", &["bob"]).await;
    let bob = two.client_with("bob", &[("other", &[Read, Send])]);
    let mut socket = Socket::joined(two, &bob, "c").await;
    one.client("alice").delete("/v1/conversations/c/members/bob").await.ok(204);
    let closed = within("the channel to close", socket.until_event("phx_close")).await;
    assert_eq!(closed.topic, TOPIC);
}

/// Nobody has written, and the better place for the conversation is the other node: it claims for a follower, too (F7).
#[tokio::test]
async fn a_viewer_outside_the_home_region_joins_what_nobody_owns() {
    let regions: fn(&mut conch_server::config::Config) = |config| {
        let region = if config.node.as_str() == "node-0" { "north" } else { "south" };
        config.region = region.parse().expect("a region");
    };
    let cluster = Cluster::start_with(2, regions).await;
    let [north, south] = &cluster.nodes[..] else { panic!("two nodes") };
    north.client("alice").channel("c").await;
    let mut bob = Socket::joined(south, &south.client("bob"), "c").await;
    assert_eq!(cluster.owner_of("c").await, 0, "its home is where it was created");
    let seq = south.client("alice").sent("c", "1", "hi").await;
    bob.take(|frame| frame.event == "message" && frame.payload["seq"] == seq).await;
}

#[tokio::test]
async fn without_links_it_is_said_at_once_why_a_write_is_not_passed_on() {
    // A node that waited for the owner to change would let this run out, and the test with it.
    let patient = |config: &mut conch_server::config::Config| {
        config.link_listen = None;
        (config.limits.route_ms, config.limits.request_timeout_ms) = (60_000, 300_000);
    };
    let cluster = Cluster::start_with(2, patient).await;
    let [one, two] = &cluster.nodes[..] else { panic!("two nodes") };
    one.client("alice").channel("c").await;
    one.client("alice").send("c", "k1", "hi").await.ok(201);
    let refused = two.client("alice").send("c", "k2", "hi").await;
    let retry = refused.json()["retry"].clone();
    assert!(retry.is_object(), "that node may end: {retry}");
    let detail = refused.problem(503, "conversation_unavailable");
    assert!(detail.contains("node node-0 owns") && detail.contains("--link-listen"), "{detail}");
}

/// Each join that waits for an owner takes room of the whole node, also when its topic was joined anew meanwhile.
#[tokio::test]
async fn who_joins_one_topic_over_and_over_while_its_owner_is_away_takes_the_room_of_so_many_topics() {
    let without_links = |config: &mut conch_server::config::Config| {
        config.link_listen = None;
        config.limits.topics_per_socket = 3;
    };
    let cluster = Cluster::start_with(2, without_links).await;
    let [one, two] = &cluster.nodes[..] else { panic!("two nodes") };
    one.client("alice").channel("c").await;
    one.client("alice").send("c", "k", "hi").await.ok(201);
    two.client("alice").channel("here").await;
    let mut socket = Socket::connect(two, &two.client("alice")).await;
    for reference in ["1", "2", "3"] {
        socket.send(Some(reference), reference, TOPIC, "phx_join", json!({})).await;
    }
    for topic in [TOPIC, "conversation:here"] {
        let refused = socket.join(topic, json!({})).await;
        assert!(refused.refused("overloaded")["retry"].is_object(), "{refused:?}");
    }
    assert!(two.metric(r#"conch_limit_hits_total{queue="topics"}"#).await > 1.5);
    // They wait for the owner no longer than others do, and then there is room again.
    until("the joins to end", async || {
        let reply = socket.join("conversation:here", json!({})).await;
        (reply.payload["status"] == "ok").then_some(())
    })
    .await;
}
