//! The UI message stream of the Vercel AI SDK: what `useChat` of `ai` 5, 6 and 7 reads, made from a turn's records and live
//! events, and the conversation as the messages that it keeps.
//!
//! [`TurnStream`] shows one turn as [`Part`]s, whether it is watched as it happens or replayed from the log; [`history`] puts
//! the same parts together as a client does.
//!
//! Invariants: every stream is well formed, whatever order live events come in: one `start`, steps and texts that open and
//! close, a tool's output after its input, one end, and only parts that all three versions know (another one kills a client's
//! stream). What was shown is never contradicted: where text is void that was sent already, the stream is given up
//! ([`Next::Retracted`]), because versions 5 and 6 cannot take text back. A history's message is what a client holds that saw
//! the turn's records.
//!
//! Deliberately absent: connections, and which turn is asked for.

mod history;
mod message;
mod part;
mod request;
mod stream;
#[cfg(test)]
mod tests;

pub use history::{HISTORY_KINDS, history};
pub use message::{Role, UiMessage, UiPart};
pub use part::{DONE, FinishReason, Metadata, Part, TurnIs};
pub use request::{ChatRequest, InvalidChat, LastMessage, SaidMessage, Trigger, UserText};
pub use stream::{Next, Told, TurnStream};

use crate::ids::Seq;

/// What a turn's message is called, on every stream and in the history.
#[must_use]
pub fn message_id(turn: Seq) -> String {
    format!("{TURN_PREFIX}{turn}")
}

/// The turn that [`message_id`] names.
#[must_use]
pub fn turn_of_message(id: &str) -> Option<Seq> {
    let digits = id.strip_prefix(TURN_PREFIX)?;
    let turn = Seq(digits.parse().ok()?);
    // One text for each: no sign, no leading zeros.
    (message_id(turn) == id).then_some(turn)
}

const TURN_PREFIX: &str = "turn-";
