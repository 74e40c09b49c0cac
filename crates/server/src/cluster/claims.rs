//! The rate of claims that nobody waits for: after a node's death its thousands of conversations are not all claimed at
//! once. Conversations with a waiting sender or due work skip this queue.
//!
//! Invariants: who is not admitted is told when to come again, each at another time, and is admitted then; until then the
//! store is looked at once in [`LOOK_ANYWAY`] at most. What is remembered is bounded, and nobody is queued here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use conch_core::ids::ConvKey;
use conch_core::time::Monotonic;

/// Promises remembered at once. Whoever is told to wait beyond that is told so again when it comes.
const PROMISES_MAX: usize = 65_536;
/// How long a promise waits for somebody who does not come.
const KEPT: Duration = Duration::from_secs(10);
/// Who waits for a promise finds this often whether somebody else owns the conversation by now.
pub const LOOK_ANYWAY: Duration = Duration::from_secs(2);

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
pub struct ClaimRate(Mutex<Promises>);

#[derive(Debug)]
struct Promises {
    /// Time between two claims.
    interval: Duration,
    /// How far the claims may be ahead of their time: a burst's worth.
    ahead: Duration,
    /// When the next claim is due if nobody is ever ahead.
    next: Monotonic,
    made: BTreeMap<ConvKey, Promise>,
    by_time: BTreeSet<(Monotonic, ConvKey)>,
}

#[derive(Debug, Clone, Copy)]
struct Promise {
    /// When it is admitted.
    at: Monotonic,
    /// When the store was last looked at for it.
    looked: Monotonic,
}

impl ClaimRate {
    /// So many a second, and so many at once; each at least 1.
    #[must_use]
    pub fn new(per_second: u32, burst: u32) -> Self {
        let interval = Duration::from_secs(1) / per_second.max(1);
        Self(Mutex::new(Promises {
            interval,
            ahead: interval * burst.saturating_sub(1),
            next: Monotonic(0),
            made: BTreeMap::new(),
            by_time: BTreeSet::new(),
        }))
    }

    fn promises(&self) -> MutexGuard<'_, Promises> {
        self.0.lock().expect("no holder of the promises panics")
    }

    /// How long this conversation has still to wait for its claim, unless it is time to look at the store for it, which this
    /// call then counts as done.
    #[must_use]
    pub fn still_waits(&self, now: Monotonic, conversation: ConvKey) -> Option<Duration> {
        let mut promises = self.promises();
        let promise = promises.made.get_mut(&conversation).filter(|promise| now < promise.at)?;
        if now.since(promise.looked) >= LOOK_ANYWAY {
            promise.looked = now;
            return None;
        }
        Some(promise.at.since(now))
    }

    /// Admits a claim, or says how long to wait before asking again.
    ///
    /// # Errors
    /// The time until this one is admitted.
    pub fn admit(&self, now: Monotonic, conversation: ConvKey, urgency: Urgency) -> Result<(), Duration> {
        match urgency {
            Urgency::Waiting => Ok(()),
            Urgency::Background => self.promises().admit(now, conversation),
        }
    }
}

impl Promises {
    fn admit(&mut self, now: Monotonic, conversation: ConvKey) -> Result<(), Duration> {
        self.forget_broken(now);
        if let Some(promise) = self.made.get(&conversation).copied() {
            if now < promise.at {
                return Err(promise.at.since(now));
            }
            self.made.remove(&conversation);
            self.by_time.remove(&(promise.at, conversation));
            return Ok(());
        }
        let ahead = u64::try_from(self.ahead.as_nanos()).unwrap_or(u64::MAX);
        let at = Monotonic(self.next.0.saturating_sub(ahead));
        if at <= now {
            self.next = self.next.max(now) + self.interval;
            return Ok(());
        }
        if self.made.len() < PROMISES_MAX {
            self.next = self.next + self.interval;
            self.made.insert(conversation, Promise { at, looked: now });
            self.by_time.insert((at, conversation));
        }
        Err(at.since(now))
    }

    /// Those for whom nobody came.
    fn forget_broken(&mut self, now: Monotonic) {
        while let Some((at, conversation)) = self.by_time.first().copied().filter(|(at, _)| *at + KEPT < now) {
            self.by_time.remove(&(at, conversation));
            self.made.remove(&conversation);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Monotonic {
        Monotonic(ms * 1_000_000)
    }

    fn key(number: u64) -> ConvKey {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&number.to_be_bytes());
        ConvKey(key)
    }

    #[test]
    fn a_herd_is_spread_and_a_waiting_sender_skips_the_queue() {
        let rate = ClaimRate::new(10, 2);
        let told: Vec<_> = (0..12).map(|number| rate.admit(at(0), key(number), Urgency::Background)).collect();
        assert_eq!(told[..2], [Ok(()), Ok(())], "the burst");
        let waits: Vec<_> = (1..11).map(|tenth| Err(Duration::from_millis(tenth * 100))).collect();
        assert_eq!(told[2..], waits, "each at another time");
        assert_eq!(rate.admit(at(0), key(11), Urgency::Waiting), Ok(()));
        let admitted = (0..1_000).flat_map(|ms| (2..12).map(move |number| (ms, number)));
        let admitted = admitted.filter(|(ms, number)| rate.admit(at(*ms), key(*number), Urgency::Background).is_ok());
        assert_eq!(admitted.count(), 9, "in a second: the rate");
    }

    #[test]
    fn a_promise_is_kept_whoever_comes_meanwhile() {
        let rate = ClaimRate::new(10, 1);
        assert_eq!(rate.admit(at(0), key(0), Urgency::Background), Ok(()));
        let wait = Duration::from_millis(100);
        assert_eq!(rate.admit(at(0), key(1), Urgency::Background), Err(wait));
        assert_eq!(rate.admit(at(0), key(1), Urgency::Background), Err(wait), "the same one is told the same");
        for number in 2..20 {
            assert!(rate.admit(at(99), key(number), Urgency::Background).is_err());
        }
        assert_eq!(rate.admit(at(150), key(1), Urgency::Background), Ok(()));
        assert!(rate.admit(at(150), key(1), Urgency::Background).is_err(), "it holds once");
    }

    #[test]
    fn until_then_the_store_is_looked_at_now_and_then() {
        let rate = ClaimRate::new(1, 1);
        for number in 0..6 {
            let _ = rate.admit(at(0), key(number), Urgency::Background);
        }
        assert_eq!(rate.still_waits(at(0), key(9)), None, "nothing is promised");
        let looks = (0..5_000).filter(|ms| rate.still_waits(at(*ms), key(5)).is_none()).count();
        assert_eq!(looks, 2);
        assert_eq!(rate.still_waits(at(5_000), key(5)), None, "its time has come");
    }

    #[test]
    fn promises_are_bounded_and_those_that_nobody_fetches_go() {
        let rate = ClaimRate::new(100_000, 1);
        for number in 0..PROMISES_MAX as u64 + 10 {
            let _ = rate.admit(at(0), key(number), Urgency::Background);
        }
        assert_eq!(rate.promises().made.len(), PROMISES_MAX);
        let _ = rate.admit(at(60_000), key(1), Urgency::Background);
        let promises = rate.promises();
        assert_eq!((promises.made.len(), promises.by_time.len()), (0, 0));
    }
}
