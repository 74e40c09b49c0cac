//! What an operator does with all nodes down: the leases move between the database and etcd, a restored database is declared.
//!
//! Invariants: epochs go on above the highest that the records know, whichever way the leases move; nodes that are registered
//! in the etcd that keeps the leases are seen, and named, before anything changes.

use conch_core::ids::Generation;

use super::client::Client;
use super::error::OpenError;
use super::leases::read;
use super::node::{Keys, NodeValue};
use super::wire::Step;
use super::{start, url};
use crate::postgres::{self, LeaseMode, NodesInEtcd, Options};

/// Where the leases are before a command, as far as the operator says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeptIn<'a> {
    /// Nothing was said: right where they are in the database, and refused where they are in etcd.
    Unsaid,
    /// In this etcd, which is looked into.
    Etcd(&'a str),
    /// In an etcd that is lost for good; all nodes are stopped.
    Lost,
}

impl KeptIn<'_> {
    /// Looks into the etcd that is named.
    async fn look(self, database: &str, options: &Options) -> Result<NodesInEtcd, OpenError> {
        Ok(match self {
            Self::Unsaid => NodesInEtcd::NoneIn(Vec::new()),
            Self::Etcd(leases) => NodesInEtcd::NoneIn(vec![without_nodes(leases, database, options).await?]),
            Self::Lost => NodesInEtcd::Lost,
        })
    }
}

/// Moves the leases into this etcd, out of the database or another etcd. Also after this etcd was restored from a snapshot,
/// which sets its revisions back.
///
/// # Errors
/// As [`OpenError`] lists; [`OpenError::Command`] while a node is registered, or if the leases are in another etcd that is not
/// looked into.
pub async fn switch_to_etcd(
    leases: &str,
    kept: KeptIn<'_>,
    database: &str,
    options: &Options,
) -> Result<(), OpenError> {
    let cluster_id = without_nodes(leases, database, options).await?;
    let mut nodes = kept.look(database, options).await?;
    if let NodesInEtcd::NoneIn(seen) = &mut nodes {
        seen.push(cluster_id);
    }
    let options = Options { lease_mode: LeaseMode::Etcd { cluster_id }, ..options.clone() };
    Ok(postgres::switch_leases(database, &options, &nodes).await?)
}

/// Moves the leases into the database.
///
/// # Errors
/// As [`OpenError`] lists; [`OpenError::Command`] while a node is registered, or if the leases are in an etcd that is not
/// looked into.
pub async fn switch_to_postgres(kept: KeptIn<'_>, database: &str, options: &Options) -> Result<(), OpenError> {
    let nodes = kept.look(database, options).await?;
    let options = Options { lease_mode: LeaseMode::Postgres, ..options.clone() };
    Ok(postgres::switch_leases(database, &options, &nodes).await?)
}

/// As [`postgres::restored`], after a look at who is registered in etcd.
///
/// # Errors
/// As [`OpenError`] lists; [`OpenError::Command`] while a node is registered in etcd, or if the leases are in an etcd that is
/// not looked into.
pub async fn restored(
    kept: KeptIn<'_>,
    database: &str,
    options: &Options,
    above: u64,
) -> Result<Generation, OpenError> {
    let nodes = kept.look(database, options).await?;
    Ok(postgres::restored(database, options, above, &nodes).await?)
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
    Err(OpenError::Command(format!("nodes are registered in etcd at {place}: {names}; stop them first")))
}
