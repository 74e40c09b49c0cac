//! Taking a conversation up that no process has in memory: a long one beside a short one, whose logs are written straight into
//! the store. By a process that runs and has let it go before, and by one that has just started.
//!
//! Invariant: whoever let it go has saved where the turns stand; only the very first thaw, which is shown apart, finds none of
//! that. What is timed ends with the ack, before the agent is asked.

use std::sync::Arc;
use std::time::{Duration, Instant};

use conch_core::body::Body;
use conch_core::conversation::{ConversationKind, Settings};
use conch_core::ids::{AgentName, ConvRef, Incarnation, Region, Seq, Subject};
use conch_core::record::{Draft, RecordKind};
use conch_core::time::Timestamp;
use conch_core::turn::StepId;
use conch_core::turn::journal;
use conch_core::turn::result::{StepResult, Usage};
use conch_store::postgres::bench::Area;
use conch_store::{
    AppendOutcome, Batch, ClaimOutcome, ClaimRequest, DueChange, Held, NewConversation, Registration, Store,
};
use serde::Serialize;
use serde_json::json;

use super::model::{First, Model, Order};
use super::nodes::{AGENT, Node};
use crate::bench::ground::{self, Ground};
use crate::bench::histogram::{Histogram, Percentiles};
use crate::bench::{TurnsArgs, progress};
use crate::client::Request;
use crate::exit::Failure;

/// Records of the short conversation.
const SHORT: u32 = 10;
/// Records of one turn, as they are written here.
const TURN_RECORDS: u32 = 5;
/// Records of one write.
const TOGETHER: usize = 500;
/// The lease under which the logs are written: longer than that takes.
const LEASE: Duration = Duration::from_secs(3_600);
/// A process that has these lets go of a conversation as soon as it may.
const LETS_GO: &str = "[hibernation]\nmemory_ms = 100\nrelease_ms = 100\n";
/// Thaws of a process that runs before the ones that count.
const WARMING: u32 = 5;
/// What is asked of the model.
const BRIEFLY: Order = Order { deltas: 1, rate: 0, first: First::Speak };
/// Far from everything: 2100-01-01.
const DEADLINE: Timestamp = Timestamp(4_102_444_800_000);
/// How often rows are counted; the median is shown.
const COUNTED: usize = 3;
/// How long the database may take to say what the sessions of an ended process have read.
const TELL_MAX: Duration = Duration::from_secs(15);
/// What does not change for so long has been told.
const QUIET: Duration = Duration::from_millis(400);
/// After so many thaws progress is shown.
const PROGRESS_EVERY: u32 = 20;
/// The long conversation.
const LONG: &str = "thaw-long";
/// The short one.
const BRIEF: &str = "thaw-short";
/// The one that only warms a process.
const WARM: &str = "thaw-warm";

#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) records: u32,
    /// The first one, for which the whole log is folded.
    pub(super) first_ms: f64,
    pub(super) long: Percentiles,
    pub(super) short_records: u32,
    pub(super) short: Percentiles,
    /// The same by a process that has just started.
    pub(super) fresh_long: Percentiles,
    pub(super) fresh_short: Percentiles,
    /// Not counted on a disk.
    pub(super) rows_read: Option<RowsRead>,
}

/// Medians of rows that the database read for one thaw and one message, less what a process reads without them.
#[derive(Debug, Serialize)]
pub(super) struct RowsRead {
    pub(super) long: i64,
    pub(super) short: i64,
}

/// Whichever is taken up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    Neither,
    Long,
    Short,
}

struct Bench<'a> {
    args: &'a TurnsArgs,
    store: String,
    model: Model,
}

pub(super) async fn run(args: &TurnsArgs, ground: &mut Ground) -> Result<Report, Failure> {
    let store = ground.store("thaw").await?;
    progress(&format!("thaw: writing {} records", args.records));
    write_logs(&store, args.records).await?;
    let bench = Bench { args, store, model: Model::start().await? };
    let (first, _) = bench.thaws([Which::Long, Which::Short]).await?;
    let (long, short) = bench.by_one_that_runs().await?;
    let (fresh_long, fresh_short) = bench.by_fresh_ones().await?;
    let rows_read = match ground.area() {
        None => None,
        Some(area) => Some(bench.rows_read(area).await?),
    };
    Ok(Report {
        records: args.records,
        first_ms: first.as_secs_f64() * 1e3,
        long: long.percentiles(),
        short_records: SHORT,
        short: short.percentiles(),
        fresh_long: fresh_long.percentiles(),
        fresh_short: fresh_short.percentiles(),
        rows_read,
    })
}

