//! The turns of one session conversation, as its owner folds them from the log.
//!
//! Invariants: every input gets one start and one end (invariant 10); one turn runs at a time, in the order of the
//! inputs; a runner runs only between a turn's committed start and its committed end. The machine believes nothing but
//! committed records: what it asks to have appended counts when it comes back as [`Input::Committed`].
//!
//! A turn is *open* while it is queued or running. The machine keeps only the open ones: a turn at or below `at_seq`
//! that is not open has ended, or never was an input.
//!
//! Deliberately absent: the text of inputs (the runner reads it from the log), running anything, and taking over a
//! turn that another owner began: such a turn fails with `owner_lost`.

use std::collections::VecDeque;
use std::time::Duration;

use crate::ids::{AgentName, Seq};
use crate::invariant::{Broken, Invariant};
use crate::record::{Draft, Record, RecordKind};
use crate::refusal::{Code, Refusal, Retry};
use crate::time::Monotonic;
use crate::turn::checkpoint::{CHECKPOINT_VERSION, RunningTurn, TurnCheckpoint};
use crate::turn::journal::{self, FailReason};

/// Most inputs that wait for a turn. The owner refuses the next one before it is appended; those that are in one batch
/// with the last may exceed it by that batch.
pub const QUEUE_MAX_INPUTS: usize = 1000;

/// How soon a refused append of the machine's own is tried again when the refusal does not say.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// What the machine is told.
#[derive(Debug)]
pub enum Input<'a> {
    /// A record of the conversation was committed, or is replayed while thawing; ascending by seq. One at or below the
    /// last is ignored, so that a record may come twice. A draft that turns out to be in the log already is told as
    /// the record in the log.
    Committed(&'a Record),
    /// Every record after the checkpoint was told, and no runner of this conversation lives in this process. From here
    /// on the machine acts.
    Thawed,
    /// A group of drafts was not appended and will not be: the machine's own, or one that [`TurnMachine::admit`] let
    /// pass (not one that it refused itself).
    AppendRefused {
        /// The group.
        drafts: &'a [Draft],
        /// The refusal's directive.
        retry: Option<Retry>,
    },
    /// The runner of this turn is over, whatever it achieved. Told after the outcome of its last append.
    RunnerGone {
        /// Its turn.
        turn: Seq,
    },
    /// A batch landed that carried this due change, and its records were told.
    DueWritten(Due),
    /// Time has passed: once a second is enough.
    Tick,
}

/// What the shell is asked to do, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Append these in one commit. At most one such group is outstanding; it ends with [`Input::Committed`] of its
    /// records or with [`Input::AppendRefused`].
    Append(Vec<Draft>),
    /// Run the turn: its start is committed. The input is the record whose seq is the turn.
    StartRunner {
        /// Which.
        turn: Seq,
        /// Who, as the turn's start says.
        agent: AgentName,
    },
    /// The turn has ended: stop its runner if it still runs, and forget it.
    StopRunner {
        /// Which.
        turn: Seq,
    },
    /// The due row must say this although no append of the machine's changes it: write it under the fence, with the
    /// next batch or in one without records.
    Due(Due),
}

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
}

/// Where a turn stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnState {
    /// Its input waits.
    Queued,
    /// It has started and not ended.
    Running,
    /// It has ended, or was never one: the log knows.
    Closed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Replaying,
    Live,
}

/// Who runs the running turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Runner {
    Alive,
    /// Nobody; unless an end is on its way already, the turn fails for this reason.
    Gone(FailReason),
}

/// Whether an end of the running turn is on its way to the log. A second one must not follow it (invariant 10).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    None,
    Appending,
}

#[derive(Debug, Clone)]
struct Running {
    turn: Seq,
    agent: AgentName,
    runner: Runner,
    end: End,
}

/// The machine's own append that is on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Own {
    Start(Seq),
    Failure(Seq),
}

