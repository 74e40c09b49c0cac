//! Whether the node wants traffic.
//!
//! Invariant: the state only moves forward. A node that drains or lost its lease never becomes ready again; its process ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// How far the node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReadinessState {
    /// Start-up is not complete.
    Starting = 0,
    /// It takes traffic.
    Ready = 1,
    /// It finishes what it has, and takes nothing new.
    Draining = 2,
    /// It may own nothing any more.
    LeaseLost = 3,
}

impl ReadinessState {
    /// The name on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Draining => "draining",
            Self::LeaseLost => "lease_lost",
        }
    }

    /// For people.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::Starting => "start-up is not complete",
            Self::Ready => "the node takes traffic",
            Self::Draining => "the node is shutting down",
            Self::LeaseLost => "the node's lease has ended; the process will exit",
        }
    }

    fn from_number(number: u8) -> Self {
        match number {
            0 => Self::Starting,
            1 => Self::Ready,
            2 => Self::Draining,
            _ => Self::LeaseLost,
        }
    }
}

/// The shared state; cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Readiness(Arc<AtomicU8>);

impl Readiness {
    /// A node that starts.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves forward to `state`; a step back changes nothing.
    pub fn advance(&self, state: ReadinessState) {
        self.0.fetch_max(state as u8, Ordering::SeqCst);
    }

    /// The state now.
    #[must_use]
    pub fn state(&self) -> ReadinessState {
        ReadinessState::from_number(self.0.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::ReadinessState::{Draining, LeaseLost, Ready, Starting};
    use super::*;

    #[test]
    fn it_only_moves_forward() {
        let all = [Starting, Ready, Draining, LeaseLost];
        for from in all {
            for to in all {
                let readiness = Readiness::new();
                readiness.advance(from);
                readiness.clone().advance(to);
                assert_eq!(readiness.state(), from.max(to), "{from:?} to {to:?}");
            }
        }
    }
}
