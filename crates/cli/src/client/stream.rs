//! A conversation's event stream, read for as long as the caller likes: it reconnects and resumes by itself.
//!
//! Invariant: records come out in strictly ascending order within one log, each once. The position is what the server
//! called it (`id:` of the last durable event) and is sent back as `Last-Event-ID`; this side never makes one up.
//!
//! Deliberately absent: giving up on a server that is away. [`Item::Waiting`] says how long it has been; the caller
//! decides.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use conch_core::ids::Seq;
use conch_core::record::{Record, RecordKind};
use conch_core::wire::sse::{Decoded, Decoder};
use futures_util::StreamExt;
use serde::Deserialize;

use super::outbox::{ASKED_WAIT_MIN, random_bits};
use super::{ClientError, HttpClient, Request};

/// The server writes a comment every 5 s; this long without a byte means that the connection is dead.
const SILENCE_MAX: Duration = Duration::from_secs(20);
/// First wait before connecting again, unless the server's `retry:` says otherwise.
const FIRST_WAIT: Duration = Duration::from_millis(250);
/// Longest wait of the back-off.
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// Longest wait that a server may ask for.
const ASKED_WAIT_MAX: Duration = Duration::from_secs(120);

/// Where a stream begins.
#[derive(Debug, Clone)]
pub struct Start {
    /// After this seq.
    pub after: Seq,
    /// In this log, if it is known.
    pub log: Option<String>,
}

/// What comes out of a stream.
#[derive(Debug)]
pub enum Item {
    /// A durable record, with the JSON as it came.
    Record(Box<Record>, String),
    /// Everything up to this seq has been delivered; what follows is live.
    CaughtUp(Seq),
    /// The position is not good any more: load the latest page, then go on with [`ConversationStream::restart`].
    Resync {
        /// The log that positions belong to now.
        log: String,
        /// Its head.
        head_seq: Seq,
    },
    /// An event without a seq: a delta, presence, typing.
    Live {
        /// Its name.
        name: String,
        /// Its JSON.
        data: String,
    },
    /// The connection is gone and will be made again.
    Waiting {
        /// Since the last byte from the server, or since the beginning.
        away: Duration,
        /// Why.
        reason: String,
    },
}

/// The stream.
pub struct ConversationStream {
    client: HttpClient,
    conversation: String,
    start: Start,
    position: Option<String>,
    delivered: Seq,
    connection: Option<Connection>,
    ready: VecDeque<Decoded>,
    waits: u32,
    asked_wait: Option<Duration>,
    last_byte: Instant,
}

struct Connection {
    body: futures_util::stream::BoxStream<'static, Result<bytes::Bytes, reqwest::Error>>,
    decoder: Decoder,
}

impl ConversationStream {
    /// A stream that connects at the first [`ConversationStream::next`].
    #[must_use]
    pub fn new(client: HttpClient, conversation: &str, start: Start) -> Self {
        Self {
            client,
            conversation: conversation.to_owned(),
            delivered: start.after,
            start,
            position: None,
            connection: None,
            ready: VecDeque::new(),
            waits: 0,
            asked_wait: None,
            last_byte: Instant::now(),
        }
    }

    /// Goes on from here, after a resync.
    pub fn restart(&mut self, start: Start) {
        self.delivered = start.after;
        self.start = start;
        self.position = None;
        self.connection = None;
        self.ready.clear();
    }

    /// The next item. Cancel-safe between items: nothing is lost, a wait may be cut short.
    ///
    /// # Errors
    /// `Refused` (no directive: the conversation is unknown, the token is not good) and `Unexpected`.
    pub async fn next(&mut self) -> Result<Item, ClientError> {
        loop {
            if let Some(found) = self.ready.pop_front() {
                if let Some(item) = self.interpret(found)? {
                    return Ok(item);
                }
                continue;
            }
            let trouble = match &mut self.connection {
                None => match self.connect().await {
                    Ok(()) => continue,
                    Err(reason) => reason?,
                },
                Some(connection) => match read(connection).await {
                    Ok(found) => {
                        self.last_byte = Instant::now();
                        self.ready.extend(found);
                        continue;
                    }
                    Err(reason) => reason,
                },
            };
            self.connection = None;
            return Ok(self.wait(trouble).await);
        }
    }

