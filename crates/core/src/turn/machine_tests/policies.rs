//! What happens to a second message.

use super::*;
use crate::refusal::Code;
use crate::turn::TurnState;

fn running(second_message: SecondMessage) -> Owner {
    let mut owner = Owner::with(second_message, None);
    if second_message == SecondMessage::Merge {
        owner.input();
        owner.commit();
        owner.pass(Duration::from_secs(1));
        owner.commit();
        assert!(owner.runner.is_some());
    } else {
        owner.begin();
    }
    owner
}

#[test]
fn reject_refuses_while_anything_is_open_or_on_its_way() {
    let mut owner = running(SecondMessage::Reject);
    let refusal = owner.machine.may_accept(0).expect_err("a turn runs");
    assert_eq!((refusal.code, refusal.retry), (Code::Conflict, None));
    owner.runner_waits();
    assert!(owner.machine.may_accept(0).is_err(), "a waiting turn counts");
    owner.cancel(&cancel(owner.first(), CancelMode::Keep));
    owner.commit();
    assert_eq!(owner.machine.may_accept(0), Ok(()));
    assert!(owner.machine.may_accept(1).is_err(), "another was accepted a moment ago");
}

#[test]
fn interrupt_ends_the_running_turn_and_starts_the_new_one() {
    let mut owner = running(SecondMessage::Interrupt);
    let turn = owner.first();
    owner.input();
    owner.commit();
    owner.commit();
    owner.stopped_is_gone();
    owner.commit();
    let expected = ["message", "turn.started", "message", "message", "turn.cancelled", "turn.started"];
    assert_eq!(owner.kinds(), expected);
    assert_eq!(owner.log[4].body.as_str(), r#"{"by":"alice","mode":"keep","reason":"interrupted"}"#);
    assert_eq!((owner.machine.state(turn), owner.runner.is_some()), (TurnState::Closed, true));
}

#[test]
fn interrupt_ends_a_waiting_turn_and_an_owner_that_takes_over_does_it_too() {
    let mut owner = running(SecondMessage::Interrupt);
    owner.runner_waits();
    owner.input();
    owner.commit();
    owner.crash(Unheard::Lost);
    assert!(owner.runner.is_none(), "it is not run before it is ended");
    owner.commit();
    assert_eq!(owner.ends(owner.first()), 1);
}

#[test]
fn a_refused_interruption_is_tried_again_after_a_pause() {
    let mut owner = running(SecondMessage::Interrupt);
    owner.input();
    owner.commit();
    owner.stopped_is_gone();
    owner.refuse(Some(Retry { after_ms: 500, budget_ms: 1000 }));
    assert!(owner.pending.is_empty(), "not at once");
    owner.pass(Duration::from_millis(500));
    owner.commit();
    assert_eq!(owner.ends(owner.first()), 1);
}

#[test]
fn steer_lets_an_input_join_at_the_next_step_and_no_sooner() {
    let mut owner = running(SecondMessage::Steer);
    let turn = owner.first();
    owner.input();
    owner.commit();
    let joins = owner.log[2].seq;
    assert_eq!(owner.machine.state(joins), TurnState::Queued);
    assert_eq!(owner.runner_joins(), 1);
    assert!(matches!(owner.cancel(&cancel(joins, CancelMode::Keep)), Some(NotDone::Refused(_))), "it is about to join");
    owner.commit();
    assert_eq!(owner.last_body(), format!(r#"{{"into":{turn}}}"#));
    assert_eq!((owner.machine.state(joins), owner.runner_joins()), (TurnState::Closed, 0));
}

#[test]
fn what_nobody_joined_before_the_end_gets_a_turn_of_its_own() {
    let mut owner = running(SecondMessage::Steer);
    owner.input();
    owner.runner_ends();
    owner.commit();
    owner.commit();
    assert_eq!(owner.runner.as_ref().map(|run| run.turn), Some(owner.log[2].seq));
}

#[test]
fn merge_waits_for_a_pause_and_makes_one_turn_of_what_came() {
    let mut owner = Owner::with(SecondMessage::Merge, None);
    for _ in 0..3 {
        owner.input();
        owner.commit();
        owner.pass(Duration::from_millis(900));
    }
    assert!(owner.pending.is_empty(), "they keep coming");
    let wakes = owner.machine.wake_at(owner.now).expect("the end of the pause");
    assert_eq!(wakes.since(owner.now.monotonic), Duration::from_millis(100));
    owner.pass(Duration::from_millis(100));
    owner.commit();
    let expected = ["message", "message", "message", "turn.started", "turn.superseded", "turn.superseded"];
    assert_eq!(owner.kinds(), expected);
    let turn = owner.first();
    assert_eq!(owner.last_body(), format!(r#"{{"into":{turn}}}"#));
    assert_eq!((owner.due, owner.runner.is_some()), (Due::Turn, true));
    owner.runner_ends();
    owner.commit();
    assert!(owner.machine.is_idle());
}

#[test]
fn merge_does_not_wait_for_ever() {
    let mut owner = Owner::with(SecondMessage::Merge, None);
    let mut waited = Duration::ZERO;
    while owner.pending.is_empty() {
        owner.input();
        owner.commit();
        owner.pass(Duration::from_millis(500));
        waited += Duration::from_millis(500);
    }
    assert_eq!(waited, Duration::from_secs(10), "ten pauses");
}

#[test]
fn another_setting_holds_from_the_next_decision_on() {
    let mut owner = running(SecondMessage::Queue);
    owner.input();
    owner.commit();
    owner.machine.set_up(setup(SecondMessage::Interrupt));
    owner.tell(Input::Tick);
    owner.commit();
    assert_eq!(owner.ends(owner.first()), 1);
}

/// An input comes while the first turn waits under this setting; then the await is answered. Was it still open, and what went
/// wrong?
fn a_message_while_it_waits(second_message: SecondMessage, without: Option<Rule>) -> (bool, Vec<String>) {
    let mut owner = Owner::with(second_message, without);
    owner.on_fault = OnFault::Keep;
    owner.input();
    owner.commit();
    owner.pass(Duration::from_secs(1));
    owner.commit();
    owner.runner_waits();
    let turn = owner.first();
    owner.input();
    owner.commit();
    owner.pass(Duration::from_secs(1));
    owner.commit();
    let open = owner.machine.state(turn) == TurnState::Waiting;
    owner.resolve(1);
    owner.commit();
    (open, std::mem::take(&mut owner.faults))
}

#[test]
fn a_new_message_discards_a_parked_approval() {
    let all = [SecondMessage::Queue, SecondMessage::Reject, SecondMessage::Steer, SecondMessage::Merge];
    for second_message in all {
        assert_eq!(a_message_while_it_waits(second_message, None), (true, Vec::new()), "{second_message:?}");
    }
    assert_eq!(a_message_while_it_waits(SecondMessage::Interrupt, None), (false, Vec::new()), "as the policy says");
    let (_, faults) = a_message_while_it_waits(SecondMessage::Queue, Some(Rule::WaitingCounts));
    assert!(!faults.is_empty(), "the rule is needed");
}
