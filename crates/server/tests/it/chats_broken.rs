//! Streams of the AI SDK whose client has what is not true any more, or does not keep up.

use std::sync::Arc;

use serde_json::json;
use tokio::sync::Notify;

use crate::agents::helper;
use crate::chats::{Parts, messages, post, said, texts, types};
use crate::harness::{Cluster, Fake, Node, Reply, chunk};

/// Deltas, and then the end.
async fn speak(mut reply: Reply, words: impl Iterator<Item = String>) {
    reply.begin("text/event-stream").await;
    for word in words {
        reply.more(&chunk(&json!({ "content": word }), None)).await;
    }
    reply.more(&chunk(&json!({}), Some("stop"))).await;
    reply.more("data: [DONE]\n\n").await;
    reply.end().await;
}

/// The next owner's model says something else than what a page was shown. The page must not take the two for one answer, nor what
/// it has for a whole one.
#[tokio::test]
async fn text_that_a_takeover_retracts_breaks_the_stream_and_who_resumes_has_the_new_one_alone() {
    let go_on = Arc::new(Notify::new());
    let waiting = Arc::clone(&go_on);
    let model = Fake::start(move |request, mut reply| {
        let waiting = Arc::clone(&waiting);
        async move {
            reply.begin("text/event-stream").await;
            let first = if request.number == 0 { "one two" } else { "three " };
            reply.more(&chunk(&json!({ "content": first }), None)).await;
            if request.number == 0 {
                return reply.stall().await;
            }
            waiting.notified().await;
            reply.more(&chunk(&json!({ "content": "four" }), Some("stop"))).await;
            reply.more("data: [DONE]\n\n").await;
            reply.end().await;
        }
    })
    .await;
    let settings = format!("kind = 'openai'\nmodel = 'm'\nbase_url = '{}'\n", model.url("/v1"));
    let mut cluster = Cluster::start_as(2, move |config| helper(config, &settings)).await;
    let mut body = post("s", said("u1", "hello"));
    body["agent"] = json!("helper");
    let first = Parts::posted(&cluster.nodes[0].client("alice"), body).await.until("text-delta").await;
    let owner = cluster.owner_of("s").await;
    let alice = cluster.nodes[1 - owner].client("alice");
    let mut watching = Parts::resumed(&alice, "s").await;
    let shown = watching.until("text-delta").await;
    assert_eq!(texts(&shown), ["one two"]);
    cluster.kill(owner);
    let rest = watching.rest().await;
    assert!(!watching.ended && rest.is_empty(), "an end in order is taken for a whole answer: {rest:?}");
    let mut resumed = Parts::resumed(&alice, "s").await;
    let mut whole = resumed.until("text-delta").await;
    go_on.notify_one();
    whole.extend(resumed.rest().await);
    assert_eq!((texts(&whole), resumed.ended), (vec!["three four".to_owned()], true), "{whole:?}");
    assert_eq!((whole[0]["messageId"].as_str(), &whole[0]), (shown[0]["messageId"].as_str(), &first[0]));
    assert_eq!(types(&whole).last(), Some(&"finish"));
    let kept = messages(&alice, "s").await;
    assert_eq!((kept.len(), &kept[1]["parts"][1]["text"]), (2, &json!("three four")), "{kept:?}");
    assert_eq!(model.seen().len(), 2);
}

/// It reads nothing until the turn is over: meanwhile no more than its queue waits for it, and the other page has everything.
#[tokio::test]
async fn a_page_that_does_not_read_is_bounded_holds_up_nobody_and_comes_to_the_same_end() {
    /// Far more than the queue and what the kernel holds for a reader that reads nothing.
    const CALLS: usize = 12;
    const OUTPUT_BYTES: usize = 1_000_000;
    const WORDS: usize = 2_000;
    let tool = Fake::start(|_, reply| async move {
        let output = json!("x".repeat(OUTPUT_BYTES)).to_string();
        reply.whole(200, "content-type: application/json\r\n", &output).await;
    })
    .await;
    let model = Fake::start(|request, mut reply| async move {
        if request.number > 0 {
            return speak(reply, (0..WORDS).map(|word| format!("{word} "))).await;
        }
        reply.begin("text/event-stream").await;
        let call = |index| json!({ "index": index, "id": format!("c{index}"), "function": { "name": "read", "arguments": "{}" } });
        let calls: Vec<_> = (0..CALLS).map(call).collect();
        reply.more(&chunk(&json!({ "tool_calls": calls }), Some("tool_calls"))).await;
        reply.more("data: [DONE]\n\n").await;
        reply.end().await;
    })
    .await;
    let settings = format!(
        "kind = 'openai'\nmodel = 'm'\nbase_url = '{}'\n[[tools]]\nname = 'read'\ndescription = 'x'\nurl = '{}'\n",
        model.url("/v1"),
        tool.url("/"),
    );
    let node = Node::start_as(move |config| {
        helper(config, &settings);
        (config.limits.outbox_bytes, config.limits.ring_bytes) = (256 * 1024, 256 * 1024);
    })
    .await;
    let mut body = post("s", said("u1", "hello"));
    body["agent"] = json!("helper");
    let mut slow = Parts::posted(&node.client("alice"), body).await;
    let mut quick = Parts::resumed(&node.client("alice"), "s").await;
    let parts = quick.rest().await;
    let expected: String = (0..WORDS).map(|word| format!("{word} ")).collect();
    assert_eq!((texts(&parts), quick.ended), (vec![expected.clone()], true), "the other one has it all");
    assert!(node.metric("conch_slow_sessions_total").await >= 1.0, "it was behind");
    assert!(node.metric(r#"conch_limit_hits_total{queue="outbox"}"#).await >= 1.0, "its queue was full");
    let late = slow.rest().await;
    assert!(slow.ended, "in order, for the turn did: {:?}", types(&late));
    assert_eq!((texts(&late), types(&late)), (vec![expected], types(&parts)));
    let outputs = |all: &[serde_json::Value]| all.iter().filter(|part| part["type"] == "tool-output-available").count();
    assert_eq!((outputs(&late), outputs(&parts)), (CALLS, CALLS), "each result once");
    assert!(late.len() < parts.len(), "words that it was too slow for come as one");
}
