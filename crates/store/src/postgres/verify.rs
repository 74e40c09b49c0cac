//! Reads a whole database and checks the invariants that a stored log can show. The rules are the core's
//! ([`conch_core::verify`]); this only feeds them.
//!
//! It changes nothing and runs beside the nodes. Each conversation is read in a snapshot of its own, in pages: memory is
//! bounded however long a log is, and no snapshot keeps the server from cleaning up for as long as the check takes.

use std::time::Duration;

use conch_core::body::BodyHash;
use conch_core::ids::{ConvKey, Epoch, Seq};
use conch_core::verify::{Checker, HeadFacts, RecordFacts, Report};
use tokio_postgres::Row;

use super::error::{CallError, OpenError};
use super::rows::{self, Id};
use super::session::{Dialer, Session};
use super::{Durability, Options, schema, start, url};
use crate::StoreError;

/// Rows of one page; bodies have at most 64 KiB, so that a page is some megabytes.
const PAGE_ROWS: i64 = 256;
/// For opening and closing a snapshot.
const SNAPSHOT_LIMIT: Duration = Duration::from_secs(10);

/// Checks a database. `progress` is called after each conversation.
///
/// # Errors
/// As [`OpenError`] lists, where the database is not one of ours or cannot be read to its end. What is readable and wrong
/// is in the report.
pub async fn verify(database: &str, options: &Options, mut progress: impl FnMut(&Report)) -> Result<Report, OpenError> {
    let (session, dialer) = open(database, options).await?;
    let failed = |error: CallError| start::failed(dialer.place(), error);
    let mut checker = Checker::new();
    let mut from = Some(0);
    while let Some(start) = from {
        let Some(key) = next_key(&session, start).await.map_err(failed)? else { break };
        feed(&session, &mut checker, key).await.map_err(failed)?;
        progress(checker.progress());
        from = u128::from_be_bytes(key.0).checked_add(1);
    }
    Ok(checker.finish())
}

/// Checks one conversation of a database.
///
/// # Errors
/// As [`verify`].
pub async fn verify_conversation(
    database: &str,
    options: &Options,
    conversation: ConvKey,
) -> Result<Report, OpenError> {
    let (session, dialer) = open(database, options).await?;
    let mut checker = Checker::new();
    let fed = feed(&session, &mut checker, Id::from(conversation)).await;
    fed.map_err(|error| start::failed(dialer.place(), error))?;
    Ok(checker.finish())
}

async fn open(database: &str, options: &Options) -> Result<(Session, Dialer), OpenError> {
    // It only reads.
    let dialer = Dialer::new(url::parse(database)?, options.node.to_string(), Durability::Unchecked);
    let session = start::connect_alone(&dialer, options.connect_patience).await?;
    schema::expect(&session, dialer.place()).await?;
    // A slow disk must not end the check.
    let patient = "SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0";
    session.batch(patient, SNAPSHOT_LIMIT).await.map_err(|error| start::failed(dialer.place(), error))?;
    Ok((session, dialer))
}

/// The first key at or behind this one, of whatever table has it: rows without a conversation are findings too.
async fn next_key(session: &Session, from: u128) -> Result<Option<Id>, CallError> {
    let sql = "SELECT k FROM (
                 (SELECT conv_id AS k FROM conversation WHERE conv_id >= $1 ORDER BY conv_id LIMIT 1)
                 UNION ALL (SELECT conv_id FROM conv_head WHERE conv_id >= $1 ORDER BY conv_id LIMIT 1)
                 UNION ALL (SELECT conv_id FROM record WHERE conv_id >= $1 ORDER BY conv_id LIMIT 1)
                 UNION ALL (SELECT conv_id FROM cursor WHERE conv_id >= $1 ORDER BY conv_id LIMIT 1)) t ORDER BY k LIMIT 1";
    let row = session.first(sql, &[&Id(from.to_be_bytes())]).await?;
    Ok(row.map(|row| rows::get(&row, 0, "conv_id")).transpose()?)
}

/// Everything of one conversation, in one snapshot.
async fn feed(session: &Session, checker: &mut Checker, key: Id) -> Result<(), CallError> {
    session.batch("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", SNAPSHOT_LIMIT).await?;
    begin(session, checker, key).await?;
    records(session, checker, key).await?;
    keys(session, checker, key).await?;
    cursors(session, checker, key).await?;
    session.batch("COMMIT", SNAPSHOT_LIMIT).await
}

