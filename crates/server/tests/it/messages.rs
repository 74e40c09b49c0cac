//! Messages: append, history, cursors; and what every HTTP answer has in common.

use conch_server::auth::grants::Permission;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};

use crate::harness::{Client, Node, Raw};

const MESSAGES: &str = "/v1/conversations/c/messages";

#[tokio::test]
async fn a_send_is_acked_once_however_often_it_comes() {
    let node = Node::start().await;
    let alice = node.client("alice");
    alice.channel("c").await;
    let receipt = alice.send("c", "k1", "hello").await.ok(201);
    assert_eq!((&receipt["seq"], &receipt["duplicate"]), (&json!(1), &json!(false)));
    let at = receipt["at"].as_str().expect("a moment");
    assert!(at.len() == 24 && at.ends_with('Z') && at.as_bytes()[19] == b'.', "RFC 3339 with milliseconds: {at}");
    let again = alice.send("c", "k1", "hello").await.ok(200);
    assert_eq!(again["duplicate"], true);
    for field in ["seq", "epoch", "at"] {
        assert_eq!(again[field], receipt[field], "{field}");
    }
    // White space between tokens is not part of what was sent.
    let spaced = r#" { "client_msg_id" : "k1" , "body" : { "text" : "hello" } } "#;
    assert_eq!(alice.call_raw("POST", MESSAGES, spaced).await.ok(200)["seq"], receipt["seq"]);
    alice.send("c", "k1", "other").await.problem(409, "idempotency_key_reused");
    let as_event = json!({"client_msg_id": "k1", "kind": "event", "body": {"text": "hello"}});
    alice.post(MESSAGES, as_event).await.problem(409, "idempotency_key_reused");
    // The key is the sender's own.
    assert_eq!(node.client("bob").send("c", "k1", "other").await.ok(201)["seq"], 2);
    let node = node.restart().await;
    let again = node.client("alice").send("c", "k1", "hello").await.ok(200);
    assert_eq!((&again["seq"], &again["epoch"]), (&receipt["seq"], &receipt["epoch"]), "after a restart");
}

#[tokio::test]
async fn a_record_has_the_contracts_shape() {
    let node = Node::start().await;
    let mint = conch_server::auth::token::Mint {
        name: Some("Alice L.".to_owned()),
        ..crate::harness::mint("alice", &[("*", &Permission::ALL)])
    };
    let alice = Client::new(node.started.listen, Some(node.mint(&mint)));
    alice.channel("c").await;
    let body = json!({"client_msg_id": "k", "body": {"text": "hi", "opaque": [1, {"b": null}]}});
    let receipt = alice.post(MESSAGES, body).await.ok(201);
    let page = alice.get(MESSAGES).await.ok(200);
    let expected = json!({
        "seq": 1, "kind": "message", "conversation": "c", "sender": "alice", "name": "Alice L.",
        "client_msg_id": "k", "at": receipt["at"], "epoch": receipt["epoch"],
        "body": {"text": "hi", "opaque": [1, {"b": null}]},
    });
    assert_eq!(page["messages"], json!([expected]));
    assert_eq!((&page["head_seq"], &page["more"]), (&json!(1), &json!(false)));
    let log = alice.get("/v1/conversations/c").await.ok(200)["log"].clone();
    assert_eq!(page["log"], log);
}

#[tokio::test]
async fn the_idempotency_key_header_stands_in_for_the_field() {
    let node = Node::start().await;
    let alice = node.client("alice");
    alice.channel("c").await;
    let send = async |header: &[&str], field: Option<&str>| {
        let mut body = json!({"body": {"text": "hi"}});
        if let Some(field) = field {
            body["client_msg_id"] = json!(field);
        }
        let mut request = alice.request("POST", MESSAGES).json(&body);
        for value in header {
            request = request.header("idempotency-key", *value);
        }
        Client::answer(request).await
    };
    let seq = send(&["key-1"], None).await.ok(201)["seq"].clone();
    assert_eq!(send(&[], Some("key-1")).await.ok(200)["seq"], seq);
    assert_eq!(send(&["key-1"], Some("key-1")).await.ok(200)["seq"], seq);
    let detail = send(&["key-1"], Some("key-2")).await.problem(422, "invalid_request");
    assert!(detail.contains("client_msg_id") && detail.contains("Idempotency-Key"), "{detail}");
    assert!(send(&[], None).await.problem(422, "invalid_request").contains("client_msg_id"));
    assert!(send(&["a", "b"], None).await.problem(422, "invalid_request").contains("Idempotency-Key"));
    assert_eq!(alice.get(MESSAGES).await.ok(200)["head_seq"], 1, "the refused took no number");
}

