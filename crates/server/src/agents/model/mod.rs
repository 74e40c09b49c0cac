//! Calls of a model: any server with an OpenAI-compatible `/v1/chat/completions`.
//!
//! Invariants: text is shown in the order in which it came; an answer is whole or an error, never silently short; a call
//! that is dropped closes its connection, so that nothing of it is read any more; a redirect is never followed, so that
//! the key goes to the configured host alone.
//!
//! Deliberately absent: repetitions. [`CallError::patience`] says whether one can help and when; the turn has the budget.

mod client;
#[cfg(test)]
mod tests;

pub use client::{CallError, InvalidEndpoint, ModelClient, ModelEndpoint, Patience, Timeouts};
