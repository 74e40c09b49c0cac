//! A Phoenix Channels V2 client over one WebSocket: join, push, replies and broadcasts. For benchmarks and tests; front
//! ends have phoenix.js and its siblings.
//!
//! One reader at a time: the caller alternates between [`PhoenixSocket::push`] and [`PhoenixSocket::next`].

use std::io;

use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::ClientError;
use super::http::Endpoint;
use super::websocket::{FrameKind, Frames, connect_raw, encode_client_frame};

/// Something that the server sent.
#[derive(Debug)]
pub struct Incoming {
    /// The push that this answers, or none for a broadcast.
    pub reference: Option<u64>,
    /// The topic.
    pub topic: String,
    /// The event; `phx_reply` for an answer.
    pub event: String,
    /// The payload, as it came.
    pub payload: Box<RawValue>,
}

/// The payload of a `phx_reply`.
#[derive(Debug, Deserialize)]
pub struct Reply {
    /// `ok` or `error`.
    pub status: String,
    /// What it answers.
    pub response: Box<RawValue>,
}

impl Incoming {
    /// The reply that this is, if it is one.
    #[must_use]
    pub fn reply(&self) -> Option<Reply> {
        if self.event == "phx_reply" { serde_json::from_str(self.payload.get()).ok() } else { None }
    }
}

/// One socket.
pub struct PhoenixSocket {
    stream: TcpStream,
    frames: Frames,
    out: Vec<u8>,
    next_reference: u64,
}

impl PhoenixSocket {
    /// Connects with the endpoint's token.
    ///
    /// # Errors
    /// `Unreachable` if the connection fails, `Unexpected` if the server does not upgrade it.
    pub async fn connect(endpoint: &Endpoint) -> Result<Self, ClientError> {
        let path = Self::path(endpoint);
        let upgraded = connect_raw(&endpoint.authority(), &path).await.map_err(|error| broken(&error))?;
        let (stream, frames) = upgraded.map_err(ClientError::Unexpected)?;
        Ok(Self { stream, frames, out: Vec::new(), next_reference: 0 })
    }

    /// The path and query that the upgrade asks for.
    #[must_use]
    pub fn path(endpoint: &Endpoint) -> String {
        // A token is base64url and dots: nothing to escape.
        format!("/socket/websocket?vsn=2.0.0&token={}", endpoint.token().unwrap_or_default())
    }

    /// Joins a topic and waits for the answer; what else arrives meanwhile goes to `other`.
    ///
    /// # Errors
    /// `Unexpected` with the error's payload if the join is refused; `Unreachable` if the socket ends.
    pub async fn join(
        &mut self,
        topic: &str,
        payload: &str,
        other: &mut (dyn FnMut(Incoming) + Send),
    ) -> Result<Joined, ClientError> {
        let reference = self.next_reference + 1;
        let mut joined = Joined { topic: topic.to_owned(), join_reference: reference, response: Box::default() };
        self.push(&joined, "phx_join", payload).await?;
        loop {
            let incoming = self.next().await?;
            match incoming.reply() {
                Some(reply) if incoming.reference == Some(reference) => {
                    if reply.status == "ok" {
                        joined.response = reply.response;
                        return Ok(joined);
                    }
                    return Err(ClientError::Unexpected(format!("join of {topic} refused: {}", reply.response)));
                }
                _ => other(incoming),
            }
        }
    }

    /// Sends an event on a joined topic; answers the reference that its reply will carry.
    ///
    /// # Errors
    /// `Unreachable` if the socket has ended.
    pub async fn push(&mut self, joined: &Joined, event: &str, payload: &str) -> Result<u64, ClientError> {
        let reference = self.queue(joined, event, payload);
        self.flush().await?;
        Ok(reference)
    }

