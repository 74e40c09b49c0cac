//! Records: the durable entries of a conversation's log, and the drafts they are made from.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::body::{Body, BodyHash};
use crate::ids::{ClientMsgId, ConversationId, Epoch, InvalidId, Seq, Subject};
use crate::time::Timestamp;

/// Declares the kinds once: the enum, its wire name and its number in the store.
macro_rules! record_kinds {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $wire:literal;)*) => {
        /// What a record is. The number is what the store keeps and never changes its meaning.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum RecordKind { $($(#[$doc])* $name = $number,)* }

        impl RecordKind {
            /// Every kind.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The name on the wire; also the event's name on SSE and channels.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $wire,)* }
            }

            /// The kind with this number in the store.
            #[must_use]
            pub fn from_number(number: i64) -> Option<Self> {
                match number { $($number => Some(Self::$name),)* _ => None }
            }
        }
    };
}

record_kinds! {
    /// Somebody said something; also an agent's answer.
    Message = 1, "message";
    /// From a webhook or a job.
    Event = 2, "event";
    /// A turn began; its id is the seq of its input.
    TurnStarted = 3, "turn.started";
    /// The intent of an unsafe step.
    StepStarted = 4, "step.started";
    /// A step's result.
    StepCompleted = 5, "step.completed";
    /// The turn waits for a person or a webhook.
    AwaitOpened = 6, "await.opened";
    /// It was answered, or expired.
    AwaitResolved = 7, "await.resolved";
    /// The turn ended well.
    TurnCompleted = 8, "turn.completed";
    /// The turn ended badly; the body says why.
    TurnFailed = 9, "turn.failed";
    /// The turn was cancelled.
    TurnCancelled = 10, "turn.cancelled";
    /// A later turn replaced it.
    TurnSuperseded = 11, "turn.superseded";
    /// A message's body was replaced.
    MessageEdited = 12, "message.edited";
    /// A message's body was erased.
    MessageDeleted = 13, "message.deleted";
}

impl RecordKind {
    /// True for the kinds that end a turn; a turn has exactly one of them (invariant 10).
    #[must_use]
    pub fn ends_turn(self) -> bool {
        matches!(self, Self::TurnCompleted | Self::TurnFailed | Self::TurnCancelled | Self::TurnSuperseded)
    }
}

impl fmt::Display for RecordKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for RecordKind {
    type Err = InvalidId;
    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let found = Self::ALL.iter().copied().find(|kind| kind.as_str() == text);
        found.ok_or_else(|| InvalidId { field: "kind", problem: format!("{text:?} is not a record kind") })
    }
}

impl Serialize for RecordKind {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for RecordKind {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// What a writer asks to be appended. It becomes a [`Record`] when the owner gives it a seq and the store commits it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draft {
    /// What it is.
    pub kind: RecordKind,
    /// Who writes.
    pub sender: Subject,
    /// The sender's display name, if the token has one.
    pub name: Option<Arc<str>>,
    /// The idempotency key, unique per conversation and sender.
    pub client_msg_id: ClientMsgId,
    /// The turn it belongs to.
    pub turn: Option<Seq>,
    /// The content.
    pub body: Body,
    /// [`Body::hash`] of kind and body, computed once at the edge.
    pub body_hash: BodyHash,
}

impl Draft {
    /// A draft, with its hash.
    #[must_use]
    pub fn new(kind: RecordKind, sender: Subject, client_msg_id: ClientMsgId, body: Body) -> Self {
        let body_hash = body.hash(kind);
        Self { kind, sender, name: None, client_msg_id, turn: None, body, body_hash }
    }

    /// With the sender's display name.
    #[must_use]
    pub fn with_name(mut self, name: Option<Arc<str>>) -> Self {
        self.name = name;
        self
    }

    /// As part of a turn.
    #[must_use]
    pub fn in_turn(mut self, turn: Seq) -> Self {
        self.turn = Some(turn);
        self
    }
}

/// One durable entry of a conversation's log. Serialises to the wire form, the same on every transport.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its number.
    pub seq: Seq,
    /// What it is.
    pub kind: RecordKind,
    /// Where it is.
    pub conversation: ConversationId,
    /// Who wrote it.
    pub sender: Subject,
    /// The writer's display name at that time.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<Arc<str>>,
    /// The writer's idempotency key.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub client_msg_id: Option<ClientMsgId>,
    /// When it was committed, on the store's clock.
    pub at: Timestamp,
    /// The epoch whose owner committed it.
    pub epoch: Epoch,
    /// The turn it belongs to.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub turn: Option<Seq>,
    /// When its body was last replaced.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub edited_at: Option<Timestamp>,
    /// When its body was erased.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub deleted_at: Option<Timestamp>,
    /// The content.
    pub body: Body,
}

impl Record {
    /// The record that a draft becomes.
    #[must_use]
    pub fn from_draft(conversation: ConversationId, seq: Seq, epoch: Epoch, at: Timestamp, draft: Draft) -> Self {
        Self {
            seq,
            kind: draft.kind,
            conversation,
            sender: draft.sender,
            name: draft.name,
            client_msg_id: Some(draft.client_msg_id),
            at,
            epoch,
            turn: draft.turn,
            edited_at: None,
            deleted_at: None,
            body: draft.body,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_go_there_and_back() {
        for &kind in RecordKind::ALL {
            assert_eq!(RecordKind::from_number(kind as i64), Some(kind));
            assert_eq!(kind.as_str().parse(), Ok(kind));
        }
        assert_eq!(RecordKind::from_number(0), None);
    }

    #[test]
    fn the_wire_form_is_compact_and_leaves_out_what_is_not_there() {
        let body = Body::parse_message(r#"{ "text": "hi" }"#, crate::body::Limits::default()).expect("valid");
        let key = "k1".parse().expect("valid");
        let draft = Draft::new(RecordKind::Message, "alice".parse().expect("valid"), key, body);
        let record = Record::from_draft("c".parse().expect("valid"), Seq(7), Epoch(2), Timestamp(0), draft);
        let json = serde_json::to_string(&record).expect("serialises");
        let expected = concat!(
            r#"{"seq":7,"kind":"message","conversation":"c","sender":"alice","client_msg_id":"k1","#,
            r#""at":"1970-01-01T00:00:00.000Z","epoch":2,"body":{"text":"hi"}}"#
        );
        assert_eq!(json, expected);
        assert_eq!(serde_json::from_str::<Record>(&json).expect("parses"), record);
    }
}
