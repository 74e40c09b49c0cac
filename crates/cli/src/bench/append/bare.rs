//! The bare loops that `bench append` is compared with: the store's own fenced append, a batch after the other, and on
//! PostgreSQL the same rows without the fence. No network but the store's, no owner, no queue.
//!
//! Invariant: a loop has the batch size that the server was seen to use, and as many statements under way.

use std::sync::Arc;
use std::time::{Duration, Instant};

use conch_core::body::Body;
use conch_core::conversation::{ConversationKind, Settings};
use conch_core::ids::{ConvRef, ConversationId, Incarnation, Region, Seq, Subject};
use conch_core::record::{Draft, RecordKind};
use conch_store::postgres::bench::{Area, Unfenced};
use conch_store::{
    AppendOutcome, Armed, Batch, ClaimOutcome, ClaimRequest, DueChange, NewConversation, Registration, Store,
};
use futures_util::{StreamExt, TryStreamExt, stream};
use serde_json::json;
use tokio::task::JoinSet;

use super::super::AppendArgs;
use crate::exit::Failure;

/// The loop's lease: longer than any bench.
const LEASE: Duration = Duration::from_secs(24 * 3600);
/// How far ahead numbers are reserved, as the server does.
const BLOCK: u64 = 1_000;
/// Conversations that are made or claimed at the same time.
const PREPARING: usize = 16;

/// The batches that a loop is to write.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// Records of a batch, each of another conversation.
    pub(super) size: usize,
    /// Statements under way at once.
    pub(super) under_way: usize,
    /// How long.
    pub(super) duration: Duration,
}

/// A store with conversations that this process owns.
pub(super) struct Bare {
    store: Arc<dyn Store>,
    me: Incarnation,
    owned: Vec<Owned>,
    unfenced: Option<Beside>,
    message: Message,
}

/// The loop without the fence: numbers and a table of its own.
struct Beside {
    owned: Vec<Owned>,
    /// As many as there may be statements under way.
    sessions: Vec<Arc<Unfenced>>,
}

#[derive(Clone)]
struct Message {
    body: Body,
    sender: Subject,
}

#[derive(Clone)]
struct Owned {
    conversation: ConvRef,
    armed: Armed,
    last: Seq,
    reserved: Seq,
}

/// What one of the loops under way has.
struct Lane {
    owned: Vec<Owned>,
    next: usize,
    message: Message,
}

/// Makes conversations, open to everybody.
pub(super) async fn create(
    store: &Arc<dyn Store>,
    prefix: &str,
    region: &Region,
    count: u32,
) -> Result<Vec<ConvRef>, Failure> {
    let made = (0..count).map(|index| {
        let id: ConversationId = format!("{prefix}-{index}").parse().expect("a valid id");
        let sender: Subject = "bench".parse().expect("a valid subject");
        let new = NewConversation {
            conversation: ConvRef::from(id),
            kind: ConversationKind::Channel,
            regions: Vec::new(),
            home: region.clone(),
            title: None,
            agent: None,
            settings: Settings::default(),
            creator: sender.clone(),
            members: vec![sender],
        };
        async move {
            store.create_conversation(&new).await.map_err(failed)?;
            Ok(new.conversation)
        }
    });
    stream::iter(made).buffered(PREPARING).try_collect().await
}

/// What a lane did: what it owns, and how many records it wrote.
type Done = Result<(Vec<Owned>, u64), Failure>;

impl Bare {
    /// Claims as many conversations as the bench has, in a fresh store. `area`: where the store is in a database.
    pub(super) async fn open(store: Arc<dyn Store>, area: Option<&Area>, args: &AppendArgs) -> Result<Self, Failure> {
        let region: Region = "bare".parse().expect("a valid name");
        let me = Incarnation(uuid::Uuid::new_v4().as_u128());
        let node = "bare".parse().expect("a valid name");
        let addr = String::new();
        let registration = Registration { incarnation: me, node, region: region.clone(), addr, lifeline: None };
        store.register(&registration, LEASE).await.map_err(failed)?;
        let conversations = create(&store, "bare", &region, args.conversations).await?;
        let claims = conversations.into_iter().map(|conversation| claim(&store, me, conversation));
        let owned: Vec<Owned> = stream::iter(claims).buffered(PREPARING).try_collect().await?;
        let unfenced = match area {
            None => None,
            Some(area) => {
                let mut sessions = Vec::new();
                for _ in 0..args.commits {
                    let session = area.unfenced().await.map_err(|error| Failure::other(error.to_string()))?;
                    sessions.push(Arc::new(session));
                }
                Some(Beside { owned: owned.clone(), sessions })
            }
        };
        let body = Body::of(&json!({"text": "x".repeat(args.bytes as usize)}));
        let message = Message { body, sender: "bench".parse().expect("a valid subject") };
        Ok(Self { store, me, owned, unfenced, message })
    }

    /// Appends with the fence; records a second.
    pub(super) async fn round(&mut self, shape: Shape) -> Result<f64, Failure> {
        let (begun, mut tasks) = (Instant::now(), JoinSet::new());
        for mut lane in lanes(std::mem::take(&mut self.owned), shape, &self.message) {
            let (store, me) = (Arc::clone(&self.store), self.me);
            tasks.spawn(async move {
                let mut records = 0;
                while begun.elapsed() < shape.duration {
                    let outcomes = store.append(me, lane.batches(shape.size)).await.map_err(failed)?;
                    for outcome in outcomes {
                        match outcome {
                            AppendOutcome::Landed { .. } => records += 1,
                            other => return Err(Failure::other(format!("the bare loop's append failed: {other:?}"))),
                        }
                    }
                }
                Ok((lane.owned, records))
            });
        }
        let (owned, rate) = finish(begun, tasks).await?;
        self.owned = owned;
        Ok(rate)
    }

