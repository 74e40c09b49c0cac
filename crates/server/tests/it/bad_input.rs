//! Hostile input: every malformed id, path, body and query gets its named error, and the node goes on.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};

use crate::harness::{Client, Node, Raw, Socket};

const MESSAGES: &str = "/v1/conversations/c/messages";

/// A request whose path no client library would send.
async fn raw_get(node: &Node, client: &Client, path: &[u8]) -> (u16, String) {
    let token = client.token.as_deref().expect("a token");
    let head = format!(
        " HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n",
        node.started.listen
    );
    Raw::exchange(node.started.listen, &[b"GET ", path, head.as_bytes()].concat()).await
}

#[tokio::test]
async fn ids_are_held_to_their_alphabet_and_length() {
    let node = Node::start().await;
    let alice = node.client("alice");
    let longest = "x".repeat(128);
    for id in ["a", "A.b_c-d:9", longest.as_str(), ".", "..a", "-"] {
        if id != "." {
            alice.channel(id).await;
        }
    }
    let long = "x".repeat(129);
    let bad = [
        long.as_str(),
        "a%20b",
        "a%2Fb",
        "a%5Cb",
        "a%00b",
        "a%0Ab",
        "a%7Fb",
        "a%3Fb",
        "a%23b",
        "a%22b",
        "a%27b",
        "a%2Cb",
        "a*b",
        "a@b",
        "a~b",
        "a+b",
        "%C3%A9",
        "%F0%9F%90%9A",
        "a%25b",
    ];
    for id in bad {
        for (method, rest) in
            [("GET", ""), ("PUT", ""), ("GET", "/messages"), ("POST", "/messages"), ("GET", "/stream")]
        {
            let body = match (method, rest) {
                ("PUT", "") => json!({"kind": "channel"}),
                _ => json!({"client_msg_id": "k", "body": {"text": "x"}}),
            };
            let answer = alice.call(method, &format!("/v1/conversations/{id}{rest}"), body).await;
            let detail = answer.problem(422, "invalid_request");
            assert!(detail.contains("conversation"), "{method} {id}{rest}: {detail}");
        }
    }
    let mut socket = Socket::connect(&node, &alice).await;
    for id in ["", "a b", "a/b", "a\\b", "a\u{0}b", "a\nb", "a\"b", "é", &long] {
        socket.send(Some("j"), "r", &format!("conversation:{id}"), "phx_join", json!({})).await;
        socket.reply("r").await.refused("invalid_request");
    }
}

#[tokio::test]
async fn subjects_are_held_to_their_length_and_characters() {
    let node = Node::start().await;
    let alice = node.client("alice");
    alice.channel("c").await;
    let members = "/v1/conversations/c/members";
    for sub in ["x".repeat(256), "%C3%A9".to_owned(), "a%20b".to_owned(), "a%2Fb".to_owned()] {
        let answer = alice.put(&format!("{members}/{sub}"), json!({})).await;
        assert_eq!(answer.status, 201, "{sub}: {answer:?}");
    }
    for (sub, named) in [
        ("x".repeat(257), "256"),
        ("%40end".to_owned(), "@"),
        ("@agent:demo".to_owned(), "@"),
        ("a%00b".to_owned(), "sub"),
        ("a%0Ab".to_owned(), "sub"),
    ] {
        for method in ["PUT", "DELETE"] {
            let detail =
                alice.call(method, &format!("{members}/{sub}"), json!({})).await.problem(422, "invalid_request");
            assert!(detail.contains(named), "{sub}: {detail}");
        }
    }
}

