//! Errors of the etcd lease store: why it does not open, and what a failed call lets its caller conclude.
//!
//! Invariant: a write is *definite* only where nothing was sent, or where etcd says that it refused it. Its time-outs are
//! answers too, and say nothing of what becomes of the proposal.

use crate::{StoreError, postgres};

/// Why the leases in etcd are not opened. Every message says what to change.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The URL is not one that can be used.
    #[error("the leases' URL: {part}: {problem}")]
    Url {
        /// Which part of it.
        part: &'static str,
        /// What is wrong there.
        problem: String,
    },
    /// No member answers.
    #[error("cannot connect to etcd at {place} (tried {tries} times): {detail}")]
    Unreachable {
        /// All members' addresses.
        place: String,
        /// How often.
        tries: u32,
        /// The last failure.
        detail: String,
    },
    /// Members answer, but no majority stands behind them.
    #[error("etcd at {place} has no quorum (tried {tries} times): {detail}; start the majority of its members")]
    NoQuorum {
        /// All members' addresses.
        place: String,
        /// How often.
        tries: u32,
        /// The last failure.
        detail: String,
    },
    /// Members answer, and will not have us.
    #[error("etcd at {place} refuses to be read: {detail}")]
    Refused {
        /// All members' addresses.
        place: String,
        /// What it said.
        detail: String,
    },
    /// Too old, or not etcd.
    #[error("{place} does not answer as etcd 3.4 or later does: {detail}")]
    NotEtcd {
        /// The member.
        place: String,
        /// What it said.
        detail: String,
    },
    /// The URL names members of several clusters.
    #[error(
        "{one} belongs to the etcd cluster {first:x}, and {other} to the cluster {second:x}; name the members of one"
    )]
    Mixed {
        /// One member.
        one: String,
        /// Its cluster.
        first: u64,
        /// Another member.
        other: String,
        /// Its cluster.
        second: u64,
    },
    /// An operator's command that does not fit.
    #[error("{0}")]
    Command(String),
    /// The database does not open.
    #[error(transparent)]
    Postgres(#[from] postgres::OpenError),
    /// Anything else.
    #[error("the leases in etcd at {place} cannot be used: {detail}")]
    Failed {
        /// All members' addresses.
        place: String,
        /// What went wrong.
        detail: String,
    },
}

/// How one call failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CallError {
    /// Nothing was sent.
    NotSent(String),
    /// It was sent, and no answer came.
    Lost(String),
    /// etcd said no: gRPC's number of the error, and its text.
    Refused(i64, String),
    /// The answer is not what it should be.
    Store(StoreError),
}

impl From<StoreError> for CallError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// What etcd says when a lease is not there (any more).
const LEASE_NOT_FOUND: &str = "requested lease not found";
/// Refusals before anything is proposed.
const DEFINITE: &[&str] = &[
    "requested lease not found",
    "too many requests",
    "no leader",
    "permission denied",
    "invalid auth token",
    "user name is empty",
    "duplicate key given",
    "lease already exists",
];

impl CallError {
    pub(super) fn is_lease_gone(&self) -> bool {
        matches!(self, Self::Refused(_, text) if text.contains(LEASE_NOT_FOUND))
    }

    /// May another member give a better answer?
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::NotSent(_) | Self::Lost(_) => true,
            // 1 cancelled, 2 unknown (a proposal that was dropped), 4 deadline, 14 unavailable.
            Self::Refused(code, _) => matches!(code, 1 | 2 | 4 | 14),
            Self::Store(_) => false,
        }
    }

    /// What the caller of a call that only reads, or that may be repeated, may conclude.
    pub(super) fn of_read(self) -> StoreError {
        match self.of_write() {
            StoreError::Ambiguous(text) => StoreError::Unavailable(text),
            other => other,
        }
    }

    /// What the caller of a transaction may conclude.
    pub(super) fn of_write(self) -> StoreError {
        match self {
            Self::Store(error) => error,
            Self::NotSent(text) => StoreError::Unavailable(text),
            Self::Lost(text) => StoreError::Ambiguous(text),
            Self::Refused(_, text) if text.contains("database space exceeded") => StoreError::Full(text),
            Self::Refused(_, text) if DEFINITE.iter().any(|known| text.contains(known)) => {
                StoreError::Unavailable(text)
            }
            // 3 invalid argument, 12 unimplemented, 16 unauthenticated: refused before anything is proposed.
            Self::Refused(3 | 12 | 16, text) => StoreError::Unavailable(text),
            Self::Refused(_, text) => StoreError::Ambiguous(text),
        }
    }
}
