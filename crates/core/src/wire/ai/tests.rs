//! Turns as streams, in the parts' own words, and for any order of what happens.

mod ends;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::ids::{Epoch, Subject};
use crate::record::{Draft, Record, RecordKind};
use crate::time::Timestamp;
use crate::turn::StepId;
use crate::turn::awaits::{AwaitId, OpenAwait, Resolution};
use crate::turn::cancel::{Cancel, CancelMode};
use crate::turn::journal::{self, FailReason};
use crate::turn::live::{LiveEvent, Piece, utf16_len};
use crate::turn::result::{AskedCall, StepResult, ToolStatus, Usage};

const TURN: Seq = Seq(7);

fn record(seq: u64, epoch: u64, draft: Draft) -> Record {
    Record::from_draft("c".parse().expect("valid"), Seq(seq), Epoch(epoch), Timestamp(0), draft)
}

fn demo() -> crate::ids::AgentName {
    "demo".parse().expect("valid")
}

fn input(sender: &str, key: &str, text: &str) -> Draft {
    let body = crate::body::Body::of(&json!({ "text": text }));
    Draft::new(RecordKind::Message, sender.parse().expect("valid"), key.parse().expect("valid"), body)
}

fn asking(output: &str, tools: &[&str]) -> StepResult {
    let call = |name: &&str| AskedCall { name: (*name).to_owned(), input: json!({ "n": 1 }), id: None };
    StepResult::Model { output: output.to_owned(), calls: tools.iter().map(call).collect(), usage: Usage::default() }
}

fn tool(name: &str, output: Value, status: ToolStatus) -> StepResult {
    StepResult::Tool { name: name.to_owned(), input: json!({ "n": 1 }), output, status }
}

fn piece(step: &StepId, run: (u64, u32), offset: u64, text: &str) -> Piece {
    let (epoch, attempt) = (Epoch(run.0), run.1);
    Piece { turn: TURN, step: step.clone(), epoch, attempt, offset, text: text.into() }
}

fn reset(step: &StepId, run: (u64, u32)) -> LiveEvent {
    LiveEvent::StepReset { turn: TURN, step: step.clone(), epoch: Epoch(run.0), attempt: run.1 }
}

fn cancelled(mode: CancelMode) -> Draft {
    journal::cancelled(&Cancel { turn: TURN, mode, by: "alice".parse().expect("valid"), reason: None })
}

/// A stream that is told things in turn; records get the next seq.
struct Telling {
    stream: TurnStream,
    seq: u64,
    epoch: u64,
    client: Client,
    next: Next,
}

impl Telling {
    /// From the start of the turn on.
    fn begun() -> Self {
        let client = Client::default();
        let mut telling = Self { stream: TurnStream::new(TURN), seq: TURN.0, epoch: 1, client, next: Next::GoOn };
        telling.record(journal::started(TURN, &demo(), Timestamp(9)));
        telling
    }

    fn record(&mut self, draft: Draft) -> Vec<Value> {
        self.seq += 1;
        let told = self.stream.record(&record(self.seq, self.epoch, draft));
        self.take(told)
    }

    fn live(&mut self, event: LiveEvent) -> Vec<Value> {
        let told = self.stream.live(&event);
        self.take(told)
    }

    fn delta(&mut self, step: &StepId, run: (u64, u32), offset: u64, text: &str) -> Vec<Value> {
        self.live(LiveEvent::Delta(piece(step, run, offset, text)))
    }

    fn take(&mut self, told: Told) -> Vec<Value> {
        let parts = told.parts.iter().map(|part| self.client.take(part).expect("well formed")).collect();
        self.next = told.next;
        self.client.is_at_its_end(told.next).expect("an end exactly at the end");
        parts
    }
}

/// What the three versions' readers insist on.
#[derive(Debug, Default)]
struct Client {
    started: bool,
    ended: bool,
    step_open: bool,
    texts: std::collections::BTreeMap<String, String>,
    calls: std::collections::BTreeMap<String, bool>,
    /// The questions that are asked.
    asked: std::collections::BTreeSet<String>,
    /// The texts that are whole.
    whole: Vec<String>,
    parts: Vec<Part>,
}

