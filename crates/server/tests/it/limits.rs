//! What goes over a limit of the whole node, or of a socket, is counted under the limit's name, and harms no other.

use conch_server::auth::grants::Permission::{Read, Send};
use serde_json::json;

use crate::harness::{Node, Raw, Socket, until};

const ALL: &[(&str, &[conch_server::auth::grants::Permission])] = &[("*", &[Read, Send])];

#[tokio::test]
async fn connections_over_the_limit_are_cut_and_counted() {
    const HITS: &str = r#"conch_limit_hits_total{queue="connections"}"#;
    let node = Node::start_with(|config| config.limits.connections = 1).await;
    let held = Raw::connect(node.started.listen).await;
    node.metric_becomes("conch_connections", 1.0).await;
    let over = Raw::connect(node.started.listen).await;
    assert_eq!(over.read_to_end().await, "", "it is closed without a word");
    node.metric_becomes(HITS, 1.0).await;
    drop(held);
    node.metric_becomes("conch_connections", 0.0).await;
    node.stranger().get("/v1/openapi.json").await.ok(200);
    node.metric_becomes(HITS, 1.0).await;
}

#[tokio::test]
async fn topics_over_the_limit_are_refused_and_counted() {
    const HITS: &str = r#"conch_limit_hits_total{queue="topics"}"#;
    let node = Node::start_with(|config| config.limits.topics_per_socket = 2).await;
    let alice = node.client("alice");
    for id in ["a", "b", "c"] {
        alice.channel(id).await;
    }
    let mut socket = Socket::joined(&node, &alice, "a").await;
    socket.join("conversation:b", json!({})).await.response("ok");
    // Joined again, it is the same topic.
    socket.join("conversation:b", json!({})).await.response("ok");
    assert!(node.metric(HITS).await < 0.5);
    let refused = socket.join("conversation:c", json!({})).await;
    assert!(refused.refused("invalid_request")["detail"].to_string().contains("at most 2"), "{refused:?}");
    node.metric_becomes(HITS, 1.0).await;
    // A topic that was left makes room.
    socket.push("conversation:a", "phx_leave", json!({})).await.response("ok");
    socket.join("conversation:c", json!({})).await.response("ok");
}

#[tokio::test]
async fn senders_over_the_limit_are_forgotten_and_counted() {
    const HITS: &str = r#"conch_limit_hits_total{queue="senders"}"#;
    // A sender whose allowance is whole again is forgotten without a trace, so it comes back slowly here.
    let node = Node::start_with(|config| {
        config.rate.senders = 1;
        config.rate.per_second = 1;
    })
    .await;
    node.client("admin").channel("c").await;
    let (alice, bob) = (node.client_with("alice", ALL), node.client_with("bob", ALL));
    for number in 0..30 {
        alice.sent("c", &format!("a{number}"), "hi").await;
    }
    assert!(node.metric(HITS).await < 0.5, "one is remembered");
    bob.sent("c", "b1", "hi").await;
    node.metric_becomes(HITS, 1.0).await;
}

#[tokio::test]
async fn joins_over_a_senders_rate_are_told_when_to_come_again() {
    let node = Node::start_with(|config| (config.rate.joins_per_second, config.rate.joins_burst) = (1, 3)).await;
    node.client("alice").channel("c").await;
    let (bob, carol) = (node.client_with("bob", ALL), node.client_with("carol", ALL));
    let mut socket = Socket::connect(&node, &bob).await;
    let mut refused = None;
    for _ in 0..100 {
        let reply = socket.join("conversation:c", json!({})).await;
        if reply.payload["status"] == "error" {
            refused = Some(reply);
            break;
        }
    }
    let refused = refused.expect("the rate has an end");
    assert!(refused.refused("rate_limited")["retry"]["after_ms"].as_u64().is_some_and(|ms| ms <= 1_000), "{refused:?}");
    assert!(refused.payload.to_string().contains("1 joins a second"), "{refused:?}");
    bob.get("/v1/conversations/c/stream").await.problem(429, "rate_limited");
    // What else it asks for has a rate of its own, and so has everybody else.
    bob.sent("c", "k", "hi").await;
    Socket::joined(&node, &carol, "c").await;
    until("the rate to allow it", async || {
        let reply = socket.join("conversation:c", json!({})).await;
        (reply.payload["status"] == "ok").then_some(())
    })
    .await;
}
