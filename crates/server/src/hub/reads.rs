//! Pages of records for those who catch up: one read for all who need the same.
//!
//! When a gateway dies, its sessions come to the others with the same few positions, thousands at a time. So a page that is
//! being read is waited for, and one that was read a moment ago is kept, encoded; reads are limited by a rate and in
//! number, and whoever would wait longer than [`WAIT_AT_MOST`] is told so. What nobody waits for any more is not read.
//!
//! Invariants: a page that is given out holds all records of its log from its range's beginning to its end; an old one is
//! given out only if it brings its reader forward; what is kept and how long anybody waits is bounded. Deliberately absent:
//! what a reader does with the answer ([`super::catch_up`]).

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use conch_core::ids::{ConvKey, ConvRef, LogId, Seq};
use conch_core::limit::TokenBucket;
use conch_core::record::Record;
use conch_core::shed::Rung;
use conch_core::time::Monotonic;
use conch_store::{Direction, RangeQuery};
use tokio::sync::{AcquireError, Mutex as TurnMutex, Semaphore, SemaphorePermit, watch};

use super::HubLimits;
use super::catch_up::Gone;
use crate::bounded;
use crate::delivery::{Batch, Shown};
use crate::frame::{Address, Frame};
use crate::metrics::Queue;
use crate::node::Node;
use crate::rules::Rule;

/// The longest wait for a read's turn.
pub(super) const WAIT_AT_MOST: Duration = Duration::from_secs(10);
/// How long a page is kept: as long as those who were told to spread their return may take.
const KEPT_FOR: Duration = Duration::from_secs(30);
/// What a read costs while catching up is slowed, in turns.
const SLOWED_PRICE: u32 = 2;

/// Records of one log, in order, without a gap.
pub(super) struct Page {
    /// `None`: there are none.
    pub(super) records: Option<Batch>,
    /// All records up to this one are in the page, or below it.
    pub(super) end: Seq,
}

/// What came of a read.
#[derive(Clone)]
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
    /// Whoever asked is gone.
    Unwanted,
}

/// Everything above a number.
type Range = (ConvKey, Seq);

/// Where a reader tells what came of its read. Whoever waits for it listens.
type Telling = watch::Sender<Option<Read>>;

struct Flight {
    log: LogId,
    /// The reader's; nobody's once it went away.
    telling: Weak<Telling>,
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
    Ours(Arc<Telling>),
}