impl Bench<'_> {
    /// The times of the long conversation and of the short one.
    async fn by_one_that_runs(&self) -> Result<(Histogram, Histogram), Failure> {
        let (mut long, mut short) = (Histogram::default(), Histogram::default());
        let node = Node::start_with(&super::beside(self.args), &self.store, self.model.address(), 1, LETS_GO).await?;
        for number in 1..=WARMING + self.args.thaws {
            node.let_go(&[LONG, BRIEF]).await?;
            for (conversation, times) in [(LONG, &mut long), (BRIEF, &mut short)] {
                let (turn, took) = thaw(&node, conversation).await?;
                node.end_of(conversation, turn).await?;
                if number > WARMING {
                    times.add(took);
                }
            }
            tell("by a process that runs", number, WARMING + self.args.thaws);
        }
        node.stop().await?;
        Ok((long, short))
    }

    /// The same, by a fresh process each time.
    async fn by_fresh_ones(&self) -> Result<(Histogram, Histogram), Failure> {
        let (mut long, mut short) = (Histogram::default(), Histogram::default());
        for number in 1..=self.args.thaws {
            // In turn, so that neither is always the one that finds the process cold.
            let (of_long, of_short) = if number % 2 == 0 {
                self.thaws([Which::Long, Which::Short]).await?
            } else {
                let (of_short, of_long) = self.thaws([Which::Short, Which::Long]).await?;
                (of_long, of_short)
            };
            long.add(of_long);
            short.add(of_short);
            tell("by fresh ones", number, self.args.thaws);
        }
        Ok((long, short))
    }

    /// A fresh process, warm but for what is asked of it: the time from send to ack of each, in this order.
    async fn thaws(&self, order: [Which; 2]) -> Result<(Duration, Duration), Failure> {
        let node = Node::start(&super::beside(self.args), &self.store, self.model.address(), 1).await?;
        let channel = json!({"kind": "channel"});
        node.client.attempt(&Request::put(&["v1", "conversations", WARM], channel)).await?;
        node.say(WARM, "warm").await?;
        let mut took = [Duration::ZERO; 2];
        for (which, took) in order.into_iter().zip(&mut took) {
            let conversation = match which {
                Which::Neither => continue,
                Which::Long => LONG,
                Which::Short => BRIEF,
            };
            let turn;
            (turn, *took) = thaw(&node, conversation).await?;
            node.end_of(conversation, turn).await?;
        }
        node.stop().await?;
        let [first, second] = took;
        Ok((first, second))
    }

    async fn rows_read(&self, area: &Area) -> Result<RowsRead, Failure> {
        let mut counted = [Vec::new(), Vec::new(), Vec::new()];
        let mut before = told(area).await?;
        for _ in 0..COUNTED {
            for (which, counted) in [Which::Neither, Which::Long, Which::Short].into_iter().zip(&mut counted) {
                self.thaws([which, Which::Neither]).await?;
                let after = told(area).await?;
                counted.push(after.saturating_sub(before));
                before = after;
            }
        }
        let [neither, long, short] = counted.map(median);
        Ok(RowsRead { long: long - neither, short: short - neither })
    }
}

/// From send to ack; the number of the turn that it began.
async fn thaw(node: &Node, conversation: &str) -> Result<(u64, Duration), Failure> {
    let begun = Instant::now();
    let turn = node.order(conversation, BRIEFLY).await?;
    Ok((turn, begun.elapsed()))
}

fn tell(what: &str, number: u32, of: u32) {
    if number.is_multiple_of(PROGRESS_EVERY) {
        progress(&format!("thaw, {what}: {number} of {of}"));
    }
}

/// Rows read so far, when no more are told.
async fn told(area: &Area) -> Result<u64, Failure> {
    let failed = |error: conch_store::StoreError| Failure::other(error.to_string());
    let begun = Instant::now();
    let mut last = area.rows_read().await.map_err(failed)?;
    while begun.elapsed() < TELL_MAX {
        tokio::time::sleep(QUIET).await;
        let now = area.rows_read().await.map_err(failed)?;
        if now == last {
            break;
        }
        last = now;
    }
    Ok(last)
}

