//! `conch bench turns`: what agents' answers cost, with a model of the bench's own that says when it wrote each delta.
//!
//! Invariants: each measurement has stores, nodes and a model of its own; every figure that has a baseline stands beside one
//! of the same run. The model and those who watch share a process, so that what they lack of the machine counts against the
//! server.

mod deltas;
mod flood;
mod model;
mod nodes;
mod storage;
mod streaming;
mod thaw;
mod viewer;

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use futures_util::{StreamExt, stream};
use serde::Serialize;
use tokio::task::JoinSet;

use self::model::Order;
use self::viewer::{Seen, Viewer};
use super::ground::Ground;
use super::histogram::Percentiles;
use super::{TurnsArgs, TurnsPart, progress, report};
use crate::exit::Failure;
use crate::output::Output;

/// What was measured.
#[derive(Debug, Default, Serialize)]
struct Report {
    bench: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    deltas: Option<deltas::Report>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thaw: Option<thaw::Report>,
    #[serde(skip_serializing_if = "Option::is_none")]
    streaming: Option<streaming::Report>,
    #[serde(skip_serializing_if = "Option::is_none")]
    storage: Option<storage::Report>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flood: Option<flood::Report>,
}

pub(super) async fn run(args: &TurnsArgs, output: &Output) -> Result<(), Failure> {
    let mut ground = match &args.store {
        Some(store) => Ground::database(store)?,
        None => Ground::disk(&beside(args))?,
    };
    let result = measure(args, &mut ground).await;
    ground.clear().await;
    let result = result?;
    report(output, &result, &rows(&result))
}

async fn measure(args: &TurnsArgs, ground: &mut Ground) -> Result<Report, Failure> {
    let mut report = Report { bench: "turns", ..Report::default() };
    for part in TurnsPart::value_variants() {
        if !args.only.is_empty() && !args.only.contains(part) {
            continue;
        }
        progress(&format!("{part:?}").to_lowercase());
        match part {
            TurnsPart::Deltas => report.deltas = Some(deltas::run(args, ground).await?),
            TurnsPart::Thaw => report.thaw = Some(thaw::run(args, ground).await?),
            TurnsPart::Streaming => report.streaming = Some(streaming::run(args, ground).await?),
            TurnsPart::Storage => report.storage = Some(storage::run(args, ground).await?),
            TurnsPart::Flood => report.flood = Some(flood::run(args, ground).await?),
        }
    }
    Ok(report)
}

/// Where directories are made.
fn beside(args: &TurnsArgs) -> PathBuf {
    args.dir.clone().unwrap_or_else(std::env::temp_dir)
}

/// An input that orders this.
fn order_text(order: Order) -> String {
    serde_json::to_string(&order).expect("numbers and names always serialise")
}

/// Starts turns of one order, so many at a time, and watches each from its start to its end.
async fn watch_all<F>(
    starts: impl Iterator<Item = F>,
    at_once: usize,
    order: Order,
    limit: Duration,
) -> Result<Seen, Failure>
where
    F: Future<Output = Result<(Viewer, u64), Failure>>,
{
    let mut watching = JoinSet::new();
    let mut starts = stream::iter(starts).buffer_unordered(at_once);
    while let Some(started) = starts.next().await {
        let (mut viewer, turn) = started?;
        watching.spawn(async move { viewer.until_end_of(turn, limit).await });
    }
    let mut all = Seen::default();
    for seen in join(watching).await? {
        all.merge(&seen);
        all.incomplete += u64::from(seen.answered != u64::from(order.deltas));
    }
    Ok(all)
}

/// What all tasks found; the first failure ends the others.
async fn join<T: Send + 'static>(mut tasks: JoinSet<Result<T, Failure>>) -> Result<Vec<T>, Failure> {
    let mut all = Vec::with_capacity(tasks.len());
    while let Some(done) = tasks.join_next().await {
        all.push(done.map_err(|error| Failure::other(format!("a reader ended: {error}")))??);
    }
    Ok(all)
}

