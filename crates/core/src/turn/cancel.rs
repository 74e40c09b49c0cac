//! What clients ask of a conversation's turns: an end, an answer to what waits, another run.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ids::{ClientMsgId, Epoch, Seq, Subject};
use crate::turn::StepId;
use crate::turn::awaits::AwaitId;

/// What becomes of what a cancelled turn did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CancelMode {
    /// It stays; the text so far becomes the answer.
    Keep,
    /// Later model calls do not see the turn, its input included.
    Rollback,
}

/// Why a turn was cancelled, where it was not somebody's wish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelReason {
    /// Another input came, and the conversation's setting says that it interrupts.
    Interrupted,
}

impl CancelReason {
    /// The name on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Interrupted => "interrupted",
        }
    }
}

/// A turn is to end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cancel {
    /// Which.
    pub turn: Seq,
    /// How.
    pub mode: CancelMode,
    /// Who says so.
    pub by: Subject,
    /// Why, if nobody wished it.
    pub reason: Option<CancelReason>,
}

impl Cancel {
    /// The same of another run of a turn that has not begun: nothing was said that could be kept, so it is rolled back in any
    /// case, and has replaced nothing.
    #[must_use]
    pub fn before_it_runs_again(&self) -> Self {
        Self { mode: CancelMode::Rollback, ..self.clone() }
    }
}

/// An await is to be resolved.
#[derive(Debug, Clone, PartialEq)]
pub struct Resolve {
    /// Which.
    pub id: AwaitId,
    /// With what.
    pub payload: Value,
    /// Who says so; kept beside the record, so that two who say the same say it once.
    pub by: Arc<str>,
}

/// What is asked of an owner.
#[derive(Debug, Clone, PartialEq)]
pub enum TurnAsk {
    /// To cancel a turn.
    Cancel(Cancel),
    /// To resolve an await.
    Resolve(Resolve),
    /// To run the last turn again.
    Regenerate(Regenerate),
    /// To make a worker's step durable.
    Step(OfferedStep),
}

/// A step that a worker has done outside of its owner's process, to be brought into the journal.
#[derive(Debug, Clone, PartialEq)]
pub struct OfferedStep {
    /// Of which turn.
    pub turn: Seq,
    /// The epoch of the run that asked the worker.
    pub epoch: Epoch,
    /// The attempt of that run. Whoever offers a step of another run is stale.
    pub attempt: u32,
    /// Which step.
    pub step: StepId,
    /// What it was done with; null: nothing.
    pub input: Value,
    /// What came of it.
    pub output: Value,
}

/// The last turn is to be run again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Regenerate {
    /// Which; it has to be the last one that ended.
    pub turn: Seq,
    /// Who says so.
    pub by: Subject,
    /// Their display name.
    pub name: Option<Arc<str>>,
    /// Their idempotency key.
    pub client_msg_id: ClientMsgId,
}
