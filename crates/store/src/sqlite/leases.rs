//! Node leases and ownership: the conditions a server database checks with row locks, on one writer.
//!
//! A claim reads, decides and writes inside BEGIN IMMEDIATE, so that nothing changes between the three.

use std::time::Duration;

use conch_core::head::HeadRow;
use conch_core::ids::{ConvKey, ConvRef, Epoch, Generation, Incarnation, Seq};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::error::store_error;
use super::readers::ReadTransaction;
use super::rows;
use super::writer::WriteTransaction;
use crate::{Armed, ClaimOutcome, ClaimRequest, Held, NodeRow, OwnerSeen, Registration, Resolution, StoreError};

const NODE: &str = "SELECT incarnation, node_name, region, addr, beat, draining, expires_at FROM node_lease";

pub(super) fn register(
    write: &WriteTransaction<'_>,
    registration: &Registration,
    ttl: Duration,
) -> Result<(), StoreError> {
    let inserted = execute(
        write.connection,
        "INSERT INTO node_lease(incarnation, node_name, region, addr, beat, draining, expires_at)
         VALUES (?1, ?2, ?3, ?4, 0, 0, ?5) ON CONFLICT (incarnation) DO NOTHING",
        params![
            rows::incarnation_blob(registration.incarnation),
            registration.node.as_str(),
            registration.region.as_str(),
            registration.addr,
            write.now_ms.saturating_add(rows::millis(ttl)),
        ],
    )?;
    if inserted == 0 {
        let text =
            format!("incarnation {} is registered already; a registration needs a fresh one", registration.incarnation);
        return Err(StoreError::Unavailable(text));
    }
    Ok(())
}

pub(super) fn renew(write: &WriteTransaction<'_>, me: Incarnation, ttl: Duration) -> Result<Option<u64>, StoreError> {
    let beat: Option<i64> = write
        .connection
        .prepare_cached("UPDATE node_lease SET expires_at = ?2, beat = beat + 1 WHERE incarnation = ?1 RETURNING beat")
        .and_then(|mut statement| {
            let expires_at = write.now_ms.saturating_add(rows::millis(ttl));
            statement.query_row(params![rows::incarnation_blob(me), expires_at], |row| row.get(0)).optional()
        })
        .map_err(|error| store_error(&error))?;
    Ok(beat.map(|beat| u64::try_from(beat).unwrap_or(0)))
}

pub(super) fn nodes(read: &ReadTransaction<'_>) -> Result<Vec<NodeRow>, StoreError> {
    rows::collect(read.connection, &format!("{NODE} ORDER BY incarnation"), [], |row| node_row(row, 0, read.now_ms))
}

pub(super) fn set_draining(write: &WriteTransaction<'_>, me: Incarnation) -> Result<bool, StoreError> {
    let sql = "UPDATE node_lease SET draining = 1 WHERE incarnation = ?1";
    Ok(execute(write.connection, sql, params![rows::incarnation_blob(me)])? > 0)
}

/// Deregistering, and expelling on certain knowledge, are one statement.
pub(super) fn delete_node(write: &WriteTransaction<'_>, dead: Incarnation) -> Result<bool, StoreError> {
    let sql = "DELETE FROM node_lease WHERE incarnation = ?1";
    Ok(execute(write.connection, sql, params![rows::incarnation_blob(dead)])? > 0)
}

/// Predecessors: whoever holds the directory's lock knows that they are dead.
pub(super) fn delete_all_nodes(connection: &Connection) -> rusqlite::Result<usize> {
    connection.execute("DELETE FROM node_lease", [])
}

pub(super) fn declare_expired(
    write: &WriteTransaction<'_>,
    dead: Incarnation,
    seen_beat: u64,
    ttl: Duration,
    margin: Duration,
) -> Result<bool, StoreError> {
    let Ok(seen_beat) = i64::try_from(seen_beat) else { return Ok(false) };
    // The last clause: no renewal reaches that far ahead, so the clock was set back.
    let sql = "DELETE FROM node_lease WHERE incarnation = ?1 AND beat = ?2 AND (expires_at < ?3 OR expires_at > ?4)";
    let latest = write.now_ms.saturating_add(rows::millis(ttl)).saturating_add(rows::millis(margin));
    let parameters = params![rows::incarnation_blob(dead), seen_beat, write.now_ms, latest];
    Ok(execute(write.connection, sql, parameters)? > 0)
}

