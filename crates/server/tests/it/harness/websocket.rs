//! WebSockets: a Phoenix client that behaves, and a raw one.

use std::collections::VecDeque;

use bytes::BytesMut;
use conch_core::wire::websocket::{CloseCode, Incoming, Opcode, Reader, Side, client_frame};
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use super::{Client, Node, within};

/// A frame from the node.
#[derive(Debug, Clone)]
pub(crate) struct Topic {
    /// The text as it came.
    pub(crate) text: String,
    pub(crate) join_ref: Value,
    pub(crate) reference: Value,
    pub(crate) topic: String,
    pub(crate) event: String,
    pub(crate) payload: Value,
}

impl Topic {
    fn parse(text: &str) -> Self {
        let frame: Value = serde_json::from_str(text).expect("a frame is JSON");
        let five = frame.as_array().filter(|five| five.len() == 5).expect("a frame is an array of five");
        let word = |index: usize| five[index].as_str().expect("a string").to_owned();
        assert!(five[4].is_object(), "payloads are objects: {text}");
        assert!(!word(2).contains(',') && !word(3).contains(','), "no comma in topic or event: {text}");
        assert_eq!(without_space(text), text, "no white space outside strings");
        Self {
            text: text.to_owned(),
            join_ref: five[0].clone(),
            reference: five[1].clone(),
            topic: word(2),
            event: word(3),
            payload: five[4].clone(),
        }
    }

    pub(crate) fn seq(&self) -> u64 {
        self.payload["seq"].as_u64().unwrap_or_else(|| panic!("no seq: {self:?}"))
    }

    /// The response of a reply with this status.
    #[track_caller]
    pub(crate) fn response(&self, status: &str) -> &Value {
        assert_eq!(self.event, "phx_reply", "{self:?}");
        assert_eq!(self.payload["status"], status, "{self:?}");
        &self.payload["response"]
    }

    /// The error of a reply, with everything that it promises.
    #[track_caller]
    pub(crate) fn refused(&self, code: &str) -> &Value {
        let response = self.response("error");
        assert_eq!(response["code"], code, "{self:?}");
        assert!(response["detail"].is_string(), "{self:?}");
        response
    }

    pub(crate) fn is_presence(&self) -> bool {
        self.event.starts_with("presence_")
    }
}

/// The text without the white space between tokens.
fn without_space(text: &str) -> String {
    let (mut in_string, mut escaped) = (false, false);
    let keeps = |c: &char| {
        match c {
            _ if escaped => escaped = false,
            '\\' if in_string => escaped = true,
            '"' => in_string = !in_string,
            _ => {}
        }
        in_string || !c.is_ascii_whitespace()
    };
    text.chars().filter(keeps).collect()
}

/// A client of Phoenix Channels.
pub(crate) struct Socket {
    stream: WebSocketStream<MaybeTlsStream<TcpStream>>,
    waiting: VecDeque<Topic>,
    references: u64,
}

impl Socket {
    pub(crate) async fn connect(node: &Node, client: &Client) -> Self {
        let token = client.token.as_deref().expect("a token");
        Self::connect_with(node, token).await
    }

    pub(crate) async fn connect_with(node: &Node, token: &str) -> Self {
        let url = node.url(&format!("/socket/websocket?vsn=2.0.0&token={token}")).replace("http://", "ws://");
        let connected = within("a socket", tokio_tungstenite::connect_async(url)).await;
        Self::of(connected.expect("the node upgrades").0)
    }

    /// A socket, or nothing if the node refuses.
    pub(crate) async fn try_connect(node: &Node, client: &Client) -> Option<Self> {
        let token = client.token.as_deref().expect("a token");
        let url = node.url(&format!("/socket/websocket?vsn=2.0.0&token={token}")).replace("http://", "ws://");
        Some(Self::of(within("a socket", tokio_tungstenite::connect_async(url)).await.ok()?.0))
    }

