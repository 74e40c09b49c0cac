//! The operations listener, and that what is promised to be counted is.

use serde_json::json;

use crate::harness::{Client, Node, Socket, Stream, until, within};

#[tokio::test]
async fn health_and_metrics_have_a_listener_of_their_own() {
    let node = Node::start().await;
    let operations = Client::new(node.started.ops_listen, None);
    operations.get("/livez").await.ok(200);
    assert_eq!(operations.get("/readyz").await.ok(200)["status"], "ready");
    node.stranger().get("/v1/openapi.json").await.ok(200);
    let page = operations.get("/metrics").await;
    assert!(page.header("content-type").is_some_and(|kind| kind.starts_with("text/plain")), "{page:?}");
    for name in [
        "conch_appends_total",
        "conch_acks_total",
        "conch_duplicates_total",
        "conch_fenced_writes_total",
        "conch_refusals_total",
        "conch_rate_limited_total",
        "conch_commit_duration_seconds",
        "conch_commit_batch_records",
        "conch_limit_hits_total",
        "conch_owned_conversations",
        "conch_lease_validity_seconds",
        "conch_connections",
        "conch_sockets",
        "conch_sse_streams",
        "conch_hubs",
        "conch_sessions",
        "conch_deliveries_total",
        "conch_delivered_bytes_total",
        "conch_slow_sessions_total",
        "conch_resyncs_total",
        "conch_turns",
        "conch_turns_ended_total",
        "conch_http_requests_total",
        "conch_http_request_duration_seconds",
    ] {
        assert!(page.text.contains(&format!("# TYPE {name} ")), "{name} is missing");
    }
    operations.get("/v1/conversations").await.problem(404, "not_found");
    operations.post("/metrics", json!({})).await.problem(405, "method_not_allowed");
    for path in ["/livez", "/readyz", "/metrics"] {
        node.stranger().get(path).await.problem(404, "not_found");
    }
}

#[tokio::test]
async fn what_happens_is_counted() {
    let node = Node::start_with(|config| {
        config.rate.per_second = 1;
        config.rate.burst = 1;
    })
    .await;
    let alice = node.client("alice");
    alice.channel("c").await;
    for number in 0..3 {
        alice.sent("c", &number.to_string(), "hi").await;
    }
    alice.send("c", "0", "hi").await.ok(200);
    node.metric_becomes("conch_appends_total", 3.0).await;
    node.metric_becomes("conch_acks_total", 4.0).await;
    node.metric_becomes("conch_duplicates_total", 1.0).await;
    node.metric_becomes("conch_owned_conversations", 1.0).await;
    node.metric_becomes(r#"conch_claims_total{outcome="won"}"#, 1.0).await;
    assert!(node.metric("conch_commit_duration_seconds_count").await >= 1.0);
    assert!(node.metric("conch_lease_validity_seconds").await > 0.0);
    alice.send("c", "0", "other").await.problem(409, "idempotency_key_reused");
    node.metric_becomes(r#"conch_refusals_total{code="idempotency_key_reused"}"#, 1.0).await;
    node.stranger().get("/v1/conversations").await.problem(401, "unauthenticated");
    node.metric_becomes(r#"conch_refusals_total{code="unauthenticated"}"#, 1.0).await;
    let limited = node.client_with("bob", &[("c", &conch_server::auth::grants::Permission::ALL)]);
    until("the rate's end", async || (limited.send("c", "b", "hi").await.status == 429).then_some(())).await;
    assert!(node.metric("conch_rate_limited_total").await >= 1.0);
    assert!(node.metric(r#"conch_refusals_total{code="rate_limited"}"#).await >= 1.0);
    let requests = r#"conch_http_requests_total{route="/v1/conversations/{id}/messages",status="201"}"#;
    assert!(node.metric(requests).await >= 3.0);

    let mut socket = Socket::joined(&node, &alice, "c").await;
    let mut stream = Stream::open(&alice, "/v1/conversations/c/stream?after=0").await;
    stream.up_to("caught_up").await;
    for (gauge, value) in
        [("conch_sockets", 1.0), ("conch_sse_streams", 1.0), ("conch_sessions", 2.0), ("conch_hubs", 1.0)]
    {
        node.metric_becomes(gauge, value).await;
    }
    let before = node.metric("conch_deliveries_total").await;
    alice.sent("c", "live", "hi").await;
    socket.until_event("message").await;
    node.metric_becomes("conch_deliveries_total", before + 2.0).await;
    socket.message("c", "live", "other").await.refused("idempotency_key_reused");
    node.metric_becomes(r#"conch_refusals_total{code="idempotency_key_reused"}"#, 2.0).await;
    socket.push("conversation:c", "shout", json!({})).await.refused("not_found");
    assert!(node.metric(r#"conch_refusals_total{code="not_found"}"#).await >= 1.0);
    Stream::open(&alice, "/v1/conversations/c/stream?after=999").await.up_to("resync").await;
    node.metric_becomes("conch_resyncs_total", 1.0).await;
    drop((socket, stream));
    for gauge in ["conch_sockets", "conch_sse_streams", "conch_sessions"] {
        node.metric_becomes(gauge, 0.0).await;
    }
}

#[tokio::test]
async fn a_node_that_shuts_down_is_not_ready_but_alive() {
    let mut node = Node::start().await;
    let alice = node.client("alice");
    alice.channel("c").await;
    // A client that takes its time holds the shutdown for a moment.
    let held = crate::harness::RawSocket::connect(&node, &alice).await;
    let operations = Client::new(node.started.ops_listen, None);
    node.ask_to_stop();
    let seen = within("the end of readiness", async {
        loop {
            let Ok(answer) = operations.request("GET", "/readyz").send().await else { return None };
            if answer.status() == 503 {
                return Some(answer.text().await.unwrap_or_default());
            }
        }
    })
    .await;
    if let Some(text) = seen {
        assert!(text.contains("draining"), "{text}");
    }
    drop(held);
    node.ended().await;
}

#[tokio::test]
async fn a_second_node_on_the_directory_is_refused() {
    let node = Node::start().await;
    let config = crate::harness::config(node.data.path());
    let refused = conch_server::serve::run(config, |_| panic!("it must not start"), std::future::pending()).await;
    let refused = refused.expect_err("the directory is in use").to_string();
    assert!(refused.contains("in use"), "{refused}");
    node.client("alice").channel("c").await;
}
