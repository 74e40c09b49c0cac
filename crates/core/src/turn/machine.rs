//! The turns of one session conversation, as its owner folds them from the log.
//!
//! Invariants: every input gets one start and one end, or joins another's turn (invariant 10); one turn runs at a time, in
//! the order of the inputs; a runner runs only between a turn's committed start and its committed end, and not while the
//! turn waits (invariant 13); a turn whose cancel is under way gets no further step (invariant 14). The machine believes
//! nothing but committed records: what it asks to have appended counts when it comes back as [`Input::Committed`].
//!
//! A turn is *open* while it is queued or running. The machine keeps only the open ones: a turn at or below `at_seq`
//! that is not open has ended, or never was an input.
//!
//! Files: what it is told and asks for is `words`, what clients and runners ask is `asks`, what it does by itself is `advance`;
//! what is known of the running turn is [`super::running`], what the due row says is [`super::due`].
//!
//! Deliberately absent: the text of inputs (the runner reads it from the log), and running anything.

mod advance;
mod asks;
mod words;

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use crate::ids::{AgentName, Epoch, Seq, Subject};
use crate::invariant::{Broken, Invariant};
use crate::record::{Draft, Record, RecordKind};
use crate::refusal::Retry;
use crate::time::{Monotonic, Timestamp};
use crate::turn::budget::is_journal;
use crate::turn::checkpoint::{CHECKPOINT_VERSION, Replacement, TurnCheckpoint};
use crate::turn::due::{Due, DueState};
use crate::turn::journal::{self, FailReason};
use crate::turn::replaced;
use crate::turn::running::{Counted, End, Runner, Running};

pub use asks::NotDone;
pub use words::{Action, AgentIs, Begin, Gone, Input, Now, Setup, StartRunner, TurnState};

/// Most inputs that wait for a turn. The owner refuses the next one before it is appended; those that are in one batch
/// with the last may exceed it by that batch.
pub const QUEUE_MAX_INPUTS: usize = 1000;
/// Most inputs that join a turn in one commit.
pub const JOIN_MAX_INPUTS: usize = 100;

/// The deadline of a turn that has none: the last day that a calendar can show.
pub(super) const NO_DEADLINE: Timestamp = Timestamp(253_402_207_200_000);

/// How soon a refused append of the machine's own is tried again when the refusal does not say.
const RETRY_AFTER: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Replaying,
    /// The owner's epoch.
    Live(Epoch),
}

/// The machine's own append that is on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Own {
    Start(Seq),
    Failure(Seq),
    Expiry(Seq),
}

/// A rule of the machine that a test can take away, to show that it would be noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    /// An end on its way closes the turn for what follows.
    EndCloses,
    /// An input whose end is on its way neither starts nor joins.
    LeavingStays,
    /// A turn that waits is not run.
    WaitingRests,
    /// A turn that waits takes no further step.
    WaitingRefuses,
    /// One append of the machine's own at a time.
    OneAtATime,
    /// A turn is run again when what its last runner sent has landed or is refused.
    SettledFirst,
    /// While a turn waits, no other one starts.
    WaitingCounts,
    /// Owners that went away are forgotten when the turn gets further.
    ProgressForgives,
}

/// When inputs that wait came, for merging them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Arrivals {
    first: Monotonic,
    last: Monotonic,
}

/// See the module's header.
#[derive(Debug, Clone)]
pub struct TurnMachine {
    setup: Setup,
    mode: Mode,
    at_seq: Seq,
    pub(super) queued: VecDeque<Seq>,
    pub(super) running: Option<Running>,
    /// The last turn that ended and may be run again.
    last: Option<Seq>,
    /// A turn that is run again, and whose new run's input is the next record.
    replacing: Option<Seq>,
    /// The last turn that ran another one again, and that one. If it is rolled back, it has replaced nothing.
    replaced: Option<Replacement>,
    /// Queued inputs whose end is on its way: they neither start nor join.
    leaving: BTreeSet<Seq>,
    /// A commit that runs the last turn again is on its way.
    regenerating: bool,
    arrivals: Option<Arrivals>,
    /// Who sent the newest of the inputs that wait; not known of those before the checkpoint, which holds no names.
    newcomer: Option<Subject>,
    own: Option<Own>,
    retry_at: Option<Monotonic>,
    #[cfg(test)]
    pub(super) without: Option<Rule>,
}

