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

/// The one answer on a connection that the node closed: a whole problem document. Gives its detail.
#[track_caller]
fn raw_problem(text: &str, status: u16, code: &str) -> String {
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {text:?}"));
    let head = head.to_ascii_lowercase();
    assert!(head.starts_with(&format!("http/1.1 {status} ")), "{text}");
    assert!(head.contains("content-type: application/problem+json"), "{text}");
    assert!(head.contains(&format!("content-length: {}", body.len())), "{text}");
    let document: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!((&document["status"], &document["code"]), (&json!(status), &json!(code)), "{text}");
    document["detail"].as_str().expect("a detail").to_owned()
}

#[tokio::test]
async fn requests_that_are_no_http_get_a_problem_document() {
    let node = Node::start().await;
    let listen = node.started.listen;
    for (bytes, named) in [
        (&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..], "method"),
        (b"GET\r\n\r\n", "method"),
        (b"GET /\xff HTTP/1.1\r\n\r\n", "URI"),
        (b"GET / HTTP/9.9\r\n\r\n", "version"),
        (b"GET / HTTP/1.1\r\nHost\r\n\r\n", "header"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nBad header: x\r\n\r\n", "header"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", "content-length"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "content-length"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", "transfer-encoding"),
    ] {
        let (_, text) = Raw::exchange(listen, bytes).await;
        let detail = raw_problem(&text, 400, "invalid_request");
        assert!(detail.starts_with("request head: ") && detail.contains(named), "{named} in {detail}");
    }
    assert_eq!(node.metric("conch_refusals_total{code=\"invalid_request\"}").await, 9.0);
    // What came before it on the connection is answered as if nothing followed.
    let pipelined = format!("GET /v1/openapi.json HTTP/1.1\r\nHost: {listen}\r\n\r\nnonsense\r\n\r\n");
    let (status, text) = Raw::exchange(listen, pipelined.as_bytes()).await;
    assert_eq!(status, 200, "{text}");
    let second = text.rfind("HTTP/1.1 ").expect("there is a second answer");
    assert!(text[..second].ends_with('}') || text[..second].ends_with("}\n"), "the first answer is whole: {text}");
    raw_problem(&text[second..], 400, "invalid_request");
    node.stranger().get("/v1/openapi.json").await.ok(200);
}

#[tokio::test]
async fn heads_far_beyond_the_limits_get_a_problem_document_with_the_limits() {
    let node = Node::start_with(|config| {
        config.limits.header_bytes = 8_192;
        config.limits.headers = 50;
    })
    .await;
    let many = "X-Many: 1\r\n".repeat(101);
    let large = format!("X-Large: {}\r\n", "x".repeat(200 * 1024));
    let path = "x".repeat(200 * 1024);
    for head in [
        format!("GET / HTTP/1.1\r\n{many}\r\n"),
        format!("GET / HTTP/1.1\r\n{large}\r\n"),
        format!("GET /{path} HTTP/1.1\r\n\r\n"),
    ] {
        let (_, text) = Raw::exchange(node.started.listen, head.as_bytes()).await;
        let detail = raw_problem(&text, 431, "headers_too_large");
        assert!(detail.contains("50 headers") && detail.contains("8192 bytes"), "{detail}");
    }
    assert_eq!(node.metric("conch_refusals_total{code=\"headers_too_large\"}").await, 3.0);
}

/// Who asks first whether a body is welcome is told that it is too large, and is never asked for it.
#[tokio::test]
async fn a_body_that_is_too_large_is_refused_before_it_is_sent() {
    let node = Node::start().await;
    let alice = node.client("alice");
    alice.channel("c").await;
    let head = |bytes: usize| {
        format!(
            "POST {MESSAGES} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n\
             Expect: 100-continue\r\nConnection: close\r\nContent-Length: {bytes}\r\n\r\n",
            node.started.listen,
            alice.token.as_deref().expect("a token")
        )
    };
    let (_, text) = Raw::exchange(node.started.listen, head(1 << 30).as_bytes()).await;
    raw_problem(&text, 413, "too_large");
    // One that is small enough is asked for.
    let body = json!({"client_msg_id": "k", "body": {"text": "x"}}).to_string();
    let whole = format!("{}{body}", head(body.len()));
    let (status, text) = Raw::exchange(node.started.listen, whole.as_bytes()).await;
    assert!(status == 201 || status == 100, "{text}");
    assert_eq!(alice.log("c").await.len(), 1);
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
