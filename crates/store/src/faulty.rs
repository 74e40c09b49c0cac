//! A store that fails as its plan says: what a network and a database do to a caller, without either.
//!
//! A [`FaultPlan`] is asked before each call and decides what becomes of it. All of randomness and time lies in the
//! plan: delays are futures that it gives, and late work runs on a spawner that it shares with its simulation.
//!
//! Invariant: a definite failure applied nothing, and a [`StoreError::Ambiguous`] is followed by at most one application.
//!
//! Deliberately absent: faults inside a call (half a batch). No backend has them: a call is one transaction.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use conch_core::ids::{ClientMsgId, ConvRef, ConversationId, Epoch, Incarnation, LogId, Seq, Subject};
use conch_core::time::Timestamp;

use crate::{
    AppendOutcome, Armed, Batch, Checkpoint, ClaimOutcome, ClaimRequest, ConversationInfo, ConversationPatch, Created,
    CursorOutcome, DueQuery, DueRow, Held, HeldLifeline, Landed, LeaseStore, Lifeline, Lifelines, LifelinesSeen,
    LogStore, Member, MembershipChange, NewConversation, NodeRow, Page, RangeQuery, Registration, Resolution, Resolved,
    Store, StoreError, Summary, SummaryPage,
};

/// A boxed future, as the plan and the spawner use it.
pub type BoxFuture<T> = std::pin::Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// Runs a future to its end beside its caller.
pub type Spawner = Arc<dyn Fn(BoxFuture<()>) + Send + Sync>;

/// Which call is about to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "each is the method of the same name")]
pub enum Call {
    HoldLifeline,
    ObserveLifelines,
    Register,
    Renew,
    ReplaceLifeline,
    Nodes,
    SetDraining,
    Deregister,
    DeclareExpired,
    DeclareProcessDead,
    Expel,
    Resolve,
    ResolveMany,
    Claim,
    Release,
    ReleaseWedged,
    HandOff,
    Log,
    Append,
    Range,
    CountAfter,
    Find,
    CreateConversation,
    Conversation,
    PatchConversation,
    AddMember,
    RemoveMember,
    IsMember,
    Members,
    Summaries,
    Summary,
    MoveCursor,
    Due,
    SaveCheckpoint,
    Checkpoint,
}

impl Call {
    /// True for the calls of [`LeaseStore`], for plans that cut off one half only.
    #[must_use]
    pub fn is_lease(self) -> bool {
        self <= Self::HandOff
    }

    /// True if the call changes nothing, so that losing its answer leaves nothing in doubt.
    #[must_use]
    pub fn is_read(self) -> bool {
        matches!(
            self,
            Self::ObserveLifelines
                | Self::Nodes
                | Self::Resolve
                | Self::ResolveMany
                | Self::Log
                | Self::Range
                | Self::CountAfter
                | Self::Find
                | Self::Conversation
                | Self::IsMember
                | Self::Members
                | Self::Summaries
                | Self::Summary
                | Self::Due
                | Self::Checkpoint
        )
    }
}

/// What becomes of a call.
pub enum Fault {
    /// It is answered.
    None,
    /// It fails before it is applied, with this error, which must not be ambiguous.
    RefuseBefore(StoreError),
    /// It is applied, and the answer is lost: [`StoreError::Ambiguous`] ([`StoreError::Unavailable`] for a read).
    ApplyThenLoseReply,
    /// The answer is lost at once, and the call is applied when this future completes. A read is not made at all.
    ApplyLate(BoxFuture<()>),
    /// It is applied when this future completes, and then answered.
    DelayBefore(BoxFuture<()>),
    /// It is applied at once, and answered when this future completes.
    DelayAfter(BoxFuture<()>),
}

/// Decides per call. It may keep state (a seeded source, a script, a switch per node) behind its own lock.
pub trait FaultPlan: Send + Sync + 'static {
    /// What becomes of this call?
    fn next(&self, call: Call) -> Fault;
}

/// A store seen through a [`FaultPlan`]. Each node of a simulation has its own, over one shared store.
pub struct FaultyStore<S> {
    inner: Arc<S>,
    plan: Arc<dyn FaultPlan>,
    spawner: Spawner,
}

