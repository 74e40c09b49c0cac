//! A conversation's head: who owns it, under which epoch, and which numbers come next.
//!
//! The arithmetic of ownership, once for every store that computes it in Rust and for the model that checks it: what a
//! claim, a release, a hand-off and an append make of the head, and whether an append may land at all (the fence).
//!
//! Invariants kept here: 1 (the epoch only rises), 2 (a reign numbers above everything that was ever reserved), 8 (a
//! write lands in its reign or not at all).
//!
//! Deliberately absent: who may claim. Whether an owner is registered, and whether the head is still as it was seen, is
//! the store's to compare, in the same step that writes what this module computes.

use crate::ids::{Epoch, Generation, Incarnation, Seq};

/// How many numbers and epochs each generation skips, so that what a failover lost is never given again.
pub const SKIP_PER_GENERATION: u64 = 1_000_000;

/// A conversation's head. The row is never deleted: release leaves the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HeadRow {
    /// The fencing token of the present or the last reign.
    pub epoch: Epoch,
    /// Who owns the conversation; `None`: released.
    pub owner: Option<Incarnation>,
    /// The store's generation when it was claimed.
    pub generation: Generation,
    /// The last committed seq.
    pub last_seq: Seq,
    /// The durably reserved high-water mark; never below `last_seq`.
    pub reserved_to: Seq,
}

/// What an append proves: the reign that it was numbered in, and the place in the log that it was numbered for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fence {
    /// The writer's epoch.
    pub epoch: Epoch,
    /// The writer.
    pub owner: Incarnation,
    /// The generation that the writer claimed in.
    pub generation: Generation,
    /// The head's last seq before it.
    pub prev: Seq,
    /// The head's last seq after it.
    pub hi: Seq,
}

/// Whether an append may land.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Write it.
    Admitted,
    /// The head stands where this append would put it. It was written already if its records are there; otherwise the
    /// head went another way, which is [`Verdict::Rewound`].
    MayHaveLanded,
    /// Another epoch or owner holds the conversation.
    Fenced,
    /// The store is in another generation, or the head stands elsewhere.
    Rewound,
}

impl HeadRow {
    /// The head of a conversation that nobody ever owned. A later generation starts above what an earlier one may have
    /// used for the same conversation.
    #[must_use]
    pub fn first(owner: Incarnation, generation: Generation) -> Self {
        let base = generation.0.saturating_sub(1).saturating_mul(SKIP_PER_GENERATION);
        Self { epoch: Epoch(base + 1), owner: Some(owner), generation, last_seq: Seq(base), reserved_to: Seq(base) }
    }

    /// The head after a claim in `generation`. An owner that did not release may have numbered above what it reserved:
    /// `gap` numbers are skipped. A new generation skips numbers and epochs instead. `None`: the store's generation lies
    /// below the head's, so the claim was made on a view of the past.
    #[must_use]
    pub fn claimed(&self, by: Incarnation, generation: Generation, gap: u64) -> Option<Self> {
        let skipped = generation.0.checked_sub(self.generation.0)?.saturating_mul(SKIP_PER_GENERATION);
        let (epochs, numbers) = match (skipped, self.owner) {
            (0, None) => (1, 0),
            (0, Some(_)) => (1, gap),
            (skipped, _) => (skipped, skipped),
        };
        Some(Self {
            epoch: Epoch(self.epoch.0.saturating_add(epochs)),
            owner: Some(by),
            generation,
            last_seq: self.last_seq,
            reserved_to: Seq(self.reserved_to.0.saturating_add(numbers)),
        })
    }

    /// The head after its owner left with nothing under way. `first_seq` is the next number that it would have given, so
    /// that the rest of its block is no hole.
    #[must_use]
    pub fn released(&self, first_seq: Seq) -> Self {
        Self { owner: None, reserved_to: self.used_before(first_seq), ..*self }
    }

    /// The head after its owner was relieved because it no longer answers: something may be under way, so `gap` numbers
    /// are skipped.
    #[must_use]
    pub fn released_wedged(&self, gap: u64) -> Self {
        Self { owner: None, reserved_to: Seq(self.reserved_to.0.saturating_add(gap)), ..*self }
    }

    /// The head after its owner passed it on with nothing under way. `None` in another generation than the head's: there
    /// the numbers must skip, which only a claim does.
    #[must_use]
    pub fn handed_off(&self, to: Incarnation, generation: Generation, first_seq: Seq) -> Option<Self> {
        (self.generation == generation).then(|| Self {
            epoch: Epoch(self.epoch.0.saturating_add(1)),
            owner: Some(to),
            reserved_to: self.used_before(first_seq),
            ..*self
        })
    }

    /// May this append land, in a store of this generation?
    #[must_use]
    pub fn judge(&self, fence: &Fence, generation: Generation) -> Verdict {
        if self.epoch != fence.epoch || self.owner != Some(fence.owner) {
            return Verdict::Fenced;
        }
        if fence.generation != generation || self.generation != generation {
            return Verdict::Rewound;
        }
        if self.last_seq == fence.hi && fence.hi > fence.prev {
            return Verdict::MayHaveLanded;
        }
        if self.last_seq == fence.prev { Verdict::Admitted } else { Verdict::Rewound }
    }