impl Client {
    fn take(&mut self, part: &Part) -> Result<Value, String> {
        let frame = part.frame();
        let json = frame.strip_prefix("data: ").and_then(|rest| rest.strip_suffix("\n\n")).ok_or("no frame")?;
        if json.contains('\n') {
            return Err("more than one line".to_owned());
        }
        let value: Value = serde_json::from_str(json).map_err(|error| error.to_string())?;
        self.parts.push(part.clone());
        let word = |name: &str| value[name].as_str().map(str::to_owned).ok_or(format!("{name} is missing: {value}"));
        let kind = word("type")?;
        if self.ended || self.started == (kind == "start") {
            return Err(format!("{kind} out of place"));
        }
        let known = match kind.as_str() {
            "start" => {
                self.started = true;
                word("messageId").map(|id| id == "turn-7")?
            }
            "start-step" => !std::mem::replace(&mut self.step_open, true),
            "finish-step" => self.texts.is_empty() && std::mem::replace(&mut self.step_open, false),
            "text-start" => self.step_open && self.texts.insert(word("id")?, String::new()).is_none(),
            "text-delta" => {
                self.texts.get_mut(&word("id")?).ok_or("a delta of no text")?.push_str(&word("delta")?);
                !word("delta")?.is_empty()
            }
            "text-end" => {
                self.whole.push(self.texts.remove(&word("id")?).ok_or("an end of no text")?);
                true
            }
            "tool-input-available" => {
                word("toolName")?;
                self.step_open && self.calls.insert(word("toolCallId")?, false).is_none() && value["dynamic"] == true
            }
            "tool-output-available" | "tool-output-error" => {
                (kind == "tool-output-available" || word("errorText").is_ok())
                    && self.calls.insert(word("toolCallId")?, true) == Some(false)
                    && value["dynamic"] == true
            }
            "data-await" => {
                let (id, is_open) = (word("id")?, value["data"]["state"] == "open");
                self.asked.remove(&id);
                !is_open || self.asked.insert(id)
            }
            "message-metadata" => value["messageMetadata"]["state"].is_string(),
            "error" => word("errorText").is_ok(),
            "finish" | "abort" => {
                self.ended = true;
                !self.step_open && self.asked.is_empty()
            }
            _ => false,
        };
        if known { Ok(value) } else { Err(format!("{value} in {self:?}")) }
    }

    fn is_at_its_end(&self, next: Next) -> Result<(), String> {
        if self.ended == (next == Next::Ended) { Ok(()) } else { Err(format!("{next:?} in {self:?}")) }
    }
}

fn types(parts: &[Value]) -> Vec<&str> {
    parts.iter().map(|part| part["type"].as_str().expect("a type")).collect()
}

