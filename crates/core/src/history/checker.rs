//! Holds a history against the invariants 1 to 8 and 11.
//!
//! Reads the history once; each event costs a look-up or two in an ordered map, so n events cost O(n log n).
//! What can be judged at once is; what needs the final log waits for [`Checker::finish`].

use std::collections::{BTreeMap, BTreeSet};

use super::lost::{self, Lost, MOST_LOST_NAMED};
use super::{Event, sights};
use crate::ids::{ClientMsgId, ConversationId, Epoch, Generation, LogId, Seq, Subject};
use crate::invariant::{Broken, Invariant};

/// Violations that a report spells out; further ones are only counted.
pub const MOST_REPORTED: usize = 100;

/// How much a history holds, so that an empty one is not taken for a good one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Events in all.
    pub events: u64,
    /// Writes by key.
    pub keys: u64,
    /// Acks, repeated ones too.
    pub acked: u64,
    /// Refusals.
    pub refused: u64,
    /// Attempts without an answer.
    pub unknown: u64,
    /// Records shown to observers.
    pub observed: u64,
    /// Rows of the final log.
    pub records: u64,
    /// Failovers that were announced.
    pub failovers: u64,
    /// Numbers that clients were told of and that a failover lost.
    pub lost: u64,
}

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// The first violations, at most [`MOST_REPORTED`].
    pub violations: Vec<Broken>,
    /// How many there are in all.
    pub found: u64,
    /// What failovers lost, by conversation and number; at most [`MOST_LOST_NAMED`], and [`Counts::lost`] in all.
    pub lost: Vec<Lost>,
    /// How much was checked.
    pub counts: Counts,
}

impl Report {
    pub(super) fn add(&mut self, invariant: Invariant, detail: String) {
        self.found += 1;
        if self.violations.len() < MOST_REPORTED {
            self.violations.push(invariant.broken(detail));
        }
    }

    fn name_lost(&mut self, lost: Lost) {
        self.counts.lost += 1;
        if self.lost.len() < MOST_LOST_NAMED {
            self.lost.push(lost);
        }
    }
}

/// Who wrote a record, under which key.
pub(super) type Identity = (Subject, Option<ClientMsgId>);

/// A row of the final log.
pub(super) struct Row {
    pub(super) seq: Seq,
    epoch: Epoch,
}

#[derive(Default)]
pub(super) struct Conversation {
    /// The last reign that began.
    reign: Option<Epoch>,
    /// The highest acked seq so far.
    acked: Seq,
    /// Every seq that anybody was told of: whose it is.
    pub(super) given: BTreeMap<Seq, (Identity, Epoch)>,
    committed: BTreeMap<Seq, Epoch>,
    /// What was told before it was committed; counts only if the history tells of commits at all.
    early: Vec<(Invariant, String)>,
    pub(super) rows: Vec<Row>,
    pub(super) row_of: BTreeMap<Seq, usize>,
}

impl Conversation {
    /// How many rows are at or below a seq: the index of the next one after it.
    pub(super) fn rows_to(&self, seq: Seq) -> usize {
        self.rows.partition_point(|row| row.seq <= seq)
    }
}

struct Key {
    name: String,
    conversation: usize,
    /// The highest seq that had been acked in the conversation when this key was first sent (invariant 5).
    floor: Seq,
    /// Failovers before it was first sent.
    failovers: usize,
    /// The numbers it was told; one, unless a failover lost it and it was sent again.
    acked: Vec<Seq>,
    rows: u64,
}

/// What happened to an observer, in order.
pub(super) enum Sight {
    Begin(Option<Seq>),
    Record(Seq, String),
    CaughtUp(Seq),
}

pub(super) struct Observer {
    pub(super) name: String,
    conversation: usize,
    pub(super) sights: Vec<Sight>,
}

/// Holds a history against the invariants.
#[derive(Default)]
pub struct Checker {
    report: Report,
    last_t_us: u64,
    conversations: Vec<Conversation>,
    conversation_of: BTreeMap<ConversationId, usize>,
    keys: Vec<Key>,
    key_of: BTreeMap<(usize, Subject, ClientMsgId), usize>,
    observers: Vec<Observer>,
    observer_of: BTreeMap<(String, usize), usize>,
    told_cursors: BTreeMap<(String, Subject, usize), Seq>,
    highest_cursors: BTreeMap<(Subject, usize), Seq>,
    /// What the failovers began, ascending.
    generations: Vec<Generation>,
}

