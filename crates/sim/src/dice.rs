//! Seeded random draws: the one source of every choice that a simulation makes.
//!
//! Invariant: a draw depends on the seed, the stream and the draws before it in that stream, and on nothing else. Each
//! process and each part of the world has a stream of its own, so that one draw more in one of them leaves the others
//! as they were.

use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// A stream of draws.
#[derive(Debug, Clone)]
pub struct Dice(ChaCha8Rng);

impl Dice {
    /// The stream `stream` of `seed`.
    #[must_use]
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut source = ChaCha8Rng::seed_from_u64(seed);
        source.set_stream(stream);
        Self(source)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `bound`; 0 when `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.bits() % bound }
    }

    /// An index into a slice of `length` elements, which is above 0.
    pub fn index(&mut self, length: usize) -> usize {
        assert!(length > 0, "there is something to choose from");
        usize::try_from(self.below(length as u64)).expect("below a usize")
    }

    /// True in `per_mille` of 1,000 draws.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1_000) < per_mille
    }

    /// A duration from `least` up to, and not including, `most`.
    pub fn between(&mut self, least: Duration, most: Duration) -> Duration {
        let span = u64::try_from(most.saturating_sub(least).as_nanos()).unwrap_or(u64::MAX);
        least + Duration::from_nanos(self.below(span))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_independent_and_reproducible() {
        let draw = |seed, stream| (0..4).map(|_| Dice::new(seed, stream).bits()).collect::<Vec<_>>();
        assert_eq!(draw(1, 1), draw(1, 1));
        assert_ne!(draw(1, 1), draw(1, 2));
        assert_ne!(draw(1, 1), draw(2, 1));
    }

    #[test]
    fn bounds_hold() {
        let mut dice = Dice::new(7, 0);
        for _ in 0..1_000 {
            assert!(dice.below(3) < 3);
            let drawn = dice.between(Duration::from_millis(2), Duration::from_millis(5));
            assert!(drawn >= Duration::from_millis(2) && drawn < Duration::from_millis(5));
            assert!(!dice.chance(0) && dice.chance(1_000));
        }
    }
}
