//! What a gateway under pressure sheds, and in which order.
//!
//! The rungs are a ladder: typing goes first, then presence by name, presence altogether, then windows grow, catch-up
//! slows, and at last nobody new is let in. Invariants: one look goes at most one rung up or down; up only after the
//! pressure stood at the next rung's mark for that rung's time, down only after it stood below a lower mark for a longer
//! time; everything on a lower rung stays shed on a higher one. Messages have no rung: they are never shed.
//!
//! Deliberately absent: a clock, how pressure is measured, and the shedding itself, which is its owners' (hub, gateway).

use std::time::Duration;

use crate::time::Monotonic;

/// A share in thousandths, 0 to 1000.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Permille(u16);

impl Permille {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// All of it.
    pub const ALL: Self = Self(1_000);

    /// A share; more than all is all.
    #[must_use]
    pub const fn new(thousandths: u16) -> Self {
        if thousandths > 1_000 { Self::ALL } else { Self(thousandths) }
    }

    /// The share that `part` is of `whole`; of nothing, everything is all.
    #[must_use]
    pub fn of(part: u64, whole: u64) -> Self {
        if part >= whole {
            return Self::ALL;
        }
        let thousandths = u128::from(part) * 1_000 / u128::from(whole);
        Self(u16::try_from(thousandths).expect("less than the whole is less than 1000 thousandths"))
    }

    /// Thousandths, 0 to 1000.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }
}

/// What is shed; each rung includes those below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Rung {
    /// Nothing.
    #[default]
    Calm,
    /// Typing is dropped.
    NoTyping,
    /// Presence is a count each [`crate::presence::COUNT_INTERVAL`].
    PresenceCounts,
    /// Presence is not told at all.
    NoPresence,
    /// The windows in which a conversation's frames gather may grow.
    WindowsGrow,
    /// Catching up reads at half its rate.
    CatchUpSlows,
    /// New connections are told to come back later.
    NoNewcomers,
}

impl Rung {
    /// All, from below.
    pub const ALL: [Self; 7] = [
        Self::Calm,
        Self::NoTyping,
        Self::PresenceCounts,
        Self::NoPresence,
        Self::WindowsGrow,
        Self::CatchUpSlows,
        Self::NoNewcomers,
    ];

    /// Its place on the ladder, from 0.
    #[must_use]
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The rung with this place, or the highest.
    #[must_use]
    pub fn from_number(number: u8) -> Self {
        Self::ALL.get(usize::from(number)).copied().unwrap_or(Self::NoNewcomers)
    }

    fn above(self) -> Option<Self> {
        Self::ALL.get(usize::from(self.number()) + 1).copied()
    }

    fn below(self) -> Option<Self> {
        self.number().checked_sub(1).map(Self::from_number)
    }
}

/// When a rung is reached and left again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// Reached at this pressure or more …
    pub up: Permille,
    /// … for this long.
    pub up_after: Duration,
    /// Left below this pressure; lower than `up` …
    pub down: Permille,
    /// … for this long; longer than `up_after`.
    pub down_after: Duration,
}

const fn mark(up: u16, up_after_ms: u64, down: u16, down_after_ms: u64) -> Mark {
    Mark {
        up: Permille::new(up),
        up_after: Duration::from_millis(up_after_ms),
        down: Permille::new(down),
        down_after: Duration::from_millis(down_after_ms),
    }
}

/// The marks of the rungs above [`Rung::Calm`]. Going up takes 7 s from calm to the top; each way down takes longer.
pub const MARKS: [Mark; 6] = [
    mark(700, 500, 500, 2_000),
    mark(750, 500, 550, 3_000),
    mark(800, 1_000, 600, 3_000),
    mark(800, 1_000, 600, 5_000),
    mark(900, 2_000, 700, 5_000),
    mark(950, 2_000, 750, 5_000),
];

/// What a gateway measures of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    /// The share of the time in which its delivery workers were busy.
    pub busy: Permille,
    /// The share of the room for waiting bytes that is taken.
    pub queued: Permille,
    /// By how much of its window a conversation was written too late.
    pub late: Permille,
}

impl Load {
    /// The worst of all.
    #[must_use]
    pub fn pressure(self) -> Permille {
        self.busy.max(self.strain())
    }

    /// What those who are here already feel. A gateway that is busy and on time has room for those who come.
    #[must_use]
    pub fn strain(self) -> Permille {
        self.queued.max(self.late)
    }

