//! The parts of a UI message stream: those of them that versions 5, 6 and 7 all know.

use serde::Serialize;
use serde_json::Value;

use crate::ids::Seq;

/// The frame after the last part of a stream that came to its end.
pub const DONE: &str = "data: [DONE]\n\n";

/// How a turn's message stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TurnIs {
    /// The turn goes on; it may wait for somebody.
    Running,
    /// It ended with its answer.
    Completed,
    /// It ended without.
    Failed,
    /// Somebody cancelled it.
    Cancelled,
}

/// The metadata of a turn's message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Metadata {
    /// The turn, for calls about it.
    pub turn: Seq,
    /// How it stands.
    pub state: TurnIs,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Why a message is at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FinishReason {
    /// The answer is whole.
    Stop,
    /// The turn failed.
    Error,
}

/// One part. Tools are `dynamic`, for a server does not know a page's types, and executed by the provider, which is this server:
/// so a client neither runs them nor sends anything by itself when they are done.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "kebab-case", rename_all_fields = "camelCase")]
pub enum Part {
    /// The message begins.
    Start {
        /// Its name.
        message_id: String,
        /// How it stands.
        message_metadata: Metadata,
    },
    /// A step begins: a model call and the tools that it asked for.
    StartStep,
    /// A text begins.
    TextStart {
        /// Its name among the step's open texts.
        id: String,
    },
    /// More of it.
    TextDelta {
        /// Which text.
        id: String,
        /// What is added.
        delta: String,
    },
    /// It is whole.
    TextEnd {
        /// Which text.
        id: String,
    },
    /// A tool is called.
    ToolInputAvailable {
        /// The call.
        tool_call_id: String,
        /// The tool.
        tool_name: String,
        /// What it is called with.
        input: Value,
        /// Always.
        provider_executed: bool,
        /// Always.
        dynamic: bool,
    },
    /// It answered.
    ToolOutputAvailable {
        /// The call.
        tool_call_id: String,
        /// What it answered.
        output: Value,
        /// Always.
        provider_executed: bool,
        /// Always.
        dynamic: bool,
    },
    /// It did not.
    ToolOutputError {
        /// The call.
        tool_call_id: String,
        /// Why.
        error_text: String,
        /// Always.
        provider_executed: bool,
        /// Always.
        dynamic: bool,
    },
    /// The turn waits for somebody, or does so no longer; the later part of the same id takes the place of the first.
    DataAwait {
        /// The await.
        id: String,
        /// `{await, step, prompt?, schema, expires_at, state, payload?}`, state `open`, `resolved`, `expired` or `closed`.
        data: Value,
    },
    /// The step is over.
    FinishStep,
    /// The message stands otherwise.
    MessageMetadata {
        /// How.
        message_metadata: Metadata,
    },
    /// The turn failed.
    Error {
        /// Why.
        error_text: String,
    },
    /// The turn was cancelled: the end.
    Abort,
    /// The end.
    Finish {
        /// Why.
        finish_reason: FinishReason,
        /// How the message stands.
        message_metadata: Metadata,
    },
}

impl Part {
    /// The part as a Server-Sent Event. These have neither name nor position: their readers look at the data alone.
    #[must_use]
    pub fn frame(&self) -> String {
        let json = serde_json::to_string(self).expect("texts and numbers always serialise");
        format!("data: {json}\n\n")
    }
}
