//! What a worker says: lines of JSON, cut anywhere.
//!
//! Invariants: no bytes make the reader panic; it holds at most one line; an error names the line and what is wrong with it, and
//! no text of it, which may be anything.

use std::time::Duration;

use conch_core::turn::awaits::{AWAIT_DEFAULT, AWAIT_MAX};
use conch_core::turn::budget::TURN_JOURNAL_MAX_BYTES;
use conch_core::turn::journal::FailReason;
use conch_core::turn::result::STEP_OUTPUT_MAX_BYTES;
use serde::Deserialize;
use serde_json::Value;

/// Most bytes of a line: a message of 1 MiB may take more as JSON.
pub(super) const LINE_MAX_BYTES: usize = 2 * 1024 * 1024;
/// Most bytes of one answer of a worker, as much as a turn's journal may have.
const ANSWER_MAX_BYTES: u64 = TURN_JOURNAL_MAX_BYTES;

/// One thing that a worker says.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Said {
    /// More text.
    Delta(String),
    /// Somebody has to answer first.
    Await(Asking),
    /// The answer.
    Message(String),
    /// That was all; and what is kept for the next turn.
    Done(Value),
}

/// What a worker waits for.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asking {
    /// A name within the turn.
    pub(super) id: String,
    #[serde(default)]
    pub(super) prompt: Option<String>,
    #[serde(default = "anything")]
    pub(super) schema: Value,
    #[serde(default = "default_expiry", rename = "expires_in_ms")]
    expires_in_ms: u64,
}

fn anything() -> Value {
    Value::Object(serde_json::Map::new())
}

fn default_expiry() -> u64 {
    u64::try_from(AWAIT_DEFAULT.as_millis()).unwrap_or(u64::MAX)
}

impl Asking {
    pub(super) fn within(&self) -> Duration {
        Duration::from_millis(self.expires_in_ms).min(AWAIT_MAX)
    }
}

/// What ends the turn of a worker that says it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Nonsense {
    #[error("line {0}: {1}")]
    Line(u64, String),
    #[error("line {0}: is over {LINE_MAX_BYTES} bytes")]
    LongLine(u64),
    #[error("the answer is over {ANSWER_MAX_BYTES} bytes")]
    Flood,
    #[error("the text is over {STEP_OUTPUT_MAX_BYTES} bytes")]
    LongText,
    #[error("the state is of {0} bytes; at most {STEP_OUTPUT_MAX_BYTES} are allowed")]
    LargeState(usize),
}

