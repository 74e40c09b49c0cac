//! What is left of a [`TurnMachine`](crate::turn::TurnMachine) while its conversation is hibernated.
//!
//! Invariant: thawing is this plus the records after `at_seq`, in order. Inputs are kept as numbers; their text stays
//! in the log, so that the state is small however long the queue, and an erased text is gone here too.

use serde::{Deserialize, Serialize};

use crate::ids::{AgentName, Epoch, Seq};
use crate::time::Timestamp;
use crate::turn::awaits::OpenAwait;
use crate::turn::budget::Spent;

/// The version that this code writes, and the only one that it reads.
pub const CHECKPOINT_VERSION: u16 = 2;
/// Largest encoded checkpoint, in bytes (1 MiB).
pub const CHECKPOINT_MAX_BYTES: usize = 1024 * 1024;

/// A running turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningTurn {
    /// Which.
    pub turn: Seq,
    /// Who runs it, as its start says.
    pub agent: AgentName,
    /// By when it has to end.
    pub deadline: Timestamp,
    /// What it waits for.
    pub awaiting: Option<OpenAwait>,
    /// What its journal says that it has used.
    pub spent: Spent,
    /// The last record of its journal, its start included.
    pub progress_seq: Seq,
    /// The epoch of that record.
    pub progress_epoch: Epoch,
    /// Owners that ran it since then and went away.
    pub lost_owners: u32,
    /// The last epoch in which it was run.
    pub run_epoch: Option<Epoch>,
    /// How often it was run in that.
    pub runs: u32,
}

/// The folded state at a seq.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnCheckpoint {
    /// [`CHECKPOINT_VERSION`].
    pub version: u16,
    /// The last record that is folded into it.
    pub at_seq: Seq,
    /// Inputs without a turn, ascending.
    pub queued: Vec<Seq>,
    /// The turn that has started and not ended.
    pub running: Option<RunningTurn>,
    /// The last turn that ended and may be run again.
    pub last: Option<Seq>,
    /// The last turn that ran another one again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced: Option<Replacement>,
}

/// A turn that is run again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replacement {
    /// By this one.
    pub by: Seq,
    /// Which.
    pub of: Seq,
}

/// Why a checkpoint cannot be used. Everything in it is in the log as well: fold the log from its beginning instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCheckpoint {
    /// Written by another version.
    #[error("turn checkpoint: version {0} is not {CHECKPOINT_VERSION}")]
    Version(u16),
    /// Larger than allowed.
    #[error("turn checkpoint: is {0} bytes long; at most {CHECKPOINT_MAX_BYTES} are allowed")]
    TooLarge(usize),
    /// Not what [`TurnCheckpoint::encode`] writes.
    #[error("turn checkpoint: {0}")]
    Malformed(String),
}

impl TurnCheckpoint {
    /// The bytes for the store.
    ///
    /// # Errors
    /// [`InvalidCheckpoint::TooLarge`]; a queue within [`crate::turn::QUEUE_MAX_INPUTS`] never is.
    pub fn encode(&self) -> Result<Vec<u8>, InvalidCheckpoint> {
        let bytes = serde_json::to_vec(self).map_err(|error| InvalidCheckpoint::Malformed(error.to_string()))?;
        if bytes.len() > CHECKPOINT_MAX_BYTES {
            return Err(InvalidCheckpoint::TooLarge(bytes.len()));
        }
        Ok(bytes)
    }

    /// From the store's bytes.
    ///
    /// # Errors
    /// As [`InvalidCheckpoint`] lists.
    pub fn decode(bytes: &[u8]) -> Result<Self, InvalidCheckpoint> {
        #[derive(Deserialize)]
        struct Version {
            version: u16,
        }
        if bytes.len() > CHECKPOINT_MAX_BYTES {
            return Err(InvalidCheckpoint::TooLarge(bytes.len()));
        }
        let malformed = |error: serde_json::Error| InvalidCheckpoint::Malformed(error.to_string());
        // The version is read first: another version may have other fields.
        let Version { version } = serde_json::from_slice(bytes).map_err(malformed)?;
        if version != CHECKPOINT_VERSION {
            return Err(InvalidCheckpoint::Version(version));
        }
        let checkpoint: Self = serde_json::from_slice(bytes).map_err(malformed)?;
        checkpoint.check()?;
        Ok(checkpoint)
    }

    fn check(&self) -> Result<(), InvalidCheckpoint> {
        if !self.queued.is_sorted_by(|a, b| a < b) {
            return Err(InvalidCheckpoint::Malformed("queued: does not ascend".to_owned()));
        }
        let running = self.running.as_ref().map(|running| &running.progress_seq);
        let known = self.queued.iter().chain(running).chain(&self.last);
        match known.max() {
            Some(&seq) if seq > self.at_seq => {
                Err(InvalidCheckpoint::Malformed(format!("record {seq} is above at_seq {}", self.at_seq)))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::turn::awaits::AwaitId;
    use crate::turn::{QUEUE_MAX_INPUTS, StepId};

    fn running() -> RunningTurn {
        let step: StepId = "x".repeat(90).parse().expect("valid");
        RunningTurn {
            turn: Seq(1),
            agent: "demo".parse().expect("valid"),
            deadline: crate::turn::machine::NO_DEADLINE,
            awaiting: Some(OpenAwait { id: AwaitId::of(Seq(1), &step), step, expires_at: Timestamp(9) }),
            spent: Spent { steps: 3, bytes: 4, tokens: 5 },
            progress_seq: Seq(2),
            progress_epoch: Epoch(3),
            lost_owners: 4,
            run_epoch: Some(Epoch(3)),
            runs: 2,
        }
    }

    #[test]
    fn it_goes_there_and_back_and_is_small_at_its_largest() {
        let first = u64::MAX - QUEUE_MAX_INPUTS as u64;
        let checkpoint = TurnCheckpoint {
            version: CHECKPOINT_VERSION,
            at_seq: Seq(u64::MAX),
            queued: (first..u64::MAX).map(Seq).collect(),
            running: Some(running()),
            last: Some(Seq(2)),
            replaced: Some(Replacement { by: Seq(3), of: Seq(1) }),
        };
        let bytes = checkpoint.encode().expect("small");
        assert!(bytes.len() < 32 * 1024, "{} bytes", bytes.len());
        assert!(TurnCheckpoint::decode(&bytes) == Ok(checkpoint), "it comes back as it was");
    }

    #[test]
    fn what_it_cannot_read_is_named() {
        let refused = |text: &str| TurnCheckpoint::decode(text.as_bytes()).expect_err("must be refused").to_string();
        assert_eq!(refused(r#"{"version":1,"other":true}"#), "turn checkpoint: version 1 is not 2");
        assert!(refused("{").starts_with("turn checkpoint: EOF"));
        let text = r#"{"version":2,"at_seq":4,"queued":[3,3],"running":null,"last":null}"#;
        assert_eq!(refused(text), "turn checkpoint: queued: does not ascend");
        let text = r#"{"version":2,"at_seq":4,"queued":[3,5],"running":null,"last":null}"#;
        assert_eq!(refused(text), "turn checkpoint: record 5 is above at_seq 4");
        let huge = vec![b' '; CHECKPOINT_MAX_BYTES + 1];
        assert_eq!(TurnCheckpoint::decode(&huge), Err(InvalidCheckpoint::TooLarge(CHECKPOINT_MAX_BYTES + 1)));
    }
}