    pub(crate) fn of(stream: WebSocketStream<MaybeTlsStream<TcpStream>>) -> Self {
        Self { stream, waiting: VecDeque::new(), references: 0 }
    }

    /// A socket that has joined a conversation and seen `caught_up`.
    pub(crate) async fn joined(node: &Node, client: &Client, id: &str) -> Self {
        let mut socket = Self::connect(node, client).await;
        let topic = format!("conversation:{id}");
        socket.join(&topic, json!({})).await.response("ok");
        socket.until_event("caught_up").await;
        socket
    }

    /// Sends a frame; does not wait for its answer.
    pub(crate) async fn send(
        &mut self,
        join_ref: Option<&str>,
        reference: &str,
        topic: &str,
        event: &str,
        payload: Value,
    ) {
        self.send_text(&json!([join_ref, reference, topic, event, payload]).to_string()).await;
    }

    pub(crate) async fn send_text(&mut self, text: &str) {
        within("the node to read", self.stream.send(Message::text(text))).await.expect("the socket is open");
    }

    /// Queues a frame without waiting for the network.
    pub(crate) async fn feed(&mut self, frame: &Value) {
        within("the node to read", self.stream.feed(Message::text(frame.to_string()))).await.expect("it is open");
    }

    pub(crate) async fn flush(&mut self) {
        within("the node to read", self.stream.flush()).await.expect("the socket is open");
    }

    fn reference(&mut self) -> String {
        self.references += 1;
        format!("r{}", self.references)
    }

    /// Joins under the topic as its own join reference; gives the reply.
    pub(crate) async fn join(&mut self, topic: &str, payload: Value) -> Topic {
        let reference = self.reference();
        self.send(Some(topic), &reference, topic, "phx_join", payload).await;
        self.reply(&reference).await
    }

    /// Pushes on a topic that was joined with [`Socket::join`]; gives the reply.
    pub(crate) async fn push(&mut self, topic: &str, event: &str, payload: Value) -> Topic {
        let reference = self.reference();
        self.send(Some(topic), &reference, topic, event, payload).await;
        self.reply(&reference).await
    }

    /// Sends a message and waits for its receipt.
    pub(crate) async fn message(&mut self, id: &str, key: &str, text: &str) -> Topic {
        let payload = json!({"client_msg_id": key, "body": {"text": text}});
        self.push(&format!("conversation:{id}"), "message", payload).await
    }

    /// The reply to a reference; what comes before it waits.
    pub(crate) async fn reply(&mut self, reference: &str) -> Topic {
        self.take(|frame| frame.event == "phx_reply" && frame.reference == reference).await
    }

    /// The first frame that fits; those before it wait.
    pub(crate) async fn take(&mut self, mut fits: impl FnMut(&Topic) -> bool) -> Topic {
        if let Some(at) = self.waiting.iter().position(&mut fits) {
            return self.waiting.remove(at).expect("it was just found");
        }
        loop {
            let frame = self.receive().await.unwrap_or_else(|code| panic!("the socket closed with {code:?}"));
            if fits(&frame) {
                return frame;
            }
            self.waiting.push_back(frame);
        }
    }

    /// The next frame.
    pub(crate) async fn next(&mut self) -> Topic {
        self.take(|_| true).await
    }

    /// The next frame that is not about presence; those are dropped.
    pub(crate) async fn next_real(&mut self) -> Topic {
        loop {
            let frame = self.next().await;
            if !frame.is_presence() {
                return frame;
            }
        }
    }

    /// The first frame with this event; everything before it is dropped.
    pub(crate) async fn until_event(&mut self, event: &str) -> Topic {
        loop {
            let frame = self.next().await;
            if frame.event == event {
                return frame;
            }
        }
    }

