//! The memory store's conversations: creation, members, cursors and summaries.
//!
//! Invariant 11: a cursor only moves forward.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use conch_core::conversation::ConversationKind;
use conch_core::ids::{ConvRef, ConversationId, Seq, Subject};
use conch_core::record::{Record, RecordKind};
use conch_core::time::Timestamp;

use super::Mutant;
use super::state::{Conversation, State};
use crate::{
    ConversationInfo, ConversationPatch, Created, CursorOutcome, Head, Member, MembershipChange, NewConversation,
    StoreError, Summary, SummaryPage, UNREAD_CAP,
};

impl State {
    pub(super) fn create_conversation(&mut self, now_ms: i64, new: &NewConversation) -> Result<Created, StoreError> {
        if let Some(existing) = self.known(&new.conversation)?
            && !self.is(Mutant::CreateOverwrites)
        {
            return Ok(Created::Existing(self.info(existing)));
        }
        let at = Timestamp(now_ms);
        let conversation = Conversation {
            id: new.conversation.id.clone(),
            kind: new.kind,
            regions: new.regions.clone(),
            home: new.regions.first().unwrap_or(&new.home).clone(),
            title: new.title.clone(),
            agent: new.agent.clone(),
            settings: new.settings.clone(),
            created_at: at,
            members: new.members.iter().map(|sub| (sub.clone(), at)).collect(),
            cursors: BTreeMap::new(),
            head: None,
            records: BTreeMap::new(),
            by_client_msg_id: BTreeMap::new(),
            due: None,
            checkpoint: None,
        };
        let info = self.info(&conversation);
        self.conversations.insert(new.conversation.key, Arc::new(conversation));
        Ok(Created::New(info))
    }

    pub(super) fn conversation_info(&self, conversation: &ConvRef) -> Result<Option<ConversationInfo>, StoreError> {
        Ok(self.known(conversation)?.map(|found| self.info(found)))
    }

    pub(super) fn patch_conversation(
        &mut self,
        conversation: &ConvRef,
        patch: &ConversationPatch,
    ) -> Result<Option<ConversationInfo>, StoreError> {
        let Some(found) = self.known_mut(conversation)? else { return Ok(None) };
        if let Some(title) = &patch.title {
            found.title.clone_from(title);
        }
        if let Some(agent) = &patch.agent {
            found.agent = Some(agent.clone());
        }
        if let Some(settings) = &patch.settings {
            found.settings = settings.clone();
        }
        self.conversation_info(conversation)
    }

    fn info(&self, conversation: &Conversation) -> ConversationInfo {
        let head = conversation.head.map(|head| Head {
            epoch: head.epoch,
            owner: head.owner,
            owner_node: head.owner.and_then(|owner| self.nodes.get(&owner)).map(|node| node.registration.node.clone()),
            generation: head.generation,
            last_seq: head.last_seq,
            reserved_to: head.reserved_to,
        });
        ConversationInfo {
            id: conversation.id.clone(),
            kind: conversation.kind,
            regions: conversation.regions.clone(),
            home: conversation.home.clone(),
            title: conversation.title.clone(),
            agent: conversation.agent.clone(),
            settings: conversation.settings.clone(),
            created_at: conversation.created_at,
            head,
        }
    }

    pub(super) fn add_member(
        &mut self,
        now_ms: i64,
        conversation: &ConvRef,
        sub: &Subject,
    ) -> Result<MembershipChange, StoreError> {
        let direct_is_open = self.is(Mutant::DirectIsOpen);
        let Some(found) = self.known_mut(conversation)? else { return Ok(MembershipChange::NoConversation) };
        if found.members.contains_key(sub) {
            return Ok(MembershipChange::Unchanged);
        }
        if found.kind == ConversationKind::Direct && !direct_is_open {
            return Ok(MembershipChange::Direct);
        }
        found.members.insert(sub.clone(), Timestamp(now_ms));
        Ok(MembershipChange::Changed)
    }

    pub(super) fn remove_member(
        &mut self,
        conversation: &ConvRef,
        sub: &Subject,
    ) -> Result<MembershipChange, StoreError> {
        let direct_is_open = self.is(Mutant::DirectIsOpen);
        let Some(found) = self.known_mut(conversation)? else { return Ok(MembershipChange::NoConversation) };
        if !found.members.contains_key(sub) {
            return Ok(MembershipChange::Unchanged);
        }
        if found.kind == ConversationKind::Direct && !direct_is_open {
            return Ok(MembershipChange::Direct);
        }
        found.members.remove(sub);
        Ok(MembershipChange::Changed)
    }

