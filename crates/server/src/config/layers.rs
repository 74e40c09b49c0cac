//! Where settings come from: a TOML file, the environment, flags. Each source becomes a flat list of keys and values that
//! are checked one by one, so that an error names the key, where it was set, and what is allowed.
//!
//! Deliberately absent: reading the process's environment or arguments; they are passed in.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use toml::Value;
use toml::de::{DeTable, DeValue};

use super::field::{Allowed, Field, Shape};
use super::sections::fields;

/// Largest configuration file, in bytes.
pub const FILE_MAX_BYTES: u64 = 1024 * 1024;

/// Most problems that one refusal names.
const WRONG_MAX_SHOWN: usize = 20;

/// Where a value was set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// This line of this file, counted from 1.
    File(PathBuf, usize),
    /// This environment variable.
    Variable(String),
    /// This command line flag.
    Flag(&'static str),
    /// Nowhere: a default.
    Default,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path, line) => write!(f, "{}:{line}", path.display()),
            Self::Variable(name) => f.write_str(name),
            Self::Flag(name) => write!(f, "--{name}"),
            Self::Default => f.write_str("default"),
        }
    }
}

/// Why a configuration is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: cannot be read: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        reason: String,
    },
    /// The file is not TOML.
    #[error("{at}: is not valid TOML: {reason}")]
    NotToml {
        /// Where.
        at: Source,
        /// What the parser says.
        reason: String,
    },
    /// No setting has this name.
    #[error("{at}: unknown setting {key:?}{hint}")]
    UnknownKey {
        /// Where.
        at: Source,
        /// What was written.
        key: String,
        /// The nearest settings, or nothing.
        hint: String,
    },
    /// The value has the wrong type, or is out of range.
    #[error("{at}: {key}: {problem} (allowed: {allowed})")]
    BadValue {
        /// Where.
        at: Source,
        /// The setting.
        key: String,
        /// What is wrong.
        problem: String,
        /// What would be right.
        allowed: String,
    },
    /// Each value is allowed, but not together.
    #[error("{0}")]
    Ratio(String),
    /// More than one of them is wrong.
    #[error("{}", lines(.0))]
    Several(Vec<ConfigError>),
}

/// A line for each problem, the first ones.
fn lines(wrong: &[ConfigError]) -> String {
    let mut text = format!("{} settings are wrong:", wrong.len());
    for problem in wrong.iter().take(WRONG_MAX_SHOWN) {
        text.push_str(&format!("\n  {problem}"));
    }
    match wrong.len().saturating_sub(WRONG_MAX_SHOWN) {
        0 => text,
        more => text + &format!("\n  and {more} more"),
    }
}

/// What the command line sets. `None`: not given. The text is checked like any other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flags {
    /// `--node`
    pub node: Option<String>,
    /// `--region`
    pub region: Option<String>,
    /// `--listen`
    pub listen: Option<String>,
    /// `--ops-listen`
    pub ops_listen: Option<String>,
    /// `--link-listen`
    pub link_listen: Option<String>,
    /// `--link-advertise`
    pub link_advertise: Option<String>,
    /// `--store`
    pub store: Option<String>,
    /// `--leases`
    pub leases: Option<String>,
    /// `--log-format`
    pub log_format: Option<String>,
    /// `--log-level`
    pub log_level: Option<String>,
    /// `--set KEY=VALUE`, any setting, as often as needed; later ones win.
    pub set: Vec<String>,
}

/// The settings as they are merged.
#[derive(Debug, Default)]
pub(super) struct Layers {
    /// By dotted key, the value and where it came from.
    settings: BTreeMap<String, (Value, Source)>,
    /// What was wrong so far, in the order of reading.
    wrong: Vec<ConfigError>,
}

impl Layers {
    /// The settings as the tree that they are deserialised from.
    ///
    /// # Errors
    /// Everything that was wrong: whoever corrects a file does not want to start ten times.
    pub(super) fn into_tree(mut self) -> Result<toml::Table, ConfigError> {
        match self.wrong.len() {
            0 => Ok(to_tree(&self.settings)),
            1 => Err(self.wrong.swap_remove(0)),
            _ => Err(ConfigError::Several(self.wrong)),
        }
    }

    fn lay(&mut self, key: &str, value: Value, at: Source) {
        self.settings.insert(key.to_owned(), (value, at));
    }
}

