//! The history of a run, as it is written while it happens.
//!
//! Invariant: events are in the order in which they happened, because one run has one thread.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use conch_core::history::{Checker, Event, Report};

use crate::executor::Executor;

/// A history under construction; clones are the same one.
#[derive(Clone)]
pub struct History {
    executor: Executor,
    events: Arc<Mutex<Vec<Event>>>,
}

impl History {
    /// An empty one, on the executor's time.
    #[must_use]
    pub fn new(executor: Executor) -> Self {
        Self { executor, events: Arc::default() }
    }

    /// Adds what happens now; `event` is given the time in microseconds.
    pub fn add(&self, event: impl FnOnce(u64) -> Event) {
        let t_us = u64::try_from(self.executor.elapsed().as_micros()).unwrap_or(u64::MAX);
        let event = event(t_us);
        self.executor.world().note(format_args!("history {}", event.to_line()));
        self.events().push(event);
    }

    fn events(&self) -> MutexGuard<'_, Vec<Event>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every event so far, one a line.
    #[must_use]
    pub fn to_lines(&self) -> String {
        self.events().iter().map(|event| event.to_line() + "\n").collect()
    }

    /// Holds it against the invariants.
    #[must_use]
    pub fn check(&self) -> Report {
        let mut checker = Checker::default();
        for event in self.events().iter() {
            checker.event(event).expect("the simulation writes outcomes after invocations, in the order of time");
        }
        checker.finish()
    }
}
