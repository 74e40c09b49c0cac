//! `conch serve`: hands the configuration to the server, prints where it is, and reports how it ended.

use std::path::PathBuf;
use std::time::Duration;

use conch_core::ids::Incarnation;
use conch_server::auth::secret::Mode;
use conch_server::config::{Config, LogFormat};
use conch_server::serve::{self, Ended, Started};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::args::ServeArgs;
use crate::exit::Failure;
use crate::local;
use crate::output::Output;

/// Longest wait, at the very end, for what still occupies a thread.
const LEFT_OVER: Duration = Duration::from_secs(1);

pub(crate) fn run(args: &ServeArgs, output: &Output) -> Result<(), Failure> {
    let config = local::config(args.config.clone(), super::config::flags(args)).map_err(Failure::usage)?;
    super::config::warn_of_variables(&config, output);
    start_log(&config, output)?;
    let incarnation_file = args.incarnation_file.clone().map(IncarnationFile::at).transpose()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::other(format!("the runtime could not be started: {error}")))?;
    let ended = runtime.block_on(async {
        let stop = stop_signal()?;
        let store = config.store.to_string();
        let started = |started: Started| {
            if let Some(file) = &incarnation_file {
                file.name(started.incarnation);
            }
            let shown = output.result(&ready(&started, &store), || greeting(&started, &store));
            if let Err(failure) = shown {
                tracing::warn!(failure = failure.message, "the addresses could not be printed");
            }
        };
        let stop = async {
            stop.await;
            tell(output, "Conch stops: it takes nothing new and finishes what was begun.");
        };
        let ended = serve::run(config, started, stop).await.map_err(|error| Failure::other(error.to_string()))?;
        if let (Some(file), Ended::InOrder) = (&incarnation_file, ended) {
            file.clear();
        }
        tell(output, farewell(ended));
        Ok(())
    });
    // A start that was stopped may have left a thread that looks up a name, for which nobody waits any more.
    runtime.shutdown_timeout(LEFT_OVER);
    ended
}

/// Where an exit hook finds out which registration it may declare dead. Empty until the node is ready, gone after an end in
/// order.
struct IncarnationFile(PathBuf);

impl IncarnationFile {
    /// Empties or makes the file, so that one which cannot be written is known at once.
    fn at(path: PathBuf) -> Result<Self, Failure> {
        std::fs::write(&path, "")
            .map_err(|why| Failure::other(format!("--incarnation-file {}: {why}", path.display())))?;
        Ok(Self(path))
    }

    fn name(&self, incarnation: Incarnation) {
        if let Err(error) = std::fs::write(&self.0, format!("{incarnation}\n")) {
            tracing::error!(%error, path = %self.0.display(), "the incarnation file was not written");
        }
    }

    fn clear(&self) {
        if let Err(error) = std::fs::remove_file(&self.0) {
            tracing::warn!(%error, path = %self.0.display(), "the incarnation file stays");
        }
    }
}

/// To people on their terminal; elsewhere into the log.
fn tell(output: &Output, text: &str) {
    if !output.notice(text) {
        tracing::info!("{text}");
    }
}

/// How it ended, for people.
fn farewell(ended: Ended) -> &'static str {
    match ended {
        Ended::InOrder => "Conch has stopped: everything is finished, and every lease released.",
        Ended::OutOfTime => "Conch has stopped: the time ran out (limits.drain_ms), so some leases end by themselves.",
    }
}

/// Logs go to standard error, in colour on a terminal alone; `RUST_LOG` refines the configured level.
fn start_log(config: &Config, output: &Output) -> Result<(), Failure> {
    let level = config.log.level.as_str();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let coloured = output.colours_errors();
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(coloured);
    let started = match config.log.format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    started.map_err(|error| Failure::other(format!("the log could not be started: {error}")))
}

/// Completes at the first SIGTERM, SIGINT, or SIGHUP (the terminal is gone), unless `nohup` has it ignored.
fn stop_signal() -> Result<impl Future<Output = ()>, Failure> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = if hangup_is_ignored() { None } else { Some(signal(SignalKind::hangup())?) };
    Ok(async move {
        let hung_up = async {
            match &mut hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        // All branches are cancel safe.
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hung_up => {}
        }
    })
}

/// Whether this process was started with SIGHUP ignored. Where the system does not say, it was not.
fn hangup_is_ignored() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| ignores_hangup(&status))
}

/// As Linux tells in a process's status: a mask in hexadecimal, with one bit for each signal from 1.
fn ignores_hangup(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (SignalKind::hangup().as_raw_value() - 1) & 1 == 1)
}

/// The line for machines.
fn ready(started: &Started, store: &str) -> Value {
    let Started { listen, ops_listen, .. } = started;
    json!({"ready": true, "console": format!("http://{listen}/"), "listen": listen, "ops_listen": ops_listen, "store": store})
}

/// The lines for people: where the console is, and what mode the node runs in.
fn greeting(started: &Started, store: &str) -> String {
    let Started { listen, ops_listen, mode, .. } = started;
    let mode = match mode {
        Mode::Configured => "a key is configured",
        Mode::Development => "development mode: no key is configured, so it serves this machine alone",
    };
    format!(
        "Conch is ready. Console: http://{listen}/\n  {mode}\n  store {store}, operations http://{ops_listen}/readyz"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_hangup_is_recognised() {
        assert!(ignores_hangup("Name:\tconch\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n"));
        for status in ["", "SigIgn:\t0000000000001000\n", "SigIgn:\tx\n", "SigBlk:\t0000000000000001\n"] {
            assert!(!ignores_hangup(status), "{status:?}");
        }
    }
}
