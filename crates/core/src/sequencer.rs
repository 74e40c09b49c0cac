//! The sequencer: gives every record of one conversation its number, once.
//!
//! One instance lives as long as one reign (one epoch of one owner). It takes drafts, numbers them, hands them out one
//! batch at a time for a fenced commit, and only when the commit is known turns them into acks and broadcasts.
//!
//! Invariants kept here: 2 (numbers only go up, and never below what was reserved by an earlier reign), 3 and 4 (a key is
//! in at most one draft under way; a repeated one gets the first one's outcome), 5 (acks follow commits, and commits
//! follow numbers), 7 (nothing leaves before its commit), 8 (nothing is numbered or acked on an uncertain lease).
//!
//! Deliberately absent: any idea of where the batch is written, and any retry. A batch whose fate is not known ends the
//! reign; the next one finds out what landed.

mod key;
mod recent;

use std::collections::{BTreeMap, VecDeque};

use crate::ids::{Epoch, Seq};
use crate::invariant::{Broken, Invariant};
use crate::record::{Draft, Record};
use crate::refusal::{Code, Refusal, Retry};
use crate::time::{Monotonic, Timestamp};
use crate::{body::BodyHash, ids::ConvRef};
use key::Key;
use recent::Recent;

/// Bounds of one sequencer.
#[derive(Debug, Clone, Copy)]
pub struct SequencerLimits {
    /// Numbers reserved ahead at a time. Default 1,000.
    pub block: u64,
    /// Numbers that the next reign skips above the reserved ones if this one ends uncleanly. So none is given above that
    /// many, and a batch has at most so many records (one group may exceed it alone). Default 1,000.
    pub gap: u64,
    /// Most records of one commit.
    pub batch_records: usize,
    /// Most body bytes of one commit (one group may exceed it alone).
    pub batch_bytes: usize,
    /// Most records that wait for a commit, and most repetitions of one key that wait for its outcome; above it:
    /// `overloaded`.
    pub queue_records: usize,
    /// Most body bytes that wait; above it: `overloaded`.
    pub queue_bytes: usize,
    /// How many of the newest keys are remembered to answer a retry without a write.
    pub recent_keys: usize,
}

impl Default for SequencerLimits {
    fn default() -> Self {
        Self {
            block: 1_000,
            gap: 1_000,
            batch_records: 512,
            batch_bytes: 4 * 1024 * 1024,
            queue_records: 4_096,
            queue_bytes: 16 * 1024 * 1024,
            recent_keys: 64,
        }
    }
}

/// The shell's handle on one append; comes back in exactly one [`Action::Ack`] or [`Action::Refuse`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// The ownership that a sequencer numbers under.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Reign {
    /// Its fencing token.
    pub epoch: Epoch,
    /// The last committed seq when it began.
    pub last_seq: Seq,
    /// The first number that it may give.
    pub first_seq: Seq,
    /// The durably reserved high-water mark.
    pub reserved_to: Seq,
}

/// When something happens, and until when the node's lease may be acted upon.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// Now.
    pub now: Monotonic,
    /// The end of local validity; see [`crate::lease`].
    pub valid_until: Monotonic,
}

impl Moment {
    fn is_certain(self) -> bool {
        self.now < self.valid_until
    }
}

/// What a sender is told about one of its drafts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receipt {
    /// The record's number.
    pub seq: Seq,
    /// The epoch it was committed in.
    pub epoch: Epoch,
    /// When it was committed.
    pub at: Timestamp,
    /// Whether it was in the log before this call.
    pub outcome: Outcome,
}

/// Whether a write is new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It was written now.
    Appended,
    /// It was there already, under the same key with the same body.
    Duplicate,
}

/// A write that was in the log before: where, and with which body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Original {
    /// Its number.
    pub seq: Seq,
    /// Its idempotency hash.
    pub body_hash: BodyHash,
    /// The epoch it was committed in.
    pub epoch: Epoch,
    /// When it was committed.
    pub at: Timestamp,
}

/// What happens to a sequencer.
#[derive(Debug)]
pub enum Input {
    /// Somebody wants these appended, all in one commit.
    Append(Ticket, Vec<Draft>),
    /// The batch under way is on disk, but for those seqs that were in the log before.
    Landed {
        /// The commit's time.
        at: Timestamp,
        /// Ascending by seq.
        duplicates: Vec<(Seq, Original)>,
    },
    /// The batch under way was not written, for certain, and the reign goes on.
    Failed(Refusal),
    /// The reign is over, or the fate of the batch under way is unknown.
    Ended(Refusal),
}

