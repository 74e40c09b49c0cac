//! `conch bench failover`: what the loss, the pause and the restart of a node cost its clients, on three real nodes.
//!
//! Invariant: each try is a conversation of its own, and ends with all nodes back and seen by each other, so that no try
//! profits or suffers from the one before.

mod load;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use conch_server::config::StoreUrl;
use rustix::process::Signal;
use serde::Serialize;

use self::load::{Seen, create, message, send_on};
use super::cluster::{Cluster, Plan};
use super::histogram::{Histogram, Percentiles};
use super::{FailoverArgs, progress, report};
use crate::client::{HttpClient, deliver};
use crate::exit::Failure;
use crate::local;
use crate::output::Output;

/// How many nodes.
const NODES: usize = 3;
/// How long a send may take until another node accepts it.
const ACCEPT_MAX: Duration = Duration::from_secs(120);
/// Sends of each kind that the cost of forwarding is taken from.
const FORWARDED: usize = 500;

/// The result.
#[derive(Debug, Serialize)]
struct Report {
    nodes: usize,
    /// From the owner's kill -9 to a write that another node accepted.
    killed: Percentiles,
    /// From the owner's SIGSTOP to the same.
    stopped: Percentiles,
    rolling: Rolling,
    forwarding: Forwarding,
}

/// Every node was restarted, one after the other, while clients sent.
#[derive(Debug, Serialize)]
struct Rolling {
    sends: Percentiles,
    /// Answers that were refusals.
    refused: u64,
    /// Attempts on a node that was gone.
    moved: u64,
    /// Nodes that did not end with exit code 0.
    not_in_order: u64,
}

/// Sends of one client at a time.
#[derive(Debug, Serialize)]
struct Forwarding {
    /// To the owner itself.
    direct: Percentiles,
    /// To another node, which passes them on.
    forwarded: Percentiles,
    /// The difference of the medians.
    added_p50_ms: f64,
}

pub(super) async fn run(args: &FailoverArgs, output: &Output) -> Result<(), Failure> {
    let config = local::config_of_store(args.store.store.as_deref()).map_err(Failure::usage)?;
    let StoreUrl::Postgres(url) = &config.store else {
        return Err(Failure::usage(format!("--store {}: three nodes need a postgres:// store", config.store)));
    };
    let token = local::bench_token(url.expose()).map_err(Failure::usage)?;
    let store = url.expose().to_owned();
    let plan = Plan { store, token, secret: None, nodes: NODES, settings: Vec::new() };
    let mut cluster = Cluster::start(plan).await?;
    let forwarding = forwarding(&cluster).await?;
    let rolling = rolling(&mut cluster, args.clients).await?;
    let killed = tries(&mut cluster, args.kills, Signal::KILL).await?;
    let stopped = tries(&mut cluster, args.stops, Signal::STOP).await?;
    let result = Report { nodes: NODES, killed, stopped, rolling, forwarding };
    report(output, &result, &rows(&result))
}

fn rows(result: &Report) -> Vec<(String, String)> {
    let shown = |name: &str, figures: &Percentiles| {
        let Percentiles { count, p50_ms, p99_ms, max_ms } = figures;
        (name.to_owned(), format!("p50 {p50_ms:.1} ms  p99 {p99_ms:.1} ms  max {max_ms:.1} ms  ({count})"))
    };
    let Report { killed, stopped, rolling, forwarding, .. } = result;
    let Rolling { refused, moved, not_in_order, .. } = rolling;
    vec![
        shown("kill -9 to a write elsewhere", killed),
        shown("SIGSTOP to a write elsewhere", stopped),
        shown("rolling restart, send to ack", &rolling.sends),
        ("rolling restart".to_owned(), format!("{refused} refused, {moved} moved on, {not_in_order} not in order")),
        shown("direct", &forwarding.direct),
        shown("forwarded", &forwarding.forwarded),
        ("forwarding adds".to_owned(), format!("{:.2} ms p50", forwarding.added_p50_ms)),
    ]
}

fn name(what: &str) -> String {
    format!("bench-{what}:{}", uuid::Uuid::now_v7())
}

