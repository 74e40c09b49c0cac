//! Errors of the PostgreSQL store: why it does not open, and what a failed call lets its caller conclude.
//!
//! Invariant: a call is *definite* only if the server itself said that it failed while the session lived. Everything
//! else that happens after the statement was sent may have been committed ([`StoreError::Ambiguous`]).

use std::time::Duration;

use tokio_postgres::error::{DbError, SqlState};

use crate::StoreError;

/// Why a database is not opened. Every message says what to change.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The URL is not one that can be used.
    #[error("the database URL: {part}: {problem}")]
    Url {
        /// Which part of it.
        part: &'static str,
        /// What is wrong there.
        problem: String,
    },
    /// No server could be reached in time.
    #[error("cannot connect to the database at {place} (tried {tries} times): {detail}")]
    Connect {
        /// Hosts and ports, without the password.
        place: String,
        /// How often.
        tries: u32,
        /// The last failure.
        detail: String,
    },
    /// The server answered, and will not have us.
    #[error("the database at {place} refuses the connection: {detail}")]
    Refused {
        /// Hosts and ports, without the password.
        place: String,
        /// What it said.
        detail: String,
    },
    /// The server is too old.
    #[error("the database server has version {found}; version {needed} or later is needed")]
    ServerVersion {
        /// Its version.
        found: String,
        /// The oldest one that is good.
        needed: i32,
    },
    /// The server would forget what it said it has written.
    #[error(
        "the database server runs with fsync=off, so that a power cut loses what was acknowledged; set fsync=on in \
         postgresql.conf"
    )]
    FsyncOff,
    /// A standby, or a server or role set to read only.
    #[error(
        "the database at {place} is read-only (a standby, or default_transaction_read_only is on); name its primary"
    )]
    ReadOnly {
        /// Hosts and ports, without the password.
        place: String,
    },
    /// Between us and the server sessions are mixed up.
    #[error(
        "the database is behind a pooler that shares sessions ({evidence}); leases and locks need sessions of their own: \
         connect to the server itself, or through a pooler in session mode that resets a session before another one gets it"
    )]
    Pooler {
        /// What gave it away.
        evidence: String,
    },
    /// The role may not do what the store needs.
    #[error("the database role lacks rights: {detail}")]
    Rights {
        /// What it may not.
        detail: String,
    },
    /// Tables with our names that are not ours.
    #[error("the database schema {schema} holds a table {table} of another program; use another database or schema")]
    Foreign {
        /// The schema.
        schema: String,
        /// The first such table.
        table: String,
    },
    /// Tables of a newer Conch.
    #[error(
        "the database has schema version {found}, and this program knows versions up to {known} only; update this node"
    )]
    Version {
        /// The database's version.
        found: i32,
        /// Ours.
        known: i32,
    },
    /// A copy of another database.
    #[error(
        "the database is a copy: its tables were written in database {recorded}, and this is {found}. If it replaces the \
         other one for good, run `conch restored --above N` with N the highest generation that the other one had"
    )]
    Copied {
        /// Where the tables were written.
        recorded: String,
        /// Where they are.
        found: String,
    },
    /// The cluster keeps its leases in another place.
    #[error(
        "the cluster of this database keeps its leases in {recorded}, and this process was told {asked}; set CONCH_LEASES to \
         where they are (a node: --leases), or move them with all nodes stopped: `conch leases switch`"
    )]
    LeaseMode {
        /// What the database says.
        recorded: String,
        /// What this node was started with.
        asked: String,
    },
    /// Another cluster's database.
    #[error(
        "the database belongs to a cluster with another secret; give this node that cluster's CONCH_AUTH_SECRET, or \
         another database"
    )]
    Secret,
    /// An operator's command that does not fit the database.
    #[error("{0}")]
    Command(String),
    /// Anything else.
    #[error("the database at {place} cannot be used: {detail}")]
    Failed {
        /// Hosts and ports, without the password.
        place: String,
        /// What it said.
        detail: String,
    },
}

/// How one call on a session failed.
#[derive(Debug)]
pub(super) enum CallError {
    /// The driver's error: the server's answer, or the loss of the session.
    Postgres(tokio_postgres::Error),
    /// The server does not sync its writes; nothing was asked.
    FsyncOff,
    /// No answer within this time; the session was given up.
    TimedOut(Duration),
    /// The answer is not what it should be, or something was wrong before anything was sent.
    Store(StoreError),
}

impl From<tokio_postgres::Error> for CallError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Postgres(error)
    }
}

impl From<StoreError> for CallError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl CallError {
    /// What the caller of a statement that only reads may conclude.
    pub(super) fn of_read(self) -> StoreError {
        match self.of_write() {
            StoreError::Ambiguous(text) => StoreError::Unavailable(text),
            other => other,
        }
    }

    /// What the caller of a single writing statement outside of a transaction block may conclude.
    pub(super) fn of_write(self) -> StoreError {
        match self {
            Self::Store(error) => error,
            Self::FsyncOff => StoreError::Unavailable(OpenError::FsyncOff.to_string()),
            Self::TimedOut(limit) => StoreError::Ambiguous(format!("no answer within {} ms", limit.as_millis())),
            Self::Postgres(error) => match error.as_db_error() {
                Some(answer) => of_answer(answer),
                None => StoreError::Ambiguous(text_of(&error)),
            },
        }
    }
}

/// What the server said. A session that was ended by force may have committed just before it was told so.
fn of_answer(answer: &DbError) -> StoreError {
    let text = format!("{} ({})", answer.message(), answer.code().code());
    if ends_the_session(answer) {
        return StoreError::Ambiguous(text);
    }
    let code = answer.code();
    if *code == SqlState::DISK_FULL {
        return StoreError::Full(text);
    }
    // Torn pages and broken indexes; and clashes that no statement expects: a number given twice (invariant 2).
    if *code == SqlState::DATA_CORRUPTED || *code == SqlState::INDEX_CORRUPTED || code.code().starts_with("23") {
        return StoreError::Damaged(text);
    }
    StoreError::Unavailable(text)
}

/// True for errors that end the session, and with it all certainty.
fn ends_the_session(answer: &DbError) -> bool {
    // The severity's own field is translated; its class tells as well. 57014 is a statement's time-out, which is definite.
    let severity = answer.parsed_severity();
    let fatal = severity.is_some_and(|severity| {
        use tokio_postgres::error::Severity::{Fatal, Panic};
        matches!(severity, Fatal | Panic)
    });
    let code = answer.code();
    fatal || code.code().starts_with("57P") || code.code().starts_with("08") || code.code() == "40003"
}

/// A statement was prepared in one server process and looked for, or prepared again, in another.
pub(super) fn sessions_are_mixed_up(error: &tokio_postgres::Error) -> bool {
    let mixed_up = [&SqlState::INVALID_SQL_STATEMENT_NAME, &SqlState::DUPLICATE_PSTATEMENT];
    error.code().is_some_and(|code| mixed_up.contains(&code))
}

/// An error with its causes, which the driver keeps apart.
pub(super) fn text_of(error: &tokio_postgres::Error) -> String {
    let mut text = match error.as_db_error() {
        Some(answer) => return format!("{} ({})", answer.message(), answer.code().code()),
        None => error.to_string(),
    };
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
