//! What the cases are written in: nodes, conversations, reigns and writes in few words.

use std::fmt::Debug;
use std::str::FromStr;
use std::time::Duration;

use conch_core::body::{Body, Limits};
use conch_core::conversation::{ConversationKind, Settings};
use conch_core::ids::{ConvRef, ConversationId, Epoch, Generation, Incarnation, Seq, Subject};
use conch_core::record::{Draft, Record, RecordKind};
use conch_core::time::Timestamp;

use super::{Epochs, Fixture, Verdict, Violation, check};
use crate::{
    AppendOutcome, Armed, Batch, ClaimOutcome, ClaimRequest, Created, Direction, DueChange, Duplicate, Head, Held,
    NewConversation, Page, RangeQuery, Registration, Store,
};

pub(super) const TTL: Duration = Duration::from_secs(15);
pub(super) const TTL_MS: i64 = 15_000;
pub(super) const MARGIN: Duration = Duration::from_secs(3);
pub(super) const MARGIN_MS: i64 = 3_000;
pub(super) const GAP: u64 = 1_000;
/// More than any case writes in one go.
pub(super) const PLENTY: usize = 1_000;

/// An identifier from a literal.
pub(super) fn id<T: FromStr>(text: &str) -> T
where
    T::Err: Debug,
{
    text.parse().expect("the cases use valid identifiers only")
}

/// A message by `sender` with this key and text.
pub(super) fn message(sender: &str, key: &str, text: &str) -> Draft {
    draft(RecordKind::Message, sender, key, text)
}

/// A record of a kind.
pub(super) fn draft(kind: RecordKind, sender: &str, key: &str, text: &str) -> Draft {
    let json = format!(r#"{{"text":"{text}"}}"#);
    let body = Body::parse_message(&json, Limits::default()).expect("the cases use plain words as texts");
    Draft::new(kind, id(sender), id(key), body)
}

/// The fixture, and shorthands for its store.
pub(super) struct World<'a> {
    pub(super) fixture: &'a dyn Fixture,
    pub(super) store: &'a dyn Store,
}

impl<'a> World<'a> {
    pub(super) fn new(fixture: &'a dyn Fixture) -> Self {
        Self { fixture, store: fixture.store() }
    }

    pub(super) async fn pass(&self, ms: i64) {
        self.fixture.move_clock(ms).await;
    }

    /// Registers node number `number` with a full lease.
    pub(super) async fn node(&self, number: u128) -> Verdict<Incarnation> {
        let registration = registration(number);
        self.store.register(&registration, TTL).await?;
        Ok(registration.incarnation)
    }

    /// Does a reign with the epoch `next` follow one with the epoch `before`, so many epochs later?
    pub(super) fn follows(&self, before: Epoch, next: Epoch, by: u64) -> bool {
        match self.fixture.epochs() {
            Epochs::Consecutive => next.0 == before.0 + by,
            Epochs::Rising => next > before,
        }
    }

    /// Creates a channel with the member alice.
    pub(super) async fn channel(&self, name: &str) -> Verdict<ConvRef> {
        let new = new_channel(name, &["alice"]);
        self.store.create_conversation(&new).await?;
        Ok(new.conversation)
    }

    /// Creates a channel and claims it.
    pub(super) async fn reign(&self, name: &str, me: Incarnation) -> Verdict<Reign> {
        let conversation = self.channel(name).await?;
        self.take(&conversation, me, None, None).await
    }

    /// Claims on this view, and wins.
    pub(super) async fn take(
        &self,
        conversation: &ConvRef,
        me: Incarnation,
        seen_epoch: Option<Epoch>,
        seen_owner: Option<Incarnation>,
    ) -> Verdict<Reign> {
        match self.store.claim(&claim(conversation, me, seen_epoch, seen_owner)).await? {
            ClaimOutcome::Won(armed) => Ok(Reign::new(conversation, me, armed)),
            ClaimOutcome::Lost => Err(Violation { detail: format!("{me}'s claim of {:?} was lost", conversation.id) }),
        }
    }

    /// Appends what must land, without duplicates, and moves the reign's position on.
    pub(super) async fn write(&self, reign: &mut Reign, drafts: Vec<Draft>) -> Verdict<Timestamp> {
        let batch = reign.batch(drafts);
        let hi = batch.hi;
        let (at, duplicates) = self.land(reign.me, batch).await?;
        check!(duplicates.is_empty(), "nothing written here was in the log before: {duplicates:?}");
        reign.prev = hi;
        Ok(at)
    }

    /// Appends one batch that must land.
    pub(super) async fn land(&self, me: Incarnation, batch: Batch) -> Verdict<(Timestamp, Vec<Duplicate>)> {
        match self.append(me, batch).await? {
            AppendOutcome::Landed { at, duplicates } => Ok((at, duplicates)),
            other => Err(Violation { detail: format!("the owner's append did not land: {other:?}") }),
        }
    }

