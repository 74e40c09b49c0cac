//! The server under test: a process of its own with a data directory of its own, gone when this value is dropped.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::client::{Endpoint, HttpClient, Request};
use crate::exit::Failure;
use crate::local;

/// How long a start may take.
const START_MAX: Duration = Duration::from_secs(30);
/// How long an end in order may take.
const STOP_MAX: Duration = Duration::from_secs(60);
/// How often readiness, or an end, is asked for.
const POLL: Duration = Duration::from_millis(20);

/// A running server.
pub(crate) struct ServerUnderTest {
    child: Child,
    scratch: Scratch,
    endpoint: Endpoint,
    operations: HttpClient,
}

impl ServerUnderTest {
    /// Starts this very binary on free ports with a data directory of its own, and waits until it is ready. `beside`: the
    /// directory to make that in.
    pub(crate) async fn start(beside: &Path) -> Result<Self, Failure> {
        let scratch = Scratch::new(beside)?;
        let store = format!("sqlite:{}", scratch.path.join("data").display());
        Self::start_in(scratch, &store, &[]).await
    }

    /// The same on a store that exists, with these settings (`KEY=VALUE`).
    pub(crate) async fn start_on(beside: &Path, store: &str, settings: &[String]) -> Result<Self, Failure> {
        let arguments: Vec<String> =
            settings.iter().flat_map(|setting| ["--set".to_owned(), setting.clone()]).collect();
        Self::start_in(Scratch::new(beside)?, store, &arguments).await
    }

    /// The same with a configuration file that says this.
    pub(crate) async fn start_configured(beside: &Path, store: &str, config: &str) -> Result<Self, Failure> {
        let scratch = Scratch::new(beside)?;
        let file = scratch.path.join("conch.toml");
        std::fs::write(&file, config)?;
        let file = file.to_str().ok_or_else(|| Failure::other("the temporary directory's name is not UTF-8"))?;
        let arguments = ["--config".to_owned(), file.to_owned()];
        Self::start_in(scratch, store, &arguments).await
    }

    async fn start_in(scratch: Scratch, store: &str, arguments: &[String]) -> Result<Self, Failure> {
        let (listen, operations) = (free_address()?, free_address()?);
        let log = std::fs::File::create(scratch.path.join("server.log"))?;
        let mut command = Command::new(std::env::current_exe()?);
        for (name, _) in std::env::vars_os() {
            let name_text = name.to_string_lossy();
            // The server under test is configured by these arguments alone, but for the key.
            if name_text.starts_with("CONCH_") && !name_text.starts_with("CONCH_AUTH_") {
                command.env_remove(name);
            }
        }
        // By a variable: a database's URL may hold a password, and arguments are for everybody to see.
        command
            .args(["serve", "--listen", &listen, "--ops-listen", &operations, "--log-level", "warn"])
            .env("CONCH_STORE", store)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        command.args(arguments);
        let child =
            command.spawn().map_err(|error| Failure::other(format!("the server could not be started: {error}")))?;
        let operations = Endpoint::new(&format!("http://{operations}"), None).map_err(Failure::other)?;
        let endpoint = Endpoint::new(&format!("http://{listen}"), None).map_err(Failure::other)?;
        let mut server = Self { child, scratch, endpoint, operations: HttpClient::new(operations)? };
        server.wait_until_ready().await?;
        let token = local::bench_token(store).map_err(Failure::other)?;
        server.endpoint = server.endpoint.with_token(token);
        Ok(server)
    }

    async fn wait_until_ready(&mut self) -> Result<(), Failure> {
        let begun = Instant::now();
        let ready = Request::get(&["readyz"]);
        while begun.elapsed() < START_MAX {
            if let Some(status) = self.child.try_wait()? {
                return Err(Failure::other(format!("the server ended at its start ({status}): {}", self.log_tail())));
            }
            match self.operations.text(&ready).await {
                Ok(_) => return Ok(()),
                Err(_) => tokio::time::sleep(POLL).await,
            }
        }
        Err(Failure::other(format!("the server was not ready within {START_MAX:?}: {}", self.log_tail())))
    }

    /// Asks it to end, and waits until it has.
    pub(crate) async fn stop(mut self) -> Result<(), Failure> {
        let asked = kill_process(Pid::from_child(&self.child), Signal::TERM);
        asked.map_err(|error| Failure::other(format!("the server could not be asked to end: {error}")))?;
        let begun = Instant::now();
        while begun.elapsed() < STOP_MAX {
            match self.child.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => {
                    return Err(Failure::other(format!(
                        "the server did not end in order ({status}): {}",
                        self.log_tail()
                    )));
                }
                None => tokio::time::sleep(POLL).await,
            }
        }
        Err(Failure::other(format!("the server did not end within {STOP_MAX:?}: {}", self.log_tail())))
    }

    fn log_tail(&self) -> String {
        let text = std::fs::read_to_string(self.scratch.path.join("server.log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().rev().take(5).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    /// Its clients' address, with a token whose rate is not limited.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its operations listener.
    pub(crate) fn operations(&self) -> &HttpClient {
        &self.operations
    }

    /// Its metrics, as Prometheus text.
    pub(crate) async fn metrics(&self) -> Result<String, Failure> {
        Ok(self.operations.text(&Request::get(&["metrics"])).await?)
    }
}

impl Drop for ServerUnderTest {
    fn drop(&mut self) {
        // It may have ended already; then there is nothing to end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A directory that is removed when this value is dropped.
pub(crate) struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// A fresh directory in `beside`.
    pub(crate) fn new(beside: &Path) -> Result<Self, Failure> {
        let path = beside.join(format!("conch-bench-{}", uuid::Uuid::now_v7()));
        std::fs::create_dir_all(&path).map_err(|error| Failure::other(format!("{}: {error}", path.display())))?;
        Ok(Self { path })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed stays for the operator to see.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// A loopback address that was free a moment ago.
pub(super) fn free_address() -> Result<String, Failure> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}

/// A metric's value in Prometheus text, summed over its labels. `None`: it is not there.
pub(crate) fn metric(text: &str, name: &str) -> Option<f64> {
    let values = text.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        let rest = match rest.strip_prefix('{') {
            Some(labels) => labels.split_once('}')?.1,
            None => rest,
        };
        rest.strip_prefix(' ')?.split_ascii_whitespace().next()?.parse::<f64>().ok()
    });
    values.fold(None, |sum, value| Some(sum.unwrap_or(0.0) + value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_summed_over_labels() {
        let text = "# HELP a_total x\na_total{k=\"1\"} 2\na_total{k=\"2\"} 3.5\na_total_created 9\nb 7 1700000000\n";
        assert_eq!(metric(text, "a_total"), Some(5.5));
        assert_eq!(metric(text, "b"), Some(7.0));
        assert_eq!(metric(text, "c"), None);
    }

    #[test]
    fn a_scratch_directory_goes_away() {
        let scratch = Scratch::new(&std::env::temp_dir()).expect("made");
        let path = scratch.path().to_owned();
        std::fs::write(path.join("file"), "x").expect("written");
        drop(scratch);
        assert!(!path.exists());
    }
}
