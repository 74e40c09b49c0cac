//! What an operator does to a cluster: `conch drain` asks a node to go, through any node; `conch restored` and `conch leases
//! switch` change what a database says of itself, without a server.

use conch_server::config::{Config, StoreUrl};
use conch_server::stores;
use conch_store::postgres::{self, Options};
use serde_json::{Value, json};

use super::call;
use crate::args::{DrainArgs, Leases, LeasesArgs, LeasesChange, RestoredArgs, StoreArgs};
use crate::client::Request;
use crate::exit::Failure;
use crate::local;
use crate::output::Output;
use crate::safe::one_line;
use crate::target;

pub(crate) async fn drain(args: &DrainArgs, output: &Output) -> Result<(), Failure> {
    let client = target::client(&args.target)?;
    let request = Request::post_empty(&["v1", "nodes", args.node.as_str(), "drain"]);
    let answer = call(&client, &request, args.target.budget, output).await?.body;
    output.result(&answer, || {
        let told = answer["incarnations"].as_array().map(Vec::as_slice).unwrap_or_default();
        let told: Vec<String> = told.iter().filter_map(Value::as_str).map(one_line).collect();
        format!("{} drains ({}); it is gone when `conch nodes` shows it no more", args.node, told.join(", "))
    })
}

pub(crate) async fn restored(args: &RestoredArgs, output: &Output) -> Result<(), Failure> {
    let (url, options) = database(&args.store, "restored")?;
    let generation = postgres::restored(&url, &options, args.above).await;
    let generation = generation.map_err(|error| Failure::other(error.to_string()))?;
    output.result(&json!({"generation": generation.0}), || {
        format!("the database is in generation {generation}: numbers begin above all that were given; start the nodes")
    })
}

pub(crate) async fn leases(args: &LeasesArgs, output: &Output) -> Result<(), Failure> {
    let LeasesChange::Switch { leases, store } = &args.change;
    let (url, options) = database(store, "leases")?;
    match leases {
        Leases::Postgres => {}
        Leases::Etcd(addresses) => {
            return Err(Failure::usage(format!(
                "--leases etcd://{}: this version keeps leases in PostgreSQL alone",
                addresses.join(",")
            )));
        }
    }
    postgres::switch_leases(&url, &options).await.map_err(|error| Failure::other(error.to_string()))?;
    output
        .result(&json!({"leases": "postgres"}), || "leases are kept in the database itself; start the nodes".to_owned())
}

/// A database's URL and how to open it; a directory is refused.
fn database(store: &StoreArgs, command: &str) -> Result<(String, Options), Failure> {
    let config = local::config_of_store(store.store.as_deref()).map_err(Failure::usage)?;
    let StoreUrl::Postgres(url) = &config.store else {
        return Err(Failure::usage(not_for_directories(&config, command)));
    };
    let key = stores::find_signing_key(&config).map_err(|error| Failure::usage(error.to_string()))?;
    Ok((url.expose().to_owned(), stores::postgres_options(&config, &key)))
}

fn not_for_directories(config: &Config, command: &str) -> String {
    let instead = match command {
        "restored" => "; docs/OPERATIONS.md says what a restored directory needs",
        _ => "; a directory belongs to one process, which keeps its own lease",
    };
    format!("--store {}: `conch {command}` needs a postgres:// store{instead}", config.store)
}

/// Reads `postgres` or `etcd://HOST:PORT,…`.
pub(crate) fn parse_leases(text: &str) -> Result<Leases, String> {
    if text == "postgres" {
        return Ok(Leases::Postgres);
    }
    let wrong =
        || format!("{text:?}: must be postgres, or etcd:// and addresses such as 10.0.0.1:2379, separated by commas");
    let addresses: Vec<String> =
        text.strip_prefix("etcd://").ok_or_else(wrong)?.split(',').map(str::to_owned).collect();
    let is_address = |address: &String| {
        let port = address.rsplit_once(':').map(|(host, port)| (!host.is_empty(), port.parse::<u16>().is_ok()));
        port == Some((true, true))
    };
    if addresses.iter().all(is_address) { Ok(Leases::Etcd(addresses)) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_leases_is_read() {
        assert_eq!(parse_leases("postgres"), Ok(Leases::Postgres));
        let both = vec!["a:2379".to_owned(), "[::1]:2379".to_owned()];
        assert_eq!(parse_leases("etcd://a:2379,[::1]:2379"), Ok(Leases::Etcd(both)));
        for text in ["", "etcd", "etcd://", "etcd://a", "etcd://a:2379,", "etcd://:1", "sqlite:x", "postgres://h/d"] {
            assert!(parse_leases(text).is_err(), "{text}");
        }
    }
}