    /// Appends one batch.
    pub(super) async fn append(&self, me: Incarnation, batch: Batch) -> Verdict<AppendOutcome> {
        let mut outcomes = self.store.append(me, vec![batch]).await?;
        check!(outcomes.len() == 1, "an append answers one outcome a batch: {outcomes:?}");
        outcomes.pop().ok_or_else(|| Violation { detail: "no outcome".to_owned() })
    }

    /// The whole log.
    pub(super) async fn log(&self, conversation: &ConvRef) -> Verdict<Page> {
        self.page(conversation, Direction::After(Seq(0)), PLENTY, &[]).await
    }

    /// The seqs of the whole log.
    pub(super) async fn seqs(&self, conversation: &ConvRef) -> Verdict<Vec<u64>> {
        Ok(seqs(&self.log(conversation).await?.records))
    }

    /// A range of a conversation that exists.
    pub(super) async fn page(
        &self,
        conversation: &ConvRef,
        direction: Direction,
        limit: usize,
        kinds: &[RecordKind],
    ) -> Verdict<Page> {
        let query = RangeQuery { conversation: conversation.clone(), direction, limit, kinds: kinds.to_vec() };
        let page = self.store.range(&query).await?;
        page.ok_or_else(|| Violation { detail: format!("{:?} exists and has a range", conversation.id) })
    }

    /// The head of a conversation that has one.
    pub(super) async fn head(&self, conversation: &ConvRef) -> Verdict<Head> {
        let info = self.store.conversation(conversation).await?;
        let head = info.and_then(|info| info.head);
        head.ok_or_else(|| Violation { detail: format!("{:?} has a head", conversation.id) })
    }
}

/// One node's ownership of one conversation, as its owner keeps it.
#[derive(Debug, Clone)]
pub(super) struct Reign {
    pub(super) conversation: ConvRef,
    pub(super) me: Incarnation,
    pub(super) epoch: Epoch,
    pub(super) generation: Generation,
    /// The head's last seq.
    pub(super) prev: Seq,
    /// The first seq that this reign may assign.
    pub(super) first: Seq,
}

impl Reign {
    pub(super) fn new(conversation: &ConvRef, me: Incarnation, armed: Armed) -> Self {
        let Armed { epoch, generation, last_seq, first_seq } = armed;
        Self { conversation: conversation.clone(), me, epoch, generation, prev: last_seq, first: first_seq }
    }

    /// The next batch: these drafts, numbered from the next seq on, reserving no more than that.
    pub(super) fn batch(&self, drafts: Vec<Draft>) -> Batch {
        let start = self.first.max(self.prev.next());
        let records: Vec<_> = (start.0..).map(Seq).zip(drafts).collect();
        let hi = records.last().map_or(self.prev, |(seq, _)| *seq);
        Batch {
            conversation: self.conversation.clone(),
            epoch: self.epoch,
            generation: self.generation,
            prev: self.prev,
            hi,
            reserve: hi,
            due: DueChange::Keep,
            records,
        }
    }

    pub(super) fn held(&self) -> Held {
        Held { conversation: self.conversation.key, epoch: self.epoch, me: self.me }
    }

    /// The next number that it would assign.
    pub(super) fn next(&self) -> Seq {
        self.first.max(self.prev.next())
    }
}

pub(super) fn registration(number: u128) -> Registration {
    Registration {
        incarnation: Incarnation(number),
        node: id(&format!("node-{number}")),
        region: id("north"),
        addr: format!("10.0.0.{number}:7000"),
        lifeline: None,
    }
}

pub(super) fn new_channel(name: &str, members: &[&str]) -> NewConversation {
    NewConversation {
        conversation: ConvRef::from(id::<ConversationId>(name)),
        kind: ConversationKind::Channel,
        regions: Vec::new(),
        home: id("north"),
        title: None,
        agent: None,
        settings: Settings::default(),
        creator: id("alice"),
        members: subjects(members),
    }
}

pub(super) fn subjects(names: &[&str]) -> Vec<Subject> {
    names.iter().map(|name| id(name)).collect()
}

pub(super) fn claim(
    conversation: &ConvRef,
    me: Incarnation,
    seen_epoch: Option<Epoch>,
    seen_owner: Option<Incarnation>,
) -> ClaimRequest {
    ClaimRequest { conversation: conversation.key, me, seen_epoch, seen_owner, margin: MARGIN, gap: GAP }
}

pub(super) fn seqs(records: &[Record]) -> Vec<u64> {
    records.iter().map(|record| record.seq.0).collect()
}

pub(super) fn is_new(created: &Created) -> bool {
    matches!(created, Created::New(_))
}
