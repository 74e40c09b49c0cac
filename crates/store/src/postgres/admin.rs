//! What an operator does to a database: a restored backup is declared, the leases' place is changed.
//!
//! Invariant: neither goes below a number that was ever used.

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

/// Declares that this database was restored from a backup, or is a copy that now takes the original's place. `above` is the
/// highest generation that clients may have seen (the number after the dot in a log's id); the new one is above it. Node
/// rows are deleted: they are of the time of the backup, and a node that still lives has to start anew.
///
/// # Errors
/// As [`OpenError`] lists; [`OpenError::Command`] if `above` is below the database's own generation.
pub async fn restored(database: &str, options: &Options, above: u64) -> Result<Generation, OpenError> {
    let (session, dialer) = open(database, options).await?;
    let place = dialer.place();
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
/// As [`OpenError`] lists; [`OpenError::Command`] while a node is registered.
pub async fn switch_leases(database: &str, options: &Options) -> Result<(), OpenError> {
    let (session, dialer) = open(database, options).await?;
    let failed = |error| start::failed(dialer.place(), error);
    let (mode, cluster) = options.lease_mode.stored();
    let sql = "UPDATE cluster_meta SET lease_mode = $1, etcd_cluster_id = $2,
               epoch_base = GREATEST(epoch_base, (SELECT coalesce(max(epoch), 0) FROM conv_head))
               WHERE NOT EXISTS (SELECT 1 FROM node_lease)";
    if session.execute(sql, &[&mode, &cluster]).await.map_err(failed)? == 1 {
        return Ok(());
    }
    let rows = session.query("SELECT DISTINCT node_name FROM node_lease ORDER BY 1", &[]).await.map_err(failed)?;
    let names: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    let asked = LeaseMode::describe(mode, cluster.as_deref());
    Err(OpenError::Command(format!(
        "leases cannot move to {asked} while nodes are registered: {}; stop them first",
        names.join(", ")
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
    let dialer = Dialer::new(url::parse(database)?, options.node.to_string());
    let session = start::prepare(&dialer, options).await?;
    Ok((session, dialer))
}

async fn generation(session: &Session, place: &str) -> Result<Generation, OpenError> {
    let row = session.first("SELECT store_gen()", &[]).await.map_err(|error| start::failed(place, error))?;
    let row = row.ok_or_else(|| start::failed(place, StoreError::Damaged("no generation".to_owned()).into()))?;
    Ok(Generation::from_i64(row.get(0)))
}
