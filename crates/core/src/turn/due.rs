//! What a conversation's due row must say, so that whatever is open is found again although nobody comes.
//!
//! Invariant: the row follows from what is committed. It is written in the same commit as the records that change it, so
//! the records of a batch are folded here before they have numbers.
//!
//! Deliberately absent: who takes due work up ([`crate::due`]).

use crate::ids::Seq;
use crate::record::{Draft, RecordKind};
use crate::time::Timestamp;
use crate::turn::journal;
use crate::turn::machine::{NO_DEADLINE, TurnMachine, TurnState};

/// What becomes of the conversation's due row, in the same statement as the records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// As it was.
    Keep,
    /// Nothing is open: remove it.
    Clear,
    /// An input waits and no turn runs (why 1).
    Input,
    /// A turn runs (why 2).
    Turn,
    /// A turn waits for an answer, until then (why 3).
    Await(Timestamp),
    /// A turn waits for an answer, and has to end before that expires (why 4).
    Deadline(Timestamp),
}

/// A running turn, as far as the row depends on it.
#[derive(Debug, Clone, Copy)]
struct Running {
    turn: Seq,
    deadline: Timestamp,
    expires_at: Option<Timestamp>,
}

/// What the row depends on.
#[derive(Debug, Clone, Copy)]
pub(super) struct DueState {
    queued: usize,
    running: Option<Running>,
}

impl DueState {
    pub(super) fn of(machine: &TurnMachine) -> Self {
        let running = machine.running.as_ref().map(|running| Running {
            turn: running.turn,
            deadline: running.deadline,
            expires_at: running.awaiting.as_ref().map(|open| open.expires_at),
        });
        Self { queued: machine.queued.len(), running }
    }

    /// What the row must say. Never [`Due::Keep`].
    pub(super) fn due(&self) -> Due {
        match (self.running, self.queued) {
            (Some(Running { expires_at: Some(expires_at), deadline, .. }), _) if expires_at <= deadline => {
                Due::Await(expires_at)
            }
            (Some(Running { expires_at: Some(_), deadline, .. }), _) => Due::Deadline(deadline),
            (Some(_), _) => Due::Turn,
            (None, 0) => Due::Clear,
            (None, _) => Due::Input,
        }
    }

    /// Folds a draft; true if it changes what the row depends on.
    pub(super) fn apply(&mut self, machine: &TurnMachine, draft: &Draft) -> bool {
        let is_running = self.running.is_some_and(|running| Some(running.turn) == draft.turn);
        match draft.kind {
            kind if journal::is_input(kind, &draft.sender) => self.queued += 1,
            RecordKind::TurnStarted => {
                let deadline = journal::start_of(&draft.body).and_then(|(_, deadline)| deadline);
                let deadline = deadline.unwrap_or(NO_DEADLINE);
                self.running = draft.turn.map(|turn| Running { turn, deadline, expires_at: None });
                self.queued = self.queued.saturating_sub(1);
            }
            RecordKind::AwaitOpened | RecordKind::AwaitResolved if is_running => {
                let opened = journal::await_of(&draft.body).map(|open| open.expires_at);
                if let Some(running) = &mut self.running {
                    running.expires_at = if draft.kind == RecordKind::AwaitOpened { opened } else { None };
                }
            }
            kind if kind.ends_turn() && is_running => self.running = None,
            kind if kind.ends_turn() && draft.turn.is_some_and(|turn| machine.state(turn) == TurnState::Queued) => {
                self.queued = self.queued.saturating_sub(1);
            }
            _ => return false,
        }
        true
    }
}
