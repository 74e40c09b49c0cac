//! `conch bench`: what the product costs, side by side with what the machine itself costs, in one run.
//!
//! Invariant: every figure stands beside a baseline that was measured in the same run, in alternating rounds; a ratio is
//! given with its smallest and largest round. Bounded in time, requests and processes; every process is ended by its id.
//!
//! Deliberately absent: judging. A benchmark prints numbers and never fails on them.

mod append;
mod cluster;
mod database;
mod failover;
mod fanout;
mod gateways;
mod ground;
mod histogram;
mod idle;
mod load;
mod messages;
mod plot;
mod postgres;
mod probe;
mod process;
mod ramp;
mod random;
mod sender;
mod server;
mod sessions;
mod storm;
mod timeline;
mod turns;
mod worker;

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

use crate::args::StoreArgs;
use crate::exit::Failure;
use crate::output::{Format, Output};

/// Measure.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    what: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// Durable acknowledged sends a second, and how long an ack takes.
    Append(AppendArgs),
    /// One channel, many sessions: the server's CPU per delivery, latency, completeness, memory per session.
    Fanout(FanoutArgs),
    /// Many sessions on several gateways, one of which goes: how its sessions come back, what they missed, what the others notice.
    Storm(storm::StormArgs),
    /// Three nodes on a database: how long until another node accepts a write when the owner is killed or stopped, what a
    /// rolling restart costs, and what forwarding adds.
    Failover(FailoverArgs),
    /// What a node pays for conversations that it owns and in which nothing happens: memory, and writes while its heart beats.
    Idle(IdleArgs),
    /// Agents that answer: how fast their text reaches those who watch, how fast a long conversation is taken up again, many
    /// turns at once, what a turn takes on disk, and a model that floods.
    Turns(TurnsArgs),
    /// Sessions, as many as a process may hold; speaks JSON lines with the bench.
    #[command(hide = true)]
    Load(load::LoadArgs),
    /// The bare send loop that a fan-out is compared with.
    #[command(hide = true)]
    BareSender(sender::SenderArgs),
}

/// How pushes travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Transport {
    /// Phoenix pushes over WebSocket.
    Ws,
    /// One POST a message.
    Http,
}

/// Whether the baseline is measured too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Baseline {
    /// In alternating rounds.
    With,
    /// The product alone.
    Without,
}

