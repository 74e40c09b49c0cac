//! The records of a turn, and the keys that make each of them unique.
//!
//! Invariant: the key follows from what the record says (`(@start, input)`, `(@intent, turn/step)`, `(@step, turn/step)`,
//! `(@await, id)`, `(@resolve, id)`, `(@end, turn)`, `(@supersede, turn)` or `(@supersede, turn~undone)`, and `(@agent:NAME,
//! turn)` for the answer), so the
//! store's unique key admits one start, one result a step, one resolution an await and one end (invariants 9, 10 and 13),
//! whoever retries.

use std::fmt::Write as _;

use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::body::Body;
use crate::ids::{AgentName, ClientMsgId, ConversationId, Seq, Subject};
use crate::json::within_bytes;
use crate::record::{Draft, Record, RecordKind};
use crate::time::Timestamp;
use crate::turn::StepId;
use crate::turn::awaits::{AwaitId, OpenAwait, Resolution};
use crate::turn::cancel::{Cancel, CancelMode};
use crate::turn::replaced::Backwards;
use crate::turn::result::{STEP_OUTPUT_MAX_BYTES, StepResult};

/// Writes the starts of turns, keyed by the seq of the input.
pub const START_SENDER: &str = "@start";
/// Writes the results of steps, keyed by `turn/step`.
pub const STEP_SENDER: &str = "@step";
/// Writes the intents of unsafe steps, keyed by `turn/step`.
pub const INTENT_SENDER: &str = "@intent";
/// Writes what turns wait for, keyed by the await's id.
pub const AWAIT_SENDER: &str = "@await";
/// Writes what came of it, under the same key.
pub const RESOLVE_SENDER: &str = "@resolve";
/// Writes that a turn or an input was replaced, keyed by it.
pub const SUPERSEDE_SENDER: &str = "@supersede";
/// Writes the ends of turns, keyed by the turn.
pub const END_SENDER: &str = "@end";
/// Interrupts a turn where its owner does not know any more who sent the input that does.
pub const INTERRUPT_SENDER: &str = "@interrupt";

/// Most characters of the detail in `turn.failed`.
const DETAIL_MAX_CHARACTERS: usize = 500;

/// Why a turn failed: `reason` in the body of `turn.failed`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailReason {
    /// Its runner ended without an answer.
    AgentFailed,
    /// The conversation names an agent that this node does not have.
    AgentUnknown,
    /// The log did not take a step or the answer.
    AppendRefused,
    /// A step's result is over the limit.
    StepTooLarge,
    /// It has more steps than allowed.
    TooManySteps,
    /// Its journal is larger than allowed.
    JournalTooLarge,
    /// It used more tokens than its agent may.
    TooManyTokens,
    /// It took longer than its agent may.
    DeadlinePassed,
    /// Owner after owner went away and none of them got any further.
    NoProgress,
    /// A step came again with another input.
    JournalMismatch,
}

impl FailReason {
    /// The name on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AgentFailed => "agent_failed",
            Self::AgentUnknown => "agent_unknown",
            Self::AppendRefused => "append_refused",
            Self::StepTooLarge => "step_too_large",
            Self::TooManySteps => "too_many_steps",
            Self::JournalTooLarge => "journal_too_large",
            Self::TooManyTokens => "too_many_tokens",
            Self::DeadlinePassed => "deadline_passed",
            Self::NoProgress => "no_progress",
            Self::JournalMismatch => "journal_mismatch",
        }
    }
}

/// `turn.started` for an input. The turn has to end by `deadline`.
#[must_use]
pub fn started(turn: Seq, agent: &AgentName, deadline: Timestamp) -> Draft {
    let body = Body::of(&json!({ "agent": agent.as_str(), "deadline": deadline }));
    draft(RecordKind::TurnStarted, START_SENDER, key(&turn.to_string()), turn, body)
}

