//! Who may write: node leases and conversation ownership.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
pub use conch_core::death::Lifeline;
use conch_core::ids::{ConvKey, ConvRef, Epoch, Generation, Incarnation, NodeName, Region, Seq};
use tokio::sync::oneshot;

use crate::StoreError;

/// A lifeline that this process holds; dropping it gives it up.
pub struct HeldLifeline {
    /// Its key, fresh for each session.
    pub key: Lifeline,
    /// Completes (with an error, for nothing is ever sent) when the session is lost, and the lock with it.
    pub lost: oneshot::Receiver<Infallible>,
    /// What holds the session open.
    pub session: Box<dyn Send + Sync>,
}

/// The lifelines that are held, as one observing session sees them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LifelinesSeen {
    /// Names the observing session; another number than last time: it broke, and what was seen before proves nothing.
    pub observer: u64,
    /// The keys of held locks of this cluster, ascending.
    pub held: Vec<Lifeline>,
}

/// Proof that a process lives: a lock on a session that ends with it. The first of the two channels through which a
/// process may be declared dead before its lease runs out; see docs/ARCHITECTURE.md, "Takeover".
#[async_trait]
pub trait Lifelines: Send + Sync + 'static {
    /// Opens a session of its own and takes a fresh lock on it.
    async fn hold(&self) -> Result<HeldLifeline, StoreError>;

    /// Which lifelines are held now.
    async fn observe(&self) -> Result<LifelinesSeen, StoreError>;
}

/// What a node says of itself when it registers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// Fresh for every attempt.
    pub incarnation: Incarnation,
    /// The operator's name for the node.
    pub node: NodeName,
    /// Where it runs.
    pub region: Region,
    /// Where its link listens; empty for a single node.
    pub addr: String,
    /// The lock its process holds; `None` where the store has no lifelines.
    pub lifeline: Option<Lifeline>,
}

/// A node's row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRow {
    /// Who and where.
    pub registration: Registration,
    /// Rises by one with each renewal.
    pub beat: u64,
    /// It takes no new conversations.
    pub draining: bool,
    /// Time to the end of the lease on the store's clock, in milliseconds; negative when it ran out.
    pub expires_in_ms: i64,
}

/// The owner a conversation's head names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerSeen {
    /// The incarnation.
    pub incarnation: Incarnation,
    /// Its row; `None`: it is registered no more, so the conversation may be taken.
    pub node: Option<NodeRow>,
}

/// What is known of a conversation's ownership at one moment. Never authority: a claim checks it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolution {
    /// The head's epoch; `None`: never owned.
    pub epoch: Option<Epoch>,
    /// The head's owner; `None`: released or never owned.
    pub owner: Option<OwnerSeen>,
}

/// Conversations that are resolved by one call at most: what one transaction of any backend takes.
pub const RESOLVE_MANY_MAX: usize = 64;

/// One answer among several. A conversation that cannot be resolved harms no other.
pub type Resolved = Result<Option<Resolution>, StoreError>;

/// A compare-and-set on a conversation's head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimRequest {
    /// The conversation, which exists.
    pub conversation: ConvKey,
    /// Who claims; must be registered with more than `margin` left.
    pub me: Incarnation,
    /// The epoch that was seen; `None`: no head row.
    pub seen_epoch: Option<Epoch>,
    /// The owner that was seen: null, unregistered, or `me` without a task.
    pub seen_owner: Option<Incarnation>,
    /// A lease with less left than this may not claim.
    pub margin: Duration,
    /// How many numbers an unclean takeover skips.
    pub gap: u64,
}

/// Ownership, as a claim or a hand-off established it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Armed {
    /// The fencing token of this reign.
    pub epoch: Epoch,
    /// The record store's generation at that moment.
    pub generation: Generation,
    /// The last committed seq.
    pub last_seq: Seq,
    /// The first seq this reign may assign: after everything that was ever reserved.
    pub first_seq: Seq,
}

/// How a claim ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimOutcome {
    /// The conversation is ours.
    Won(Armed),
    /// The head is not as it was seen, or this incarnation may not claim: resolve again.
    Lost,
}

/// Ownership, as its holder proves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The conversation.
    pub conversation: ConvKey,
    /// The reign.
    pub epoch: Epoch,
    /// The holder.
    pub me: Incarnation,
}

