//! What a node believes about conversations: which it owns, and where others are owned.
//!
//! Invariant: one entry per conversation, so one claim at a time and at most one owner task. A belief about another node
//! is only a saved look-up; it goes at the first sign of trouble.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use conch_core::ids::ConvKey;
use conch_core::time::Monotonic;
use tokio::sync::watch;

use crate::link::Peer;
use crate::owner::{OwnerHandle, Reading, SetUp, Tenure};

/// What this node has of a conversation.
pub(super) enum Entry {
    /// A claim is under way; the receiver wakes when it is settled.
    Claiming(watch::Receiver<()>),
    /// Its task runs here.
    Active(OwnerHandle),
    /// Owned, without a task.
    Hibernating { tenure: Tenure, since: Monotonic },
}

/// A conversation at rest that is being settled: who asks for it waits until `settle` is dropped.
pub(super) struct Sleeper {
    pub(super) tenure: Tenure,
    /// Since when it has been asleep.
    pub(super) since: Monotonic,
    pub(super) settle: watch::Sender<()>,
}

impl Entry {
    /// Marks one that is at rest as being settled.
    pub(super) fn take_sleeper(&mut self) -> Option<Sleeper> {
        let Self::Hibernating { tenure, since } = self else { return None };
        let (settle, settled) = watch::channel(());
        let sleeper = Sleeper { tenure: tenure.clone(), since: *since, settle };
        *self = Self::Claiming(settled);
        Some(sleeper)
    }
}

/// What the node still takes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Stage {
    /// Everything.
    #[default]
    Open,
    /// No new conversations; what comes for others is passed on.
    Draining,
    /// Nothing.
    Closed,
}

#[derive(Default)]
pub(super) struct Table {
    pub(super) entries: BTreeMap<ConvKey, Entry>,
    pub(super) stage: Stage,
    /// Conversations that are resolved again until the answer is known; one task each.
    pub(super) looking: BTreeSet<ConvKey>,
    elsewhere: BTreeMap<ConvKey, Peer>,
    readings: Reading,
}

/// Who has to hear how a session's turns are run.
pub(super) enum Hearer {
    /// Nobody, or nobody any more.
    Nobody,
    /// This owner.
    Owner(OwnerHandle),
    /// Whoever claims; the receiver wakes when that is settled.
    Claiming(watch::Receiver<()>),
}

/// What a look at the table says.
pub(super) enum Lookup {
    Active(OwnerHandle),
    Elsewhere(Peer),
    Wait(watch::Receiver<()>),
    /// The entry is ours to settle; dropping the sender wakes those who wait.
    Settle(watch::Sender<()>, Option<Tenure>),
}

impl Table {
    /// Looks; where nothing is known, the caller gets the entry to settle.
    pub(super) fn look_up(&mut self, key: ConvKey) -> Lookup {
        match self.entries.get(&key) {
            Some(Entry::Active(handle)) if !handle.is_gone() => return Lookup::Active(handle.clone()),
            // A claim whose task is gone settles nothing any more: it is ours.
            Some(Entry::Claiming(settled)) if settled.has_changed().is_ok() => return Lookup::Wait(settled.clone()),
            Some(_) => {}
            None => {
                if let Some(peer) = self.elsewhere.get(&key) {
                    return Lookup::Elsewhere(peer.clone());
                }
            }
        }
        let (settle, settled) = watch::channel(());
        let tenure = match self.entries.insert(key, Entry::Claiming(settled)) {
            Some(Entry::Hibernating { tenure, .. }) => Some(tenure),
            _ => None,
        };
        Lookup::Settle(settle, tenure)
    }

    /// Marks the first hibernating entry above a key that is wanted as being settled, and hands it out.
    pub(super) fn take_sleeper(
        &mut self,
        above: Option<ConvKey>,
        wanted: impl Fn(Monotonic) -> bool,
    ) -> Option<Sleeper> {
        let above = above.map_or(Bound::Unbounded, Bound::Excluded);
        let mut entries = self.entries.range_mut((above, Bound::Unbounded)).map(|(_, entry)| entry);
        let is_wanted = |entry: &&mut Entry| matches!(entry, Entry::Hibernating { since, .. } if wanted(*since));
        entries.find(is_wanted)?.take_sleeper()
    }

    /// Numbers a reading that begins now.
    pub(super) fn next_reading(&mut self) -> Reading {
        self.readings.0 += 1;
        self.readings
    }

    /// Takes what was read for what is at rest, and says who has to hear it otherwise.
    pub(super) fn set_up(&mut self, key: ConvKey, read: &SetUp) -> Hearer {
        match self.entries.get_mut(&key) {
            Some(Entry::Active(owner)) => Hearer::Owner(owner.clone()),
            Some(Entry::Claiming(settled)) => Hearer::Claiming(settled.clone()),
            Some(Entry::Hibernating { tenure, .. }) => {
                tenure.set_up(read.clone());
                Hearer::Nobody
            }
            None => Hearer::Nobody,
        }
    }

    /// Remembers an owner elsewhere, at most `limit` of them; `spread` (random) says which one is forgotten for it.
    pub(super) fn remember(&mut self, key: ConvKey, peer: Peer, limit: usize, spread: u64) {
        if self.elsewhere.len() >= limit && !self.elsewhere.contains_key(&key) {
            let mut from = [0; 16];
            from[..8].copy_from_slice(&spread.to_be_bytes());
            let victim = self.elsewhere.range(ConvKey(from)..).next().or_else(|| self.elsewhere.iter().next());
            if let Some(victim) = victim.map(|(key, _)| *key) {
                self.elsewhere.remove(&victim);
            }
        }
        self.elsewhere.insert(key, peer);
    }

    /// Forgets what is believed of an owner elsewhere.
    pub(super) fn forget(&mut self, key: ConvKey) {
        self.elsewhere.remove(&key);
    }

    /// How many owners elsewhere are remembered.
    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        self.elsewhere.len()
    }
}

#[cfg(test)]
mod tests {
    use conch_core::ids::Incarnation;

    use super::*;

    #[test]
    fn owners_elsewhere_are_remembered_within_a_limit_and_forgotten_on_request() {
        let mut table = Table::default();
        let peer = |number: u8| Peer { incarnation: Incarnation(u128::from(number)), addr: format!("h:{number}") };
        for number in 0..20 {
            table.remember(ConvKey([number; 16]), peer(number), 5, u64::from(number) << 56);
        }
        assert_eq!(table.remembered(), 5);
        let newest = ConvKey([19; 16]);
        assert!(matches!(table.look_up(newest), Lookup::Elsewhere(found) if found == peer(19)));
        table.forget(newest);
        let Lookup::Settle(claim, None) = table.look_up(newest) else { panic!("nobody is known to own it") };
        assert!(matches!(table.look_up(newest), Lookup::Wait(_)), "it is being settled");
        drop(claim);
        assert!(matches!(table.look_up(newest), Lookup::Settle(..)), "whoever was to settle it is gone");
    }
}
