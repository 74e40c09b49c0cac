//! Frames: what is shown, encoded once and shared by everybody who sees it.
//!
//! Invariant: every viewer of a conversation gets the same bytes. A WebSocket frame (header included) and a Server-Sent
//! Event are each built at most once, when the first viewer of that kind needs them.
//!
//! Deliberately absent: anything per recipient. What is addressed to one session (a join's reply) is not a frame.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use conch_core::ids::{ConversationId, LogId, Seq};
use conch_core::record::Record;
use conch_core::wire::{phoenix, sse, websocket};

/// Bytes of a record's JSON besides its body, nearly always; the buffer grows where there are more.
const AROUND_A_BODY: usize = 320;

/// Whether a frame may be dropped for a viewer who cannot keep up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// A record, or a mark that positions depend on: never dropped.
    Durable,
    /// Presence, typing, deltas: the first to go.
    Live,
}

/// The names that a frame is addressed with.
#[derive(Debug, Clone)]
pub struct Address {
    /// The channel topic, `conversation:{id}` or `user:me`.
    pub topic: Arc<str>,
    /// The history that positions belong to.
    pub log: LogId,
}

impl Address {
    /// The address of a conversation's frames.
    #[must_use]
    pub fn conversation(id: &ConversationId, log: LogId) -> Self {
        Self { topic: format!("conversation:{id}").into(), log }
    }
}

/// One thing to show.
#[derive(Debug)]
pub struct Frame {
    address: Address,
    event: &'static str,
    position: Option<Seq>,
    json: Bytes,
    class: Class,
    websocket: OnceLock<Bytes>,
    event_stream: OnceLock<Bytes>,
}

impl Frame {
    /// A record.
    #[must_use]
    pub fn record(address: &Address, record: &Record) -> Self {
        let mut json = Vec::with_capacity(record.body.as_str().len() + AROUND_A_BODY);
        serde_json::to_writer(&mut json, record).expect("a record has string keys and valid bodies only");
        Self::new(address, record.kind.as_str(), Some(record.seq), json.into(), Class::Durable)
    }

    /// `caught_up`: everything up to `seq` has been shown.
    #[must_use]
    pub fn caught_up(address: &Address, seq: Seq) -> Self {
        let json = format!(r#"{{"seq":{seq}}}"#);
        Self::new(address, "caught_up", Some(seq), json.into(), Class::Durable)
    }

    /// `resync`: positions before `head` are void; load the latest page and go on from there.
    #[must_use]
    pub fn resync(address: &Address, head: Seq) -> Self {
        let json = format!(r#"{{"log":"{}","head_seq":{head}}}"#, address.log);
        Self::new(address, "resync", Some(head), json.into(), Class::Durable)
    }

    /// An event without a seq.
    #[must_use]
    pub fn live(address: &Address, event: &'static str, json: String) -> Self {
        Self::new(address, event, None, json.into(), Class::Live)
    }

    /// An event without a seq that is not dropped (the personal stream's).
    #[must_use]
    pub fn kept(address: &Address, event: &'static str, json: String) -> Self {
        Self::new(address, event, None, json.into(), Class::Durable)
    }

    fn new(address: &Address, event: &'static str, position: Option<Seq>, json: Bytes, class: Class) -> Self {
        let (websocket, event_stream) = (OnceLock::new(), OnceLock::new());
        Self { address: address.clone(), event, position, json, class, websocket, event_stream }
    }

    /// May it be dropped?
    #[must_use]
    pub fn class(&self) -> Class {
        self.class
    }

    /// The event's name.
    #[must_use]
    pub fn event(&self) -> &'static str {
        self.event
    }

    /// The payload, compact JSON.
    #[must_use]
    pub fn json(&self) -> &str {
        std::str::from_utf8(&self.json).expect("built from text")
    }

    /// Bytes of the payload.
    #[must_use]
    pub fn json_bytes(&self) -> usize {
        self.json.len()
    }

    /// Its size in memory, roughly, for bounds: the payload and one encoding.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.json.len() * 2 + 128
    }

    /// The WebSocket frame, header included, as a Phoenix broadcast.
    #[must_use]
    pub fn websocket(&self) -> &Bytes {
        self.websocket.get_or_init(|| {
            let text = phoenix::push(None, &self.address.topic, self.event, self.json());
            websocket::frame(websocket::Opcode::Text, &[text.as_bytes()])
        })
    }

    /// The Server-Sent Event.
    #[must_use]
    pub fn event_stream(&self) -> &Bytes {
        self.event_stream.get_or_init(|| {
            let id = self.position.map(|seq| format!("{}:{seq}", self.address.log));
            sse::event(id.as_deref(), self.event, self.json()).into()
        })
    }
}
