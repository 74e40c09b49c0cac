//! What a failover lost, and what may not pass for it.
//!
//! Each generation of a store skips [`SKIP_PER_GENERATION`] numbers, so a log shows where one ended: the next row is more
//! than that away. A number that a client was told of and that is not in the final log is lost to a failover if it lies in
//! such a place, if failovers were announced, and if its write was sent before the last of them. All else that is missing is
//! a violation; so is what is missing behind the last row, where nothing shows that a generation ended: somebody has to write
//! to the conversation after the failover.
//!
//! Deliberately absent: which of several failovers lost it. A conversation nobody wrote to between two of them has one skip.

use std::collections::BTreeSet;

use super::checker::{Conversation, Identity, Report};
use crate::head::SKIP_PER_GENERATION;
use crate::ids::{ConversationId, Epoch, Seq};
use crate::invariant::Invariant;

/// Lost numbers that a report names; further ones are only counted.
pub const MOST_LOST_NAMED: usize = 10_000;

/// A number that a client was told of, and that a failover lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// Where.
    pub conversation: ConversationId,
    /// The number. Nothing has it any more, and nothing ever will.
    pub seq: Seq,
    /// Whose it was: sender and idempotency key.
    pub write: String,
    /// Its sender was told that it was in the log. Otherwise it was only shown.
    pub acked: bool,
}

/// The numbers of a conversation that failovers lost.
pub(super) fn find(
    conversation: &Conversation,
    failovers: usize,
    may_be_lost: impl Fn(&Identity) -> bool,
) -> BTreeSet<Seq> {
    let mut lost = BTreeSet::new();
    if failovers == 0 {
        return lost;
    }
    let mut skips = BTreeSet::new();
    for (seq, (identity, _)) in &conversation.given {
        if conversation.row_of.contains_key(seq) {
            continue;
        }
        let next = conversation.rows_to(*seq);
        let before = next.checked_sub(1).map_or(Seq(0), |last| conversation.rows[last].seq);
        let is_skip = conversation.rows.get(next).is_some_and(|row| row.seq.0 - before.0 > SKIP_PER_GENERATION);
        if !is_skip || seq.0 - before.0 > SKIP_PER_GENERATION {
            continue;
        }
        skips.insert(next);
        // A failover makes one skip in a conversation.
        if skips.len() <= failovers && may_be_lost(identity) {
            lost.insert(*seq);
        }
    }
    lost
}

/// Invariants 1 and 2 over what was lost too: if the epoch falls along all numbers that were ever told, one came back.
pub(super) fn check_epochs(
    id: &ConversationId,
    conversation: &Conversation,
    lost: &BTreeSet<Seq>,
    report: &mut Report,
) {
    if lost.is_empty() {
        return;
    }
    let mut last: Option<(Seq, Epoch)> = None;
    for (&seq, &(_, epoch)) in &conversation.given {
        if let Some((last_seq, last_epoch)) = last.filter(|(_, before)| *before > epoch)
            && (lost.contains(&seq) || lost.contains(&last_seq))
        {
            let detail = format!("{id}: epoch {epoch} of {seq} follows {last_epoch} of {last_seq}, over what was lost");
            report.add(Invariant::EpochNeverFalls, detail);
        }
        last = Some((seq, epoch));
    }
}