    /// What a rung is reached and left by. Newcomers are turned away by what others feel alone: work that is done in time, however
    /// much, would turn them away for ever.
    fn for_rung(self, rung: Rung) -> Permille {
        if rung == Rung::NoNewcomers { self.strain() } else { self.pressure() }
    }
}

/// See the module.
#[derive(Debug, Clone, Default)]
pub struct Ladder {
    rung: Rung,
    /// Since when the pressure has been at the next rung's mark.
    high_since: Option<Monotonic>,
    /// Since when it has been below this rung's lower mark.
    low_since: Option<Monotonic>,
}

impl Ladder {
    /// At the bottom.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Where it stands.
    #[must_use]
    pub fn rung(&self) -> Rung {
        self.rung
    }

    /// Takes a look at the load; called a few times a second. Returns where it stands now.
    pub fn look(&mut self, now: Monotonic, load: Load) -> Rung {
        let is_high = self.rung.above().is_some_and(|next| load.for_rung(next) >= mark_of(next).up);
        let is_low = self.rung != Rung::Calm && load.for_rung(self.rung) < mark_of(self.rung).down;
        keep_since(&mut self.high_since, is_high, now);
        keep_since(&mut self.low_since, is_low, now);
        if let (Some(since), Some(next)) = (self.high_since, self.rung.above())
            && now.since(since) >= mark_of(next).up_after
        {
            self.stand_on(next);
        } else if let (Some(since), Some(previous)) = (self.low_since, self.rung.below())
            && now.since(since) >= mark_of(self.rung).down_after
        {
            self.stand_on(previous);
        }
        self.rung
    }

    /// Each rung has its time for itself.
    fn stand_on(&mut self, rung: Rung) {
        (self.rung, self.high_since, self.low_since) = (rung, None, None);
    }
}

fn keep_since(since: &mut Option<Monotonic>, holds: bool, now: Monotonic) {
    *since = if holds { Some(since.unwrap_or(now)) } else { None };
}

