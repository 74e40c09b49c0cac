//! How far behind a session may be that is still caught up record by record.
//!
//! Thousands of sessions come back with a few positions, so the store is asked only where neither the distance in numbers
//! nor an earlier answer decides.

use super::*;

/// What is known of distances in one log.
#[derive(Default)]
pub(super) struct Reach {
    log: Option<LogId>,
    /// So many records lay above a position, as of a head.
    counted: Option<Counted>,
    /// The highest position that was found to be too far behind.
    too_far: Option<Seq>,
}

#[derive(Clone, Copy)]
struct Counted {
    after: Seq,
    records: u64,
    head: Seq,
}

impl Reach {
    /// Whether more than `limit` records lie above `after`, if that is known. Of numbers there are at least as many.
    pub(super) fn is_too_far(&mut self, log: &LogId, after: Seq, head: Seq, limit: u64) -> Option<bool> {
        if self.log.as_ref() != Some(log) {
            *self = Self { log: Some(log.clone()), ..Self::default() };
        }
        let at_most = |counted: Counted| counted.records.saturating_add(head.0.saturating_sub(counted.head.0));
        if head.0.saturating_sub(after.0) <= limit {
            Some(false)
        } else if self.too_far.is_some_and(|too_far| after <= too_far) {
            Some(true)
        } else if self.counted.is_some_and(|counted| after >= counted.after && at_most(counted) <= limit) {
            Some(false)
        } else {
            None
        }
    }

    pub(super) fn note(&mut self, after: Seq, head: Seq, records: u64, limit: u64) {
        if records > limit {
            self.too_far = self.too_far.max(Some(after));
        } else {
            self.counted = Some(Counted { after, records, head });
        }
    }
}

impl Hub {
    /// Records above a position up to which it is caught up.
    pub(super) fn reach_limit(&self) -> u64 {
        u64::try_from(self.shared.limits.catch_up_records).unwrap_or(u64::MAX)
    }

    /// Whether a session with this position is to load the latest page. Where that is not known, catching up waits for the store.
    pub(super) fn is_too_far_behind(&mut self, after: Seq) -> bool {
        if self.ring.covers(after) {
            return false;
        }
        let limit = self.reach_limit();
        let Some(Position { address, seq: head, .. }) = &self.at else { return false };
        let is_too_far = self.reach.is_too_far(&address.log, after, *head, limit).unwrap_or(false);
        if is_too_far {
            self.shared.node.metrics.limit_hit(Queue::CatchUp);
        }
        is_too_far
    }

    /// A catch-up ends: the session is to load the latest page, and goes on from there.
    pub(super) fn resync(&mut self, id: SessionId) -> Attach {
        let (Some(watcher), Some(at)) = (self.watchers.get_mut(&id), &self.at) else { return Attach::Gone };
        watcher.resync_due = true;
        let head = at.seq;
        self.shared.node.metrics.resyncs.inc();
        self.attach(id, head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_is_asked_only_where_nothing_is_known() {
        let log = LogId::new("s", conch_core::ids::Generation(1));
        let mut reach = Reach::default();
        let ask = |reach: &mut Reach, after: u64, head: u64| reach.is_too_far(&log, Seq(after), Seq(head), 10);
        assert_eq!(ask(&mut reach, 90, 100), Some(false), "ten numbers are ten records at most");
        assert_eq!(ask(&mut reach, 101, 100), Some(false));
        assert_eq!(ask(&mut reach, 50, 100), None);
        reach.note(Seq(50), Seq(100), 4, 10);
        assert_eq!((ask(&mut reach, 50, 100), ask(&mut reach, 60, 106)), (Some(false), Some(false)));
        assert_eq!((ask(&mut reach, 49, 100), ask(&mut reach, 50, 107)), (None, None), "more than is known");
        reach.note(Seq(20), Seq(107), 11, 10);
        assert_eq!(
            (ask(&mut reach, 20, 900), ask(&mut reach, 3, 900)),
            (Some(true), Some(true)),
            "it gets only farther"
        );
        assert_eq!(ask(&mut reach, 21, 900), None);
        let other = LogId::new("s", conch_core::ids::Generation(2));
        assert_eq!(reach.is_too_far(&other, Seq(3), Seq(900), 10), None, "another history");
    }
}
