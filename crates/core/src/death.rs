//! Who among the other nodes is dead? Decided from what one observer saw, and from nothing else.
//!
//! Two kinds of death. **Expired**: the lease ran out on the store's clock, the row's beat stood still for a whole lease
//! on the observer's own clock, and the observer itself was healthy for a whole lease. **A process died**, though its
//! lease runs: its lifeline was seen held and is held no more, alone among all lifelines, on an observing session that
//! did not break; and whoever is asked at its address refuses, or is somebody else.
//!
//! Lifelines that go together went by an event of the store, and prove nothing. One whose node's row was gone by then does
//! not count as company: that node was taken out of the store first (it stopped in order, or was declared dead), and its
//! lifeline went with it. A lifeline that was replaced counts: its row stands, and the store has ended its session.
//!
//! Invariant: every doubt (an unread row, a new observing session, a lapse of the observer's own lease, two lifelines that
//! went together, an address that does not answer) leads to waiting. The worst that waiting costs is a lease.
//!
//! Deliberately absent: the declaration. The store compares beat and lifeline again when it is asked for one, and
//! whoever was declared dead by mistake meets the fence.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::ids::Incarnation;
use crate::lease::LeaseTiming;
use crate::time::Monotonic;

/// Lifelines that go within this time of each other went by an event of the store; also how long a loss is left alone
/// before it is judged.
pub const SETTLE: Duration = Duration::from_millis(500);

/// How long an isolated loss is remembered whose lifeline is in no row.
const FORGET: Duration = Duration::from_secs(10);

/// A suspicion that is older than this when its answer comes is void.
const STALE: Duration = Duration::from_secs(2);

/// The key of a lifeline: a lock that a process holds in the store on a session of its own, for as long as it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lifeline(pub i64);

/// Whether a lease runs, on the store's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lease {
    /// It does.
    Runs,
    /// It ran out, or ends later than any renewal could have put it: the store's clock was set back.
    RanOut,
}

impl Lease {
    /// Judges the time that a row has left, in milliseconds.
    #[must_use]
    pub fn with_left(expires_in_ms: i64, timing: &LeaseTiming) -> Self {
        let most = i64::try_from((timing.ttl + timing.margin).as_millis()).unwrap_or(i64::MAX);
        if (0..=most).contains(&expires_in_ms) { Self::Runs } else { Self::RanOut }
    }
}

/// Another node's row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// Whose.
    pub incarnation: Incarnation,
    /// Rises with each renewal.
    pub beat: u64,
    /// The lock that its process holds, if it has one.
    pub lifeline: Option<Lifeline>,
    /// Whether its lease runs.
    pub lease: Lease,
}

/// The observer's own standing, as its heartbeat knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Own {
    /// Until when its lease is certain.
    pub valid_until: Monotonic,
    /// Since when every renewal was answered and validity never lapsed; `None`: the last one failed.
    pub healthy_since: Option<Monotonic>,
    /// The lifeline it holds.
    pub lifeline: Option<Lifeline>,
}

/// The lifelines, as one look found them.
#[derive(Debug, Clone, Copy)]
pub struct Lines<'a> {
    /// When they were asked for, on the observer's clock.
    pub asked_at: Monotonic,
    /// The number of the observing session.
    pub observer: u64,
    /// Those that are held.
    pub held: &'a [Lifeline],
}

/// What one look found.
#[derive(Debug, Clone, Copy)]
pub struct Look<'a> {
    /// When it ended, on the observer's clock.
    pub now: Monotonic,
    /// The other nodes' rows, read after the lifelines; `None`: they could not be read.
    pub rows: Option<&'a [Row]>,
    /// The lifelines; `None`: they could not be read, or there are none.
    pub lifelines: Option<Lines<'a>>,
    /// The observer's own standing.
    pub own: Own,
}

/// Why an incarnation is dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Its lease ran out.
    Expired,
    /// Its process is gone, and this lifeline with it.
    ProcessDied(Lifeline),
}

/// A death to declare, if the row is still as it was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Death {
    /// Whose.
    pub incarnation: Incarnation,
    /// The beat that was seen.
    pub beat: u64,
    /// Why.
    pub cause: Cause,
}

/// A process that seems to be gone: ask at its address, and hand the answer to [`DeathWatch::answered`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Suspect {
    /// Whose.
    pub incarnation: Incarnation,
    /// The beat that was seen.
    pub beat: u64,
    /// The lifeline that is held no more.
    pub lifeline: Lifeline,
    /// When it was suspected.
    pub at: Monotonic,
}

/// What to do after a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Declare it dead.
    Declare(Death),
    /// Ask at its address first.
    Probe(Suspect),
}

/// Who answered at a suspect's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The address refuses.
    Refused,
    /// This incarnation.
    Incarnation(Incarnation),
    /// Nobody in time, or it is not known.
    Unknown,
}

