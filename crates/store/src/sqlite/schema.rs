//! The database file: its tables, its version, and who may open it.
//!
//! Invariant: a file that is not exactly of this version, or not one of ours, is refused before anything is changed in it.
//!
//! The check at start: `quick_check` reads every page, so it runs only on files up to [`QUICK_CHECK_MAX_BYTES`], which
//! takes a fraction of a second. A larger file is opened on the strength of its header and schema: a restart must be
//! ready within a second. A damaged page in it is still found when it is read (`Damaged`, never a wrong answer from a
//! broken tree), and `conch verify` reads everything. A marker for unclean ends would say nothing: kill -9 and a power cut
//! are what the write-ahead log is made for, while a rotten page comes without a crash.

use std::path::Path;
use std::time::Duration;

use conch_core::ids::{Generation, LogId};
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension};

use super::error::OpenError;

/// "Conc" in the header of the file, so that `file` and we can tell whose it is.
pub(super) const APPLICATION_ID: i64 = 0x436f_6e63;
/// The version of the tables below.
pub(super) const SCHEMA_VERSION: i64 = 1;
/// Largest file that is checked page by page at start.
const QUICK_CHECK_MAX_BYTES: u64 = 64 * 1024 * 1024;
/// The write-ahead log is copied into the database when it has this many pages (4 MiB). Small enough that the writer,
/// which does it between two commits, stalls for some milliseconds only.
const CHECKPOINT_PAGES: i64 = 1000;
/// After a burst (a long read holds the log), its file is cut back to this many bytes.
const WAL_KEPT_BYTES: i64 = 64 * 1024 * 1024;
/// Page cache of the writer's connection, in KiB.
const WRITER_CACHE_KIB: i64 = 64 * 1024;
/// Page cache of a reader's connection, in KiB.
const READER_CACHE_KIB: i64 = 8 * 1024;
/// Only we use the file, so nobody holds a lock for longer than a checkpoint; verify and backups read beside us.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);
/// Statements that a connection keeps prepared.
const STATEMENT_CACHE: usize = 64;

