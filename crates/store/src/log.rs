//! What was written: records, conversations, members, cursors, due rows and checkpoints.

use std::time::Duration;

use async_trait::async_trait;
use conch_core::body::BodyHash;
use conch_core::conversation::{ConversationKind, Settings};
use conch_core::ids::{
    AgentName, ClientMsgId, ConvRef, ConversationId, Epoch, Generation, Incarnation, LogId, NodeName, Region, Seq,
    Subject,
};
use conch_core::record::{Draft, Record, RecordKind};
use conch_core::time::Timestamp;

use crate::StoreError;

/// Records of one conversation, to be appended under its fence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Where.
    pub conversation: ConvRef,
    /// The writer's epoch: the fence compares it, the owner and the generation.
    pub epoch: Epoch,
    /// The writer's generation.
    pub generation: Generation,
    /// The head's last seq before this batch; another one means that something else was written.
    pub prev: Seq,
    /// The head's last seq after it: the highest seq in `records`.
    pub hi: Seq,
    /// Raises the reserved high-water mark to this in the same statement; never lowers it.
    pub reserve: Seq,
    /// What becomes of the conversation's due row in the same statement.
    pub due: DueChange,
    /// The records, ascending by seq, every seq in `(prev, hi]`.
    pub records: Vec<(Seq, Draft)>,
}

/// What becomes of a conversation's due row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DueChange {
    /// As it was.
    Keep,
    /// Nothing is due.
    Clear,
    /// Due after this long on the store's clock; replaces the one that was there.
    Set(DueWhy, Duration),
}

/// Why a conversation is due. The number is what the store keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DueWhy {
    /// An input was accepted and no turn has started for it.
    Input = 1,
    /// A turn runs.
    Turn = 2,
    /// An await expires.
    Await = 3,
    /// A deadline passes.
    Deadline = 4,
}

impl DueWhy {
    /// The reason with this number in the store.
    #[must_use]
    pub fn from_number(number: i64) -> Option<Self> {
        [Self::Input, Self::Turn, Self::Await, Self::Deadline].into_iter().find(|why| *why as i64 == number)
    }
}

/// Work that is due and has no live owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueRow {
    /// Where.
    pub conversation: ConversationId,
    /// Why.
    pub why: DueWhy,
    /// Since when, in microseconds of the store's clock since 1970.
    pub at_us: i64,
    /// Where the conversation may be owned; empty: anywhere.
    pub regions: Vec<Region>,
    /// Where it is preferred to be owned.
    pub home: Region,
}

impl DueRow {
    /// The list's place right behind this row.
    #[must_use]
    pub fn mark(&self) -> DueMark {
        DueMark { at_us: self.at_us, conversation: self.conversation.clone() }
    }
}

/// A place in the list of due work: behind the row that has, or had, this time and conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueMark {
    /// Since when it was due.
    pub at_us: i64,
    /// Where.
    pub conversation: ConversationId,
}

/// Which due work to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueQuery {
    /// Only what may be owned in this region.
    pub region: Region,
    /// Only what comes behind this; `None`: from the beginning.
    pub after: Option<DueMark>,
    /// At most so many rows.
    pub limit: usize,
}

/// A write that is in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Landed {
    /// Its number.
    pub seq: Seq,
    /// Its idempotency hash.
    pub body_hash: BodyHash,
    /// The epoch it was committed in.
    pub epoch: Epoch,
    /// When.
    pub at: Timestamp,
}

/// A record of a batch that was in the log already, under the same sender and client message id. Its own seq stays a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Duplicate {
    /// The seq it would have had.
    pub seq: Seq,
    /// The one that is in the log. Whether the bodies are equal is for the caller to judge.
    pub original: Landed,
}

/// What became of one batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AppendOutcome {
    /// On disk, but for the duplicates. `duplicates` ascends by seq.
    Landed {
        /// The commit's time, shared by all its records.
        at: Timestamp,
        /// Those that were in the log before.
        duplicates: Vec<Duplicate>,
    },
    /// Another epoch or owner holds the conversation. Nothing was written.
    Fenced,
    /// The store is in another generation, or the head went back: re-claim. Nothing was written.
    Rewound,
    /// This batch alone failed; [`StoreError::Ambiguous`] if it may have landed all the same.
    Failed(StoreError),
}

/// Which end of the log a range starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The first records above this seq.
    After(Seq),
    /// The last records below this seq.
    Before(Seq),
    /// The last records.
    Latest,
}

/// A range of a conversation's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeQuery {
    /// Where.
    pub conversation: ConvRef,
    /// From where.
    pub direction: Direction,
    /// Most records, above 0.
    pub limit: usize,
    /// Only these kinds; empty: all.
    pub kinds: Vec<RecordKind>,
}

