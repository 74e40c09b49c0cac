//! `conch bench idle`: what a node pays for conversations that it owns and in which nothing happens: memory, and writes to
//! the database while its heart beats.
//!
//! Invariant: the counts are the database's own, of all tables of the node, so that a write which nobody thought of shows.

use std::time::{Duration, Instant};

use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Serialize;
use serde_json::json;

use super::ground::{self, Ground};
use super::server::{ServerUnderTest, metric};
use super::{IdleArgs, process, progress, report};
use crate::client::{HttpClient, Request};
use crate::exit::Failure;
use crate::output::Output;

/// Sends under way at once while the conversations are taken.
const TAKING: usize = 32;
/// When an idle conversation leaves memory here: soon, so that the bench need not wait.
const HIBERNATE_MS: u64 = 2_000;
/// How long the node is left alone before its memory is read: longer than that, and than its rounds of tidying up.
const SETTLE: Duration = Duration::from_secs(8);
/// After so many conversations progress is shown.
const PROGRESS_EVERY: usize = 20_000;

#[derive(Debug, Serialize)]
struct Report {
    bench: &'static str,
    /// As the node counts them.
    owned: u64,
    taken_per_second: f64,
    memory_bytes_per_owned: u64,
    seconds: f64,
    beats: u64,
    /// Rows that the beats updated.
    node_rows_updated: u64,
    /// Rows of all other tables that were written meanwhile.
    other_rows_written: u64,
}

pub(super) async fn run(args: &IdleArgs, output: &Output) -> Result<(), Failure> {
    let mut ground = Ground::database(&args.store)?;
    let result = measure(args, &mut ground).await;
    ground.clear().await;
    let result = result?;
    let Report { owned, taken_per_second, memory_bytes_per_owned, seconds, beats, .. } = &result;
    let rows = [
        ("conversations owned".to_owned(), owned.to_string()),
        ("taken, each with its first message, a second".to_owned(), format!("{taken_per_second:.0}")),
        ("memory per idle owned conversation".to_owned(), format!("{memory_bytes_per_owned} bytes")),
        (format!("beats in {seconds:.0} s"), beats.to_string()),
        ("node rows updated".to_owned(), result.node_rows_updated.to_string()),
        ("other rows written".to_owned(), result.other_rows_written.to_string()),
    ];
    report(output, &result, &rows)
}

async fn measure(args: &IdleArgs, ground: &mut Ground) -> Result<Report, Failure> {
    let url = ground.store("idle").await?;
    let area = ground.area().ok_or_else(|| Failure::other("a database has areas"))?;
    // Makes the tables.
    drop(ground::open(&url).await?);
    progress(&format!("creating {} conversations", args.conversations));
    area.conversations("idle-", args.conversations).await.map_err(|error| Failure::other(error.to_string()))?;
    let settings = [format!("hibernation.memory_ms={HIBERNATE_MS}")];
    let server = ServerUnderTest::start_on(&std::env::temp_dir(), &url, &settings).await?;
    let client = HttpClient::new(server.endpoint().clone())?;
    // The first one warms what is there once.
    send(&client, 0).await?;
    let before = process::resident_bytes(server.pid())?;
    let begun = Instant::now();
    let sends = (1..args.conversations).map(|number| send(&client, number));
    let mut sends = stream::iter(sends).buffer_unordered(TAKING);
    let mut taken = 1;
    while sends.try_next().await?.is_some() {
        taken += 1;
        if taken % PROGRESS_EVERY == 0 {
            progress(&format!("{taken} are owned"));
        }
    }
    let taken_per_second = taken as f64 / begun.elapsed().as_secs_f64();
    tokio::time::sleep(SETTLE).await;
    let grown = process::resident_bytes(server.pid())?.saturating_sub(before);
    let failed = |error: conch_store::StoreError| Failure::other(error.to_string());
    let (first, begun) = (area.writes().await.map_err(failed)?, Instant::now());
    tokio::time::sleep(Duration::from_secs(args.seconds.into())).await;
    let last = area.writes().await.map_err(failed)?;
    let owned = metric(&server.metrics().await?, "conch_owned_conversations").unwrap_or(0.0) as u64;
    Ok(Report {
        bench: "idle",
        owned,
        taken_per_second,
        memory_bytes_per_owned: grown / u64::from(args.conversations),
        seconds: begun.elapsed().as_secs_f64(),
        beats: last.beats - first.beats,
        node_rows_updated: last.node_rows - first.node_rows,
        other_rows_written: last.others - first.others,
    })
}

/// The first message of a conversation: whoever writes it owns it.
async fn send(client: &HttpClient, number: u32) -> Result<(), Failure> {
    let body = json!({"client_msg_id": uuid::Uuid::now_v7().to_string(), "body": {"text": "idle"}});
    let request = Request::post(&["v1", "conversations", &format!("idle-{number}"), "messages"], body);
    client.attempt(&request).await?;
    Ok(())
}
