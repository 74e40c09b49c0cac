//! How hard a gateway works, and what it sheds because of that.
//!
//! Workers report the time for which they were busy and how full their queues are; four times a second a look makes the
//! load of them, the core's ladder makes the rung of that ([`conch_core::shed`]), and everybody who sheds reads the rung.
//! Invariant: reporting and reading never wait. The load is that of the busiest worker: the sockets of that one suffer,
//! whatever the others do.
//!
//! Deliberately absent: the shedding itself, and a clock of its own.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use conch_core::presence::Telling;
use conch_core::shed::{Ladder, Load, Permille, Rung};
use conch_core::time::Monotonic;

use crate::node::Node;
use crate::rules::Rule;

/// Workers that are told from each other; those beyond share.
pub const WORKERS_MAX: usize = 64;
/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Of a pass that took longer than the time between two looks, this much is told by the looks after it.
const CARRIED_AT_MOST: Duration = Duration::from_secs(1);

/// What one worker reported.
#[derive(Debug, Default)]
struct Worker {
    /// Nanoseconds since the last look.
    busy: AtomicU64,
    /// Thousandths.
    queued: AtomicU16,
    /// Thousandths, the most since the last look.
    late: AtomicU16,
}

/// See the module.
#[derive(Debug)]
pub struct Pressure {
    workers: [Worker; WORKERS_MAX],
    /// The last look's pressure, in thousandths.
    permille: AtomicU16,
    rung: AtomicU8,
    looks: Mutex<Looks>,
}

#[derive(Debug, Default)]
struct Looks {
    ladder: Ladder,
    last: Option<Monotonic>,
}

impl Default for Pressure {
    fn default() -> Self {
        Self {
            workers: std::array::from_fn(|_| Worker::default()),
            permille: AtomicU16::new(0),
            rung: AtomicU8::new(Rung::Calm.number()),
            looks: Mutex::default(),
        }
    }
}

impl Pressure {
    /// A worker was busy for so long; a long pass had better be reported in parts.
    pub fn busy(&self, worker: usize, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.worker(worker).busy.fetch_add(nanos, Ordering::Relaxed);
    }

    /// So much of the room for a worker's waiting bytes is taken, until it says otherwise.
    pub fn queued(&self, worker: usize, share: Permille) {
        self.worker(worker).queued.store(share.get(), Ordering::Relaxed);
    }

    /// A conversation was written so much of its window too late.
    pub fn late(&self, worker: usize, share: Permille) {
        self.worker(worker).late.fetch_max(share.get(), Ordering::Relaxed);
    }

    /// What is shed now.
    #[must_use]
    pub fn rung(&self) -> Rung {
        Rung::from_number(self.rung.load(Ordering::Relaxed))
    }

    /// The pressure as of the last look.
    #[must_use]
    pub fn permille(&self) -> Permille {
        Permille::new(self.permille.load(Ordering::Relaxed))
    }

    /// The pressure as windows feel it: none before it is their turn to grow.
    #[must_use]
    pub fn on_windows(&self) -> Permille {
        if self.rung() >= Rung::WindowsGrow { self.permille() } else { Permille::NONE }
    }

    /// How presence is told at most.
    #[must_use]
    pub fn telling(&self) -> Telling {
        match self.rung() {
            Rung::Calm | Rung::NoTyping => Telling::Names,
            Rung::PresenceCounts => Telling::Counts,
            Rung::NoPresence | Rung::WindowsGrow | Rung::CatchUpSlows | Rung::NoNewcomers => Telling::Nothing,
        }
    }

    fn worker(&self, number: usize) -> &Worker {
        &self.workers[number % WORKERS_MAX]
    }

    /// Makes the rung of what was reported since the last look.
    pub(crate) fn look(&self, now: Monotonic) -> Rung {
        // A ladder that a panic left half climbed is as good as another.
        let mut looks = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(last) = looks.last.replace(now) else { return looks.ladder.rung() };
        let span = u64::try_from(now.since(last).as_nanos()).unwrap_or(u64::MAX);
        if span == 0 {
            return looks.ladder.rung();
        }
        let load = self.workers.iter().fold(Load::default(), |load, worker| Load {
            busy: load.busy.max(Permille::of(worker.take_busy(span), span)),
            queued: load.queued.max(Permille::new(worker.queued.load(Ordering::Relaxed))),
            late: load.late.max(Permille::new(worker.late.swap(0, Ordering::Relaxed))),
        });
        let rung = looks.ladder.look(now, load);
        self.permille.store(load.pressure().get(), Ordering::Relaxed);
        self.rung.store(rung.number(), Ordering::Relaxed);
        rung
    }
}