#[tokio::test]
async fn events_are_records_of_their_own_kind() {
    let node = Node::start().await;
    let alice = node.client("alice");
    alice.channel("c").await;
    let event = json!({"client_msg_id": "e", "kind": "event", "body": {"deploy": "done"}});
    alice.post(MESSAGES, event).await.ok(201);
    let message = json!({"client_msg_id": "m", "kind": "message", "body": {"text": "hi"}});
    alice.post(MESSAGES, message).await.ok(201);
    for kind in ["turn.started", "message.edited", "@end", ""] {
        let body = json!({"client_msg_id": "x", "kind": kind, "body": {"text": "hi"}});
        assert!(alice.post(MESSAGES, body).await.problem(422, "invalid_request").starts_with("kind"));
    }
    let kinds = async |query: &str| {
        let page = alice.get(&format!("{MESSAGES}?{query}")).await.ok(200);
        let kinds = page["messages"].as_array().expect("a list").iter().map(|record| record["kind"].clone());
        kinds.collect::<Vec<Value>>()
    };
    assert_eq!(kinds("").await, ["event", "message"]);
    assert_eq!(kinds("kinds=event").await, ["event"]);
    assert_eq!(kinds("kinds=message,event").await, ["event", "message"]);
    assert_eq!(kinds("kinds=turn.started").await, Vec::<Value>::new());
    assert!(alice.get(&format!("{MESSAGES}?kinds=nothing")).await.problem(422, "invalid_request").contains("nothing"));
}

#[tokio::test]
async fn history_goes_both_ways_and_is_always_ascending() {
    let node = Node::start().await;
    let alice = node.client("alice");
    alice.channel("c").await;
    for number in 1..=60 {
        assert_eq!(alice.sent("c", &number.to_string(), "hi").await, number);
    }
    let page = async |query: &str| {
        let page = alice.get(&format!("{MESSAGES}?{query}")).await.ok(200);
        assert_eq!(page["head_seq"], 60);
        let seqs = page["messages"].as_array().expect("a list").iter().map(|record| record["seq"].as_u64());
        (seqs.map(|seq| seq.expect("a seq")).collect::<Vec<u64>>(), page["more"] == true)
    };
    let range = |first: u64, last: u64| (first..=last).collect::<Vec<u64>>();
    assert_eq!(page("").await, (range(11, 60), true), "the latest 50 by default");
    assert_eq!(page("limit=500").await, (range(1, 60), false));
    assert_eq!(page("limit=60").await, (range(1, 60), false));
    assert_eq!(page("after=0").await, (range(1, 50), true));
    assert_eq!(page("after=50").await, (range(51, 60), false));
    assert_eq!(page("after=58&limit=1").await, (range(59, 59), true));
    assert_eq!(page("after=60").await, (vec![], false));
    assert_eq!(page("after=18446744073709551615").await, (vec![], false));
    assert_eq!(page("before=11&limit=4").await, (range(7, 10), true));
    assert_eq!(page("before=5").await, (range(1, 4), false));
    assert_eq!(page("before=1").await, (vec![], false));
    assert_eq!(page("before=0").await, (vec![], false));
    assert_eq!(page("before=18446744073709551615&limit=1").await, (range(60, 60), true));
    for (query, status, named) in [
        ("limit=0", 422, "limit: must be 1 to 500"),
        ("limit=501", 422, "limit: must be 1 to 500"),
        ("after=1&before=2", 422, "after and before"),
        ("after=-1", 400, "after:"),
        ("after=1.5", 400, "after:"),
        ("after=18446744073709551616", 400, "after:"),
        ("after=", 400, "after:"),
        ("colour=red", 400, "colour:"),
        ("after=1&after=2", 400, "after"),
    ] {
        let detail = alice.get(&format!("{MESSAGES}?{query}")).await.problem(status, "invalid_request");
        assert!(detail.contains(named), "{query}: {detail}");
    }
    alice.get("/v1/conversations/none/messages").await.problem(404, "not_found");
}

