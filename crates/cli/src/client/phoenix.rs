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
        self.next_reference += 1;
        let reference = self.next_reference;
        let Joined { topic, join_reference, .. } = joined;
        let text = format!(r#"["{join_reference}","{reference}","{topic}","{event}",{payload}]"#);
        self.write(&text).await?;
        Ok(reference)
    }

    /// Says that it is there, which the server answers; a socket that is silent for 75 s is closed.
    ///
    /// # Errors
    /// As [`PhoenixSocket::push`].
    pub async fn heartbeat(&mut self) -> Result<(), ClientError> {
        self.next_reference += 1;
        let text = format!(r#"[null,"{}","phoenix","heartbeat",{{}}]"#, self.next_reference);
        self.write(&text).await
    }

    async fn write(&mut self, text: &str) -> Result<(), ClientError> {
        self.out.clear();
        encode_client_frame(FrameKind::Text, text.as_bytes(), &mut self.out);
        self.stream.write_all(&self.out).await.map_err(|error| broken(&error))
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

    async fn next_text<T>(&mut self, mut take: impl FnMut(&[u8]) -> Option<T>) -> Result<T, ClientError> {
        loop {
            let frame = self.frames.next(|kind, payload| match kind {
                FrameKind::Text => (kind, take(payload), Vec::new()),
                _ => (kind, None, payload.to_vec()),
            });
            match frame.map_err(|error| ClientError::Unexpected(error.to_string()))? {
                Some((FrameKind::Text, Some(taken), _)) => return Ok(taken),
                Some((FrameKind::Ping, _, payload)) => {
                    self.out.clear();
                    encode_client_frame(FrameKind::Pong, &payload, &mut self.out);
                    self.stream.write_all(&self.out).await.map_err(|error| broken(&error))?;
                }
                Some((FrameKind::Close, _, payload)) => {
                    let code = payload.first_chunk::<2>().map_or(0, |code| u16::from_be_bytes(*code));
                    return Err(ClientError::Unreachable(format!("the server closed the socket with {code}")));
                }
                Some((FrameKind::Text | FrameKind::Binary | FrameKind::Pong, ..)) => {}
                None => {
                    let read = self.stream.read_buf(self.frames.buffer()).await.map_err(|error| broken(&error))?;
                    if read == 0 {
                        return Err(ClientError::Unreachable("the socket ended".to_owned()));
                    }
                }
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
