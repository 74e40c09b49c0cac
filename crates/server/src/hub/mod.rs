//! Hubs: a gateway's fan-out point for one conversation.
//!
//! A hub follows the conversation's owner once, however many sessions watch, and hands each frame, encoded once, over to the
//! delivery workers that write to them ([`crate::delivery`]). It keeps the newest records in a ring, so that those who come back find what they missed without the store.
//!
//! Invariants kept here: 6 and 7. Every session has a position; it gets exactly the records above it, in order. A session
//! that is behind (it joined with an older position, or its connection is slow) catches up from the store on a task of its
//! own and is attached to the live stream at the very record where the ring takes over (F1, F5).
//!
//! Deliberately absent: any buffer per session beyond its connection's bounded queue, and any encoder per session.

mod catch_up;
mod reads;
pub mod sink;
mod task;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use conch_core::coalesce::CoalesceLimits;
use conch_core::ids::{ConvKey, ConvRef, Seq, Subject};
use conch_core::refusal::{Code, Refusal, Retry};
use conch_core::shed::Rung;
use conch_core::time::Monotonic;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc, oneshot};

use crate::bounded;
use crate::delivery::Workers;
use crate::delivery::shard::{Report, Reports};
use crate::frame::Address;
use crate::metrics::{Queue, Shed};
use crate::node::Node;
use crate::owner::Present;
use crate::pressure;
use crate::router::{READ_WITHIN, Router, Sighting};
use reads::Reads;
use sink::Sink;

/// Sessions that left, and reports of workers, that a hub takes in one go: a worker that is overrun reports all that it has.
const RETURNS_AT_ONCE: usize = 256;

/// Bounds and times of a gateway's hubs; see docs/CONFIG.md.
#[derive(Debug, Clone, Copy)]
pub struct HubLimits {
    /// Sessions at once, over all hubs.
    pub sessions: usize,
    /// Newest records kept in memory, per hub.
    pub ring_records: usize,
    /// Bytes kept in memory, per hub.
    pub ring_bytes: usize,
    /// Commands that may wait for one hub.
    pub commands: usize,
    /// A join with a position further behind than this many records gets `resync`.
    pub catch_up_records: usize,
    /// Records of one read while catching up.
    pub catch_up_page: usize,
    /// Store reads for catching up under way at once, on the whole gateway.
    pub catch_up_reads: usize,
    /// Store reads for catching up a second, on the whole gateway; above it they wait for their turn, and at most 10 s.
    pub catch_up_reads_per_s: u32,
    /// Bytes of pages that were read for catching up and are kept for a moment, on the whole gateway.
    pub catch_up_kept_bytes: usize,
    /// How long a join waits for the owner before it is refused with a directive.
    pub join_wait: Duration,
    /// How long a hub outlives its last session.
    pub linger: Duration,
    /// Silence of the owner after which it is looked for again (F3).
    pub silence: Duration,
    /// From this many sessions on, presence is a count.
    pub presence_threshold: usize,
    /// Tasks that write to the gateway's sessions.
    pub workers: usize,
    /// When and how much is gathered before it is written.
    pub coalesce: CoalesceLimits,
}

impl Default for HubLimits {
    fn default() -> Self {
        Self {
            sessions: 65_536,
            ring_records: 1_024,
            ring_bytes: 2 * 1024 * 1024,
            commands: 1_024,
            catch_up_records: 10_000,
            catch_up_page: 200,
            catch_up_reads: 16,
            catch_up_reads_per_s: 200,
            catch_up_kept_bytes: 8 * 1024 * 1024,
            join_wait: Duration::from_secs(6),
            linger: Duration::from_secs(5),
            silence: Duration::from_secs(3),
            presence_threshold: 1_000,
            workers: 2,
            coalesce: CoalesceLimits::default(),
        }
    }
}

/// Names a session within its gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// A client connection that wants to watch a conversation.
pub struct Join {
    /// Where its frames go.
    pub sink: Arc<dyn Sink>,
    /// Who it is.
    pub sub: Subject,
    /// The display name.
    pub name: Option<Arc<str>>,
    /// The last seq that the client has; `None`: from now on.
    pub after: Option<Seq>,
    /// The log that `after` belongs to; `None`: the current one is assumed.
    pub log: Option<String>,
}

/// By what right a session watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Right {
    /// Its token's: it ends with the token.
    Grant,
    /// A membership: it is looked up again now and then, because a removal on another node may not be heard of.
    Membership,
}

/// What a hub is asked.
pub(crate) enum Command {
    Join {
        id: SessionId,
        join: Join,
        right: Right,
        /// When it was asked.
        asked: Monotonic,
        answer: oneshot::Sender<Result<(), Refusal>>,
    },
    Attach {
        id: SessionId,
        position: Seq,
        answer: oneshot::Sender<Attach>,
    },
    /// Tell the session that it has to load the latest page, and attach it there.
    Resync {
        id: SessionId,
        answer: oneshot::Sender<Attach>,
    },
    Typing {
        sub: Subject,
        name: Option<Arc<str>>,
    },
    Present {
        answer: oneshot::Sender<Present>,
    },
    Expel {
        sub: Subject,
        reason: Refusal,
    },
}

