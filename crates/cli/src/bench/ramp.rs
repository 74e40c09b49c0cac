//! How a load grows: pure arithmetic of a rate, and of a number of sessions, over time.

use serde::{Deserialize, Serialize};

/// A rate that grows evenly, then stays.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Growth {
    /// A second, at the beginning.
    pub(super) from: f64,
    /// A second, from the end of the growth on.
    pub(super) to: f64,
    /// Seconds of growth.
    pub(super) over_s: f64,
}

impl Growth {
    /// One rate from the beginning.
    pub(super) fn steady(rate: f64) -> Self {
        Self { from: rate, to: rate, over_s: 0.0 }
    }

    /// The same growth of so many times as much.
    pub(super) fn times(&self, factor: f64) -> Self {
        Self { from: self.from * factor, to: self.to * factor, over_s: self.over_s }
    }

    /// How many are due by `at_s`: the rate's integral.
    pub(super) fn due(&self, at_s: f64) -> f64 {
        let growing = at_s.clamp(0.0, self.over_s);
        let mut due = self.from * growing;
        if self.over_s > 0.0 {
            due += (self.to - self.from) * growing * growing / (2.0 * self.over_s);
        }
        due + self.to * (at_s - self.over_s).max(0.0)
    }

    /// When the number `number` is due, counted from 0; `None` if never. By halving, so that no formula has to be inverted.
    pub(super) fn moment(&self, number: u64) -> Option<f64> {
        let number = number as f64;
        let mut high = self.over_s.max(1.0);
        while self.due(high) < number {
            high *= 2.0;
            if high > 1e9 {
                return None;
            }
        }
        let mut low = 0.0;
        for _ in 0..60 {
            let middle = (low + high) / 2.0;
            if self.due(middle) < number { low = middle } else { high = middle }
        }
        Some(high)
    }
}

/// A number of sessions that grows evenly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Rise {
    /// At the beginning.
    pub(super) from: usize,
    /// At the end.
    pub(super) to: usize,
    /// Nanoseconds between the two.
    pub(super) over_ns: u64,
}

impl Rise {
    /// How many are wanted so long after its beginning.
    pub(super) fn wanted(&self, after_ns: u64) -> usize {
        if after_ns >= self.over_ns {
            return self.to;
        }
        let more = self.to.saturating_sub(self.from) as u128 * u128::from(after_ns) / u128::from(self.over_ns);
        self.from + usize::try_from(more).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_growth_is_the_integral_of_its_rate() {
        let growth = Growth { from: 1.0, to: 21.0, over_s: 10.0 };
        for (at_s, due) in [(-1.0, 0.0), (0.0, 0.0), (5.0, 30.0), (10.0, 110.0), (12.0, 152.0)] {
            assert!((growth.due(at_s) - due).abs() < 1e-9, "{at_s}: {}", growth.due(at_s));
        }
        assert!((Growth::steady(4.0).due(2.5) - 10.0).abs() < 1e-9);
        assert!((growth.times(5.0).due(10.0) - 550.0).abs() < 1e-9);
    }

    #[test]
    fn each_has_its_moment() {
        let growth = Growth { from: 1.0 / 60.0, to: 20.0, over_s: 90.0 };
        let mut last = -1.0;
        for number in 0..1_500 {
            let moment = growth.moment(number).expect("it grows for ever");
            assert!(moment >= last && (growth.due(moment) - number as f64).abs() < 1e-6, "{number} at {moment}");
            last = moment;
        }
        assert_eq!(Growth::steady(0.0).moment(1), None);
    }

    #[test]
    fn sessions_rise_to_all() {
        let rise = Rise { from: 400, to: 30_000, over_ns: 90 };
        assert_eq!((rise.wanted(0), rise.wanted(45), rise.wanted(90), rise.wanted(900)), (400, 15_200, 30_000, 30_000));
        assert_eq!(Rise { from: 0, to: 7, over_ns: 0 }.wanted(0), 7);
    }
}
