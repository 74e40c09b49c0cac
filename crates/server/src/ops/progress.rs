//! Which workers make progress.
//!
//! A worker (a loop or a thread that must never stand still) registers and then ticks at least every few seconds, idle or
//! not. Busy is slow to tick and alive; a worker that has not ticked for the limit is wedged, and the node counts as dead.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use conch_core::time::Monotonic;
use serde::Serialize;

/// Most workers at once.
pub const WORKERS_MAX: usize = 1024;
/// A worker that has not ticked for this part of the limit counts as busy.
const BUSY_PART: u32 = 3;

struct Slot {
    name: String,
    ticked_at: AtomicU64,
}

/// All workers; cheap to clone.
#[derive(Clone)]
pub struct ProgressBoard {
    slots: Arc<Mutex<Vec<Arc<Slot>>>>,
    limit: Duration,
}

/// [`WORKERS_MAX`] workers are registered already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{WORKERS_MAX} workers are registered already")]
pub struct TooManyWorkers;

/// How a worker is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkerState {
    /// It ticked lately.
    Moving,
    /// It is late, and still within the limit.
    Busy,
    /// It has not ticked for the limit.
    Wedged,
}

/// A worker as it was seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WorkerView {
    /// Its name.
    pub name: String,
    /// How it is.
    pub state: WorkerState,
    /// Time since its last tick, in milliseconds.
    pub quiet_ms: u64,
}

impl ProgressBoard {
    /// A board on which a worker is wedged once it has not ticked for `limit`.
    #[must_use]
    pub fn new(limit: Duration) -> Self {
        Self { slots: Arc::default(), limit }
    }

    /// Registers a worker, which from now on must tick. It is forgotten when the handle is dropped.
    ///
    /// # Errors
    /// When there are [`WORKERS_MAX`] already.
    pub fn register(&self, name: impl Into<String>, now: Monotonic) -> Result<Worker, TooManyWorkers> {
        let slot = Arc::new(Slot { name: name.into(), ticked_at: AtomicU64::new(now.0) });
        let mut slots = self.slots();
        if slots.len() >= WORKERS_MAX {
            return Err(TooManyWorkers);
        }
        slots.push(slot.clone());
        drop(slots);
        Ok(Worker { slot, board: self.clone() })
    }

    /// Every worker, as of `now`.
    #[must_use]
    pub fn view(&self, now: Monotonic) -> Vec<WorkerView> {
        let view = |slot: &Arc<Slot>| {
            let quiet = now.since(Monotonic(slot.ticked_at.load(Ordering::Relaxed)));
            let state = match quiet {
                quiet if quiet >= self.limit => WorkerState::Wedged,
                quiet if quiet >= self.limit / BUSY_PART => WorkerState::Busy,
                _ => WorkerState::Moving,
            };
            let quiet_ms = u64::try_from(quiet.as_millis()).unwrap_or(u64::MAX);
            WorkerView { name: slot.name.clone(), state, quiet_ms }
        };
        self.slots().iter().map(view).collect()
    }

    /// The list is only ever pushed to and retained, which a panic does not leave half done; so a poisoned lock is good.
    fn slots(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Slot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One worker's handle.
pub struct Worker {
    slot: Arc<Slot>,
    board: ProgressBoard,
}

impl Worker {
    /// Says that the worker moves.
    pub fn tick(&self, now: Monotonic) {
        self.slot.ticked_at.fetch_max(now.0, Ordering::Relaxed);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.board.slots().retain(|slot| !Arc::ptr_eq(slot, &self.slot));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Monotonic = Monotonic(1_000_000_000_000);

    fn at_ms(ms: u64) -> Monotonic {
        START + Duration::from_millis(ms)
    }

    fn states(board: &ProgressBoard, ms: u64) -> Vec<WorkerState> {
        board.view(at_ms(ms)).into_iter().map(|view| view.state).collect()
    }

    #[test]
    fn a_worker_is_wedged_exactly_at_the_limit_and_recovers_with_a_tick() {
        use WorkerState::{Busy, Moving, Wedged};
        let board = ProgressBoard::new(Duration::from_millis(900));
        assert_eq!(states(&board, 0), []);
        let owner = board.register("owner", START).expect("room");
        let commit = board.register("commit", START).expect("room");
        assert_eq!(states(&board, 299), [Moving, Moving]);
        assert_eq!(states(&board, 300), [Busy, Busy]);
        commit.tick(at_ms(800));
        assert_eq!(states(&board, 899), [Busy, Moving]);
        assert_eq!(states(&board, 900), [Wedged, Moving]);
        owner.tick(at_ms(900));
        // A tick that was read earlier and stored later takes nothing back.
        owner.tick(at_ms(100));
        assert_eq!(states(&board, 901), [Moving, Moving]);
        drop(owner);
        assert_eq!(states(&board, 901), [Moving]);
        drop(commit);
        assert_eq!(states(&board, 10_000), []);
    }

    #[test]
    fn the_number_of_workers_is_bounded() {
        let board = ProgressBoard::new(Duration::from_secs(1));
        let mut workers: Vec<Worker> =
            (0..WORKERS_MAX).map(|number| board.register(number.to_string(), START).expect("room")).collect();
        assert!(board.register("one more", START).is_err());
        workers.pop();
        assert!(board.register("one more", START).is_ok());
    }
}
