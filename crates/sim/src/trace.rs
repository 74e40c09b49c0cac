//! What happened in a simulation, line by line, in simulated time.
//!
//! Invariant: the lines, and so their digest, are a function of the seed. Holds no task id of the operating system, no
//! address and no wall-clock time. Bounded: in digest mode only the newest lines are kept; in full mode at most
//! [`FULL_MAX_BYTES`].

use std::collections::VecDeque;
use std::fmt::Write as _;

/// How much of a trace is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceMode {
    /// A digest of everything, and the newest [`NEWEST_LINES`] lines.
    Digest,
    /// Every line.
    Full,
}

/// Lines that digest mode keeps.
pub const NEWEST_LINES: usize = 200;
/// Most bytes that full mode keeps; lines after that only count in the digest.
pub const FULL_MAX_BYTES: usize = 256 * 1024 * 1024;

/// The trace of one run.
#[derive(Debug, Clone)]
pub struct Trace {
    mode: TraceMode,
    digest: u64,
    lines: u64,
    full: String,
    newest: VecDeque<String>,
}

/// FNV-1a's start and factor: a digest that needs no dependency and no key. It guards against nothing but accidents.
const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_FACTOR: u64 = 0x0000_0100_0000_01b3;

impl Trace {
    /// An empty trace.
    #[must_use]
    pub fn new(mode: TraceMode) -> Self {
        Self { mode, digest: FNV_START, lines: 0, full: String::new(), newest: VecDeque::new() }
    }

    /// Adds a line: the simulated time in microseconds, who, and what.
    pub(crate) fn line(&mut self, now_ns: u64, who: impl std::fmt::Display, what: impl std::fmt::Display) {
        let mut line = String::new();
        let (micros, nanos) = (now_ns / 1_000, now_ns % 1_000);
        writeln!(line, "{micros:>10}.{nanos:03} {who} {what}").expect("writing to a String cannot fail");
        for byte in line.bytes() {
            self.digest = (self.digest ^ u64::from(byte)).wrapping_mul(FNV_FACTOR);
        }
        self.lines += 1;
        match self.mode {
            TraceMode::Full if self.full.len() + line.len() <= FULL_MAX_BYTES => self.full.push_str(&line),
            TraceMode::Full => {}
            TraceMode::Digest => {
                if self.newest.len() == NEWEST_LINES {
                    self.newest.pop_front();
                }
                self.newest.push_back(line);
            }
        }
    }

    /// The digest of every line.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// How many lines there were.
    #[must_use]
    pub fn lines(&self) -> u64 {
        self.lines
    }

    /// The lines that were kept.
    #[must_use]
    pub fn text(&self) -> String {
        match self.mode {
            TraceMode::Full => self.full.clone(),
            TraceMode::Digest => self.newest.iter().map(String::as_str).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_modes_digest_the_same_and_digest_mode_is_bounded() {
        let (mut digest, mut full) = (Trace::new(TraceMode::Digest), Trace::new(TraceMode::Full));
        for number in 0..1_000_u64 {
            digest.line(number, "w", number);
            full.line(number, "w", number);
        }
        assert_eq!(digest.digest(), full.digest());
        assert_eq!((digest.text().lines().count(), full.text().lines().count()), (NEWEST_LINES, 1_000));
        full.line(0, "w", "one more");
        assert_ne!(digest.digest(), full.digest());
    }
}
