//! Who owns a conversation: resolve, claim, release, hand off. Each is one statement.
//!
//! Invariants: a claim is a compare-and-set on the head, and locks no node row; a head's epoch only rises, and its row is
//! never deleted; across generations a million numbers and epochs are skipped for each.

use std::collections::BTreeMap;
use std::time::Duration;

use conch_core::ids::{ConvRef, Epoch, Generation, Incarnation, Seq};
use tokio_postgres::Row;

use super::error::CallError;
use super::nodes::{node_columns, node_row};
use super::rows::{self, Id, millis};
use super::session::Session;
use crate::{Armed, ClaimOutcome, ClaimRequest, Held, OwnerSeen, Resolution, Resolved, StoreError};

macro_rules! resolve_sql {
    ($which:literal) => {
        concat!(
            "SELECT v.id, v.conv_id, h.epoch, h.owner, ",
            node_columns!(),
            " FROM conversation v LEFT JOIN conv_head h USING (conv_id) LEFT JOIN node_lease n ON n.incarnation = h.owner
              WHERE v.conv_id ",
            $which
        )
    };
}

pub(super) async fn resolve(session: &Session, conversation: &ConvRef) -> Result<Option<Resolution>, CallError> {
    let row = session.first(resolve_sql!("= $1"), &[&Id::from(conversation.key)]).await?;
    Ok(row.map(|row| resolution(&row, conversation)).transpose()?)
}

pub(super) async fn resolve_many(session: &Session, conversations: &[ConvRef]) -> Result<Vec<Resolved>, CallError> {
    let keys: Vec<Id> = conversations.iter().map(|conversation| Id::from(conversation.key)).collect();
    let found = session.query(resolve_sql!("= ANY($1)"), &[&keys]).await?;
    let mut by_key = BTreeMap::new();
    for row in &found {
        by_key.insert(rows::get::<Id>(row, 1, "conversation.conv_id")?, row);
    }
    let answer = |conversation: &ConvRef| {
        let row = by_key.get(&Id::from(conversation.key));
        row.map(|row| resolution(row, conversation)).transpose()
    };
    Ok(conversations.iter().map(answer).collect())
}

/// A row of [`resolve_sql`].
fn resolution(row: &Row, conversation: &ConvRef) -> Result<Resolution, StoreError> {
    rows::same_id(row, 0, conversation)?;
    let epoch: Option<i64> = rows::get(row, 2, "conv_head.epoch")?;
    let owner = match rows::incarnation(row, 3, "conv_head.owner")? {
        Some(incarnation) => {
            let registered = rows::incarnation(row, 4, "node_lease.incarnation")?.is_some();
            let node = if registered { Some(node_row(row, 4)?) } else { None };
            Some(OwnerSeen { incarnation, node })
        }
        None => None,
    };
    Ok(Resolution { epoch: epoch.map(Epoch::from_i64), owner })
}

// The statements below and the one that arms (`elsewhere`) write this number out.
const _: () = assert!(conch_core::head::SKIP_PER_GENERATION == 1_000_000);

/// A claim. The last condition of the first part keeps one that saw a head from making the first one: a failover may have
/// lost what it saw.
macro_rules! claim_sql {
    ($gap:literal) => {
        concat!(
            "INSERT INTO conv_head AS h (conv_id, epoch, owner, gen, last_seq, reserved_to)
             SELECT $1, (g.g - 1) * 1000000 + 1, n.incarnation, g.g, (g.g - 1) * 1000000, (g.g - 1) * 1000000
             FROM node_lease n, (SELECT store_gen() AS g) g
             WHERE n.incarnation = $2 AND (NOT n.draining OR n.incarnation = $4)
               AND n.expires_at > clock_timestamp() + $5::bigint * interval '1 millisecond'
               AND (CASE WHEN $3::bigint IS NULL THEN $4::uuid IS NULL
                         ELSE EXISTS (SELECT 1 FROM conv_head s WHERE s.conv_id = $1) END)
             ON CONFLICT (conv_id) DO UPDATE SET owner = EXCLUDED.owner, gen = EXCLUDED.gen,
               epoch = h.epoch + CASE WHEN h.gen <> EXCLUDED.gen THEN (EXCLUDED.gen - h.gen) * 1000000 ELSE 1 END,
               reserved_to = h.reserved_to + CASE WHEN h.gen <> EXCLUDED.gen THEN (EXCLUDED.gen - h.gen) * 1000000
                 WHEN h.owner IS NULL THEN 0 ELSE ",
            $gap,
            " END
             WHERE h.epoch = $3 AND h.owner IS NOT DISTINCT FROM $4 AND h.gen <= EXCLUDED.gen
             RETURNING h.epoch, h.gen, h.last_seq, h.reserved_to"
        )
    };
}

const CLAIM: &str = claim_sql!("$6::bigint");
/// The gap's guard taken out.
#[cfg(test)]
const CLAIM_WITHOUT_GAP: &str = claim_sql!("0 * $6::bigint");

