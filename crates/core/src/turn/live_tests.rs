//! Encodings, and the promise of snapshots: who joins in the middle sees what those see who were there.

use proptest::prelude::*;

use crate::ids::{Epoch, Seq};
use crate::record::{Draft, Record};
use crate::time::Timestamp;
use crate::turn::StepId;
use crate::turn::journal::{self, FailReason};
use crate::turn::live::{Applied, LIVE_TEXT_MAX_BYTES, LiveEvent, LiveView, Piece, utf16_len};
use crate::turn::result::StepResult;

fn piece(turn: u64, step: u32, epoch: u64, attempt: u32, offset: u64, text: &str) -> Piece {
    Piece { turn: Seq(turn), step: StepId::model(step), epoch: Epoch(epoch), attempt, offset, text: text.into() }
}

fn delta(step: u32, epoch: u64, attempt: u32, offset: u64, text: &str) -> LiveEvent {
    LiveEvent::Delta(piece(7, step, epoch, attempt, offset, text))
}

fn snapshot(step: u32, epoch: u64, attempt: u32, offset: u64, text: &str) -> LiveEvent {
    LiveEvent::Snapshot(piece(7, step, epoch, attempt, offset, text))
}

fn reset(step: u32, epoch: u64, attempt: u32) -> LiveEvent {
    LiveEvent::StepReset { turn: Seq(7), step: StepId::model(step), epoch: Epoch(epoch), attempt }
}

fn record(seq: u64, draft: Draft) -> Record {
    Record::from_draft("c".parse().expect("valid"), Seq(seq), Epoch(1), Timestamp(0), draft)
}

fn step_completed(step: u32) -> Record {
    let result = StepResult::text("");
    record(9, journal::step_completed(Seq(7), &StepId::model(step), &result))
}

