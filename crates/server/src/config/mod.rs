//! The configuration: one typed [`Config`], merged from defaults, a TOML file, `CONCH_…` variables and flags, in rising
//! order of precedence.
//!
//! Invariant: a `Config` that [`Config::load`] returns is complete and checked: every number is in its range, the ratios
//! hold, and nothing that was written was ignored. A secret in it is never shown.

pub mod agents;
pub mod field;
mod layers;
mod parts;
mod reference;
mod sections;
mod values;

use std::path::Path;

pub use crate::auth::secret::{HIDDEN, Secret};
pub use agents::{Agent, Agents};
pub use layers::{ConfigError, FILE_MAX_BYTES, Flags, Source};
pub use reference::reference;
pub use sections::{
    Ai, Auth, Config, Fanout, Hibernation, LeaseConfig, Limits, LinkConfig, Log, Rate, Sequencer, fields,
};
pub use values::{AdvertiseUrl, AgentKind, LeasesUrl, LinkAddr, LogFormat, LogLevel, StoreUrl};

use crate::agents::Callbacks;
use crate::auth::secret::SECRET_MIN_BYTES;
use field::Allowed;
use layers::Layers;

/// Addresses that a console goes through.
const CLIENT_URLS_MAX: usize = 16;

impl Config {
    /// Merges the sources and checks the result.
    ///
    /// # Errors
    /// Names the setting, where it was set and what is allowed; all of them, where several are unknown or out of range.
    pub fn load(file: Option<&Path>, env: &dyn Fn(&str) -> Option<String>, flags: Flags) -> Result<Self, ConfigError> {
        let mut layers = Layers::default();
        if let Some(path) = file {
            layers::read_file(path, &mut layers)?;
        }
        layers::read_environment(env, &mut layers);
        layers::read_flags(flags, &mut layers);
        let tree = toml::Value::Table(layers.into_tree()?);
        // Each value was checked by itself; what can still be wrong is a name inside a key.
        let mut config: Self =
            tree.try_into().map_err(|error| ConfigError::Ratio(error.message().trim().to_owned()))?;
        config.agents.complete(env)?;
        config.check()?;
        Ok(config)
    }

    /// Checks every range and ratio.
    ///
    /// # Errors
    /// Names the setting and what is allowed.
    pub fn check(&self) -> Result<(), ConfigError> {
        for (key, field, number) in self.all_numbers() {
            if let Allowed::Range(least, most) = field.allowed
                && !(least..=most).contains(&number)
            {
                return Err(layers::bad_value(&key, field, format!("is {number}"), Source::Default));
            }
        }
        self.lease.timing().check().map_err(ConfigError::Ratio)?;
        for (small, small_name, large, large_name) in self.ratios() {
            if small > large {
                return Err(ConfigError::Ratio(format!(
                    "{large_name} ({large}) must be at least {small_name} ({small})"
                )));
            }
        }
        if self.listen == self.ops_listen && self.listen.port() != 0 {
            return Err(ConfigError::Ratio(format!("listen and ops_listen must differ; both are {}", self.listen)));
        }
        self.check_client_urls()?;
        self.check_agents()?;
        self.check_auth()?;
        self.check_leases()?;
        self.check_link()
    }

    fn check_client_urls(&self) -> Result<(), ConfigError> {
        let refused = |why: String| Err(ConfigError::Ratio(why));
        if self.client_urls.len() > CLIENT_URLS_MAX {
            return refused(format!(
                "client_urls has {} entries; at most {CLIENT_URLS_MAX} are allowed",
                self.client_urls.len()
            ));
        }
        match self.client_urls.iter().find(|url| !matches!(url.scheme(), "http" | "https")) {
            Some(other) => refused(format!("client_urls: {other} is not an http:// or https:// URL")),
            None => Ok(()),
        }
    }

    fn check_agents(&self) -> Result<(), ConfigError> {
        for (name, agent) in &self.agents.0 {
            agent.check_kind(name)?;
            if agent.kind == AgentKind::Http && self.advertise_url.is_none() && self.listen.ip().is_unspecified() {
                return Err(ConfigError::Ratio(format!(
                    "agents.{name} is of kind http, and listen is {}, which workers cannot call: set advertise_url",
                    self.listen
                )));
            }
        }
        let nowhere = Callbacks::new(&Secret::new([0; 32]), String::new());
        self.agents(&nowhere).map(drop).map_err(|error| ConfigError::Ratio(error.to_string()))
    }

