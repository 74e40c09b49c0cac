//! What the store does with a request, in one step: the conditions of `conch_store::LeaseStore` and `LogStore`, on the
//! arithmetic of [`conch_core::head`].

use conch_core::head::{Fence, HeadRow, Verdict};
use conch_core::ids::{Epoch, Generation, Incarnation, Seq};
use conch_core::sequencer::Reign;

use super::Ownership as Law;
use super::rules::Rule;
use super::scope::Flaw;
use super::world::{Answer, Append, Entry, ReignId, Request, Row, Tenure, Who, World};

impl World {
    /// The request arrives.
    pub(super) fn arrive(&mut self, from: Who, request: Request, law: Law) -> Answer {
        match request {
            Request::Claim(seen_epoch, seen_owner) => self.claim(from, seen_epoch, seen_owner, law),
            Request::Append(append) => self.append(&append, law),
            Request::Release(epoch, first_seq) => self.release(from, epoch, first_seq, law),
            Request::HandOff(epoch, first_seq, to) => self.hand_off(from, epoch, first_seq, to),
        }
    }

    fn claim(&mut self, by: Who, seen_epoch: Option<Epoch>, seen_owner: Option<Incarnation>, law: Law) -> Answer {
        let me = by.incarnation();
        let generation = self.store.generation;
        if self.row(by) != Row::Present {
            return Answer::Lost;
        }
        let head = self.store.head;
        let as_seen = head.map(|head| head.epoch) == seen_epoch && head.and_then(|head| head.owner) == seen_owner;
        if !as_seen && !law.lacks(Flaw::ClaimUnchecked) {
            return Answer::Lost;
        }
        let gap = if law.lacks(Flaw::NoGap) { 0 } else { law.scope.gap };
        let claimed = match head {
            None => Some(HeadRow::first(me, generation)),
            Some(head) => {
                let same = HeadRow { generation, ..head }.claimed(me, generation, gap);
                head.claimed(me, generation, gap).zip(same).map(|(claimed, same)| match law.flaw {
                    Some(Flaw::NumbersNotSkipped) => HeadRow { reserved_to: same.reserved_to, ..claimed },
                    Some(Flaw::EpochsNotSkipped) => HeadRow { epoch: same.epoch, ..claimed },
                    _ => claimed,
                })
            }
        };
        let Some(mut claimed) = claimed else { return Answer::Lost };
        if let Some(head) = head.filter(|head| head.owner == Some(me))
            && law.lacks(Flaw::EpochKeptOnReclaim)
            && head.generation == generation
        {
            claimed.epoch = head.epoch;
        }
        self.grant(by, claimed)
    }

    /// Writes the head of a new reign.
    fn grant(&mut self, to: Who, head: HeadRow) -> Answer {
        self.check(!self.granted.contains(&head.epoch), Rule::EpochOnce);
        let id = ReignId(self.granted.len());
        self.granted.push(head.epoch);
        self.store.head = Some(head);
        self.store.in_force = Some(id);
        let HeadRow { epoch, last_seq, reserved_to, generation, .. } = head;
        let reign = Reign { epoch, last_seq, first_seq: head.first_seq(), reserved_to };
        Answer::Granted(to, Tenure { reign, generation, id })
    }

    fn append(&mut self, append: &Append, law: Law) -> Answer {
        let Some(head) = self.store.head else { return Answer::Fenced };
        let (judged, fence) = guards(head, append.fence, self.store.generation, law);
        match judged.judge(&fence, self.store.generation) {
            Verdict::Admitted => self.write(head, append, law),
            Verdict::MayHaveLanded => self.find(append.key).map_or(Answer::Fenced, Answer::Landed),
            Verdict::Fenced | Verdict::Rewound => Answer::Fenced,
        }
    }

