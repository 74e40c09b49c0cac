//! Going on with a turn whose owner went away.

use super::*;
use crate::turn::budget::TURN_OWNERS_MAX;

/// How the first input's turn is run now.
fn run(owner: &Owner) -> (Begin, u32) {
    owner.runner.as_ref().map(|run| (run.begin, run.attempt)).expect("it runs")
}

#[test]
fn the_next_owner_goes_on_after_the_last_completed_step() {
    let mut owner = Owner::running();
    owner.runner_steps();
    owner.commit();
    owner.input();
    owner.commit();
    owner.crash(Unheard::Lost);
    assert_eq!(run(&owner), (Begin::TakenOver, 1));
    assert_eq!(owner.next_step(), Some((owner.first(), StepId::model(2))), "the first is not run again");
    owner.runner_steps();
    owner.runner_ends();
    owner.commit();
    owner.commit();
    let ends: Vec<_> = owner.log.iter().filter(|record| record.kind.ends_turn()).map(|end| end.kind).collect();
    assert_eq!(ends, [RecordKind::TurnCompleted]);
    assert!(owner.runner.is_some(), "the queue goes on");
}

#[test]
fn a_step_that_landed_unheard_is_not_run_again() {
    let mut owner = Owner::running();
    owner.runner_steps();
    owner.crash(Unheard::Landed);
    assert_eq!(owner.next_step(), Some((owner.first(), StepId::model(2))));
}

#[test]
fn a_start_that_landed_unheard_is_gone_on_with() {
    let mut owner = Owner::new();
    owner.input();
    owner.commit();
    owner.crash(Unheard::Landed);
    assert_eq!(run(&owner), (Begin::TakenOver, 1));
    assert_eq!(owner.starts(owner.first()), 1);
}

#[test]
fn an_end_that_landed_unheard_stands() {
    let mut owner = Owner::running();
    owner.runner_ends();
    owner.crash(Unheard::Landed);
    assert!(owner.machine.is_idle() && owner.runner.is_none());
    assert_eq!(owner.due, Due::Clear);
}

#[test]
fn ten_restarts_with_progress_do_not_exhaust_a_turn_and_ten_without_do() {
    for checkpoints in [false, true] {
        let mut owner = Owner::running();
        for _ in 0..TURN_OWNERS_MAX + 5 {
            owner.crash(Unheard::Lost);
            owner.runner_steps();
            owner.commit();
            if checkpoints {
                owner.checkpoint();
            }
        }
        assert!(owner.runner.is_some(), "it got further each time");
        for lost in 1..TURN_OWNERS_MAX {
            owner.crash(Unheard::Lost);
            assert!(owner.runner.is_some(), "{lost} owners were lost");
        }
        owner.crash(Unheard::Lost);
        assert!(owner.runner.is_none(), "it is not run any more");
        owner.commit();
        assert!(owner.last_body().ends_with(r#""reason":"no_progress"}"#), "{}", owner.last_body());
        assert!(owner.machine.is_idle());
    }
}

/// A turn that gets further with each of many owners. Does it still run?
fn over_many_deploys(without: Option<Rule>) -> bool {
    let mut owner = Owner::with(SecondMessage::Queue, without);
    owner.begin();
    for _ in 0..TURN_OWNERS_MAX + 1 {
        // In order, so that its state is saved.
        owner.checkpoint();
        owner.crash(Unheard::Lost);
        owner.runner_steps();
        owner.commit();
    }
    owner.runner.is_some()
}

#[test]
fn deploys_eat_the_retry_budget() {
    assert!(over_many_deploys(None));
    assert!(!over_many_deploys(Some(Rule::ProgressForgives)), "the rule is needed");
}

#[test]
fn epochs_that_jump_are_not_taken_for_owners() {
    let mut owner = Owner::running();
    for lost in 2..TURN_OWNERS_MAX {
        owner.epoch = Epoch(owner.epoch.0 + 1_000_000);
        owner.crash(Unheard::Lost);
        assert!(owner.runner.is_some(), "{lost} owners were lost at most");
    }
    owner.crash(Unheard::Lost);
    assert!(owner.runner.is_none());
}

#[test]
fn the_first_loss_costs_no_write_and_the_next_ones_do() {
    let mut owner = Owner::running();
    owner.crash(Unheard::Lost);
    assert_eq!(owner.saved, None);
    owner.crash(Unheard::Lost);
    let saved = owner.saved.as_ref().and_then(|saved| saved.running.as_ref());
    assert_eq!(saved.map(|running| running.lost_owners), Some(2), "before anybody runs it");
}

#[test]
fn waiting_loses_no_owner() {
    let mut owner = Owner::running();
    owner.runner_waits();
    for _ in 0..TURN_OWNERS_MAX + 1 {
        owner.crash(Unheard::Lost);
    }
    owner.resolve(1);
    owner.commit();
    assert!(owner.runner.is_some());
}

#[test]
fn a_runner_that_ends_without_an_end_fails_its_turn() {
    let mut owner = Owner::running();
    owner.runner_dies(Gone::Over);
    owner.commit();
    assert_eq!(owner.last_body(), r#"{"reason":"agent_failed"}"#);
}
