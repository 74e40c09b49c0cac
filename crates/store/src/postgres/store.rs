//! The two traits on the PostgreSQL store. Node leases go to their own thread, appends to the writers, the rest to the pool.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use conch_core::ids::{ClientMsgId, ConvRef, ConversationId, Epoch, Incarnation, LogId, Seq, Subject};
use conch_core::time::Timestamp;

use super::ownership::Registry;
use super::{PostgresStore, append, conversations, lifelines, nodes, ownership, queries};
use crate::own_thread::{Effect, Lane};
use crate::{
    AppendOutcome, Armed, Batch, Checkpoint, ClaimOutcome, ClaimRequest, ConversationInfo, ConversationPatch, Created,
    CursorOutcome, DueQuery, DueRow, Held, Landed, LeaseStore, Lifeline, Lifelines, LogStore, Member, MembershipChange,
    NewConversation, NodeRow, Page, RangeQuery, Registration, Resolution, Resolved, StoreError, Summary, SummaryPage,
};

#[async_trait]
impl LeaseStore for PostgresStore {
    async fn register(&self, registration: &Registration, ttl: Duration) -> Result<(), StoreError> {
        let registration = registration.clone();
        self.inner
            .leases
            .call(Lane::Heartbeat, Effect::Write, move |session| async move {
                nodes::register(&session, &registration, ttl).await
            })
            .await
    }

    async fn renew(&self, me: Incarnation, ttl: Duration) -> Result<Option<u64>, StoreError> {
        self.inner
            .leases
            .call(Lane::Heartbeat, Effect::Write, move |session| async move { nodes::renew(&session, me, ttl).await })
            .await
    }

    async fn replace_lifeline(
        &self,
        me: Incarnation,
        ttl: Duration,
        lifeline: Lifeline,
    ) -> Result<Option<u64>, StoreError> {
        self.inner
            .leases
            .call(Lane::Heartbeat, Effect::Write, move |session| async move {
                lifelines::replace(&session, me, ttl, lifeline).await
            })
            .await
    }

    fn lifelines(&self) -> Option<Arc<dyn Lifelines>> {
        Some(Arc::clone(&self.inner.lifelines) as Arc<dyn Lifelines>)
    }

    async fn nodes(&self) -> Result<Vec<NodeRow>, StoreError> {
        self.inner
            .leases
            .call(Lane::Membership, Effect::Read, move |session| async move { nodes::nodes(&session).await })
            .await
    }

    async fn set_draining(&self, me: Incarnation) -> Result<bool, StoreError> {
        self.inner
            .leases
            .call(
                Lane::Membership,
                Effect::Write,
                move |session| async move { nodes::set_draining(&session, me).await },
            )
            .await
    }

    async fn deregister(&self, me: Incarnation) -> Result<bool, StoreError> {
        self.inner
            .leases
            .call(Lane::Membership, Effect::Write, move |session| async move { nodes::delete(&session, me).await })
            .await
    }

    async fn declare_expired(
        &self,
        dead: Incarnation,
        seen_beat: u64,
        ttl: Duration,
        margin: Duration,
    ) -> Result<bool, StoreError> {
        self.inner
            .leases
            .call(Lane::Membership, Effect::Write, move |session| async move {
                nodes::declare_expired(&session, dead, seen_beat, ttl, margin).await
            })
            .await
    }

    async fn declare_process_dead(
        &self,
        dead: Incarnation,
        seen_beat: u64,
        seen_lifeline: Lifeline,
    ) -> Result<bool, StoreError> {
        self.inner
            .leases
            .call(Lane::Membership, Effect::Write, move |session| async move {
                lifelines::declare_process_dead(&session, dead, seen_beat, seen_lifeline).await
            })
            .await
    }

    async fn expel(&self, dead: Incarnation) -> Result<bool, StoreError> {
        self.inner
            .leases
            .call(Lane::Membership, Effect::Write, move |session| async move { nodes::delete(&session, dead).await })
            .await
    }