/// See the module's header.
#[derive(Debug, Clone)]
pub struct TurnMachine {
    agent: AgentName,
    mode: Mode,
    at_seq: Seq,
    queued: VecDeque<Seq>,
    running: Option<Running>,
    own: Option<Own>,
    retry_at: Option<Monotonic>,
}

impl TurnMachine {
    /// A machine that has seen nothing. It acts after [`Input::Thawed`], also when there was nothing to replay.
    #[must_use]
    pub fn new(agent: AgentName) -> Self {
        Self {
            agent,
            mode: Mode::Replaying,
            at_seq: Seq(0),
            queued: VecDeque::new(),
            running: None,
            own: None,
            retry_at: None,
        }
    }

    /// A machine as it was at a checkpoint: tell it the records after `at_seq`, then [`Input::Thawed`].
    #[must_use]
    pub fn from_checkpoint(agent: AgentName, checkpoint: TurnCheckpoint) -> Self {
        let running = checkpoint.running.map(|running| Running::lost(running.turn, running.agent));
        Self { at_seq: checkpoint.at_seq, queued: checkpoint.queued.into(), running, ..Self::new(agent) }
    }

    /// The state for a checkpoint. Holds only what is committed.
    #[must_use]
    pub fn checkpoint(&self) -> TurnCheckpoint {
        let running = self.running.as_ref();
        TurnCheckpoint {
            version: CHECKPOINT_VERSION,
            at_seq: self.at_seq,
            queued: self.queued.iter().copied().collect(),
            running: running.map(|running| RunningTurn { turn: running.turn, agent: running.agent.clone() }),
        }
    }

    /// The conversation has another agent from its next turn on.
    pub fn set_agent(&mut self, agent: AgentName) {
        self.agent = agent;
    }