pub(super) fn resolve(read: &ReadTransaction<'_>, conversation: &ConvRef) -> Result<Option<Resolution>, StoreError> {
    let sql = "SELECT v.id, h.epoch, h.owner, n.incarnation, n.node_name, n.region, n.addr, n.beat, n.draining, n.expires_at
               FROM conversation v LEFT JOIN conv_head h USING (conv_id) LEFT JOIN node_lease n ON n.incarnation = h.owner
               WHERE v.conv_id = ?1";
    rows::first(read.connection, sql, params![conversation.key.0], |row| {
        rows::same_id(row, 0, conversation)?;
        let epoch: Option<i64> = rows::get(row, 1, "conv_head.epoch")?;
        let owner = match rows::incarnation(row, 2, "conv_head.owner")? {
            Some(incarnation) => {
                let node = match rows::incarnation(row, 3, "node_lease.incarnation")? {
                    Some(_) => Some(node_row(row, 3, read.now_ms)?),
                    None => None,
                };
                Some(OwnerSeen { incarnation, node })
            }
            None => None,
        };
        Ok(Resolution { epoch: epoch.map(Epoch::from_i64), owner })
    })
}

pub(super) fn claim(write: &WriteTransaction<'_>, request: &ClaimRequest) -> Result<ClaimOutcome, StoreError> {
    if !may_claim(write, request)? {
        return Ok(ClaimOutcome::Lost);
    }
    let me = request.me;
    let claimed = match (head(write.connection, request.conversation)?, request.seen_epoch) {
        (None, None) if request.seen_owner.is_none() => Some(HeadRow::first(me, write.generation)),
        (Some(head), Some(seen)) if head.epoch == seen && head.owner == request.seen_owner => {
            head.claimed(me, write.generation, request.gap)
        }
        _ => None,
    };
    let Some(head) = claimed else { return Ok(ClaimOutcome::Lost) };
    execute(
        write.connection,
        "INSERT INTO conv_head(conv_id, epoch, owner, gen, last_seq, reserved_to, last_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, 0)
         ON CONFLICT (conv_id) DO UPDATE
         SET epoch = excluded.epoch, owner = excluded.owner, gen = excluded.gen, reserved_to = excluded.reserved_to
         WHERE conv_head.epoch < excluded.epoch",
        params![
            request.conversation.0,
            head.epoch.to_i64(),
            rows::incarnation_blob(me),
            head.generation.to_i64(),
            head.last_seq.to_i64(),
            head.reserved_to.to_i64()
        ],
    )?;
    Ok(ClaimOutcome::Won(armed(&head)))
}

/// The claimant is registered, does not drain (but for what it owns itself), and has more than the margin left.
fn may_claim(write: &WriteTransaction<'_>, request: &ClaimRequest) -> Result<bool, StoreError> {
    let alive_beyond = write.now_ms.saturating_add(rows::millis(request.margin));
    let sql = "SELECT draining FROM node_lease WHERE incarnation = ?1 AND expires_at > ?2";
    let parameters = params![rows::incarnation_blob(request.me), alive_beyond];
    let draining: Option<bool> =
        rows::first(write.connection, sql, parameters, |row| rows::get(row, 0, "node_lease.draining"))?;
    Ok(draining.is_some_and(|draining| !draining || request.seen_owner == Some(request.me)))
}

pub(super) fn release(write: &WriteTransaction<'_>, held: &Held, first_seq: Seq) -> Result<bool, StoreError> {
    let sql = "UPDATE conv_head SET owner = NULL, reserved_to = max(last_seq, ?4) WHERE conv_id = ?1 AND epoch = ?2 AND owner = ?3
               AND EXISTS (SELECT 1 FROM node_lease n WHERE n.incarnation = ?3)";
    let used = first_seq.to_i64().saturating_sub(1);
    let parameters = params![held.conversation.0, held.epoch.to_i64(), rows::incarnation_blob(held.me), used];
    Ok(execute(write.connection, sql, parameters)? > 0)
}

