//! The canary: two nodes on an operator's own store fight over a conversation of their own, and the one that lost does not
//! know it. Shows that the fence holds there, where it counts.
//!
//! Invariant: other nodes are not disturbed. The canary's nodes advertise no link, so that nothing is placed on them or
//! handed to them; they keep no view of the others, so that they declare nobody dead and take up no due work; and they are
//! marked as draining as soon as each has its one conversation. They are gone from the store when [`run`] returns.
//!
//! Deliberately absent: repair, and judging what only one kind of store can show (see `conch verify`).

mod pair;
#[cfg(test)]
mod tests;
mod watcher;

use std::sync::Arc;
use std::time::Duration;

use conch_core::body::Body;
use conch_core::conversation::{ConversationKind, Settings};
use conch_core::ids::{ClientMsgId, ConvRef, ConversationId, Epoch, Incarnation, Subject};
use conch_core::record::{Draft, Record, RecordKind};
use conch_core::refusal::Refusal;
use conch_core::sequencer::Receipt;
use conch_store::{Direction, NewConversation, RangeQuery, Store, StoreError};
use serde::Serialize;

use self::pair::CanaryNode;
use crate::config::Config;
use crate::runtime;

/// What the canary's conversation is called before its number.
pub const PREFIX: &str = "conch-canary:";
/// Who writes in it.
const SENDER: &str = "conch-canary";
/// How long a watcher may take to be shown what was written.
const SHOWN_WITHIN: Duration = Duration::from_secs(10);
/// Records that are read of the conversation; it has four at most.
const RECORDS: usize = 100;

/// One thing that was tried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Step {
    /// What should be so, as a stable name.
    pub step: &'static str,
    /// Whether it is.
    pub shown: bool,
    /// What was seen.
    pub detail: String,
}

/// How it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The conversation, which stays: ownership of a conversation is never forgotten.
    pub conversation: ConvRef,
    /// Steps that did not show what they should.
    pub doubts: usize,
}

/// Why nothing can be said of the fence.
#[derive(Debug, thiserror::Error)]
pub enum CanaryError {
    /// The store.
    #[error("{doing}: {error}")]
    Store {
        /// What was tried.
        doing: &'static str,
        /// Its answer.
        error: StoreError,
    },
    /// A write that nothing stands against was refused.
    #[error("{doing}: {refusal}")]
    Refused {
        /// What was tried.
        doing: &'static str,
        /// Why not.
        refusal: Refusal,
    },
}

/// The writes, in the order in which they are tried.
struct Keys {
    first: ClientMsgId,
    taken: ClientMsgId,
    stale: ClientMsgId,
    after: ClientMsgId,
}

/// Goes through all steps on two handles of one store, as two processes would hold them. `told` hears of each step.
///
/// # Errors
/// As [`CanaryError`] lists: the canary could not be carried through, which says nothing good of the store either.
pub async fn run(
    stores: [Arc<dyn Store>; 2],
    config: &Config,
    mut told: impl FnMut(&Step),
) -> Result<Outcome, CanaryError> {
    let id = runtime::seams().incarnation();
    let conversation = format!("{PREFIX}{id}").parse::<ConversationId>().expect("a prefix and a UUID are a valid id");
    let mut canary = Canary { conversation: conversation.into(), doubts: 0, told: &mut told };
    let [first, second] = stores;
    let one = CanaryNode::start("canary-1", first, config).await.map_err(store("the first node is registered"))?;
    let ended = match CanaryNode::start("canary-2", second, config).await {
        Ok(two) => {
            let ended = canary.fight(&one, &two).await;
            two.end().await;
            ended
        }
        Err(error) => Err(store("the second node is registered")(error)),
    };
    one.end().await;
    ended?;
    Ok(Outcome { conversation: canary.conversation, doubts: canary.doubts })
}

struct Canary<'a> {
    conversation: ConvRef,
    doubts: usize,
    told: &'a mut dyn FnMut(&Step),
}

