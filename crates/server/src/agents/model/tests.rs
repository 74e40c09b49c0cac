//! The client against a scripted server: a real socket, and a server that stalls, breaks, throttles and lies.

use std::net::SocketAddr;
use std::time::Duration;

use conch_core::wire::openai::{AnswerLimits, BrokenAnswer, ChatMessage, ChatRequest, FinishReason};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::*;
use crate::auth::secret::Secret;

/// What the server does with its one connection once the request is there.
enum Act {
    Send(String),
    /// Sends nothing more and keeps the connection until the client closes it.
    Stall,
}

struct Scripted {
    address: SocketAddr,
    /// The request, as it came; ends when the script is over.
    request: JoinHandle<String>,
}

async fn scripted(acts: Vec<Act>) -> Scripted {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let address = listener.local_addr().expect("bound");
    let request = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.expect("the client");
        let request = read_request(&mut socket).await;
        for act in acts {
            match act {
                Act::Send(text) => socket.write_all(text.as_bytes()).await.expect("the client reads"),
                Act::Stall => {
                    let _ = socket.read(&mut [0]).await;
                }
            }
        }
        request
    });
    Scripted { address, request }
}

async fn read_request(socket: &mut TcpStream) -> String {
    let mut request = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let length = socket.read(&mut piece).await.expect("a request");
        request.extend_from_slice(&piece[..length]);
        let text = String::from_utf8_lossy(&request);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if length.and_then(|length| length.parse().ok()) == Some(body.len()) {
                return text.into_owned();
            }
        }
        assert!(length > 0, "the request ended early: {text}");
    }
}

fn client_of(address: SocketAddr, timeouts: Timeouts) -> ModelClient {
    let key = Some(Secret::new("k-123"));
    let endpoint = ModelEndpoint { base_url: format!("http://{address}/v1/"), key };
    ModelClient::new(&endpoint, timeouts, AnswerLimits::default()).expect("valid")
}

async fn call(client: &ModelClient) -> (Result<conch_core::wire::openai::Answer, CallError>, String) {
    let messages = [ChatMessage::User { text: "hi".to_owned() }];
    let request = ChatRequest { model: "m", messages: &messages, tools: &[], max_tokens: None, temperature: None };
    let mut shown = String::new();
    let result = client.call(&request, |text| shown.push_str(text)).await;
    (result, shown)
}

fn stream_head() -> Act {
    Act::Send("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n".to_owned())
}

fn text(content: &str) -> Act {
    Act::Send(format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{content}\"}}}}]}}\n\n"))
}

fn stop() -> Act {
    Act::Send("data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n".to_owned())
}

