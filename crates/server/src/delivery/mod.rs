//! Delivery workers: they write what hubs show and sockets are answered, each to the sessions that are pinned to it.
//!
//! A hub hands a frame over once to each worker that has sessions of its conversation ([`shard`]), whatever their number. A
//! socket's answers are queued and its worker is told, once ([`Write`]). A worker that runs takes everything that was handed over
//! by then: so what several hubs show one socket, and what it is answered, leave together, the more so the busier the node is.
//!
//! Invariants:
//! - D1: while a session is live, what is shown to it comes from the worker that it is pinned to; before that from its hub and its
//!   catch-up, which end before it is added. Bytes leave in the order in which they were pushed.
//! - D2: what one hub hands over to a shard is taken in that order. A session is shown exactly the records that its hub handed
//!   over after it was added, above its position, each once, until it is reported to be behind or is removed.
//! - D3: the frames that wait for a worker are bounded, whatever becomes of the worker: over the bound live events are left out, and
//!   if that is not enough the sessions of the shard are reported to be behind, and catch up.
//! - D4: within a coalescing window each session is written to once, and no frame waits for longer than the window and a pass.
//! - D5: whatever is done for all sessions of a room is done in pieces; between two of them everything else that waits for the worker
//!   has its turn.
//!
//! Deliberately absent: threads of their own. Workers are tasks, which the runtime moves to a thread that is free.

mod batch;
mod sessions;
pub(crate) mod shard;
#[cfg(test)]
mod tests;
mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use conch_core::time::Monotonic;

pub use batch::Batch;
pub(crate) use batch::Shown;
pub(crate) use worker::Worker;

use crate::node::Node;
use crate::ops::{ProgressBoard, TooManyWorkers};

/// Something that has bytes to write. Called by its worker only.
pub(crate) trait Write: Send + Sync + 'static {
    /// Writes what the kernel takes now. Never waits.
    fn write(&self);
}

/// The workers of a gateway, which end when this is dropped.
pub(crate) struct Workers {
    workers: Vec<Arc<Worker>>,
    next: AtomicUsize,
}

impl Workers {
    /// Starts so many, at least one.
    pub(crate) fn start(node: &Arc<Node>, count: usize) -> Self {
        let workers = (0..count.max(1)).map(|number| Worker::start(node, number)).collect();
        Self { workers, next: AtomicUsize::new(0) }
    }

    /// The worker for a new connection: each in turn.
    pub(crate) fn pin(&self) -> &Arc<Worker> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        &self.workers[number % self.workers.len()]
    }

    /// Has them say on the board that they move.
    ///
    /// # Errors
    /// When the board is full.
    pub(crate) fn report_to(&self, board: &ProgressBoard, now: Monotonic) -> Result<(), TooManyWorkers> {
        for worker in &self.workers {
            worker.report_to(board.register(format!("delivery-{}", worker.number), now)?);
        }
        Ok(())
    }

    pub(crate) fn all(&self) -> &[Arc<Worker>] {
        &self.workers
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.workers.iter().for_each(|worker| worker.end());
    }
}