impl<S> Clone for FaultyStore<S> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), plan: Arc::clone(&self.plan), spawner: Arc::clone(&self.spawner) }
    }
}

impl<S: Store> FaultyStore<S> {
    /// Sees `inner` through `plan`. Late work runs on `spawner`.
    #[must_use]
    pub fn new(inner: Arc<S>, plan: Arc<dyn FaultPlan>, spawner: Spawner) -> Self {
        Self { inner, plan, spawner }
    }

    /// The store behind.
    #[must_use]
    pub fn inner(&self) -> &Arc<S> {
        &self.inner
    }

    /// Makes one call under the plan. `work` owns all that it needs, so that it can outlive its caller.
    async fn call<T, W>(&self, call: Call, work: impl FnOnce(Arc<S>) -> W + Send) -> Result<T, StoreError>
    where
        T: Send + 'static,
        W: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let fault = self.plan.next(call);
        let work = work(Arc::clone(&self.inner));
        match fault {
            Fault::None => work.await,
            Fault::RefuseBefore(error) => {
                debug_assert!(!error.is_ambiguous(), "a refusal before applying is definite");
                Err(error)
            }
            Fault::ApplyThenLoseReply => {
                // The call's own failure is lost as well: the caller cannot know.
                drop(work.await);
                Err(lost(call))
            }
            Fault::ApplyLate(when) => {
                if !call.is_read() {
                    (self.spawner)(Box::pin(async move {
                        when.await;
                        drop(work.await);
                    }));
                }
                Err(lost(call))
            }
            Fault::DelayBefore(delay) => {
                delay.await;
                work.await
            }
            Fault::DelayAfter(delay) => {
                let answer = work.await;
                delay.await;
                answer
            }
        }
    }
}

/// A store's lifelines seen through its plan. What is held already is not the plan's to end.
struct FaultyLifelines<S> {
    store: FaultyStore<S>,
    lifelines: Arc<dyn Lifelines>,
}

#[async_trait]
impl<S: Store> Lifelines for FaultyLifelines<S> {
    async fn hold(&self) -> Result<HeldLifeline, StoreError> {
        let lifelines = Arc::clone(&self.lifelines);
        self.store.call(Call::HoldLifeline, |_| async move { lifelines.hold().await }).await
    }

    async fn observe(&self) -> Result<LifelinesSeen, StoreError> {
        let lifelines = Arc::clone(&self.lifelines);
        self.store.call(Call::ObserveLifelines, |_| async move { lifelines.observe().await }).await
    }
}

fn lost(call: Call) -> StoreError {
    let detail = format!("{call:?}: injected by the fault plan");
    if call.is_read() { StoreError::Unavailable(detail) } else { StoreError::Ambiguous(detail) }
}

#[async_trait]
impl<S: Store> LeaseStore for FaultyStore<S> {
    async fn register(&self, registration: &Registration, ttl: Duration) -> Result<(), StoreError> {
        let registration = registration.clone();
        self.call(Call::Register, |store| async move { store.register(&registration, ttl).await }).await
    }

    async fn renew(&self, me: Incarnation, ttl: Duration) -> Result<Option<u64>, StoreError> {
        self.call(Call::Renew, |store| async move { store.renew(me, ttl).await }).await
    }

    async fn replace_lifeline(
        &self,
        me: Incarnation,
        ttl: Duration,
        lifeline: Lifeline,
    ) -> Result<Option<u64>, StoreError> {
        let work = |store: Arc<S>| async move { store.replace_lifeline(me, ttl, lifeline).await };
        self.call(Call::ReplaceLifeline, work).await
    }

    fn lifelines(&self) -> Option<Arc<dyn Lifelines>> {
        let lifelines = self.inner.lifelines()?;
        Some(Arc::new(FaultyLifelines { store: self.clone(), lifelines }))
    }

    async fn nodes(&self) -> Result<Vec<NodeRow>, StoreError> {
        self.call(Call::Nodes, |store| async move { store.nodes().await }).await
    }