    async fn resolve(&self, conversation: &ConvRef) -> Result<Option<Resolution>, StoreError> {
        let conversation = conversation.clone();
        self.pooled(Effect::Read, move |session| async move { ownership::resolve(&session, &conversation).await }).await
    }

    async fn resolve_many(&self, conversations: &[ConvRef]) -> Result<Vec<Resolved>, StoreError> {
        let conversations = conversations.to_vec();
        self.pooled(Effect::Read, move |session| async move { ownership::resolve_many(&session, &conversations).await })
            .await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<ClaimOutcome, StoreError> {
        let (request, gap) = (request.clone(), self.inner.gap);
        self.pooled(Effect::Write, move |session| async move { ownership::claim(&session, &request, gap).await }).await
    }

    async fn release(&self, held: &Held, first_seq: Seq) -> Result<bool, StoreError> {
        let held = *held;
        self.pooled(Effect::Write, move |session| async move {
            ownership::release(&session, &held, first_seq, Registry::Here).await
        })
        .await
    }

    async fn release_wedged(&self, held: &Held, gap: u64) -> Result<bool, StoreError> {
        let held = *held;
        self.pooled(Effect::Write, move |session| async move {
            ownership::release_wedged(&session, &held, gap, Registry::Here).await
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
        self.pooled(Effect::Write, move |session| async move {
            ownership::hand_off(&session, &held, to, first_seq, margin).await
        })
        .await
    }
}

#[async_trait]
impl LogStore for PostgresStore {
    async fn log(&self) -> Result<LogId, StoreError> {
        self.pooled(Effect::Read, move |session| async move { queries::log(&session).await }).await
    }

    async fn append(&self, me: Incarnation, batches: Vec<Batch>) -> Result<Vec<AppendOutcome>, StoreError> {
        if batches.is_empty() {
            return Ok(Vec::new());
        }
        let writers = Arc::clone(&self.inner.writers);
        self.on_runtime(Effect::Write, async move { writers.append(me, batches).await }).await
    }

    async fn range(&self, query: &RangeQuery) -> Result<Option<Page>, StoreError> {
        let query = query.clone();
        self.pooled(Effect::Read, move |session| async move { queries::range(&session, &query).await }).await
    }

    async fn count_after(&self, conversation: &ConvRef, after: Seq, limit: usize) -> Result<usize, StoreError> {
        let conversation = conversation.clone();
        self.pooled(Effect::Read, move |session| async move {
            queries::count_after(&session, &conversation, after, limit).await
        })
        .await
    }

    async fn find(
        &self,
        conversation: &ConvRef,
        sender: &Subject,
        client_msg_id: &ClientMsgId,
    ) -> Result<Option<Landed>, StoreError> {
        let (key, sender, client_msg_id) = (conversation.key, sender.clone(), client_msg_id.clone());
        self.pooled(Effect::Read, move |session| async move {
            let found = append::originals(&session, key, &[(&sender, &client_msg_id)]).await?;
            Ok(found.into_iter().next().flatten())
        })
        .await
    }

    async fn create_conversation(&self, new: &NewConversation) -> Result<Created, StoreError> {
        let new = new.clone();
        self.pooled(Effect::Write, move |session| async move { conversations::create(&session, &new).await }).await
    }

    async fn conversation(&self, conversation: &ConvRef) -> Result<Option<ConversationInfo>, StoreError> {
        let conversation = conversation.clone();
        self.pooled(Effect::Read, move |session| async move { conversations::info(&session, &conversation).await })
            .await
    }

    async fn patch_conversation(
        &self,
        conversation: &ConvRef,
        patch: &ConversationPatch,
    ) -> Result<Option<ConversationInfo>, StoreError> {
        let (conversation, patch) = (conversation.clone(), patch.clone());
        self.pooled(
            Effect::Write,
            move |session| async move { conversations::patch(&session, &conversation, &patch).await },
        )
        .await
    }

    async fn add_member(&self, conversation: &ConvRef, sub: &Subject) -> Result<MembershipChange, StoreError> {
        let (conversation, sub) = (conversation.clone(), sub.clone());
        self.pooled(Effect::Write, move |session| async move {
            conversations::add_member(&session, &conversation, &sub).await
        })
        .await
    }

    async fn remove_member(&self, conversation: &ConvRef, sub: &Subject) -> Result<MembershipChange, StoreError> {
        let (conversation, sub) = (conversation.clone(), sub.clone());
        self.pooled(Effect::Write, move |session| async move {
            conversations::remove_member(&session, &conversation, &sub).await
        })
        .await
    }

    async fn is_member(&self, conversation: &ConvRef, sub: &Subject) -> Result<bool, StoreError> {
        let (conversation, sub) = (conversation.clone(), sub.clone());
        self.pooled(Effect::Read, move |session| async move {
            conversations::is_member(&session, &conversation, &sub).await
        })
        .await
    }

    async fn no_members(&self, conversation: &ConvRef, subs: &[Subject]) -> Result<Vec<Subject>, StoreError> {
        let (conversation, subs) = (conversation.clone(), subs.to_vec());
        self.pooled(Effect::Read, move |session| async move {
            conversations::no_members(&session, &conversation, &subs).await
        })
        .await
    }

    async fn members(
        &self,
        conversation: &ConvRef,
        after: Option<&Subject>,
        limit: usize,
    ) -> Result<Option<(Vec<Member>, bool)>, StoreError> {
        let (conversation, after) = (conversation.clone(), after.cloned());
        self.pooled(Effect::Read, move |session| async move {
            conversations::members(&session, &conversation, after.as_ref(), limit).await
        })
        .await
    }

    async fn summaries(
        &self,
        sub: &Subject,
        after: Option<&(Timestamp, ConversationId)>,
        limit: usize,
    ) -> Result<SummaryPage, StoreError> {
        let (sub, after) = (sub.clone(), after.cloned());
        self.pooled(Effect::Read, move |session| async move {
            queries::summaries(&session, &sub, after.as_ref(), limit).await
        })
        .await
    }

    async fn summary(&self, sub: &Subject, conversation: &ConvRef) -> Result<Option<Summary>, StoreError> {
        let (sub, conversation) = (sub.clone(), conversation.clone());
        self.pooled(Effect::Read, move |session| async move { queries::summary(&session, &sub, &conversation).await })
            .await
    }

    async fn move_cursor(&self, conversation: &ConvRef, sub: &Subject, to: Seq) -> Result<CursorOutcome, StoreError> {
        let (conversation, sub) = (conversation.clone(), sub.clone());
        self.pooled(Effect::Write, move |session| async move {
            conversations::move_cursor(&session, &conversation, &sub, to).await
        })
        .await
    }

    async fn due(&self, query: &DueQuery) -> Result<Vec<DueRow>, StoreError> {
        let query = query.clone();
        self.pooled(Effect::Read, move |session| async move { queries::due(&session, &query).await }).await
    }

    async fn save_checkpoint(
        &self,
        conversation: &ConvRef,
        epoch: Epoch,
        me: Incarnation,
        checkpoint: &Checkpoint,
    ) -> Result<bool, StoreError> {
        let (conversation, checkpoint) = (conversation.clone(), checkpoint.clone());
        self.pooled(Effect::Write, move |session| async move {
            conversations::save_checkpoint(&session, &conversation, epoch, me, &checkpoint).await
        })
        .await
    }

    async fn checkpoint(&self, conversation: &ConvRef) -> Result<Option<Checkpoint>, StoreError> {
        let conversation = conversation.clone();
        self.pooled(
            Effect::Read,
            move |session| async move { conversations::checkpoint(&session, &conversation).await },
        )
        .await
    }
}
