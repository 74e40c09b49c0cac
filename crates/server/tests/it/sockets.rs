//! WebSockets below Phoenix: the upgrade, frames that are wrong, slow readers, and the end.

use conch_core::wire::websocket::{Incoming, Opcode, client_frame};
use serde_json::json;

use crate::harness::{Client, Node, Raw, RawSocket, Socket};

const TOPIC: &str = "conversation:c";
const MASK: [u8; 4] = [9, 8, 7, 6];

/// A frame with any first byte.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = client_frame(Opcode::Text, MASK, payload).to_vec();
    bytes[0] = first;
    bytes
}

#[tokio::test]
async fn handshakes_that_are_wrong_are_refused_before_the_upgrade() {
    let node = Node::start().await;
    let alice = node.client("alice");
    let token = alice.token.clone().expect("a token");
    let good = RawSocket::handshake(&node, &token);
    let close = "Connection: close\r\n\r\n";
    for (from, to, status, named) in [
        ("vsn=2.0.0", "vsn=1.0.0", 400, "vsn"),
        ("vsn=2.0.0&", "", 400, "vsn"),
        ("Upgrade: websocket", "Upgrade: h2c", 400, "Upgrade"),
        ("Version: 13", "Version: 8", 400, "Sec-WebSocket-Version"),
        ("Sec-WebSocket-Version: 13\r\n", "", 400, "Sec-WebSocket-Version"),
        ("dGhlIHNhbXBsZSBub25jZQ==", "short", 400, "Sec-WebSocket-Key"),
        ("dGhlIHNhbXBsZSBub25jZQ==", "dGhlIHNhbXBsZSBub25jZQ!!", 400, "Sec-WebSocket-Key"),
        ("Connection: Upgrade\r\n", "", 400, "Upgrade"),
        (&format!("&token={token}"), "", 403, "token"),
        (&format!("&token={token}"), "&token=x", 403, "token"),
        ("Host: ", "Origin: https://evil.example\r\nHost: ", 403, "Origin"),
    ] {
        let request = good.replace(from, to).replace("\r\n\r\n", &format!("\r\n{close}"));
        let (found, text) = Raw::exchange(node.started.listen, request.as_bytes()).await;
        assert_eq!(found, status, "{from} → {to}: {text}");
        assert!(text.contains("application/problem+json"), "{text}");
        let body = text.rsplit("\r\n\r\n").next().expect("a body");
        let detail = serde_json::from_str::<serde_json::Value>(body).expect("JSON")["detail"].to_string();
        assert!(detail.contains(named), "{from} → {to}: {detail}");
    }
}

