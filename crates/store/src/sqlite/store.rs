//! The two traits on the SQLite store: each call is one job of the writer or of a reader.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use conch_core::ids::{ClientMsgId, ConvRef, ConversationId, Epoch, Incarnation, LogId, Seq, Subject};
use conch_core::time::Timestamp;

use super::readers::ReadTransaction;
use super::{SqliteStore, append, conversations, leases, queries};
use crate::{
    AppendOutcome, Armed, Batch, Checkpoint, ClaimOutcome, ClaimRequest, ConversationInfo, ConversationPatch, Created,
    CursorOutcome, DueQuery, DueRow, Held, Landed, LeaseStore, Lifeline, Lifelines, LogStore, Member, MembershipChange,
    NewConversation, NodeRow, Page, RangeQuery, Registration, Resolution, Resolved, StoreError, Summary, SummaryPage,
};

#[async_trait]
impl LeaseStore for SqliteStore {
    async fn register(&self, registration: &Registration, ttl: Duration) -> Result<(), StoreError> {
        let registration = registration.clone();
        self.writer.write(1, move |write| leases::register(write, &registration, ttl)).await
    }

    async fn renew(&self, me: Incarnation, ttl: Duration) -> Result<Option<u64>, StoreError> {
        self.writer.write(1, move |write| leases::renew(write, me, ttl)).await
    }

    async fn replace_lifeline(
        &self,
        me: Incarnation,
        ttl: Duration,
        _lifeline: Lifeline,
    ) -> Result<Option<u64>, StoreError> {
        self.renew(me, ttl).await
    }

    /// None: the directory's lock is the evidence of life, and a successor looks at it before it opens the store.
    fn lifelines(&self) -> Option<Arc<dyn Lifelines>> {
        None
    }

    async fn nodes(&self) -> Result<Vec<NodeRow>, StoreError> {
        self.readers.read(leases::nodes).await
    }

    async fn set_draining(&self, me: Incarnation) -> Result<bool, StoreError> {
        self.writer.write(1, move |write| leases::set_draining(write, me)).await
    }

    async fn deregister(&self, me: Incarnation) -> Result<bool, StoreError> {
        self.writer.write(1, move |write| leases::delete_node(write, me)).await
    }

    async fn declare_expired(
        &self,
        dead: Incarnation,
        seen_beat: u64,
        ttl: Duration,
        margin: Duration,
    ) -> Result<bool, StoreError> {
        self.writer.write(1, move |write| leases::declare_expired(write, dead, seen_beat, ttl, margin)).await
    }

    /// Never: while this store is open, nobody else can have been registered and have died.
    async fn declare_process_dead(
        &self,
        _dead: Incarnation,
        _seen_beat: u64,
        _seen_lifeline: Lifeline,
    ) -> Result<bool, StoreError> {
        Ok(false)
    }

    async fn expel(&self, dead: Incarnation) -> Result<bool, StoreError> {
        self.writer.write(1, move |write| leases::delete_node(write, dead)).await
    }

    async fn resolve(&self, conversation: &ConvRef) -> Result<Option<Resolution>, StoreError> {
        let conversation = conversation.clone();
        self.readers.read(move |read| leases::resolve(read, &conversation)).await
    }

    async fn resolve_many(&self, conversations: &[ConvRef]) -> Result<Vec<Resolved>, StoreError> {
        let conversations = conversations.to_vec();
        let resolve_all = move |read: &ReadTransaction<'_>| {
            Ok(conversations.iter().map(|conversation| leases::resolve(read, conversation)).collect())
        };
        self.readers.read(resolve_all).await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<ClaimOutcome, StoreError> {
        let request = request.clone();
        self.writer.write(1, move |write| leases::claim(write, &request)).await
    }

    async fn release(&self, held: &Held, first_seq: Seq) -> Result<bool, StoreError> {
        let held = *held;
        self.writer.write(1, move |write| leases::release(write, &held, first_seq)).await
    }

    async fn release_wedged(&self, held: &Held, gap: u64) -> Result<bool, StoreError> {
        let held = *held;
        self.writer.write(1, move |write| leases::release_wedged(write, &held, gap)).await
    }

    async fn hand_off(
        &self,
        held: &Held,
        to: Incarnation,
        first_seq: Seq,
        margin: Duration,
    ) -> Result<Option<Armed>, StoreError> {
        let held = *held;
        self.writer.write(1, move |write| leases::hand_off(write, &held, to, first_seq, margin)).await
    }
}

#[async_trait]
impl LogStore for SqliteStore {
    async fn log(&self) -> Result<LogId, StoreError> {
        Ok(self.shared.identity.log.clone())
    }

    async fn append(&self, me: Incarnation, batches: Vec<Batch>) -> Result<Vec<AppendOutcome>, StoreError> {
        if batches.is_empty() {
            return Ok(Vec::new());
        }
        let rows = batches.iter().map(|batch| batch.records.len() + 1).sum();
        self.writer.write(rows, move |write| append::append(write, me, &batches)).await
    }

