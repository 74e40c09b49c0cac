//! Who is here: the presence of one conversation, in the shape that Phoenix clients read.
//!
//! Invariants: a client that starts from a state and applies every later diff has exactly the current state, whatever
//! came and went in between; below the threshold changes are told as diffs, above it only as a count, so that a rush
//! costs O(1) messages a window, and under pressure as a count or not at all; and whoever another gateway shows is shown here until an owner says otherwise, so that
//! nobody flaps while the conversation changes its owner. Deliberately absent: timers (the shell calls
//! [`Presence::flush`]), and the merging of gateways' shards ([`merge`]), which is the owner's.

pub mod merge;
mod others;
pub mod shard;

#[cfg(test)]
mod merge_tests;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::ids::Subject;
use crate::time::Monotonic;
use crate::wire::push_json_text;
use others::Settling;
use shard::{Due, Meta, MetaRef, Outgoing, ShardNews, ShardReport, Wanted};

/// Connected sessions from which only a count is told, by default.
pub const COUNT_THRESHOLD: usize = 1000;
/// Most connected sessions, over all gateways, whose presence may be told by name: the largest threshold.
pub const NAMED_MAX: usize = 3_000;
/// Most sessions of one subject that clients are shown. Others are kept, and move up as those leave.
pub const SHOWN_METAS_MAX: usize = 16;
/// Least time between two counts.
pub const COUNT_INTERVAL: Duration = Duration::from_secs(10);
/// How long the number must stay below 0.8 × the threshold before diffs are told again.
pub const CALM: Duration = Duration::from_secs(10);
/// How long those who are shown by others stay so after a new owner was found, unless it says so: by then the other
/// gateways have found it, too.
pub const SETTLE: Duration = Duration::from_secs(6);
/// Most subjects and metas remembered for one diff; a window with more tells the whole state instead.
pub const DIFF_MAX: usize = 4096;

/// How presence is told at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Everybody by name.
    Full,
    /// Only how many.
    Count,
}

/// How much of presence clients are told at most: what a gateway under pressure leaves of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Telling {
    /// Nothing.
    Nothing,
    /// Only how many.
    Counts,
    /// Everybody by name, below the threshold.
    Names,
}

/// An event for clients, with its compact JSON payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Announcement {
    /// Replaces what a client knows: `{key:{"metas":[…]},…}`.
    State(String),
    /// Changes what a client knows: `{"joins":{…},"leaves":{…}}`.
    Diff(String),
    /// `{"count":n}`, connected sessions.
    Count(String),
}

impl Announcement {
    /// The event's name on every transport.
    #[must_use]
    pub fn event(&self) -> &'static str {
        match self {
            Self::State(_) => "presence_state",
            Self::Diff(_) => "presence_diff",
            Self::Count(_) => "presence_count",
        }
    }

    /// The payload: compact JSON, an object.
    #[must_use]
    pub fn payload(&self) -> &str {
        match self {
            Self::State(payload) | Self::Diff(payload) | Self::Count(payload) => payload,
        }
    }
}

type Name = Option<Arc<str>>;

/// What has changed for one subject since the last flush.
#[derive(Debug, Default)]
struct Change {
    /// Shown at the last flush.
    base: BTreeSet<MetaRef>,
    /// All that some client may have been shown: the base, and what states given out since have added.
    exposed: BTreeMap<MetaRef, Name>,
}

/// See the module.
#[derive(Debug)]
pub struct Presence {
    /// Tells this hub's sessions from those of any other.
    hub: u64,
    threshold: usize,
    next_turn: u64,
    sessions: BTreeMap<u64, (Subject, MetaRef)>,
    /// Those of other hubs.
    others: BTreeMap<MetaRef, Subject>,
    /// Sessions over all gateways, while the owner only counts.
    told: Option<usize>,
    settling: Option<Settling>,
    outgoing: Outgoing,
    subjects: BTreeMap<Subject, BTreeMap<MetaRef, Name>>,
    changes: BTreeMap<Subject, Change>,
    /// Subjects and metas in `changes`.
    change_size: usize,
    mode: Mode,
    telling: Telling,
    /// A diff would not do: the next flush tells the state.
    state_is_due: bool,
    /// Since when the number has been low enough to tell diffs again.
    calm_since: Option<Monotonic>,
    /// The last count told, and when.
    counted: Option<(usize, Monotonic)>,
}

impl Presence {
    /// Nobody is here. `hub` differs for each hub that there ever was; `threshold` is that of [`Mode::Count`] (at
    /// least 1).
    #[must_use]
    pub fn new(hub: u64, threshold: usize) -> Self {
        Self {
            hub,
            threshold: threshold.max(1),
            next_turn: 0,
            sessions: BTreeMap::new(),
            others: BTreeMap::new(),
            told: None,
            settling: None,
            outgoing: Outgoing::new(),
            subjects: BTreeMap::new(),
            changes: BTreeMap::new(),
            change_size: 0,
            mode: Mode::Full,
            telling: Telling::Names,
            state_is_due: false,
            calm_since: None,
            counted: None,
        }
    }