#[tokio::test]
async fn my_cursor_only_moves_forward() {
    let node = Node::start().await;
    let (alice, bob) = (node.client("alice"), node.client("bob"));
    alice.channel_of("c", &["bob"]).await;
    for number in 1..=5 {
        alice.sent("c", &number.to_string(), "hi").await;
    }
    let path = "/v1/conversations/c/cursor";
    assert_eq!(bob.put(path, json!({"seq": 3})).await.ok(200), json!({"seq": 3}));
    assert_eq!(bob.put(path, json!({"seq": 2})).await.ok(200), json!({"seq": 3}), "it stays");
    assert_eq!(bob.put(path, json!({"seq": 5})).await.ok(200), json!({"seq": 5}));
    for beyond in [6, u64::MAX] {
        let detail = bob.put(path, json!({"seq": beyond})).await.problem(422, "invalid_request");
        assert!(detail.starts_with("seq:") && detail.contains('5'), "{detail}");
    }
    assert_eq!(alice.put(path, json!({"seq": 1})).await.ok(200), json!({"seq": 1}), "each has their own");
    for body in [json!({}), json!({"seq": "1"}), json!({"seq": -1}), json!({"seq": 1, "x": 1}), json!({"seq": 1.5})] {
        bob.put(path, body).await.problem(400, "invalid_request");
    }
    bob.put("/v1/conversations/none/cursor", json!({"seq": 0})).await.problem(404, "not_found");
}

#[tokio::test]
async fn a_send_that_cannot_be_taken_is_named() {
    let node = Node::start().await;
    let alice = node.client("alice");
    alice.channel("c").await;
    alice.send("none", "k", "hi").await.problem(404, "not_found");
    let with_body = |body: Value| json!({"client_msg_id": "k", "body": body});
    for (request, status, named) in [
        (with_body(json!({})), 422, "text"),
        (with_body(json!({"text": 1})), 422, "text"),
        (with_body(json!({"text": null})), 422, "text"),
        (with_body(json!("hi")), 422, "body"),
        (with_body(json!([])), 422, "body"),
        (json!({"client_msg_id": "k"}), 400, "body"),
        (json!({"client_msg_id": "k", "body": {"text": "x"}, "colour": 1}), 400, "colour"),
        (json!({"client_msg_id": "", "body": {"text": "x"}}), 422, "client_msg_id"),
        (json!({"client_msg_id": "é", "body": {"text": "x"}}), 422, "client_msg_id"),
        (json!({"client_msg_id": "a\u{7f}", "body": {"text": "x"}}), 422, "client_msg_id"),
        (json!({"client_msg_id": "x".repeat(129), "body": {"text": "x"}}), 422, "client_msg_id"),
        (json!({"client_msg_id": 1, "body": {"text": "x"}}), 400, "string"),
    ] {
        let shown = request.to_string();
        let detail = alice.post(MESSAGES, request).await.problem(status, "invalid_request");
        assert!(detail.contains(named), "{named} in {detail} for {shown}");
    }
    alice.sent("c", &"x".repeat(128), "the longest key").await;
    let most = json!({"client_msg_id": "most", "body": {"text": "x".repeat(64 * 1024 - 11)}});
    alice.post(MESSAGES, most).await.ok(201);
    let over = json!({"client_msg_id": "over", "body": {"text": "x".repeat(64 * 1024 - 10)}});
    let detail = alice.post(MESSAGES, over).await.problem(413, "too_large");
    assert!(detail.contains("65536"), "{detail}");
    assert_eq!(alice.get(MESSAGES).await.ok(200)["head_seq"], 2, "the refused took no number");
}

