//! Which node takes up due work that nobody owns, so that not all of them run for the same conversations at once.
//!
//! Every node sees the same due rows. For each conversation the live nodes have an order that all of them compute alike
//! (rendezvous hashing); the first takes it at once, the next one a turn later, and so on.
//!
//! Invariant: whoever is alone, or the last one left, takes everything within [`RANK_MOST`] turns.
//!
//! Deliberately absent: agreement. Two nodes that see different peers may both try; the claim decides.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ids::{ConvKey, Incarnation};
use crate::time::Monotonic;

/// How long each node lets the one before it try.
pub const TURN: Duration = Duration::from_millis(500);
/// The last place that still counts: whoever stands behind it waits no longer.
pub const RANK_MOST: usize = 4;

/// Where `me` stands among the live nodes for a conversation; 0 is first.
#[must_use]
pub fn rank(conversation: ConvKey, me: Incarnation, others: &[Incarnation]) -> usize {
    let mine = (weight(conversation, me), me);
    others.iter().filter(|other| (weight(conversation, **other), **other) > mine).count()
}

/// A well mixed number of the two (the finaliser of MurmurHash3), the same on every node.
fn weight(conversation: ConvKey, node: Incarnation) -> u64 {
    let mix = |mut bits: u64| {
        bits = (bits ^ (bits >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        bits = (bits ^ (bits >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        bits ^ (bits >> 33)
    };
    let fold = |bits: u128| mix((bits >> 64) as u64 ^ mix(bits as u64));
    mix(fold(u128::from_be_bytes(conversation.0)) ^ fold(node.0).rotate_left(32))
}

/// Since when each due conversation is seen as such.
#[derive(Debug, Default)]
pub struct DueTable(BTreeMap<ConvKey, Monotonic>);

impl DueTable {
    /// Takes in the rows of one poll and says which of them, by index, to take up now. Others stay remembered; what is due
    /// no more is forgotten.
    pub fn poll(&mut self, now: Monotonic, rows: &[ConvKey], me: Incarnation, others: &[Incarnation]) -> Vec<usize> {
        let before = std::mem::take(&mut self.0);
        self.0 = rows.iter().map(|key| (*key, before.get(key).copied().unwrap_or(now))).collect();
        let is_mine = |key: &ConvKey| {
            let places = u32::try_from(rank(*key, me, others).min(RANK_MOST)).expect("small");
            now.since(self.0[key]) >= TURN * places
        };
        (0..rows.len()).filter(|index| is_mine(&rows[*index])).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(number: u64) -> ConvKey {
        ConvKey::of(&format!("room-{number}").parse().expect("an id"))
    }

    fn nodes(count: u128) -> Vec<Incarnation> {
        (1..=count).map(|number| Incarnation(number << 96 | number)).collect()
    }

    fn others(all: &[Incarnation], me: Incarnation) -> Vec<Incarnation> {
        all.iter().copied().filter(|other| *other != me).collect()
    }

    #[test]
    fn work_is_spread_evenly_over_the_nodes() {
        let all = nodes(4);
        for me in &all {
            let first = (0..2_000).filter(|number| rank(key(*number), *me, &others(&all, *me)) == 0).count();
            assert!((400..600).contains(&first), "{me} is first for {first} of 2000");
        }
    }

    #[test]
    fn the_next_one_takes_over_what_the_first_leaves() {
        let all = nodes(2);
        let number = (0..).find(|number| rank(key(*number), all[0], &all[1..]) == 1).expect("half of them");
        let (rows, at) = ([key(number)], |ms: u64| Monotonic(ms * 1_000_000));
        let mut table = DueTable::default();
        assert_eq!(table.poll(at(0), &rows, all[0], &all[1..]), Vec::<usize>::new());
        assert_eq!(table.poll(at(499), &rows, all[0], &all[1..]), Vec::<usize>::new());
        assert_eq!(table.poll(at(500), &rows, all[0], &all[1..]), vec![0]);
        assert_eq!(table.poll(at(501), &[], all[0], &all[1..]), Vec::<usize>::new());
        assert_eq!(table.poll(at(900), &rows, all[0], &all[1..]), Vec::<usize>::new(), "it starts over");
        assert_eq!(table.poll(at(901), &rows, all[0], &[]), vec![0], "alone, there is nobody to wait for");
    }

    proptest! {
        #[test]
        fn ranks_are_a_permutation_and_everything_is_taken_in_the_end(count in 1_u128..8, number in 0_u64..1000) {
            let all = nodes(count);
            let mut ranks: Vec<usize> =
                all.iter().map(|me| rank(key(number), *me, &others(&all, *me))).collect();
            ranks.sort_unstable();
            prop_assert_eq!(ranks, (0..all.len()).collect::<Vec<_>>());
            for me in &all {
                let mut table = DueTable::default();
                table.poll(Monotonic(0), &[key(number)], *me, &others(&all, *me));
                let late = Monotonic(0) + TURN * u32::try_from(RANK_MOST).expect("small");
                prop_assert_eq!(table.poll(late, &[key(number)], *me, &others(&all, *me)), vec![0]);
            }
        }
    }
}
