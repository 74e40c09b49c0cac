//! The reference of every setting, as docs/CONFIG.md shows it, generated from the fields themselves.

use std::fmt::Write;

use super::field::Field;
use super::{Agent, Config, fields};

/// The reference as Markdown.
#[must_use]
pub fn reference() -> String {
    let defaults = toml::Table::try_from(Config::default()).expect("every default has a TOML form");
    let agent = toml::Table::try_from(Agent::default()).expect("every default has a TOML form");
    let mut page = String::from(
        "# Configuration\n\n\
        Settings come from, in rising order of precedence: the defaults, the TOML file that `--config` names, `CONCH_…`\n\
        environment variables, command line flags (`--set KEY=VALUE` sets any). `conch config` prints what is in effect,\n\
        secrets hidden. An unknown setting or a value out of range stops the start with an error that names it. Names end in\n\
        their unit: `_ms` is milliseconds, `_bytes` bytes. A variable is the key in capitals with `_` for `.`, after `CONCH_`:\n\
        `CONCH_LIMITS_MESSAGE_BYTES`; a list is separated by commas; an empty variable counts as not set. A variable that starts\n\
        with `CONCH_` and is no setting is no reason not to start, since orchestrators add some of their own (such as\n\
        `CONCH_SERVICE_HOST`): `serve` and `config` name it in a warning.\n",
    );
    let mut section = None;
    for field in fields() {
        let (of, name) = field.key.rsplit_once('.').unwrap_or(("", field.key));
        if section != Some(of) {
            section = Some(of);
            let title = if of.is_empty() { "Top level".to_owned() } else { format!("`[{of}]`") };
            write!(page, "\n## {title}\n\n| setting | default | allowed | meaning |\n|---|---|---|---|\n")
                .expect("a String takes every write");
        }
        let default = if of == "agents.NAME" { show(&agent, name) } else { show(&defaults, field.key) };
        writeln!(page, "{}", row(name, &default, field)).expect("a String takes every write");
    }
    page
}

fn row(name: &str, default: &str, field: &Field) -> String {
    let cell = |text: &str| text.trim().replace('|', "\\|");
    format!("| `{name}` | {default} | {} | {} |", cell(&field.allowed.describe()), cell(field.doc))
}

fn show(table: &toml::Table, key: &str) -> String {
    let mut value = None;
    let mut inside = Some(table);
    for part in key.split('.') {
        value = inside.and_then(|table| table.get(part));
        inside = value.and_then(toml::Value::as_table);
    }
    value.map_or("none".to_owned(), |value| format!("`{value}`"))
}
