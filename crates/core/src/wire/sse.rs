//! Server-Sent Events: writing them, and reading them by the WHATWG algorithm.
//!
//! Invariant: what is written is one event to every conforming reader, and a [`Decoder`] holds at most its limit in
//! memory. Deliberately absent: reconnecting, and which events carry a position.

use std::fmt;
use std::str::FromStr;

use crate::ids::{InvalidId, LogId, Seq};

/// Longest log id in a position, in bytes.
pub const LOG_MAX_BYTES: usize = 128;
/// Most bytes a [`Decoder`] holds for one event by default: a step's output of 1 MiB, escaped, and its record.
pub const EVENT_MAX_BYTES: usize = 4 * 1024 * 1024;

/// One event. `data` is compact JSON, so that it is one line; without `id` a reader keeps its last position.
#[must_use]
pub fn event(id: Option<&str>, event: &str, data: &str) -> String {
    let line = |text: &str| !text.contains(['\n', '\r']);
    debug_assert!(line(event) && line(data), "names and compact JSON hold no line break");
    debug_assert!(id.is_none_or(|id| line(id) && !id.contains('\0')), "positions hold no line break and no NUL");
    let id_bytes = id.map_or(0, |id| id.len() + 5);
    let mut text = String::with_capacity(id_bytes + event.len() + data.len() + 17);
    if let Some(id) = id {
        text.push_str("id: ");
        text.push_str(id);
        text.push('\n');
    }
    text.push_str("event: ");
    text.push_str(event);
    text.push_str("\ndata: ");
    text.push_str(data);
    text.push_str("\n\n");
    text
}

/// A comment, which readers ignore: keeps proxies from closing an idle connection.
#[must_use]
pub fn comment(text: &str) -> String {
    debug_assert!(!text.contains(['\n', '\r']), "a comment is one line");
    format!(": {text}\n\n")
}

/// Tells a reader how long to wait before it connects again, in milliseconds.
#[must_use]
pub fn retry(after_ms: u64) -> String {
    format!("retry: {after_ms}\n\n")
}

/// A place in one history of the store: `<log>:<seq>`, as events' ids and `Last-Event-ID` have it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Position {
    /// The log id, opaque: 1 to [`LOG_MAX_BYTES`] visible ASCII characters.
    pub log: String,
    /// The number in it.
    pub seq: Seq,
}

impl Position {
    /// A position in the store's log.
    #[must_use]
    pub fn new(log: &LogId, seq: Seq) -> Self {
        Self { log: log.as_str().to_owned(), seq }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.log, self.seq)
    }
}

impl FromStr for Position {
    type Err = InvalidId;
    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let error = |problem: String| InvalidId { field: "last-event-id", problem };
        let Some((log, seq)) = text.rsplit_once(':') else {
            return Err(error("must be <log>:<seq>".to_owned()));
        };
        if log.is_empty() || log.len() > LOG_MAX_BYTES || !log.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(error(format!("the log must be 1 to {LOG_MAX_BYTES} visible ASCII characters")));
        }
        // Digits alone, without leading zeros, so that a position has one form.
        let digits = seq.bytes().all(|byte| byte.is_ascii_digit()) && (seq == "0" || !seq.starts_with('0'));
        let number = seq.parse::<u64>().ok().filter(|number| digits && i64::try_from(*number).is_ok());
        let number = number.ok_or_else(|| error(format!("the seq must be a whole number up to {}", i64::MAX)))?;
        Ok(Self { log: log.to_owned(), seq: Seq(number) })
    }
}

/// What a [`Decoder`] has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decoded {
    /// An event. `id` is the last one seen on the connection, this event's own included; empty if there was none.
    Event {
        /// The position to resume from.
        id: String,
        /// The name; `message` where the server gave none.
        event: String,
        /// The data; its lines are joined by line feeds.
        data: String,
    },
    /// Wait this long before connecting again, in milliseconds.
    Retry(u64),
}

/// An event over the decoder's limit. The connection cannot be read further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("event: is longer than {limit_bytes} bytes")]
pub struct EventTooLong {
    /// The limit.
    pub limit_bytes: usize,
}

/// The incremental reader of one connection: the algorithm of the HTML standard, "Interpreting an event stream".
#[derive(Debug)]
pub struct Decoder {
    limit_bytes: usize,
    /// The line that has begun, without its end.
    line: Vec<u8>,
    /// The last byte was a carriage return, so that a line feed now belongs to it.
    after_return: bool,
    /// No line has ended yet: it may start with a byte-order mark.
    at_start: bool,
    event: String,
    data: String,
    id: String,
    failed: bool,
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new(EVENT_MAX_BYTES)
    }
}

