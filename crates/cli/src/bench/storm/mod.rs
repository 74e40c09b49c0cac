//! `conch bench storm`: a gateway goes, and its sessions come back to the others.
//!
//! Invariant: each session says at the end whether it has every message of the channel since its first join, over the loss of its
//! socket. `--model` needs no server, and shows the arithmetic.

mod model;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use rustix::process::Signal;
use serde::Serialize;

use self::model::{Course, Parameters};
use super::gateways::{Crowd, Gateways};
use super::histogram::Percentiles;
use super::load::{Checked, Question};
use super::messages::{Sender, Sent};
use super::plot::{Line, Plot, Side};
use super::ramp::Growth;
use super::sessions::Sessions;
use super::timeline::{Step, Timeline};
use super::{progress, report};
use crate::exit::Failure;
use crate::output::Output;

/// How long all may take to join at the beginning.
const JOIN_MAX: Duration = Duration::from_secs(300);
/// Seconds for which it goes on once all are back.
const AFTER_S: f64 = 5.0;
/// How long the last messages may take to arrive.
const ARRIVE: usize = 30;
/// The load generator waits so long for more after a short batch, in microseconds.
const GATHER_US: u64 = 1_000;
/// Points of one line of the model's drawing.
const POINTS_MAX: usize = 400;
/// What the nodes that are left count meanwhile.
const METRICS: [&str; 9] = [
    "conch_catch_ups_total",
    "conch_catch_up_reads_total",
    "conch_catch_up_shared_total",
    "conch_catch_up_waits_total",
    "conch_catch_up_resyncs_total",
    "conch_resyncs_total",
    "conch_slow_sessions_total",
    "conch_refusals_total",
    "conch_claims_total",
];

/// Who is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Victim {
    /// A gateway that does not own the channel.
    Gateway,
    /// The one that owns it, so that it is taken over besides.
    Owner,
}