/// `step.started`: the intent of a step whose effects cannot be undone. `attempt` counts its calls from 1; a further one
/// is only made when somebody decided so.
#[must_use]
pub fn step_started(turn: Seq, step: &StepId, attempt: u32, name: &str, input: &Value) -> Draft {
    let text = format!(
        r#"{{"step":{},"attempt":{attempt},"name":{},"input":{input}}}"#,
        Value::from(step.as_str()),
        Value::from(name)
    );
    let key = key(&format!("{turn}/{}", step.attempt(attempt)));
    draft(RecordKind::StepStarted, INTENT_SENDER, key, turn, Body::from_store(&text))
}

/// `step.completed`.
#[must_use]
pub fn step_completed(turn: Seq, step: &StepId, result: &StepResult) -> Draft {
    let body = Body::from_store(&result.body_text(step));
    draft(RecordKind::StepCompleted, STEP_SENDER, key(&format!("{turn}/{step}")), turn, body)
}

/// `await.opened`.
#[must_use]
pub fn await_opened(turn: Seq, open: &OpenAwait, schema: &Value, prompt: Option<&str>) -> Draft {
    let mut body = json!({ "await": open.id, "step": open.step, "schema": schema, "expires_at": open.expires_at });
    if let Some(prompt) = prompt {
        body["prompt"] = prompt.into();
    }
    draft(RecordKind::AwaitOpened, AWAIT_SENDER, key(open.id.as_str()), turn, Body::of(&body))
}

/// `await.resolved`. Who resolved it goes beside the body, which makes the same payload of two people the same resolution.
#[must_use]
pub fn await_resolved(id: &AwaitId, resolution: &Resolution) -> Draft {
    let body = match resolution {
        Resolution::Payload(payload) => json!({ "await": id, "payload": payload }),
        Resolution::Expired => json!({ "await": id, "expired": true }),
    };
    draft(RecordKind::AwaitResolved, RESOLVE_SENDER, key(id.as_str()), id.turn(), Body::of(&body))
}

/// The answer: a `message` of the agent. It goes into one commit with [`completed`].
#[must_use]
pub fn answer(turn: Seq, agent: &AgentName, text: &str) -> Draft {
    let body = Body::of(&json!({ "text": text }));
    Draft::new(RecordKind::Message, Subject::agent(agent), key(&turn.to_string()), body).in_turn(turn)
}

/// The answer as far as it got, in one commit with [`cancelled`]. Its end is left out where the body would be over
/// [`STEP_OUTPUT_MAX_BYTES`], which no other text of a turn may be: whoever cancels gets what there is, and no refusal.
#[must_use]
pub fn answer_so_far(turn: Seq, agent: &AgentName, text: &str) -> Draft {
    let around = r#"{"text":""}"#.len();
    answer(turn, agent, within_bytes(text, STEP_OUTPUT_MAX_BYTES - around))
}

/// `turn.completed`.
#[must_use]
pub fn completed(turn: Seq) -> Draft {
    end(RecordKind::TurnCompleted, turn, &json!({}))
}

/// `turn.completed`, with what the agent keeps for the conversation's next turn. Null: nothing.
#[must_use]
pub fn completed_with(turn: Seq, state: &Value) -> Draft {
    if state.is_null() { completed(turn) } else { end(RecordKind::TurnCompleted, turn, &json!({ "state": state })) }
}

/// What the conversation's agent kept when its last turn completed, out of these records of the log's end, which ascend. A turn
/// that is run again keeps nothing, unless that run was rolled back. `None`: these records do not say.
#[must_use]
pub fn kept_state(records: &[Record], later: &mut Backwards) -> Option<Value> {
    for record in records.iter().rev() {
        later.take(record);
        match (record.kind, record.turn) {
            (RecordKind::TurnCompleted, Some(turn)) if !later.is_run_again(turn) => {
                return Some(record.body.to_value().get_mut("state").map_or(Value::Null, Value::take));
            }
            _ => {}
        }
    }
    None
}

/// The kinds that [`kept_state`] looks at.
pub const STATE_KINDS: [RecordKind; 4] =
    [RecordKind::TurnCompleted, RecordKind::TurnSuperseded, RecordKind::TurnCancelled, RecordKind::Event];

