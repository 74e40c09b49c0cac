//! `conch nodes`: the nodes as a server sees them; `conch expel`: declares one dead, directly in the store.

use conch_core::ids::Incarnation;
use conch_server::stores;
use serde_json::{Value, json};

use super::call;
use crate::args::{ExpelArgs, NodesArgs};
use crate::client::Request;
use crate::exit::Failure;
use crate::local;
use crate::output::{Format, Output, Style};
use crate::safe::one_line;
use crate::target;

pub(crate) async fn list(args: &NodesArgs, output: &Output) -> Result<(), Failure> {
    let client = target::client(&args.target)?;
    let answer = call(&client, &Request::get(&["v1", "nodes"]), args.target.budget, output).await?.body;
    let nodes = answer["nodes"].as_array().ok_or_else(|| Failure::other("unexpected answer: it has no nodes"))?;
    if answer["stale"] == true {
        output.warning("the server has not read the nodes for a lease: who is alive is not known");
    }
    for node in nodes {
        if let Some(why) = node["link_error"].as_str() {
            let name = one_line(node["name"].as_str().unwrap_or_default());
            output.warning(&format!("node {name} did not say how much it owns: {}", one_line(why)));
        }
    }
    match output.format {
        Format::Json => nodes.iter().try_for_each(|node| output.json(node)),
        Format::Human => table(nodes, output).iter().try_for_each(|line| output.line(line)),
    }
}

/// The lines of the table, with its head.
fn table(nodes: &[Value], output: &Output) -> Vec<String> {
    let head = ["NAME", "INCARNATION", "REGION", "LINK", "STATE", "LEASE", "OWNS"].map(str::to_owned);
    let rows: Vec<[String; 7]> = std::iter::once(head).chain(nodes.iter().map(cells)).collect();
    let widths: Vec<usize> =
        (0..7).map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)).collect();
    let line = |row: &[String; 7]| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let mut lines: Vec<String> = rows.iter().map(line).collect();
    lines[0] = output.styled(Style::Dim, &lines[0]);
    lines
}

fn cells(node: &Value) -> [String; 7] {
    let text = |key: &str| one_line(node[key].as_str().unwrap_or_default());
    let left_ms = node["expires_in_ms"].as_i64().unwrap_or_default();
    let state = match (left_ms <= 0, node["draining"] == true) {
        (true, _) => "expired",
        (false, true) => "draining",
        (false, false) => "alive",
    };
    let addr = if text("addr").is_empty() { "-".to_owned() } else { text("addr") };
    let owns = node["owned"].as_u64().map_or_else(|| "-".to_owned(), |owned| owned.to_string());
    let lease = format!("{}.{} s", left_ms / 1_000, left_ms.rem_euclid(1_000) / 100);
    let lease = if left_ms < 0 { "-".to_owned() } else { lease };
    [text("name"), text("incarnation"), text("region"), addr, state.to_owned(), lease, owns]
}

pub(crate) async fn expel(args: &ExpelArgs, output: &Output) -> Result<(), Failure> {
    let dead = args.incarnation;
    let config = local::config_of_store(args.store.store.as_deref()).map_err(Failure::usage)?;
    let other = |error: &dyn std::fmt::Display| Failure::other(error.to_string());
    let leases = stores::open_leases(&config).await.map_err(|error| other(&error))?;
    let expelled = leases.expel(dead).await.map_err(|error| other(&error))?;
    output.result(&json!({"incarnation": dead.to_string(), "expelled": expelled}), || match expelled {
        true => format!("{dead} is declared dead: what it owned may be claimed at once"),
        false => format!("{dead} is not registered (any more)"),
    })
}

/// Reads an incarnation as logs and `conch nodes` show it.
pub(crate) fn parse_incarnation(text: &str) -> Result<Incarnation, String> {
    let wrong = || format!("{text:?} is no incarnation: a UUID such as `conch nodes` shows");
    let is_hyphen_at = |(index, byte): (usize, u8)| matches!(index, 8 | 13 | 18 | 23) == (byte == b'-');
    if text.len() != 36 || !text.bytes().enumerate().all(is_hyphen_at) {
        return Err(wrong());
    }
    let hex = text.replace('-', "");
    if !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(wrong());
    }
    u128::from_str_radix(&hex, 16).map(Incarnation).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incarnations_are_read_as_they_are_shown() {
        let shown = Incarnation(0x0123_4567_89ab_4cde_8f01_2345_6789_abcd);
        assert_eq!(parse_incarnation(&shown.to_string()), Ok(shown));
        let wrong = [
            "",
            "0123456789ab4cde8f0123456789abcd",
            "01234567-89ab-4cde-8f01-23456789abcg",
            "+1234567-89ab-4cde-8f01-23456789abcd",
            "012345678-9ab-4cde-8f01-23456789abcd",
        ];
        for text in wrong {
            assert!(parse_incarnation(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_row_says_what_a_person_asks() {
        let node = json!({"name": "b", "incarnation": "i", "region": "eu", "addr": "", "draining": true, "expires_in_ms": 12_340});
        assert_eq!(cells(&node), ["b", "i", "eu", "-", "draining", "12.3 s", "-"]);
        let node = json!({"name": "a\u{1b}[2J", "addr": "h:1", "expires_in_ms": -5, "owned": 7});
        assert_eq!(cells(&node)[0], "a\\u{1b}[2J");
        assert_eq!(cells(&node)[3..], ["h:1", "expired", "-", "7"]);
    }
}
