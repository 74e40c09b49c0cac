//! The heartbeat's decisions: what to ask the store next, and until when the node may act.
//!
//! Invariants: a failed renewal changes nothing but the pause; validity counts from the moment a renewal was sent; a node
//! whose lifeline was lost may not act until a new one stands in its row; a row that is gone is the end.
//!
//! Deliberately absent: the store, the clock, the thread.

use std::time::Duration;

use crate::death::{Lifeline, Own};
use crate::lease::LeaseTiming;
use crate::time::Monotonic;

/// What to ask the store next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Renew the row.
    Renew,
    /// Hold a new lifeline.
    Hold,
    /// Renew the row and write this new lifeline into it.
    Replace(Lifeline),
    /// Nothing: the row is gone, and the process ends.
    End,
}

/// How a renewal ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// The row was renewed.
    Renewed,
    /// There is no row.
    NoRow,
    /// There was an error, or no answer in time.
    Failed,
}

/// One rule of the heartbeat. Without it, the tests and the simulation show what goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// A row that is gone is the end.
    NoRowEnds,
    /// An error is not the end.
    ErrorsPass,
    /// Validity ends by itself.
    ValidityEnds,
    /// A lost lifeline freezes.
    LossFreezes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    /// The store has none.
    None,
    Held(Lifeline),
    Lost,
    /// Held, and not in the row yet.
    Unwritten(Lifeline),
}

/// See the module's description. One for each registration.
#[derive(Debug)]
pub struct Heart {
    timing: LeaseTiming,
    line: Line,
    valid_until: Monotonic,
    healthy_since: Option<Monotonic>,
    failures: u32,
    ended: bool,
    off: Option<Rule>,
}

impl Heart {
    /// Of a node that was registered by a request sent at `sent`, with this lifeline.
    #[must_use]
    pub fn registered(timing: LeaseTiming, sent: Monotonic, lifeline: Option<Lifeline>) -> Self {
        let line = lifeline.map_or(Line::None, Line::Held);
        let valid_until = timing.valid_until(sent);
        Self { timing, line, valid_until, healthy_since: Some(sent), failures: 0, ended: false, off: None }
    }

    /// The same with a rule removed, to show that a check catches it.
    #[cfg(any(test, feature = "mutants"))]
    #[must_use]
    pub fn without(self, rule: Rule) -> Self {
        Self { off: Some(rule), ..self }
    }

    /// What to ask the store, after [`Heart::pause`].
    #[must_use]
    pub fn next(&self) -> Next {
        match self.line {
            _ if self.ended => Next::End,
            Line::None | Line::Held(_) => Next::Renew,
            Line::Lost => Next::Hold,
            Line::Unwritten(key) => Next::Replace(key),
        }
    }

    /// How long to wait before: a beat, or after a failure a tenth of one, so that a short outage costs no validity; nothing
    /// while a new lifeline is being put into place.
    #[must_use]
    pub fn pause(&self) -> Duration {
        match self.line {
            _ if self.failures > 0 => self.timing.beat / 10,
            Line::None | Line::Held(_) => self.timing.beat,
            Line::Lost | Line::Unwritten(_) => Duration::ZERO,
        }
    }

    /// Takes in the end of a renewal (or a replacement) that was sent at `sent` and ended at `now`.
    pub fn renewed(&mut self, sent: Monotonic, now: Monotonic, renewal: Renewal) {
        match renewal {
            Renewal::Renewed => self.beat(sent, now),
            Renewal::NoRow if self.off == Some(Rule::NoRowEnds) => {}
            Renewal::NoRow => {
                self.ended = true;
                self.freeze();
            }
            Renewal::Failed => self.failed(),
        }
    }

    /// The held lifeline's session was lost. Whoever noticed may be about to declare this node dead.
    pub fn lost_lifeline(&mut self) {
        self.line = Line::Lost;
        if self.off != Some(Rule::LossFreezes) {
            self.freeze();
        }
    }

    /// A new lifeline is held.
    pub fn holds(&mut self, lifeline: Lifeline) {
        self.line = Line::Unwritten(lifeline);
        self.failures = 0;
    }

    /// A renewal, or an attempt to hold a lifeline, failed.
    pub fn failed(&mut self) {
        self.failures = self.failures.saturating_add(1);
        self.healthy_since = None;
        if self.off == Some(Rule::ErrorsPass) {
            self.ended = true;
        }
    }

    /// Failures since the last success.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// How the node stands.
    #[must_use]
    pub fn own(&self) -> Own {
        let lifeline = match self.line {
            Line::Held(key) => Some(key),
            Line::None | Line::Lost | Line::Unwritten(_) => None,
        };
        let valid_until = if self.off == Some(Rule::ValidityEnds) { Monotonic(u64::MAX) } else { self.valid_until };
        Own { valid_until, healthy_since: self.healthy_since, lifeline }
    }

    fn beat(&mut self, sent: Monotonic, now: Monotonic) {
        self.failures = 0;
        match self.line {
            // The session was lost while this renewal was under way: it says nothing of the new one.
            Line::Lost => return,
            Line::Unwritten(key) => self.line = Line::Held(key),
            Line::None | Line::Held(_) => {}
        }
        if self.valid_until <= now {
            // It lapsed in between (a suspended machine's clock goes on).
            self.healthy_since = None;
        }
        self.healthy_since = self.healthy_since.or(Some(sent));
        self.valid_until = self.timing.valid_until(sent);
    }

