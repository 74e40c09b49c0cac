//! What a command prints: for people on a terminal, JSON lines elsewhere.
//!
//! Standard output carries results; standard error carries notices and failures. Colour only on a terminal, and never
//! with NO_COLOR.
//!
//! Invariant: notices, failures, records and JSON are made safe here (see [`crate::safe`]); what a command hands to
//! [`Output::line`] and [`Output::write`] it has made safe itself.

use std::io::{self, IsTerminal, Write};

use conch_core::record::{Record, RecordKind};
use serde::Serialize;
use serde_json::{Value, json};

use crate::client::Waiting;
use crate::exit::{Exit, Failure};
use crate::safe::{json_line, one_line, printable};

/// Most characters that people are shown of a system record's body (JSON has it whole), and of why a request waits.
const DETAIL_CHARS_MAX: usize = 100;

/// For whom results are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// People.
    Human,
    /// Programs.
    Json,
}

/// Whether colours may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Colour {
    /// Yes.
    On,
    /// No.
    Off,
}

/// A way to emphasise.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Style {
    /// Less important.
    Dim,
    /// A name.
    Bold,
    /// An agent, a system record.
    Accent,
}

/// Standard output and error, as this command uses them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    pub(crate) format: Format,
    pub(crate) colour: Colour,
    /// `--json` was given; a token, which is one word, is JSON only then.
    pub(crate) asked_for_json: bool,
    stderr_is_terminal: bool,
    /// NO_COLOR is set.
    no_colour: bool,
}

impl Output {
    /// As the flag, the terminal and NO_COLOR say.
    pub(crate) fn detect(json: bool) -> Self {
        let terminal = io::stdout().is_terminal();
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self {
            format: if json || !terminal { Format::Json } else { Format::Human },
            colour: if terminal && !no_colour { Colour::On } else { Colour::Off },
            asked_for_json: json,
            stderr_is_terminal: io::stderr().is_terminal(),
            no_colour,
        }
    }

    /// One line of a result.
    pub(crate) fn line(&self, text: &str) -> Result<(), Failure> {
        self.write(&format!("{text}\n"))
    }

