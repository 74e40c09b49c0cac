//! The frames themselves, and how they are found in a stream of bytes.

use bytes::{Buf, Bytes, BytesMut};

use super::encoding::{DecodeError, Known, Reader, Wire, wire_enum, wire_struct};
use super::hello::{Hello, Proof};
use super::messages::{FollowerReport, Notice, Request, Response};
use crate::ids::{ConversationId, Epoch, Incarnation, LogId, Seq};
use crate::presence::shard::PresenceNews;
use crate::record::Record;
use crate::refusal::Refusal;
use crate::turn::live::LiveEvent;

/// Bytes of a frame's length.
const LENGTH_BYTES: usize = 4;

/// Which request an answer belongs to; given by the one that asks, unique on its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// Which follow stream a frame belongs to; given by the one that opens it, unique on its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamId(pub u64);

wire_struct!(RequestId { 0: request });
wire_struct!(StreamId { 0: stream });

/// Why a connection ends. The number is what the wire carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// It does not have the key.
    WrongSecret,
    /// It speaks another major version, or another protocol.
    OtherVersion,
    /// It belongs to another cluster.
    OtherCluster,
    /// It sent what is not allowed.
    BadFrame,
    /// It is one too many.
    Full,
    /// The node stops.
    Stopping,
    /// A later version's reason; the text says which.
    Other,
}

impl Reason {
    const NUMBERED: [(Self, u8); 6] = [
        (Self::WrongSecret, 1),
        (Self::OtherVersion, 2),
        (Self::OtherCluster, 3),
        (Self::BadFrame, 4),
        (Self::Full, 5),
        (Self::Stopping, 6),
    ];
}

impl Wire for Reason {
    fn put(&self, out: &mut Vec<u8>) {
        let number = Self::NUMBERED.iter().find(|(reason, _)| reason == self).map_or(0, |(_, number)| *number);
        out.push(number);
    }

    fn take(from: &mut Reader<'_>, field: &'static str) -> Result<Self, DecodeError> {
        let byte = from.byte(field)?;
        Ok(Self::NUMBERED.iter().find(|(_, number)| *number == byte).map_or(Self::Other, |(reason, _)| *reason))
    }
}

/// What a follower is told when its stream begins; the fields are those of the server's `Follow`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    /// The owner's epoch.
    pub epoch: Epoch,
    /// The owner's incarnation.
    pub incarnation: Incarnation,
    /// The history that seqs belong to.
    pub log: LogId,
    /// Where the stream begins.
    pub position: Seq,
    /// The running step's text.
    pub snapshot: Option<LiveEvent>,
}

wire_struct!(Opened { epoch: epoch, incarnation: incarnation, log: log, position: position, snapshot: snapshot });

/// One frame.
#[derive(Debug, Clone, PartialEq)]
pub enum Frame {
    /// Who speaks; the first frame of each side.
    Hello(Hello),
    /// That it has the key; the second frame of each side.
    Proof(Proof),
    /// A request.
    Ask {
        /// Its number.
        request: RequestId,
        /// Milliseconds after which nobody waits for the answer any more.
        within_ms: u32,
        /// What is asked.
        ask: Request,
    },
    /// Its answer.
    Answer {
        /// The request's number.
        request: RequestId,
        /// What is answered.
        answer: Response,
    },
    /// The request was not looked at: too many are under way.
    Declined {
        /// The request's number.
        request: RequestId,
    },
    /// Follow a conversation.
    Open {
        /// Its number.
        stream: StreamId,
        /// What to follow.
        conversation: ConversationId,
        /// Milliseconds after which nobody waits for it any more.
        within_ms: u32,
        /// Frames that may be sent before more credit comes.
        frames: u32,
        /// Bytes of such frames; the last one may exceed it.
        bytes: u32,
    },
    /// The stream begins.
    Opened {
        /// Which.
        stream: StreamId,
        /// How.
        opened: Opened,
    },
    /// The owner refuses.
    Refused {
        /// Which.
        stream: StreamId,
        /// Why.
        refusal: Refusal,
    },
    /// A committed record.
    Record {
        /// Of which stream.
        stream: StreamId,
        /// The seq of the record before it.
        prev: Seq,
        /// The record.
        record: Record,
    },
    /// A live event.
    Live {
        /// Of which stream.
        stream: StreamId,
        /// What.
        event: Known<LiveEvent>,
    },
    /// Who is present.
    Presence {
        /// Of which stream.
        stream: StreamId,
        /// What is new.
        news: Known<PresenceNews>,
    },
    /// Everything up to here was sent.
    Position {
        /// Of which stream.
        stream: StreamId,
        /// Up to where.
        seq: Seq,
    },
    /// The follower has taken this much; as much more may be sent.
    Credit {
        /// Of which stream.
        stream: StreamId,
        /// Frames.
        frames: u32,
        /// Bytes.
        bytes: u32,
    },
    /// The stream is over, for whoever says it first.
    Closed {
        /// Which.
        stream: StreamId,
    },
    /// What a follower tells the owner.
    Report {
        /// By which stream.
        stream: StreamId,
        /// What.
        report: Known<FollowerReport>,
    },
    /// A notice.
    Notice(Known<Notice>),
    /// Are you there?
    Ping,
    /// I am.
    Pong,
    /// The connection ends.
    Goodbye {
        /// Why.
        reason: Reason,
        /// The same for people.
        detail: String,
    },
}

