//! Tools over HTTP, called for a model that asks once.

use std::time::Duration;

use serde_json::{Value, json};

use super::{bodies, ended, failure, helper};
use crate::harness::{Client, Cluster, Fake, Node, chunk, until};

/// A model that asks for `tool` once, and then says that it is done.
pub(super) async fn model() -> Fake {
    Fake::start(|request, mut reply| async move {
        reply.begin("text/event-stream").await;
        if request.body["messages"].as_array().is_some_and(|messages| messages.len() == 1) {
            let asked = json!({ "index": 0, "id": "x", "function": { "name": "tool", "arguments": "{\"n\":1}" } });
            reply.more(&chunk(&json!({ "tool_calls": [asked] }), Some("tool_calls"))).await;
        } else {
            reply.more(&chunk(&json!({ "content": "done" }), Some("stop"))).await;
        }
        reply.more("data: [DONE]\n\n").await;
        reply.end().await;
    })
    .await
}

async fn node(model: &Fake, tool: &Fake, settings: &str) -> Node {
    node_as(model, tool, "", settings).await
}

/// With settings of the agent, and of its tool.
async fn node_as(model: &Fake, tool: &Fake, agent: &str, settings: &str) -> Node {
    let settings = format!(
        "kind = 'openai'\nmodel = 'm'\nbase_url = '{}'\n{agent}[[tools]]\nname = 'tool'\ndescription = 'x'\nurl = '{}'\n{settings}",
        model.url("/v1"),
        tool.url("/tool?x=1")
    );
    Node::start_as(move |config| helper(config, &settings)).await
}

/// The journalled step of the call.
async fn called(node: &Node) -> Value {
    let alice = node.client("alice");
    alice.session_with("s", "helper").await;
    alice.sent("s", "1", "hello").await;
    let log = ended(&alice, "s", 1).await;
    let steps = bodies(&log, "step.completed");
    (*steps.iter().find(|step| step["step"] == "m1.t0").unwrap_or_else(|| panic!("no call in {log:?}"))).clone()
}

#[tokio::test]
async fn a_tool_is_told_who_calls_under_which_key() {
    let (model, tool) =
        (model().await, Fake::start(|_, reply| async move { reply.whole(200, "", "{\"ok\":[1]}").await }).await);
    let node = node(&model, &tool, "headers = { x-team = 'blue' }\n").await;
    let step = called(&node).await;
    assert_eq!((&step["output"], step.get("status")), (&json!({ "ok": [1] }), None));
    let call = &tool.seen()[0];
    assert_eq!(call.body, json!({ "n": 1 }));
    let told = ["conch-conversation", "conch-turn", "conch-step", "x-team"].map(|name| call.header(name).to_owned());
    assert_eq!(told, ["s", "1", "m1.t0", "blue"]);
    assert_eq!(call.header("idempotency-key").len(), 32);
    assert!(call.header("conch-epoch").parse::<u64>().is_ok_and(|epoch| epoch > 0));
    assert!(!call.has("authorization"));
}

#[tokio::test]
async fn an_idempotent_tool_is_called_again_under_the_same_key() {
    let tool = Fake::start(|request, reply| async move {
        match request.number {
            0 => reply.whole(503, "", "").await,
            1 => drop(reply),
            2 => reply.stall().await,
            _ => reply.whole(200, "", "plain text").await,
        }
    })
    .await;
    let model = model().await;
    let node = node(&model, &tool, "on_unknown = 'retry'\ntimeout_ms = 500\n").await;
    assert_eq!(called(&node).await["output"], "plain text");
    let seen = tool.seen();
    assert_eq!(seen.len(), 4);
    assert!(seen.iter().all(|call| call.header("idempotency-key") == seen[0].header("idempotency-key")));
}

#[tokio::test]
async fn a_call_that_may_have_happened_is_made_once_and_the_model_is_told() {
    let (model, tool) =
        (model().await, Fake::start(|_, reply| async move { reply.whole(500, "", "oops").await }).await);
    let node = node(&model, &tool, "").await;
    let step = called(&node).await;
    assert_eq!((&step["status"], tool.seen().len()), (&json!("unknown"), 1));
    assert_eq!(step["output"]["error"], "it may have happened: the tool answered 500");
}

#[tokio::test]
async fn tries_that_do_not_reach_the_tool_do_not_end_the_doubt_about_one_that_may_have() {
    let tool = Fake::start(|request, reply| async move {
        let status = if request.number == 0 { 500 } else { 429 };
        reply.whole(status, "", "").await;
    })
    .await;
    let model = model().await;
    let node = node(&model, &tool, "on_unknown = 'retry'\n").await;
    let step = called(&node).await;
    assert_eq!((&step["status"], tool.seen().len()), (&json!("unknown"), 4));
    assert!(step["output"]["error"].as_str().is_some_and(|why| why.starts_with("it may have happened")), "{step}");
}

