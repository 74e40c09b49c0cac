//! What an operator does to a database: a restored backup is declared, the leases' place is changed.
//!
//! Invariants: neither goes below a number that was ever used; where the leases are in etcd, neither is done before somebody
//! has looked who is registered there, or said that nobody can look any more.

use std::time::Duration;

use conch_core::ids::Generation;

use super::error::OpenError;
use super::schema::SYSTEM_ID;
use super::session::{Dialer, Session};
use super::{LeaseMode, Options, start, url};
use crate::StoreError;

/// What a restore adds to the generation; a failover adds 1.
const GENERATIONS_PER_RESTORE: u64 = 65_536;
/// Above this generation numbers would not fit: a generation is a million of them, and a number has 63 bits.
const GENERATION_MAX: u64 = 8_000_000_000_000;
/// Longest time for one of these commands.
const COMMAND_LIMIT: Duration = Duration::from_secs(60);

/// What is known of nodes that are registered in etcd, which the database does not list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodesInEtcd {
    /// None is, in the clusters of these ids. Nobody has looked into another one.
    NoneIn(Vec<u64>),
    /// The etcd that keeps the leases is lost for good, says whoever stopped all nodes.
    Lost,
}

/// Declares that this database was restored from a backup, or is a copy that now takes the original's place. `above` is the
/// highest generation that clients may have seen (the number after the dot in a log's id); the new one is above it. Node
/// rows are deleted: they are of the time of the backup, and a node that still lives has to start anew.
///
/// # Errors
/// As [`OpenError`] lists; [`OpenError::Command`] if `above` is below the database's own generation, or if the leases are in
/// an etcd that nobody has looked into.
pub async fn restored(
    database: &str,
    options: &Options,
    above: u64,
    nodes: &NodesInEtcd,
) -> Result<Generation, OpenError> {
    let (session, dialer) = open(database, options).await?;
    let place = dialer.place();
    kept_in(&session, place, nodes).await?;
    let present = generation(&session, place).await?;
    if above < present.0 {
        let text = format!(
            "--above {above} is below the generation {present} that the database itself has; use the highest \
                            one that was ever seen"
        );
        return Err(OpenError::Command(text));
    }
    if above > GENERATION_MAX {
        return Err(OpenError::Command(format!("--above {above} is beyond the largest generation, {GENERATION_MAX}")));
    }
    let restores = above / GENERATIONS_PER_RESTORE + 1;
    // Compared again inside: somebody else may be as quick.
    let sql = format!(
        "BEGIN;
         UPDATE cluster_meta SET restores = {restores}, system_id = {SYSTEM_ID} WHERE restores < {restores};
         DELETE FROM node_lease; COMMIT"
    );
    session.batch(&sql, COMMAND_LIMIT).await.map_err(|error| start::failed(place, error))?;
    generation(&session, place).await
}

/// Changes where the leases are kept, with all nodes down; epochs go on above the highest one that was used.
///
/// # Errors
/// As [`OpenError`] lists; [`OpenError::Command`] while a node is registered, or if the leases are in an etcd that nobody has
/// looked into.
pub async fn switch_leases(database: &str, options: &Options, nodes: &NodesInEtcd) -> Result<(), OpenError> {
    let (session, dialer) = open(database, options).await?;
    let failed = |error| start::failed(dialer.place(), error);
    let (old_mode, old_cluster) = kept_in(&session, dialer.place(), nodes).await?;
    let (mode, cluster) = options.lease_mode.stored();
    let sql = "UPDATE cluster_meta SET lease_mode = $1, etcd_cluster_id = $2,
               epoch_base = GREATEST(epoch_base, (SELECT coalesce(max(epoch), 0) FROM conv_head))
               WHERE NOT EXISTS (SELECT 1 FROM node_lease)
                 AND lease_mode IS NOT DISTINCT FROM $3 AND etcd_cluster_id IS NOT DISTINCT FROM $4";
    if session.execute(sql, &[&mode, &cluster, &old_mode, &old_cluster]).await.map_err(failed)? == 1 {
        return Ok(());
    }
    let rows = session.query("SELECT DISTINCT node_name FROM node_lease ORDER BY 1", &[]).await.map_err(failed)?;
    let names: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    let asked = LeaseMode::describe(mode, cluster.as_deref());
    if names.is_empty() {
        let text = format!("somebody else has moved the leases meanwhile; they were to move to {asked}");
        return Err(OpenError::Command(text));
    }
    Err(OpenError::Command(format!(
        "leases cannot move to {asked} while nodes are registered: {}; stop them first",
        names.join(", ")
    )))
}

/// Where the leases are, as the database keeps it: the mode, if a node has recorded one, and etcd's id. Refuses if they are in
/// an etcd of which nothing is known.
async fn kept_in(
    session: &Session,
    place: &str,
    nodes: &NodesInEtcd,
) -> Result<(Option<String>, Option<String>), OpenError> {
    let row = session.first("SELECT lease_mode, etcd_cluster_id FROM cluster_meta", &[]).await;
    let row = row.map_err(|error| start::failed(place, error))?;
    let row =
        row.ok_or_else(|| start::failed(place, StoreError::Damaged("cluster_meta is empty".to_owned()).into()))?;
    let (mode, cluster): (Option<String>, Option<String>) = (row.get(0), row.get(1));
    let NodesInEtcd::NoneIn(seen) = nodes else { return Ok((mode, cluster)) };
    let seen: Vec<_> = seen.iter().map(|id| LeaseMode::Etcd { cluster_id: *id }.stored().1).collect();
    if mode.as_deref() != Some("etcd") || seen.contains(&cluster) {
        return Ok((mode, cluster));
    }
    let kept = LeaseMode::describe("etcd", cluster.as_deref());
    let seen: Vec<&str> = seen.iter().flatten().map(String::as_str).collect();
    let looked = match &seen[..] {
        [] => "nobody has looked there for nodes that run".to_owned(),
        seen => format!("what was looked into is the etcd cluster {}", seen.join(" and ")),
    };
    Err(OpenError::Command(format!(
        "the leases are in {kept}, and {looked}; name it with --from etcd://…, or say --etcd-is-lost if it is lost for \
         good and all nodes are stopped"
    )))
}

/// The database's own name, which its tables were written under.
///
/// # Errors
/// As [`OpenError`] lists.
pub async fn system_id(database: &str, options: &Options) -> Result<String, OpenError> {
    let (session, dialer) = open(database, options).await?;
    Ok(start::system_ids(&session, dialer.place()).await?.0)
}

async fn open(database: &str, options: &Options) -> Result<(Session, Dialer), OpenError> {
    let dialer = Dialer::new(url::parse(database)?, options.node.to_string(), options.durability);
    let session = start::prepare(&dialer, options).await?;
    Ok((session, dialer))
}

async fn generation(session: &Session, place: &str) -> Result<Generation, OpenError> {
    let row = session.first("SELECT store_gen()", &[]).await.map_err(|error| start::failed(place, error))?;
    let row = row.ok_or_else(|| start::failed(place, StoreError::Damaged("no generation".to_owned()).into()))?;
    Ok(Generation::from_i64(row.get(0)))
}
