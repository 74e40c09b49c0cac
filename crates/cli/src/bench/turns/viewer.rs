//! Those who watch: a session over WebSocket, and the bare reader that it is compared with.
//!
//! Invariant: each stamp counts once, when its text is first shown: in a delta, or in the snapshot that heals a gap.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::model::{Order, STAMP_BYTES, ages};
use crate::bench::histogram::Histogram;
use crate::bench::process;
use crate::client::{Endpoint, Incoming, PhoenixSocket};
use crate::exit::Failure;

/// What a delta begins with in the model's stream.
const CONTENT: &[u8] = b"\"content\":\"";

/// What was seen of a turn, or of several.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// From the model's socket to here.
    pub(super) latency: Histogram,
    /// Events that brought text.
    pub(super) events: u64,
    /// Of these, snapshots.
    pub(super) snapshots: u64,
    /// Turns that completed.
    pub(super) completed: u64,
    /// Stamps in the answers.
    pub(super) answered: u64,
    /// Turns whose answer is not all that the model said.
    pub(super) incomplete: u64,
}

impl Seen {
    pub(super) fn merge(&mut self, other: &Self) {
        self.latency.merge(&other.latency);
        self.events += other.events;
        self.snapshots += other.snapshots;
        self.completed += other.completed;
        self.answered += other.answered;
        self.incomplete += other.incomplete;
    }
}

/// A session in a conversation.
pub(super) struct Viewer {
    socket: PhoenixSocket,
    shown: Shown,
    seen: Seen,
}

/// The text that a viewer has of the step that streams.
#[derive(Debug, Default)]
struct Shown {
    turn: u64,
    step: String,
    attempt: u32,
    length: usize,
}

#[derive(Deserialize)]
struct Piece<'a> {
    turn: u64,
    #[serde(borrow)]
    step: Cow<'a, str>,
    attempt: u32,
    offset: usize,
    #[serde(borrow)]
    text: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Reset {
    turn: u64,
    step: String,
    attempt: u32,
}

#[derive(Deserialize)]
struct Answer {
    sender: String,
    turn: Option<u64>,
    body: Text,
}

#[derive(Deserialize)]
struct Text {
    #[serde(default)]
    text: String,
}

#[derive(Deserialize)]
struct End {
    turn: u64,
    body: serde_json::Value,
}

impl Viewer {
    /// Connects and joins.
    pub(super) async fn join(endpoint: &Endpoint, conversation: &str) -> Result<Self, Failure> {
        let mut socket = PhoenixSocket::connect(endpoint).await?;
        let mut early = Vec::new();
        socket.join(&format!("conversation:{conversation}"), "{}", &mut |incoming| early.push(incoming)).await?;
        let mut viewer = Self { socket, shown: Shown::default(), seen: Seen::default() };
        for incoming in early {
            viewer.look(&incoming, 0)?;
        }
        Ok(viewer)
    }

    /// Watches until the end of this turn; what was seen since the last time.
    pub(super) async fn until_end_of(&mut self, turn: u64, limit: Duration) -> Result<Seen, Failure> {
        let watching = async {
            loop {
                let incoming = self.socket.next().await?;
                if self.look(&incoming, turn)? {
                    return Ok::<_, Failure>(());
                }
            }
        };
        let watched = tokio::time::timeout(limit, watching).await;
        watched.map_err(|_| Failure::other(format!("turn {turn} did not end within {limit:?}")))??;
        Ok(std::mem::take(&mut self.seen))
    }

    /// Says that it is there.
    pub(super) async fn heartbeat(&mut self) -> Result<(), Failure> {
        Ok(self.socket.heartbeat().await?)
    }

