//! Errors of the SQLite store: why it does not open, and what a failed call lets its caller conclude.

use std::io;
use std::path::PathBuf;

use rusqlite::ErrorCode;
use rusqlite::ffi;

use crate::StoreError;

/// Why a data directory is not opened. Every message names the file.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory, or a file in it, cannot be made or used.
    #[error("{}: {source}", path.display())]
    Directory {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another process uses the directory.
    #[error("the data directory {} is in use by {holder}; stop it, or choose another directory", directory.display())]
    InUse {
        /// Which.
        directory: PathBuf,
        /// Who, as a person reads it.
        holder: String,
    },
    /// There is no database to open (only for calls that do not create one).
    #[error("{}: there is no database", file.display())]
    Missing {
        /// Which.
        file: PathBuf,
    },
    /// A database of something else.
    #[error("{}: is a database, but not one of Conch's (application id {application_id})", file.display())]
    Foreign {
        /// Which.
        file: PathBuf,
        /// Its application id.
        application_id: i64,
    },
    /// A database of another version of Conch.
    #[error("{}: has schema version {found}, and this program knows version {known} only", file.display())]
    Version {
        /// Which.
        file: PathBuf,
        /// Its version.
        found: i64,
        /// Ours.
        known: i64,
    },
    /// Not a database, or a broken one.
    #[error("{}: the database is damaged: {detail}; restore it from a backup", file.display())]
    Damaged {
        /// Which.
        file: PathBuf,
        /// What SQLite or the check said.
        detail: String,
    },
    /// Anything else.
    #[error("{}: cannot be opened: {detail}", file.display())]
    Failed {
        /// Which.
        file: PathBuf,
        /// What SQLite said.
        detail: String,
    },
}

/// How a transaction failed, for those that decide whether it may have happened.
pub(super) fn store_error(error: &rusqlite::Error) -> StoreError {
    let text = error.to_string();
    match error {
        rusqlite::Error::SqliteFailure(failure, _) => match failure.code {
            ErrorCode::DiskFull => StoreError::Full(text),
            ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => StoreError::Damaged(text),
            // A clash that no statement expects: a number given twice (invariant 2), or a row that should be there.
            ErrorCode::ConstraintViolation => StoreError::Damaged(text),
            ErrorCode::SystemIoFailure => io_error(failure.extended_code, text),
            _ => StoreError::Unavailable(text),
        },
        // A value of another type, or out of range: not what was written.
        rusqlite::Error::FromSqlConversionFailure(..)
        | rusqlite::Error::IntegralValueOutOfRange(..)
        | rusqlite::Error::Utf8Error(..)
        | rusqlite::Error::InvalidColumnType(..) => StoreError::Damaged(text),
        _ => StoreError::Unavailable(text),
    }
}

/// An input or output error inside a transaction that has not been committed: definite, whatever it was.
fn io_error(extended_code: i32, text: String) -> StoreError {
    match extended_code {
        ffi::SQLITE_IOERR_SHORT_READ | ffi::SQLITE_IOERR_CORRUPTFS | ffi::SQLITE_IOERR_DATA => {
            StoreError::Damaged(text)
        }
        ffi::SQLITE_IOERR_WRITE | ffi::SQLITE_IOERR_TRUNCATE | ffi::SQLITE_IOERR_SHMSIZE => StoreError::Full(text),
        _ => StoreError::Unavailable(text),
    }
}

/// A stored value that is not what was written there.
pub(super) fn damaged(column: &'static str, problem: impl std::fmt::Display) -> StoreError {
    StoreError::Damaged(format!("column {column}: {problem}"))
}