#[derive(Debug, Args)]
struct AppendArgs {
    /// A server that runs already, instead of one of the bench's own. Takes CONCH_TOKEN, with `rate` lifted
    /// (conch token --unlimited-rate --can read,send,run,create,admin). Without a baseline.
    #[arg(long)]
    url: Option<String>,
    /// A database, postgres://…, with CONCH_AUTH_SECRET, instead of data directories. All is done in schemas of the bench's own
    /// (conch_bench_…), which are dropped at its end.
    #[arg(long, value_name = "URL", conflicts_with = "url")]
    store: Option<String>,
    /// How many conversations, 1 to 100,000.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    conversations: u32,
    /// How many sends are under way at any time, 1 to 10,000.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    in_flight: u32,
    /// At most so many sends a second, evenly, 1 to 100,000, over WebSocket: an ack is timed from when its send was due, though it
    /// left later. By default as many as are acknowledged.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000), conflicts_with = "transport")]
    rate: Option<u32>,
    /// How many connections; by default as many as the topics need (100 a socket), or with HTTP one a send.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: Option<u32>,
    /// Bytes of a message's text, up to 60,000.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(0..=60_000))]
    bytes: u32,
    /// Seconds a round, 1 to 600.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Rounds, 1 to 20; each one of the server and one of the baseline.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=20))]
    rounds: u32,
    /// How the sends travel.
    #[arg(long, value_enum, default_value_t = Transport::Ws)]
    transport: Transport,
    /// Group commits under way at once, 1 to 64: of the server (limits.commits), and statements of the bare loops.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    commits: u32,
    /// Beside it, in each round: the same fenced statements at the batch size that was observed in a bare loop, the same without
    /// the fence (PostgreSQL), a node in this process, and HTTP over 200 connections. Each takes as long as the sends.
    #[arg(long, value_enum, default_value_t = Baseline::With)]
    baseline: Baseline,
    /// Where the data directories are made; its disk is what is measured [default: the system's temporary directory].
    #[arg(long, value_name = "DIRECTORY")]
    dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct FanoutArgs {
    /// How many sessions, 1 to 100,000.
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    sessions: u32,
    /// Messages a second into the channel, 1 to 1,000.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rate: u32,
    /// Bytes of a message's text, up to 60,000.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(0..=60_000))]
    bytes: u32,
    /// Seconds a round, or with --gateways seconds at the full rate, 1 to 600.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Rounds, 1 to 20; each one of the server and one of the bare loop. Not with --gateways.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=20))]
    rounds: u32,
    /// Seconds over which the sessions join, 0 to 600: 0 is as fast as they can, and the default; with --gateways it is 90.
    #[arg(long, value_parser = clap::value_parser!(u32).range(0..=600))]
    ramp: Option<u32>,
    /// Whether the bare send loop is measured too.
    #[arg(long, value_enum, default_value_t = Baseline::With)]
    baseline: Baseline,
    /// Where the data directory is made [default: the system's temporary directory]. Not with --gateways.
    #[arg(long, value_name = "DIRECTORY")]
    dir: Option<PathBuf>,
    /// The incident, on so many nodes, 1 to 16: 400 sessions at once, then evenly to all within --ramp, while the messages go
    /// from one a minute to --rate a second.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=16))]
    gateways: Option<u32>,
    /// Its database, postgres://…, with CONCH_AUTH_SECRET, in a schema of the bench's own which is dropped at its end
    /// [default: a PostgreSQL server of the bench's own].
    #[arg(long, value_name = "URL", requires = "gateways")]
    store: Option<String>,
    /// A setting of its nodes, as `conch serve --set` takes it; may be given several times.
    #[arg(long, value_name = "KEY=VALUE", requires = "gateways")]
    set: Vec<String>,
    /// Around it: so many other channels in which people talk, 0 to 100,000, with two listeners each.
    #[arg(long, default_value_t = 0, requires = "gateways", value_parser = clap::value_parser!(u32).range(0..=100_000))]
    workspace_channels: u32,
    /// Messages a second in all of them together, from the beginning to the end of the ramp.
    #[arg(long, default_value = "580..2320", value_name = "FROM..TO", value_parser = rates)]
    workspace_rate: (f64, f64),
    /// So much of these channels and rates, 1 to 100, where the machine is the limit. The table says so.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100))]
    workspace_percent: u32,
    /// Presence and typing: so many live events for each message, there and in the incident, 0 to 100.
    #[arg(long, default_value_t = 0, requires = "gateways", value_parser = clap::value_parser!(u32).range(0..=100))]
    live: u32,
    /// Besides: sockets in the channel that never read, 0 to 10,000.
    #[arg(long, default_value_t = 0, requires = "gateways", value_parser = clap::value_parser!(u32).range(0..=10_000))]
    stalled: u32,
    /// Besides: members of the channel who are not connected, 0 to 1,000,000.
    #[arg(long, default_value_t = 0, requires = "gateways", value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    members: u32,
    /// Draws the incident into this file, as SVG.
    #[arg(long, value_name = "FILE", requires = "gateways")]
    plot: Option<PathBuf>,
}

/// `FROM..TO`, two rates.
fn rates(text: &str) -> Result<(f64, f64), String> {
    let rate = |text: &str| text.trim().parse::<f64>().ok().filter(|rate| (0.0..=1e6).contains(rate));
    let parts = text.split_once("..").and_then(|(from, to)| Some((rate(from)?, rate(to)?)));
    parts.ok_or_else(|| "must be FROM..TO, such as 580..2320, each 0 to 1,000,000 messages a second".to_owned())
}

#[derive(Debug, Args)]
struct FailoverArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// How often the owner is killed, 1 to 1,000.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    kills: u32,
    /// How often the owner is stopped (SIGSTOP), 0 to 100; each takes a lease.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=100))]
    stops: u32,
    /// Clients that send during the rolling restart, 1 to 1,000.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    clients: u32,
}

#[derive(Debug, Args)]
struct IdleArgs {
    /// A database, postgres://…, with CONCH_AUTH_SECRET. All is done in a schema of the bench's own (conch_bench_…), which is
    /// dropped at its end.
    #[arg(long, value_name = "URL")]
    store: String,
    /// How many conversations the node owns, 1 to 1,000,000.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    conversations: u32,
    /// Seconds in which writes are counted, 1 to 600.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
}