    /// As [`PhoenixSocket::push`], with the next [`PhoenixSocket::flush`]: for several that leave in one write.
    pub fn queue(&mut self, joined: &Joined, event: &str, payload: &str) -> u64 {
        self.next_reference += 1;
        let reference = self.next_reference;
        let Joined { topic, join_reference, .. } = joined;
        let text = format!(r#"["{join_reference}","{reference}","{topic}","{event}",{payload}]"#);
        encode_client_frame(FrameKind::Text, text.as_bytes(), &mut self.out);
        reference
    }

    /// Writes what was queued. Not cancel-safe: a part of it may have left.
    ///
    /// # Errors
    /// `Unreachable` if the socket has ended.
    pub async fn flush(&mut self) -> Result<(), ClientError> {
        let written = self.stream.write_all(&self.out).await;
        self.out.clear();
        written.map_err(|error| broken(&error))
    }

    /// Says that it is there, which the server answers; a socket that is silent for 75 s is closed.
    ///
    /// # Errors
    /// As [`PhoenixSocket::push`].
    pub async fn heartbeat(&mut self) -> Result<(), ClientError> {
        self.next_reference += 1;
        let text = format!(r#"[null,"{}","phoenix","heartbeat",{{}}]"#, self.next_reference);
        encode_client_frame(FrameKind::Text, text.as_bytes(), &mut self.out);
        self.flush().await
    }

    /// The next message. Cancel-safe: bytes that were read stay in the buffer.
    ///
    /// # Errors
    /// `Unreachable` if the socket ends, `Unexpected` if the server breaks the protocol.
    pub async fn next(&mut self) -> Result<Incoming, ClientError> {
        self.next_text(|payload| Some(parse(payload))).await?
    }

    /// The next reply's reference, and whether it is `ok`; broadcasts are skipped unread. Cancel-safe.
    ///
    /// # Errors
    /// As [`PhoenixSocket::next`].
    pub async fn next_reply(&mut self) -> Result<(u64, bool), ClientError> {
        self.next_text(quick_reply).await
    }

    /// The same, if it has been read already; waits for nothing.
    ///
    /// # Errors
    /// As [`PhoenixSocket::next`].
    pub fn reply_at_hand(&mut self) -> Result<Option<(u64, bool)>, ClientError> {
        self.text_at_hand(&mut quick_reply)
    }

    async fn next_text<T>(&mut self, mut take: impl FnMut(&[u8]) -> Option<T>) -> Result<T, ClientError> {
        loop {
            if let Some(taken) = self.text_at_hand(&mut take)? {
                return Ok(taken);
            }
            // Pongs, which no text that was taken held up.
            if !self.out.is_empty() {
                self.flush().await?;
            }
            let read = self.stream.read_buf(self.frames.buffer()).await.map_err(|error| broken(&error))?;
            if read == 0 {
                return Err(ClientError::Unreachable("the socket ended".to_owned()));
            }
        }
    }

    /// The next text that is taken out of what was read. Pings are answered with the next flush.
    fn text_at_hand<T>(&mut self, take: &mut impl FnMut(&[u8]) -> Option<T>) -> Result<Option<T>, ClientError> {
        let out = &mut self.out;
        loop {
            let frame = self.frames.next(|kind, payload| match kind {
                FrameKind::Text => Ok(take(payload)),
                FrameKind::Binary | FrameKind::Pong => Ok(None),
                FrameKind::Ping => {
                    encode_client_frame(FrameKind::Pong, payload, out);
                    Ok(None)
                }
                FrameKind::Close => {
                    let code = payload.first_chunk::<2>().map_or(0, |code| u16::from_be_bytes(*code));
                    Err(ClientError::Unreachable(format!("the server closed the socket with {code}")))
                }
            });
            match frame.map_err(|error| ClientError::Unexpected(error.to_string()))?.transpose()? {
                Some(Some(taken)) => return Ok(Some(taken)),
                Some(None) => {}
                None => return Ok(None),
            }
        }
    }
}

/// The reference and status of a reply, without parsing what is not needed. `None`: not a reply.
fn quick_reply(payload: &[u8]) -> Option<(u64, bool)> {
    #[derive(Deserialize)]
    struct Status<'a> {
        status: &'a str,
    }
    if payload.starts_with(b"[null,null,") {
        return None;
    }
    type Parts<'a> = (Option<&'a str>, Option<&'a str>, &'a str, &'a str, Status<'a>);
    let (_, reference, _, event, status): Parts<'_> = serde_json::from_slice(payload).ok()?;
    if event != "phx_reply" {
        return None;
    }
    Some((reference?.parse().ok()?, status.status == "ok"))
}

/// A topic that was joined.
#[derive(Debug, Clone)]
pub struct Joined {
    topic: String,
    join_reference: u64,
    /// What the server answered: where the conversation stands, and how it goes on.
    response: Box<RawValue>,
}

impl Joined {
    /// The answer to the join, as JSON.
    #[must_use]
    pub fn response(&self) -> &RawValue {
        &self.response
    }
}