    /// True if nothing is open, so that the conversation may hibernate.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.queued.is_empty() && self.running.is_none()
    }

    /// The turn that has started and not ended.
    #[must_use]
    pub fn running(&self) -> Option<Seq> {
        self.running.as_ref().map(|running| running.turn)
    }

    /// Where a turn stands.
    #[must_use]
    pub fn state(&self, turn: Seq) -> TurnState {
        match self.running() {
            Some(running) if running == turn => TurnState::Running,
            _ if self.queued.binary_search(&turn).is_ok() => TurnState::Queued,
            _ => TurnState::Closed,
        }
    }

    /// May another input be appended?
    ///
    /// # Errors
    /// [`Code::Overloaded`] with a directive while [`QUEUE_MAX_INPUTS`] wait.
    pub fn may_accept(&self) -> Result<(), Refusal> {
        if self.queued.len() < QUEUE_MAX_INPUTS {
            return Ok(());
        }
        let detail = format!("{QUEUE_MAX_INPUTS} inputs wait for the agent already; no more may wait");
        Err(Refusal::retry(Code::Overloaded, detail, Retry { after_ms: 1000, budget_ms: 20_000 }))
    }

    /// May the runner append this group, in one commit? An end that passes closes the turn for what follows, until it
    /// is told refused.
    ///
    /// # Errors
    /// [`Code::Conflict`] without a directive if the turn does not run or its end is on its way: the runner is to stop.
    /// [`Code::UnprocessableRequest`] for a group that no runner should send.
    pub fn admit(&mut self, drafts: &[Draft]) -> Result<(), Refusal> {
        for draft in drafts {
            let running = self.running.as_ref().filter(|running| Some(running.turn) == draft.turn);
            let Some(running) = running else {
                let turn = draft.turn.unwrap_or_default();
                return Err(Refusal::new(Code::Conflict, format!("turn: {turn} is not running")));
            };
            if running.end == End::Appending || running.runner != Runner::Alive {
                return Err(Refusal::new(Code::Conflict, format!("turn: {} is ending", running.turn)));
            }
        }
        check_shape(drafts)?;
        if let Some(running) = &mut self.running
            && drafts.last().is_some_and(|draft| draft.kind.ends_turn())
        {
            running.end = End::Appending;
        }
        Ok(())
    }

    /// What the due row must say once these drafts (those of one batch, all groups together) are committed.
    #[must_use]
    pub fn due_after<'a>(&self, drafts: impl IntoIterator<Item = &'a Draft>) -> Due {
        let (mut queued, mut running, mut changed) = (self.queued.len(), self.running(), false);
        for draft in drafts {
            if journal::is_input(draft.kind, &draft.sender) {
                queued += 1;
            } else if draft.kind == RecordKind::TurnStarted {
                running = draft.turn;
                queued = queued.saturating_sub(1);
            } else if draft.kind.ends_turn() && running.is_some() && draft.turn == running {
                running = None;
            } else if draft.kind.ends_turn() && draft.turn.is_some_and(|turn| self.state(turn) == TurnState::Queued) {
                queued = queued.saturating_sub(1);
            } else {
                continue;
            }
            changed = true;
        }
        if changed { Self::due_of(queued, running) } else { Due::Keep }
    }

    /// What the due row must say as things stand. Never [`Due::Keep`].
    #[must_use]
    pub fn due(&self) -> Due {
        Self::due_of(self.queued.len(), self.running())
    }

    fn due_of(queued: usize, running: Option<Seq>) -> Due {
        match (running, queued) {
            (Some(_), _) => Due::Turn,
            (None, 0) => Due::Clear,
            (None, _) => Due::Input,
        }
    }

    /// Tells the machine something; what is to be done is pushed to `out`.
    ///
    /// # Errors
    /// [`Broken`] if the log holds what it must not hold: the owner stops.
    pub fn handle(&mut self, now: Monotonic, input: Input<'_>, out: &mut Vec<Action>) -> Result<(), Broken> {
        match input {
            Input::Committed(record) => self.committed(record, out)?,
            Input::Thawed => self.thawed(out),
            Input::AppendRefused { drafts, retry } => self.append_refused(now, drafts, retry),
            Input::RunnerGone { turn } => self.runner_gone(turn),
            Input::DueWritten(due) => {
                if due != Due::Keep && due != self.due() {
                    // Part of the batch was in the log already, so that the row says too much or too little.
                    out.push(Action::Due(self.due()));
                }
            }
            Input::Tick => {}
        }
        self.append_what_is_missing(now, out);
        Ok(())
    }

    fn committed(&mut self, record: &Record, out: &mut Vec<Action>) -> Result<(), Broken> {
        if record.seq <= self.at_seq {
            return Ok(());
        }
        self.at_seq = record.seq;
        match record.kind {
            RecordKind::TurnStarted => self.turn_started(record, out),
            RecordKind::TurnSuperseded if self.state(turn_of(record)?) == TurnState::Closed => Ok(()),
            kind if kind.ends_turn() => self.turn_ended(record, out),
            RecordKind::StepCompleted => match turn_of(record)? {
                turn if self.state(turn) == TurnState::Running => Ok(()),
                turn => Err(Invariant::OneTerminal.broken(format!("seq {} is a step after turn {turn}", record.seq))),
            },
            kind if journal::is_input(kind, &record.sender) => {
                self.queued.push_back(record.seq);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn turn_started(&mut self, record: &Record, out: &mut Vec<Action>) -> Result<(), Broken> {
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
        let agent = journal::agent_of(record).unwrap_or_else(|| self.agent.clone());
        let mut running = Running::lost(turn, agent.clone());
        if self.mode == Mode::Live {
            running.runner = Runner::Alive;
            out.push(Action::StartRunner { turn, agent });
        }
        self.running = Some(running);
        if self.own == Some(Own::Start(turn)) {
            self.own = None;
        }
        Ok(())
    }

    fn turn_ended(&mut self, record: &Record, out: &mut Vec<Action>) -> Result<(), Broken> {
        let turn = turn_of(record)?;
        match self.state(turn) {
            TurnState::Running => {
                let running = self.running.take();
                if running.is_some_and(|running| running.runner == Runner::Alive) && self.mode == Mode::Live {
                    out.push(Action::StopRunner { turn });
                }
            }
            TurnState::Queued => self.queued.retain(|queued| *queued != turn),
            TurnState::Closed => {
                let detail = format!("seq {} ends turn {turn} again, or it never was open", record.seq);
                return Err(Invariant::OneTerminal.broken(detail));
            }
        }
        if self.own == Some(Own::Failure(turn)) {
            self.own = None;
        }
        Ok(())
    }

    fn thawed(&mut self, out: &mut Vec<Action>) {
        if self.mode == Mode::Live {
            return;
        }
        self.mode = Mode::Live;
        if self.is_idle() {
            // A due row may have outlived its reason; left there it would wake the conversation for ever.
            out.push(Action::Due(Due::Clear));
        }
    }

    fn append_refused(&mut self, now: Monotonic, drafts: &[Draft], retry: Option<Retry>) {
        for draft in drafts {
            let Some(turn) = draft.turn else { continue };
            if draft.kind.ends_turn()
                && let Some(running) = self.running.as_mut().filter(|running| running.turn == turn)
            {
                running.end = End::None;
            }
            let own = match draft.kind {
                RecordKind::TurnStarted => Own::Start(turn),
                RecordKind::TurnFailed => Own::Failure(turn),
                _ => continue,
            };
            if self.own == Some(own) {
                self.own = None;
                self.retry_at =
                    Some(now + retry.map_or(RETRY_AFTER, |directive| Duration::from_millis(directive.after_ms)));
            }
        }
    }

    fn runner_gone(&mut self, turn: Seq) {
        if let Some(running) = self.running.as_mut().filter(|running| running.turn == turn)
            && running.runner == Runner::Alive
        {
            running.runner = Runner::Gone(FailReason::AgentFailed);
        }
    }

    /// The one place where the machine asks for appends of its own: the end of a turn that nobody runs, else the start
    /// of the next.
    fn append_what_is_missing(&mut self, now: Monotonic, out: &mut Vec<Action>) {
        let waits = self.retry_at.is_some_and(|at| now < at);
        if self.mode == Mode::Replaying || self.own.is_some() || waits {
            return;
        }
        let draft = match &mut self.running {
            Some(Running { turn, runner: Runner::Gone(reason), end: end @ End::None, .. }) => {
                *end = End::Appending;
                self.own = Some(Own::Failure(*turn));
                journal::failed(*turn, *reason)
            }
            Some(_) => return,
            None => {
                let Some(&turn) = self.queued.front() else { return };
                self.own = Some(Own::Start(turn));
                journal::started(turn, &self.agent)
            }
        };
        self.retry_at = None;
        out.push(Action::Append(vec![draft]));
    }
}

impl Running {
    /// As it is found in the log: somebody started it, nobody here runs it.
    fn lost(turn: Seq, agent: AgentName) -> Self {
        Self { turn, agent, runner: Runner::Gone(FailReason::OwnerLost), end: End::None }
    }
}

fn turn_of(record: &Record) -> Result<Seq, Broken> {
    record.turn.ok_or_else(|| {
        Invariant::OneTerminal.broken(format!("seq {} is a {} that names no turn", record.seq, record.kind))
    })
}

/// What a runner may send: steps; or one end, last, with the answer before it exactly if it is `turn.completed`.
fn check_shape(drafts: &[Draft]) -> Result<(), Refusal> {
    let kinds: Vec<RecordKind> = drafts.iter().map(|draft| draft.kind).collect();
    match kinds.as_slice() {
        [RecordKind::StepCompleted | RecordKind::TurnFailed] | [RecordKind::Message, RecordKind::TurnCompleted] => {
            Ok(())
        }
        _ => {
            let names: Vec<&str> = kinds.iter().map(|kind| kind.as_str()).collect();
            let detail = format!("kind: a runner may not append [{}] in one commit", names.join(", "));
            Err(Refusal::new(Code::UnprocessableRequest, detail))
        }
    }
}
