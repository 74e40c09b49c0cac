//! The personal stream: every conversation of mine, with head and unread count, on one connection.
//!
//! A task per personal session sends a summary of each conversation once, then again whenever something in it changed;
//! changes gather for [`WINDOW`], so that a busy conversation costs each of its members a bounded number of look-ups. What
//! happens on other nodes is told by notices, which may be lost: so a stream looks at everything again now and then
//! ([`look_again`]), and nothing stays old for longer than that.
//!
//! Deliberately absent: the records themselves. Whoever wants those joins the conversation.

mod look_again;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use conch_core::ids::{ConvKey, ConvRef, ConversationId, LogId, Subject};
use conch_core::time::Timestamp;
use conch_store::{Summary, SummaryPage, UNREAD_CAP};
use serde::Serialize;
use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use crate::bounded;
use crate::frame::{Address, Frame};
use crate::hub::sink::{FrameSink, Push};
use crate::metrics::Queue;
use crate::node::Node;

/// How long changes gather before they are looked up.
pub const WINDOW: Duration = Duration::from_millis(250);
/// Most conversations of one personal stream; the oldest are left to `GET /v1/conversations`.
pub const STREAM_CONVERSATIONS: usize = 1_000;
/// Summaries of one look-up.
const PAGE: usize = 100;
/// Streams of a gateway that read a page at once while they begin.
const BEGINNINGS: usize = 16;

/// The personal streams of a gateway. Cheap to clone.
#[derive(Clone)]
pub struct People {
    shared: Arc<Shared>,
}

struct Shared {
    node: Arc<Node>,
    /// Turns to read a page: of streams that begin, and of those that look again.
    beginnings: Semaphore,
    looks: Semaphore,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    next: u64,
    sessions: BTreeMap<u64, Arc<Inbox>>,
    by_conversation: BTreeMap<ConvKey, BTreeSet<u64>>,
    by_subject: BTreeMap<Subject, BTreeSet<u64>>,
    /// What each session watches, so that leaving costs that, and not a walk through everything.
    watched: BTreeMap<u64, BTreeSet<ConvKey>>,
}

impl Table {
    fn unwatch(&mut self, id: u64, key: ConvKey) {
        if let Some(sessions) = self.by_conversation.get_mut(&key) {
            sessions.remove(&id);
            if sessions.is_empty() {
                self.by_conversation.remove(&key);
            }
        }
    }
}

/// What a personal session has to look at.
struct Inbox {
    sub: Subject,
    changes: Mutex<Changes>,
    wake: Notify,
}

#[derive(Default)]
struct Changes {
    dirty: BTreeMap<ConvKey, ConvRef>,
    /// The newest of each conversation: what waits for a slow stream is bounded by its conversations, not by their changes.
    memberships: BTreeMap<ConvKey, (ConvRef, Change)>,
    closed: bool,
}

/// How a membership changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The subject is a member now.
    Added,
    /// The subject is a member no more.
    Removed,
}

/// A personal session; dropping it leaves.
pub struct PersonalSession {
    id: u64,
    people: People,
}

impl Drop for PersonalSession {
    fn drop(&mut self) {
        self.people.leave(self.id);
    }
}

impl Inbox {
    fn changes(&self) -> MutexGuard<'_, Changes> {
        self.changes.lock().expect("no holder of the changes panics")
    }

    fn mark(&self, conversation: &ConvRef) {
        self.changes().dirty.insert(conversation.key, conversation.clone());
        self.wake.notify_one();
    }
}

/// A conversation as a member sees it, on the wire.
#[derive(Serialize)]
pub struct SummaryJson<'a> {
    id: &'a ConversationId,
    kind: &'static str,
    title: Option<&'a str>,
    agent: Option<&'a str>,
    head_seq: u64,
    log: &'a str,
    cursor: u64,
    unread: u32,
    unread_capped: bool,
    last_message: Option<&'a conch_core::record::Record>,
    updated_at: Timestamp,
}

impl<'a> SummaryJson<'a> {
    /// The wire form of a summary.
    #[must_use]
    pub fn of(summary: &'a Summary, log: &'a LogId) -> Self {
        Self {
            id: &summary.id,
            kind: summary.kind.as_str(),
            title: summary.title.as_deref(),
            agent: summary.agent.as_ref().map(|agent| agent.as_str()),
            head_seq: summary.head_seq.0,
            log: log.as_str(),
            cursor: summary.cursor.0,
            unread: summary.unread,
            unread_capped: summary.unread >= UNREAD_CAP,
            last_message: summary.last_message.as_ref(),
            updated_at: summary.updated_at,
        }
    }
}

impl People {
    /// No personal streams yet.
    #[must_use]
    pub fn new(node: Arc<Node>) -> Self {
        let (beginnings, looks) = (Semaphore::new(BEGINNINGS), Semaphore::new(look_again::LOOKS));
        Self { shared: Arc::new(Shared { node, beginnings, looks, table: Mutex::default() }) }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.shared.table.lock().expect("no holder of the table panics")
    }

