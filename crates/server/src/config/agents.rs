//! The `[agents]` table: who answers in sessions, each kind with settings of its own.
//!
//! Invariants: a setting that means nothing to an agent's kind is refused, not ignored; a key or secret is named by its
//! environment variable and never written here; every tool's schema is read at the start.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use conch_core::ids::AgentName;
use conch_core::turn::awaits::{AWAIT_DEFAULT, AWAIT_MAX};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::ConfigError;
use super::field::Allowed::{Range, Text};
use super::field::{Setting, Shape, section};
use super::values::AgentKind;
use crate::auth::secret::Secret;

/// Most tools of one agent.
pub const TOOLS_MAX: usize = 64;
/// The range of a tool's `timeout_ms`.
const TOOL_TIMEOUT_MS: std::ops::RangeInclusive<u64> = 10..=600_000;
/// The range of a tool's `approval_s`: as long as anything may be waited for.
const TOOL_APPROVAL_S: std::ops::RangeInclusive<u64> = 1..=AWAIT_MAX.as_secs();
/// Where OpenAI's own service is.
pub const OPENAI_BASE_URL: &str = "https://api.openai.com/v1";
/// The model of the agent that exists by itself, unless `OPENAI_MODEL` names one.
pub const ASSISTANT_MODEL: &str = "gpt-4.1-mini";
/// The name of the agent that exists by itself where the environment says how to reach a model.
pub const ASSISTANT: &str = "assistant";

section! {
    /// One agent.
    Agent, "agents.NAME." {
        /// What answers: a script that needs nothing, a model with an OpenAI-compatible API, or a worker over HTTP. See AGENTS.md.
        kind: AgentKind = AgentKind::Demo, Text("demo, openai or http");
        /// Seconds after which a turn fails that has not ended, waiting included.
        turn_time_s: u64 = 86_400, Range(1, 2_592_000);
        /// Tokens of a turn's model calls after which it makes no further one; 0: any number.
        turn_tokens: u64 = 0, Range(0, 1_000_000_000_000);
        /// demo: milliseconds between two words of its answer.
        pace_ms: u16 = 120, Range(20, 2_000);
        /// openai: where the API is; `/chat/completions` is added.
        base_url: Option<String> = None, Text("an http(s) URL such as https://api.openai.com/v1, which it is when not set");
        /// openai: the model's name there. Must be set; of the `assistant` that exists by itself it is `OPENAI_MODEL`, else `gpt-4.1-mini`.
        model: Option<String> = None, Text("a name");
        /// openai: the environment variable that holds the API's key; not set: no key is sent.
        api_key_env: Option<FromEnv> = None, Text("the name of an environment variable");
        /// openai: what the model is told before the conversation.
        system: Option<String> = None, Text("a text");
        /// openai: the sampling temperature; not set: the API's default.
        temperature: Option<Temperature> = None, Text("0 to 2");
        /// openai: tokens of one answer at most; not set: as many as the API allows.
        max_tokens: Option<u32> = None, Range(1, 10_000_000);
        /// openai: model calls of one turn at most.
        max_steps: u32 = 50, Range(1, 500);
        /// http: where the worker is. Must be set.
        url: Option<String> = None, Text("an http(s) URL");
        /// http: the environment variable that holds the secret shared with the worker, `whsec_` and base64. Must be set.
        secret_env: Option<FromEnv> = None, Text("the name of an environment variable");
        /// openai, http: how often a model is asked for one step, or a worker for one turn, until it answers.
        attempts: u32 = 5, Range(1, 20);
        /// openai, http: milliseconds of silence after which a call counts as broken. Not set: 60000 of a model, 300000 of a worker.
        silence_ms: Option<u64> = None, Range(10, 3_600_000);
        /// openai, http: messages of the conversation that are shown, the newest, from a person's on.
        context_messages: usize = 200, Range(1, 2_000);
        /// openai: the tools that the model may call, each with `name`, `description`, `url` and more. See AGENTS.md.
        tools: Tools = Tools::default(), Text("a list of tables");
    }
}

