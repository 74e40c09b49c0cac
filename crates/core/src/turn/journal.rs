//! The records of a turn, and the keys that make each of them unique.
//!
//! Invariant: the key follows from what the record says (`(@start, input)`, `(@step, turn/step)`, `(@end, turn)`, and
//! `(@agent:NAME, turn)` for the answer), so the store's unique key admits one start, one result a step and one end
//! (invariants 9 and 10), whoever retries.

use serde_json::{Value, json};

use crate::body::Body;
use crate::ids::{AgentName, ClientMsgId, Seq, Subject};
use crate::record::{Draft, Record, RecordKind};
use crate::turn::StepId;

/// Writes the starts of turns, keyed by the seq of the input.
pub const START_SENDER: &str = "@start";
/// Writes the results of steps, keyed by `turn/step`.
pub const STEP_SENDER: &str = "@step";
/// Writes the ends of turns, keyed by the turn.
pub const END_SENDER: &str = "@end";

/// Most bytes of a `step.completed` body (1 MiB).
pub const STEP_OUTPUT_MAX_BYTES: usize = 1024 * 1024;

/// Why a turn failed: `reason` in the body of `turn.failed`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailReason {
    /// Its owner went away while it ran.
    OwnerLost,
    /// Its runner ended without an answer.
    AgentFailed,
    /// The conversation names an agent that this node does not have.
    AgentUnknown,
    /// The log did not take a step or the answer.
    AppendRefused,
    /// A step's result is over the limit.
    StepTooLarge,
}

impl FailReason {
    /// The name on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OwnerLost => "owner_lost",
            Self::AgentFailed => "agent_failed",
            Self::AgentUnknown => "agent_unknown",
            Self::AppendRefused => "append_refused",
            Self::StepTooLarge => "step_too_large",
        }
    }
}

/// What a completed step did: the rest of its body.
#[derive(Debug, Clone, PartialEq)]
pub enum StepResult {
    /// A model call, and its text.
    Model {
        /// The whole text.
        output: String,
    },
    /// A tool call.
    Tool {
        /// The tool.
        name: String,
        /// What it was called with.
        input: Value,
        /// What it answered.
        output: Value,
    },
}

/// `turn.started` for an input.
#[must_use]
pub fn started(turn: Seq, agent: &AgentName) -> Draft {
    let body = Body::of(&json!({ "agent": agent.as_str() }));
    draft(RecordKind::TurnStarted, Subject::system(START_SENDER), key(&turn.to_string()), turn, body)
}

/// `step.completed`.
#[must_use]
pub fn step_completed(turn: Seq, step: &StepId, result: &StepResult) -> Draft {
    // Written in the order of the contract; `json!` would sort the keys.
    let quoted = |value: &Value| value.to_string();
    let text = |text: &str| Value::from(text).to_string();
    let step_text = text(step.as_str());
    let body = match result {
        StepResult::Model { output } => {
            format!(r#"{{"step":{step_text},"type":"model","output":{}}}"#, text(output))
        }
        StepResult::Tool { name, input, output } => format!(
            r#"{{"step":{step_text},"type":"tool","name":{},"input":{},"output":{}}}"#,
            text(name),
            quoted(input),
            quoted(output)
        ),
    };
    let body = Body::from_store(&body);
    draft(RecordKind::StepCompleted, Subject::system(STEP_SENDER), key(&format!("{turn}/{step}")), turn, body)
}

/// The answer: a `message` of the agent. It goes into one commit with [`completed`].
#[must_use]
pub fn answer(turn: Seq, agent: &AgentName, text: &str) -> Draft {
    let body = Body::of(&json!({ "text": text }));
    draft(RecordKind::Message, Subject::agent(agent), key(&turn.to_string()), turn, body)
}

/// `turn.completed`.
#[must_use]
pub fn completed(turn: Seq) -> Draft {
    end(RecordKind::TurnCompleted, turn, &json!({}))
}

/// `turn.failed`.
#[must_use]
pub fn failed(turn: Seq, reason: FailReason) -> Draft {
    end(RecordKind::TurnFailed, turn, &json!({ "reason": reason.as_str() }))
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

/// The agent that a `turn.started` record names.
#[must_use]
pub(crate) fn agent_of(record: &Record) -> Option<AgentName> {
    record.body.to_value().get("agent").and_then(Value::as_str).and_then(|name| name.parse().ok())
}

fn end(kind: RecordKind, turn: Seq, body: &Value) -> Draft {
    draft(kind, Subject::system(END_SENDER), key(&turn.to_string()), turn, Body::of(body))
}

fn draft(kind: RecordKind, sender: Subject, key: ClientMsgId, turn: Seq, body: Body) -> Draft {
    Draft::new(kind, sender, key, body).in_turn(turn)
}

fn key(text: &str) -> ClientMsgId {
    text.parse().expect("digits, a slash and a step id are at most 128 printable ASCII characters")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demo() -> AgentName {
        "demo".parse().expect("valid")
    }

    #[test]
    fn bodies_and_keys_are_those_of_the_contract() {
        let step = StepId::model(1);
        let tool = StepId::tool(1, 0);
        let model_result = StepResult::Model { output: "a \"b\"".to_owned() };
        let tool_result = StepResult::Tool {
            name: "word_count".to_owned(),
            input: json!({ "text": "a b" }),
            output: json!({ "words": 2 }),
        };
        let cases = [
            (started(Seq(7), &demo()), "turn.started", "@start", "7", r#"{"agent":"demo"}"#),
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
            (failed(Seq(7), FailReason::OwnerLost), "turn.failed", "@end", "7", r#"{"reason":"owner_lost"}"#),
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
    fn only_what_others_write_is_an_input() {
        let alice: Subject = "alice".parse().expect("valid");
        assert!(is_input(RecordKind::Message, &alice));
        assert!(is_input(RecordKind::Event, &alice));
        assert!(!is_input(RecordKind::MessageEdited, &alice));
        assert!(!is_input(RecordKind::Message, &Subject::agent(&demo())));
    }
}
