//! Node leases: one row an incarnation, on the database's clock.
//!
//! Invariant: death is the deletion of the row, guarded; nothing else ends an incarnation, and nothing brings one back.

use std::time::Duration;

use conch_core::ids::Incarnation;
use tokio_postgres::Row;

use super::error::CallError;
use super::rows::{self, Id, millis};
use super::session::Session;
use crate::{Lifeline, NodeRow, Registration, StoreError};

/// The columns that [`node_row`] reads, of `node_lease n`.
macro_rules! node_columns {
    () => {
        "n.incarnation, n.node_name, n.region, n.addr, n.beat, n.draining,
         floor(extract(epoch FROM n.expires_at - clock_timestamp()) * 1000)::bigint, n.lifeline"
    };
}
pub(super) use node_columns;

pub(super) async fn register(session: &Session, registration: &Registration, ttl: Duration) -> Result<(), CallError> {
    let sql = "INSERT INTO node_lease(incarnation, node_name, region, addr, expires_at, lifeline)
               VALUES ($1, $2, $3, $4, clock_timestamp() + $5::bigint * interval '1 millisecond', $6)
               ON CONFLICT (incarnation) DO NOTHING";
    let incarnation = registration.incarnation;
    let (node, region) = (registration.node.as_str(), registration.region.as_str());
    let lifeline = registration.lifeline.map(|lifeline| lifeline.0);
    let parameters = [
        &Id::from(incarnation) as _,
        &node as _,
        &region as _,
        &registration.addr as _,
        &millis(ttl) as _,
        &lifeline as _,
    ];
    let inserted = session.execute(sql, &parameters).await?;
    if inserted == 0 {
        let text = format!("incarnation {incarnation} is registered already; a registration needs a fresh one");
        return Err(StoreError::Unavailable(text).into());
    }
    Ok(())
}

pub(super) async fn renew(session: &Session, me: Incarnation, ttl: Duration) -> Result<Option<u64>, CallError> {
    let sql =
        "UPDATE node_lease SET expires_at = clock_timestamp() + $2::bigint * interval '1 millisecond', beat = beat + 1
               WHERE incarnation = $1 RETURNING beat";
    let row = session.first(sql, &[&Id::from(me), &millis(ttl)]).await?;
    Ok(row.map(|row| rows::count(&row, 0, "node_lease.beat")).transpose()?)
}

pub(super) async fn nodes(session: &Session) -> Result<Vec<NodeRow>, CallError> {
    let sql = concat!("SELECT ", node_columns!(), " FROM node_lease n ORDER BY n.incarnation");
    let found = session.query(sql, &[]).await?;
    Ok(found.iter().map(|row| node_row(row, 0)).collect::<Result<_, _>>()?)
}

/// A node's row from the columns of [`node_columns`] that begin at `first`.
pub(super) fn node_row(row: &Row, first: usize) -> Result<NodeRow, StoreError> {
    let incarnation = rows::incarnation(row, first, "node_lease.incarnation")?;
    Ok(NodeRow {
        registration: Registration {
            incarnation: incarnation.ok_or_else(|| rows::damaged("node_lease.incarnation", "is null"))?,
            node: rows::parse(row, first + 1, "node_lease.node_name")?,
            region: rows::parse(row, first + 2, "node_lease.region")?,
            addr: rows::get(row, first + 3, "node_lease.addr")?,
            lifeline: rows::get::<Option<i64>>(row, first + 7, "node_lease.lifeline")?.map(Lifeline),
        },
        beat: rows::count(row, first + 4, "node_lease.beat")?,
        draining: rows::get(row, first + 5, "node_lease.draining")?,
        expires_in_ms: rows::get(row, first + 6, "node_lease.expires_at")?,
    })
}

pub(super) async fn set_draining(session: &Session, me: Incarnation) -> Result<bool, CallError> {
    let sql = "UPDATE node_lease SET draining = true WHERE incarnation = $1";
    Ok(session.execute(sql, &[&Id::from(me)]).await? > 0)
}

/// Deregistering, and expelling on certain knowledge, are one statement.
pub(super) async fn delete(session: &Session, dead: Incarnation) -> Result<bool, CallError> {
    let sql = "DELETE FROM node_lease WHERE incarnation = $1";
    Ok(session.execute(sql, &[&Id::from(dead)]).await? > 0)
}

pub(super) async fn declare_expired(
    session: &Session,
    dead: Incarnation,
    seen_beat: u64,
    ttl: Duration,
    margin: Duration,
) -> Result<bool, CallError> {
    let Ok(seen_beat) = i64::try_from(seen_beat) else { return Ok(false) };
    // The last clause: no renewal reaches that far ahead, so the clock was set back.
    let sql = "DELETE FROM node_lease WHERE incarnation = $1 AND beat = $2 AND (expires_at < clock_timestamp()
               OR expires_at > clock_timestamp() + $3::bigint * interval '1 millisecond')";
    let longest = millis(ttl).saturating_add(millis(margin));
    Ok(session.execute(sql, &[&Id::from(dead), &seen_beat, &longest]).await? > 0)
}
