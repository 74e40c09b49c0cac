//! Rate limits: a token bucket, and one for each sender.
//!
//! Invariants: in any span of time a bucket grants at most its burst plus what the span refills; a refused take costs
//! nothing; the map of senders never grows past its limit. Integers only, so that every machine decides alike.
//! Deliberately absent: a clock, and what a refusal looks like.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::ids::Subject;
use crate::time::Monotonic;

/// Tokens a second and sender, by default.
pub const SENDER_RATE_PER_S: u32 = 20;
/// Tokens that a sender may spend at once, by default.
pub const SENDER_BURST: u32 = 100;
/// Most senders remembered at once, by default.
pub const SENDERS_MAX: usize = 100_000;

/// Levels count billionths of a token: one nanosecond at one token a second.
const TOKEN: u64 = 1_000_000_000;

/// A bucket of tokens that refills steadily. Starts full.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenBucket {
    rate_per_s: u32,
    burst: u32,
    /// Billionths of a token, as of `at`.
    level: u64,
    at: Monotonic,
}

impl TokenBucket {
    /// A full bucket of `burst` tokens that gains `rate_per_s` tokens a second. A rate of 0 never refills.
    #[must_use]
    pub fn new(rate_per_s: u32, burst: u32) -> Self {
        Self { rate_per_s, burst, level: u64::from(burst) * TOKEN, at: Monotonic(0) }
    }

    /// Takes `tokens`.
    ///
    /// # Errors
    /// There are not enough: nothing was taken, and this is the time until there would be. [`Duration::MAX`] if that
    /// never comes (more than the burst, or no refill).
    pub fn take(&mut self, now: Monotonic, tokens: u32) -> Result<(), Duration> {
        self.refill(now);
        let wanted = u64::from(tokens) * TOKEN;
        if wanted <= self.level {
            self.level -= wanted;
            return Ok(());
        }
        if tokens > self.burst {
            return Err(Duration::MAX);
        }
        Err(self.time_for(wanted - self.level))
    }

    /// When the bucket will be full again, if nobody takes; the end of time if it does not refill.
    #[must_use]
    pub fn full_at(&self) -> Monotonic {
        let missing = u64::from(self.burst) * TOKEN - self.level;
        if missing == 0 { self.at } else { self.at + self.time_for(missing) }
    }

    fn refill(&mut self, now: Monotonic) {
        // A reading older than the last one refills nothing and does not turn the clock back.
        let gained = now.0.saturating_sub(self.at.0).saturating_mul(u64::from(self.rate_per_s));
        self.level = self.level.saturating_add(gained).min(u64::from(self.burst) * TOKEN);
        self.at = self.at.max(now);
    }

    fn time_for(&self, amount: u64) -> Duration {
        match u64::from(self.rate_per_s) {
            0 => Duration::MAX,
            rate => Duration::from_nanos(amount.div_ceil(rate)),
        }
    }
}

/// A bucket for each sender, bounded.
///
/// A full bucket says no more than none at all, so those are forgotten first; over the limit the next to be full goes,
/// which errs on the sender's side. O(log n) a take.
#[derive(Debug)]
pub struct SenderLimits {
    rate_per_s: u32,
    burst: u32,
    senders_max: usize,
    buckets: BTreeMap<Subject, TokenBucket>,
    /// The same senders by the time at which their bucket is full.
    by_full_at: BTreeSet<(Monotonic, Subject)>,
    /// Buckets that went before they were full.
    evicted: u64,
}

impl SenderLimits {
    /// Limits of `rate_per_s` and `burst` for each of at most `senders_max` senders (at least one).
    #[must_use]
    pub fn new(rate_per_s: u32, burst: u32, senders_max: usize) -> Self {
        let senders_max = senders_max.max(1);
        Self { rate_per_s, burst, senders_max, buckets: BTreeMap::new(), by_full_at: BTreeSet::new(), evicted: 0 }
    }

    /// Takes `tokens` from a sender's bucket.
    ///
    /// # Errors
    /// As [`TokenBucket::take`].
    pub fn take(&mut self, now: Monotonic, sender: &Subject, tokens: u32) -> Result<(), Duration> {
        // One sender comes, so at most two go: the map shrinks again after a rush.
        self.forget_full(now);
        self.forget_full(now);
        let known = self.buckets.get_mut(sender);
        let Some(bucket) = known else { return self.take_first(now, sender, tokens) };
        let before = bucket.full_at();
        let taken = bucket.take(now, tokens);
        let after = bucket.full_at();
        if before != after {
            self.by_full_at.remove(&(before, sender.clone()));
            self.by_full_at.insert((after, sender.clone()));
        }
        taken
    }

    /// Senders remembered; a gauge.
    #[must_use]
    pub fn len(&self) -> usize {
        self.buckets.len()
    }

    /// Senders forgotten before their time, over the limit; a counter.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// True if nobody has sent for a while.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }

    fn take_first(&mut self, now: Monotonic, sender: &Subject, tokens: u32) -> Result<(), Duration> {
        let mut bucket = TokenBucket::new(self.rate_per_s, self.burst);
        bucket.take(now, tokens)?;
        if self.buckets.len() >= self.senders_max
            && let Some((full_at, nearest)) = self.by_full_at.pop_first()
        {
            self.buckets.remove(&nearest);
            self.evicted += u64::from(full_at > now);
        }
        self.by_full_at.insert((bucket.full_at(), sender.clone()));
        self.buckets.insert(sender.clone(), bucket);
        Ok(())
    }

