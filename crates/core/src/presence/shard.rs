//! A gateway's share of a conversation's presence, and what hubs and owner tell each other about it.
//!
//! Invariants: what is told is bounded: names by [`super::NAMED_MAX`], and a report with many changes becomes a whole shard.
//! Reports may be lost, so each carries a serial; news are not, so they carry none.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::DIFF_MAX;
use crate::ids::Subject;
use crate::time::Monotonic;

/// Time between two reports of a shard in which nothing changes: a lost report is found out after that.
pub const STILL_INTERVAL: Duration = Duration::from_secs(5);
/// Least time between two reports of a shard that only counts.
pub const COUNTED_INTERVAL: Duration = Duration::from_millis(500);

/// Names a session over all gateways. The order is that in which a subject's sessions are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MetaRef {
    /// The session's place in its hub's order of joining.
    pub turn: u64,
    /// The hub, as it names itself.
    pub hub: u64,
}

/// A session that is present.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    /// Which.
    pub reference: MetaRef,
    /// Whose.
    pub sub: Subject,
    /// The display name.
    pub name: Option<Arc<str>>,
}

/// What a hub tells the owner of its sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardReport {
    /// Which hub; no two have had the same name.
    pub hub: u64,
    /// One more than that of the hub's report before, except for [`ShardNews::Still`].
    pub serial: u64,
    /// Sessions that watch there.
    pub sessions: u32,
    /// What there is to tell.
    pub news: ShardNews,
}

/// See [`ShardReport`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShardNews {
    /// Nothing since the report with this serial.
    Still,
    /// Everybody who is there.
    Whole(Vec<Meta>),
    /// What has changed since the report before.
    Changed {
        /// Who came.
        joins: Vec<Meta>,
        /// Who left.
        leaves: Vec<MetaRef>,
    },
    /// Only the number of sessions.
    Counted,
}

/// What an owner tells every hub that follows it. A hub knows its own sessions best and skips what is said of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PresenceNews {
    /// Everybody whom the owner knows of.
    Whole(Vec<Meta>),
    /// What has changed since the last news.
    Changed {
        /// Who came.
        joins: Vec<Meta>,
        /// Who left.
        leaves: Vec<MetaRef>,
    },
    /// Only the number of sessions; hubs report no more than theirs until they are asked.
    Count(u32),
    /// Tell the whole shard.
    Ask,
}

/// What the owner wants to be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    Names,
    Counts,
}

/// What a hub has told the owner, and has not yet.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) wanted: Wanted,
    serial: u64,
    whole_due: bool,
    joined: BTreeSet<MetaRef>,
    left: BTreeSet<MetaRef>,
    /// The number of sessions last told, and when something was told.
    told: Option<(usize, Monotonic)>,
}

/// What is to be told now.
pub(super) enum Due {
    Whole,
    Changed { joins: BTreeSet<MetaRef>, leaves: BTreeSet<MetaRef> },
    Counted,
    Still,
}

impl Outgoing {
    pub(super) fn new() -> Self {
        Self {
            wanted: Wanted::Names,
            serial: 0,
            whole_due: true,
            joined: BTreeSet::new(),
            left: BTreeSet::new(),
            told: None,
        }
    }

    pub(super) fn joined(&mut self, session: MetaRef) {
        if !self.whole_due {
            self.joined.insert(session);
            self.bound();
        }
    }

    pub(super) fn left(&mut self, session: MetaRef) {
        if !self.whole_due && !self.joined.remove(&session) {
            self.left.insert(session);
            self.bound();
        }
    }

    /// Everything is to be told again, by name if the number allows it.
    pub(super) fn start_over(&mut self) {
        self.whole_due = true;
        self.wanted = Wanted::Names;
        self.joined.clear();
        self.left.clear();
    }

    fn bound(&mut self) {
        if self.joined.len() + self.left.len() > DIFF_MAX {
            self.whole_due = true;
            self.joined.clear();
            self.left.clear();
        }
    }

    /// What to tell now, and its serial.
    pub(super) fn due(&mut self, now: Monotonic, sessions: usize, threshold: usize) -> Option<(u64, Due)> {
        let passed = |interval| self.told.is_none_or(|(_, at)| now.since(at) >= interval);
        let due = if self.wanted == Wanted::Counts || sessions >= threshold {
            let is_news = self.whole_due || self.told.is_none_or(|(told, _)| told != sessions);
            if is_news && (self.whole_due || passed(COUNTED_INTERVAL)) {
                Due::Counted
            } else if passed(STILL_INTERVAL) {
                Due::Still
            } else {
                return None;
            }
        } else if self.whole_due {
            Due::Whole
        } else if !self.joined.is_empty() || !self.left.is_empty() {
            Due::Changed { joins: std::mem::take(&mut self.joined), leaves: std::mem::take(&mut self.left) }
        } else if passed(STILL_INTERVAL) {
            Due::Still
        } else {
            return None;
        };
        match due {
            Due::Still => {}
            Due::Whole | Due::Changed { .. } | Due::Counted => {
                self.serial += 1;
                self.joined.clear();
                self.left.clear();
                // After a count, names begin with everybody.
                self.whole_due = matches!(due, Due::Counted) && self.wanted == Wanted::Names && sessions < threshold;
            }
        }
        self.told = Some((sessions, now));
        Some((self.serial, due))
    }
}
