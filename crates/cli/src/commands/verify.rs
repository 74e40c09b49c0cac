//! `conch verify`: reads a store and checks the invariants that a stored log can show. Runs beside a server.

use conch_core::verify::Report;
use conch_server::config::{Config, StoreUrl};
use conch_server::stores;
use serde_json::json;

use crate::args::StoreArgs;
use crate::exit::Failure;
use crate::local;
use crate::output::{Format, Output};
use crate::safe::one_line;

/// How often progress is shown, in conversations.
const SHOWN_EVERY: u64 = 10_000;

pub(crate) fn run(args: &StoreArgs, output: &Output) -> Result<(), Failure> {
    let config = local::config_of_store(args.store.as_deref()).map_err(Failure::usage)?;
    let progress = |report: &Report| {
        if report.conversations.is_multiple_of(SHOWN_EVERY) && report.conversations > 0 {
            output.notice(&format!("{} conversations, {} records …", report.conversations, report.records));
        }
    };
    let report = match &config.store {
        StoreUrl::Sqlite(directory) => {
            conch_store::sqlite::verify(directory, progress).map_err(|error| Failure::other(error.to_string()))?
        }
        StoreUrl::Postgres(url) => verify_postgres(&config, url.expose(), progress)?,
    };
    match output.format {
        Format::Json => output.json(&as_json(&report))?,
        Format::Human => {
            for violation in &report.violations {
                output.line(&one_line(&violation.to_string()))?;
            }
            let Report { conversations, records, cursors, violations_total, .. } = &report;
            output.line(&format!(
                "{conversations} conversations, {records} records, {cursors} cursors: {violations_total} violations"
            ))?;
        }
    }
    if report.is_clean() {
        return Ok(());
    }
    Err(Failure::violations(format!("{} violations in {}", report.violations_total, config.store)))
}

fn verify_postgres(config: &Config, url: &str, progress: impl FnMut(&Report)) -> Result<Report, Failure> {
    let key = stores::find_signing_key(config).map_err(|error| Failure::usage(error.to_string()))?;
    let options = stores::postgres_options(config, &key);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let verified = runtime.block_on(conch_store::postgres::verify(url, &options, progress));
    verified.map_err(|error| Failure::other(error.to_string()))
}

fn as_json(report: &Report) -> serde_json::Value {
    let violations: Vec<_> = report
        .violations
        .iter()
        .map(|violation| {
            json!({
                "invariant": violation.invariant as u8,
                "conversation": violation.conversation,
                "seq": violation.seq,
                "detail": violation.detail,
            })
        })
        .collect();
    json!({
        "conversations": report.conversations,
        "records": report.records,
        "cursors": report.cursors,
        "violations_total": report.violations_total,
        "violations": violations,
    })
}
