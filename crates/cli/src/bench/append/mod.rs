//! `conch bench append`: rounds of sends against a server, and in each round, beside it, the same statements from bare loops,
//! the same sends inside a process, and the same sends over HTTP.

mod bare;
pub(super) mod in_process;
mod senders;

use std::time::Duration;

use serde::Serialize;
use serde_json::json;
use tokio::task::JoinSet;

use self::bare::{Bare, Shape};
use self::in_process::Load;
use self::senders::{Plan, Senders};
use super::ground::{self, Ground};
use super::histogram::Percentiles;
use super::server::{ServerUnderTest, metric};
use super::{AppendArgs, Baseline, Spread, Transport, progress, report};
use crate::client::{Endpoint, HttpClient, Request};
use crate::exit::Failure;
use crate::output::Output;

/// Topics that one socket may join.
const TOPICS_A_SOCKET: u32 = 100;
/// Conversations created at the same time.
const CREATING: usize = 16;
/// Connections of the sends over HTTP that are measured beside pushes; each has one send under way.
const HTTP_CONNECTIONS: u32 = 200;

/// One round.
#[derive(Debug, Clone, Serialize)]
struct Round {
    acked: u64,
    refused: u64,
    acked_per_second: f64,
    ack: Percentiles,
    /// Records a commit, by the server's own metrics; absent with a foreign server.
    records_per_commit: Option<f64>,
    /// The same fenced statements from a bare loop, records a second.
    baseline_per_second: Option<f64>,
    ratio: Option<f64>,
    #[serde(flatten)]
    beside: Beside,
}

/// What is measured beside it.
#[derive(Debug, Clone, Default, Serialize)]
struct Beside {
    /// The bare loop without the fence, records a second; PostgreSQL alone.
    unfenced_per_second: Option<f64>,
    /// A node in this process, without connections.
    in_process_per_second: Option<f64>,
    in_process_ack: Option<Percentiles>,
    /// The server again, a POST a send, over 200 connections.
    http_per_second: Option<f64>,
    http_ack: Option<Percentiles>,
}

#[derive(Debug, Serialize)]
struct Report {
    bench: &'static str,
    store: &'static str,
    conversations: u32,
    in_flight: u32,
    connections: u32,
    commits: u32,
    bytes: u32,
    transport: Transport,
    acked_per_second: Option<Spread>,
    baseline_per_second: Option<Spread>,
    ratio: Option<Spread>,
    unfenced_per_second: Option<Spread>,
    in_process_per_second: Option<Spread>,
    http_per_second: Option<Spread>,
    rounds: Vec<Round>,
}

pub(super) async fn run(args: &AppendArgs, output: &Output) -> Result<(), Failure> {
    let names = names(args);
    let rounds = match &args.url {
        Some(url) => {
            let endpoint = Endpoint::new(url, std::env::var("CONCH_TOKEN").ok()).map_err(Failure::usage)?;
            create_all(&endpoint, &names).await?;
            let mut senders = Senders::open(&endpoint, &names, plan(args)).await?;
            let mut rounds = Vec::new();
            for number in 1..=args.rounds {
                rounds.push(sends(args, &mut senders, None, number).await?);
            }
            rounds
        }
        None => {
            let directory = args.dir.clone().unwrap_or_else(std::env::temp_dir);
            let mut ground = match &args.store {
                None => Ground::disk(&directory)?,
                Some(store) => Ground::database(store)?,
            };
            let rounds = own_server(args, &names, &mut ground).await;
            ground.clear().await;
            rounds?
        }
    };
    show(args, rounds, output)
}

fn names(args: &AppendArgs) -> Vec<String> {
    let run = uuid::Uuid::now_v7().simple().to_string();
    (0..args.conversations).map(|index| format!("bench-{run}-{index}")).collect()
}

/// A server of the bench's own, and what stands beside it.
async fn own_server(args: &AppendArgs, names: &[String], ground: &mut Ground) -> Result<Vec<Round>, Failure> {
    let directory = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let settings = [format!("limits.commits={}", args.commits)];
    let server = ServerUnderTest::start_on(&directory, &ground.store("server").await?, &settings).await?;
    create_all(server.endpoint(), names).await?;
    let mut senders = Senders::open(server.endpoint(), names, plan(args)).await?;
    let mut company = match args.baseline {
        Baseline::With => Some(Company::open(args, names, &server, ground).await?),
        Baseline::Without => None,
    };
    let mut rounds = Vec::new();
    for number in 1..=args.rounds {
        let mut round = sends(args, &mut senders, Some(&server), number).await?;
        if let Some(company) = &mut company {
            company.round(args, &mut round, number).await?;
        }
        rounds.push(round);
    }
    Ok(rounds)
}

