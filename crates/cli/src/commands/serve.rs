//! `conch serve`: hands the configuration to the server, prints where it is, and reports how it ended.

use conch_server::auth::secret::Mode;
use conch_server::config::{Config, LogFormat};
use conch_server::serve::{self, Started};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::args::ServeArgs;
use crate::exit::Failure;
use crate::local;
use crate::output::Output;

pub(crate) fn run(args: &ServeArgs, output: &Output) -> Result<(), Failure> {
    let config = local::config(args.config.clone(), super::config::flags(args)).map_err(Failure::usage)?;
    start_log(&config)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::other(format!("the runtime could not be started: {error}")))?;
    runtime.block_on(async {
        let stop = stop_signal()?;
        let store = config.store.to_string();
        let started = |started: Started| {
            let shown = output.result(&ready(&started, &store), || greeting(&started, &store));
            if let Err(failure) = shown {
                tracing::warn!(failure = failure.message, "the addresses could not be printed");
            }
        };
        serve::run(config, started, stop).await.map_err(|error| Failure::other(error.to_string()))
    })
}

/// Logs go to standard error; `RUST_LOG` refines the configured level.
fn start_log(config: &Config) -> Result<(), Failure> {
    let level = config.log.level.as_str();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = match config.log.format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    started.map_err(|error| Failure::other(format!("the log could not be started: {error}")))
}

/// Completes at the first SIGTERM or SIGINT.
fn stop_signal() -> Result<impl Future<Output = ()>, Failure> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        // Both branches are cancel safe.
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// The line for machines.
fn ready(started: &Started, store: &str) -> Value {
    let Started { listen, ops_listen, .. } = started;
    json!({"ready": true, "console": format!("http://{listen}/"), "listen": listen, "ops_listen": ops_listen, "store": store})
}

/// The lines for people: where the console is, and what mode the node runs in.
fn greeting(started: &Started, store: &str) -> String {
    let Started { listen, ops_listen, mode } = started;
    let mode = match mode {
        Mode::Configured => "a key is configured",
        Mode::Development => "development mode: no key is configured, so it serves this machine alone",
    };
    format!(
        "Conch is ready. Console: http://{listen}/\n  {mode}\n  store {store}, operations http://{ops_listen}/readyz"
    )
}
