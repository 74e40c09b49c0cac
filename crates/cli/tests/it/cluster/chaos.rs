//! A long run in bad weather ([`super::weather`]): three nodes on a primary and an asynchronous standby, and clients that send and
//! watch all the while, over HTTP, Server-Sent Events and WebSockets.
//!
//! A minute by default. Longer, with other weather, on another binary, and with its files kept:
//! `CONCH_CHAOS_SECONDS=900 CONCH_CHAOS_SEED=2 CONCH_CHAOS_BIN=target/release/conch CONCH_CHAOS_KEEP=DIR`.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use conch_core::head::SKIP_PER_GENERATION;
use serde::Deserialize;

use super::load::{History, Load, Plan, judge};
use super::weather::Weather;

/// How long a run takes if nothing else is said.
const SECONDS: u64 = 60;
/// Enough in flight at any time, and few enough for a history that can be kept in memory. The budget is more than a database takes
/// to recover on a slow disk: that is not the nodes' time.
const PLAN: Plan =
    Plan { rooms: 3, writers: 3, sockets: 2, pace: Duration::from_millis(40), budget: Duration::from_secs(120) };
/// What no node may have logged.
const NEVER: [&str; 2] = ["panicked at", "is broken ("];

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{name}={text}: {error}")))
}

/// The history of a run that ended badly is written down beside the nodes' logs.
struct Kept {
    history: History,
    file: PathBuf,
}

impl Drop for Kept {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.history.keep(&self.file);
        }
    }
}

#[test]
#[expect(clippy::print_stderr, reason = "what befell the cluster, for whoever reads the log of a long run")]
fn bad_weather_loses_doubles_and_reorders_nothing() {
    let seed = number("CONCH_CHAOS_SEED").unwrap_or(1);
    let length = Duration::from_secs(number("CONCH_CHAOS_SECONDS").unwrap_or(SECONDS));
    let mut weather = Weather::new(seed, 3);
    if let Some(binary) = std::env::var_os("CONCH_CHAOS_BIN") {
        weather.cluster.places.iter_mut().for_each(|place| place.program = PathBuf::from(&binary));
    }
    if let Some(directory) = std::env::var_os("CONCH_CHAOS_KEEP") {
        let kept =
            tempfile::Builder::new().prefix(&format!("seed-{seed}.")).disable_cleanup(true).tempdir_in(directory);
        weather.cluster.scratch = kept.expect("a directory");
    }
    eprintln!("seed {seed}, {length:?}, in {}", weather.cluster.scratch.path().display());
    weather.cluster.start_all();
    let load = Load::planned(&weather.cluster, PLAN);
    let file = weather.cluster.scratch.path().join("history.jsonl");
    let _kept = Kept { history: load.history(), file };
    weather.load = Some(load);
    let begun = Instant::now();
    // On a slow machine a short run goes on to the first promotion that loses something, which is at most a deck away or two.
    while begun.elapsed() < length || !weather.lost_some {
        weather.spell();
    }
    weather.calm();
    let load = weather.load.take().expect("it has begun");
    let refusals = load.met.refusals.lock().expect("nobody panicked").len();
    let history = load.end(&weather.cluster, &[0, 1, 2]);
    let verdict = judge(&weather.cluster, &history);
    let mut report = verdict.report;
    let lost: Vec<Lost> = Vec::deserialize(report["lost"].take()).expect("a list");
    eprintln!(
        "befell {:?}, {} nodes ended by themselves, {refusals} refusals: {report}",
        weather.befell, weather.ended
    );
    eprintln!("lost: {}", ranges(&lost).join(", "));
    assert_eq!((verdict.history, verdict.store), (Vec::new(), Vec::new()));
    for place in &weather.cluster.places {
        let log = std::fs::read_to_string(weather.cluster.log(&place.name)).expect("it has logged");
        let never = log.lines().find(|line| NEVER.iter().any(|never| line.contains(never)));
        assert_eq!(never, None, "node {}", place.name);
    }
    // Each write is there or named, but for what only an observer saw and its writer sent again.
    let count = |name: &str| report[name].as_u64().expect("a count");
    let gone = lost.iter().filter(|lost| lost.acked).count() as u64;
    assert_eq!(count("records") + gone, count("writes") + PLAN.rooms as u64, "with the first one of each conversation");
    assert!(count("failovers") > 0 && gone > 0, "{report}");
    // The same history without the word of whoever promoted: each of those losses is noticed.
    let silent: Vec<String> = history.into_iter().filter(|line| !line.starts_with(r#"{"event":"failover""#)).collect();
    let noticed = judge(&weather.cluster, &silent).report["violations_total"].as_u64();
    assert!(noticed >= Some(gone), "{noticed:?} of {gone}");
}

/// A number that a promotion lost.
#[derive(Deserialize)]
struct Lost {
    conversation: String,
    seq: u64,
    acked: bool,
}

/// The numbers as ranges, by conversation and generation.
fn ranges(lost: &[Lost]) -> Vec<String> {
    let runs = lost
        .chunk_by(|one, next| one.conversation == next.conversation && next.seq - one.seq < SKIP_PER_GENERATION / 2);
    let named = runs.map(|run| {
        let (first, last) = (&run[0], &run[run.len() - 1]);
        format!("{} {} to {} ({})", first.conversation, first.seq, last.seq, run.len())
    });
    named.collect()
}
