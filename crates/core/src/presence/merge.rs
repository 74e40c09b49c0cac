//! An owner's view of presence: the shards of all gateways that follow it, merged.
//!
//! Invariants: followers that were told of a state when they attached, and of every later flush, know exactly the union of
//! the shards as of the last flush, in whatever order reports, attachments and detachments came; a hub has one shard,
//! however often it attached; above the threshold no name is kept, and a rush costs one message a follower and window.
//!
//! Deliberately absent: timers (the shell calls [`Merged::flush`]), and who the followers are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::shard::{Meta, MetaRef, PresenceNews, ShardNews, ShardReport};
use super::{CALM, COUNT_INTERVAL, JsonOfMetas, Mode, Name, SHOWN_METAS_MAX};
use crate::ids::Subject;
use crate::time::Monotonic;

/// Names one follow stream of an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FollowerId(pub u64);

/// What came of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// It fits.
    Fits,
    /// Something was lost before it: the follower has to be asked for its whole shard.
    Gap,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Who {
    sub: Subject,
    name: Name,
}

#[derive(Debug)]
struct Shard {
    hub: u64,
    serial: u64,
    sessions: usize,
    /// `None`: only counted.
    metas: Option<BTreeMap<MetaRef, Who>>,
}

/// See the module.
#[derive(Debug)]
pub struct Merged {
    threshold: usize,
    followers: BTreeSet<FollowerId>,
    /// Of followers that have reported.
    shards: BTreeMap<FollowerId, Shard>,
    /// The union as followers were last told.
    told: BTreeMap<MetaRef, Who>,
    /// What may differ from that now.
    touched: BTreeSet<MetaRef>,
    mode: Mode,
    calm_since: Option<Monotonic>,
    counted: Option<(usize, Monotonic)>,
}

impl Merged {
    /// Nobody is here. `threshold`: sessions over all gateways from which only a count is told, at least 1.
    #[must_use]
    pub fn new(threshold: usize) -> Self {
        Self {
            threshold: threshold.max(1),
            followers: BTreeSet::new(),
            shards: BTreeMap::new(),
            told: BTreeMap::new(),
            touched: BTreeSet::new(),
            mode: Mode::Full,
            calm_since: None,
            counted: None,
        }
    }

    /// A follower attaches, and is told this before any flush. A later one has a greater id.
    #[must_use]
    pub fn attach(&mut self, follower: FollowerId) -> PresenceNews {
        self.followers.insert(follower);
        match self.mode {
            Mode::Full => PresenceNews::Whole(self.told.iter().map(|(reference, who)| meta(*reference, who)).collect()),
            // As all others were told: a count that has changed since is told to all, one that is the same again to nobody.
            Mode::Count => PresenceNews::Count(on_wire(self.counted.map_or_else(|| self.count(), |(told, _)| told))),
        }
    }

    /// A follower reports. What comes from one that is gone, or has attached again since, is of no interest.
    pub fn report(&mut self, from: FollowerId, report: ShardReport) -> Heard {
        let ShardReport { hub, serial, sessions, news } = report;
        let sessions = usize::try_from(sessions).unwrap_or(usize::MAX);
        let known = self.shards.iter().find(|(_, shard)| shard.hub == hub).map(|(id, _)| *id);
        if !self.followers.contains(&from) || known.is_some_and(|known| known > from) {
            return Heard::Fits;
        }
        if let Some(before) = known.filter(|known| *known != from) {
            // It came back by another stream before the first one was missed.
            self.drop_shard(before);
        }
        if self.shards.get(&from).is_some_and(|shard| shard.hub != hub) {
            self.drop_shard(from);
        }
        let heard = self.take(from, hub, serial, sessions, news);
        if self.mode == Mode::Full && self.count() >= self.threshold {
            self.begin_to_count();
        }
        if !self.is_calm() {
            self.calm_since = None;
        }
        heard
    }

    fn take(&mut self, from: FollowerId, hub: u64, serial: u64, sessions: usize, news: ShardNews) -> Heard {
        if self.mode == Mode::Count {
            self.shards.insert(from, Shard { hub, serial, sessions, metas: None });
            return Heard::Fits;
        }
        match news {
            ShardNews::Whole(metas) => {
                self.drop_shard(from);
                let metas: BTreeMap<_, _> = metas.into_iter().map(|meta| (meta.reference, who(meta))).collect();
                self.touched.extend(metas.keys().copied());
                self.shards.insert(from, Shard { hub, serial, sessions, metas: Some(metas) });
                Heard::Fits
            }
            ShardNews::Counted => {
                self.drop_shard(from);
                self.shards.insert(from, Shard { hub, serial, sessions, metas: None });
                // It was told to count by an owner before this one, or before it was asked.
                if sessions < self.threshold { Heard::Gap } else { Heard::Fits }
            }
            ShardNews::Changed { joins, leaves } => {
                let Some(shard) = self.shards.get_mut(&from) else { return Heard::Gap };
                let Some(metas) = shard.metas.as_mut().filter(|_| shard.serial.checked_add(1) == Some(serial)) else {
                    return Heard::Gap;
                };
                (shard.serial, shard.sessions) = (serial, sessions);
                for reference in leaves {
                    metas.remove(&reference);
                    self.touched.insert(reference);
                }
                for meta in joins {
                    self.touched.insert(meta.reference);
                    metas.insert(meta.reference, who(meta));
                }
                Heard::Fits
            }
            ShardNews::Still => match self.shards.get_mut(&from) {
                Some(shard) if shard.serial == serial && shard.metas.is_some() => {
                    shard.sessions = sessions;
                    Heard::Fits
                }
                _ => Heard::Gap,
            },
        }
    }