/// The settings that only some kinds have.
const OF_KINDS: &[(&str, &[AgentKind])] = &[
    ("pace_ms", &[AgentKind::Demo]),
    ("base_url", &[AgentKind::Openai]),
    ("model", &[AgentKind::Openai]),
    ("api_key_env", &[AgentKind::Openai]),
    ("system", &[AgentKind::Openai]),
    ("temperature", &[AgentKind::Openai]),
    ("max_tokens", &[AgentKind::Openai]),
    ("max_steps", &[AgentKind::Openai]),
    ("url", &[AgentKind::Http]),
    ("secret_env", &[AgentKind::Http]),
    ("attempts", &[AgentKind::Openai, AgentKind::Http]),
    ("silence_ms", &[AgentKind::Openai, AgentKind::Http]),
    ("context_messages", &[AgentKind::Openai, AgentKind::Http]),
    ("tools", &[AgentKind::Openai]),
];

impl Agent {
    /// How long the other side may be silent.
    #[must_use]
    pub fn silence(&self) -> Duration {
        let by_kind = if self.kind == AgentKind::Http { 300_000 } else { 60_000 };
        Duration::from_millis(self.silence_ms.unwrap_or(by_kind))
    }

    /// Refuses what means nothing to the agent's kind.
    pub(super) fn check_kind(&self, name: &AgentName) -> Result<(), ConfigError> {
        let table = |agent: &Self| toml::Table::try_from(agent).expect("every setting has a TOML form");
        let (set, defaults) = (table(self), table(&Self::default()));
        for (setting, kinds) in OF_KINDS {
            if !kinds.contains(&self.kind) && set.get(*setting) != defaults.get(*setting) {
                let kinds: Vec<&str> = kinds.iter().map(|kind| kind.as_str()).collect();
                return Err(ConfigError::Ratio(format!(
                    "agents.{name}.{setting}: belongs to agents of kind {}; this one is of kind {}",
                    kinds.join(" or "),
                    self.kind.as_str()
                )));
            }
        }
        Ok(())
    }
}

/// The agents by name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Agents(pub BTreeMap<AgentName, Agent>);

impl Default for Agents {
    fn default() -> Self {
        let demo = "demo".parse().expect("four letters are a name");
        Self(BTreeMap::from([(demo, Agent::default())]))
    }
}

impl Agents {
    /// The environment variables that the agents and their tools name.
    pub fn variables(&self) -> impl Iterator<Item = &str> {
        let of_agents = self.0.values().flat_map(|agent| [&agent.api_key_env, &agent.secret_env]).flatten();
        let tools = self.0.values().flat_map(|agent| &agent.tools.0);
        of_agents.chain(tools.flat_map(|tool| tool.headers_env.values())).map(FromEnv::name)
    }

    /// Adds the agents that exist by themselves, and reads what the others name from the environment.
    pub(super) fn complete(&mut self, env: &dyn Fn(&str) -> Option<String>) -> Result<(), ConfigError> {
        // An empty variable is how shells and container files say "not set".
        let env = |name: &str| env(name).filter(|value| !value.is_empty());
        for (name, agent) in Self::default().0 {
            self.0.entry(name).or_insert(agent);
        }
        let (key, base_url) = (env("OPENAI_API_KEY"), env("OPENAI_BASE_URL"));
        if key.is_some() || base_url.is_some() {
            let assistant = Agent {
                kind: AgentKind::Openai,
                base_url,
                model: Some(env("OPENAI_MODEL").unwrap_or_else(|| ASSISTANT_MODEL.to_owned())),
                api_key_env: key.map(|_| FromEnv::named("OPENAI_API_KEY")),
                ..Agent::default()
            };
            self.0.entry(ASSISTANT.parse().expect("letters are a name")).or_insert(assistant);
        }
        for (name, agent) in &mut self.0 {
            let named = [("api_key_env", &mut agent.api_key_env), ("secret_env", &mut agent.secret_env)];
            for (setting, variable) in named {
                if let Some(variable) = variable {
                    variable.read(&env, &format!("agents.{name}.{setting}"))?;
                }
            }
            for tool in &mut agent.tools.0 {
                for (header, variable) in &mut tool.headers_env {
                    let key = format!("agents.{name}.tools: {}: headers_env.{header}", tool.name);
                    variable.read(&env, &key)?;
                }
            }
        }
        Ok(())
    }
}

