//! Reading an answer while it streams.

use serde::Deserialize;
use serde_json::Value;

use crate::wire::sse::{Decoded, Decoder};

/// Bounds of one answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerLimits {
    /// Most bytes of one event of the stream.
    pub event_bytes: usize,
    /// Most bytes of text, and of all arguments together.
    pub text_bytes: usize,
    /// Most tool calls of one answer.
    pub calls: usize,
}

impl Default for AnswerLimits {
    /// 1 MiB an event, 1 MiB of text (a step's result is no larger), 128 calls.
    fn default() -> Self {
        Self { event_bytes: 1024 * 1024, text_bytes: 1024 * 1024, calls: 128 }
    }
}

/// A tool call that a model asked for. Neither name nor arguments are checked here.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, Deserialize)]
pub struct AskedCall {
    /// The server's id, or one made from the call's place where it gives none or repeats one.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// Its arguments: JSON, if the model kept to it.
    pub arguments: String,
}

/// Why the model stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// It was done, or a server gave a reason that is none of the others.
    Stop,
    /// It wants the calls.
    ToolCalls,
    /// The token limit cut it off.
    Length,
    /// A filter of the server's cut it off.
    ContentFilter,
}

/// Tokens, as the server counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub struct Usage {
    /// Read.
    #[serde(default)]
    pub prompt_tokens: u64,
    /// Written.
    #[serde(default)]
    pub completion_tokens: u64,
}

/// A whole answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// All text.
    pub text: String,
    /// The calls, in the model's order.
    pub calls: Vec<AskedCall>,
    /// Why it ended.
    pub reason: FinishReason,
    /// `None`: the server did not say.
    pub usage: Option<Usage>,
}

/// Why an answer cannot be used. Nothing of it may be taken for an answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BrokenAnswer {
    /// The stream ended before the answer did.
    #[error("the stream ended in the middle of the answer")]
    CutOff,
    /// The server reported an error within the stream.
    #[error("the server says: {0}")]
    Server(String),
    /// Not what the protocol says.
    #[error("not a chat completion: {0}")]
    Malformed(String),
    /// More than [`AnswerLimits`] allow.
    #[error("{what}: more than {limit} {unit} in one answer")]
    TooLarge {
        /// Which part.
        what: &'static str,
        /// The limit.
        limit: usize,
        /// What the limit counts.
        unit: &'static str,
    },
}

/// See the module's description.
#[derive(Debug)]
pub struct AnswerReader {
    limits: AnswerLimits,
    decoder: Decoder,
    text: String,
    arguments_bytes: usize,
    calls: Vec<AskedCall>,
    reason: Option<FinishReason>,
    usage: Option<Usage>,
    done: Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Done {
    No,
    /// `[DONE]` came: whatever follows does not belong to the answer.
    Yes,
}

/// Longest text of a server's error that is kept, in characters.
const ERROR_MAX_CHARS: usize = 500;

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    index: u32,
    /// `message` is what servers send that do not stream.
    #[serde(default, alias = "message")]
    delta: Delta,
    finish_reason: Option<String>,
}

#[derive(Deserialize, Default)]
struct Delta {
    content: Option<String>,
    tool_calls: Option<Vec<CallPiece>>,
}

#[derive(Deserialize)]
struct CallPiece {
    index: Option<usize>,
    id: Option<String>,
    function: Option<FunctionPiece>,
}

#[derive(Deserialize)]
struct FunctionPiece {
    name: Option<String>,
    arguments: Option<String>,
}

impl AnswerReader {
    /// A reader that has seen nothing.
    #[must_use]
    pub fn new(limits: AnswerLimits) -> Self {
        Self {
            limits,
            decoder: Decoder::new(limits.event_bytes),
            text: String::new(),
            arguments_bytes: 0,
            calls: Vec::new(),
            reason: None,
            usage: None,
            done: Done::No,
        }
    }

    /// Takes the next bytes of an event stream, cut anywhere; returns the text that they add, which may be empty.
    ///
    /// # Errors
    /// As [`BrokenAnswer`] lists. The answer is lost then.
    pub fn push(&mut self, bytes: &[u8]) -> Result<String, BrokenAnswer> {
        let limit = self.limits.event_bytes;
        let events = self.decoder.push(bytes);
        let events = events.map_err(|_| BrokenAnswer::TooLarge { what: "event", limit, unit: "bytes" })?;
        let before = self.text.len();
        for event in events {
            if let Decoded::Event { data, .. } = event {
                self.event(&data)?;
            }
        }
        Ok(self.text[before..].to_owned())
    }

    /// Takes a body that is no stream: one object, as servers answer that cannot stream. Returns its text.
    ///
    /// # Errors
    /// As [`BrokenAnswer`] lists.
    pub fn whole(&mut self, body: &[u8]) -> Result<String, BrokenAnswer> {
        self.chunk(body)?;
        self.done = Done::Yes;
        Ok(self.text.clone())
    }