async fn begin(session: &Session, checker: &mut Checker, key: Id) -> Result<(), CallError> {
    let row = session.first("SELECT id FROM conversation WHERE conv_id = $1", &[&key]).await?;
    let id: Option<String> = row.map(|row| rows::get(&row, 0, "conversation.id")).transpose()?;
    let sql = "SELECT epoch, last_seq, reserved_to FROM conv_head WHERE conv_id = $1";
    let head = match session.first(sql, &[&key]).await? {
        Some(row) => Some(HeadFacts {
            epoch: Epoch::from_i64(rows::get(&row, 0, "conv_head.epoch")?),
            last_seq: Seq::from_i64(rows::get(&row, 1, "conv_head.last_seq")?),
            reserved_to: Seq::from_i64(rows::get(&row, 2, "conv_head.reserved_to")?),
        }),
        None => None,
    };
    checker.begin(ConvKey::from(key), id.as_deref(), head);
    Ok(())
}

async fn records(session: &Session, checker: &mut Checker, key: Id) -> Result<(), CallError> {
    let sql =
        "SELECT seq, epoch, kind, sender, client_msg_id, body_hash, edited_at IS NULL AND deleted_at IS NULL, body
               FROM record WHERE conv_id = $1 AND seq > $2 ORDER BY seq LIMIT $3";
    // Below every number, so that one that is out of range is found as well.
    let mut after = i64::MIN;
    loop {
        let page = session.query(sql, &[&key, &after, &PAGE_ROWS]).await?;
        let Some(last) = page.last() else { return Ok(()) };
        after = rows::get(last, 0, "record.seq")?;
        for row in &page {
            record(checker, row)?;
        }
    }
}

fn record(checker: &mut Checker, row: &Row) -> Result<(), StoreError> {
    let kind: i16 = rows::get(row, 2, "record.kind")?;
    let as_written: bool = rows::get(row, 6, "record.edited_at")?;
    let body: &str = rows::get(row, 7, "record.body")?;
    checker.record(&RecordFacts {
        seq: Seq::from_i64(rows::get(row, 0, "record.seq")?),
        epoch: Epoch::from_i64(rows::get(row, 1, "record.epoch")?),
        kind: kind.into(),
        sender: rows::get(row, 3, "record.sender")?,
        client_msg_id: rows::get(row, 4, "record.client_msg_id")?,
        body_hash: BodyHash(rows::bytes16(row, 5, "record.body_hash")?),
        body: as_written.then_some(body),
    });
    Ok(())
}

/// By the index of the keys' order: it is what finds duplicates, so it is what has to be right.
async fn keys(session: &Session, checker: &mut Checker, key: Id) -> Result<(), CallError> {
    let sql = "SELECT sender, client_msg_id, seq FROM record WHERE conv_id = $1 AND (sender, client_msg_id) > ($2, $3)
               ORDER BY sender, client_msg_id LIMIT $4";
    let (mut sender, mut id) = (String::new(), String::new());
    loop {
        let page = session.query(sql, &[&key, &sender, &id, &PAGE_ROWS]).await?;
        let Some(last) = page.last() else { return Ok(()) };
        for row in &page {
            let seq = Seq::from_i64(rows::get(row, 2, "record.seq")?);
            let (sender, id) = (rows::get(row, 0, "record.sender")?, rows::get(row, 1, "record.client_msg_id")?);
            checker.key(sender, id, seq);
        }
        (sender, id) = (rows::get(last, 0, "record.sender")?, rows::get(last, 1, "record.client_msg_id")?);
    }
}

async fn cursors(session: &Session, checker: &mut Checker, key: Id) -> Result<(), CallError> {
    let sql = "SELECT sub, seq FROM cursor WHERE conv_id = $1 AND sub > $2 ORDER BY sub LIMIT $3";
    let mut after = String::new();
    loop {
        let page = session.query(sql, &[&key, &after, &PAGE_ROWS]).await?;
        let Some(last) = page.last() else { return Ok(()) };
        for row in &page {
            checker.cursor(rows::get(row, 0, "cursor.sub")?, Seq::from_i64(rows::get(row, 1, "cursor.seq")?));
        }
        after = rows::get(last, 0, "cursor.sub")?;
    }
}