/// A secret in an environment variable. The configuration holds and shows its name alone.
#[derive(Clone, PartialEq, Eq)]
pub struct FromEnv {
    name: String,
    value: Option<Secret>,
}

impl FromEnv {
    fn named(name: &str) -> Self {
        Self { name: name.to_owned(), value: None }
    }

    /// A variable that has this value, for a configuration that is made in code.
    #[must_use]
    pub fn with_value(name: &str, value: Secret) -> Self {
        Self { name: name.to_owned(), value: Some(value) }
    }

    /// What it holds; `None` until it is read.
    #[must_use]
    pub fn value(&self) -> Option<&Secret> {
        self.value.as_ref()
    }

    /// Which variable it is.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    fn read(&mut self, env: &dyn Fn(&str) -> Option<String>, key: &str) -> Result<(), ConfigError> {
        let value = env(&self.name);
        let missing = || ConfigError::Ratio(format!("{key}: the environment variable {} is not set", self.name));
        self.value = Some(Secret::new(value.ok_or_else(missing)?.into_bytes()));
        Ok(())
    }
}

impl fmt::Debug for FromEnv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Serialize for FromEnv {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.name)
    }
}

impl<'de> Deserialize<'de> for FromEnv {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        let plain = |c: u8| c.is_ascii_alphanumeric() || c == b'_';
        if name.is_empty() || name.len() > 128 || !name.bytes().all(plain) || name.as_bytes()[0].is_ascii_digit() {
            // It may be the secret itself.
            return Err(serde::de::Error::custom("must be the name of an environment variable, not its value"));
        }
        Ok(Self::named(&name))
    }
}

/// A sampling temperature.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Temperature(pub f64);

impl<'de> Deserialize<'de> for Temperature {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let refused = || serde::de::Error::custom("must be a number from 0 to 2");
        let number = match toml::Value::deserialize(deserializer)? {
            toml::Value::Float(number) => number,
            toml::Value::Integer(number) => u8::try_from(number).map_err(|_| refused())?.into(),
            // As flags give it.
            toml::Value::String(text) => text.parse().map_err(|_| refused())?,
            _ => return Err(refused()),
        };
        if (0.0..=2.0).contains(&number) { Ok(Self(number)) } else { Err(refused()) }
    }
}

impl Setting for String {}
impl Setting for FromEnv {}
impl Setting for Temperature {}
impl Setting for Tools {
    const SHAPE: Shape = Shape::List;
}

/// What a tool cannot do without.
const TOOL_MUST: [(&str, &str); 3] = [
    ("name", "what the model calls the tool"),
    ("description", "what the model is told of it"),
    ("url", "where it is"),
];

/// The tools of an agent.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(transparent)]
pub struct Tools(pub Vec<ToolConfig>);

impl<'de> Deserialize<'de> for Tools {
    /// Says which tool is at fault.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let tables = Vec::<toml::Value>::deserialize(deserializer)?;
        let refused = |problem: String| serde::de::Error::custom(problem);
        if tables.len() > TOOLS_MAX {
            return Err(refused(format!("has {} entries; at most {TOOLS_MAX} are allowed", tables.len())));
        }
        let mut tools: Vec<ToolConfig> = Vec::new();
        for (index, table) in tables.into_iter().enumerate() {
            let named = table.get("name").and_then(toml::Value::as_str).map(str::to_owned);
            let place = named.map_or_else(|| format!("number {index}"), |name| format!("{name:?}"));
            let missing = TOOL_MUST.iter().find(|(setting, _)| table.get(*setting).is_none());
            if let Some((setting, what)) = missing.filter(|_| table.is_table()) {
                return Err(refused(format!("{place}: {setting}: must be set: {what}")));
            }
            let tool: ToolConfig =
                table.try_into().map_err(|error| refused(format!("{place}: {}", error.message().trim())))?;
            tool.check().map_err(|problem| refused(format!("{place}: {problem}")))?;
            if tools.iter().any(|other| other.name == tool.name) {
                return Err(refused(format!("{place}: is there twice")));
            }
            tools.push(tool);
        }
        Ok(Self(tools))
    }
}

