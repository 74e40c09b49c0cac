//! The most recent durable records of one hub, from which those who resume are served.
//!
//! Invariant: the ring holds every record of the log in `(floor, tip]` and no other, so that serving from it leaves no
//! gap (rule F5 in docs/ARCHITECTURE.md; invariant 6). Numbers have holes, so each record brings its predecessor's
//! number; one that does not follow the tip empties the ring. Deliberately absent: the log's id and generation. Whoever
//! sees them change calls [`Ring::clear`].

use std::collections::VecDeque;

use crate::ids::Seq;

#[derive(Debug)]
struct Entry<T> {
    seq: Seq,
    bytes: usize,
    item: T,
}

/// See the module. `T` is whatever is sent: usually shared, encoded frames.
#[derive(Debug)]
pub struct Ring<T> {
    records_max: usize,
    bytes_max: usize,
    bytes: usize,
    entries: VecDeque<Entry<T>>,
    /// Everything in `(floor, tip]` is here; `None` while nothing is known.
    span: Option<(Seq, Seq)>,
}

impl<T> Ring<T> {
    /// An empty ring that holds at most `records_max` records of at most `bytes_max` bytes in all.
    #[must_use]
    pub fn new(records_max: usize, bytes_max: usize) -> Self {
        Self { records_max, bytes_max, bytes: 0, entries: VecDeque::new(), span: None }
    }

    /// Adds the record `seq`, whose predecessor in the log is `prev` (0 for the first). `bytes` is what it counts for.
    ///
    /// A record that does not follow the last one empties the ring first; the oldest make room for it.
    pub fn push(&mut self, prev: Seq, seq: Seq, bytes: usize, item: T) {
        if self.tip() != Some(prev) {
            self.restart(prev);
        }
        if seq <= prev {
            // A log that runs backwards is no log; what is here cannot be trusted to serve.
            self.clear();
            return;
        }
        let floor = self.floor().unwrap_or(prev);
        self.span = Some((floor, seq));
        if self.records_max == 0 || bytes > self.bytes_max {
            self.restart(seq);
            return;
        }
        while self.entries.len() >= self.records_max || self.bytes > self.bytes_max - bytes {
            self.evict_oldest();
        }
        self.bytes += bytes;
        self.entries.push_back(Entry { seq, bytes, item });
    }

    /// Whether every record above `after` is here. False also for a position that the ring has not reached.
    #[must_use]
    pub fn covers(&self, after: Seq) -> bool {
        self.span.is_some_and(|(floor, tip)| floor <= after && after <= tip)
    }

    /// The records above `seq`, ascending. Complete only if [`Ring::covers`] says so.
    pub fn after(&self, seq: Seq) -> impl ExactSizeIterator<Item = (Seq, &T)> {
        let start = self.entries.partition_point(|entry| entry.seq <= seq);
        self.entries.range(start..).map(|entry| (entry.seq, &entry.item))
    }

    /// The last record's number, once one is known.
    #[must_use]
    pub fn tip(&self) -> Option<Seq> {
        self.span.map(|(_, tip)| tip)
    }

