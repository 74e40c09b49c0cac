//! The two traits on both stores. Node leases go to their own thread, the rest runs on the runtime.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use conch_core::ids::{
    ClientMsgId, ConvKey, ConvRef, ConversationId, Epoch, Incarnation, LogId, NodeName, Seq, Subject,
};
use conch_core::time::Timestamp;
use tokio::time::{Instant, timeout};

use super::{EtcdStore, Inner};
use crate::own_thread::{Effect, Lane};
use crate::postgres::ArmOutcome;
use crate::{
    AppendOutcome, Armed, Batch, Checkpoint, ClaimOutcome, ClaimRequest, ConversationInfo, ConversationPatch, Created,
    CursorOutcome, DueQuery, DueRow, Held, Landed, LeaseStore, Lifeline, Lifelines, LogStore, Member, MembershipChange,
    NewConversation, NodeRow, Page, RangeQuery, Registration, Resolution, Resolved, StoreError, Summary, SummaryPage,
};

/// Longest wait for the name of an owner's node, which is for show.
const NAME_LIMIT: Duration = Duration::from_millis(500);
/// After a wait in vain names are left out for so long, so that records are readable without etcd.
const NAMES_PAUSE: Duration = Duration::from_secs(5);

/// A failure after etcd had changed: what is settled by a claim.
fn half_done(error: StoreError) -> StoreError {
    match error {
        StoreError::Unavailable(text) | StoreError::Full(text) => StoreError::Ambiguous(text),
        other => other,
    }
}

#[async_trait]
impl LeaseStore for EtcdStore {
    async fn register(&self, registration: &Registration, ttl: Duration) -> Result<(), StoreError> {
        let registration = registration.clone();
        self.on_thread(Lane::Heartbeat, Effect::Write, move |inner| async move {
            inner.leases.register(&inner.heartbeat, &registration, ttl).await
        })
        .await
    }

    async fn renew(&self, me: Incarnation, ttl: Duration) -> Result<Option<u64>, StoreError> {
        self.on_thread(Lane::Heartbeat, Effect::Write, move |inner| async move {
            inner.leases.renew(&inner.heartbeat, me, ttl).await
        })
        .await
    }

    async fn replace_lifeline(
        &self,
        me: Incarnation,
        ttl: Duration,
        lifeline: Lifeline,
    ) -> Result<Option<u64>, StoreError> {
        self.on_thread(Lane::Heartbeat, Effect::Write, move |inner| async move {
            inner.leases.replace_lifeline(&inner.heartbeat, me, ttl, lifeline).await
        })
        .await
    }

    fn lifelines(&self) -> Option<Arc<dyn Lifelines>> {
        Some(Arc::clone(&self.inner.lifelines) as Arc<dyn Lifelines>)
    }

    async fn nodes(&self) -> Result<Vec<NodeRow>, StoreError> {
        self.on_thread(
            Lane::Membership,
            Effect::Read,
            |inner| async move { inner.leases.nodes(&inner.membership).await },
        )
        .await
    }

    async fn set_draining(&self, me: Incarnation) -> Result<bool, StoreError> {
        self.on_thread(Lane::Membership, Effect::Write, move |inner| async move {
            inner.leases.change(&inner.membership, me, |value| value.draining = true).await
        })
        .await
    }

    async fn deregister(&self, me: Incarnation) -> Result<bool, StoreError> {
        self.expel(me).await
    }

    async fn declare_expired(
        &self,
        dead: Incarnation,
        seen_beat: u64,
        ttl: Duration,
        margin: Duration,
    ) -> Result<bool, StoreError> {
        let longest = i64::try_from((ttl + margin).as_millis()).unwrap_or(i64::MAX);
        self.on_thread(Lane::Membership, Effect::Write, move |inner| async move {
            // etcd's own expiry comes first, as a rule; a lease further ahead than any renewal could put it is none.
            let over = |row: &NodeRow| row.beat == seen_beat && (row.expires_in_ms < 0 || row.expires_in_ms > longest);
            inner.leases.end(&inner.membership, dead, over).await
        })
        .await
    }

    async fn declare_process_dead(
        &self,
        dead: Incarnation,
        seen_beat: u64,
        seen_lifeline: Lifeline,
    ) -> Result<bool, StoreError> {
        // Held while its lease is revoked, so that it was nobody's.
        let Some(taken) = self.inner.records.take_lifeline(seen_lifeline).await? else { return Ok(false) };
        let as_seen = move |row: &NodeRow| row.beat == seen_beat && row.registration.lifeline == Some(seen_lifeline);
        self.on_thread(Lane::Membership, Effect::Write, move |inner| async move {
            let ended = inner.leases.end(&inner.membership, dead, as_seen).await;
            drop(taken);
            ended
        })
        .await
    }

