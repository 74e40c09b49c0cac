//! An agent of kind `openai` against a model that is scripted.

use std::time::Duration;

use serde_json::{Value, json};

use super::{answers, bodies, ended, failure, helper, kinds, turn};
use crate::harness::{Fake, Node, Reply, Stream, chunk};

/// A whole answer of a model that only speaks.
async fn speak(mut reply: Reply, text: &str) {
    reply.begin("text/event-stream").await;
    reply.more(&chunk(&json!({ "content": text }), Some("stop"))).await;
    reply
        .more("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n")
        .await;
    reply.end().await;
}

/// One that asks for a call.
async fn call(mut reply: Reply, name: &str, arguments: &str) {
    reply.begin("text/event-stream").await;
    let asked = json!({ "index": 0, "id": "call_x", "function": { "name": name, "arguments": arguments } });
    reply.more(&chunk(&json!({ "tool_calls": [asked] }), Some("tool_calls"))).await;
    reply.more("data: [DONE]\n\n").await;
    reply.end().await;
}

async fn node(model: &Fake, settings: &str) -> Node {
    let settings = format!("kind = 'openai'\nmodel = 'm'\nbase_url = '{}'\n{settings}", model.url("/v1"));
    Node::start_as(move |config| helper(config, &settings)).await
}

#[tokio::test]
async fn a_model_is_shown_the_conversation_and_its_answer_is_kept_with_what_it_used() {
    let model =
        Fake::start(|request, reply| async move { speak(reply, &format!("answer {}", request.number)).await }).await;
    let node = node(&model, "system = 'be brief'\ntemperature = 0.5\nmax_tokens = 99\n").await;
    let alice = node.client("alice");
    turn(&node).await;
    alice.sent("s", "2", "and now?").await;
    let log = ended(&alice, "s", 2).await;
    assert_eq!(answers(&log), ["answer 0", "answer 1"]);
    let step = bodies(&log, "step.completed")[0];
    assert_eq!(step["usage"], json!({ "input_tokens": 10, "output_tokens": 2 }));
    let asked = &model.seen()[1].body;
    let messages = json!([
        { "role": "system", "content": "be brief" },
        { "role": "user", "content": "hello" },
        { "role": "assistant", "content": "answer 0" },
        { "role": "user", "content": "and now?" },
    ]);
    assert_eq!(asked["messages"], messages);
    assert_eq!((&asked["temperature"], &asked["max_tokens"]), (&json!(0.5), &json!(99)));
    assert_eq!(asked["stream_options"], json!({ "include_usage": true }));
}

