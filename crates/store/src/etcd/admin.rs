//! What an operator does with all nodes down: the leases move between the database and etcd.
//!
//! Invariant: epochs go on above the highest that the records know, whichever way the leases move.

use super::client::Client;
use super::error::OpenError;
use super::leases::read;
use super::node::{Keys, NodeValue};
use super::wire::Step;
use super::{start, url};
use crate::postgres::{self, LeaseMode, Options};

/// Moves the leases into this etcd, out of the database or another etcd. Also after this etcd was restored from a snapshot,
/// which sets its revisions back.
///
/// # Errors
/// As [`OpenError`] lists; [`OpenError::Command`] while a node is registered.
pub async fn switch_to_etcd(leases: &str, database: &str, options: &Options) -> Result<(), OpenError> {
    let cluster_id = without_nodes(leases, database, options).await?;
    let options = Options { lease_mode: LeaseMode::Etcd { cluster_id }, ..options.clone() };
    Ok(postgres::switch_leases(database, &options).await?)
}

/// Moves the leases out of this etcd into the database. Where etcd is lost for good, [`postgres::switch_leases`] does it
/// without a look at who is registered there.
///
/// # Errors
/// As [`OpenError`] lists; [`OpenError::Command`] while a node is registered.
pub async fn switch_to_postgres(leases: &str, database: &str, options: &Options) -> Result<(), OpenError> {
    without_nodes(leases, database, options).await?;
    let options = Options { lease_mode: LeaseMode::Postgres, ..options.clone() };
    Ok(postgres::switch_leases(database, &options).await?)
}

/// The id of a cluster in which no node of this database is registered.
async fn without_nodes(leases: &str, database: &str, options: &Options) -> Result<u64, OpenError> {
    let target = url::parse(leases)?;
    let place = target.place();
    let client = Client::new(target);
    let cluster_id = start::probe(&client, options.connect_patience).await?;
    client.expect_cluster(cluster_id);
    let keys = Keys::new(&postgres::system_id(database, options).await?);
    let failed = |error: crate::StoreError| OpenError::Failed { place: place.clone(), detail: error.to_string() };
    let answer = read(&client, &[Step::List(keys.nodes())]).await.map_err(failed)?;
    let nodes = answer.list(0).map_err(failed)?.iter().map(NodeValue::read).collect::<Result<Vec<_>, _>>();
    let names: Vec<String> =
        nodes.map_err(failed)?.into_iter().map(|node| node.registration.node.to_string()).collect();
    if names.is_empty() {
        return Ok(cluster_id);
    }
    let names = names.join(", ");
    Err(OpenError::Command(format!(
        "leases cannot move while nodes are registered in etcd at {place}: {names}; stop them first"
    )))
}