#[test]
fn a_turn_is_steps_texts_and_tools() {
    let (m1, m2, call) = (StepId::model(1), StepId::model(2), StepId::tool(1, 0));
    let mut turn = Telling::begun();
    assert_eq!(
        json!(turn.client.parts),
        json!([{"type":"start","messageId":"turn-7","messageMetadata":{"turn":7,"state":"running"}}])
    );
    assert_eq!(
        turn.delta(&m1, (1, 1), 0, "Let me"),
        [
            json!({"type":"start-step"}),
            json!({"type":"text-start","id":"m1"}),
            json!({"type":"text-delta","id":"m1","delta":"Let me"})
        ]
    );
    assert_eq!(turn.delta(&m1, (1, 1), 6, " see"), [json!({"type":"text-delta","id":"m1","delta":" see"})]);
    assert_eq!(
        turn.record(journal::step_completed(TURN, &m1, &asking("Let me see.", &["look"]))),
        [
            json!({"type":"text-delta","id":"m1","delta":"."}),
            json!({"type":"text-end","id":"m1"}),
            json!({"type":"tool-input-available","toolCallId":"7-m1.t0","toolName":"look","input":{"n":1},"providerExecuted":true,"dynamic":true}),
        ]
    );
    assert_eq!(turn.record(journal::step_started(TURN, &call, 1, "look", &json!({ "n": 1 }))), [] as [Value; 0]);
    assert_eq!(
        turn.record(journal::step_completed(TURN, &call, &tool("look", json!([1.50]), ToolStatus::Done))),
        [
            json!({"type":"tool-output-available","toolCallId":"7-m1.t0","output":[1.50],"providerExecuted":true,"dynamic":true})
        ]
    );
    assert_eq!(types(&turn.delta(&m2, (1, 1), 0, "It is ")), ["finish-step", "start-step", "text-start", "text-delta"]);
    let rest = turn.record(journal::step_completed(TURN, &m2, &StepResult::text("It is 4.")));
    assert_eq!(types(&rest), ["text-delta", "text-end"]);
    assert_eq!(turn.record(journal::answer(TURN, &demo(), "It is 4.")), [] as [Value; 0], "the last step says it");
    assert_eq!(
        turn.record(journal::completed(TURN)),
        [
            json!({"type":"finish-step"}),
            json!({"type":"finish","finishReason":"stop","messageMetadata":{"turn":7,"state":"completed"}})
        ]
    );
    assert_eq!(turn.next, Next::Ended);
    assert_eq!(turn.record(journal::failed(TURN, FailReason::AgentFailed, "late")), [] as [Value; 0]);
}

#[test]
fn a_replay_is_the_same_message_as_what_was_watched() {
    let (m1, m2, call) = (StepId::model(1), StepId::model(2), StepId::tool(1, 0));
    let open = OpenAwait { id: AwaitId::of(TURN, &call), step: call.clone(), expires_at: Timestamp(9) };
    let drafts = [
        journal::step_completed(TURN, &m1, &asking("May I?", &["pay", "look"])),
        journal::await_opened(TURN, &open, &json!({ "type": "object" }), Some("May I?")),
        journal::await_resolved(&open.id, &Resolution::Payload(json!({ "approve": true }))),
        journal::step_completed(TURN, &call, &tool("pay", json!({ "error": "no money" }), ToolStatus::Failed)),
        journal::step_completed(TURN, &m2, &StepResult::text("Sorry.")),
        journal::answer(TURN, &demo(), "Sorry."),
        journal::completed(TURN),
    ];
    let (mut watched, mut replayed) = (Telling::begun(), Telling::begun());
    for draft in drafts {
        for (step, text) in [(&m1, "May I?"), (&m2, "Sorry.")] {
            let key = format!("{TURN}/{step}");
            if draft.client_msg_id.as_str() == key {
                let half = text.len() / 2;
                watched.delta(step, (1, 1), 0, &text[..half]);
                watched.delta(step, (1, 1), half as u64, &text[half..]);
            }
        }
        watched.record(draft.clone());
        replayed.record(draft);
    }
    let message = |turn: Telling| {
        let parts = turn.client.parts;
        let empty = UiMessage { id: String::new(), role: Role::Assistant, metadata: Value::Null, parts: Vec::new() };
        parts.into_iter().fold(empty, |mut message, part| {
            message.apply(part);
            message
        })
    };
    let replayed = message(replayed);
    assert_eq!(message(watched), replayed);
    let no_result = "there is no result of this call";
    assert_eq!(
        json!(replayed),
        json!({"id":"turn-7","role":"assistant","metadata":{"turn":7,"state":"completed"},"parts":[
            {"type":"step-start"},
            {"type":"text","text":"May I?","state":"done"},
            {"type":"dynamic-tool","toolName":"pay","toolCallId":"7-m1.t0","state":"output-error","input":{"n":1},"errorText":"no money","providerExecuted":true},
            {"type":"dynamic-tool","toolName":"look","toolCallId":"7-m1.t1","state":"output-error","input":{"n":1},"errorText":no_result,"providerExecuted":true},
            {"type":"data-await","id":"7-m1.t0","data":{"await":"7-m1.t0","expires_at":"1970-01-01T00:00:00.009Z","payload":{"approve":true},"prompt":"May I?","schema":{"type":"object"},"state":"resolved","step":"m1.t0"}},
            {"type":"step-start"},
            {"type":"text","text":"Sorry.","state":"done"},
        ]})
    );
}

