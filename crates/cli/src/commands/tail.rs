//! `conch tail`: a conversation, live, for as long as one likes.

use std::time::{Duration, Instant};

use conch_core::ids::Seq;
use conch_core::record::{Record, RecordKind};
use serde::Serialize;
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};

use super::history::{self, Page};
use super::live::{LiveText, Piece, Show};
use crate::args::TailArgs;
use crate::client::{ClientError, ConversationStream, HttpClient, Item, Start, Waiting};
use crate::exit::Failure;
use crate::output::{Format, Output, Style};
use crate::safe::printable;
use crate::target;

/// How many records are shown before the live ones, when no position is given.
const NEWEST: u64 = 20;
/// A server that stays away for this long is given up, once it has been seen. Before that the budget holds.
const AWAY_MAX: Duration = Duration::from_secs(3600);

pub(crate) async fn run(args: &TailArgs, output: &Output) -> Result<(), Failure> {
    let client = target::client(&args.target)?;
    let mut tail = Tail { args, output, live: LiveText::default(), said: None, line: Line::Ended, waiting: false };
    let start = match args.after {
        Some(after) => Start { after: Seq(after), log: None },
        None => tail.newest(&client, NEWEST).await?,
    };
    let mut stream = ConversationStream::new(client.clone(), args.conversation.as_str(), start);
    let begun = Instant::now();
    let mut seen = false;
    loop {
        let item = stream.next().await?;
        seen |= !matches!(item, Item::Waiting { .. });
        match item {
            Item::Waiting { away, reason } => {
                let limit = if seen { AWAY_MAX } else { args.target.budget };
                let elapsed = if seen { away } else { begun.elapsed() };
                if elapsed > limit {
                    return Err(ClientError::Unavailable { waited: elapsed, detail: reason, problem: None }.into());
                }
                tail.wait(elapsed, &reason)?;
            }
            Item::Resync { log, head_seq } => {
                let start = tail.resync(&client, log, head_seq).await?;
                stream.restart(start);
            }
            Item::CaughtUp(_) if args.until_caught_up => return tail.end_line(),
            item => tail.show(item)?,
        }
    }
}

/// Why a position was of no use: the one that was asked for, or the one that was reached.
fn why(after: Option<u64>, head_seq: Seq) -> String {
    match after {
        Some(after) if after > head_seq.0 => {
            format!("--after {after} is beyond the end: the newest number is {head_seq}")
        }
        _ => "the position is too old, or of another log".to_owned(),
    }
}

/// Whether the cursor stands at the beginning of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    Ended,
    Open,
}

struct Tail<'a> {
    args: &'a TailArgs,
    output: &'a Output,
    live: LiveText,
    /// The last text that was shown live to its end, and its turn.
    said: Option<(u64, String)>,
    line: Line,
    waiting: bool,
}

