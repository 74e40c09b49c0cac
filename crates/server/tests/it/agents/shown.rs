//! What people see of a call that failed: why, and nothing of where the operator's servers are or what those said. The log has that.

use std::net::SocketAddr;

use serde_json::json;

use super::{bodies, ended, failure, helper};
use crate::harness::{Fake, Node, Reply, captured_logs, until};

/// What an operator's server may say, and nobody else is to read.
const INTERNAL: &str = "upstream 10.1.2.3:8443 refused key sk-internal";

/// A way in which a server fails.
#[derive(Debug, Clone, Copy)]
enum Way {
    Refuses(u16),
    Redirects,
    BreaksOff,
    /// In the middle of an answer that began well.
    Reports,
    Lies,
    IsAway,
}

async fn fail(way: Way, kind: &str, mut reply: Reply) {
    match way {
        Way::Refuses(status) => reply.whole(status, "", INTERNAL).await,
        Way::Redirects => reply.whole(307, "location: http://10.1.2.3:8443/\r\n", INTERNAL).await,
        Way::BreaksOff => {
            reply.begin(kind).await;
            reply.more("\n").await;
        }
        Way::Reports => {
            reply.begin(kind).await;
            let error = json!({ "error": { "message": INTERNAL } });
            reply.more(&format!("data: {error}\n\n")).await;
            reply.end().await;
        }
        Way::Lies => reply.whole(200, &format!("content-type: {kind}\r\n"), &format!("{INTERNAL}\n\n")).await,
        Way::IsAway => unreachable!("nobody listens"),
    }
}

/// Where a server fails in this way, while the guard lives.
async fn server(way: Way, kind: &'static str) -> (SocketAddr, Option<Fake>) {
    if matches!(way, Way::IsAway) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
        return (listener.local_addr().expect("bound"), None);
    }
    let fake = Fake::start(move |_, reply| fail(way, kind, reply)).await;
    (fake.address, Some(fake))
}

/// Everything that a member can read of the conversation, and why its turn failed.
async fn seen(node: &Node) -> (String, String) {
    let alice = node.client("alice");
    alice.session_with("s", "helper").await;
    alice.sent("s", "1", "hello").await;
    let log = ended(&alice, "s", 1).await;
    let mut all = format!("{log:?}");
    for path in ["/v1/conversations/s/turns/1", "/ai/chat/s/messages", "/v1/conversations/s"] {
        all.push_str(&alice.get(path).await.text);
    }
    (all, failure(&log).1)
}

/// Nothing of this is shown, and the log names the turn with all of it.
async fn is_hidden(all: &str, address: SocketAddr, way: Way, logged: &str) {
    for hidden in [address.to_string(), format!(":{}", address.port()), "10.1.2.3".to_owned(), "sk-internal".to_owned()]
    {
        assert!(!all.contains(&hidden), "{way:?}: {hidden} in {all}");
    }
    let is_it = |line: &String| {
        let names = ["conversation=s", "turn=1", logged].iter().all(|part| line.contains(part));
        names && line.contains(&address.to_string())
    };
    let line = until("the log to say where", async || captured_logs().into_iter().find(is_it)).await;
    let says = matches!(way, Way::Refuses(_) | Way::Redirects | Way::Reports);
    assert!(!says || line.contains(INTERNAL), "{way:?}: {line}");
}

#[tokio::test]
async fn what_a_model_that_fails_says_and_where_it_is_are_for_the_log_alone() {
    for (way, shown) in [
        (Way::Refuses(503), "the model answered 503"),
        (Way::Refuses(401), "the model answered 401"),
        (Way::Redirects, "the model answered 307 (redirects are not followed)"),
        (Way::BreaksOff, "the model broke off"),
        (Way::Reports, "the model's server reported an error in the middle of its answer"),
        (Way::Lies, "the model: the stream ended in the middle of the answer"),
        (Way::IsAway, "the model cannot be reached"),
    ] {
        let (address, _fake) = server(way, "text/event-stream").await;
        let settings = format!("kind = 'openai'\nmodel = 'm'\nbase_url = 'http://{address}/v1'\nattempts = 1\n");
        let node = Node::start_as(move |config| helper(config, &settings)).await;
        let (all, detail) = seen(&node).await;
        assert_eq!(detail, shown, "{way:?}");
        is_hidden(&all, address, way, "a model fails its turn").await;
    }
}

#[tokio::test]
async fn what_a_worker_that_fails_says_and_where_it_is_are_for_the_log_alone() {
    for (way, shown) in [
        (Way::Refuses(503), "the worker answered 503"),
        (Way::Refuses(401), "the worker answered 401"),
        (Way::Redirects, "the worker answered 307 (redirects are not followed)"),
        (Way::BreaksOff, "the worker broke off"),
        (Way::Lies, "the worker: line 1: is not JSON: expected value at line 1 column 1"),
        (Way::IsAway, "the worker cannot be reached"),
    ] {
        let (address, _fake) = server(way, "application/x-ndjson").await;
        let settings =
            format!("kind = 'http'\nurl = 'http://{address}/'\nsecret_env = 'WORKER_SECRET'\nattempts = 1\n");
        let node = Node::start_as(move |config| helper(config, &settings)).await;
        let (all, detail) = seen(&node).await;
        assert_eq!(detail, shown, "{way:?}");
        is_hidden(&all, address, way, "a worker fails its turn").await;
    }
}

#[tokio::test]
async fn where_a_tool_is_and_why_it_broke_are_for_the_log_alone_and_what_it_says_of_a_call_is_for_the_model() {
    for (way, status, shown) in [
        (Way::Refuses(500), "unknown", "it may have happened: the tool answered 500"),
        (Way::Redirects, "failed", "the tool answered 307 (redirects are not followed)"),
        (Way::IsAway, "failed", "the tool cannot be reached"),
    ] {
        let model = super::tools::model().await;
        let (address, _fake) = server(way, "").await;
        let settings = format!(
            "kind = 'openai'\nmodel = 'm'\nbase_url = '{}'\n[[tools]]\nname = 'tool'\ndescription = 'x'\nurl = 'http://{address}/'\n",
            model.url("/v1"),
        );
        let node = Node::start_as(move |config| helper(config, &settings)).await;
        let alice = node.client("alice");
        alice.session_with("s", "helper").await;
        alice.sent("s", "1", "hello").await;
        let log = ended(&alice, "s", 1).await;
        let call =
            bodies(&log, "step.completed").into_iter().find(|step| step["step"] == "m1.t0").expect("it was asked for");
        assert_eq!((&call["status"], &call["output"]["error"]), (&json!(status), &json!(shown)), "{way:?}");
        let told = model.seen().last().expect("it was told").body.to_string();
        is_hidden(&format!("{log:?}{told}"), address, way, "a call to a tool has no result").await;
    }
}