    /// True once the server has said that nothing more comes: the connection need not be read to its end.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.done == Done::Yes
    }

    /// The answer, once the stream has ended.
    ///
    /// # Errors
    /// [`BrokenAnswer::CutOff`] unless the server gave a reason for the end. `[DONE]` alone is none: proxies write it after
    /// a failure too.
    pub fn finish(mut self) -> Result<Answer, BrokenAnswer> {
        let Some(reason) = self.reason else { return Err(BrokenAnswer::CutOff) };
        if let Some(nameless) = self.calls.iter().position(|call| call.name.is_empty()) {
            return Err(BrokenAnswer::Malformed(format!("tool_calls[{nameless}]: has no name")));
        }
        self.make_ids_unique();
        // Some servers say "stop" although calls are there.
        let reason = match reason {
            FinishReason::Stop if !self.calls.is_empty() => FinishReason::ToolCalls,
            other => other,
        };
        Ok(Answer { text: self.text, calls: self.calls, reason, usage: self.usage })
    }

    fn make_ids_unique(&mut self) {
        for index in 0..self.calls.len() {
            let (before, rest) = self.calls.split_at_mut(index);
            let call = &mut rest[0];
            if call.id.is_empty() || before.iter().any(|other| other.id == call.id) {
                call.id = format!("call_{index}");
            }
        }
    }

    fn event(&mut self, data: &str) -> Result<(), BrokenAnswer> {
        match data.trim() {
            _ if self.done == Done::Yes => Ok(()),
            "[DONE]" => {
                self.done = Done::Yes;
                Ok(())
            }
            "" => Ok(()),
            chunk => self.chunk(chunk.as_bytes()),
        }
    }

    fn chunk(&mut self, json: &[u8]) -> Result<(), BrokenAnswer> {
        let chunk: Chunk = serde_json::from_slice(json).map_err(|error| BrokenAnswer::Malformed(error.to_string()))?;
        if let Some(error) = chunk.error.filter(|error| !error.is_null()) {
            return Err(BrokenAnswer::Server(error_text(&error)));
        }
        self.usage = chunk.usage.or(self.usage);
        // Only one answer was asked for.
        for choice in chunk.choices.into_iter().filter(|choice| choice.index == 0) {
            self.text_piece(&choice.delta.content.unwrap_or_default())?;
            for piece in choice.delta.tool_calls.unwrap_or_default() {
                self.call_piece(piece)?;
            }
            self.reason = choice.finish_reason.as_deref().map(FinishReason::read).or(self.reason);
        }
        Ok(())
    }

    fn text_piece(&mut self, text: &str) -> Result<(), BrokenAnswer> {
        let limit = self.limits.text_bytes;
        if self.text.len() + text.len() > limit {
            return Err(BrokenAnswer::TooLarge { what: "text", limit, unit: "bytes" });
        }
        self.text.push_str(text);
        Ok(())
    }

    fn call_piece(&mut self, piece: CallPiece) -> Result<(), BrokenAnswer> {
        let FunctionPiece { name, arguments } = piece.function.unwrap_or(FunctionPiece { name: None, arguments: None });
        let limit = self.limits.text_bytes;
        self.arguments_bytes += name.as_deref().map_or(0, str::len) + arguments.as_deref().map_or(0, str::len);
        if self.arguments_bytes > limit {
            return Err(BrokenAnswer::TooLarge { what: "tool_calls", limit, unit: "bytes" });
        }
        let index = self.place_of(piece.index, piece.id.as_deref(), name.as_deref());
        if index >= self.limits.calls {
            return Err(BrokenAnswer::TooLarge { what: "tool_calls", limit: self.limits.calls, unit: "calls" });
        }
        if index > self.calls.len() {
            let detail = format!("tool_calls: number {index} comes before number {}", self.calls.len());
            return Err(BrokenAnswer::Malformed(detail));
        }
        if index == self.calls.len() {
            self.calls.push(AskedCall::default());
        }
        let call = &mut self.calls[index];
        // Servers repeat id and name in later pieces, or send them again as empty texts.
        if call.id.is_empty() {
            call.id = piece.id.unwrap_or_default();
        }
        if call.name.is_empty() {
            call.name = name.unwrap_or_default();
        }
        call.arguments.push_str(&arguments.unwrap_or_default());
        Ok(())
    }

    /// Which call a piece belongs to. Without an index: a new one if it brings another id, or a name and no id, else the last.
    fn place_of(&self, index: Option<usize>, id: Option<&str>, name: Option<&str>) -> usize {
        let id = id.filter(|id| !id.is_empty());
        let starts = match (self.calls.last(), id) {
            (None, _) => true,
            (Some(last), Some(id)) => last.id != id,
            (Some(_), None) => name.is_some_and(|name| !name.is_empty()),
        };
        index.unwrap_or(if starts { self.calls.len() } else { self.calls.len() - 1 })
    }
}

impl FinishReason {
    fn read(text: &str) -> Self {
        match text {
            "tool_calls" | "function_call" => Self::ToolCalls,
            "length" => Self::Length,
            "content_filter" => Self::ContentFilter,
            _ => Self::Stop,
        }
    }
}

/// The message of an error object; servers nest it, or send a text.
fn error_text(error: &Value) -> String {
    let text = match error {
        Value::String(text) => text.clone(),
        Value::Object(fields) => {
            fields.get("message").and_then(Value::as_str).map_or_else(|| error.to_string(), str::to_owned)
        }
        other => other.to_string(),
    };
    text.chars().take(ERROR_MAX_CHARS).collect()
}