#[tokio::test]
async fn over_the_limit_sockets_are_refused_before_the_upgrade() {
    let node = Node::start_with(|config| config.limits.sockets = 1).await;
    let alice = node.client("alice");
    let held = Socket::connect(&node, &alice).await;
    let request = RawSocket::handshake(&node, alice.token.as_deref().expect("a token"));
    let mut raw = Raw::connect(node.started.listen).await;
    raw.write(request.as_bytes()).await;
    raw.write(b"GET / HTTP/1.1\r\nConnection: close\r\nHost: x\r\n\r\n").await;
    let text = raw.read_to_end().await;
    assert!(text.starts_with("HTTP/1.1 503 "), "{text}");
    let head = text.to_ascii_lowercase();
    node.metric_becomes(r#"conch_limit_hits_total{queue="sockets"}"#, 1.0).await;
    assert!(head.contains("retry-after: ") && head.contains(r#""code":"overloaded""#), "{text}");
    held.close().await;
    node.metric_becomes("conch_sockets", 0.0).await;
    Socket::connect(&node, &alice).await.close().await;
}

#[tokio::test]
async fn frames_that_break_the_protocol_close_with_their_code() {
    let node = Node::start().await;
    let alice = node.client("alice");
    let unmasked = b"\x81\x02[]".to_vec();
    let huge = {
        let mut bytes = vec![0x81, 0xff];
        bytes.extend_from_slice(&(1024 * 1024 + 1_u64).to_be_bytes());
        bytes.extend_from_slice(&MASK);
        bytes
    };
    let absurd = [&[0x81, 0xff][..], &[0xff; 8], &MASK].concat();
    let pieces = {
        let half = vec![b'x'; 600 * 1024];
        [frame(0x01, &half), frame(0x80, &half)].concat()
    };
    for (what, bytes, code) in [
        ("unmasked", unmasked, 1002),
        ("a reserved bit", frame(0xc1, b"[]"), 1002),
        ("a reserved opcode", frame(0x83, b"[]"), 1002),
        ("a continuation of nothing", frame(0x80, b"[]"), 1002),
        ("a fragmented ping", frame(0x09, b"x"), 1002),
        ("a long ping", frame(0x89, &[b'x'; 126]), 1002),
        ("a new text inside of another", [frame(0x01, b"["), frame(0x81, b"]")].concat(), 1002),
        ("a close of one byte", frame(0x88, b"x"), 1002),
        ("a close with a reserved code", frame(0x88, &1005_u16.to_be_bytes()), 1002),
        ("a close whose reason is not UTF-8", frame(0x88, b"\x03\xe8\xff"), 1007),
        ("text that is not UTF-8", frame(0x81, b"[\xff]"), 1007),
        ("text that ends inside of a character", frame(0x81, b"[\xe2\x82"), 1007),
        ("binary", frame(0x82, b"[]"), 1003),
        ("a frame over the limit", huge, 1009),
        ("a frame of no machine", absurd, 1002),
        ("fragments over the limit", pieces, 1009),
    ] {
        let mut socket = RawSocket::connect(&node, &alice).await;
        socket.write_if_open(&bytes).await;
        assert_eq!(socket.close_code().await, code, "{what}");
    }
    node.metric_becomes("conch_sockets", 0.0).await;
    node.metric_becomes(r#"conch_limit_hits_total{queue="frame"}"#, 2.0).await;
}

/// The peer must get the close, whatever of its own is still on the way.
#[tokio::test]
async fn a_frame_over_the_limit_closes_with_1009_while_it_is_being_sent() {
    let node = Node::start().await;
    let alice = node.client("alice");
    let mut socket = RawSocket::connect(&node, &alice).await;
    socket.write_if_open(&frame(0x81, &vec![b'x'; 3 * 1024 * 1024])).await;
    assert_eq!(socket.close_code().await, 1009);
}

#[tokio::test]
async fn frames_may_come_byte_by_byte_and_in_pieces() {
    let node = Node::start().await;
    let alice = node.client("alice");
    alice.channel("c").await;
    let mut socket = RawSocket::connect(&node, &alice).await;
    let join = format!(r#"["j","r1","{TOPIC}","phx_join",{{}}]"#);
    for byte in frame(0x81, join.as_bytes()) {
        socket.write(&[byte]).await;
    }
    socket.next_frame().await.response("ok");
    let push = format!(r#"["j","r2","{TOPIC}","message",{{"client_msg_id":"k","body":{{"text":"tröpfchen"}}}}]"#);
    let (first, rest) = push.as_bytes().split_at(push.len() - 20);
    socket.write(&frame(0x01, first)).await;
    for byte in rest {
        // Control frames may come between the pieces.
        socket.write(&[frame(0x89, b"p"), frame(0x00, &[*byte])].concat()).await;
    }
    socket.write(&frame(0x80, b"")).await;
    let mut pongs = 0;
    loop {
        match socket.next().await.expect("the socket stays") {
            Incoming::Pong(payload) => {
                assert_eq!(&payload[..], b"p");
                pongs += 1;
            }
            Incoming::Text(text) if text.contains(r#""r2""#) => break,
            Incoming::Text(_) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(pongs, rest.len());
    assert_eq!(alice.log("c").await[0]["body"]["text"], "tröpfchen");
    socket.write(&frame(0x88, &1001_u16.to_be_bytes())).await;
    assert_eq!(socket.close_code().await, 1001, "a close is answered with its own code");
}

#[tokio::test]
async fn texts_that_are_no_frames_get_an_error_and_the_socket_stays() {
    let node = Node::start().await;
    let alice = node.client("alice");
    let mut socket = Socket::connect(&node, &alice).await;
    let deep = format!(r#"["j","r","t","e",{{"a":{}1{}}}]"#, "[".repeat(200_000), "]".repeat(200_000));
    let long = "x".repeat(65);
    for text in [
        "",
        "x",
        "{}",
        "[]",
        "null",
        r#"["j","r","t","e"]"#,
        r#"["j","r","t","e",{},1]"#,
        r#"["j","r","t","e",[]]"#,
        r#"["j","r","t","e",null]"#,
        r#"["j",1,"t","e",{}]"#,
        r#"[1,"r","t","e",{}]"#,
        r#"["j","r",null,"e",{}]"#,
        r#"["j","r","t",null,{}]"#,
        r#"["j","r","t","e",{}"#,
        r#"["j","r","t","e",{}] x"#,
        &format!(r#"["{long}","r","t","e",{{}}]"#),
        &format!(r#"["j","{long}","t","e",{{}}]"#),
        &format!(r#"["j","r","{}","e",{{}}]"#, "t".repeat(161)),
        &format!(r#"["j","r","t","{long}",{{}}]"#),
        &deep,
        &"[".repeat(300_000),
    ] {
        socket.send_text(text).await;
        let shown: String = text.chars().take(60).collect();
        let reply = socket.next().await;
        assert_eq!(reply.event, "phx_reply", "{shown}");
        reply.refused("invalid_request");
        if !reply.reference.is_null() {
            assert_eq!((&reply.join_ref, &reply.reference, reply.topic.as_str()), (&json!("j"), &json!("r"), "t"));
        }
    }
    socket.send(None, "h", "phoenix", "heartbeat", json!({})).await;
    socket.reply("h").await.response("ok");
}

#[tokio::test]
async fn pushes_over_the_limit_get_overloaded_and_the_socket_stays() {
    const COUNT: usize = 400;
    let node = Node::start_with(|config| config.limits.pushes_per_socket = 2).await;
    let alice = node.client("alice");
    alice.channel("c").await;
    let mut socket = Socket::joined(&node, &alice, "c").await;
    for number in 0..COUNT {
        let payload = json!({"client_msg_id": format!("k{number}"), "body": {"text": "hi"}});
        socket.feed(&json!([TOPIC, format!("k{number}"), TOPIC, "message", payload])).await;
    }
    socket.flush().await;
    let (mut acked, mut refused) = (Vec::new(), Vec::new());
    for number in 0..COUNT {
        let reply = socket.reply(&format!("k{number}")).await;
        match reply.payload["status"].as_str() {
            Some("ok") => acked.push(format!("k{number}")),
            _ => {
                let retry = &reply.refused("overloaded")["retry"];
                assert!(retry["after_ms"].is_u64() && retry["budget_ms"].is_u64(), "{retry}");
                refused.push(format!("k{number}"));
            }
        }
    }
    assert!(!refused.is_empty() && !acked.is_empty(), "{} refused", refused.len());
    let log = alice.log("c").await;
    let keys: Vec<&str> = log.iter().filter_map(|record| record["client_msg_id"].as_str()).collect();
    assert_eq!(keys, acked, "exactly the acked ones, in order");
    node.metric_becomes(
        r#"conch_limit_hits_total{queue="pushes"}"#,
        f64::from(u32::try_from(refused.len()).expect("few")),
    )
    .await;
    // A refused send did not consume its key.
    assert_eq!(socket.message("c", &refused[0], "hi").await.response("ok")["duplicate"], false);
}

#[tokio::test]
async fn a_slow_reader_stalls_nobody_is_bounded_and_gets_everything_later() {
    const COUNT: u64 = 600;
    let node = Node::start_with(|config| {
        config.limits.outbox_bytes = 256 * 1024;
        config.limits.ring_bytes = 256 * 1024;
    })
    .await;
    let alice = node.client("alice");
    alice.channel("c").await;
    let mut slow = RawSocket::connect(&node, &node.client("slow")).await;
    slow.text(&format!(r#"["j","r1","{TOPIC}","phx_join",{{"after":0}}]"#)).await;
    let mut quick = Socket::joined(&node, &node.client("quick"), "c").await;
    let text = "x".repeat(30_000);
    for number in 1..=COUNT {
        alice.sent("c", &number.to_string(), &text).await;
        assert_eq!(quick.until_event("message").await.seq(), number, "the others go on");
    }
    assert!(node.metric("conch_slow_sessions_total").await >= 1.0, "it was behind");
    assert!(node.metric(r#"conch_limit_hits_total{queue="outbox"}"#).await >= 1.0, "its queue was full");
    let mut expected = 1;
    while expected <= COUNT {
        let frame = slow.next_frame().await;
        match frame.event.as_str() {
            "message" => {
                assert_eq!(frame.seq(), expected);
                expected += 1;
            }
            "phx_reply" | "caught_up" => {}
            event if event.starts_with("presence_") => {}
            other => panic!("{other}"),
        }
    }
    alice.sent("c", "after", "live again").await;
    loop {
        let frame = slow.next_frame().await;
        if frame.event == "message" {
            assert_eq!(frame.seq(), COUNT + 1);
            break;
        }
    }
}

/// What waits for a client that never reads is bounded, whatever it asks for meanwhile.
#[tokio::test]
async fn a_client_that_asks_and_never_reads_is_read_no_further() {
    let node = Node::start().await;
    let alice = node.client("alice");
    let mut socket = RawSocket::connect(&node, &alice).await;
    let beat = frame(0x81, br#"[null,"0123456789012345678901234567890123456789","phoenix","heartbeat",{}]"#);
    let many = beat.repeat(2_000);
    // Kernel buffers of both sides, and the outbox, hold a few megabytes; far less than this.
    let mut taken = 0_usize;
    let most = 64 * 1024 * 1024;
    while taken < most {
        let written = tokio::time::timeout(std::time::Duration::from_secs(2), socket.write(&many)).await;
        if written.is_err() {
            break;
        }
        taken += many.len();
    }
    assert!(taken < most, "the node took {taken} bytes and queued every answer");
}

#[tokio::test]
async fn a_shutdown_acks_what_is_under_way_and_closes_with_1012() {
    const COUNT: usize = 200;
    let mut node = Node::start_with(|config| config.limits.pushes_per_socket = 1_000).await;
    let alice = node.client("alice");
    alice.channel("c").await;
    let mut socket = Socket::joined(&node, &alice, "c").await;
    let idle = Socket::joined(&node, &alice, "c").await;
    for number in 0..COUNT {
        let payload = json!({"client_msg_id": format!("k{number}"), "body": {"text": "hi"}});
        socket.feed(&json!([TOPIC, format!("k{number}"), TOPIC, "message", payload])).await;
    }
    socket.flush().await;
    // The first ack says that the node has begun with them.
    socket.reply("k0").await.response("ok");
    node.ask_to_stop();
    let mut acked = vec!["k0".to_owned()];
    let (frames, code) = socket.closed().await;
    assert_eq!(code, Some(1012));
    for frame in frames.iter().filter(|frame| frame.event == "phx_reply") {
        match frame.payload["status"].as_str() {
            Some("ok") => acked.push(frame.reference.as_str().expect("a ref").to_owned()),
            _ => assert!(frame.payload["response"]["retry"]["after_ms"].is_u64(), "{frame:?}"),
        }
    }
    let mut idle = idle;
    assert_eq!(idle.closed().await.1, Some(1012));
    let node = node.restart().await;
    let log = node.client("alice").log("c").await;
    let keys: Vec<&str> = log.iter().filter_map(|record| record["client_msg_id"].as_str()).collect();
    for key in &acked {
        assert_eq!(keys.iter().filter(|found| *found == key).count(), 1, "{key} was acked");
    }
    // What was committed was acked: nothing is left in doubt by an orderly end.
    assert_eq!(keys.len(), acked.len(), "{} committed, {} acked", keys.len(), acked.len());
}

/// Stock clients take 1000 for a goodbye, and stay away.
#[tokio::test]
async fn close_code_means_never_come_back() {
    let mut node = Node::start().await;
    let alice = node.client("alice");
    alice.channel("c").await;
    let mut socket = Socket::joined(&node, &alice, "c").await;
    node.ask_to_stop();
    let (_, code) = socket.closed().await;
    assert_eq!(code, Some(1012), "the node comes back, and so shall its clients");
    let node = node.restart().await;
    let alice = node.client("alice");
    Socket::joined(&node, &alice, "c").await;
}

#[tokio::test]
async fn a_node_that_shuts_down_takes_nothing_new() {
    let mut node = Node::start().await;
    let alice = node.client("alice");
    alice.channel("c").await;
    let mut socket = Socket::joined(&node, &alice, "c").await;
    let listen = node.started.listen;
    node.ask_to_stop();
    assert_eq!(socket.closed().await.1, Some(1012));
    node.ended().await;
    assert!(tokio::net::TcpStream::connect(listen).await.is_err());
    let client = Client::new(listen, alice.token.clone());
    assert!(client.request("GET", "/v1/conversations").send().await.is_err());
}

/// A peer that reads nothing must not hold up the end.
#[tokio::test]
async fn a_shutdown_does_not_wait_for_clients_that_never_read() {
    // The node itself would wait for longer than the test does.
    let mut node = Node::start_with(|config| config.limits.drain_ms = 600_000).await;
    let alice = node.client("alice");
    alice.channel("c").await;
    let mut slow = RawSocket::connect(&node, &alice).await;
    slow.text(&format!(r#"["j","r1","{TOPIC}","phx_join",{{}}]"#)).await;
    let request = alice.request("GET", "/v1/conversations/c/stream").send().await.expect("a stream");
    for number in 0..300 {
        alice.sent("c", &number.to_string(), &"x".repeat(60_000)).await;
    }
    node.ask_to_stop();
    node.ended().await;
    drop((slow, request));
}
