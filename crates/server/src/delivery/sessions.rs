//! A shard's sessions, and what waits for them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use conch_core::coalesce::{GROUPS, Slices};
use conch_core::ids::Seq;
use conch_core::shed::Permille;
use conch_core::time::Monotonic;

use super::batch::{Batch, Shown};
use super::shard::{History, Member, Report, ShardLimits, Step};
use crate::frame::Frame;
use crate::hub::SessionId;
use crate::hub::sink::Push;
use crate::metrics::Queue;
use crate::node::Node;
use crate::rules::Rule;

/// Whether all was done that there was to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Rest {
    #[default]
    None,
    /// There were more sessions than were asked for.
    More,
}

/// What a worker did for a shard.
#[derive(Debug, Default)]
pub(super) struct Done {
    /// Sessions that were written to.
    pub(super) sessions: usize,
    pub(super) rest: Rest,
    /// When the next group is due; `None`: nothing waits.
    pub(super) next: Option<Monotonic>,
    /// The share of the room of what the hub may hand over that was taken.
    pub(super) queued: Permille,
    /// By how much of the window a group was written too late, or of the shortest one what does not gather.
    pub(super) late: Permille,
}

/// See the module's description.
pub(super) struct Sessions {
    node: Arc<Node>,
    limits: ShardLimits,
    /// The place of a session says its group: its number modulo [`GROUPS`].
    slots: Vec<Slot>,
    places: BTreeMap<SessionId, usize>,
    /// What was handed over and is yet to be taken: it waits for the sweep.
    steps: VecDeque<Step>,
    sweep: Option<Sweep>,
    /// What not everybody has been shown yet; the first one is number `first`.
    frames: VecDeque<Shown>,
    bytes: usize,
    first: u64,
    window: Duration,
    /// Sixteenths of the window since the clock began: up to where groups were written.
    slice: u64,
    /// Of each group, the frames that all of it have been shown; empty without a window.
    covered: Vec<u64>,
    reports: Vec<Report>,
}

/// What is done for one session after another, from the last one on: so those that leave meanwhile, in whose places others move,
/// make none be left out. Nothing else is done until it has ended.
struct Sweep {
    kind: Kind,
    /// The next one's; `None`: it has ended.
    place: Option<usize>,
    last: Last,
}

enum Kind {
    /// Everybody is shown what waits.
    All,
    /// The same; from then on frames gather for so long.
    Window(Duration),
    /// One group is shown what waits.
    Group(usize),
    /// Another history begins.
    StartOver { resync: Arc<Frame>, seq: Seq, history: History },
}

struct Slot {
    member: Member,
    /// The number of the next frame for it.
    next: u64,
    /// A live event came while it needs a snapshot.
    wants_snapshot: bool,
    /// That was reported.
    is_reported: bool,
}

/// A batch, and the number of its first frame: nearly all sessions of a group get the same.
type Last = Option<(u64, Batch)>;

/// What a pass did.
#[derive(Default)]
struct Tally {
    sessions: usize,
    /// Records, and bytes of their payloads.
    delivered: u64,
    bytes: u64,
    /// Live events.
    dropped: u64,
}

/// Why a session is taken out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Out {
    Left,
    Behind,
}

/// Whether a session goes on in its shard.
#[derive(Clone, Copy, PartialEq, Eq)]
enum After {
    Stays,
    IsBehind,
}

impl Sessions {
    pub(super) fn new(node: Arc<Node>, limits: ShardLimits) -> Self {
        Self {
            node,
            limits,
            slots: Vec::new(),
            places: BTreeMap::new(),
            steps: VecDeque::new(),
            sweep: None,
            frames: VecDeque::new(),
            bytes: 0,
            first: 0,
            window: Duration::ZERO,
            slice: 0,
            covered: Vec::new(),
            reports: Vec::new(),
        }
    }

    fn end(&self) -> u64 {
        self.first + self.frames.len() as u64
    }

    pub(super) fn take_reports(&mut self) -> Vec<Report> {
        std::mem::take(&mut self.reports)
    }

    /// Puts steps behind those that wait.
    pub(super) fn hand_over(&mut self, steps: impl IntoIterator<Item = Step>) {
        self.steps.extend(steps);
    }

    /// Whether everything that was handed over is taken.
    pub(super) fn is_at_rest(&self) -> bool {
        self.steps.is_empty() && self.sweep.is_none()
    }

    /// How long frames gather.
    pub(super) fn window(&self) -> Duration {
        self.window
    }

    /// Takes what was handed over, and looks at `budget` sessions at most.
    pub(super) fn take(&mut self, now: Monotonic, budget: &mut usize, done: &mut Done) -> Rest {
        loop {
            if self.go_on(budget, done) == Rest::More {
                return Rest::More;
            }
            let Some(step) = self.steps.pop_front() else { return Rest::None };
            match step {
                Step::Add(member) => self.add(member),
                Step::Remove(id) => self.remove(vec![(id, Out::Left)]),
                Step::Show(frame, seq) => self.show(Shown { frame, seq }, now),
                Step::Refresh(id, snapshot) => self.refresh(id, snapshot.as_ref()),
                Step::StartOver(resync, seq, history) => {
                    // What waits is of the history before.
                    self.drop_frames(self.end());
                    self.begin(Kind::StartOver { resync, seq, history });
                }
                Step::Window(window) if window == self.window => {}
                // What waits leaves with the old window.
                Step::Window(window) => self.begin(Kind::Window(window)),
                Step::LiveWasLeftOut => self.slots.iter_mut().for_each(|slot| slot.member.missed_live = true),
                Step::Overrun => self.all_are_behind(),
            }
        }
    }