/// The answer to a session that has caught up to a position.
pub(crate) enum Attach {
    /// It is live now.
    Live,
    /// The ring does not reach back that far: read on from here, in the log that is shown now.
    ReadOn { from: Seq, address: Address },
    /// The connection's queue is full again: wait for room, then go on from here.
    Wait(Seq),
    /// The session is gone.
    Gone,
}

/// What came back since the hub last looked: sessions that left, and reports of the delivery workers. Neither ever waits or
/// fails; a session is in each once at most.
#[derive(Debug, Default)]
pub(crate) struct Returns {
    came: Mutex<Came>,
    wake: Notify,
}

#[derive(Debug, Default)]
pub(crate) struct Came {
    left: VecDeque<SessionId>,
    reports: VecDeque<Report>,
}

impl Returns {
    fn leave(&self, id: SessionId) {
        self.came.lock().expect("no holder panics").left.push_back(id);
        self.wake.notify_one();
    }

    /// What came, [`RETURNS_AT_ONCE`] of each at most; the rest comes after whatever else the hub has to do.
    fn take(&self) -> Came {
        let mut came = self.came.lock().expect("no holder panics");
        let Came { left, reports } = &mut *came;
        let taken = Came {
            left: left.drain(..left.len().min(RETURNS_AT_ONCE)).collect(),
            reports: reports.drain(..reports.len().min(RETURNS_AT_ONCE)).collect(),
        };
        if !left.is_empty() || !reports.is_empty() {
            self.wake.notify_one();
        }
        taken
    }
}

impl Reports for Returns {
    fn report(&self, reports: Vec<Report>) {
        self.came.lock().expect("no holder panics").reports.extend(reports);
        self.wake.notify_one();
    }
}

/// A joined session; dropping it leaves.
pub struct Session {
    id: SessionId,
    conversation: ConvRef,
    hub: HubHandle,
    hubs: Hubs,
}

impl Session {
    /// Shows the others that this one types.
    pub fn typing(&self, sub: Subject, name: Option<Arc<str>>) {
        let node = &self.hubs.shared.node;
        if node.pressure.rung() >= Rung::NoTyping {
            return node.metrics.shed(Shed::Typing);
        }
        // A hub that is too busy for this has better things to do.
        if let Err(TrySendError::Full(_)) = self.hub.commands.try_send(Command::Typing { sub, name }) {
            node.metrics.limit_hit(Queue::HubCommands);
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.hub.returns.leave(self.id);
        let mut table = self.hubs.table();
        table.sessions -= 1;
        if let Some(entry) = table.hubs.get_mut(&self.conversation.key)
            && entry.hub.commands.same_channel(&self.hub.commands)
        {
            entry.sessions -= 1;
        }
    }
}

/// A cheap handle on a hub.
#[derive(Clone)]
pub(crate) struct HubHandle {
    pub(crate) commands: mpsc::Sender<Command>,
    pub(crate) returns: Arc<Returns>,
}

/// The hubs of a gateway. Cheap to clone.
#[derive(Clone)]
pub struct Hubs {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) node: Arc<Node>,
    pub(crate) router: Router,
    pub(crate) limits: HubLimits,
    reads: Reads,
    pub(crate) workers: Workers,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    hubs: BTreeMap<ConvKey, Entry>,
    /// Over all hubs.
    sessions: usize,
    next_session: u64,
    next_hub: u64,
}

/// A hub, and how many sessions are in it or on their way in. It may end only when there are none.
struct Entry {
    hub: HubHandle,
    sessions: usize,
}

impl Hubs {
    /// The hubs of a node, none yet.
    #[must_use]
    pub fn new(node: Arc<Node>, router: Router, limits: HubLimits) -> Self {
        let reads = Reads::new(Arc::clone(&node), &limits);
        let workers = Workers::start(&node, limits.workers);
        let seams = node.seams.clone();
        let watched = Arc::clone(&node);
        let shared = Arc::new(Shared { node, router, limits, reads, workers, table: Mutex::default() });
        seams.spawn("pressure", pressure::watch(watched, Arc::downgrade(&shared)));
        Self { shared }
    }

    /// Those that write to the gateway's connections.
    pub(crate) fn workers(&self) -> &Workers {
        &self.shared.workers
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.shared.table.lock().expect("no holder of the table panics")
    }

    /// Joins a conversation. The sink has been told [`Sink::joined`] when this returns, and frames may follow at once.
    ///
    /// # Errors
    /// `not_found`, or a refusal with a directive when the owner is not reached in time or the gateway has its limit of
    /// sessions.
    pub async fn join(&self, conversation: &ConvRef, join: Join) -> Result<Session, Refusal> {
        self.join_by(Right::Grant, conversation, join).await
    }