impl Tail<'_> {
    /// Shows the newest records, and where to go on from.
    async fn newest(&mut self, client: &HttpClient, limit: u64) -> Result<Start, Failure> {
        let query = vec![("limit", Some(limit.to_string()))];
        let conversation = self.args.conversation.as_str();
        let page = Page::load(client, conversation, query, self.args.target.budget, self.output).await?;
        for record in &page.messages {
            history::show(record, self.output)?;
        }
        // Records above the last one shown come from the stream; the head itself may be a hole's edge.
        let last = page.messages.last().and_then(|record| record["seq"].as_u64());
        Ok(Start { after: Seq(last.unwrap_or(page.head_seq)), log: Some(page.log) })
    }

    /// The position was lost: say so, show the latest page, go on from there.
    async fn resync(&mut self, client: &HttpClient, log: String, head_seq: Seq) -> Result<Start, Failure> {
        self.end_line()?;
        match self.output.format {
            Format::Json => {
                self.output.json(&json!({"event": "resync", "data": {"log": log, "head_seq": head_seq}}))?
            }
            Format::Human => {
                self.output.notice(&format!("— {}; here is the latest page —", why(self.args.after, head_seq)));
            }
        }
        self.live = LiveText::default();
        self.newest(client, 50).await
    }

    fn wait(&mut self, elapsed: Duration, reason: &str) -> Result<(), Failure> {
        if !self.waiting {
            self.end_line()?;
        }
        self.waiting = true;
        self.output.waiting(&Waiting { elapsed, reason });
        Ok(())
    }

    fn show(&mut self, item: Item) -> Result<(), Failure> {
        if std::mem::take(&mut self.waiting) {
            self.output.waiting_is_over();
        }
        match (item, self.output.format) {
            (Item::Record(_, json), Format::Json) => self.output.json_text(&json),
            (Item::Record(record, _), Format::Human) => self.record(&record),
            (Item::CaughtUp(seq), Format::Json) if self.args.live => {
                self.output.json(&json!({"event": "caught_up", "data": {"seq": seq}}))
            }
            (Item::Live { name, data }, Format::Json) if self.args.live => {
                self.output.json(&LiveLine::new(&name, &data)?)
            }
            (Item::Live { name, data }, Format::Human) => self.live(&name, &data),
            _ => Ok(()),
        }
    }

    fn record(&mut self, record: &Record) -> Result<(), Failure> {
        let turn = record.turn.unwrap_or_default().0;
        match (record.kind, spoken(record)) {
            // What a model step said, and was shown while it said it: only its number is new.
            (RecordKind::StepCompleted, Some(text)) if self.line == Line::Open => {
                let shown = self.live.finish(turn);
                if shown.as_deref() == Some(text.as_str()) {
                    self.said = Some((turn, text));
                    self.line = Line::Ended;
                    return self.output.line(&self.output.styled(Style::Dim, &format!("  #{}", record.seq)));
                }
            }
            (RecordKind::Message, text @ Some(_)) if text == self.take_said(turn) => {
                self.end_line()?;
                let as_above = self.output.styled(Style::Dim, "(as above)");
                return self.output.line(&format!("{} {as_above}", self.output.record_head(record)));
            }
            _ => {}
        }
        self.end_line()?;
        self.output.line(&self.output.record(record))
    }

    /// What was shown live to its end in this turn, once.
    fn take_said(&mut self, turn: u64) -> Option<String> {
        self.said.take().filter(|(said, _)| *said == turn).map(|(_, text)| text)
    }

    fn live(&mut self, name: &str, data: &str) -> Result<(), Failure> {
        let is_snapshot = name == "turn.snapshot";
        if name != "delta" && !is_snapshot {
            return Ok(());
        }
        let Ok(piece) = serde_json::from_str::<Piece>(data) else {
            // A live event of a later version: what counts is in the records.
            return Ok(());
        };
        let turn = piece.turn;
        let show = if is_snapshot { self.live.snapshot(piece) } else { self.live.delta(piece) };
        match show {
            Show::Nothing => Ok(()),
            Show::Append(text) if self.line == Line::Open => self.output.write(&printable(&text)),
            Show::Append(text) | Show::Begin(text) => self.begin(&format!("… turn {turn}:"), &text),
            Show::Replace(text) => self.begin(&format!("… turn {turn} (begun again):"), &text),
        }
    }

    fn begin(&mut self, head: &str, text: &str) -> Result<(), Failure> {
        self.end_line()?;
        self.line = Line::Open;
        self.output.write(&format!("{} {}", self.output.styled(Style::Accent, head), printable(text)))
    }

    fn end_line(&mut self) -> Result<(), Failure> {
        if std::mem::replace(&mut self.line, Line::Ended) == Line::Open {
            self.output.line("")?;
        }
        Ok(())
    }
}

/// A live event for programs.
#[derive(Serialize)]
struct LiveLine<'a> {
    event: &'a str,
    /// As it came, numbers digit by digit; as a string if it is no JSON.
    data: Box<RawValue>,
}

impl<'a> LiveLine<'a> {
    fn new(event: &'a str, data: &str) -> Result<Self, Failure> {
        let data = serde_json::from_str(data).or_else(|_| to_raw_value(data));
        Ok(Self { event, data: data.map_err(|error| Failure::other(error.to_string()))? })
    }
}

/// What an agent said in this record: the output of a model's step, or its answer.
fn spoken(record: &Record) -> Option<String> {
    let body = record.body.to_value();
    let key = if record.kind == RecordKind::Message { "text" } else { "output" };
    body.get(key)?.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_beyond_the_end_is_told_from_one_that_is_too_old() {
        assert_eq!(why(Some(10), Seq(9)), "--after 10 is beyond the end: the newest number is 9");
        for after in [None, Some(0), Some(9)] {
            assert!(why(after, Seq(9)).contains("too old"), "{after:?}");
        }
    }

    #[test]
    fn a_live_event_is_one_value_whatever_it_holds() {
        let line = |name, data| serde_json::to_string(&LiveLine::new(name, data).expect("a line")).expect("JSON");
        assert_eq!(line("delta", r#"{"n":1.50}"#), r#"{"event":"delta","data":{"n":1.50}}"#);
        assert_eq!(line(r#"x","event":"y"#, "1}\n{"), r#"{"event":"x\",\"event\":\"y","data":"1}\n{"}"#);
    }
}
