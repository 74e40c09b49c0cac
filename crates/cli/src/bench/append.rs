//! `conch bench append`: rounds of sends against a server, each followed by a round of the bare loop.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::json;
use tokio::task::JoinSet;

use super::histogram::{Histogram, Percentiles};
use super::server::{ServerUnderTest, metric};
use super::{AppendArgs, Baseline, Spread, Transport, baseline, progress, report};
use crate::client::{Endpoint, HttpClient, Joined, PhoenixSocket, Request};
use crate::exit::Failure;
use crate::output::Output;

/// Topics that one socket may join.
const TOPICS_A_SOCKET: u32 = 100;
/// Conversations created at the same time.
const CREATING: usize = 16;
/// How long the sends under way may take after a round has ended.
const DRAIN_MAX: Duration = Duration::from_secs(15);

/// One round of sends.
#[derive(Debug, Clone, Serialize)]
struct Round {
    acked: u64,
    refused: u64,
    acked_per_second: f64,
    ack: Percentiles,
    /// Records a commit, by the server's own metrics; absent with a foreign server.
    records_per_commit: Option<f64>,
    baseline_per_second: Option<f64>,
    ratio: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Report {
    bench: &'static str,
    conversations: u32,
    in_flight: u32,
    connections: u32,
    bytes: u32,
    transport: Transport,
    acked_per_second: Option<Spread>,
    baseline_per_second: Option<Spread>,
    ratio: Option<Spread>,
    rounds: Vec<Round>,
}

pub(super) async fn run(args: &AppendArgs, output: &Output) -> Result<(), Failure> {
    let directory = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let (server, endpoint) = match &args.url {
        Some(url) => (None, Endpoint::new(url, std::env::var("CONCH_TOKEN").ok()).map_err(Failure::usage)?),
        None => {
            let server = ServerUnderTest::start(&directory).await?;
            let endpoint = server.endpoint().clone();
            (Some(server), endpoint)
        }
    };
    let run = uuid::Uuid::now_v7().simple().to_string();
    let names: Vec<String> = (0..args.conversations).map(|index| format!("bench-{run}-{index}")).collect();
    progress(&format!("creating {} conversations", names.len()));
    create_all(&endpoint, &names).await?;
    let connections = connections(args);
    let mut senders = Senders::open(args, &endpoint, &names, connections).await?;
    let with_baseline = args.baseline == Baseline::With && server.is_some();
    let mut bare = if with_baseline { Some(baseline::Bare::open(&directory, args).await?) } else { None };
    let mut rounds = Vec::new();
    for number in 1..=args.rounds {
        let before = counters(server.as_ref()).await;
        let mut round = senders.round(args).await?;
        round.records_per_commit = batch_size(before, counters(server.as_ref()).await);
        progress(&format!("round {number}: {:.0} acked sends/s", round.acked_per_second));
        if let Some(bare) = &mut bare {
            let size = round.records_per_commit.unwrap_or(f64::from(args.in_flight)).round().max(1.0) as usize;
            let rate = bare.round(size, Duration::from_secs(args.seconds.into())).await?;
            progress(&format!("round {number}: {rate:.0} records/s in the bare loop, {size} a commit"));
            round.baseline_per_second = Some(rate);
            round.ratio = Some(round.acked_per_second / rate);
        }
        rounds.push(round);
    }
    show(args, connections, rounds, output)
}

fn show(args: &AppendArgs, connections: u32, rounds: Vec<Round>, output: &Output) -> Result<(), Failure> {
    let result = Report {
        bench: "append",
        conversations: args.conversations,
        in_flight: args.in_flight,
        connections,
        bytes: args.bytes,
        transport: args.transport,
        acked_per_second: Spread::of(rounds.iter().map(|round| round.acked_per_second)),
        baseline_per_second: Spread::of(rounds.iter().filter_map(|round| round.baseline_per_second)),
        ratio: Spread::of(rounds.iter().filter_map(|round| round.ratio)),
        rounds,
    };
    let spread =
        |spread: &Option<Spread>, digits| spread.map_or("not measured".to_owned(), |spread| spread.show(digits));
    let mut rows = vec![
        ("durable acked sends/s".to_owned(), spread(&result.acked_per_second, 0)),
        ("the same statements in a bare loop, records/s".to_owned(), spread(&result.baseline_per_second, 0)),
        ("ratio".to_owned(), spread(&result.ratio, 2)),
    ];
    for (index, round) in result.rounds.iter().enumerate() {
        let Percentiles { p50_ms, p99_ms, max_ms, .. } = round.ack;
        let batch = round.records_per_commit.map_or(String::new(), |size| format!(", {size:.1} records a commit"));
        let text =
            format!("p50 {p50_ms:.1} ms, p99 {p99_ms:.1} ms, max {max_ms:.1} ms, {} refused{batch}", round.refused);
        rows.push((format!("round {}: send to ack", index + 1), text));
    }
    report(output, &result, &rows)
}

fn connections(args: &AppendArgs) -> u32 {
    match (args.connections, args.transport) {
        (Some(asked), Transport::Http) => asked.min(args.in_flight),
        (None, Transport::Http) => args.in_flight,
        (asked, Transport::Ws) => asked.unwrap_or(1).max(args.conversations.div_ceil(TOPICS_A_SOCKET)),
    }
}

async fn create_all(endpoint: &Endpoint, names: &[String]) -> Result<(), Failure> {
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

/// What one sender saw in one round.
#[derive(Default)]
struct Seen {
    acks: Histogram,
    refused: u64,
}

/// All connections, kept over the rounds.
struct Senders {
    senders: Vec<Sender>,
}

enum Sender {
    Socket { socket: PhoenixSocket, topics: Vec<Joined>, next: usize, window: usize },
    Post { client: HttpClient, names: Vec<String>, next: usize },
}

impl Senders {
    async fn open(args: &AppendArgs, endpoint: &Endpoint, names: &[String], count: u32) -> Result<Self, Failure> {
        let mut senders = Vec::new();
        let count = count as usize;
        for index in 0..count {
            let mine: Vec<String> = names.iter().skip(index).step_by(count).cloned().collect();
            if args.transport == Transport::Http {
                let names = if mine.is_empty() { names.to_vec() } else { mine };
                senders.push(Sender::Post { client: HttpClient::new(endpoint.clone())?, names, next: 0 });
                continue;
            }
            let mut socket = PhoenixSocket::connect(endpoint).await?;
            let mut topics = Vec::new();
            for name in &mine {
                topics.push(socket.join(&format!("conversation:{name}"), "{}", &mut drop).await?);
            }
            // The sends under way are spread so that their sum is exact.
            let in_flight = args.in_flight as usize;
            let window = in_flight / count + usize::from(index < in_flight % count);
            if !topics.is_empty() && window > 0 {
                senders.push(Sender::Socket { socket, topics, next: 0, window });
            }
        }
        progress(&format!("{} connections are open", senders.len()));
        Ok(Self { senders })
    }

    async fn round(&mut self, args: &AppendArgs) -> Result<Round, Failure> {
        let text = "x".repeat(args.bytes as usize);
        let begun = Instant::now();
        let until = begun + Duration::from_secs(args.seconds.into());
        let mut tasks = JoinSet::new();
        for mut sender in self.senders.drain(..) {
            let text = text.clone();
            tasks.spawn(async move {
                let seen = sender.send_until(until, &text).await?;
                Ok::<_, Failure>((sender, seen))
            });
        }
        let (mut acks, mut refused) = (Histogram::default(), 0);
        while let Some(done) = tasks.join_next().await {
            let (sender, seen) = done.map_err(|error| Failure::other(error.to_string()))??;
            self.senders.push(sender);
            acks.merge(&seen.acks);
            refused += seen.refused;
        }
        let elapsed = begun.elapsed().as_secs_f64();
        let acked = acks.count();
        Ok(Round {
            acked,
            refused,
            acked_per_second: acked as f64 / elapsed,
            ack: acks.percentiles(),
            records_per_commit: None,
            baseline_per_second: None,
            ratio: None,
        })
    }
}

impl Sender {
    async fn send_until(&mut self, until: Instant, text: &str) -> Result<Seen, Failure> {
        match self {
            Self::Socket { socket, topics, next, window } => {
                push_until(socket, topics, next, *window, until, text).await
            }
            Self::Post { client, names, next } => post_until(client, names, next, until, text).await,
        }
    }
}

async fn push_until(
    socket: &mut PhoenixSocket,
    topics: &[Joined],
    next: &mut usize,
    window: usize,
    until: Instant,
    text: &str,
) -> Result<Seen, Failure> {
    let mut seen = Seen::default();
    // Acks of one socket come nearly in order, so the search from the front is short.
    let mut under_way: VecDeque<(u64, Instant)> = VecDeque::with_capacity(window);
    let mut key = uuid::Uuid::now_v7().simple().to_string();
    let key_stem = key.len();
    loop {
        while under_way.len() < window && Instant::now() < until {
            key.truncate(key_stem);
            key.push_str(&format!("-{next}"));
            let payload = format!(r#"{{"client_msg_id":"{key}","body":{{"text":"{text}"}}}}"#);
            let topic = &topics[*next % topics.len()];
            let sent = Instant::now();
            under_way.push_back((socket.push(topic, "message", &payload).await?, sent));
            *next += 1;
        }
        if under_way.is_empty() {
            return Ok(seen);
        }
        let answer = tokio::time::timeout(DRAIN_MAX, socket.next_reply()).await;
        let (reference, is_ok) = answer.map_err(|_| Failure::other("a push was not answered within 15 s"))??;
        if let Some(at) = under_way.iter().position(|(sent, _)| *sent == reference)
            && let Some((_, sent)) = under_way.remove(at)
        {
            if is_ok { seen.acks.add(sent.elapsed()) } else { seen.refused += 1 }
        }
    }
}

async fn post_until(
    client: &HttpClient,
    names: &[String],
    next: &mut usize,
    until: Instant,
    text: &str,
) -> Result<Seen, Failure> {
    let mut seen = Seen::default();
    while Instant::now() < until {
        let body = json!({"client_msg_id": uuid::Uuid::now_v7().to_string(), "body": {"text": text}});
        let request = Request::post(&["v1", "conversations", &names[*next % names.len()], "messages"], body);
        *next += 1;
        let sent = Instant::now();
        match client.attempt(&request).await {
            Ok(_) => seen.acks.add(sent.elapsed()),
            Err(crate::client::ClientError::Refused(_)) => seen.refused += 1,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(seen)
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
