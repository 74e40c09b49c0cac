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

/// Longest step id, in bytes. Together with a turn's digits and the slash it fits a client message id.
pub const STEP_ID_MAX_BYTES: usize = 100;

/// A step's name within its turn: 1 to 100 printable ASCII characters, without a slash.
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
    }

    #[test]
    fn bad_names_are_refused_with_the_limit() {
        let refused = |text: &str| text.parse::<StepId>().expect_err("must be refused").to_string();
        assert_eq!(refused(""), "step: is 0 bytes long; 1 to 100 are allowed");
        assert_eq!(refused(&"x".repeat(101)), "step: is 101 bytes long; 1 to 100 are allowed");
        assert_eq!(refused("a/b"), "step: may hold only printable ASCII without a slash");
        assert_eq!(refused("é"), "step: may hold only printable ASCII without a slash");
        assert!("charge card 2".parse::<StepId>().is_ok());
    }
}