impl Decoder {
    /// A decoder that refuses an event of more than `limit_bytes`.
    #[must_use]
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            limit_bytes,
            line: Vec::new(),
            after_return: false,
            at_start: true,
            event: String::new(),
            data: String::new(),
            id: String::new(),
            failed: false,
        }
    }

    /// The id to resume from, as `Last-Event-ID`.
    #[must_use]
    pub fn last_event_id(&self) -> &str {
        &self.id
    }

    /// Takes the next bytes; any cut will do. An event that the connection's end cuts off is never reported.
    ///
    /// # Errors
    /// One event is over the limit. What was complete before it is returned first; every later call fails.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<Decoded>, EventTooLong> {
        let mut decoded = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            if std::mem::take(&mut self.after_return) && rest[0] == b'\n' {
                rest = &rest[1..];
                continue;
            }
            let end = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            self.hold(&rest[..end.unwrap_or(rest.len())]);
            if self.failed {
                break;
            }
            let Some(end) = end else { break };
            self.after_return = rest[end] == b'\r';
            rest = &rest[end + 1..];
            decoded.extend(self.end_line());
        }
        if self.failed && decoded.is_empty() {
            return Err(EventTooLong { limit_bytes: self.limit_bytes });
        }
        Ok(decoded)
    }

    fn hold(&mut self, part: &[u8]) {
        let held = self.line.len() + self.data.len() + self.event.len() + self.id.len();
        if self.failed || part.len() > self.limit_bytes.saturating_sub(held) {
            self.failed = true;
            self.line = Vec::new();
            self.data = String::new();
            return;
        }
        self.line.extend_from_slice(part);
    }

    fn end_line(&mut self) -> Option<Decoded> {
        let line = std::mem::take(&mut self.line);
        let mut bytes = &line[..];
        if std::mem::take(&mut self.at_start) {
            bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        }
        let decoded = match bytes.iter().position(|byte| *byte == b':') {
            None if bytes.is_empty() => self.dispatch(),
            None => self.field(bytes, b""),
            Some(0) => None, // a comment
            Some(colon) => {
                let value = &bytes[colon + 1..];
                self.field(&bytes[..colon], value.strip_prefix(b" ").unwrap_or(value))
            }
        };
        self.line = line; // keeps the allocation
        self.line.clear();
        decoded
    }

    fn field(&mut self, name: &[u8], value: &[u8]) -> Option<Decoded> {
        match name {
            b"event" => self.event = String::from_utf8_lossy(value).into_owned(),
            b"data" => {
                self.data.push_str(&String::from_utf8_lossy(value));
                self.data.push('\n');
            }
            b"id" if !value.contains(&0) => self.id = String::from_utf8_lossy(value).into_owned(),
            b"retry" if !value.is_empty() && value.iter().all(u8::is_ascii_digit) => {
                let digits = std::str::from_utf8(value).ok()?;
                return digits.parse().ok().map(Decoded::Retry);
            }
            _ => {}
        }
        None
    }

    fn dispatch(&mut self) -> Option<Decoded> {
        let (event, mut data) = (std::mem::take(&mut self.event), std::mem::take(&mut self.data));
        if data.is_empty() {
            return None;
        }
        data.pop(); // the last line's feed
        let event = if event.is_empty() { "message".to_owned() } else { event };
        Some(Decoded::Event { id: self.id.clone(), event, data })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decoded(id: &str, event: &str, data: &str) -> Decoded {
        Decoded::Event { id: id.to_owned(), event: event.to_owned(), data: data.to_owned() }
    }

    fn decode(bytes: &[u8], packet_bytes: usize) -> Result<Vec<Decoded>, EventTooLong> {
        let mut decoder = Decoder::new(200);
        let mut all = Vec::new();
        for packet in bytes.chunks(packet_bytes) {
            all.extend(decoder.push(packet)?);
        }
        decoder.push(b"")?;
        Ok(all)
    }

    #[test]
    fn events_are_encoded() {
        assert_eq!(event(Some("s.1:7"), "message", r#"{"seq":7}"#), "id: s.1:7\nevent: message\ndata: {\"seq\":7}\n\n");
        assert_eq!(event(None, "typing", "{}"), "event: typing\ndata: {}\n\n");
        assert_eq!(comment("hello"), ": hello\n\n");
        assert_eq!(retry(1500), "retry: 1500\n\n");
    }

    #[test]
    fn streams_are_decoded_as_the_standard_says() {
        let cases: [(&[u8], Vec<Decoded>); 19] = [
            (b"data: a\n\n", vec![decoded("", "message", "a")]),
            (b"\xef\xbb\xbfdata: a\n\n", vec![decoded("", "message", "a")]),
            (b"data: a\n\n\xef\xbb\xbfdata: b\n\n", vec![decoded("", "message", "a")]),
            (b"data: a\r\rdata: b\r\n\r\n", vec![decoded("", "message", "a"), decoded("", "message", "b")]),
            (b"data:a\ndata: b\ndata\n\n", vec![decoded("", "message", "a\nb\n")]),
            (b"data:  a\n\n", vec![decoded("", "message", " a")]),
            (b"data: a:b\n\n", vec![decoded("", "message", "a:b")]),
            (b"data\n\ndata\ndata\n\ndata:", vec![decoded("", "message", ""), decoded("", "message", "\n")]),
            (b"event: x\n\ndata: a\n\n", vec![decoded("", "message", "a")]),
            (b"event: x\nevent: y\ndata: a\n\n", vec![decoded("", "y", "a")]),
            (b"id: 1\ndata: a\n\ndata: b\n\n", vec![decoded("1", "message", "a"), decoded("1", "message", "b")]),
            (b"id: 1\n\nid\ndata: b\n\n", vec![decoded("", "message", "b")]),
            (b"id: 1\n\nid: 2\0\ndata: b\n\n", vec![decoded("1", "message", "b")]),
            (b": data: a\n\n", vec![]),
            (b"Data: a\nwhat: ever\n\n", vec![]),
            (b"retry: 15\n", vec![Decoded::Retry(15)]),
            (b"retry: -1\nretry: 1x\nretry:\nretry: 99999999999999999999\n", vec![]),
            (b"data: \xff\n\n", vec![decoded("", "message", "\u{fffd}")]),
            (b"data: cut off\n", vec![]),
        ];
        for (bytes, expected) in cases {
            let text = String::from_utf8_lossy(bytes);
            assert_eq!(decode(bytes, usize::MAX).as_ref(), Ok(&expected), "{text:?}");
            assert_eq!(decode(bytes, 1).as_ref(), Ok(&expected), "{text:?}, byte by byte");
        }
    }

    #[test]
    fn the_last_id_is_kept() {
        let mut decoder = Decoder::default();
        decoder.push(b"id: s.1:7\nevent: caught_up\n").expect("short");
        assert_eq!(decoder.push(b"data: {}\n\n"), Ok(vec![decoded("s.1:7", "caught_up", "{}")]));
        decoder.push(b"event: typing\ndata: {}\n\n").expect("short");
        assert_eq!(decoder.last_event_id(), "s.1:7");
    }

    #[test]
    fn an_endless_event_is_refused() {
        let error = EventTooLong { limit_bytes: 200 };
        assert_eq!(decode(&[b'x'; 201], 7), Err(error));
        assert_eq!(decode(&b"data: x\n".repeat(1000), 7), Err(error));
        assert!(decode(&b"data: x\n\n".repeat(1000), 7).is_ok());
        let mut decoder = Decoder::new(3);
        assert!(decoder.push(b"data").is_err());
        assert!(decoder.push(b"\n").is_err() && decoder.push(b"").is_err(), "it stays failed");
        assert_eq!(error.to_string(), "event: is longer than 200 bytes");
    }

    #[test]
    fn positions_go_there_and_back() {
        for text in ["s.1:0", "a:b.3:9223372036854775807"] {
            assert_eq!(text.parse::<Position>().expect("a position").to_string(), text);
        }
        let position = Position::new(&LogId::new("s", crate::ids::Generation(1)), Seq(7));
        assert_eq!(position.to_string(), "s.1:7");
        let seq_problem = "last-event-id: the seq must be a whole number up to 9223372036854775807";
        let log_problem = "last-event-id: the log must be 1 to 128 visible ASCII characters";
        for (text, message) in [
            ("7", "last-event-id: must be <log>:<seq>"),
            (":7", log_problem),
            ("a b:7", log_problem),
            ("s:", seq_problem),
            ("s:+7", seq_problem),
            ("s:07", seq_problem),
            ("s:-1", seq_problem),
            ("s:9223372036854775808", seq_problem),
        ] {
            assert_eq!(text.parse::<Position>().expect_err("must be refused").to_string(), message, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(
            id in "[a-z0-9.]{1,20}:[0-9]{1,9}",
            name in "[a-z._]{1,20}",
            value in ".{0,50}",
            packet_bytes in 1_usize..30,
        ) {
            let data = serde_json::json!({ "v": value }).to_string();
            let stream = [comment("x"), retry(3), event(Some(&id), &name, &data), event(None, "e", &data)].concat();
            let mut decoder = Decoder::default();
            let mut all = Vec::new();
            for packet in stream.as_bytes().chunks(packet_bytes) {
                all.extend(decoder.push(packet).expect("within the limit"));
            }
            prop_assert_eq!(all, vec![Decoded::Retry(3), decoded(&id, &name, &data), decoded(&id, "e", &data)]);
        }

        #[test]
        fn no_bytes_panic_and_the_cut_does_not_matter(
            bytes in proptest::collection::vec(
                prop_oneof![any::<u8>(), proptest::sample::select(b"datevnidry: \n\r\0".to_vec())], 0..150),
            packet_bytes in 1_usize..10,
        ) {
            prop_assert_eq!(decode(&bytes, packet_bytes), decode(&bytes, usize::MAX));
            let _ = String::from_utf8_lossy(&bytes).parse::<Position>();
        }

        #[test]
        fn every_position_has_one_form(log in "[!-~]{1,128}", seq in 0..=u64::MAX >> 1) {
            let position = Position { log, seq: Seq(seq) };
            prop_assert_eq!(position.to_string().parse::<Position>(), Ok(position));
        }
    }
}