/// A tool that a model may call, over HTTP.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolConfig {
    /// What the model calls it: 1 to 64 of `A-Z a-z 0-9 _ -`.
    pub name: String,
    /// What the model is told of it.
    pub description: String,
    /// Where it is.
    pub url: String,
    /// The JSON Schema of its arguments, as a table or as JSON text; not set: any object.
    #[serde(default)]
    pub parameters: Parameters,
    /// What becomes of a call of which nobody knows whether it happened.
    #[serde(default)]
    pub on_unknown: WhenUnknown,
    /// Whether a person is asked before each call.
    #[serde(default)]
    pub approval: Approval,
    /// Seconds that a person has to approve a call, 1 to 2592000; then it is not made.
    #[serde(default = "default_approval_s")]
    pub approval_s: u64,
    /// Milliseconds that one try may take, 10 to 600000.
    #[serde(default = "default_timeout_ms")]
    pub timeout_ms: u64,
    /// Headers of each call.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Headers whose values are in environment variables.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers_env: BTreeMap<String, FromEnv>,
}

/// A day.
fn default_approval_s() -> u64 {
    AWAIT_DEFAULT.as_secs()
}

fn default_timeout_ms() -> u64 {
    30_000
}

impl ToolConfig {
    fn check(&self) -> Result<(), String> {
        let plain = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'-');
        if self.name.is_empty() || self.name.len() > 64 || !self.name.bytes().all(plain) {
            return Err("name: must be 1 to 64 of A-Z a-z 0-9 _ -".to_owned());
        }
        if !TOOL_TIMEOUT_MS.contains(&self.timeout_ms) {
            let (least, most) = (TOOL_TIMEOUT_MS.start(), TOOL_TIMEOUT_MS.end());
            return Err(format!("timeout_ms: is {}; must be {least} to {most} milliseconds", self.timeout_ms));
        }
        if !TOOL_APPROVAL_S.contains(&self.approval_s) {
            let (least, most) = (TOOL_APPROVAL_S.start(), TOOL_APPROVAL_S.end());
            return Err(format!("approval_s: is {}; must be {least} to {most} seconds", self.approval_s));
        }
        Ok(())
    }
}

/// What becomes of a call of which nobody knows whether it happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WhenUnknown {
    /// It is made again under the same key: the tool is idempotent.
    Retry,
    /// The model is told that the outcome is unknown.
    #[default]
    Fail,
    /// A person decides.
    Ask,
}

/// Whether a person is asked before a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Approval {
    /// No.
    #[default]
    None,
    /// Yes, each time.
    Ask,
}

/// The JSON Schema of a tool's arguments.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Parameters(pub Value);

impl Default for Parameters {
    fn default() -> Self {
        Self(serde_json::json!({ "type": "object" }))
    }
}

impl<'de> Deserialize<'de> for Parameters {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let refused = |problem: String| serde::de::Error::custom(format!("parameters: {problem}"));
        match toml::Value::deserialize(deserializer)? {
            toml::Value::String(text) => {
                serde_json::from_str(&text).map(Self).map_err(|error| refused(format!("is not JSON: {error}")))
            }
            table @ toml::Value::Table(_) => {
                serde_json::to_value(table).map(Self).map_err(|error| refused(error.to_string()))
            }
            _ => Err(refused("must be a table, or JSON as text".to_owned())),
        }
    }
}