    async fn set_draining(&self, me: Incarnation) -> Result<bool, StoreError> {
        self.call(Call::SetDraining, |store| async move { store.set_draining(me).await }).await
    }

    async fn deregister(&self, me: Incarnation) -> Result<bool, StoreError> {
        self.call(Call::Deregister, |store| async move { store.deregister(me).await }).await
    }

    async fn declare_expired(
        &self,
        dead: Incarnation,
        seen_beat: u64,
        ttl: Duration,
        margin: Duration,
    ) -> Result<bool, StoreError> {
        let work = |store: Arc<S>| async move { store.declare_expired(dead, seen_beat, ttl, margin).await };
        self.call(Call::DeclareExpired, work).await
    }

    async fn declare_process_dead(
        &self,
        dead: Incarnation,
        seen_beat: u64,
        seen_lifeline: Lifeline,
    ) -> Result<bool, StoreError> {
        let work = |store: Arc<S>| async move { store.declare_process_dead(dead, seen_beat, seen_lifeline).await };
        self.call(Call::DeclareProcessDead, work).await
    }

    async fn expel(&self, dead: Incarnation) -> Result<bool, StoreError> {
        self.call(Call::Expel, |store| async move { store.expel(dead).await }).await
    }

    async fn resolve(&self, conversation: &ConvRef) -> Result<Option<Resolution>, StoreError> {
        let conversation = conversation.clone();
        self.call(Call::Resolve, |store| async move { store.resolve(&conversation).await }).await
    }

    async fn resolve_many(&self, conversations: &[ConvRef]) -> Result<Vec<Resolved>, StoreError> {
        let conversations = conversations.to_vec();
        self.call(Call::ResolveMany, |store| async move { store.resolve_many(&conversations).await }).await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<ClaimOutcome, StoreError> {
        let request = request.clone();
        self.call(Call::Claim, |store| async move { store.claim(&request).await }).await
    }

    async fn release(&self, held: &Held, first_seq: Seq) -> Result<bool, StoreError> {
        let held = *held;
        self.call(Call::Release, |store| async move { store.release(&held, first_seq).await }).await
    }

    async fn release_wedged(&self, held: &Held, gap: u64) -> Result<bool, StoreError> {
        let held = *held;
        self.call(Call::ReleaseWedged, |store| async move { store.release_wedged(&held, gap).await }).await
    }

    async fn hand_off(
        &self,
        held: &Held,
        to: Incarnation,
        first_seq: Seq,
        margin: Duration,
    ) -> Result<Option<Armed>, StoreError> {
        let held = *held;
        self.call(Call::HandOff, |store| async move { store.hand_off(&held, to, first_seq, margin).await }).await
    }
}

#[async_trait]
impl<S: Store> LogStore for FaultyStore<S> {
    async fn log(&self) -> Result<LogId, StoreError> {
        self.call(Call::Log, |store| async move { store.log().await }).await
    }

    async fn append(&self, me: Incarnation, batches: Vec<Batch>) -> Result<Vec<AppendOutcome>, StoreError> {
        self.call(Call::Append, |store| async move { store.append(me, batches).await }).await
    }

    async fn range(&self, query: &RangeQuery) -> Result<Option<Page>, StoreError> {
        let query = query.clone();
        self.call(Call::Range, |store| async move { store.range(&query).await }).await
    }

    async fn count_after(&self, conversation: &ConvRef, after: Seq, limit: usize) -> Result<usize, StoreError> {
        let conversation = conversation.clone();
        let work = |store: Arc<S>| async move { store.count_after(&conversation, after, limit).await };
        self.call(Call::CountAfter, work).await
    }

    async fn find(
        &self,
        conversation: &ConvRef,
        sender: &Subject,
        client_msg_id: &ClientMsgId,
    ) -> Result<Option<Landed>, StoreError> {
        let (conversation, sender, id) = (conversation.clone(), sender.clone(), client_msg_id.clone());
        self.call(Call::Find, |store| async move { store.find(&conversation, &sender, &id).await }).await
    }