    /// `Err(Ok(reason))`: to be tried again. `Err(Err(_))`: for good.
    async fn connect(&mut self) -> Result<(), Result<String, ClientError>> {
        let after = self.start.after.to_string();
        let request = Request::get(&["v1", "conversations", &self.conversation, "stream"])
            .with_query("after", Some(after))
            .with_query("log", self.start.log.clone());
        match self.client.open_stream(&request, self.position.as_deref()).await {
            Ok(response) => {
                let body = response.bytes_stream().boxed();
                self.connection = Some(Connection { body, decoder: Decoder::default() });
                self.last_byte = Instant::now();
                Ok(())
            }
            Err(ClientError::Refused(problem)) => match problem.retry {
                Some(retry) => {
                    self.ask_wait(retry.after_ms);
                    Err(Ok(problem.to_string()))
                }
                None => Err(Err(ClientError::Refused(problem))),
            },
            Err(ClientError::Unreachable(reason)) => Err(Ok(reason)),
            Err(error) => Err(Err(error)),
        }
    }

    async fn wait(&mut self, reason: String) -> Item {
        let wait = self.asked_wait.take().unwrap_or_else(|| back_off(self.waits, random_bits()));
        self.waits = self.waits.saturating_add(1);
        tokio::time::sleep(wait).await;
        Item::Waiting { away: self.last_byte.elapsed(), reason }
    }

    fn interpret(&mut self, found: Decoded) -> Result<Option<Item>, ClientError> {
        let (id, name, data) = match found {
            Decoded::Event { id, event, data } => (id, event, data),
            Decoded::Retry(after_ms) => {
                self.ask_wait(after_ms);
                return Ok(None);
            }
        };
        if name.parse::<RecordKind>().is_ok() {
            let record: Record = parse(&data)?;
            self.move_to(id);
            if record.seq <= self.delivered {
                return Ok(None);
            }
            self.delivered = record.seq;
            return Ok(Some(Item::Record(Box::new(record), data)));
        }
        match name.as_str() {
            "caught_up" => {
                let CaughtUp { seq } = parse(&data)?;
                self.move_to(id);
                Ok(Some(Item::CaughtUp(seq)))
            }
            "resync" => {
                let Resync { log, head_seq } = parse(&data)?;
                self.connection = None;
                self.ready.clear();
                Ok(Some(Item::Resync { log, head_seq }))
            }
            "reconnect" => {
                if let Some(after_ms) = parse::<Reconnect>(&data).ok().and_then(|reconnect| reconnect.after_ms) {
                    self.ask_wait(after_ms);
                }
                Ok(None)
            }
            _ => Ok(Some(Item::Live { name, data })),
        }
    }

    /// A position worked: the server is back, and the back-off starts over.
    fn move_to(&mut self, id: String) {
        self.waits = 0;
        if !id.is_empty() {
            self.position = Some(id);
        }
    }

    fn ask_wait(&mut self, after_ms: u64) {
        self.asked_wait = Some(Duration::from_millis(after_ms).clamp(ASKED_WAIT_MIN, ASKED_WAIT_MAX));
    }
}

/// What the next bytes hold, or why there are none.
async fn read(connection: &mut Connection) -> Result<Vec<Decoded>, String> {
    match tokio::time::timeout(SILENCE_MAX, connection.body.next()).await {
        Ok(Some(Ok(bytes))) => connection.decoder.push(&bytes).map_err(|error| error.to_string()),
        Ok(Some(Err(error))) => Err(format!("the stream broke: {error}")),
        Ok(None) => Err("the stream ended".to_owned()),
        Err(_) => Err("the server fell silent".to_owned()),
    }
}