async fn sends(
    args: &AppendArgs,
    senders: &mut Senders,
    server: Option<&ServerUnderTest>,
    number: u32,
) -> Result<Round, Failure> {
    let before = counters(server).await;
    let (seen, took) = senders.round(args.bytes, duration(args)).await?;
    let acked = seen.acks.count();
    let acked_per_second = acked as f64 / took.as_secs_f64();
    progress(&format!("round {number}: {acked_per_second:.0} acked sends/s"));
    Ok(Round {
        acked,
        refused: seen.refused,
        acked_per_second,
        ack: seen.acks.percentiles(),
        records_per_commit: batch_size(before, counters(server).await),
        baseline_per_second: None,
        ratio: None,
        beside: Beside::default(),
    })
}

fn duration(args: &AppendArgs) -> Duration {
    Duration::from_secs(args.seconds.into())
}

/// The bare loops, the node in this process, and the clients of HTTP.
struct Company {
    bare: Bare,
    in_process: Load,
    http: Option<Senders>,
}

impl Company {
    async fn open(
        args: &AppendArgs,
        names: &[String],
        server: &ServerUnderTest,
        ground: &mut Ground,
    ) -> Result<Self, Failure> {
        let (store, mut config) = ground::open(&ground.store("node").await?).await?;
        config.limits.commits = args.commits as usize;
        let in_process = Load::open(store, &config, args).await?;
        let (store, _) = ground::open(&ground.store("bare").await?).await?;
        let bare = Bare::open(store, ground.area(), args).await?;
        let http = match args.transport {
            Transport::Http => None,
            Transport::Ws => {
                let connections = HTTP_CONNECTIONS;
                let plan = Plan { transport: Transport::Http, connections, in_flight: connections, rate: None };
                Some(Senders::open(server.endpoint(), names, plan).await?)
            }
        };
        Ok(Self { bare, in_process, http })
    }

    async fn round(&mut self, args: &AppendArgs, round: &mut Round, number: u32) -> Result<(), Failure> {
        let size = round.records_per_commit.unwrap_or(f64::from(args.in_flight)).round().max(1.0) as usize;
        let shape = Shape { size, under_way: args.commits as usize, duration: duration(args) };
        let rate = self.bare.round(shape).await?;
        progress(&format!("round {number}: {rate:.0} records/s in the bare loop, {size} a commit"));
        round.baseline_per_second = Some(rate);
        round.ratio = Some(round.acked_per_second / rate);
        let mut beside = Beside { unfenced_per_second: self.bare.unfenced_round(shape).await?, ..Beside::default() };
        let (rate, acks) = self.in_process.round(args.in_flight, duration(args)).await?;
        (beside.in_process_per_second, beside.in_process_ack) = (Some(rate), Some(acks));
        if let Some(http) = &mut self.http {
            let (seen, took) = http.round(args.bytes, duration(args)).await?;
            round.refused += seen.refused;
            beside.http_per_second = Some(seen.acks.count() as f64 / took.as_secs_f64());
            beside.http_ack = Some(seen.acks.percentiles());
        }
        let shown = |rate: Option<f64>| rate.map_or("-".to_owned(), |rate| format!("{rate:.0}"));
        let Beside { unfenced_per_second, in_process_per_second, http_per_second, .. } = &beside;
        progress(&format!(
            "round {number}: {} without the fence, {} in this process, {} over HTTP",
            shown(*unfenced_per_second),
            shown(*in_process_per_second),
            shown(*http_per_second)
        ));
        round.beside = beside;
        Ok(())
    }
}