/// The settings of a file.
pub(super) fn read_file(path: &Path, into: &mut Layers) -> Result<(), ConfigError> {
    let unreadable = |reason: String| ConfigError::Unreadable { path: path.to_owned(), reason };
    let failed = |error: std::io::Error| unreadable(error.to_string());
    // Before it is opened: to open a pipe waits for whoever writes into it.
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(unreadable("it is not a regular file".to_owned()));
    }
    // The length that a file tells may be none (in /proc), or change: what counts is what is read.
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(FILE_MAX_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > FILE_MAX_BYTES {
        return Err(unreadable(format!("it is longer than {FILE_MAX_BYTES} bytes")));
    }
    let text = String::from_utf8(bytes).map_err(|error| unreadable(error.to_string()))?;
    read_text(&text, path, into)
}

/// The settings of a file's text; `path` is for messages.
pub(super) fn read_text(text: &str, path: &Path, into: &mut Layers) -> Result<(), ConfigError> {
    let at = |offset: usize| {
        let before = text.as_bytes().iter().take(offset).filter(|byte| **byte == b'\n').count();
        Source::File(path.to_owned(), before + 1)
    };
    let parsed = DeTable::parse(text).map_err(|error| ConfigError::NotToml {
        at: at(error.span().map_or(0, |span| span.start)),
        reason: error.message().trim().to_owned(),
    })?;
    flatten(parsed.get_ref(), "", &at, into);
    Ok(())
}

fn flatten(table: &DeTable<'_>, prefix: &str, at: &dyn Fn(usize) -> Source, into: &mut Layers) {
    for (name, value) in table {
        let key = format!("{prefix}{}", name.get_ref());
        let source = at(name.span().start);
        match value.get_ref() {
            // A table where a setting is expected is refused as a value of the wrong type.
            DeValue::Table(inner) if field(&key).is_none() => {
                if !is_section(&key) {
                    into.wrong.push(unknown(&key, source));
                    continue;
                }
                if inner.is_empty() {
                    // `[agents.NAME]` with nothing in it still names an agent.
                    into.lay(&key, Value::Table(toml::Table::new()), source);
                }
                flatten(inner, &format!("{key}."), at, into);
            }
            value => put(&key, plain(value), source, into),
        }
    }
}

/// A parsed value without its position. A number that is none of ours becomes text, which is then refused where a number is
/// needed.
fn plain(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Integer(integer) => match i64::from_str_radix(integer.as_str(), integer.radix()) {
            Ok(number) => Value::Integer(number),
            Err(_) => Value::String(integer.as_str().to_owned()),
        },
        DeValue::Float(float) => Value::Float(float.as_str().parse().unwrap_or(f64::NAN)),
        DeValue::Boolean(boolean) => Value::Boolean(*boolean),
        DeValue::Datetime(datetime) => Value::Datetime(*datetime),
        DeValue::Array(items) => Value::Array(items.iter().map(|item| plain(item.get_ref())).collect()),
        DeValue::Table(inner) => Value::Table(
            inner.iter().map(|(name, value)| (name.get_ref().to_string(), plain(value.get_ref()))).collect(),
        ),
    }
}

/// The settings of the environment: each setting has one variable.
pub(super) fn read_environment(env: &dyn Fn(&str) -> Option<String>, into: &mut Layers) {
    for field in fields().filter(|field| !field.is_pattern()) {
        let variable = field.variable();
        // An empty variable is how shells and container files say "not set".
        if let Some(text) = env(&variable).filter(|text| !text.is_empty()) {
            put(field.key, from_text(field, &text), Source::Variable(variable), into);
        }
    }
}

/// The settings of the command line.
pub(super) fn read_flags(flags: Flags, into: &mut Layers) {
    let named = [
        ("node", "node", flags.node),
        ("region", "region", flags.region),
        ("listen", "listen", flags.listen),
        ("ops-listen", "ops_listen", flags.ops_listen),
        ("link-listen", "link_listen", flags.link_listen),
        ("link-advertise", "link_advertise", flags.link_advertise),
        ("store", "store", flags.store),
        ("leases", "leases", flags.leases),
        ("log-format", "log.format", flags.log_format),
        ("log-level", "log.level", flags.log_level),
    ];
    for (flag, key, text) in named {
        if let Some(text) = text {
            let field = field(key).expect("the flags name settings, as the tests show");
            put(key, from_text(field, &text), Source::Flag(flag), into);
        }
    }
    for pair in flags.set {
        let Some((key, text)) = pair.split_once('=') else {
            // The pair is not repeated: it may be a secret without its key.
            into.wrong.push(ConfigError::BadValue {
                at: Source::Flag("set"),
                key: "set".to_owned(),
                problem: "has no =".to_owned(),
                allowed: "KEY=VALUE".to_owned(),
            });
            continue;
        };
        let (key, source) = (key.trim(), Source::Flag("set"));
        match field(key) {
            Some(field) => put(key, from_text(field, text), source, into),
            None => into.wrong.push(unknown(key, source)),
        }
    }
}