fn median(mut values: Vec<u64>) -> i64 {
    values.sort_unstable();
    values.get(values.len() / 2).map_or(0, |value| i64::try_from(*value).unwrap_or(i64::MAX))
}

/// Makes both conversations with their records, and leaves them without an owner.
async fn write_logs(url: &str, records: u32) -> Result<(), Failure> {
    let (store, config) = ground::open(url).await?;
    let me = Incarnation(uuid::Uuid::new_v4().as_u128());
    let node = "bench-writer".parse().expect("a valid name");
    let region = config.region.clone();
    let registration =
        Registration { incarnation: me, node, region: region.clone(), addr: String::new(), lifeline: None };
    store.register(&registration, LEASE).await.map_err(failed)?;
    write_log(&store, me, &region, LONG, records).await?;
    write_log(&store, me, &region, BRIEF, SHORT).await?;
    store.deregister(me).await.map_err(failed)?;
    Ok(())
}

async fn write_log(
    store: &Arc<dyn Store>,
    me: Incarnation,
    region: &Region,
    name: &str,
    records: u32,
) -> Result<(), Failure> {
    let agent: AgentName = AGENT.parse().expect("a valid name");
    let sender: Subject = "bench".parse().expect("a valid subject");
    let new = NewConversation {
        conversation: ConvRef::from(name.parse::<conch_core::ids::ConversationId>().expect("a valid id")),
        kind: ConversationKind::Session,
        regions: Vec::new(),
        home: region.clone(),
        title: None,
        agent: Some(agent.clone()),
        settings: Settings::default(),
        creator: sender.clone(),
        members: vec![sender.clone()],
    };
    store.create_conversation(&new).await.map_err(failed)?;
    let request = ClaimRequest {
        conversation: new.conversation.key,
        me,
        seen_epoch: None,
        seen_owner: None,
        margin: Duration::from_secs(1),
        gap: 1,
    };
    let ClaimOutcome::Won(armed) = store.claim(&request).await.map_err(failed)? else {
        return Err(Failure::other("the bench could not claim its own conversation"));
    };
    let (mut next, mut prev) = (armed.first_seq, armed.last_seq);
    let end = Seq(next.0 + u64::from(records / TURN_RECORDS * TURN_RECORDS));
    while next < end {
        let mut batch = Vec::with_capacity(TOGETHER);
        while batch.len() < TOGETHER && next < end {
            for draft in turn_records(next, &agent, &sender) {
                batch.push((next, draft));
                next = next.next();
            }
        }
        let hi = Seq(next.0 - 1);
        let conversation = new.conversation.clone();
        let batch = Batch {
            conversation,
            epoch: armed.epoch,
            generation: armed.generation,
            prev,
            hi,
            reserve: hi,
            due: DueChange::Keep,
            records: batch,
        };
        match store.append(me, vec![batch]).await.map_err(failed)?.pop() {
            Some(AppendOutcome::Landed { .. }) => prev = hi,
            other => return Err(Failure::other(format!("records of the bench were not written: {other:?}"))),
        }
    }
    let held = Held { conversation: new.conversation.key, epoch: armed.epoch, me };
    store.release(&held, next).await.map_err(failed)?;
    Ok(())
}

/// A whole turn, whose input is this number.
fn turn_records(turn: Seq, agent: &AgentName, sender: &Subject) -> [Draft; TURN_RECORDS as usize] {
    let key = uuid::Uuid::now_v7().to_string().parse().expect("a UUID is printable");
    let text = "What was said here is as long as people and models say it, more or less.";
    let result = StepResult::Model { output: text.to_owned(), calls: Vec::new(), usage: Usage::default() };
    [
        Draft::new(RecordKind::Message, sender.clone(), key, Body::of(&json!({ "text": text }))),
        journal::started(turn, agent, DEADLINE),
        journal::step_completed(turn, &StepId::model(1), &result),
        journal::answer(turn, agent, text),
        journal::completed(turn),
    ]
}

fn failed(error: conch_store::StoreError) -> Failure {
    Failure::other(format!("a store of the bench: {error}"))
}
