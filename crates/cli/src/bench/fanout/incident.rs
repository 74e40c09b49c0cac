//! The incident: a channel that everybody joins, on several gateways, while its messages become more and more.
//!
//! Invariant: each session says at the end whether it has every message that was acknowledged after its join, and each message
//! was sent until it was acknowledged; so "every message to every session" is counted, not estimated.

use std::time::Duration;

use serde::Serialize;

use super::bare::Bare;
use super::beside::{Around, Beside};
use super::framed;
use crate::bench::gateways::{Crowd, Gateways};
use crate::bench::histogram::Percentiles;
use crate::bench::load::{Checked, Delivered, Question};
use crate::bench::messages::{Sender, Sent};
use crate::bench::plot::{Line, Plot, Side};
use crate::bench::probe::{Probe, Probed};
use crate::bench::ramp::Growth;
use crate::bench::sessions::Sessions;
use crate::bench::timeline::{Step, Timeline};
use crate::bench::{Baseline, FanoutArgs, progress, report};
use crate::client::Request;
use crate::exit::Failure;
use crate::output::Output;

/// Those who are there before it begins.
const FIRST: usize = 400;
/// Messages a second before it begins: one a minute.
const QUIET: f64 = 1.0 / 60.0;
/// Seconds of growth when nothing else is asked for.
const RAMP: u32 = 90;
/// How long those who are there first may take to join.
const JOIN_MAX: Duration = Duration::from_secs(120);
/// How long the last messages may take to arrive.
const ARRIVE: usize = 30;
/// How often /livez, and the page of history, are asked for.
const LIVEZ_EVERY: Duration = Duration::from_millis(100);
const HISTORY_EVERY: Duration = Duration::from_millis(250);
/// The load generator waits so long for more after a short batch, in microseconds.
pub(in crate::bench) const GATHER_US: u64 = 1_000;
/// Messages of the bare loop at the end.
const BARE_MESSAGES: u64 = 40;
/// What the nodes count that is of interest.
const METRICS: [&str; 9] = [
    "conch_catch_ups_total",
    "conch_catch_up_reads_total",
    "conch_resyncs_total",
    "conch_slow_sessions_total",
    "conch_live_events_dropped_total",
    "conch_deliveries_total",
    "conch_shed_rung",
    "conch_shed_total",
    "conch_catch_up_shared_total",
];

#[derive(Debug, Serialize)]
struct Report {
    bench: &'static str,
    #[serde(flatten)]
    asked: Asked,
    load_processes: usize,
    sent: u64,
    refused: u64,
    unknown_sends: u64,
    ack: Percentiles,
    deliveries: u64,
    frame_bytes: u64,
    /// Whether every session has every message.
    sessions_checked: Checked,
    #[serde(flatten)]
    sockets: Sockets,
    /// Over everything.
    delivery: Percentiles,
    /// Once all are there, at the full rate.
    delivery_at_full: Percentiles,
    messages_per_read: f64,
    livez: Probed,
    history: Probed,
    beside: Beside,
    cost: Cost,
    memory_bytes_per_session: u64,
    metrics: Vec<(&'static str, Option<f64>)>,
    steps: Vec<Step>,
}

/// What was asked for.
#[derive(Debug, Clone, Copy, Serialize)]
struct Asked {
    gateways: usize,
    sessions: u32,
    ramp_seconds: u64,
    seconds: u32,
    rate_per_second: u32,
    text_bytes: u32,
    members: u32,
    stalled: u32,
}

/// What became of the sessions.
#[derive(Debug, Clone, Serialize)]
struct Sockets {
    joined: usize,
    out_of_order: u64,
    /// Messages of a channel that a session had left, and not joined again yet.
    late: u64,
    resyncs: u64,
    sessions_ended: u64,
    sessions_returned: u64,
    attempts_refused: u64,
    gave_up: u64,
    last_reason: Option<String>,
}

impl Sockets {
    fn of(delivered: &Delivered) -> Self {
        Self {
            joined: delivered.joined,
            out_of_order: delivered.out_of_order,
            late: delivered.late,
            resyncs: delivered.resyncs,
            sessions_ended: delivered.ended,
            sessions_returned: delivered.returned,
            attempts_refused: delivered.refused,
            gave_up: delivered.gave_up,
            last_reason: delivered.why.clone(),
        }
    }
}

/// CPU time at the full rate.
#[derive(Debug, Clone, Copy, Serialize)]
struct Cost {
    /// Of all gateways.
    server_cores: f64,
    server_cpu_us_per_delivery: f64,
    load_cores: f64,
    load_cpu_us_per_delivery: f64,
    bare_cpu_us_per_send: Option<f64>,
    /// Server to bare loop.
    ratio: Option<f64>,
}

/// What is measured and who measures it.
struct Scene<'a> {
    args: &'a FanoutArgs,
    gateways: &'a Gateways,
    sessions: Sessions,
    /// Sockets that never read.
    stalled: Option<Sessions>,
    ramp: Duration,
}

