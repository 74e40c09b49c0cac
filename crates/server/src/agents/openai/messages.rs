//! The conversation as a model's API takes it.
//!
//! Invariants: it begins with what a person or an event says, never in the middle of a call; each call's result follows it; a
//! call's arguments are a JSON object, whatever the model had given.

use std::collections::BTreeMap;

use conch_core::ids::Seq;
use conch_core::turn::StepId;
use conch_core::turn::context::{Content, ContextMessage};
use conch_core::turn::journal;
use conch_core::turn::result::{AskedCall, ToolStatus};
use conch_core::wire::openai::{AskedCall as WireCall, ChatMessage};
use serde_json::{Value, json};

/// The newest `most` messages, from an input on. Where the last input is further back than that, from it on: a turn's own calls
/// are never cut.
pub(in crate::agents) fn newest(mut messages: Vec<ContextMessage>, most: usize) -> Vec<ContextMessage> {
    let is_input = |message: &ContextMessage| matches!(message.content, Content::User { .. });
    let earliest = messages.len().saturating_sub(most);
    let within = messages.iter().skip(earliest).position(is_input).map(|index| earliest + index);
    let from = within.or_else(|| messages.iter().rposition(is_input)).unwrap_or(0);
    messages.split_off(from)
}

/// The text of an input: its `text`, or all of an event that has none.
pub(in crate::agents) fn text_of(body: &conch_core::body::Body) -> String {
    journal::input_text(body).unwrap_or_else(|| body.as_str().to_owned())
}

/// As the API takes them.
pub(super) fn chat(system: Option<&str>, messages: Vec<ContextMessage>) -> Vec<ChatMessage> {
    let mut chat: Vec<ChatMessage> = system.map(|text| ChatMessage::System(text.to_owned())).into_iter().collect();
    // Ids are the provider's; steps are ours.
    let mut ids: BTreeMap<(Seq, StepId), String> = BTreeMap::new();
    for ContextMessage { turn, content } in messages {
        chat.push(match content {
            Content::User { body, .. } => ChatMessage::User { text: text_of(&body) },
            Content::Assistant { text, calls } => {
                let calls = calls.into_iter().map(|(step, call)| {
                    let wire = wire_call(&step, call);
                    ids.insert((turn, step), wire.id.clone());
                    wire
                });
                ChatMessage::Assistant { text, calls: calls.collect() }
            }
            Content::Tool { step, output, status, .. } => {
                let call = ids.remove(&(turn, step.clone())).unwrap_or_else(|| step.to_string());
                ChatMessage::Tool { call, result: result_text(&output, status) }
            }
        });
    }
    chat
}

fn wire_call(step: &StepId, call: AskedCall) -> WireCall {
    let arguments = match call.input {
        object @ Value::Object(_) => object,
        other => json!({ "malformed": other }),
    };
    WireCall { id: call.id.unwrap_or_else(|| step.to_string()), name: call.name, arguments: arguments.to_string() }
}

fn result_text(output: &Value, status: ToolStatus) -> String {
    match output {
        Value::Null if status == ToolStatus::Unknown => {
            json!({ "error": "the outcome of this call is not known: it may have happened" }).to_string()
        }
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use conch_core::body::Body;

    use super::*;

    fn user(turn: u64, text: &str) -> ContextMessage {
        let content = Content::User {
            sender: "alice".parse().expect("valid"),
            name: None,
            body: Body::of(&json!({ "text": text })),
        };
        ContextMessage { turn: Seq(turn), content }
    }

    fn said(turn: u64, text: &str, calls: &[(u32, Value)]) -> ContextMessage {
        let call = |(index, input): &(u32, Value)| {
            let id = (*index == 0).then(|| "p1".to_owned());
            (StepId::tool(1, *index), AskedCall { name: "t".to_owned(), input: input.clone(), id })
        };
        let content = Content::Assistant { text: text.to_owned(), calls: calls.iter().map(call).collect() };
        ContextMessage { turn: Seq(turn), content }
    }

    fn result(turn: u64, index: u32, output: Value, status: ToolStatus) -> ContextMessage {
        let content = Content::Tool { step: StepId::tool(1, index), name: "t".to_owned(), output, status };
        ContextMessage { turn: Seq(turn), content }
    }

    #[test]
    fn calls_and_their_results_are_told_under_one_id() {
        let event = Body::of(&json!({ "type": "deploy" }));
        let content = Content::User { sender: "hook".parse().expect("valid"), name: None, body: event };
        let messages = vec![
            ContextMessage { turn: Seq(1), content },
            said(1, "wait", &[(0, json!({ "a": 1 })), (1, json!("{oops"))]),
            result(1, 0, json!("sunny"), ToolStatus::Done),
            result(1, 1, Value::Null, ToolStatus::Unknown),
            said(1, "done", &[]),
        ];
        let call = |id: &str, arguments: &str| WireCall {
            id: id.to_owned(),
            name: "t".to_owned(),
            arguments: arguments.to_owned(),
        };
        let expected = [
            ChatMessage::System("be brief".to_owned()),
            ChatMessage::User { text: r#"{"type":"deploy"}"#.to_owned() },
            ChatMessage::Assistant {
                text: "wait".to_owned(),
                calls: vec![call("p1", r#"{"a":1}"#), call("m1.t1", r#"{"malformed":"{oops"}"#)],
            },
            ChatMessage::Tool { call: "p1".to_owned(), result: "sunny".to_owned() },
            ChatMessage::Tool {
                call: "m1.t1".to_owned(),
                result: r#"{"error":"the outcome of this call is not known: it may have happened"}"#.to_owned(),
            },
            ChatMessage::Assistant { text: "done".to_owned(), calls: Vec::new() },
        ];
        assert_eq!(chat(Some("be brief"), messages), expected);
    }

    #[test]
    fn a_long_conversation_is_cut_before_an_input_and_never_within_a_turn() {
        let messages = || {
            let call = (0, json!({}));
            vec![
                user(1, "one"),
                said(1, "1", &[]),
                user(2, "two"),
                said(2, "", &[call]),
                result(2, 0, json!(1), ToolStatus::Done),
            ]
        };
        let texts = |most| newest(messages(), most).len();
        assert_eq!([texts(100), texts(5), texts(4), texts(3), texts(2), texts(1)], [5, 5, 3, 3, 3, 3]);
        assert!(newest(Vec::new(), 3).is_empty());
    }
}