/// One condition of a declaration. Without it, the tests and the simulation show what goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guard {
    /// Expired: the store's clock says so.
    StoreClock,
    /// Expired: the beat stood still for a whole lease on the own clock.
    BeatStoodStill,
    /// Expired: healthy for a whole lease.
    HealthyForALease,
    /// What was seen before rows could not be read proves nothing.
    UnreadForgets,
    /// Process: the observing session is the same.
    SameObserver,
    /// Process: the observer's own lease and lifeline stand.
    OwnStands,
    /// Process: no other lifeline went at about the same time.
    LostAlone,
    /// Process: a lifeline that went while its node's row stands is company, though the row may name another by now.
    ReplacedIsLost,
    /// Process: a loss is left alone for a while before it is judged.
    Settled,
    /// Process: the beat has not moved since.
    BeatSinceLoss,
    /// Process: the address refuses, or somebody else answers there.
    SecondChannel,
}

/// What was seen of a row.
#[derive(Debug, Clone, Copy)]
struct Sighting {
    beat: u64,
    since: Monotonic,
}

/// A lifeline that was held and is held no more: it went between two looks.
#[derive(Debug, Clone, Copy)]
struct Loss {
    after: Monotonic,
    by: Monotonic,
    /// Another one went at about the same time.
    in_company: bool,
    /// Its process answered: the session ended, not the process.
    is_alive: bool,
}

impl Loss {
    /// Whether the two may lie within [`SETTLE`] of each other.
    fn is_near(&self, other: &Self) -> bool {
        self.after.since(other.by).max(other.after.since(self.by)) < SETTLE
    }
}

/// See the module's description. One for each observing node.
#[derive(Debug)]
pub struct DeathWatch {
    timing: LeaseTiming,
    rows: BTreeMap<Incarnation, Sighting>,
    observer: Option<u64>,
    /// When the held ones were last asked for, all at one look.
    asked_at: Monotonic,
    held: BTreeSet<Lifeline>,
    losses: BTreeMap<Lifeline, Loss>,
    /// The rows that were read last, and the lifelines that they name.
    registered: BTreeMap<Incarnation, Option<Lifeline>>,
    /// Whose the lifelines are that are held or named.
    holders: BTreeMap<Lifeline, Incarnation>,
    off: Vec<Guard>,
}

impl DeathWatch {
    /// Of an observer that has seen nothing yet.
    #[must_use]
    pub fn new(timing: LeaseTiming) -> Self {
        Self {
            timing,
            rows: BTreeMap::new(),
            observer: None,
            asked_at: Monotonic(0),
            held: BTreeSet::new(),
            losses: BTreeMap::new(),
            registered: BTreeMap::new(),
            holders: BTreeMap::new(),
            off: Vec::new(),
        }
    }

    /// One with guards removed, to show that a check catches it.
    #[cfg(any(test, feature = "mutants"))]
    #[must_use]
    pub fn without(timing: LeaseTiming, guards: &[Guard]) -> Self {
        Self { off: guards.to_vec(), ..Self::new(timing) }
    }

    /// Takes in a look and says what to do. O(n log n) in the nodes, and O(n²) in lifelines that go at once.
    pub fn look(&mut self, look: &Look<'_>) -> Vec<Action> {
        if let Some(rows) = look.rows {
            self.registered = rows.iter().map(|row| (row.incarnation, row.lifeline)).collect();
            self.holders.extend(rows.iter().filter_map(|row| Some((row.lifeline?, row.incarnation))));
        }
        self.see_lifelines(look);
        let (held, registered) = (&self.held, &self.registered);
        self.holders.retain(|key, by| held.contains(key) || registered.get(by) == Some(&Some(*key)));
        let Some(rows) = look.rows else {
            if self.demands(Guard::UnreadForgets) {
                self.rows.clear();
            }
            return Vec::new();
        };
        self.see_rows(look.now, rows);
        rows.iter().filter_map(|row| self.judge(look, row)).collect()
    }

    /// When to look again, at the latest: a loss can be judged then. `None`: nothing is pending.
    #[must_use]
    pub fn next_judgement(&self) -> Option<Monotonic> {
        let open = self.losses.values().filter(|loss| !loss.in_company && !loss.is_alive);
        open.map(|loss| loss.by + SETTLE).filter(|at| *at > self.asked_at).min()
    }

