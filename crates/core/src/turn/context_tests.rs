//! Logs, and what a model is shown of them.

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::body::Body;
use crate::ids::{Epoch, Seq};
use crate::record::{Draft, Record, RecordKind};
use crate::time::Timestamp;
use crate::turn::StepId;
use crate::turn::cancel::{Cancel, CancelMode};
use crate::turn::context::{Content, ContextMessage, assemble, with_input};
use crate::turn::journal::{self, FailReason};
use crate::turn::result::{AskedCall, StepResult, ToolStatus, Usage};

/// A log that grows by drafts, one number after the other from 1.
#[derive(Default)]
struct Log(Vec<Record>);

impl Log {
    fn push(&mut self, draft: Draft) -> Seq {
        let seq = Seq(self.0.len() as u64 + 1);
        self.0.push(Record::from_draft("c".parse().expect("valid"), seq, Epoch(1), Timestamp(0), draft));
        seq
    }

    fn says(&mut self, text: &str) -> Seq {
        let (sender, key) = ("alice".parse().expect("valid"), format!("k{}", self.0.len()).parse().expect("valid"));
        self.push(Draft::new(RecordKind::Message, sender, key, Body::of(&json!({ "text": text }))))
    }

    fn starts(&mut self, turn: Seq) {
        self.push(journal::started(turn, &"demo".parse().expect("valid"), Timestamp(0)));
    }

    /// The first model call of a turn, which asks for so many tools.
    fn asks(&mut self, turn: Seq, text: &str, tools: usize) {
        let call = |index| AskedCall { name: format!("tool{index}"), input: json!({ "n": index }), id: None };
        let calls = (0..tools).map(call).collect();
        let result = StepResult::Model { output: text.to_owned(), calls, usage: Usage::default() };
        self.push(journal::step_completed(turn, &StepId::model(1), &result));
    }

    fn tool(&mut self, turn: Seq, index: u32) {
        let (input, output) = (json!({ "n": index }), json!(index * 10));
        let result = StepResult::Tool { name: format!("tool{index}"), input, output, status: ToolStatus::Done };
        self.push(journal::step_completed(turn, &StepId::tool(1, index), &result));
    }

    fn answers(&mut self, turn: Seq, text: &str) {
        self.push(journal::step_completed(turn, &StepId::model(2), &StepResult::text(text)));
        self.push(journal::answer(turn, &"demo".parse().expect("valid"), text));
        self.push(journal::completed(turn));
    }

    fn cancel(&mut self, turn: Seq, mode: CancelMode) {
        self.push(journal::cancelled(&Cancel { turn, mode, by: "bob".parse().expect("valid"), reason: None }));
    }

    fn shown(&self) -> Vec<String> {
        assemble(&self.0).iter().map(line).collect()
    }
}

#[test]
fn a_turn_sees_what_it_answers_however_little_of_the_log_is_looked_at() {
    let mut log = Log::default();
    let first = log.says("first");
    log.starts(first);
    let second = log.says("second");
    log.asks(first, "let me see", 1);
    log.tool(first, 0);
    log.answers(first, "one");
    log.starts(second);
    let shown = |from: usize, turn: Seq, input: Seq| {
        let input = &log.0[usize::try_from(input.0).expect("small") - 1];
        with_input(assemble(&log.0[from..]), turn, input).iter().map(line).collect::<Vec<_>>()
    };
    // All of the log: nothing is said twice.
    assert_eq!(shown(0, second, second), log.shown());
    assert_eq!(shown(0, first, first), log.shown());
    // The queued input is older than what was looked at; and so is the input of the turn that says so much.
    assert_eq!(shown(5, second, second), ["agent: one", "user: second"]);
    assert_eq!(shown(3, first, first)[0], "user: first");
    // Another run of the first turn, of which nothing is shown.
    let end = log.0.len();
    assert_eq!(shown(end, Seq(99), first), ["user: first"]);
}

