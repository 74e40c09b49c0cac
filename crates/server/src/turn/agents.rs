//! The agents of this node: the configuration's `[agents]` table, checked, and the demo agent that always exists.
//!
//! Invariant: an agent comes from the operator's configuration, never from a client; a client only names one.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use conch_core::ids::AgentName;
use conch_core::turn::budget::TURN_TIME_DEFAULT;
use conch_core::turn::demo::DEFAULT_PACE;
use serde::{Deserialize, Serialize};

use super::agent::TurnAgent;
use super::demo::Demo;

/// The name of the agent that always exists.
pub const DEMO: &str = "demo";
/// Most agents in the configuration.
pub const AGENTS_MAX: usize = 1000;
/// The range of `pace_ms`, in milliseconds.
const PACE_MS: std::ops::RangeInclusive<u16> = 20..=2000;

/// One entry of the `[agents]` table: `[agents.NAME]` with its `kind`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum AgentConfig {
    /// A scripted agent that needs no key and no network.
    Demo {
        /// Time between two words, in milliseconds: 20 to 2000; by default 120, which makes a turn of about ten seconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pace_ms: Option<u16>,
    },
}

/// Why the `[agents]` table is refused; names the setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidAgents {
    /// A pace outside its range.
    #[error("agents.{name}.pace_ms: is {pace_ms}; must be {} to {} milliseconds", PACE_MS.start(), PACE_MS.end())]
    Pace {
        /// The agent.
        name: AgentName,
        /// What it has.
        pace_ms: u16,
    },
    /// A setting that cannot be used.
    #[error("agents.{name}.{problem}")]
    Setting {
        /// The agent.
        name: AgentName,
        /// The setting, and what is wrong.
        problem: String,
    },
    /// More agents than allowed.
    #[error("agents: has {0} entries; at most {AGENTS_MAX} are allowed")]
    TooMany(usize),
    /// A setting names an agent that is not there.
    #[error("{field}: there is no agent {name}")]
    NoSuch {
        /// The setting.
        field: &'static str,
        /// What it names.
        name: AgentName,
    },
}

/// What an agent's turns may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AgentLimits {
    /// Longest time of a turn, waiting included.
    pub turn_time: Duration,
    /// Most tokens of a turn's model calls; `None`: any number.
    pub tokens: Option<u64>,
}

impl Default for AgentLimits {
    fn default() -> Self {
        Self { turn_time: TURN_TIME_DEFAULT, tokens: None }
    }
}

/// An agent, ready to run.
#[derive(Clone)]
pub struct Agent {
    /// What its turns may use.
    pub limits: AgentLimits,
    /// What answers.
    pub work: Arc<dyn TurnAgent>,
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent").field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// Every agent of this node, by name.
#[derive(Debug, Clone)]
pub struct Agents(BTreeMap<AgentName, Agent>);

impl Agents {
    /// The agents of a configuration.
    ///
    /// # Errors
    /// As [`InvalidAgents`] lists.
    pub fn from_config(table: &BTreeMap<AgentName, (AgentConfig, AgentLimits)>) -> Result<Self, InvalidAgents> {
        if table.len() > AGENTS_MAX {
            return Err(InvalidAgents::TooMany(table.len()));
        }
        let mut agents = Self::default();
        for (name, (config, limits)) in table {
            let work = config.agent(name)?;
            agents.0.insert(name.clone(), Agent { limits: *limits, work });
        }
        Ok(agents)
    }

    /// With an agent of one's own, in place of one of that name.
    #[must_use]
    pub fn with(mut self, name: AgentName, limits: AgentLimits, work: Arc<dyn TurnAgent>) -> Self {
        self.0.insert(name, Agent { limits, work });
        self
    }

    /// What the turns of the agent of this name may use; the defaults if there is none.
    #[must_use]
    pub fn limits(&self, name: &AgentName) -> AgentLimits {
        self.get(name).map_or_else(AgentLimits::default, |agent| agent.limits)
    }