/// Times are milliseconds since 1970, keys and UUIDs 16 bytes. `WITHOUT ROWID`: a row lies where its key is, so that a
/// range is read in one sweep and an append touches two trees, not three.
const TABLES: &str = "
CREATE TABLE cluster_meta(one INTEGER PRIMARY KEY CHECK (one = 1), system_id TEXT NOT NULL, restores INTEGER NOT NULL) STRICT;
CREATE TABLE node_lease(incarnation BLOB PRIMARY KEY, node_name TEXT NOT NULL, region TEXT NOT NULL, addr TEXT NOT NULL,
  beat INTEGER NOT NULL, draining INTEGER NOT NULL, expires_at INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE conversation(conv_id BLOB PRIMARY KEY, id TEXT NOT NULL, kind INTEGER NOT NULL, regions TEXT NOT NULL,
  home TEXT NOT NULL, title TEXT, agent TEXT, settings TEXT NOT NULL, creator TEXT NOT NULL, created_at INTEGER NOT NULL)
  STRICT, WITHOUT ROWID;
CREATE TABLE conv_head(conv_id BLOB PRIMARY KEY, epoch INTEGER NOT NULL CHECK (epoch > 0), owner BLOB, gen INTEGER NOT NULL,
  last_seq INTEGER NOT NULL, reserved_to INTEGER NOT NULL, last_at INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE record(conv_id BLOB NOT NULL, seq INTEGER NOT NULL, epoch INTEGER NOT NULL, kind INTEGER NOT NULL,
  sender TEXT NOT NULL, client_msg_id TEXT NOT NULL, name TEXT, turn INTEGER, at INTEGER NOT NULL, edited_at INTEGER,
  deleted_at INTEGER, body_hash BLOB NOT NULL, body TEXT NOT NULL,
  PRIMARY KEY (conv_id, seq)) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX record_key ON record(conv_id, sender, client_msg_id);
CREATE TABLE conv_due(conv_id BLOB PRIMARY KEY, due_at INTEGER NOT NULL, why INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE INDEX conv_due_at ON conv_due(due_at);
CREATE TABLE member(conv_id BLOB NOT NULL, sub TEXT NOT NULL, since INTEGER NOT NULL, PRIMARY KEY (conv_id, sub))
  STRICT, WITHOUT ROWID;
CREATE INDEX member_of ON member(sub, conv_id);
CREATE TABLE cursor(conv_id BLOB NOT NULL, sub TEXT NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY (conv_id, sub))
  STRICT, WITHOUT ROWID;
CREATE TABLE checkpoint(conv_id BLOB PRIMARY KEY, epoch INTEGER NOT NULL, version INTEGER NOT NULL,
  at_seq INTEGER NOT NULL, state BLOB NOT NULL) STRICT, WITHOUT ROWID;
";

/// Which history the database is of.
#[derive(Debug, Clone)]
pub(super) struct Identity {
    /// `restores * 65536 + 1`: the timeline of a single database is always 1.
    pub(super) generation: Generation,
    /// System id and generation.
    pub(super) log: LogId,
}

/// Makes the file, if it is not there, readable by its owner alone, whatever the directory's mode: it holds what people
/// write. Its log and its index inherit the mode.
fn make_private(file: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let made = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
    match made {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        other => other.map(drop),
    }
}

/// Opens the writer's connection, creates the tables in a new file, and refuses any other file.
pub(super) fn open_writer(file: &Path) -> Result<Connection, OpenError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let open = || -> rusqlite::Result<Connection> {
        let connection = Connection::open_with_flags(file, flags)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        connection.set_prepared_statement_cache_capacity(STATEMENT_CACHE);
        Ok(connection)
    };
    make_private(file).map_err(|source| OpenError::Directory { path: file.to_owned(), source })?;
    let connection = open().map_err(|error| open_error(file, &error))?;
    let is_new = inspect(&connection, file)? == Contents::Nothing;
    configure_writer(&connection).map_err(|error| open_error(file, &error))?;
    if is_new {
        create_tables(&connection).map_err(|error| open_error(file, &error))?;
    } else {
        check_pages(&connection, file)?;
    }
    Ok(connection)
}

/// Opens a connection that cannot write. The file must exist and be one of ours.
pub(super) fn open_reader(file: &Path) -> Result<Connection, OpenError> {
    if !file.exists() {
        return Err(OpenError::Missing { file: file.to_owned() });
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let open = || -> rusqlite::Result<Connection> {
        let connection = Connection::open_with_flags(file, flags)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        connection.set_prepared_statement_cache_capacity(STATEMENT_CACHE);
        connection.pragma_update(None, "cache_size", -READER_CACHE_KIB)?;
        Ok(connection)
    };
    let connection = open().map_err(|error| open_error(file, &error))?;
    match inspect(&connection, file)? {
        Contents::Ours => Ok(connection),
        Contents::Nothing => Err(OpenError::Missing { file: file.to_owned() }),
    }
}

/// Reads which history this is.
pub(super) fn identity(connection: &Connection) -> rusqlite::Result<Identity> {
    let (system_id, restores): (String, i64) =
        connection
            .query_row("SELECT system_id, restores FROM cluster_meta", [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let generation = Generation::from_i64(restores * 65_536 + 1);
    Ok(Identity { generation, log: LogId::new(&system_id, generation) })
}

/// What opening or first reading a file went wrong with.
pub(super) fn open_error(file: &Path, error: &rusqlite::Error) -> OpenError {
    let (file, detail) = (file.to_owned(), error.to_string());
    match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => OpenError::Damaged { file, detail },
        _ => OpenError::Failed { file, detail },
    }
}

#[derive(PartialEq, Eq)]
enum Contents {
    Nothing,
    Ours,
}

/// Looks at a file without changing it.
fn inspect(connection: &Connection, file: &Path) -> Result<Contents, OpenError> {
    let read = || -> rusqlite::Result<(i64, i64, i64)> {
        let tables = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
        let application_id = connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
        let version = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
        Ok((tables, application_id, version))
    };
    let file = file.to_owned();
    match read().map_err(|error| open_error(&file, &error))? {
        (0, 0, 0) => Ok(Contents::Nothing),
        (_, APPLICATION_ID, SCHEMA_VERSION) => Ok(Contents::Ours),
        (_, APPLICATION_ID, found) => Err(OpenError::Version { file, found, known: SCHEMA_VERSION }),
        (_, application_id, _) => Err(OpenError::Foreign { file, application_id }),
    }
}

fn configure_writer(connection: &Connection) -> rusqlite::Result<()> {
    let mode: String = connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    debug_assert_eq!(mode, "wal", "a database in a file can always use the write-ahead log");
    // FULL syncs the log at every commit; NORMAL would lose acked records in a power cut (invariant 3).
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
    connection.pragma_update(None, "journal_size_limit", WAL_KEPT_BYTES)?;
    connection.pragma_update(None, "cache_size", -WRITER_CACHE_KIB)?;
    Ok(())
}

/// One transaction: a crash in the middle leaves a file without tables, which is a new one again.
fn create_tables(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(&format!(
        "BEGIN IMMEDIATE;
         {TABLES}
         INSERT INTO cluster_meta(one, system_id, restores) VALUES (1, lower(hex(randomblob(16))), 0);
         PRAGMA application_id = {APPLICATION_ID};
         PRAGMA user_version = {SCHEMA_VERSION};
         COMMIT;"
    ))
}

fn check_pages(connection: &Connection, file: &Path) -> Result<(), OpenError> {
    let bytes = std::fs::metadata(file).map_or(u64::MAX, |metadata| metadata.len());
    if bytes > QUICK_CHECK_MAX_BYTES {
        tracing::info!(bytes, limit = QUICK_CHECK_MAX_BYTES, "the database is too large to be checked at start");
        return Ok(());
    }
    let finding: Option<String> = connection
        .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
        .optional()
        .map_err(|error| open_error(file, &error))?;
    match finding {
        Some(finding) if finding != "ok" => Err(OpenError::Damaged { file: file.to_owned(), detail: finding }),
        _ => Ok(()),
    }
}
