//! The part of OpenAI's chat completions (`POST …/v1/chat/completions`, streamed) that an agent needs, as every compatible
//! server understands it: hosted models, vLLM, llama.cpp, Ollama.
//!
//! [`request`] writes the body of a call; an [`AnswerReader`] takes the bytes of the answer as they come, shows text at
//! once, and holds the tool calls back until they are whole.
//!
//! Invariants: no input makes the reader panic; it holds at most its [`AnswerLimits`] in memory; it says that an answer is
//! whole only if the server said so, so that a broken stream is never taken for a short answer.
//!
//! Deliberately absent: sockets, retries, and what a tool call means.

mod answer;
mod request;
#[cfg(test)]
mod tests;

pub use answer::{Answer, AnswerLimits, AnswerReader, AskedCall, BrokenAnswer, FinishReason, Usage};
pub use request::{ChatMessage, ChatRequest, ToolSpec};
