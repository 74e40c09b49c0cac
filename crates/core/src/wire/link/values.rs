//! The encoding of what the rest of the core defines: ids, records, refusals, live events and the link's messages.

use serde_json::Value;
use serde_json::value::RawValue;

use super::encoding::{DecodeError, Reader, Wire, put_text, wire_enum, wire_struct};
use super::messages::{FollowerReport, Handed, Hops, Notice, Request, Response};
use crate::body::{Body, BodyHash};
use crate::ids::{
    AgentName, ClientMsgId, ConversationId, Epoch, Generation, Incarnation, LogId, NodeName, Seq, Subject,
};
use crate::presence::shard::{Meta, MetaRef, PresenceNews, ShardNews, ShardReport};
use crate::record::{Draft, Record, RecordKind};
use crate::refusal::{Code, Refusal, Retry};
use crate::sequencer::{Outcome, Receipt};
use crate::time::Timestamp;
use crate::turn::StepId;
use crate::turn::awaits::AwaitId;
use crate::turn::cancel::{Cancel, CancelMode, OfferedStep, Regenerate, Resolve, TurnAsk};
use crate::turn::live::{LiveEvent, Piece};

/// Texts with a rule of their own, checked as at any other edge.
macro_rules! parsed_texts {
    ($($name:ty),*) => { $(
        impl Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                put_text(self.as_str(), out);
            }
            fn take(from: &mut Reader<'_>, field: &'static str) -> Result<Self, DecodeError> {
                Ok(from.text(field)?.parse::<Self>()?)
            }
        }
    )* };
}
parsed_texts!(ConversationId, ClientMsgId, Subject, AgentName, NodeName, LogId, StepId);

wire_struct!(Seq { 0: seq });
wire_struct!(Epoch { 0: epoch });
wire_struct!(Generation { 0: generation });
wire_struct!(Timestamp { 0: at });
wire_struct!(Hops { 0: hops });
wire_struct!(BodyHash { 0: body_hash });

impl Wire for Incarnation {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.to_be_bytes().put(out);
    }

    fn take(from: &mut Reader<'_>, field: &'static str) -> Result<Self, DecodeError> {
        Wire::take(from, field).map(|bytes| Self(u128::from_be_bytes(bytes)))
    }
}

impl Wire for Body {
    fn put(&self, out: &mut Vec<u8>) {
        put_text(self.as_str(), out);
    }

    /// The sender checked it; whoever splices it into a frame relies on its being an object, so that much is checked again.
    fn take(from: &mut Reader<'_>, field: &'static str) -> Result<Self, DecodeError> {
        let text = from.text(field)?;
        if !text.starts_with('{') {
            return Err(DecodeError::invalid(field, "is not a JSON object"));
        }
        match serde_json::from_str::<&RawValue>(text) {
            Ok(value) if value.get().len() == text.len() => Ok(Self::from_store(text)),
            Ok(_) => Err(DecodeError::invalid(field, "goes on after the JSON object")),
            Err(error) => Err(DecodeError::invalid(field, format!("is not JSON: {error}"))),
        }
    }
}

impl Wire for RecordKind {
    fn put(&self, out: &mut Vec<u8>) {
        u64::from(*self as u8).put(out);
    }

    fn take(from: &mut Reader<'_>, field: &'static str) -> Result<Self, DecodeError> {
        let number = u64::take(from, field)?;
        let known = i64::try_from(number).ok().and_then(Self::from_number);
        known.ok_or(DecodeError::Unknown { what: "record kind", number })
    }
}

impl Wire for Code {
    /// Two codes share a name, and several a status; together they are one.
    fn put(&self, out: &mut Vec<u8>) {
        self.status().put(out);
        put_text(self.as_str(), out);
    }

    fn take(from: &mut Reader<'_>, field: &'static str) -> Result<Self, DecodeError> {
        let status = u16::take(from, field)?;
        let name = from.text(field)?;
        let known = Self::ALL.iter().find(|code| code.status() == status && code.as_str() == name);
        known.copied().ok_or_else(|| DecodeError::invalid(field, format!("{status} {name:?} is not known")))
    }
}

wire_struct!(Retry { after_ms: after_ms, budget_ms: budget_ms });
wire_struct!(Refusal { code: code, detail: detail, retry: retry });
wire_struct!(Receipt { seq: seq, epoch: epoch, at: at, outcome: outcome });
wire_enum!(Outcome, "outcome" { 1 = Appended {}; 2 = Duplicate {}; });
wire_struct!(Draft {
    kind: kind,
    sender: sender,
    name: name,
    client_msg_id: client_msg_id,
    turn: turn,
    body: body,
    body_hash: body_hash,
});
wire_struct!(Record {
    seq: seq,
    kind: kind,
    conversation: conversation,
    sender: sender,
    name: name,
    client_msg_id: client_msg_id,
    at: at,
    epoch: epoch,
    turn: turn,
    edited_at: edited_at,
    deleted_at: deleted_at,
    body: body,
});

