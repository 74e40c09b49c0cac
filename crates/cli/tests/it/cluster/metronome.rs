//! Time that a busy machine takes from everybody.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Counts how long this machine let a thread wait that wanted to run. A promise about time is not broken by that.
pub(crate) struct Metronome {
    stop: Arc<AtomicBool>,
    lost_us: Arc<AtomicU64>,
}

impl Metronome {
    pub(crate) fn start() -> Self {
        const TICK: Duration = Duration::from_millis(5);
        let (stop, lost_us) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, lost) = (Arc::clone(&stop), Arc::clone(&lost_us));
        std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let before = Instant::now();
                std::thread::sleep(TICK);
                let late = before.elapsed().saturating_sub(TICK);
                lost.fetch_add(u64::try_from(late.as_micros()).expect("a short test"), Ordering::Relaxed);
            }
        });
        Self { stop, lost_us }
    }

    pub(crate) fn lost(&self) -> Duration {
        Duration::from_micros(self.lost_us.load(Ordering::Relaxed))
    }
}

impl Drop for Metronome {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
