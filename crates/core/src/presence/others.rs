//! What a hub knows of the sessions of other hubs: what the owner tells it.

use std::collections::BTreeSet;

use super::shard::{Meta, MetaRef, PresenceNews, Wanted};
use super::{Presence, SETTLE};
use crate::ids::Subject;
use crate::time::Monotonic;

/// A new owner was found, and the other hubs may not have found it yet.
#[derive(Debug)]
pub(super) struct Settling {
    until: Monotonic,
    /// Whom it has told of; of the others whom an earlier owner told of, nobody knows yet.
    confirmed: BTreeSet<MetaRef>,
    /// Its last count.
    told: Option<usize>,
}

impl Presence {
    /// An owner was found. It does not know this hub's shard yet; what an earlier owner told stays for [`SETTLE`].
    pub fn attached(&mut self, now: Monotonic) {
        self.outgoing.start_over();
        let is_known = !self.others.is_empty() || self.told.is_some();
        self.settling = is_known.then(|| Settling { until: now + SETTLE, confirmed: BTreeSet::new(), told: None });
    }

    /// The owner tells something.
    pub fn hear(&mut self, news: &PresenceNews) {
        match news {
            PresenceNews::Whole(metas) => {
                let now_there: BTreeSet<MetaRef> = metas.iter().map(|meta| meta.reference).collect();
                match &mut self.settling {
                    Some(settling) => settling.confirmed = now_there,
                    None => self.keep_others(&now_there),
                }
                self.names_are_told();
                self.add_others(metas);
            }
            PresenceNews::Changed { joins, leaves } => {
                self.names_are_told();
                for reference in leaves {
                    self.remove_other(*reference);
                }
                self.add_others(joins);
            }
            PresenceNews::Count(count) => self.only_counted(usize::try_from(*count).unwrap_or(usize::MAX)),
            PresenceNews::Ask => {
                self.names_are_told();
                self.outgoing.start_over();
            }
        }
        self.has_risen();
    }

    fn names_are_told(&mut self) {
        match &mut self.settling {
            Some(settling) => settling.told = None,
            None => self.told = None,
        }
    }

    fn add_others(&mut self, metas: &[Meta]) {
        for Meta { reference, sub, name } in metas {
            if reference.hub == self.hub {
                continue;
            }
            if let Some(settling) = &mut self.settling {
                settling.confirmed.insert(*reference);
            }
            match self.others.insert(*reference, sub.clone()) {
                Some(before) if before != *sub => self.hide(*reference, &before),
                _ => {}
            }
            self.show(*reference, sub, name.clone());
        }
    }

    fn remove_other(&mut self, reference: MetaRef) {
        if let Some(settling) = &mut self.settling {
            settling.confirmed.remove(&reference);
        }
        if let Some(sub) = self.others.remove(&reference) {
            self.hide(reference, &sub);
        }
    }

    fn keep_others(&mut self, kept: &BTreeSet<MetaRef>) {
        let gone: Vec<(MetaRef, Subject)> = self.others.extract_if(.., |other, _| !kept.contains(other)).collect();
        for (reference, sub) in gone {
            self.hide(reference, &sub);
        }
    }

    /// Names are of no use above the threshold.
    fn only_counted(&mut self, count: usize) {
        self.begin_to_count();
        self.outgoing.wanted = Wanted::Counts;
        self.told = match &mut self.settling {
            Some(settling) => {
                settling.told = Some(count);
                // What the hubs that are not back yet will add to it is not known.
                Some(self.told.map_or(count, |told| told.max(count)))
            }
            None => Some(count),
        };
        let kept = BTreeSet::new();
        self.keep_others(&kept);
    }

    /// What did not come back in time is gone.
    pub(super) fn settle(&mut self, now: Monotonic) {
        if self.settling.as_ref().is_some_and(|settling| now >= settling.until)
            && let Some(Settling { confirmed, told, .. }) = self.settling.take()
        {
            self.told = told;
            self.keep_others(&confirmed);
        }
    }

    pub(super) fn meta(&self, reference: MetaRef, sub: &Subject) -> Meta {
        let name = self.subjects.get(sub).and_then(|metas| metas.get(&reference)?.clone());
        Meta { reference, sub: sub.clone(), name }
    }
}
