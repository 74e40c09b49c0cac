//! The statement itself, and its parameters.
//!
//! Why it is as it is: heads are locked in the order of their keys, so that statements cannot deadlock; a head that
//! somebody else has locked is skipped, so that one conversation does not hold up the others; the conditions are checked
//! again on the newest row after the lock; records are inserted only for heads that are locked, and the lock is kept to
//! the commit. An insert that merely looks at the head, or a lock that does not conflict with a claim's, would let a late
//! write land after the next owner has read.
//!
//! Nothing that the statement made is joined to itself: the server takes every such part for one row, and would compare
//! each of its rows with each of the other's (twice the CPU for 256 conversations: docs/adr/0004-group-commit.md). So the answer
//! is the locked heads and then the inserted rows, put together here, and whether a head got a row is asked of a hashed list.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::sync::Arc;

use conch_core::ids::{ConvKey, Incarnation, Seq};
use conch_core::time::Timestamp;
use tokio_postgres::types::ToSql;

use super::super::error::CallError;
use super::super::rows::{self, Id, millis};
use super::super::session::Session;
use crate::{Batch, DueChange, StoreError};

/// The due row stays as it is.
const DUE_KEEP: i16 = -1;
/// The due row goes.
const DUE_CLEAR: i16 = 0;

/// What to do with heads that somebody else has locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Locking {
    /// Leave them out.
    Skip,
    /// Wait, as long as the session's lock time-out.
    Wait,
}

/// The fence, or a part of it taken out, for tests that must notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::postgres) enum FenceGuard {
    #[default]
    On,
    #[cfg(test)]
    EpochOff,
    #[cfg(test)]
    OwnerOff,
    #[cfg(test)]
    GenerationOff,
    #[cfg(test)]
    PrevOff,
    /// None of the conditions.
    #[cfg(any(test, feature = "mutants"))]
    Off,
}

macro_rules! append_sql {
    (epoch: $epoch:literal, owner: $owner:literal, generation: $generation:literal, prev: $prev:literal, lock: $lock:literal) => {
        concat!(
            "WITH i AS MATERIALIZED (SELECT * FROM unnest($2::uuid[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[],
                 $7::bigint[], $8::smallint[], $9::bigint[]) AS i(conv_id, epoch, gen, prev, hi, reserve, why, due_ms)),
             l AS MATERIALIZED (SELECT h.conv_id, h.epoch, i.hi, i.reserve, i.why, i.due_ms,
                 GREATEST(h.last_at, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS at
               FROM conv_head h JOIN i USING (conv_id)
               WHERE ", $epoch, " AND ", $owner, " AND ", $generation, " AND ", $prev, "
               ORDER BY h.conv_id FOR NO KEY UPDATE OF h", $lock, "),
             ins AS (INSERT INTO record(conv_id, seq, epoch, kind, sender, client_msg_id, name, turn, at, body_hash, body)
               SELECT l.conv_id, m.seq, l.epoch, m.kind, m.sender, m.client_msg_id, m.name, m.turn, l.at, m.body_hash, m.body
               FROM l JOIN unnest($10::uuid[], $11::bigint[], $12::smallint[], $13::text[], $14::text[], $15::text[],
                 $16::bigint[], $17::bytea[], $18::text[])
                 AS m(conv_id, seq, kind, sender, client_msg_id, name, turn, body_hash, body) ON m.conv_id = l.conv_id
               ORDER BY l.conv_id, m.seq
               ON CONFLICT (conv_id, sender, client_msg_id) DO NOTHING RETURNING conv_id, seq),
             f AS (UPDATE conv_head h SET last_seq = l.hi, reserved_to = GREATEST(h.reserved_to, l.reserve, l.hi),
                 last_at = CASE WHEN l.conv_id IN (SELECT conv_id FROM ins) THEN l.at ELSE h.last_at END
               FROM l WHERE h.conv_id = l.conv_id),
             due AS (INSERT INTO conv_due(conv_id, due_at, why)
               SELECT conv_id, clock_timestamp() + due_ms * interval '1 millisecond', why FROM l WHERE why > 0 ORDER BY conv_id
               ON CONFLICT (conv_id) DO UPDATE SET due_at = EXCLUDED.due_at, why = EXCLUDED.why),
             undue AS (DELETE FROM conv_due d USING l WHERE d.conv_id = l.conv_id AND l.why = 0)
             SELECT conv_id, at, NULL::bigint AS seq FROM l UNION ALL SELECT conv_id, NULL, seq FROM ins"
        )
    };
}