    /// A part of a line, shown at once.
    pub(crate) fn write(&self, text: &str) -> Result<(), Failure> {
        let mut stdout = io::stdout().lock();
        let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::reader_left()),
            other => other.map_err(Failure::from),
        }
    }

    /// One JSON line.
    pub(crate) fn json(&self, value: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_string(value).map_err(|error| Failure::other(error.to_string()))?;
        self.json_text(&text)
    }

    /// JSON that was checked already, as one line.
    pub(crate) fn json_text(&self, json: &str) -> Result<(), Failure> {
        self.line(&json_line(json))
    }

    /// A result: a JSON line, or the human form.
    pub(crate) fn result(&self, value: &Value, human: impl FnOnce() -> String) -> Result<(), Failure> {
        match self.format {
            Format::Json => self.json(value),
            Format::Human => self.line(&human()),
        }
    }

    /// Something to know that is no result; on standard error, and only for people.
    /// False if it is not shown.
    pub(crate) fn notice(&self, text: &str) -> bool {
        let is_shown = self.format == Format::Human || self.stderr_is_terminal;
        if is_shown {
            // A notice that cannot be shown is no reason to fail.
            let _ = writeln!(io::stderr(), "{}", self.styled(Style::Dim, &printable(text)));
        }
        is_shown
    }

    /// Whether what goes to standard error may have colours.
    pub(crate) fn colours_errors(&self) -> bool {
        self.stderr_is_terminal && !self.no_colour
    }

    /// Something that is probably a mistake, on standard error, always.
    pub(crate) fn warning(&self, text: &str) {
        let line = match self.format {
            Format::Human => format!("conch: warning: {}", printable(text)),
            Format::Json => json_line(&json!({"warning": {"message": text}}).to_string()),
        };
        // As for a notice.
        let _ = writeln!(io::stderr(), "{line}");
    }

    /// Shows that a request waits, in place, on a terminal.
    pub(crate) fn waiting(&self, waiting: &Waiting<'_>) {
        if self.stderr_is_terminal {
            let seconds = waiting.elapsed.as_secs_f64();
            let reason: String = waiting.reason.chars().take(DETAIL_CHARS_MAX).collect();
            let _ = write!(io::stderr(), "\r\x1b[Kwaiting… {seconds:.0} s ({})", one_line(&reason));
        }
    }

    /// Removes what [`Output::waiting`] showed.
    pub(crate) fn waiting_is_over(&self) {
        if self.stderr_is_terminal {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }

    /// A failure, on standard error.
    pub(crate) fn failure(&self, failure: &Failure) {
        if failure.exit == Exit::Ok {
            return;
        }
        let _ = writeln!(io::stderr(), "{}", self.failure_line(failure));
    }

    fn failure_line(&self, failure: &Failure) -> String {
        match self.format {
            Format::Human => format!("conch: {}", printable(&failure.message)),
            Format::Json => {
                let mut error = json!({"exit": failure.exit as u8, "message": failure.message});
                if let Some(problem) = &failure.problem {
                    error["problem"] = json!(problem);
                }
                json_line(&json!({ "error": error }).to_string())
            }
        }
    }

    /// Text with emphasis, where colours are on.
    pub(crate) fn styled(&self, style: Style, text: &str) -> String {
        if self.colour == Colour::Off {
            return text.to_owned();
        }
        let code = match style {
            Style::Dim => "2",
            Style::Bold => "1",
            Style::Accent => "36",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }

    /// A record, as a line for people.
    pub(crate) fn record(&self, record: &Record) -> String {
        let head = self.record_head(record);
        match record.kind {
            RecordKind::Message | RecordKind::Event => format!("{head} {}", message_text(record)),
            _ => format!("{head} {}", self.styled(Style::Dim, &system_text(record))),
        }
    }

    /// The part of a record's line before its content: number, time, sender.
    pub(crate) fn record_head(&self, record: &Record) -> String {
        let time = record.at.to_string();
        let time = time.get(11..19).unwrap_or_default().to_owned();
        let number = self.styled(Style::Dim, &format!("#{:<5} {time}", record.seq));
        let name = record.name.as_deref().unwrap_or(record.sender.as_str());
        let style = if record.sender.is_reserved() { Style::Accent } else { Style::Bold };
        format!("{number} {}:", self.styled(style, &one_line(name)))
    }
}

/// A message's text, made safe for a terminal.
pub(crate) fn message_text(record: &Record) -> String {
    let value = record.body.to_value();
    match value.get("text").and_then(Value::as_str) {
        Some(text) => printable(text),
        None if record.deleted_at.is_some() => "(deleted)".to_owned(),
        None => printable(record.body.as_str()),
    }
}

fn system_text(record: &Record) -> String {
    let turn = record.turn.map_or(String::new(), |turn| format!(" (turn {turn})"));
    let body = record.body.as_str();
    let mut detail: String = body.chars().take(DETAIL_CHARS_MAX).collect();
    if detail.len() < body.len() {
        detail.push('…');
    }
    let detail = if body == "{}" { String::new() } else { format!(" {}", one_line(&detail)) };
    format!("{}{turn}{detail}", record.kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Output = Output {
        format: Format::Human,
        colour: Colour::Off,
        asked_for_json: false,
        stderr_is_terminal: false,
        no_colour: false,
    };

    fn record(kind: &str, sender: &str, body: &str) -> Record {
        let json = format!(
            r#"{{"seq":7,"kind":"{kind}","conversation":"c","sender":"{sender}","at":"2026-01-01T10:11:12.345Z","epoch":1,"body":{body}}}"#
        );
        serde_json::from_str(&json).expect("a record")
    }

    #[test]
    fn records_are_lines() {
        assert_eq!(PLAIN.record(&record("message", "alice", r#"{"text":"hi"}"#)), "#7     10:11:12 alice: hi");
        assert_eq!(PLAIN.record(&record("turn.started", "@start", "{}")), "#7     10:11:12 @start: turn.started");
    }

    #[test]
    fn a_message_cannot_steer_the_terminal() {
        let evil = record("message", "eve", r#"{"text":"\u001b[2Jgone\r\nline"}"#);
        assert_eq!(message_text(&evil), "\\u{1b}[2Jgone\\u{d}\n    line");
    }

    #[test]
    fn a_name_stays_in_its_line() {
        let mut evil = record("message", "eve", r#"{"text":"hi"}"#);
        evil.name = Some("eve: hi\n#8".into());
        assert_eq!(PLAIN.record(&evil), "#7     10:11:12 eve: hi\\u{a}#8: hi");
    }

    #[test]
    fn a_failure_cannot_steer_the_terminal() {
        let failure = Failure::other("refused: \u{1b}]0;x\u{7}\u{9b}2J\u{202e}\nconch: done");
        let shown = PLAIN.failure_line(&failure);
        assert_eq!(shown, "conch: refused: \\u{1b}]0;x\\u{7}\\u{9b}2J\\u{202e}\n    conch: done");
        let shown = Output { format: Format::Json, ..PLAIN }.failure_line(&failure);
        let same: Value = serde_json::from_str(&shown).expect("JSON");
        assert_eq!(same["error"]["message"], failure.message.as_str());
        assert!(shown.is_ascii() && !shown.contains(char::is_control), "{shown:?}");
    }

    #[test]
    fn colour_is_only_there_when_it_is_on() {
        let colourful = Output { colour: Colour::On, ..PLAIN };
        assert_eq!(PLAIN.styled(Style::Bold, "x"), "x");
        assert_eq!(colourful.styled(Style::Bold, "x"), "\x1b[1mx\x1b[0m");
    }
}
