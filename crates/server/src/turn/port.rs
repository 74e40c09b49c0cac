//! The owner, as a runner sees it.

use async_trait::async_trait;
use conch_core::ids::{AgentName, ConversationId, Epoch, Seq};
use conch_core::record::{Draft, Record, RecordKind};
use conch_core::refusal::Refusal;
use conch_core::time::Timestamp;
use conch_core::turn::Begin;
use conch_core::turn::cancel::OfferedStep;
use conch_core::turn::live::LiveEvent;
use conch_store::Direction;

use crate::rules::Rules;

/// Records of a range, ascending, and whether there are more in its direction.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Records {
    /// The records.
    pub records: Vec<Record>,
    /// Whether the range goes on.
    pub more: bool,
}

/// The owner, as a runner sees it.
#[async_trait]
pub trait TurnPort: Send + Sync {
    /// Reads the conversation's log; no kinds: all.
    ///
    /// # Errors
    /// With a directive: ask again. Without: the turn fails.
    async fn range(&self, direction: Direction, kinds: &[RecordKind], limit: usize) -> Result<Records, Refusal>;

    /// Appends these in one commit, and returns when they are on disk. A group that is there already counts as appended.
    ///
    /// # Errors
    /// With a directive: send the same again. [`conch_core::refusal::Code::Conflict`] without one: the turn is not this
    /// runner's any more. Another without one: the turn fails.
    async fn append(&self, drafts: Vec<Draft>) -> Result<(), Refusal>;

    /// Lets the inputs join the turn that wait to, and returns them when that is on disk.
    ///
    /// # Errors
    /// As [`TurnPort::append`].
    async fn join(&self) -> Result<Vec<Seq>, Refusal>;

    /// Shows an event to those who watch. Never waits; may drop.
    fn live(&self, event: LiveEvent);

    /// Counts another attempt of the turn in this epoch, and says which one it is.
    fn next_attempt(&self) -> u32;

    /// Returns when a turn's agent, which this node lacks, was not found with any other one either.
    async fn agent_is_nowhere(&self, _agent: &AgentName) {}

    /// The rules that hold: in the product, all.
    fn rules(&self) -> Rules {
        Rules::default()
    }
}

/// A step that was done elsewhere, and whom to tell when it is in the journal.
pub struct Offer {
    /// The step.
    pub step: OfferedStep,
    /// Told once: that it is on disk, or why not.
    pub reply: Box<dyn FnOnce(Result<(), Refusal>) + Send>,
}

/// Steps that may wait for one run to bring them into the journal.
pub const OFFERS_MAX: usize = 64;

/// Which turn is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnRun {
    /// Where.
    pub conversation: ConversationId,
    /// The turn.
    pub turn: Seq,
    /// The agent that its start names.
    pub agent: AgentName,
    /// The owner's epoch.
    pub epoch: Epoch,
    /// Counts the turn's runs in this epoch from 1.
    pub attempt: u32,
    /// Whether somebody ran it before.
    pub begin: Begin,
    /// By when it has to end.
    pub deadline: Timestamp,
}

/// Told to a runner. A dropped sender counts as [`Signal::Stop`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Go on.
    Run,
    /// Stop at once and append nothing more.
    Stop,
}