#[tokio::test]
async fn a_tool_that_throttles_did_not_happen_and_is_called_again() {
    let tool = Fake::start(|request, reply| async move {
        if request.number == 0 {
            reply.whole(429, "retry-after: 1\r\n", "").await;
        } else {
            reply.whole(204, "", "").await;
        }
    })
    .await;
    let model = model().await;
    let node = node(&model, &tool, "").await;
    let began = std::time::Instant::now();
    assert_eq!(called(&node).await["output"], Value::Null);
    assert!(tool.seen().len() == 2 && began.elapsed() >= Duration::from_secs(1), "not before it said");
}

#[tokio::test]
async fn what_a_tool_gets_wrong_is_told_to_the_model() {
    let elsewhere = Fake::start(|_, reply| async move { reply.whole(200, "", "{}").await }).await;
    let location = format!("location: {}\r\n", elsewhere.url("/"));
    let cases: [(u16, String, String, &str); 3] = [
        (307, location, String::new(), "answered 307 (redirects are not followed)"),
        (422, String::new(), "n: too small".to_owned(), "answered 422: n: too small"),
        (200, String::new(), "x".repeat(1024 * 1024 + 1), "is over 1048576 bytes"),
    ];
    for (status, headers, body, problem) in cases {
        let model = model().await;
        let tool = Fake::start(move |_, reply| {
            let (headers, body) = (headers.clone(), body.clone());
            async move { reply.whole(status, &headers, &body).await }
        })
        .await;
        let node = node(&model, &tool, "").await;
        let step = called(&node).await;
        let said = step["output"]["error"].as_str().expect("why");
        assert!(step["status"] == "failed" && said.ends_with(problem), "{step}");
        assert_eq!(tool.seen().len(), 1);
    }
    assert!(elsewhere.seen().is_empty(), "a redirect is never followed");
}

/// The log once so many questions were asked in the first turn.
async fn asked(client: &Client, times: usize) -> Vec<Value> {
    until(&format!("question {times}"), async || {
        let log = client.log("s").await;
        (bodies(&log, "await.opened").len() == times).then_some(log)
    })
    .await
}

/// Starts a turn, answers what it asks one after the other, and returns the call's result and the log.
async fn answered(node: &Node, answers: &[Value]) -> (Value, Vec<Value>) {
    let alice = node.client("alice");
    alice.session_with("s", "helper").await;
    alice.sent("s", "1", "hello").await;
    for (times, answer) in (1..).zip(answers) {
        let log = asked(&alice, times).await;
        let wait = bodies(&log, "await.opened")[times - 1]["await"].as_str().expect("a name").to_owned();
        let path = format!("/v1/conversations/s/awaits/{wait}");
        alice.post(&path, json!({ "payload": answer })).await.ok(200);
    }
    let log = ended(&alice, "s", 1).await;
    let steps = bodies(&log, "step.completed");
    let call = steps.iter().find(|step| step["step"] == "m1.t0").map_or(Value::Null, |step| (*step).clone());
    (call, log)
}

#[tokio::test]
async fn a_person_is_asked_before_a_call_that_wants_approval() {
    let (model, tool) = (model().await, Fake::start(|_, reply| async move { reply.whole(200, "", "1").await }).await);
    let node = node(&model, &tool, "approval = 'ask'\n").await;
    let alice = node.client("alice");
    alice.session_with("s", "helper").await;
    alice.sent("s", "1", "hello").await;
    let log = asked(&alice, 1).await;
    let asked = bodies(&log, "await.opened")[0];
    assert_eq!(
        (&asked["await"], &asked["prompt"]),
        (&json!("1-m1.t0.approval"), &json!("May tool be called with {\"n\":1}?"))
    );
    assert!(tool.seen().is_empty(), "not before somebody says so");
}

#[tokio::test]
async fn an_approval_lets_the_call_be_made_once_and_a_refusal_is_told_to_the_model() {
    for (approve, calls) in [(true, 1), (false, 0)] {
        let model = model().await;
        let tool = Fake::start(|_, reply| async move { reply.whole(200, "", "1").await }).await;
        let node = node(&model, &tool, "approval = 'ask'\n").await;
        let (call, log) = answered(&node, &[json!({ "approve": approve })]).await;
        assert_eq!(tool.seen().len(), calls, "{log:?}");
        assert_eq!(bodies(&log, "turn.completed").len(), 1);
        let told = model.seen().last().expect("asked again").body["messages"].to_string();
        if approve {
            assert_eq!((&call["output"], call.get("status")), (&json!(1), None));
        } else {
            assert_eq!(call["status"], "failed");
            let why = call["output"]["error"].as_str().expect("why");
            assert!(told.contains(why), "{told}");
        }
    }
}