/// A batch to be committed under the fence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitRequest {
    /// The last committed seq before it.
    pub prev: Seq,
    /// Its highest seq.
    pub hi: Seq,
    /// The reserved high-water mark after it.
    pub reserve: Seq,
    /// The records, ascending.
    pub records: Vec<(Seq, Draft)>,
}

/// What the shell has to do, in this order.
#[derive(Debug, PartialEq)]
pub enum Action {
    /// Commit this; answer with [`Input::Landed`], [`Input::Failed`] or [`Input::Ended`].
    Commit(CommitRequest),
    /// Tell the sender. One receipt for each draft of the group.
    Ack(Ticket, Vec<Receipt>),
    /// Tell the sender that nothing was consumed.
    Refuse(Ticket, Refusal),
    /// Show this record; `prev` is the seq of the record before it in the log.
    Publish {
        /// The preceding record's seq.
        prev: Seq,
        /// The record.
        record: Record,
    },
    /// Stop: this instance accepts nothing any more.
    Halt(Option<Broken>),
}

#[derive(Debug)]
struct Group {
    ticket: Ticket,
    drafts: Vec<Draft>,
    /// Of the drafts, in their order.
    keys: Vec<Key>,
    bytes: usize,
}

/// A later append with a key that is under way: it gets that one's outcome.
#[derive(Debug)]
struct Joiner {
    ticket: Ticket,
    body_hash: BodyHash,
}

#[derive(Debug)]
struct Flight {
    groups: Vec<Group>,
    first: Seq,
    hi: Seq,
    reserve: Seq,
}

/// See the module's description.
#[derive(Debug)]
pub struct Sequencer {
    conversation: ConvRef,
    epoch: Epoch,
    limits: SequencerLimits,
    last_seq: Seq,
    /// The last record that was shown, as far as this reign knows: what `prev` of the next one says.
    last_shown: Seq,
    next_seq: Seq,
    reserved_to: Seq,
    queue: VecDeque<Group>,
    queued_records: usize,
    queued_bytes: usize,
    flight: Option<Flight>,
    under_way: BTreeMap<Key, Vec<Joiner>>,
    recent: Recent,
    halted: bool,
}

impl Sequencer {
    /// A sequencer for a reign that has just begun, or one that hibernated.
    #[must_use]
    pub fn new(conversation: ConvRef, reign: Reign, limits: SequencerLimits) -> Self {
        debug_assert!(reign.first_seq > reign.last_seq, "a reign numbers after what is there (invariant 2)");
        Self {
            conversation,
            epoch: reign.epoch,
            limits,
            last_seq: reign.last_seq,
            last_shown: reign.last_seq,
            next_seq: reign.first_seq,
            reserved_to: reign.reserved_to,
            queue: VecDeque::new(),
            queued_records: 0,
            queued_bytes: 0,
            flight: None,
            under_way: BTreeMap::new(),
            recent: Recent::new(limits.recent_keys),
            halted: false,
        }
    }

    /// The last seq that is known to be committed.
    #[must_use]
    pub fn last_seq(&self) -> Seq {
        self.last_seq
    }

