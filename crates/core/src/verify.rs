//! Is a stored log as it must be? A checker that is fed every row once and keeps a few numbers per conversation.
//!
//! For each conversation: [`Checker::begin`], then its records by ascending seq, its idempotency keys by ascending
//! (sender, client message id) and its cursors in any order, all from one snapshot; [`Checker::finish`] at the end.
//!
//! Invariant: memory is constant per conversation, however long its log; at most [`VIOLATIONS_MAX`] findings are kept and
//! all are counted. Deliberately absent: reading, repairing, and what a single log cannot show (invariants 5 to 7, 12).

mod turns;

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::body::{Body, BodyHash};
use crate::ids::{ConvKey, ConversationId, Epoch, Seq};
use crate::invariant::Invariant;
use crate::record::RecordKind;

use turns::TurnRules;

/// Most findings that a report lists; a damaged database may have as many as it has rows.
pub const VIOLATIONS_MAX: usize = 1000;

/// A conversation's head, as far as it is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadFacts {
    /// The fencing token.
    pub epoch: Epoch,
    /// The last committed seq.
    pub last_seq: Seq,
    /// The reserved high-water mark.
    pub reserved_to: Seq,
}

/// A record, as it is stored.
#[derive(Debug, Clone, Copy)]
pub struct RecordFacts<'a> {
    /// Its number.
    pub seq: Seq,
    /// Its epoch.
    pub epoch: Epoch,
    /// Its kind's number.
    pub kind: i64,
    /// Who wrote it.
    pub sender: &'a str,
    /// Its idempotency key.
    pub client_msg_id: &'a str,
    /// The stored hash of kind and body.
    pub body_hash: BodyHash,
    /// The body; `None` if it was replaced or erased since, so that the hash is of what it was.
    pub body: Option<&'a str>,
}

/// A broken invariant in a stored log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Which.
    pub invariant: Invariant,
    /// The conversation's id, or its key if it has none.
    pub conversation: String,
    /// The record, if it is about one.
    pub seq: Option<Seq>,
    /// What was found.
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invariant {}: conversation {}", self.invariant as u8, self.conversation)?;
        if let Some(seq) = self.seq {
            write!(f, ", seq {seq}")?;
        }
        write!(f, ": {}", self.detail)
    }
}

/// What was checked, and what was found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// Conversations seen.
    pub conversations: u64,
    /// Records seen.
    pub records: u64,
    /// Cursors seen.
    pub cursors: u64,
    /// The first [`VIOLATIONS_MAX`] findings.
    pub violations: Vec<Violation>,
    /// All findings, with those that are not listed.
    pub violations_total: u64,
}

impl Report {
    /// True if nothing was found.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.violations_total == 0
    }
}

/// What is kept of the conversation that is being read.
#[derive(Debug, Default)]
struct Current {
    name: String,
    head: Option<HeadFacts>,
    last: Option<(Seq, Epoch)>,
    last_key: Option<(String, String, Seq)>,
    /// Sums of a hash over (sender, client message id, seq): equal if the records and their keys are the same set.
    records_sum: u64,
    keys_sum: u64,
    turns: TurnRules,
}

/// See the module's header.
#[derive(Debug, Default)]
pub struct Checker {
    current: Current,
    report: Report,
}

impl Checker {
    /// A checker that has seen nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What was seen so far; the current conversation's end is checked by the next [`Checker::begin`].
    #[must_use]
    pub fn progress(&self) -> &Report {
        &self.report
    }

