//! Latencies in buckets whose width is about 3 % of their value, so that histograms of several processes can be added.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Values below this many microseconds have a bucket each; above it, every doubling has half as many.
const SUB_BUCKETS: u64 = 64;

/// Counts by bucket; sparse, as most buckets are empty.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Histogram {
    counts: BTreeMap<u32, u64>,
    max_us: u64,
}

/// The numbers that a table shows, in milliseconds.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Percentiles {
    pub(crate) count: u64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) max_ms: f64,
}

impl Histogram {
    /// Adds one.
    pub(crate) fn add(&mut self, latency: Duration) {
        let us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        *self.counts.entry(bucket(us)).or_default() += 1;
        self.max_us = self.max_us.max(us);
    }

    /// Adds all of another one.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (&bucket, &count) in &other.counts {
            *self.counts.entry(bucket).or_default() += count;
        }
        self.max_us = self.max_us.max(other.max_us);
    }

    /// How many were added.
    pub(crate) fn count(&self) -> u64 {
        self.counts.values().sum()
    }

    /// The numbers to show.
    pub(crate) fn percentiles(&self) -> Percentiles {
        Percentiles {
            count: self.count(),
            p50_ms: self.quantile_us(0.50) as f64 / 1e3,
            p99_ms: self.quantile_us(0.99) as f64 / 1e3,
            max_ms: self.max_us as f64 / 1e3,
        }
    }

    /// The upper edge of the bucket that holds this share of all values.
    fn quantile_us(&self, share: f64) -> u64 {
        let rank = (self.count() as f64 * share).ceil() as u64;
        let mut below = 0;
        for (&bucket, &count) in &self.counts {
            below += count;
            if below >= rank {
                return upper_edge(bucket).min(self.max_us);
            }
        }
        0
    }
}

fn bucket(us: u64) -> u32 {
    let doublings = (us / SUB_BUCKETS).checked_ilog2().map_or(0, |log| log + 1);
    // Within a doubling the top half of the sub-buckets is used: 32 steps, each below 1/32 of the value.
    let sub = u32::try_from(us >> doublings).unwrap_or(u32::MAX);
    doublings * SUB_BUCKETS as u32 + sub
}

fn upper_edge(bucket: u32) -> u64 {
    let (doublings, sub) = (bucket / SUB_BUCKETS as u32, u64::from(bucket % SUB_BUCKETS as u32));
    ((sub + 1) << doublings) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_ascend_and_hold_their_values() {
        let mut last = 0;
        for us in (0..5_000).chain((13..40).flat_map(|bit| [(1_u64 << bit) - 1, 1 << bit, (1 << bit) + 1])) {
            let bucket = bucket(us);
            assert!(bucket >= last, "{us}");
            last = bucket;
            let edge = upper_edge(bucket);
            assert!(edge >= us && edge as f64 <= us as f64 * 1.04 + 1.0, "{us} is in a bucket up to {edge}");
        }
    }

    #[test]
    fn percentiles_of_a_merged_pair() {
        let (mut one, mut two) = (Histogram::default(), Histogram::default());
        for us in 1..=50 {
            one.add(Duration::from_micros(us));
            two.add(Duration::from_micros(us + 50));
        }
        one.merge(&two);
        let shown = one.percentiles();
        assert_eq!(shown.count, 100);
        assert!((shown.p50_ms - 0.050).abs() < 0.001, "{shown:?}");
        assert!((shown.p99_ms - 0.099).abs() < 0.002, "{shown:?}");
        assert!((shown.max_ms - 0.100).abs() < 1e-9, "{shown:?}");
        assert_eq!(Histogram::default().percentiles().count, 0);
    }
}