    /// Takes in who answered at a suspect's address. Returns the death, if that is what it proves.
    pub fn answered(&mut self, suspect: &Suspect, answer: Answer, now: Monotonic, own: &Own) -> Option<Death> {
        let gone = match answer {
            Answer::Refused => true,
            Answer::Incarnation(other) => other != suspect.incarnation,
            Answer::Unknown => false,
        };
        if answer == Answer::Incarnation(suspect.incarnation)
            && let Some(loss) = self.losses.get_mut(&suspect.lifeline)
        {
            loss.is_alive = true;
        }
        // A lapse or a new lifeline of one's own in between: look again first.
        let stands = now < own.valid_until && own.healthy_since.is_some() && own.lifeline.is_some();
        let holds = (gone || !self.demands(Guard::SecondChannel))
            && (stands || !self.demands(Guard::OwnStands))
            && now.since(suspect.at) <= STALE;
        let Suspect { incarnation, beat, lifeline, .. } = *suspect;
        holds.then_some(Death { incarnation, beat, cause: Cause::ProcessDied(lifeline) })
    }

    fn demands(&self, guard: Guard) -> bool {
        !self.off.contains(&guard)
    }

    fn see_rows(&mut self, now: Monotonic, rows: &[Row]) {
        self.rows.retain(|incarnation, _| rows.iter().any(|row| row.incarnation == *incarnation));
        for row in rows {
            let sighting = self.rows.entry(row.incarnation).or_insert(Sighting { beat: row.beat, since: now });
            if sighting.beat != row.beat {
                *sighting = Sighting { beat: row.beat, since: now };
            }
        }
        let is_named = |key: &Lifeline| rows.iter().any(|row| row.lifeline == Some(*key));
        self.losses.retain(|key, loss| is_named(key) || now.since(loss.by) < FORGET);
    }

    fn see_lifelines(&mut self, look: &Look<'_>) {
        let Some(Lines { asked_at, observer, held }) = look.lifelines else { return };
        let held: BTreeSet<Lifeline> = held.iter().copied().collect();
        if self.observer != Some(observer) && (self.observer.is_none() || self.demands(Guard::SameObserver)) {
            self.losses.clear();
        } else {
            // Whoever holds it again never lost it: an answer was incomplete.
            self.losses.retain(|key, _| !held.contains(key));
            let gone = self.held.difference(&held).copied().filter(|key| !self.was_given_up(*key));
            let gone: Vec<Lifeline> = gone.collect();
            for key in gone {
                self.lose(key, look.now);
            }
        }
        self.observer = Some(observer);
        self.asked_at = asked_at;
        self.held = held;
    }

    /// The row of its holder was gone when the lifeline was seen to be. A holder that is not known may have lost it.
    fn was_given_up(&self, key: Lifeline) -> bool {
        let Some(holder) = self.holders.get(&key) else { return false };
        match self.registered.get(holder) {
            None => true,
            Some(named) => *named != Some(key) && !self.demands(Guard::ReplacedIsLost),
        }
    }

    fn lose(&mut self, key: Lifeline, now: Monotonic) {
        let mut loss = Loss { after: self.asked_at, by: now, in_company: false, is_alive: false };
        for other in self.losses.values_mut() {
            if other.is_near(&loss) {
                other.in_company = true;
                loss.in_company = true;
            }
        }
        self.losses.insert(key, loss);
    }

    fn judge(&self, look: &Look<'_>, row: &Row) -> Option<Action> {
        let sighting = self.rows.get(&row.incarnation)?;
        let Row { incarnation, beat, .. } = *row;
        if self.has_expired(look, row, sighting) {
            return Some(Action::Declare(Death { incarnation, beat, cause: Cause::Expired }));
        }
        let lifeline = row.lifeline?;
        let loss = self.losses.get(&lifeline)?;
        self.is_suspect(look, loss, sighting).then_some(Action::Probe(Suspect {
            incarnation,
            beat,
            lifeline,
            at: look.now,
        }))
    }

    fn has_expired(&self, look: &Look<'_>, row: &Row, sighting: &Sighting) -> bool {
        let Look { now, own, .. } = *look;
        let healthy = |since: Monotonic| now < own.valid_until && now.since(since) >= self.timing.ttl;
        (row.lease == Lease::RanOut || !self.demands(Guard::StoreClock))
            && (now.since(sighting.since) >= self.timing.ttl || !self.demands(Guard::BeatStoodStill))
            && (own.healthy_since.is_some_and(healthy) || !self.demands(Guard::HealthyForALease))
    }

    fn is_suspect(&self, look: &Look<'_>, loss: &Loss, sighting: &Sighting) -> bool {
        let Look { now, own, .. } = *look;
        // Only a look that saw the lifelines can say that no other one went meanwhile.
        let Some(lines) = look.lifelines else { return false };
        let holds_own = own.lifeline.is_some_and(|key| lines.held.contains(&key));
        let stands = now < own.valid_until && own.healthy_since.is_some() && holds_own;
        !loss.is_alive
            && (!loss.in_company || !self.demands(Guard::LostAlone))
            && (lines.asked_at.since(loss.by) >= SETTLE || !self.demands(Guard::Settled))
            && (sighting.since <= loss.by || !self.demands(Guard::BeatSinceLoss))
            && (stands || !self.demands(Guard::OwnStands))
    }
}

#[cfg(test)]
mod tests;
