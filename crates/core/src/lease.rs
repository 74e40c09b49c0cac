//! The node lease, as its holder sees it: until when may this incarnation act?
//!
//! Invariant 8 stands on this: nothing is assigned, acked or served on the strength of a lease that may have ended.
//! Validity counts from the moment a renewal was *sent*, not from its answer: the store's clock started no earlier.

use std::time::Duration;

use crate::time::Monotonic;

/// How long a node lease lasts, how often it is renewed, and how early its holder stops trusting it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTiming {
    /// Time from a renewal to the end of the lease. Default 15 s.
    pub ttl: Duration,
    /// Time between renewals. Default 5 s.
    pub beat: Duration,
    /// Safety margin before the end in which nothing is assigned. Default 3 s.
    pub margin: Duration,
}

impl Default for LeaseTiming {
    fn default() -> Self {
        Self { ttl: Duration::from_secs(15), beat: Duration::from_secs(5), margin: Duration::from_secs(3) }
    }
}

impl LeaseTiming {
    /// Checks the ratios: two beats must fit between a renewal and the margin, so that one lost renewal costs nothing.
    ///
    /// # Errors
    /// A sentence that names the setting.
    pub fn check(&self) -> Result<(), String> {
        if self.beat.is_zero() || self.margin.is_zero() {
            return Err("lease.beat_ms and lease.margin_ms must be above 0".to_owned());
        }
        if self.beat * 2 + self.margin > self.ttl {
            return Err(format!(
                "lease.ttl_ms ({}) must be at least 2 × lease.beat_ms ({}) + lease.margin_ms ({}), so that one lost renewal is survived",
                self.ttl.as_millis(),
                self.beat.as_millis(),
                self.margin.as_millis()
            ));
        }
        Ok(())
    }

    /// Until when a lease may be acted upon whose last successful renewal was sent at `sent`.
    #[must_use]
    pub fn valid_until(&self, sent: Monotonic) -> Monotonic {
        sent + (self.ttl - self.margin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_checked() {
        assert_eq!(LeaseTiming::default().check(), Ok(()));
        let tight = LeaseTiming { beat: Duration::from_secs(7), ..LeaseTiming::default() };
        assert!(tight.check().expect_err("two beats do not fit").contains("lease.ttl_ms (15000)"));
    }

    #[test]
    fn validity_counts_from_the_sending() {
        let timing = LeaseTiming::default();
        let sent = Monotonic(0) + Duration::from_secs(100);
        assert_eq!(timing.valid_until(sent), Monotonic(0) + Duration::from_secs(112));
    }
}