    /// Writes what is due, and looks at `budget` sessions at most.
    pub(super) fn write(&mut self, now: Monotonic, budget: &mut usize, done: &mut Done) -> Rest {
        loop {
            if self.go_on(budget, done) == Rest::More {
                return Rest::More;
            }
            if self.frames.is_empty() {
                return Rest::None;
            }
            if self.window == Duration::ZERO {
                self.begin(Kind::All);
                continue;
            }
            let slices = Slices::of(self.window);
            let slice = slices.at(now);
            if slice <= self.slice {
                done.next = Some(slices.begins(self.slice + 1));
                return Rest::None;
            }
            done.late = done.late.max(slices.late(self.slice, slice));
            if slice - self.slice >= GROUPS as u64 {
                self.slice = slice;
                self.begin(Kind::All);
            } else {
                self.slice += 1;
                self.begin(Kind::Group(Slices::group(self.slice)));
            }
        }
    }

    fn begin(&mut self, kind: Kind) {
        debug_assert!(self.sweep.is_none(), "one after the other");
        let (first, step) = kind.places();
        let last = self.slots.len().checked_sub(first + 1).map(|beyond| first + beyond / step * step);
        self.sweep = Some(Sweep { kind, place: last, last: None });
    }

    /// Goes on with the sweep, if there is one, for `budget` sessions at most.
    fn go_on(&mut self, budget: &mut usize, done: &mut Done) -> Rest {
        let Some(mut sweep) = self.sweep.take() else { return Rest::None };
        let (mut tally, mut behind) = (Tally::default(), Vec::new());
        let (_, step) = sweep.kind.places();
        while let Some(place) = sweep.place
            && *budget > 0
        {
            *budget -= 1;
            sweep.place = place.checked_sub(step);
            let after = match &sweep.kind {
                Kind::StartOver { resync, seq, history } => self.start_over(place, resync, *seq, *history),
                Kind::All | Kind::Window(_) | Kind::Group(_) => self.write_slot(place, &mut sweep.last, &mut tally),
            };
            if after == After::IsBehind {
                behind.push((self.slots[place].member.id, Out::Behind));
            }
        }
        self.count(&tally);
        done.sessions += tally.sessions;
        self.remove(behind);
        if sweep.place.is_some() {
            self.sweep = Some(sweep);
            return Rest::More;
        }
        self.end_of(&sweep.kind);
        Rest::None
    }

    fn end_of(&mut self, kind: &Kind) {
        let end = self.end();
        match kind {
            Kind::All => {
                self.covered.fill(end);
                self.drop_frames(end);
            }
            Kind::Window(window) => {
                self.drop_frames(end);
                self.window = *window;
                let groups = if *window == Duration::ZERO { 0 } else { GROUPS };
                self.covered = vec![end; groups];
            }
            Kind::Group(group) => {
                self.covered[*group] = end;
                self.drop_frames(self.covered.iter().copied().min().expect("one for each group"));
            }
            Kind::StartOver { .. } => {}
        }
    }

    fn add(&mut self, member: Member) {
        // What waits was handed over before: the session has it, or must not be shown it.
        let next = if self.node.rules.hold(Rule::ShownFromAdding) { self.end() } else { self.first };
        self.places.insert(member.id, self.slots.len());
        self.slots.push(Slot { member, next, wants_snapshot: false, is_reported: false });
    }

    /// Takes sessions out. The last one moves to the place of one that left, which may be of another group: it is shown what waits
    /// at once, which may find that it is behind, too.
    fn remove(&mut self, mut leaving: Vec<(SessionId, Out)>) {
        let mut tally = Tally::default();
        while let Some((id, out)) = leaving.pop() {
            let Some(place) = self.places.remove(&id) else { continue };
            let slot = self.slots.swap_remove(place);
            if out == Out::Behind {
                self.node.metrics.slow_sessions.inc();
                self.node.metrics.limit_hit(Queue::Outbox);
                self.report_behind(&slot.member);
            }
            let Some(moved) = self.slots.get(place) else { continue };
            let moved = moved.member.id;
            self.places.insert(moved, place);
            let is_shown = self.window > Duration::ZERO && self.node.rules.hold(Rule::MovedIsShown);
            if is_shown && self.write_slot(place, &mut None, &mut tally) == After::IsBehind {
                leaving.push((moved, Out::Behind));
            }
        }
        self.count(&tally);
    }

    fn report_behind(&mut self, member: &Member) {
        let Member { id, position, history, .. } = *member;
        self.reports.push(Report::Behind { id, position, history });
    }

