//! Nodes of one cluster with different agents, as while they get another configuration one after the other.

use serde_json::json;

use super::{answers, ended, failure, helper};
use crate::harness::{Cluster, Fake, chunk};

/// Two nodes, the second of which alone has the agent.
async fn cluster() -> (Cluster, Fake) {
    let model = Fake::start(|_, mut reply| async move {
        reply.begin("text/event-stream").await;
        reply.more(&chunk(&json!({ "content": "hi" }), Some("stop"))).await;
        reply.more("data: [DONE]\n\n").await;
        reply.end().await;
    })
    .await;
    let settings = format!("kind = 'openai'\nmodel = 'm'\nbase_url = '{}'\n", model.url("/v1"));
    let cluster = Cluster::start_as(2, move |config| {
        if config.node.as_str() == "node-1" {
            helper(config, &settings);
        }
        config.limits.agent_wait_ms = 2_000;
        (config.lease.ttl_ms, config.lease.beat_ms, config.lease.margin_ms) = (1_500, 500, 300);
    });
    (cluster.await, model)
}

#[tokio::test]
async fn a_message_through_a_node_that_lacks_the_agent_is_answered_by_one_that_has_it() {
    let (cluster, model) = cluster().await;
    let (without, with) = (cluster.nodes[0].client("alice"), cluster.nodes[1].client("alice"));
    let detail = without.put("/v1/conversations/s", json!({"kind": "session", "agent": "helper"})).await;
    assert!(detail.problem(422, "invalid_request").contains("helper"), "it cannot know what the others have");
    with.session_with("s", "helper").await;
    without.sent("s", "1", "hello").await;
    let log = ended(&without, "s", 1).await;
    assert_eq!((answers(&log), model.seen().len()), (vec!["hi"], 1), "{log:?}");
    let epoch =
        |kind: &str| log.iter().find(|record| record["kind"] == kind).and_then(|record| record["epoch"].as_u64());
    assert!(epoch("message") < epoch("turn.started"), "whoever took the message has not started it: {log:?}");
    assert_eq!(cluster.owner_of("s").await, 1);
}

#[tokio::test]
async fn a_turn_whose_agent_is_gone_with_its_node_fails_after_the_time_that_is_set() {
    let (mut cluster, _model) = cluster().await;
    cluster.nodes[1].client("alice").session_with("s", "helper").await;
    cluster.kill(1);
    let alice = cluster.nodes[0].client("alice");
    alice.sent("s", "1", "hello").await;
    let failed = failure(&ended(&alice, "s", 1).await);
    assert_eq!(failed, ("agent_unknown".to_owned(), "no node has the agent helper".to_owned()));
}