pub(super) async fn run(args: &FanoutArgs, count: usize, output: &Output) -> Result<(), Failure> {
    let all = args.sessions as usize + args.stalled as usize;
    let crowd = Crowd {
        store: args.store.as_deref(),
        gateways: count,
        sessions_a_gateway: all.div_ceil(count) + args.workspace_channels as usize / 10,
        width: 1,
        settings: &args.set,
    };
    let gateways = Gateways::start(&crowd).await?;
    let measured = measure(args, &gateways).await;
    gateways.end().await;
    let mut result = measured?;
    if args.baseline == Baseline::With {
        let mut bare = Bare::start(args.sessions as usize).await?;
        let cost = bare.round(BARE_MESSAGES, args.rate, result.frame_bytes).await?;
        result.cost.bare_cpu_us_per_send = Some(cost);
        result.cost.ratio = Some(result.cost.server_cpu_us_per_delivery / cost);
    }
    if let Some(file) = &args.plot {
        plot(&result).write(file)?;
    }
    report(output, &result, &rows(&result))
}

async fn measure(args: &FanoutArgs, gateways: &Gateways) -> Result<Report, Failure> {
    let ramp = Duration::from_secs(args.ramp.unwrap_or(RAMP).into());
    gateways.add_members(args.members as usize).await?;
    let mut around = Around::start(args, gateways, ramp).await?;
    let mut scene = Scene::set(args, gateways, ramp)?;
    let empty = gateways.resident_bytes()?;
    scene.gather().await?;
    around.go(ramp).await?;
    let (timeline, sent, probed, cost) = scene.play(&mut around).await?;
    let grown = gateways.resident_bytes()?.saturating_sub(empty);
    let (checked, timeline) = scene.settle(timeline, &sent.seqs).await?;
    let beside = around.end().await?;
    let mut metrics = Vec::new();
    for name in METRICS {
        metrics.push((name, gateways.metric(name).await));
    }
    let Delivered { deliveries, bytes, reads, .. } = timeline.all;
    let [livez, history] = probed;
    let asked = Asked {
        gateways: gateways.cluster.nodes.len(),
        sessions: args.sessions,
        ramp_seconds: ramp.as_secs(),
        seconds: args.seconds,
        rate_per_second: args.rate,
        text_bytes: args.bytes,
        members: args.members,
        stalled: args.stalled,
    };
    Ok(Report {
        bench: "fanout",
        asked,
        load_processes: scene.sessions.processes(),
        sent: sent.seqs.len() as u64,
        refused: sent.refused,
        unknown_sends: sent.lost,
        ack: sent.acks.percentiles(),
        deliveries,
        frame_bytes: framed(bytes / deliveries.max(1)),
        sessions_checked: checked,
        sockets: Sockets::of(&timeline.all),
        delivery: timeline.all.latency.percentiles(),
        delivery_at_full: timeline.since.latency.percentiles(),
        messages_per_read: deliveries as f64 / reads.max(1) as f64,
        livez,
        history,
        beside,
        cost,
        memory_bytes_per_session: grown / u64::from(args.sessions),
        metrics,
        steps: timeline.steps,
    })
}