    fn forget_full(&mut self, now: Monotonic) {
        if let Some((full_at, _)) = self.by_full_at.first()
            && *full_at <= now
            && let Some((_, sender)) = self.by_full_at.pop_first()
        {
            self.buckets.remove(&sender);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at_ms(ms: u64) -> Monotonic {
        Monotonic(ms * 1_000_000)
    }

    fn sender(number: usize) -> Subject {
        format!("s{number}").parse().expect("a subject")
    }

    #[test]
    fn a_bucket_grants_its_burst_and_then_its_rate() {
        let mut bucket = TokenBucket::new(20, 100);
        let steps = [
            (0, 100, Ok(())),
            (0, 1, Err(Duration::from_millis(50))),
            (49, 1, Err(Duration::from_millis(1))),
            (50, 1, Ok(())),
            (20, 1, Err(Duration::from_millis(50))), // an older reading changes nothing
            (100, 2, Err(Duration::from_millis(50))),
            (5_050, 100, Ok(())),
            (60_000, 101, Err(Duration::MAX)),
            (60_000, 100, Ok(())),
        ];
        for (ms, tokens, expected) in steps {
            assert_eq!(bucket.take(at_ms(ms), tokens), expected, "{tokens} at {ms} ms");
        }
        assert_eq!(bucket.full_at(), at_ms(65_000));
    }

    #[test]
    fn the_edges_hold() {
        let mut never = TokenBucket::new(0, 1);
        assert_eq!((never.take(at_ms(0), 1), never.take(at_ms(9), 1)), (Ok(()), Err(Duration::MAX)));
        assert_eq!(never.full_at(), Monotonic(u64::MAX));
        let mut largest = TokenBucket::new(u32::MAX, u32::MAX);
        assert_eq!(largest.take(Monotonic(u64::MAX), u32::MAX), Ok(()));
        assert_eq!(largest.take(Monotonic(u64::MAX), 1), Err(Duration::from_nanos(1)));
        assert_eq!(TokenBucket::new(1, 0).take(at_ms(0), 0), Ok(()));
    }

    #[test]
    fn senders_do_not_share_and_are_forgotten_when_full() {
        let mut limits = SenderLimits::new(1, 2, 10);
        assert_eq!(limits.take(at_ms(0), &sender(1), 2), Ok(()));
        assert_eq!(limits.take(at_ms(0), &sender(1), 1), Err(Duration::from_secs(1)));
        assert_eq!(limits.take(at_ms(0), &sender(2), 1), Ok(()));
        assert_eq!(limits.take(at_ms(0), &sender(3), 3), Err(Duration::MAX));
        assert_eq!(limits.len(), 2, "a refused stranger is not remembered");
        assert_eq!(limits.take(at_ms(2_000), &sender(4), 1), Ok(()));
        assert_eq!(limits.len(), 1, "the two full ones are gone");
        assert_eq!(limits.evicted(), 0, "in their time");
        assert!(!limits.is_empty());
    }

    #[test]
    fn over_the_limit_the_next_to_be_full_goes() {
        let mut limits = SenderLimits::new(1, 3, 2);
        limits.take(at_ms(0), &sender(1), 3).expect("a full bucket");
        limits.take(at_ms(0), &sender(2), 1).expect("a full bucket");
        limits.take(at_ms(0), &sender(3), 2).expect("a full bucket");
        assert_eq!((limits.len(), limits.evicted()), (2, 1));
        assert_eq!(limits.take(at_ms(0), &sender(1), 1), Err(Duration::from_secs(1)), "the emptiest stays");
    }

    proptest! {
        #[test]
        fn never_more_than_burst_and_refill(
            rate in 1_u32..1000,
            burst in 0_u32..1000,
            takes in proptest::collection::vec((0_u64..2_000_000_000, 0_u32..200), 0..100),
        ) {
            let mut bucket = TokenBucket::new(rate, burst);
            let (mut now, mut granted) = (Monotonic(0), 0_u128);
            for (step, tokens) in takes {
                now = Monotonic(now.0 + step);
                match bucket.take(now, tokens) {
                    Ok(()) => granted += u128::from(tokens),
                    Err(Duration::MAX) => prop_assert!(tokens > burst),
                    Err(wait) => {
                        // The advice is exact: then it is granted, a nanosecond earlier it is not.
                        let early = now + (wait - Duration::from_nanos(1));
                        prop_assert!(bucket.clone().take(early, tokens).is_err());
                        prop_assert!(bucket.clone().take(now + wait, tokens).is_ok());
                    }
                }
                let refilled = u128::from(now.0) * u128::from(rate) / u128::from(TOKEN);
                prop_assert!(granted <= u128::from(burst) + refilled);
            }
        }

        #[test]
        fn with_room_for_all_each_sender_is_limited_alone(
            takes in proptest::collection::vec((0_u64..500, 0_usize..6, 0_u32..4), 0..200),
        ) {
            let mut limits = SenderLimits::new(2, 5, 6);
            let mut alone: Vec<TokenBucket> = (0..6).map(|_| TokenBucket::new(2, 5)).collect();
            let mut ms = 0;
            for (step, number, tokens) in takes {
                ms += step;
                let expected = alone[number].take(at_ms(ms), tokens);
                prop_assert_eq!(limits.take(at_ms(ms), &sender(number), tokens), expected);
                prop_assert_eq!(limits.buckets.len(), limits.by_full_at.len());
            }
        }

        #[test]
        fn the_map_is_bounded(takes in proptest::collection::vec((0_u64..3000, 0_usize..50, 0_u32..4), 0..200)) {
            let mut limits = SenderLimits::new(2, 5, 7);
            let mut ms = 0;
            for (step, number, tokens) in takes {
                ms += step;
                let _ = limits.take(at_ms(ms), &sender(number), tokens);
                prop_assert!(limits.len() <= 7 && limits.by_full_at.len() == limits.len());
            }
        }
    }
}
