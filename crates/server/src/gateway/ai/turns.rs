//! Which turn of a conversation is open, as the log says.
//!
//! Invariant: read from the log, so that every node gives the same answer, whoever owns the conversation, or nobody.

use std::collections::{BTreeMap, BTreeSet};

use conch_core::ids::{ConvRef, Seq};
use conch_core::record::{Record, RecordKind};
use conch_core::refusal::Refusal;
use conch_core::turn::journal;
use conch_store::{Direction, RangeQuery};

use crate::gateway::Gateway;
use crate::gateway::errors::IntoRefusal;

/// Records of one read.
const PAGE: usize = 200;
/// Most reads. What waits behind so many records is found when it starts.
const PAGES_MAX: usize = 25;

const KINDS: [RecordKind; 6] = [
    RecordKind::Message,
    RecordKind::Event,
    RecordKind::TurnCompleted,
    RecordKind::TurnFailed,
    RecordKind::TurnCancelled,
    RecordKind::TurnSuperseded,
];

/// A turn that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OpenTurn {
    pub(super) turn: Seq,
    /// The turn that it answers again.
    pub(super) regenerates: Option<Seq>,
}

/// A conversation's latest turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Latest {
    /// The last one that started.
    pub(super) started: Option<Seq>,
    /// The one that runs or waits, or else starts next.
    pub(super) open: Option<OpenTurn>,
}

/// Looks at the log.
///
/// # Errors
/// The store's refusal.
pub(super) async fn latest(gateway: &Gateway, conversation: &ConvRef) -> Result<Latest, Refusal> {
    let _place = gateway.shared.history_reads.acquire().await;
    let store = &gateway.node().store;
    let range = async |direction, limit, kinds| {
        let query = RangeQuery { conversation: conversation.clone(), direction, limit, kinds };
        store.range(&query).await.map_err(IntoRefusal::into_refusal)
    };
    let page = range(Direction::Latest, 1, vec![RecordKind::TurnStarted]).await?;
    let started = page.and_then(|page| page.records.last()?.turn);
    let mut seen = Seen::default();
    // The input of the last one that started is looked at, too.
    let mut after = Seq(started.unwrap_or_default().0.saturating_sub(1));
    for _ in 0..PAGES_MAX {
        let Some(page) = range(Direction::After(after), PAGE, KINDS.to_vec()).await? else { break };
        page.records.iter().for_each(|record| seen.take(record));
        match page.records.last() {
            Some(last) if page.more => after = last.seq,
            _ => break,
        }
    }
    Ok(Latest { started, open: seen.open(started) })
}

#[derive(Default)]
struct Seen {
    /// With the turns that they run again.
    inputs: BTreeMap<Seq, Option<Seq>>,
    ended: BTreeSet<Seq>,
}

impl Seen {
    fn take(&mut self, record: &Record) {
        if journal::is_input(record.kind, &record.sender) {
            self.inputs.insert(record.seq, journal::regenerates(&record.body));
        } else if record.kind.ends_turn() {
            self.ended.extend(record.turn);
        }
    }

    fn open(&self, started: Option<Seq>) -> Option<OpenTurn> {
        let running = started.filter(|turn| !self.ended.contains(turn));
        let waiting = self.inputs.keys().copied().find(|input| !self.ended.contains(input) && Some(*input) != started);
        let turn = running.or(waiting)?;
        Some(OpenTurn { turn, regenerates: self.inputs.get(&turn).copied().flatten() })
    }
}

#[cfg(test)]
mod tests {
    use conch_core::conversation::ConversationKind;
    use conch_core::ids::Epoch;
    use conch_core::record::Draft;
    use conch_core::time::Timestamp;

    use futures_util::FutureExt;

    use super::*;
    use crate::config::Config;
    use crate::gateway::HISTORY_READS;
    use crate::testing;

    #[tokio::test]
    async fn looking_for_the_open_turn_waits_for_a_place_as_other_reads_of_history_do() {
        let gateway = testing::gateway(&Config::default());
        let session = testing::create(gateway.node(), "s", ConversationKind::Session).await;
        let all = u32::try_from(HISTORY_READS).expect("a few");
        let places = gateway.shared.history_reads.acquire_many(all).await.expect("open");
        let mut looking = Box::pin(latest(&gateway, &session));
        assert!(looking.as_mut().now_or_never().is_none(), "all places are taken");
        drop(places);
        assert_eq!(looking.await.expect("read"), Latest::default());
    }

    fn seen(drafts: Vec<Draft>) -> Seen {
        let mut seen = Seen::default();
        for (seq, draft) in (1..).zip(drafts) {
            let id = "c".parse().expect("valid");
            seen.take(&Record::from_draft(id, Seq(seq), Epoch(1), Timestamp(0), draft));
        }
        seen
    }

    #[test]
    fn the_open_turn_runs_or_is_the_next_to_start() {
        let said = || crate::testing::message("k");
        let again = || {
            let body = journal::regenerate_body(Seq(1));
            Draft::new(RecordKind::Event, "alice".parse().expect("valid"), "r".parse().expect("valid"), body)
        };
        let open =
            |turn, regenerates: Option<u64>| Some(OpenTurn { turn: Seq(turn), regenerates: regenerates.map(Seq) });
        let (one, end) = (Some(Seq(1)), || journal::completed(Seq(1)));
        assert_eq!(seen(Vec::new()).open(None), None);
        assert_eq!(seen(vec![said()]).open(None), open(1, None), "not started yet");
        assert_eq!(seen(vec![said(), said()]).open(one), open(1, None), "the other one waits");
        assert_eq!(seen(vec![said(), end()]).open(one), None);
        assert_eq!(seen(vec![said(), said(), end()]).open(one), open(2, None), "the next one starts in a moment");
        assert_eq!(seen(vec![said(), end(), journal::regenerated(Seq(1)), again()]).open(one), open(4, Some(1)));
        let joined = vec![said(), said(), journal::joined(Seq(2), Seq(1)), end()];
        assert_eq!(seen(joined).open(one), None);
    }
}