#[derive(Debug, Args)]
pub(super) struct StormArgs {
    /// How many sessions, evenly on all gateways, 1 to 100,000.
    #[arg(long, default_value_t = 30_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    sessions: u32,
    /// How many gateways, 2 to 16.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(2..=16))]
    gateways: u32,
    /// End the gateway with SIGKILL; without it with SIGTERM, so that it sends its clients away itself.
    #[arg(long)]
    kill: bool,
    /// Which one is ended.
    #[arg(long, value_enum, default_value_t = Victim::Gateway)]
    victim: Victim,
    /// Messages a second into the channel, 1 to 1,000.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rate: u32,
    /// Bytes of a message's text, up to 60,000.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(0..=60_000))]
    bytes: u32,
    /// Conversations that each session holds besides the channel, 0 to 99: it resumes all of them.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=99))]
    others: u32,
    /// Seconds before the end of the gateway, 1 to 600.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=600))]
    before: u32,
    /// How long all may take to be back, in seconds, 1 to 600.
    #[arg(long, default_value_t = 120, value_parser = clap::value_parser!(u32).range(1..=600))]
    limit: u32,
    /// The window over which sessions come back, in milliseconds, instead of the one that the server gave: 0 to 600,000.
    #[arg(long, value_parser = clap::value_parser!(u32).range(0..=600_000))]
    jitter_ms: Option<u32>,
    /// The database, postgres://…, with CONCH_AUTH_SECRET, in a schema of the bench's own which is dropped at its end
    /// [default: a PostgreSQL server of the bench's own].
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// A setting of the nodes, as `conch serve --set` takes it; may be given several times.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// No servers, but a model of them: with and without a window (--jitter-ms, by default 30,000).
    #[arg(long, conflicts_with_all = ["kill", "store", "set", "others"])]
    model: bool,
    /// The model: joins a second of one gateway that does nothing else, 1 to 1,000,000.
    #[arg(long, default_value_t = 1_500, requires = "model", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    joins: u32,
    /// The model: range reads a second of one gateway, 1 to 1,000,000.
    #[arg(long, default_value_t = 100, requires = "model", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    reads: u32,
    /// The model: percent of a gateway that deliveries to the sessions it has take, 0 to 99.
    #[arg(long, default_value_t = 60, requires = "model", value_parser = clap::value_parser!(u32).range(0..=99))]
    delivering: u32,
    /// The model: of a thousand sessions so many need a read, 0 to 1,000.
    #[arg(long, default_value_t = 50, requires = "model", value_parser = clap::value_parser!(u32).range(0..=1_000))]
    misses: u32,
    /// The model: what chance begins with.
    #[arg(long, default_value_t = 1, requires = "model")]
    seed: u64,
    /// Draws it into this file, as SVG.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
struct Report {
    bench: &'static str,
    gateways: usize,
    sessions: usize,
    conversations_per_session: usize,
    ended_with: &'static str,
    victim: Victim,
    rate_per_second: u32,
    jitter_ms: Option<u64>,
    sent: u64,
    refused: u64,
    unknown_sends: u64,
    /// Sockets that were lost.
    lost: u64,
    returned: u64,
    /// From the signal; `None`: not within the limit.
    all_back_s: Option<f64>,
    /// From the loss of a session's socket to having been caught up.
    back: Percentiles,
    attempts_refused: u64,
    gave_up: u64,
    last_reason: Option<String>,
    sessions_checked: Checked,
    out_of_order: u64,
    resyncs: u64,
    /// Deliveries before the signal.
    before: Percentiles,
    /// Those from the signal until all were back, to sessions that kept their socket.
    others: Percentiles,
    /// What the nodes that are left counted from the signal on.
    metrics: Vec<(&'static str, Option<f64>)>,
    /// When the gateway was ended.
    signal_at_s: f64,
    steps: Vec<Step>,
}

/// What the model says.
#[derive(Debug, Serialize)]
struct Modelled {
    bench: &'static str,
    parameters: Parameters,
    with_window: Course,
    at_once: Course,
}

pub(super) async fn run(args: &StormArgs, output: &Output) -> Result<(), Failure> {
    if args.model {
        return model(args, output);
    }
    let (sessions, count) = (args.sessions as usize, args.gateways as usize);
    let crowd = Crowd {
        store: args.store.as_deref(),
        gateways: count,
        sessions_a_gateway: sessions.div_ceil(count - 1),
        width: 1 + args.others as usize,
        settings: &args.set,
    };
    let mut gateways = Gateways::start(&crowd).await?;
    let measured = measure(args, &mut gateways).await;
    gateways.end().await;
    let result = measured?;
    if let Some(file) = &args.plot {
        plot(&result).write(file)?;
    }
    report(output, &result, &rows(&result))
}

async fn measure(args: &StormArgs, gateways: &mut Gateways) -> Result<Report, Failure> {
    let mut sessions = join(args, gateways).await?;
    let growth = Growth::steady(f64::from(args.rate));
    let mut timeline = Timeline::begin(&mut sessions).await?;
    let sender = Sender::start(gateways.clients(), &gateways.conversation, growth, args.bytes);
    while timeline.now_s() < f64::from(args.before) {
        timeline.step(&mut sessions).await?;
    }
    let owner = gateways.cluster.owner(&gateways.conversation).await?;
    let victim = if args.victim == Victim::Owner { owner } else { (owner + 1) % gateways.cluster.nodes.len() };
    let before = counts(gateways, victim).await;
    timeline.mark(&mut sessions).await?;
    let quiet = timeline.all.latency.percentiles();
    let (signal, ended_with) = if args.kill { (Signal::KILL, "SIGKILL") } else { (Signal::TERM, "SIGTERM") };
    let signal_at_s = timeline.now_s();
    progress(&format!("{ended_with} for gateway {} of {}", victim + 1, gateways.cluster.nodes.len()));
    gateways.cluster.signal(victim, signal)?;
    let all_back_s = until_back(args, &mut timeline, &mut sessions, signal_at_s).await?;
    let others = timeline.since.latency.percentiles();
    gateways.cluster.ended(victim).await?;
    let on = timeline.now_s();
    while timeline.now_s() < on + AFTER_S {
        timeline.step(&mut sessions).await?;
    }
    let sent = sender.stop().await?;
    let checked = settle(args, &mut timeline, &mut sessions, &sent).await?;
    let after = counts(gateways, victim).await;
    let grown = |(now, then): (Option<f64>, Option<f64>)| Some(now? - then.unwrap_or(0.0));
    let metrics = METRICS.into_iter().zip(after.into_iter().zip(before).map(grown)).collect();
    let all = timeline.all;
    Ok(Report {
        bench: "storm",
        gateways: gateways.cluster.nodes.len(),
        sessions: args.sessions as usize,
        conversations_per_session: 1 + args.others as usize,
        ended_with,
        victim: args.victim,
        rate_per_second: args.rate,
        jitter_ms: all.jitter_ms,
        sent: sent.seqs.len() as u64,
        refused: sent.refused,
        unknown_sends: sent.lost,
        lost: all.ended,
        returned: all.returned,
        all_back_s,
        back: all.back.percentiles(),
        attempts_refused: all.refused,
        gave_up: all.gave_up,
        last_reason: all.why.clone(),
        sessions_checked: checked,
        out_of_order: all.out_of_order,
        resyncs: all.resyncs,
        before: quiet,
        others,
        metrics,
        signal_at_s,
        steps: timeline.steps,
    })
}

async fn join(args: &StormArgs, gateways: &Gateways) -> Result<Sessions, Failure> {
    // Others of a session, from so many in all: neighbours share most of theirs, as members of a team do.
    let of = args.others as usize * 10;
    gateways.create_numbered(&gateways.conversation, of).await?;
    let mut more =
        vec![("--gather-us", GATHER_US.to_string()), ("--each", args.others.to_string()), ("--of", of.to_string())];
    more.extend(args.jitter_ms.map(|jitter| ("--jitter-ms", jitter.to_string())));
    let mut sessions = Sessions::start(&gateways.wanted(&gateways.conversation, args.sessions as usize, &more))?;
    progress(&format!("{} sessions join, from {} processes", args.sessions, sessions.processes()));
    sessions.connect(args.sessions as usize, Duration::ZERO).await?;
    sessions.until_joined(args.sessions as usize, JOIN_MAX).await?;
    Ok(sessions)
}

/// Until every session that lost its socket has been caught up; when that was, from the signal.
async fn until_back(
    args: &StormArgs,
    timeline: &mut Timeline,
    sessions: &mut Sessions,
    signal_at_s: f64,
) -> Result<Option<f64>, Failure> {
    while timeline.now_s() < signal_at_s + f64::from(args.limit) {
        timeline.step(sessions).await?;
        let is_whole = timeline.all.joined == args.sessions as usize && timeline.all.away == 0;
        if is_whole && timeline.all.ended > 0 && timeline.all.ended <= timeline.all.returned {
            return Ok(Some(timeline.now_s() - signal_at_s));
        }
    }
    Ok(None)
}

/// Until every session has everything, or it takes too long.
async fn settle(
    args: &StormArgs,
    timeline: &mut Timeline,
    sessions: &mut Sessions,
    sent: &Sent,
) -> Result<Checked, Failure> {
    let question = Question::Check { seqs: sent.seqs.clone() };
    let mut checked = Checked::default();
    for _ in 0..ARRIVE {
        timeline.look(sessions).await?;
        checked = sessions.check(&question).await?;
        if checked.complete == u64::from(args.sessions) {
            break;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Ok(checked)
}

/// What the nodes without the victim have counted.
async fn counts(gateways: &Gateways, victim: usize) -> Vec<Option<f64>> {
    let mut counts = Vec::new();
    for name in METRICS {
        counts.push(gateways.metric_without(name, victim).await);
    }
    counts
}

fn rows(result: &Report) -> Vec<(String, String)> {
    let took = |figures: &Percentiles| {
        let Percentiles { count, p50_ms, p99_ms, max_ms } = figures;
        format!("p50 {p50_ms:.1} ms, p99 {p99_ms:.1} ms, max {max_ms:.1} ms ({count})")
    };
    let Checked { looked_at, complete, missing, unknown } = result.sessions_checked;
    let back = result.all_back_s.map_or("not within the limit".to_owned(), |s| format!("{s:.1} s after the signal"));
    let window = result.jitter_ms.map_or("none".to_owned(), |ms| format!("{ms} ms"));
    let mut rows = vec![
        (
            "sessions".to_owned(),
            format!(
                "{} on {} gateways, {} conversations each; window for coming back: {window}",
                result.sessions, result.gateways, result.conversations_per_session
            ),
        ),
        (
            result.ended_with.to_owned(),
            format!("{} sockets lost, {} came back, all {back}", result.lost, result.returned),
        ),
        ("loss to caught up".to_owned(), took(&result.back)),
        (
            "resumed without a gap".to_owned(),
            format!(
                "{complete} of {looked_at} sessions have all; {missing} missing, {unknown} unknown, {} out of order, {} resyncs",
                result.out_of_order, result.resyncs
            ),
        ),
        (
            "attempts".to_owned(),
            format!("{} refused or broken off, {} sessions gave up", result.attempts_refused, result.gave_up),
        ),
        ("deliveries before".to_owned(), took(&result.before)),
        ("deliveries to the others meanwhile".to_owned(), took(&result.others)),
        ("messages".to_owned(), format!("{} sent, {} refusals", result.sent, result.refused)),
    ];
    for (name, value) in &result.metrics {
        let value = value.map_or("not counted by these nodes".to_owned(), |value| value.to_string());
        rows.push(((*name).to_owned(), value));
    }
    rows
}

fn plot(result: &Report) -> Plot {
    let points = |figure: &dyn Fn(&Step) -> Option<f64>| {
        result.steps.iter().filter_map(|step| Some((step.at_s, figure(step)?))).collect()
    };
    let line = |name: &str, side, figure: &dyn Fn(&Step) -> Option<f64>| Line {
        name: name.to_owned(),
        side,
        points: points(figure),
    };
    let window = result.jitter_ms.unwrap_or(0);
    Plot {
        title: format!("A gateway of {} goes with {}; a window of {window} ms", result.gateways, result.ended_with),
        across: "seconds".to_owned(),
        left: "milliseconds from send to delivery".to_owned(),
        right: "sessions".to_owned(),
        lines: vec![
            line("p50 of the others", Side::Left, &|step| step.p50_ms),
            line("p99 of the others", Side::Left, &|step| step.p99_ms),
            line("joined", Side::Right, &|step| Some(step.joined as f64)),
            line("away", Side::Right, &|step| Some(step.away as f64)),
        ],
        marks: vec![(result.signal_at_s, result.ended_with.to_owned())],
    }
}

fn model(args: &StormArgs, output: &Output) -> Result<(), Failure> {
    let parameters = Parameters {
        sessions: args.sessions as usize,
        gateways: args.gateways as usize,
        joins_per_second: f64::from(args.joins),
        delivering_permille: args.delivering * 10,
        reads_per_second: f64::from(args.reads),
        ring_misses_permille: u64::from(args.misses),
        shared_reads_ms: 100,
        queue: 20_000,
        patience_ms: 5_000,
        jitter_ms: u64::from(args.jitter_ms.unwrap_or(30_000)),
        seed: args.seed,
    };
    let with_window = model::run(parameters);
    let at_once = model::run(Parameters { jitter_ms: 0, ..parameters });
    let result = Modelled { bench: "storm-model", parameters, with_window, at_once };
    if let Some(file) = &args.plot {
        plot_model(&result).write(file)?;
    }
    let course = |course: &Course| {
        let all =
            course.all_back_ms.map_or("not within 10 minutes".to_owned(), |ms| format!("{:.1} s", ms as f64 / 1e3));
        format!(
            "all back after {all}; deliveries up to {:.0} ms late; {} joins, {} of them in vain, {} refused; at most {} wait at \
             one gateway; {} reads",
            course.late_max_ms, course.joins, course.in_vain, course.refused, course.queued_max, course.reads
        )
    };
    let Parameters { sessions, gateways, joins_per_second, jitter_ms, .. } = result.parameters;
    let rows = [
        (
            "model".to_owned(),
            format!("{sessions} sessions to {gateways} gateways of {joins_per_second:.0} joins a second"),
        ),
        (format!("a window of {jitter_ms} ms"), course(&result.with_window)),
        ("at once".to_owned(), course(&result.at_once)),
    ];
    report(output, &result, &rows)
}

fn plot_model(result: &Modelled) -> Plot {
    let line = |name: &str, side, course: &Course, figure: &dyn Fn(&model::Moment) -> f64| {
        // As many as the drawing has room for.
        let drawn = course.moments.iter().step_by(course.moments.len().div_ceil(POINTS_MAX).max(1));
        let points = drawn.map(|moment| (moment.at_ms as f64 / 1e3, figure(moment))).collect();
        Line { name: name.to_owned(), side, points }
    };
    let Parameters { sessions, gateways, jitter_ms, .. } = result.parameters;
    let window = format!("window of {} s", jitter_ms as f64 / 1e3);
    let (spread, at_once) = (&result.with_window, &result.at_once);
    Plot {
        title: format!("{sessions} sessions come back to {gateways} gateways (model)"),
        across: "seconds since they lost their gateway".to_owned(),
        left: "sessions that are back".to_owned(),
        right: "deliveries to the others are late by, ms".to_owned(),
        lines: vec![
            line(&format!("back, {window}"), Side::Left, spread, &|moment| moment.back as f64),
            line("back, at once", Side::Left, at_once, &|moment| moment.back as f64),
            line(&format!("late, {window}"), Side::Right, spread, &|moment| moment.late_ms),
            line("late, at once", Side::Right, at_once, &|moment| moment.late_ms),
        ],
        marks: Vec::new(),
    }
}