fn show(args: &AppendArgs, rounds: Vec<Round>, output: &Output) -> Result<(), Failure> {
    let over = |figure: fn(&Round) -> Option<f64>| Spread::of(rounds.iter().filter_map(figure));
    let result = Report {
        bench: "append",
        store: match (&args.url, &args.store) {
            (Some(_), _) => "of the server",
            (None, Some(_)) => "postgres",
            (None, None) => "sqlite",
        },
        conversations: args.conversations,
        in_flight: args.in_flight,
        connections: connections(args),
        commits: args.commits,
        bytes: args.bytes,
        transport: args.transport,
        acked_per_second: over(|round| Some(round.acked_per_second)),
        baseline_per_second: over(|round| round.baseline_per_second),
        ratio: over(|round| round.ratio),
        unfenced_per_second: over(|round| round.beside.unfenced_per_second),
        in_process_per_second: over(|round| round.beside.in_process_per_second),
        http_per_second: over(|round| round.beside.http_per_second),
        rounds,
    };
    report(output, &result, &rows(&result))
}

fn rows(result: &Report) -> Vec<(String, String)> {
    let spread =
        |spread: &Option<Spread>, digits| spread.map_or("not measured".to_owned(), |spread| spread.show(digits));
    let mut rows = vec![
        ("durable acked sends/s".to_owned(), spread(&result.acked_per_second, 0)),
        ("the same statements in a bare loop, records/s".to_owned(), spread(&result.baseline_per_second, 0)),
        ("ratio".to_owned(), spread(&result.ratio, 2)),
        ("the bare loop without the fence, records/s".to_owned(), spread(&result.unfenced_per_second, 0)),
        ("a node in this process, acked sends/s".to_owned(), spread(&result.in_process_per_second, 0)),
        ("HTTP over 200 connections, acked sends/s".to_owned(), spread(&result.http_per_second, 0)),
    ];
    for (index, round) in result.rounds.iter().enumerate() {
        let shown = |acks: &Percentiles| {
            let Percentiles { p50_ms, p99_ms, max_ms, .. } = acks;
            format!("p50 {p50_ms:.1} ms, p99 {p99_ms:.1} ms, max {max_ms:.1} ms")
        };
        let batch = round.records_per_commit.map_or(String::new(), |size| format!(", {size:.1} records a commit"));
        let text = format!("{}, {} refused{batch}", shown(&round.ack), round.refused);
        rows.push((format!("round {}: send to ack", index + 1), text));
        for (name, acks) in [("in process", &round.beside.in_process_ack), ("HTTP", &round.beside.http_ack)] {
            if let Some(acks) = acks {
                rows.push((format!("round {}: {name}", index + 1), shown(acks)));
            }
        }
    }
    rows
}

fn plan(args: &AppendArgs) -> Plan {
    Plan { transport: args.transport, connections: connections(args), in_flight: args.in_flight, rate: args.rate }
}

fn connections(args: &AppendArgs) -> u32 {
    match (args.connections, args.transport) {
        (Some(asked), Transport::Http) => asked.min(args.in_flight),
        (None, Transport::Http) => args.in_flight,
        (asked, Transport::Ws) => asked.unwrap_or(1).max(args.conversations.div_ceil(TOPICS_A_SOCKET)),
    }
}

async fn create_all(endpoint: &Endpoint, names: &[String]) -> Result<(), Failure> {
    progress(&format!("creating {} conversations", names.len()));
    let client = HttpClient::new(endpoint.clone())?;
    let mut tasks = JoinSet::new();
    for names in names.chunks(names.len().div_ceil(CREATING).max(1)) {
        let (client, names) = (client.clone(), names.to_vec());
        tasks.spawn(async move {
            for name in &names {
                let request = Request::put(&["v1", "conversations", name], json!({"kind": "channel"}));
                client.attempt(&request).await?;
            }
            Ok::<(), Failure>(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.map_err(|error| Failure::other(error.to_string()))??;
    }
    Ok(())
}

/// Commits and records so far.
async fn counters(server: Option<&ServerUnderTest>) -> Option<(f64, f64)> {
    let text = server?.metrics().await.ok()?;
    Some((metric(&text, "conch_commit_batch_records_count")?, metric(&text, "conch_commit_batch_records_sum")?))
}

fn batch_size(before: Option<(f64, f64)>, after: Option<(f64, f64)>) -> Option<f64> {
    let ((commits_before, records_before), (commits, records)) = (before?, after?);
    let commits = commits - commits_before;
    if commits > 0.0 { Some((records - records_before) / commits) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_sizes_need_two_readings_and_a_commit() {
        assert_eq!(batch_size(Some((1.0, 10.0)), Some((3.0, 110.0))), Some(50.0));
        assert_eq!(batch_size(Some((1.0, 10.0)), Some((1.0, 10.0))), None);
        assert_eq!(batch_size(None, Some((1.0, 10.0))), None);
    }
}