#[test]
fn after_a_takeover_the_same_text_is_held_back_until_it_is_new() {
    let m1 = StepId::model(1);
    let mut turn = Telling::begun();
    turn.delta(&m1, (1, 1), 0, "one two thr");
    assert_eq!(turn.live(LiveEvent::TurnResumed { turn: TURN, epoch: Epoch(2) }), [] as [Value; 0]);
    assert_eq!(turn.live(reset(&m1, (2, 1))), [] as [Value; 0]);
    assert_eq!(turn.delta(&m1, (2, 1), 0, "one "), [] as [Value; 0]);
    assert_eq!(turn.delta(&m1, (1, 1), 11, "ee of the dead"), [] as [Value; 0], "an owner that is one no longer");
    assert_eq!(turn.delta(&m1, (2, 1), 4, "two "), [] as [Value; 0]);
    assert_eq!(turn.delta(&m1, (2, 1), 8, "three"), [json!({"type":"text-delta","id":"m1","delta":"ee"})]);
    assert_eq!(turn.next, Next::GoOn);
    // A snapshot heals what was lost.
    assert_eq!(turn.delta(&m1, (2, 1), 20, "lost"), [] as [Value; 0]);
    let all = "one two three, and more";
    let healed = turn.live(LiveEvent::Snapshot(piece(&m1, (2, 1), utf16_len(all), all)));
    assert_eq!(healed, [json!({"type":"text-delta","id":"m1","delta":", and more"})]);
}

#[test]
fn what_cannot_be_taken_back_ends_the_stream_without_an_end() {
    let (m1, m2) = (StepId::model(1), StepId::model(2));
    let begun = || {
        let mut turn = Telling::begun();
        turn.delta(&m1, (1, 1), 0, "one two");
        turn
    };
    let mut other_text = begun();
    assert_eq!(other_text.delta(&m1, (2, 1), 0, "one th"), [] as [Value; 0]);
    let mut other_step = begun();
    other_step.live(reset(&m2, (2, 1)));
    let mut other_result = begun();
    other_result.record(journal::step_completed(TURN, &m1, &StepResult::text("three")));
    let mut another_result = begun();
    another_result.epoch = 2;
    another_result.record(journal::step_completed(TURN, &m2, &StepResult::text("one two")));
    let mut other_answer = begun();
    other_answer.live(reset(&m1, (2, 1)));
    other_answer.record(journal::answer(TURN, &demo(), "one"));
    for mut turn in [other_text, other_step, other_result, another_result, other_answer] {
        assert_eq!(turn.next, Next::Retracted);
        assert_eq!(turn.record(journal::completed(TURN)), [] as [Value; 0]);
        assert_eq!(turn.next, Next::Retracted, "it stays given up");
    }
    // The same owner may leave a text behind.
    let mut left = begun();
    let parts = left.delta(&m2, (1, 1), 0, "three");
    assert_eq!(types(&parts), ["text-end", "finish-step", "start-step", "text-start", "text-delta"]);
}

#[test]
fn an_input_that_joins_a_turn_is_answered_there() {
    let mut stream = TurnStream::new(TURN);
    let others = record(8, 1, journal::started(Seq(5), &demo(), Timestamp(9)));
    assert_eq!(stream.record(&others), Told { parts: Vec::new(), next: Next::GoOn });
    let joined = stream.record(&record(9, 1, journal::joined(TURN, Seq(5))));
    assert_eq!(joined, Told { parts: Vec::new(), next: Next::Joined(Seq(5)) });
    assert_eq!(stream.record(&others).next, Next::Joined(Seq(5)));
}

