//! Pages of records for those who catch up: one read for all who need the same.
//!
//! When a gateway dies, its sessions come to the others with the same few positions, thousands at a time. So a page that is
//! being read is waited for, and one that was read a moment ago is kept, encoded; reads are limited by a rate and in
//! number, and whoever would wait longer than [`WAIT_AT_MOST`] is told so.
//!
//! Invariants: a page that is given out holds all records of its log from its range's beginning to its end; an old one is
//! given out only if it brings its reader forward; what is kept and how long anybody waits is bounded. Deliberately absent:
//! what a reader does with the answer ([`super::catch_up`]).

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use conch_core::ids::{ConvKey, ConvRef, LogId, Seq};
use conch_core::limit::TokenBucket;
use conch_core::shed::Rung;
use conch_core::time::Monotonic;
use conch_store::{Direction, RangeQuery};
use tokio::sync::{AcquireError, Mutex as TurnMutex, Semaphore, SemaphorePermit, watch};

use super::HubLimits;
use crate::bounded;
use crate::frame::{Address, Frame};
use crate::metrics::Queue;
use crate::node::Node;
use crate::rules::Rule;

/// The longest wait for a read's turn.
pub(super) const WAIT_AT_MOST: Duration = Duration::from_secs(10);
/// How long a page is kept: as long as those who were told to spread their return may take.
const KEPT_FOR: Duration = Duration::from_secs(30);
/// Bytes of pages that are kept on one gateway.
const KEPT_BYTES: usize = 8 * 1024 * 1024;
/// What a read costs while catching up is slowed, in turns.
const SLOWED_PRICE: u32 = 2;

/// Records of one log, in order, without a gap.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) frames: Arc<[(Seq, Arc<Frame>)]>,
    /// All records up to this one are in the page, or below it.
    pub(super) end: Seq,
}

/// What came of a read.
#[derive(Debug, Clone)]
pub(super) enum Read {
    Page(Arc<Page>),
    /// The store holds another history by now.
    OtherLog,
    /// There is no such conversation.
    Nothing,
    /// The store did not answer.
    Failed,
    /// Its turn did not come in time.
    TooLate,
}

/// Everything above a number.
type Range = (ConvKey, Seq);

struct Flight {
    log: LogId,
    landed: watch::Receiver<Option<Read>>,
}

struct Kept {
    log: LogId,
    page: Arc<Page>,
    bytes: usize,
}

#[derive(Default)]
struct Table {
    flights: BTreeMap<Range, Flight>,
    kept: BTreeMap<Range, Kept>,
    /// The ranges that are kept, oldest first.
    order: VecDeque<(Monotonic, Range)>,
    kept_bytes: usize,
}

/// What is known of a page.
enum Lookup {
    Kept(Arc<Page>),
    UnderWay(watch::Receiver<Option<Read>>),
    /// Nothing: the caller reads, and tells the others.
    Ours(watch::Sender<Option<Read>>),
}

/// See the module.
pub(super) struct Reads {
    node: Arc<Node>,
    page: usize,
    /// Whoever holds it is next; the others wait in their order.
    turns: TurnMutex<TokenBucket>,
    pub(super) under_way: Semaphore,
    table: Mutex<Table>,
}

impl Reads {
    pub(super) fn new(node: Arc<Node>, limits: &HubLimits) -> Self {
        let rate = limits.catch_up_reads_per_s.max(1);
        Self {
            node,
            page: limits.catch_up_page,
            turns: TurnMutex::new(TokenBucket::new(rate, rate.max(SLOWED_PRICE))),
            under_way: Semaphore::new(limits.catch_up_reads),
            table: Mutex::default(),
        }
    }

