//! Cancels, awaits, and running a turn again.

use super::*;
use crate::refusal::Code;
use crate::turn::TurnState;
use crate::turn::cancel::Regenerate;
use crate::turn::live::LIVE_TEXT_MAX_BYTES;
use crate::turn::result::STEP_OUTPUT_MAX_BYTES;

fn is_changing(not: Option<NotDone>) -> bool {
    matches!(not, Some(NotDone::Refused(refusal)) if refusal.retry.is_some())
}

#[test]
fn a_cancel_keeps_what_was_said_and_the_runner_appends_nothing_more() {
    let mut owner = Owner::running();
    let turn = owner.first();
    assert_eq!(owner.cancel(&cancel(turn, CancelMode::Keep)), None);
    let step = [journal::step_completed(turn, &StepId::model(1), &StepResult::text("late"))];
    assert_eq!(owner.machine.admit(&step).expect_err("it is ending").code, Code::Conflict);
    assert_eq!(owner.machine.shown(), None, "nothing more of it is shown");
    assert!(is_changing(owner.cancel(&cancel(turn, CancelMode::Rollback))), "one end is on its way");
    owner.commit();
    assert_eq!(owner.kinds(), ["message", "turn.started", "message", "turn.cancelled"]);
    assert_eq!(owner.log[2].body.as_str(), r#"{"text":"half"}"#);
    assert_eq!(owner.last_body(), r#"{"by":"bob","mode":"keep"}"#);
    assert_eq!((owner.due, owner.machine.state(turn)), (Due::Clear, TurnState::Closed));
    assert_eq!(owner.cancel(&cancel(turn, CancelMode::Keep)), Some(NotDone::Closed));
}

#[test]
fn what_a_cancel_keeps_is_cut_at_the_limit_of_every_text() {
    // One byte of text is two of JSON: as much as is shown at all is twice as much as a body may be.
    let shown = "\n".repeat(LIVE_TEXT_MAX_BYTES);
    let mut owner = Owner::running();
    let turn = owner.first();
    let drafts = owner.machine.cancel(&cancel(turn, CancelMode::Keep), Some(&shown)).expect("it runs");
    let [answer, _] = drafts.as_slice() else { panic!("an answer and the end: {}", drafts.len()) };
    let bytes = answer.body.as_str().len();
    assert!((STEP_OUTPUT_MAX_BYTES - 1..=STEP_OUTPUT_MAX_BYTES).contains(&bytes), "{bytes}");
    assert!(answer.body.to_value()["text"].as_str().is_some_and(|text| shown.starts_with(text)));
}

#[test]
fn a_rollback_has_no_answer() {
    let mut owner = Owner::running();
    owner.cancel(&cancel(owner.first(), CancelMode::Rollback));
    owner.commit();
    assert_eq!(owner.kinds(), ["message", "turn.started", "turn.cancelled"]);
}

#[test]
fn a_cancel_that_was_refused_leaves_the_turn_running() {
    let mut owner = Owner::running();
    owner.cancel(&cancel(owner.first(), CancelMode::Keep));
    owner.refuse(None);
    assert!(owner.runner.is_none(), "the one that was stopped is not over yet");
    owner.stopped_is_gone();
    let run = owner.runner.as_ref().map(|run| (run.begin, run.attempt));
    assert_eq!(run, Some((Begin::Again, 2)), "it is run again in the same epoch");
    owner.runner_ends();
    owner.commit();
    assert_eq!(owner.ends(owner.first()), 1);
}

#[test]
fn a_turn_is_not_run_again_before_its_last_step_has_landed() {
    let mut owner = Owner::running();
    owner.runner_steps();
    owner.cancel(&cancel(owner.first(), CancelMode::Keep));
    owner.refuse_last();
    owner.stopped_is_gone();
    assert!(owner.runner.is_none(), "its first step is on its way");
    owner.commit();
    assert_eq!(owner.next_step(), Some((owner.first(), StepId::model(2))));
}

#[test]
fn an_end_that_is_on_its_way_wins_over_a_cancel() {
    let mut owner = Owner::running();
    owner.runner_ends();
    assert!(is_changing(owner.cancel(&cancel(owner.first(), CancelMode::Keep))));
    owner.commit();
    assert_eq!(owner.log.last().map(|end| end.kind), Some(RecordKind::TurnCompleted));
}

#[test]
fn an_input_that_waits_can_be_cancelled_and_never_starts() {
    let mut owner = Owner::running();
    owner.input();
    owner.commit();
    let waits = owner.log[2].seq;
    assert_eq!(owner.cancel(&cancel(waits, CancelMode::Keep)), None);
    assert!(is_changing(owner.cancel(&cancel(waits, CancelMode::Keep))));
    owner.runner_ends();
    owner.commit();
    owner.commit();
    assert_eq!((owner.starts(waits), owner.ends(waits)), (0, 1));
    assert_eq!((owner.machine.is_idle(), owner.due), (true, Due::Clear));
}

#[test]
fn an_input_whose_start_is_on_its_way_is_cancelled_a_moment_later() {
    let mut owner = Owner::new();
    owner.input();
    owner.commit();
    let turn = owner.first();
    assert!(is_changing(owner.cancel(&cancel(turn, CancelMode::Keep))));
    owner.commit();
    assert_eq!(owner.cancel(&cancel(turn, CancelMode::Keep)), None);
    owner.commit();
    assert_eq!((owner.starts(turn), owner.ends(turn)), (1, 1));
}

#[test]
fn a_turn_waits_without_a_runner_until_somebody_answers() {
    let mut owner = Owner::running();
    let turn = owner.first();
    owner.runner_waits();
    let expires_at = Timestamp(100_000);
    assert_eq!((owner.machine.state(turn), owner.due), (TurnState::Waiting, Due::Await(expires_at)));
    assert!(owner.machine.is_at_rest() && !owner.machine.is_idle(), "it may sleep");
    owner.crash(Unheard::Lost);
    assert!(owner.runner.is_none() && owner.machine.is_at_rest(), "nor does the next owner run it");
    owner.resolve(1);
    owner.commit();
    assert_eq!(owner.due, Due::Turn);
    let run = owner.runner.as_ref().map(|run| (run.begin, run.attempt));
    assert_eq!(run, Some((Begin::TakenOver, 1)));
    assert_eq!(owner.last_body(), format!(r#"{{"await":"{turn}-m1","payload":1}}"#));
    owner.runner_steps();
    owner.runner_ends();
    owner.commit();
    assert_eq!((owner.due, owner.machine.is_idle()), (Due::Clear, true));
}

#[test]
fn many_answers_to_one_await_have_one_effect() {
    let mut owner = Owner::running();
    owner.runner_waits();
    for payload in (1..=25).chain(1..=25) {
        owner.resolve(payload);
    }
    assert_eq!(owner.pending.len(), 50);
    owner.commit();
    let resolved = owner.log.iter().filter(|record| record.kind == RecordKind::AwaitResolved).count();
    assert_eq!((resolved, owner.runner.as_ref().map(|run| run.attempt)), (1, Some(2)));
    let id = AwaitId::of(owner.first(), &StepId::model(1));
    assert_eq!(owner.machine.resolve(&resolve(&id, 1)), Err(NotDone::Closed));
}

#[test]
fn an_await_expires_by_itself_also_after_a_takeover() {
    let mut owner = Owner::running();
    owner.runner_waits();
    owner.crash(Unheard::Lost);
    let wakes = owner.machine.wake_at(owner.now).expect("the expiry");
    assert_eq!(wakes.since(owner.now.monotonic), AWAIT);
    owner.pass(AWAIT - Duration::from_millis(1));
    assert!(owner.pending.is_empty());
    owner.pass(Duration::from_millis(1));
    owner.commit();
    assert_eq!(owner.last_body(), format!(r#"{{"await":"{}-m1","expired":true}}"#, owner.first()));
    assert!(owner.runner.is_some(), "the turn goes on and knows");
}

#[test]
fn an_answer_that_comes_first_stands_and_the_expiry_does_not() {
    let mut owner = Owner::running();
    owner.runner_waits();
    owner.resolve(7);
    owner.pass(AWAIT);
    assert_eq!(owner.pending.len(), 2, "both are on their way");
    owner.commit();
    assert!(owner.last_body().ends_with(r#""payload":7}"#));
    assert!(owner.runner.is_some());
}

#[test]
fn a_deadline_before_the_expiry_is_what_is_due() {
    let mut owner = Owner::running();
    owner.pass(TURN_TIME - Duration::from_secs(50));
    owner.runner_waits();
    assert_eq!(owner.due, Due::Deadline(Timestamp(3_600_000)));
    owner.pass(Duration::from_secs(50));
    owner.commit();
    assert!(owner.last_body().contains("deadline_passed"), "{}", owner.last_body());
    assert!(owner.machine.is_idle());
}

#[test]
fn a_waiting_turn_can_be_cancelled_and_its_await_is_void() {
    let mut owner = Owner::running();
    owner.runner_waits();
    assert_eq!(owner.cancel(&cancel(owner.first(), CancelMode::Keep)), None);
    let id = AwaitId::of(owner.first(), &StepId::model(1));
    assert!(is_changing(owner.machine.resolve(&resolve(&id, 1)).err()));
    owner.commit();
    assert_eq!(owner.machine.resolve(&resolve(&id, 1)), Err(NotDone::Closed));
    assert!(owner.machine.is_idle() && owner.due == Due::Clear);
}

#[test]
fn a_log_that_resolves_what_is_not_open_stops_the_owner() {
    let mut owner = Owner::running();
    owner.runner_waits();
    let turn = owner.first();
    let other = AwaitId::of(turn, &StepId::model(2));
    let yes = crate::turn::awaits::Resolution::Payload(json!(1));
    let open = OpenAwait { id: other.clone(), step: StepId::model(2), expires_at: Timestamp(0) };
    for draft in [
        journal::await_resolved(&other, &yes),
        journal::await_opened(turn, &open, &json!({}), None),
        journal::step_completed(turn, &StepId::model(1), &StepResult::text("")),
    ] {
        let mut machine = owner.machine.clone();
        let record = Record::from_draft("c".parse().expect("valid"), Seq(99), Epoch(1), Timestamp(0), draft);
        let broken = machine.handle(Now::default(), Input::Committed(&record), &mut Vec::new());
        assert!(broken.expect_err("must be noticed").to_string().starts_with("invariant 13 is broken"));
    }
}

fn again(turn: Seq, key: &str) -> Regenerate {
    Regenerate { turn, by: "alice".parse().expect("valid"), name: None, client_msg_id: key.parse().expect("valid") }
}

#[test]
fn the_last_turn_is_run_again_by_one_commit() {
    let mut owner = Owner::running();
    let turn = owner.first();
    let open = owner.machine.regenerate(&again(turn, "r1"), 0).expect_err("it runs");
    assert!(matches!(open, NotDone::Refused(refusal) if refusal.code == Code::Conflict));
    owner.runner_ends();
    owner.commit();
    owner.checkpoint();
    owner.crash(Unheard::Lost);
    let drafts = owner.machine.regenerate(&again(turn, "r1"), 0).expect("it is the last one");
    assert!(owner.machine.regenerate(&again(turn, "r2"), 0).is_err(), "once");
    assert_eq!(owner.machine.due_after(&drafts), Due::Input);
    owner.pending.push(drafts);
    owner.commit();
    owner.commit();
    let kinds = &owner.kinds()[4..];
    assert_eq!(kinds, ["turn.superseded", "event", "turn.started"]);
    assert_eq!(owner.machine.regenerate(&again(turn, "r2"), 0), Err(NotDone::Closed), "another is the last");
    assert!(owner.runner.is_some());
}

#[test]
fn a_turn_that_was_rolled_back_is_not_the_last() {
    let mut owner = Owner::running();
    let first = owner.first();
    owner.runner_ends();
    owner.commit();
    owner.begin();
    let second = owner.machine.running().expect("it runs");
    owner.cancel(&cancel(second, CancelMode::Rollback));
    owner.commit();
    assert_eq!(owner.machine.regenerate(&again(second, "r1"), 0), Err(NotDone::Closed));
    assert!(owner.machine.regenerate(&again(first, "r1"), 0).is_ok());
}

#[test]
fn a_run_that_is_rolled_back_has_replaced_nothing() {
    let mut owner = Owner::running();
    let turn = owner.first();
    owner.runner_ends();
    owner.commit();
    let mut keys = BTreeSet::new();
    for key in ["r1", "r2", "r3"] {
        let drafts = owner.machine.regenerate(&again(turn, key), 0).expect("it counts again");
        assert!(keys.insert(drafts[0].client_msg_id.to_string()), "{keys:?}");
        owner.pending.push(drafts);
        owner.commit();
        owner.commit();
        let run = owner.machine.running().expect("it runs");
        if key == "r2" {
            owner.checkpoint();
            owner.crash(Unheard::Lost);
        }
        assert_eq!(owner.cancel(&cancel(run, CancelMode::Rollback)), None);
        owner.commit();
        assert_eq!(owner.machine.regenerate(&again(run, "r"), 0), Err(NotDone::Closed));
    }
    let last = owner.machine.regenerate(&again(turn, "r4"), 0).expect("it counts again");
    owner.pending.push(last);
    owner.commit();
    owner.commit();
    owner.runner_ends();
    owner.commit();
    assert_eq!(owner.machine.regenerate(&again(turn, "r5"), 0), Err(NotDone::Closed), "it is replaced");
}

#[test]
fn a_run_that_is_cancelled_before_it_begins_has_replaced_nothing_whatever_is_to_be_kept() {
    for mode in [CancelMode::Keep, CancelMode::Rollback] {
        let mut owner = Owner::running();
        let turn = owner.first();
        owner.runner_ends();
        owner.commit();
        let drafts = owner.machine.regenerate(&again(turn, "r1"), 0).expect("it is the last one");
        owner.pending.push(drafts);
        owner.commit();
        owner.refuse(None);
        let run = owner.log.last().expect("the event").seq;
        assert_eq!(owner.machine.state(run), TurnState::Queued, "its start was refused");
        assert_eq!(owner.cancel(&cancel(run, mode)), None);
        owner.commit();
        assert_eq!(owner.last_body(), r#"{"by":"bob","mode":"rollback"}"#);
        assert_eq!((owner.starts(run), owner.ends(run)), (0, 1));
        owner.checkpoint();
        owner.crash(Unheard::Lost);
        assert!(owner.machine.regenerate(&again(turn, "r2"), 0).is_ok(), "the former answer counts again");
    }
}

#[test]
fn running_again_that_was_refused_may_be_asked_for_again() {
    let mut owner = Owner::running();
    let turn = owner.first();
    owner.runner_ends();
    owner.commit();
    let drafts = owner.machine.regenerate(&again(turn, "r1"), 0).expect("it is the last one");
    owner.pending.push(drafts);
    owner.refuse(None);
    assert!(owner.machine.regenerate(&again(turn, "r1"), 0).is_ok());
}
