//! What an operator does to a cluster: `conch drain` asks a node to go, through any node; `conch restored` and `conch leases
//! switch` change what a database says of itself, without a server.

use conch_server::config::{Config, LeasesUrl, StoreUrl};
use conch_server::stores;
use conch_store::etcd::{self, KeptIn};
use conch_store::postgres::Options;
use serde_json::{Value, json};

use super::call;
use crate::args::{DrainArgs, KeptInArgs, LeasesArgs, LeasesChange, RestoredArgs, StoreArgs};
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
    let generation = etcd::restored(kept_in(&args.kept), &url, &options, args.above).await;
    let generation = generation.map_err(|error| Failure::other(error.to_string()))?;
    output.result(&json!({"generation": generation.0}), || {
        format!("the database is in generation {generation}: numbers begin above all that were given; start the nodes")
    })
}

pub(crate) async fn leases(args: &LeasesArgs, output: &Output) -> Result<(), Failure> {
    let LeasesChange::Switch { leases, kept, store } = &args.change;
    let (url, options) = database(store, "leases")?;
    let switched = match leases {
        LeasesUrl::Postgres => etcd::switch_to_postgres(kept_in(kept), &url, &options).await,
        LeasesUrl::Etcd(etcd) => etcd::switch_to_etcd(etcd, kept_in(kept), &url, &options).await,
    };
    switched.map_err(|error| Failure::other(error.to_string()))?;
    output.result(&json!({"leases": leases.to_string()}), || {
        format!("leases are kept in {leases} from now on; start the nodes with --leases {leases}")
    })
}

fn kept_in(args: &KeptInArgs) -> KeptIn<'_> {
    match &args.from {
        Some(etcd) => KeptIn::Etcd(etcd),
        None if args.etcd_is_lost => KeptIn::Lost,
        None => KeptIn::Unsaid,
    }
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
