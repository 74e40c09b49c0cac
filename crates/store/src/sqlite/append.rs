//! The fenced append: the hot path.
//!
//! Invariants: nothing is written under another epoch, owner, generation or last seq than the head's (invariant 8); a
//! batch lands whole or not at all; one (sender, client message id) is in a log once (invariants 3 and 4).
//!
//! All batches of a call, and of the calls that wait with it, share one transaction and so one sync. An error in any of
//! them fails that transaction; then the writer runs the call alone, with a savepoint for each batch, so that the bad one
//! fails alone. The good case pays nothing for it.

use conch_core::body::BodyHash;
use conch_core::head::{Fence, HeadRow, Verdict};
use conch_core::ids::{ClientMsgId, ConvKey, Epoch, Incarnation, Seq, Subject};
use conch_core::invariant::{Broken, Invariant};
use conch_core::time::Timestamp;
use rusqlite::{CachedStatement, Connection, params};

use super::error::store_error;
use super::rows;
use super::writer::{Attempt, WriteTransaction};
use crate::{AppendOutcome, Batch, DueChange, Duplicate, Landed, StoreError};

/// The statements of one call, prepared once for all its batches.
struct Statements<'a> {
    connection: &'a Connection,
    head: CachedStatement<'a>,
    insert: CachedStatement<'a>,
    advance: CachedStatement<'a>,
}

impl<'a> Statements<'a> {
    fn prepare(connection: &'a Connection) -> rusqlite::Result<Self> {
        Ok(Self {
            connection,
            head: connection.prepare_cached(
                "SELECT epoch, owner, gen, last_seq, reserved_to, last_at FROM conv_head WHERE conv_id = ?1",
            )?,
            insert: connection.prepare_cached(
                "INSERT INTO record(conv_id, seq, epoch, kind, sender, client_msg_id, name, turn, at, body_hash, body)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
                 ON CONFLICT (conv_id, sender, client_msg_id) DO NOTHING",
            )?,
            // The whole fence again, though it was judged: the write must not depend on the judgement being right.
            advance: connection.prepare_cached(
                "UPDATE conv_head SET last_seq = ?6, reserved_to = max(reserved_to, ?7), last_at = ?8
                 WHERE conv_id = ?1 AND epoch = ?2 AND owner = ?3 AND gen = ?4 AND last_seq = ?5",
            )?,
        })
    }
}

pub(super) fn append(
    write: &WriteTransaction<'_>,
    me: Incarnation,
    batches: &[Batch],
) -> Result<Vec<AppendOutcome>, StoreError> {
    let mut statements = Statements::prepare(write.connection).map_err(|error| store_error(&error))?;
    let mut outcomes = Vec::with_capacity(batches.len());
    for batch in batches {
        let outcome = match write.attempt {
            Attempt::Together => append_one(write, &mut statements, me, batch)?,
            Attempt::Alone => append_isolated(write, &mut statements, me, batch)?,
        };
        outcomes.push(outcome);
    }
    Ok(outcomes)
}

/// One batch in a savepoint. An error that is about the whole store is the call's, any other the batch's alone.
fn append_isolated(
    write: &WriteTransaction<'_>,
    statements: &mut Statements<'_>,
    me: Incarnation,
    batch: &Batch,
) -> Result<AppendOutcome, StoreError> {
    let run = |sql: &str| write.connection.execute_batch(sql).map_err(|error| store_error(&error));
    run("SAVEPOINT batch")?;
    match append_one(write, statements, me, batch) {
        Ok(outcome) => {
            run("RELEASE batch")?;
            Ok(outcome)
        }
        // No room for one is no room for any; and the graver errors have ended the transaction, with the savepoint.
        Err(error @ StoreError::Full(_)) => Err(error),
        Err(error) if write.connection.is_autocommit() => Err(error),
        Err(error) => {
            run("ROLLBACK TO batch; RELEASE batch")?;
            Ok(AppendOutcome::Failed(error))
        }
    }
}

fn append_one(
    write: &WriteTransaction<'_>,
    statements: &mut Statements<'_>,
    me: Incarnation,
    batch: &Batch,
) -> Result<AppendOutcome, StoreError> {
    if let Err(broken) = check(batch) {
        return Ok(AppendOutcome::Failed(StoreError::Damaged(broken.to_string())));
    }
    let key = batch.conversation.key;
    let Some((head, last_at)) = read_head(&mut statements.head, key)? else { return Ok(AppendOutcome::Fenced) };
    let Batch { epoch, generation, prev, hi, .. } = *batch;
    match head.judge(&Fence { epoch, owner: me, generation, prev, hi }, write.generation) {
        Verdict::Admitted => {}
        Verdict::MayHaveLanded => return landed_before(statements.connection, batch),
        Verdict::Fenced => return Ok(AppendOutcome::Fenced),
        Verdict::Rewound => return Ok(AppendOutcome::Rewound),
    }
    // The calendar may be set back; a log's times never go back with it.
    let at_ms = last_at.max(write.now_ms);
    let duplicates = insert_records(statements, batch, at_ms)?;
    let inserted_any = duplicates.len() < batch.records.len();
    let advanced = statements
        .advance
        .execute(params![
            key.0,
            batch.epoch.to_i64(),
            rows::incarnation_blob(me),
            write.generation.to_i64(),
            batch.prev.to_i64(),
            batch.hi.to_i64(),
            batch.reserve.to_i64().max(batch.hi.to_i64()),
            if inserted_any { at_ms } else { last_at },
        ])
        .map_err(|error| store_error(&error))?;
    if advanced != 1 {
        let broken = Invariant::CommittedInReign.broken("the head changed inside the append's transaction");
        return Err(StoreError::Damaged(broken.to_string()));
    }
    change_due(write, key, batch.due)?;
    Ok(AppendOutcome::Landed { at: Timestamp(at_ms), duplicates })
}