/// See the module.
pub(super) struct Reads {
    node: Arc<Node>,
    page: usize,
    /// Bytes of pages that are kept at most.
    kept_bytes: usize,
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
            kept_bytes: limits.catch_up_kept_bytes,
            turns: TurnMutex::new(TokenBucket::new(rate, rate.max(SLOWED_PRICE))),
            under_way: Semaphore::new(limits.catch_up_reads),
            table: Mutex::default(),
        }
    }

    /// The page above a position, read for all who ask meanwhile. The reader who is `gone` waits no longer, and reads no more
    /// unless somebody else waits for it.
    pub(super) async fn page(&self, conversation: &ConvRef, address: &Address, after: Seq, gone: &mut Gone) -> Read {
        let give_up = self.node.seams.now() + WAIT_AT_MOST;
        if !self.node.rules.hold(Rule::ReadsAreShared) {
            return self.read(conversation, address, after, give_up).await;
        }
        let range = (conversation.key, after);
        loop {
            let shared = match self.look_up(range, &address.log) {
                Lookup::Kept(page) => Some(Read::Page(page)),
                // One whose reader went away has no outcome: look again.
                Lookup::UnderWay(mut landed) => {
                    // Both branches are cancel safe.
                    tokio::select! {
                        biased;
                        read = landed.wait_for(Option::is_some) => read.ok().and_then(|read| read.clone()),
                        _ = &mut *gone => return Read::Unwanted,
                    }
                }
                Lookup::Ours(telling) => {
                    // A read that is dropped has changed nothing.
                    let read = tokio::select! {
                        biased;
                        read = self.read(conversation, address, after, give_up) => read,
                        () = self.nobody_waits(&telling, gone) => Read::Unwanted,
                    };
                    self.land(range, &address.log, &telling, &read);
                    return read;
                }
            };
            match shared {
                // Its reader had waited for longer than this one.
                Some(Read::TooLate) if self.node.seams.now() < give_up => {}
                Some(read) => {
                    self.node.metrics.catch_up_shared.inc();
                    return read;
                }
                None => {}
            }
        }
    }

    /// Completes when the reader is gone, and all who listen to it.
    async fn nobody_waits(&self, telling: &Telling, gone: &mut Gone) {
        if !self.node.rules.hold(Rule::UnwantedIsNotRead) {
            return std::future::pending().await;
        }
        // An error is what it ends with.
        let _ = gone.await;
        telling.closed().await;
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("no holder of the table panics")
    }

    fn look_up(&self, range: Range, log: &LogId) -> Lookup {
        let mut table = self.table();
        table.forget_old(self.node.seams.now(), self.kept_bytes);
        if let Some(kept) = table.kept.get(&range).filter(|kept| kept.log == *log) {
            return Lookup::Kept(Arc::clone(&kept.page));
        }
        if let Some(flight) = table.flights.get(&range).filter(|flight| flight.log == *log)
            && let Some(telling) = flight.telling.upgrade()
        {
            return Lookup::UnderWay(telling.subscribe());
        }
        let telling = Arc::new(watch::Sender::new(None));
        table.flights.insert(range, Flight { log: log.clone(), telling: Arc::downgrade(&telling) });
        Lookup::Ours(telling)
    }

    fn land(&self, range: Range, log: &LogId, telling: &Arc<Telling>, read: &Read) {
        let mut table = self.table();
        // Whoever asked for another log meanwhile took the place.
        if table.flights.get(&range).is_some_and(|flight| flight.telling.as_ptr() == Arc::as_ptr(telling)) {
            table.flights.remove(&range);
        }
        if let Read::Page(page) = read
            && page.end > range.1
        {
            table.keep(self.node.seams.now(), range, Kept::of(log, page), self.kept_bytes);
        }
        drop(table);
        // Whoever began to listen in this moment reads itself.
        if !matches!(read, Read::Unwanted) {
            telling.send_replace(Some(read.clone()));
        }
    }

    async fn read(&self, conversation: &ConvRef, address: &Address, after: Seq, give_up: Monotonic) -> Read {
        // Both branches are cancel safe: a turn that was not taken is the next one's.
        let turn = tokio::select! {
            biased;
            turn = self.turn() => turn,
            () = self.too_late(give_up) => return Read::TooLate,
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
                let shown = |record: &Record| Shown { frame: frame(record), seq: Some(record.seq) };
                let shown: Vec<Shown> = page.records.iter().map(shown).collect();
                let records = (!shown.is_empty()).then(|| Batch::new(shown));
                Read::Page(Arc::new(Page { records, end }))
            }
            Ok(Some(_)) => Read::OtherLog,
            Ok(None) => Read::Nothing,
            Err(error) => {
                tracing::debug!(conversation = %conversation.id, %error, "catching up waits for the store");
                Read::Failed
            }
        }
    }

    async fn too_late(&self, give_up: Monotonic) {
        if !self.node.rules.hold(Rule::CatchUpGivesUp) {
            return std::future::pending().await;
        }
        self.node.seams.clock.sleep_until(give_up).await;
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

impl Kept {
    fn of(log: &LogId, page: &Arc<Page>) -> Self {
        let frames = page.records.iter().flat_map(Batch::shown).map(|shown| shown.frame.bytes()).sum::<usize>();
        // One by one, and joined.
        let bytes = 2 * frames + size_of::<Self>();
        Self { log: log.clone(), page: Arc::clone(page), bytes }
    }
}

impl Table {
    /// Keeps a page, if it fits into so many bytes by itself.
    fn keep(&mut self, now: Monotonic, range: Range, kept: Kept, limit_bytes: usize) {
        if kept.bytes > limit_bytes {
            return;
        }
        self.forget_old(now, limit_bytes - kept.bytes);
        self.kept_bytes += kept.bytes;
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
