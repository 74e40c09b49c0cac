//! Which turns do not count any more: those that were rolled back, and those that are run again.
//!
//! Invariant: a run of a turn that was rolled back replaces nothing, so that what it was to replace counts again, and may be
//! run again. The event behind a `turn.superseded` in its commit is the input of the turn that replaces.
//!
//! Deliberately absent: what is shown of a turn that does not count, which every reader decides for itself.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::Seq;
use crate::record::{Record, RecordKind};
use crate::turn::cancel::CancelMode;
use crate::turn::journal;

/// See the module's header. Of records that ascend; those of any kind but four say nothing.
#[derive(Debug, Clone, Default)]
pub struct Replaced {
    rolled_back: BTreeSet<Seq>,
    /// Of each turn that was run again, by which one last; `None`: that is not among the records.
    by: BTreeMap<Seq, Option<Seq>>,
}

impl Replaced {
    /// What these records say.
    #[must_use]
    pub fn of(records: &[Record]) -> Self {
        let mut replaced = Self::default();
        let mut replacing = None;
        for record in records {
            if let Some(turn) = rolled_back(record) {
                replaced.rolled_back.insert(turn);
            } else if let Some(turn) = run_again(record) {
                replaced.by.insert(turn, None);
                replacing = Some(turn);
            } else if let Some(turn) = runs_again(record).filter(|turn| replacing == Some(*turn)) {
                replaced.by.insert(turn, Some(record.seq));
                replacing = None;
            }
        }
        replaced
    }

    /// True if another run of the turn counts instead of it.
    #[must_use]
    pub fn is_run_again(&self, turn: Seq) -> bool {
        self.by.get(&turn).is_some_and(|by| !by.is_some_and(|by| self.rolled_back.contains(&by)))
    }

    /// True if nothing of the turn counts.
    #[must_use]
    pub fn is_rolled_back(&self, turn: Seq) -> bool {
        self.rolled_back.contains(&turn)
    }
}

/// The same of records that are read backwards, page by page.
#[derive(Debug, Clone, Default)]
pub struct Backwards {
    rolled_back: BTreeSet<Seq>,
    /// Of each turn the earliest event so far that asks for another run.
    asked: BTreeMap<Seq, Seq>,
    run_again: BTreeSet<Seq>,
}

impl Backwards {
    /// Takes the record before the last one.
    pub fn take(&mut self, record: &Record) {
        if let Some(turn) = rolled_back(record) {
            self.rolled_back.insert(turn);
        } else if let Some(turn) = runs_again(record) {
            self.asked.insert(turn, record.seq);
        } else if let Some(turn) = run_again(record)
            && !self.asked.get(&turn).is_some_and(|by| self.rolled_back.contains(by))
        {
            self.run_again.insert(turn);
        }
    }

    /// True if another run of the turn counts instead of it, as far as the records after its end say.
    #[must_use]
    pub fn is_run_again(&self, turn: Seq) -> bool {
        self.run_again.contains(&turn)
    }
}

/// The turn that a record rolls back.
#[must_use]
pub fn rolled_back(record: &Record) -> Option<Seq> {
    let is_end = record.kind == RecordKind::TurnCancelled;
    record.turn.filter(|_| is_end && journal::cancel_mode(&record.body) == Some(CancelMode::Rollback))
}

/// The turn that a record says is run again.
#[must_use]
pub fn run_again(record: &Record) -> Option<Seq> {
    record.turn.filter(|_| record.kind == RecordKind::TurnSuperseded && journal::joined_into(record).is_none())
}

/// The turn that a record, as an input, runs again.
#[must_use]
pub fn runs_again(record: &Record) -> Option<Seq> {
    let is_event = record.kind == RecordKind::Event && journal::is_input(record.kind, &record.sender);
    if is_event { journal::regenerates(&record.body) } else { None }
}
