//! What turns take on disk: one conversation, turn after turn, each with a model call, a tool call and an answer; bytes a turn in
//! each quarter. Growth that is linear in the log shows as four times the same.

use std::path::Path;
use std::time::{Duration, Instant};

use conch_server::config::StoreUrl;
use conch_store::{Size, sqlite};
use serde::Serialize;

use super::model::{First, Model, Order};
use super::nodes::Node;
use super::viewer::Viewer;
use crate::bench::ground::Ground;
use crate::bench::{TurnsArgs, progress};
use crate::exit::Failure;
use crate::local;

/// Deltas of an answer.
const DELTAS: u32 = 20;
/// How long one turn may take.
const TURN_MAX: Duration = Duration::from_secs(60);
/// How long the viewer is silent at most.
const HEARTBEAT: Duration = Duration::from_secs(20);
/// Parts of the history that are compared.
const QUARTERS: u32 = 4;

#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) turns: u32,
    /// By quarter.
    pub(super) bytes_per_turn: Vec<f64>,
    /// The last quarter's over the first's.
    pub(super) last_to_first: f64,
    /// At the end of each quarter.
    pub(super) checkpoint_bytes: Vec<u64>,
    /// By quarter.
    pub(super) turns_per_second: Vec<f64>,
}

pub(super) async fn run(args: &TurnsArgs, ground: &mut Ground) -> Result<Report, Failure> {
    let store = ground.store("storage").await?;
    let model = Model::start().await?;
    let node = Node::start(&super::beside(args), &store, model.address(), 1).await?;
    let order = Order { deltas: DELTAS, rate: 0, first: First::Call };
    node.session("storage").await?;
    let mut viewer = Viewer::join(node.endpoint(), "storage").await?;
    // The tables' first pages are not the turns'.
    let turn = node.order("storage", order).await?;
    viewer.until_end_of(turn, TURN_MAX).await?;
    let mut before = size(ground, &store).await?;
    let (mut beat, mut done) = (Instant::now(), 0);
    let (mut bytes_per_turn, mut checkpoint_bytes, mut turns_per_second) = (Vec::new(), Vec::new(), Vec::new());
    for quarter in 1..=QUARTERS {
        let (until, begun) = (args.history * quarter / QUARTERS, Instant::now());
        let turns = f64::from(until - done);
        while done < until {
            let turn = node.order("storage", order).await?;
            viewer.until_end_of(turn, TURN_MAX).await?;
            done += 1;
            if beat.elapsed() > HEARTBEAT {
                viewer.heartbeat().await?;
                beat = Instant::now();
            }
        }
        turns_per_second.push(turns / begun.elapsed().as_secs_f64());
        let now = size(ground, &store).await?;
        bytes_per_turn.push(now.bytes.saturating_sub(before.bytes) as f64 / turns);
        checkpoint_bytes.push(now.checkpoint_bytes);
        progress(&format!("storage: {done} turns, {} bytes", now.bytes));
        before = now;
    }
    let last_to_first = bytes_per_turn[bytes_per_turn.len() - 1] / bytes_per_turn[0].max(1.0);
    Ok(Report { turns: args.history, bytes_per_turn, last_to_first, checkpoint_bytes, turns_per_second })
}

async fn size(ground: &Ground, store: &str) -> Result<Size, Failure> {
    match ground.area() {
        Some(area) => area.size().await.map_err(|error| Failure::other(error.to_string())),
        None => {
            let config = local::config_of_store(Some(store)).map_err(Failure::usage)?;
            let StoreUrl::Sqlite(directory) = &config.store else {
                return Err(Failure::other("a store on a disk is a directory"));
            };
            of_directory(directory)
        }
    }
}

fn of_directory(directory: &Path) -> Result<Size, Failure> {
    sqlite::size(directory).map_err(|error| Failure::other(error.to_string()))
}