impl<'a> Scene<'a> {
    /// The processes of all sessions; none is connected yet.
    fn set(args: &'a FanoutArgs, gateways: &'a Gateways, ramp: Duration) -> Result<Self, Failure> {
        let more = [("--gather-us", GATHER_US.to_string())];
        let sessions = Sessions::start(&gateways.wanted(&gateways.conversation, args.sessions as usize, &more))?;
        let stalled = match args.stalled {
            0 => None,
            count => {
                let more = [("--reading", "never".to_owned())];
                Some(Sessions::start(&gateways.wanted(&gateways.conversation, count as usize, &more))?)
            }
        };
        Ok(Self { args, gateways, sessions, stalled, ramp })
    }

    /// Those who are there first.
    async fn gather(&mut self) -> Result<(), Failure> {
        let first = FIRST.min(self.args.sessions as usize);
        progress(&format!(
            "{first} sessions join {} gateways, from {} processes",
            self.gateways.cluster.nodes.len(),
            self.sessions.processes()
        ));
        self.sessions.connect(first, Duration::ZERO).await?;
        self.sessions.until_joined(first, JOIN_MAX).await?;
        if let Some(stalled) = &mut self.stalled {
            stalled.connect(self.args.stalled as usize, Duration::ZERO).await?;
            stalled.until_joined(self.args.stalled as usize, JOIN_MAX).await?;
        }
        Ok(())
    }

    /// From the first to all, and on for a while.
    async fn play(&mut self, around: &mut Around) -> Result<(Timeline, Sent, [Probed; 2], Cost), Failure> {
        let Self { args, gateways, ramp, .. } = *self;
        let growth = Growth { from: QUIET, to: f64::from(args.rate), over_s: ramp.as_secs_f64() };
        if args.live > 0 {
            let live = growth.times(f64::from(args.live));
            self.sessions.tell(|parts| Question::Live { growth: live.times(1.0 / parts) }).await?;
        }
        let operators = gateways.cluster.nodes.iter().map(|node| node.ops.clone()).collect();
        let livez = Probe::start(operators, &Request::get(&["livez"]), LIVEZ_EVERY);
        let page = Request::get(&["v1", "conversations", &gateways.conversation, "messages"]);
        let history = Probe::start(gateways.clients(), &page, HISTORY_EVERY);
        let mut timeline = Timeline::begin(&mut self.sessions).await?;
        let sender = Sender::start(gateways.clients(), &gateways.conversation, growth, args.bytes);
        self.sessions.connect(args.sessions as usize, ramp).await?;
        while timeline.now_s() < ramp.as_secs_f64() {
            timeline.step(&mut self.sessions).await?;
        }
        timeline.mark(&mut self.sessions).await?;
        progress(&format!("full: {} messages a second for {} s", args.rate, args.seconds));
        let (server, load, begun) = (gateways.cpu()?, self.sessions.cpu(), timeline.now_s());
        while timeline.now_s() < begun + f64::from(args.seconds) {
            timeline.step(&mut self.sessions).await?;
        }
        let seconds = timeline.now_s() - begun;
        let (server, load) = (gateways.cpu()?.saturating_sub(server), self.sessions.cpu().saturating_sub(load));
        let delivered = timeline.since.deliveries.max(1) as f64;
        let cost = Cost {
            server_cores: server.as_secs_f64() / seconds,
            server_cpu_us_per_delivery: server.as_secs_f64() * 1e6 / delivered,
            load_cores: load.as_secs_f64() / seconds,
            load_cpu_us_per_delivery: load.as_secs_f64() * 1e6 / delivered,
            bare_cpu_us_per_send: None,
            ratio: None,
        };
        let probed = [livez.stop().await?, history.stop().await?];
        around.quiet().await?;
        self.sessions.tell(|_| Question::Live { growth: Growth::steady(0.0) }).await?;
        Ok((timeline, sender.stop().await?, probed, cost))
    }

