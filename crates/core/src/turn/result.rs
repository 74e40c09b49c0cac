//! What a completed step did: the rest of a `step.completed` body, written and read.
//!
//! Invariant: a result carries all that later steps need (the model's text, the tools it asked for, the tokens it used), so
//! that whoever continues the turn asks nobody again.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::body::Body;
use crate::turn::StepId;

/// Most bytes of a `step.completed` body (1 MiB).
pub const STEP_OUTPUT_MAX_BYTES: usize = 1024 * 1024;

/// What a model call used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens of the prompt.
    #[serde(default)]
    pub input_tokens: u64,
    /// Tokens of the answer.
    #[serde(default)]
    pub output_tokens: u64,
}

impl Usage {
    /// Both together.
    #[must_use]
    pub fn total(self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }

    fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// A tool call that a model asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AskedCall {
    /// The tool.
    pub name: String,
    /// What to call it with, as the model gave it: text if that was no JSON.
    pub input: Value,
    /// The provider's own id of the call, to be sent back to it; never the call's identity.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub id: Option<String>,
}

/// How a tool call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ToolStatus {
    /// With the tool's answer.
    #[default]
    Done,
    /// Without one; the output says why.
    Failed,
    /// It may have happened: whoever called it went away before the answer.
    Unknown,
}

impl ToolStatus {
    fn is_done(&self) -> bool {
        *self == Self::Done
    }
}

/// What a completed step did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum StepResult {
    /// A model call.
    Model {
        /// The whole text.
        output: String,
        /// The tool calls that it asked for, in its order.
        #[serde(skip_serializing_if = "Vec::is_empty", default)]
        calls: Vec<AskedCall>,
        /// What it used.
        #[serde(skip_serializing_if = "Usage::is_nothing", default)]
        usage: Usage,
    },
    /// A tool call.
    Tool {
        /// The tool.
        name: String,
        /// What it was called with.
        input: Value,
        /// What it answered.
        output: Value,
        /// How it ended.
        #[serde(skip_serializing_if = "ToolStatus::is_done", default)]
        status: ToolStatus,
    },
    /// An agent's own step.
    Own {
        /// What it was done with, if its agent says so.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        input: Option<Value>,
        /// What came of it.
        output: Value,
    },
}

/// The body: the step's name before its result.
#[derive(Serialize)]
struct Written<'a> {
    step: &'a StepId,
    #[serde(flatten)]
    result: &'a StepResult,
}

#[derive(Deserialize)]
struct Read {
    step: StepId,
    #[serde(flatten)]
    result: StepResult,
}

impl StepResult {
    /// A model call that asked for no tool.
    #[must_use]
    pub fn text(output: impl Into<String>) -> Self {
        Self::Model { output: output.into(), calls: Vec::new(), usage: Usage::default() }
    }

    /// The `step.completed` body, compact.
    #[must_use]
    pub fn body_text(&self, step: &StepId) -> String {
        serde_json::to_string(&Written { step, result: self }).expect("texts and numbers always serialise")
    }

    /// What a `step.completed` body says; `None` if it is not one.
    #[must_use]
    pub fn read(body: &Body) -> Option<(StepId, Self)> {
        let read: Read = serde_json::from_str(body.as_str()).ok()?;
        Some((read.step, read.result))
    }

    /// What the step was done with, as far as it was written down.
    #[must_use]
    pub fn input(&self) -> Option<&Value> {
        match self {
            Self::Model { .. } => None,
            Self::Tool { input, .. } => Some(input),
            Self::Own { input, .. } => input.as_ref(),
        }
    }

    /// What it used.
    #[must_use]
    pub fn usage(&self) -> Usage {
        match self {
            Self::Model { usage, .. } => *usage,
            Self::Tool { .. } | Self::Own { .. } => Usage::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn results_are_read_as_they_were_written() {
        let call = AskedCall { name: "look".to_owned(), input: json!({ "q": 1.5 }), id: Some("call_1".to_owned()) };
        let results = [
            StepResult::text("hi"),
            StepResult::Model {
                output: String::new(),
                calls: vec![call],
                usage: Usage { input_tokens: 9, output_tokens: 2 },
            },
            StepResult::Tool {
                name: "t".to_owned(),
                input: json!([]),
                output: json!(null),
                status: ToolStatus::Failed,
            },
            StepResult::Own { input: None, output: json!({ "a": [1, "2"] }) },
        ];
        for result in results {
            let body = Body::from_store(&result.body_text(&StepId::model(3)));
            assert_eq!(StepResult::read(&body), Some((StepId::model(3), result)));
        }
        let old = Body::from_store(r#"{"step":"m1","type":"model","output":"x"}"#);
        assert_eq!(StepResult::read(&old), Some((StepId::model(1), StepResult::text("x"))));
        assert_eq!(StepResult::read(&Body::from_store(r#"{"step":"m1","type":"magic"}"#)), None);
    }
}
