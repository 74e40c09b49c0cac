//! The memory store, for tests and the simulation.
//!
//! All of it is one synchronous state machine (`state::State`) behind a mutex that is never held across an `await`, so
//! that a call is atomic, and the same calls at the same clock readings give the same answers, byte for byte. Clones
//! share one store, as the nodes of a cluster do.
//!
//! Invariant: every call reads the injected clock exactly once, and nothing else from outside.
//!
//! Deliberately absent: durability, a clock or a runtime of its own, faults (see [`crate::faulty`]).

mod conversation;
mod lease;
mod lifelines;
mod log;
mod mutant;
mod state;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use conch_core::ids::{ClientMsgId, ConvRef, ConversationId, Epoch, Generation, Incarnation, LogId, Seq, Subject};
use conch_core::time::Timestamp;

use self::lifelines::MemoryLifelines;
pub use self::mutant::Mutant;
use self::state::State;
use crate::{
    AppendOutcome, Armed, Batch, Checkpoint, ClaimOutcome, ClaimRequest, ConversationInfo, ConversationPatch, Created,
    CursorOutcome, DueQuery, DueRow, Held, Landed, LeaseStore, Lifeline, Lifelines, LogStore, Member, MembershipChange,
    NewConversation, NodeRow, Page, RangeQuery, Registration, Resolution, Resolved, StoreError, Summary, SummaryPage,
};

/// The store's clock: milliseconds since 1970. It may jump, as a database's clock may.
pub type StoreClock = Arc<dyn Fn() -> i64 + Send + Sync>;

/// How much a restored backup raises the generation; a failover raises it by 1.
const GENERATIONS_PER_RESTORE: u64 = 65_536;

/// A store in memory. Cheap to clone; clones are the same store.
#[derive(Clone)]
pub struct MemoryStore {
    state: Arc<Mutex<State>>,
    lifelines: MemoryLifelines,
    clock: StoreClock,
}

/// What a [`MemoryStore`] held at one moment: a standby that lags, or a backup. Cheap to take and to keep.
#[derive(Clone)]
pub struct Snapshot(State);

impl MemoryStore {
    /// An empty store in generation 1.
    #[must_use]
    pub fn new(system_id: impl Into<Arc<str>>, clock: StoreClock) -> Self {
        Self { state: Arc::new(Mutex::new(State::new(system_id.into()))), lifelines: MemoryLifelines::default(), clock }
    }

    /// An empty store with one of its guards removed, to show that a check catches it.
    #[cfg(any(test, feature = "mutants"))]
    #[must_use]
    pub fn mutated(system_id: impl Into<Arc<str>>, clock: StoreClock, mutant: Mutant) -> Self {
        let store = Self::new(system_id, clock);
        store.state().mutant = Some(mutant);
        store
    }

    /// Ends the session that holds a lifeline, as a terminated backend does. False: nobody holds it.
    pub fn cut_lifeline(&self, key: Lifeline) -> bool {
        self.lifelines.cut(key)
    }

    /// Ends every session, as a crash of the database does.
    pub fn cut_all_lifelines(&self) {
        self.lifelines.cut_all();
    }

    /// What it holds now.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.state().clone())
    }

    /// The generation now.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.state().generation
    }

    /// A failover that loses nothing: the timeline rises. Returns the new generation.
    pub fn bump_generation(&self) -> Generation {
        let mut state = self.state();
        state.generation.0 += 1;
        state.generation
    }

    /// An asynchronous failover: everything that was committed after `standby` was taken is lost (node rows too), and
    /// the timeline rises above the present one. Returns the new generation.
    pub fn fail_over(&self, standby: &Snapshot) -> Generation {
        self.replace(standby, 1)
    }

    /// An operator restores a backup and tells the store so. Returns the new generation.
    pub fn restore(&self, backup: &Snapshot) -> Generation {
        self.replace(backup, GENERATIONS_PER_RESTORE)
    }

    fn replace(&self, with: &Snapshot, step: u64) -> Generation {
        let mut state = self.state();
        let generation = Generation(state.generation.0.max(with.0.generation.0) + step);
        *state = with.0.clone();
        state.generation = generation;
        generation
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Poisoned means that a test panicked in between; the state machine leaves no half-done call behind.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> i64 {
        (self.clock)()
    }
}

#[async_trait]
impl LeaseStore for MemoryStore {
    async fn register(&self, registration: &Registration, ttl: Duration) -> Result<(), StoreError> {
        let now = self.now();
        self.state().register(now, registration, ttl)
    }

    async fn renew(&self, me: Incarnation, ttl: Duration) -> Result<Option<u64>, StoreError> {
        let now = self.now();
        Ok(self.state().renew(now, me, ttl))
    }

    async fn replace_lifeline(
        &self,
        me: Incarnation,
        ttl: Duration,
        lifeline: Lifeline,
    ) -> Result<Option<u64>, StoreError> {
        let now = self.now();
        Ok(self.state().replace_lifeline(now, me, ttl, lifeline))
    }

    fn lifelines(&self) -> Option<Arc<dyn Lifelines>> {
        Some(Arc::new(self.lifelines.clone()))
    }

    async fn nodes(&self) -> Result<Vec<NodeRow>, StoreError> {
        let now = self.now();
        Ok(self.state().node_rows(now))
    }

    async fn set_draining(&self, me: Incarnation) -> Result<bool, StoreError> {
        Ok(self.state().set_draining(me))
    }

    async fn deregister(&self, me: Incarnation) -> Result<bool, StoreError> {
        Ok(self.state().remove_node(me))
    }

