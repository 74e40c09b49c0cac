//! The machine against a small model of its owner and of the store.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::json;

use crate::body::Body;
use crate::ids::{Epoch, Seq, Subject};
use crate::record::{Draft, Record, RecordKind};
use crate::refusal::{Code, Retry};
use crate::time::{Monotonic, Timestamp};
use crate::turn::journal::{self, FailReason, StepResult};
use crate::turn::{Action, Due, Input, QUEUE_MAX_INPUTS, StepId, TurnCheckpoint, TurnMachine, TurnState};

/// An owner with a store in which one (sender, key) lands once. Performs what the machine asks for.
struct Owner {
    machine: TurnMachine,
    log: Vec<Record>,
    keys: BTreeSet<(Subject, String)>,
    /// Groups that wait for the next batch.
    pending: Vec<Vec<Draft>>,
    /// The turn that a runner of this process runs, with its last step.
    runner: Option<(Seq, u32)>,
    due: Due,
    saved: Option<TurnCheckpoint>,
    now: Monotonic,
    inputs: u64,
}

impl Owner {
    fn new() -> Self {
        let mut owner = Self {
            machine: TurnMachine::new("demo".parse().expect("valid")),
            log: Vec::new(),
            keys: BTreeSet::new(),
            pending: Vec::new(),
            runner: None,
            due: Due::Clear,
            saved: None,
            now: Monotonic(0),
            inputs: 0,
        };
        owner.tell(Input::Thawed);
        owner
    }

    fn tell(&mut self, input: Input<'_>) {
        let mut actions = Vec::new();
        self.machine.handle(self.now, input, &mut actions).expect("the log is sound");
        for action in actions {
            match action {
                Action::Append(drafts) => self.pending.push(drafts),
                Action::StartRunner { turn, agent } => {
                    assert_eq!(agent.as_str(), "demo");
                    assert_eq!(self.runner, None, "one turn runs at a time");
                    assert_eq!(self.ends(turn), 0, "no runner for a turn that has ended");
                    assert_eq!(self.starts(turn), 1, "the start is committed before the runner runs");
                    self.runner = Some((turn, 0));
                }
                Action::StopRunner { turn } => {
                    if self.runner.is_some_and(|(running, _)| running == turn) {
                        self.runner = None;
                    }
                }
                Action::Due(due) => self.due = due,
            }
        }
    }

    fn input(&mut self) {
        self.inputs += 1;
        let key = format!("k{}", self.inputs);
        self.pending.push(vec![input(&key)]);
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
        let landed = self.land(&groups);
        if due != Due::Keep {
            self.due = due;
        }
        for record in landed {
            self.tell(Input::Committed(&record));
        }
        self.tell(Input::DueWritten(due));
        assert_eq!(self.due, self.machine.due(), "the due row says what is open");
    }

    fn land(&mut self, groups: &[Vec<Draft>]) -> Vec<Record> {
        let mut landed = Vec::new();
        for draft in groups.iter().flatten() {
            if !self.keys.insert((draft.sender.clone(), draft.client_msg_id.to_string())) {
                assert!(!draft.sender.is_reserved(), "the machine and the runner never repeat what landed: {draft:?}");
                continue;
            }
            // Holes, as blocks and takeovers leave them.
            let seq = Seq(self.log.last().map_or(0, |record| record.seq.0) + 1 + (self.log.len() as u64 % 3));
            landed.push(Record::from_draft("c".parse().expect("valid"), seq, Epoch(1), Timestamp(0), draft.clone()));
            self.log.extend(landed.last().cloned());
        }
        landed
    }

    /// The first group that waits is refused.
    fn refuse(&mut self, retry: Option<Retry>) {
        if !self.pending.is_empty() {
            let drafts = self.pending.remove(0);
            self.tell(Input::AppendRefused { drafts: &drafts, retry });
        }
    }

    fn runner_appends(&mut self, drafts: Vec<Draft>) {
        if self.machine.admit(&drafts).is_ok() {
            self.pending.push(drafts);
        }
    }

    fn runner_steps(&mut self) {
        if let Some((turn, step)) = &mut self.runner {
            *step += 1;
            let result = StepResult::Model { output: "x".to_owned() };
            let draft = journal::step_completed(*turn, &StepId::model(*step), &result);
            self.runner_appends(vec![draft]);
        }
    }