/// What the writer of a batch must have seen to: a number at or below the head would be given a second time.
fn check(batch: &Batch) -> Result<(), Broken> {
    let mut below = batch.prev;
    for (seq, _) in &batch.records {
        if *seq <= below || *seq > batch.hi {
            let detail = format!("a batch for ({}, {}] holds seq {seq} after {below}", batch.prev, batch.hi);
            return Err(Invariant::SeqOnce.broken(detail));
        }
        below = *seq;
    }
    if batch.hi < batch.prev {
        return Err(
            Invariant::SeqOnce.broken(format!("a batch sets the head back from {} to {}", batch.prev, batch.hi))
        );
    }
    Ok(())
}

/// The head, and the time of the last record.
fn read_head(statement: &mut CachedStatement<'_>, key: ConvKey) -> Result<Option<(HeadRow, i64)>, StoreError> {
    let mut found = statement.query(params![key.0]).map_err(|error| store_error(&error))?;
    let Some(row) = found.next().map_err(|error| store_error(&error))? else { return Ok(None) };
    Ok(Some((super::leases::head_row(row)?, rows::get(row, 5, "conv_head.last_at")?)))
}

/// Inserts what is new and looks up what is not.
fn insert_records(statements: &mut Statements<'_>, batch: &Batch, at_ms: i64) -> Result<Vec<Duplicate>, StoreError> {
    let key = batch.conversation.key;
    let mut duplicates = Vec::new();
    for (seq, draft) in &batch.records {
        let inserted = statements
            .insert
            .execute(params![
                key.0,
                seq.to_i64(),
                batch.epoch.to_i64(),
                draft.kind as i64,
                draft.sender.as_str(),
                draft.client_msg_id.as_str(),
                draft.name.as_deref(),
                draft.turn.map(Seq::to_i64),
                at_ms,
                draft.body_hash.0,
                draft.body.as_str(),
            ])
            .map_err(|error| store_error(&error))?;
        if inserted == 0 {
            let original = find(statements.connection, key, &draft.sender, &draft.client_msg_id)?;
            let original = original.ok_or_else(|| {
                let broken = Invariant::AckedOnce.broken(format!("seq {seq} clashes with a record that is not there"));
                StoreError::Damaged(broken.to_string())
            })?;
            duplicates.push(Duplicate { seq: *seq, original });
        }
    }
    Ok(duplicates)
}

/// The answer to a batch that had been committed by an earlier call whose answer was lost.
fn landed_before(connection: &Connection, batch: &Batch) -> Result<AppendOutcome, StoreError> {
    let mut duplicates = Vec::new();
    let mut at = None;
    for (seq, draft) in &batch.records {
        match find(connection, batch.conversation.key, &draft.sender, &draft.client_msg_id)? {
            Some(landed) if landed.seq == *seq => at = Some(landed.at),
            Some(original) => duplicates.push(Duplicate { seq: *seq, original }),
            // The head is where the batch would have put it, but by another write.
            None => return Ok(AppendOutcome::Rewound),
        }
    }
    let at = at.or_else(|| duplicates.first().map(|duplicate| duplicate.original.at)).unwrap_or_default();
    Ok(AppendOutcome::Landed { at, duplicates })
}

fn change_due(write: &WriteTransaction<'_>, key: ConvKey, due: DueChange) -> Result<(), StoreError> {
    let result = match due {
        DueChange::Keep => return Ok(()),
        DueChange::Clear => write
            .connection
            .prepare_cached("DELETE FROM conv_due WHERE conv_id = ?1")
            .and_then(|mut statement| statement.execute(params![key.0])),
        DueChange::Set(why, after) => write
            .connection
            .prepare_cached(
                "INSERT INTO conv_due(conv_id, due_at, why) VALUES (?1, ?2, ?3)
                 ON CONFLICT (conv_id) DO UPDATE SET due_at = excluded.due_at, why = excluded.why",
            )
            .and_then(|mut statement| {
                let due_at = write.now_ms.saturating_add(rows::millis(after));
                statement.execute(params![key.0, due_at, why as i64])
            }),
    };
    result.map(drop).map_err(|error| store_error(&error))
}

/// Finds a write by its idempotency key.
pub(super) fn find(
    connection: &Connection,
    key: ConvKey,
    sender: &Subject,
    client_msg_id: &ClientMsgId,
) -> Result<Option<Landed>, StoreError> {
    let sql = "SELECT seq, body_hash, epoch, at FROM record WHERE conv_id = ?1 AND sender = ?2 AND client_msg_id = ?3";
    rows::first(connection, sql, params![key.0, sender.as_str(), client_msg_id.as_str()], |row| {
        Ok(Landed {
            seq: Seq::from_i64(rows::get(row, 0, "record.seq")?),
            body_hash: BodyHash(rows::blob16(row, 1, "record.body_hash")?),
            epoch: Epoch::from_i64(rows::get(row, 2, "record.epoch")?),
            at: Timestamp(rows::get(row, 3, "record.at")?),
        })
    })
}
