//! Phoenix Channels V2 text frames: `[join_ref, ref, topic, event, payload]`.
//!
//! Invariant: a [`ClientFrame`] is within the limits below and its payload is a JSON object that is safe to hand to a
//! recursive parser. What the encoders write holds no white space between tokens (one stock client splits on it).
//! Deliberately absent: binary frames, and the meaning of events.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde_json::value::RawValue;

use crate::ids::{ConversationId, InvalidId};
use crate::json::is_deeper_than;
use crate::refusal::{Code, Refusal};
use crate::wire::push_json_text;

/// Longest `join_ref` and `ref`, in bytes.
pub const REF_MAX_BYTES: usize = 64;
/// Longest topic, in bytes.
pub const TOPIC_MAX_BYTES: usize = 160;
/// Longest event name, in bytes.
pub const EVENT_MAX_BYTES: usize = 64;
/// Deepest nesting of a payload; the payload object itself is depth 1. One more than the deepest body that can be allowed
/// (`limits.body_depth`, at most 100), which has a limit of its own, and below what a recursive parser takes.
pub const PAYLOAD_MAX_DEPTH: usize = 101;

/// What is wrong with a frame. Names the field and the limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameProblem {
    /// Not JSON at all.
    #[error("frame: is not valid JSON: {0}")]
    NotJson(String),
    /// JSON, but not `[join_ref, ref, topic, event, payload]`.
    #[error("frame: must be an array of five, [join_ref, ref, topic, event, payload]")]
    NotFive,
    /// A field that must be a string (or null, where the field allows it) is something else.
    #[error("{field}: must be {expected}")]
    NotText {
        /// The field.
        field: &'static str,
        /// What it may be.
        expected: &'static str,
    },
    /// A field over its limit.
    #[error("{field}: is {bytes} bytes long; at most {limit} are allowed")]
    TooLong {
        /// The field.
        field: &'static str,
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The payload is not an object.
    #[error("payload: must be a JSON object")]
    PayloadNotAnObject,
    /// The payload is nested too deeply.
    #[error("payload: is nested deeper than {limit} levels")]
    PayloadTooDeep {
        /// The limit.
        limit: usize,
    },
}

/// Where the error reply to a bad frame can go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplyTo {
    /// The frame's `join_ref`.
    pub join_ref: Option<String>,
    /// The frame's `ref`.
    pub reference: String,
    /// The frame's topic.
    pub topic: String,
}

/// A bad frame: what is wrong, and where the sender waits for an answer if that much could be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct FrameError {
    /// What is wrong.
    pub problem: FrameProblem,
    /// Present if both references and the topic are good and there is a `ref` to answer to.
    pub reply_to: Option<Box<ReplyTo>>,
}

impl From<FrameProblem> for FrameError {
    fn from(problem: FrameProblem) -> Self {
        Self { problem, reply_to: None }
    }
}

impl From<&FrameError> for Refusal {
    fn from(error: &FrameError) -> Self {
        Self::new(Code::InvalidRequest, error.to_string())
    }
}

/// One frame from a client. Borrows from the text where it can.
#[derive(Debug, Clone)]
pub struct ClientFrame<'a> {
    /// Identifies the join that the frame belongs to.
    pub join_ref: Option<Cow<'a, str>>,
    /// Identifies the frame; the reply carries it.
    pub reference: Option<Cow<'a, str>>,
    /// The channel.
    pub topic: Cow<'a, str>,
    /// What is asked for.
    pub event: Cow<'a, str>,
    /// The arguments: a JSON object as it was sent, at most [`PAYLOAD_MAX_DEPTH`] deep.
    pub payload: &'a RawValue,
}

impl<'a> ClientFrame<'a> {
    /// Reads one text frame. Linear in its length, without recursion however it is nested.
    ///
    /// # Errors
    /// As [`FrameProblem`] lists; all limits are inclusive.
    pub fn parse(text: &'a str) -> Result<Self, FrameError> {
        let [join_ref, reference, topic, event, payload] = five(text)?;
        let join_ref = text_or_null("join_ref", join_ref, REF_MAX_BYTES)?;
        let reference = text_or_null("ref", reference, REF_MAX_BYTES)?;
        let topic = plain_text("topic", topic, TOPIC_MAX_BYTES)?;
        match plain_text("event", event, EVENT_MAX_BYTES).and_then(|event| Ok((event, check_payload(payload)?))) {
            Ok((event, ())) => Ok(Self { join_ref, reference, topic, event, payload }),
            Err(problem) => {
                let reply_to = reference.map(|reference| {
                    let join_ref = join_ref.map(Cow::into_owned);
                    Box::new(ReplyTo { join_ref, reference: reference.into_owned(), topic: topic.into_owned() })
                });
                Err(FrameError { problem, reply_to })
            }
        }
    }