impl TurnMachine {
    /// A machine that has seen nothing. It acts after [`Input::Thawed`], also when there was nothing to replay.
    #[must_use]
    pub fn new(setup: Setup) -> Self {
        Self {
            setup,
            mode: Mode::Replaying,
            at_seq: Seq(0),
            queued: VecDeque::new(),
            running: None,
            last: None,
            replacing: None,
            replaced: None,
            leaving: BTreeSet::new(),
            regenerating: false,
            arrivals: None,
            newcomer: None,
            own: None,
            retry_at: None,
            #[cfg(test)]
            without: None,
        }
    }

    /// In the product every rule holds.
    #[cfg(not(test))]
    #[allow(clippy::unused_self, reason = "the test's twin looks")]
    fn holds(&self, _rule: Rule) -> bool {
        true
    }

    #[cfg(test)]
    fn holds(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    /// A machine as it was at a checkpoint: tell it the records after `at_seq`, then [`Input::Thawed`].
    #[must_use]
    pub fn from_checkpoint(setup: Setup, checkpoint: TurnCheckpoint) -> Self {
        Self {
            at_seq: checkpoint.at_seq,
            queued: checkpoint.queued.into(),
            running: checkpoint.running.map(Running::from_checkpoint),
            last: checkpoint.last,
            replaced: checkpoint.replaced,
            ..Self::new(setup)
        }
    }

    /// The state for a checkpoint. Holds only what is committed, and how often the running turn was run.
    #[must_use]
    pub fn checkpoint(&self) -> TurnCheckpoint {
        TurnCheckpoint {
            version: CHECKPOINT_VERSION,
            at_seq: self.at_seq,
            queued: self.queued.iter().copied().collect(),
            running: self.running.as_ref().map(Running::checkpoint),
            last: self.last,
            replaced: self.replaced,
        }
    }

    /// Turns are run in this way from now on; one that has started keeps its agent.
    pub fn set_up(&mut self, setup: Setup) {
        self.setup = setup;
    }

    /// True if nothing is open.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.queued.is_empty() && self.running.is_none()
    }

