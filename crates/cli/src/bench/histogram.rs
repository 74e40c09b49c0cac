//! Latencies in buckets whose width is about 3 % of their value, so that histograms of several processes can be added.
//!
//! Adding one is an index into a list: tens of thousands of sockets in one process each do it for every message.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Values below this many microseconds have a bucket each; above it, every doubling has half as many.
const SUB_BUCKETS: u64 = 64;
/// The bucket of the longest latency that can be told.
const BUCKET_MAX: u32 = 60 * SUB_BUCKETS as u32;

/// Counts by bucket.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(from = "Sparse", into = "Sparse")]
pub(crate) struct Histogram {
    /// As long as the highest bucket asks for.
    counts: Vec<u64>,
    max_us: u64,
}

/// How it travels: most buckets are empty.
#[derive(Serialize, Deserialize)]
struct Sparse {
    counts: BTreeMap<u32, u64>,
    max_us: u64,
}

impl From<Histogram> for Sparse {
    fn from(histogram: Histogram) -> Self {
        let Histogram { counts, max_us } = histogram;
        Self { counts: (0..).zip(counts).filter(|(_, count)| *count > 0).collect(), max_us }
    }
}

impl From<Sparse> for Histogram {
    fn from(sparse: Sparse) -> Self {
        let mut histogram = Self { counts: Vec::new(), max_us: sparse.max_us };
        for (bucket, count) in sparse.counts {
            *histogram.slot(bucket.min(BUCKET_MAX)) += count;
        }
        histogram
    }
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
        *self.slot(bucket(us)) += 1;
        self.max_us = self.max_us.max(us);
    }

    fn slot(&mut self, bucket: u32) -> &mut u64 {
        let bucket = bucket as usize;
        if bucket >= self.counts.len() {
            self.counts.resize(bucket + 1, 0);
        }
        &mut self.counts[bucket]
    }

    /// Adds all of another one.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (bucket, &count) in (0..).zip(&other.counts) {
            *self.slot(bucket) += count;
        }
        self.max_us = self.max_us.max(other.max_us);
    }

    /// How many were added.
    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().sum()
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
        for (bucket, &count) in (0..).zip(&self.counts) {
            below += count;
            if below >= rank && count > 0 {
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
    fn no_latency_is_too_long() {
        let mut longest = Histogram::default();
        longest.add(Duration::MAX);
        assert!(bucket(u64::MAX) <= BUCKET_MAX);
        assert_eq!(longest.count(), 1);
    }

    #[test]
    fn percentiles_of_a_merged_pair() {
        let (mut one, mut two) = (Histogram::default(), Histogram::default());
        for us in 1..=50 {
            one.add(Duration::from_micros(us));
            two.add(Duration::from_micros(us + 50));
        }
        let sent = serde_json::to_string(&two).expect("it is JSON");
        one.merge(&serde_json::from_str(&sent).expect("what was just made"));
        let shown = one.percentiles();
        assert_eq!(shown.count, 100);
        assert!((shown.p50_ms - 0.050).abs() < 0.001, "{shown:?}");
        assert!((shown.p99_ms - 0.099).abs() < 0.002, "{shown:?}");
        assert!((shown.max_ms - 0.100).abs() < 1e-9, "{shown:?}");
        assert_eq!(Histogram::default().percentiles().count, 0);
    }
}