    async fn expel(&self, dead: Incarnation) -> Result<bool, StoreError> {
        self.on_thread(Lane::Membership, Effect::Write, move |inner| async move {
            inner.leases.end(&inner.membership, dead, |_| true).await
        })
        .await
    }

    async fn resolve(&self, conversation: &ConvRef) -> Result<Option<Resolution>, StoreError> {
        let conversation = conversation.clone();
        self.on_runtime(Effect::Read, move |inner| async move {
            // The records know whether there is such a conversation, and whose key it is.
            if inner.records.conversation(&conversation).await?.is_none() {
                return Ok(None);
            }
            Ok(Some(inner.ownerships.resolve(&inner.claims, conversation.key).await?))
        })
        .await
    }

    async fn resolve_many(&self, conversations: &[ConvRef]) -> Result<Vec<Resolved>, StoreError> {
        let conversations = conversations.to_vec();
        self.on_runtime(Effect::Read, move |inner| async move {
            // As above. What these say of owners is of the time before the other store was asked, and is not used.
            let mut answers = inner.records.resolve_many(&conversations).await?;
            let keys: Vec<ConvKey> = conversations.iter().map(|conversation| conversation.key).collect();
            let mut found = inner.ownerships.resolve_many(&inner.claims, &keys).await?.into_iter();
            for answer in &mut answers {
                let resolution = found.next();
                if let Ok(Some(known)) = answer {
                    *known = resolution.expect("one for each that was asked");
                }
            }
            Ok(answers)
        })
        .await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<ClaimOutcome, StoreError> {
        let request = request.clone();
        self.on_runtime(Effect::Write, move |inner| async move { claim(&inner, &request).await }).await
    }

    async fn release(&self, held: &Held, first_seq: Seq) -> Result<bool, StoreError> {
        let held = *held;
        self.on_runtime(Effect::Write, move |inner| async move {
            if !inner.ownerships.is_held(&inner.claims, &held).await? {
                return Ok(false);
            }
            // False here: an earlier release got no further than this.
            inner.records.release_elsewhere(&held, first_seq).await?;
            inner.ownerships.release(&inner.claims, &held).await.map_err(half_done)
        })
        .await
    }

    async fn release_wedged(&self, held: &Held, gap: u64) -> Result<bool, StoreError> {
        let held = *held;
        self.on_runtime(Effect::Write, move |inner| async move {
            if !inner.ownerships.is_held(&inner.claims, &held).await? {
                return Ok(false);
            }
            inner.records.release_wedged_elsewhere(&held, gap).await?;
            inner.ownerships.release(&inner.claims, &held).await.map_err(half_done)
        })
        .await
    }

    async fn hand_off(
        &self,
        held: &Held,
        to: Incarnation,
        first_seq: Seq,
        margin: Duration,
    ) -> Result<Option<Armed>, StoreError> {
        let held = *held;
        self.on_runtime(Effect::Write, move |inner| async move {
            let Some(epoch) = inner.ownerships.hand_off(&inner.claims, &held, to, margin).await? else {
                return Ok(None);
            };
            // On the receiver's behalf, and without a hole. Where that fails, or finds another generation, the receiver owns
            // it without being armed: it claims. The giver has lost it all the same, which `None` would not say.
            match inner.records.hand_off_elsewhere(&held, to, epoch, first_seq).await.map_err(half_done)? {
                Some(armed) => Ok(Some(armed)),
                None => {
                    Err(StoreError::Ambiguous(format!("{to} owns it in etcd, and the records' fence is not armed")))
                }
            }
        })
        .await
    }
}

/// Claims in etcd, then arms the fence. A reign that is not armed is discarded: it is the claimant's without a task.
async fn claim(inner: &Inner, request: &ClaimRequest) -> Result<ClaimOutcome, StoreError> {
    let Some(epoch) = inner.ownerships.claim(&inner.claims, request).await? else { return Ok(ClaimOutcome::Lost) };
    let armed = inner.records.arm(request.conversation, epoch, request.me, request.gap).await.map_err(half_done)?;
    Ok(match armed {
        ArmOutcome::Armed(armed) => ClaimOutcome::Won(armed),
        ArmOutcome::Fenced => ClaimOutcome::Lost,
    })
}

impl EtcdStore {
    /// The name of a registered node; `None` also when etcd does not say.
    async fn node_name(&self, incarnation: Incarnation) -> Option<NodeName> {
        let paused = *self.inner.names_paused_until.lock().unwrap_or_else(PoisonError::into_inner);
        if paused.is_some_and(|until| Instant::now() < until) {
            return None;
        }
        let asked = self.on_runtime(Effect::Read, move |inner| async move {
            match timeout(NAME_LIMIT, inner.leases.node(&inner.claims, incarnation)).await {
                Ok(answered) => answered,
                Err(_) => Err(StoreError::Unavailable("etcd did not answer in time".to_owned())),
            }
        });
        match asked.await {
            Ok(found) => found.map(|(_, value)| value.registration.node),
            Err(error) => {
                tracing::debug!(%error, "the names of owners' nodes are left out");
                let until = Instant::now() + NAMES_PAUSE;
                *self.inner.names_paused_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(until);
                None
            }
        }
    }