impl Canary<'_> {
    async fn fight(&mut self, one: &CanaryNode, two: &CanaryNode) -> Result<(), CanaryError> {
        let key = || one.incarnation_like().to_string().parse().expect("a UUID is a valid key");
        let keys = Keys { first: key(), taken: key(), stale: key(), after: key() };
        self.create(one).await?;

        let watcher = one.watch(&self.conversation).await.map_err(refused("the first node is watched"))?;
        let begun = self.write(one, &keys.first, "the first node writes").await?;
        one.set_draining().await.map_err(store("the first node is marked as draining"))?;
        let shown = watcher.shows(&keys.first, SHOWN_WITHIN).await;
        let detail = format!("{} wrote number {} in epoch {}", one.me(), begun.seq, begun.epoch);
        self.tell(&Step { step: "owner_writes", shown, detail });

        one.stop_heart();
        let expelled = two.expel(one.me()).await.map_err(store("the first node's row is removed"))?;
        let standing = match (expelled, one.believes()) {
            (true, true) => Standing::Unaware,
            (true, false) => Standing::RanOut,
            (false, _) => Standing::NoRow,
        };
        let (shown, detail) = (standing == Standing::Unaware, standing.describe(one.me()));
        self.tell(&Step { step: "owner_is_unaware", shown, detail });

        let other = two.watch(&self.conversation).await.map_err(refused("the second node is watched"))?;
        let taken = self.write(two, &keys.taken, "the second node takes over").await?;
        two.set_draining().await.map_err(store("the second node is marked as draining"))?;
        let shown = other.shows(&keys.taken, SHOWN_WITHIN).await && taken.epoch > begun.epoch;
        let detail = format!("{} wrote number {} in epoch {}", two.me(), taken.seq, taken.epoch);
        self.tell(&Step { step: "another_takes_over", shown, detail });

        let answer = one.write_once(&self.conversation, draft(&keys.stale, "written without knowing")).await;
        let (shown, detail) = judge(one, &self.conversation, begun.epoch, &answer);
        self.tell(&Step { step: "stale_write_is_fenced", shown, detail });

        // Whatever the second node shows after this, it would have shown before.
        let after = self.write(two, &keys.after, "the second node goes on").await?;
        let shown = other.shows(&keys.after, SHOWN_WITHIN).await && after.epoch == taken.epoch;
        let detail = format!("number {} in epoch {}", after.seq, after.epoch);
        self.tell(&Step { step: "the_new_owner_goes_on", shown, detail });
        let seen = [watcher.saw(&keys.stale), other.saw(&keys.stale)];
        let (shown, detail) = (seen == [false, false], shown_to(seen));
        self.tell(&Step { step: "stale_write_is_shown_to_nobody", shown, detail });
        self.log_is_whole(two, &keys, [begun, taken, after]).await
    }

    async fn create(&self, node: &CanaryNode) -> Result<(), CanaryError> {
        let new = NewConversation {
            conversation: self.conversation.clone(),
            kind: ConversationKind::Channel,
            regions: Vec::new(),
            home: node.region(),
            title: Some("conch canary".to_owned()),
            agent: None,
            settings: Settings::default(),
            creator: sender(),
            members: Vec::new(),
        };
        node.store().create_conversation(&new).await.map_err(store("the canary's conversation is created"))?;
        Ok(())
    }

    async fn write(&self, node: &CanaryNode, key: &ClientMsgId, doing: &'static str) -> Result<Receipt, CanaryError> {
        let receipts = node.write(&self.conversation, draft(key, doing)).await.map_err(refused(doing))?;
        Ok(receipts.into_iter().next().expect("a write of one record has one receipt"))
    }

    /// The log has what was acknowledged, under its numbers, and nothing else; epochs never fall along it.
    async fn log_is_whole(&mut self, node: &CanaryNode, keys: &Keys, acked: [Receipt; 3]) -> Result<(), CanaryError> {
        let query = RangeQuery {
            conversation: self.conversation.clone(),
            direction: Direction::After(conch_core::ids::Seq(0)),
            limit: RECORDS,
            kinds: Vec::new(),
        };
        let page = node.store().range(&query).await.map_err(store("the log is read"))?;
        let records = page.map(|page| page.records).unwrap_or_default();
        let found: Vec<_> =
            records.iter().map(|record| (record.client_msg_id.as_ref(), record.seq, record.epoch)).collect();
        let [first, taken, after] = acked;
        let expected = [(&keys.first, first), (&keys.taken, taken), (&keys.after, after)];
        let expected: Vec<_> =
            expected.into_iter().map(|(key, receipt)| (Some(key), receipt.seq, receipt.epoch)).collect();
        let ordered = records.is_sorted_by(|a: &Record, b: &Record| a.seq < b.seq && a.epoch <= b.epoch);
        let stale = found.iter().any(|(key, ..)| *key == Some(&keys.stale));
        let text = match (stale, found == expected && ordered) {
            (true, _) => "the refused write is in the log".to_owned(),
            (false, true) => format!("{} records, as they were acknowledged", records.len()),
            (false, false) => format!("acknowledged were {expected:?}; found were {found:?}"),
        };
        self.tell(&Step { step: "log_is_whole", shown: found == expected && ordered, detail: text });
        Ok(())
    }

    fn tell(&mut self, step: &Step) {
        self.doubts += usize::from(!step.shown);
        (self.told)(step);
    }
}