    /// Begins a conversation. `id`: what is stored under the key; `None`: nothing is.
    pub fn begin(&mut self, key: ConvKey, id: Option<&str>, head: Option<HeadFacts>) {
        self.end();
        self.report.conversations += 1;
        let name = id.map_or_else(|| format!("{key:?}"), str::to_owned);
        self.current = Current { name, head, ..Current::default() };
        match id.map(str::parse::<ConversationId>) {
            None => {
                self.broken(Invariant::AckedOnce, None, "has a head or records, but is not there itself".to_owned())
            }
            Some(Err(error)) => self.broken(Invariant::SeqOnce, None, format!("its id is not valid: {error}")),
            Some(Ok(id)) if ConvKey::of(&id) != key => {
                let detail =
                    format!("lies under the key {key:?}, its own is {:?}: it may have two logs", ConvKey::of(&id));
                self.broken(Invariant::SeqOnce, None, detail);
            }
            Some(Ok(_)) => {}
        }
        if let Some(head) = head
            && head.reserved_to < head.last_seq
        {
            let detail = format!("its head has used seq {} and reserved only {}", head.last_seq, head.reserved_to);
            self.broken(Invariant::SeqOnce, None, detail);
        }
    }

    /// The next record.
    pub fn record(&mut self, record: &RecordFacts<'_>) {
        self.report.records += 1;
        let seq = record.seq;
        if let Some((last_seq, last_epoch)) = self.current.last {
            if seq == last_seq {
                self.broken(Invariant::SeqOnce, Some(seq), "is there twice".to_owned());
            } else if seq < last_seq {
                self.broken(Invariant::SeqOnce, Some(seq), format!("comes after {last_seq}"));
            }
            if record.epoch < last_epoch {
                let detail = format!("has epoch {}, and an earlier one has {last_epoch}", record.epoch);
                self.broken(Invariant::EpochNeverFalls, Some(seq), detail);
            }
        }
        self.check_against_head(record);
        self.check_body(record);
        let last_epoch = self.current.last.map_or(Epoch(0), |(_, epoch)| epoch);
        self.current.last = Some((seq, record.epoch.max(last_epoch)));
        let sum = &mut self.current.records_sum;
        *sum = sum.wrapping_add(fingerprint(record.sender, record.client_msg_id, seq));
    }

    fn check_against_head(&mut self, record: &RecordFacts<'_>) {
        let Some(head) = self.current.head else {
            return self.broken(Invariant::CommittedInReign, Some(record.seq), "was written without a head".to_owned());
        };
        if record.seq > head.last_seq {
            let detail = format!("is above its head's last seq {}, and would be given again", head.last_seq);
            self.broken(Invariant::SeqOnce, Some(record.seq), detail);
        }
        if record.epoch > head.epoch {
            let detail = format!("has epoch {}, and its head has only {}", record.epoch, head.epoch);
            self.broken(Invariant::CommittedInReign, Some(record.seq), detail);
        }
    }

    fn check_body(&mut self, record: &RecordFacts<'_>) {
        let Some(kind) = RecordKind::from_number(record.kind) else {
            let detail = format!("has the kind {}, which does not exist", record.kind);
            return self.broken(Invariant::AckedOnce, Some(record.seq), detail);
        };
        if record.body.is_some_and(|body| Body::from_store(body).hash(kind) != record.body_hash) {
            let detail = "has a body that is not the one it was hashed with".to_owned();
            self.broken(Invariant::AckedOnce, Some(record.seq), detail);
        }
        if let Some((invariant, detail)) = self.current.turns.record(kind, record.sender, record.client_msg_id) {
            self.broken(invariant, Some(record.seq), detail);
        }
    }

    /// The next idempotency key, as the index has it.
    pub fn key(&mut self, sender: &str, client_msg_id: &str, seq: Seq) {
        let sum = &mut self.current.keys_sum;
        *sum = sum.wrapping_add(fingerprint(sender, client_msg_id, seq));
        let before = self.current.last_key.take();
        if let Some((last_sender, last_id, last_seq)) = &before {
            let (last, this) = ((last_sender.as_str(), last_id.as_str()), (sender, client_msg_id));
            if last == this {
                let detail = format!("{sender} wrote {client_msg_id} as {last_seq} and as {seq}");
                self.broken(Invariant::AckedOnce, Some(seq), detail);
            } else if last > this {
                let detail = format!("the key ({sender}, {client_msg_id}) is out of order and may be missed");
                self.broken(Invariant::AckedOnce, Some(seq), detail);
            }
        }
        self.current.last_key = Some(reuse(before, sender, client_msg_id, seq));
    }