    fn freeze(&mut self) {
        self.valid_until = Monotonic(0);
        self.healthy_since = None;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TIMING: LeaseTiming =
        LeaseTiming { ttl: Duration::from_secs(15), beat: Duration::from_secs(5), margin: Duration::from_secs(3) };
    const KEY: Lifeline = Lifeline(7);

    fn at(seconds: u64) -> Monotonic {
        Monotonic(seconds * 1_000_000_000)
    }

    fn heart() -> Heart {
        Heart::registered(TIMING, at(100), Some(KEY))
    }

    #[test]
    fn a_beat_moves_validity_from_its_sending() {
        let mut heart = heart();
        assert_eq!((heart.next(), heart.pause()), (Next::Renew, TIMING.beat));
        heart.renewed(at(105), at(107), Renewal::Renewed);
        let own = Own { valid_until: at(117), healthy_since: Some(at(100)), lifeline: Some(KEY) };
        assert_eq!(heart.own(), own);
    }

    #[test]
    fn an_error_is_not_the_end() {
        let fail = |mut heart: Heart| {
            heart.renewed(at(105), at(106), Renewal::Failed);
            heart
        };
        let mut failed = fail(heart());
        assert_eq!((failed.next(), failed.pause()), (Next::Renew, TIMING.beat / 10));
        assert_eq!(failed.own(), Own { valid_until: at(112), healthy_since: None, lifeline: Some(KEY) });
        failed.renewed(at(107), at(107), Renewal::Renewed);
        assert_eq!(failed.own().healthy_since, Some(at(107)), "healthy anew, since it was sent");
        assert_eq!(fail(heart().without(Rule::ErrorsPass)).next(), Next::End, "the mutant");
    }

    #[test]
    fn a_row_that_is_gone_is_the_end_at_once() {
        let gone = |mut heart: Heart| {
            heart.renewed(at(105), at(106), Renewal::NoRow);
            heart
        };
        assert_eq!(gone(heart()).next(), Next::End);
        assert_eq!(gone(heart()).own().valid_until, Monotonic(0));
        assert_eq!(gone(heart().without(Rule::NoRowEnds)).next(), Next::Renew, "the mutant");
    }

    #[test]
    fn a_lost_lifeline_freezes_until_a_new_one_is_written() {
        let mut heart = heart();
        heart.lost_lifeline();
        assert_eq!((heart.next(), heart.pause()), (Next::Hold, Duration::ZERO));
        assert_eq!(heart.own(), Own::default());
        heart.renewed(at(104), at(106), Renewal::Renewed);
        assert_eq!(heart.own(), Own::default(), "a renewal that was under way does not thaw it");
        heart.failed();
        assert_eq!((heart.next(), heart.pause()), (Next::Hold, TIMING.beat / 10));
        heart.holds(Lifeline(8));
        assert_eq!(
            (heart.next(), heart.pause(), heart.own()),
            (Next::Replace(Lifeline(8)), Duration::ZERO, Own::default())
        );
        heart.renewed(at(107), at(108), Renewal::Renewed);
        let own = Own { valid_until: at(119), healthy_since: Some(at(107)), lifeline: Some(Lifeline(8)) };
        assert_eq!((heart.next(), heart.own()), (Next::Renew, own));

        let mut mutant = Heart::registered(TIMING, at(100), Some(KEY)).without(Rule::LossFreezes);
        mutant.lost_lifeline();
        assert_eq!(mutant.own().valid_until, at(112), "the mutant acts on");
    }

    #[test]
    fn a_lapse_between_beats_is_no_health() {
        let mut heart = heart();
        heart.renewed(at(160), at(160), Renewal::Renewed);
        assert_eq!(heart.own().healthy_since, Some(at(160)));
        assert_eq!(Heart::registered(TIMING, at(1), None).without(Rule::ValidityEnds).own().valid_until.0, u64::MAX);
    }

    proptest! {
        /// Whatever happens: validity never exceeds the last successful sending, and nothing comes after the end.
        #[test]
        fn validity_is_never_more_than_a_renewal_gave(steps in proptest::collection::vec((0_u8..6, 1_u64..20), 0..60)) {
            let mut heart = Heart::registered(TIMING, at(0), Some(KEY));
            let (mut now, mut last_sent, mut ended, mut key) = (0, 0, false, 10);
            for (step, seconds) in steps {
                let sent = now;
                now += seconds;
                match (step, heart.next()) {
                    (_, Next::End) => {}
                    (0, _) => heart.lost_lifeline(),
                    (1, _) => heart.renewed(at(sent), at(now), Renewal::Failed),
                    (2, Next::Renew | Next::Replace(_)) => {
                        heart.renewed(at(sent), at(now), Renewal::NoRow);
                        ended = true;
                    }
                    (_, Next::Hold) => {
                        key += 1;
                        heart.holds(Lifeline(key));
                    }
                    (_, Next::Renew | Next::Replace(_)) => {
                        heart.renewed(at(sent), at(now), Renewal::Renewed);
                        last_sent = sent;
                    }
                }
                let own = heart.own();
                prop_assert!(own.valid_until <= TIMING.valid_until(at(last_sent)));
                prop_assert!(own.healthy_since.is_none_or(|since| since <= at(last_sent)));
                prop_assert_eq!(heart.next() == Next::End, ended);
                let stands = matches!(heart.next(), Next::Renew);
                prop_assert!(stands || own.valid_until == Monotonic(0), "frozen without a lifeline in the row");
            }
        }
    }
}