fn times(figures: &Percentiles) -> String {
    let Percentiles { count, p50_ms, p99_ms, max_ms } = figures;
    format!("p50 {p50_ms:.2} ms  p99 {p99_ms:.2} ms  max {max_ms:.2} ms  ({count})")
}

fn rows(result: &Report) -> Vec<(String, String)> {
    let mut rows = Vec::new();
    let mut row = |name: &str, value: String| rows.push((name.to_owned(), value));
    if let Some(deltas) = &result.deltas {
        row(&format!("deltas, model to viewer over {} nodes", deltas.nodes), times(&deltas.delivery));
        row("deltas, model to a bare reader", times(&deltas.bare));
        row("deltas, added p99 (target: at most 10 ms)", format!("{:.2} ms", deltas.added_p99_ms));
        row("deltas", format!("{} missing, {} answers incomplete", deltas.missing, deltas.incomplete));
    }
    if let Some(thaw) = &result.thaw {
        row(&format!("thaw of {} records, send to ack (target: p99 at most 50 ms)", thaw.records), times(&thaw.long));
        row(&format!("thaw of {} records, send to ack", thaw.short_records), times(&thaw.short));
        row(&format!("… of {}, by a process that has just started", thaw.records), times(&thaw.fresh_long));
        row(&format!("… of {}", thaw.short_records), times(&thaw.fresh_short));
        row("thaw, the first one, without a checkpoint", format!("{:.1} ms", thaw.first_ms));
        if let Some(read) = &thaw.rows_read {
            row("thaw, rows read", format!("{} beside {}", read.long, read.short));
        }
    }
    if let Some(streaming) = &result.streaming {
        let streaming::Report { turns, completed, missing, incomplete, .. } = streaming;
        row(
            "streaming",
            format!("{completed} of {turns} completed, {missing} deltas missing, {incomplete} incomplete"),
        );
        row("streaming, deltas a second", format!("{:.0}", streaming.deltas_per_second));
        row("streaming, server CPU per 1,000 deltas", format!("{:.3} s", streaming.cpu_seconds_per_1000_deltas));
        row("streaming, memory per running turn", format!("{} bytes", streaming.memory_bytes_per_running_turn));
        row("streaming, model to viewer", times(&streaming.delivery));
        row("streaming, model to bare readers", times(&streaming.bare));
    }
    if let Some(storage) = &result.storage {
        let quarters: Vec<String> = storage.bytes_per_turn.iter().map(|bytes| format!("{bytes:.0}")).collect();
        row(&format!("storage of {} turns, bytes a turn by quarter", storage.turns), quarters.join("  "));
        row("storage, last quarter to first (target: at most 1.05)", format!("{:.3}", storage.last_to_first));
        let checkpoints: Vec<String> = storage.checkpoint_bytes.iter().map(u64::to_string).collect();
        row("storage, bytes of the checkpoint", checkpoints.join("  "));
        let pace: Vec<String> = storage.turns_per_second.iter().map(|pace| format!("{pace:.1}")).collect();
        row("storage, turns a second", pace.join("  "));
    }
    if let Some(flood) = &result.flood {
        row(
            &format!("flood of {} deltas a second", flood.deltas_per_second),
            format!(
                "{} of {} shown, in {} events, {} of them snapshots",
                flood.shown, flood.said, flood.events, flood.snapshots
            ),
        );
        row("flood, deltas in the answer", format!("{} of {}", flood.answered, flood.said));
        row("flood, model to viewer", times(&flood.delivery));
        row("flood, model to a bare reader", times(&flood.bare));
        row("flood, /livez", format!("{}, {} failed", times(&flood.livez), flood.livez_failed));
        let grown = flood.memory_bytes_grown as f64 / 1_048_576.0;
        row("flood, server", format!("{:.2} s of CPU, memory + {grown:.1} MiB", flood.server_cpu_seconds));
    }
    rows
}