/// `turn.failed`.
#[must_use]
pub fn failed(turn: Seq, reason: FailReason, detail: &str) -> Draft {
    let mut body = json!({ "reason": reason.as_str() });
    if !detail.is_empty() {
        body["detail"] = detail.chars().take(DETAIL_MAX_CHARACTERS).collect::<String>().into();
    }
    end(RecordKind::TurnFailed, turn, &body)
}

/// `turn.cancelled`.
#[must_use]
pub fn cancelled(cancel: &Cancel) -> Draft {
    let mut body = json!({ "mode": cancel.mode, "by": cancel.by });
    if let Some(reason) = cancel.reason {
        body["reason"] = reason.as_str().into();
    }
    end(RecordKind::TurnCancelled, cancel.turn, &body)
}

/// `turn.superseded` for an input that joins a turn instead of getting one of its own.
#[must_use]
pub fn joined(input: Seq, into: Seq) -> Draft {
    supersede(input, &json!({ "into": into }))
}

/// `turn.superseded` for a turn that has ended and is run again.
#[must_use]
pub fn regenerated(turn: Seq) -> Draft {
    supersede(turn, &json!({ "reason": REGENERATE }))
}

/// The same for one that counts again, because `undone`, which ran it again, was rolled back.
#[must_use]
pub fn regenerated_after(turn: Seq, undone: Seq) -> Draft {
    Draft { client_msg_id: supersede_key(turn, Some(undone)), ..regenerated(turn) }
}

/// The key of the `turn.superseded` that followed the rollback of `undone`, or else of the first one.
#[must_use]
pub fn supersede_key(turn: Seq, undone: Option<Seq>) -> ClientMsgId {
    key(&undone.map_or_else(|| turn.to_string(), |undone| format!("{turn}~{undone}")))
}

/// The body of the event that runs a turn again.
#[must_use]
pub fn regenerate_body(of: Seq) -> Body {
    Body::of(&json!({ "type": REGENERATE, "of": of }))
}

/// The turn that an event runs again, if it is one of [`regenerate_body`].
#[must_use]
pub fn regenerates(body: &Body) -> Option<Seq> {
    #[derive(Deserialize)]
    struct Regenerate {
        r#type: String,
        of: Seq,
    }
    let event: Regenerate = serde_json::from_str(body.as_str()).ok()?;
    (event.r#type == REGENERATE).then_some(event.of)
}

const REGENERATE: &str = "regenerate";

/// What every call to a tool carries, the same over all attempts and owners: hex of SHA-256 over conversation, turn and step.
#[must_use]
pub fn idempotency_key(conversation: &ConversationId, turn: Seq, step: &StepId) -> String {
    // No id holds a slash.
    let digest = Sha256::digest(format!("{conversation}/{turn}/{step}").as_bytes());
    digest[..16].iter().fold(String::with_capacity(32), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("a string takes everything");
        hex
    })
}

/// True for what starts a turn: a message or an event whose sender is not one of the server's own.
#[must_use]
pub fn is_input(kind: RecordKind, sender: &Subject) -> bool {
    matches!(kind, RecordKind::Message | RecordKind::Event) && !sender.is_reserved()
}

/// The text of an input: the string `text` of its body. An event need not have one.
#[must_use]
pub fn input_text(body: &Body) -> Option<String> {
    body.to_value().get("text").and_then(Value::as_str).map(str::to_owned)
}

/// What a `turn.started` says: whose it is, and by when it has to end.
#[must_use]
pub(crate) fn start_of(body: &Body) -> Option<(AgentName, Option<Timestamp>)> {
    #[derive(Deserialize)]
    struct Start {
        agent: AgentName,
        deadline: Option<Timestamp>,
    }
    let start: Start = serde_json::from_str(body.as_str()).ok()?;
    Some((start.agent, start.deadline))
}