impl Checker {
    /// Takes the next event.
    ///
    /// # Errors
    /// Why it cannot be at this place.
    pub fn event(&mut self, event: &Event) -> Result<(), String> {
        self.report.counts.events += 1;
        match event {
            Event::Invoked { conversation, sender, client_msg_id, t_us, .. } => {
                self.time(*t_us)?;
                let conversation = self.conversation(conversation);
                self.invoked(conversation, sender, client_msg_id);
            }
            Event::Acked { conversation, sender, client_msg_id, seq, epoch, t_us, .. } => {
                self.time(*t_us)?;
                let conversation = self.conversation(conversation);
                let key = self.known_key(conversation, sender, client_msg_id)?;
                self.acked(key, (sender.clone(), Some(client_msg_id.clone())), *seq, *epoch);
            }
            Event::Refused { conversation, sender, client_msg_id, t_us, .. } => {
                self.time(*t_us)?;
                let conversation = self.conversation(conversation);
                self.known_key(conversation, sender, client_msg_id)?;
                self.report.counts.refused += 1;
            }
            Event::Unknown { conversation, sender, client_msg_id, t_us, .. } => {
                self.time(*t_us)?;
                let conversation = self.conversation(conversation);
                self.known_key(conversation, sender, client_msg_id)?;
                self.report.counts.unknown += 1;
            }
            Event::Claimed { conversation, epoch, t_us } => {
                self.time(*t_us)?;
                self.claimed(conversation, *epoch);
            }
            Event::Committed { conversation, seq, epoch, t_us } => {
                self.time(*t_us)?;
                self.committed(conversation, *seq, *epoch);
            }
            Event::Joined { observer, conversation, after, t_us } => {
                self.time(*t_us)?;
                self.sight(observer, conversation, Sight::Begin(*after));
            }
            Event::Observed { observer, conversation, seq, epoch, sender, client_msg_id, log, t_us } => {
                self.time(*t_us)?;
                let identity = (sender.clone(), client_msg_id.clone());
                self.observed(observer, conversation, (*seq, *epoch), identity, log);
            }
            Event::CaughtUp { observer, conversation, seq, t_us } => {
                self.time(*t_us)?;
                self.sight(observer, conversation, Sight::CaughtUp(*seq));
            }
            Event::Resync { observer, conversation, head_seq, t_us, .. } => {
                self.time(*t_us)?;
                self.sight(observer, conversation, Sight::Begin(Some(*head_seq)));
            }
            Event::Cursor { client, sub, conversation, seq, t_us } => {
                self.time(*t_us)?;
                self.cursor(client, sub, conversation, *seq);
            }
            Event::Failover { log, t_us } => {
                self.time(*t_us)?;
                self.failover(log)?;
            }
            Event::Final { conversation, seq, epoch, sender, client_msg_id } => {
                self.row(conversation, *seq, *epoch, (sender.clone(), client_msg_id.clone()))?;
            }
            Event::FinalCursor { sub, conversation, seq } => self.final_cursor(sub, conversation, *seq),
        }
        Ok(())
    }

    /// Judges what needed the final log, and reports.
    #[must_use]
    pub fn finish(mut self) -> Report {
        self.report.counts.keys = self.keys.len() as u64;
        self.report.counts.failovers = self.generations.len() as u64;
        let lost = self.find_lost();
        for key in &self.keys {
            let (name, conversation) = (&key.name, &self.conversations[key.conversation]);
            let kept: Vec<Seq> =
                key.acked.iter().copied().filter(|seq| !lost[key.conversation].contains(seq)).collect();
            if let [first, others @ ..] = kept.as_slice() {
                for other in others {
                    self.report.add(Invariant::AckedOnce, format!("{name} was acked as {first} and as {other}"));
                }
                if key.rows == 0 {
                    self.report.add(Invariant::AckedOnce, format!("{name} was acked as {first} and is not in the log"));
                } else if !conversation.row_of.contains_key(first) {
                    self.report.add(Invariant::AckedOnce, format!("{name} was acked as {first}, where nothing is"));
                }
            }
        }
        for conversation in &mut self.conversations {
            if !conversation.committed.is_empty() {
                for (invariant, detail) in conversation.early.drain(..) {
                    self.report.add(invariant, detail);
                }
            }
        }
        for observer in &self.observers {
            let index = observer.conversation;
            sights::check(observer, &self.conversations[index], &lost[index], &mut self.report);
        }
        self.report
    }