    /// The head moves on, also past the number of a record that was there before.
    fn write(&mut self, head: HeadRow, append: &Append, law: Law) -> Answer {
        self.check(self.store.in_force == Some(append.id), Rule::CommittedInReign);
        self.store.head = Some(head.appended(append.fence.hi, append.reserve));
        if let Some(original) = self.find(append.key)
            && !law.lacks(Flaw::DedupOff)
        {
            return Answer::Landed(original);
        }
        let entry = Entry { seq: append.fence.hi, epoch: append.fence.epoch, key: append.key };
        let again = self.committed().any(|committed| committed.seq == entry.seq);
        self.check(!again, Rule::SeqOnce);
        self.check(entry.seq > append.floor, Rule::OrderOfAcks);
        self.store.log.push(entry);
        self.store.log.sort_unstable();
        Answer::Landed(entry)
    }

    fn find(&self, key: super::world::Key) -> Option<Entry> {
        self.store.log.iter().find(|entry| entry.key == key).copied()
    }

    /// The head, if it is this holder's and the holder is registered.
    fn held(&self, by: Who, epoch: Epoch) -> Option<HeadRow> {
        let head = self.store.head?;
        let ours = head.epoch == epoch && head.owner == Some(by.incarnation()) && self.row(by) != Row::Absent;
        ours.then_some(head)
    }

    fn release(&mut self, by: Who, epoch: Epoch, first_seq: Seq, law: Law) -> Answer {
        let Some(head) = self.held(by, epoch) else { return Answer::Lost };
        let mut released = head.released(first_seq);
        if law.lacks(Flaw::EpochResetOnRelease) {
            released.epoch = Epoch(0);
        }
        self.store.head = Some(released);
        self.store.in_force = None;
        Answer::Released
    }

    fn hand_off(&mut self, by: Who, epoch: Epoch, first_seq: Seq, to: Who) -> Answer {
        if self.row(to) != Row::Present {
            return Answer::Lost;
        }
        let passed =
            self.held(by, epoch).and_then(|head| head.handed_off(to.incarnation(), self.store.generation, first_seq));
        passed.map_or(Answer::Lost, |head| self.grant(to, head))
    }

    /// The watchdog gives up what this process holds, on its behalf.
    pub(super) fn relieve(&mut self, who: Who, epoch: Epoch, law: Law) {
        if let Some(head) = self.held(who, epoch) {
            let gap = if law.lacks(Flaw::NoGapForTheWedged) { 0 } else { law.scope.gap };
            self.store.head = Some(head.released_wedged(gap));
            self.store.in_force = None;
        }
    }

    /// The watchdog would find something to give up.
    #[must_use]
    pub(super) fn is_held(&self, who: Who, epoch: Epoch) -> bool {
        self.held(who, epoch).is_some()
    }

    /// The standby takes the primary's place, node rows and all; what it lacks is lost.
    pub(super) fn fail_over(&mut self, generations: u64, law: Law) {
        let Some(standby) = self.standby.take() else { return };
        let generation = Generation(self.store.generation.0 + generations);
        let before = std::mem::replace(&mut self.store, *standby);
        self.store.in_force = None;
        self.store.generation = if law.lacks(Flaw::GenerationKept) { before.generation } else { generation };
        let gone = before.log.into_iter().filter(|entry| !self.store.log.contains(entry));
        self.lost.extend(gone);
        self.lost.sort_unstable();
        self.failovers_left -= 1;
        self.standby = (self.failovers_left > 0).then(|| Box::new(self.store.clone()));
    }
}

/// What the fence is to compare: as it is, but for what a flaw does not compare.
fn guards(mut head: HeadRow, mut fence: Fence, generation: Generation, law: Law) -> (HeadRow, Fence) {
    match law.flaw {
        Some(Flaw::FenceOff) => {
            fence.epoch = head.epoch;
            head.owner = Some(fence.owner);
            (head.generation, fence.generation) = (generation, generation);
            head.last_seq = fence.prev;
        }
        Some(Flaw::EpochUnchecked) => fence.epoch = head.epoch,
        Some(Flaw::OwnerUnchecked) => head.owner = Some(fence.owner),
        Some(Flaw::GenerationUnchecked) => (head.generation, fence.generation) = (generation, generation),
        Some(Flaw::PlaceUnchecked) => head.last_seq = fence.prev,
        _ => {}
    }
    (head, fence)
}