#[test]
fn a_history_has_each_message_once_and_where_its_turn_was() {
    let alice: Subject = "alice".parse().expect("valid");
    let event = journal::regenerate_body(Seq(1));
    let m1 = StepId::model(1);
    let said = |turn: u64, text: &str| {
        [
            journal::started(Seq(turn), &demo(), Timestamp(9)),
            journal::step_completed(Seq(turn), &m1, &StepResult::text(text)),
        ]
    };
    let over = |turn: u64, text: &str| [journal::answer(Seq(turn), &demo(), text), journal::completed(Seq(turn))];
    let mut drafts = vec![input("alice", "a1", "first")];
    drafts.extend(said(1, "one"));
    drafts.push(input("bob", "b1", "second").with_name(Some("Bob".into())));
    drafts.extend(over(1, "one"));
    drafts.push(journal::regenerated(Seq(1)));
    drafts.push(Draft::new(RecordKind::Event, alice.clone(), "r1".parse().expect("valid"), event));
    drafts.extend(said(4, "two"));
    drafts.extend(over(4, "two"));
    drafts.extend(said(8, "three"));
    drafts.push(input("alice", "a2", "last"));
    let records: Vec<Record> = (1..).zip(drafts).map(|(seq, draft)| record(seq, 1, draft)).collect();
    let texts = |messages: &[UiMessage]| -> Vec<(String, String)> {
        let text = |part: &UiPart| match part {
            UiPart::Text { text, .. } => Some(text.clone()),
            _ => None,
        };
        messages.iter().map(|one| (one.id.clone(), one.parts.iter().filter_map(text).collect())).collect()
    };
    let pair = |id: &str, text: &str| (id.to_owned(), text.to_owned());
    let messages = history(&records, &alice);
    let expected = [
        pair("a1", "first"),
        pair("seq-4", "second"),
        pair("turn-4", "two"),
        pair("turn-8", "three"),
        pair("a2", "last"),
    ];
    assert_eq!(texts(&messages), expected);
    assert_eq!(messages[1].metadata, json!({"seq":4,"sender":"bob","name":"Bob"}));
    assert_eq!(messages[3].metadata, json!({"turn":8,"state":"running"}));
    assert_eq!(
        json!(messages[0]),
        json!({"id":"a1","role":"user","metadata":{"seq":1,"sender":"alice"},"parts":[{"type":"text","text":"first"}]})
    );
    // A page that begins within a turn leaves that turn out.
    assert_eq!(texts(&history(&records[3..], &alice))[0], pair("seq-4", "second"));
}

#[test]
fn names_of_messages_go_there_and_back() {
    assert_eq!(turn_of_message(&message_id(TURN)), Some(TURN));
    for other in ["turn-", "turn-07", "turn-+7", "turn--7", "m-7", "turn-99999999999999999999"] {
        assert_eq!(turn_of_message(other), None, "{other}");
    }
}