    /// True for the keep-alive, `[null, ref, "phoenix", "heartbeat", {}]`.
    #[must_use]
    pub fn is_heartbeat(&self) -> bool {
        self.topic == "phoenix" && self.event == "heartbeat"
    }
}

/// Splits the array. `RawValue` skips over nested values without recursion, so nesting costs one byte a level.
fn five(text: &str) -> Result<[&RawValue; 5], FrameProblem> {
    // The straight way first; only a bad frame pays for finding out what is wrong.
    if let Ok(five) = serde_json::from_str::<[&RawValue; 5]>(text) {
        return Ok(five);
    }
    match serde_json::from_str::<&RawValue>(text) {
        Ok(_) => Err(FrameProblem::NotFive),
        Err(error) => Err(FrameProblem::NotJson(error.to_string())),
    }
}

fn text_or_null<'a>(
    field: &'static str,
    raw: &'a RawValue,
    limit: usize,
) -> Result<Option<Cow<'a, str>>, FrameProblem> {
    if raw.get() == "null" {
        return Ok(None);
    }
    read_text(field, "a string or null", raw, limit).map(Some)
}

fn plain_text<'a>(field: &'static str, raw: &'a RawValue, limit: usize) -> Result<Cow<'a, str>, FrameProblem> {
    read_text(field, "a string", raw, limit)
}

fn read_text<'a>(
    field: &'static str,
    expected: &'static str,
    raw: &'a RawValue,
    limit: usize,
) -> Result<Cow<'a, str>, FrameProblem> {
    let not_text = || FrameProblem::NotText { field, expected };
    let inner = raw.get().strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).ok_or_else(not_text)?;
    let text = if inner.contains('\\') {
        Cow::Owned(serde_json::from_str::<String>(raw.get()).map_err(|_| not_text())?)
    } else {
        Cow::Borrowed(inner)
    };
    if text.len() > limit {
        return Err(FrameProblem::TooLong { field, bytes: text.len(), limit });
    }
    Ok(text)
}

fn check_payload(payload: &RawValue) -> Result<(), FrameProblem> {
    if !payload.get().starts_with('{') {
        return Err(FrameProblem::PayloadNotAnObject);
    }
    if is_deeper_than(payload.get(), PAYLOAD_MAX_DEPTH) {
        return Err(FrameProblem::PayloadTooDeep { limit: PAYLOAD_MAX_DEPTH });
    }
    Ok(())
}

/// A channel's name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Topic {
    /// `conversation:{id}`.
    Conversation(ConversationId),
    /// `user:me`, the personal stream.
    Me,
}

impl FromStr for Topic {
    type Err = InvalidId;
    fn from_str(text: &str) -> Result<Self, InvalidId> {
        if text == "user:me" {
            return Ok(Self::Me);
        }
        match text.strip_prefix("conversation:") {
            Some(id) => id.parse().map(Self::Conversation),
            None => Err(InvalidId { field: "topic", problem: "must be conversation:{id} or user:me".to_owned() }),
        }
    }
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Conversation(id) => write!(f, "conversation:{id}"),
            Self::Me => f.write_str("user:me"),
        }
    }
}

/// How a push was answered; stock clients know these two alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Ok,
    /// Refused; the response says why.
    Error,
}

/// The answer to a client's frame. `response_json` is compact JSON, an object.
#[must_use]
pub fn reply(
    join_ref: Option<&str>,
    reference: Option<&str>,
    topic: &str,
    status: Status,
    response_json: &str,
) -> String {
    let opening = match status {
        Status::Ok => r#"{"status":"ok","response":"#,
        Status::Error => r#"{"status":"error","response":"#,
    };
    encode(join_ref, reference, topic, "phx_reply", &[opening, response_json, "}"])
}

/// A frame that answers nothing. A broadcast has no `join_ref` either, so that it is the same bytes for every socket.
/// `payload_json` is compact JSON, an object.
#[must_use]
pub fn push(join_ref: Option<&str>, topic: &str, event: &str, payload_json: &str) -> String {
    encode(join_ref, None, topic, event, &[payload_json])
}

