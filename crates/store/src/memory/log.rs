//! The memory store's log: fenced appends, ranges, due rows and checkpoints.
//!
//! Invariants 2, 3, 4 and 8: an append is judged against the head and applied, or not applied, in one step.

use std::ops::Bound;

use conch_core::head::{Fence, HeadRow, Verdict};
use conch_core::ids::{ClientMsgId, ConvRef, Epoch, Incarnation, Region, Seq, Subject};
use conch_core::invariant::{Broken, Invariant};
use conch_core::record::{Draft, Record};
use conch_core::time::Timestamp;

use super::Mutant;
use super::state::{Conversation, Due, State, Stored, millis};
use crate::{
    AppendOutcome, Batch, Checkpoint, Direction, DueChange, DueQuery, DueRow, Duplicate, Landed, Page, RangeQuery,
    StoreError,
};

/// Which duplicates an append recognises. The weaker ones exist for mutants.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dedup {
    Full,
    EarlierBatchesOnly,
    Off,
}

impl State {
    /// Each batch for itself: one that is refused harms no other.
    pub(super) fn append_all(&mut self, now_ms: i64, me: Incarnation, batches: Vec<Batch>) -> Vec<AppendOutcome> {
        let mut outcomes: Vec<AppendOutcome> = Vec::with_capacity(batches.len());
        for batch in batches {
            let refused = matches!(outcomes.last(), Some(AppendOutcome::Fenced | AppendOutcome::Failed(_)));
            let spreads = refused && self.is(Mutant::FailureSpreads);
            outcomes.push(if spreads { AppendOutcome::Fenced } else { self.append(now_ms, me, batch) });
        }
        outcomes
    }

    fn append(&mut self, now_ms: i64, me: Incarnation, batch: Batch) -> AppendOutcome {
        if let Err(broken) = check(&batch)
            && !self.is(Mutant::MalformedAccepted)
        {
            return AppendOutcome::Failed(StoreError::Damaged(broken.to_string()));
        }
        let head = match self.judge(me, &batch) {
            Ok(head) => head,
            Err(outcome) => return outcome,
        };
        let head = self.advanced(&head, &batch);
        let times_go_back = self.is(Mutant::TimesGoBack);
        let due_ignored = self.is(Mutant::DueIgnored);
        let dedup = self.dedup();
        let Some(conversation) = self.by_key_mut(batch.conversation.key) else { return AppendOutcome::Fenced };
        conversation.head = Some(head);
        match batch.due {
            _ if due_ignored => {}
            DueChange::Keep => {}
            DueChange::Clear => conversation.due = None,
            DueChange::Set(why, after) => {
                conversation.due = Some(Due { at_ms: now_ms.saturating_add(millis(after)), why });
            }
        }
        // The calendar may be set back; a log's times never go back with it.
        let last_at = conversation.last_at().filter(|_| !times_go_back).unwrap_or_default();
        let at = Timestamp(now_ms).max(last_at);
        let duplicates = conversation.insert(batch.epoch, at, batch.prev, batch.records, dedup);
        AppendOutcome::Landed { at, duplicates }
    }

    fn dedup(&self) -> Dedup {
        if self.is(Mutant::DedupOff) {
            return Dedup::Off;
        }
        if self.is(Mutant::DedupWithinBatchOff) { Dedup::EarlierBatchesOnly } else { Dedup::Full }
    }

    fn advanced(&self, head: &HeadRow, batch: &Batch) -> HeadRow {
        let reserved_to = if self.is(Mutant::ReserveLowered) { Seq(0) } else { head.reserved_to };
        HeadRow { reserved_to, ..*head }.appended(batch.hi, batch.reserve)
    }

    /// The fence: the head to write behind, or why this batch may not write.
    fn judge(&self, me: Incarnation, batch: &Batch) -> Result<HeadRow, AppendOutcome> {
        let head = self.head(batch.conversation.key).ok_or(AppendOutcome::Fenced)?;
        let Batch { epoch, generation, prev, hi, .. } = *batch;
        let (judged, fence) = self.with_guards_off(head, Fence { epoch, owner: me, generation, prev, hi });
        match judged.judge(&fence, self.generation) {
            Verdict::Admitted => Ok(head),
            Verdict::MayHaveLanded if !self.is(Mutant::LandedForgotten) => {
                let conversation = self.conversations.get(&batch.conversation.key);
                let landed = conversation.and_then(|conversation| conversation.landed_before(batch));
                Err(landed.unwrap_or(AppendOutcome::Rewound))
            }
            Verdict::Fenced => Err(AppendOutcome::Fenced),
            Verdict::MayHaveLanded | Verdict::Rewound => Err(AppendOutcome::Rewound),
        }
    }

