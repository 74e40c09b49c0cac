//! Invariants 6 and 7: each stretch of what an observer was shown is a run of the final log, from where it was asked to begin
//! to where it was told to be; or of what a failover lost, which it leaves by a resync.

use std::collections::BTreeSet;
use std::ops::Bound;

use super::checker::{Conversation, Observer, Report, Sight};
use crate::ids::Seq;
use crate::invariant::Invariant;

/// Where an observer stands.
struct Stretch<'a> {
    conversation: &'a Conversation,
    lost: &'a BTreeSet<Seq>,
    /// The row that comes next, if that is known.
    next: Option<usize>,
    /// The number that it stands at, if a failover lost that.
    astray: Option<Seq>,
}

pub(super) fn check(observer: &Observer, conversation: &Conversation, lost: &BTreeSet<Seq>, report: &mut Report) {
    let name = &observer.name;
    let mut stretch = Stretch { conversation, lost, next: None, astray: None };
    let mut current_log: Option<&String> = None;
    for sight in &observer.sights {
        let problem = match sight {
            Sight::Begin(after) => {
                stretch.next = after.map(|after| conversation.rows_to(after));
                stretch.astray = after.filter(|after| lost.contains(after));
                current_log = None;
                None
            }
            Sight::Record(seq, log) => {
                if let Some(before) = current_log.replace(log).filter(|before| *before != log) {
                    let detail = format!("{name} passed from log {before} to {log} without a resync");
                    report.add(Invariant::ObserversSeeTheLog, detail);
                }
                if let Some(&row) = conversation.row_of.get(seq) {
                    stretch.row(*seq, row)
                } else if lost.contains(seq) {
                    stretch.lost(*seq)
                } else {
                    let detail = format!("{name} was shown {seq}, which is not in the log");
                    report.add(Invariant::DurableBeforeShown, detail);
                    None
                }
            }
            Sight::CaughtUp(seq) => stretch.caught_up(*seq),
        };
        if let Some(problem) = problem {
            report.add(Invariant::ObserversSeeTheLog, format!("{name} {problem}"));
        }
    }
}

impl Stretch<'_> {
    /// A row of the final log was shown.
    fn row(&mut self, seq: Seq, row: usize) -> Option<String> {
        let expected = self.next.replace(row + 1).filter(|expected| *expected != row);
        if let Some(astray) = self.astray.take() {
            return Some(format!("was shown {seq} after {astray}, which a failover lost, without a resync"));
        }
        expected.map(|expected| format!("was shown {seq} instead of {}", self.seq_at(expected)))
    }

    /// Something was shown that a failover lost later.
    fn lost(&mut self, seq: Seq) -> Option<String> {
        let row = self.conversation.rows_to(seq);
        let expected = self.next.replace(row);
        let stood = self.astray.replace(seq);
        let expected = expected?;
        if expected != row {
            return Some(format!("was shown {seq} instead of {}", self.seq_at(expected)));
        }
        let due = self.next_lost(stood, row);
        due.filter(|due| *due != seq).map(|due| format!("was shown {seq} instead of {due}"))
    }

    /// It was told that it has everything up to here.
    fn caught_up(&mut self, seq: Seq) -> Option<String> {
        let due = self.conversation.rows_to(seq);
        let lacks = self.next.filter(|shown| *shown < due).map(|shown| self.seq_at(shown));
        let lacks = lacks.or_else(|| {
            // What was lost later was there at that time.
            let known = self.next.filter(|_| self.lost.contains(&seq))?;
            self.next_lost(self.astray, known).filter(|lost| *lost <= seq).map(|lost| lost.to_string())
        });
        self.next = self.next.max(Some(due));
        self.astray = self.astray.or_else(|| self.lost.contains(&seq).then_some(seq));
        lacks.map(|missing| format!("was told that it has all up to {seq}, but was not shown {missing}"))
    }

    /// The first lost number above where it stands, which is a lost number or the row before this one.
    fn next_lost(&self, astray: Option<Seq>, row: usize) -> Option<Seq> {
        let before = row.checked_sub(1).map_or(Seq(0), |last| self.conversation.rows[last].seq);
        let stands = astray.unwrap_or(before);
        self.lost.range((Bound::Excluded(stands), Bound::Unbounded)).next().copied()
    }

    fn seq_at(&self, row: usize) -> String {
        self.conversation.rows.get(row).map_or_else(|| "nothing".to_owned(), |row| row.seq.to_string())
    }
}