fn broken(error: &io::Error) -> ClientError {
    ClientError::Unreachable(format!("the socket broke: {error}"))
}

fn parse(payload: &[u8]) -> Result<Incoming, ClientError> {
    type Parts = (Option<String>, Option<String>, String, String, Box<RawValue>);
    let (_, reference, topic, event, payload): Parts =
        serde_json::from_slice(payload).map_err(|error| ClientError::Unexpected(error.to_string()))?;
    let reference = reference.and_then(|reference| reference.parse().ok());
    Ok(Incoming { reference, topic, event, payload })
}

#[cfg(test)]
mod tests {
    use bytes::{Bytes, BytesMut};
    use conch_core::wire::websocket::{Incoming, Reader, Side, ping_frame, text_frame};
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn replies_and_broadcasts_are_told_apart() {
        let reply =
            parse(br#"["1","7","conversation:a","phx_reply",{"status":"ok","response":{"seq":3}}]"#).expect("parses");
        assert_eq!(reply.reference, Some(7));
        let inner = reply.reply().expect("a reply");
        assert_eq!((inner.status.as_str(), inner.response.get()), ("ok", r#"{"seq":3}"#));
        let broadcast = parse(br#"[null,null,"conversation:a","message",{"seq":3}]"#).expect("parses");
        assert!(broadcast.reference.is_none() && broadcast.reply().is_none());
        assert!(parse(b"{}").is_err());
    }

    #[tokio::test]
    async fn what_is_queued_leaves_together_and_what_has_come_is_at_hand() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let endpoint = Endpoint::new(&format!("http://{}", listener.local_addr().expect("bound")), None);
        let server = async {
            let (mut stream, _) = listener.accept().await.expect("the client connects");
            let mut asked = BytesMut::new();
            while !asked.ends_with(b"\r\n\r\n") {
                stream.read_buf(&mut asked).await.expect("the upgrade is asked for");
            }
            // In one write, so that all of it has come when the first is read.
            let reply = |number: u64| text_frame(&format!(r#"["1","{number}","t","phx_reply",{{"status":"ok"}}]"#));
            let head = &b"HTTP/1.1 101 Switching Protocols\r\n\r\n"[..];
            let answer = [head, &reply(1), &ping_frame(b"p"), &text_frame("[null,null,1]"), &reply(2)].concat();
            stream.write_all(&answer).await.expect("the client reads");
            let mut sent = BytesMut::new();
            while stream.read_buf(&mut sent).await.expect("the client closes") > 0 {}
            sent
        };
        let client = async {
            let mut socket = PhoenixSocket::connect(&endpoint.expect("valid")).await.expect("upgraded");
            let topic = Joined { topic: "t".to_owned(), join_reference: 1, response: Box::default() };
            assert_eq!((socket.queue(&topic, "a", "{}"), socket.queue(&topic, "b", "{}")), (1, 2));
            socket.flush().await.expect("open");
            let first = socket.next_reply().await.expect("answered");
            assert_eq!(first, (1, true));
            assert_eq!(socket.reply_at_hand().expect("frames"), Some((2, true)));
            assert_eq!(socket.reply_at_hand().expect("frames"), None);
            socket.flush().await.expect("open");
        };
        let (mut sent, ()) = tokio::join!(server, client);
        let mut reader = Reader::new(Side::Server, 1_000);
        let frames = std::iter::from_fn(|| reader.next(&mut sent).expect("frames of a client"));
        let expected = [
            Incoming::Text(r#"["1","1","t","a",{}]"#.to_owned()),
            Incoming::Text(r#"["1","2","t","b",{}]"#.to_owned()),
            Incoming::Pong(Bytes::from_static(b"p")),
        ];
        assert_eq!(frames.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn replies_are_found_without_reading_the_rest() {
        let ok = br#"["1","7","conversation:a","phx_reply",{"status":"ok","response":{"seq":3}}]"#;
        let error = br#"["1","8","conversation:a","phx_reply",{"status":"error","response":{"code":"overloaded"}}]"#;
        assert_eq!(quick_reply(ok), Some((7, true)));
        assert_eq!(quick_reply(error), Some((8, false)));
        assert_eq!(quick_reply(br#"[null,null,"conversation:a","message",{"seq":3}]"#), None);
        assert_eq!(quick_reply(br#"["1",null,"conversation:a","caught_up",{"seq":3}]"#), None);
    }
}
