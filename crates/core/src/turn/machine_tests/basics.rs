//! One turn after the other.

use super::*;
use crate::refusal::Code;
use crate::turn::journal::FailReason;
use crate::turn::{QUEUE_MAX_INPUTS, TurnState};

#[test]
fn a_turn_runs_from_its_input_to_its_end_and_the_next_waits_for_it() {
    let mut owner = Owner::new();
    owner.input();
    owner.commit();
    assert_eq!(owner.due, Due::Input);
    assert!(owner.runner.is_none(), "the start is not committed yet");
    owner.commit();
    assert_eq!(owner.due, Due::Turn);
    let turn = owner.first();
    let run = owner.runner.as_ref().map(|run| (run.turn, run.begin, run.attempt));
    assert_eq!(run, Some((turn, Begin::First, 1)));
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
fn an_input_without_a_start_starts_after_a_thaw() {
    let mut owner = Owner::new();
    owner.input();
    owner.commit();
    owner.crash(Unheard::Lost);
    owner.commit();
    assert_eq!(owner.runner.as_ref().map(|run| run.turn), Some(owner.first()));
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
    assert_eq!(owner.machine.wake_at(owner.now), Some(monotonic(250_000_000)));
    owner.pass(Duration::from_nanos(249_999_999));
    assert!(owner.pending.is_empty());
    owner.pass(Duration::from_nanos(1));
    assert_eq!(owner.pending.len(), 1);
    owner.tell(Input::Tick);
    assert_eq!(owner.pending.len(), 1, "one is outstanding");
}

#[test]
fn an_end_on_its_way_closes_the_turn_for_what_follows() {
    let mut owner = Owner::running();
    let turn = owner.first();
    owner.runner_ends();
    let failure = [journal::failed(turn, FailReason::AppendRefused, "")];
    let refusal = owner.machine.admit(&failure).expect_err("an end is on its way");
    assert_eq!((refusal.code, refusal.retry), (Code::Conflict, None));
    owner.runner_dies(Gone::Over);
    assert_eq!(owner.pending.len(), 1, "the machine adds no end of its own");
    owner.refuse(None);
    assert_eq!(owner.pending.len(), 1, "now it must, since nobody else will");
    owner.commit();
    assert_eq!(owner.last_body(), r#"{"reason":"agent_failed"}"#);
    assert!(owner.machine.admit(&failure).is_err(), "it has ended");
}

#[test]
fn what_is_written_beside_the_turns_changes_no_due_row() {
    let owner = Owner::running();
    let turn = owner.first();
    let step = journal::step_completed(turn, &StepId::model(1), &StepResult::text(""));
    assert_eq!(owner.machine.due_after([&step]), Due::Keep);
    let end = [journal::answer(turn, &"demo".parse().expect("valid"), "hi"), journal::completed(turn)];
    assert_eq!(owner.machine.due_after(&end), Due::Clear);
    assert_eq!(owner.machine.due_after(end.iter().chain([&input("k")])), Due::Input);
}

#[test]
fn a_runner_may_append_steps_and_ends_only() {
    let mut owner = Owner::running();
    let (turn, agent) = (owner.first(), "demo".parse().expect("valid"));
    let answer = journal::answer(turn, &agent, "hi");
    let other = Seq(turn.0 + 1);
    let refused: [&[Draft]; 6] = [
        &[],
        std::slice::from_ref(&answer),
        &[journal::completed(turn)],
        &[journal::completed(turn), answer.clone()],
        &[answer.clone(), journal::completed(other)],
        &[journal::started(turn, &agent, Timestamp(0))],
    ];
    for drafts in refused {
        let refusal = owner.machine.admit(drafts).expect_err("must be refused");
        assert_eq!(refusal.code, Code::UnprocessableRequest, "{refusal}");
    }
    let other = [journal::failed(other, FailReason::AgentFailed, "")];
    assert_eq!(owner.machine.admit(&other).expect_err("not running").code, Code::Conflict);
    assert_eq!(owner.machine.admit(&[answer, journal::completed(turn)]), Ok(()));
}

#[test]
fn a_full_queue_refuses_with_a_directive_and_counts_what_is_on_its_way() {
    let mut owner = Owner::new();
    for _ in 0..QUEUE_MAX_INPUTS - 1 {
        owner.input();
    }
    owner.commit();
    assert_eq!(owner.machine.may_accept(0), Ok(()));
    let refusal = owner.machine.may_accept(1).expect_err("full");
    assert_eq!((refusal.code, refusal.retry.is_some()), (Code::Overloaded, true));
}

#[test]
fn a_log_with_a_second_start_or_end_stops_the_owner() {
    let mut owner = Owner::running();
    owner.runner_ends();
    owner.commit();
    let (turn, agent) = (owner.first(), "demo".parse().expect("valid"));
    let step = journal::step_completed(turn, &StepId::model(1), &StepResult::text(""));
    let bad = [
        journal::started(turn, &agent, Timestamp(0)),
        journal::failed(turn, FailReason::AgentFailed, ""),
        journal::started(Seq(90), &agent, Timestamp(0)),
        step,
        Draft { turn: None, ..journal::completed(turn) },
    ];
    for draft in bad {
        let mut machine = owner.machine.clone();
        let record = Record::from_draft("c".parse().expect("valid"), Seq(99), Epoch(1), Timestamp(0), draft);
        let broken = machine.handle(Now::default(), Input::Committed(&record), &mut Vec::new());
        assert!(broken.expect_err("must be noticed").to_string().starts_with("invariant 10 is broken"));
    }
}

#[test]
fn a_turn_that_takes_too_long_fails_whoever_runs_it() {
    let mut owner = Owner::running();
    let deadline = owner.machine.wake_at(owner.now).expect("the turn's deadline");
    assert_eq!(deadline.since(owner.now.monotonic), TURN_TIME);
    owner.pass(TURN_TIME - Duration::from_millis(1));
    assert!(owner.pending.is_empty());
    owner.pass(Duration::from_millis(1));
    owner.runner_steps();
    assert!(owner.runner.is_none(), "its append is refused, and it is over");
    owner.commit();
    assert_eq!(
        owner.last_body(),
        r#"{"detail":"it was to end by 1970-01-01T01:00:00.000Z","reason":"deadline_passed"}"#
    );
    assert!(owner.machine.is_idle());
}

#[test]
fn a_turn_beyond_its_limits_is_refused_a_step() {
    let mut owner = Owner::running();
    let turn = owner.first();
    let large = StepResult::text("x".repeat(1024 * 1024 - 100));
    for step in 1..=16 {
        owner.runner_appends(vec![journal::step_completed(turn, &StepId::model(step), &large)]).expect("within");
        owner.commit();
    }
    let one_more = [journal::step_completed(turn, &StepId::model(17), &large)];
    let refusal = owner.machine.admit(&one_more).expect_err("17 MiB");
    assert_eq!(refusal.code, Code::TooLarge, "{refusal}");
    assert_eq!(owner.machine.checkpoint().running.map(|running| running.spent.steps), Some(16));
}
