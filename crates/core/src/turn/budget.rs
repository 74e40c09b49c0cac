//! What a turn may use, and what it has used.
//!
//! Invariant: what was used follows from the turn's journal alone, so that every owner counts alike; deaths of owners are
//! counted only while the journal does not grow.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::body::Body;
use crate::record::RecordKind;
use crate::turn::journal::FailReason;
use crate::turn::result::StepResult;

/// Most completed steps of a turn.
pub const TURN_STEPS_MAX: u32 = 1000;
/// Most bytes of a turn's journal (16 MiB): the bodies of its steps, intents and awaits.
pub const TURN_JOURNAL_MAX_BYTES: u64 = 16 * 1024 * 1024;
/// Owners that may go away one after the other without a new record in the turn's journal.
pub const TURN_OWNERS_MAX: u32 = 10;
/// Longest time of a turn, waiting included, unless its agent's settings say otherwise (24 hours).
pub const TURN_TIME_DEFAULT: Duration = Duration::from_secs(24 * 60 * 60);

/// What a turn has used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Spent {
    /// Completed steps.
    pub steps: u32,
    /// Bytes of the journal.
    pub bytes: u64,
    /// Tokens, both ways.
    pub tokens: u64,
}

/// A limit that is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Exceeded {
    /// Too many steps.
    #[error("turn: has {TURN_STEPS_MAX} steps; no more are allowed")]
    Steps,
    /// Too large a journal.
    #[error("turn: its journal has {0} bytes; at most {TURN_JOURNAL_MAX_BYTES} are allowed")]
    Journal(u64),
    /// Too many tokens.
    #[error("turn: has used {used} tokens; at most {limit} are allowed")]
    Tokens {
        /// Used so far.
        used: u64,
        /// The agent's limit.
        limit: u64,
    },
}

impl Exceeded {
    /// Why the turn fails.
    #[must_use]
    pub fn reason(self) -> FailReason {
        match self {
            Self::Steps => FailReason::TooManySteps,
            Self::Journal(_) => FailReason::JournalTooLarge,
            Self::Tokens { .. } => FailReason::TooManyTokens,
        }
    }
}

impl Spent {
    /// With one more record of the journal; others cost nothing.
    #[must_use]
    pub fn with(mut self, kind: RecordKind, body: &Body) -> Self {
        if !is_journal(kind) {
            return self;
        }
        self.bytes = self.bytes.saturating_add(body.as_str().len() as u64);
        if kind == RecordKind::StepCompleted {
            self.steps = self.steps.saturating_add(1);
            let used = StepResult::read(body).map_or(0, |(_, result)| result.usage().total());
            self.tokens = self.tokens.saturating_add(used);
        }
        self
    }

    /// Is that within what every turn may use?
    ///
    /// # Errors
    /// The limit that is exceeded.
    pub fn check(&self) -> Result<(), Exceeded> {
        if self.steps > TURN_STEPS_MAX {
            return Err(Exceeded::Steps);
        }
        if self.bytes > TURN_JOURNAL_MAX_BYTES {
            return Err(Exceeded::Journal(self.bytes));
        }
        Ok(())
    }

    /// May another model call be made? `limit`: the agent's; `None`: any number of tokens.
    ///
    /// # Errors
    /// [`Exceeded::Tokens`] when they are used up.
    pub fn check_tokens(&self, limit: Option<u64>) -> Result<(), Exceeded> {
        match limit {
            Some(limit) if self.tokens >= limit => Err(Exceeded::Tokens { used: self.tokens, limit }),
            _ => Ok(()),
        }
    }
}

/// True for the records that a turn's progress is made of.
#[must_use]
pub fn is_journal(kind: RecordKind) -> bool {
    matches!(
        kind,
        RecordKind::StepStarted | RecordKind::StepCompleted | RecordKind::AwaitOpened | RecordKind::AwaitResolved
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::turn::StepId;
    use crate::turn::result::Usage;

    #[test]
    fn limits_are_inclusive_and_named() {
        let at = Spent { steps: TURN_STEPS_MAX, bytes: TURN_JOURNAL_MAX_BYTES, tokens: 9 };
        assert_eq!(at.check(), Ok(()));
        assert_eq!(at.check_tokens(None), Ok(()));
        assert_eq!(at.check_tokens(Some(10)), Ok(()));
        assert_eq!(at.check_tokens(Some(9)), Err(Exceeded::Tokens { used: 9, limit: 9 }));
        let over = at.with(RecordKind::StepStarted, &Body::from_store("{}"));
        assert_eq!(over.check(), Err(Exceeded::Journal(TURN_JOURNAL_MAX_BYTES + 2)));
        let over = Spent { bytes: 0, ..at }.with(RecordKind::StepCompleted, &Body::from_store("{}"));
        assert_eq!(over.check().map_err(Exceeded::reason), Err(FailReason::TooManySteps));
    }

    #[test]
    fn only_the_journal_counts() {
        let usage = Usage { input_tokens: 5, output_tokens: 2 };
        let result = StepResult::Model { output: "hi".to_owned(), calls: Vec::new(), usage };
        let body = Body::from_store(&result.body_text(&StepId::model(1)));
        let spent = Spent::default().with(RecordKind::StepCompleted, &body).with(RecordKind::Message, &body);
        assert_eq!(spent, Spent { steps: 1, bytes: body.as_str().len() as u64, tokens: 7 });
    }
}
