//! What a conversation is besides its log: its kind, title, agent, regions and settings.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

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
    /// It is refused with a conflict, and is not in the log.
    Reject,
    /// The running turn is cancelled, keeping what it did, and this one starts.
    Interrupt,
    /// It joins the running turn at its next step.
    Steer,
    /// It waits, and those that wait become one turn once nothing has come for a while.
    Merge,
}

/// How long nothing must have come before what waits becomes one turn, in milliseconds, unless the settings say otherwise.
pub const MERGE_MS_DEFAULT: u16 = 1000;
/// Longest such time, in milliseconds.
pub const MERGE_MS_MAX: u16 = 10_000;

/// A conversation's settings; unknown ones are refused by name.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The window in which the frames of a crowded conversation gather, in milliseconds, 0 to 1,000.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub coalesce_ms: Option<u16>,
    /// How far the window may grow under pressure, in milliseconds, 0 to 1,000.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub coalesce_max_ms: Option<u16>,
    /// What happens to a message that arrives while a turn runs.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub second_message: Option<SecondMessage>,
    /// Under `merge`: how long nothing must have come before what waits becomes one turn, in milliseconds, 0 to 10,000.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub merge_ms: Option<u16>,
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
        if self.merge_ms.is_some_and(|ms| ms > MERGE_MS_MAX) {
            let problem = format!("must be 0 to {MERGE_MS_MAX} milliseconds");
            return Err(InvalidId { field: "settings.merge_ms", problem });
        }
        if self.merge_ms.is_some() && self.second_message != Some(SecondMessage::Merge) {
            let problem = "goes with settings.second_message = \"merge\" only".to_owned();
            return Err(InvalidId { field: "settings.merge_ms", problem });
        }
        Ok(())
    }

    /// What happens to a message that arrives while a turn runs.
    #[must_use]
    pub fn second_message(&self) -> SecondMessage {
        self.second_message.unwrap_or_default()
    }

    /// How long nothing must have come before what waits becomes one turn.
    #[must_use]
    pub fn merge_time(&self) -> Duration {
        Duration::from_millis(self.merge_ms.unwrap_or(MERGE_MS_DEFAULT).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        match serde_json::from_str::<Settings>(text) {
            Ok(settings) => settings.check().expect_err("must be refused").to_string(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn settings_are_checked_and_named() {
        for policy in ["queue", "reject", "interrupt", "steer", "merge"] {
            let settings: Settings =
                serde_json::from_str(&format!(r#"{{"second_message":"{policy}"}}"#)).expect("valid");
            assert_eq!(settings.check(), Ok(()));
        }
        assert!(refused(r#"{"second_message":"drop"}"#).contains("unknown variant `drop`"));
        assert_eq!(
            refused(r#"{"second_message":"merge","merge_ms":10001}"#),
            "settings.merge_ms: must be 0 to 10000 milliseconds"
        );
        assert_eq!(
            refused(r#"{"second_message":"queue","merge_ms":10}"#),
            "settings.merge_ms: goes with settings.second_message = \"merge\" only"
        );
        assert_eq!(refused(r#"{"coalesce_ms":1001}"#), "settings.coalesce_ms: must be 0 to 1000 milliseconds");
        let settings: Settings = serde_json::from_str(r#"{"second_message":"merge","merge_ms":10}"#).expect("valid");
        assert_eq!((settings.check(), settings.merge_time()), (Ok(()), Duration::from_millis(10)));
    }
}
