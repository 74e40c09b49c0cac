//! What a conversation is besides its log: its kind, title, agent, regions and settings.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ids::InvalidId;

/// The kinds of conversation. The number is what the store keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ConversationKind {
    /// Any number of members.
    Channel = 1,
    /// Exactly two members.
    Direct = 2,
    /// Has an agent.
    Session = 3,
}

impl ConversationKind {
    /// The name on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Channel => "channel",
            Self::Direct => "direct",
            Self::Session => "session",
        }
    }

    /// The kind with this number in the store.
    #[must_use]
    pub fn from_number(number: i64) -> Option<Self> {
        [Self::Channel, Self::Direct, Self::Session].into_iter().find(|kind| *kind as i64 == number)
    }
}

impl fmt::Display for ConversationKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for ConversationKind {
    type Err = InvalidId;
    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let all = [Self::Channel, Self::Direct, Self::Session];
        let found = all.into_iter().find(|kind| kind.as_str() == text);
        found.ok_or_else(|| InvalidId { field: "kind", problem: format!("{text:?} is not channel, direct or session") })
    }
}

/// Longest title, in bytes.
pub const TITLE_MAX_BYTES: usize = 256;

/// What happens to a message that arrives while a turn runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SecondMessage {
    /// It waits and starts a turn of its own afterwards.
    #[default]
    Queue,
}

/// A conversation's settings; unknown ones are refused by name.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Coalescing window in milliseconds, 0 to 1,000. Kept and shown; takes effect with the fan-out to large conversations,
    /// which is not built yet.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub coalesce_ms: Option<u16>,
    /// How far the window may grow under pressure, in milliseconds, 0 to 1,000. Kept and shown; no effect yet.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub coalesce_max_ms: Option<u16>,
    /// What happens to a message that arrives while a turn runs.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub second_message: Option<SecondMessage>,
}

impl Settings {
    /// Checks the ranges.
    ///
    /// # Errors
    /// Names the setting and its range.
    pub fn check(&self) -> Result<(), InvalidId> {
        for (field, value) in
            [("settings.coalesce_ms", self.coalesce_ms), ("settings.coalesce_max_ms", self.coalesce_max_ms)]
        {
            if value.is_some_and(|ms| ms > 1000) {
                return Err(InvalidId { field, problem: "must be 0 to 1000 milliseconds".to_owned() });
            }
        }
        Ok(())
    }
}
