//! The Rust client: plain HTTP calls, a resuming stream, and the outbox rule that makes a send exactly-once.
//!
//! Invariant: every request that this module sends again is idempotent (a read, a PUT, a DELETE, or a write that
//! carries its client message id), so a lost answer is met by the same request once more, never by a guess.
//!
//! Deliberately absent: TLS (a proxy terminates it for now) and a queue on disk; a process that must survive its own
//! death keeps its client message ids itself.

mod http;
mod outbox;
mod phoenix;
mod stream;
mod websocket;

use std::time::Duration;

use conch_core::refusal::Retry;
use serde::Deserialize;

pub use http::{Answer, Endpoint, HttpClient, Request};
pub use outbox::{Failed, Next, Schedule, Waiting, deliver};
pub use phoenix::{Incoming, Joined, PhoenixSocket, Reply};
pub use stream::{ConversationStream, Item, Start};
pub use websocket::{FrameKind, Frames, connect_raw, encode_client_frame, upgrade};

/// A refusal as the server sends it (RFC 9457).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, serde::Serialize)]
pub struct Problem {
    /// The HTTP status.
    #[serde(default)]
    pub status: u16,
    /// The stable code.
    pub code: String,
    /// What exactly.
    #[serde(default)]
    pub detail: String,
    /// Whether and when to send it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.code)?;
        if !self.detail.is_empty() {
            write!(f, ": {}", self.detail)?;
        }
        Ok(())
    }
}

/// How a call ended badly, by what the caller may conclude.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Refused without a directive: do not send it again, show it.
    #[error("refused: {0}")]
    Refused(Problem),
    /// Refused with a directive, or not reached, until the budget was spent. The same may be sent again later.
    #[error("unavailable for {:.1} s, giving up: {detail}", waited.as_secs_f64())]
    Unavailable {
        /// How long it was tried.
        waited: Duration,
        /// The last failure, for people.
        detail: String,
        /// The last refusal, if the server could be reached. Boxed: it is large and rare.
        problem: Option<Box<Problem>>,
    },
    /// One attempt did not get through, or its answer was lost: it may have been applied.
    #[error("{0}")]
    Unreachable(String),
    /// An answer that the contract does not know.
    #[error("unexpected answer: {0}")]
    Unexpected(String),
}