wire_enum!(Frame, "frame" {
    1 = Hello { 0: hello };
    2 = Proof { 0: proof };
    3 = Ask { request: request, within_ms: within_ms, ask: ask };
    4 = Answer { request: request, answer: answer };
    5 = Declined { request: request };
    6 = Open { stream: stream, conversation: conversation, within_ms: within_ms, frames: frames, bytes: bytes };
    7 = Opened { stream: stream, opened: opened };
    8 = Refused { stream: stream, refusal: refusal };
    9 = Record { stream: stream, prev: prev, record: record };
    10 = Live { stream: stream, event: event };
    11 = Position { stream: stream, seq: seq };
    12 = Credit { stream: stream, frames: frames, bytes: bytes };
    13 = Closed { stream: stream };
    14 = Report { stream: stream, report: report };
    15 = Notice { 0: notice };
    16 = Ping {};
    17 = Pong {};
    18 = Goodbye { reason: reason, detail: detail };
    19 = Presence { stream: stream, news: news };
});

impl Frame {
    /// Appends the frame, its length included, and says how many bytes that were.
    pub fn encode(&self, out: &mut Vec<u8>) -> usize {
        framed(out, |out| self.put(out))
    }

    /// A frame's content, without its length.
    ///
    /// # Errors
    /// As [`DecodeError`] lists.
    pub fn decode(content: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader(content);
        let frame = Self::take(&mut reader, "frame")?;
        reader.end()?;
        Ok(frame)
    }

    /// A [`Frame::Record`] of a record that is shared: it need not be copied to be sent.
    pub fn encode_record(stream: StreamId, prev: Seq, record: &Record, out: &mut Vec<u8>) -> usize {
        framed(out, |out| {
            out.push(9);
            stream.put(out);
            prev.put(out);
            record.put(out);
        })
    }

    /// A [`Frame::Presence`] of news that are shared.
    pub fn encode_presence(stream: StreamId, news: &PresenceNews, out: &mut Vec<u8>) -> usize {
        framed(out, |out| {
            out.push(19);
            stream.put(out);
            news.put(out);
        })
    }

    /// A [`Frame::Live`] of an event that is shared.
    pub fn encode_live(stream: StreamId, event: &LiveEvent, out: &mut Vec<u8>) -> usize {
        framed(out, |out| {
            out.push(10);
            stream.put(out);
            event.put(out);
        })
    }
}

fn framed(out: &mut Vec<u8>, content: impl FnOnce(&mut Vec<u8>)) -> usize {
    let start = out.len();
    out.extend_from_slice(&[0; LENGTH_BYTES]);
    content(out);
    let length = out.len() - start - LENGTH_BYTES;
    // What is longer than 4 GiB is over every limit, and says so.
    let written = u32::try_from(length).unwrap_or(u32::MAX);
    out[start..start + LENGTH_BYTES].copy_from_slice(&written.to_be_bytes());
    out.len() - start
}

/// Takes the next frame's content out of what was received; `None`: it is not there yet.
///
/// # Errors
/// [`DecodeError::TooLong`], or [`DecodeError::Foreign`] where the length is another protocol's beginning, as soon as it is
/// there.
pub fn next_frame(received: &mut BytesMut, limit: usize) -> Result<Option<Bytes>, DecodeError> {
    let Some(length) = received.first_chunk::<LENGTH_BYTES>() else {
        return Ok(None);
    };
    let bytes = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
    if bytes > limit {
        return Err(foreign(*length).unwrap_or(DecodeError::TooLong { bytes, limit }));
    }
    if received.len() < LENGTH_BYTES + bytes {
        received.reserve(LENGTH_BYTES + bytes - received.len());
        return Ok(None);
    }
    received.advance(LENGTH_BYTES);
    Ok(Some(received.split_to(bytes).freeze()))
}

/// A length that no limit allows, as the beginning of what is spoken by mistake at a link's port.
fn foreign(length: [u8; LENGTH_BYTES]) -> Option<DecodeError> {
    const HTTP: [&[u8; LENGTH_BYTES]; 9] =
        [b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PATC", b"PRI ", b"HTTP"];
    match length {
        // A record's kind, and the version that all of them bear.
        [0x14..=0x17, 0x03, _, _] => Some(DecodeError::Foreign(
            "TLS (link.tls_cert, link.tls_key and link.tls_ca are for all nodes or for none)",
        )),
        length if HTTP.contains(&&length) => Some(DecodeError::Foreign("HTTP")),
        _ => None,
    }
}