    /// Takes note of what came; true at the end of the turn.
    fn look(&mut self, incoming: &Incoming, turn: u64) -> Result<bool, Failure> {
        let now_ns = process::shared_now_ns();
        let payload = incoming.payload.get();
        let odd = |error: serde_json::Error| Failure::other(format!("{}: {error}", incoming.event));
        match incoming.event.as_str() {
            "delta" => self.piece(&serde_json::from_str(payload).map_err(odd)?, now_ns),
            "turn.snapshot" => {
                let mut piece: Piece<'_> = serde_json::from_str(payload).map_err(odd)?;
                // Its offset is its end.
                piece.offset = 0;
                self.seen.snapshots += 1;
                self.piece(&piece, now_ns);
            }
            "step.reset" => {
                let Reset { turn, step, attempt } = serde_json::from_str(payload).map_err(odd)?;
                self.shown = Shown { turn, step, attempt, length: 0 };
            }
            "message" => {
                let answer: Answer = serde_json::from_str(payload).map_err(odd)?;
                if answer.sender.starts_with("@agent:") && answer.turn == Some(turn) {
                    self.seen.answered += ages(&answer.body.text, now_ns).count() as u64;
                }
            }
            "turn.completed" | "turn.failed" | "turn.cancelled" => {
                let end: End = serde_json::from_str(payload).map_err(odd)?;
                if incoming.event != "turn.completed" && end.turn == turn {
                    return Err(Failure::other(format!("turn {turn} ended with {}: {}", incoming.event, end.body)));
                }
                self.seen.completed += u64::from(end.turn == turn);
                return Ok(end.turn == turn);
            }
            "phx_close" | "phx_error" | "resync" => {
                return Err(Failure::other(format!("a session was told {} {payload}", incoming.event)));
            }
            _ => {}
        }
        Ok(false)
    }

    /// Text of the model is plain ASCII: its offsets are bytes, too.
    fn piece(&mut self, piece: &Piece<'_>, now_ns: u64) {
        let Piece { turn, attempt, offset, .. } = *piece;
        self.seen.events += 1;
        let shown = &mut self.shown;
        if (shown.turn, shown.attempt) != (turn, attempt) || shown.step != piece.step {
            *shown = Shown { turn, step: piece.step.clone().into_owned(), attempt, length: 0 };
        }
        // After a gap a snapshot comes.
        if offset > shown.length {
            return;
        }
        let Some(new) = piece.text.get(shown.length - offset..) else { return };
        shown.length += new.len();
        for age in ages(new, now_ns) {
            self.seen.latency.add(age);
        }
    }
}

/// Asks the model itself, and reads what it says: what the machine alone takes from socket to socket.
pub(super) async fn read_bare(model: SocketAddr, order: Order) -> Result<Histogram, Failure> {
    let mut stream = TcpStream::connect(model).await?;
    stream.set_nodelay(true)?;
    let chat = serde_json::json!({"messages": [{"role": "user", "content": super::order_text(order)}]}).to_string();
    let request =
        format!("POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-length: {}\r\n\r\n{chat}", chat.len());
    stream.write_all(request.as_bytes()).await?;
    let (mut latency, mut bytes) = (Histogram::default(), BytesMut::with_capacity(16 * 1024));
    while stream.read_buf(&mut bytes).await? > 0 {
        let now_ns = process::shared_now_ns();
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let stamp = stamp_of(&bytes[..end]).unwrap_or_default();
            for age in ages(stamp, now_ns) {
                latency.add(age);
            }
            bytes.advance(end + 1);
        }
    }
    Ok(latency)
}

fn stamp_of(line: &[u8]) -> Option<&str> {
    let at = line.windows(CONTENT.len()).position(|window| window == CONTENT)? + CONTENT.len();
    std::str::from_utf8(line.get(at..at + STAMP_BYTES)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_found_in_the_models_lines() {
        let line = br#"data: {"choices":[{"index":0,"delta":{"content":"0000000000010 "},"finish_reason":null}]}"#;
        assert_eq!(stamp_of(line), Some("0000000000010 "));
        assert_eq!(stamp_of(b"data: [DONE]"), None);
    }
}
