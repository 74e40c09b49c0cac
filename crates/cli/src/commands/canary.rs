//! `conch canary`: shows on the operator's own database that the fence holds. Runs beside the nodes of a live cluster.

use conch_server::canary::{self, Outcome, Step};
use conch_server::config::{Config, StoreUrl};
use conch_server::stores;
use conch_store::postgres;
use serde_json::json;

use crate::args::StoreArgs;
use crate::exit::Failure;
use crate::local;
use crate::output::{Format, Output, Style};
use crate::safe::one_line;

pub(crate) fn run(args: &StoreArgs, output: &Output) -> Result<(), Failure> {
    let config = local::config_of_store(args.store.as_deref()).map_err(Failure::usage)?;
    let StoreUrl::Postgres(url) = &config.store else {
        return Err(Failure::usage(format!(
            "--store {}: the canary needs a store that two nodes can share, postgres://…; a directory belongs to one process",
            config.store
        )));
    };
    // Several threads, as a node has them: the two must not wait for each other.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut shown = Shown { output, doubts: 0, failure: None };
    runtime.block_on(fight(&config, url.expose(), &mut shown))?;
    match (shown.doubts, shown.failure) {
        (0, None) => output.result(&json!({"doubts": 0}), || "the fence holds".to_owned()),
        (0, Some(failure)) => Err(failure),
        (doubts, _) => {
            Err(Failure::violations(format!("{doubts} doubts: do not trust this database until they are explained")))
        }
    }
}

async fn fight(config: &Config, url: &str, shown: &mut Shown<'_>) -> Result<(), Failure> {
    let key = stores::find_signing_key(config).map_err(|error| Failure::usage(error.to_string()))?;
    let other = |error: &dyn std::fmt::Display| Failure::other(error.to_string());
    let first = stores::open(config, &key).await.map_err(|error| other(&error))?;
    let second = stores::open(config, &key).await.map_err(|error| other(&error))?;
    let ended = canary::run([first, second], config, |step| shown.step(step)).await;
    let Outcome { conversation, .. } = ended.map_err(|error| other(&error))?;
    let options = stores::postgres_options(config, &key);
    let report = postgres::verify_conversation(url, &options, conversation.key).await.map_err(|error| other(&error))?;
    let detail = match report.violations.first() {
        None => format!("{} records of {} hold against the invariants", report.records, conversation.id),
        Some(violation) => violation.to_string(),
    };
    shown.step(&Step { step: "log_verifies", shown: report.is_clean() && report.records > 0, detail });
    Ok(())
}

/// Prints the steps as they are done.
struct Shown<'a> {
    output: &'a Output,
    doubts: usize,
    failure: Option<Failure>,
}

impl Shown<'_> {
    fn step(&mut self, step: &Step) {
        self.doubts += usize::from(!step.shown);
        let printed = match self.output.format {
            Format::Json => self.output.json(step),
            Format::Human => {
                let mark = if step.shown { "ok   " } else { "DOUBT" };
                let name = self.output.styled(Style::Bold, &step.step.replace('_', " "));
                self.output.line(&format!("{mark}  {name}: {}", one_line(&step.detail)))
            }
        };
        // The canary goes on: its nodes have to be taken away.
        if let Err(failure) = printed {
            self.failure.get_or_insert(failure);
        }
    }
}
