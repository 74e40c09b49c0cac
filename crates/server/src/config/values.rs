//! The types of settings that are more than a number or a name.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::field::Setting;
use crate::auth::origin::{AllowedOrigin, Origin};
use crate::auth::secret::Secret;

impl Setting for conch_core::ids::AgentName {}
impl Setting for conch_core::ids::NodeName {}
impl Setting for conch_core::ids::Region {}
impl Setting for std::net::SocketAddr {}
impl Setting for PathBuf {}
impl Setting for StoreUrl {}
impl Setting for LeasesUrl {}
impl Setting for Secret {}
impl Setting for AllowedOrigin {}
impl Setting for Origin {}
impl Setting for LinkAddr {}
impl Setting for AdvertiseUrl {}
impl Setting for LogFormat {}
impl Setting for LogLevel {}
impl Setting for AgentKind {}

/// Where the records are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// An embedded database in this directory, for one node.
    Sqlite(PathBuf),
    /// A PostgreSQL database, for any number of nodes.
    Postgres(PostgresUrl),
}

/// The URL of a PostgreSQL database, which may hold a password. Its parts are checked where it is opened.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresUrl(String);

impl PostgresUrl {
    /// The URL as it was given.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PostgresUrl {
    /// Everything but the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, rest) = self.0.split_once("://").unwrap_or(("postgres", &self.0));
        let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
        let (user, place) = rest.rsplit_once('@').map_or((None, rest), |(user, place)| (Some(user), place));
        write!(f, "{scheme}://")?;
        if let Some(user) = user {
            let name = user.split(':').next().unwrap_or_default();
            let hidden = if user.contains(':') { ":***" } else { "" };
            write!(f, "{name}{hidden}@")?;
        }
        f.write_str(place)?;
        let parameters = query.into_iter().flat_map(|query| query.split('&'));
        for (index, parameter) in parameters.enumerate() {
            let shown = if parameter.starts_with("password=") { "password=***" } else { parameter };
            write!(f, "{}{shown}", if index == 0 { '?' } else { '&' })?;
        }
        Ok(())
    }
}

impl fmt::Debug for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for StoreUrl {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let scheme = text.split(':').next().unwrap_or_default();
        match text.strip_prefix("sqlite:") {
            Some("") => Err("sqlite: needs a directory, such as sqlite:./conch-data".to_owned()),
            Some(directory) if directory.contains('\0') => Err("a directory's name has no NUL byte".to_owned()),
            Some(directory) => Ok(Self::Sqlite(directory.into())),
            None if text.starts_with("postgres://") || text.starts_with("postgresql://") => {
                Ok(Self::Postgres(PostgresUrl(text.to_owned())))
            }
            None if matches!(scheme, "postgres" | "postgresql") => {
                Err("must be postgres://USER@HOST/DATABASE".to_owned())
            }
            // The text itself is not repeated: a URL may hold a password.
            None => Err("must be sqlite:DIR, such as sqlite:./conch-data, or postgres://USER@HOST/DATABASE".to_owned()),
        }
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(directory) => write!(f, "sqlite:{}", directory.display()),
            Self::Postgres(url) => url.fmt(f),
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

/// Where the ownership leases are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum LeasesUrl {
    /// Beside the records.
    #[default]
    Postgres,
    /// In this etcd cluster, `etcd://HOST:PORT,…`; its parts are checked.
    Etcd(String),
}

impl FromStr for LeasesUrl {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "postgres" {
            return Ok(Self::Postgres);
        }
        if !text.starts_with("etcd:") {
            return Err("must be postgres, or etcd://HOST:PORT,HOST:PORT,HOST:PORT".to_owned());
        }
        conch_store::etcd::check_url(text).map(|()| Self::Etcd(text.to_owned()))
    }
}

impl fmt::Display for LeasesUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Postgres => f.write_str("postgres"),
            Self::Etcd(url) => f.write_str(url),
        }
    }
}

impl Serialize for LeasesUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for LeasesUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Longest advertised address, in bytes.
const LINK_ADDR_MAX_BYTES: usize = 255;

/// Where other nodes reach this one: a host name or address, and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkAddr(String);

impl FromStr for LinkAddr {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || Err("must be HOST:PORT, such as node-1.internal:4002".to_owned());
        let Some((host, port)) = text.rsplit_once(':') else { return refused() };
        let named =
            !host.is_empty() && host.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'-' | b'_'));
        let address = host.starts_with('[') && text.parse::<std::net::SocketAddrV6>().is_ok();
        let port = port.parse::<u16>().is_ok_and(|port| port != 0);
        if text.len() > LINK_ADDR_MAX_BYTES || !(named || address) || !port {
            return refused();
        }
        Ok(Self(text.to_owned()))
    }
}

