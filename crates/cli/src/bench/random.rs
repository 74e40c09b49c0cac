//! Chance for benchmarks, from a seed: the same seed, the same run.

/// SplitMix64 (Steele, Lea and Flood, 2014): one multiplication chain a number, and good enough for spreading clients.
#[derive(Debug, Clone)]
pub(super) struct Random {
    state: u64,
}

impl Random {
    /// From any number.
    pub(super) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Any number.
    pub(super) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`; 0 if that is 0.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        // The high half of a wide product: no remainder, and the bias of a bound far below 2^64 is nothing here.
        let wide = u128::from(self.next()) * u128::from(bound);
        u64::try_from(wide >> 64).expect("the high half of 128 bits is 64 bits")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_sequence_that_spreads() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            (0..1_000).map(|_| random.below(10)).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        let drawn = draw(1);
        for number in 0..10 {
            let count = drawn.iter().filter(|drawn| **drawn == number).count();
            assert!((60..140).contains(&count), "{number} came {count} times in 1,000");
        }
        assert_eq!(Random::new(1).below(0), 0);
    }
}
