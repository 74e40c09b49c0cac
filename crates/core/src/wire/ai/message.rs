//! A message as clients keep it: the fold of a stream's parts.

use serde::Serialize;
use serde_json::Value;

use super::part::Part;

/// Who says a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// A person, or what posted an event.
    User,
    /// The agent.
    Assistant,
}

/// A message.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct UiMessage {
    /// Its name, unique in its conversation.
    pub id: String,
    /// Who says it.
    pub role: Role,
    /// A turn's [`super::Metadata`]; of others `{seq, sender, name?}`.
    pub metadata: Value,
    /// What is said and done.
    pub parts: Vec<UiPart>,
}

/// A part of a message.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "kebab-case", rename_all_fields = "camelCase")]
pub enum UiPart {
    /// A step begins.
    StepStart,
    /// A text.
    Text {
        /// What it says.
        text: String,
        /// Absent where a person said it; else `streaming` or `done`.
        #[serde(skip_serializing_if = "Option::is_none")]
        state: Option<&'static str>,
    },
    /// A call to a tool.
    DynamicTool {
        /// The tool.
        tool_name: String,
        /// The call.
        tool_call_id: String,
        /// `input-available`, `output-available` or `output-error`.
        state: &'static str,
        /// What it was called with.
        input: Value,
        /// What it answered.
        #[serde(skip_serializing_if = "Option::is_none")]
        output: Option<Value>,
        /// Why it did not.
        #[serde(skip_serializing_if = "Option::is_none")]
        error_text: Option<String>,
        /// Always.
        provider_executed: bool,
    },
    /// What the turn waits or waited for.
    DataAwait {
        /// The await.
        id: String,
        /// As [`Part::DataAwait`] has it.
        data: Value,
    },
}

impl UiMessage {
    /// Puts the next part of its stream to a message, as clients do.
    pub fn apply(&mut self, part: Part) {
        match part {
            Part::Start { message_id, message_metadata } => {
                self.id = message_id;
                self.metadata = to_value(&message_metadata);
            }
            Part::MessageMetadata { message_metadata } | Part::Finish { message_metadata, .. } => {
                self.metadata = to_value(&message_metadata);
            }
            Part::StartStep => self.parts.push(UiPart::StepStart),
            Part::TextStart { .. } => self.parts.push(UiPart::Text { text: String::new(), state: Some("streaming") }),
            // One text is open at a time.
            Part::TextDelta { delta, .. } => {
                if let Some((text, _)) = self.open_text() {
                    text.push_str(&delta);
                }
            }
            Part::TextEnd { .. } => {
                if let Some((_, state)) = self.open_text() {
                    *state = Some("done");
                }
            }
            Part::ToolInputAvailable { tool_call_id, tool_name, input, provider_executed, .. } => {
                let (state, output, error_text) = ("input-available", None, None);
                let call = UiPart::DynamicTool {
                    tool_name,
                    tool_call_id,
                    state,
                    input,
                    output,
                    error_text,
                    provider_executed,
                };
                self.parts.push(call);
            }
            Part::ToolOutputAvailable { tool_call_id, output, .. } => self.settle(&tool_call_id, Ok(output)),
            Part::ToolOutputError { tool_call_id, error_text, .. } => self.settle(&tool_call_id, Err(error_text)),
            Part::DataAwait { id, data } => self.put_await(id, data),
            Part::FinishStep | Part::Error { .. } | Part::Abort => {}
        }
    }

    fn open_text(&mut self) -> Option<(&mut String, &mut Option<&'static str>)> {
        self.parts.iter_mut().rev().find_map(|part| match part {
            UiPart::Text { text, state } if *state == Some("streaming") => Some((text, state)),
            _ => None,
        })
    }

    fn settle(&mut self, call: &str, result: Result<Value, String>) {
        for part in &mut self.parts {
            if let UiPart::DynamicTool { tool_call_id, state, output, error_text, .. } = part
                && tool_call_id == call
            {
                *state = if result.is_ok() { "output-available" } else { "output-error" };
                match result {
                    Ok(value) => *output = Some(value),
                    Err(text) => *error_text = Some(text),
                }
                return;
            }
        }
    }

    fn put_await(&mut self, new: String, what: Value) {
        for part in &mut self.parts {
            if let UiPart::DataAwait { id, data } = part
                && *id == new
            {
                *data = what;
                return;
            }
        }
        self.parts.push(UiPart::DataAwait { id: new, data: what });
    }
}

fn to_value(metadata: &impl Serialize) -> Value {
    serde_json::to_value(metadata).expect("texts and numbers always serialise")
}
