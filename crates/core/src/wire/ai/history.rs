//! A conversation's log as the messages that a page begins with.
//!
//! Invariant: each message once, an input where its turn began or where it joined one, as in the page of whoever sent it; a
//! turn's message under the same name and with the same parts as its stream has.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::message::{Role, UiMessage, UiPart};
use super::stream::TurnStream;
use crate::ids::{Seq, Subject};
use crate::record::{Record, RecordKind};
use crate::turn::cancel::CancelMode;
use crate::turn::journal;

/// The kinds that messages are made from.
pub const HISTORY_KINDS: [RecordKind; 11] = [
    RecordKind::Message,
    RecordKind::Event,
    RecordKind::TurnStarted,
    RecordKind::StepStarted,
    RecordKind::StepCompleted,
    RecordKind::AwaitOpened,
    RecordKind::AwaitResolved,
    RecordKind::TurnCompleted,
    RecordKind::TurnFailed,
    RecordKind::TurnCancelled,
    RecordKind::TurnSuperseded,
];

/// The messages of these records, which ascend, as `me` has them; turns whose beginning is not among them are left out. What
/// was rolled back or run again is not there.
#[must_use]
pub fn history(records: &[Record], me: &Subject) -> Vec<UiMessage> {
    let mut history = History { me, waiting: BTreeMap::new(), entries: Vec::new(), turns: BTreeMap::new() };
    for record in records {
        history.take(record);
    }
    // These wait for their turn.
    let waiting: Vec<UiMessage> = history.waiting.values().filter_map(|input| history.said(input)).collect();
    history.entries.into_iter().flatten().chain(waiting).collect()
}

struct History<'a> {
    me: &'a Subject,
    /// The inputs that have no place yet.
    waiting: BTreeMap<Seq, &'a Record>,
    /// `None`: what was here is void.
    entries: Vec<Option<UiMessage>>,
    /// The turns, and where their messages are.
    turns: BTreeMap<Seq, (TurnStream, usize)>,
}

impl<'a> History<'a> {
    fn take(&mut self, record: &'a Record) {
        if journal::is_input(record.kind, &record.sender) {
            if record.deleted_at.is_none() {
                self.waiting.insert(record.seq, record);
            }
            return;
        }
        let Some(turn) = record.turn else { return };
        if record.kind == RecordKind::TurnStarted || (record.kind.ends_turn() && self.waiting.contains_key(&turn)) {
            self.place(turn);
        }
        match record.kind {
            RecordKind::TurnSuperseded if journal::joined_into(record).is_some() => {}
            RecordKind::TurnSuperseded => self.void(turn),
            RecordKind::TurnCancelled if journal::cancel_mode(&record.body) == Some(CancelMode::Rollback) => {
                self.void(turn);
            }
            RecordKind::TurnStarted => {
                self.turns.insert(turn, (TurnStream::new(turn), self.entries.len()));
                let (id, metadata, parts) = (String::new(), Value::Null, Vec::new());
                self.entries.push(Some(UiMessage { id, role: Role::Assistant, metadata, parts }));
                self.put(turn, record);
            }
            _ => self.put(turn, record),
        }
    }

    /// An input gets its place.
    fn place(&mut self, turn: Seq) {
        if let Some(input) = self.waiting.remove(&turn) {
            let said = self.said(input);
            self.entries.push(said);
        }
    }

    fn void(&mut self, turn: Seq) {
        if let Some((_, index)) = self.turns.remove(&turn) {
            self.entries[index] = None;
        }
    }

    fn put(&mut self, turn: Seq, record: &Record) {
        let Some((stream, index)) = self.turns.get_mut(&turn) else { return };
        let Some(message) = &mut self.entries[*index] else { return };
        for part in stream.record(record).parts {
            message.apply(part);
        }
    }

    /// An input as a message: under its sender's own name for it, if that is the reader.
    fn said(&self, record: &Record) -> Option<UiMessage> {
        let text = journal::input_text(&record.body).filter(|text| !text.is_empty())?;
        let mine = record.client_msg_id.as_ref().filter(|_| record.sender == *self.me);
        let id = mine.map_or_else(|| format!("seq-{}", record.seq), ToString::to_string);
        let mut metadata = json!({ "seq": record.seq, "sender": record.sender });
        if let Some(name) = &record.name {
            metadata["name"] = name.as_ref().into();
        }
        Some(UiMessage { id, role: Role::User, metadata, parts: vec![UiPart::Text { text, state: None }] })
    }
}
