//! What the log says of a turn, to whoever asks: no owner is needed.
//!
//! Invariant: what is read is bounded by what one turn may write, however long the log is and whatever else is in it: the
//! records between a turn's start and its end are its own, for one turn runs at a time.
//!
//! Deliberately absent: what the records mean, which is `conch_core::turn::overview`'s.

use conch_core::ids::{ClientMsgId, ConvRef, Seq, Subject};
use conch_core::record::{Draft, Record, RecordKind};
use conch_core::refusal::Refusal;
use conch_core::sequencer::{Outcome, Receipt, key_reused};
use conch_core::turn::journal;
use conch_core::turn::overview::Overview;
use conch_core::turn::replaced;
use conch_core::turn::replay::JOURNAL_KINDS;
use conch_store::{Direction, Landed, RangeQuery, Store, StoreError};

use crate::owner::store_refusal;

/// Records of one read.
const PAGE: usize = 200;

/// The record with this number; `None`: a hole, or beyond the head.
///
/// # Errors
/// The store's.
pub async fn record_at(store: &dyn Store, conversation: &ConvRef, seq: Seq) -> Result<Option<Record>, StoreError> {
    let direction = Direction::After(Seq(seq.0.saturating_sub(1)));
    let query = RangeQuery { conversation: conversation.clone(), direction, limit: 1, kinds: Vec::new() };
    let page = store.range(&query).await?;
    Ok(page.and_then(|page| page.records.into_iter().find(|record| record.seq == seq)))
}

/// The key under which a turn's start, end and the like are.
#[must_use]
pub fn key_of(turn: Seq) -> ClientMsgId {
    turn.to_string().parse().expect("digits are a key")
}

/// The answer to a write that is in the log already.
#[must_use]
pub fn duplicate(there: Landed) -> Receipt {
    Receipt { seq: there.seq, epoch: there.epoch, at: there.at, outcome: Outcome::Duplicate }
}

/// What is in the log under a draft's key; `None`: nothing. For a draft that goes into one commit with others, which the store
/// would take without it.
///
/// # Errors
/// [`Code::IdempotencyKeyReused`](conch_core::refusal::Code::IdempotencyKeyReused) if it is something else; a refusal with a
/// directive when the log cannot be read.
pub async fn written(store: &dyn Store, conversation: &ConvRef, draft: &Draft) -> Result<Option<Receipt>, Refusal> {
    let there = store.find(conversation, &draft.sender, &draft.client_msg_id).await;
    match there.map_err(|error| store_refusal(&error))? {
        Some(there) if there.body_hash == draft.body_hash => Ok(Some(duplicate(there))),
        Some(_) => Err(key_reused()),
        None => Ok(None),
    }
}

/// What is known of a turn; `None`: this record is no input, or there is none.
///
/// # Errors
/// The store's.
pub async fn overview(store: &dyn Store, conversation: &ConvRef, turn: Seq) -> Result<Option<Overview>, StoreError> {
    let input = record_at(store, conversation, turn).await?;
    if !input.is_some_and(|record| journal::is_input(record.kind, &record.sender)) {
        return Ok(None);
    }
    let mut reading = Reading { store, conversation, turn, at: turn, overview: Overview::queued(turn) };
    // Looked for before the start: an end without a start is then that of a turn which never had one.
    let mut end = reading.find(journal::END_SENDER).await?;
    if let Some(start) = reading.find(journal::START_SENDER).await? {
        reading.at = Seq(start.seq.0.saturating_sub(1));
        reading.journal(end.map(|end| end.seq)).await?;
        if end.is_none() {
            // It may have ended while its journal was read; then what it did in the meantime belongs to it, too.
            end = reading.find(journal::END_SENDER).await?;
            if let Some(end) = end {
                reading.journal(Some(end.seq)).await?;
            }
        }
    }
    if let Some(end) = end {
        reading.answer(end.seq).await?;
        reading.take(end.seq).await?;
    }
    if let Some((record, _)) = superseded(store, conversation, turn).await? {
        reading.overview.take(&record);
    }
    Ok(Some(reading.overview))
}

/// True if a turn was rolled back.
///
/// # Errors
/// The store's.
pub async fn is_rolled_back(store: &dyn Store, conversation: &ConvRef, turn: Seq) -> Result<bool, StoreError> {
    let end = store.find(conversation, &Subject::system(journal::END_SENDER), &key_of(turn)).await?;
    let Some(end) = end else { return Ok(false) };
    Ok(record_at(store, conversation, end.seq).await?.is_some_and(|end| replaced::rolled_back(&end).is_some()))
}

