//! The machine against a small model of its owner, its runners and the store.

mod asks;
mod basics;
mod policies;
mod resuming;
mod walk;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::json;

use crate::body::{Body, BodyHash};
use crate::conversation::SecondMessage;
use crate::ids::{Epoch, Seq, Subject};
use crate::record::{Draft, Record, RecordKind};
use crate::refusal::{Refusal, Retry};
use crate::time::{Monotonic, Timestamp};
use crate::turn::awaits::{AwaitId, OpenAwait};
use crate::turn::cancel::{Cancel, CancelMode, Resolve};
use crate::turn::journal;
use crate::turn::machine::Rule;
use crate::turn::replay::Replay;
use crate::turn::result::StepResult;
use crate::turn::{Action, Begin, Due, Gone, Input, NotDone, Now, Setup, StepId, TurnCheckpoint, TurnMachine};

/// How long an await of the model stays open.
const AWAIT: Duration = Duration::from_secs(100);
/// How long a turn of the model may take.
const TURN_TIME: Duration = Duration::from_secs(3600);

/// A runner of this process.
struct Run {
    turn: Seq,
    begin: Begin,
    attempt: u32,
    replay: Replay,
    /// The steps that it sent to be appended.
    sent: BTreeSet<StepId>,
}

/// An owner with a store in which one (sender, key) lands once. Performs what the machine asks for.
struct Owner {
    machine: TurnMachine,
    setup: Setup,
    epoch: Epoch,
    log: Vec<Record>,
    keys: BTreeMap<(Subject, String), BodyHash>,
    /// Groups that wait for the next batch.
    pending: Vec<Vec<Draft>>,
    runner: Option<Run>,
    /// A runner that was stopped and has not said that it is over.
    stopped: Option<Run>,
    due: Due,
    saved: Option<TurnCheckpoint>,
    now: Now,
    inputs: u64,
    /// What went wrong.
    faults: Vec<String>,
    on_fault: OnFault,
}

fn setup(second_message: SecondMessage) -> Setup {
    Setup {
        time: TURN_TIME,
        second_message,
        merge: Duration::from_secs(1),
        ..Setup::of("demo".parse().expect("valid"))
    }
}

fn input(key: &str) -> Draft {
    let body = Body::of(&json!({ "text": key }));
    Draft::new(RecordKind::Message, "alice".parse().expect("valid"), key.parse().expect("valid"), body)
}

fn cancel(turn: Seq, mode: CancelMode) -> Cancel {
    Cancel { turn, mode, by: "bob".parse().expect("valid"), reason: None }
}

fn resolve(id: &AwaitId, payload: u64) -> Resolve {
    Resolve { id: id.clone(), payload: json!(payload), by: "bob".into() }
}

impl Owner {
    fn new() -> Self {
        Self::with(SecondMessage::Queue, None)
    }

    fn with(second_message: SecondMessage, without: Option<Rule>) -> Self {
        let setup = setup(second_message);
        let mut machine = TurnMachine::new(setup.clone());
        machine.without = without;
        let mut owner = Self {
            machine,
            setup,
            epoch: Epoch(1),
            log: Vec::new(),
            keys: BTreeMap::new(),
            pending: Vec::new(),
            runner: None,
            stopped: None,
            due: Due::Clear,
            saved: None,
            now: Now::default(),
            inputs: 0,
            faults: Vec::new(),
            on_fault: OnFault::Panic,
        };
        owner.tell(Input::Thawed(Epoch(1)));
        owner
    }

    fn require(&mut self, holds: bool, what: &str) {
        if !holds {
            self.fault(what.to_owned());
        }
    }

    fn fault(&mut self, what: String) {
        assert!(self.on_fault == OnFault::Keep, "{what}");
        self.faults.push(what);
    }