    /// A follower is gone, and its shard with it.
    pub fn detach(&mut self, follower: FollowerId) {
        self.followers.remove(&follower);
        self.drop_shard(follower);
    }

    fn drop_shard(&mut self, follower: FollowerId) {
        if let Some(shard) = self.shards.remove(&follower) {
            self.touched.extend(shard.metas.into_iter().flatten().map(|(reference, _)| reference));
        }
    }

    /// Connected sessions over all gateways.
    #[must_use]
    pub fn count(&self) -> usize {
        self.shards.values().fold(0, |sum, shard| sum.saturating_add(shard.sessions))
    }

    /// Who is here, as the JSON of `GET …/presence`; `None` while nobody follows.
    #[must_use]
    pub fn json(&self) -> Option<String> {
        if self.shards.is_empty() {
            return None;
        }
        let count = self.count();
        if self.mode == Mode::Count {
            return Some(format!(r#"{{"count":{count},"present":null}}"#));
        }
        let mut by_subject: BTreeMap<&Subject, BTreeMap<MetaRef, &Name>> = BTreeMap::new();
        for (reference, who) in self.shards.values().flat_map(|shard| shard.metas.iter().flatten()) {
            by_subject.entry(&who.sub).or_default().insert(*reference, &who.name);
        }
        let mut json = JsonOfMetas::new();
        for (sub, metas) in by_subject {
            json.subject(sub, metas.into_iter().take(SHOWN_METAS_MAX));
        }
        Some(format!(r#"{{"count":{count},"present":{}}}"#, json.finish()))
    }

    /// Whether there may be something to flush before the next tick.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        match self.mode {
            Mode::Full => !self.touched.is_empty(),
            Mode::Count => self.counted.is_none(),
        }
    }

    /// What all followers are to be told now. The shell calls it once a window after a change, and once a second.
    #[must_use]
    pub fn flush(&mut self, now: Monotonic) -> Option<PresenceNews> {
        if self.mode == Mode::Count {
            return self.flush_count(now);
        }
        let (mut joins, mut leaves) = (Vec::new(), Vec::new());
        for reference in std::mem::take(&mut self.touched) {
            let present = self.shards.values().find_map(|shard| shard.metas.as_ref()?.get(&reference)).cloned();
            match (present, self.told.remove(&reference)) {
                (Some(who), told) => {
                    if told.as_ref() != Some(&who) {
                        joins.push(meta(reference, &who));
                    }
                    self.told.insert(reference, who);
                }
                (None, Some(_)) => leaves.push(reference),
                (None, None) => {}
            }
        }
        // A hub that is alone has told all of it itself.
        let alone = match self.shards.values().next() {
            Some(shard) if self.shards.len() == 1 && self.followers.len() == 1 => Some(shard.hub),
            _ => None,
        };
        let is_news = joins
            .iter()
            .map(|meta| meta.reference)
            .chain(leaves.iter().copied())
            .any(|reference| Some(reference.hub) != alone);
        is_news.then_some(PresenceNews::Changed { joins, leaves })
    }

    fn flush_count(&mut self, now: Monotonic) -> Option<PresenceNews> {
        if self.is_calm() {
            let since = *self.calm_since.get_or_insert(now);
            if now.since(since) >= CALM {
                self.mode = Mode::Full;
                (self.calm_since, self.counted) = (None, None);
                return Some(PresenceNews::Ask);
            }
        }
        let count = self.count();
        if !self.counted.is_none_or(|(told, at)| told != count && now.since(at) >= COUNT_INTERVAL) {
            return None;
        }
        self.counted = Some((count, now));
        Some(PresenceNews::Count(on_wire(count)))
    }

    fn begin_to_count(&mut self) {
        self.mode = Mode::Count;
        self.counted = None;
        self.told.clear();
        self.touched.clear();
        for shard in self.shards.values_mut() {
            shard.metas = None;
        }
    }

    fn is_calm(&self) -> bool {
        self.count().saturating_mul(5) < self.threshold.saturating_mul(4)
    }
}

fn on_wire(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn who(meta: Meta) -> Who {
    Who { sub: meta.sub, name: meta.name }
}

fn meta(reference: MetaRef, who: &Who) -> Meta {
    Meta { reference, sub: who.sub.clone(), name: who.name.as_ref().map(Arc::clone) }
}
