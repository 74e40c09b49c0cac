//! Many turns at once on one node, each with a viewer.

use std::time::{Duration, Instant};

use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Serialize;

use super::model::{Model, Order};
use super::nodes::Node;
use super::viewer::{Viewer, read_bare};
use super::{join, watch_all};
use crate::bench::ground::Ground;
use crate::bench::histogram::{Histogram, Percentiles};
use crate::bench::{TurnsArgs, process, progress};
use crate::exit::Failure;

/// Deltas a second of one turn.
const RATE: u32 = 10;
/// Sessions that join, and turns that are started, at the same time.
const AT_ONCE: usize = 64;
/// How long all may take beyond what the model takes.
const SPARE: Duration = Duration::from_secs(120);
/// How long the server is left alone before its memory is read.
const SETTLE: Duration = Duration::from_secs(1);
/// Files that a process needs besides.
const SPARE_FILES: u64 = 500;

#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) turns: u32,
    pub(super) completed: u64,
    /// Turns whose answer is not all that the model said.
    pub(super) incomplete: u64,
    pub(super) deltas: u64,
    pub(super) missing: u64,
    /// From the first start to the last end.
    pub(super) deltas_per_second: f64,
    /// The server's, user and system.
    pub(super) cpu_seconds_per_1000_deltas: f64,
    /// What the server's resident memory grew by from all viewers joined to the middle of all turns.
    pub(super) memory_bytes_per_running_turn: u64,
    pub(super) delivery: Percentiles,
    /// As many bare readers of the model.
    pub(super) bare: Percentiles,
}

pub(super) async fn run(args: &TurnsArgs, ground: &mut Ground) -> Result<Report, Failure> {
    // A process here has the model's and the viewers' ends, the server its own.
    let (files, needed) = (process::open_files_max(), u64::from(args.turns) * 2 + SPARE_FILES);
    if needed > files {
        return Err(Failure::usage(format!(
            "--turns: {needed} open files are needed for {} turns, and a process may have {files} here",
            args.turns
        )));
    }
    let store = ground.store("streaming").await?;
    let model = Model::start().await?;
    let node = Node::start(&super::beside(args), &store, model.address(), 1).await?;
    let order = Order::paced(RATE * args.seconds, RATE);
    let node = &node;
    let joins = (0..args.turns).map(|number| async move {
        let conversation = format!("streaming-{number}");
        node.session(&conversation).await?;
        let viewer = Viewer::join(node.endpoint(), &conversation).await?;
        Ok::<_, Failure>((conversation, viewer))
    });
    progress(&format!("streaming: {} viewers join", args.turns));
    let viewers: Vec<(String, Viewer)> = stream::iter(joins).buffer_unordered(AT_ONCE).try_collect().await?;
    tokio::time::sleep(SETTLE).await;
    let (memory, cpu, begun) = (process::resident_bytes(node.pid())?, process::cpu(node.pid())?, Instant::now());
    let starts = viewers.into_iter().map(|(conversation, viewer)| async move {
        let turn = node.order(&conversation, order).await?;
        Ok::<_, Failure>((viewer, turn))
    });
    let limit = Duration::from_secs(args.seconds.into()) + SPARE;
    let middle = async {
        tokio::time::sleep(Duration::from_secs(args.seconds.into()).mul_f64(0.8)).await;
        process::resident_bytes(node.pid())
    };
    let (seen, middle) = tokio::join!(watch_all(starts, AT_ONCE, order, limit), middle);
    let (seen, took) = (seen?, begun.elapsed());
    let cpu = process::cpu(node.pid())?.saturating_sub(cpu);
    let deltas = seen.latency.count();
    let said = u64::from(order.deltas) * u64::from(args.turns);
    progress(&format!("streaming: {} turns completed, {deltas} deltas of {said}", seen.completed));
    Ok(Report {
        turns: args.turns,
        completed: seen.completed,
        incomplete: seen.incomplete,
        deltas,
        missing: said.saturating_sub(deltas),
        deltas_per_second: deltas as f64 / took.as_secs_f64(),
        cpu_seconds_per_1000_deltas: cpu.as_secs_f64() * 1e3 / deltas.max(1) as f64,
        memory_bytes_per_running_turn: middle?.saturating_sub(memory) / u64::from(args.turns),
        delivery: seen.latency.percentiles(),
        bare: bare(args, &model, order).await?,
    })
}

async fn bare(args: &TurnsArgs, model: &Model, order: Order) -> Result<Percentiles, Failure> {
    let mut readers = tokio::task::JoinSet::new();
    for _ in 0..args.turns {
        readers.spawn(read_bare(model.address(), order));
    }
    let mut all = Histogram::default();
    for latency in join(readers).await? {
        all.merge(&latency);
    }
    Ok(all.percentiles())
}