    /// The same by a certain right.
    ///
    /// # Errors
    /// As [`Hubs::join`].
    pub async fn join_by(&self, right: Right, conversation: &ConvRef, join: Join) -> Result<Session, Refusal> {
        let session = self.enter(conversation)?;
        let id = session.id;
        let (answer, joined) = oneshot::channel();
        let asked = self.shared.node.seams.now();
        self.ask(&session.hub, Command::Join { id, join, right, asked, answer }).await?;
        match joined.await {
            Ok(Ok(())) => Ok(session),
            Ok(Err(refusal)) => Err(refusal),
            Err(_) => Err(unavailable()),
        }
    }

    async fn ask(&self, hub: &HubHandle, command: Command) -> Result<(), Refusal> {
        let sent = bounded::send(&hub.commands, command, &self.shared.node.metrics, Queue::HubCommands).await;
        sent.map_err(|bounded::Gone| unavailable())
    }

    /// A session of the conversation's hub, which is started if there is none.
    fn enter(&self, conversation: &ConvRef) -> Result<Session, Refusal> {
        let mut table = self.table();
        let limit = self.shared.limits.sessions;
        if table.sessions >= limit {
            self.shared.node.metrics.limit_hit(Queue::Sessions);
            let detail = format!("the node has its limit of {limit} sessions");
            return Err(Refusal::retry(Code::Overloaded, detail, Retry { after_ms: 1_000, budget_ms: 120_000 }));
        }
        table.sessions += 1;
        table.next_session += 1;
        let id = SessionId(table.next_session);
        let number = table.next_hub;
        let entry = table.hubs.entry(conversation.key).or_insert_with(|| {
            let hub = task::start(self.clone(), Arc::clone(&self.shared), conversation.clone(), number);
            Entry { hub, sessions: 0 }
        });
        entry.sessions += 1;
        let hub = entry.hub.clone();
        table.next_hub += 1;
        self.shared.node.metrics.hubs.set(i64::try_from(table.hubs.len()).unwrap_or(i64::MAX));
        Ok(Session { id, conversation: conversation.clone(), hub, hubs: self.clone() })
    }

    /// Takes a hub out of the table if nobody is in it or on the way in; called by the hub, which then ends.
    pub(crate) fn retire(&self, conversation: &ConvRef) -> bool {
        let mut table = self.table();
        let empty = table.hubs.get(&conversation.key).is_none_or(|entry| entry.sessions == 0);
        if empty {
            table.hubs.remove(&conversation.key);
            self.shared.node.metrics.hubs.set(i64::try_from(table.hubs.len()).unwrap_or(i64::MAX));
        }
        empty
    }

    fn existing(&self, conversation: &ConvRef) -> Option<HubHandle> {
        self.table().hubs.get(&conversation.key).map(|entry| entry.hub.clone())
    }

    /// How many sessions watch a conversation here; `None`: nobody has for a while.
    #[must_use]
    pub fn connected(&self, conversation: &ConvRef) -> Option<usize> {
        self.table().hubs.get(&conversation.key).map(|entry| entry.sessions)
    }

    /// Who is present over all gateways, as far as this one's hub knows; `None` when nobody watches here.
    pub async fn present(&self, conversation: &ConvRef) -> Option<Present> {
        let hub = self.existing(conversation)?;
        let (answer, present) = oneshot::channel();
        self.ask(&hub, Command::Present { answer }).await.ok()?;
        present.await.ok()
    }

    /// Who is present over all gateways: as this one's hub knows, if there is one, else as the owner does.
    pub async fn sight(&self, conversation: &ConvRef) -> Sighting {
        let Some(here) = self.connected(conversation) else { return self.shared.router.sight(conversation).await };
        // Both branches are cancel safe: nobody waits for the answer afterwards.
        let present = tokio::select! {
            biased;
            present = self.present(conversation) => present,
            () = self.shared.node.seams.sleep(READ_WITHIN) => None,
        };
        match present {
            // A session that is on its way in is counted, too.
            Some(present) => Sighting::Present(Present { connected: present.connected.max(here), ..present }),
            None => Sighting::Unknown,
        }
    }

    /// Ends every session of a subject in a conversation (it is a member no more).
    pub async fn expel(&self, conversation: &ConvRef, sub: &Subject, reason: Refusal) {
        if let Some(hub) = self.existing(conversation) {
            // A hub that is gone has no sessions.
            let _ = self.ask(&hub, Command::Expel { sub: sub.clone(), reason }).await;
        }
    }
}

fn unavailable() -> Refusal {
    Refusal::retry(Code::ConversationUnavailable, "the conversation's hub is restarting", Retry::SOON)
}

#[cfg(test)]
mod catch_up_tests;
#[cfg(test)]
mod crowd_tests;
#[cfg(test)]
mod tests;