/// Which statement a claim is made with; tests can take its guard out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum GapGuard {
    #[default]
    On,
    #[cfg(test)]
    Off,
}

pub(super) async fn claim(
    session: &Session,
    request: &ClaimRequest,
    guard: GapGuard,
) -> Result<ClaimOutcome, CallError> {
    let sql = match guard {
        GapGuard::On => CLAIM,
        #[cfg(test)]
        GapGuard::Off => CLAIM_WITHOUT_GAP,
    };
    let seen_epoch = request.seen_epoch.map(Epoch::to_i64);
    let seen_owner = request.seen_owner.map(Id::from);
    let gap = i64::try_from(request.gap).unwrap_or(i64::MAX);
    let (conversation, me) = (Id::from(request.conversation), Id::from(request.me));
    let row =
        session.first(sql, &[&conversation, &me, &seen_epoch, &seen_owner, &millis(request.margin), &gap]).await?;
    Ok(match row {
        Some(row) => ClaimOutcome::Won(armed(&row)?),
        None => ClaimOutcome::Lost,
    })
}

/// From epoch, generation, last seq and reserved mark.
pub(super) fn armed(row: &Row) -> Result<Armed, StoreError> {
    Ok(Armed {
        epoch: Epoch::from_i64(rows::get(row, 0, "conv_head.epoch")?),
        generation: Generation::from_i64(rows::get(row, 1, "conv_head.gen")?),
        last_seq: Seq::from_i64(rows::get(row, 2, "conv_head.last_seq")?),
        first_seq: Seq::from_i64(rows::get(row, 3, "conv_head.reserved_to")?).next(),
    })
}

/// Where it is written who is registered, for giving up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Registry {
    /// In `node_lease`: the holder must be there.
    Here,
    /// In another store, which was asked before.
    Elsewhere,
}

pub(super) async fn release(
    session: &Session,
    held: &Held,
    first_seq: Seq,
    registry: Registry,
) -> Result<bool, CallError> {
    let sql = match registry {
        Registry::Here => {
            "UPDATE conv_head SET owner = NULL, reserved_to = GREATEST(last_seq, $4)
             WHERE conv_id = $1 AND epoch = $2 AND owner = $3
               AND EXISTS (SELECT 1 FROM node_lease n WHERE n.incarnation = $3)"
        }
        Registry::Elsewhere => {
            "UPDATE conv_head SET owner = NULL, reserved_to = GREATEST(last_seq, $4)
             WHERE conv_id = $1 AND epoch = $2 AND owner = $3"
        }
    };
    give_up(session, sql, held, first_seq.to_i64().saturating_sub(1)).await
}

pub(super) async fn release_wedged(
    session: &Session,
    held: &Held,
    gap: u64,
    registry: Registry,
) -> Result<bool, CallError> {
    let sql = match registry {
        Registry::Here => {
            "UPDATE conv_head SET owner = NULL, reserved_to = reserved_to + $4
             WHERE conv_id = $1 AND epoch = $2 AND owner = $3
               AND EXISTS (SELECT 1 FROM node_lease n WHERE n.incarnation = $3)"
        }
        Registry::Elsewhere => {
            "UPDATE conv_head SET owner = NULL, reserved_to = reserved_to + $4
             WHERE conv_id = $1 AND epoch = $2 AND owner = $3"
        }
    };
    give_up(session, sql, held, i64::try_from(gap).unwrap_or(i64::MAX)).await
}

async fn give_up(session: &Session, sql: &'static str, held: &Held, number: i64) -> Result<bool, CallError> {
    let parameters =
        [&Id::from(held.conversation) as _, &held.epoch.to_i64() as _, &Id::from(held.me) as _, &number as _];
    Ok(session.execute(sql, &parameters).await? > 0)
}

pub(super) async fn hand_off(
    session: &Session,
    held: &Held,
    to: Incarnation,
    first_seq: Seq,
    margin: Duration,
) -> Result<Option<Armed>, CallError> {
    // Across generations numbers must skip, which only a claim does.
    let sql =
        "UPDATE conv_head h SET owner = n.incarnation, epoch = h.epoch + 1, reserved_to = GREATEST(h.last_seq, $5)
               FROM node_lease n WHERE h.conv_id = $1 AND h.epoch = $2 AND h.owner = $3 AND h.gen = (SELECT store_gen())
                 AND EXISTS (SELECT 1 FROM node_lease m WHERE m.incarnation = $3)
                 AND n.incarnation = $4 AND NOT n.draining
                 AND n.expires_at > clock_timestamp() + $6::bigint * interval '1 millisecond'
               RETURNING h.epoch, h.gen, h.last_seq, h.reserved_to";
    let (conversation, me, to) = (Id::from(held.conversation), Id::from(held.me), Id::from(to));
    let used = first_seq.to_i64().saturating_sub(1);
    let row = session.first(sql, &[&conversation, &held.epoch.to_i64(), &me, &to, &used, &millis(margin)]).await?;
    Ok(row.map(|row| armed(&row)).transpose()?)
}