fn mark_of(rung: Rung) -> Mark {
    match rung.number().checked_sub(1) {
        Some(index) => MARKS[usize::from(index)],
        None => Mark { up: Permille::NONE, up_after: Duration::ZERO, down: Permille::NONE, down_after: Duration::MAX },
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LOOK_MS: u64 = 250;

    fn at_ms(ms: u64) -> Monotonic {
        Monotonic(ms * 1_000_000)
    }

    fn busy(thousandths: u16) -> Load {
        Load { busy: Permille::new(thousandths), ..Load::default() }
    }

    fn full(thousandths: u16) -> Load {
        let share = Permille::new(thousandths);
        Load { busy: share, queued: share, late: share }
    }

    /// Looks each 250 ms under one pressure, and tells when it stood on which rung first.
    fn climb(ladder: &mut Ladder, from_ms: u64, for_ms: u64, load: Load) -> Vec<(u64, Rung)> {
        let mut changes = Vec::new();
        let mut before = ladder.rung();
        for ms in (from_ms..from_ms + for_ms).step_by(usize::try_from(LOOK_MS).expect("small")) {
            let rung = ladder.look(at_ms(ms), load);
            if rung != before {
                changes.push((ms - from_ms, rung));
                before = rung;
            }
        }
        changes
    }

    #[test]
    fn shares_are_between_nothing_and_all() {
        let shares =
            [(0, 10, 0), (1, 3, 333), (10, 10, 1_000), (11, 10, 1_000), (0, 0, 1_000), (u64::MAX - 1, u64::MAX, 999)];
        for (part, whole, expected) in shares {
            assert_eq!(Permille::of(part, whole).get(), expected, "{part} of {whole}");
        }
        assert_eq!((Permille::new(1_001), Permille::new(999).get()), (Permille::ALL, 999));
    }

    #[test]
    fn rungs_have_their_numbers_in_the_stated_order() {
        assert!(Rung::ALL.is_sorted());
        for (number, rung) in Rung::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(rung.number()), number);
            assert_eq!(Rung::from_number(rung.number()), rung);
        }
        assert_eq!(Rung::from_number(200), Rung::NoNewcomers);
    }

    #[test]
    fn each_mark_is_lower_and_slower_on_the_way_down_and_no_rung_is_easier_than_the_one_before() {
        for mark in MARKS {
            assert!(mark.down < mark.up && mark.down_after > mark.up_after, "{mark:?}");
        }
        assert!(MARKS.is_sorted_by_key(|mark| (mark.up, mark.down)));
    }

    #[test]
    fn under_full_load_everything_goes_in_the_stated_order() {
        let mut ladder = Ladder::new();
        let changes = climb(&mut ladder, 0, 60_000, full(1_000));
        let rungs: Vec<Rung> = changes.iter().map(|(_, rung)| *rung).collect();
        assert_eq!(rungs, Rung::ALL[1..]);
        assert_eq!(changes[0].0, 500);
        assert!(changes[5].0 <= 9_000, "{changes:?}");
        let changes = climb(&mut ladder, 60_000, 120_000, busy(0));
        let rungs: Vec<Rung> = changes.iter().map(|(_, rung)| *rung).collect();
        assert_eq!(rungs, Rung::ALL[..6].iter().rev().copied().collect::<Vec<_>>());
    }

    #[test]
    fn what_waits_and_what_is_late_count_as_what_works() {
        let waits = Load { queued: Permille::ALL, ..Load::default() };
        let is_late = Load { late: Permille::ALL, ..Load::default() };
        for load in [waits, is_late] {
            assert_eq!(climb(&mut Ladder::new(), 0, 1_000, load), [(500, Rung::NoTyping)]);
        }
    }

    #[test]
    fn who_is_busy_and_on_time_takes_newcomers() {
        let mut ladder = Ladder::new();
        climb(&mut ladder, 0, 60_000, busy(1_000));
        assert_eq!(ladder.rung(), Rung::CatchUpSlows);
        climb(&mut ladder, 60_000, 60_000, full(1_000));
        assert_eq!(ladder.rung(), Rung::NoNewcomers);
        // Whoever was turned away may come although there is as much to do as before.
        assert_eq!(climb(&mut ladder, 120_000, 60_000, busy(1_000)), [(5_000, Rung::CatchUpSlows)]);
    }

    #[test]
    fn a_short_peak_changes_nothing() {
        let mut ladder = Ladder::new();
        for second in 0..100 {
            assert_eq!(ladder.look(at_ms(second * 1_000), busy(1_000)), Rung::Calm);
            assert_eq!(ladder.look(at_ms(second * 1_000 + 250), busy(0)), Rung::Calm);
        }
    }

    #[test]
    fn between_the_marks_it_stays_where_it_is() {
        let mut ladder = Ladder::new();
        climb(&mut ladder, 0, 1_000, busy(720));
        assert_eq!(ladder.rung(), Rung::NoTyping);
        for (from_ms, load) in [(1_000, 749), (601_000, 500), (1_201_000, 699)] {
            assert_eq!(climb(&mut ladder, from_ms, 600_000, busy(load)), [], "at {load}");
        }
        assert_eq!(climb(&mut ladder, 1_801_000, 10_000, busy(499)), [(2_000, Rung::Calm)]);
    }

    proptest! {
        /// Whatever comes, a change is by one rung and was called for during the whole of that rung's time.
        #[test]
        fn every_step_was_earned(looks in proptest::collection::vec((1_u64..1_500, 0_u16..=1_000), 1..400)) {
            let mut ladder = Ladder::new();
            let (mut now, mut changed) = (0, 0);
            let mut seen: Vec<(u64, u16)> = Vec::new();
            for (step, thousandths) in looks {
                now += step;
                seen.push((now, thousandths));
                let before = ladder.rung();
                let rung = ladder.look(at_ms(now), full(thousandths));
                if rung == before {
                    continue;
                }
                prop_assert_eq!(rung.number().abs_diff(before.number()), 1);
                let mark = mark_of(rung.max(before));
                let is_up = rung > before;
                let time = if is_up { mark.up_after } else { mark.down_after };
                let calls_for = |share: u16| if is_up { share >= mark.up.get() } else { share < mark.down.get() };
                let stretch: Vec<u64> =
                    seen.iter().rev().take_while(|(ms, share)| *ms > changed && calls_for(*share)).map(|(ms, _)| *ms).collect();
                let stood = stretch.first().zip(stretch.last()).map_or(0, |(newest, oldest)| newest - oldest);
                prop_assert!(u128::from(stood) >= time.as_millis(), "{} ms of {:?}", stood, time);
                changed = now;
            }
        }
    }
}
