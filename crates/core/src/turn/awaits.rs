//! What a turn waits for: a person's approval, a webhook's answer.
//!
//! Invariant: an await's id follows from its turn and step alone, so that whoever runs the turn again finds it, and no
//! turn can open one of another.
//!
//! Deliberately absent: whether a payload fits the schema. That needs a library, and the shell checks it before it asks the owner.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::ids::{InvalidId, Seq};
use crate::time::Timestamp;
use crate::turn::StepId;

/// How long an await stays open unless its agent says otherwise.
pub const AWAIT_DEFAULT: Duration = Duration::from_secs(24 * 60 * 60);
/// Longest time that an agent may ask for (30 days); the turn's deadline may come before.
pub const AWAIT_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// An await's name within its conversation: `TURN-STEP`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AwaitId {
    turn: Seq,
    text: Arc<str>,
}

impl AwaitId {
    /// The await of a turn's step.
    #[must_use]
    pub fn of(turn: Seq, step: &StepId) -> Self {
        Self { turn, text: format!("{turn}-{step}").into() }
    }

    /// The turn that waits.
    #[must_use]
    pub fn turn(&self) -> Seq {
        self.turn
    }

    /// The name of the step that waits.
    #[must_use]
    pub fn step(&self) -> &str {
        self.text.split_once('-').map_or("", |(_, step)| step)
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl FromStr for AwaitId {
    type Err = InvalidId;
    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let refused = || InvalidId { field: "await", problem: "must be a turn, a hyphen and a step".to_owned() };
        let (turn, step) = text.split_once('-').ok_or_else(refused)?;
        let turn: u64 = turn.parse().map_err(|_| refused())?;
        let step: StepId = step.parse()?;
        let id = Self::of(Seq(turn), &step);
        // One text for each: no leading zeros, no sign.
        if id.as_str() == text { Ok(id) } else { Err(refused()) }
    }
}

impl fmt::Display for AwaitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for AwaitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for AwaitId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for AwaitId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// An await that is not resolved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenAwait {
    /// Its name.
    pub id: AwaitId,
    /// The step that waits.
    pub step: StepId,
    /// When it resolves by itself.
    pub expires_at: Timestamp,
}

/// What came of an await.
#[derive(Debug, Clone, PartialEq)]
pub enum Resolution {
    /// Somebody answered.
    Payload(Value),
    /// Nobody did in time.
    Expired,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_names_its_turn_and_has_one_text() {
        let id: AwaitId = "7-m1.t0".parse().expect("valid");
        assert_eq!(id, AwaitId::of(Seq(7), &StepId::tool(1, 0)));
        assert_eq!(id.turn(), Seq(7));
        let dashes: AwaitId = "12-ask-a-person".parse().expect("valid");
        assert_eq!((dashes.turn(), dashes.step()), (Seq(12), "ask-a-person"));
        for bad in ["", "7", "-m1", "x-m1", "07-m1", "+7-m1", "7-"] {
            assert!(bad.parse::<AwaitId>().is_err(), "{bad}");
        }
    }
}