fn line(message: &ContextMessage) -> String {
    match &message.content {
        Content::User { body, .. } => format!("user: {}", body.to_value()["text"].as_str().unwrap_or("-")),
        Content::Assistant { text, calls } if calls.is_empty() => format!("agent: {text}"),
        Content::Assistant { text, calls } => {
            let calls: Vec<String> = calls.iter().map(|(step, call)| format!("{step}={}", call.name)).collect();
            format!("agent: {text} [{}]", calls.join(" "))
        }
        Content::Tool { step, output, status: ToolStatus::Done, .. } => format!("tool {step}: {output}"),
        Content::Tool { step, status, .. } => format!("tool {step}: {status:?}"),
    }
}

/// A whole turn with a tool.
fn turn(log: &mut Log, text: &str, answer: &str) -> Seq {
    let input = log.says(text);
    log.starts(input);
    log.asks(input, "let me look", 1);
    log.tool(input, 0);
    log.answers(input, answer);
    input
}

#[test]
fn a_turn_is_shown_with_its_tools_and_its_answer_once() {
    let mut log = Log::default();
    turn(&mut log, "hi", "hello");
    assert_eq!(log.shown(), ["user: hi", "agent: let me look [m1.t0=tool0]", "tool m1.t0: 0", "agent: hello"]);
}

#[test]
fn an_input_stands_where_its_turn_began_and_what_still_waits_is_not_shown() {
    let mut log = Log::default();
    let one = log.says("one");
    log.starts(one);
    let two = log.says("two");
    log.says("three");
    log.answers(one, "first");
    log.starts(two);
    assert_eq!(log.shown(), ["user: one", "agent: first", "user: two"]);
}

#[test]
fn what_joins_a_turn_stands_where_it_joined() {
    let mut log = Log::default();
    let one = log.says("one");
    log.starts(one);
    log.asks(one, "let me look", 1);
    let two = log.says("two");
    log.tool(one, 0);
    log.push(journal::joined(two, one));
    log.answers(one, "both");
    let expected = ["user: one", "agent: let me look [m1.t0=tool0]", "tool m1.t0: 0", "user: two", "agent: both"];
    assert_eq!(log.shown(), expected);
}

#[test]
fn a_turn_that_is_run_again_keeps_its_input_and_loses_its_answer() {
    let mut log = Log::default();
    let one = turn(&mut log, "hi", "hello");
    let again = |log: &mut Log, of: Seq| {
        log.push(journal::regenerated(of));
        let key = format!("again{of}-{}", log.0.len()).parse().expect("valid");
        let event = Draft::new(RecordKind::Event, "alice".parse().expect("valid"), key, journal::regenerate_body(of));
        let turn = log.push(event);
        log.starts(turn);
        turn
    };
    let two = again(&mut log, one);
    assert_eq!(log.shown(), ["user: hi"]);
    log.answers(two, "good day");
    assert_eq!(log.shown(), ["user: hi", "agent: good day"]);
    let three = again(&mut log, two);
    assert_eq!(log.shown(), ["user: hi"]);
    log.cancel(three, CancelMode::Rollback);
    assert_eq!(log.shown(), ["user: hi", "agent: good day"], "what was rolled back replaces nothing");
    let four = again(&mut log, two);
    log.answers(four, "welcome");
    assert_eq!(log.shown(), ["user: hi", "agent: welcome"]);
}

#[test]
fn a_cancelled_turn_stays_or_goes_as_was_asked() {
    let mut log = Log::default();
    let one = log.says("one");
    log.starts(one);
    log.push(journal::answer(one, &"demo".parse().expect("valid"), "half an ans"));
    log.cancel(one, CancelMode::Keep);
    let two = log.says("two");
    log.starts(two);
    let three = log.says("three");
    log.push(journal::joined(three, two));
    log.asks(two, "let me look", 1);
    log.cancel(two, CancelMode::Rollback);
    let four = log.says("four");
    log.starts(four);
    assert_eq!(log.shown(), ["user: one", "agent: half an ans", "user: four"]);
}

