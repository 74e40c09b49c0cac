//! Nodes, conversations, claims and batches in few words.

use std::future::Future;
use std::time::Duration;

use conch_core::body::{Body, Limits};
use conch_core::conversation::{ConversationKind, Settings};
use conch_core::ids::{ConvRef, ConversationId, Epoch, Incarnation, Seq};
use conch_core::record::{Draft, RecordKind};

use crate::{
    AppendOutcome, Armed, Batch, ClaimOutcome, ClaimRequest, Direction, DueChange, Lifeline, NewConversation,
    RangeQuery, Registration, Store,
};

pub(crate) const TTL: Duration = Duration::from_secs(15);
pub(crate) const MARGIN: Duration = Duration::from_secs(3);
pub(crate) const GAP: u64 = 1_000;
pub(crate) const A: Incarnation = Incarnation(1);
pub(crate) const B: Incarnation = Incarnation(2);

pub(crate) fn conversation(name: &str) -> ConvRef {
    ConvRef::from(name.parse::<ConversationId>().expect("valid"))
}

pub(crate) fn registration(me: Incarnation, lifeline: Option<Lifeline>) -> Registration {
    Registration {
        incarnation: me,
        node: format!("node-{}", me.0).parse().expect("valid"),
        region: "north".parse().expect("valid"),
        addr: String::new(),
        lifeline,
    }
}

pub(crate) async fn register(store: &dyn Store, me: Incarnation) {
    store.register(&registration(me, None), TTL).await.expect("registers");
}

pub(crate) async fn create(store: &dyn Store, name: &str) -> ConvRef {
    let new = NewConversation {
        conversation: conversation(name),
        kind: ConversationKind::Channel,
        regions: Vec::new(),
        home: "north".parse().expect("valid"),
        title: None,
        agent: None,
        settings: Settings::default(),
        creator: "alice".parse().expect("valid"),
        members: vec!["alice".parse().expect("valid")],
    };
    store.create_conversation(&new).await.expect("creates");
    new.conversation
}

pub(crate) fn claim(
    conversation: &ConvRef,
    me: Incarnation,
    seen: Option<(Epoch, Option<Incarnation>)>,
) -> ClaimRequest {
    ClaimRequest {
        conversation: conversation.key,
        me,
        seen_epoch: seen.map(|(epoch, _)| epoch),
        seen_owner: seen.and_then(|(_, owner)| owner),
        margin: MARGIN,
        gap: GAP,
    }
}

pub(crate) async fn take(
    store: &dyn Store,
    conversation: &ConvRef,
    me: Incarnation,
    seen: Option<(Epoch, Option<Incarnation>)>,
) -> Armed {
    match store.claim(&claim(conversation, me, seen)).await.expect("answers") {
        ClaimOutcome::Won(armed) => armed,
        ClaimOutcome::Lost => panic!("{me}'s claim of {conversation:?} on {seen:?} was lost"),
    }
}

pub(crate) fn draft(key: &str) -> Draft {
    let body = Body::parse_message(r#"{"text":"hi"}"#, Limits::default()).expect("valid");
    Draft::new(RecordKind::Message, "alice".parse().expect("valid"), key.parse().expect("valid"), body)
}

/// One message with this key, as the first after `armed`.
pub(crate) fn batch(conversation: &ConvRef, armed: Armed, key: &str) -> Batch {
    let seq = armed.first_seq.max(armed.last_seq.next());
    Batch {
        conversation: conversation.clone(),
        epoch: armed.epoch,
        generation: armed.generation,
        prev: armed.last_seq,
        hi: seq,
        reserve: seq,
        due: DueChange::Keep,
        records: vec![(seq, draft(key))],
    }
}

/// Appends one message, which must land, and moves the reign on.
pub(crate) async fn write(store: &dyn Store, conversation: &ConvRef, me: Incarnation, armed: &mut Armed, key: &str) {
    let batch = batch(conversation, *armed, key);
    let hi = batch.hi;
    let outcome = append(store, me, batch).await;
    assert!(matches!(&outcome, AppendOutcome::Landed { duplicates, .. } if duplicates.is_empty()), "{outcome:?}");
    armed.last_seq = hi;
}

pub(crate) async fn append(store: &dyn Store, me: Incarnation, batch: Batch) -> AppendOutcome {
    let mut outcomes = store.append(me, vec![batch]).await.expect("answers");
    outcomes.pop().expect("one outcome")
}

pub(crate) async fn seqs(store: &dyn Store, conversation: &ConvRef) -> Vec<u64> {
    let direction = Direction::After(Seq(0));
    let query = RangeQuery { conversation: conversation.clone(), direction, limit: 10_000, kinds: Vec::new() };
    let page = store.range(&query).await.expect("answers").expect("exists");
    page.records.iter().map(|record| record.seq.0).collect()
}

/// Asks again until it is so; what is waited for happens in another process.
pub(crate) async fn until<W: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> W) {
    const TRIES: u32 = 1_500;
    for _ in 0..TRIES {
        if is_so().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("waited in vain: {what}");
}

/// Ends the server processes of a purpose, as an administrator does, and waits for their end.
pub(crate) async fn terminate(client: &tokio_postgres::Client, purpose: &str) -> i64 {
    let sql = "SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity
               WHERE datname = current_database() AND application_name LIKE 'conch/%/' || $1";
    client.query_one(sql, &[&purpose]).await.expect("answers").get(0)
}