fn back_off(waits: u32, random: u64) -> Duration {
    let base = (FIRST_WAIT * 2_u32.pow(waits.min(8))).min(LONGEST_WAIT);
    let span_ms = u64::try_from(base.as_millis()).unwrap_or(1).max(1);
    base / 2 + Duration::from_millis(random % span_ms)
}

#[derive(Deserialize)]
struct CaughtUp {
    seq: Seq,
}

#[derive(Deserialize)]
struct Resync {
    log: String,
    head_seq: Seq,
}

#[derive(Deserialize)]
struct Reconnect {
    after_ms: Option<u64>,
}

fn parse<'a, T: Deserialize<'a>>(data: &'a str) -> Result<T, ClientError> {
    serde_json::from_str(data).map_err(|error| ClientError::Unexpected(format!("{error} in {data:?}")))
}

#[cfg(test)]
mod tests {
    use super::super::Endpoint;
    use super::*;

    fn stream() -> ConversationStream {
        let client = HttpClient::new(Endpoint::new("http://127.0.0.1:9", None).expect("valid")).expect("starts");
        ConversationStream::new(client, "c", Start { after: Seq(3), log: None })
    }

    fn event(id: &str, name: &str, data: &str) -> Decoded {
        Decoded::Event { id: id.to_owned(), event: name.to_owned(), data: data.to_owned() }
    }

    fn record(seq: u64) -> Decoded {
        let data = format!(
            r#"{{"seq":{seq},"kind":"message","conversation":"c","sender":"a","at":"2026-01-01T00:00:00.000Z","epoch":1,"body":{{"text":"x"}}}}"#
        );
        event(&format!("log.1:{seq}"), "message", &data)
    }

    #[test]
    fn records_come_out_once_and_move_the_position() {
        let mut stream = stream();
        assert!(stream.interpret(record(3)).expect("parses").is_none(), "it was asked for what is after 3");
        assert!(matches!(stream.interpret(record(5)), Ok(Some(Item::Record(record, _))) if record.seq == Seq(5)));
        assert!(stream.interpret(record(5)).expect("parses").is_none());
        assert_eq!(stream.position.as_deref(), Some("log.1:5"));
    }

    #[test]
    fn live_events_do_not_move_the_position() {
        let mut stream = stream();
        let delta = event("log.1:3", "delta", r#"{"text":"x"}"#);
        assert!(matches!(stream.interpret(delta), Ok(Some(Item::Live { .. }))));
        assert_eq!(stream.position, None);
    }

    #[test]
    fn a_resync_drops_the_connection_and_waits_for_a_restart() {
        let mut stream = stream();
        stream.position = Some("log.1:5".to_owned());
        let resync = event("log.2:9", "resync", r#"{"log":"log.2","head_seq":9}"#);
        let Ok(Some(Item::Resync { log, head_seq })) = stream.interpret(resync) else { panic!("no resync") };
        assert_eq!((log.as_str(), head_seq), ("log.2", Seq(9)));
        stream.restart(Start { after: head_seq, log: Some(log) });
        assert_eq!((stream.position.as_deref(), stream.delivered), (None, Seq(9)));
    }

    #[test]
    fn a_reconnect_says_when() {
        let mut stream = stream();
        assert!(stream.interpret(event("log.1:3", "reconnect", r#"{"after_ms":1500}"#)).expect("parses").is_none());
        assert_eq!(stream.asked_wait, Some(Duration::from_millis(1500)));
        for (asked_ms, wait) in [(0, ASKED_WAIT_MIN), (u64::MAX, ASKED_WAIT_MAX)] {
            assert!(stream.interpret(Decoded::Retry(asked_ms)).expect("parses").is_none());
            assert_eq!(stream.asked_wait, Some(wait), "{asked_ms}");
        }
    }

    #[test]
    fn the_back_off_is_bounded() {
        for waits in [0, 1, 5, 8, 100] {
            for random in [0, u64::MAX] {
                assert!(back_off(waits, random) <= LONGEST_WAIT * 3 / 2);
            }
        }
    }
}