#[test]
fn calls_without_a_result_get_one_that_says_so() {
    let mut log = Log::default();
    let one = log.says("one");
    log.starts(one);
    log.asks(one, "let me look", 2);
    log.tool(one, 1);
    log.push(journal::failed(one, FailReason::DeadlinePassed, ""));
    let open = ["user: one", "agent: let me look [m1.t0=tool0 m1.t1=tool1]", "tool m1.t1: 10"];
    assert_eq!(log.shown(), open, "nothing follows yet");
    let two = log.says("two");
    log.starts(two);
    assert_eq!(log.shown()[3..], ["tool m1.t0: Unknown", "user: two"]);
}

#[test]
fn what_is_erased_is_not_shown() {
    let mut log = Log::default();
    let one = turn(&mut log, "secret", "hello");
    let at = usize::try_from(one.0 - 1).expect("small");
    log.0[at].deleted_at = Some(Timestamp(1));
    assert_eq!(log.shown()[0], "agent: let me look [m1.t0=tool0]");
}

#[derive(Debug, Clone)]
enum Event {
    Says,
    Starts,
    Asks(usize),
    Tool(u32),
    Answers,
    Keep,
    Rollback,
    Joins,
    Again,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        4 => Just(Event::Says),
        4 => Just(Event::Starts),
        3 => (0_usize..3).prop_map(Event::Asks),
        4 => (0_u32..3).prop_map(Event::Tool),
        2 => Just(Event::Answers),
        1 => Just(Event::Keep),
        1 => Just(Event::Rollback),
        1 => Just(Event::Joins),
        1 => Just(Event::Again),
    ];
    proptest::collection::vec(event, 0..60)
}

/// A log in which one turn runs at a time.
fn play(events: &[Event]) -> Log {
    let (mut log, mut waiting, mut running, mut ended) = (Log::default(), Vec::new(), None, None);
    for event in events {
        match (event, running) {
            (Event::Says, _) => waiting.push(log.says("hi")),
            (Event::Starts, None) if !waiting.is_empty() => {
                let turn = waiting.remove(0);
                log.starts(turn);
                running = Some(turn);
            }
            (Event::Asks(tools), Some(turn)) => log.asks(turn, "look", *tools),
            (Event::Tool(index), Some(turn)) => log.tool(turn, *index),
            (Event::Joins, Some(turn)) if !waiting.is_empty() => {
                log.push(journal::joined(waiting.remove(0), turn));
            }
            (Event::Answers, Some(turn)) => {
                log.answers(turn, "done");
                (running, ended) = (None, Some(turn));
            }
            (Event::Keep | Event::Rollback, Some(turn)) => {
                let keep = matches!(event, Event::Keep);
                log.cancel(turn, if keep { CancelMode::Keep } else { CancelMode::Rollback });
                running = None;
            }
            (Event::Again, None) => {
                if let Some(turn) = ended.take() {
                    log.push(journal::regenerated(turn));
                }
            }
            _ => {}
        }
    }
    log
}

proptest! {
    /// What every provider asks for: results follow the calls they belong to, each once, and nothing stands between.
    #[test]
    fn every_result_has_its_call_and_every_call_its_result(events in events()) {
        let messages = assemble(&play(&events).0);
        let mut open: Vec<StepId> = Vec::new();
        for message in &messages {
            match &message.content {
                Content::Tool { step, output, .. } => {
                    let place = open.iter().position(|asked| asked == step);
                    prop_assert!(place.is_some(), "{step} was not asked for, or is answered twice");
                    open.remove(place.expect("just seen"));
                    prop_assert!(output.is_number() || *output == Value::Null);
                }
                Content::User { .. } => prop_assert!(open.is_empty(), "an input stands among the results"),
                Content::Assistant { calls, .. } => {
                    prop_assert!(open.is_empty(), "{open:?} were never answered");
                    open = calls.iter().map(|(step, _)| step.clone()).collect();
                }
            }
        }
    }
}
