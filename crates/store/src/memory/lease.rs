//! The memory store's node leases and conversation heads.
//!
//! Invariant: a head's epoch only rises, and `reserved_to` falls only by a clean release or hand-off, to what was used.

use std::time::Duration;

use conch_core::head::HeadRow;
use conch_core::ids::{ConvRef, Epoch, Incarnation, Seq};

use super::Mutant;
use super::state::{Node, State, millis};
use crate::{Armed, ClaimRequest, Held, Lifeline, NodeRow, OwnerSeen, Registration, Resolution, Resolved, StoreError};

impl State {
    pub(super) fn register(
        &mut self,
        now_ms: i64,
        registration: &Registration,
        ttl: Duration,
    ) -> Result<(), StoreError> {
        let incarnation = registration.incarnation;
        if self.nodes.contains_key(&incarnation) || self.retired.contains(&incarnation) {
            return Err(StoreError::Unavailable(format!("incarnation {incarnation} was registered before")));
        }
        let expires_at_ms = now_ms.saturating_add(millis(ttl));
        let node = Node { registration: registration.clone(), beat: 0, draining: false, expires_at_ms };
        self.nodes.insert(incarnation, node);
        Ok(())
    }

    pub(super) fn renew(&mut self, now_ms: i64, me: Incarnation, ttl: Duration) -> Option<u64> {
        if self.is(Mutant::DeadRenews) && self.retired.contains(&me) {
            return Some(1);
        }
        let expired_stays = self.is(Mutant::ExpiredStaysExpired);
        let node = self.nodes.get_mut(&me)?;
        if expired_stays && node.expires_at_ms < now_ms {
            return None;
        }
        node.beat += 1;
        node.expires_at_ms = now_ms.saturating_add(millis(ttl));
        Some(node.beat)
    }

    pub(super) fn replace_lifeline(
        &mut self,
        now_ms: i64,
        me: Incarnation,
        ttl: Duration,
        lifeline: Lifeline,
    ) -> Option<u64> {
        let beat = self.renew(now_ms, me, ttl)?;
        if let Some(node) = self.nodes.get_mut(&me) {
            node.registration.lifeline = Some(lifeline);
        }
        Some(beat)
    }

    /// The caller has made sure that nobody holds the lock.
    pub(super) fn declare_process_dead(&mut self, dead: Incarnation, seen_beat: u64, seen_lifeline: Lifeline) -> bool {
        let Some(node) = self.nodes.get(&dead) else { return false };
        let same_beat = node.beat == seen_beat || self.is(Mutant::BeatUnchecked);
        same_beat && node.registration.lifeline == Some(seen_lifeline) && self.remove_node(dead)
    }

    pub(super) fn node_rows(&self, now_ms: i64) -> Vec<NodeRow> {
        self.nodes.values().map(|node| node.row(now_ms)).collect()
    }

    pub(super) fn set_draining(&mut self, me: Incarnation) -> bool {
        self.nodes.get_mut(&me).map(|node| node.draining = true).is_some()
    }

    pub(super) fn remove_node(&mut self, incarnation: Incarnation) -> bool {
        let removed = self.nodes.remove(&incarnation).is_some();
        if removed {
            self.retired.insert(incarnation);
        }
        removed
    }

    /// `longest`: further ahead than this no renewal can put a lease.
    pub(super) fn declare_expired(
        &mut self,
        now_ms: i64,
        dead: Incarnation,
        seen_beat: u64,
        longest: Duration,
    ) -> bool {
        let Some(node) = self.nodes.get(&dead) else { return false };
        let clock_was_set_back = node.expires_at_ms > now_ms.saturating_add(millis(longest));
        let over = node.expires_at_ms < now_ms
            || (clock_was_set_back && !self.is(Mutant::ClockSetBackIgnored))
            || self.is(Mutant::ExpiryUnchecked);
        let same_beat = node.beat == seen_beat || self.is(Mutant::BeatUnchecked);
        over && same_beat && self.remove_node(dead)
    }

    pub(super) fn resolve(&self, now_ms: i64, conversation: &ConvRef) -> Result<Option<Resolution>, StoreError> {
        let Some(found) = self.known(conversation)? else { return Ok(None) };
        let owner = found.head.and_then(|head| head.owner).map(|incarnation| OwnerSeen {
            incarnation,
            node: self.nodes.get(&incarnation).map(|node| node.row(now_ms)),
        });
        Ok(Some(Resolution { epoch: found.head.map(|head| head.epoch), owner }))
    }

    pub(super) fn resolve_many(&self, now_ms: i64, conversations: &[ConvRef]) -> Vec<Resolved> {
        let mut asked: Vec<&ConvRef> = conversations.iter().collect();
        if self.is(Mutant::ManyInKeyOrder) {
            asked.sort_unstable_by_key(|conversation| conversation.key);
        }
        if self.is(Mutant::ManyLeaveOutTheUnknown) {
            asked.retain(|conversation| self.conversations.contains_key(&conversation.key));
        }
        asked.into_iter().map(|conversation| self.resolve(now_ms, conversation)).collect()
    }

