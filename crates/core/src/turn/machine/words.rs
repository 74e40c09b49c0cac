//! What the machine is told, and what it asks for.

use std::time::Duration;

use crate::conversation::SecondMessage;
use crate::ids::{AgentName, Epoch, Seq};
use crate::record::{Draft, Record};
use crate::refusal::Retry;
use crate::time::{Monotonic, Timestamp};
use crate::turn::budget::TURN_TIME_DEFAULT;
use crate::turn::cancel::Cancel;
use crate::turn::due::Due;
#[cfg(doc)]
use crate::turn::machine::TurnMachine;

/// Now, on both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Now {
    /// For pauses within this process.
    pub monotonic: Monotonic,
    /// For what outlives it: deadlines and expiries. Another node's calendar may differ; what it finds too early waits on.
    pub wall: Timestamp,
}

/// How a conversation's turns are run; it holds from the next decision on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setup {
    /// Who answers.
    pub agent: AgentName,
    /// Longest time of a turn.
    pub time: Duration,
    /// What happens to an input that comes while a turn runs.
    pub second_message: SecondMessage,
    /// Under [`SecondMessage::Merge`]: how long nothing must have come.
    pub merge: Duration,
    /// Whether this owner can run the agent.
    pub agent_is: AgentIs,
}

/// Where an agent is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AgentIs {
    /// This owner has it, or is to do without.
    #[default]
    Here,
    /// With another owner, if with anybody: nothing of it is started meanwhile.
    Elsewhere,
}

impl Setup {
    /// The defaults with this agent.
    #[must_use]
    pub fn of(agent: AgentName) -> Self {
        Self {
            agent,
            time: TURN_TIME_DEFAULT,
            second_message: SecondMessage::default(),
            merge: Duration::ZERO,
            agent_is: AgentIs::Here,
        }
    }
}

/// What the machine is told.
#[derive(Debug)]
pub enum Input<'a> {
    /// A record of the conversation was committed, or is replayed while thawing; ascending by seq. One at or below the
    /// last is ignored, so that a record may come twice. A draft that turns out to be in the log already is told as
    /// the record in the log.
    Committed(&'a Record),
    /// Every record after the checkpoint was told, and no runner of this conversation lives in this process. From here
    /// on the machine acts, for the owner of this epoch.
    Thawed(Epoch),
    /// A group of drafts was not appended and will not be: the machine's own, or one that it let pass (not one that it
    /// refused itself).
    AppendRefused {
        /// The group.
        drafts: &'a [Draft],
        /// The refusal's directive.
        retry: Option<Retry>,
    },
    /// The runner of this turn is over. Told after the outcome of its last append, unless it was told to stop.
    RunnerGone {
        /// Its turn.
        turn: Seq,
        /// How.
        how: Gone,
    },
    /// A batch landed that carried this due change, and its records were told.
    DueWritten(Due),
    /// Time has passed: at [`TurnMachine::wake_at`], or once a second.
    Tick,
}

/// How a runner ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gone {
    /// Its turn has ended, or was to end and could not.
    Over,
    /// Its turn waits.
    Waiting,
}

/// What the shell is asked to do, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Append these in one commit. At most one such group is outstanding; it ends with [`Input::Committed`] of its
    /// records or with [`Input::AppendRefused`].
    Append(Vec<Draft>),
    /// Save a checkpoint, and go on only when that is on disk: it counts an owner that was lost.
    Save,
    /// Run the turn.
    StartRunner(StartRunner),
    /// The turn has ended: stop its runner if it still runs, and forget it.
    StopRunner {
        /// Which.
        turn: Seq,
    },
    /// Cancel a turn, as [`TurnMachine::cancel`] does, because another input came.
    Interrupt(Cancel),
    /// The due row must say this although no append of the machine's changes it: write it under the fence, with the
    /// next batch or in one without records.
    Due(Due),
}

/// Run a turn: its start is committed. The input is the record whose seq is the turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartRunner {
    /// Which.
    pub turn: Seq,
    /// Who, as the turn's start says.
    pub agent: AgentName,
    /// Counts its runs in this epoch from 1.
    pub attempt: u32,
    /// Whether somebody ran it before.
    pub begin: Begin,
    /// By when it has to end.
    pub deadline: Timestamp,
}

/// Whether a turn was run before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begin {
    /// It was not.
    First,
    /// By this owner; its journal says how far it got.
    Again,
    /// By another owner.
    TakenOver,
}

/// Where a turn stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnState {
    /// Its input waits.
    Queued,
    /// It has started and not ended.
    Running,
    /// It has started, and waits for an answer.
    Waiting,
    /// It has ended, or was never one: the log knows.
    Closed,
}
