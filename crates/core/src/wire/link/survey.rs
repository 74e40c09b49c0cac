//! What operators are shown of every node: the conversations that it owns, and what happened to ownership on it.
//!
//! Invariant: a page says up to where it was looked, so that whoever asks for what comes next neither misses anything nor sees
//! it twice, whatever was left out of the page.
//!
//! Deliberately absent: what an event is. The asked node words its events as JSON, and the one that asks passes them on, so that
//! a kind which only one of them knows is shown all the same.

use serde::Serialize;

use super::encoding::{DecodeError, Reader, Wire, wire_enum, wire_struct};
use crate::ids::{ConvKey, ConversationId, Epoch};

/// Whether an owner has a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rest {
    /// It has.
    Active,
    /// It is owned without one.
    Hibernating,
}

/// A conversation that a node owns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Owned {
    /// Which.
    pub conversation: ConversationId,
    /// In which reign.
    pub epoch: Epoch,
    /// Whether it has a task.
    #[serde(rename = "state")]
    pub rest: Rest,
}

/// Which part of what a node owns is asked for. The order is that of the conversations' keys, the same on every node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OwnedQuery {
    /// Above this key; `None`: from the first.
    pub after: Option<ConvKey>,
    /// Only ids that contain this, upper and lower case alike; empty: all.
    pub contains: String,
    /// At most so many; 0: only how many there are in all.
    pub limit: u32,
}

/// A part of what a node owns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedPage {
    /// How many it owns in all.
    pub total: u64,
    /// By ascending key.
    pub owned: Vec<Owned>,
    /// Up to which key was looked; `None`: to the end.
    pub through: Option<ConvKey>,
}

/// A part of what happened on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventsPage {
    /// A JSON list, by ascending id.
    pub events: String,
    /// The id of the last one of them; of the newest there is where there are none. What to ask after next.
    pub through: u64,
    /// Some before the first one are gone.
    pub missed: bool,
}

impl Wire for ConvKey {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }

    fn take(from: &mut Reader<'_>, field: &'static str) -> Result<Self, DecodeError> {
        Wire::take(from, field).map(Self)
    }
}

impl Wire for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn take(from: &mut Reader<'_>, field: &'static str) -> Result<Self, DecodeError> {
        match from.byte(field)? {
            0 => Ok(false),
            1 => Ok(true),
            number => Err(DecodeError::Unknown { what: field, number: number.into() }),
        }
    }
}

wire_enum!(Rest, "rest" { 1 = Active {}; 2 = Hibernating {}; });
wire_struct!(Owned { conversation: conversation, epoch: epoch, rest: rest });
wire_struct!(OwnedQuery { after: after, contains: contains, limit: limit });
wire_struct!(OwnedPage { total: total, owned: owned, through: through });
wire_struct!(EventsPage { events: events, through: through, missed: missed });