    /// The agent of this name.
    #[must_use]
    pub fn get(&self, name: &AgentName) -> Option<&Agent> {
        self.0.get(name)
    }

    /// Every name, ascending.
    pub fn names(&self) -> impl Iterator<Item = &AgentName> {
        self.0.keys()
    }
}

impl Default for Agents {
    /// The demo agent alone.
    fn default() -> Self {
        let name = DEMO.parse().expect("four letters are a name");
        let work = Arc::new(Demo { pace: DEFAULT_PACE });
        Self(BTreeMap::from([(name, Agent { limits: AgentLimits::default(), work })]))
    }
}

impl AgentConfig {
    fn agent(&self, name: &AgentName) -> Result<Arc<dyn TurnAgent>, InvalidAgents> {
        let pace = match self {
            Self::Demo { pace_ms: None } => DEFAULT_PACE,
            Self::Demo { pace_ms: Some(pace_ms) } if PACE_MS.contains(pace_ms) => {
                Duration::from_millis(u64::from(*pace_ms))
            }
            Self::Demo { pace_ms: Some(pace_ms) } => {
                return Err(InvalidAgents::Pace { name: name.clone(), pace_ms: *pace_ms });
            }
        };
        Ok(Arc::new(Demo { pace }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Table = BTreeMap<AgentName, (AgentConfig, AgentLimits)>;

    fn read(text: &str) -> Result<Table, String> {
        let table: BTreeMap<AgentName, AgentConfig> =
            toml::from_str(text).map_err(|error| error.message().to_owned())?;
        Ok(table.into_iter().map(|(name, config)| (name, (config, AgentLimits::default()))).collect())
    }

    fn name(text: &str) -> AgentName {
        text.parse().expect("valid")
    }

    #[test]
    fn the_demo_agent_always_exists() {
        let agents = Agents::from_config(&BTreeMap::new()).expect("valid");
        assert_eq!(agents.limits(&name("demo")).turn_time, Duration::from_secs(86_400));
        assert!(agents.get(&name("demo")).is_some() && agents.get(&name("other")).is_none());
        let table = read("[slow]\nkind = \"demo\"\npace_ms = 2000\n[demo]\nkind = \"demo\"\npace_ms = 20\n");
        let agents = Agents::from_config(&table.expect("valid")).expect("valid");
        assert_eq!(agents.names().map(AgentName::as_str).collect::<Vec<_>>(), ["demo", "slow"]);
    }

    #[test]
    fn bad_settings_are_named() {
        for pace_ms in [19, 2001] {
            let table = read(&format!("[demo]\nkind = \"demo\"\npace_ms = {pace_ms}\n")).expect("valid so far");
            let refused = Agents::from_config(&table).expect_err("must be refused").to_string();
            assert_eq!(refused, format!("agents.demo.pace_ms: is {pace_ms}; must be 20 to 2000 milliseconds"));
        }
        let refused = read("[demo]\nkind = \"demo\"\npaec_ms = 20\n").expect_err("must be refused");
        assert!(refused.contains("unknown field `paec_ms`"), "{refused}");
        let refused = read("[demo]\nkind = \"magic\"\n").expect_err("must be refused");
        assert!(refused.contains("unknown variant `magic`"), "{refused}");
        let refused = read("[\"a b\"]\nkind = \"demo\"\n").expect_err("must be refused");
        assert!(refused.contains("agent: may hold only"), "{refused}");
        let entry = |n: usize| (name(&format!("a{n}")), (AgentConfig::Demo { pace_ms: None }, AgentLimits::default()));
        let refused = Agents::from_config(&(0..=AGENTS_MAX).map(entry).collect()).expect_err("must be refused");
        assert_eq!(refused.to_string(), "agents: has 1001 entries; at most 1000 are allowed");
    }
}