    /// No more than this is told from now on. Names come back as after a crowd: once the number, and the pressure, have been
    /// low for [`CALM`].
    pub fn tell_at_most(&mut self, telling: Telling) {
        self.telling = telling;
        if telling < Telling::Names {
            self.begin_to_count();
            self.calm_since = None;
        }
        if telling == Telling::Nothing {
            // The first count afterwards is news to everybody.
            self.counted = None;
        }
    }

    /// A session of `subject` is here. A session that was here already leaves first.
    pub fn join(&mut self, session: u64, subject: &Subject, name: Name) {
        self.leave(session);
        let reference = MetaRef { turn: self.next_turn, hub: self.hub };
        self.next_turn += 1;
        self.sessions.insert(session, (subject.clone(), reference));
        self.show(reference, subject, name);
        self.outgoing.joined(reference);
        self.has_risen();
    }

    /// A session is gone. One that was not here changes nothing.
    pub fn leave(&mut self, session: u64) {
        let Some((subject, reference)) = self.sessions.remove(&session) else { return };
        self.hide(reference, &subject);
        self.outgoing.left(reference);
    }

    fn show(&mut self, reference: MetaRef, subject: &Subject, name: Name) {
        self.note_change(subject);
        self.subjects.entry(subject.clone()).or_default().insert(reference, name);
    }

    fn hide(&mut self, reference: MetaRef, subject: &Subject) {
        self.note_change(subject);
        if let Some(metas) = self.subjects.get_mut(subject) {
            metas.remove(&reference);
            if metas.is_empty() {
                self.subjects.remove(subject);
            }
        }
    }

    fn has_risen(&mut self) {
        if self.count() >= self.threshold {
            self.begin_to_count();
        }
        if !self.is_calm() {
            self.calm_since = None;
        }
    }

    fn begin_to_count(&mut self) {
        if self.mode == Mode::Full {
            self.mode = Mode::Count;
            self.state_is_due = false;
            self.forget_changes();
        }
    }

    /// Connected sessions over all gateways, as far as this hub knows: never fewer than its own.
    #[must_use]
    pub fn count(&self) -> usize {
        let known = self.sessions.len() + self.others.len();
        self.told.map_or(known, |told| told.max(known))
    }

    /// What the owner is to be told now, if anything; called after changes and twice a second.
    #[must_use]
    pub fn report(&mut self, now: Monotonic) -> Option<ShardReport> {
        let (serial, due) = self.outgoing.due(now, self.sessions.len(), self.threshold)?;
        let news = match due {
            Due::Whole => ShardNews::Whole(self.own_metas(|_| true)),
            Due::Changed { joins, leaves } => {
                let joins = self.own_metas(|reference| joins.contains(reference));
                ShardNews::Changed { joins, leaves: leaves.into_iter().collect() }
            }
            Due::Counted => ShardNews::Counted,
            Due::Still => ShardNews::Still,
        };
        let sessions = u32::try_from(self.sessions.len()).unwrap_or(u32::MAX);
        Some(ShardReport { hub: self.hub, serial, sessions, news })
    }

    fn own_metas(&self, wanted: impl Fn(&MetaRef) -> bool) -> Vec<Meta> {
        let wanted = self.sessions.values().filter(|(_, reference)| wanted(reference));
        wanted.map(|(sub, reference)| self.meta(*reference, sub)).collect()
    }

    /// How presence is told at the moment.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// What a session is told when it has joined: the state, or the count; nothing while presence is not told.
    #[must_use]
    pub fn greeting(&mut self) -> Option<Announcement> {
        if self.telling == Telling::Nothing {
            return None;
        }
        Some(match self.mode {
            Mode::Full => Announcement::State(self.state_json()),
            Mode::Count => self.count_announcement(),
        })
    }

    /// Everybody who is here, as a client is shown them. Whoever gets this must get the later flushes too.
    #[must_use]
    pub fn state_json(&mut self) -> String {
        // Whoever is in this state and leaves before the next flush must be in its diff, or would be a ghost for ever.
        for (subject, change) in &mut self.changes {
            for (turn, name) in shown(self.subjects.get(subject)) {
                if change.exposed.insert(turn, name.clone()).is_none() {
                    self.change_size += 1;
                }
            }
        }
        self.bound_changes();
        let mut json = JsonOfMetas::new();
        for (subject, metas) in &self.subjects {
            json.subject(subject, shown(Some(metas)));
        }
        json.finish()
    }