    /// True if nothing is to be done before somebody comes or the due row says so: nobody runs, and nothing is on its way.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        let waits = |running: &Running| {
            running.awaiting.is_some() && running.runner == Runner::Nobody && running.end == End::None
        };
        let open = self.running.as_ref().map_or(self.queued.is_empty(), waits);
        open && self.own.is_none() && self.leaving.is_empty() && !self.regenerating
    }

    /// The turn that has started and not ended.
    #[must_use]
    pub fn running(&self) -> Option<Seq> {
        self.running.as_ref().map(|running| running.turn)
    }

    /// The running turn, if its live events are of any interest: it is not about to end.
    #[must_use]
    pub fn shown(&self) -> Option<Seq> {
        self.running.as_ref().filter(|running| running.end == End::None).map(|running| running.turn)
    }

    /// The agent that what is to be done next needs; `None`: nothing is, or not by an agent.
    #[must_use]
    pub fn needs(&self) -> Option<&AgentName> {
        match &self.running {
            Some(running) => Some(&running.agent).filter(|_| running.awaiting.is_none() && running.end == End::None),
            None => Some(&self.setup.agent).filter(|_| self.queued.iter().any(|input| !self.leaving.contains(input))),
        }
    }

    /// Where a turn stands.
    #[must_use]
    pub fn state(&self, turn: Seq) -> TurnState {
        match &self.running {
            Some(running) if running.turn == turn && running.awaiting.is_some() => TurnState::Waiting,
            Some(running) if running.turn == turn => TurnState::Running,
            _ if self.queued.binary_search(&turn).is_ok() => TurnState::Queued,
            _ => TurnState::Closed,
        }
    }

    /// What the due row must say once these drafts (those of one batch, all groups together) are committed.
    #[must_use]
    pub fn due_after<'a>(&self, drafts: impl IntoIterator<Item = &'a Draft>) -> Due {
        let (mut state, mut changed) = (DueState::of(self), false);
        for draft in drafts {
            changed |= state.apply(self, draft);
        }
        if changed { state.due() } else { Due::Keep }
    }

    /// What the due row must say as things stand. Never [`Due::Keep`].
    #[must_use]
    pub fn due(&self) -> Due {
        DueState::of(self).due()
    }

    /// Tells the machine something; what is to be done is pushed to `out`.
    ///
    /// # Errors
    /// [`Broken`] if the log holds what it must not hold: the owner stops.
    pub fn handle(&mut self, now: Now, input: Input<'_>, out: &mut Vec<Action>) -> Result<(), Broken> {
        match input {
            Input::Committed(record) => self.committed(now, record, out)?,
            Input::Thawed(epoch) => self.thawed(epoch, out),
            Input::AppendRefused { drafts, retry } => self.append_refused(now, drafts, retry),
            Input::RunnerGone { turn, how } => self.runner_gone(turn, how),
            Input::DueWritten(due) => {
                if due != Due::Keep && due != self.due() {
                    // Part of the batch was in the log already, so that the row says too much or too little.
                    out.push(Action::Due(self.due()));
                }
            }
            Input::Tick => {}
        }
        if let Mode::Live(epoch) = self.mode {
            self.advance(now, epoch, out);
        }
        Ok(())
    }

    fn committed(&mut self, now: Now, record: &Record, out: &mut Vec<Action>) -> Result<(), Broken> {
        if record.seq <= self.at_seq {
            return Ok(());
        }
        self.at_seq = record.seq;
        match record.kind {
            RecordKind::TurnStarted => self.turn_started(record),
            RecordKind::TurnSuperseded if self.state(turn_of(record)?) == TurnState::Closed => {
                self.superseded(turn_of(record)?);
                Ok(())
            }
            kind if kind.ends_turn() => self.turn_ended(record, out),
            kind if is_journal(kind) => self.progressed(record),
            kind if journal::is_input(kind, &record.sender) => {
                self.queued.push_back(record.seq);
                let first = self.arrivals.map_or(now.monotonic, |arrivals| arrivals.first);
                self.arrivals = Some(Arrivals { first, last: now.monotonic });
                self.newcomer = Some(record.sender.clone());
                let of = self.replacing.take().filter(|of| journal::regenerates(&record.body) == Some(*of));
                self.replaced = of.map(|of| Replacement { by: record.seq, of }).or(self.replaced);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn turn_started(&mut self, record: &Record) -> Result<(), Broken> {
        let turn = turn_of(record)?;
        if let Some(running) = self.running() {
            let detail = format!("seq {} starts turn {turn} while turn {running} runs", record.seq);
            return Err(Invariant::OneTerminal.broken(detail));
        }
        let Ok(place) = self.queued.binary_search(&turn) else {
            let detail = format!("seq {} starts turn {turn} again, or it has no input", record.seq);
            return Err(Invariant::OneTerminal.broken(detail));
        };
        self.queued.remove(place);
        self.forget_arrivals();
        let (agent, deadline) = journal::start_of(&record.body).unwrap_or_else(|| (self.setup.agent.clone(), None));
        // Starts of earlier versions have no deadline.
        let deadline = deadline.unwrap_or(NO_DEADLINE);
        self.running = Some(Running::found(record, turn, agent, deadline));
        if self.own == Some(Own::Start(turn)) {
            self.own = None;
        }
        Ok(())
    }

    fn forget_arrivals(&mut self) {
        if self.queued.is_empty() {
            (self.arrivals, self.newcomer) = (None, None);
        }
    }

    /// A turn that has ended already: it is run again.
    fn superseded(&mut self, turn: Seq) {
        if self.last == Some(turn) {
            self.last = None;
        }
        self.replacing = Some(turn);
        self.regenerating = false;
    }

    fn turn_ended(&mut self, record: &Record, out: &mut Vec<Action>) -> Result<(), Broken> {
        let turn = turn_of(record)?;
        let is_rolled_back = replaced::rolled_back(record).is_some();
        if let Some(Replacement { of, .. }) = self.replaced.filter(|replaced| replaced.by == turn && is_rolled_back) {
            self.last = Some(of);
        }
        match self.state(turn) {
            TurnState::Running | TurnState::Waiting => {
                self.running = None;
                if !is_rolled_back {
                    self.last = Some(turn);
                }
                if matches!(self.mode, Mode::Live(_)) {
                    out.push(Action::StopRunner { turn });
                }
            }
            TurnState::Queued => {
                self.queued.retain(|queued| *queued != turn);
                self.leaving.remove(&turn);
                self.forget_arrivals();
            }
            TurnState::Closed => {
                let detail = format!("seq {} ends turn {turn} again, or it has no input", record.seq);
                return Err(Invariant::OneTerminal.broken(detail));
            }
        }
        if matches!(self.own, Some(Own::Failure(own) | Own::Expiry(own)) if own == turn) {
            self.own = None;
        }
        Ok(())
    }

    /// A record of a turn's journal.
    fn progressed(&mut self, record: &Record) -> Result<(), Broken> {
        let (turn, forgives) = (turn_of(record)?, self.holds(Rule::ProgressForgives));
        let Some(running) = self.running.as_mut().filter(|running| running.turn == turn) else {
            let detail = format!("seq {} is a {} of turn {turn}, which does not run", record.seq, record.kind);
            return Err(Invariant::OneTerminal.broken(detail));
        };
        let broken = |what: &str| Err(Invariant::AwaitOnce.broken(format!("seq {} {what}", record.seq)));
        match (record.kind, &running.awaiting) {
            (RecordKind::AwaitResolved, Some(open)) => match journal::resolution_of(&record.body) {
                Some((id, _)) if id == open.id => running.awaiting = None,
                _ => return broken("resolves another await than the open one"),
            },
            (RecordKind::AwaitResolved, None) => return broken("resolves an await that is not open"),
            (_, Some(_)) => return broken("goes on with a turn that waits"),
            (RecordKind::AwaitOpened, None) => match journal::await_of(&record.body) {
                Some(open) if open.id.turn() == turn => running.awaiting = Some(open),
                _ => return broken("opens an await of another turn, or none"),
            },
            _ => {}
        }
        let lost_owners = running.lost_owners;
        running.progressed(record);
        if !forgives {
            running.lost_owners = lost_owners;
        }
        running.outstanding &= record.kind == RecordKind::AwaitResolved;
        if record.kind == RecordKind::AwaitResolved && self.own == Some(Own::Expiry(turn)) {
            self.own = None;
        }
        Ok(())
    }

    fn thawed(&mut self, epoch: Epoch, out: &mut Vec<Action>) {
        if self.mode != Mode::Replaying {
            return;
        }
        self.mode = Mode::Live(epoch);
        if self.is_idle() {
            // A due row may have outlived its reason; left there it would wake the conversation for ever.
            out.push(Action::Due(Due::Clear));
        }
        let forgives = self.holds(Rule::ProgressForgives);
        if let Some(running) = self.running.as_mut().filter(|running| running.awaiting.is_none()) {
            let lost_owners = running.lost_owners;
            if running.lost_its_owner(epoch) == Counted::BySaving {
                out.push(Action::Save);
            }
            if !forgives {
                running.lost_owners = lost_owners + 1;
            }
        }
    }

    fn append_refused(&mut self, now: Now, drafts: &[Draft], retry: Option<Retry>) {
        for draft in drafts {
            if draft.kind == RecordKind::Event && journal::regenerates(&draft.body).is_some() {
                self.regenerating = false;
            }
            let Some(turn) = draft.turn else { continue };
            self.leaving.remove(&turn);
            if let Some(running) = self.running.as_mut().filter(|running| running.turn == turn) {
                running.outstanding &= !is_journal(draft.kind) || draft.kind == RecordKind::AwaitResolved;
            }
            if draft.kind.ends_turn()
                && let Some(running) = self.running.as_mut().filter(|running| running.turn == turn)
            {
                running.end = End::None;
                if std::mem::take(&mut running.interrupting) {
                    self.retry_at = Some(now.monotonic + retry.map_or(RETRY_AFTER, after));
                }
            }
            let own = match draft.kind {
                RecordKind::TurnStarted => Own::Start(turn),
                RecordKind::TurnFailed => Own::Failure(turn),
                RecordKind::AwaitResolved => Own::Expiry(turn),
                _ => continue,
            };
            if self.own == Some(own) {
                self.own = None;
                self.retry_at = Some(now.monotonic + retry.map_or(RETRY_AFTER, after));
            }
        }
    }

    fn runner_gone(&mut self, turn: Seq, how: Gone) {
        let Some(running) = self.running.as_mut().filter(|running| running.turn == turn) else { return };
        running.runner = match (running.runner, how) {
            // It was told to stop, and its turn has not ended: the cancel is on its way, or was refused.
            (Runner::Stopping, _) | (Runner::Alive, Gone::Waiting) => Runner::Nobody,
            (Runner::Alive, Gone::Over) => Runner::Failed(FailReason::AgentFailed),
            (runner, _) => runner,
        };
    }
}

fn after(directive: Retry) -> Duration {
    Duration::from_millis(directive.after_ms)
}

fn turn_of(record: &Record) -> Result<Seq, Broken> {
    record.turn.ok_or_else(|| {
        Invariant::OneTerminal.broken(format!("seq {} is a {} that names no turn", record.seq, record.kind))
    })
}
