//! The types of settings that are more than a number or a name.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::field::Setting;
use crate::auth::origin::AllowedOrigin;
use crate::auth::secret::Secret;

impl Setting for conch_core::ids::NodeName {}
impl Setting for conch_core::ids::Region {}
impl Setting for std::net::SocketAddr {}
impl Setting for PathBuf {}
impl Setting for StoreUrl {}
impl Setting for Secret {}
impl Setting for AllowedOrigin {}
impl Setting for LogFormat {}
impl Setting for LogLevel {}
impl Setting for AgentKind {}

/// Where the records are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// An embedded database in this directory, for one node.
    Sqlite(PathBuf),
}

impl FromStr for StoreUrl {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let scheme = text.split(':').next().unwrap_or_default();
        match text.strip_prefix("sqlite:") {
            Some("") => Err("sqlite: needs a directory, such as sqlite:./conch-data".to_owned()),
            Some(directory) if directory.contains('\0') => Err("a directory's name has no NUL byte".to_owned()),
            Some(directory) => Ok(Self::Sqlite(directory.into())),
            None if matches!(scheme, "postgres" | "postgresql") => {
                Err("a postgres:// store is not built yet; use sqlite:DIR".to_owned())
            }
            // The text itself is not repeated: a URL may hold a password.
            None => Err("must be sqlite:DIR, such as sqlite:./conch-data".to_owned()),
        }
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(directory) => write!(f, "sqlite:{}", directory.display()),
        }
    }
}

impl Serialize for StoreUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for StoreUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// The least severe log lines that are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Failures that need a person.
    Error,
    /// What is unusual.
    Warn,
    /// What happens rarely: start, stop, a change of owner.
    Info,
    /// For developers.
    Debug,
    /// Everything.
    Trace,
}

impl LogLevel {
    /// The name, as `tracing` filters take it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

/// What answers in a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AgentKind {
    /// The built-in agent that needs no model.
    Demo,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_are_named_by_url() {
        assert_eq!("sqlite:/var/lib/conch".parse(), Ok(StoreUrl::Sqlite("/var/lib/conch".into())));
        let refused = |text: &str| text.parse::<StoreUrl>().expect_err("must be refused");
        assert!(refused("postgres://u:hush@h/db").contains("not built yet"));
        assert!(refused("postgresql://h/db").contains("not built yet"));
        assert!(refused("sqlite:").contains("needs a directory"));
        for text in ["", "mysql://u:hush@h", "./conch-data"] {
            assert!(refused(text).contains("must be sqlite:DIR"), "{text}");
            assert!(!refused(text).contains("hush"), "{text}");
        }
    }
}