pub(super) fn release_wedged(write: &WriteTransaction<'_>, held: &Held, gap: u64) -> Result<bool, StoreError> {
    let sql = "UPDATE conv_head SET owner = NULL, reserved_to = reserved_to + ?4 WHERE conv_id = ?1 AND epoch = ?2 AND owner = ?3
               AND EXISTS (SELECT 1 FROM node_lease n WHERE n.incarnation = ?3)";
    let gap = i64::try_from(gap).unwrap_or(i64::MAX);
    let parameters = params![held.conversation.0, held.epoch.to_i64(), rows::incarnation_blob(held.me), gap];
    Ok(execute(write.connection, sql, parameters)? > 0)
}

pub(super) fn hand_off(
    write: &WriteTransaction<'_>,
    held: &Held,
    to: Incarnation,
    first_seq: Seq,
    margin: Duration,
) -> Result<Option<Armed>, StoreError> {
    let sql = "UPDATE conv_head SET owner = n.incarnation, epoch = epoch + 1, reserved_to = max(last_seq, ?5) FROM node_lease n
               WHERE conv_id = ?1 AND epoch = ?2 AND owner = ?3 AND gen = ?7
                 AND EXISTS (SELECT 1 FROM node_lease m WHERE m.incarnation = ?3)
                 AND n.incarnation = ?4 AND n.draining = 0 AND n.expires_at > ?6";
    let parameters = params![
        held.conversation.0,
        held.epoch.to_i64(),
        rows::incarnation_blob(held.me),
        rows::incarnation_blob(to),
        first_seq.to_i64().saturating_sub(1),
        write.now_ms.saturating_add(rows::millis(margin)),
        // Across generations numbers must skip, which only a claim does.
        write.generation.to_i64(),
    ];
    if execute(write.connection, sql, parameters)? == 0 {
        return Ok(None);
    }
    Ok(head(write.connection, held.conversation)?.map(|head| armed(&head)))
}

fn armed(head: &HeadRow) -> Armed {
    let HeadRow { epoch, generation, last_seq, .. } = *head;
    Armed { epoch, generation, last_seq, first_seq: head.first_seq() }
}

pub(super) fn head(connection: &Connection, key: ConvKey) -> Result<Option<HeadRow>, StoreError> {
    let sql = "SELECT epoch, owner, gen, last_seq, reserved_to FROM conv_head WHERE conv_id = ?1";
    rows::first(connection, sql, params![key.0], head_row)
}

/// The head from a row's first five columns: epoch, owner, gen, last_seq, reserved_to.
pub(super) fn head_row(row: &Row<'_>) -> Result<HeadRow, StoreError> {
    Ok(HeadRow {
        epoch: Epoch::from_i64(rows::get(row, 0, "conv_head.epoch")?),
        owner: rows::incarnation(row, 1, "conv_head.owner")?,
        generation: Generation::from_i64(rows::get(row, 2, "conv_head.gen")?),
        last_seq: Seq::from_i64(rows::get(row, 3, "conv_head.last_seq")?),
        reserved_to: Seq::from_i64(rows::get(row, 4, "conv_head.reserved_to")?),
    })
}

/// A node's row from the seven columns that begin at `first`.
fn node_row(row: &Row<'_>, first: usize, now_ms: i64) -> Result<NodeRow, StoreError> {
    let incarnation = rows::incarnation(row, first, "node_lease.incarnation")?;
    let beat: i64 = rows::get(row, first + 4, "node_lease.beat")?;
    let expires_at: i64 = rows::get(row, first + 6, "node_lease.expires_at")?;
    Ok(NodeRow {
        registration: Registration {
            incarnation: incarnation.ok_or_else(|| super::error::damaged("node_lease.incarnation", "is null"))?,
            node: rows::parse(row, first + 1, "node_lease.node_name")?,
            region: rows::parse(row, first + 2, "node_lease.region")?,
            addr: rows::get(row, first + 3, "node_lease.addr")?,
            lifeline: None,
        },
        beat: u64::try_from(beat).unwrap_or(0),
        draining: rows::get(row, first + 5, "node_lease.draining")?,
        expires_in_ms: expires_at.saturating_sub(now_ms),
    })
}

fn execute(connection: &Connection, sql: &str, parameters: impl rusqlite::Params) -> Result<usize, StoreError> {
    connection
        .prepare_cached(sql)
        .and_then(|mut statement| statement.execute(parameters))
        .map_err(|error| store_error(&error))
}