    async fn range(&self, query: &RangeQuery) -> Result<Option<Page>, StoreError> {
        let query = query.clone();
        self.readers.read(move |read| queries::range(read, &query)).await
    }

    async fn count_after(&self, conversation: &ConvRef, after: Seq, limit: usize) -> Result<usize, StoreError> {
        let conversation = conversation.clone();
        self.readers.read(move |read| queries::count_after(read, &conversation, after, limit)).await
    }

    async fn find(
        &self,
        conversation: &ConvRef,
        sender: &Subject,
        client_msg_id: &ClientMsgId,
    ) -> Result<Option<Landed>, StoreError> {
        let (key, sender, client_msg_id) = (conversation.key, sender.clone(), client_msg_id.clone());
        self.readers.read(move |read| append::find(read.connection, key, &sender, &client_msg_id)).await
    }

    async fn create_conversation(&self, new: &NewConversation) -> Result<Created, StoreError> {
        let new = new.clone();
        let rows = new.members.len() + 1;
        self.writer.write(rows, move |write| conversations::create(write, &new)).await
    }

    async fn conversation(&self, conversation: &ConvRef) -> Result<Option<ConversationInfo>, StoreError> {
        let conversation = conversation.clone();
        self.readers.read(move |read| conversations::info(read.connection, &conversation)).await
    }

    async fn patch_conversation(
        &self,
        conversation: &ConvRef,
        patch: &ConversationPatch,
    ) -> Result<Option<ConversationInfo>, StoreError> {
        let (conversation, patch) = (conversation.clone(), patch.clone());
        self.writer.write(1, move |write| conversations::patch(write, &conversation, &patch)).await
    }

    async fn add_member(&self, conversation: &ConvRef, sub: &Subject) -> Result<MembershipChange, StoreError> {
        let (conversation, sub) = (conversation.clone(), sub.clone());
        self.writer.write(1, move |write| conversations::add_member(write, &conversation, &sub)).await
    }

    async fn remove_member(&self, conversation: &ConvRef, sub: &Subject) -> Result<MembershipChange, StoreError> {
        let (conversation, sub) = (conversation.clone(), sub.clone());
        self.writer.write(1, move |write| conversations::remove_member(write, &conversation, &sub)).await
    }

    async fn is_member(&self, conversation: &ConvRef, sub: &Subject) -> Result<bool, StoreError> {
        let (conversation, sub) = (conversation.clone(), sub.clone());
        self.readers.read(move |read| conversations::is_member(read.connection, &conversation, &sub)).await
    }

    async fn members(
        &self,
        conversation: &ConvRef,
        after: Option<&Subject>,
        limit: usize,
    ) -> Result<Option<(Vec<Member>, bool)>, StoreError> {
        let (conversation, after) = (conversation.clone(), after.cloned());
        self.readers.read(move |read| conversations::members(read, &conversation, after.as_ref(), limit)).await
    }

    async fn summaries(
        &self,
        sub: &Subject,
        after: Option<&(Timestamp, ConversationId)>,
        limit: usize,
    ) -> Result<SummaryPage, StoreError> {
        let (sub, after) = (sub.clone(), after.cloned());
        self.readers.read(move |read| queries::summaries(read, &sub, after.as_ref(), limit)).await
    }

    async fn summary(&self, sub: &Subject, conversation: &ConvRef) -> Result<Option<Summary>, StoreError> {
        let (sub, conversation) = (sub.clone(), conversation.clone());
        self.readers.read(move |read| queries::summary(read, &sub, &conversation)).await
    }

    async fn move_cursor(&self, conversation: &ConvRef, sub: &Subject, to: Seq) -> Result<CursorOutcome, StoreError> {
        let (conversation, sub) = (conversation.clone(), sub.clone());
        self.writer.write(1, move |write| conversations::move_cursor(write, &conversation, &sub, to)).await
    }

    async fn due(&self, query: &DueQuery) -> Result<Vec<DueRow>, StoreError> {
        let query = query.clone();
        self.readers.read(move |read| queries::due(read, &query)).await
    }

    async fn save_checkpoint(
        &self,
        conversation: &ConvRef,
        epoch: Epoch,
        me: Incarnation,
        checkpoint: &Checkpoint,
    ) -> Result<bool, StoreError> {
        let (conversation, checkpoint) = (conversation.clone(), checkpoint.clone());
        self.writer
            .write(1, move |write| conversations::save_checkpoint(write, &conversation, epoch, me, &checkpoint))
            .await
    }

    async fn checkpoint(&self, conversation: &ConvRef) -> Result<Option<Checkpoint>, StoreError> {
        let conversation = conversation.clone();
        self.readers.read(move |read| queries::checkpoint(read, &conversation)).await
    }
}