    /// What is to be told to everybody now, if anything. The shell calls it once a window, and the diff covers what
    /// has happened since the last call: who came and went in between is not in it.
    #[must_use]
    pub fn flush(&mut self, now: Monotonic) -> Option<Announcement> {
        self.settle(now);
        if self.telling == Telling::Nothing {
            return None;
        }
        if self.mode == Mode::Count {
            return self.flush_count(now);
        }
        if std::mem::take(&mut self.state_is_due) {
            return Some(Announcement::State(self.state_json()));
        }
        self.change_size = 0;
        let (mut joins, mut leaves) = (JsonOfMetas::new(), JsonOfMetas::new());
        for (subject, change) in std::mem::take(&mut self.changes) {
            let metas = self.subjects.get(&subject);
            let is_shown = |turn: &MetaRef| shown(metas).any(|(shown, _)| shown == *turn);
            joins.subject(&subject, shown(metas).filter(|(turn, _)| !change.base.contains(turn)));
            let gone = change.exposed.iter().filter(|(turn, _)| !is_shown(turn));
            leaves.subject(&subject, gone.map(|(turn, name)| (*turn, name)));
        }
        if joins.is_empty() && leaves.is_empty() {
            return None;
        }
        Some(Announcement::Diff(format!(r#"{{"joins":{},"leaves":{}}}"#, joins.finish(), leaves.finish())))
    }

    fn flush_count(&mut self, now: Monotonic) -> Option<Announcement> {
        if self.is_calm() && self.outgoing.wanted == Wanted::Names && self.telling == Telling::Names {
            let since = *self.calm_since.get_or_insert(now);
            if now.since(since) >= CALM {
                self.mode = Mode::Full;
                self.calm_since = None;
                self.counted = None;
                return Some(Announcement::State(self.state_json()));
            }
        }
        let is_news = self.counted.is_none_or(|(count, at)| count != self.count() && now.since(at) >= COUNT_INTERVAL);
        if !is_news {
            return None;
        }
        self.counted = Some((self.count(), now));
        Some(self.count_announcement())
    }

    fn count_announcement(&self) -> Announcement {
        Announcement::Count(format!(r#"{{"count":{}}}"#, self.count()))
    }

    /// Below 0.8 × the threshold.
    fn is_calm(&self) -> bool {
        self.count().saturating_mul(5) < self.threshold.saturating_mul(4)
    }

    /// Remembers what is shown of a subject, before the first change since the last flush.
    fn note_change(&mut self, subject: &Subject) {
        if self.mode == Mode::Count || self.state_is_due || self.changes.contains_key(subject) {
            return;
        }
        let exposed: BTreeMap<MetaRef, Name> =
            shown(self.subjects.get(subject)).map(|(turn, name)| (turn, name.clone())).collect();
        self.change_size += 1 + exposed.len();
        let change = Change { base: exposed.keys().copied().collect(), exposed };
        self.changes.insert(subject.clone(), change);
        self.bound_changes();
    }

    fn bound_changes(&mut self) {
        if self.change_size > DIFF_MAX {
            self.state_is_due = true;
            self.forget_changes();
        }
    }

    fn forget_changes(&mut self) {
        self.changes.clear();
        self.change_size = 0;
    }
}

/// The metas of a subject that clients are shown: the first to have joined.
fn shown(metas: Option<&BTreeMap<MetaRef, Name>>) -> impl Iterator<Item = (MetaRef, &Name)> {
    metas.into_iter().flatten().take(SHOWN_METAS_MAX).map(|(turn, name)| (*turn, name))
}

/// Writes `{key:{"metas":[{"phx_ref":…,"name":…},…]},…}`.
struct JsonOfMetas {
    json: String,
}

impl JsonOfMetas {
    fn new() -> Self {
        Self { json: "{".to_owned() }
    }

    fn is_empty(&self) -> bool {
        self.json.len() == 1
    }

    /// A subject without metas leaves no trace.
    fn subject<'a>(&mut self, subject: &Subject, metas: impl Iterator<Item = (MetaRef, &'a Name)>) {
        let mut is_first = true;
        for (reference, name) in metas {
            if is_first {
                let separator = if self.is_empty() { "" } else { "," };
                self.json.push_str(separator);
                push_json_text(&mut self.json, subject.as_str());
                self.json.push_str(r#":{"metas":["#);
            } else {
                self.json.push(',');
            }
            is_first = false;
            self.meta(reference, name.as_deref());
        }
        if !is_first {
            self.json.push_str("]}");
        }
    }

    fn meta(&mut self, reference: MetaRef, name: Option<&str>) {
        self.json.push_str(r#"{"phx_ref":"#);
        push_json_text(&mut self.json, &format!("{:x}.{}", reference.hub, reference.turn));
        if let Some(name) = name {
            self.json.push_str(r#","name":"#);
            push_json_text(&mut self.json, name);
        }
        self.json.push('}');
    }

    fn finish(mut self) -> String {
        self.json.push('}');
        self.json
    }
}