    fn runner_ends(&mut self) {
        if let Some((turn, _)) = self.runner {
            let agent = "demo".parse().expect("valid");
            self.runner_appends(vec![journal::answer(turn, &agent, "done"), journal::completed(turn)]);
        }
    }

    fn runner_dies(&mut self) {
        if let Some((turn, _)) = self.runner.take() {
            self.tell(Input::RunnerGone { turn });
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
        self.runner = None;
        let agent = "demo".parse().expect("valid");
        self.machine = match self.saved.clone() {
            Some(checkpoint) => TurnMachine::from_checkpoint(agent, checkpoint),
            None => TurnMachine::new(agent),
        };
        for record in self.log.clone() {
            self.tell(Input::Committed(&record));
        }
        assert!(self.pending.is_empty() && self.runner.is_none(), "nothing is done while replaying");
        self.tell(Input::Thawed);
    }

    fn checkpoint(&mut self) {
        let bytes = self.machine.checkpoint().encode().expect("small");
        self.saved = Some(TurnCheckpoint::decode(&bytes).expect("as written"));
    }

    fn tick(&mut self) {
        self.now = self.now + std::time::Duration::from_secs(30);
        self.tell(Input::Tick);
    }

    fn starts(&self, turn: Seq) -> usize {
        self.log.iter().filter(|record| record.kind == RecordKind::TurnStarted && record.turn == Some(turn)).count()
    }

    fn ends(&self, turn: Seq) -> usize {
        self.log.iter().filter(|record| record.kind.ends_turn() && record.turn == Some(turn)).count()
    }

    fn kinds(&self) -> Vec<&'static str> {
        self.log.iter().map(|record| record.kind.as_str()).collect()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unheard {
    Lost,
    Landed,
}

fn input(key: &str) -> Draft {
    let body = Body::of(&json!({ "text": key }));
    Draft::new(RecordKind::Message, "alice".parse().expect("valid"), key.parse().expect("valid"), body)
}

#[test]
fn a_turn_runs_from_its_input_to_its_end_and_the_next_waits_for_it() {
    let mut owner = Owner::new();
    owner.input();
    owner.commit();
    assert_eq!(owner.due, Due::Input);
    assert_eq!(owner.runner, None, "the start is not committed yet");
    owner.commit();
    assert_eq!(owner.due, Due::Turn);
    let turn = owner.log[0].seq;
    assert_eq!(owner.runner, Some((turn, 0)));
    owner.input();
    owner.runner_steps();
    owner.commit();
    assert_eq!(owner.machine.state(owner.log[2].seq), TurnState::Queued);
    owner.runner_ends();
    owner.commit();
    assert_eq!(owner.due, Due::Input, "the second input is next");
    owner.commit();
    assert_eq!(owner.machine.state(turn), TurnState::Closed);
    let expected =
        ["message", "turn.started", "message", "step.completed", "message", "turn.completed", "turn.started"];
    assert_eq!(owner.kinds(), expected);
    owner.runner_ends();
    owner.commit();
    assert_eq!((owner.due, owner.machine.is_idle()), (Due::Clear, true));
}

#[test]
fn a_turn_whose_owner_went_away_fails_and_the_queue_goes_on() {
    let mut owner = Owner::new();
    owner.input();
    owner.commit();
    owner.commit();
    owner.input();
    owner.commit();
    owner.crash(Unheard::Lost);
    owner.commit();
    let end = owner.log.last().expect("the end");
    assert_eq!((end.kind, end.turn), (RecordKind::TurnFailed, Some(owner.log[0].seq)));
    assert_eq!(end.body.as_str(), r#"{"reason":"owner_lost"}"#);
    owner.commit();
    assert_eq!(owner.runner.map(|(turn, _)| turn), Some(owner.log[2].seq), "the second input's turn runs");
}

#[test]
fn an_input_without_a_start_starts_after_a_thaw() {
    let mut owner = Owner::new();
    owner.input();
    owner.commit();
    owner.crash(Unheard::Lost);
    owner.commit();
    assert_eq!(owner.runner, Some((owner.log[0].seq, 0)));
    assert_eq!(owner.kinds(), ["message", "turn.started"]);
}

#[test]
fn thawing_with_nothing_open_removes_a_due_row_that_outlived_its_reason() {
    let mut owner = Owner::new();
    owner.due = Due::Input;
    owner.crash(Unheard::Lost);
    assert_eq!(owner.due, Due::Clear);
}

#[test]
fn a_refused_start_is_tried_again_not_before_the_directive_says() {
    let mut owner = Owner::new();
    owner.input();
    owner.commit();
    owner.refuse(Some(Retry { after_ms: 250, budget_ms: 20_000 }));
    owner.now = Monotonic(249_999_999);
    owner.tell(Input::Tick);
    assert!(owner.pending.is_empty());
    owner.now = Monotonic(250_000_000);
    owner.tell(Input::Tick);
    assert_eq!(owner.pending.len(), 1);
    owner.tell(Input::Tick);
    assert_eq!(owner.pending.len(), 1, "one is outstanding");
}

#[test]
fn an_end_on_its_way_closes_the_turn_for_what_follows() {
    let mut owner = Owner::new();
    owner.input();
    owner.commit();
    owner.commit();
    let turn = owner.log[0].seq;
    owner.runner_ends();
    let failure = [journal::failed(turn, FailReason::AppendRefused)];
    let refusal = owner.machine.admit(&failure).expect_err("an end is on its way");
    assert_eq!((refusal.code, refusal.retry), (Code::Conflict, None));
    owner.runner_dies();
    assert_eq!(owner.pending.len(), 1, "the machine adds no end of its own");
    owner.refuse(None);
    assert_eq!(owner.pending.len(), 1, "now it must, since nobody else will");
    owner.commit();
    assert_eq!(owner.log.last().map(|end| end.body.as_str()), Some(r#"{"reason":"agent_failed"}"#));
    assert!(owner.machine.admit(&failure).is_err(), "it has ended");
}

#[test]
fn an_input_whose_turn_is_cancelled_while_it_waits_never_starts() {
    let mut owner = Owner::new();
    owner.input();
    owner.commit();
    owner.commit();
    owner.input();
    owner.commit();
    let waits = owner.log[2].seq;
    let cancelled = Draft { kind: RecordKind::TurnCancelled, ..journal::completed(waits) };
    assert_eq!(owner.machine.due_after([&cancelled]), Due::Turn);
    owner.pending.push(vec![cancelled]);
    owner.commit();
    owner.runner_ends();
    owner.commit();
    assert_eq!((owner.machine.is_idle(), owner.due, owner.runner), (true, Due::Clear, None));
    let superseded = Draft {
        kind: RecordKind::TurnSuperseded,
        sender: Subject::system("@supersede"),
        ..journal::completed(owner.log[0].seq)
    };
    owner.pending.push(vec![superseded]);
    owner.commit();
    assert!(owner.machine.is_idle(), "a turn may be superseded after it has ended");
}

#[test]
fn what_is_written_beside_the_turns_changes_no_due_row() {
    let mut owner = Owner::new();
    owner.input();
    owner.commit();
    owner.commit();
    let turn = owner.log[0].seq;
    let step = journal::step_completed(turn, &StepId::model(1), &StepResult::Model { output: String::new() });
    assert_eq!(owner.machine.due_after([&step]), Due::Keep);
    let end = [journal::answer(turn, &"demo".parse().expect("valid"), "hi"), journal::completed(turn)];
    assert_eq!(owner.machine.due_after(&end), Due::Clear);
    assert_eq!(owner.machine.due_after(end.iter().chain([&input("k")])), Due::Input);
}

#[test]
fn a_runner_may_append_steps_and_ends_only() {
    let mut owner = Owner::new();
    owner.input();
    owner.commit();
    owner.commit();
    let (turn, agent) = (owner.log[0].seq, "demo".parse().expect("valid"));
    let answer = journal::answer(turn, &agent, "hi");
    let refused: [&[Draft]; 5] = [
        &[],
        std::slice::from_ref(&answer),
        &[journal::completed(turn)],
        &[journal::completed(turn), answer.clone()],
        &[journal::started(turn, &agent)],
    ];
    for drafts in refused {
        let refusal = owner.machine.admit(drafts).expect_err("must be refused");
        assert_eq!(refusal.code, Code::UnprocessableRequest, "{refusal}");
    }
    let other = [journal::completed(Seq(turn.0 + 1))];
    assert_eq!(owner.machine.admit(&other).expect_err("not running").code, Code::Conflict);
    assert_eq!(owner.machine.admit(&[answer, journal::completed(turn)]), Ok(()));
}

#[test]
fn a_full_queue_refuses_with_a_directive() {
    let mut owner = Owner::new();
    for _ in 0..=QUEUE_MAX_INPUTS {
        assert_eq!(owner.machine.may_accept(), Ok(()));
        owner.input();
        owner.commit();
    }
    let refusal = owner.machine.may_accept().expect_err("full");
    assert_eq!((refusal.code, refusal.retry.is_some()), (Code::Overloaded, true));
}

#[test]
fn a_log_with_a_second_start_or_end_stops_the_owner() {
    let mut owner = Owner::new();
    owner.input();
    owner.commit();
    owner.commit();
    owner.runner_ends();
    owner.commit();
    let (turn, agent) = (owner.log[0].seq, "demo".parse().expect("valid"));
    let step = journal::step_completed(turn, &StepId::model(1), &StepResult::Model { output: String::new() });
    let bad = [
        journal::started(turn, &agent),
        journal::failed(turn, FailReason::AgentFailed),
        journal::started(Seq(90), &agent),
        step,
        Draft { turn: None, ..journal::completed(turn) },
    ];
    for draft in bad {
        let mut machine = owner.machine.clone();
        let record = Record::from_draft("c".parse().expect("valid"), Seq(99), Epoch(1), Timestamp(0), draft);
        let broken = machine.handle(Monotonic(0), Input::Committed(&record), &mut Vec::new());
        assert!(broken.expect_err("must be noticed").to_string().starts_with("invariant 10 is broken"));
    }
}

#[derive(Debug, Clone)]
enum Event {
    Input,
    InputAgain,
    Commit,
    Refuse,
    RefuseForGood,
    Again(usize),
    Step,
    End,
    Die,
    Checkpoint,
    CrashLost,
    CrashLanded,
    Tick,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        4 => Just(Event::Input),
        1 => Just(Event::InputAgain),
        8 => Just(Event::Commit),
        1 => Just(Event::Refuse),
        1 => Just(Event::RefuseForGood),
        2 => any::<usize>().prop_map(Event::Again),
        3 => Just(Event::Step),
        4 => Just(Event::End),
        1 => Just(Event::Die),
        1 => Just(Event::Checkpoint),
        1 => Just(Event::CrashLost),
        1 => Just(Event::CrashLanded),
        2 => Just(Event::Tick),
    ];
    proptest::collection::vec(event, 0..120)
}

fn perform(owner: &mut Owner, event: &Event) {
    match event {
        Event::Input => owner.input(),
        Event::InputAgain => owner.input_again(),
        Event::Commit => owner.commit(),
        Event::Refuse => owner.refuse(Some(Retry::SOON)),
        Event::RefuseForGood => owner.refuse(None),
        Event::Again(which) => {
            if !owner.log.is_empty() {
                let record = owner.log[which % owner.log.len()].clone();
                owner.tell(Input::Committed(&record));
            }
        }
        Event::Step => owner.runner_steps(),
        Event::End => owner.runner_ends(),
        Event::Die => owner.runner_dies(),
        Event::Checkpoint => owner.checkpoint(),
        Event::CrashLost => owner.crash(Unheard::Lost),
        Event::CrashLanded => owner.crash(Unheard::Landed),
        Event::Tick => owner.tick(),
    }
}

proptest! {
    #[test]
    fn every_input_gets_one_start_and_one_end_whatever_happens(events in events()) {
        let mut owner = Owner::new();
        for event in &events {
            perform(&mut owner, event);
        }
        // From here on nothing goes wrong any more: all that is open must come to its end.
        for _ in 0..4 * (events.len() + 2) {
            owner.tick();
            owner.runner_ends();
            owner.commit();
        }
        prop_assert!(owner.machine.is_idle());
        prop_assert_eq!(owner.due, Due::Clear);
        let mut counts: BTreeMap<Seq, (usize, usize)> = BTreeMap::new();
        for record in owner.log.iter().filter(|record| journal::is_input(record.kind, &record.sender)) {
            counts.insert(record.seq, (owner.starts(record.seq), owner.ends(record.seq)));
        }
        prop_assert!(counts.values().all(|count| *count == (1, 1)), "{:?}", counts);
        let starts = owner.log.iter().filter(|record| record.kind == RecordKind::TurnStarted).count();
        prop_assert_eq!(starts, counts.len(), "no start without an input");
    }
}
