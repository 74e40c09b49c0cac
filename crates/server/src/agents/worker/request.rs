//! What a worker is asked: the conversation, the journal of the turn, what was kept, and where to call back.

use conch_core::turn::awaits::Resolution;
use conch_core::turn::context::{Content, ContextMessage};
use conch_core::turn::replay::Replay;
use conch_core::turn::result::StepResult;
use serde_json::{Map, Value, json};

use crate::agents::openai::{newest, text_of};
use crate::turn::agent::Halt;
use crate::turn::context::TurnContext;

/// The body of the request.
pub(super) async fn body(turn: &mut TurnContext, messages: usize, callback: &str) -> Result<String, Halt> {
    let shown = newest(turn.messages().await?, messages);
    let state = turn.state().await?;
    let body = json!({
        "conversation": turn.conversation().as_str(),
        "turn": turn.turn(),
        "epoch": turn.epoch(),
        "attempt": turn.attempt(),
        "deadline": turn.deadline(),
        "messages": shown.iter().filter_map(message).collect::<Vec<_>>(),
        "state": state,
        "journal": journal(turn.journal()),
        "callback": callback,
    });
    Ok(body.to_string())
}

/// A message: `{role, text}`, a person's or an event's with `sender`, `name` and `body` besides.
fn message(message: &ContextMessage) -> Option<Value> {
    match &message.content {
        Content::User { sender, name, body } => {
            let mut said = json!({
                "role": "user",
                "text": text_of(body),
                "sender": sender.as_str(),
                "body": body.to_value(),
            });
            if let Some(name) = name {
                said["name"] = name.as_ref().into();
            }
            Some(said)
        }
        // What was only asked for is the other agent's, whose calls these were.
        Content::Assistant { text, .. } if text.is_empty() => None,
        Content::Assistant { text, .. } => Some(json!({ "role": "assistant", "text": text })),
        Content::Tool { .. } => None,
    }
}

/// The worker's own steps and awaits, as it named them.
fn journal(replay: &Replay) -> Vec<Value> {
    let steps = replay.steps().filter_map(|(step, result)| match result {
        StepResult::Own { input, output } => {
            Some(json!({ "key": step.as_str(), "input": input.clone().unwrap_or(Value::Null), "output": output }))
        }
        StepResult::Model { .. } | StepResult::Tool { .. } => None,
    });
    let awaits = replay.awaits().map(|(id, resolution)| {
        let mut entry = Map::from_iter([("await".to_owned(), Value::from(id.step()))]);
        let state = match resolution {
            None => "open",
            Some(Resolution::Expired) => "expired",
            Some(Resolution::Payload(payload)) => {
                entry.insert("payload".to_owned(), payload.clone());
                "resolved"
            }
        };
        entry.insert("state".to_owned(), state.into());
        Value::Object(entry)
    });
    steps.chain(awaits).collect()
}