/// The statement without and with waiting, for a fence with these conditions.
macro_rules! both {
    ($epoch:literal, $owner:literal, $generation:literal, $prev:literal) => {
        (
            append_sql!(epoch: $epoch, owner: $owner, generation: $generation, prev: $prev, lock: " SKIP LOCKED"),
            append_sql!(epoch: $epoch, owner: $owner, generation: $generation, prev: $prev, lock: ""),
        )
    };
}

const FENCED: (&str, &str) =
    both!("h.epoch = i.epoch", "h.owner = $1", "h.gen = i.gen AND h.gen = (SELECT store_gen())", "h.last_seq = i.prev");
// A condition that is taken out still has its parameters, so that their types are known.
#[cfg(test)]
const EPOCH_OFF: (&str, &str) =
    both!("i.epoch > 0", "h.owner = $1", "h.gen = i.gen AND h.gen = (SELECT store_gen())", "h.last_seq = i.prev");
#[cfg(test)]
const OWNER_OFF: (&str, &str) = both!(
    "h.epoch = i.epoch",
    "$1::uuid IS NOT NULL",
    "h.gen = i.gen AND h.gen = (SELECT store_gen())",
    "h.last_seq = i.prev"
);
#[cfg(test)]
const GENERATION_OFF: (&str, &str) = both!("h.epoch = i.epoch", "h.owner = $1", "i.gen > 0", "h.last_seq = i.prev");
#[cfg(test)]
const PREV_OFF: (&str, &str) =
    both!("h.epoch = i.epoch", "h.owner = $1", "h.gen = i.gen AND h.gen = (SELECT store_gen())", "i.prev >= 0");
#[cfg(any(test, feature = "mutants"))]
const OFF: (&str, &str) = both!("i.epoch > 0", "$1::uuid IS NOT NULL", "i.gen > 0", "i.prev >= 0");

fn sql(locking: Locking, guard: FenceGuard) -> &'static str {
    let (skip, wait) = match guard {
        FenceGuard::On => FENCED,
        #[cfg(test)]
        FenceGuard::EpochOff => EPOCH_OFF,
        #[cfg(test)]
        FenceGuard::OwnerOff => OWNER_OFF,
        #[cfg(test)]
        FenceGuard::GenerationOff => GENERATION_OFF,
        #[cfg(test)]
        FenceGuard::PrevOff => PREV_OFF,
        #[cfg(any(test, feature = "mutants"))]
        FenceGuard::Off => OFF,
    };
    match locking {
        Locking::Skip => skip,
        Locking::Wait => wait,
    }
}

/// What landed of one batch.
#[derive(Debug, Clone)]
pub(super) struct Written {
    pub(super) at: Timestamp,
    /// The seqs that are new, in any order; the batch's others are duplicates.
    pub(super) seqs: Vec<Seq>,
}