#[test]
fn payloads_are_compact_and_in_the_order_of_the_contract() {
    let typing =
        |name: Option<&str>| LiveEvent::Typing { sender: "alice".parse().expect("valid"), name: name.map(Into::into) };
    let cases = [
        (
            delta(1, 2, 1, 5, "a \"b\"\n"),
            "delta",
            r#"{"turn":7,"step":"m1","epoch":2,"attempt":1,"offset":5,"text":"a \"b\"\n"}"#,
        ),
        (reset(1, 3, 2), "step.reset", r#"{"turn":7,"step":"m1","epoch":3,"attempt":2}"#),
        (LiveEvent::TurnResumed { turn: Seq(7), epoch: Epoch(3) }, "turn.resumed", r#"{"turn":7,"epoch":3}"#),
        (
            snapshot(2, 2, 1, 2, "hi"),
            "turn.snapshot",
            r#"{"turn":7,"step":"m2","epoch":2,"attempt":1,"offset":2,"text":"hi"}"#,
        ),
        (typing(Some("Alice")), "typing", r#"{"sender":"alice","name":"Alice"}"#),
        (typing(None), "typing", r#"{"sender":"alice"}"#),
    ];
    for (event, name, payload) in cases {
        assert_eq!((event.name(), event.encode().as_str()), (name, payload));
    }
}

#[test]
fn offsets_count_utf_16_code_units() {
    assert_eq!(utf16_len("aé€😀"), 5);
    let mut view = LiveView::default();
    assert_eq!(view.apply(&delta(1, 1, 1, 0, "😀")), Applied::Fits);
    assert_eq!(view.apply(&delta(1, 1, 1, 2, "!")), Applied::Fits);
    assert_eq!(view.snapshot(), Some(snapshot(1, 1, 1, 3, "😀!")));
}

#[test]
fn lower_is_ignored_and_what_does_not_fit_is_noticed() {
    let mut view = LiveView::default();
    assert_eq!(view.snapshot(), None, "nothing was streamed");
    assert_eq!(view.apply(&delta(1, 2, 2, 0, "ab")), Applied::Fits);
    assert_eq!(view.apply(&delta(1, 2, 2, 0, "ab")), Applied::Stale, "a lower offset");
    assert_eq!(view.apply(&delta(1, 2, 1, 2, "x")), Applied::Stale, "a lower attempt");
    assert_eq!(view.apply(&delta(1, 1, 9, 2, "x")), Applied::Stale, "a lower epoch");
    assert_eq!(view.apply(&delta(2, 1, 9, 0, "x")), Applied::Stale, "a lower epoch, whatever the step");
    assert_eq!(view.apply(&LiveEvent::TurnResumed { turn: Seq(7), epoch: Epoch(1) }), Applied::Stale);
    assert_eq!(view.apply(&snapshot(1, 2, 2, 1, "a")), Applied::Stale, "a snapshot from before");
    assert_eq!(view.snapshot(), Some(snapshot(1, 2, 2, 2, "ab")));
    assert_eq!(view.apply(&delta(1, 2, 2, 5, "f")), Applied::Gap);
    assert_eq!(view.apply(&delta(1, 2, 2, 2, "c")), Applied::Gap, "torn until it is replaced");
    assert_eq!(view.snapshot(), None);
    assert_eq!(view.apply(&snapshot(1, 2, 2, 6, "abcdef")), Applied::Fits);
    assert_eq!(view.apply(&delta(1, 2, 2, 6, "g")), Applied::Fits);
    assert_eq!(view.snapshot(), Some(snapshot(1, 2, 2, 7, "abcdefg")));
}

#[test]
fn the_text_stays_between_steps_until_the_next_streams_or_the_turn_ends() {
    let mut view = LiveView::default();
    view.apply(&delta(1, 1, 1, 0, "thinking"));
    view.committed(&step_completed(1));
    assert_eq!(view.snapshot(), Some(snapshot(1, 1, 1, 8, "thinking")), "as on the screens of those who watch");
    assert_eq!(view.apply(&delta(1, 1, 1, 8, "!")), Applied::Stale, "a completed step gets no more");
    assert_eq!(view.apply(&snapshot(1, 1, 1, 8, "thinking")), Applied::Fits);
    assert_eq!(view.apply(&delta(1, 1, 1, 8, "!")), Applied::Stale, "and stays completed");
    view.apply(&delta(2, 1, 1, 0, "answer"));
    assert_eq!(view.snapshot(), Some(snapshot(2, 1, 1, 6, "answer")));
    view.committed(&step_completed(2));
    assert_eq!(view.snapshot(), Some(snapshot(2, 1, 1, 6, "answer")), "the answer is no record yet");
    view.committed(&record(10, journal::completed(Seq(7))));
    assert_eq!(view.snapshot(), None, "the answer is a record of the same commit");
    assert_eq!(view.apply(&delta(2, 1, 1, 6, "late")), Applied::Stale);
    view.committed(&record(11, journal::failed(Seq(3), FailReason::AgentFailed, "")));
    assert_eq!(view.apply(&delta(2, 1, 1, 6, "late")), Applied::Stale, "an older end opens nothing again");
}

#[test]
fn a_takeover_keeps_the_old_text_until_it_is_retracted() {
    let mut view = LiveView::default();
    view.apply(&delta(2, 1, 1, 0, "par"));
    assert_eq!(view.apply(&LiveEvent::TurnResumed { turn: Seq(7), epoch: Epoch(2) }), Applied::Fits);
    assert_eq!(view.snapshot(), Some(snapshot(2, 1, 1, 3, "par")));
    assert_eq!(view.apply(&delta(2, 1, 1, 3, "tial")), Applied::Stale, "a zombie's");
    assert_eq!(view.apply(&reset(2, 2, 2)), Applied::Fits);
    assert_eq!(view.snapshot(), Some(snapshot(2, 2, 2, 0, "")));
    assert_eq!(view.apply(&delta(2, 2, 2, 0, "whole")), Applied::Fits);
    assert_eq!(view.apply(&reset(2, 2, 2)), Applied::Stale, "late");
}

#[test]
fn text_is_bounded() {
    let mut view = LiveView::default();
    let most = "x".repeat(LIVE_TEXT_MAX_BYTES);
    assert_eq!(view.apply(&delta(1, 1, 1, 0, &most)), Applied::Fits);
    assert_eq!(view.apply(&delta(1, 1, 1, LIVE_TEXT_MAX_BYTES as u64, "x")), Applied::Gap);
    assert_eq!(view.snapshot(), None);
    assert_eq!(view.apply(&delta(2, 1, 1, 0, "next")), Applied::Fits, "the next step is unharmed");
    assert_eq!(view.apply(&LiveEvent::Snapshot(piece(7, 2, 1, 1, 9, &format!("{most}x")))), Applied::Gap);
}

#[derive(Debug, Clone)]
enum Move {
    Text(String),
    Complete,
    NextStep,
    Restart,
    Takeover,
    End,
}

#[derive(Debug, Clone)]
enum Seen {
    Live(LiveEvent),
    Durable(Record),
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        6 => "[a-c😀é]{1,4}".prop_map(Move::Text),
        1 => Just(Move::Complete),
        2 => Just(Move::NextStep),
        1 => Just(Move::Restart),
        1 => Just(Move::Takeover),
        1 => Just(Move::End),
    ];
    proptest::collection::vec(one, 0..40)
}

/// What one owner after the other streams and commits.
fn stream(moves: &[Move]) -> Vec<Seen> {
    let (mut turn, mut step, mut epoch, mut attempt, mut offset) = (1, 1, 1, 1, 0);
    let mut seen = Vec::new();
    for one in moves {
        match one {
            Move::Text(text) => {
                seen.push(Seen::Live(LiveEvent::Delta(piece(turn, step, epoch, attempt, offset, text))));
                offset += utf16_len(text);
            }
            Move::Complete | Move::NextStep => {
                let result = StepResult::text("");
                let draft = journal::step_completed(Seq(turn), &StepId::model(step), &result);
                seen.push(Seen::Durable(record(0, draft)));
                (step, attempt, offset) = (step + 1, 1, 0);
            }
            Move::Restart => {
                attempt += 1;
                offset = 0;
                let (turn, step, epoch) = (Seq(turn), StepId::model(step), Epoch(epoch));
                seen.push(Seen::Live(LiveEvent::StepReset { turn, step, epoch, attempt }));
            }
            Move::Takeover => {
                (epoch, attempt, offset) = (epoch + 1, attempt + 1, 0);
                let (turn, step, epoch) = (Seq(turn), StepId::model(step), Epoch(epoch));
                seen.push(Seen::Live(LiveEvent::TurnResumed { turn, epoch }));
                seen.push(Seen::Live(LiveEvent::StepReset { turn, step, epoch, attempt }));
            }
            Move::End => {
                seen.push(Seen::Durable(record(0, journal::completed(Seq(turn)))));
                (turn, step, attempt, offset) = (turn + 1, 1, 1, 0);
            }
        }
    }
    seen
}

fn again() -> impl Strategy<Value = Vec<prop::sample::Index>> {
    proptest::collection::vec(any::<prop::sample::Index>(), 8)
}

fn watch(view: &mut LiveView, seen: &Seen) -> Applied {
    match seen {
        Seen::Live(event) => view.apply(event),
        Seen::Durable(record) => {
            view.committed(record);
            Applied::Fits
        }
    }
}

proptest! {
    #[test]
    fn who_joins_in_the_middle_sees_what_the_others_see(moves in moves(), at in any::<prop::sample::Index>()) {
        let seen = stream(&moves);
        let at = at.index(seen.len() + 1);
        let (mut first, mut late) = (LiveView::default(), LiveView::default());
        for one in &seen[..at] {
            prop_assert_eq!(watch(&mut first, one), Applied::Fits);
            if let Seen::Durable(record) = one {
                late.committed(record);
            }
        }
        if let Some(snapshot) = first.snapshot() {
            prop_assert_eq!(late.apply(&snapshot), Applied::Fits);
        }
        prop_assert_eq!(late.snapshot(), first.snapshot());
        for one in &seen[at..] {
            prop_assert_eq!(watch(&mut first, one), Applied::Fits);
            prop_assert_eq!(watch(&mut late, one), Applied::Fits);
            prop_assert_eq!(late.snapshot(), first.snapshot());
        }
    }

    #[test]
    fn repeats_and_late_comers_change_nothing(moves in moves(), again in again()) {
        let seen = stream(&moves);
        let mut view = LiveView::default();
        for (place, one) in seen.iter().enumerate() {
            watch(&mut view, one);
            let before = view.snapshot();
            for index in &again {
                if let Seen::Live(event @ LiveEvent::Delta(old)) = &seen[index.index(place + 1)]
                    && let Some(LiveEvent::Snapshot(shown)) = &before
                    && old.step == shown.step
                {
                    prop_assert_eq!(view.apply(event), Applied::Stale);
                }
            }
            prop_assert_eq!(view.snapshot(), before);
        }
    }
}