wire_struct!(Piece { turn: turn, step: step, epoch: epoch, attempt: attempt, offset: offset, text: text });
wire_enum!(LiveEvent, "live event" {
    1 = Delta { 0: piece };
    2 = StepReset { turn: turn, step: step, epoch: epoch, attempt: attempt };
    3 = TurnResumed { turn: turn, epoch: epoch };
    4 = Snapshot { 0: piece };
    5 = Typing { sender: sender, name: name };
});

impl Wire for Value {
    fn put(&self, out: &mut Vec<u8>) {
        put_text(&self.to_string(), out);
    }

    /// The edge that took it limited its depth and its size.
    fn take(from: &mut Reader<'_>, field: &'static str) -> Result<Self, DecodeError> {
        let text = from.text(field)?;
        let value: Self =
            serde_json::from_str(text).map_err(|error| DecodeError::invalid(field, format!("is not JSON: {error}")))?;
        let again = value.to_string();
        if again == text { Ok(value) } else { Err(DecodeError::invalid(field, "is written in another way")) }
    }
}

impl Wire for Cancel {
    fn put(&self, out: &mut Vec<u8>) {
        self.turn.put(out);
        self.mode.put(out);
        self.by.put(out);
    }

    /// Reasons are the owner's own, and never asked for.
    fn take(from: &mut Reader<'_>, _: &'static str) -> Result<Self, DecodeError> {
        let (turn, mode) = (Wire::take(from, "turn")?, Wire::take(from, "mode")?);
        Ok(Self { turn, mode, by: Wire::take(from, "by")?, reason: None })
    }
}

parsed_texts!(AwaitId);
wire_enum!(CancelMode, "cancel mode" { 1 = Keep {}; 2 = Rollback {}; });
wire_struct!(Resolve { id: id, payload: payload, by: by });
wire_struct!(Regenerate { turn: turn, by: by, name: name, client_msg_id: client_msg_id });
wire_struct!(OfferedStep { turn: turn, epoch: epoch, attempt: attempt, step: step, input: input, output: output });
wire_enum!(TurnAsk, "turn ask" {
    1 = Cancel { 0: cancel };
    2 = Resolve { 0: resolve };
    3 = Regenerate { 0: regenerate };
    4 = Step { 0: offered };
});

wire_struct!(Handed {
    conversation: conversation,
    epoch: epoch,
    generation: generation,
    last_seq: last_seq,
    first_seq: first_seq,
    log: log,
});
wire_enum!(Request, "request" {
    1 = Append { conversation: conversation, drafts: drafts, hops: hops };
    2 = SetAgent { conversation: conversation, agent: agent };
    3 = Offer { conversations: conversations };
    4 = HandOff { 0: handed };
    5 = Sessions { conversation: conversation };
    6 = Share { conversations: conversations, level: level };
    7 = Owned { 0: query };
    8 = Events { after: after, limit: limit };
    9 = ReadAgain { conversation: conversation };
    10 = Turn { conversation: conversation, ask: ask, hops: hops };
    11 = TakeSession { agent: agent };
});
wire_enum!(Response, "response" {
    1 = Appended { 0: appended };
    2 = Heard {};
    3 = Takes { 0: takes };
    4 = Sessions { connected: connected, presence: presence };
    6 = Owned { 0: page };
    7 = Events { 0: page };
});
wire_enum!(Notice, "notice" {
    1 = Published { conversation: conversation, seq: seq };
    2 = MemberAdded { conversation: conversation, sub: sub };
    3 = MemberRemoved { conversation: conversation, sub: sub };
    4 = ConversationChanged { conversation: conversation };
    5 = CursorMoved { conversation: conversation, sub: sub };
    6 = Load { owned: owned };
});
wire_enum!(FollowerReport, "report" {
    1 = Typing { sub: sub, name: name };
    2 = Presence { 0: shard };
});
wire_struct!(MetaRef { turn: turn, hub: hub });
wire_struct!(Meta { reference: reference, sub: sub, name: name });
wire_struct!(ShardReport { hub: hub, serial: serial, sessions: sessions, news: news });
wire_enum!(ShardNews, "shard news" {
    1 = Still {};
    2 = Whole { 0: metas };
    3 = Changed { joins: joins, leaves: leaves };
    4 = Counted {};
});
wire_enum!(PresenceNews, "presence news" {
    1 = Whole { 0: metas };
    2 = Changed { joins: joins, leaves: leaves };
    3 = Count { 0: count };
    4 = Ask {};
});