/// What came of the write of a node that has lost its conversation, and whether it was the store that refused it.
fn judge(
    node: &CanaryNode,
    conversation: &ConvRef,
    epoch: Epoch,
    answer: &Result<Vec<Receipt>, Refusal>,
) -> (bool, String) {
    match answer {
        Ok(receipts) => {
            let numbers: Vec<String> = receipts.iter().map(|receipt| receipt.seq.to_string()).collect();
            (false, format!("ACCEPTED as number {}: two nodes write one conversation", numbers.join(", ")))
        }
        Err(_) if node.was_fenced(conversation, epoch) => {
            (true, "the store refused it: another one owns the conversation".to_owned())
        }
        Err(refusal) if !node.believes() => (
            false,
            format!("the node's own lease ran out before the store was asked ({refusal}); run the canary again"),
        ),
        Err(refusal) => (false, format!("refused, but not by the fence: {refusal}")),
    }
}

/// How a node stands that is to be dead without knowing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Unaware,
    RanOut,
    NoRow,
}

impl Standing {
    fn describe(self, me: Incarnation) -> String {
        match self {
            Self::Unaware => format!("{me} is declared dead, and its lease runs on as far as it knows"),
            Self::RanOut => format!("{me} is declared dead, but its lease ran out meanwhile; run the canary again"),
            Self::NoRow => format!("{me} had no row any more; somebody else removed it; run the canary again"),
        }
    }
}

fn shown_to(seen: [bool; 2]) -> String {
    match seen {
        [false, false] => "no watcher of either node saw it".to_owned(),
        [true, false] => "a watcher of the first node saw it".to_owned(),
        [false, true] => "a watcher of the second node saw it".to_owned(),
        [true, true] => "watchers of both nodes saw it".to_owned(),
    }
}

fn draft(key: &ClientMsgId, text: &str) -> Draft {
    Draft::new(RecordKind::Message, sender(), key.clone(), Body::of(&serde_json::json!({ "text": text })))
}

fn sender() -> Subject {
    SENDER.parse().expect("a valid subject")
}

fn store(doing: &'static str) -> impl Fn(StoreError) -> CanaryError {
    move |error| CanaryError::Store { doing, error }
}

fn refused(doing: &'static str) -> impl Fn(Refusal) -> CanaryError {
    move |refusal| CanaryError::Refused { doing, refusal }
}