#[test]
fn the_last_message_counts_and_extras_do_not() {
    let posted = r#"{"id":"c","messages":[{"any":"thing"},{"id":"u1","role":"user","metadata":{"x":1},
        "parts":[{"type":"text","text":"a"},{"type":"text","text":"b","extra":1}]}],"trigger":"submit-message","more":[1]}"#;
    let request: ChatRequest = serde_json::from_str(posted).expect("valid");
    assert_eq!((request.id.as_str(), request.trigger, &request.message_id), ("c", Trigger::SubmitMessage, &None));
    let last = request.last.expect("there is one");
    let said: SaidMessage = serde_json::from_str(last.json.get()).expect("valid");
    let text = UserText::try_from(said).expect("valid");
    assert_eq!((last.index, text.id.as_str(), text.text.as_str()), (1, "u1", "a\nb"));
    let again: ChatRequest = serde_json::from_str(
        r#"{"id":"c","trigger":"regenerate-message","messageId":"turn-7","messages":[],"agent":"demo"}"#,
    )
    .expect("valid");
    assert_eq!((again.trigger, again.message_id.as_deref()), (Trigger::RegenerateMessage, Some("turn-7")));
    assert!(again.last.is_none() && again.agent == Some(demo()));
    for (message, problem) in [
        (r#"{"id":"a","role":"assistant","parts":[]}"#, "role: the last message must be a user's"),
        (r#"{"id":"","role":"user","parts":[]}"#, "id: is empty; 1 to 128 bytes are allowed"),
        (r#"{"id":"a","role":"user","parts":[]}"#, "parts: there is no text"),
        (r#"{"id":"a","role":"user","parts":[{"type":"text","text":""}]}"#, "parts: there is no text"),
        (r#"{"id":"a","role":"user","parts":[{"type":"text"}]}"#, "parts[0].text: is missing"),
        (
            r#"{"id":"a","role":"user","parts":[{"type":"text","text":"x"},{"type":"file","url":"u"}]}"#,
            "parts[1].type: only text is taken",
        ),
    ] {
        let said: SaidMessage = serde_json::from_str(message).expect("valid so far");
        assert_eq!(UserText::try_from(said).expect_err("must be refused").to_string(), problem, "{message}");
    }
}

/// Anything that a stream may be told, in any order.
#[derive(Debug, Clone)]
enum Move {
    Live(LiveEvent),
    Record(u64, Draft),
}

fn steps() -> impl Strategy<Value = StepId> {
    let own = StepId::own("own", 1).expect("valid");
    proptest::sample::select(vec![StepId::model(1), StepId::model(2), StepId::tool(1, 0), StepId::tool(2, 0), own])
}

fn texts() -> impl Strategy<Value = String> {
    proptest::sample::select(vec!["", "a", "ab", "abc", "b", "é", "aé", "𝄞a"]).prop_map(str::to_owned)
}

fn turns() -> impl Strategy<Value = Seq> {
    prop_oneof![1 => Just(Seq(5)), 12 => Just(TURN), 1 => Just(Seq(9))]
}

fn pieces() -> impl Strategy<Value = Piece> {
    let any_piece = (turns(), steps(), 1..4_u64, 1..3_u32, 0..4_u64, texts());
    any_piece.prop_map(|(turn, step, epoch, attempt, offset, text)| {
        let text = text.as_str().into();
        Piece { turn, step, epoch: Epoch(epoch), attempt, offset, text }
    })
}

fn live() -> impl Strategy<Value = LiveEvent> {
    prop_oneof![
        6 => pieces().prop_map(LiveEvent::Delta),
        2 => pieces().prop_map(|piece| {
            let offset = utf16_len(&piece.text);
            LiveEvent::Snapshot(Piece { offset, ..piece })
        }),
        2 => pieces().prop_map(|piece| {
            let Piece { turn, step, epoch, attempt, .. } = piece;
            LiveEvent::StepReset { turn, step, epoch, attempt }
        }),
        1 => (turns(), 1..4_u64).prop_map(|(turn, epoch)| LiveEvent::TurnResumed { turn, epoch: Epoch(epoch) }),
    ]
}

fn results() -> impl Strategy<Value = StepResult> {
    prop_oneof![
        (texts(), 0..3_usize).prop_map(|(text, calls)| asking(&text, &["t"; 2][..calls.min(2)])),
        proptest::sample::select(vec![ToolStatus::Done, ToolStatus::Failed, ToolStatus::Unknown])
            .prop_map(|status| tool("t", json!(1), status)),
        Just(StepResult::Own { input: None, output: json!("x") }),
    ]
}

fn drafts() -> impl Strategy<Value = Draft> {
    let open = |turn, step: StepId| OpenAwait { id: AwaitId::of(turn, &step), step, expires_at: Timestamp(9) };
    prop_oneof![
        3 => turns().prop_map(|turn| journal::started(turn, &demo(), Timestamp(9))),
        2 => (turns(), steps()).prop_map(|(turn, step)| journal::step_started(turn, &step, 1, "t", &json!({}))),
        8 => (turns(), steps(), results()).prop_map(|(turn, step, result)| journal::step_completed(turn, &step, &result)),
        2 => (turns(), steps()).prop_map(move |(turn, step)| journal::await_opened(turn, &open(turn, step), &json!({}), None)),
        2 => (turns(), steps()).prop_map(|(turn, step)| journal::await_resolved(&AwaitId::of(turn, &step), &Resolution::Expired)),
        2 => (turns(), texts()).prop_map(|(turn, text)| journal::answer(turn, &demo(), &text)),
        1 => turns().prop_map(journal::completed),
        1 => turns().prop_map(|turn| journal::failed(turn, FailReason::NoProgress, "")),
        1 => Just(cancelled(CancelMode::Keep)),
        1 => turns().prop_map(|turn| journal::joined(turn, Seq(3))),
        1 => turns().prop_map(journal::regenerated),
    ]
}

fn any_moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        live().prop_map(Move::Live),
        (1..4_u64, drafts()).prop_map(|(epoch, draft)| Move::Record(epoch, draft)),
    ];
    proptest::collection::vec(one, 0..40)
}

/// What owners do with a turn: each streams a step's words, one by one, and completes it, or goes away in the middle.
fn runs() -> impl Strategy<Value = Vec<(usize, bool, bool)>> {
    proptest::collection::vec((0..5_usize, any::<bool>(), any::<bool>()), 1..8)
}

proptest! {
    #[test]
    fn every_stream_is_well_formed_whatever_happens(moves in any_moves()) {
        let (mut stream, mut client) = (TurnStream::new(TURN), Client::default());
        for (seq, one) in (10..).zip(moves) {
            let told = match one {
                Move::Live(event) => stream.live(&event),
                Move::Record(epoch, draft) => stream.record(&record(seq, epoch, draft)),
            };
            for part in &told.parts {
                client.take(part).map_err(TestCaseError::fail)?;
            }
            client.is_at_its_end(told.next).map_err(TestCaseError::fail)?;
        }
    }

    #[test]
    fn takeovers_leave_the_text_of_the_log_or_no_end(runs in runs()) {
        let words = ["one ", "two ", "thrée ", "four ", "five "];
        let mut turn = Telling::begun();
        let (mut step, mut outputs) = (1, Vec::new());
        let last = runs.len() as u64;
        for (epoch, (count, same, completes)) in (1..).zip(runs) {
            turn.epoch = epoch;
            let name = StepId::model(step);
            turn.live(LiveEvent::TurnResumed { turn: TURN, epoch: Epoch(epoch) });
            turn.live(reset(&name, (epoch, 1)));
            let said: Vec<&str> = words[..count].iter().map(|word| if same { *word } else { "other " }).collect();
            let mut offset = 0;
            for word in &said {
                turn.delta(&name, (epoch, 1), offset, word);
                offset += utf16_len(word);
            }
            if completes || epoch == last {
                turn.record(journal::step_completed(TURN, &name, &StepResult::text(said.concat())));
                outputs.push(said.concat());
                step += 1;
            }
        }
        let answer = outputs.last().cloned().unwrap_or_default();
        turn.record(journal::answer(TURN, &demo(), &answer));
        turn.record(journal::completed(TURN));
        if turn.next == Next::Ended {
            let shown: Vec<String> = outputs.into_iter().filter(|text| !text.is_empty()).collect();
            prop_assert_eq!(&turn.client.whole, &shown);
        } else {
            prop_assert_eq!(turn.next, Next::Retracted);
        }
    }

    #[test]
    fn no_body_panics(text in ".{0,40}", body in "[\\[\\]{}\":,a-z]{0,40}") {
        let _ = serde_json::from_str::<ChatRequest>(&body).map(|request| request.last);
        let _ = serde_json::from_str::<SaidMessage>(&body).map(UserText::try_from);
        prop_assert!(turn_of_message(&text).is_none_or(|turn| message_id(turn) == text));
    }

    #[test]
    fn live_events_are_read_as_they_were_written(event in live()) {
        prop_assert_eq!(LiveEvent::decode(event.name(), &event.encode()), Some(event));
    }
}
