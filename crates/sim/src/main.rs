//! The simulation by hand: runs seeds, and shows what happened in one.

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use conch_sim::coverage::Coverage;
use conch_sim::model::Ownership;
use conch_sim::model::report::{self, Report};
use conch_sim::model::rules::Rules;
use conch_sim::model::scope::{Flaw, Scope};
use conch_sim::trace::TraceMode;
use conch_sim::world::{Outcome, Sabotage, run};

/// Simulates a Conch cluster: one seed decides everything that happens.
#[derive(Parser)]
#[command(name = "conch-sim", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Plays many seeds and names those that fail. Exit code 1 when one does.
    Run {
        /// How many.
        #[arg(long, default_value_t = 200)]
        seeds: u64,
        /// The first one.
        #[arg(long, default_value_t = 1)]
        start: u64,
    },
    /// Plays one seed. Exit code 1 when it fails.
    One {
        /// Which.
        #[arg(long)]
        seed: u64,
        /// Prints every line of its trace.
        #[arg(long)]
        trace: bool,
        /// Prints its history as JSON lines, for `conch check-history`.
        #[arg(long)]
        history: bool,
    },
    /// Checks the model of ownership: every order of events within bounds. Exit code 1 when a rule breaks, when something
    /// that must be possible is not, or when the time is over before everything was seen.
    Model {
        /// Raises every bound (records, reigns, late requests) by this much.
        #[arg(long, default_value_t = 0)]
        deeper: u8,
        /// Only the scopes whose name contains this.
        #[arg(long, default_value = "")]
        scope: String,
        /// What to break on purpose, by its name.
        #[arg(long)]
        flaw: Option<String>,
        /// Longest time for one scope, in seconds.
        #[arg(long, default_value_t = 3_600)]
        limit_s: u64,
    },
}

fn main() -> anyhow::Result<ExitCode> {
    let out = &mut std::io::stdout().lock();
    match Arguments::parse().command {
        Command::Run { seeds, start } => run_many(out, start, seeds),
        Command::One { seed, trace, history } => {
            let mode = if trace { TraceMode::Full } else { TraceMode::Digest };
            let outcome = run(seed, Sabotage::Nothing, mode);
            if trace || !outcome.failures.is_empty() {
                write!(out, "{}", outcome.trace.text())?;
            }
            if history {
                write!(out, "{}", outcome.history.to_lines())?;
            }
            summary(out, &outcome)?;
            Ok(exit_code(outcome.failures.len()))
        }
        Command::Model { deeper, scope, flaw, limit_s } => {
            let flaw = flaw.map(|name| flaw_named(&name)).transpose()?;
            let scopes = Scope::ALL.iter().filter(|(name, _)| name.contains(&scope));
            let mut failed = 0;
            for (name, scope) in scopes {
                let began = Instant::now();
                let model = Ownership { scope: scope.deeper(deeper), flaw, watched: Rules::ALL };
                let report = report::check(model, cores(), Duration::from_secs(limit_s));
                describe(out, name, &report, began.elapsed())?;
                failed += usize::from(!report.is_clean());
            }
            Ok(exit_code(failed))
        }
    }
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

fn flaw_named(name: &str) -> anyhow::Result<Flaw> {
    let all = || Flaw::ALL.iter().map(|flaw| format!("{flaw:?}")).collect::<Vec<_>>().join(", ");
    let found = Flaw::ALL.iter().find(|flaw| format!("{flaw:?}").eq_ignore_ascii_case(name));
    found.copied().ok_or_else(|| anyhow::anyhow!("--flaw: {name} is none of {}", all()))
}

fn describe(out: &mut impl std::io::Write, name: &str, report: &Report, took: Duration) -> std::io::Result<()> {
    let Report { states, depth, broken, missing, cut_short } = report;
    writeln!(out, "{name}: {states} worlds, {depth} steps deep, {took:.1?}")?;
    for (rule, steps) in broken {
        writeln!(out, "{name} BROKEN: {rule}")?;
        for step in steps {
            writeln!(out, "    {step}")?;
        }
    }
    for missing in missing {
        writeln!(out, "{name} NEVER: {missing}")?;
    }
    if *cut_short {
        writeln!(out, "{name} CUT SHORT: not everything was seen; raise --limit-s")?;
    }
    Ok(())
}

fn exit_code(failures: usize) -> ExitCode {
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn summary(out: &mut impl std::io::Write, outcome: &Outcome) -> std::io::Result<()> {
    let Outcome { seed, failures, coverage, counts, steps, elapsed, trace, .. } = outcome;
    writeln!(out, "{coverage}")?;
    writeln!(out, "{counts:?}")?;
    writeln!(out, "seed {seed}: {steps} steps, {elapsed:.1?} simulated, trace {:016x}", trace.digest())?;
    for failure in failures {
        writeln!(out, "seed {seed} FAILED: {failure}")?;
    }
    Ok(())
}

/// Plays seeds on every core; each seed has one thread.
fn run_many(out: &mut impl std::io::Write, start: u64, seeds: u64) -> anyhow::Result<ExitCode> {
    let (next, done) = (AtomicU64::new(start), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..cores() {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= start + seeds {
                        return;
                    }
                    let outcome = run(seed, Sabotage::Nothing, TraceMode::Digest);
                    done.lock().unwrap_or_else(PoisonError::into_inner).push(outcome);
                }
            });
        }
    });
    let mut outcomes = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    outcomes.sort_by_key(|outcome| outcome.seed);
    let mut coverage = Coverage::default();
    let mut failed = 0;
    for outcome in &outcomes {
        coverage += outcome.coverage;
        for failure in &outcome.failures {
            writeln!(out, "seed {} FAILED: {failure}", outcome.seed)?;
        }
        failed += usize::from(!outcome.failures.is_empty());
    }
    writeln!(out, "{coverage}")?;
    writeln!(out, "{} seeds from {start} on, {failed} failed", outcomes.len())?;
    if failed > 0 {
        writeln!(out, "see what happened: conch-sim one --seed SEED --trace")?;
    }
    Ok(exit_code(failed))
}