/// One of the measurements of `bench turns`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TurnsPart {
    /// From the model's socket to a viewer's; with --store the viewer is on another node.
    Deltas,
    /// A message to a conversation that nobody has in memory, to its ack: a long one beside a short one.
    Thaw,
    /// Many turns at once, each with a viewer.
    Streaming,
    /// Bytes on disk, turn after turn of one conversation.
    Storage,
    /// A model that says far too much at once.
    Flood,
}

#[derive(Debug, Args)]
struct TurnsArgs {
    /// A database, postgres://…, with CONCH_AUTH_SECRET, instead of data directories; deltas are then watched on another node
    /// than their turn's. All is done in schemas of the bench's own (conch_bench_…), which are dropped at its end.
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Only these measurements, separated by commas [default: all].
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PARTS")]
    only: Vec<TurnsPart>,
    /// deltas: turns at once, 1 to 1,000.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    streams: u32,
    /// deltas: deltas a second of one turn, 1 to 1,000.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rate: u32,
    /// deltas, streaming: seconds for which a model speaks, 1 to 60.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// deltas: rounds, 1 to 20; each one of the server and one of the baseline.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=20))]
    rounds: u32,
    /// thaw: records of the long conversation, 10 to 1,000,000.
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    records: u32,
    /// thaw: how often it is taken up again, by a process that runs and by a fresh one each time, 1 to 10,000.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    thaws: u32,
    /// streaming: turns at once, each with ten deltas a second, 1 to 10,000.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    turns: u32,
    /// storage: turns of the conversation, one after the other, 4 to 100,000.
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(4..=100_000))]
    history: u32,
    /// flood: deltas a second, for 3 s, 100 to 20,000.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(100..=20_000))]
    flood: u32,
    /// Where the data directories are made [default: the system's temporary directory].
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "store")]
    dir: Option<PathBuf>,
}

pub(crate) fn run(args: &BenchArgs, output: &Output) -> Result<(), Failure> {
    match &args.what {
        // Several threads, as a server has them, for the node that runs in this process.
        Bench::Append(append) => crate::block_on_threads(append::run(append, output)),
        Bench::Fanout(fanout) => crate::block_on(fanout::run(fanout, output)),
        Bench::Storm(storm) => crate::block_on(storm::run(storm, output)),
        Bench::Failover(failover) => crate::block_on(failover::run(failover, output)),
        Bench::Idle(idle) => crate::block_on(idle::run(idle, output)),
        // Several threads: the model must not wait for those who watch.
        Bench::Turns(turns) => crate::block_on_threads(turns::run(turns, output)),
        Bench::Load(load) => load::run(load),
        Bench::BareSender(sender) => sender::run(sender),
    }
}

/// A line of progress, on standard error.
fn progress(text: &str) {
    // Progress that cannot be shown is no reason to stop measuring.
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// A figure over all rounds.
#[derive(Debug, Clone, Copy, Serialize)]
struct Spread {
    mean: f64,
    min: f64,
    max: f64,
}

impl Spread {
    /// Of at least one value.
    fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let values: Vec<f64> = values.into_iter().collect();
        if values.is_empty() {
            return None;
        }
        Some(Self {
            mean: values.iter().sum::<f64>() / values.len() as f64,
            min: values.iter().copied().fold(f64::INFINITY, f64::min),
            max: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        })
    }

    fn show(&self, digits: usize) -> String {
        format!("{:.digits$} ({:.digits$} to {:.digits$})", self.mean, self.min, self.max)
    }
}

/// Prints the report: its JSON, or its table.
fn report(output: &Output, report: &impl Serialize, rows: &[(String, String)]) -> Result<(), Failure> {
    if output.format == Format::Json {
        return output.json(report);
    }
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    for (name, value) in rows {
        output.line(&format!("{name:<width$}  {value}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_a_beginning_and_an_end() {
        assert_eq!(rates("580..2320"), Ok((580.0, 2320.0)));
        assert_eq!(rates(" 0 .. 0.5 "), Ok((0.0, 0.5)));
        for bad in ["580", "..", "a..b", "1..-1", "1..1e7", "nan..1"] {
            assert!(rates(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_spread_has_its_edges() {
        let spread = Spread::of([2.0, 1.0, 6.0]).expect("values");
        assert_eq!((spread.mean, spread.min, spread.max), (3.0, 1.0, 6.0));
        assert_eq!(spread.show(1), "3.0 (1.0 to 6.0)");
        assert!(Spread::of([]).is_none());
    }
}
