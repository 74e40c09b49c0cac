//! The turn that has started and not ended: what the log says of it, and what its owner knows beside.

use crate::ids::{AgentName, Epoch, Seq};
use crate::record::Record;
use crate::time::Timestamp;
use crate::turn::awaits::OpenAwait;
use crate::turn::budget::{Spent, TURN_OWNERS_MAX};
use crate::turn::checkpoint::RunningTurn;
use crate::turn::journal::FailReason;

/// Who runs the running turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Runner {
    /// Somebody in this process.
    Alive,
    /// Somebody in this process, who was told to stop.
    Stopping,
    /// Nobody: it is to be run, unless it waits.
    Nobody,
    /// Nobody; unless an end is on its way already, the turn fails for this reason.
    Failed(FailReason),
}

/// Whether an end of the running turn is on its way to the log. A second one must not follow it (invariant 10).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    None,
    Appending,
}

/// The last record of the turn's journal, its start included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) seq: Seq,
    pub(super) epoch: Epoch,
}

/// How often the turn was run in an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Runs {
    pub(super) epoch: Epoch,
    pub(super) count: u32,
}

#[derive(Debug, Clone)]
pub(super) struct Running {
    pub(super) turn: Seq,
    pub(super) agent: AgentName,
    pub(super) deadline: Timestamp,
    pub(super) awaiting: Option<OpenAwait>,
    pub(super) spent: Spent,
    pub(super) progress: Progress,
    /// Owners that ran it since its last progress and went away.
    pub(super) lost_owners: u32,
    /// Its runs in the last epoch in which it was run; `None`: it never was.
    pub(super) runs: Option<Runs>,
    pub(super) runner: Runner,
    pub(super) end: End,
    /// A record of its journal is on its way to the log: whoever ran it now would not see it, and do the step again.
    pub(super) outstanding: bool,
    /// The shell was asked to cancel it, and has not yet.
    pub(super) interrupting: bool,
}

/// How the number of lost owners is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Counted {
    /// From the epochs in the log.
    ByEpochs,
    /// Only by counting: the number has to be saved before the turn is run.
    BySaving,
}

impl Running {
    /// As it is found in the log: somebody started it, nobody here runs it.
    pub(super) fn found(record: &Record, turn: Seq, agent: AgentName, deadline: Timestamp) -> Self {
        Self {
            turn,
            agent,
            deadline,
            awaiting: None,
            spent: Spent::default(),
            progress: Progress { seq: record.seq, epoch: record.epoch },
            lost_owners: 0,
            runs: None,
            runner: Runner::Nobody,
            end: End::None,
            outstanding: false,
            interrupting: false,
        }
    }

    pub(super) fn from_checkpoint(saved: RunningTurn) -> Self {
        let runs = saved.run_epoch.map(|epoch| Runs { epoch, count: saved.runs });
        Self {
            turn: saved.turn,
            agent: saved.agent,
            deadline: saved.deadline,
            awaiting: saved.awaiting,
            spent: saved.spent,
            progress: Progress { seq: saved.progress_seq, epoch: saved.progress_epoch },
            lost_owners: saved.lost_owners,
            runs,
            runner: Runner::Nobody,
            end: End::None,
            outstanding: false,
            interrupting: false,
        }
    }

    pub(super) fn checkpoint(&self) -> RunningTurn {
        RunningTurn {
            turn: self.turn,
            agent: self.agent.clone(),
            deadline: self.deadline,
            awaiting: self.awaiting.clone(),
            spent: self.spent,
            progress_seq: self.progress.seq,
            progress_epoch: self.progress.epoch,
            lost_owners: self.lost_owners,
            run_epoch: self.runs.map(|runs| runs.epoch),
            runs: self.runs.map_or(0, |runs| runs.count),
        }
    }

    /// A record of its journal was committed.
    pub(super) fn progressed(&mut self, record: &Record) {
        self.spent = self.spent.with(record.kind, &record.body);
        self.progress = Progress { seq: record.seq, epoch: record.epoch };
        self.lost_owners = 0;
    }

    /// Another owner, of this epoch, has found it in the log: one more is lost. Where epochs count owners (everywhere but in
    /// a consensus store and after a failover they rise by one), the first loss is told by them; whether a greater distance
    /// is a jump or many owners, they do not tell.
    pub(super) fn lost_its_owner(&mut self, epoch: Epoch) -> Counted {
        match epoch.0.saturating_sub(self.progress.epoch.0) {
            0 => Counted::ByEpochs,
            1 => {
                self.lost_owners = 1;
                Counted::ByEpochs
            }
            _ => {
                // The first loss may not have been saved.
                self.lost_owners = self.lost_owners.max(1).saturating_add(1);
                Counted::BySaving
            }
        }
    }

    pub(super) fn is_stuck(&self) -> bool {
        self.lost_owners >= TURN_OWNERS_MAX
    }

    /// Counts another run in this epoch, and says which one it is.
    pub(super) fn run_again(&mut self, epoch: Epoch) -> u32 {
        let count = self.runs.filter(|runs| runs.epoch == epoch).map_or(1, |runs| runs.count.saturating_add(1));
        self.runs = Some(Runs { epoch, count });
        self.runner = Runner::Alive;
        count
    }
}