    pub(super) fn is_member(&self, conversation: &ConvRef, sub: &Subject) -> Result<bool, StoreError> {
        Ok(self.known(conversation)?.is_some_and(|found| found.members.contains_key(sub)))
    }

    pub(super) fn members(
        &self,
        conversation: &ConvRef,
        after: Option<&Subject>,
        limit: usize,
    ) -> Result<Option<(Vec<Member>, bool)>, StoreError> {
        let Some(found) = self.known(conversation)? else { return Ok(None) };
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = found.members.range::<Subject, _>((from, Bound::Unbounded));
        let member = |(sub, since): (&Subject, &Timestamp)| Member { sub: sub.clone(), since: *since };
        let page = rest.by_ref().take(limit).map(member).collect();
        let more = rest.next().is_some() && !self.is(Mutant::MoreIsNeverTrue);
        Ok(Some((page, more)))
    }

    pub(super) fn summaries(
        &self,
        sub: &Subject,
        after: Option<&(Timestamp, ConversationId)>,
        limit: usize,
    ) -> SummaryPage {
        let mut summaries: Vec<Summary> = self
            .conversations
            .values()
            .filter(|conversation| conversation.members.contains_key(sub))
            .map(|conversation| self.summary_of(sub, conversation))
            .filter(|summary| {
                after.is_none_or(|(at, id)| (Reverse(*at), id) < (Reverse(summary.updated_at), &summary.id))
            })
            .collect();
        summaries.sort_by(|a, b| (Reverse(a.updated_at), &a.id).cmp(&(Reverse(b.updated_at), &b.id)));
        let more = summaries.len() > limit && !self.is(Mutant::MoreIsNeverTrue);
        summaries.truncate(limit);
        SummaryPage { summaries, log: self.log_id(), more }
    }

    pub(super) fn summary(&self, sub: &Subject, conversation: &ConvRef) -> Result<Option<Summary>, StoreError> {
        let found = self.known(conversation)?.filter(|found| found.members.contains_key(sub));
        Ok(found.map(|found| self.summary_of(sub, found)))
    }

    fn summary_of(&self, sub: &Subject, conversation: &Conversation) -> Summary {
        let cursor = conversation.cursors.get(sub).copied().unwrap_or_default();
        let head_seq = conversation.head_seq();
        let records = conversation.records.values().map(|stored| &stored.record);
        let is_message = |record: &&Record| record.kind == RecordKind::Message;
        Summary {
            id: conversation.id.clone(),
            kind: conversation.kind,
            title: conversation.title.clone(),
            agent: conversation.agent.clone(),
            head_seq,
            cursor,
            unread: self.unread(sub, conversation, cursor),
            last_message: records.rev().find(is_message).cloned(),
            updated_at: conversation.last_at().unwrap_or(conversation.created_at),
        }
    }

    fn unread(&self, sub: &Subject, conversation: &Conversation, cursor: Seq) -> u32 {
        if self.is(Mutant::UnreadFromSeqs) {
            return u32::try_from(conversation.head_seq().0 - cursor.0).unwrap_or(UNREAD_CAP).min(UNREAD_CAP);
        }
        let own_count = self.is(Mutant::OwnUnread);
        let unread = conversation
            .records
            .range(cursor.next()..)
            .map(|(_, stored)| &stored.record)
            .filter(|record| record.kind == RecordKind::Message && (record.sender != *sub || own_count))
            .take(UNREAD_CAP as usize)
            .count();
        u32::try_from(unread).unwrap_or(UNREAD_CAP)
    }

    pub(super) fn move_cursor(
        &mut self,
        conversation: &ConvRef,
        sub: &Subject,
        to: Seq,
    ) -> Result<CursorOutcome, StoreError> {
        let (moves_back, beyond) = (self.is(Mutant::CursorMovesBack), self.is(Mutant::CursorBeyondHead));
        let Some(found) = self.known_mut(conversation)? else { return Ok(CursorOutcome::NoConversation) };
        let head_seq = found.head_seq();
        if to > head_seq && !beyond {
            return Ok(CursorOutcome::BeyondHead(head_seq));
        }
        let cursor = found.cursors.entry(sub.clone()).or_default();
        *cursor = if moves_back { to } else { to.max(*cursor) };
        Ok(CursorOutcome::At(*cursor))
    }
}