    /// What failovers lost, by conversation; and names it.
    fn find_lost(&mut self) -> Vec<BTreeSet<Seq>> {
        let failovers = self.generations.len();
        let mut all = Vec::with_capacity(self.conversations.len());
        let mut ids: Vec<_> = self.conversation_of.iter().map(|(id, index)| (*index, id.clone())).collect();
        ids.sort_unstable_by_key(|(index, _)| *index);
        for (index, id) in ids {
            let conversation = &self.conversations[index];
            let key = |(sender, id): &Identity| {
                let found = self.key_of.get(&(index, sender.clone(), id.clone()?))?;
                Some(&self.keys[*found])
            };
            let may_be_lost = |identity: &Identity| key(identity).is_none_or(|key| key.failovers < failovers);
            let lost = lost::find(conversation, failovers, may_be_lost);
            for seq in &lost {
                let identity = &conversation.given[seq].0;
                let acked = key(identity).is_some_and(|key| key.acked.contains(seq));
                self.report.name_lost(Lost { conversation: id.clone(), seq: *seq, write: name_of(identity), acked });
            }
            lost::check_epochs(&id, conversation, &lost, &mut self.report);
            all.push(lost);
        }
        all
    }

    fn failover(&mut self, log: &LogId) -> Result<(), String> {
        let generation = log.generation();
        if let Some(last) = self.generations.last().filter(|last| **last >= generation) {
            return Err(format!("log: generation {generation} is not above {last}, that of an earlier failover"));
        }
        self.generations.push(generation);
        // A cursor is no record: it may have moved back with the store, and nothing tells how far.
        self.told_cursors.clear();
        self.highest_cursors.clear();
        Ok(())
    }

    fn time(&mut self, t_us: u64) -> Result<(), String> {
        if t_us < self.last_t_us {
            return Err(format!("t_us: {t_us} is before {}, that of an earlier line", self.last_t_us));
        }
        self.last_t_us = t_us;
        Ok(())
    }

    fn conversation(&mut self, id: &ConversationId) -> usize {
        if let Some(index) = self.conversation_of.get(id) {
            return *index;
        }
        let index = self.conversations.len();
        self.conversations.push(Conversation::default());
        self.conversation_of.insert(id.clone(), index);
        index
    }

    fn invoked(&mut self, conversation: usize, sender: &Subject, client_msg_id: &ClientMsgId) {
        let floor = self.conversations[conversation].acked;
        let failovers = self.generations.len();
        let next = self.keys.len();
        let found = *self.key_of.entry((conversation, sender.clone(), client_msg_id.clone())).or_insert(next);
        if found == next {
            let name = format!("{sender}/{client_msg_id}");
            self.keys.push(Key { name, conversation, floor, failovers, acked: Vec::new(), rows: 0 });
        }
    }

    fn known_key(&self, conversation: usize, sender: &Subject, id: &ClientMsgId) -> Result<usize, String> {
        let found = self.key_of.get(&(conversation, sender.clone(), id.clone())).copied();
        found.ok_or_else(|| format!("{sender}/{id} has an outcome but was never invoked"))
    }

    fn acked(&mut self, index: usize, identity: Identity, seq: Seq, epoch: Epoch) {
        self.report.counts.acked += 1;
        let key = &mut self.keys[index];
        let (name, floor, conversation) = (key.name.clone(), key.floor, key.conversation);
        if !key.acked.contains(&seq) {
            key.acked.push(seq);
        }
        if seq <= floor {
            self.report
                .add(Invariant::OrderOfAcks, format!("{name} is {seq}, but {floor} was acked before it was sent"));
        }
        self.give(conversation, identity, seq, epoch);
        let conversation = &mut self.conversations[conversation];
        conversation.acked = conversation.acked.max(seq);
        if !conversation.committed.contains_key(&seq) {
            let detail = format!("{name} was acked as {seq} before that was committed");
            conversation.early.push((Invariant::AckedOnce, detail));
        }
    }

    /// Somebody was told that a seq is this record (invariants 2 and 8).
    fn give(&mut self, conversation: usize, identity: Identity, seq: Seq, epoch: Epoch) {
        let known = self.conversations[conversation].given.entry(seq).or_insert_with(|| (identity.clone(), epoch));
        let (before, now) = (name_of(&known.0), name_of(&identity));
        let known_epoch = known.1;
        if before != now {
            self.report.add(Invariant::SeqOnce, format!("{seq} was {before} and then {now}"));
        } else if known_epoch != epoch {
            let detail = format!("{seq} was of epoch {known_epoch} and then of {epoch}");
            self.report.add(Invariant::CommittedInReign, detail);
        }
    }

    fn claimed(&mut self, id: &ConversationId, epoch: Epoch) {
        let index = self.conversation(id);
        let before = self.conversations[index].reign.replace(epoch);
        if let Some(before) = before.filter(|before| *before >= epoch) {
            let detail = format!("{id}: epoch {epoch} was claimed after {before}");
            self.report.add(Invariant::EpochNeverFalls, detail);
        }
    }