/// Text as the value that its field takes. What is not a number stays text, and is refused as such.
fn from_text(field: &Field, text: &str) -> Value {
    match field.shape {
        Shape::Integer => text.trim().parse().map_or_else(|_| Value::String(text.to_owned()), Value::Integer),
        Shape::Text => Value::String(text.to_owned()),
        Shape::List => {
            let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
            Value::Array(items.map(|item| Value::String(item.to_owned())).collect())
        }
    }
}

/// Checks one value and lays it over what was there, or notes what is wrong.
fn put(key: &str, value: Value, at: Source, into: &mut Layers) {
    let Some(field) = field(key) else {
        into.wrong.push(unknown(key, at));
        return;
    };
    match check_value(field, &value) {
        Ok(()) => into.lay(key, value, at),
        Err(problem) => into.wrong.push(bad_value(key, field, problem, at)),
    }
}

fn check_value(field: &Field, value: &Value) -> Result<(), String> {
    match (field.allowed, value) {
        (Allowed::Range(least, most), Value::Integer(number)) => match u64::try_from(*number) {
            Ok(number) if (least..=most).contains(&number) => Ok(()),
            _ => Err(format!("is {number}")),
        },
        _ => (field.accepts)(value),
    }
}

pub(super) fn bad_value(key: &str, field: &Field, problem: String, at: Source) -> ConfigError {
    ConfigError::BadValue { at, key: key.to_owned(), problem, allowed: field.allowed.describe() }
}

/// The setting with this key.
pub(super) fn field(key: &str) -> Option<&'static Field> {
    fields().find(|field| field.matches(key))
}

/// Whether settings live below this key.
fn is_section(key: &str) -> bool {
    let depth = key.split('.').count();
    fields().any(|field| {
        let parts: Vec<&str> = field.key.split('.').collect();
        parts.len() > depth && key.split('.').zip(&parts).all(|(part, mine)| *mine == "NAME" || *mine == part)
    })
}

fn unknown(key: &str, at: Source) -> ConfigError {
    let (first, last) = (key.split('.').next().unwrap_or(key), key.rsplit('.').next().unwrap_or(key));
    let same = fields().filter(|field| field.key.ends_with(&format!(".{last}")) || field.key == last);
    let near: Vec<String> = plural(first).into_iter().chain(same.map(|field| field.key.to_owned())).collect();
    let section = key.rsplit_once('.').map_or("", |(section, _)| section);
    let hint = if !near.is_empty() {
        format!("; did you mean {}?", near.join(" or "))
    } else if !section.is_empty() && is_section(section) {
        let inside = fields().filter(|field| {
            field.key.rsplit_once('.').is_some_and(|(of, _)| of.split('.').count() == section.split('.').count())
                && field.key.split('.').next() == section.split('.').next()
        });
        let names: Vec<&str> = inside.filter_map(|field| field.key.rsplit('.').next()).collect();
        format!("; [{section}] knows {}", names.join(", "))
    } else {
        String::new()
    };
    ConfigError::UnknownKey { at, key: key.to_owned(), hint }
}

/// The section whose name is this one's plural.
fn plural(name: &str) -> Option<String> {
    let section = format!("{name}s");
    let of_names = fields().any(|field| field.key.starts_with(&format!("{section}.NAME.")));
    is_section(&section).then(|| if of_names { format!("[{section}.NAME]") } else { format!("[{section}]") })
}

fn to_tree(settings: &BTreeMap<String, (Value, Source)>) -> toml::Table {
    let mut tree = toml::Table::new();
    for (key, (value, _)) in settings {
        let mut parts: Vec<&str> = key.split('.').collect();
        let last = parts.pop().expect("a key has at least one part");
        let mut table = &mut tree;
        for part in parts {
            let next = table.entry(part).or_insert_with(|| Value::Table(toml::Table::new()));
            table = next.as_table_mut().expect("a section is never a setting, as the fields' keys show");
        }
        table.insert(last.to_owned(), value.clone());
    }
    tree
}