    /// What the fence is to compare: as it is, but for what a mutant does not compare.
    fn with_guards_off(&self, mut head: HeadRow, mut fence: Fence) -> (HeadRow, Fence) {
        let gone = self.is(Mutant::FenceGone);
        if self.is(Mutant::FenceOff) || gone {
            fence.epoch = head.epoch;
        }
        if self.is(Mutant::OwnerUnchecked) || gone {
            head.owner = Some(fence.owner);
        }
        if self.is(Mutant::GenerationUnchecked) || gone {
            (head.generation, fence.generation) = (self.generation, self.generation);
        }
        if self.is(Mutant::PrevUnchecked) || gone {
            head.last_seq = fence.prev;
        }
        (head, fence)
    }

    pub(super) fn range(&self, query: &RangeQuery) -> Result<Option<Page>, StoreError> {
        let Some(conversation) = self.known(&query.conversation)? else { return Ok(None) };
        let wanted = |record: &&Record| {
            query.kinds.is_empty() || query.kinds.contains(&record.kind) || self.is(Mutant::KindsIgnored)
        };
        let one_more = query.limit.saturating_add(1);
        let (low, high) = match query.direction {
            Direction::After(after) => (Bound::Excluded(after), Bound::Unbounded),
            Direction::Before(before) => (Bound::Unbounded, Bound::Excluded(before)),
            Direction::Latest => (Bound::Unbounded, Bound::Unbounded),
        };
        let between = conversation.records.range((low, high)).map(|(_, stored)| &stored.record);
        let mut records: Vec<Record> = match query.direction {
            Direction::After(_) => between.filter(wanted).take(one_more).cloned().collect(),
            Direction::Before(_) | Direction::Latest => between.rev().filter(wanted).take(one_more).cloned().collect(),
        };
        let more = records.len() > query.limit && !self.is(Mutant::MoreIsNeverTrue);
        records.truncate(query.limit);
        if !matches!(query.direction, Direction::After(_)) {
            records.reverse();
        }
        Ok(Some(Page { records, head_seq: conversation.head_seq(), log: self.log_id(), more }))
    }

    pub(super) fn count_after(&self, conversation: &ConvRef, after: Seq, limit: usize) -> Result<usize, StoreError> {
        let Some(conversation) = self.known(conversation)? else { return Ok(0) };
        Ok(conversation.records.range(after.next()..).take(limit).count())
    }

    pub(super) fn find(
        &self,
        conversation: &ConvRef,
        sender: &Subject,
        client_msg_id: &ClientMsgId,
    ) -> Result<Option<Landed>, StoreError> {
        let Some(conversation) = self.known(conversation)? else { return Ok(None) };
        Ok(conversation.landed(&(sender.clone(), client_msg_id.clone())))
    }

    pub(super) fn due(&self, now_ms: i64, query: &DueQuery) -> Vec<DueRow> {
        let is_here = |regions: &[Region]| regions.is_empty() || regions.contains(&query.region);
        let mut rows: Vec<_> = self
            .conversations
            .values()
            .filter_map(|conversation| Some((conversation.due?, conversation)))
            .filter(|(due, _)| due.at_ms <= now_ms || self.is(Mutant::DueTooEarly))
            .filter(|(_, conversation)| !self.has_registered_owner(conversation) || self.is(Mutant::DueOfTheLiving))
            .filter(|(_, conversation)| is_here(&conversation.regions) || self.is(Mutant::DueElsewhere))
            .map(|(due, conversation)| DueRow {
                conversation: conversation.id.clone(),
                why: due.why,
                at_us: due.at_ms.saturating_mul(1_000),
                regions: conversation.regions.clone(),
                home: conversation.home.clone(),
            })
            .collect();
        let by_id = |row: &DueRow| if self.is(Mutant::DuePagesByTime) { None } else { Some(row.conversation.clone()) };
        let is_behind = |row: &DueRow| match &query.after {
            Some(mark) => (row.at_us, by_id(row)) > (mark.at_us, by_id(row).and(Some(mark.conversation.clone()))),
            None => true,
        };
        rows.sort_by(|a, b| (a.at_us, &a.conversation).cmp(&(b.at_us, &b.conversation)));
        rows.into_iter().filter(is_behind).take(query.limit).collect()
    }