#[tokio::test]
async fn a_turn_whose_time_is_over_while_it_waits_for_an_approval_ends_without_the_call() {
    let (model, tool) = (model().await, Fake::start(|_, reply| async move { reply.whole(200, "", "1").await }).await);
    let node = node_as(&model, &tool, "turn_time_s = 2\n", "approval = 'ask'\n").await;
    let (_, log) = answered(&node, &[]).await;
    assert_eq!(failure(&log).0, "deadline_passed");
    assert!(tool.seen().is_empty(), "nobody said so");
}

#[tokio::test]
async fn a_person_decides_about_a_call_that_may_have_happened() {
    let decide = |decision: &str| json!({ "decision": decision });
    for (decisions, calls, status) in [
        (vec![decide("fail")], 1, json!("unknown")),
        (vec![decide("retry")], 2, Value::Null),
        (vec![decide("retry"), decide("fail")], 2, json!("unknown")),
    ] {
        let model = model().await;
        // The outcome of the first call is unknown, and of the second one where a person is asked twice.
        let doubts = if status.is_null() { 1 } else { 2 };
        let tool = Fake::start(move |request, reply| async move {
            let answer = if request.number < doubts { 500 } else { 200 };
            reply.whole(answer, "", "1").await;
        })
        .await;
        let node = node(&model, &tool, "on_unknown = 'ask'\n").await;
        let (call, _) = answered(&node, &decisions).await;
        let seen = tool.seen();
        assert_eq!((seen.len(), call.get("status").cloned().unwrap_or_default()), (calls, status));
        assert!(seen.iter().all(|call| call.header("idempotency-key") == seen[0].header("idempotency-key")));
    }
}

#[tokio::test]
async fn an_approval_that_nobody_gives_in_time_is_none_and_the_turn_goes_on() {
    let (model, tool) = (model().await, Fake::start(|_, reply| async move { reply.whole(200, "", "1").await }).await);
    let node = node(&model, &tool, "approval = 'ask'\napproval_s = 1\n").await;
    let step = called(&node).await;
    let why = "nobody approved this call in time";
    assert_eq!((&step["status"], &step["output"]["error"]), (&json!("failed"), &json!(why)));
    let alice = node.client("alice");
    let log = alice.log("s").await;
    let ends = [bodies(&log, "await.resolved"), bodies(&log, "turn.completed")].concat();
    assert_eq!(ends, [&json!({ "await": "1-m1.t0.approval", "expired": true }), &json!({})]);
    assert!(tool.seen().is_empty(), "nobody said so");
    assert!(model.seen()[1].body["messages"].to_string().contains(why), "the model is told");
    let late =
        alice.post("/v1/conversations/s/awaits/1-m1.t0.approval", json!({ "payload": { "approve": true } })).await;
    late.problem(409, "conflict");
}

/// The time is in the due row, which another node finds; what was done before is in the journal.
#[tokio::test]
async fn an_approval_expires_though_its_owner_died_meanwhile_and_the_next_one_goes_on() {
    let (model, tool) = (model().await, Fake::start(|_, reply| async move { reply.whole(200, "", "1").await }).await);
    let settings = format!(
        "kind = 'openai'\nmodel = 'm'\nbase_url = '{}'\n[[tools]]\nname = 'tool'\ndescription = 'x'\nurl = '{}'\napproval = 'ask'\napproval_s = 10\n",
        model.url("/v1"),
        tool.url("/"),
    );
    let mut cluster = Cluster::start_as(2, move |config| {
        helper(config, &settings);
        (config.lease.ttl_ms, config.lease.beat_ms, config.lease.margin_ms) = (1_500, 500, 300);
    })
    .await;
    let alice = cluster.nodes[0].client("alice");
    alice.session_with("s", "helper").await;
    alice.sent("s", "1", "hello").await;
    asked(&alice, 1).await;
    let owner = cluster.owner_of("s").await;
    cluster.kill(owner);
    let log = ended(&cluster.nodes[1 - owner].client("alice"), "s", 1).await;
    let kinds: Vec<&str> = log.iter().filter_map(|record| record["kind"].as_str()).collect();
    let expected = [
        "message",
        "turn.started",
        "step.completed",
        "await.opened",
        "await.resolved",
        "step.completed",
        "step.completed",
        "message",
        "turn.completed",
    ];
    assert_eq!(kinds, expected);
    let epochs: Vec<u64> = log.iter().filter_map(|record| record["epoch"].as_u64()).collect();
    assert!(epochs[3] < epochs[4], "it expired under the next owner: {epochs:?}");
    assert_eq!(bodies(&log, "await.resolved")[0]["expired"], true);
    assert_eq!(bodies(&log, "step.completed")[1]["output"]["error"], "nobody approved this call in time");
    assert_eq!((model.seen().len(), tool.seen().len()), (2, 0), "the first answer is not asked for again");
}