/// A client's own frame. `payload_json` is compact JSON, an object.
#[must_use]
pub fn request(
    join_ref: Option<&str>,
    reference: Option<&str>,
    topic: &str,
    event: &str,
    payload_json: &str,
) -> String {
    encode(join_ref, reference, topic, event, &[payload_json])
}

fn encode(join_ref: Option<&str>, reference: Option<&str>, topic: &str, event: &str, payload_parts: &[&str]) -> String {
    let payload_bytes: usize = payload_parts.iter().map(|part| part.len()).sum();
    let mut frame = String::with_capacity(payload_bytes + topic.len() + event.len() + 64);
    frame.push('[');
    for text in [join_ref, reference, Some(topic), Some(event)] {
        match text {
            Some(text) => push_json_text(&mut frame, text),
            None => frame.push_str("null"),
        }
        frame.push(',');
    }
    for part in payload_parts {
        frame.push_str(part);
    }
    frame.push(']');
    debug_assert!(is_compact(&frame), "payloads are compact JSON");
    frame
}

/// No white space between tokens.
fn is_compact(json: &str) -> bool {
    let (mut in_string, mut escaped) = (false, false);
    json.bytes().all(|byte| {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_string,
            b'"' => in_string = !in_string,
            _ => {}
        }
        in_string || !byte.is_ascii_whitespace()
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_frame_is_read() {
        let frame = ClientFrame::parse(r#" ["1", "2" ,"conversation:a","message", {"body":{"text":"a, b"}} ] "#)
            .expect("a good frame");
        assert_eq!(frame.join_ref.as_deref(), Some("1"));
        assert_eq!(frame.reference.as_deref(), Some("2"));
        assert_eq!(frame.topic, "conversation:a");
        assert_eq!(frame.event, "message");
        assert_eq!(frame.payload.get(), r#"{"body":{"text":"a, b"}}"#);
        assert!(!frame.is_heartbeat());
        let beat = ClientFrame::parse(r#"[null,"3","phoenix","heartbeat",{}]"#).expect("a good frame");
        assert!(beat.is_heartbeat() && beat.join_ref.is_none());
        let escaped = ClientFrame::parse(r#"[null,"\u0041\"","t","e",{}]"#).expect("a good frame");
        assert_eq!(escaped.reference.as_deref(), Some("A\""));
    }

    #[test]
    fn bad_frames_are_named() {
        let long = |bytes: usize| "x".repeat(bytes);
        let deep = |levels: usize| format!(r#"{{"a":{}1{}}}"#, "[".repeat(levels), "]".repeat(levels));
        let five = "frame: must be an array of five, [join_ref, ref, topic, event, payload]";
        let cases = [
            ("{}".to_owned(), five),
            ("null".to_owned(), five),
            ("[]".to_owned(), five),
            (r#"[null,"1","t","e"]"#.to_owned(), five),
            (r#"[null,"1","t","e",{},1]"#.to_owned(), five),
            (r#"[1,"1","t","e",{}]"#.to_owned(), "join_ref: must be a string or null"),
            (r#"[null,{},"t","e",{}]"#.to_owned(), "ref: must be a string or null"),
            (r#"[null,"\ud800","t","e",{}]"#.to_owned(), "ref: must be a string or null"),
            (r#"[null,"1",null,"e",{}]"#.to_owned(), "topic: must be a string"),
            (r#"[null,"1","t",7,{}]"#.to_owned(), "event: must be a string"),
            (format!(r#"["{}","1","t","e",{{}}]"#, long(65)), "join_ref: is 65 bytes long; at most 64 are allowed"),
            (format!(r#"[null,"{}","t","e",{{}}]"#, long(65)), "ref: is 65 bytes long; at most 64 are allowed"),
            (format!(r#"[null,"1","{}","e",{{}}]"#, long(161)), "topic: is 161 bytes long; at most 160 are allowed"),
            (format!(r#"[null,"1","t","{}",{{}}]"#, long(65)), "event: is 65 bytes long; at most 64 are allowed"),
            (r#"[null,"1","t","e",[]]"#.to_owned(), "payload: must be a JSON object"),
            (r#"[null,"1","t","e",null]"#.to_owned(), "payload: must be a JSON object"),
            (format!(r#"[null,"1","t","e",{}]"#, deep(101)), "payload: is nested deeper than 101 levels"),
        ];
        for (text, message) in cases {
            assert_eq!(ClientFrame::parse(&text).expect_err("must be refused").to_string(), message, "{text}");
        }
        for text in ["", "[", "hello", r#"[null,"1","t","e",{}"#, r#"[null,"1","t","e",{}] x"#, "[null,'1']"] {
            let error = ClientFrame::parse(text).expect_err("must be refused");
            assert!(matches!(error.problem, FrameProblem::NotJson(_)), "{text}: {error}");
        }
        let deepest = format!(r#"["{}","{}","{}","{}",{}]"#, long(64), long(64), long(160), long(64), deep(100));
        assert!(ClientFrame::parse(&deepest).is_ok(), "the limits are inclusive");
        assert!(ClientFrame::parse(r#"[null,"1","t","e",{"a":"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["}]"#).is_ok());
    }

    #[test]
    fn a_bad_payload_can_be_answered() {
        let error = ClientFrame::parse(r#"["1","2","t","e",7]"#).expect_err("must be refused");
        let reply_to = ReplyTo { join_ref: Some("1".to_owned()), reference: "2".to_owned(), topic: "t".to_owned() };
        assert_eq!(error.reply_to, Some(Box::new(reply_to)));
        assert_eq!(Refusal::from(&error).detail, "payload: must be a JSON object");
        assert_eq!(ClientFrame::parse(r#"["1",null,"t","e",7]"#).expect_err("must be refused").reply_to, None);
    }

    #[test]
    fn hostile_nesting_costs_no_stack() {
        for (open, close) in [("[", "]"), (r#"{"a":"#, "}")] {
            let levels = 150_000;
            let nested = format!(r#"[null,"1","t","e",{}1{}]"#, open.repeat(levels), close.repeat(levels));
            assert!(ClientFrame::parse(&nested).is_err());
            let unfinished = format!(r#"[null,"1","t","e",{}"#, open.repeat(levels));
            assert!(ClientFrame::parse(&unfinished).is_err());
        }
    }

    #[test]
    fn encoders_write_no_white_space() {
        assert_eq!(
            reply(Some("1"), Some("2"), "conversation:a", Status::Ok, r#"{"seq":7}"#),
            r#"["1","2","conversation:a","phx_reply",{"status":"ok","response":{"seq":7}}]"#
        );
        assert_eq!(
            reply(None, Some("2"), "phoenix", Status::Error, "{}"),
            r#"[null,"2","phoenix","phx_reply",{"status":"error","response":{}}]"#
        );
        assert_eq!(
            push(None, "conversation:x", "message", r#"{"body":{"text":"a b"}}"#),
            r#"[null,null,"conversation:x","message",{"body":{"text":"a b"}}]"#
        );
        assert_eq!(push(Some("a\"\n"), "t", "e", "{}"), r#"["a\"\n",null,"t","e",{}]"#);
        assert!(is_compact(r#"{"a b":"\" c"}"#) && !is_compact(r#"{"a": 1}"#) && !is_compact(r#"{"\\" :1}"#));
    }

    #[test]
    fn topics_go_there_and_back() {
        for text in ["conversation:team:general", "user:me"] {
            assert_eq!(text.parse::<Topic>().expect("a topic").to_string(), text);
        }
        for (text, message) in [
            ("user:you", "topic: must be conversation:{id} or user:me"),
            ("", "topic: must be conversation:{id} or user:me"),
            ("conversation:", "conversation: is empty; 1 to 128 bytes are allowed"),
            ("conversation:a b", "conversation: may hold only A-Z a-z 0-9 . _ : -"),
        ] {
            assert_eq!(text.parse::<Topic>().expect_err("must be refused").to_string(), message);
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".*", json in r#"[\[\]{}",:\\ntu0-9 ]{0,80}"#) {
            let _ = ClientFrame::parse(&text);
            let _ = ClientFrame::parse(&json);
            let _ = text.parse::<Topic>();
        }

        #[test]
        fn what_is_encoded_is_read(
            join_ref in proptest::option::of(".{0,16}"),
            reference in proptest::option::of(".{0,16}"),
            topic in ".{0,40}",
            event in ".{0,16}",
            value in ".{0,40}",
        ) {
            let payload = serde_json::json!({ "v": value }).to_string();
            let text = request(join_ref.as_deref(), reference.as_deref(), &topic, &event, &payload);
            let frame = ClientFrame::parse(&text).expect("what is encoded is good");
            prop_assert_eq!(frame.join_ref.as_deref(), join_ref.as_deref());
            prop_assert_eq!(frame.reference.as_deref(), reference.as_deref());
            prop_assert_eq!(&*frame.topic, &topic);
            prop_assert_eq!(&*frame.event, &event);
            prop_assert_eq!(frame.payload.get(), &payload);
        }
    }
}
