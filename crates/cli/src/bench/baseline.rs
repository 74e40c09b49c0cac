//! The bare loop that `bench append` is compared with: the store's own fenced append, one batch after the other, on a data
//! directory of its own. No network, no owner, no queue.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use conch_core::body::Body;
use conch_core::conversation::{ConversationKind, Settings};
use conch_core::ids::{ConvRef, ConversationId, Incarnation, Seq, Subject};
use conch_core::record::{Draft, RecordKind};
use conch_store::sqlite::{Options, SqliteStore};
use conch_store::{
    AppendOutcome, Armed, Batch, ClaimOutcome, ClaimRequest, DueChange, LeaseStore, LogStore, NewConversation,
    Registration,
};
use serde_json::json;

use super::AppendArgs;
use super::server::Scratch;
use crate::exit::Failure;

/// The loop's lease: longer than any bench.
const LEASE: Duration = Duration::from_secs(24 * 3600);
/// How far ahead numbers are reserved, as the server does.
const BLOCK: u64 = 1_000;

/// A store with conversations that this process owns.
pub(super) struct Bare {
    store: Arc<SqliteStore>,
    me: Incarnation,
    owned: Vec<Owned>,
    next: usize,
    body: Body,
    sender: Subject,
    // Dropped last: the store lies in it.
    _scratch: Scratch,
}

struct Owned {
    conversation: ConvRef,
    armed: Armed,
    last: Seq,
    reserved: Seq,
}

impl Bare {
    /// Opens a store in `beside` and claims as many conversations as the bench has.
    pub(super) async fn open(beside: &Path, args: &AppendArgs) -> Result<Self, Failure> {
        let scratch = Scratch::new(beside)?;
        let node: conch_core::ids::NodeName = "bare".parse().expect("a valid name");
        let region: conch_core::ids::Region = "bare".parse().expect("a valid name");
        let store = SqliteStore::open(&scratch.path().join("data"), Options::new(node.clone()))
            .map_err(|error| Failure::other(error.to_string()))?;
        let me = Incarnation(uuid::Uuid::new_v4().as_u128());
        let registration =
            Registration { incarnation: me, node, region: region.clone(), addr: String::new(), lifeline: None };
        store.register(&registration, LEASE).await.map_err(failed)?;
        let sender: Subject = "bench".parse().expect("a valid subject");
        let mut owned = Vec::new();
        for index in 0..args.conversations {
            let id: ConversationId = format!("bare-{index}").parse().expect("a valid id");
            let conversation = ConvRef::from(id);
            let new = NewConversation {
                conversation: conversation.clone(),
                kind: ConversationKind::Channel,
                regions: Vec::new(),
                home: region.clone(),
                title: None,
                agent: None,
                settings: Settings::default(),
                creator: sender.clone(),
                members: vec![sender.clone()],
            };
            store.create_conversation(&new).await.map_err(failed)?;
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
            owned.push(Owned { conversation, armed, last: armed.last_seq, reserved });
        }
        let body = Body::of(&json!({"text": "x".repeat(args.bytes as usize)}));
        Ok(Self { store: Arc::new(store), me, owned, next: 0, body, sender, _scratch: scratch })
    }

    /// Appends batches of `size` conversations, a record each, for this long; records a second.
    pub(super) async fn round(&mut self, size: usize, duration: Duration) -> Result<f64, Failure> {
        let size = size.min(self.owned.len());
        let (begun, mut records) = (Instant::now(), 0_u64);
        while begun.elapsed() < duration {
            let batches: Vec<Batch> = (0..size).map(|offset| self.batch(offset)).collect();
            let outcomes = self.store.append(self.me, batches).await.map_err(failed)?;
            for outcome in outcomes {
                match outcome {
                    AppendOutcome::Landed { .. } => records += 1,
                    other => return Err(Failure::other(format!("the bare loop's append failed: {other:?}"))),
                }
            }
            self.next = (self.next + size) % self.owned.len();
        }
        Ok(records as f64 / begun.elapsed().as_secs_f64())
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
        Batch {
            conversation: owned.conversation.clone(),
            epoch: owned.armed.epoch,
            generation: owned.armed.generation,
            prev,
            hi: seq,
            reserve: owned.reserved,
            due: DueChange::Keep,
            records: vec![(seq, Draft::new(RecordKind::Message, self.sender.clone(), key, self.body.clone()))],
        }
    }
}

fn failed(error: conch_store::StoreError) -> Failure {
    Failure::other(format!("the bare loop's store: {error}"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::Bench;
    use super::*;
    use crate::args::{Arguments, Command};

    #[test]
    fn the_bare_loop_appends_more_than_one_batch() {
        let line = ["conch", "bench", "append", "--conversations", "3", "--bytes", "5"];
        let Command::Bench(bench) = Arguments::try_parse_from(line).expect("valid").command else { panic!("another") };
        let Bench::Append(args) = &bench.what else { panic!("another bench") };
        let beside = std::env::temp_dir();
        let rate = crate::block_on(async {
            let mut bare = Bare::open(&beside, args).await?;
            // A batch is never larger than the number of conversations: one a conversation may be in flight.
            bare.round(8, Duration::from_millis(20)).await?;
            bare.round(2, Duration::from_millis(20)).await
        });
        assert!(rate.expect("appends") > 0.0);
    }
}
