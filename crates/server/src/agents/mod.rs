//! The kinds of agents that call out: models with an OpenAI-compatible API and their tools, and workers over HTTP.
//!
//! Invariants: whom an agent calls is in the operator's configuration, never in what a client or a model says; a redirect is
//! never followed; whatever comes back is bounded before it is read; a call that is dropped closes its connection.
//!
//! Deliberately absent: resuming, the journal, waiting and limits of a turn, which are [`crate::turn`]'s; and the simulation, which
//! has no sockets.

mod callback;
mod http;
pub mod model;
mod openai;
mod tool;
mod worker;

pub use callback::{Asked, Callbacks, PATH as CALLBACK_PATH};
pub use http::{BadUrl, Trouble};
pub use openai::ModelAgent;
pub use worker::WorkerAgent;
