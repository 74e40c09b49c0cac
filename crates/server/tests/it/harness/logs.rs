//! What the nodes of this process log: the lines that could hold a token, and those of agents in trouble.

use std::io;
use std::sync::{Mutex, Once, PoisonError};

use tracing_subscriber::fmt::MakeWriter;

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());
static INSTALLED: Once = Once::new();

/// Most lines that are kept.
const LINES_MAX: usize = 100_000;
/// How every JSON Web Token begins.
const TOKEN_START: &str = "eyJ";
/// What is said where a call of an agent fails.
const TROUBLES: [&str; 2] = ["fails its turn", "a call to a tool has no result"];

/// Logs everything of Conch's, down to `trace`, from now on.
pub(crate) fn capture() {
    INSTALLED.call_once(|| {
        let filter = tracing_subscriber::EnvFilter::new("info,conch_core=trace,conch_store=trace,conch_server=trace");
        let subscriber =
            tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(Capture).finish();
        tracing::subscriber::set_global_default(subscriber).expect("nobody else logs in this process");
    });
}

/// The lines so far that hold a token, or say that they would have; and those of agents in trouble.
pub(crate) fn captured_logs() -> Vec<String> {
    LINES.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

struct Capture;

impl<'a> MakeWriter<'a> for Capture {
    type Writer = Self;
    fn make_writer(&'a self) -> Self {
        Self
    }
}

impl io::Write for Capture {
    /// The formatter writes one line at a time.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let line = String::from_utf8_lossy(bytes);
        if [TOKEN_START, "REDACTED"].into_iter().chain(TROUBLES).any(|part| line.contains(part)) {
            let mut lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
            if lines.len() < LINES_MAX {
                lines.push(line.into_owned());
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