    fn has_registered_owner(&self, conversation: &Conversation) -> bool {
        let owner = conversation.head.and_then(|head| head.owner);
        owner.is_some_and(|owner| self.nodes.contains_key(&owner))
    }

    pub(super) fn save_checkpoint(
        &mut self,
        conversation: &ConvRef,
        epoch: Epoch,
        me: Incarnation,
        checkpoint: &Checkpoint,
    ) -> Result<bool, StoreError> {
        let generation = self.generation;
        let (unfenced, goes_back) = (self.is(Mutant::CheckpointUnfenced), self.is(Mutant::CheckpointGoesBack));
        let Some(conversation) = self.known_mut(conversation)? else { return Ok(false) };
        let ours = conversation
            .head
            .is_some_and(|head| head.epoch == epoch && head.owner == Some(me) && head.generation == generation);
        let newer = conversation
            .checkpoint
            .as_ref()
            .is_none_or(|(saved_in, saved)| (epoch, checkpoint.version) > (*saved_in, saved.version));
        let save = (ours || unfenced) && (newer || goes_back);
        if save {
            conversation.checkpoint = Some((epoch, checkpoint.clone()));
        }
        Ok(save)
    }

    pub(super) fn checkpoint(&self, conversation: &ConvRef) -> Result<Option<Checkpoint>, StoreError> {
        let Some(conversation) = self.known(conversation)? else { return Ok(None) };
        Ok(conversation.checkpoint.as_ref().map(|(_, checkpoint)| checkpoint.clone()))
    }
}

impl Conversation {
    /// Adds the records that are not in the log yet; returns the others.
    fn insert(
        &mut self,
        epoch: Epoch,
        at: Timestamp,
        prev: Seq,
        records: Vec<(Seq, Draft)>,
        dedup: Dedup,
    ) -> Vec<Duplicate> {
        let mut duplicates = Vec::new();
        for (seq, draft) in records {
            let key = (draft.sender.clone(), draft.client_msg_id.clone());
            let original = match dedup {
                Dedup::Full => self.landed(&key),
                Dedup::EarlierBatchesOnly => self.landed(&key).filter(|original| original.seq <= prev),
                Dedup::Off => None,
            };
            if let Some(original) = original {
                duplicates.push(Duplicate { seq, original });
                continue;
            }
            let body_hash = draft.body_hash;
            let record = Record::from_draft(self.id.clone(), seq, epoch, at, draft);
            self.records.insert(seq, Stored { record, body_hash });
            self.by_client_msg_id.insert(key, seq);
        }
        duplicates
    }

    /// The answer to a batch that an earlier call committed, whose answer was lost. `None`: the head is where this batch
    /// would have put it, but by another write.
    fn landed_before(&self, batch: &Batch) -> Option<AppendOutcome> {
        let (mut at, mut duplicates) = (None, Vec::new());
        for (seq, draft) in &batch.records {
            let original = self.landed(&(draft.sender.clone(), draft.client_msg_id.clone()))?;
            if original.seq == *seq {
                at = Some(original.at);
            } else {
                duplicates.push(Duplicate { seq: *seq, original });
            }
        }
        let at = at.or_else(|| duplicates.first().map(|duplicate| duplicate.original.at)).unwrap_or_default();
        Some(AppendOutcome::Landed { at, duplicates })
    }

    fn landed(&self, key: &(Subject, ClientMsgId)) -> Option<Landed> {
        let seq = self.by_client_msg_id.get(key)?;
        let Stored { record, body_hash } = self.records.get(seq)?;
        Some(Landed { seq: *seq, body_hash: *body_hash, epoch: record.epoch, at: record.at })
    }
}

/// Checks what [`Batch`] promises: a number at or below the head would be given a second time. A batch that breaks it is
/// a mistake of the caller.
fn check(batch: &Batch) -> Result<(), Broken> {
    if batch.hi < batch.prev {
        return Err(
            Invariant::SeqOnce.broken(format!("a batch sets the head back from {} to {}", batch.prev, batch.hi))
        );
    }
    let mut below = batch.prev;
    for (seq, _) in &batch.records {
        if *seq <= below || *seq > batch.hi {
            let detail = format!("a batch for ({}, {}] holds seq {seq} after {below}", batch.prev, batch.hi);
            return Err(Invariant::SeqOnce.broken(detail));
        }
        below = *seq;
    }
    Ok(())
}