    /// Until every session has everything, or it takes too long.
    async fn settle(&mut self, mut timeline: Timeline, seqs: &[u64]) -> Result<(Checked, Timeline), Failure> {
        let question = Question::Check { seqs: seqs.to_vec() };
        let mut checked = Checked::default();
        for _ in 0..ARRIVE {
            timeline.look(&mut self.sessions).await?;
            checked = self.sessions.check(&question).await?;
            if checked.complete == u64::from(self.args.sessions) && timeline.all.joined == self.args.sessions as usize {
                break;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        Ok((checked, timeline))
    }
}

fn took(figures: &Percentiles) -> String {
    let Percentiles { p50_ms, p99_ms, max_ms, .. } = figures;
    format!("p50 {p50_ms:.1} ms, p99 {p99_ms:.1} ms, max {max_ms:.1} ms")
}

fn rows(result: &Report) -> Vec<(String, String)> {
    let mut rows = counts(result);
    let Report { delivery_at_full, delivery, ack, livez, history, .. } = result;
    let probed = |probed: &Probed| format!("{}, {} failed", took(&probed.took), probed.failed);
    rows.extend([
        ("send to delivery, at the full rate".to_owned(), took(delivery_at_full)),
        ("send to delivery, from the beginning".to_owned(), took(delivery)),
        ("send to ack".to_owned(), took(ack)),
        ("messages in one read".to_owned(), format!("{:.2}", result.messages_per_read)),
        ("/livez".to_owned(), probed(livez)),
        ("a page of history".to_owned(), probed(history)),
    ]);
    costs(result, &mut rows);
    result.beside.rows(&mut rows);
    rows
}

fn counts(result: &Report) -> Vec<(String, String)> {
    let Asked { gateways, sessions, members, stalled, .. } = result.asked;
    let Sockets { joined, out_of_order, resyncs, .. } = result.sockets;
    let Checked { looked_at, complete, missing, unknown } = result.sessions_checked;
    let Sockets { sessions_ended, sessions_returned, attempts_refused, gave_up, .. } = result.sockets;
    let mut rows = vec![
        ("sessions".to_owned(), format!("{joined} of {sessions} joined {gateways} gateways")),
        (
            "messages".to_owned(),
            format!("{} sent, {} refusals; {} deliveries", result.sent, result.refused, result.deliveries),
        ),
        (
            "every message to every session".to_owned(),
            format!(
                "{complete} of {looked_at} have all; {missing} missing, {unknown} unknown, {out_of_order} out of order, \
                 {resyncs} resyncs"
            ),
        ),
        (
            "sockets".to_owned(),
            format!(
                "{sessions_ended} ended, {sessions_returned} came back, {attempts_refused} attempts refused, {gave_up} \
                 gave up"
            ),
        ),
    ];
    if members + stalled > 0 {
        let text = format!("{members} members who are not connected, {stalled} sockets that never read");
        rows.push(("besides".to_owned(), text));
    }
    rows
}

fn costs(result: &Report, rows: &mut Vec<(String, String)>) {
    let Cost { server_cores, server_cpu_us_per_delivery, load_cores, load_cpu_us_per_delivery, .. } = result.cost;
    rows.extend([
        (
            "server CPU at the full rate".to_owned(),
            format!("{server_cpu_us_per_delivery:.2} µs a delivery, {server_cores:.2} cores"),
        ),
        (
            "load generator's CPU".to_owned(),
            format!("{load_cpu_us_per_delivery:.2} µs a delivery, {load_cores:.2} cores"),
        ),
        (
            "memory per session in the crowd".to_owned(),
            format!("{:.1} KiB", result.memory_bytes_per_session as f64 / 1024.0),
        ),
    ]);
    if let (Some(bare), Some(ratio)) = (result.cost.bare_cpu_us_per_send, result.cost.ratio) {
        rows.push(("bare loop's CPU".to_owned(), format!("{bare:.2} µs a send; the server's is {ratio:.2} of it")));
    }
}

fn plot(result: &Report) -> Plot {
    let line = |name: &str, side, figure: &dyn Fn(&Step) -> Option<f64>| Line {
        name: name.to_owned(),
        side,
        points: result.steps.iter().filter_map(|step| Some((step.at_s, figure(step)?))).collect(),
    };
    Plot {
        title: format!(
            "One channel, {} gateways, up to {} messages a second: send to delivery",
            result.asked.gateways, result.asked.rate_per_second
        ),
        across: "seconds".to_owned(),
        left: "milliseconds".to_owned(),
        right: "sessions".to_owned(),
        lines: vec![
            line("p50", Side::Left, &|step| step.p50_ms),
            line("p99", Side::Left, &|step| step.p99_ms),
            line("sessions", Side::Right, &|step| Some(step.joined as f64)),
        ],
        marks: vec![(result.asked.ramp_seconds as f64, "all are there".to_owned())],
    }
}