impl Nonsense {
    pub(super) fn reason(&self) -> FailReason {
        match self {
            Self::Line(..) => FailReason::AgentFailed,
            Self::Flood => FailReason::JournalTooLarge,
            Self::LongLine(_) | Self::LongText | Self::LargeState(_) => FailReason::StepTooLarge,
        }
    }
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Line {
    Delta {
        text: String,
    },
    Await(Asking),
    Message {
        body: Message,
    },
    Done {
        #[serde(default)]
        state: Value,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Message {
    text: String,
}

/// See the module's description.
#[derive(Debug, Default)]
pub(super) struct Lines {
    rest: Vec<u8>,
    lines: u64,
    bytes: u64,
    text_bytes: usize,
}

impl Lines {
    /// Takes more bytes, and returns what is whole in them, with text that follows text joined. An empty line says nothing, but
    /// that the worker is there.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<Vec<Said>, Nonsense> {
        self.bytes += bytes.len() as u64;
        if self.bytes > ANSWER_MAX_BYTES {
            return Err(Nonsense::Flood);
        }
        let mut said = Vec::new();
        let mut pieces = bytes.split(|byte| *byte == b'\n');
        let last = pieces.next_back().unwrap_or_default();
        for piece in pieces {
            self.hold(piece)?;
            let line = std::mem::take(&mut self.rest);
            self.line(&line, &mut said)?;
        }
        self.hold(last)?;
        Ok(said)
    }

    /// What is left when the stream ends: a last line may lack its end.
    pub(super) fn finish(&mut self) -> Result<Vec<Said>, Nonsense> {
        let (mut said, line) = (Vec::new(), std::mem::take(&mut self.rest));
        self.line(&line, &mut said)?;
        Ok(said)
    }

    fn hold(&mut self, piece: &[u8]) -> Result<(), Nonsense> {
        if self.rest.len() + piece.len() > LINE_MAX_BYTES {
            return Err(Nonsense::LongLine(self.lines + 1));
        }
        self.rest.extend_from_slice(piece);
        Ok(())
    }

    fn line(&mut self, line: &[u8], said: &mut Vec<Said>) -> Result<(), Nonsense> {
        self.lines += 1;
        if line.trim_ascii().is_empty() {
            return Ok(());
        }
        let broken = |problem: String| Nonsense::Line(self.lines, problem);
        let text = std::str::from_utf8(line).map_err(|_| broken("is not UTF-8".to_owned()))?;
        let line: Line = serde_json::from_str(text).map_err(|error| broken(describe(&error)))?;
        match line {
            Line::Delta { text } => {
                self.text_bytes += text.len();
                if self.text_bytes > STEP_OUTPUT_MAX_BYTES {
                    return Err(Nonsense::LongText);
                }
                match said.last_mut() {
                    Some(Said::Delta(before)) => before.push_str(&text),
                    _ => said.push(Said::Delta(text)),
                }
            }
            Line::Await(asking) => said.push(Said::Await(asking)),
            Line::Message { body } => said.push(Said::Message(body.text)),
            Line::Done { state } => {
                let bytes = state.to_string().len();
                if bytes > STEP_OUTPUT_MAX_BYTES {
                    return Err(Nonsense::LargeState(bytes));
                }
                said.push(Said::Done(state));
            }
        }
        Ok(())
    }
}

/// What the parser says, which repeats at most a name.
fn describe(error: &serde_json::Error) -> String {
    let text: String = error.to_string().chars().take(200).collect();
    if error.is_data() { text } else { format!("is not JSON: {text}") }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Result<Vec<Said>, Nonsense> {
        let mut lines = Lines::default();
        let mut said = lines.push(text.as_bytes())?;
        said.extend(lines.finish()?);
        Ok(said)
    }

    fn refused(text: &str) -> String {
        read(text).expect_err(text).to_string()
    }

    #[test]
    fn each_line_is_what_it_says() {
        let text = concat!(
            "{\"type\":\"delta\",\"text\":\"a\"}\n{\"type\":\"delta\",\"text\":\"ü\"}\n\n",
            "{\"type\":\"message\",\"body\":{\"text\":\"m\"}}\n{\"type\":\"done\",\"state\":{\"n\":1}}",
        );
        let expected = [Said::Delta("aü".to_owned()), Said::Message("m".to_owned()), Said::Done(json!({ "n": 1 }))];
        assert_eq!(read(text), Ok(expected.to_vec()));
        assert_eq!(read("{\"type\":\"done\"}\n"), Ok(vec![Said::Done(Value::Null)]));
        let said = read(r#"{"type":"await","id":"ok","expires_in_ms":5}"#).expect("an await");
        let [Said::Await(asking)] = said.as_slice() else { panic!("{said:?}") };
        assert_eq!((asking.id.as_str(), asking.within(), &asking.schema), ("ok", Duration::from_millis(5), &json!({})));
    }

    #[test]
    fn nonsense_is_named_by_its_line() {
        assert!(refused("\n<html>").starts_with("line 2: is not JSON: expected value"));
        assert!(refused("7").starts_with("line 1: invalid type: integer `7`"));
        assert!(refused(r#"{"type":"dance"}"#).starts_with("line 1: unknown variant `dance`, expected one of `delta`"));
        assert!(refused(r#"{"type":"delta"}"#).starts_with("line 1: missing field `text`"));
        assert!(refused(r#"{"type":"message","body":{"text":"a","x":1}}"#).starts_with("line 1: unknown field `x`"));
        assert_eq!(Lines::default().push(b"\xff\n"), Err(Nonsense::Line(1, "is not UTF-8".to_owned())));
    }

    #[test]
    fn floods_are_refused_with_their_limit() {
        let mut lines = Lines::default();
        assert_eq!(lines.push(&vec![b'x'; LINE_MAX_BYTES]), Ok(Vec::new()));
        assert_eq!(lines.push(b"x"), Err(Nonsense::LongLine(1)));
        let mut lines = Lines::default();
        let empty = vec![b'\n'; 1024 * 1024];
        (0..16).for_each(|_| assert_eq!(lines.push(&empty), Ok(Vec::new())));
        assert_eq!(lines.push(b"\n"), Err(Nonsense::Flood));
        let half = format!(r#"{{"type":"delta","text":"{}"}}"#, "x".repeat(STEP_OUTPUT_MAX_BYTES / 2));
        assert!(read(&format!("{half}\n{half}")).is_ok());
        let one = r#"{"type":"delta","text":"x"}"#;
        assert_eq!(read(&format!("{half}\n{half}\n{one}")), Err(Nonsense::LongText));
        let state = format!(r#"{{"type":"done","state":"{}"}}"#, "x".repeat(STEP_OUTPUT_MAX_BYTES));
        assert_eq!(read(&state), Err(Nonsense::LargeState(STEP_OUTPUT_MAX_BYTES + 2)));
    }

    proptest! {
        #[test]
        fn the_cut_does_not_matter(cuts in proptest::collection::vec(0_usize..200, 0..9)) {
            let text = "{\"type\":\"delta\",\"text\":\"ü🦀\"}\n\n{\"type\":\"message\",\"body\":{\"text\":\"m\"}}\n{\"type\":\"done\"}\n";
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut % (text.len() + 1)).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let (mut lines, mut said) = (Lines::default(), Vec::new());
            for cut in cuts.windows(2) {
                said.extend(lines.push(&text.as_bytes()[cut[0]..cut[1]]).expect("readable"));
            }
            said.extend(lines.finish().expect("readable"));
            prop_assert_eq!(Ok(said), read(text));
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut lines = Lines::default();
            let _ = lines.push(&bytes);
            let _ = lines.finish();
        }
    }
}