    /// A frame from the network; else the code with which the node closed.
    async fn receive(&mut self) -> Result<Topic, Option<u16>> {
        loop {
            match within("a frame", self.stream.next()).await {
                Some(Ok(Message::Text(text))) => return Ok(Topic::parse(&text)),
                Some(Ok(Message::Close(close))) => return Err(close.map(|close| close.code.into())),
                Some(Ok(Message::Binary(_))) => panic!("the node sends text alone"),
                Some(Ok(_)) => {}
                Some(Err(Error::ConnectionClosed)) | None => return Err(None),
                Some(Err(error)) => panic!("the socket broke: {error}"),
            }
        }
    }

    /// Everything until the node closes, and the code.
    pub(crate) async fn closed(&mut self) -> (Vec<Topic>, Option<u16>) {
        let mut frames: Vec<Topic> = self.waiting.drain(..).collect();
        loop {
            match self.receive().await {
                Ok(frame) => frames.push(frame),
                Err(code) => return (frames, code),
            }
        }
    }

    /// Closes from this side and waits for the node's answer.
    pub(crate) async fn close(mut self) {
        within("the close", self.stream.close(None)).await.expect("the socket is open");
        self.closed().await;
    }
}

/// A WebSocket whose every byte the test chooses.
pub(crate) struct RawSocket {
    stream: TcpStream,
    reader: Reader,
    buffer: BytesMut,
}

impl RawSocket {
    pub(crate) fn handshake(node: &Node, token: &str) -> String {
        format!(
            "GET /socket/websocket?vsn=2.0.0&token={token} HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade\r\n\
             Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
            node.started.listen
        )
    }

    pub(crate) async fn connect(node: &Node, client: &Client) -> Self {
        let mut stream = TcpStream::connect(node.started.listen).await.expect("the node accepts");
        let handshake = Self::handshake(node, client.token.as_deref().expect("a token"));
        stream.write_all(handshake.as_bytes()).await.expect("the node reads");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(within("the upgrade", stream.read_u8()).await.expect("the node answers"));
        }
        let head = String::from_utf8(head).expect("a head is ASCII");
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        // RFC 6455's own example.
        assert!(head.to_ascii_lowercase().contains("sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo="), "{head}");
        let reader = Reader::new(Side::Client, 16 * 1024 * 1024);
        Self { stream, reader, buffer: BytesMut::new() }
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) {
        within("the node to read", self.stream.write_all(bytes)).await.expect("the socket is open");
    }

    /// Writes what may meet a socket that is closing already.
    pub(crate) async fn write_if_open(&mut self, bytes: &[u8]) {
        // An error says that the node has closed, which the test sees when it reads.
        let _ = within("the node to read", self.stream.write_all(bytes)).await;
    }

    pub(crate) async fn text(&mut self, text: &str) {
        self.write(&client_frame(Opcode::Text, [1, 2, 3, 4], text.as_bytes())).await;
    }

    /// The next message; `None` when the connection has ended.
    pub(crate) async fn next(&mut self) -> Option<Incoming> {
        loop {
            if let Some(incoming) = self.reader.next(&mut self.buffer).expect("the node's frames are valid") {
                return Some(incoming);
            }
            let read = within("a frame", self.stream.read_buf(&mut self.buffer)).await.expect("an orderly end");
            if read == 0 {
                return None;
            }
        }
    }

    pub(crate) async fn next_frame(&mut self) -> Topic {
        loop {
            match self.next().await {
                Some(Incoming::Text(text)) => return Topic::parse(&text),
                Some(Incoming::Ping(_) | Incoming::Pong(_)) => {}
                other => panic!("no frame: {other:?}"),
            }
        }
    }

    /// The code with which the node closes, and that the connection ends.
    pub(crate) async fn close_code(&mut self) -> u16 {
        loop {
            match self.next().await {
                Some(Incoming::Close(code)) => {
                    assert!(self.next().await.is_none(), "nothing follows a close");
                    return code.map_or(1005, |CloseCode(code)| code);
                }
                Some(_) => {}
                None => panic!("the connection ended without a close"),
            }
        }
    }
}