async fn forwarding(cluster: &Cluster) -> Result<Forwarding, Failure> {
    let conversation = name("forward");
    create(&cluster.nodes[0].client, &conversation).await?;
    cluster.nodes[0].client.attempt(&message(&conversation)).await?;
    let owner = cluster.owner(&conversation).await?;
    let other = (owner + 1) % NODES;
    // In turn, so that both see the same machine. The first ones warm the way.
    let mut times = [Histogram::default(), Histogram::default()];
    let mut exact = [Vec::with_capacity(FORWARDED), Vec::with_capacity(FORWARDED)];
    for round in 0..FORWARDED + FORWARDED / 10 {
        for ((index, times), exact) in [owner, other].into_iter().zip(&mut times).zip(&mut exact) {
            let begun = Instant::now();
            cluster.nodes[index].client.attempt(&message(&conversation)).await?;
            if round >= FORWARDED / 10 {
                times.add(begun.elapsed());
                exact.push(begun.elapsed());
            }
        }
    }
    let [direct, forwarded] = times.map(|times| times.percentiles());
    // Not from the histograms: a bucket of theirs may be wider than what is looked for.
    let [of_direct, of_forwarded] = exact.map(median_ms);
    Ok(Forwarding { direct, forwarded, added_p50_ms: of_forwarded - of_direct })
}

/// 0 of nothing.
fn median_ms(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times.get(times.len() / 2).map_or(0.0, |time| time.as_secs_f64() * 1e3)
}

async fn rolling(cluster: &mut Cluster, clients: u32) -> Result<Rolling, Failure> {
    progress("rolling restart");
    let ways: Arc<[HttpClient]> = cluster.nodes.iter().map(|node| node.client.clone()).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for number in 0..clients as usize {
        let conversation = name("rolling");
        create(&ways[number % NODES], &conversation).await?;
        tasks.push(tokio::spawn(send_on(Arc::clone(&ways), conversation, number, Arc::clone(&stop))));
    }
    let mut not_in_order = 0;
    for index in 0..NODES {
        cluster.signal(index, Signal::TERM)?;
        not_in_order += u64::from(!cluster.ended(index).await?.success());
        cluster.restart(index).await?;
    }
    stop.store(true, Ordering::Relaxed);
    let mut all = Seen::default();
    for task in tasks {
        let seen = task.await.map_err(|error| Failure::other(format!("a client ended: {error}")))?;
        all.acks.merge(&seen.acks);
        all.refused += seen.refused;
        all.moved += seen.moved;
    }
    let Seen { acks, refused, moved } = all;
    Ok(Rolling { sends: acks.percentiles(), refused, moved, not_in_order })
}

/// From this signal to the owner to a write that another node accepts.
async fn tries(cluster: &mut Cluster, tries: u32, signal: Signal) -> Result<Percentiles, Failure> {
    let mut times = Histogram::default();
    for number in 1..=tries {
        let conversation = name("failover");
        let any = &cluster.nodes[number as usize % NODES].client;
        create(any, &conversation).await?;
        any.attempt(&message(&conversation)).await?;
        let owner = cluster.owner(&conversation).await?;
        let elsewhere = cluster.nodes[(owner + 1) % NODES].client.clone();
        let begun = Instant::now();
        cluster.signal(owner, signal)?;
        deliver(&elsewhere, &message(&conversation), ACCEPT_MAX, &mut |_| {}).await?;
        let took = begun.elapsed();
        times.add(took);
        let what = if signal == Signal::STOP { "SIGSTOP" } else { "kill -9" };
        progress(&format!("{what} {number} of {tries}: {} ms", took.as_millis()));
        if signal == Signal::STOP {
            // It finds its row gone and ends by itself.
            cluster.signal(owner, Signal::CONT)?;
        }
        cluster.ended(owner).await?;
        cluster.restart(owner).await?;
    }
    Ok(times.percentiles())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_the_middle_one() {
        let times = [9, 1, 5].map(Duration::from_millis).to_vec();
        assert!((median_ms(times) - 5.0).abs() < 1e-9);
        assert!(median_ms(Vec::new()).abs() < 1e-9);
    }
}