    fn tell(&mut self, input: Input<'_>) {
        let mut actions = Vec::new();
        if let Err(broken) = self.machine.handle(self.now, input, &mut actions) {
            self.fault(broken.to_string());
        }
        for action in actions {
            self.perform(action);
        }
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Append(drafts) => self.pending.push(drafts),
            Action::Save => self.checkpoint(),
            Action::StartRunner(start) => {
                let turn = start.turn;
                self.require(self.runner.is_none(), "one turn runs at a time");
                self.require(self.ends(turn) == 0, "no runner for a turn that has ended");
                self.require(self.starts(turn) == 1, "the start is committed before the runner runs");
                self.require(!self.waits(turn), "a turn that waits is not run (invariant 13)");
                let mut replay = Replay::new(turn);
                let broken: Vec<_> = self.log.iter().filter_map(|record| replay.take(record).err()).collect();
                broken.iter().for_each(|broken| self.fault(broken.to_string()));
                let is_first = start.begin == Begin::First;
                self.require(
                    !is_first || replay.is_empty(),
                    "who begins anew would run completed steps again (invariant 9)",
                );
                self.runner =
                    Some(Run { turn, begin: start.begin, attempt: start.attempt, replay, sent: BTreeSet::new() });
            }
            Action::StopRunner { turn } => self.stop(turn),
            // A refusal is told to nobody.
            Action::Interrupt(cancel) => drop(self.cancel(&cancel)),
            Action::Due(due) => self.due = due,
        }
    }

    fn stop(&mut self, turn: Seq) {
        if self.runner.as_ref().is_some_and(|run| run.turn == turn) {
            self.stopped = self.runner.take();
        }
    }

    fn input(&mut self) {
        if self.machine.may_accept(self.inputs_on_their_way()).is_ok() {
            self.inputs += 1;
            let key = format!("k{}", self.inputs);
            self.pending.push(vec![input(&key)]);
        }
    }

    fn inputs_on_their_way(&self) -> usize {
        self.pending.iter().flatten().filter(|draft| journal::is_input(draft.kind, &draft.sender)).count()
    }

    /// A client sends its last input once more; the dedup window has forgotten it, the store has not.
    fn input_again(&mut self) {
        if self.inputs > 0 {
            self.pending.push(vec![input(&format!("k{}", self.inputs))]);
        }
    }

    /// One batch with everything that waits: the due change is written with the records, then they are told.
    fn commit(&mut self) {
        let groups = std::mem::take(&mut self.pending);
        let due = self.machine.due_after(groups.iter().flatten());
        let (landed, refused) = self.land(&groups);
        if due != Due::Keep {
            self.due = due;
        }
        for record in landed {
            self.tell(Input::Committed(&record));
        }
        for drafts in refused {
            self.tell(Input::AppendRefused { drafts: &drafts, retry: None });
        }
        self.tell(Input::DueWritten(due));
        let (row, should) = (self.due, self.machine.due());
        self.require(row == should, &format!("the due row says what is open: {row:?}, {should:?}"));
    }

    /// What lands, and what is refused because its key was used with another body.
    fn land(&mut self, groups: &[Vec<Draft>]) -> (Vec<Record>, Vec<Vec<Draft>>) {
        let (mut landed, mut refused) = (Vec::new(), Vec::new());
        for group in groups {
            let mut reused = false;
            for draft in group {
                let key = (draft.sender.clone(), draft.client_msg_id.to_string());
                if let Some(hash) = self.keys.get(&key) {
                    reused |= *hash != draft.body_hash;
                    let repeats = !draft.sender.is_reserved() || draft.kind == RecordKind::AwaitResolved;
                    self.require(repeats, &format!("what landed is never repeated: {draft:?}"));
                    continue;
                }
                self.keys.insert(key, draft.body_hash);
                // Holes, as blocks and takeovers leave them.
                let seq = Seq(self.log.last().map_or(0, |record| record.seq.0) + 1 + (self.log.len() as u64 % 3));
                let room = "c".parse().expect("valid");
                landed.push(Record::from_draft(room, seq, self.epoch, self.now.wall, draft.clone()));
                self.log.extend(landed.last().cloned());
            }
            if reused {
                refused.push(group.clone());
            }
        }
        (landed, refused)
    }

    /// The first group that waits is refused.
    fn refuse(&mut self, retry: Option<Retry>) {
        if !self.pending.is_empty() {
            let drafts = self.pending.remove(0);
            self.tell(Input::AppendRefused { drafts: &drafts, retry });
        }
    }

    /// The last group that came is refused.
    fn refuse_last(&mut self) {
        if let Some(drafts) = self.pending.pop() {
            self.tell(Input::AppendRefused { drafts: &drafts, retry: None });
        }
    }

    /// True if the runner's group is on its way.
    fn runner_appends(&mut self, drafts: Vec<Draft>) -> Result<(), Refusal> {
        self.machine.admit(&drafts)?;
        self.pending.push(drafts);
        Ok(())
    }

    /// The next model call that is not done yet.
    fn next_step(&self) -> Option<(Seq, StepId)> {
        self.next_step_of(self.runner.as_ref()?)
    }

    fn next_step_of(&self, run: &Run) -> Option<(Seq, StepId)> {
        let key = |step: &StepId| format!("{}/{step}", run.turn);
        let is_there = |step: &StepId| self.keys.contains_key(&(Subject::system(journal::STEP_SENDER), key(step)));
        let is_done = |step: &StepId| run.replay.result(step).is_some() || (run.sent.contains(step) && is_there(step));
        let step = (1..).map(StepId::model).find(|step| !is_done(step)).expect("numbers do not end");
        // It waits for the outcome of what it sent.
        let waits = self.pending.iter().flatten().any(|draft| draft.client_msg_id.as_str() == key(&step));
        (!(waits && run.sent.contains(&step))).then_some((run.turn, step))
    }

    fn runner_steps(&mut self) {
        if let Some((turn, step)) = self.next_step() {
            let draft = journal::step_completed(turn, &step, &StepResult::text("x"));
            if self.runner_appends(vec![draft]).is_err() {
                // It sees by the refusal that it is over.
                self.runner_dies(Gone::Over);
            } else if let Some(run) = &mut self.runner {
                run.sent.insert(step);
            }
        }
    }

    /// Opens an await; once that is committed the runner is over.
    fn runner_waits(&mut self) {
        self.runner_opens_an_await();
        self.runner_dies(Gone::Waiting);
    }

    fn runner_opens_an_await(&mut self) {
        let Some((turn, step)) = self.next_step() else { return };
        let id = AwaitId::of(turn, &step);
        if self.keys.contains_key(&(Subject::system(journal::AWAIT_SENDER), id.to_string())) {
            return self.runner_steps();
        }
        let expires_at = Timestamp(self.now.wall.0 + i64::try_from(AWAIT.as_millis()).expect("small"));
        let draft = journal::await_opened(turn, &OpenAwait { id, step, expires_at }, &json!({}), None);
        if self.runner_appends(vec![draft]).is_ok() {
            self.commit();
        }
    }

    fn runner_joins(&mut self) -> usize {
        let Some(turn) = self.runner.as_ref().map(|run| run.turn) else { return 0 };
        let drafts = self.machine.admit_join(turn).unwrap_or_default();
        let joining = drafts.len();
        if joining > 0 {
            self.pending.push(drafts);
        }
        joining
    }

    fn runner_ends(&mut self) {
        if let Some(turn) = self.runner.as_ref().map(|run| run.turn) {
            let agent = "demo".parse().expect("valid");
            let end = vec![journal::answer(turn, &agent, "done"), journal::completed(turn)];
            if self.runner_appends(end).is_err() {
                self.runner_dies(Gone::Over);
            }
        }
    }

    fn runner_dies(&mut self, how: Gone) {
        if let Some(run) = self.runner.take() {
            self.tell(Input::RunnerGone { turn: run.turn, how });
        }
    }

    /// A runner that was stopped, and does not know yet, asks for one more step.
    fn stopped_steps(&mut self) {
        let next = self.stopped.as_ref().and_then(|run| self.next_step_of(run));
        if let Some((turn, step)) = next {
            let draft = journal::step_completed(turn, &step, &StepResult::text("late"));
            // A refusal is what it gets.
            if self.runner_appends(vec![draft]).is_ok()
                && let Some(run) = &mut self.stopped
            {
                run.sent.insert(step);
            }
        }
    }

    /// A runner that was stopped says that it is over.
    fn stopped_is_gone(&mut self) {
        if let Some(run) = self.stopped.take() {
            self.tell(Input::RunnerGone { turn: run.turn, how: Gone::Over });
        }
    }

    fn cancel(&mut self, ask: &Cancel) -> Option<NotDone> {
        match self.machine.cancel(ask, Some("half")) {
            Ok(drafts) => {
                self.stop(ask.turn);
                self.pending.push(drafts);
                None
            }
            Err(not) => Some(not),
        }
    }

    fn open_await(&self) -> Option<AwaitId> {
        let opened = self.log.iter().rfind(|record| record.kind == RecordKind::AwaitOpened)?;
        let id = journal::await_of(&opened.body)?.id;
        self.waits(id.turn()).then_some(id)
    }

    fn resolve(&mut self, payload: u64) {
        let Some(id) = self.open_await() else { return };
        if let Ok(draft) = self.machine.resolve(&resolve(&id, payload)) {
            self.pending.push(vec![draft]);
        }
    }

    /// The process dies, and another takes over from the last checkpoint. What waited is lost, or has landed unheard.
    fn crash(&mut self, unheard: Unheard) {
        let groups = std::mem::take(&mut self.pending);
        if unheard == Unheard::Landed {
            let due = self.machine.due_after(groups.iter().flatten());
            self.land(&groups);
            self.due = if due == Due::Keep { self.due } else { due };
        }
        (self.runner, self.stopped) = (None, None);
        let without = self.machine.without;
        self.machine = match self.saved.clone() {
            Some(checkpoint) => TurnMachine::from_checkpoint(self.setup.clone(), checkpoint),
            None => TurnMachine::new(self.setup.clone()),
        };
        self.machine.without = without;
        for record in self.log.clone() {
            self.tell(Input::Committed(&record));
        }
        self.require(self.pending.is_empty() && self.runner.is_none(), "nothing is done while replaying");
        self.epoch = Epoch(self.epoch.0 + 1);
        self.tell(Input::Thawed(self.epoch));
    }

    fn checkpoint(&mut self) {
        let bytes = self.machine.checkpoint().encode().expect("small");
        self.saved = Some(TurnCheckpoint::decode(&bytes).expect("as written"));
    }

    fn pass(&mut self, time: Duration) {
        self.now.monotonic = self.now.monotonic + time;
        self.now.wall = Timestamp(self.now.wall.0 + i64::try_from(time.as_millis()).expect("small"));
        self.tell(Input::Tick);
    }

    fn tick(&mut self) {
        self.pass(Duration::from_secs(30));
    }

    fn starts(&self, turn: Seq) -> usize {
        self.log.iter().filter(|record| record.kind == RecordKind::TurnStarted && record.turn == Some(turn)).count()
    }

    /// Its own end, or that it joined another.
    fn ends(&self, turn: Seq) -> usize {
        let ends = |record: &&Record| {
            let is_end = record.kind.ends_turn() && record.turn == Some(turn);
            is_end && (record.kind != RecordKind::TurnSuperseded || journal::joined_into(record).is_some())
        };
        self.log.iter().filter(ends).count()
    }

    /// Whether the log says that a turn waits.
    fn waits(&self, turn: Seq) -> bool {
        let of_turn = |record: &&Record| record.turn == Some(turn);
        let last = self.log.iter().filter(of_turn).rfind(|record| {
            matches!(record.kind, RecordKind::AwaitOpened | RecordKind::AwaitResolved) || record.kind.ends_turn()
        });
        last.is_some_and(|record| record.kind == RecordKind::AwaitOpened)
    }

    fn kinds(&self) -> Vec<&'static str> {
        self.log.iter().map(|record| record.kind.as_str()).collect()
    }

    /// The first input's turn runs.
    fn running() -> Self {
        let mut owner = Self::new();
        owner.begin();
        owner
    }

    fn begin(&mut self) {
        self.input();
        self.commit();
        self.commit();
        assert!(self.runner.is_some(), "it runs");
    }

    fn first(&self) -> Seq {
        self.log[0].seq
    }

    fn last_body(&self) -> &str {
        self.log.last().map_or("", |record| record.body.as_str())
    }
}

