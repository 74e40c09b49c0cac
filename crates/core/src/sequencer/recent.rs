//! The newest keys of a reign, with what became of them: a retry of one is answered without a write.
//!
//! Invariant: at most as many as may be remembered, each key once; the oldest is forgotten first.
//!
//! Deliberately absent: an index. There are few (64 by default, 1,024 at the most), and their digests lie side by side: all of them
//! are compared.

use std::collections::VecDeque;

use super::Original;
use super::key::Key;

/// See the module's description.
#[derive(Debug)]
pub(super) struct Recent {
    most: usize,
    /// Of `entries`, in the same order.
    digests: VecDeque<u64>,
    entries: VecDeque<(Key, Original)>,
}

impl Recent {
    /// Remembers up to so many.
    pub(super) fn new(most: usize) -> Self {
        Self { most, digests: VecDeque::new(), entries: VecDeque::new() }
    }

    /// What became of this key.
    pub(super) fn get(&self, key: &Key) -> Option<&Original> {
        self.place(key).map(|place| &self.entries[place].1)
    }

    /// Remembers it as the newest. A key that is there keeps its place, with what is new.
    pub(super) fn insert(&mut self, key: Key, original: Original) {
        if self.most == 0 {
            return;
        }
        if let Some(place) = self.place(&key) {
            self.entries[place].1 = original;
            return;
        }
        if self.entries.len() >= self.most {
            self.digests.pop_front();
            self.entries.pop_front();
        }
        self.digests.push_back(key.digest());
        self.entries.push_back((key, original));
        debug_assert_eq!(self.digests.len(), self.entries.len(), "a digest for each key");
    }

    fn place(&self, key: &Key) -> Option<usize> {
        let same = |(place, digest): (usize, &u64)| {
            (*digest == key.digest() && self.entries[place].0 == *key).then_some(place)
        };
        self.digests.iter().enumerate().find_map(same)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::BodyHash;
    use crate::ids::{Epoch, Seq};
    use crate::time::Timestamp;

    fn original(seq: u64) -> Original {
        Original { seq: Seq(seq), body_hash: BodyHash([0; 16]), epoch: Epoch(1), at: Timestamp(0) }
    }

    #[test]
    fn the_oldest_is_forgotten_first() {
        let mut recent = Recent::new(2);
        let [first, second, third] = ["a", "b", "c"].map(|id| Key::with_digest(7, id));
        recent.insert(first.clone(), original(1));
        recent.insert(second.clone(), original(2));
        recent.insert(third.clone(), original(3));
        assert_eq!(recent.get(&first), None);
        assert_eq!(recent.get(&second), Some(&original(2)));
        assert_eq!(recent.get(&third), Some(&original(3)));
    }

    #[test]
    fn a_key_that_is_there_takes_no_second_place() {
        let mut recent = Recent::new(2);
        let [first, second] = ["a", "b"].map(|id| Key::with_digest(7, id));
        recent.insert(first.clone(), original(1));
        recent.insert(second.clone(), original(2));
        recent.insert(second.clone(), original(3));
        assert_eq!(recent.get(&first), Some(&original(1)));
        assert_eq!(recent.get(&second), Some(&original(3)));
    }

    #[test]
    fn none_is_remembered_where_none_may_be() {
        let mut recent = Recent::new(0);
        let key = Key::with_digest(7, "a");
        recent.insert(key.clone(), original(1));
        assert_eq!(recent.get(&key), None);
    }
}
