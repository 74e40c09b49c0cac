//! What the memory store holds: the tables of the SQL backends, as ordered maps.
//!
//! Invariant: a conversation's key never changes its id, and its records lie above no other head than its own.
//! Deliberately absent: a clock; every method that needs the time is given it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use conch_core::body::BodyHash;
use conch_core::conversation::{ConversationKind, Settings};
use conch_core::head::HeadRow;
use conch_core::ids::{
    AgentName, ClientMsgId, ConvKey, ConvRef, ConversationId, Epoch, Generation, Incarnation, LogId, Region, Seq,
    Subject,
};
use conch_core::record::Record;
use conch_core::time::Timestamp;

use super::Mutant;
use crate::{Checkpoint, DueWhy, Registration, StoreError};

/// Everything. Cloning is cheap: conversations are shared until one side changes them.
#[derive(Clone)]
pub(super) struct State {
    pub(super) system_id: Arc<str>,
    pub(super) generation: Generation,
    pub(super) nodes: BTreeMap<Incarnation, Node>,
    /// Incarnations whose row is gone. They get none again.
    pub(super) retired: BTreeSet<Incarnation>,
    pub(super) conversations: BTreeMap<ConvKey, Arc<Conversation>>,
    #[cfg(any(test, feature = "mutants"))]
    pub(super) mutant: Option<Mutant>,
}

#[derive(Clone)]
pub(super) struct Node {
    pub(super) registration: Registration,
    pub(super) beat: u64,
    pub(super) draining: bool,
    pub(super) expires_at_ms: i64,
}

#[derive(Clone)]
pub(super) struct Conversation {
    pub(super) id: ConversationId,
    pub(super) kind: ConversationKind,
    pub(super) regions: Vec<Region>,
    pub(super) home: Region,
    pub(super) title: Option<String>,
    pub(super) agent: Option<AgentName>,
    pub(super) settings: Settings,
    pub(super) created_at: Timestamp,
    pub(super) members: BTreeMap<Subject, Timestamp>,
    pub(super) cursors: BTreeMap<Subject, Seq>,
    pub(super) head: Option<HeadRow>,
    pub(super) records: BTreeMap<Seq, Stored>,
    pub(super) by_client_msg_id: BTreeMap<(Subject, ClientMsgId), Seq>,
    pub(super) due: Option<Due>,
    pub(super) checkpoint: Option<(Epoch, Checkpoint)>,
}

#[derive(Clone)]
pub(super) struct Stored {
    pub(super) record: Record,
    pub(super) body_hash: BodyHash,
}

#[derive(Clone, Copy)]
pub(super) struct Due {
    pub(super) at_ms: i64,
    pub(super) why: DueWhy,
}

impl State {
    pub(super) fn new(system_id: Arc<str>) -> Self {
        Self {
            system_id,
            generation: Generation(1),
            nodes: BTreeMap::new(),
            retired: BTreeSet::new(),
            conversations: BTreeMap::new(),
            #[cfg(any(test, feature = "mutants"))]
            mutant: None,
        }
    }

    pub(super) fn log_id(&self) -> LogId {
        LogId::new(&self.system_id, self.generation)
    }

    /// The conversation, if its key belongs to this id.
    pub(super) fn known(&self, conversation: &ConvRef) -> Result<Option<&Conversation>, StoreError> {
        match self.conversations.get(&conversation.key) {
            Some(found) if found.id == conversation.id || self.is(Mutant::CollisionIgnored) => Ok(Some(found)),
            Some(_) => Err(StoreError::Collision),
            None => Ok(None),
        }
    }

    /// As [`State::known`], to be changed.
    pub(super) fn known_mut(&mut self, conversation: &ConvRef) -> Result<Option<&mut Conversation>, StoreError> {
        self.known(conversation)?;
        Ok(self.by_key_mut(conversation.key))
    }

    pub(super) fn by_key_mut(&mut self, key: ConvKey) -> Option<&mut Conversation> {
        self.conversations.get_mut(&key).map(Arc::make_mut)
    }

    pub(super) fn head(&self, key: ConvKey) -> Option<HeadRow> {
        self.conversations.get(&key)?.head
    }

    /// Writes the head of a conversation that exists.
    pub(super) fn set_head(&mut self, key: ConvKey, head: HeadRow) {
        if let Some(conversation) = self.by_key_mut(key) {
            debug_assert!(head.reserved_to >= head.last_seq, "what is committed was reserved");
            conversation.head = Some(head);
        }
    }
}

impl Conversation {
    /// The time of the last record.
    pub(super) fn last_at(&self) -> Option<Timestamp> {
        self.records.values().next_back().map(|stored| stored.record.at)
    }

    /// The last committed seq; 0 before there is a head.
    pub(super) fn head_seq(&self) -> Seq {
        self.head.map_or(Seq(0), |head| head.last_seq)
    }
}

/// A duration on the store's clock, which has whole milliseconds.
pub(super) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