    /// A read cursor.
    pub fn cursor(&mut self, sub: &str, seq: Seq) {
        self.report.cursors += 1;
        let last_seq = self.current.head.map_or(Seq(0), |head| head.last_seq);
        if seq > last_seq {
            let detail =
                format!("the cursor of {sub} stands at {seq}, beyond the head {last_seq}: one of them went back");
            self.broken(Invariant::CursorMonotone, None, detail);
        }
    }

    /// Ends the last conversation.
    #[must_use]
    pub fn finish(mut self) -> Report {
        self.end();
        self.report
    }

    fn end(&mut self) {
        if self.current.records_sum != self.current.keys_sum {
            let detail = "its records and the index of their idempotency keys differ".to_owned();
            self.broken(Invariant::AckedOnce, None, detail);
        }
    }

    fn broken(&mut self, invariant: Invariant, seq: Option<Seq>, detail: String) {
        self.report.violations_total += 1;
        if self.report.violations.len() < VIOLATIONS_MAX {
            let conversation = self.current.name.clone();
            self.report.violations.push(Violation { invariant, conversation, seq, detail });
        }
    }
}

/// Puts a key into the strings of the one before, so that a long log allocates nothing.
fn reuse(before: Option<(String, String, Seq)>, sender: &str, client_msg_id: &str, seq: Seq) -> (String, String, Seq) {
    let (mut first, mut second, _) = before.unwrap_or_default();
    first.clear();
    first.push_str(sender);
    second.clear();
    second.push_str(client_msg_id);
    (first, second, seq)
}