    fn count(&self, tally: &Tally) {
        let metrics = &self.node.metrics;
        metrics.deliveries.inc_by(tally.delivered);
        metrics.delivered.inc_by(tally.bytes);
        metrics.live_dropped.inc_by(tally.dropped);
    }

    fn all_are_behind(&mut self) {
        self.node.metrics.limit_hit(Queue::Shard);
        for slot in std::mem::take(&mut self.slots) {
            self.report_behind(&slot.member);
        }
        self.places.clear();
        self.drop_frames(self.end());
    }

    fn refresh(&mut self, id: SessionId, snapshot: Option<&Arc<Frame>>) {
        let Some(&place) = self.places.get(&id) else { return };
        // The records that were handed over before, without the live events.
        let mut tally = Tally::default();
        let after = self.write_slot(place, &mut None, &mut tally);
        self.count(&tally);
        if after == After::IsBehind {
            return self.remove(vec![(id, Out::Behind)]);
        }
        let slot = &mut self.slots[place];
        slot.is_reported = false;
        slot.member.missed_live = snapshot.is_some_and(|snapshot| slot.member.sink.push(snapshot) != Push::Accepted);
    }

    fn start_over(&mut self, place: usize, resync: &Arc<Frame>, seq: Seq, history: History) -> After {
        let end = self.end();
        let slot = &mut self.slots[place];
        slot.next = end;
        match slot.member.sink.push(resync) {
            Push::Accepted => (slot.member.position, slot.member.history) = (seq, history),
            // The hub sees by the history that it has yet to be told.
            Push::Behind => return After::IsBehind,
            Push::Closed => {}
        }
        After::Stays
    }

    fn show(&mut self, shown: Shown, now: Monotonic) {
        if self.slots.is_empty() {
            return;
        }
        if self.frames.is_empty() && self.window > Duration::ZERO {
            self.slice = Slices::of(self.window).at(now);
        }
        self.bytes += shown.frame.bytes();
        self.frames.push_back(shown);
        // A window that is full is over.
        if self.frames.len() >= self.limits.frames || self.bytes >= self.limits.bytes {
            self.begin(Kind::All);
        }
    }

    fn write_slot(&mut self, place: usize, last: &mut Last, tally: &mut Tally) -> After {
        let end = self.end();
        let slot = &mut self.slots[place];
        let from = std::mem::replace(&mut slot.next, end);
        if from >= end {
            return After::Stays;
        }
        let known = last.take().filter(|(number, _)| *number == from);
        let (_, batch) = last.insert(known.unwrap_or_else(|| {
            let begins = usize::try_from(from.saturating_sub(self.first)).expect("fewer than were kept");
            (from, Batch::new(self.frames.range(begins..).cloned().collect()))
        }));
        tally.sessions += 1;
        let after = slot.show(batch, tally);
        if slot.misses() {
            self.reports.push(Report::MissedLive(slot.member.id));
        }
        after
    }

    /// Forgets the frames before this number.
    fn drop_frames(&mut self, before: u64) {
        while self.first < before
            && let Some(shown) = self.frames.pop_front()
        {
            self.bytes -= shown.frame.bytes();
            self.first += 1;
        }
        if self.frames.is_empty() {
            // Memory of a burst goes back.
            self.frames.shrink_to(0);
        }
    }
}

impl Kind {
    /// The first place that it is for, and how far the others lie apart.
    fn places(&self) -> (usize, usize) {
        match self {
            Self::Group(group) => (*group, GROUPS),
            Self::All | Self::Window(_) | Self::StartOver { .. } => (0, 1),
        }
    }
}

impl Slot {
    fn show(&mut self, batch: &Batch, tally: &mut Tally) -> After {
        let member = &mut self.member;
        if batch.shown.len() > 1 && !member.missed_live && batch.is_after(member.position) {
            // As one, if all of it has room where live events have some.
            if member.sink.push_joined(batch) == Push::Accepted {
                batch.shown.iter().for_each(|shown| tally.add(shown));
                member.position = batch.last_seq().unwrap_or(member.position);
                return After::Stays;
            }
        }
        for shown in &batch.shown {
            match shown.seq {
                Some(seq) if seq <= member.position => {}
                Some(seq) => match member.sink.push(&shown.frame) {
                    Push::Accepted => {
                        member.position = seq;
                        tally.add(shown);
                    }
                    Push::Behind => return After::IsBehind,
                    Push::Closed => {}
                },
                None if member.missed_live => {
                    self.wants_snapshot = true;
                    tally.dropped += 1;
                }
                None if member.sink.push(&shown.frame) == Push::Behind => {
                    member.missed_live = true;
                    tally.dropped += 1;
                }
                None => {}
            }
        }
        After::Stays
    }

    /// Whether it is to be reported that it misses live events, which is done once.
    fn misses(&mut self) -> bool {
        let misses = std::mem::take(&mut self.wants_snapshot) && !self.is_reported;
        self.is_reported |= misses;
        misses
    }
}

impl Tally {
    fn add(&mut self, shown: &Shown) {
        if shown.seq.is_some() {
            self.delivered += 1;
            self.bytes += shown.frame.json_bytes() as u64;
        }
    }
}