    async fn create_conversation(&self, new: &NewConversation) -> Result<Created, StoreError> {
        let new = new.clone();
        self.call(Call::CreateConversation, |store| async move { store.create_conversation(&new).await }).await
    }

    async fn conversation(&self, conversation: &ConvRef) -> Result<Option<ConversationInfo>, StoreError> {
        let conversation = conversation.clone();
        self.call(Call::Conversation, |store| async move { store.conversation(&conversation).await }).await
    }

    async fn patch_conversation(
        &self,
        conversation: &ConvRef,
        patch: &ConversationPatch,
    ) -> Result<Option<ConversationInfo>, StoreError> {
        let (conversation, patch) = (conversation.clone(), patch.clone());
        let work = |store: Arc<S>| async move { store.patch_conversation(&conversation, &patch).await };
        self.call(Call::PatchConversation, work).await
    }

    async fn add_member(&self, conversation: &ConvRef, sub: &Subject) -> Result<MembershipChange, StoreError> {
        let (conversation, sub) = (conversation.clone(), sub.clone());
        self.call(Call::AddMember, |store| async move { store.add_member(&conversation, &sub).await }).await
    }

    async fn remove_member(&self, conversation: &ConvRef, sub: &Subject) -> Result<MembershipChange, StoreError> {
        let (conversation, sub) = (conversation.clone(), sub.clone());
        self.call(Call::RemoveMember, |store| async move { store.remove_member(&conversation, &sub).await }).await
    }

    async fn is_member(&self, conversation: &ConvRef, sub: &Subject) -> Result<bool, StoreError> {
        let (conversation, sub) = (conversation.clone(), sub.clone());
        self.call(Call::IsMember, |store| async move { store.is_member(&conversation, &sub).await }).await
    }

    async fn members(
        &self,
        conversation: &ConvRef,
        after: Option<&Subject>,
        limit: usize,
    ) -> Result<Option<(Vec<Member>, bool)>, StoreError> {
        let (conversation, after) = (conversation.clone(), after.cloned());
        let work = |store: Arc<S>| async move { store.members(&conversation, after.as_ref(), limit).await };
        self.call(Call::Members, work).await
    }

    async fn summaries(
        &self,
        sub: &Subject,
        after: Option<&(Timestamp, ConversationId)>,
        limit: usize,
    ) -> Result<SummaryPage, StoreError> {
        let (sub, after) = (sub.clone(), after.cloned());
        self.call(Call::Summaries, |store| async move { store.summaries(&sub, after.as_ref(), limit).await }).await
    }

    async fn summary(&self, sub: &Subject, conversation: &ConvRef) -> Result<Option<Summary>, StoreError> {
        let (sub, conversation) = (sub.clone(), conversation.clone());
        self.call(Call::Summary, |store| async move { store.summary(&sub, &conversation).await }).await
    }

    async fn move_cursor(&self, conversation: &ConvRef, sub: &Subject, to: Seq) -> Result<CursorOutcome, StoreError> {
        let (conversation, sub) = (conversation.clone(), sub.clone());
        self.call(Call::MoveCursor, |store| async move { store.move_cursor(&conversation, &sub, to).await }).await
    }

    async fn due(&self, query: &DueQuery) -> Result<Vec<DueRow>, StoreError> {
        let query = query.clone();
        self.call(Call::Due, |store| async move { store.due(&query).await }).await
    }

    async fn save_checkpoint(
        &self,
        conversation: &ConvRef,
        epoch: Epoch,
        me: Incarnation,
        checkpoint: &Checkpoint,
    ) -> Result<bool, StoreError> {
        let (conversation, checkpoint) = (conversation.clone(), checkpoint.clone());
        let work = |store: Arc<S>| async move { store.save_checkpoint(&conversation, epoch, me, &checkpoint).await };
        self.call(Call::SaveCheckpoint, work).await
    }

    async fn checkpoint(&self, conversation: &ConvRef) -> Result<Option<Checkpoint>, StoreError> {
        let conversation = conversation.clone();
        self.call(Call::Checkpoint, |store| async move { store.checkpoint(&conversation).await }).await
    }
}