    async fn declare_expired(
        &self,
        dead: Incarnation,
        seen_beat: u64,
        ttl: Duration,
        margin: Duration,
    ) -> Result<bool, StoreError> {
        let now = self.now();
        Ok(self.state().declare_expired(now, dead, seen_beat, ttl + margin))
    }

    async fn declare_process_dead(
        &self,
        dead: Incarnation,
        seen_beat: u64,
        seen_lifeline: Lifeline,
    ) -> Result<bool, StoreError> {
        Ok(!self.lifelines.is_held(seen_lifeline) && self.state().declare_process_dead(dead, seen_beat, seen_lifeline))
    }

    async fn expel(&self, dead: Incarnation) -> Result<bool, StoreError> {
        Ok(self.state().remove_node(dead))
    }

    async fn resolve(&self, conversation: &ConvRef) -> Result<Option<Resolution>, StoreError> {
        let now = self.now();
        self.state().resolve(now, conversation)
    }

    async fn resolve_many(&self, conversations: &[ConvRef]) -> Result<Vec<Resolved>, StoreError> {
        let now = self.now();
        Ok(self.state().resolve_many(now, conversations))
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<ClaimOutcome, StoreError> {
        let now = self.now();
        Ok(self.state().claim(now, request).map_or(ClaimOutcome::Lost, ClaimOutcome::Won))
    }

    async fn release(&self, held: &Held, first_seq: Seq) -> Result<bool, StoreError> {
        Ok(self.state().release(held, first_seq))
    }

    async fn release_wedged(&self, held: &Held, gap: u64) -> Result<bool, StoreError> {
        Ok(self.state().release_wedged(held, gap))
    }

    async fn hand_off(
        &self,
        held: &Held,
        to: Incarnation,
        first_seq: Seq,
        margin: Duration,
    ) -> Result<Option<Armed>, StoreError> {
        let now = self.now();
        Ok(self.state().hand_off(now, held, to, first_seq, margin))
    }
}

#[async_trait]
impl LogStore for MemoryStore {
    async fn log(&self) -> Result<LogId, StoreError> {
        Ok(self.state().log_id())
    }

    async fn append(&self, me: Incarnation, batches: Vec<Batch>) -> Result<Vec<AppendOutcome>, StoreError> {
        let now = self.now();
        Ok(self.state().append_all(now, me, batches))
    }

    async fn range(&self, query: &RangeQuery) -> Result<Option<Page>, StoreError> {
        self.state().range(query)
    }

    async fn count_after(&self, conversation: &ConvRef, after: Seq, limit: usize) -> Result<usize, StoreError> {
        self.state().count_after(conversation, after, limit)
    }

    async fn find(
        &self,
        conversation: &ConvRef,
        sender: &Subject,
        client_msg_id: &ClientMsgId,
    ) -> Result<Option<Landed>, StoreError> {
        self.state().find(conversation, sender, client_msg_id)
    }

    async fn create_conversation(&self, new: &NewConversation) -> Result<Created, StoreError> {
        let now = self.now();
        self.state().create_conversation(now, new)
    }

    async fn conversation(&self, conversation: &ConvRef) -> Result<Option<ConversationInfo>, StoreError> {
        self.state().conversation_info(conversation)
    }

    async fn patch_conversation(
        &self,
        conversation: &ConvRef,
        patch: &ConversationPatch,
    ) -> Result<Option<ConversationInfo>, StoreError> {
        self.state().patch_conversation(conversation, patch)
    }

    async fn add_member(&self, conversation: &ConvRef, sub: &Subject) -> Result<MembershipChange, StoreError> {
        let now = self.now();
        self.state().add_member(now, conversation, sub)
    }

    async fn remove_member(&self, conversation: &ConvRef, sub: &Subject) -> Result<MembershipChange, StoreError> {
        self.state().remove_member(conversation, sub)
    }

    async fn is_member(&self, conversation: &ConvRef, sub: &Subject) -> Result<bool, StoreError> {
        self.state().is_member(conversation, sub)
    }

    async fn members(
        &self,
        conversation: &ConvRef,
        after: Option<&Subject>,
        limit: usize,
    ) -> Result<Option<(Vec<Member>, bool)>, StoreError> {
        self.state().members(conversation, after, limit)
    }

    async fn summaries(
        &self,
        sub: &Subject,
        after: Option<&(Timestamp, ConversationId)>,
        limit: usize,
    ) -> Result<SummaryPage, StoreError> {
        Ok(self.state().summaries(sub, after, limit))
    }

    async fn summary(&self, sub: &Subject, conversation: &ConvRef) -> Result<Option<Summary>, StoreError> {
        self.state().summary(sub, conversation)
    }

    async fn move_cursor(&self, conversation: &ConvRef, sub: &Subject, to: Seq) -> Result<CursorOutcome, StoreError> {
        self.state().move_cursor(conversation, sub, to)
    }

    async fn due(&self, query: &DueQuery) -> Result<Vec<DueRow>, StoreError> {
        let now = self.now();
        Ok(self.state().due(now, query))
    }

    async fn save_checkpoint(
        &self,
        conversation: &ConvRef,
        epoch: Epoch,
        me: Incarnation,
        checkpoint: &Checkpoint,
    ) -> Result<bool, StoreError> {
        self.state().save_checkpoint(conversation, epoch, me, checkpoint)
    }

    async fn checkpoint(&self, conversation: &ConvRef) -> Result<Option<Checkpoint>, StoreError> {
        self.state().checkpoint(conversation)
    }
}