    /// The page above a position, read for all who ask meanwhile.
    pub(super) async fn page(&self, conversation: &ConvRef, address: &Address, after: Seq) -> Read {
        if !self.node.rules.hold(Rule::ReadsAreShared) {
            return self.read(conversation, address, after).await;
        }
        let range = (conversation.key, after);
        loop {
            let shared = match self.look_up(range, &address.log) {
                Lookup::Kept(page) => Some(Read::Page(page)),
                // One whose reader went away has no outcome: look again.
                Lookup::UnderWay(mut landed) => {
                    landed.wait_for(Option::is_some).await.ok().and_then(|read| read.clone())
                }
                Lookup::Ours(telling) => {
                    let read = self.read(conversation, address, after).await;
                    self.land(range, &address.log, &telling, &read);
                    return read;
                }
            };
            if let Some(read) = shared {
                self.node.metrics.catch_up_shared.inc();
                return read;
            }
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("no holder of the table panics")
    }

    fn look_up(&self, range: Range, log: &LogId) -> Lookup {
        let mut table = self.table();
        table.forget_old(self.node.seams.now(), KEPT_BYTES);
        if let Some(kept) = table.kept.get(&range).filter(|kept| kept.log == *log) {
            return Lookup::Kept(Arc::clone(&kept.page));
        }
        if let Some(flight) = table.flights.get(&range)
            && flight.log == *log
            && flight.landed.has_changed().is_ok()
        {
            return Lookup::UnderWay(flight.landed.clone());
        }
        let (telling, landed) = watch::channel(None);
        table.flights.insert(range, Flight { log: log.clone(), landed });
        Lookup::Ours(telling)
    }

    fn land(&self, range: Range, log: &LogId, telling: &watch::Sender<Option<Read>>, read: &Read) {
        let mut table = self.table();
        // Whoever asked for another log meanwhile took the place.
        if table.flights.get(&range).is_some_and(|flight| telling.subscribe().same_channel(&flight.landed)) {
            table.flights.remove(&range);
        }
        if let Read::Page(page) = read
            && page.end > range.1
        {
            table.keep(self.node.seams.now(), range, log, page);
        }
        drop(table);
        telling.send_replace(Some(read.clone()));
    }

    async fn read(&self, conversation: &ConvRef, address: &Address, after: Seq) -> Read {
        // Both branches are cancel safe: a turn that was not taken is the next one's.
        let turn = tokio::select! {
            biased;
            turn = self.turn() => turn,
            () = self.too_late() => return Read::TooLate,
        };
        self.node.metrics.catch_up_reads.inc();
        let query = RangeQuery {
            conversation: conversation.clone(),
            direction: Direction::After(after),
            limit: self.page,
            kinds: Vec::new(),
        };
        let answer = self.node.store.range(&query).await;
        drop(turn);
        match answer {
            Ok(Some(page)) if page.log == address.log => {
                let last = page.records.last().map_or(after, |record| record.seq);
                // What lies between the last record and the head are holes.
                let end = if page.more { last } else { last.max(page.head_seq) };
                let frame = |record: &_| Arc::new(Frame::record(address, record));
                let frames = page.records.iter().map(|record| (record.seq, frame(record))).collect();
                Read::Page(Arc::new(Page { frames, end }))
            }
            Ok(Some(_)) => Read::OtherLog,
            Ok(None) => Read::Nothing,
            Err(error) => {
                tracing::debug!(conversation = %conversation.id, %error, "catching up waits for the store");
                Read::Failed
            }
        }
    }

    async fn too_late(&self) {
        if !self.node.rules.hold(Rule::CatchUpGivesUp) {
            return std::future::pending().await;
        }
        self.node.seams.sleep(WAIT_AT_MOST).await;
    }

    /// Waits for a turn by the rate, and for a place among the reads under way.
    async fn turn(&self) -> Result<SemaphorePermit<'_>, AcquireError> {
        let metrics = &self.node.metrics;
        if self.node.rules.hold(Rule::CatchUpIsLimited) {
            let mut waits = false;
            let mut wait_begins = || {
                if !std::mem::replace(&mut waits, true) {
                    metrics.catch_up_waits.inc();
                    metrics.limit_hit(Queue::CatchUpRate);
                }
            };
            let mut turns = match self.turns.try_lock() {
                Ok(turns) => turns,
                Err(_) => {
                    wait_begins();
                    self.turns.lock().await
                }
            };
            while let Err(wait) = turns.take(self.node.seams.now(), self.price()) {
                wait_begins();
                self.node.seams.sleep(wait).await;
            }
        }
        bounded::acquire(&self.under_way, metrics, Queue::Reads).await
    }

    fn price(&self) -> u32 {
        if self.node.pressure.rung() >= Rung::CatchUpSlows { SLOWED_PRICE } else { 1 }
    }
}

impl Table {
    fn keep(&mut self, now: Monotonic, range: Range, log: &LogId, page: &Arc<Page>) {
        let bytes = page.frames.iter().map(|(_, frame)| frame.bytes()).sum::<usize>() + size_of::<Kept>();
        if bytes > KEPT_BYTES {
            return;
        }
        self.forget_old(now, KEPT_BYTES - bytes);
        let kept = Kept { log: log.clone(), page: Arc::clone(page), bytes };
        self.kept_bytes += bytes;
        if let Some(before) = self.kept.insert(range, kept) {
            self.kept_bytes -= before.bytes;
            self.order.retain(|(_, known)| *known != range);
        }
        self.order.push_back((now, range));
    }

    /// Forgets what is too old, and the oldest until `bytes` are not exceeded.
    fn forget_old(&mut self, now: Monotonic, bytes: usize) {
        while let Some((kept_at, range)) = self.order.front().copied()
            && (self.kept_bytes > bytes || now.since(kept_at) >= KEPT_FOR)
        {
            self.order.pop_front();
            if let Some(kept) = self.kept.remove(&range) {
                self.kept_bytes -= kept.bytes;
            }
        }
    }
}
