//! A helper process of a bench: this binary again, spoken to in JSON lines. It ends when its standard input does, so that
//! it never outlives the bench.

use std::io::{BufRead, Write};
use std::process::Stdio;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::exit::Failure;

/// A helper process, seen from the bench.
pub(super) struct Worker {
    // Ends the process when it is dropped.
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    name: &'static str,
}

impl Worker {
    /// Starts `conch bench NAME ARGUMENTS`. The token goes by the environment: arguments can be seen by others.
    pub(super) fn start(name: &'static str, arguments: &[String], token: Option<&str>) -> Result<Self, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bench", name]).args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        if let Some(token) = token {
            command.env("CONCH_TOKEN", token);
        }
        let mut child = command.spawn().map_err(|error| Failure::other(format!("{name}: {error}")))?;
        let input = child.stdin.take().expect("it was asked to be piped");
        let output = child.stdout.take().expect("it was asked to be piped");
        Ok(Self { child, input, output: BufReader::new(output).lines(), name })
    }

    /// Its process; `None` once it has ended.
    pub(super) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Asks with one line.
    pub(super) async fn ask(&mut self, question: &impl Serialize) -> Result<(), Failure> {
        let mut line = serde_json::to_string(question).map_err(|error| Failure::other(error.to_string()))?;
        line.push('\n');
        self.input.write_all(line.as_bytes()).await.map_err(|error| Failure::other(format!("{}: {error}", self.name)))
    }

    /// The next line of its answer.
    pub(super) async fn answer<T: DeserializeOwned>(&mut self, limit: Duration) -> Result<T, Failure> {
        let failed = |why: String| Failure::other(format!("{}: {why}", self.name));
        let line = tokio::time::timeout(limit, self.output.next_line()).await;
        let line = line.map_err(|_| failed(format!("no answer within {limit:?}")))?;
        let line = line.map_err(|error| failed(error.to_string()))?.ok_or_else(|| failed("it ended".to_owned()))?;
        serde_json::from_str(&line).map_err(|error| failed(format!("{error} in {line:?}")))
    }
}

/// Answers with one line; for the worker's side.
pub(super) fn answer(value: &impl Serialize) -> Result<(), Failure> {
    let line = serde_json::to_string(value).map_err(|error| Failure::other(error.to_string()))?;
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{line}")?;
    stdout.flush()?;
    Ok(())
}

/// The next question; `None` when the bench is gone. Blocks.
pub(super) fn next_question<T: DeserializeOwned>() -> Result<Option<T>, Failure> {
    let mut line = String::new();
    if std::io::stdin().lock().read_line(&mut line)? == 0 {
        return Ok(None);
    }
    serde_json::from_str(&line).map(Some).map_err(|error| Failure::other(format!("{error} in {line:?}")))
}
