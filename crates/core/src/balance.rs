//! Evening out: which idle conversations a node hands to whom, so that all own about as many, and so that what was taken over
//! while its home was lost goes back there.
//!
//! A node knows what it owns itself; what the others own it knows from what they told ([`Loads`]), which may be old. So a
//! giver decides with a [`Round`] what it would give, and a receiver, with its [`Promises`], what it takes.
//!
//! Invariants, whatever was told and in whatever order:
//! - E1. A conversation goes to a node that may own it, and to its home while that has a node that takes it.
//! - E2. Each hand-over that is not a way home makes the cluster more even: its giver owns at least as many afterwards as its
//!   receiver. The giver names the level that it will not fall below by handing over, and the receiver does not rise above it, promises
//!   included. So the sum of the squares of what nodes own falls with each one; it cannot fall for ever, so without
//!   new conversations moving ends, and nothing moves back and forth.
//! - E3. Where all know what all own, and everything is idle, it ends with every node within a tenth of the mean of those
//!   that may own the same ([`tolerance`]), and then nothing moves.
//! - E4. A giver gives and a receiver takes a limited number in one round: never in one wave.
//!
//! Deliberately absent: which conversations are idle, and the hand-over itself.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ids::{Incarnation, Region};
use crate::limit::TokenBucket;
use crate::placement::{self, Candidate, Intake, Wish};
use crate::time::Monotonic;

/// A node this much above or below the mean is left alone, however small the mean is.
const SLACK: u64 = 2;
/// What part of the mean is left alone.
const PART: u64 = 10;
/// For how many rounds it counts what a node told: then it is not known what that one owns.
const TOLD_FOR_ROUNDS: u32 = 5;
/// Nodes whose word is kept; more are not heard.
const NODES_MOST: usize = 4_096;
/// How long a promise to take conversations holds room for them.
pub const PROMISE_LASTS: Duration = Duration::from_secs(10);
/// The level of a request to take what comes home, however much is there.
pub const ANY_LEVEL: u32 = u32::MAX;

/// How far from the mean a node may be: a tenth, rounded up, and at least 2.
#[must_use]
pub fn tolerance(sum: u64, nodes: u64) -> u64 {
    sum.div_ceil(nodes.max(1) * PART).max(SLACK)
}

/// What a node owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load<'a> {
    /// Who.
    pub incarnation: Incarnation,
    /// Where it runs.
    pub region: &'a Region,
    /// How many conversations.
    pub owned: u32,
}

/// A peer is asked to take some.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// Who.
    pub to: Incarnation,
    /// How many.
    pub conversations: u32,
    /// It is not to own more than so many because of it; [`ANY_LEVEL`] where they belong there.
    pub level: u32,
}

/// What one node would give away now. First it is asked about conversations, then it says what to ask of whom.
#[derive(Debug, Clone)]
pub struct Round<'a> {
    me: Load<'a>,
    peers: Vec<Taker<'a>>,
    left: u32,
}

#[derive(Debug, Clone)]
struct Taker<'a> {
    load: Load<'a>,
    given: u32,
    level: u32,
}