    /// The same without the fence; `None` on a store that has no such loop.
    pub(super) async fn unfenced_round(&mut self, shape: Shape) -> Result<Option<f64>, Failure> {
        let Some(beside) = &mut self.unfenced else { return Ok(None) };
        let (begun, mut tasks) = (Instant::now(), JoinSet::new());
        let lanes = lanes(std::mem::take(&mut beside.owned), shape, &self.message);
        for (mut lane, session) in lanes.into_iter().zip(beside.sessions.iter().cycle().cloned()) {
            tasks.spawn(async move {
                let mut records = 0;
                while begun.elapsed() < shape.duration {
                    records += session.append(&lane.batches(shape.size)).await.map_err(failed)?;
                }
                Ok((lane.owned, records))
            });
        }
        let (owned, rate) = finish(begun, tasks).await?;
        beside.owned = owned;
        Ok(Some(rate))
    }
}

async fn claim(store: &Arc<dyn Store>, me: Incarnation, conversation: ConvRef) -> Result<Owned, Failure> {
    let request = ClaimRequest {
        conversation: conversation.key,
        me,
        seen_epoch: None,
        seen_owner: None,
        margin: Duration::from_secs(1),
        gap: BLOCK,
    };
    let ClaimOutcome::Won(armed) = store.claim(&request).await.map_err(failed)? else {
        return Err(Failure::other("the bare loop could not claim its own conversation"));
    };
    let reserved = Seq(armed.first_seq.0 - 1);
    Ok(Owned { conversation, last: armed.last_seq, armed, reserved })
}

/// Shares the conversations out, so that no two statements under way touch the same one.
fn lanes(owned: Vec<Owned>, shape: Shape, message: &Message) -> Vec<Lane> {
    let count = shape.under_way.clamp(1, owned.len().max(1));
    let lane = || Lane { owned: Vec::new(), next: 0, message: message.clone() };
    let mut lanes: Vec<Lane> = std::iter::repeat_with(lane).take(count).collect();
    for (index, owned) in owned.into_iter().enumerate() {
        lanes[index % count].owned.push(owned);
    }
    lanes
}

async fn finish(begun: Instant, mut tasks: JoinSet<Done>) -> Result<(Vec<Owned>, f64), Failure> {
    let (mut owned, mut records) = (Vec::new(), 0);
    while let Some(done) = tasks.join_next().await {
        let (of_lane, written) = done.map_err(|error| Failure::other(error.to_string()))??;
        owned.extend(of_lane);
        records += written;
    }
    Ok((owned, records as f64 / begun.elapsed().as_secs_f64()))
}

impl Lane {
    /// One record for each of the next conversations: no more than there are, as one a conversation may be in flight.
    fn batches(&mut self, size: usize) -> Vec<Batch> {
        let size = size.min(self.owned.len());
        let batches = (0..size).map(|offset| self.batch(offset)).collect();
        self.next = (self.next + size) % self.owned.len().max(1);
        batches
    }

    fn batch(&mut self, offset: usize) -> Batch {
        let index = (self.next + offset) % self.owned.len();
        let owned = &mut self.owned[index];
        let prev = owned.last;
        let seq = prev.next().max(owned.armed.first_seq);
        owned.last = seq;
        if seq > owned.reserved {
            owned.reserved = Seq(seq.0 + BLOCK);
        }
        let key = uuid::Uuid::now_v7().to_string().parse().expect("a UUID is printable");
        let Message { body, sender } = self.message.clone();
        Batch {
            conversation: owned.conversation.clone(),
            epoch: owned.armed.epoch,
            generation: owned.armed.generation,
            prev,
            hi: seq,
            reserve: owned.reserved,
            due: DueChange::Keep,
            records: vec![(seq, Draft::new(RecordKind::Message, sender, key, body))],
        }
    }
}

fn failed(error: conch_store::StoreError) -> Failure {
    Failure::other(format!("a store of the bench: {error}"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::super::{Bench, ground};
    use super::*;
    use crate::args::{Arguments, Command};

    #[test]
    fn the_bare_loop_appends_more_than_one_batch() {
        let line = ["conch", "bench", "append", "--conversations", "3", "--bytes", "5"];
        let Command::Bench(bench) = Arguments::try_parse_from(line).expect("valid").command else { panic!("another") };
        let Bench::Append(args) = &bench.what else { panic!("another bench") };
        let directory = ground::Ground::disk(&std::env::temp_dir()).expect("made");
        let rates = crate::block_on(async {
            let mut directory = directory;
            let (store, _) = ground::open(&directory.store("bare").await?).await?;
            let mut bare = Bare::open(store, directory.area(), args).await?;
            let duration = Duration::from_millis(20);
            // A batch is never larger than a lane: one record a conversation may be in flight.
            let one = bare.round(Shape { size: 8, under_way: 1, duration }).await?;
            let two = bare.round(Shape { size: 2, under_way: 2, duration }).await?;
            let many = bare.round(Shape { size: 2, under_way: 9, duration }).await?;
            assert_eq!(bare.unfenced_round(Shape { size: 1, under_way: 1, duration }).await?, None);
            Ok([one, two, many])
        });
        assert!(rates.expect("appends").into_iter().all(|rate| rate > 0.0));
    }
}