/// Node leases and conversation ownership.
///
/// Contract, checked by [`crate::conformance`]:
/// - A conversation's epoch never falls and survives release; every change of owner raises it.
/// - An incarnation whose row is gone never gets one again, and its claims, renewals and releases change nothing.
/// - "Absent" never reverts, so a claim is one compare-and-set on the head and locks no node row.
/// - A head row is never deleted.
#[async_trait]
pub trait LeaseStore: Send + Sync + 'static {
    /// Adds a node's row. The incarnation must be fresh.
    async fn register(&self, registration: &Registration, ttl: Duration) -> Result<(), StoreError>;

    /// Extends the lease from now on the store's clock. `None`: the row is gone, and the process must exit. An expired
    /// row that nobody deleted is renewed.
    async fn renew(&self, me: Incarnation, ttl: Duration) -> Result<Option<u64>, StoreError>;

    /// Renews like [`LeaseStore::renew`] and names another lifeline, which is held already.
    async fn replace_lifeline(
        &self,
        me: Incarnation,
        ttl: Duration,
        lifeline: Lifeline,
    ) -> Result<Option<u64>, StoreError>;

    /// The store's lifelines; `None`: it has none, so a death is seen when the lease runs out.
    fn lifelines(&self) -> Option<Arc<dyn Lifelines>>;

    /// All node rows.
    async fn nodes(&self) -> Result<Vec<NodeRow>, StoreError>;

    /// Marks a node as draining: from here on its claims lose, but for what it owns itself (a write of unknown outcome is
    /// settled by a claim of one's own). False: no such row.
    async fn set_draining(&self, me: Incarnation) -> Result<bool, StoreError>;

    /// Removes one's own row, at the end of a clean shutdown. False: it was gone already.
    async fn deregister(&self, me: Incarnation) -> Result<bool, StoreError>;

    /// Declares an expired incarnation dead, if its beat is still `seen_beat` and its lease has run out on the store's
    /// clock (or lies further ahead than any renewal could put it: the clock was set back).
    async fn declare_expired(
        &self,
        dead: Incarnation,
        seen_beat: u64,
        ttl: Duration,
        margin: Duration,
    ) -> Result<bool, StoreError>;

    /// Declares a process dead whose lease may still run: only if beat and lifeline are as seen, and nobody holds that lock
    /// at this moment. The caller has the other evidence that this needs.
    async fn declare_process_dead(
        &self,
        dead: Incarnation,
        seen_beat: u64,
        seen_lifeline: Lifeline,
    ) -> Result<bool, StoreError>;

    /// Declares an incarnation dead on certain knowledge (an operator, an exit hook, a lock that only one process can
    /// hold). False: no such row.
    async fn expel(&self, dead: Incarnation) -> Result<bool, StoreError>;

    /// Who owns a conversation? `None`: there is no such conversation.
    ///
    /// # Errors
    /// [`StoreError::Collision`] if the key belongs to another id.
    async fn resolve(&self, conversation: &ConvRef) -> Result<Option<Resolution>, StoreError>;

    /// As [`LeaseStore::resolve`] for up to [`RESOLVE_MANY_MAX`] at once, as of one moment: one answer for each, in the order in
    /// which they were asked. One round trip where the backend has any.
    ///
    /// # Errors
    /// What befell all of them. That one key belongs to another id is that one's answer.
    async fn resolve_many(&self, conversations: &[ConvRef]) -> Result<Vec<Resolved>, StoreError>;

    /// Takes ownership, if the head is as it was seen. The four cases: no owner, epoch + 1 (the generation's first for a
    /// new one); mine without a task, epoch + 1 and the gap, for something may be in flight; an unregistered owner's,
    /// epoch + 1 and the gap; a live owner's: the caller does not ask. In a new generation a million numbers and epochs
    /// for each generation passed are skipped instead.
    async fn claim(&self, request: &ClaimRequest) -> Result<ClaimOutcome, StoreError>;

    /// Gives ownership up with nothing in flight; `first_seq` is the next number that would have been assigned, so that
    /// no hole remains. False: it was not ours any more.
    async fn release(&self, held: &Held, first_seq: Seq) -> Result<bool, StoreError>;

    /// Gives ownership up on behalf of a task that no longer answers: something may be in flight, so the gap is kept.
    async fn release_wedged(&self, held: &Held, gap: u64) -> Result<bool, StoreError>;

    /// Passes ownership to a live peer that has agreed, with nothing in flight. `None`: it was not ours, or the peer
    /// may not take it.
    async fn hand_off(
        &self,
        held: &Held,
        to: Incarnation,
        first_seq: Seq,
        margin: Duration,
    ) -> Result<Option<Armed>, StoreError>;
}
