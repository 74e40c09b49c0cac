//! Which node should take a conversation that nobody owns?
//!
//! Every node computes this from what it last saw of the others, so two may disagree; that costs a hop, never a second
//! owner, for a claim is decided by the store.
//!
//! Invariant: a conversation is never placed in a region that it does not allow (strict residency), and never on a node
//! that drains.

use crate::ids::{Incarnation, Region};

/// A node that could own something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate<'a> {
    /// Who.
    pub incarnation: Incarnation,
    /// Where it runs.
    pub region: &'a Region,
    /// Whether it takes anything.
    pub intake: Intake,
}

/// Whether a node takes new conversations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intake {
    /// It does.
    Open,
    /// It drains.
    Draining,
}

/// Where a conversation may be, and where it is best.
#[derive(Debug, Clone, Copy)]
pub struct Wish<'a> {
    /// The regions it is allowed in; empty: all.
    pub regions: &'a [Region],
    /// The region it belongs to.
    pub home: &'a Region,
}

impl Wish<'_> {
    /// May it be owned in this region?
    #[must_use]
    pub fn allows(&self, region: &Region) -> bool {
        self.regions.is_empty() || self.regions.contains(region)
    }
}

/// The answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// On the node that asks.
    Here,
    /// On this one.
    There(Incarnation),
    /// Nobody who is known may take it now.
    Nowhere,
}

/// Those of these nodes that a conversation belongs to: of its home, where one takes it, else all that may own it and take
/// anything.
#[must_use]
pub fn circle<'a>(nodes: &[Candidate<'a>], wish: Wish<'_>) -> Vec<Candidate<'a>> {
    let takes = |node: &&Candidate<'a>| node.intake == Intake::Open && wish.allows(node.region);
    let at_home: Vec<Candidate<'a>> =
        nodes.iter().filter(takes).filter(|node| node.region == wish.home).copied().collect();
    if at_home.is_empty() { nodes.iter().filter(takes).copied().collect() } else { at_home }
}

/// Places a conversation. `salt` spreads conversations over equal candidates.
#[must_use]
pub fn place(me: Candidate<'_>, others: &[Candidate<'_>], wish: Wish<'_>, salt: u64) -> Placement {
    let all: Vec<Candidate<'_>> = std::iter::once(me).chain(others.iter().copied()).collect();
    let best = circle(&all, wish);
    if best.iter().any(|node| node.incarnation == me.incarnation) {
        return Placement::Here;
    }
    if best.is_empty() {
        return Placement::Nowhere;
    }
    let chosen = usize::try_from(salt % best.len() as u64).expect("below the length of a list");
    Placement::There(best[chosen].incarnation)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(name: &str) -> Region {
        name.parse().expect("valid")
    }

    /// Each case: my region and intake, the others', the allowed regions, the home, and who gets it (0: me).
    #[test]
    fn home_is_preferred_and_residency_is_kept() {
        use Intake::{Draining, Open};
        type Node<'a> = (&'a str, Intake);
        type Case<'a> = (Node<'a>, &'a [Node<'a>], &'a [&'a str], &'a str, Option<u128>);
        let cases: [Case<'_>; 11] = [
            (("a", Open), &[], &[], "a", Some(0)),
            (("a", Open), &[("b", Open)], &[], "b", Some(1)),
            (("a", Open), &[("b", Draining)], &[], "b", Some(0)),
            (("a", Open), &[("a", Open)], &[], "a", Some(0)),
            (("a", Open), &[("b", Open)], &["b"], "b", Some(1)),
            (("a", Open), &[("c", Open)], &["b"], "b", None),
            (("a", Open), &[("c", Open)], &["b", "c"], "b", Some(1)),
            (("a", Draining), &[("a", Open)], &[], "a", Some(1)),
            (("a", Draining), &[("b", Open)], &[], "a", Some(1)),
            (("a", Draining), &[("b", Open)], &["a"], "a", None),
            (("a", Draining), &[("a", Draining)], &[], "a", None),
        ];
        for (number, (me, others, allowed, home, wanted)) in cases.into_iter().enumerate() {
            let allowed: Vec<Region> = allowed.iter().map(|name| region(name)).collect();
            let names: Vec<Region> = others.iter().map(|(name, _)| region(name)).collect();
            let (mine, home) = (region(me.0), region(home));
            let others: Vec<Candidate<'_>> = others
                .iter()
                .zip(&names)
                .enumerate()
                .map(|(index, ((_, intake), region))| Candidate {
                    incarnation: Incarnation(index as u128 + 1),
                    region,
                    intake: *intake,
                })
                .collect();
            let me = Candidate { incarnation: Incarnation(0), region: &mine, intake: me.1 };
            let placed = place(me, &others, Wish { regions: &allowed, home: &home }, 7);
            let wanted = match wanted {
                None => Placement::Nowhere,
                Some(0) => Placement::Here,
                Some(other) => Placement::There(Incarnation(other)),
            };
            assert_eq!(placed, wanted, "case {number}");
        }
    }

    #[test]
    fn equal_candidates_share() {
        let (mine, home) = (region("a"), region("b"));
        let me = Candidate { incarnation: Incarnation(0), region: &mine, intake: Intake::Open };
        let others =
            [1, 2, 3].map(|number| Candidate { incarnation: Incarnation(number), region: &home, intake: Intake::Open });
        let chosen: std::collections::BTreeSet<Incarnation> = (0..9)
            .map(|salt| match place(me, &others, Wish { regions: &[], home: &home }, salt) {
                Placement::There(incarnation) => incarnation,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(chosen.len(), 3);
    }
}