    /// Opens a personal stream into a sink.
    #[must_use]
    pub fn join(&self, sub: Subject, sink: Arc<dyn FrameSink>) -> PersonalSession {
        let inbox = Arc::new(Inbox { sub: sub.clone(), changes: Mutex::default(), wake: Notify::new() });
        let id = {
            let mut table = self.table();
            table.next += 1;
            let id = table.next;
            table.sessions.insert(id, Arc::clone(&inbox));
            table.by_subject.entry(sub).or_default().insert(id);
            id
        };
        let task = Stream { people: self.clone(), id, inbox, sink, known: BTreeMap::new() };
        self.shared.node.seams.spawn("personal stream", task.run());
        PersonalSession { id, people: self.clone() }
    }

    fn leave(&self, id: u64) {
        let mut table = self.table();
        let Some(inbox) = table.sessions.remove(&id) else { return };
        if let Some(sessions) = table.by_subject.get_mut(&inbox.sub) {
            sessions.remove(&id);
            if sessions.is_empty() {
                table.by_subject.remove(&inbox.sub);
            }
        }
        for key in table.watched.remove(&id).unwrap_or_default() {
            table.unwatch(id, key);
        }
        inbox.changes().closed = true;
        inbox.wake.notify_one();
    }

    fn watch(&self, id: u64, conversation: &ConvRef) {
        let mut table = self.table();
        if table.sessions.contains_key(&id) {
            table.by_conversation.entry(conversation.key).or_default().insert(id);
            table.watched.entry(id).or_default().insert(conversation.key);
        }
    }

    fn unwatch(&self, id: u64, conversation: &ConvRef) {
        let mut table = self.table();
        table.unwatch(id, conversation.key);
        if let Some(watched) = table.watched.get_mut(&id) {
            watched.remove(&conversation.key);
        }
    }

    /// A record was published.
    pub fn published(&self, conversation: &ConvRef) {
        let table = self.table();
        let Some(sessions) = table.by_conversation.get(&conversation.key) else { return };
        for inbox in sessions.iter().filter_map(|id| table.sessions.get(id)) {
            inbox.mark(conversation);
        }
    }

    /// Something of a conversation changed for everybody (its title).
    pub fn changed(&self, conversation: &ConvRef) {
        self.published(conversation);
    }

    /// Something of a conversation changed for one subject (a cursor).
    pub fn changed_for(&self, conversation: &ConvRef, sub: &Subject) {
        let table = self.table();
        for inbox in table.by_subject.get(sub).into_iter().flatten().filter_map(|id| table.sessions.get(id)) {
            inbox.mark(conversation);
        }
    }

    /// A membership changed.
    pub fn membership(&self, conversation: &ConvRef, sub: &Subject, change: Change) {
        let table = self.table();
        for inbox in table.by_subject.get(sub).into_iter().flatten().filter_map(|id| table.sessions.get(id)) {
            inbox.changes().memberships.insert(conversation.key, (conversation.clone(), change));
            inbox.wake.notify_one();
        }
    }
}

struct Stream {
    people: People,
    id: u64,
    inbox: Arc<Inbox>,
    sink: Arc<dyn FrameSink>,
    /// What was sent last of each conversation.
    known: BTreeMap<ConvKey, Known>,
}

/// What the stream's client knows of a conversation.
struct Known {
    conversation: ConvRef,
    /// Of the summary's JSON.
    fingerprint: u64,
}

/// Why a stream's task ends.
struct Ended;

impl Stream {
    async fn run(mut self) {
        // Either way the session is over; whoever holds it drops it.
        let _ = self.stream().await;
    }

    async fn stream(&mut self) -> Result<(), Ended> {
        let address = self.address().await?;
        self.send_all(&address).await?;
        self.send(&Arc::new(Frame::kept(&address, "caught_up", "{}".to_owned()))).await?;
        let mut look = look_again::Looks::begin(&self.people.shared.node);
        loop {
            // Both branches are cancel safe: a wake-up that nobody took stays.
            let is_time = tokio::select! {
                biased;
                () = self.inbox.wake.notified() => false,
                () = look.due() => true,
            };
            if is_time {
                if look.next(&self.people.shared.node) == look_again::Look::Needed {
                    self.look_again(&address).await?;
                }
                continue;
            }
            self.people.shared.node.seams.sleep(WINDOW).await;
            let (memberships, dirty) = {
                let mut changes = self.inbox.changes();
                if changes.closed {
                    return Err(Ended);
                }
                (std::mem::take(&mut changes.memberships), std::mem::take(&mut changes.dirty))
            };
            for (conversation, change) in memberships.into_values() {
                self.send_membership(&address, &conversation, change).await?;
            }
            for conversation in dirty.into_values() {
                self.send_summary(&address, &conversation).await?;
            }
        }
    }

    async fn address(&self) -> Result<Address, Ended> {
        let Shared { node, beginnings, .. } = &*self.people.shared;
        let _turn = self.turn(beginnings).await?;
        loop {
            match node.store.log().await {
                Ok(log) => return Ok(Address { topic: "user:me".into(), log }),
                Err(error) => self.wait_for_store(&error).await?,
            }
        }
    }

