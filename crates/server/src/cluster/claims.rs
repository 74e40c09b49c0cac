//! The rate of claims that nobody waits for: after a node's death its thousands of conversations are not all claimed at
//! once. Conversations with a waiting sender or due work skip this queue.
//!
//! Invariant: who is not admitted is told when to come again, and nobody is queued here.

use std::sync::Mutex;
use std::time::Duration;

use conch_core::limit::TokenBucket;
use conch_core::time::Monotonic;

/// Who wants a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// A sender waits, or work is due.
    Waiting,
    /// A follower, or nobody.
    Background,
}

/// See the module's description. One for each node.
#[derive(Debug)]
pub struct ClaimRate(Mutex<TokenBucket>);

impl ClaimRate {
    /// So many a second, and so many at once.
    #[must_use]
    pub fn new(per_second: u32, burst: u32) -> Self {
        Self(Mutex::new(TokenBucket::new(per_second, burst)))
    }

    /// Admits a claim, or says how long to wait before asking again; add jitter.
    ///
    /// # Errors
    /// The time until the next one is admitted.
    pub fn admit(&self, now: Monotonic, urgency: Urgency) -> Result<(), Duration> {
        match urgency {
            Urgency::Waiting => Ok(()),
            Urgency::Background => self.0.lock().expect("no holder of the bucket panics").take(now, 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_herd_is_spread_and_a_waiting_sender_skips_the_queue() {
        let (rate, at) = (ClaimRate::new(10, 2), |ms: u64| Monotonic(ms * 1_000_000));
        let admitted = (0..1_000).filter(|ms| rate.admit(at(*ms), Urgency::Background).is_ok()).count();
        assert_eq!(admitted, 2 + 9, "in a second: the burst and the rate");
        assert_eq!(rate.admit(at(999), Urgency::Background), Err(Duration::from_millis(1)));
        assert_eq!(rate.admit(at(999), Urgency::Waiting), Ok(()));
    }
}
