//! Writing the body of a call.

use serde::Serialize;
use serde_json::value::RawValue;

use super::AskedCall;

/// A message of the conversation, as a model is shown it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChatMessage {
    /// What the operator tells the model.
    System(String),
    /// What a person or an event says.
    User {
        /// The text.
        text: String,
    },
    /// What the model said before.
    Assistant {
        /// Its text; may be empty if it only asked for calls.
        text: String,
        /// The calls that it asked for, in its order.
        calls: Vec<AskedCall>,
    },
    /// What a call brought.
    Tool {
        /// [`AskedCall::id`].
        call: String,
        /// The result, as JSON or text.
        result: String,
    },
}

/// A tool as a model is told of it.
#[derive(Debug, Clone)]
pub struct ToolSpec {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// JSON Schema of its arguments.
    pub parameters: Box<RawValue>,
}

/// One call of a model.
#[derive(Debug, Clone, Copy)]
pub struct ChatRequest<'a> {
    /// The model's name at its server.
    pub model: &'a str,
    /// Oldest first.
    pub messages: &'a [ChatMessage],
    /// What the model may ask for; may be empty.
    pub tools: &'a [ToolSpec],
    /// Most tokens of the answer; `None`: as many as the server allows.
    pub max_tokens: Option<u32>,
    /// 0 to 2 where the server agrees; `None`: its default.
    pub temperature: Option<f32>,
}

impl ChatRequest<'_> {
    /// The body, as JSON. It asks for a stream that ends with the usage; servers that do not know the option leave it out.
    #[must_use]
    pub fn encode(&self) -> String {
        let wire = WireRequest {
            model: self.model,
            messages: self.messages.iter().map(WireMessage::of).collect(),
            tools: self.tools.iter().map(WireTool::of).collect(),
            stream: true,
            stream_options: StreamOptions { include_usage: true },
            max_tokens: self.max_tokens,
            temperature: self.temperature,
        };
        serde_json::to_string(&wire).expect("texts and numbers always serialise")
    }
}

#[derive(Serialize)]
struct WireRequest<'a> {
    model: &'a str,
    messages: Vec<WireMessage<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<WireTool<'a>>,
    stream: bool,
    stream_options: StreamOptions,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f32>,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

#[derive(Serialize)]
struct WireMessage<'a> {
    role: &'static str,
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<WireCall<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<&'a str>,
}

#[derive(Serialize)]
struct WireCall<'a> {
    id: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    function: WireFunction<'a>,
}

#[derive(Serialize)]
struct WireFunction<'a> {
    name: &'a str,
    arguments: &'a str,
}

#[derive(Serialize)]
struct WireTool<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    function: WireSpec<'a>,
}

#[derive(Serialize)]
struct WireSpec<'a> {
    name: &'a str,
    description: &'a str,
    parameters: &'a RawValue,
}

impl<'a> WireMessage<'a> {
    fn of(message: &'a ChatMessage) -> Self {
        let plain =
            |role, text: &'a str| Self { role, content: Some(text), tool_calls: Vec::new(), tool_call_id: None };
        match message {
            ChatMessage::System(text) => plain("system", text),
            ChatMessage::User { text } => plain("user", text),
            // Some servers refuse an empty text beside calls, others one that is missing without calls.
            ChatMessage::Assistant { text, calls } => Self {
                content: (calls.is_empty() || !text.is_empty()).then_some(text.as_str()),
                tool_calls: calls.iter().map(WireCall::of).collect(),
                ..plain("assistant", text)
            },
            ChatMessage::Tool { call, result } => Self { tool_call_id: Some(call), ..plain("tool", result) },
        }
    }
}

impl<'a> WireCall<'a> {
    fn of(call: &'a AskedCall) -> Self {
        let function = WireFunction { name: &call.name, arguments: &call.arguments };
        Self { id: &call.id, kind: "function", function }
    }
}

impl<'a> WireTool<'a> {
    fn of(tool: &'a ToolSpec) -> Self {
        let function = WireSpec { name: &tool.name, description: &tool.description, parameters: &tool.parameters };
        Self { kind: "function", function }
    }
}