/// The record that supersedes a turn, and the run that replaces it; `None` inside: it joined another one. A run that was rolled
/// back supersedes nothing, and the turn may be superseded once more.
///
/// # Errors
/// The store's.
pub async fn superseded(
    store: &dyn Store,
    conversation: &ConvRef,
    turn: Seq,
) -> Result<Option<(Record, Option<Seq>)>, StoreError> {
    let (by, mut undone) = (Subject::system(journal::SUPERSEDE_SENDER), None);
    loop {
        let Some(there) = store.find(conversation, &by, &journal::supersede_key(turn, undone)).await? else { break };
        let Some(record) = record_at(store, conversation, there.seq).await? else { break };
        match replaced_by(store, conversation, &record).await? {
            Some(run) if is_rolled_back(store, conversation, run).await? => undone = Some(run),
            run => return Ok(Some((record, run))),
        }
    }
    Ok(None)
}

/// The turn whose answer counts where this is the last one that has started: itself, or what a run that was rolled back ran again.
///
/// # Errors
/// The store's.
pub async fn stands_for(store: &dyn Store, conversation: &ConvRef, turn: Seq) -> Result<Seq, StoreError> {
    let mut turn = turn;
    while is_rolled_back(store, conversation, turn).await? {
        let input = record_at(store, conversation, turn).await?;
        let Some(of) = input.as_ref().and_then(replaced::runs_again).filter(|of| *of < turn) else { break };
        turn = of;
    }
    Ok(turn)
}

async fn replaced_by(
    store: &dyn Store,
    conversation: &ConvRef,
    superseded: &Record,
) -> Result<Option<Seq>, StoreError> {
    let Some(turn) = replaced::run_again(superseded) else { return Ok(None) };
    let direction = Direction::After(superseded.seq);
    let kinds = vec![RecordKind::Event];
    let query = RangeQuery { conversation: conversation.clone(), direction, limit: 1, kinds };
    let page = store.range(&query).await?;
    let event = page.and_then(|page| page.records.into_iter().next());
    Ok(event.filter(|event| replaced::runs_again(event) == Some(turn)).map(|event| event.seq))
}

/// A turn's records, on their way into its overview.
struct Reading<'a> {
    store: &'a dyn Store,
    conversation: &'a ConvRef,
    turn: Seq,
    /// The last record of the journal that was read.
    at: Seq,
    overview: Overview,
}

impl Reading<'_> {
    async fn find(&self, sender: &'static str) -> Result<Option<Landed>, StoreError> {
        self.store.find(self.conversation, &Subject::system(sender), &key_of(self.turn)).await
    }

    async fn take(&mut self, seq: Seq) -> Result<(), StoreError> {
        if let Some(record) = record_at(self.store, self.conversation, seq).await? {
            self.overview.take(&record);
        }
        Ok(())
    }

    /// Reads its journal up to its end, or up to the head of the first read.
    async fn journal(&mut self, end: Option<Seq>) -> Result<(), StoreError> {
        let mut up_to = end;
        loop {
            let query = RangeQuery {
                conversation: self.conversation.clone(),
                direction: Direction::After(self.at),
                limit: PAGE,
                kinds: [&JOURNAL_KINDS[..], &[RecordKind::TurnStarted]].concat(),
            };
            let Some(page) = self.store.range(&query).await? else { return Ok(()) };
            let up_to = *up_to.get_or_insert(page.head_seq);
            for record in &page.records {
                if record.seq > up_to {
                    return Ok(());
                }
                self.overview.take(record);
                self.at = record.seq;
            }
            if !page.more {
                return Ok(());
            }
        }
    }

    /// The answer is in one commit with the end: the message right before it.
    async fn answer(&mut self, end: Seq) -> Result<(), StoreError> {
        let query = RangeQuery {
            conversation: self.conversation.clone(),
            direction: Direction::Before(end),
            limit: 1,
            kinds: vec![RecordKind::Message],
        };
        let page = self.store.range(&query).await?;
        for record in page.iter().flat_map(|page| &page.records) {
            self.overview.take(record);
        }
        Ok(())
    }
}