impl<'a> Round<'a> {
    /// `peers` are the live ones that take conversations and have told what they own; at most `most` conversations go.
    #[must_use]
    pub fn new(me: Load<'a>, peers: &[Load<'a>], most: u32) -> Self {
        let taker = |load: &Load<'a>| Taker { load: *load, given: 0, level: ANY_LEVEL };
        Self { me, peers: peers.iter().map(taker).collect(), left: most }
    }

    /// May anything go at all? False is final for this round; it saves a look at the conversations.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.left == 0 || self.peers.is_empty()
    }

    /// The node of its home that takes a conversation of this node, which is not at home here; the one that owns least.
    pub fn return_home(&mut self, wish: Wish<'_>) -> Option<Incarnation> {
        if self.is_over() {
            return None;
        }
        let circle = self.circle(wish);
        if circle.iter().any(|node| node.incarnation == self.me.incarnation) {
            return None;
        }
        let chosen = self.lowest(&circle)?;
        Some(self.give(chosen, ANY_LEVEL))
    }

    /// The node that takes a conversation of this node, if that makes things more even, and they are not even enough.
    pub fn even_out(&mut self, wish: Wish<'_>) -> Option<Incarnation> {
        if self.is_over() {
            return None;
        }
        let circle = self.circle(wish);
        if circle.iter().all(|node| node.incarnation != self.me.incarnation) {
            return None;
        }
        let lowest = self.lowest(&circle)?;
        let owned = |node: &Candidate<'_>| match self.peers.iter().find(|peer| peer.is(node)) {
            Some(peer) => u64::from(peer.load.owned),
            None => u64::from(self.me.owned),
        };
        let (sum, nodes) = (circle.iter().map(owned).sum::<u64>(), circle.len() as u64);
        let (mine, least) = (u64::from(self.me.owned), u64::from(self.peers[lowest].load.owned));
        let (mean_up, allowed) = (sum.div_ceil(nodes), tolerance(sum, nodes));
        let uneven = mine > mean_up + allowed || least + allowed < sum / nodes;
        if !uneven || mine <= mean_up {
            return None;
        }
        // Whoever is above the rounded mean has somebody below it.
        let level = u32::try_from(mean_up).unwrap_or(ANY_LEVEL);
        Some(self.give(lowest, level))
    }

    /// What to ask of whom. Nobody is to rise above what this node keeps (E2).
    #[must_use]
    pub fn asks(&self) -> Vec<Ask> {
        let given = self.peers.iter().filter(|peer| peer.given > 0);
        let ask = |peer: &Taker<'_>| Ask {
            to: peer.load.incarnation,
            conversations: peer.given,
            level: if peer.level == ANY_LEVEL { ANY_LEVEL } else { peer.level.min(self.me.owned) },
        };
        given.map(ask).collect()
    }

    /// Those that should own a conversation of this wish.
    fn circle(&self, wish: Wish<'_>) -> Vec<Candidate<'a>> {
        let open =
            |load: &Load<'a>| Candidate { incarnation: load.incarnation, region: load.region, intake: Intake::Open };
        let all: Vec<Candidate<'a>> =
            std::iter::once(&self.me).chain(self.peers.iter().map(|peer| &peer.load)).map(open).collect();
        placement::circle(&all, wish)
    }

    /// The peer of these that owns least, as far as is known.
    fn lowest(&self, circle: &[Candidate<'_>]) -> Option<usize> {
        let among = |index: &usize| circle.iter().any(|node| self.peers[*index].is(node));
        let order = |index: &usize| (self.peers[*index].load.owned, self.peers[*index].load.incarnation);
        (0..self.peers.len()).filter(among).min_by_key(order)
    }

    fn give(&mut self, to: usize, level: u32) -> Incarnation {
        self.left -= 1;
        self.me.owned = self.me.owned.saturating_sub(1);
        let peer = &mut self.peers[to];
        peer.given += 1;
        peer.load.owned = peer.load.owned.saturating_add(1);
        peer.level = peer.level.min(level);
        peer.load.incarnation
    }
}

impl Taker<'_> {
    fn is(&self, node: &Candidate<'_>) -> bool {
        self.load.incarnation == node.incarnation
    }
}

/// What the others told of what they own.
#[derive(Debug, Default)]
pub struct Loads(BTreeMap<Incarnation, (u32, Monotonic)>);

impl Loads {
    /// A node tells. Above a bound of nodes new ones are not heard.
    pub fn hear(&mut self, now: Monotonic, from: Incarnation, owned: u32) {
        if self.0.len() < NODES_MOST || self.0.contains_key(&from) {
            self.0.insert(from, (owned, now));
        }
    }

    /// What a node owns, if it told lately: within five rounds of this length.
    #[must_use]
    pub fn of(&self, now: Monotonic, node: Incarnation, round: Duration) -> Option<u32> {
        let (owned, at) = self.0.get(&node)?;
        (now.since(*at) <= round * TOLD_FOR_ROUNDS).then_some(*owned)
    }

    /// Forgets what is too old to count.
    pub fn forget_old(&mut self, now: Monotonic, round: Duration) {
        self.0.retain(|_, (_, at)| now.since(*at) <= round * TOLD_FOR_ROUNDS);
    }
}

/// What this node has promised to take, and how much more it takes in a span of time.
#[derive(Debug)]
pub struct Promises {
    /// One of each giver: who asks again is done with what it was promised.
    made: BTreeMap<Incarnation, (u32, Monotonic)>,
    rate: TokenBucket,
}

impl Promises {
    /// At most so many a second, and so many at once.
    #[must_use]
    pub fn new(per_second: u32, at_once: u32) -> Self {
        Self { made: BTreeMap::new(), rate: TokenBucket::new(per_second, at_once) }
    }

    /// How many of a peer's offer this node takes, which owns so many.
    pub fn promise(&mut self, now: Monotonic, ask: Ask, from: Incarnation, owned: u32) -> u32 {
        self.made.remove(&from);
        self.made.retain(|_, (_, until)| now < *until);
        let promised: u32 = self.made.values().fold(0, |sum, (count, _)| sum.saturating_add(*count));
        let room = ask.level.saturating_sub(owned.saturating_add(promised));
        let wanted = ask.conversations.min(room);
        let taken = (0..wanted).take_while(|_| self.rate.take(now, 1).is_ok()).count();
        let taken = u32::try_from(taken).expect("at most what was wanted");
        if taken > 0 {
            self.made.insert(from, (taken, now + PROMISE_LASTS));
        }
        taken
    }
}
