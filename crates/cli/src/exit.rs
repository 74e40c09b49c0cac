//! Exit codes, and the failure that carries one. The table is a contract (docs/CLI.md); scripts branch on it.

use std::process::ExitCode;

use crate::client::{ClientError, Problem};

/// How the command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// It did what was asked.
    Ok = 0,
    /// It failed for a reason that is none of the others: a file, a port, an answer that makes no sense.
    Failure = 1,
    /// The command line is wrong.
    Usage = 2,
    /// The server refused, without a directive: the same again will be refused again.
    Refused = 3,
    /// Not reached, or refused with a directive until the budget was spent: the same again may succeed.
    Unavailable = 4,
    /// A verification ran to its end and found violations.
    Violations = 5,
}

/// For `--help`; docs/CLI.md has the same table.
pub(crate) const TABLE: &str = "\
Exit codes:
  0  done
  1  failed (a file, a port, an unexpected answer)
  2  the command line is wrong
  3  refused by the server: the same again will be refused again
  4  unavailable until the budget was spent: the same again may succeed
  5  a verification found violations";

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// A command's failure.
#[derive(Debug)]
pub(crate) struct Failure {
    /// Its exit code.
    pub(crate) exit: Exit,
    /// A sentence for people.
    pub(crate) message: String,
    /// The server's problem document, if one is the cause.
    pub(crate) problem: Option<Problem>,
}

impl Failure {
    fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into(), problem: None }
    }

    /// The end of the pipe that results go to: no failure, whoever read them has what they wanted. Exit code 0.
    pub(crate) fn reader_left() -> Self {
        Self::new(Exit::Ok, "standard output is closed")
    }

    /// Exit code 1.
    pub(crate) fn other(message: impl Into<String>) -> Self {
        Self::new(Exit::Failure, message)
    }

    /// Exit code 2, for what clap cannot check.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// Exit code 5.
    pub(crate) fn violations(message: impl Into<String>) -> Self {
        Self::new(Exit::Violations, message)
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let message = error.to_string();
        let (exit, problem) = match error {
            ClientError::Refused(problem) => (Exit::Refused, Some(problem)),
            ClientError::Unavailable { problem, .. } => (Exit::Unavailable, problem.map(|problem| *problem)),
            ClientError::Unreachable(_) => (Exit::Unavailable, None),
            ClientError::Unexpected(_) => (Exit::Failure, None),
        };
        Self { exit, message, problem }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::other(error.to_string())
    }
}
