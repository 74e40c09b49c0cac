//! Phoenix Channels: joins, pushes, presence and the personal topic, for clients that behave.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use crate::harness::{Node, Socket, Topic, until, within};

const TOPIC: &str = "conversation:c";

fn message(key: &str, text: &str) -> Value {
    json!({"client_msg_id": key, "body": {"text": text}})
}

#[tokio::test]
async fn a_join_says_where_the_log_is_and_replays() {
    let node = Node::start().await;
    let alice = node.client("alice");
    alice.channel("c").await;
    for number in 1..=5 {
        alice.sent("c", &number.to_string(), "old").await;
    }
    let info = alice.get("/v1/conversations/c").await.ok(200);
    let mut socket = Socket::connect(&node, &alice).await;
    socket.send(Some("j1"), "r1", TOPIC, "phx_join", json!({"after": 2, "log": info["log"]})).await;
    let reply = socket.next().await;
    assert_eq!((&reply.join_ref, &reply.reference, reply.topic.as_str()), (&json!("j1"), &json!("r1"), TOPIC));
    let expected = json!({
        "head_seq": 5, "log": info["log"], "epoch": info["owner"]["epoch"], "catchup": "streaming",
        // 500 ms, and 10 for the one socket that is connected.
        "reconnect_jitter_ms": 510,
    });
    assert_eq!(reply.response("ok"), &expected);
    let history = alice.get("/v1/conversations/c/messages?after=2").await.ok(200);
    for record in history["messages"].as_array().expect("a list") {
        let frame = socket.next_real().await;
        assert_eq!((&frame.payload, frame.event.as_str()), (record, "message"));
        assert_eq!((&frame.join_ref, &frame.reference), (&Value::Null, &Value::Null), "broadcasts have no refs");
    }
    let caught_up = socket.next_real().await;
    assert_eq!((caught_up.event.as_str(), &caught_up.payload), ("caught_up", &json!({"seq": 5})));
    for payload in [json!({"after": 2, "log": "other.1"}), json!({"after": 6}), json!({"after": u64::MAX})] {
        let reply = socket.join(TOPIC, payload).await;
        assert_eq!(reply.response("ok")["catchup"], "resync");
        let resync = socket.take(|frame| frame.event == "resync").await;
        assert_eq!(resync.payload, json!({"log": info["log"], "head_seq": 5}));
        assert_eq!(socket.take(|frame| frame.event == "caught_up").await.seq(), 5);
    }
    for (payload, named) in
        [(json!({"colour": 1}), "colour"), (json!({"after": "1"}), "string"), (json!({"after": -1}), "-1")]
    {
        let reply = socket.join(TOPIC, payload).await;
        let detail = reply.refused("invalid_request")["detail"].as_str().expect("a detail").to_owned();
        assert!(detail.contains(named), "{detail}");
    }
    assert!(socket.join("conversation:none", json!({})).await.refused("not_found")["retry"].is_null());
    for topic in ["room:c", "conversation:", "conversation:a/b", "user:you", "user:", "", "phoenix"] {
        let reply = socket.join(topic, json!({})).await;
        assert!(reply.refused("invalid_request")["retry"].is_null(), "no retry mends it");
    }
}

