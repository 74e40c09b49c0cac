//! The owner's numbering: the product's own sequencer, put where a reign stands and asked one thing.
//!
//! A sequencer is not kept in the world, because two that stand at the same place must be the same. One record is under
//! way at a time, and what it remembers of its acks is left out: an answer from there repeats an ack that was given.

use std::sync::LazyLock;

use conch_core::body::{Body, Limits};
use conch_core::ids::{ConvRef, ConversationId, Seq};
use conch_core::record::{Draft, RecordKind};
use conch_core::refusal::{Code, Refusal, Retry};
use conch_core::sequencer::Moment;
use conch_core::sequencer::{Action, CommitRequest, Input, Original, Reign, Sequencer, SequencerLimits, Ticket};
use conch_core::time::{Monotonic, Timestamp};

use super::world::{Entry, Key};

/// Numbers that are reserved at a time.
pub(super) const BLOCK: u64 = 2;

const AT: Timestamp = Timestamp(0);
const CERTAIN: Moment = Moment { now: Monotonic(0), valid_until: Monotonic(1) };
const UNCERTAIN: Moment = Moment { now: Monotonic(1), valid_until: Monotonic(1) };

static CONVERSATION: LazyLock<ConvRef> = LazyLock::new(|| {
    let id: ConversationId = "modelled".parse().expect("letters are an id");
    id.into()
});

static DRAFTS: LazyLock<[Draft; 3]> = LazyLock::new(|| {
    ["x", "y", "z"].map(|key| {
        let body = Body::parse_message(r#"{"text":"."}"#, Limits::default()).expect("a message's body");
        let sender = "client".parse().expect("letters are a subject");
        Draft::new(RecordKind::Message, sender, key.parse().expect("a letter is a key"), body)
    })
});

/// What an owner did with an answer of the store.
pub(super) struct Reaction {
    /// The number that the sender was told.
    pub(super) acked: Option<Seq>,
    /// The number that was shown to those who watch.
    pub(super) shown: Option<Seq>,
    /// Where the numbering stands; `None`: the reign is over.
    pub(super) reign: Option<Reign>,
}

fn sequencer(reign: Reign, gap: u64) -> Sequencer {
    let limits = SequencerLimits { block: BLOCK, gap, recent_keys: 0, ..SequencerLimits::default() };
    Sequencer::new(CONVERSATION.clone(), reign, limits)
}

fn number_with(sequencer: &mut Sequencer, key: Key) -> Option<CommitRequest> {
    let mut actions = Vec::new();
    let draft = DRAFTS[usize::from(key.0)].clone();
    sequencer.handle(CERTAIN, Input::Append(Ticket(0), vec![draft]), &mut actions);
    match actions.pop() {
        Some(Action::Commit(request)) => Some(request),
        Some(Action::Halt(_)) => None,
        other => unreachable!("an idle reign with a certain lease numbers, or ends: {other:?}"),
    }
}

/// The commit that a reign which stands here asks for; `None`: it ends instead. `gap` is what the next one skips, as far as
/// this one knows.
pub(super) fn number(reign: Reign, key: Key, gap: u64) -> Option<CommitRequest> {
    number_with(&mut sequencer(reign, gap), key)
}

/// The number that it gave.
fn given(reign: Reign) -> Seq {
    reign.first_seq
}

/// The record is in the log, as `entry`, which may be an earlier append's.
pub(super) fn landed(reign: Reign, key: Key, entry: Entry, valid: bool) -> Reaction {
    let body_hash = DRAFTS[usize::from(key.0)].body_hash;
    let own = given(reign);
    let original = Original { seq: entry.seq, body_hash, epoch: entry.epoch, at: AT };
    let duplicates = if entry.seq == own { Vec::new() } else { vec![(own, original)] };
    react(reign, key, Input::Landed { at: AT, duplicates }, if valid { CERTAIN } else { UNCERTAIN })
}

/// The record was certainly not written.
pub(super) fn failed(reign: Reign, key: Key) -> Reaction {
    let refusal = Refusal::retry(Code::Overloaded, "the disk is full", Retry::SOON);
    react(reign, key, Input::Failed(refusal), CERTAIN)
}

fn react(reign: Reign, key: Key, input: Input, moment: Moment) -> Reaction {
    // What was numbered was within the gap, or that rule is left out.
    let mut sequencer = sequencer(reign, u64::MAX);
    number_with(&mut sequencer, key);
    let mut actions = Vec::new();
    sequencer.handle(moment, input, &mut actions);
    let mut reaction = Reaction { acked: None, shown: None, reign: None };
    let mut halted = false;
    for action in actions {
        match action {
            Action::Ack(_, receipts) => reaction.acked = receipts.first().map(|receipt| receipt.seq),
            Action::Publish { record, .. } => reaction.shown = Some(record.seq),
            Action::Halt(_) => halted = true,
            Action::Commit(_) | Action::Refuse(..) => {}
        }
    }
    reaction.reign = (!halted).then(|| sequencer.reign());
    reaction
}