    pub(super) fn claim(&mut self, now_ms: i64, request: &ClaimRequest) -> Option<Armed> {
        if !self.may_claim(now_ms, request) {
            return None;
        }
        let head = match self.conversations.get(&request.conversation)?.head {
            Some(head) => self.taken_over(head, request)?,
            None => self.first_head(request)?,
        };
        let armed = self.armed(head);
        self.set_head(request.conversation, head);
        Some(armed)
    }

    /// The head of a conversation that nobody ever owned.
    fn first_head(&self, request: &ClaimRequest) -> Option<HeadRow> {
        let unseen = request.seen_epoch.is_none() && request.seen_owner.is_none();
        if !unseen && !self.is(Mutant::ClaimUnchecked) {
            return None;
        }
        Some(HeadRow::first(request.me, self.generation))
    }

    /// The head after a change of owner; `None` if it is not as it was seen.
    fn taken_over(&self, seen: HeadRow, request: &ClaimRequest) -> Option<HeadRow> {
        let as_seen = request.seen_epoch == Some(seen.epoch) && request.seen_owner == seen.owner;
        if !as_seen && !self.is(Mutant::ClaimUnchecked) {
            return None;
        }
        let gap = if self.is(Mutant::NoGap) { 0 } else { request.gap };
        let reserved_to = if self.is(Mutant::ReservationIgnored) { seen.last_seq } else { seen.reserved_to };
        let head = HeadRow { reserved_to, ..seen }.claimed(request.me, self.generation, gap)?;
        let keep = self.is(Mutant::EpochKeptOnClaim) && head.generation == seen.generation;
        Some(if keep { HeadRow { epoch: seen.epoch, ..head } } else { head })
    }

    /// May this incarnation claim? A draining one only what it owns already, to settle a write of unknown outcome.
    fn may_claim(&self, now_ms: i64, request: &ClaimRequest) -> bool {
        let Some(node) = self.nodes.get(&request.me) else { return self.is(Mutant::UnregisteredClaims) };
        let draining = node.draining && request.seen_owner != Some(request.me) && !self.is(Mutant::DrainingClaims);
        !draining && (node.has_more_than(request.margin, now_ms) || self.is(Mutant::MarginIgnored))
    }

    pub(super) fn release(&mut self, held: &Held, first_seq: Seq) -> bool {
        let Some(held_head) = self.held_head(held) else { return false };
        let mut head = held_head.released(first_seq);
        if self.is(Mutant::HoleAfterRelease) {
            head.reserved_to = held_head.reserved_to;
        }
        if self.is(Mutant::EpochResetOnRelease) {
            head.epoch = Epoch(0);
        }
        self.set_head(held.conversation, head);
        true
    }

    pub(super) fn release_wedged(&mut self, held: &Held, gap: u64) -> bool {
        let Some(head) = self.held_head(held) else { return false };
        let gap = if self.is(Mutant::NoGapForTheWedged) { 0 } else { gap };
        self.set_head(held.conversation, head.released_wedged(gap));
        true
    }

    pub(super) fn hand_off(
        &mut self,
        now_ms: i64,
        held: &Held,
        to: Incarnation,
        first_seq: Seq,
        margin: Duration,
    ) -> Option<Armed> {
        let head = self.held_head(held)?;
        let peer = self.nodes.get(&to);
        let fit = peer.is_some_and(|peer| !peer.draining && peer.has_more_than(margin, now_ms));
        if !fit && !self.is(Mutant::PeerUnchecked) {
            return None;
        }
        let head = head.handed_off(to, self.generation, first_seq)?;
        self.set_head(held.conversation, head);
        Some(self.armed(head))
    }

    /// The head, if it is this holder's and the holder is registered.
    fn held_head(&self, held: &Held) -> Option<HeadRow> {
        let head = self.head(held.conversation)?;
        let ours = head.epoch == held.epoch && head.owner == Some(held.me) && self.nodes.contains_key(&held.me);
        (ours || self.is(Mutant::ReleaseUnchecked)).then_some(head)
    }

    fn armed(&self, head: HeadRow) -> Armed {
        Armed { epoch: head.epoch, generation: self.generation, last_seq: head.last_seq, first_seq: head.first_seq() }
    }
}

impl Node {
    fn row(&self, now_ms: i64) -> NodeRow {
        NodeRow {
            registration: self.registration.clone(),
            beat: self.beat,
            draining: self.draining,
            expires_in_ms: self.expires_at_ms.saturating_sub(now_ms),
        }
    }

    fn has_more_than(&self, margin: Duration, now_ms: i64) -> bool {
        self.expires_at_ms > now_ms.saturating_add(millis(margin))
    }
}