#[tokio::test]
async fn bodies_are_held_to_type_and_size() {
    let node = Node::start().await;
    let alice = node.client("alice");
    alice.channel("c").await;
    for media_type in ["text/plain", "application/x-www-form-urlencoded", "application/jsonx", ""] {
        let request = alice.request("POST", MESSAGES).header("content-type", media_type).body("{}");
        let detail = Client::answer(request).await.problem(415, "unsupported_media_type");
        assert!(detail.contains("application/json"), "{detail}");
    }
    Client::answer(alice.request("POST", MESSAGES).body("{}")).await.problem(415, "unsupported_media_type");
    let request = alice.request("POST", MESSAGES).header("content-type", "Application/JSON; charset=utf-8");
    Client::answer(request.body(r#"{"client_msg_id":"k","body":{"text":"hi"}}"#)).await.ok(201);
    let detail = alice.call_raw("POST", MESSAGES, vec![b' '; 200_000]).await.problem(413, "too_large");
    assert!(detail.contains("139264"), "{detail}");
    // The same, without a length that gives it away.
    let chunks = futures_util::stream::iter((0..200).map(|_| Ok::<_, std::io::Error>(vec![b' '; 1_000])));
    alice.call_raw("POST", MESSAGES, reqwest::Body::wrap_stream(chunks)).await.problem(413, "too_large");
}

#[tokio::test]
async fn methods_and_paths_that_do_not_exist_say_so() {
    let node = Node::start().await;
    let alice = node.client("alice");
    alice.channel("c").await;
    for (method, path) in [
        ("DELETE", "/v1/conversations/c"),
        ("POST", "/v1/conversations/c"),
        ("POST", "/v1/conversations"),
        ("DELETE", "/v1/conversations/c/messages"),
        ("PUT", "/v1/conversations/c/messages"),
        ("POST", "/v1/conversations/c/stream"),
        ("DELETE", "/v1/stream"),
        ("GET", "/v1/conversations/c/cursor"),
        ("PUT", "/v1/conversations/c/presence"),
        ("GET", "/dev/login"),
        ("POST", "/socket/websocket"),
        ("BREW", "/v1/conversations/c"),
    ] {
        let answer = alice.call(method, path, json!({})).await;
        assert!(answer.header("allow").is_some(), "{method} {path}: {answer:?}");
        let detail = answer.problem(405, "method_not_allowed");
        assert!(detail.contains(path) && detail.contains(method), "{detail}");
    }
    for (method, path) in [
        ("PATCH", "/v1/conversations/c/messages/1"),
        ("DELETE", "/v1/conversations/c/messages/1"),
        ("POST", "/v1/nodes/n/drain"),
        ("GET", "/nothing"),
        ("GET", "/v1"),
        ("GET", "/v1/conversations/"),
        ("GET", "/v1/conversations/c/"),
        ("GET", "//v1/stream"),
        ("GET", "/../Cargo.toml"),
    ] {
        alice.call(method, path, json!({})).await.problem(404, "not_found");
    }
}

#[tokio::test]
async fn head_is_get_without_a_body() {
    let node = Node::start().await;
    let alice = node.client("alice");
    alice.channel("c").await;
    for path in ["/v1/conversations", "/v1/conversations/c", MESSAGES, "/", "/v1/openapi.json"] {
        let (head, get) = (Client::answer(alice.request("HEAD", path)).await, alice.get(path).await);
        assert_eq!((head.status, head.text.as_str()), (200, ""), "{path}");
        assert_eq!(head.header("content-type"), get.header("content-type"), "{path}");
    }
    let head = Client::answer(node.stranger().request("HEAD", MESSAGES)).await;
    assert_eq!((head.status, head.text.as_str()), (401, ""));
}

#[tokio::test]
async fn heads_over_the_limit_are_refused() {
    let node = Node::start().await;
    let alice = node.client("alice");
    let request = alice.request("GET", "/v1/conversations").header("x-long", "x".repeat(16 * 1024));
    let detail = Client::answer(request).await.problem(431, "headers_too_large");
    assert!(detail.contains("16384"), "{detail}");
    let mut request = alice.request("GET", "/v1/conversations");
    for number in 0..101 {
        request = request.header(format!("x-{number}"), "x");
    }
    assert!(Client::answer(request).await.problem(431, "headers_too_large").contains("100"));
    // Far over the limit the node does not even read to the end.
    let huge = format!("GET / HTTP/1.1\r\nHost: {}\r\nX: {}", node.started.listen, "x".repeat(60 * 1024));
    assert_eq!(Raw::exchange(node.started.listen, huge.as_bytes()).await.0, 431);
    alice.get("/v1/conversations").await.ok(200);
}

#[test]
fn whatever_body_is_acked_comes_back_as_it_was() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let (node, alice) = runtime.block_on(async {
        let node = Node::start().await;
        let alice = node.client("alice");
        alice.channel("c").await;
        (node, alice)
    });
    let mut runner = TestRunner::new(Config { cases: 64, failure_persistence: None, ..Config::default() });
    let strategy = (".{0,40}", proptest::collection::btree_map(".{0,8}", value(), 0..4));
    runner
        .run(&strategy, |(text, others)| {
            let mut body = json!({});
            for (key, value) in others {
                body[key] = value;
            }
            body["text"] = json!(text);
            let key = format!("k{}", rand::random::<u64>());
            let sent = json!({"client_msg_id": key, "body": body});
            let (receipt, found) = runtime.block_on(async {
                let receipt = alice.post(MESSAGES, sent).await.ok(201);
                let after = receipt["seq"].as_u64().expect("a seq") - 1;
                let found = alice.get(&format!("{MESSAGES}?after={after}&limit=1")).await.ok(200);
                (receipt, found["messages"][0].clone())
            });
            proptest::prop_assert_eq!(&found["seq"], &receipt["seq"]);
            proptest::prop_assert_eq!(&found["body"], &body);
            Ok(())
        })
        .expect("every body comes back");
    runtime.block_on(node.ended());
}

fn value() -> impl proptest::strategy::Strategy<Value = Value> {
    use proptest::prelude::*;
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 16, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(".{0,6}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}
