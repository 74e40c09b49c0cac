//! The seams between Conch and its surroundings: tasks, clocks and randomness.
//!
//! Everything that has to run in the simulation (owner, router, hub, heartbeat) gets these from outside and uses, besides
//! them, only runtime-independent primitives (`tokio::sync` channels, futures). So the seeded executor of `conch-sim`
//! can run the very same code in simulated time.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use conch_core::ids::Incarnation;
use conch_core::time::{Monotonic, Timestamp};
use futures_util::future::BoxFuture;

/// Time.
pub trait Clock: Send + Sync + 'static {
    /// The boot-time clock (`CLOCK_BOOTTIME`): goes on while the machine is suspended.
    fn now(&self) -> Monotonic;
    /// The calendar, for tokens' expiry; never for ownership.
    fn wall(&self) -> Timestamp;
    /// Completes at or after `at`.
    fn sleep_until(&self, at: Monotonic) -> BoxFuture<'static, ()>;
}

/// Tasks.
pub trait Spawn: Send + Sync + 'static {
    /// Runs a task to its end, beside the others.
    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>);
    /// Runs a task on an operating-system thread of its own, which no other task can starve.
    fn spawn_dedicated(&self, name: &'static str, task: BoxFuture<'static, ()>);
}

/// Randomness.
pub trait Random: Send + Sync + 'static {
    /// 64 random bits.
    fn bits(&self) -> u64;
}

/// The three together; cheap to clone.
#[derive(Clone)]
pub struct Seams {
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Tasks.
    pub spawner: Arc<dyn Spawn>,
    /// Randomness.
    pub random: Arc<dyn Random>,
}

impl Seams {
    /// The boot-time clock.
    #[must_use]
    pub fn now(&self) -> Monotonic {
        self.clock.now()
    }

    /// Completes after `duration`.
    pub fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.clock.sleep_until(self.now() + duration)
    }

    /// Runs a task beside the others.
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.spawner.spawn(name, Box::pin(task));
    }

    /// A fresh incarnation (a random UUID, version 4).
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        let bits = (u128::from(self.random.bits()) << 64) | u128::from(self.random.bits());
        Incarnation((bits & !(0xf_u128 << 76) & !(0x3_u128 << 62)) | (0x4_u128 << 76) | (0x2_u128 << 62))
    }

    /// A random duration below `bound`.
    #[must_use]
    pub fn jitter(&self, bound: Duration) -> Duration {
        let nanos = u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX);
        if nanos == 0 { Duration::ZERO } else { Duration::from_nanos(self.random.bits() % nanos) }
    }
}