#[tokio::test]
async fn paths_that_are_no_text_get_a_problem_document() {
    let node = Node::start().await;
    let alice = node.client("alice");
    for path in ["/v1/conversations/%ff", "/v1/conversations/%C3/messages", "/v1/conversations/c/members/%ff"] {
        let method = if path.contains("members") { "PUT" } else { "GET" };
        let detail = alice.call(method, path, json!({})).await.problem(400, "invalid_request");
        assert!(detail.contains("path"), "{detail}");
    }
    for path in
        [&b"/v1/conversations/%zz"[..], b"/v1/conversations/%", b"/v1/conversations/%4", b"/v1/conversations/\xff"]
    {
        let (status, text) = raw_get(&node, &alice, path).await;
        assert!(status == 400 || status == 422, "{text}");
    }
    for path in [&b"/%ff"[..], b"/%00", b"/..%2f..%2fCargo.toml", b"/%2e%2e/Cargo.toml", b"/console/../../Cargo.toml"] {
        let (status, text) = raw_get(&node, &alice, path).await;
        assert_eq!(status, 404, "{text}");
        assert!(text.contains(r#""code":"not_found""#), "{text}");
    }
    for query in
        ["limit=%ff", "limit=%zz", "%ff=1", "limit=1%00", "limit=0x10", "limit=1e3", "limit=+-1", "=", "kinds=%ff"]
    {
        let answer = alice.get(&format!("/v1/conversations?{query}")).await;
        answer.problem(400, "invalid_request");
    }
}

#[tokio::test]
async fn requests_that_are_no_http_are_cut() {
    let node = Node::start().await;
    let listen = node.started.listen;
    for bytes in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nBad header: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n",
    ] {
        let (status, _) = Raw::exchange(listen, bytes).await;
        assert_eq!(status, 400, "{}", String::from_utf8_lossy(bytes));
    }
    node.stranger().get("/v1/openapi.json").await.ok(200);
}

#[tokio::test]
async fn hostile_bodies_are_named_or_kept_as_they_are() {
    let node = Node::start().await;
    let alice = node.client("alice");
    alice.channel("c").await;
    let nested = |levels: usize| format!(r#"{{"client_msg_id":"n{levels}","body":{}}}"#, nest(levels));
    for (body, status, named) in [
        (b"".to_vec(), 400, "EOF"),
        (b"null".to_vec(), 400, "null"),
        (b"[]".to_vec(), 400, ""),
        (b"{".to_vec(), 400, "EOF"),
        (b"{} {}".to_vec(), 400, ""),
        (b"\xef\xbb\xbf{}".to_vec(), 400, ""),
        (b"{\"client_msg_id\":\"\xff\"}".to_vec(), 400, "UTF-8"),
        (b"{\"client_msg_id\":\"k\",\"body\":{\"text\":\"\xed\xa0\x80\"}}".to_vec(), 400, "UTF-8"),
        (br#"{"client_msg_id":"k","client_msg_id":"k","body":{"text":"x"}}"#.to_vec(), 400, "client_msg_id"),
        (br#"{"client_msg_id":"k","body":{"text":"x"},"body":{"text":"y"}}"#.to_vec(), 400, "body"),
        (br#"{"client_msg_id":"\ud800","body":{"text":"x"}}"#.to_vec(), 400, "hex escape"),
        (br#"{"client_msg_id":"k","body":{"text":"\ud800"}}"#.to_vec(), 400, "hex escape"),
        (br#"{"client_msg_id":"k","body":{"text":"x","\udc00":1}}"#.to_vec(), 400, "hex escape"),
        (br#"{"client_msg_id":"k","body":{"text":"x","n":1e400}}"#.to_vec(), 400, "number"),
        (br#"{"client_msg_id":"k","body":{"text":"x","n":NaN}}"#.to_vec(), 400, ""),
        (br#"{"client_msg_id":"k","body":{"text":"x","n":01}}"#.to_vec(), 400, ""),
        (b"{\"client_msg_id\":\"k\",\"body\":{\"text\":\"a\nb\"}}".to_vec(), 400, "control"),
        (br#"{"client_msg_id":"a\u0000b","body":{"text":"x"}}"#.to_vec(), 422, "client_msg_id"),
        (nested(33).into_bytes(), 400, "32"),
        (nested(10_000).into_bytes(), 400, "nested"),
        (["[".repeat(100_000).as_bytes(), b"1"].concat(), 400, "nested"),
    ] {
        let shown: String = String::from_utf8_lossy(&body).chars().take(80).collect();
        let detail = alice.call_raw("POST", MESSAGES, body).await.problem(status, "invalid_request");
        assert!(detail.contains(named), "{named} in {detail} for {shown}");
    }
    assert_eq!(alice.log("c").await, Vec::<Value>::new());
    // What is odd but valid comes back as it was sent, on every transport.
    let mut socket = Socket::joined(&node, &alice, "c").await;
    let odd =
        r#"{"text":"\u0000\ud83d\udc1a","big":123456789012345678901234567890,"__proto__":{"x":1},"":null,"e":1E+2}"#;
    let sent = format!(r#"{{"client_msg_id":"odd","body":{odd}}}"#);
    alice.call_raw("POST", MESSAGES, sent).await.ok(201);
    assert!(socket.until_event("message").await.text.contains(odd), "on a channel");
    assert!(alice.get(MESSAGES).await.text.contains(odd), "in history");
    alice.call_raw("POST", MESSAGES, nested(32)).await.ok(201);
}

/// A body with a text, so many levels deep.
fn nest(levels: usize) -> String {
    format!(r#"{{"text":"x","a":{}1{}}}"#, "[".repeat(levels - 1), "]".repeat(levels - 1))
}

/// Whatever bytes come, the answer is a problem document with a known status, and the node stays.
#[test]
fn no_bytes_break_the_node() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let (node, alice) = runtime.block_on(async {
        let node = Node::start().await;
        let alice = node.client("alice");
        alice.channel("c").await;
        (node, alice)
    });
    let mut runner = TestRunner::new(Config { cases: 128, failure_persistence: None, ..Config::default() });
    let json_like = proptest::collection::vec(
        proptest::sample::select(vec![
            "{",
            "}",
            "[",
            "]",
            ",",
            ":",
            "\"client_msg_id\"",
            "\"body\"",
            "\"text\"",
            "\"k\"",
            "1",
            "null",
            "\\",
            "\"",
        ]),
        0..20,
    );
    let bytes = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..64),
        json_like.prop_map(|tokens| tokens.concat().into_bytes()),
    ];
    runner
        .run(&bytes, |bytes| {
            let answer = runtime.block_on(alice.call_raw("POST", MESSAGES, bytes));
            prop_assert!(matches!(answer.status, 201 | 200 | 400 | 422 | 409), "{answer:?}");
            prop_assert!(answer.json().is_object());
            Ok(())
        })
        .expect("every answer is known");
    runtime.block_on(async {
        alice.sent("c", "last", "still here").await;
        node.ended().await;
    });
}

#[tokio::test]
async fn a_body_that_never_comes_is_given_up() {
    let node = Node::start_with(|config| {
        config.limits.route_ms = 100;
        config.limits.join_wait_ms = 200;
        config.limits.request_timeout_ms = 200;
    })
    .await;
    let alice = node.client("alice");
    alice.channel("c").await;
    let head = format!(
        "POST {MESSAGES} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n\
         Content-Length: 100\r\n\r\n{{",
        node.started.listen,
        alice.token.as_deref().expect("a token")
    );
    let (status, text) = Raw::exchange(node.started.listen, head.as_bytes()).await;
    assert_eq!(status, 503, "{text}");
    assert!(text.contains("not answered within 200 ms"), "{text}");
}
