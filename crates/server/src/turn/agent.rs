//! What answers: the seam between a turn and whoever does its work. Implement [`TurnAgent`] to embed an agent of your own.

use async_trait::async_trait;
use conch_core::refusal::Refusal;
use conch_core::turn::budget::Exceeded;
use conch_core::turn::journal::FailReason;

use super::context::TurnContext;

/// An agent: does the work of turns.
///
/// Its future may be dropped at any point where it waits, and another owner then begins anew: everything that must not
/// happen twice goes through the context, which knows what is done.
#[async_trait]
pub trait TurnAgent: Send + Sync + 'static {
    /// Runs a turn to its end.
    ///
    /// # Errors
    /// [`Halt`], mostly passed on from the context; [`Halt::Failed`] fails the turn.
    async fn run(&self, turn: &mut TurnContext) -> Result<Answer, Halt>;
}

/// The text that a turn ends with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer(pub String);

/// Why a run does not go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Halt {
    /// The turn is to be left alone.
    Stopped,
    /// The turn waits; it is run again when that is over.
    Waiting,
    /// The turn fails.
    Failed(FailReason, String),
}

impl Halt {
    /// The agent's own failure.
    #[must_use]
    pub fn failed(detail: impl Into<String>) -> Self {
        Self::Failed(FailReason::AgentFailed, detail.into())
    }

    pub(super) fn refused(refusal: &Refusal) -> Self {
        Self::Failed(FailReason::AppendRefused, refusal.to_string())
    }
}

impl From<Exceeded> for Halt {
    fn from(exceeded: Exceeded) -> Self {
        Self::Failed(exceeded.reason(), exceeded.to_string())
    }
}