    /// The head after an append that was admitted. `reserve` never lowers the mark.
    #[must_use]
    pub fn appended(&self, hi: Seq, reserve: Seq) -> Self {
        Self { last_seq: hi, reserved_to: self.reserved_to.max(reserve).max(hi), ..*self }
    }

    /// The first number that the owner of this head may give.
    #[must_use]
    pub fn first_seq(&self) -> Seq {
        self.reserved_to.next()
    }

    fn used_before(&self, first_seq: Seq) -> Seq {
        self.last_seq.max(Seq(first_seq.0.saturating_sub(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Incarnation = Incarnation(1);
    const B: Incarnation = Incarnation(2);

    fn head() -> HeadRow {
        HeadRow {
            epoch: Epoch(7),
            owner: Some(A),
            generation: Generation(2),
            last_seq: Seq(40),
            reserved_to: Seq(1_000),
        }
    }

    fn fence() -> Fence {
        Fence { epoch: Epoch(7), owner: A, generation: Generation(2), prev: Seq(40), hi: Seq(42) }
    }

    #[test]
    fn a_claim_raises_the_epoch_and_skips_what_may_be_under_way() {
        let claimed = |from: HeadRow, generation| {
            let head = from.claimed(B, Generation(generation), 100).expect("not in the past");
            assert_eq!((head.owner, head.generation, head.last_seq), (Some(B), Generation(generation), Seq(40)));
            (head.epoch.0, head.first_seq().0)
        };
        let released = HeadRow { owner: None, reserved_to: Seq(40), ..head() };
        assert_eq!(claimed(released, 2), (8, 41), "a clean release leaves no hole");
        assert_eq!(claimed(head(), 2), (8, 1_101), "an unclean end leaves the block and the gap");
        assert_eq!(claimed(released, 3), (1_000_007, 1_000_041), "a generation skips, whoever owned it");
        assert_eq!(claimed(head(), 4), (2_000_007, 2_001_001), "and so does each of several");
        assert_eq!(head().claimed(B, Generation(1), 100), None, "no generation comes back");
    }

    #[test]
    fn a_new_conversation_starts_above_every_earlier_generation() {
        let first = HeadRow::first(A, Generation(1));
        assert_eq!((first.epoch, first.last_seq, first.first_seq()), (Epoch(1), Seq(0), Seq(1)));
        let third = HeadRow::first(A, Generation(3));
        assert_eq!(
            (third.epoch, third.last_seq, third.first_seq()),
            (Epoch(2_000_001), Seq(2_000_000), Seq(2_000_001))
        );
    }

    #[test]
    fn leaving_keeps_the_epoch_and_gives_back_what_was_not_used() {
        let released = head().released(Seq(45));
        assert_eq!(released, HeadRow { owner: None, reserved_to: Seq(44), ..head() });
        assert_eq!(head().released(Seq(3)).reserved_to, Seq(40), "never below what is committed");
        let relieved = head().released_wedged(100);
        assert_eq!(relieved, HeadRow { owner: None, reserved_to: Seq(1_100), ..head() });
        let passed = head().handed_off(B, Generation(2), Seq(45)).expect("the same generation");
        assert_eq!(passed, HeadRow { epoch: Epoch(8), owner: Some(B), reserved_to: Seq(44), ..head() });
        assert_eq!(head().handed_off(B, Generation(3), Seq(45)), None, "another generation must skip");
    }

    #[test]
    fn the_fence_admits_the_reign_in_force_at_its_place_alone() {
        let judged = |fence: Fence| head().judge(&fence, Generation(2));
        assert_eq!(judged(fence()), Verdict::Admitted);
        assert_eq!(judged(Fence { epoch: Epoch(6), ..fence() }), Verdict::Fenced);
        assert_eq!(judged(Fence { epoch: Epoch(8), ..fence() }), Verdict::Fenced);
        assert_eq!(judged(Fence { owner: B, ..fence() }), Verdict::Fenced);
        assert_eq!(judged(Fence { generation: Generation(1), ..fence() }), Verdict::Rewound);
        assert_eq!(judged(Fence { prev: Seq(39), ..fence() }), Verdict::Rewound);
        assert_eq!(judged(Fence { prev: Seq(38), hi: Seq(40), ..fence() }), Verdict::MayHaveLanded);
        assert_eq!(head().judge(&fence(), Generation(3)), Verdict::Rewound, "a failover ends every reign");
        let released = HeadRow { owner: None, ..head() };
        assert_eq!(released.judge(&fence(), Generation(2)), Verdict::Fenced);
    }

    #[test]
    fn an_append_never_lowers_the_reserved_mark() {
        let after = |hi, reserve| head().appended(Seq(hi), Seq(reserve)).reserved_to.0;
        assert_eq!((after(42, 0), after(42, 2_000), after(1_200, 1_100)), (1_000, 2_000, 1_200));
        assert_eq!(head().appended(Seq(42), Seq(0)).last_seq, Seq(42));
    }
}