impl Worker {
    /// How much of the last `span` nanoseconds it was busy; what is more is left for the next look, bounded.
    fn take_busy(&self, span: u64) -> u64 {
        let reported = self.busy.swap(0, Ordering::Relaxed);
        let carried_at_most = u64::try_from(CARRIED_AT_MOST.as_nanos()).expect("a second is a number of nanoseconds");
        let carried = reported.saturating_sub(span).min(carried_at_most);
        if carried > 0 {
            self.busy.fetch_add(carried, Ordering::Relaxed);
        }
        reported.min(span)
    }
}

/// Looks for as long as there is a gateway.
pub(crate) async fn watch<T>(node: Arc<Node>, gateway: Weak<T>) {
    while gateway.strong_count() > 0 {
        node.seams.sleep(LOOK_EVERY).await;
        if !node.rules.hold(Rule::PressureSheds) {
            continue;
        }
        let before = node.pressure.rung();
        let rung = node.pressure.look(node.seams.now());
        node.metrics.shed_rung.set(rung.number().into());
        if rung != before {
            let permille = node.pressure.permille().get();
            tracing::info!(?before, ?rung, permille, "what the gateway sheds has changed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: Duration = LOOK_EVERY;

    fn after(looks: u32) -> Monotonic {
        Monotonic(0) + LOOK * looks
    }

    #[test]
    fn the_busiest_worker_counts() {
        let pressure = Pressure::default();
        pressure.look(after(0));
        pressure.busy(0, LOOK / 10);
        pressure.busy(3, LOOK / 4);
        pressure.busy(3, LOOK / 4);
        pressure.look(after(1));
        assert_eq!(pressure.permille().get(), 500);
        pressure.look(after(2));
        assert_eq!(pressure.permille().get(), 0, "nobody reported since");
        pressure.queued(WORKERS_MAX + 1, Permille::new(900));
        for look in 3..5 {
            pressure.look(after(look));
            assert_eq!(pressure.permille().get(), 900, "it holds until it is said otherwise");
        }
        pressure.queued(1, Permille::NONE);
        pressure.look(after(5));
        pressure.look(after(5));
        assert_eq!(pressure.permille().get(), 0);
    }

    #[test]
    fn a_long_pass_counts_for_as_long_as_it_took_and_a_bit_at_most() {
        let pressure = Pressure::default();
        pressure.look(after(0));
        pressure.busy(0, LOOK * 3 + LOOK / 2);
        let told: Vec<u16> = (1..=5)
            .map(|look| {
                pressure.look(after(look));
                pressure.permille().get()
            })
            .collect();
        assert_eq!(told, [1_000, 1_000, 1_000, 500, 0]);
        pressure.busy(0, Duration::from_secs(3_600));
        let high = (6..100).filter(|look| {
            pressure.look(after(*look));
            pressure.permille() == Permille::ALL
        });
        assert_eq!(high.count(), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn who_looks_ends_with_the_gateway() {
        let node = crate::testing::node(&crate::config::Config::default(), crate::testing::empty_store());
        let gateway = Arc::new(());
        let mut looking = Box::pin(watch(node, Arc::downgrade(&gateway)));
        assert!(tokio::time::timeout(LOOK * 10, &mut looking).await.is_err());
        drop(gateway);
        assert!(tokio::time::timeout(LOOK * 10, looking).await.is_ok());
    }

    #[test]
    fn the_rung_says_what_is_told_of_presence_and_when_windows_grow() {
        let pressure = Pressure::default();
        let mut seen = vec![(Rung::Calm, Telling::Names, 0)];
        for look in 0..60 {
            pressure.busy(7, LOOK);
            pressure.late(7, Permille::ALL);
            pressure.look(after(look));
            let now = (pressure.rung(), pressure.telling(), pressure.on_windows().get());
            if seen.last() != Some(&now) {
                seen.push(now);
            }
        }
        let expected = [
            (Rung::Calm, Telling::Names, 0),
            (Rung::NoTyping, Telling::Names, 0),
            (Rung::PresenceCounts, Telling::Counts, 0),
            (Rung::NoPresence, Telling::Nothing, 0),
            (Rung::WindowsGrow, Telling::Nothing, 1_000),
            (Rung::CatchUpSlows, Telling::Nothing, 1_000),
            (Rung::NoNewcomers, Telling::Nothing, 1_000),
        ];
        assert_eq!(seen, expected);
    }
}