/// Throttled, then broken off after some text, then silent: each time the step is begun again, and what was shown is retracted.
#[tokio::test]
async fn a_model_that_throttles_breaks_and_stalls_is_asked_again_and_nothing_is_shown_twice() {
    let model = Fake::start(|request, mut reply| async move {
        match request.number {
            0 => reply.whole(429, "retry-after: 1\r\n", "slow down").await,
            1 => {
                reply.begin("text/event-stream").await;
                reply.more(&chunk(&json!({ "content": "Hel" }), None)).await;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            2 => {
                reply.begin("text/event-stream").await;
                reply.more(&chunk(&json!({ "content": "Hello, w" }), None)).await;
                reply.stall().await;
            }
            _ => speak(reply, "Hello, world").await,
        }
    })
    .await;
    let node = node(&model, "silence_ms = 2000\n").await;
    let alice = node.client("alice");
    alice.session_with("s", "helper").await;
    let mut watching = Stream::open(&alice, "/v1/conversations/s/stream?after=0").await;
    alice.sent("s", "1", "hello").await;
    let log = ended(&alice, "s", 1).await;
    assert_eq!(kinds(&log), ["message", "turn.started", "step.completed", "message", "turn.completed"]);
    assert_eq!(answers(&log), ["Hello, world"]);
    assert_eq!(model.seen().len(), 4);
    let events = watching.up_to("turn.completed").await;
    let mut shown = String::new();
    let (mut resets, mut attempts) = (0, Vec::new());
    for event in &events {
        match event.name.as_str() {
            "step.reset" => {
                resets += 1;
                shown.clear();
            }
            "delta" => {
                assert_eq!(event.data["offset"], json!(shown.len()), "{event:?}");
                shown.push_str(event.data["text"].as_str().expect("text"));
                attempts.push(event.data["attempt"].as_u64().expect("a number"));
            }
            _ => {}
        }
    }
    assert_eq!((shown.as_str(), resets), ("Hello, world", 2));
    assert_eq!(attempts, [1, 2, 3], "attempts only rise, and count what was shown");
}

#[tokio::test]
async fn a_model_that_never_answers_well_ends_its_turn_with_what_it_said_last() {
    let model = Fake::start(|request, reply| async move {
        match request.number {
            0 => reply.whole(200, "content-type: text/event-stream\r\n", "<html>busy</html>\n\n").await,
            1 => reply.whole(200, "content-type: text/event-stream\r\n", "data: {nonsense\n\n").await,
            _ => reply.whole(503, "", "out of memory").await,
        }
    })
    .await;
    let node = node(&model, "attempts = 3\n").await;
    let (reason, detail) = failure(&turn(&node).await);
    assert_eq!(reason, "agent_failed");
    assert_eq!(detail, "the model answered 503 (after 3 attempts)");
}

#[tokio::test]
async fn what_another_try_cannot_mend_ends_the_turn_at_once() {
    let cases = [(400, "no such model", ""), (401, "bad key", ""), (302, "", " (redirects are not followed)")];
    for (status, body, more) in cases {
        let model = Fake::start(move |_, reply| async move {
            reply.whole(status, "location: http://127.0.0.1:1/\r\n", body).await;
        })
        .await;
        let node = node(&model, "").await;
        let (reason, detail) = failure(&turn(&node).await);
        assert_eq!((reason.as_str(), model.seen().len()), ("agent_failed", 1));
        assert_eq!(detail, format!("the model answered {status}{more}"));
    }
}

/// It would come again: nothing is gained by asking once more.
#[tokio::test]
async fn a_model_that_floods_ends_its_turn_at_once() {
    let model = Fake::start(|request, mut reply| async move {
        reply.begin("text/event-stream").await;
        match request.number {
            0 => {
                let piece = chunk(&json!({ "content": "x".repeat(64 * 1024) }), None);
                for _ in 0..17 {
                    reply.more(&piece).await;
                }
            }
            1 => {
                let call = |index| json!({ "index": index, "id": format!("c{index}"), "function": { "name": "t", "arguments": "{}" } });
                let calls: Vec<Value> = (0..129).map(call).collect();
                reply.more(&chunk(&json!({ "tool_calls": calls }), None)).await;
            }
            _ => reply.more(&format!("data: {}", "x".repeat(1024 * 1024 + 1))).await,
        }
        reply.stall().await;
    })
    .await;
    let node = node(&model, "").await;
    let alice = node.client("alice");
    alice.session_with("s", "helper").await;
    for (number, what) in (0..).zip([
        "text: more than 1048576 bytes",
        "tool_calls: more than 128 calls",
        "event: more than 1048576 bytes",
    ]) {
        alice.sent("s", &number.to_string(), "hello").await;
        let (reason, detail) = failure(&ended(&alice, "s", number + 1).await);
        assert_eq!((reason.as_str(), detail), ("agent_failed", format!("the model: {what} in one answer")));
        assert_eq!(model.seen().len(), number + 1, "it is asked once");
    }
}

/// No tool of that name, arguments that are no JSON, arguments that the schema refuses: the model is told each time, by a record.
#[tokio::test]
async fn calls_that_cannot_be_made_are_told_to_the_model_and_end_the_turn_if_they_go_on() {
    let model = Fake::start(|request, reply| async move {
        match request.number {
            0 => call(reply, "teleport", "{}").await,
            1 => call(reply, "weather", "{\"city\": Oslo").await,
            2 => speak(reply, "I could not look.").await,
            n => call(reply, "weather", &json!({ "city": n }).to_string()).await,
        }
    })
    .await;
    let tool = "[[tools]]\nname = 'weather'\ndescription = 'tells it'\nurl = 'http://127.0.0.1:1/'\n\
        parameters = '{\"type\":\"object\",\"required\":[\"city\"],\"properties\":{\"city\":{\"type\":\"string\"}}}'\n";
    let node = node(&model, tool).await;
    let alice = node.client("alice");
    let log = turn(&node).await;
    assert_eq!(answers(&log), ["I could not look."]);
    let steps = bodies(&log, "step.completed");
    let failed: Vec<(&str, &Value)> = steps
        .iter()
        .filter(|step| step["status"] == "failed")
        .map(|step| (step["output"]["error"].as_str().expect("why"), &step["input"]))
        .collect();
    let unknown = "there is no tool \"teleport\"; there are weather";
    let malformed = "weather: arguments: must be a JSON object";
    assert_eq!(failed, [(unknown, &json!({})), (malformed, &json!("{\"city\": Oslo"))]);
    assert_eq!(bodies(&log, "step.started").len(), 0, "nothing was called");
    let told = &model.seen()[2].body["messages"];
    assert_eq!(
        told[2],
        json!({ "role": "tool", "tool_call_id": "call_x", "content": json!({ "error": unknown }).to_string() })
    );
    assert_eq!(told[3]["tool_calls"][0]["function"]["arguments"], json!("{\"malformed\":\"{\\\"city\\\": Oslo\"}"));
    alice.sent("s", "2", "again").await;
    let (reason, detail) = failure(&ended(&alice, "s", 2).await);
    assert_eq!(reason, "agent_failed");
    let asked = "the model asked 3 times for calls that cannot be made; the last time: weather: arguments/city: ";
    assert!(detail.starts_with(asked), "{detail}");
}

#[tokio::test]
async fn a_model_that_never_stops_calling_tools_reaches_the_limit() {
    let tool = Fake::start(|_, reply| async move { reply.whole(200, "", "{\"ok\":true}").await }).await;
    let model = Fake::start(|_, reply| async move { call(reply, "again", "").await }).await;
    let settings = format!("max_steps = 3\n[[tools]]\nname = 'again'\ndescription = 'x'\nurl = '{}'\n", tool.url("/"));
    let node = node(&model, &settings).await;
    let (_, detail) = failure(&turn(&node).await);
    assert_eq!(detail, "the model was called 3 times, and still wants to call tools");
    assert_eq!((model.seen().len(), tool.seen().len()), (3, 3));
}

#[tokio::test]
async fn tokens_that_are_used_up_end_the_turn_before_the_next_call() {
    let tool = Fake::start(|_, reply| async move { reply.whole(200, "", "1").await }).await;
    let model = Fake::start(|_, mut reply| async move {
        reply.begin("text/event-stream").await;
        let asked = json!({ "index": 0, "id": "x", "function": { "name": "again", "arguments": "{}" } });
        reply.more(&chunk(&json!({ "tool_calls": [asked] }), Some("tool_calls"))).await;
        reply
            .more(
                "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":40,\"completion_tokens\":20}}\n\ndata: [DONE]\n\n",
            )
            .await;
        reply.end().await;
    })
    .await;
    let settings =
        format!("turn_tokens = 100\n[[tools]]\nname = 'again'\ndescription = 'x'\nurl = '{}'\n", tool.url("/"));
    let node = node(&model, &settings).await;
    let (reason, detail) = failure(&turn(&node).await);
    assert_eq!((reason.as_str(), model.seen().len()), ("too_many_tokens", 2));
    assert_eq!(detail, "turn: has used 120 tokens; at most 100 are allowed");
}

/// As fast as it can, in pieces of a few bytes: all of it arrives, in order, at who watches.
#[tokio::test]
async fn twenty_thousand_deltas_are_shown_in_order() {
    const DELTAS: usize = 20_000;
    let model = Fake::start(|_, mut reply| async move {
        reply.begin("text/event-stream").await;
        for hundred in 0..DELTAS / 100 {
            let deltas: Vec<String> =
                (0..100).map(|n| chunk(&json!({ "content": format!("{} ", hundred * 100 + n) }), None)).collect();
            reply.more(&deltas.concat()).await;
        }
        reply.more(&chunk(&json!({}), Some("stop"))).await;
        reply.more("data: [DONE]\n\n").await;
        reply.end().await;
    })
    .await;
    let node = node(&model, "").await;
    let alice = node.client("alice");
    alice.session_with("s", "helper").await;
    let mut watching = Stream::open(&alice, "/v1/conversations/s/stream?after=0").await;
    alice.sent("s", "1", "hello").await;
    let expected: String = (0..DELTAS).map(|n| format!("{n} ")).collect();
    let mut shown = String::new();
    for event in watching.up_to("turn.completed").await {
        let text = event.data["text"].as_str();
        match event.name.as_str() {
            "delta" => {
                assert_eq!(event.data["offset"], json!(shown.len()), "a delta fits where the text ends");
                shown.push_str(text.expect("text"));
            }
            "turn.snapshot" => shown = text.expect("text").to_owned(),
            "step.completed" => {
                assert!(expected.starts_with(&shown) && !shown.is_empty(), "what was shown is of the answer")
            }
            _ => {}
        }
    }
    // Another connection: the first has been idle for longer than the node keeps it.
    assert_eq!(answers(&ended(&node.client("alice"), "s", 1).await), [expected]);
}
