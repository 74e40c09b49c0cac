//! Histories: what clients sent, were told and saw, and what the log holds in the end, as one event a line of JSON.
//!
//! [`Checker`] holds a history against the invariants. A simulation, a chaos test and an operator who wants to check a
//! deployment of their own all write this format; the lines are in the order in which things happened, and the final
//! rows come last.
//!
//! An asynchronous standby that is promoted loses what had not reached it. Whoever promotes it says so with a `failover`
//! line; what is missing then is named as lost instead of being a violation, if it lies where that promotion's skip in the
//! numbers is. Without such a line every loss is a violation, and with it every lost number that comes back.
//!
//! Deliberately absent: IO, and any knowledge of how a history came about.

mod checker;
mod lost;
mod sights;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use checker::{Checker, Counts, MOST_REPORTED, Report};
pub use lost::{Lost, MOST_LOST_NAMED};

use crate::ids::{ClientMsgId, ConversationId, Epoch, LogId, Seq, Subject};
use crate::record::Record;

/// One event of a history. Times are in microseconds since any start that the whole history shares; they are for people
/// and must not go back, since order is the order of lines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case", deny_unknown_fields)]
pub enum Event {
    /// A client is about to send (again).
    Invoked {
        /// Who tries; one that has no second write under way for the same key.
        client: String,
        /// Where.
        conversation: ConversationId,
        /// As whom.
        sender: Subject,
        /// The idempotency key.
        client_msg_id: ClientMsgId,
        /// When.
        t_us: u64,
    },
    /// It was told that its message is in the log.
    Acked {
        /// Who.
        client: String,
        /// Where.
        conversation: ConversationId,
        /// As whom.
        sender: Subject,
        /// The idempotency key.
        client_msg_id: ClientMsgId,
        /// The number it was told.
        seq: Seq,
        /// The epoch it was told.
        epoch: Epoch,
        /// When.
        t_us: u64,
    },
    /// It was refused. Counts as unknown: an earlier attempt inside the server may have landed.
    Refused {
        /// Who.
        client: String,
        /// Where.
        conversation: ConversationId,
        /// As whom.
        sender: Subject,
        /// The idempotency key.
        client_msg_id: ClientMsgId,
        /// When.
        t_us: u64,
    },
    /// It got no answer.
    Unknown {
        /// Who.
        client: String,
        /// Where.
        conversation: ConversationId,
        /// As whom.
        sender: Subject,
        /// The idempotency key.
        client_msg_id: ClientMsgId,
        /// When.
        t_us: u64,
    },
    /// A reign began: from this line to the next of its kind no other epoch may commit. Optional: who can see into the
    /// store records it, others leave it out and lose that check.
    Claimed {
        /// Of what.
        conversation: ConversationId,
        /// The new epoch.
        epoch: Epoch,
        /// When.
        t_us: u64,
    },
    /// A record is durable from here on. Optional, as `claimed` is.
    Committed {
        /// Where.
        conversation: ConversationId,
        /// Its number.
        seq: Seq,
        /// Its epoch.
        epoch: Epoch,
        /// When.
        t_us: u64,
    },
    /// An observer begins a stretch: it asked for everything after this seq.
    Joined {
        /// Who watches.
        observer: String,
        /// What.
        conversation: ConversationId,
        /// The last seq it has seen; absent: from wherever the server begins.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        after: Option<Seq>,
        /// When.
        t_us: u64,
    },
    /// It was shown a record.
    Observed {
        /// Who watches.
        observer: String,
        /// What.
        conversation: ConversationId,
        /// The record's number.
        seq: Seq,
        /// Its epoch.
        epoch: Epoch,
        /// Its sender.
        sender: Subject,
        /// Its idempotency key.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        client_msg_id: Option<ClientMsgId>,
        /// The history that the number belongs to.
        log: String,
        /// When.
        t_us: u64,
    },
    /// It was told that it has everything up to here.
    CaughtUp {
        /// Who watches.
        observer: String,
        /// What.
        conversation: ConversationId,
        /// Up to where.
        seq: Seq,
        /// When.
        t_us: u64,
    },
    /// It was told to load the latest page and go on from there: a new stretch begins.
    Resync {
        /// Who watches.
        observer: String,
        /// What.
        conversation: ConversationId,
        /// The history it is to follow.
        log: String,
        /// Where that history stands.
        head_seq: Seq,
        /// When.
        t_us: u64,
    },
    /// A client was told how far a subject has read.
    Cursor {
        /// Who was told; one that asks one thing at a time.
        client: String,
        /// Whose cursor.
        sub: Subject,
        /// Where.
        conversation: ConversationId,
        /// The cursor.
        seq: Seq,
        /// When.
        t_us: u64,
    },
    /// The record store began another history: a standby was promoted, or a backup restored. Written once for each, when the
    /// old history takes no more writes. What was sent before this line may be lost; cursors may have moved back.
    Failover {
        /// The new history. Its generation is above that of every earlier line of this kind.
        log: LogId,
        /// When.
        t_us: u64,
    },
    /// A row of the log as it is in the end, ascending by seq in each conversation.
    Final {
        /// Where.
        conversation: ConversationId,
        /// Its number.
        seq: Seq,
        /// Its epoch.
        epoch: Epoch,
        /// Its sender.
        sender: Subject,
        /// Its idempotency key.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        client_msg_id: Option<ClientMsgId>,
    },
    /// A read cursor as it is in the end.
    FinalCursor {
        /// Whose.
        sub: Subject,
        /// Where.
        conversation: ConversationId,
        /// The cursor.
        seq: Seq,
    },
}

impl Event {
    /// An observer was shown this record of this history.
    #[must_use]
    pub fn observed(observer: &str, record: &Record, log: &str, t_us: u64) -> Self {
        let Record { conversation, seq, epoch, sender, client_msg_id, .. } = record.clone();
        let (observer, log) = (observer.to_owned(), log.to_owned());
        Self::Observed { observer, conversation, seq, epoch, sender, client_msg_id, log, t_us }
    }
}

/// A line that is no event, or an event that cannot be at this place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct Malformed {
    /// The line's number, from 1.
    pub line: u64,
    /// What is wrong with it.
    pub problem: String,
}

impl Event {
    /// Reads one line.
    ///
    /// # Errors
    /// What is missing or unknown, by name.
    pub fn parse(line: &str) -> Result<Self, String> {
        serde_json::from_str(line).map_err(|error| error.to_string())
    }

    /// The event as one line of JSON, without the line's end.
    #[must_use]
    pub fn to_line(&self) -> String {
        serde_json::to_string(self).expect("strings and numbers always serialise")
    }
}

/// Checks a whole history, given as its lines. Empty lines count and say nothing.
///
/// # Errors
/// The first line that is malformed.
pub fn check_lines<'a>(lines: impl IntoIterator<Item = &'a str>) -> Result<Report, Malformed> {
    let mut checker = Checker::default();
    for (index, line) in lines.into_iter().enumerate() {
        let number = index as u64 + 1;
        let placed = |problem| Malformed { line: number, problem };
        if !line.trim().is_empty() {
            let event = Event::parse(line).map_err(placed)?;
            checker.event(&event).map_err(placed)?;
        }
    }
    Ok(checker.finish())
}