fn refusal(status: &str, headers: &str, body: &str) -> Vec<Act> {
    vec![Act::Send(format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\n\r\n{body}", body.len()))]
}

fn short() -> Timeouts {
    let blink = Duration::from_millis(50);
    Timeouts { connect: blink, head: blink, silence: blink }
}

#[tokio::test]
async fn text_is_shown_as_it_comes_and_the_key_is_sent() {
    let server = scripted(vec![stream_head(), text("Hel"), text("lo"), stop()]).await;
    let (answer, shown) = call(&client_of(server.address, Timeouts::default())).await;
    let answer = answer.expect("an answer");
    assert_eq!((answer.text.as_str(), answer.reason, shown.as_str()), ("Hello", FinishReason::Stop, "Hello"));
    let request = server.request.await.expect("the script");
    assert!(request.starts_with("POST /v1/chat/completions HTTP/1.1\r\n"), "{request}");
    assert!(request.contains("authorization: Bearer k-123\r\n"), "{request}");
    assert!(request.ends_with(r#""stream":true,"stream_options":{"include_usage":true}}"#), "{request}");
}

#[tokio::test]
async fn an_answer_in_one_piece_is_read() {
    let body = r#"{"choices":[{"message":{"content":"whole"},"finish_reason":"stop"}]}"#;
    let server = scripted(refusal("200 OK", "content-type: application/json\r\n", body)).await;
    let (answer, shown) = call(&client_of(server.address, Timeouts::default())).await;
    assert_eq!((answer.expect("an answer").text.as_str(), shown.as_str()), ("whole", "whole"));
}

#[tokio::test]
async fn a_stream_that_breaks_is_no_answer_and_may_be_asked_again() {
    let server = scripted(vec![stream_head(), text("Hel")]).await;
    let (answer, shown) = call(&client_of(server.address, Timeouts::default())).await;
    let error = answer.expect_err("cut off");
    assert!(matches!(error, CallError::Broken { broken: BrokenAnswer::CutOff, .. }), "{error}");
    assert_eq!((error.patience(), shown.as_str()), (Patience::After(Duration::ZERO), "Hel"));
}

#[tokio::test]
async fn silence_ends_a_call() {
    let server = scripted(vec![Act::Stall]).await;
    let (answer, _) = call(&client_of(server.address, short())).await;
    let error = answer.expect_err("silence");
    assert_eq!(
        (error.patience(), error.shown().as_str()),
        (Patience::After(Duration::ZERO), "the model gave no answer within 0 s")
    );
    let server = scripted(vec![stream_head(), text("Hel"), Act::Stall]).await;
    let (answer, shown) = call(&client_of(server.address, short())).await;
    assert!(matches!(answer, Err(CallError::Unreachable { .. })), "{answer:?}");
    assert_eq!(shown, "Hel");
}

#[tokio::test]
async fn refusals_say_what_the_server_said_and_whether_to_come_back() {
    let cases = [
        ("429 Too Many Requests", "retry-after: 7\r\n", Patience::After(Duration::from_secs(7))),
        ("429 Too Many Requests", "retry-after: 86400\r\n", Patience::After(Duration::from_secs(60))),
        ("503 Service Unavailable", "", Patience::After(Duration::ZERO)),
        ("400 Bad Request", "", Patience::None),
        ("401 Unauthorized", "", Patience::None),
        // Followed, it would carry the key to another host.
        ("307 Temporary Redirect", "location: http://127.0.0.1:1/\r\n", Patience::None),
    ];
    for (status, headers, patience) in cases {
        let server = scripted(refusal(status, headers, "why not")).await;
        let (answer, _) = call(&client_of(server.address, Timeouts::default())).await;
        let error = answer.expect_err("refused");
        assert_eq!(error.patience(), patience, "{status}");
        let number = &status[..3];
        let redirected = if number == "307" { " (redirects are not followed)" } else { "" };
        assert_eq!(
            error.to_string(),
            format!("the model at {} answered {number}: why not", server.address),
            "for the log"
        );
        assert_eq!(error.shown(), format!("the model answered {number}{redirected}"), "for all who watch");
    }
}

#[tokio::test]
async fn a_call_that_is_dropped_closes_its_connection() {
    let (closed, told) = oneshot::channel();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.expect("the client");
        read_request(&mut socket).await;
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
        socket.write_all(head.as_bytes()).await.expect("the client reads");
        let Act::Send(piece) = text("word ") else { unreachable!("a piece is sent") };
        // Until the client is gone, and nothing but that ends it.
        while socket.write_all(piece.as_bytes()).await.is_ok() {
            tokio::task::yield_now().await;
        }
        let _ = closed.send(());
    });
    let client = client_of(address, Timeouts::default());
    let (some, begun) = oneshot::channel();
    let mut some = Some(some);
    let messages = [ChatMessage::User { text: "hi".to_owned() }];
    let request = ChatRequest { model: "m", messages: &messages, tools: &[], max_tokens: None, temperature: None };
    let endless = client.call(&request, |_| {
        // The test is gone only if it failed already.
        let _ = some.take().map(|some| some.send(()));
    });
    tokio::select! {
        answer = endless => panic!("an endless answer ended: {answer:?}"),
        begun = begun => begun.expect("text came"),
    }
    told.await.expect("the server saw the end");
}

#[test]
fn bad_endpoints_are_refused_by_name() {
    let refused = |base_url: &str, key: Option<&str>| {
        let endpoint = ModelEndpoint { base_url: base_url.to_owned(), key: key.map(Secret::new) };
        let client = ModelClient::new(&endpoint, Timeouts::default(), AnswerLimits::default());
        client.map(drop).expect_err("must be refused").to_string()
    };
    for url in ["", "127.0.0.1:8080", "ftp://host/v1", "http://host/v1?x=1", "http:///v1#a"] {
        assert!(refused(url, None).starts_with(&format!("base_url: {url:?} is not an http(s) URL")), "{url}");
    }
    assert_eq!(refused("http://host/v1", Some("a\nb")), "api_key: holds characters that no HTTP header may hold");
}
