//! What becomes of a batch that the common statement left out, and of the duplicates of one that landed.
//!
//! Invariant: `Fenced` and `Rewound` are judged by a look at the head that shows why, never by the absence of an answer;
//! such a head can never again be as the batch needs it, because epochs only rise and a reign has one writer.

use std::collections::HashMap;
use std::sync::Arc;

use conch_core::body::BodyHash;
use conch_core::head::{Fence, HeadRow, Verdict};
use conch_core::ids::{ClientMsgId, ConvKey, Epoch, Generation, Incarnation, Seq, Subject};
use conch_core::time::Timestamp;

use super::super::error::CallError;
use super::super::rows::{self, Id};
use super::super::session::Session;
use super::Writers;
use super::statement::{self, Locking, Written};
use crate::{AppendOutcome, Batch, Duplicate, Landed, StoreError};

/// So often a batch is tried alone while its head is as it should be.
const TRIES: usize = 3;
/// So often the originals of duplicates are read before the answer is given up.
const LOOKS: usize = 3;

/// The answer for a batch that landed; its duplicates are looked up.
pub(super) async fn landed(writers: &Arc<Writers>, batch: &Batch, written: Written) -> AppendOutcome {
    let Written { at, seqs } = written;
    if seqs.len() == batch.records.len() {
        return AppendOutcome::Landed { at, duplicates: Vec::new() };
    }
    let mut last = None;
    for _ in 0..LOOKS {
        let found = match writers.session().await {
            Ok(session) => duplicates(&session, batch, &seqs).await,
            Err(error) => Err(error.into()),
        };
        match found {
            Ok(duplicates) => return AppendOutcome::Landed { at, duplicates },
            Err(error) => last = Some(error.of_read()),
        }
    }
    let detail = last.map(|error| error.to_string()).unwrap_or_default();
    AppendOutcome::Failed(StoreError::Ambiguous(format!("it landed, but its duplicates could not be read: {detail}")))
}

async fn duplicates(session: &Session, batch: &Batch, seqs: &[Seq]) -> Result<Vec<Duplicate>, CallError> {
    let missing: Vec<_> = batch.records.iter().filter(|(seq, _)| !seqs.contains(seq)).collect();
    let keys: Vec<_> = missing.iter().map(|(_, draft)| (&draft.sender, &draft.client_msg_id)).collect();
    let found = originals(session, batch.conversation.key, &keys).await?;
    let duplicates = missing.iter().zip(found).map(|((seq, _), original)| {
        original.map(|original| Duplicate { seq: *seq, original }).ok_or_else(|| {
            let text = format!("seq {seq} clashes with a record that is not there");
            CallError::from(StoreError::Damaged(text))
        })
    });
    duplicates.collect()
}

/// Tries a batch alone, waiting for its head's lock, and judges it by the head.
pub(super) async fn missing(writers: &Arc<Writers>, me: Incarnation, batch: &Arc<Batch>) -> AppendOutcome {
    for _ in 0..TRIES {
        let session = match writers.session().await {
            Ok(session) => session,
            Err(error) => return AppendOutcome::Failed(error),
        };
        match judge(&session, me, batch).await {
            Ok(Judgement::Final(outcome)) => return outcome,
            Ok(Judgement::Fits) => {}
            Err(error) => return AppendOutcome::Failed(error.of_read()),
        }
        let alone = std::slice::from_ref(batch);
        match statement::write(&session, me, alone, Locking::Wait, writers.guard).await {
            Ok(mut written) => {
                if let Some(written) = written.remove(&batch.conversation.key) {
                    return landed(writers, batch, written).await;
                }
            }
            Err(error) => return AppendOutcome::Failed(error.of_write()),
        }
    }
    AppendOutcome::Failed(StoreError::Unavailable(format!("the conversation's head changed {TRIES} times meanwhile")))
}

enum Judgement {
    /// The head is as the batch needs it.
    Fits,
    /// It never will be.
    Final(AppendOutcome),
}