    /// Forgets everything: the generation changed, or the stream broke.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.bytes = 0;
        self.span = None;
    }

    /// Forgets everything and knows that the log's last record is now `tip`: whoever is there misses nothing.
    pub fn restart(&mut self, tip: Seq) {
        self.clear();
        self.span = Some((tip, tip));
    }

    /// Records held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if no record is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// What the records held count for, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn floor(&self) -> Option<Seq> {
        self.span.map(|(floor, _)| floor)
    }

    fn evict_oldest(&mut self) {
        let Some(oldest) = self.entries.pop_front() else { return };
        self.bytes -= oldest.bytes;
        self.span = self.span.map(|(_, tip)| (oldest.seq, tip));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn held(ring: &Ring<u64>, after: u64) -> Vec<u64> {
        ring.after(Seq(after)).map(|(seq, item)| if seq.0 == *item { *item } else { u64::MAX }).collect()
    }

    fn pushed(records_max: usize, bytes_max: usize, records: &[(u64, u64, usize)]) -> Ring<u64> {
        let mut ring = Ring::new(records_max, bytes_max);
        for (prev, seq, bytes) in records {
            ring.push(Seq(*prev), Seq(*seq), *bytes, *seq);
        }
        ring
    }

    fn covered(ring: &Ring<u64>) -> Vec<u64> {
        (0..30).filter(|seq| ring.covers(Seq(*seq))).collect()
    }

    #[test]
    fn what_is_held_and_covered() {
        type Case = (&'static str, usize, usize, &'static [(u64, u64, usize)], &'static [u64], &'static [u64]);
        let cases: [Case; 9] = [
            ("nothing known", 3, 100, &[], &[], &[]),
            ("from the log's start", 3, 100, &[(0, 1, 9), (1, 2, 9)], &[1, 2], &[0, 1, 2]),
            ("holes in the numbers", 3, 100, &[(5, 8, 9), (8, 9, 9)], &[8, 9], &[5, 6, 7, 8, 9]),
            ("over the count", 2, 100, &[(0, 1, 9), (1, 2, 9), (2, 5, 9)], &[2, 5], &[1, 2, 3, 4, 5]),
            ("over the bytes", 9, 20, &[(0, 1, 9), (1, 2, 9), (2, 3, 9)], &[2, 3], &[1, 2, 3]),
            ("a break", 9, 100, &[(0, 1, 9), (1, 2, 9), (3, 4, 9)], &[4], &[3, 4]),
            ("a repetition", 9, 100, &[(0, 1, 9), (1, 2, 9), (1, 2, 9)], &[2], &[1, 2]),
            ("larger than the ring", 9, 20, &[(0, 1, 9), (1, 2, 21)], &[], &[2]),
            ("backwards", 9, 100, &[(0, 5, 9), (5, 5, 9)], &[], &[]),
        ];
        for (name, records_max, bytes_max, records, expected, expected_cover) in cases {
            let ring = pushed(records_max, bytes_max, records);
            assert_eq!(held(&ring, 0), expected, "{name}");
            assert_eq!(covered(&ring), expected_cover, "{name}");
        }
    }

    #[test]
    fn after_is_exclusive_and_clearing_forgets() {
        let mut ring = pushed(9, 100, &[(0, 3, 9), (3, 7, 9), (7, 8, 9)]);
        for (after, expected) in [(0, vec![3, 7, 8]), (3, vec![7, 8]), (5, vec![7, 8]), (8, vec![])] {
            assert_eq!(held(&ring, after), expected);
        }
        assert_eq!((ring.len(), ring.bytes(), ring.tip()), (3, 27, Some(Seq(8))));
        ring.clear();
        assert_eq!((ring.len(), ring.bytes(), ring.tip()), (0, 0, None));
        assert!(ring.is_empty() && !ring.covers(Seq(8)));
        ring.restart(Seq(8));
        assert_eq!((covered(&ring), ring.tip()), (vec![8], Some(Seq(8))));
        ring.push(Seq(8), Seq(9), 9, 9);
        assert_eq!((covered(&ring), held(&ring, 8)), (vec![8, 9], vec![9]));
    }

    #[test]
    fn sizes_do_not_overflow() {
        let mut ring = Ring::new(9, usize::MAX);
        ring.push(Seq(0), Seq(1), usize::MAX, 1_u64);
        ring.push(Seq(1), Seq(2), usize::MAX, 2);
        assert_eq!((held(&ring, 0), ring.bytes()), (vec![2], usize::MAX));
        assert!(pushed(0, 9, &[(0, 1, 1)]).is_empty());
    }

    #[derive(Debug, Clone)]
    enum Step {
        /// The next record, this far on, of this size.
        Append(u64, usize),
        /// So many records that the ring is not told of.
        Miss(u64),
        Clear,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            8 => (1_u64..4, 0_usize..30).prop_map(|(gap, bytes)| Step::Append(gap, bytes)),
            1 => (1_u64..4).prop_map(Step::Miss),
            1 => Just(Step::Clear),
        ];
        proptest::collection::vec(step, 0..60)
    }

    proptest! {
        /// Against the whole log, kept naively: whatever the ring claims to cover it serves without a gap, and it holds
        /// as much of what it was told in one piece as the limits let it.
        #[test]
        fn the_ring_never_hides_a_record(steps in steps(), records_max in 0_usize..8, bytes_max in 0_usize..100) {
            let mut ring = Ring::new(records_max, bytes_max);
            let (mut log, mut told): (Vec<u64>, Vec<(u64, usize)>) = (vec![], vec![]);
            for step in steps {
                let last = log.last().copied().unwrap_or(0);
                match step {
                    Step::Append(gap, bytes) => {
                        ring.push(Seq(last), Seq(last + gap), bytes, last + gap);
                        log.push(last + gap);
                        told.push((last + gap, bytes));
                    }
                    Step::Miss(count) => {
                        log.extend((1..=count).map(|number| last + number));
                        // What it does not know of it cannot count; the next record tells it of the break.
                        ring.push(Seq(last + count), Seq(last + count + 1), 1, last + count + 1);
                        log.push(last + count + 1);
                        told = vec![(last + count + 1, 1)];
                    }
                    Step::Clear => {
                        ring.clear();
                        told.clear();
                    }
                }
                for after in 0..=log.last().copied().unwrap_or(0) + 2 {
                    if ring.covers(Seq(after)) {
                        let expected: Vec<u64> = log.iter().copied().filter(|seq| *seq > after).collect();
                        prop_assert_eq!(held(&ring, after), expected, "after {}", after);
                    }
                }
                let mut room = bytes_max;
                let fits = |(_, bytes): &&(u64, usize)| room.checked_sub(*bytes).map(|left| room = left).is_some();
                let mut expected: Vec<u64> =
                    told.iter().rev().take(records_max).take_while(fits).map(|(seq, _)| *seq).collect();
                expected.reverse();
                prop_assert_eq!(held(&ring, 0), expected);
                prop_assert_eq!(ring.tip().is_some(), !told.is_empty());
            }
        }

        #[test]
        fn no_push_panics(pushes in proptest::collection::vec(any::<(u64, u64, usize)>(), 0..20)) {
            let ring = pushed(5, usize::MAX / 2, &pushes);
            prop_assert!(ring.len() <= 5 && ring.bytes() <= usize::MAX / 2);
        }
    }
}
