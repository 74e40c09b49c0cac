//! Tests of what only this backend has: its directory, its file, its disk. The contract itself is the conformance suite's.

mod append;
mod files;
mod ownership;
mod processes;
mod reads;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use conch_core::body::{Body, Limits};
use conch_core::conversation::{ConversationKind, Settings};
use conch_core::ids::{ConvRef, ConversationId, Incarnation, Seq, Subject};
use conch_core::record::{Draft, RecordKind};
use tempfile::TempDir;

use super::{Options, SqliteStore};
use crate::{
    AppendOutcome, Armed, Batch, ClaimOutcome, ClaimRequest, DueChange, LeaseStore, LogStore, NewConversation,
    Registration,
};

const TTL: Duration = Duration::from_secs(15);
const MARGIN: Duration = Duration::from_secs(3);
const GAP: u64 = 1000;
const START_MS: i64 = 1_796_000_000_000;

/// A store in a temporary directory, on a clock that the test moves.
struct Bench {
    store: Option<SqliteStore>,
    clock: Arc<AtomicI64>,
    directory: TempDir,
}

impl Bench {
    fn new() -> Self {
        let mut bench = Self {
            store: None,
            clock: Arc::new(AtomicI64::new(START_MS)),
            directory: tempfile::tempdir().expect("a temporary directory"),
        };
        bench.reopen();
        bench
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn store(&self) -> &SqliteStore {
        self.store.as_ref().expect("it is open")
    }

    fn close(&mut self) {
        self.store = None;
    }

    fn reopen(&mut self) {
        self.close();
        self.store = Some(SqliteStore::open(self.directory.path(), options(&self.clock)).expect("opens"));
    }

    fn advance(&self, ms: i64) {
        self.clock.fetch_add(ms, Ordering::SeqCst);
    }

    async fn register(&self, number: u128) -> Incarnation {
        let registration = Registration {
            incarnation: Incarnation(number),
            node: "n1".parse().expect("valid"),
            region: "eu".parse().expect("valid"),
            addr: String::new(),
            lifeline: None,
        };
        self.store().register(&registration, TTL).await.expect("registers");
        registration.incarnation
    }

    async fn create(&self, id: &str) -> ConvRef {
        let new = new_conversation(id, ConversationKind::Channel, &["alice", "bob"]);
        self.store().create_conversation(&new).await.expect("creates");
        new.conversation
    }

    async fn claim(&self, conversation: &ConvRef, me: Incarnation) -> ClaimOutcome {
        let seen = self.store().resolve(conversation).await.expect("resolves").expect("exists");
        let request = ClaimRequest {
            conversation: conversation.key,
            me,
            seen_epoch: seen.epoch,
            seen_owner: seen.owner.map(|owner| owner.incarnation),
            margin: MARGIN,
            gap: GAP,
        };
        self.store().claim(&request).await.expect("answers")
    }

    async fn won(&self, conversation: &ConvRef, me: Incarnation) -> Armed {
        match self.claim(conversation, me).await {
            ClaimOutcome::Won(armed) => armed,
            ClaimOutcome::Lost => panic!("the claim was lost"),
        }
    }

    async fn append(&self, me: Incarnation, batch: Batch) -> AppendOutcome {
        let outcomes = self.store().append(me, vec![batch]).await.expect("appends");
        outcomes.into_iter().next().expect("one outcome a batch")
    }
}

fn options(clock: &Arc<AtomicI64>) -> Options {
    let clock = Arc::clone(clock);
    Options { clock: Arc::new(move || clock.load(Ordering::SeqCst)), ..Options::new("n1".parse().expect("valid")) }
}

fn conversation(id: &str) -> ConvRef {
    ConvRef::from(id.parse::<ConversationId>().expect("valid"))
}

fn subject(name: &str) -> Subject {
    name.parse().expect("valid")
}

fn new_conversation(id: &str, kind: ConversationKind, members: &[&str]) -> NewConversation {
    NewConversation {
        conversation: conversation(id),
        kind,
        regions: Vec::new(),
        home: "eu".parse().expect("valid"),
        title: None,
        agent: None,
        settings: Settings::default(),
        creator: subject("alice"),
        members: members.iter().map(|name| subject(name)).collect(),
    }
}

fn message(sender: &str, key: &str, text: &str) -> Draft {
    let body = Body::parse(&format!(r#"{{"text":"{text}"}}"#), Limits::default()).expect("valid");
    Draft::new(RecordKind::Message, subject(sender), key.parse().expect("valid"), body)
}

/// A batch of consecutive records right after `prev`.
fn batch(conversation: &ConvRef, armed: &Armed, prev: Seq, first: Seq, drafts: Vec<Draft>) -> Batch {
    let records: Vec<(Seq, Draft)> = (first.0..).map(Seq).zip(drafts).collect();
    let hi = records.last().map_or(prev, |(seq, _)| *seq);
    Batch {
        conversation: conversation.clone(),
        epoch: armed.epoch,
        generation: armed.generation,
        prev,
        hi,
        reserve: Seq(hi.0 + 999),
        due: DueChange::Keep,
        records,
    }
}

fn landed(outcome: AppendOutcome) -> Vec<crate::Duplicate> {
    match outcome {
        AppendOutcome::Landed { duplicates, .. } => duplicates,
        other => panic!("it did not land: {other:?}"),
    }
}