/// What an `await.opened` says.
#[must_use]
pub(crate) fn await_of(body: &Body) -> Option<OpenAwait> {
    #[derive(Deserialize)]
    struct Opened {
        r#await: AwaitId,
        step: StepId,
        expires_at: Timestamp,
    }
    let Opened { r#await: id, step, expires_at } = serde_json::from_str(body.as_str()).ok()?;
    Some(OpenAwait { id, step, expires_at })
}

/// The schema that an `await.opened` asks its answer to fit.
#[must_use]
pub fn schema_of(body: &Body) -> Option<Value> {
    body.to_value().get_mut("schema").map(Value::take)
}

/// What an `await.resolved` says.
#[must_use]
pub(crate) fn resolution_of(body: &Body) -> Option<(AwaitId, Resolution)> {
    #[derive(Deserialize)]
    struct Resolved {
        r#await: AwaitId,
        #[serde(default)]
        expired: bool,
        #[serde(default)]
        payload: Value,
    }
    let resolved: Resolved = serde_json::from_str(body.as_str()).ok()?;
    let resolution = if resolved.expired { Resolution::Expired } else { Resolution::Payload(resolved.payload) };
    Some((resolved.r#await, resolution))
}

/// The turn that an input joined, as its `turn.superseded` says.
#[must_use]
pub(crate) fn joined_into(record: &Record) -> Option<Seq> {
    #[derive(Deserialize)]
    struct Joined {
        into: Seq,
    }
    serde_json::from_str::<Joined>(record.body.as_str()).ok().map(|joined| joined.into)
}

/// How a `turn.cancelled` treats what the turn did.
#[must_use]
pub(crate) fn cancel_mode(body: &Body) -> Option<CancelMode> {
    #[derive(Deserialize)]
    struct Cancelled {
        mode: CancelMode,
    }
    serde_json::from_str::<Cancelled>(body.as_str()).ok().map(|cancelled| cancelled.mode)
}

fn end(kind: RecordKind, turn: Seq, body: &Value) -> Draft {
    draft(kind, END_SENDER, key(&turn.to_string()), turn, Body::of(body))
}

fn supersede(turn: Seq, body: &Value) -> Draft {
    draft(RecordKind::TurnSuperseded, SUPERSEDE_SENDER, key(&turn.to_string()), turn, Body::of(body))
}

fn draft(kind: RecordKind, sender: &'static str, key: ClientMsgId, turn: Seq, body: Body) -> Draft {
    Draft::new(kind, Subject::system(sender), key, body).in_turn(turn)
}

fn key(text: &str) -> ClientMsgId {
    text.parse().expect("digits, a slash and a step id are at most 128 printable ASCII characters")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Epoch;
    use crate::turn::cancel::CancelReason;
    use crate::turn::result::{AskedCall, ToolStatus, Usage};

    fn demo() -> AgentName {
        "demo".parse().expect("valid")
    }

    #[test]
    fn bodies_and_keys_are_those_of_the_contract() {
        let step = StepId::model(1);
        let tool = StepId::tool(1, 0);
        let model_result = StepResult::text("a \"b\"");
        let call = AskedCall { name: "word_count".to_owned(), input: json!({ "text": "a b" }), id: None };
        let asking = StepResult::Model {
            output: String::new(),
            calls: vec![call],
            usage: Usage { input_tokens: 3, output_tokens: 4 },
        };
        let tool_result = StepResult::Tool {
            name: "word_count".to_owned(),
            input: json!({ "text": "a b" }),
            output: json!({ "words": 2 }),
            status: ToolStatus::Done,
        };
        let unknown = StepResult::Tool {
            name: "pay".to_owned(),
            input: json!({}),
            output: Value::Null,
            status: ToolStatus::Unknown,
        };
        let own = StepResult::Own { input: Some(json!(1)), output: json!("x") };
        let open = OpenAwait { id: AwaitId::of(Seq(7), &tool), step: tool.clone(), expires_at: Timestamp(60_000) };
        let approve = Resolution::Payload(json!({ "approve": true }));
        let cancel = Cancel {
            turn: Seq(7),
            mode: CancelMode::Keep,
            by: "alice".parse().expect("valid"),
            reason: Some(CancelReason::Interrupted),
        };
        let cases = [
            (
                started(Seq(7), &demo(), Timestamp(1000)),
                "turn.started",
                "@start",
                "7",
                r#"{"agent":"demo","deadline":"1970-01-01T00:00:01.000Z"}"#,
            ),
            (
                step_started(Seq(7), &tool, 1, "pay", &json!({ "n": 1 })),
                "step.started",
                "@intent",
                "7/m1.t0",
                r#"{"step":"m1.t0","attempt":1,"name":"pay","input":{"n":1}}"#,
            ),
            (
                step_started(Seq(7), &tool, 2, "pay", &json!({ "n": 1 })),
                "step.started",
                "@intent",
                "7/m1.t0~2",
                r#"{"step":"m1.t0","attempt":2,"name":"pay","input":{"n":1}}"#,
            ),
            (
                step_completed(Seq(7), &step, &asking),
                "step.completed",
                "@step",
                "7/m1",
                r#"{"step":"m1","type":"model","output":"","calls":[{"name":"word_count","input":{"text":"a b"}}],"usage":{"input_tokens":3,"output_tokens":4}}"#,
            ),
            (
                step_completed(Seq(7), &tool, &unknown),
                "step.completed",
                "@step",
                "7/m1.t0",
                r#"{"step":"m1.t0","type":"tool","name":"pay","input":{},"output":null,"status":"unknown"}"#,
            ),
            (
                step_completed(Seq(7), &tool, &own),
                "step.completed",
                "@step",
                "7/m1.t0",
                r#"{"step":"m1.t0","type":"own","input":1,"output":"x"}"#,
            ),
            (
                await_opened(Seq(7), &open, &json!({ "type": "object" }), Some("May I?")),
                "await.opened",
                "@await",
                "7-m1.t0",
                r#"{"await":"7-m1.t0","expires_at":"1970-01-01T00:01:00.000Z","prompt":"May I?","schema":{"type":"object"},"step":"m1.t0"}"#,
            ),
            (
                await_resolved(&open.id, &approve),
                "await.resolved",
                "@resolve",
                "7-m1.t0",
                r#"{"await":"7-m1.t0","payload":{"approve":true}}"#,
            ),
            (
                await_resolved(&open.id, &Resolution::Expired),
                "await.resolved",
                "@resolve",
                "7-m1.t0",
                r#"{"await":"7-m1.t0","expired":true}"#,
            ),
            (
                cancelled(&cancel),
                "turn.cancelled",
                "@end",
                "7",
                r#"{"by":"alice","mode":"keep","reason":"interrupted"}"#,
            ),
            (joined(Seq(7), Seq(3)), "turn.superseded", "@supersede", "7", r#"{"into":3}"#),
            (regenerated(Seq(7)), "turn.superseded", "@supersede", "7", r#"{"reason":"regenerate"}"#),
            (
                step_completed(Seq(7), &step, &model_result),
                "step.completed",
                "@step",
                "7/m1",
                r#"{"step":"m1","type":"model","output":"a \"b\""}"#,
            ),
            (
                step_completed(Seq(7), &tool, &tool_result),
                "step.completed",
                "@step",
                "7/m1.t0",
                r#"{"step":"m1.t0","type":"tool","name":"word_count","input":{"text":"a b"},"output":{"words":2}}"#,
            ),
            (answer(Seq(7), &demo(), "hi"), "message", "@agent:demo", "7", r#"{"text":"hi"}"#),
            (completed(Seq(7)), "turn.completed", "@end", "7", "{}"),
            (
                failed(Seq(7), FailReason::NoProgress, "why"),
                "turn.failed",
                "@end",
                "7",
                r#"{"detail":"why","reason":"no_progress"}"#,
            ),
        ];
        for (draft, kind, sender, key, body) in cases {
            assert_eq!(draft.kind.as_str(), kind);
            assert_eq!(draft.sender.as_str(), sender);
            assert_eq!(draft.client_msg_id.as_str(), key);
            assert_eq!(draft.body.as_str(), body);
            assert_eq!(draft.turn, Some(Seq(7)));
            assert_eq!(draft.body_hash, draft.body.hash(draft.kind));
            Body::parse(body, crate::body::Limits::default()).expect("what the server composes passes its own check");
        }
    }

    #[test]
    fn the_state_of_the_last_turn_that_counts_is_kept() {
        let record =
            |seq, draft| Record::from_draft("c".parse().expect("valid"), Seq(seq), Epoch(1), Timestamp(0), draft);
        let log = [
            record(10, completed_with(Seq(1), &json!({ "n": 1 }))),
            record(20, completed_with(Seq(11), &json!({ "n": 2 }))),
            record(21, joined(Seq(12), Seq(11))),
        ];
        let kept = |log: &[Record]| kept_state(log, &mut Backwards::default());
        assert_eq!(kept(&log), Some(json!({ "n": 2 })));
        let again = [log.as_slice(), &[record(30, regenerated(Seq(11)))]].concat();
        assert_eq!(kept(&again), Some(json!({ "n": 1 })), "what is run again begins where it began");
        let cleared = [log.as_slice(), &[record(40, completed(Seq(31)))]].concat();
        assert_eq!(kept(&cleared), Some(Value::Null));
        assert_eq!(kept(&log[2..]), None);
        // Page by page, the newest first.
        let mut later = Backwards::default();
        assert_eq!(kept_state(&again[1..], &mut later), None);
        assert_eq!(kept_state(&again[..1], &mut later), Some(json!({ "n": 1 })));
        // Another run that was rolled back takes nothing away.
        let alice: Subject = "alice".parse().expect("valid");
        let event = Draft::new(RecordKind::Event, alice.clone(), key("r"), regenerate_body(Seq(11)));
        let rollback = Cancel { turn: Seq(31), mode: CancelMode::Rollback, by: alice, reason: None };
        let undone = [again.as_slice(), &[record(31, event), record(33, cancelled(&rollback))]].concat();
        assert_eq!(kept(&undone), Some(json!({ "n": 2 })));
        let once_more = [undone.as_slice(), &[record(34, regenerated_after(Seq(11), Seq(31)))]].concat();
        assert_eq!(kept(&once_more), Some(json!({ "n": 1 })));
    }

    #[test]
    fn only_what_others_write_is_an_input() {
        let alice: Subject = "alice".parse().expect("valid");
        assert!(is_input(RecordKind::Message, &alice));
        assert!(is_input(RecordKind::Event, &alice));
        assert!(!is_input(RecordKind::MessageEdited, &alice));
        assert!(!is_input(RecordKind::Message, &Subject::agent(&demo())));
    }

    #[test]
    fn what_is_written_is_read_back() {
        let open =
            OpenAwait { id: AwaitId::of(Seq(7), &StepId::model(1)), step: StepId::model(1), expires_at: Timestamp(5) };
        assert_eq!(await_of(&await_opened(Seq(7), &open, &json!({}), None).body), Some(open.clone()));
        for resolution in [Resolution::Expired, Resolution::Payload(json!([1]))] {
            let body = await_resolved(&open.id, &resolution).body;
            assert_eq!(resolution_of(&body), Some((open.id.clone(), resolution)));
        }
        assert_eq!(regenerates(&regenerate_body(Seq(4))), Some(Seq(4)));
        assert_eq!(regenerates(&Body::of(&json!({ "type": "deploy", "of": 4 }))), None);
        let start = started(Seq(7), &demo(), Timestamp(5)).body;
        assert_eq!(start_of(&start), Some((demo(), Some(Timestamp(5)))));
        assert_eq!(
            start_of(&Body::of(&json!({ "agent": "demo" }))),
            Some((demo(), None)),
            "as it was before deadlines"
        );
    }

    #[test]
    fn a_tools_key_is_the_same_whoever_calls_and_another_for_every_step() {
        let (room, other) = ("a".parse().expect("valid"), "a.1".parse().expect("valid"));
        let key = idempotency_key(&room, Seq(7), &StepId::tool(1, 0));
        assert_eq!(key, idempotency_key(&room, Seq(7), &StepId::tool(1, 0)));
        assert_eq!(key.len(), 32);
        for different in [
            idempotency_key(&other, Seq(7), &StepId::tool(1, 0)),
            idempotency_key(&room, Seq(8), &StepId::tool(1, 0)),
            idempotency_key(&room, Seq(7), &StepId::tool(1, 1)),
        ] {
            assert_ne!(key, different);
        }
    }
}
