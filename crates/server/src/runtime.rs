//! The seams in production: tokio's tasks and timers, the machine's clocks, the operating system's randomness.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use conch_core::time::{Monotonic, Timestamp};
use futures_util::future::BoxFuture;
use rustix::time::{ClockId, clock_gettime};

use crate::seams::{Clock, Random, Seams, Spawn};

/// The seams of a process whose tasks run on the current tokio runtime.
#[must_use]
pub fn seams() -> Seams {
    Seams { clock: Arc::new(MachineClock), spawner: Arc::new(TokioSpawn), random: Arc::new(SystemRandom) }
}

/// The machine's clocks.
#[derive(Debug, Clone, Copy)]
pub struct MachineClock;

impl Clock for MachineClock {
    fn now(&self) -> Monotonic {
        let now = clock_gettime(ClockId::Boottime);
        let (seconds, nanos) = (u64::try_from(now.tv_sec).unwrap_or(0), u64::try_from(now.tv_nsec).unwrap_or(0));
        Monotonic(seconds * 1_000_000_000 + nanos)
    }

    fn wall(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }

    /// A suspended machine does not wake for it; whoever acts afterwards looks at [`Clock::now`] again.
    fn sleep_until(&self, at: Monotonic) -> BoxFuture<'static, ()> {
        let left = at.since(self.now());
        // Timers are kept in milliseconds; a sleep that ended early would look like a clock that stands still.
        Box::pin(tokio::time::sleep(left + Duration::from_micros(1)))
    }
}

struct TokioSpawn;

impl Spawn for TokioSpawn {
    fn spawn(&self, _name: &'static str, task: BoxFuture<'static, ()>) {
        tokio::spawn(task);
    }

    fn spawn_dedicated(&self, name: &'static str, task: BoxFuture<'static, ()>) {
        let spawned = std::thread::Builder::new().name(format!("conch-{name}")).spawn(move || {
            match tokio::runtime::Builder::new_current_thread().enable_time().build() {
                Ok(runtime) => runtime.block_on(task),
                Err(error) => tracing::error!(%error, name, "a thread has no runtime"),
            }
        });
        if let Err(error) = spawned {
            tracing::error!(%error, name, "no thread could be had");
        }
    }
}

struct SystemRandom;

impl Random for SystemRandom {
    fn bits(&self) -> u64 {
        rand::random()
    }
}