async fn judge(session: &Session, me: Incarnation, batch: &Batch) -> Result<Judgement, CallError> {
    let sql = "SELECT epoch, owner, gen, last_seq, reserved_to, store_gen() FROM conv_head WHERE conv_id = $1";
    let Some(row) = session.first(sql, &[&Id::from(batch.conversation.key)]).await? else {
        return Ok(Judgement::Final(AppendOutcome::Fenced));
    };
    let head = HeadRow {
        epoch: Epoch::from_i64(rows::get(&row, 0, "conv_head.epoch")?),
        owner: rows::incarnation(&row, 1, "conv_head.owner")?,
        generation: Generation::from_i64(rows::get(&row, 2, "conv_head.gen")?),
        last_seq: Seq::from_i64(rows::get(&row, 3, "conv_head.last_seq")?),
        reserved_to: Seq::from_i64(rows::get(&row, 4, "conv_head.reserved_to")?),
    };
    let present = Generation::from_i64(rows::get(&row, 5, "store_gen()")?);
    let Batch { epoch, generation, prev, hi, .. } = *batch;
    Ok(match head.judge(&Fence { epoch, owner: me, generation, prev, hi }, present) {
        Verdict::Admitted => Judgement::Fits,
        Verdict::MayHaveLanded => Judgement::Final(landed_before(session, batch).await?),
        Verdict::Fenced => Judgement::Final(AppendOutcome::Fenced),
        Verdict::Rewound => Judgement::Final(AppendOutcome::Rewound),
    })
}

/// The answer to a batch that had been committed by an earlier call whose answer was lost.
async fn landed_before(session: &Session, batch: &Batch) -> Result<AppendOutcome, CallError> {
    let keys: Vec<_> = batch.records.iter().map(|(_, draft)| (&draft.sender, &draft.client_msg_id)).collect();
    let found = originals(session, batch.conversation.key, &keys).await?;
    let (mut at, mut duplicates) = (None, Vec::new());
    for ((seq, _), original) in batch.records.iter().zip(found) {
        match original {
            Some(landed) if landed.seq == *seq => at = Some(landed.at),
            Some(original) => duplicates.push(Duplicate { seq: *seq, original }),
            // The head is where the batch would have put it, but by another write.
            None => return Ok(AppendOutcome::Rewound),
        }
    }
    let at = at.or_else(|| duplicates.first().map(|duplicate| duplicate.original.at)).unwrap_or_default();
    Ok(AppendOutcome::Landed { at, duplicates })
}

/// The records under these idempotency keys, in the keys' order.
pub(in crate::postgres) async fn originals(
    session: &Session,
    conversation: ConvKey,
    keys: &[(&Subject, &ClientMsgId)],
) -> Result<Vec<Option<Landed>>, CallError> {
    // The limit keeps the server from joining the keys to all that the conversation has: it looks each one up.
    let sql = "SELECT r.sender, r.client_msg_id, r.seq, r.body_hash, r.epoch, r.at
               FROM unnest($2::text[], $3::text[]) AS k(sender, client_msg_id)
               CROSS JOIN LATERAL (SELECT * FROM record r
                 WHERE r.conv_id = $1 AND r.sender = k.sender AND r.client_msg_id = k.client_msg_id LIMIT 1) r";
    let senders: Vec<&str> = keys.iter().map(|(sender, _)| sender.as_str()).collect();
    let ids: Vec<&str> = keys.iter().map(|(_, id)| id.as_str()).collect();
    let found = session.query(sql, &[&Id::from(conversation), &senders, &ids]).await?;
    let mut by_key = HashMap::with_capacity(found.len());
    for row in &found {
        let key: (&str, &str) = (rows::get(row, 0, "record.sender")?, rows::get(row, 1, "record.client_msg_id")?);
        let landed = Landed {
            seq: Seq::from_i64(rows::get(row, 2, "record.seq")?),
            body_hash: BodyHash(rows::bytes16(row, 3, "record.body_hash")?),
            epoch: Epoch::from_i64(rows::get(row, 4, "record.epoch")?),
            at: Timestamp(rows::get(row, 5, "record.at")?),
        };
        by_key.insert(key, landed);
    }
    Ok(keys.iter().map(|(sender, id)| by_key.get(&(sender.as_str(), id.as_str())).copied()).collect())
}