    fn check_leases(&self) -> Result<(), ConfigError> {
        match (&self.leases, &self.store) {
            (LeasesUrl::Etcd(_), StoreUrl::Sqlite(_)) => Err(ConfigError::Ratio(
                "leases is an etcd:// URL, which needs a postgres:// store; store is sqlite:DIR".to_owned(),
            )),
            _ => Ok(()),
        }
    }

    fn check_link(&self) -> Result<(), ConfigError> {
        let refused = |why: String| Err(ConfigError::Ratio(why));
        for (name, other) in [("listen", self.listen), ("ops_listen", self.ops_listen)] {
            if self.link_listen == Some(other) && other.port() != 0 {
                return refused(format!("{name} and link_listen must differ; both are {other}"));
            }
        }
        match (self.link_listen, &self.link_advertise) {
            (None, Some(_)) => return refused("link_advertise is set without link_listen".to_owned()),
            (Some(addr), None) if addr.ip().is_unspecified() => {
                return refused(format!("link_listen is {addr}, which other nodes cannot dial: set link_advertise"));
            }
            (_, Some(advertised)) if advertised.is_unspecified() => {
                return refused(format!("link_advertise is {advertised}, at which other nodes would dial themselves"));
            }
            _ => {}
        }
        if let Some(secret) = &self.link.secret
            && secret.expose().len() < SECRET_MIN_BYTES
        {
            let bytes = secret.expose().len();
            return refused(format!("link.secret is {bytes} bytes long; at least {SECRET_MIN_BYTES} are needed"));
        }
        let files = [&self.link.tls_cert, &self.link.tls_key, &self.link.tls_ca];
        match files.iter().filter(|file| file.is_some()).count() {
            0 | 3 => Ok(()),
            _ => refused("link.tls_cert, link.tls_key and link.tls_ca must be set together".to_owned()),
        }
    }

    /// Pairs of which the first must not be larger than the second.
    fn ratios(&self) -> Vec<(u64, &'static str, u64, &'static str)> {
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let limits = &self.limits;
        let message = count(limits.message_bytes);
        vec![
            (2 * message, "2 × limits.message_bytes", count(limits.frame_bytes), "limits.frame_bytes"),
            (2 * message, "2 × limits.message_bytes", count(limits.outbox_bytes), "limits.outbox_bytes"),
            (message, "limits.message_bytes", count(limits.owner_queue_bytes), "limits.owner_queue_bytes"),
            (message, "limits.message_bytes", count(limits.append_bytes), "limits.append_bytes"),
            (2 * count(limits.frame_bytes), "2 × limits.frame_bytes", count(self.link.frame_bytes), "link.frame_bytes"),
            (limits.route_ms, "limits.route_ms", limits.request_timeout_ms, "limits.request_timeout_ms"),
            (limits.join_wait_ms, "limits.join_wait_ms", limits.request_timeout_ms, "limits.request_timeout_ms"),
            (count(limits.commit_batches), "limits.commit_batches", count(limits.commit_queue), "limits.commit_queue"),
            (
                count(limits.history_default),
                "limits.history_default",
                count(limits.history_limit),
                "limits.history_limit",
            ),
            (
                self.hibernation.memory_ms,
                "hibernation.memory_ms",
                self.hibernation.release_ms,
                "hibernation.release_ms",
            ),
            (self.sequencer.block, "sequencer.block", self.sequencer.gap, "sequencer.gap"),
        ]
    }

    fn check_auth(&self) -> Result<(), ConfigError> {
        if self.auth.secret.is_some() && self.auth.secret_file.is_some() {
            return Err(ConfigError::Ratio("auth.secret and auth.secret_file are both set; set one".to_owned()));
        }
        match &self.auth.secret {
            Some(secret) if secret.expose().len() < SECRET_MIN_BYTES => Err(ConfigError::Ratio(format!(
                "auth.secret is {} bytes long; at least {SECRET_MIN_BYTES} are needed",
                secret.expose().len()
            ))),
            _ => Ok(()),
        }
    }

    /// The whole configuration as TOML, secrets hidden.
    #[must_use]
    pub fn effective_toml(&self) -> String {
        toml::to_string_pretty(self).expect("every setting has a TOML form, as the tests show")
    }
}

#[cfg(test)]
mod tests;