    fn committed(&mut self, id: &ConversationId, seq: Seq, epoch: Epoch) {
        let index = self.conversation(id);
        let conversation = &mut self.conversations[index];
        let reign = conversation.reign;
        let twice = conversation.committed.insert(seq, epoch).is_some();
        if twice {
            self.report.add(Invariant::SeqOnce, format!("{id}: {seq} was committed twice"));
        }
        if let Some(reign) = reign.filter(|reign| *reign != epoch) {
            let detail = format!("{id}: {seq} of epoch {epoch} was committed in the reign of {reign}");
            self.report.add(Invariant::CommittedInReign, detail);
        }
    }

    fn observed(
        &mut self,
        observer: &str,
        id: &ConversationId,
        (seq, epoch): (Seq, Epoch),
        identity: Identity,
        log: &str,
    ) {
        self.report.counts.observed += 1;
        let conversation = self.conversation(id);
        self.give(conversation, identity, seq, epoch);
        if !self.conversations[conversation].committed.contains_key(&seq) {
            let detail = format!("{observer} was shown {seq} of {id} before it was committed");
            self.conversations[conversation].early.push((Invariant::DurableBeforeShown, detail));
        }
        self.sight(observer, id, Sight::Record(seq, log.to_owned()));
    }

    fn sight(&mut self, name: &str, id: &ConversationId, sight: Sight) {
        let conversation = self.conversation(id);
        let next = self.observers.len();
        let index = *self.observer_of.entry((name.to_owned(), conversation)).or_insert(next);
        if index == next {
            let name = format!("{name} in {id}");
            self.observers.push(Observer { name, conversation, sights: Vec::new() });
        }
        self.observers[index].sights.push(sight);
    }

    fn cursor(&mut self, client: &str, sub: &Subject, id: &ConversationId, seq: Seq) {
        let conversation = self.conversation(id);
        let highest = self.highest_cursors.entry((sub.clone(), conversation)).or_default();
        *highest = seq.max(*highest);
        let told = self.told_cursors.insert((client.to_owned(), sub.clone(), conversation), seq);
        if let Some(told) = told.filter(|told| *told > seq) {
            let detail = format!("{client} was told {told} and then {seq} for {sub} in {id}");
            self.report.add(Invariant::CursorMonotone, detail);
        }
    }

    fn final_cursor(&mut self, sub: &Subject, id: &ConversationId, seq: Seq) {
        let conversation = self.conversation(id);
        let highest = self.highest_cursors.get(&(sub.clone(), conversation)).copied();
        if let Some(highest) = highest.filter(|highest| *highest > seq) {
            let detail = format!("the cursor of {sub} in {id} was {highest} and ends as {seq}");
            self.report.add(Invariant::CursorMonotone, detail);
        }
    }

    fn row(&mut self, id: &ConversationId, seq: Seq, epoch: Epoch, identity: Identity) -> Result<(), String> {
        self.report.counts.records += 1;
        let index = self.conversation(id);
        if let Some(last) = self.conversations[index].rows.last() {
            let (last_seq, last_epoch) = (last.seq, last.epoch);
            if seq < last_seq {
                return Err(format!("seq: final rows must ascend, but {seq} follows {last_seq} in {id}"));
            }
            if seq == last_seq {
                self.report.add(Invariant::SeqOnce, format!("{id}: {seq} is in the log twice"));
            }
            if epoch < last_epoch {
                let detail = format!("{id}: epoch {epoch} of {seq} follows {last_epoch} of {last_seq}");
                self.report.add(Invariant::EpochNeverFalls, detail);
            }
        }
        self.row_of_key(index, seq, &identity);
        self.give(index, identity, seq, epoch);
        let conversation = &mut self.conversations[index];
        conversation.row_of.insert(seq, conversation.rows.len());
        conversation.rows.push(Row { seq, epoch });
        Ok(())
    }

    fn row_of_key(&mut self, conversation: usize, seq: Seq, (sender, id): &Identity) {
        let Some(id) = id else { return };
        let Some(&index) = self.key_of.get(&(conversation, sender.clone(), id.clone())) else { return };
        let key = &mut self.keys[index];
        key.rows += 1;
        if key.rows > 1 {
            let invariant = if !key.acked.is_empty() { Invariant::AckedOnce } else { Invariant::UnknownAtMostOnce };
            self.report.add(invariant, format!("{} is in the log {} times, again as {seq}", key.name, key.rows));
        }
        if seq <= key.floor {
            let detail = format!("{} landed as {seq}, but {} was acked before it was sent", key.name, key.floor);
            self.report.add(Invariant::OrderOfAcks, detail);
        }
    }
}

fn name_of((sender, id): &Identity) -> String {
    id.as_ref().map_or_else(|| format!("{sender}/-"), |id| format!("{sender}/{id}"))
}