impl LinkAddr {
    /// True for the address of no host in particular, at which every process would dial itself.
    #[must_use]
    pub fn is_unspecified(&self) -> bool {
        self.0.parse::<std::net::SocketAddr>().is_ok_and(|addr| addr.ip().to_canonical().is_unspecified())
    }
}

impl fmt::Display for LinkAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for LinkAddr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for LinkAddr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Where the public listener is reached: scheme, host and port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdvertiseUrl(String);

impl AdvertiseUrl {
    /// The URL, without a slash at its end.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for AdvertiseUrl {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || "must be http(s)://HOST[:PORT], such as https://conch.example".to_owned();
        let url: reqwest::Url = text.parse().map_err(|_| refused())?;
        let whole = url.host_str().is_some() && url.path() == "/" && url.query().is_none() && url.fragment().is_none();
        let plain = url.username().is_empty() && url.password().is_none();
        if !whole || !plain || !matches!(url.scheme(), "http" | "https") {
            return Err(refused());
        }
        Ok(Self(url.as_str().trim_end_matches('/').to_owned()))
    }
}

impl Serialize for AdvertiseUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for AdvertiseUrl {
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
    /// A model with an OpenAI-compatible API.
    Openai,
    /// A worker over HTTP.
    Http,
}

impl AgentKind {
    /// The name, as the file has it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Demo => "demo",
            Self::Openai => "openai",
            Self::Http => "http",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advertised_addresses_have_a_host_and_a_port() {
        for text in ["node-1.internal:4002", "10.0.0.7:1", "[fd00::7]:4002", "a_b:65535"] {
            assert_eq!(text.parse::<LinkAddr>().map(|addr| addr.to_string()).as_deref(), Ok(text));
        }
        for text in
            ["", "node", ":4002", "node:", "node:0", "node:65536", "fd00::7:4002", "[fd00::7:1", "a b:1", "h/x:1"]
        {
            assert!(text.parse::<LinkAddr>().is_err(), "{text}");
        }
        assert!(format!("{}:1", "h".repeat(254)).parse::<LinkAddr>().is_err());
    }

    #[test]
    fn an_advertised_url_is_a_scheme_a_host_and_a_port() {
        for (text, kept) in [
            ("https://conch.example", "https://conch.example"),
            ("http://10.0.0.7:4000/", "http://10.0.0.7:4000"),
            ("http://[fd00::7]:4000", "http://[fd00::7]:4000"),
        ] {
            assert_eq!(text.parse::<AdvertiseUrl>().map(|url| url.0).as_deref(), Ok(kept));
        }
        for text in ["", "conch.example", "ws://h", "http://h/path", "http://h?x=1", "http://u:p@h", "http://"] {
            assert!(text.parse::<AdvertiseUrl>().is_err(), "{text}");
        }
    }

    #[test]
    fn stores_are_named_by_url() {
        assert_eq!("sqlite:/var/lib/conch".parse(), Ok(StoreUrl::Sqlite("/var/lib/conch".into())));
        let refused = |text: &str| text.parse::<StoreUrl>().expect_err("must be refused");
        for text in ["postgres:/h/d", "postgres:", "postgresql"] {
            assert!(refused(text).contains("must be postgres://USER@HOST/DATABASE"), "{text}");
        }
        assert!(refused("sqlite:").contains("needs a directory"));
        for text in ["", "mysql://u:hush@h", "./conch-data"] {
            assert!(refused(text).contains("must be sqlite:DIR"), "{text}");
            assert!(!refused(text).contains("hush"), "{text}");
        }
    }

    #[test]
    fn a_database_is_shown_without_its_password() {
        for (text, shown) in [
            ("postgres://h/d", "postgres://h/d"),
            ("postgresql://u@h:1,i:2/d", "postgresql://u@h:1,i:2/d"),
            ("postgres://u:hush@h/d?sslmode=require", "postgres://u:***@h/d?sslmode=require"),
            ("postgres://u:hu@sh@h/d", "postgres://u:***@h/d"),
            ("postgres:///d?host=/tmp&password=hush&user=u", "postgres:///d?host=/tmp&password=***&user=u"),
        ] {
            let url: StoreUrl = text.parse().expect("a URL");
            assert_eq!(url.to_string(), shown);
            assert!(!format!("{url:?}").contains("hush"));
        }
    }
}
