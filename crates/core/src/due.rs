//! Which node takes up due work that nobody owns, so that not all of them run for the same conversations at once.
//!
//! Every node sees the same due rows, page after page. For each conversation the nodes that it belongs to
//! ([`crate::placement::circle`]) have an order that all of them compute alike (rendezvous hashing); the first takes it at once,
//! the next one a turn later, and so on. The others leave it alone.
//!
//! Invariant: whoever is alone, or the last one left, of those that a conversation belongs to takes it within [`RANK_MOST`]
//! turns.
//!
//! Deliberately absent: agreement. Two nodes that see different peers may both try; the claim decides.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ids::{ConvKey, Incarnation};
use crate::placement::{self, Candidate, Wish};
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

/// Due conversations whose first sight is remembered. Above it a conversation is taken up by the first of its nodes alone.
pub const REMEMBERED_MOST: usize = 16_384;

/// A conversation with due work.
#[derive(Debug, Clone, Copy)]
pub struct Waiting<'a> {
    /// Which.
    pub key: ConvKey,
    /// Where it belongs.
    pub wish: Wish<'a>,
}

/// Since when each due conversation is seen as such.
#[derive(Debug, Default)]
pub struct DueTable {
    seen: BTreeMap<ConvKey, Seen>,
    lap: u64,
}

#[derive(Debug, Clone, Copy)]
struct Seen {
    since: Monotonic,
    lap: u64,
}

impl DueTable {
    /// Takes in a page of due rows and says which of them, by index, `me` is to take up now. Others stay remembered.
    pub fn poll(
        &mut self,
        now: Monotonic,
        page: &[Waiting<'_>],
        me: Candidate<'_>,
        others: &[Candidate<'_>],
    ) -> Vec<usize> {
        let nodes: Vec<Candidate<'_>> = std::iter::once(me).chain(others.iter().copied()).collect();
        let mut mine = Vec::new();
        for (index, waiting) in page.iter().enumerate() {
            let since = self.see(now, waiting.key);
            let circle = placement::circle(&nodes, waiting.wish);
            let before: Vec<Incarnation> =
                circle.iter().map(|node| node.incarnation).filter(|node| *node != me.incarnation).collect();
            let places = rank(waiting.key, me.incarnation, &before).min(RANK_MOST);
            let turns = TURN * u32::try_from(places).expect("small");
            if before.len() < circle.len() && now.since(since) >= turns {
                mine.push(index);
            }
        }
        mine
    }

    fn see(&mut self, now: Monotonic, key: ConvKey) -> Monotonic {
        if self.seen.len() >= REMEMBERED_MOST && !self.seen.contains_key(&key) {
            return now;
        }
        let lap = self.lap;
        let seen = self.seen.entry(key).or_insert(Seen { since: now, lap });
        seen.lap = lap;
        seen.since
    }

    /// The last page was the list's end: what was on none since its beginning is due no more, and forgotten.
    pub fn lap_ended(&mut self) {
        let lap = self.lap;
        self.seen.retain(|_, seen| seen.lap == lap);
        self.lap += 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ids::Region;
    use crate::placement::Intake;

    fn key(number: u64) -> ConvKey {
        ConvKey::of(&format!("room-{number}").parse().expect("an id"))
    }

    fn nodes(count: u128) -> Vec<Incarnation> {
        (1..=count).map(|number| Incarnation(number << 96 | number)).collect()
    }

    fn region(name: &str) -> Region {
        name.parse().expect("valid")
    }

    fn open(incarnation: Incarnation, region: &Region) -> Candidate<'_> {
        Candidate { incarnation, region, intake: Intake::Open }
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
        let (all, here) = (nodes(2), region("a"));
        let number = (0..).find(|number| rank(key(*number), all[0], &all[1..]) == 1).expect("half of them");
        let (me, other) = (open(all[0], &here), [open(all[1], &here)]);
        let waiting = [Waiting { key: key(number), wish: Wish { regions: &[], home: &here } }];
        let (at, mut table) = (|ms: u64| Monotonic(ms * 1_000_000), DueTable::default());
        let nobody: Vec<usize> = Vec::new();
        assert_eq!(table.poll(at(0), &waiting, me, &other), nobody);
        table.lap_ended();
        assert_eq!(table.poll(at(499), &waiting, me, &other), nobody);
        table.lap_ended();
        assert_eq!(table.poll(at(500), &waiting, me, &other), vec![0]);
        table.lap_ended();
        assert_eq!(table.poll(at(501), &[], me, &other), nobody);
        table.lap_ended();
        assert_eq!(table.poll(at(900), &waiting, me, &other), nobody, "it starts over");
        assert_eq!(table.poll(at(901), &waiting, me, &[]), vec![0], "alone, there is nobody to wait for");
    }

    /// Pages of one lap are remembered together, however many there are.
    #[test]
    fn a_lap_of_many_pages_forgets_none_of_them() {
        let (all, here) = (nodes(2), region("a"));
        let second: Vec<u64> = (0..40).filter(|number| rank(key(*number), all[0], &all[1..]) == 1).collect();
        let wish = Wish { regions: &[], home: &here };
        let waiting: Vec<Waiting<'_>> = second.iter().map(|number| Waiting { key: key(*number), wish }).collect();
        let (me, other) = (open(all[0], &here), [open(all[1], &here)]);
        let mut table = DueTable::default();
        for (ms, taken) in [(0, 0), (600, waiting.len())] {
            let now = Monotonic(ms * 1_000_000);
            let mine: usize = waiting.chunks(3).map(|page| table.poll(now, page, me, &other).len()).sum();
            assert_eq!(mine, taken, "after {ms} ms");
            table.lap_ended();
        }
    }

    /// The nodes elsewhere leave a conversation to its home while that lives, and to its regions always.
    #[test]
    fn due_work_is_left_to_where_it_belongs() {
        let (a, b, c) = (region("a"), region("b"), region("c"));
        let ids = nodes(3);
        let all = [open(ids[0], &a), open(ids[1], &b), open(ids[2], &c)];
        let strict = [a.clone(), b.clone()];
        let takes = |me: usize, others: &[usize], wish: Wish<'_>| {
            let others: Vec<Candidate<'_>> = others.iter().map(|other| all[*other]).collect();
            let (mut table, page) = (DueTable::default(), [Waiting { key: key(1), wish }]);
            table.poll(Monotonic(0), &page, all[me], &others);
            let late = Monotonic(0) + TURN * u32::try_from(RANK_MOST).expect("small");
            !table.poll(late, &page, all[me], &others).is_empty()
        };
        let (anywhere, in_two) = (Wish { regions: &[], home: &a }, Wish { regions: &strict, home: &a });
        for wish in [anywhere, in_two] {
            assert!(takes(0, &[1, 2], wish) && !takes(1, &[0, 2], wish) && !takes(2, &[0, 1], wish), "home lives");
            assert!(takes(1, &[2], wish), "home has no live node");
        }
        assert!(takes(2, &[1], anywhere) && !takes(2, &[1], in_two) && !takes(2, &[], in_two));
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
                let (mut table, here) = (DueTable::default(), region("a"));
                let others: Vec<Candidate<'_>> =
                    others(&all, *me).into_iter().map(|other| open(other, &here)).collect();
                let page = [Waiting { key: key(number), wish: Wish { regions: &[], home: &here } }];
                table.poll(Monotonic(0), &page, open(*me, &here), &others);
                let late = Monotonic(0) + TURN * u32::try_from(RANK_MOST).expect("small");
                prop_assert_eq!(table.poll(late, &page, open(*me, &here), &others), vec![0]);
            }
        }
    }
}