/// Records of a range, always ascending, with the head of the same snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The records.
    pub records: Vec<Record>,
    /// The conversation's last seq in the same snapshot; 0 when nothing was ever written.
    pub head_seq: Seq,
    /// The history that these positions belong to.
    pub log: LogId,
    /// True if the range holds more records in the query's direction.
    pub more: bool,
}

/// A conversation to be created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewConversation {
    /// Its id and key.
    pub conversation: ConvRef,
    /// Its kind.
    pub kind: ConversationKind,
    /// Where it may be owned; the first is its home; empty: anywhere.
    pub regions: Vec<Region>,
    /// Its home when `regions` is empty: the creator's region.
    pub home: Region,
    /// Its title.
    pub title: Option<String>,
    /// Its agent, for a session.
    pub agent: Option<AgentName>,
    /// Its settings.
    pub settings: Settings,
    /// Who creates it.
    pub creator: Subject,
    /// Its first members, in the same transaction.
    pub members: Vec<Subject>,
}

/// A conversation's ownership row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// The fencing token.
    pub epoch: Epoch,
    /// The owner.
    pub owner: Option<Incarnation>,
    /// The owner's node, if that incarnation is registered.
    pub owner_node: Option<NodeName>,
    /// The generation it was claimed in.
    pub generation: Generation,
    /// The last committed seq.
    pub last_seq: Seq,
    /// The durably reserved high-water mark.
    pub reserved_to: Seq,
}

/// What is known of a conversation, in one snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConversationInfo {
    /// Its id.
    pub id: ConversationId,
    /// Its kind.
    pub kind: ConversationKind,
    /// Where it may be owned; empty: anywhere.
    pub regions: Vec<Region>,
    /// Where it is preferred to be owned.
    pub home: Region,
    /// Its title.
    pub title: Option<String>,
    /// Its agent.
    pub agent: Option<AgentName>,
    /// Its settings.
    pub settings: Settings,
    /// When it was created.
    pub created_at: Timestamp,
    /// Its head; `None`: never owned.
    pub head: Option<Head>,
}

/// How a create ended. Idempotent: the first one wins, other fields of a later one are ignored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Created {
    /// It is new.
    New(ConversationInfo),
    /// It exists, as this.
    Existing(ConversationInfo),
}

/// Changes to a conversation; `None` leaves a field as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConversationPatch {
    /// `Some(None)` removes the title.
    pub title: Option<Option<String>>,
    /// Another agent.
    pub agent: Option<AgentName>,
    /// Other settings, as a whole.
    pub settings: Option<Settings>,
}

/// How a change of membership ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MembershipChange {
    /// It is as asked, and was not before.
    Changed,
    /// It was so already.
    Unchanged,
    /// There is no such conversation.
    NoConversation,
    /// A direct conversation has exactly two members, its first ones.
    Direct,
}

/// A member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Who.
    pub sub: Subject,
    /// Since when.
    pub since: Timestamp,
}

/// A conversation as one of its members sees it in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// Its id.
    pub id: ConversationId,
    /// Its kind.
    pub kind: ConversationKind,
    /// Its title.
    pub title: Option<String>,
    /// Its agent.
    pub agent: Option<AgentName>,
    /// Its last seq.
    pub head_seq: Seq,
    /// How far the member has read; 0: nothing.
    pub cursor: Seq,
    /// `message` records by others after the cursor, counted to 100 and never computed from seqs, which have holes.
    pub unread: u32,
    /// The newest `message` record.
    pub last_message: Option<Record>,
    /// The time of the last record, or of the creation.
    pub updated_at: Timestamp,
}

/// A page of summaries, newest activity first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SummaryPage {
    /// The summaries.
    pub summaries: Vec<Summary>,
    /// The history that their positions belong to.
    pub log: LogId,
    /// True if there are older ones.
    pub more: bool,
}

/// What an unread count is capped at.
pub const UNREAD_CAP: u32 = 100;

/// How a move of a read cursor ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CursorOutcome {
    /// It stands here now: the larger of the old and the asked (invariant 11).
    At(Seq),
    /// Asked beyond the head, which is this.
    BeyondHead(Seq),
    /// There is no such conversation.
    NoConversation,
}

/// Folded state at a seq, so that thawing never reads the whole log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// Counts up; with the epoch, orders checkpoints.
    pub version: u64,
    /// The seq it covers.
    pub at_seq: Seq,
    /// The state, opaque to the store, at most 1 MiB.
    pub state: Vec<u8>,
}

