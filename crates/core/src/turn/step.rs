//! The identity of a step within its turn.
//!
//! Invariant: a step's identity follows from its place in the turn alone, so that another owner that runs the same turn
//! arrives at the same names. `m<n>` is the turn's n-th model call, `m<n>.t<index>` a tool call that it asked for:
//! providers repeat their own ids or leave them out.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::ids::InvalidId;

/// Longest step id, in bytes. Together with a turn's digits, a slash and the number of an attempt it fits a client message id.
pub const STEP_ID_MAX_BYTES: usize = 96;
/// Longest name of an agent's own step, in bytes: its occurrence and attempts are written behind it.
pub const OWN_NAME_MAX_BYTES: usize = 80;

/// A step's name within its turn: 1 to 96 printable ASCII characters, without a slash.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StepId(Arc<str>);

impl StepId {
    /// The turn's `call`-th model call, counted from 1.
    #[must_use]
    pub fn model(call: u32) -> Self {
        Self(format!("m{call}").into())
    }

    /// The tool call at `index` (from 0) of those that the turn's `call`-th model call asked for.
    #[must_use]
    pub fn tool(call: u32, index: u32) -> Self {
        Self(format!("m{call}.t{index}").into())
    }

    /// The tool call at `index` of those that this model call asked for.
    #[must_use]
    pub fn call(&self, index: u32) -> Self {
        Self(format!("{self}.t{index}").into())
    }

    /// An agent's own step: its name, and which of that name it is, counted from 1.
    ///
    /// # Errors
    /// As parsing; a name that ends like an occurrence or an attempt (`#2`, `~2`) is refused.
    pub fn own(name: &str, occurrence: u32) -> Result<Self, InvalidId> {
        if name.contains(['#', '~']) {
            return Err(InvalidId { field: "step", problem: "may not hold # or ~".to_owned() });
        }
        if name.len() > OWN_NAME_MAX_BYTES {
            let problem = format!("is {} bytes long; 1 to {OWN_NAME_MAX_BYTES} are allowed", name.len());
            return Err(InvalidId { field: "step", problem });
        }
        if occurrence <= 1 { name.parse() } else { format!("{name}#{occurrence}").parse() }
    }

    /// The step's `number`-th call, counted from 1; the first has the step's own name.
    #[must_use]
    pub fn attempt(&self, number: u32) -> Self {
        if number <= 1 { self.clone() } else { Self(format!("{self}~{number}").into()) }
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for StepId {
    type Err = InvalidId;
    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let refused = |problem: String| Err(InvalidId { field: "step", problem });
        if text.is_empty() || text.len() > STEP_ID_MAX_BYTES {
            return refused(format!("is {} bytes long; 1 to {STEP_ID_MAX_BYTES} are allowed", text.len()));
        }
        if !text.bytes().all(|c| (0x20..0x7f).contains(&c) && c != b'/') {
            return refused("may hold only printable ASCII without a slash".to_owned());
        }
        Ok(Self(text.into()))
    }
}

impl fmt::Display for StepId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for StepId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for StepId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for StepId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_from_the_place() {
        assert_eq!(StepId::model(2).as_str(), "m2");
        assert_eq!(StepId::tool(2, 0).as_str(), "m2.t0");
        assert_eq!(StepId::tool(2, 0).attempt(1).as_str(), "m2.t0");
        assert_eq!(StepId::tool(2, 0).attempt(3).as_str(), "m2.t0~3");
        assert_eq!(StepId::own("charge", 1).map(|id| id.to_string()).as_deref(), Ok("charge"));
        assert_eq!(StepId::own("charge", 2).map(|id| id.to_string()).as_deref(), Ok("charge#2"));
        assert!(StepId::own("charge#2", 1).is_err(), "it would be the second charge");
    }

    #[test]
    fn bad_names_are_refused_with_the_limit() {
        let refused = |text: &str| text.parse::<StepId>().expect_err("must be refused").to_string();
        assert_eq!(refused(""), "step: is 0 bytes long; 1 to 96 are allowed");
        assert_eq!(refused(&"x".repeat(97)), "step: is 97 bytes long; 1 to 96 are allowed");
        assert_eq!(refused("a/b"), "step: may hold only printable ASCII without a slash");
        assert_eq!(refused("é"), "step: may hold only printable ASCII without a slash");
        assert!("charge card 2".parse::<StepId>().is_ok());
    }
}