    /// Names the owner's node.
    async fn named(&self, mut info: ConversationInfo) -> ConversationInfo {
        if let Some(head) = &mut info.head {
            head.owner_node = match head.owner {
                Some(owner) => self.node_name(owner).await,
                None => None,
            };
        }
        info
    }
}

#[async_trait]
impl LogStore for EtcdStore {
    async fn log(&self) -> Result<LogId, StoreError> {
        self.inner.records.log().await
    }

    async fn append(&self, me: Incarnation, batches: Vec<Batch>) -> Result<Vec<AppendOutcome>, StoreError> {
        self.inner.records.append(me, batches).await
    }

    async fn range(&self, query: &RangeQuery) -> Result<Option<Page>, StoreError> {
        self.inner.records.range(query).await
    }

    async fn count_after(&self, conversation: &ConvRef, after: Seq, limit: usize) -> Result<usize, StoreError> {
        self.inner.records.count_after(conversation, after, limit).await
    }

    async fn find(
        &self,
        conversation: &ConvRef,
        sender: &Subject,
        client_msg_id: &ClientMsgId,
    ) -> Result<Option<Landed>, StoreError> {
        self.inner.records.find(conversation, sender, client_msg_id).await
    }

    async fn create_conversation(&self, new: &NewConversation) -> Result<Created, StoreError> {
        Ok(match self.inner.records.create_conversation(new).await? {
            Created::New(info) => Created::New(info),
            Created::Existing(info) => Created::Existing(self.named(info).await),
        })
    }

    async fn conversation(&self, conversation: &ConvRef) -> Result<Option<ConversationInfo>, StoreError> {
        match self.inner.records.conversation(conversation).await? {
            Some(info) => Ok(Some(self.named(info).await)),
            None => Ok(None),
        }
    }

    async fn patch_conversation(
        &self,
        conversation: &ConvRef,
        patch: &ConversationPatch,
    ) -> Result<Option<ConversationInfo>, StoreError> {
        match self.inner.records.patch_conversation(conversation, patch).await? {
            Some(info) => Ok(Some(self.named(info).await)),
            None => Ok(None),
        }
    }

    async fn add_member(&self, conversation: &ConvRef, sub: &Subject) -> Result<MembershipChange, StoreError> {
        self.inner.records.add_member(conversation, sub).await
    }

    async fn remove_member(&self, conversation: &ConvRef, sub: &Subject) -> Result<MembershipChange, StoreError> {
        self.inner.records.remove_member(conversation, sub).await
    }

    async fn is_member(&self, conversation: &ConvRef, sub: &Subject) -> Result<bool, StoreError> {
        self.inner.records.is_member(conversation, sub).await
    }

    async fn members(
        &self,
        conversation: &ConvRef,
        after: Option<&Subject>,
        limit: usize,
    ) -> Result<Option<(Vec<Member>, bool)>, StoreError> {
        self.inner.records.members(conversation, after, limit).await
    }

    async fn summaries(
        &self,
        sub: &Subject,
        after: Option<&(Timestamp, ConversationId)>,
        limit: usize,
    ) -> Result<SummaryPage, StoreError> {
        self.inner.records.summaries(sub, after, limit).await
    }

    async fn summary(&self, sub: &Subject, conversation: &ConvRef) -> Result<Option<Summary>, StoreError> {
        self.inner.records.summary(sub, conversation).await
    }

    async fn move_cursor(&self, conversation: &ConvRef, sub: &Subject, to: Seq) -> Result<CursorOutcome, StoreError> {
        self.inner.records.move_cursor(conversation, sub, to).await
    }

    async fn due(&self, query: &DueQuery) -> Result<Vec<DueRow>, StoreError> {
        let live = self.on_runtime(Effect::Read, |inner| async move { inner.leases.live(&inner.claims).await }).await?;
        self.inner.records.due_unowned(&live, query).await
    }

    async fn save_checkpoint(
        &self,
        conversation: &ConvRef,
        epoch: Epoch,
        me: Incarnation,
        checkpoint: &Checkpoint,
    ) -> Result<bool, StoreError> {
        self.inner.records.save_checkpoint(conversation, epoch, me, checkpoint).await
    }

    async fn checkpoint(&self, conversation: &ConvRef) -> Result<Option<Checkpoint>, StoreError> {
        self.inner.records.checkpoint(conversation).await
    }
}
