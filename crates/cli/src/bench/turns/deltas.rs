//! From the model's socket to a viewer's: turns of one node, watched on another, in rounds that alternate with bare readers
//! of the same model.

use std::time::Duration;

use serde::Serialize;

use super::model::{Model, Order};
use super::nodes::{Node, seen};
use super::viewer::{Seen, Viewer, read_bare};
use super::{join, watch_all};
use crate::bench::ground::Ground;
use crate::bench::histogram::{Histogram, Percentiles};
use crate::bench::{TurnsArgs, process, progress};
use crate::exit::Failure;

/// How long a round may take beyond what the model takes.
const SPARE: Duration = Duration::from_secs(60);

#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) nodes: usize,
    pub(super) streams: u32,
    pub(super) deltas_per_second: u32,
    /// Of all rounds.
    pub(super) delivery: Percentiles,
    pub(super) bare: Percentiles,
    /// What the server adds to the bare readers' p99; negative where that is within the spread.
    pub(super) added_p99_ms: f64,
    /// Deltas that no viewer saw.
    pub(super) missing: u64,
    /// Turns whose answer is not all that the model said.
    pub(super) incomplete: u64,
    pub(super) rounds: Vec<Round>,
}

#[derive(Debug, Serialize)]
pub(super) struct Round {
    pub(super) delivery: Percentiles,
    pub(super) bare: Percentiles,
}

pub(super) async fn run(args: &TurnsArgs, ground: &mut Ground) -> Result<Report, Failure> {
    let store = ground.store("deltas").await?;
    let model = Model::start().await?;
    let mut nodes = Vec::new();
    let count = if ground.area().is_some() { 2 } else { 1 };
    for number in 1..=count {
        nodes.push(Node::start(&super::beside(args), &store, model.address(), number).await?);
    }
    seen(&nodes).await?;
    let order = Order::paced(args.rate * args.seconds, args.rate);
    let expected = u64::from(order.deltas) * u64::from(args.streams);
    let (mut all, mut all_bare, mut rounds) = (Seen::default(), Histogram::default(), Vec::new());
    for number in 1..=args.rounds {
        let seen = round(args, &nodes, order).await?;
        let bare = bare_round(args, &model, order).await?;
        let round = Round { delivery: seen.latency.percentiles(), bare: bare.percentiles() };
        progress(&format!(
            "deltas, round {number}: p50 {:.2} ms, p99 {:.2} ms; bare p50 {:.2} ms, p99 {:.2} ms",
            round.delivery.p50_ms, round.delivery.p99_ms, round.bare.p50_ms, round.bare.p99_ms
        ));
        all.merge(&seen);
        all_bare.merge(&bare);
        rounds.push(round);
    }
    let (delivery, bare) = (all.latency.percentiles(), all_bare.percentiles());
    let said = expected * u64::from(args.rounds);
    Ok(Report {
        nodes: count,
        streams: args.streams,
        deltas_per_second: args.rate,
        delivery,
        bare,
        added_p99_ms: delivery.p99_ms - bare.p99_ms,
        missing: said.saturating_sub(all.latency.count()),
        incomplete: all.incomplete,
        rounds,
    })
}

/// As many turns at once as there are streams, owned by the first node, watched on the last.
async fn round(args: &TurnsArgs, nodes: &[Node], order: Order) -> Result<Seen, Failure> {
    let (Some(owner), Some(watched)) = (nodes.first(), nodes.last()) else {
        return Err(Failure::other("there is a node"));
    };
    let limit = Duration::from_secs(u64::from(args.seconds)) + SPARE;
    let run = process::shared_now_ns();
    let mut viewers = Vec::new();
    for number in 0..args.streams {
        let conversation = format!("deltas-{run}-{number}");
        owner.session(&conversation).await?;
        // Whoever writes first owns it; and what is there once is there.
        let turn = owner.order(&conversation, Order::paced(1, 0)).await?;
        owner.end_of(&conversation, turn).await?;
        if !owner.owns(&conversation).await? {
            return Err(Failure::other(format!("{conversation} is not owned by the node that it was written to")));
        }
        let viewer = Viewer::join(watched.endpoint(), &conversation).await?;
        viewers.push((conversation, viewer));
    }
    let starts = viewers.into_iter().map(|(conversation, viewer)| async move {
        let turn = owner.order(&conversation, order).await?;
        Ok::<_, Failure>((viewer, turn))
    });
    watch_all(starts, args.streams as usize, order, limit).await
}

async fn bare_round(args: &TurnsArgs, model: &Model, order: Order) -> Result<Histogram, Failure> {
    let mut readers = tokio::task::JoinSet::new();
    for _ in 0..args.streams {
        readers.spawn(read_bare(model.address(), order));
    }
    let mut all = Histogram::default();
    for latency in join(readers).await? {
        all.merge(&latency);
    }
    Ok(all)
}