/// Writes the batches whose fences hold, and answers for those alone.
pub(super) async fn write(
    session: &Session,
    me: Incarnation,
    batches: &[Arc<Batch>],
    locking: Locking,
    guard: FenceGuard,
) -> Result<HashMap<ConvKey, Written>, CallError> {
    let heads = Heads::of(batches);
    let records = Records::of(batches);
    let me = Id::from(me);
    let parameters: Vec<&(dyn ToSql + Sync)> =
        std::iter::once(&me as _).chain(heads.parameters()).chain(records.parameters()).collect();
    let found = session.query(sql(locking, guard), &parameters).await?;
    let mut written = HashMap::with_capacity(batches.len());
    let mut seqs = Vec::with_capacity(found.len());
    for row in &found {
        let conversation: Id = rows::get(row, 0, "conv_head.conv_id")?;
        match rows::get(row, 2, "record.seq")? {
            Some(seq) => seqs.push((ConvKey::from(conversation), Seq::from_i64(seq))),
            None => {
                let at = Timestamp(rows::get(row, 1, "record.at")?);
                written.insert(ConvKey::from(conversation), Written { at, seqs: Vec::new() });
            }
        }
    }
    for (conversation, seq) in seqs {
        let of_none = || StoreError::Damaged(format!("seq {seq} was inserted for a head that is not locked"));
        written.get_mut(&conversation).ok_or_else(of_none)?.seqs.push(seq);
    }
    Ok(written)
}

/// The heads' columns, one element a batch.
#[derive(Default)]
struct Heads {
    conversations: Vec<Id>,
    epochs: Vec<i64>,
    generations: Vec<i64>,
    prevs: Vec<i64>,
    his: Vec<i64>,
    reserves: Vec<i64>,
    whys: Vec<i16>,
    due_ms: Vec<i64>,
}

impl Heads {
    fn of(batches: &[Arc<Batch>]) -> Self {
        let mut heads = Self::default();
        for batch in batches {
            heads.conversations.push(batch.conversation.key.into());
            heads.epochs.push(batch.epoch.to_i64());
            heads.generations.push(batch.generation.to_i64());
            heads.prevs.push(batch.prev.to_i64());
            heads.his.push(batch.hi.to_i64());
            heads.reserves.push(batch.reserve.to_i64());
            let (why, due_ms) = match batch.due {
                DueChange::Keep => (DUE_KEEP, 0),
                DueChange::Clear => (DUE_CLEAR, 0),
                DueChange::Set(why, after) => (why as i16, millis(after)),
            };
            heads.whys.push(why);
            heads.due_ms.push(due_ms);
        }
        heads
    }

    /// In the statement's order.
    fn parameters(&self) -> [&(dyn ToSql + Sync); 8] {
        let Self { conversations, epochs, generations, prevs, his, reserves, whys, due_ms } = self;
        [conversations, epochs, generations, prevs, his, reserves, whys, due_ms]
    }
}

/// The records' columns.
#[derive(Default)]
pub(in crate::postgres) struct Records<'a> {
    conversations: Vec<Id>,
    seqs: Vec<i64>,
    kinds: Vec<i16>,
    senders: Vec<&'a str>,
    client_msg_ids: Vec<&'a str>,
    names: Vec<Option<&'a str>>,
    turns: Vec<Option<i64>>,
    hashes: Vec<&'a [u8]>,
    bodies: Vec<&'a str>,
}

impl<'a> Records<'a> {
    pub(in crate::postgres) fn of(batches: &'a [impl Borrow<Batch>]) -> Self {
        let mut records = Self::default();
        for batch in batches.iter().map(Borrow::borrow) {
            for (seq, draft) in &batch.records {
                records.conversations.push(batch.conversation.key.into());
                records.seqs.push(seq.to_i64());
                records.kinds.push(draft.kind as i16);
                records.senders.push(draft.sender.as_str());
                records.client_msg_ids.push(draft.client_msg_id.as_str());
                records.names.push(draft.name.as_deref());
                records.turns.push(draft.turn.map(Seq::to_i64));
                records.hashes.push(&draft.body_hash.0);
                records.bodies.push(draft.body.as_str());
            }
        }
        records
    }
    /// In the statement's order.
    pub(in crate::postgres) fn parameters(&self) -> [&(dyn ToSql + Sync); 9] {
        let Self { conversations, seqs, kinds, senders, client_msg_ids, names, turns, hashes, bodies } = self;
        [conversations, seqs, kinds, senders, client_msg_ids, names, turns, hashes, bodies]
    }
}
