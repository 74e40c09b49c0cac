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
use crate::turn::journal;
use crate::turn::replaced::Replaced;

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
/// was rolled back or run again is not there; a run that was rolled back replaces nothing.
#[must_use]
pub fn history(records: &[Record], me: &Subject) -> Vec<UiMessage> {
    let void = Replaced::of(records);
    let mut history = History { me, void, waiting: BTreeMap::new(), entries: Vec::new(), turns: BTreeMap::new() };
    for record in records {
        history.take(record);
    }
    // These wait for their turn.
    let waiting: Vec<UiMessage> = history.waiting.values().filter_map(|input| history.said(input)).collect();
    history.entries.into_iter().flatten().chain(waiting).collect()
}

struct History<'a> {
    me: &'a Subject,
    void: Replaced,
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
            RecordKind::TurnSuperseded if !self.void.is_run_again(turn) => {}
            RecordKind::TurnSuperseded => self.remove(turn),
            RecordKind::TurnCancelled if self.void.is_rolled_back(turn) => self.remove(turn),
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

    fn remove(&mut self, turn: Seq) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::Body;
    use crate::ids::{AgentName, Epoch};
    use crate::record::Draft;
    use crate::time::Timestamp;
    use crate::turn::cancel::{Cancel, CancelMode};

    #[test]
    fn a_run_that_was_rolled_back_replaces_nothing() {
        let (alice, demo): (Subject, AgentName) = ("alice".parse().expect("valid"), "demo".parse().expect("valid"));
        let said = |kind, key: &str, body| Draft::new(kind, alice.clone(), key.parse().expect("valid"), body);
        let drafts = [
            said(RecordKind::Message, "a1", Body::of(&json!({ "text": "first" }))),
            journal::started(Seq(1), &demo, Timestamp(9)),
            journal::answer(Seq(1), &demo, "one"),
            journal::completed(Seq(1)),
            journal::regenerated(Seq(1)),
            said(RecordKind::Event, "r1", journal::regenerate_body(Seq(1))),
            journal::started(Seq(6), &demo, Timestamp(9)),
            journal::cancelled(&Cancel { turn: Seq(6), mode: CancelMode::Rollback, by: alice.clone(), reason: None }),
        ];
        let room = || "c".parse().expect("valid");
        let records: Vec<Record> = (1..)
            .zip(drafts)
            .map(|(seq, draft)| Record::from_draft(room(), Seq(seq), Epoch(1), Timestamp(0), draft))
            .collect();
        let names = |records: &[Record]| -> Vec<String> {
            history(records, &alice).into_iter().map(|message| message.id).collect()
        };
        assert_eq!(names(&records[..7]), ["a1", "turn-6"]);
        assert_eq!(names(&records), ["a1", "turn-1"]);
    }
}