/// What becomes of something that must not be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OnFault {
    Panic,
    /// The walk looks at them.
    Keep,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unheard {
    Lost,
    Landed,
}

/// What the final log must not hold, whatever happened.
fn judge(log: &[Record]) -> Vec<String> {
    let mut faults = Vec::new();
    let (mut closed, mut waiting): (BTreeSet<Seq>, Option<AwaitId>) = Default::default();
    for record in log {
        let Some(turn) = record.turn else { continue };
        let is_agents = record.kind == RecordKind::Message;
        if closed.contains(&turn) && (crate::turn::budget::is_journal(record.kind) || is_agents) {
            faults.push(format!("{} of turn {turn} after its end (invariants 10 and 14)", record.kind));
        }
        match record.kind {
            RecordKind::AwaitOpened => waiting = journal::await_of(&record.body).map(|open| open.id),
            RecordKind::AwaitResolved => {
                let id = journal::resolution_of(&record.body).map(|(id, _)| id);
                if id.is_none() || waiting.take() != id {
                    faults.push(format!("seq {} resolves what is not open (invariant 13)", record.seq));
                }
            }
            RecordKind::StepCompleted if waiting.is_some() => {
                faults.push(format!("seq {} is a step of a turn that waits (invariant 13)", record.seq));
            }
            kind if kind.ends_turn() => {
                closed.insert(turn);
                if waiting.as_ref().is_some_and(|open| open.turn() == turn) {
                    waiting = None;
                }
            }
            _ => {}
        }
    }
    faults
}

fn monotonic(nanos: u64) -> Monotonic {
    Monotonic(nanos)
}