fn fingerprint(sender: &str, client_msg_id: &str, seq: Seq) -> u64 {
    let mut hasher = DefaultHasher::new();
    (sender, client_msg_id, seq).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log that is as it must be, for a mutant to break.
    struct Log {
        id: &'static str,
        key: ConvKey,
        head: Option<HeadFacts>,
        records: Vec<Stored>,
        keys: Vec<(&'static str, &'static str, u64)>,
        cursor: u64,
    }

    struct Stored {
        seq: u64,
        epoch: u64,
        kind: i64,
        key: (&'static str, &'static str),
        body: &'static str,
        hash_of: &'static str,
        replaced: bool,
    }

    fn good() -> Log {
        let record = |seq, epoch, key, body| Stored { seq, epoch, kind: 1, key, body, hash_of: body, replaced: false };
        Log {
            id: "room",
            key: ConvKey::of(&"room".parse().expect("valid")),
            head: Some(HeadFacts { epoch: Epoch(3), last_seq: Seq(9), reserved_to: Seq(1000) }),
            records: vec![
                record(1, 1, ("bob", "a"), "{}"),
                record(4, 1, ("alice", "a"), r#"{"n":1}"#),
                record(8, 3, ("alice", "b"), "{}"),
            ],
            keys: vec![("alice", "a", 4), ("alice", "b", 8), ("bob", "a", 1)],
            cursor: 9,
        }
    }

    fn check(log: &Log) -> Report {
        let mut checker = Checker::new();
        checker.begin(log.key, Some(log.id), log.head);
        for stored in &log.records {
            checker.record(&RecordFacts {
                seq: Seq(stored.seq),
                epoch: Epoch(stored.epoch),
                kind: stored.kind,
                sender: stored.key.0,
                client_msg_id: stored.key.1,
                body_hash: Body::from_store(stored.hash_of).hash(RecordKind::Message),
                body: (!stored.replaced).then_some(stored.body),
            });
        }
        for (sender, client_msg_id, seq) in &log.keys {
            checker.key(sender, client_msg_id, Seq(*seq));
        }
        checker.cursor("alice", Seq(log.cursor));
        checker.finish()
    }

    #[test]
    fn a_good_log_is_clean() {
        let report = check(&good());
        assert_eq!(report, Report { conversations: 1, records: 3, cursors: 1, ..Report::default() });
        assert!(report.is_clean());
    }

    /// How a mutant breaks a good log, and the invariant and seq that must be reported.
    type Mutant = (&'static str, fn(&mut Log), Invariant, Option<u64>);

    #[test]
    fn every_rule_catches_its_mutant() {
        let mutants: [Mutant; 14] = [
            ("the epoch falls", |log| log.records[1].epoch = 0, Invariant::EpochNeverFalls, Some(4)),
            ("a seq is there twice", |log| log.records[2].seq = 4, Invariant::SeqOnce, Some(4)),
            ("seqs descend", |log| log.records[2].seq = 3, Invariant::SeqOnce, Some(3)),
            ("a seq above the head", |log| log.records[2].seq = 10, Invariant::SeqOnce, Some(10)),
            ("an epoch above the head's", |log| log.records[2].epoch = 4, Invariant::CommittedInReign, Some(8)),
            ("no head", |log| log.head = None, Invariant::CommittedInReign, Some(1)),
            (
                "less reserved than used",
                |log| log.head = log.head.map(|head| HeadFacts { reserved_to: Seq(8), ..head }),
                Invariant::SeqOnce,
                None,
            ),
            ("another body", |log| log.records[1].body = r#"{"n":2}"#, Invariant::AckedOnce, Some(4)),
            ("no such kind", |log| log.records[1].kind = 99, Invariant::AckedOnce, Some(4)),
            ("a key twice", |log| log.keys[1] = ("alice", "a", 8), Invariant::AckedOnce, Some(8)),
            ("keys out of order", |log| log.keys.swap(1, 2), Invariant::AckedOnce, Some(8)),
            ("a key is missing", |log| log.keys.truncate(2), Invariant::AckedOnce, None),
            ("a cursor beyond the head", |log| log.cursor = 10, Invariant::CursorMonotone, None),
            ("under another key", |log| log.key.0[0] ^= 1, Invariant::SeqOnce, None),
        ];
        for (name, mutate, invariant, seq) in mutants {
            let mut log = good();
            mutate(&mut log);
            let report = check(&log);
            let found = report.violations.iter().any(|v| v.invariant == invariant && v.seq == seq.map(Seq));
            assert!(found, "{name}: {:?}", report.violations);
            assert!(!report.is_clean(), "{name}");
        }
    }

    #[test]
    fn a_replaced_body_keeps_the_hash_it_was_acked_with() {
        let mut log = good();
        log.records[1].body = r#"{"n":2}"#;
        log.records[1].replaced = true;
        assert!(check(&log).is_clean());
    }

    #[test]
    fn a_key_under_another_seq_is_found() {
        let mut log = good();
        log.keys[0].2 = 5;
        let report = check(&log);
        assert_eq!(report.violations.len(), 1);
        assert_eq!(
            report.violations[0].to_string(),
            "invariant 3: conversation room: its records and the index of their idempotency keys differ"
        );
    }

    #[test]
    fn rows_without_a_conversation_are_found() {
        let mut checker = Checker::new();
        checker.begin(ConvKey([7; 16]), None, None);
        let report = checker.finish();
        assert_eq!(report.violations[0].conversation, "07".repeat(16));
    }

    #[test]
    fn findings_are_bounded_and_counted() {
        let mut checker = Checker::new();
        for _ in 0..VIOLATIONS_MAX + 5 {
            checker.begin(ConvKey([7; 16]), None, None);
        }
        let report = checker.finish();
        assert_eq!((report.violations.len(), report.violations_total), (VIOLATIONS_MAX, 1005));
    }
}