    /// The epoch of this reign.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// True if nothing waits and nothing is under way, so that the conversation may be released or hibernate.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.flight.is_none()
    }

    /// Where this reign stands, for a successor in the same epoch (after hibernation) or a clean release.
    ///
    /// Only meaningful while [`Sequencer::is_idle`].
    #[must_use]
    pub fn reign(&self) -> Reign {
        debug_assert!(self.is_idle(), "a reign is handed over with nothing under way");
        Reign { epoch: self.epoch, last_seq: self.last_seq, first_seq: self.next_seq, reserved_to: self.reserved_to }
    }

    /// Handles one input.
    pub fn handle(&mut self, moment: Moment, input: Input, out: &mut Vec<Action>) {
        match input {
            Input::Append(ticket, drafts) => self.append(ticket, drafts, out),
            Input::Landed { at, duplicates } => self.landed(moment, at, &duplicates, out),
            Input::Failed(refusal) => {
                if let Some(flight) = self.flight.take() {
                    self.refuse_groups(flight.groups, &refusal, out);
                }
            }
            Input::Ended(refusal) => self.end(&refusal, None, out),
        }
        self.pump(moment, out);
    }

    fn append(&mut self, ticket: Ticket, drafts: Vec<Draft>, out: &mut Vec<Action>) {
        debug_assert!(!drafts.is_empty(), "an append has a draft");
        if self.halted {
            return out.push(Action::Refuse(ticket, moved()));
        }
        let keys: Vec<Key> = drafts.iter().map(Key::of).collect();
        if let ([draft], [key]) = (drafts.as_slice(), keys.as_slice()) {
            if let Some(original) = self.recent.get(key) {
                return out.push(answer_duplicate(ticket, draft.body_hash, original));
            }
            if let Some(joiners) = self.under_way.get_mut(key) {
                if joiners.len() >= self.limits.queue_records {
                    let detail =
                        format!("{} repetitions of this key wait for its commit, which is the limit", joiners.len());
                    return out.push(Action::Refuse(ticket, busy(&detail)));
                }
                return joiners.push(Joiner { ticket, body_hash: draft.body_hash });
            }
        } else if keys.iter().any(|key| self.under_way.contains_key(key)) {
            return out.push(Action::Refuse(ticket, busy("a record with the same key is under way")));
        }
        let bytes: usize = drafts.iter().map(|draft| draft.body.as_str().len()).sum();
        let over_records = self.queued_records + drafts.len() > self.limits.queue_records;
        if over_records || self.queued_bytes + bytes > self.limits.queue_bytes {
            let detail = format!("{} records wait for a commit, which is the limit", self.queued_records);
            return out.push(Action::Refuse(ticket, busy(&detail)));
        }
        self.under_way.extend(keys.iter().map(|key| (key.clone(), Vec::new())));
        self.queued_records += drafts.len();
        self.queued_bytes += bytes;
        self.queue.push_back(Group { ticket, drafts, keys, bytes });
    }

    /// Starts the next commit, if none is under way.
    fn pump(&mut self, moment: Moment, out: &mut Vec<Action>) {
        if self.halted || self.flight.is_some() || self.queue.is_empty() {
            return;
        }
        if !moment.is_certain() {
            let groups: Vec<Group> = self.drain_queue();
            let refusal = Refusal::retry(Code::ConversationUnavailable, "the node renews its lease", Retry::SOON);
            return self.refuse_groups(groups, &refusal, out);
        }
        let groups = self.take_batch();
        if self.is_beyond_the_gap(&groups) {
            self.refuse_groups(groups, &moved(), out);
            return self.end(&moved(), None, out);
        }
        let first = self.next_seq;
        let mut records = Vec::with_capacity(groups.iter().map(|group| group.drafts.len()).sum());
        for draft in groups.iter().flat_map(|group| &group.drafts) {
            records.push((self.next_seq, draft.clone()));
            self.next_seq = self.next_seq.next();
        }
        let hi = Seq(self.next_seq.0 - 1);
        debug_assert!(first > self.last_seq, "numbers only go up (invariant 2)");
        let reserve = if hi > self.reserved_to { Seq(hi.0 + self.limits.block - 1) } else { self.reserved_to };
        self.flight = Some(Flight { groups, first, hi, reserve });
        out.push(Action::Commit(CommitRequest { prev: self.last_seq, hi, reserve, records }));
    }

    /// Appends that failed for certain used up what the next reign skips: with these, a number could be given that it gives,
    /// too. That reign starts above all of them.
    fn is_beyond_the_gap(&self, groups: &[Group]) -> bool {
        let records: usize = groups.iter().map(|group| group.drafts.len()).sum();
        let some_failed = self.next_seq > self.reserved_to.next();
        let last = self.next_seq.0 + records as u64 - 1;
        some_failed && last > self.reserved_to.0.saturating_add(self.limits.gap)
    }

    fn take_batch(&mut self) -> Vec<Group> {
        let most = self.limits.batch_records.min(usize::try_from(self.limits.gap).unwrap_or(usize::MAX));
        let (mut groups, mut records, mut bytes) = (Vec::new(), 0, 0);
        while let Some(group) = self.queue.front() {
            let fits = records + group.drafts.len() <= most && bytes + group.bytes <= self.limits.batch_bytes;
            if !groups.is_empty() && !fits {
                break;
            }
            records += group.drafts.len();
            bytes += group.bytes;
            groups.extend(self.queue.pop_front());
        }
        self.queued_records -= records;
        self.queued_bytes -= bytes;
        groups
    }

    fn drain_queue(&mut self) -> Vec<Group> {
        self.queued_records = 0;
        self.queued_bytes = 0;
        self.queue.drain(..).collect()
    }

    fn landed(&mut self, moment: Moment, at: Timestamp, duplicates: &[(Seq, Original)], out: &mut Vec<Action>) {
        let Some(flight) = self.flight.take() else {
            let broken = Invariant::DurableBeforeShown.broken("a commit was answered that was never asked for");
            return self.end(&moved(), Some(broken), out);
        };
        if !moment.is_certain() {
            // On disk, but no longer ours to say so: the senders ask again under the same keys.
            self.flight = Some(flight);
            return self.end(&moved(), None, out);
        }
        let mut seq = flight.first;
        let mut duplicates = duplicates.iter().peekable();
        for group in flight.groups {
            let answered_at = out.len();
            let mut receipts = Vec::with_capacity(group.drafts.len());
            let mut reused = false;
            for (draft, key) in group.drafts.into_iter().zip(group.keys) {
                let duplicate = duplicates.next_if(|(duplicate, _)| *duplicate == seq).map(|(_, original)| *original);
                let original = duplicate.unwrap_or(Original { seq, body_hash: draft.body_hash, epoch: self.epoch, at });
                reused |= original.body_hash != draft.body_hash;
                let outcome = if duplicate.is_some() { Outcome::Duplicate } else { Outcome::Appended };
                receipts.push(Receipt { seq: original.seq, epoch: original.epoch, at: original.at, outcome });
                self.settle_key(key, original, out);
                if duplicate.is_none() {
                    let record = Record::from_draft(self.conversation.id.clone(), seq, self.epoch, at, draft);
                    out.push(Action::Publish { prev: self.last_shown, record });
                    self.last_shown = seq;
                }
                seq = seq.next();
            }
            // Before its records are shown: what the sender's own socket is shown joins the answer there, in one write.
            let answer = match reused {
                true => Action::Refuse(group.ticket, key_reused()),
                false => Action::Ack(group.ticket, receipts),
            };
            out.insert(answered_at, answer);
        }
        // The head stands at `hi` even if the last number became a hole; the next batch's `prev` must say the same.
        self.last_seq = flight.hi;
        self.reserved_to = self.reserved_to.max(flight.reserve);
        if duplicates.next().is_some() {
            let broken = Invariant::AckedOnce.broken("the store named a duplicate outside the batch");
            self.end(&moved(), Some(broken), out);
        }
    }

    /// The fate of a key is known: remember it, and answer those that joined.
    fn settle_key(&mut self, key: Key, original: Original, out: &mut Vec<Action>) {
        for joiner in self.under_way.remove(&key).unwrap_or_default() {
            out.push(answer_duplicate(joiner.ticket, joiner.body_hash, &original));
        }
        self.recent.insert(key, original);
    }

    fn end(&mut self, refusal: &Refusal, broken: Option<Broken>, out: &mut Vec<Action>) {
        if self.halted {
            return;
        }
        self.halted = true;
        let mut groups = self.flight.take().map(|flight| flight.groups).unwrap_or_default();
        groups.extend(self.drain_queue());
        self.refuse_groups(groups, refusal, out);
        out.push(Action::Halt(broken));
    }

    fn refuse_groups(&mut self, groups: Vec<Group>, refusal: &Refusal, out: &mut Vec<Action>) {
        for group in groups {
            for key in &group.keys {
                for joiner in self.under_way.remove(key).unwrap_or_default() {
                    out.push(Action::Refuse(joiner.ticket, refusal.clone()));
                }
            }
            out.push(Action::Refuse(group.ticket, refusal.clone()));
        }
    }
}

fn answer_duplicate(ticket: Ticket, body_hash: BodyHash, original: &Original) -> Action {
    if original.body_hash != body_hash {
        return Action::Refuse(ticket, key_reused());
    }
    let Original { seq, epoch, at, .. } = *original;
    Action::Ack(ticket, vec![Receipt { seq, epoch, at, outcome: Outcome::Duplicate }])
}

/// The refusal of a key that was used with another kind or body.
#[must_use]
pub fn key_reused() -> Refusal {
    Refusal::new(Code::IdempotencyKeyReused, "client_msg_id: was used before with another kind or body")
}

fn moved() -> Refusal {
    Refusal::retry(Code::ConversationUnavailable, "the conversation changes its owner", Retry::SOON)
}

fn busy(detail: &str) -> Refusal {
    Refusal::retry(Code::Overloaded, detail, Retry { after_ms: 500, budget_ms: 20_000 })
}

#[cfg(test)]
mod tests;