/// Records and what belongs to them.
///
/// Contract, checked by [`crate::conformance`]:
/// - An append whose epoch, owner or generation is not the head's writes nothing, whenever it arrives (invariant 8).
/// - When [`LogStore::append`] answers `Landed`, the records are on disk (invariant 3).
/// - One (conversation, sender, client message id) is in the log at most once (invariants 3 and 4).
/// - A reader sees a batch whole or not at all, and never batch N + 1 without batch N.
/// - A batch that fails harms no other batch of the same call.
/// - A batch that landed and is sent again under the same reign is answered with what landed, and writes nothing.
/// - Along a log, times never go back, though the store's clock may.
#[async_trait]
pub trait LogStore: Send + Sync + 'static {
    /// The current log id: system id and generation.
    async fn log(&self) -> Result<LogId, StoreError>;

    /// Appends batches of different conversations in one commit. The answer has one outcome a batch, in order. At most
    /// one batch a conversation may be in flight.
    ///
    /// # Errors
    /// An error is about all batches: [`StoreError::Ambiguous`] if any of them may have landed.
    async fn append(&self, me: Incarnation, batches: Vec<Batch>) -> Result<Vec<AppendOutcome>, StoreError>;

    /// Reads a range in one snapshot. `None`: there is no such conversation.
    async fn range(&self, query: &RangeQuery) -> Result<Option<Page>, StoreError>;

    /// Counts the records above `after`, to `limit` at most.
    async fn count_after(&self, conversation: &ConvRef, after: Seq, limit: usize) -> Result<usize, StoreError>;

    /// Finds a write by its idempotency key.
    async fn find(
        &self,
        conversation: &ConvRef,
        sender: &Subject,
        client_msg_id: &ClientMsgId,
    ) -> Result<Option<Landed>, StoreError>;

    /// Creates a conversation, or returns the one that is there.
    async fn create_conversation(&self, new: &NewConversation) -> Result<Created, StoreError>;

    /// Reads a conversation. `None`: there is none.
    async fn conversation(&self, conversation: &ConvRef) -> Result<Option<ConversationInfo>, StoreError>;

    /// Changes a conversation. `None`: there is none.
    async fn patch_conversation(
        &self,
        conversation: &ConvRef,
        patch: &ConversationPatch,
    ) -> Result<Option<ConversationInfo>, StoreError>;

    /// Adds a member.
    async fn add_member(&self, conversation: &ConvRef, sub: &Subject) -> Result<MembershipChange, StoreError>;

    /// Removes a member.
    async fn remove_member(&self, conversation: &ConvRef, sub: &Subject) -> Result<MembershipChange, StoreError>;

    /// Is this a member? False for an unknown conversation.
    async fn is_member(&self, conversation: &ConvRef, sub: &Subject) -> Result<bool, StoreError>;

    /// Which of these are no members? All, for an unknown conversation.
    async fn no_members(&self, conversation: &ConvRef, subs: &[Subject]) -> Result<Vec<Subject>, StoreError> {
        let mut missing = Vec::new();
        for sub in subs {
            if !self.is_member(conversation, sub).await? {
                missing.push(sub.clone());
            }
        }
        Ok(missing)
    }

    /// Members by ascending subject, above `after`, at most `limit`, and whether there are more. `None`: there is no
    /// such conversation.
    async fn members(
        &self,
        conversation: &ConvRef,
        after: Option<&Subject>,
        limit: usize,
    ) -> Result<Option<(Vec<Member>, bool)>, StoreError>;

    /// The conversations of a member, newest activity first (ties by ascending id), behind `after`.
    async fn summaries(
        &self,
        sub: &Subject,
        after: Option<&(Timestamp, ConversationId)>,
        limit: usize,
    ) -> Result<SummaryPage, StoreError>;

    /// One conversation as a member sees it. `None`: no member, or no such conversation.
    async fn summary(&self, sub: &Subject, conversation: &ConvRef) -> Result<Option<Summary>, StoreError>;

    /// Moves a read cursor forward; needs no owner, epoch or fence. Never moves it back.
    async fn move_cursor(&self, conversation: &ConvRef, sub: &Subject, to: Seq) -> Result<CursorOutcome, StoreError>;

    /// Due work whose owner is not registered (or null), earliest first, and by id where two are due at once.
    async fn due(&self, query: &DueQuery) -> Result<Vec<DueRow>, StoreError>;

    /// Saves a checkpoint under the fence, if it is newer by (epoch, version). False: fenced or older.
    async fn save_checkpoint(
        &self,
        conversation: &ConvRef,
        epoch: Epoch,
        me: Incarnation,
        checkpoint: &Checkpoint,
    ) -> Result<bool, StoreError>;

    /// The newest checkpoint.
    async fn checkpoint(&self, conversation: &ConvRef) -> Result<Option<Checkpoint>, StoreError>;
}
