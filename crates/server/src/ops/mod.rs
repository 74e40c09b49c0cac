//! Operations: is the node alive, is it ready, what does it count.
//!
//! Invariant: these answers come from a thread, a runtime and a listener of their own, and take no lock that a request
//! holds, so that load cannot delay them. Busy is alive; only a worker that makes no progress at all is dead.
//!
//! Deliberately absent: authentication (keep the listener off public networks) and any call that changes something.

mod listener;
mod progress;
mod readiness;

pub use listener::{CONNECTIONS_MAX, HEADER_MAX_BYTES, Ops, OpsListener};
pub use progress::{ProgressBoard, TooManyWorkers, WORKERS_MAX, Worker, WorkerState, WorkerView};
pub use readiness::{Readiness, ReadinessState};
