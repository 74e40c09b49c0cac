//! A model that says far too much at once: what of it arrives, whether the node lives, and whether the answer is whole.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Serialize;

use super::model::{Model, Order};
use super::nodes::Node;
use super::viewer::{Viewer, read_bare};
use crate::bench::ground::Ground;
use crate::bench::histogram::{Histogram, Percentiles};
use crate::bench::{TurnsArgs, process, progress};
use crate::exit::Failure;

/// For how long it speaks, in seconds.
const SECONDS: u32 = 3;
/// How long the turn may take.
const TURN_MAX: Duration = Duration::from_secs(120);
/// How often the node is asked whether it is alive.
const POLL: Duration = Duration::from_millis(50);

#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) deltas_per_second: u32,
    pub(super) said: u64,
    /// Deltas that the viewer was shown before the end, in a delta or a snapshot.
    pub(super) shown: u64,
    /// Events that they came in.
    pub(super) events: u64,
    pub(super) snapshots: u64,
    /// Deltas in the answer.
    pub(super) answered: u64,
    pub(super) delivery: Percentiles,
    pub(super) bare: Percentiles,
    /// What /livez took meanwhile.
    pub(super) livez: Percentiles,
    pub(super) livez_failed: u64,
    pub(super) server_cpu_seconds: f64,
    pub(super) memory_bytes_grown: u64,
}

pub(super) async fn run(args: &TurnsArgs, ground: &mut Ground) -> Result<Report, Failure> {
    let store = ground.store("flood").await?;
    let model = Model::start().await?;
    let node = Arc::new(Node::start(&super::beside(args), &store, model.address(), 1).await?);
    let order = Order::paced(args.flood * SECONDS, args.flood);
    node.session("flood").await?;
    let turn = node.order("flood", Order::paced(1, 0)).await?;
    node.end_of("flood", turn).await?;
    let mut viewer = Viewer::join(node.endpoint(), "flood").await?;
    let (memory, cpu) = (process::resident_bytes(node.pid())?, process::cpu(node.pid())?);
    let over = Arc::new(AtomicBool::new(false));
    let watching = tokio::spawn(watch_life(Arc::clone(&node), Arc::clone(&over)));
    let turn = node.order("flood", order).await?;
    let seen = viewer.until_end_of(turn, TURN_MAX).await;
    over.store(true, Ordering::Relaxed);
    let (livez, livez_failed) = watching.await.map_err(|error| Failure::other(error.to_string()))?;
    let seen = seen?;
    let server_cpu_seconds = process::cpu(node.pid())?.saturating_sub(cpu).as_secs_f64();
    let memory_bytes_grown = process::resident_bytes(node.pid())?.saturating_sub(memory);
    progress(&format!("flood: {} of {} deltas were shown", seen.latency.count(), order.deltas));
    Ok(Report {
        deltas_per_second: args.flood,
        said: order.deltas.into(),
        shown: seen.latency.count(),
        events: seen.events,
        snapshots: seen.snapshots,
        answered: seen.answered,
        delivery: seen.latency.percentiles(),
        bare: read_bare(model.address(), order).await?.percentiles(),
        livez: livez.percentiles(),
        livez_failed,
        server_cpu_seconds,
        memory_bytes_grown,
    })
}

/// Asks again and again whether the node is alive: how long the answers took, and how many were none.
async fn watch_life(node: Arc<Node>, over: Arc<AtomicBool>) -> (Histogram, u64) {
    let (mut took, mut failed) = (Histogram::default(), 0);
    while !over.load(Ordering::Relaxed) {
        match node.alive().await {
            Ok(answered) => took.add(answered),
            Err(_) => failed += 1,
        }
        tokio::time::sleep(POLL).await;
    }
    (took, failed)
}