    async fn wait_for_store(&self, error: &conch_store::StoreError) -> Result<(), Ended> {
        tracing::debug!(%error, "a personal stream waits for the store");
        self.people.shared.node.seams.sleep(Duration::from_secs(1)).await;
        if self.inbox.changes().closed { Err(Ended) } else { Ok(()) }
    }

    /// Sends a summary of each conversation. A page is read again once its conversations are watched, and the list is gone
    /// through again until nothing new turns up, so that whatever happens meanwhile is either in it or marked.
    async fn send_all(&mut self, address: &Address) -> Result<(), Ended> {
        let people = self.people.clone();
        let turns = &people.shared.beginnings;
        let mut sent = BTreeSet::new();
        let mut after = None;
        while sent.len() < STREAM_CONVERSATIONS {
            let seen = self.page(turns, after.as_ref()).await?;
            let mut fresh = 0;
            for summary in &seen.summaries {
                self.people.watch(self.id, &summary.id.clone().into());
                fresh += usize::from(!sent.contains(&summary.id));
            }
            if fresh > 0 {
                for summary in &self.page(turns, after.as_ref()).await?.summaries {
                    // One that has come up meanwhile may not be watched yet.
                    self.people.watch(self.id, &summary.id.clone().into());
                    sent.insert(summary.id.clone());
                    self.show(address, summary).await?;
                }
            }
            after = match seen.summaries.last() {
                Some(last) if seen.more => Some((last.updated_at, last.id.clone())),
                // The end. From the top again, if anything may have moved up while this went through several pages.
                _ if after.is_some() && fresh > 0 => None,
                _ => break,
            };
        }
        Ok(())
    }

    /// Waits until this stream may read: however many are begun and given up, a few read at once, and none for a client that has
    /// gone meanwhile. A turn is for reading alone, since a client that takes nothing is waited for without end.
    async fn turn<'a>(&self, turns: &'a Semaphore) -> Result<SemaphorePermit<'a>, Ended> {
        let turn = bounded::acquire(turns, &self.people.shared.node.metrics, Queue::PersonalReads).await;
        if self.inbox.changes().closed {
            return Err(Ended);
        }
        turn.map_err(|_| Ended)
    }

    async fn page(&self, turns: &Semaphore, after: Option<&(Timestamp, ConversationId)>) -> Result<SummaryPage, Ended> {
        let _turn = self.turn(turns).await?;
        loop {
            match self.people.shared.node.store.summaries(&self.inbox.sub, after, PAGE).await {
                Ok(page) => return Ok(page),
                Err(error) => self.wait_for_store(&error).await?,
            }
        }
    }

    async fn send_membership(
        &mut self,
        address: &Address,
        conversation: &ConvRef,
        change: Change,
    ) -> Result<(), Ended> {
        let word = match change {
            Change::Added => "added",
            Change::Removed => "removed",
        };
        let json = format!(r#"{{"conversation":"{}","change":"{word}"}}"#, conversation.id);
        self.send(&Arc::new(Frame::kept(address, "membership", json))).await?;
        match change {
            Change::Added => {
                self.people.watch(self.id, conversation);
                self.send_summary(address, conversation).await
            }
            Change::Removed => {
                self.people.unwatch(self.id, conversation);
                self.known.remove(&conversation.key);
                Ok(())
            }
        }
    }

    async fn send_summary(&mut self, address: &Address, conversation: &ConvRef) -> Result<(), Ended> {
        // No member any more: nothing to show.
        match self.summary(conversation).await? {
            Some(summary) => self.show(address, &summary).await,
            None => Ok(()),
        }
    }

    async fn summary(&self, conversation: &ConvRef) -> Result<Option<Summary>, Ended> {
        loop {
            match self.people.shared.node.store.summary(&self.inbox.sub, conversation).await {
                Ok(summary) => return Ok(summary),
                Err(error) => self.wait_for_store(&error).await?,
            }
        }
    }

    async fn show(&mut self, address: &Address, summary: &Summary) -> Result<(), Ended> {
        let json = summary_json(address, summary);
        let conversation = ConvRef::from(summary.id.clone());
        let fingerprint = look_again::fingerprint(&json);
        self.known.insert(conversation.key, Known { conversation, fingerprint });
        self.send(&Arc::new(Frame::kept(address, "conversation", json))).await
    }

    async fn send(&self, frame: &Arc<Frame>) -> Result<(), Ended> {
        loop {
            match self.sink.push(frame) {
                Push::Accepted => return Ok(()),
                Push::Behind => {
                    self.people.shared.node.metrics.limit_hit(Queue::Outbox);
                    self.sink.room().await;
                }
                Push::Closed => return Err(Ended),
            }
        }
    }
}

fn summary_json(address: &Address, summary: &Summary) -> String {
    serde_json::to_string(&SummaryJson::of(summary, &address.log))
        .expect("a summary has string keys and valid bodies only")
}
