//! What the load says to each kind of server, and what it hears: Conch's Phoenix channels, a bare sender, NATS and Centrifugo.
//!
//! Invariant: a message costs a comparison of its beginning and two numbers at places where they were before. Everything else
//! is rare, and searched for.

use std::fmt::Write;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::frames::{Key, digits, find, number_after, string_after};

/// A kind of server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Dialect {
    /// Phoenix channels.
    Conch,
    /// Frames as Conch's without a handshake, from the bare sender.
    Bare,
    /// NATS over WebSocket.
    Nats,
    /// Centrifugo's JSON protocol over WebSocket.
    Centrifugo,
}

impl Dialect {
    /// As the command line takes it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Conch => "conch",
            Self::Bare => "bare",
            Self::Nats => "nats",
            Self::Centrifugo => "centrifugo",
        }
    }
}

/// What was heard. `topic` 0 is the channel that all have, n + 1 the channel with the number n.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heard {
    /// A message.
    Message { topic: usize, seq: u64, sent_ns: u64 },
    /// A join was accepted at this head.
    Joined { topic: usize, head: u64 },
    /// A join was refused; the server says when to come back.
    NotJoined { after_ms: Option<u64> },
    /// All that was missed has come.
    CaughtUp { topic: usize },
    /// The position was of no use: the newest page is to be loaded, and it goes on from here.
    Resync { topic: usize, head: u64 },
    /// A leave was answered.
    Left { topic: usize },
    /// A message of the load's own is in the log.
    Sent { topic: usize },
    /// Or it is not.
    NotSent,
    /// The server asks whether the client is there.
    Ping,
    /// Anything else.
    Other,
}

/// The ears of one process.
pub(super) struct Ears {
    dialect: Dialect,
    /// The channel's name, which the names of the others begin with.
    channel: String,
    /// How a message in the channel that all have begins.
    message: Vec<u8>,
    /// How everything that is for all sessions of any channel begins.
    broadcast: Vec<u8>,
    seq: Key,
    sent_ns: Key,
    /// The log of the server's store, as the first join said.
    pub(super) log: Option<String>,
    /// The newest window for coming back.
    pub(super) jitter_ms: Option<u64>,
}

