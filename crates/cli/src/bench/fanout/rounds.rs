//! One node, one channel, many sessions; rounds of the server, each followed by a round of the bare loop.

use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::json;
use tokio::task::JoinSet;

use super::bare::Bare;
use super::framed;
use crate::bench::histogram::Percentiles;
use crate::bench::load::{Delivered, Dialect, Question};
use crate::bench::server::ServerUnderTest;
use crate::bench::sessions::{SPARE_FILES, Sessions, Wanted};
use crate::bench::{Baseline, FanoutArgs, Spread, process, progress, report};
use crate::client::{ClientError, HttpClient, Request};
use crate::exit::Failure;
use crate::output::Output;

/// How long the sessions may take to join, besides the ramp.
const JOIN_MAX: Duration = Duration::from_secs(120);
/// How long the last messages of a round may take to arrive.
const ARRIVE_MAX: Duration = Duration::from_secs(30);
/// How often it is asked whether they have.
const POLL: Duration = Duration::from_millis(100);
/// How long the server is left alone before its idle memory is read.
const SETTLE: Duration = Duration::from_secs(2);

/// One round.
#[derive(Debug, Clone, Serialize)]
struct Round {
    sent: u64,
    refused: u64,
    deliveries: u64,
    missing: u64,
    out_of_order: u64,
    sessions_ended: u64,
    delivery: Percentiles,
    server_cpu_us_per_delivery: f64,
    bare_cpu_us_per_send: Option<f64>,
    ratio: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Report {
    bench: &'static str,
    sessions: u32,
    client_processes: usize,
    rate_per_second: u32,
    text_bytes: u32,
    frame_bytes: u64,
    join_seconds: f64,
    memory_bytes_per_idle_session: u64,
    server_cpu_us_per_delivery: Option<Spread>,
    bare_cpu_us_per_send: Option<Spread>,
    ratio: Option<Spread>,
    rounds: Vec<Round>,
}

/// What joining took.
struct Joined {
    seconds: f64,
    memory_bytes_a_session: u64,
}

pub(super) async fn run(args: &FanoutArgs, output: &Output) -> Result<(), Failure> {
    let directory = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let files = process::open_files_max();
    if u64::from(args.sessions) + SPARE_FILES > files {
        return Err(Failure::usage(format!(
            "--sessions: the server holds all of them, and a process may open {files} files here; at most {} fit",
            files.saturating_sub(SPARE_FILES)
        )));
    }
    let server = ServerUnderTest::start(&directory).await?;
    let conversation = format!("bench-{}", uuid::Uuid::now_v7().simple());
    let client = HttpClient::new(server.endpoint().clone())?;
    let created = Request::put(&["v1", "conversations", &conversation], json!({"kind": "channel"}));
    client.attempt(&created).await?;
    // One message first: the conversation's own memory is not the sessions'.
    post(&client, &conversation, 0).await?;
    let mut sessions = Sessions::start(&Wanted {
        addresses: vec![server.endpoint().authority()],
        dialect: Dialect::Conch,
        sessions: args.sessions as usize,
        conversation: conversation.clone(),
        token: server.endpoint().token().map(str::to_owned),
        more: Vec::new(),
    })?;
    let joined = join(args, &server, &mut sessions).await?;
    let mut bare = None;
    let mut rounds = Vec::new();
    let mut frame_bytes = 0;
    for number in 1..=args.rounds {
        let (mut round, delivered) = server_round(args, &server, &client, &conversation, &mut sessions).await?;
        frame_bytes = framed(delivered.bytes / delivered.deliveries.max(1));
        let Percentiles { p50_ms, p99_ms, .. } = round.delivery;
        progress(&format!(
            "round {number}: {:.1} µs of the server's CPU a delivery, p50 {p50_ms:.1} ms, p99 {p99_ms:.1} ms, {} missing",
            round.server_cpu_us_per_delivery, round.missing
        ));
        if args.baseline == Baseline::With {
            if bare.is_none() {
                bare = Some(Bare::start(args.sessions as usize).await?);
            }
            let cost = bare
                .as_mut()
                .expect("it was just started")
                .round(u64::from(args.rate) * u64::from(args.seconds), args.rate, frame_bytes)
                .await?;
            progress(&format!("round {number}: {cost:.1} µs of the bare loop's CPU a send"));
            round.bare_cpu_us_per_send = Some(cost);
            round.ratio = Some(round.server_cpu_us_per_delivery / cost);
        }
        rounds.push(round);
    }
    show(args, &joined, sessions.processes(), frame_bytes, rounds, output)
}

fn show(
    args: &FanoutArgs,
    joined: &Joined,
    client_processes: usize,
    frame_bytes: u64,
    rounds: Vec<Round>,
    output: &Output,
) -> Result<(), Failure> {
    let result = Report {
        bench: "fanout",
        sessions: args.sessions,
        client_processes,
        rate_per_second: args.rate,
        text_bytes: args.bytes,
        frame_bytes,
        join_seconds: joined.seconds,
        memory_bytes_per_idle_session: joined.memory_bytes_a_session,
        server_cpu_us_per_delivery: Spread::of(rounds.iter().map(|round| round.server_cpu_us_per_delivery)),
        bare_cpu_us_per_send: Spread::of(rounds.iter().filter_map(|round| round.bare_cpu_us_per_send)),
        ratio: Spread::of(rounds.iter().filter_map(|round| round.ratio)),
        rounds,
    };
    let spread = |spread: &Option<Spread>| spread.map_or("not measured".to_owned(), |spread| spread.show(2));
    let mut rows = vec![
        ("sessions joined in".to_owned(), format!("{:.1} s", result.join_seconds)),
        (
            "memory per idle joined session".to_owned(),
            format!("{:.1} KiB", result.memory_bytes_per_idle_session as f64 / 1024.0),
        ),
        ("bytes of a frame".to_owned(), result.frame_bytes.to_string()),
        ("server CPU per delivery, µs".to_owned(), spread(&result.server_cpu_us_per_delivery)),
        ("bare loop CPU per send, µs".to_owned(), spread(&result.bare_cpu_us_per_send)),
        ("ratio".to_owned(), spread(&result.ratio)),
    ];
    for (index, round) in result.rounds.iter().enumerate() {
        let Percentiles { p50_ms, p99_ms, max_ms, .. } = round.delivery;
        let text = format!(
            "{} sent, {} refused; {} delivered, {} missing, {} out of order; p50 {p50_ms:.1} ms, p99 {p99_ms:.1} ms, max {max_ms:.1} ms",
            round.sent, round.refused, round.deliveries, round.missing, round.out_of_order
        );
        rows.push((format!("round {}", index + 1), text));
    }
    report(output, &result, &rows)
}

/// Sends for a round and waits until everything has arrived.
async fn server_round(
    args: &FanoutArgs,
    server: &ServerUnderTest,
    client: &HttpClient,
    conversation: &str,
    sessions: &mut Sessions,
) -> Result<(Round, Delivered), Failure> {
    sessions.look(&Question::Reset).await?;
    let before = process::cpu(server.pid())?;
    let (sent, refused) = send_all(args, client, conversation).await?;
    let expected = sent * u64::from(args.sessions);
    let begun = Instant::now();
    let delivered = loop {
        let delivered = sessions.look(&Question::Look).await?;
        if delivered.deliveries >= expected || begun.elapsed() > ARRIVE_MAX {
            break delivered;
        }
        tokio::time::sleep(POLL).await;
    };
    let cpu = process::cpu(server.pid())?.saturating_sub(before);
    // Each session must have each message, not only all of them together as many.
    let missing = expected.saturating_sub(delivered.deliveries).max(sent.saturating_sub(delivered.least));
    let round = Round {
        sent,
        refused,
        deliveries: delivered.deliveries,
        missing,
        out_of_order: delivered.out_of_order,
        sessions_ended: delivered.ended,
        delivery: delivered.latency.percentiles(),
        server_cpu_us_per_delivery: cpu.as_secs_f64() * 1e6 / delivered.deliveries.max(1) as f64,
        bare_cpu_us_per_send: None,
        ratio: None,
    };
    Ok((round, delivered))
}

/// Sends at the rate, whatever the acks take; how many were acknowledged, and how many refused.
async fn send_all(args: &FanoutArgs, client: &HttpClient, conversation: &str) -> Result<(u64, u64), Failure> {
    let mut sends = JoinSet::new();
    let begun = tokio::time::Instant::now();
    for number in 0..u64::from(args.rate) * u64::from(args.seconds) {
        tokio::time::sleep_until(begun + Duration::from_secs_f64(number as f64 / f64::from(args.rate))).await;
        let (client, conversation, bytes) = (client.clone(), conversation.to_owned(), args.bytes);
        sends.spawn(async move { post(&client, &conversation, bytes).await });
    }
    let (mut sent, mut refused) = (0, 0);
    while let Some(done) = sends.join_next().await {
        match done.map_err(|error| Failure::other(error.to_string()))? {
            Ok(()) => sent += 1,
            Err(ClientError::Refused(_)) => refused += 1,
            Err(error) => return Err(error.into()),
        }
    }
    Ok((sent, refused))
}

async fn post(client: &HttpClient, conversation: &str, bytes: u32) -> Result<(), ClientError> {
    let body = json!({
        "client_msg_id": uuid::Uuid::now_v7().to_string(),
        "body": {"sent_ns": process::shared_now_ns(), "text": "x".repeat(bytes as usize)},
    });
    let request = Request::post(&["v1", "conversations", conversation, "messages"], body);
    client.attempt(&request).await.map(drop)
}

async fn join(args: &FanoutArgs, server: &ServerUnderTest, sessions: &mut Sessions) -> Result<Joined, Failure> {
    progress(&format!("{} sessions join, from {} processes", args.sessions, sessions.processes()));
    let before = process::resident_bytes(server.pid())?;
    let (begun, ramp) = (Instant::now(), Duration::from_secs(args.ramp.unwrap_or(0).into()));
    sessions.connect(args.sessions as usize, ramp).await?;
    sessions.until_joined(args.sessions as usize, JOIN_MAX + ramp).await?;
    let seconds = begun.elapsed().as_secs_f64();
    tokio::time::sleep(SETTLE).await;
    let grown = process::resident_bytes(server.pid())?.saturating_sub(before);
    Ok(Joined { seconds, memory_bytes_a_session: grown / u64::from(args.sessions) })
}
