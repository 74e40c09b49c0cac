//! Reads a whole database and checks the invariants that a stored log can show. The rules are the core's
//! ([`conch_core::verify`]); this only feeds them.
//!
//! It takes no lock and cannot write, so it runs beside a server. Each conversation is read in a snapshot of its own:
//! one over all would keep the server from cutting its write-ahead log for as long as the check takes.

use std::path::Path;

use conch_core::body::BodyHash;
use conch_core::ids::{ConvKey, Epoch, Seq};
use conch_core::verify::{Checker, HeadFacts, RecordFacts, Report};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::directory::DATABASE_FILE;
use super::error::{OpenError, store_error};
use super::{rows, schema};
use crate::StoreError;

/// The next key behind `?1`, of whatever table has it: rows without a conversation are findings too.
const NEXT_KEY: &str = "SELECT min(k) FROM (
    SELECT (SELECT min(conv_id) FROM conversation WHERE conv_id > ?1) AS k
    UNION ALL SELECT (SELECT min(conv_id) FROM conv_head WHERE conv_id > ?1)
    UNION ALL SELECT (SELECT min(conv_id) FROM record WHERE conv_id > ?1)
    UNION ALL SELECT (SELECT min(conv_id) FROM cursor WHERE conv_id > ?1))";

/// Checks the database in a data directory. `progress` is called after each conversation.
///
/// # Errors
/// As [`OpenError`] lists, where the file is not one of ours or cannot be read to its end. What is readable and wrong is
/// in the report.
pub fn verify(directory: &Path, mut progress: impl FnMut(&Report)) -> Result<Report, OpenError> {
    let file = directory.join(DATABASE_FILE);
    let connection = schema::open_reader(&file)?;
    let failed = |error: StoreError| match error {
        StoreError::Damaged(detail) => OpenError::Damaged { file: file.clone(), detail },
        other => OpenError::Failed { file: file.clone(), detail: other.to_string() },
    };
    let mut checker = Checker::new();
    let mut last = None;
    while let Some(key) = next_key(&connection, last).map_err(failed)? {
        feed(&connection, &mut checker, key).map_err(failed)?;
        progress(checker.progress());
        last = Some(key);
    }
    Ok(checker.finish())
}

fn next_key(connection: &Connection, last: Option<[u8; 16]>) -> Result<Option<[u8; 16]>, StoreError> {
    // The empty key is before all keys.
    let last = last.as_ref().map_or(&[][..], |key| &key[..]);
    let found: Option<Option<[u8; 16]>> = connection
        .prepare_cached(NEXT_KEY)
        .and_then(|mut statement| statement.query_row(params![last], |row| row.get(0)).optional())
        .map_err(|error| store_error(&error))?;
    Ok(found.flatten())
}

/// Everything of one conversation, in one snapshot.
fn feed(connection: &Connection, checker: &mut Checker, key: [u8; 16]) -> Result<(), StoreError> {
    let transaction = connection.unchecked_transaction().map_err(|error| store_error(&error))?;
    let sql = "SELECT id FROM conversation WHERE conv_id = ?1";
    let id: Option<String> = rows::first(&transaction, sql, params![key], |row| rows::get(row, 0, "conversation.id"))?;
    let sql = "SELECT epoch, last_seq, reserved_to FROM conv_head WHERE conv_id = ?1";
    let head = rows::first(&transaction, sql, params![key], |row| {
        Ok(HeadFacts {
            epoch: Epoch::from_i64(rows::get(row, 0, "conv_head.epoch")?),
            last_seq: Seq::from_i64(rows::get(row, 1, "conv_head.last_seq")?),
            reserved_to: Seq::from_i64(rows::get(row, 2, "conv_head.reserved_to")?),
        })
    })?;
    checker.begin(ConvKey(key), id.as_deref(), head);
    let sql =
        "SELECT seq, epoch, kind, sender, client_msg_id, body_hash, edited_at IS NULL AND deleted_at IS NULL, body
               FROM record WHERE conv_id = ?1 ORDER BY seq";
    each(&transaction, sql, key, |row| {
        let as_written: bool = rows::get(row, 6, "record.edited_at")?;
        let body = rows::text(row, 7, "record.body")?;
        checker.record(&RecordFacts {
            seq: Seq::from_i64(rows::get(row, 0, "record.seq")?),
            epoch: Epoch::from_i64(rows::get(row, 1, "record.epoch")?),
            kind: rows::get(row, 2, "record.kind")?,
            sender: rows::text(row, 3, "record.sender")?,
            client_msg_id: rows::text(row, 4, "record.client_msg_id")?,
            body_hash: BodyHash(rows::blob16(row, 5, "record.body_hash")?),
            body: as_written.then_some(body),
        });
        Ok(())
    })?;
    // From the index alone: it is what finds duplicates, so it is what has to be right.
    let sql = "SELECT sender, client_msg_id, seq FROM record INDEXED BY record_key WHERE conv_id = ?1
               ORDER BY sender, client_msg_id";
    each(&transaction, sql, key, |row| {
        let seq = Seq::from_i64(rows::get(row, 2, "record.seq")?);
        checker.key(rows::text(row, 0, "record.sender")?, rows::text(row, 1, "record.client_msg_id")?, seq);
        Ok(())
    })?;
    each(&transaction, "SELECT sub, seq FROM cursor WHERE conv_id = ?1", key, |row| {
        checker.cursor(rows::text(row, 0, "cursor.sub")?, Seq::from_i64(rows::get(row, 1, "cursor.seq")?));
        Ok(())
    })
}

fn each(
    connection: &Connection,
    sql: &str,
    key: [u8; 16],
    mut visit: impl FnMut(&Row<'_>) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let mut statement = connection.prepare_cached(sql).map_err(|error| store_error(&error))?;
    let mut found = statement.query(params![key]).map_err(|error| store_error(&error))?;
    while let Some(row) = found.next().map_err(|error| store_error(&error))? {
        visit(row)?;
    }
    Ok(())
}