impl Ears {
    pub(super) fn new(dialect: Dialect, channel: &str) -> Self {
        Self {
            dialect,
            channel: channel.to_owned(),
            message: format!(r#"[null,null,"conversation:{channel}","message",{{"#).into_bytes(),
            broadcast: format!(r#"[null,null,"conversation:{channel}"#).into_bytes(),
            seq: Key::new("\"seq\":"),
            sent_ns: Key::new("\"sent_ns\":"),
            log: None,
            jitter_ms: None,
        }
    }

    /// Hears the first thing in `bytes` and takes it off. `None`: they end too early.
    pub(super) fn hear(&mut self, bytes: &mut &[u8]) -> Option<Heard> {
        match self.dialect {
            Dialect::Conch => Some(self.hear_phoenix(std::mem::take(bytes))),
            Dialect::Bare => Some(self.numbers(std::mem::take(bytes), 0)),
            Dialect::Centrifugo => {
                let end = bytes.iter().position(|byte| *byte == b'\n');
                let line = &bytes[..end.unwrap_or(bytes.len())];
                *bytes = &bytes[end.map_or(bytes.len(), |end| end + 1)..];
                Some(self.hear_centrifugo(line))
            }
            Dialect::Nats => self.hear_nats(bytes),
        }
    }

    fn numbers(&mut self, text: &[u8], topic: usize) -> Heard {
        match (self.seq.number(text), self.sent_ns.number(text)) {
            (Some(seq), Some(sent_ns)) => Heard::Message { topic, seq, sent_ns },
            // A record of nobody's load, such as the one that opened the channel.
            (Some(seq), None) => Heard::Message { topic, seq, sent_ns: 0 },
            _ => Heard::Other,
        }
    }

    fn hear_phoenix(&mut self, text: &[u8]) -> Heard {
        if text.starts_with(&self.message) {
            return self.numbers(text, 0);
        }
        if let Some(rest) = text.strip_prefix(&self.broadcast[..]) {
            let (topic, rest) = numbered(rest);
            return if rest.starts_with(br#"","message",{"#) {
                self.numbers(text, topic)
            } else {
                other(rest, topic, text)
            };
        }
        self.hear_reply(text)
    }

    /// A reply's reference says what it answers: a letter and the topic.
    fn hear_reply(&mut self, text: &[u8]) -> Heard {
        let Some(at) = find(text, b",\"").filter(|_| text.starts_with(b"[")) else { return Heard::Other };
        let [what, number @ ..] = &text[at + 2..] else { return Heard::Other };
        let (topic, good) = (digits(number), find(text, br#""status":"ok""#).is_some());
        let Some(topic) = topic.and_then(|topic| usize::try_from(topic).ok()) else { return Heard::Other };
        match (what, good) {
            (b'j', true) => {
                if self.log.is_none() {
                    self.log = string_after(text, b"\"log\":\"").map(|log| String::from_utf8_lossy(log).into_owned());
                }
                self.jitter_ms = number_after(text, b"\"reconnect_jitter_ms\":").or(self.jitter_ms);
                Heard::Joined { topic, head: number_after(text, b"\"head_seq\":").unwrap_or(0) }
            }
            (b'j', false) => Heard::NotJoined { after_ms: number_after(text, b"\"after_ms\":") },
            (b'l', _) => Heard::Left { topic },
            (b'm', true) => Heard::Sent { topic },
            (b'm', false) => Heard::NotSent,
            _ => Heard::Other,
        }
    }

    fn hear_centrifugo(&mut self, line: &[u8]) -> Heard {
        if line.starts_with(b"{\"push\"") {
            return self.numbers(line, 0);
        }
        match line {
            b"{}" => Heard::Ping,
            _ if line.starts_with(b"{\"id\":2") && find(line, b"\"error\"").is_none() => {
                Heard::Joined { topic: 0, head: 0 }
            }
            _ if find(line, b"\"error\"").is_some() => Heard::NotJoined { after_ms: None },
            _ => Heard::Other,
        }
    }

    fn hear_nats(&mut self, bytes: &mut &[u8]) -> Option<Heard> {
        let end = find(bytes, b"\r\n")?;
        let (line, rest) = (&bytes[..end], &bytes[end + 2..]);
        if !line.starts_with(b"MSG ") {
            *bytes = rest;
            return Some(match line {
                b"PING" => Heard::Ping,
                b"PONG" => Heard::Joined { topic: 0, head: 0 },
                _ if line.starts_with(b"-ERR") => Heard::NotJoined { after_ms: None },
                _ => Heard::Other,
            });
        }
        let length = digits(line.rsplit(|byte| *byte == b' ').next()?).and_then(|length| usize::try_from(length).ok());
        let length = length.unwrap_or(0);
        let payload = rest.get(..length)?;
        *bytes = rest.get(length + 2..)?;
        Some(self.numbers(payload, 0))
    }

    /// The name of a topic's conversation.
    pub(super) fn name(&self, topic: usize) -> String {
        match topic.checked_sub(1) {
            None => self.channel.clone(),
            Some(number) => format!("{}.{number}", self.channel),
        }
    }

    /// What opens a connection; empty if nothing is said.
    pub(super) fn opening(&self, authority: &str, token: &str) -> String {
        let path = match self.dialect {
            Dialect::Bare => return String::new(),
            Dialect::Conch => format!("/socket/websocket?vsn=2.0.0&token={token}"),
            Dialect::Nats => "/".to_owned(),
            Dialect::Centrifugo => "/connection/websocket".to_owned(),
        };
        format!(
            "GET {path} HTTP/1.1\r\nHost: {authority}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
    }

    /// Whether what is said goes out as text.
    pub(super) fn is_text(&self) -> bool {
        self.dialect != Dialect::Nats
    }

    /// Joins a topic, from a position if there is one.
    pub(super) fn join(&self, topic: usize, after: Option<u64>) -> String {
        match self.dialect {
            Dialect::Bare => String::new(),
            Dialect::Conch => {
                let mut position = String::new();
                if let (Some(after), Some(log)) = (after, &self.log) {
                    write!(position, r#""after":{after},"log":"{log}""#).expect("a String takes every write");
                }
                let name = self.name(topic);
                format!(r#"["{topic}","j{topic}","conversation:{name}","phx_join",{{{position}}}]"#)
            }
            Dialect::Nats => {
                format!("CONNECT {{\"verbose\":false,\"pedantic\":false}}\r\nSUB {} 1\r\nPING\r\n", self.channel)
            }
            Dialect::Centrifugo => format!(
                "{{\"id\":1,\"connect\":{{}}}}\n{{\"id\":2,\"subscribe\":{{\"channel\":\"{}\"}}}}",
                self.channel
            ),
        }
    }

    /// A push on a joined topic of Conch; `what` comes back at the beginning of the reply's reference.
    pub(super) fn push(&self, topic: usize, what: char, event: &str, payload: &str) -> String {
        format!(r#"["{topic}","{what}{topic}","conversation:{}","{event}",{payload}]"#, self.name(topic))
    }

    /// What is said every now and then, so that nobody takes the client for gone.
    pub(super) fn sign_of_life(&self) -> Option<&'static str> {
        (self.dialect == Dialect::Conch).then_some(r#"[null,"h","phoenix","heartbeat",{}]"#)
    }

    /// The answer to [`Heard::Ping`].
    pub(super) fn pong(&self) -> &'static str {
        if self.dialect == Dialect::Nats { "PONG\r\n" } else { "{}" }
    }

    /// Whether a message may be cut over several frames.
    pub(super) fn is_a_stream(&self) -> bool {
        self.dialect == Dialect::Nats
    }
}

/// The topic at the end of a conversation's name, whose beginning is gone, and the rest from the quote on.
fn numbered(rest: &[u8]) -> (usize, &[u8]) {
    match rest {
        [b'.', number @ ..] => {
            let end = number.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(number.len());
            let topic = digits(number).and_then(|number| usize::try_from(number).ok()).map_or(0, |number| number + 1);
            (topic, &number[end..])
        }
        _ => (0, rest),
    }
}

/// What else is told to all.
fn other(rest: &[u8], topic: usize, text: &[u8]) -> Heard {
    if rest.starts_with(br#"","caught_up","#) {
        Heard::CaughtUp { topic }
    } else if rest.starts_with(br#"","resync","#) {
        Heard::Resync { topic, head: number_after(text, b"\"head_seq\":").unwrap_or(0) }
    } else {
        Heard::Other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hears(dialect: Dialect, text: &str) -> Vec<Heard> {
        let (mut ears, mut rest, mut heard) = (Ears::new(dialect, "room"), text.as_bytes(), Vec::new());
        while !rest.is_empty()
            && let Some(next) = ears.hear(&mut rest)
        {
            heard.push(next);
        }
        heard
    }

    #[test]
    fn channels_are_understood() {
        let heard = |text: &str| hears(Dialect::Conch, text)[0];
        let message = Heard::Message { topic: 0, seq: 4, sent_ns: 17 };
        assert_eq!(
            heard(r#"[null,null,"conversation:room","message",{"seq":4,"body":{"sent_ns":17,"text":"x"}}]"#),
            message
        );
        assert_eq!(
            heard(r#"[null,null,"conversation:room.11","message",{"seq":4,"body":{"sent_ns":17}}]"#),
            Heard::Message { topic: 12, seq: 4, sent_ns: 17 }
        );
        assert_eq!(heard(r#"[null,null,"conversation:room.0","caught_up",{"seq":4}]"#), Heard::CaughtUp { topic: 1 });
        assert_eq!(
            heard(r#"[null,null,"conversation:room","resync",{"log":"a","head_seq":90}]"#),
            Heard::Resync { topic: 0, head: 90 }
        );
        assert_eq!(heard(r#"[null,null,"conversation:room","presence_diff",{"joins":{},"leaves":{}}]"#), Heard::Other);
        assert_eq!(heard(r#"[null,null,"conversation:roommate","message",{"seq":4}]"#), Heard::Other);
        let reply = |reference: &str, status: &str| {
            heard(&format!(
                r#"["3","{reference}","conversation:room.2","phx_reply",{{"status":"{status}","response":{{"head_seq":8,"after_ms":250}}}}]"#
            ))
        };
        assert_eq!(reply("j3", "ok"), Heard::Joined { topic: 3, head: 8 });
        assert_eq!(reply("j3", "error"), Heard::NotJoined { after_ms: Some(250) });
        assert_eq!(reply("l3", "ok"), Heard::Left { topic: 3 });
        assert_eq!((reply("m3", "ok"), reply("m3", "error")), (Heard::Sent { topic: 3 }, Heard::NotSent));
        assert_eq!(reply("t3", "ok"), Heard::Other);
        assert_eq!(heard(r#"[null,"h","phoenix","phx_reply",{"status":"ok","response":{}}]"#), Heard::Other);
    }

    #[test]
    fn the_first_join_says_the_log_and_each_says_the_window() {
        let mut ears = Ears::new(Dialect::Conch, "room");
        for (log, jitter) in [("s.1", 500), ("s.2", 900)] {
            let text = format!(
                r#"["0","j0","conversation:room","phx_reply",{{"status":"ok","response":{{"head_seq":1,"log":"{log}","reconnect_jitter_ms":{jitter}}}}}]"#
            );
            ears.hear(&mut text.as_bytes());
        }
        assert_eq!((ears.log.as_deref(), ears.jitter_ms), (Some("s.1"), Some(900)));
        assert_eq!(ears.join(5, Some(7)), r#"["5","j5","conversation:room.4","phx_join",{"after":7,"log":"s.1"}]"#);
        assert_eq!(ears.join(0, None), r#"["0","j0","conversation:room","phx_join",{}]"#);
    }

    #[test]
    fn peers_are_understood_in_any_cut() {
        let body = r#"{"seq":4,"sent_ns":17,"text":"x"}"#;
        let message = Heard::Message { topic: 0, seq: 4, sent_ns: 17 };
        let two = format!("INFO {{}}\r\nPING\r\nMSG room 1 {0}\r\n{body}\r\nMSG room 1 {0}\r\n{body}\r\n", body.len());
        assert_eq!(hears(Dialect::Nats, &two), [Heard::Other, Heard::Ping, message, message]);
        assert_eq!(hears(Dialect::Nats, &two[..two.len() - 1]).len(), 3, "the last one is not there yet");
        assert_eq!(hears(Dialect::Nats, "PONG\r\n"), [Heard::Joined { topic: 0, head: 0 }]);
        let push = format!(r#"{{"push":{{"channel":"room","pub":{{"data":{body}}}}}}}"#);
        assert_eq!(hears(Dialect::Centrifugo, &format!("{push}\n{push}\n{{}}")), [message, message, Heard::Ping]);
        let joined = "{\"id\":1,\"connect\":{}}\n{\"id\":2,\"subscribe\":{}}";
        assert_eq!(hears(Dialect::Centrifugo, joined), [Heard::Other, Heard::Joined { topic: 0, head: 0 }]);
        let refused = r#"{"id":2,"error":{"code":103}}"#;
        assert_eq!(hears(Dialect::Centrifugo, refused), [Heard::NotJoined { after_ms: None }]);
    }
}