#[tokio::test]
async fn a_message_is_acked_and_its_broadcast_is_the_same_bytes_for_all() {
    let node = Node::start().await;
    let (alice, bob) = (node.client("alice"), node.client("bob"));
    alice.channel("c").await;
    let mut one = Socket::joined(&node, &alice, "c").await;
    let mut two = Socket::joined(&node, &bob, "c").await;
    let reply = one.message("c", "k1", "hello").await;
    let receipt = reply.response("ok").clone();
    assert_eq!((&receipt["seq"], &receipt["duplicate"]), (&json!(1), &json!(false)));
    assert!(receipt["epoch"].is_u64() && receipt["at"].is_string(), "{receipt}");
    let (first, second) = (one.until_event("message").await, two.until_event("message").await);
    assert_eq!(first.text, second.text);
    assert!(first.text.starts_with(r#"[null,null,"conversation:c","message",{"seq":1,"#), "{}", first.text);
    assert_eq!((&first.payload["at"], &first.payload["epoch"]), (&receipt["at"], &receipt["epoch"]));
    assert_eq!(one.message("c", "k1", "hello").await.response("ok")["duplicate"], true);
    one.message("c", "k1", "other").await.refused("idempotency_key_reused");
    for (payload, code) in [
        (json!({}), "invalid_request"),
        (json!({"client_msg_id": "k"}), "invalid_request"),
        (json!({"client_msg_id": "k", "body": {}}), "invalid_request"),
        (json!({"client_msg_id": "k", "body": {"text": "x"}, "colour": 1}), "invalid_request"),
        (json!({"client_msg_id": "k", "body": {"text": "x"}, "kind": "event"}), "invalid_request"),
        (json!({"client_msg_id": "", "body": {"text": "x"}}), "invalid_request"),
        (message("k", &"x".repeat(65_536)), "too_large"),
    ] {
        let reply = one.push(TOPIC, "message", payload).await;
        assert!(reply.refused(code)["retry"].is_null());
    }
    one.message("c", "k2", "the socket stays").await.response("ok");
}

#[tokio::test]
async fn history_cursors_and_what_is_not_built() {
    let node = Node::start().await;
    let alice = node.client("alice");
    alice.channel("c").await;
    let mut socket = Socket::joined(&node, &alice, "c").await;
    for number in 1..=5 {
        socket.message("c", &number.to_string(), "hi").await.response("ok");
    }
    let by_http = alice.get("/v1/conversations/c/messages?before=4&limit=2").await.ok(200);
    let by_push = socket.push(TOPIC, "history", json!({"before": 4, "limit": 2})).await;
    assert_eq!(by_push.response("ok"), &by_http);
    assert_eq!(socket.push(TOPIC, "history", json!({})).await.response("ok")["head_seq"], 5);
    for payload in [json!({"limit": 0}), json!({"limit": 501}), json!({"after": 1, "before": 2}), json!({"x": 1})] {
        socket.push(TOPIC, "history", payload).await.refused("invalid_request");
    }
    assert_eq!(socket.push(TOPIC, "cursor", json!({"seq": 3})).await.response("ok"), &json!({"seq": 3}));
    assert_eq!(socket.push(TOPIC, "cursor", json!({"seq": 1})).await.response("ok"), &json!({"seq": 3}));
    socket.push(TOPIC, "cursor", json!({"seq": 6})).await.refused("invalid_request");
    socket.push(TOPIC, "cursor", json!({})).await.refused("invalid_request");
    for event in ["turn.start", "token", "shout", "phx_error", "presence_state", "caught_up"] {
        assert!(socket.push(TOPIC, event, json!({})).await.refused("not_found")["retry"].is_null(), "{event}");
    }
    socket.push("conversation:other", "message", message("k", "hi")).await.refused("not_found");
    // A push of a join that was replaced reaches nothing.
    socket.send(Some("stale"), "r", TOPIC, "message", message("stale", "hi")).await;
    socket.reply("r").await.refused("not_found");
    assert_eq!(alice.log("c").await.len(), 5);
}

#[tokio::test]
async fn a_second_join_replaces_the_first_and_leave_ends_it() {
    let node = Node::start().await;
    let alice = node.client("alice");
    alice.channel("c").await;
    let mut socket = Socket::connect(&node, &alice).await;
    socket.send(Some("j1"), "r1", TOPIC, "phx_join", json!({})).await;
    socket.reply("r1").await.response("ok");
    socket.send(Some("j2"), "r2", TOPIC, "phx_join", json!({})).await;
    let closed = socket.take(|frame| frame.event == "phx_close").await;
    assert_eq!((&closed.join_ref, closed.topic.as_str()), (&json!("j1"), TOPIC));
    let reply = socket.reply("r2").await;
    assert_eq!(reply.join_ref, "j2");
    reply.response("ok");
    alice.sent("c", "1", "once").await;
    socket.until_event("message").await;
    socket.send(Some("j2"), "r3", TOPIC, "heartbeat", json!({})).await;
    loop {
        let frame = socket.next().await;
        assert_ne!(frame.event, "message", "one join, one copy");
        if frame.reference == "r3" {
            break;
        }
    }
    socket.send(Some("j2"), "r4", TOPIC, "phx_leave", json!({})).await;
    socket.reply("r4").await.response("ok");
    let closed = socket.take(|frame| frame.event == "phx_close").await;
    assert_eq!(closed.join_ref, "j2");
    node.metric_becomes("conch_sessions", 0.0).await;
    alice.sent("c", "2", "unseen").await;
    socket.send(None, "h", "phoenix", "heartbeat", json!({})).await;
    let beat = socket.next_real().await;
    assert_eq!(beat.text, r#"[null,"h","phoenix","phx_reply",{"status":"ok","response":{}}]"#);
}

#[tokio::test]
async fn a_socket_joins_so_many_topics_and_no_more() {
    let node = Node::start_with(|config| config.limits.topics_per_socket = 3).await;
    let alice = node.client("alice");
    for id in ["a", "b", "c", "d"] {
        alice.channel(id).await;
    }
    let mut socket = Socket::connect(&node, &alice).await;
    for topic in ["conversation:a", "user:me", "conversation:b"] {
        socket.join(topic, json!({})).await.response("ok");
    }
    let reply = socket.join("conversation:c", json!({})).await;
    assert!(reply.refused("invalid_request")["detail"].as_str().is_some_and(|detail| detail.contains("at most 3")));
    socket.join("conversation:b", json!({})).await.response("ok");
    socket.push("conversation:a", "phx_leave", json!({})).await.response("ok");
    socket.join("conversation:c", json!({})).await.response("ok");
    // A join that failed does not count.
    socket.push("conversation:c", "phx_leave", json!({})).await.response("ok");
    for _ in 0..5 {
        socket.join("conversation:none", json!({})).await.refused("not_found");
    }
    socket.join("conversation:d", json!({})).await.response("ok");
    assert_eq!(conch_server::config::Config::default().limits.topics_per_socket, 100);
}

/// Applies a state or a diff as phoenix.js does: key → number of metas.
fn apply(present: &mut BTreeMap<String, Vec<Value>>, frame: &Topic) {
    let metas = |entry: &Value| entry["metas"].as_array().expect("metas").clone();
    let all = |value: &Value| {
        let object = value.as_object().expect("an object").clone();
        object.into_iter().map(|(key, entry)| (key, metas(&entry))).collect::<BTreeMap<_, _>>()
    };
    match frame.event.as_str() {
        "presence_state" => *present = all(&frame.payload),
        "presence_diff" => {
            for (key, metas) in all(&frame.payload["joins"]) {
                let known = present.entry(key).or_default();
                known.retain(|meta| !metas.iter().any(|new| new["phx_ref"] == meta["phx_ref"]));
                known.extend(metas);
            }
            for (key, metas) in all(&frame.payload["leaves"]) {
                let left = present.get_mut(&key).expect("who leaves was there");
                left.retain(|meta| !metas.iter().any(|gone| gone["phx_ref"] == meta["phx_ref"]));
                if left.is_empty() {
                    present.remove(&key);
                }
            }
        }
        _ => {}
    }
}

#[tokio::test]
async fn presence_is_a_state_then_diffs() {
    let node = Node::start().await;
    let (alice, bob) = (node.client("alice"), node.client("bob"));
    alice.channel("c").await;
    let mut socket = Socket::connect(&node, &alice).await;
    socket.join(TOPIC, json!({})).await.response("ok");
    let mut present = BTreeMap::new();
    let state = socket.next().await;
    assert_eq!(state.event, "presence_state", "after every join");
    apply(&mut present, &state);
    let who = |present: &BTreeMap<String, Vec<Value>>| {
        present.iter().map(|(key, metas)| (key.clone(), metas.len())).collect::<Vec<_>>()
    };
    let mut becomes = async |wanted: &[(&str, usize)]| {
        let wanted: Vec<(String, usize)> = wanted.iter().map(|(key, count)| ((*key).to_owned(), *count)).collect();
        while who(&present) != wanted {
            apply(&mut present, &socket.next().await);
        }
        let refs: Vec<&Value> = present.values().flatten().map(|meta| &meta["phx_ref"]).collect();
        let unique: std::collections::BTreeSet<String> = refs.iter().map(ToString::to_string).collect();
        assert_eq!(unique.len(), refs.len(), "a phx_ref of its own for each: {refs:?}");
    };
    becomes(&[("alice", 1)]).await;
    let first = Socket::joined(&node, &bob, "c").await;
    becomes(&[("alice", 1), ("bob", 1)]).await;
    let second = Socket::joined(&node, &bob, "c").await;
    becomes(&[("alice", 1), ("bob", 2)]).await;
    let presence = alice.get("/v1/conversations/c/presence").await.ok(200);
    assert_eq!(presence["count"], 3);
    assert_eq!(presence["present"]["bob"]["metas"].as_array().map(Vec::len), Some(2));
    let shown = alice.get("/v1/conversations/c").await.ok(200);
    assert_eq!(shown["connected"], 3);
    first.close().await;
    becomes(&[("alice", 1), ("bob", 1)]).await;
    // A connection that just breaks leaves, too.
    drop(second);
    becomes(&[("alice", 1)]).await;
}

#[tokio::test]
async fn above_the_threshold_presence_is_a_count() {
    let node = Node::start_with(|config| {
        config.fanout.presence_count_from = 3;
    })
    .await;
    let alice = node.client("alice");
    alice.channel("c").await;
    let mut sockets = Vec::new();
    for _ in 0..3 {
        sockets.push(Socket::joined(&node, &alice, "c").await);
    }
    until("the count", async || {
        let presence = alice.get("/v1/conversations/c/presence").await.ok(200);
        (presence == json!({"count": 3, "present": null})).then_some(())
    })
    .await;
    let mut late = Socket::connect(&node, &alice).await;
    late.join(TOPIC, json!({})).await.response("ok");
    loop {
        let frame = late.next().await;
        assert!(frame.event != "presence_state" && frame.event != "presence_diff", "{frame:?}");
        if frame.event == "presence_count" {
            assert_eq!(frame.payload["count"], 4);
            break;
        }
    }
    // Those who had the names are told as well.
    sockets[0].until_event("presence_count").await;
}

#[tokio::test]
async fn typing_is_shown_to_others_and_kept_nowhere() {
    let node = Node::start().await;
    let (alice, bob) = (node.client("alice"), node.client("bob"));
    alice.channel("c").await;
    let mut one = Socket::joined(&node, &alice, "c").await;
    let mut two = Socket::joined(&node, &bob, "c").await;
    one.push(TOPIC, "typing", json!({})).await.response("ok");
    let typing = two.until_event("typing").await;
    assert_eq!(typing.payload, json!({"sender": "alice"}));
    assert_eq!((&typing.join_ref, &typing.reference), (&Value::Null, &Value::Null));
    one.push(TOPIC, "typing", json!({"text": "secret"})).await.refused("invalid_request");
    assert_eq!(alice.log("c").await, Vec::<Value>::new());
}

#[tokio::test]
async fn the_personal_topic_shows_what_changes() {
    let node = Node::start().await;
    let (alice, bob) = (node.client("alice"), node.client("bob"));
    alice.channel("old").await;
    let mut socket = Socket::connect(&node, &alice).await;
    assert_eq!(socket.join("user:me", json!({})).await.response("ok"), &json!({}));
    assert_eq!(socket.next().await.payload["id"], "old");
    assert_eq!(socket.next().await.event, "caught_up");
    bob.channel_of("new", &["alice"]).await;
    assert_eq!(socket.next().await.payload, json!({"conversation": "new", "change": "added"}));
    assert_eq!(socket.next().await.payload["id"], "new");
    let seq = bob.sent("new", "1", "hi").await;
    let summary = socket.next().await;
    assert_eq!((summary.event.as_str(), &summary.payload["unread"]), ("conversation", &json!(1)));
    socket.join("conversation:new", json!({})).await.response("ok");
    socket.push("conversation:new", "cursor", json!({"seq": seq})).await.response("ok");
    let read = socket.take(|frame| frame.event == "conversation").await;
    assert_eq!((&read.payload["unread"], &read.payload["cursor"]), (&json!(0), &json!(seq)));
    bob.delete("/v1/conversations/new/members/alice").await.ok(204);
    let left = socket.take(|frame| frame.event == "membership").await;
    assert_eq!(left.payload, json!({"conversation": "new", "change": "removed"}));
}

/// Invariant: a socket's pushes to one topic are numbered in the order in which they were sent.
#[tokio::test]
async fn pipelined_pushes_keep_their_order() {
    const COUNT: usize = 1_000;
    let node = Node::start_with(|config| config.limits.pushes_per_socket = 2_000).await;
    let alice = node.client("alice");
    for id in ["owned", "sleeping"] {
        alice.channel(id).await;
    }
    alice.sent("owned", "first", "wakes the owner").await;
    for id in ["owned", "sleeping"] {
        let mut socket = Socket::joined(&node, &alice, id).await;
        for number in 0..COUNT {
            let key = format!("k{number}");
            let frame = json!([
                format!("conversation:{id}"),
                key,
                format!("conversation:{id}"),
                "message",
                message(&key, "hi")
            ]);
            socket.feed(&frame).await;
        }
        socket.flush().await;
        let mut last = 0;
        for number in 0..COUNT {
            let reply = socket.reply(&format!("k{number}")).await;
            let seq = reply.response("ok")["seq"].as_u64().expect("a seq");
            assert!(seq > last, "{seq} after {last}");
            last = seq;
        }
        let log = alice.log(id).await;
        let keys: Vec<&str> = log.iter().filter_map(|record| record["client_msg_id"].as_str()).collect();
        let expected: Vec<String> = (0..COUNT).map(|number| format!("k{number}")).collect();
        assert_eq!(keys[keys.len() - COUNT..], expected, "{id}");
    }
}

/// The owner is claimed by the very first push, while the next ones come in.
#[tokio::test]
async fn pushes_keep_their_order_after_a_restart_too() {
    const COUNT: usize = 300;
    let node = Node::start_with(|config| config.limits.pushes_per_socket = 1_000).await;
    node.client("alice").channel("c").await;
    let node = node.restart().await;
    let alice = node.client("alice");
    let mut socket = Socket::connect(&node, &alice).await;
    // Joined to another conversation: the join of this one is pipelined with its pushes.
    socket.join(TOPIC, json!({})).await.response("ok");
    for number in 0..COUNT {
        let key = format!("k{number}");
        socket.feed(&json!([TOPIC, key, TOPIC, "message", message(&key, "hi")])).await;
    }
    socket.flush().await;
    for number in 0..COUNT {
        socket.reply(&format!("k{number}")).await.response("ok");
    }
    let log = alice.log("c").await;
    let keys: Vec<&str> = log.iter().filter_map(|record| record["client_msg_id"].as_str()).collect();
    assert_eq!(keys, (0..COUNT).map(|number| format!("k{number}")).collect::<Vec<_>>());
}

#[tokio::test]
async fn phoenix_js_may_hand_its_token_over_as_a_subprotocol() {
    use base64::Engine;
    let node = Node::start().await;
    let alice = node.client("alice");
    alice.channel("c").await;
    let token = alice.token.clone().expect("a token");
    let url = node.url("/socket/websocket?vsn=2.0.0").replace("http://", "ws://");
    let connect = async |protocols: String| {
        let mut request = url.as_str().into_client_request().expect("a URL");
        request.headers_mut().insert("sec-websocket-protocol", protocols.parse().expect("a header"));
        within("a socket", tokio_tungstenite::connect_async(request)).await
    };
    let encoded = base64::engine::general_purpose::STANDARD_NO_PAD.encode(&token);
    let (stream, response) = connect(format!("phoenix, base64url.bearer.phx.{encoded}")).await.expect("it is let in");
    assert_eq!(response.headers().get("sec-websocket-protocol").map(|value| value.as_bytes()), Some(&b"phoenix"[..]));
    let mut socket = Socket::of(stream);
    socket.join(TOPIC, json!({})).await.response("ok");
    for wrong in ["phoenix, base64url.bearer.phx.!".to_owned(), "phoenix".to_owned()] {
        assert!(connect(wrong).await.is_err());
    }
}

#[tokio::test]
async fn a_leave_of_an_older_join_ends_nothing() {
    let node = Node::start().await;
    let alice = node.client("alice");
    alice.channel("c").await;
    let mut socket = Socket::connect(&node, &alice).await;
    for (join_ref, reference) in [("j1", "r1"), ("j2", "r2")] {
        socket.send(Some(join_ref), reference, TOPIC, "phx_join", json!({})).await;
        socket.take(|frame| frame.reference == json!(reference)).await.response("ok");
    }
    socket.send(Some("j1"), "r3", TOPIC, "phx_leave", json!({})).await;
    socket.take(|frame| frame.reference == json!("r3")).await.response("ok");
    let push = json!({"client_msg_id": "m", "body": {"text": "still here"}});
    socket.send(Some("j2"), "r4", TOPIC, "message", push).await;
    let receipt = socket.take(|frame| frame.reference == json!("r4")).await;
    assert_eq!(receipt.response("ok")["seq"], 1);
}
