//! Reads WebSocket frames from a buffer that the caller owns and fills.
//!
//! Invariants: every byte is looked at a bounded number of times, however finely the peer cuts its packets and its
//! fragments; an idle reader holds no heap memory; a length that breaks a limit is refused from its header, before the
//! payload has arrived. Deliberately absent: answering (pongs and close frames are the caller's), and sockets.

use bytes::{Buf, Bytes, BytesMut};

use super::{CONTROL_MAX_BYTES, CloseCode, Opcode, apply_mask};

/// Longest message by default, in bytes, over all its fragments.
pub const MESSAGE_MAX_BYTES: usize = 1024 * 1024;

/// Which end of the connection reads. A client masks its frames, a server does not (RFC 6455, 5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Reads what a client sent: masked.
    Server,
    /// Reads what a server sent: not masked.
    Client,
}

/// What has come in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Incoming {
    /// A whole text message.
    Text(String),
    /// A whole binary message.
    Binary(Bytes),
    /// To be answered with a pong of the same payload.
    Ping(Bytes),
    /// The answer to a ping.
    Pong(Bytes),
    /// The peer closes, with its code if it gave one. Nothing is read after it.
    Close(Option<CloseCode>),
}

/// How the peer broke the protocol. The socket is to be closed with [`ProtocolError::close_code`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// RSV1, RSV2 or RSV3, which only extensions use; none is negotiated.
    #[error("frame: a reserved bit is set")]
    ReservedBits,
    /// 3 to 7 or 11 to 15.
    #[error("frame: the opcode {0} is unknown")]
    UnknownOpcode(u8),
    /// A client's frame without a mask.
    #[error("frame: a client's frame must be masked")]
    NotMasked,
    /// A server's frame with a mask.
    #[error("frame: a server's frame must not be masked")]
    Masked,
    /// A control frame without FIN.
    #[error("frame: a control frame must not be fragmented")]
    FragmentedControl,
    /// A control frame that is too long.
    #[error("frame: a control frame's payload is at most {CONTROL_MAX_BYTES} bytes")]
    LongControl,
    /// A length in more bytes than it needs, or with its highest bit set.
    #[error("frame: the length is not in its shortest form")]
    BadLength,
    /// A continuation of nothing.
    #[error("frame: a continuation without a beginning")]
    UnexpectedContinuation,
    /// A new message inside a fragmented one.
    #[error("frame: a new message before the end of the fragmented one")]
    ExpectedContinuation,
    /// A close frame of one byte, or with a code that must not be sent.
    #[error("close: the code is not one that may be sent")]
    BadCloseCode,
    /// Text, or a close frame's reason, that is not UTF-8.
    #[error("text: is not valid UTF-8")]
    NotUtf8,
    /// A message over the limit.
    #[error("message: is {bytes} bytes long; at most {limit} are allowed")]
    TooBig {
        /// Its size as far as it is known.
        bytes: u64,
        /// The limit.
        limit: u32,
    },
}

impl ProtocolError {
    /// The code to close with: 1007, 1009, or else 1002.
    #[must_use]
    pub fn close_code(self) -> CloseCode {
        match self {
            Self::NotUtf8 => CloseCode::INVALID_PAYLOAD,
            Self::TooBig { .. } => CloseCode::TOO_BIG,
            _ => CloseCode::PROTOCOL_ERROR,
        }
    }
}

/// The beginning of a fragmented message.
#[derive(Debug)]
struct Fragments {
    opcode: Opcode,
    payload: Vec<u8>,
}

/// The incremental reader of one connection. 16 bytes, and no heap memory between messages.
#[derive(Debug)]
pub struct Reader {
    fragments: Option<Box<Fragments>>,
    message_max_bytes: u32,
    side: Side,
    /// After a close or an error nothing more is read.
    ended: bool,
}

/// A frame's header, decoded and within the limits.
struct Header {
    fin: bool,
    opcode: Opcode,
    mask: [u8; 4],
    /// Bytes before the payload.
    header_bytes: usize,
    payload_bytes: usize,
}

impl Reader {
    /// A reader for one end, with a limit for whole messages in bytes (see [`MESSAGE_MAX_BYTES`]).
    #[must_use]
    pub fn new(side: Side, message_max_bytes: u32) -> Self {
        Self { fragments: None, message_max_bytes, side, ended: false }
    }

    /// Takes the next message or control frame out of `buffer`; `None` if more bytes are needed.
    ///
    /// Call it until it says `None`, then read more into the buffer, at its end. An empty buffer may be dropped or
    /// shrunk. The buffer grows to at most a frame's size, which is limited by the message's, plus what one read adds.
    ///
    /// # Errors
    /// The peer broke the protocol or a limit. From then on, as after a close, everything in the buffer is discarded.
    pub fn next(&mut self, buffer: &mut BytesMut) -> Result<Option<Incoming>, ProtocolError> {
        while !self.ended {
            let Some(header) = self.header(buffer).inspect_err(|_| self.end(buffer))? else { return Ok(None) };
            if buffer.len() < header.header_bytes + header.payload_bytes {
                return Ok(None);
            }
            buffer.advance(header.header_bytes);
            apply_mask(&mut buffer[..header.payload_bytes], header.mask);
            let incoming = self.frame(&header, &buffer[..header.payload_bytes]);
            buffer.advance(header.payload_bytes);
            match incoming {
                Ok(None) => {} // a fragment in the middle; go on
                Ok(Some(Incoming::Close(code))) => {
                    self.end(buffer);
                    return Ok(Some(Incoming::Close(code)));
                }
                Ok(Some(incoming)) => return Ok(Some(incoming)),
                Err(error) => {
                    self.end(buffer);
                    return Err(error);
                }
            }
        }
        buffer.clear();
        Ok(None)
    }

    /// True between two fragments of a message.
    #[must_use]
    pub fn is_inside_message(&self) -> bool {
        self.fragments.is_some()
    }

    fn end(&mut self, buffer: &mut BytesMut) {
        self.ended = true;
        self.fragments = None;
        buffer.clear();
    }

    /// Reads and checks a header as soon as it is there. The rules that need only the first two bytes do not wait.
    fn header(&mut self, buffer: &BytesMut) -> Result<Option<Header>, ProtocolError> {
        let [first, second, rest @ ..] = &buffer[..] else { return Ok(None) };
        if first & 0x70 != 0 {
            return Err(ProtocolError::ReservedBits);
        }
        let fin = first & 0x80 != 0;
        let opcode = Opcode::from_number(first & 0x0f).ok_or(ProtocolError::UnknownOpcode(first & 0x0f))?;
        let masked = second & 0x80 != 0;
        match self.side {
            Side::Server if !masked => return Err(ProtocolError::NotMasked),
            Side::Client if masked => return Err(ProtocolError::Masked),
            _ => {}
        }
        let short_length = second & 0x7f;
        self.check_order(opcode, fin, short_length)?;
        let Some((payload_bytes, length_bytes)) = read_length(short_length, rest)? else { return Ok(None) };
        let payload_bytes = self.check_size(opcode, payload_bytes)?;
        let mask_bytes = if masked { 4 } else { 0 };
        let Some(mask) = rest.get(length_bytes..length_bytes + mask_bytes) else { return Ok(None) };
        let mask = mask.try_into().unwrap_or([0; 4]);
        Ok(Some(Header { fin, opcode, mask, header_bytes: 2 + length_bytes + mask_bytes, payload_bytes }))
    }

    fn check_order(&self, opcode: Opcode, fin: bool, short_length: u8) -> Result<(), ProtocolError> {
        if opcode.is_control() {
            if !fin {
                return Err(ProtocolError::FragmentedControl);
            }
            if usize::from(short_length) > CONTROL_MAX_BYTES {
                return Err(ProtocolError::LongControl);
            }
            return Ok(());
        }
        match (opcode, &self.fragments) {
            (Opcode::Continuation, None) => Err(ProtocolError::UnexpectedContinuation),
            (Opcode::Text | Opcode::Binary, Some(_)) => Err(ProtocolError::ExpectedContinuation),
            _ => Ok(()),
        }
    }

    fn check_size(&self, opcode: Opcode, payload_bytes: u64) -> Result<usize, ProtocolError> {
        let before = match &self.fragments {
            Some(fragments) if !opcode.is_control() => fragments.payload.len() as u64,
            _ => 0,
        };
        let bytes = payload_bytes.saturating_add(before);
        let too_big = ProtocolError::TooBig { bytes, limit: self.message_max_bytes };
        if !opcode.is_control() && bytes > u64::from(self.message_max_bytes) {
            return Err(too_big);
        }
        usize::try_from(payload_bytes).map_err(|_| too_big)
    }

    /// One whole frame, unmasked.
    fn frame(&mut self, header: &Header, payload: &[u8]) -> Result<Option<Incoming>, ProtocolError> {
        match header.opcode {
            Opcode::Ping => Ok(Some(Incoming::Ping(Bytes::copy_from_slice(payload)))),
            Opcode::Pong => Ok(Some(Incoming::Pong(Bytes::copy_from_slice(payload)))),
            Opcode::Close => read_close(payload).map(Some),
            Opcode::Text | Opcode::Binary if header.fin => whole(header.opcode, payload.to_vec()).map(Some),
            opcode => {
                let fragments =
                    self.fragments.get_or_insert_with(|| Box::new(Fragments { opcode, payload: Vec::new() }));
                fragments.payload.extend_from_slice(payload);
                if !header.fin {
                    return Ok(None);
                }
                let Some(fragments) = self.fragments.take() else { return Ok(None) };
                whole(fragments.opcode, fragments.payload).map(Some)
            }
        }
    }
}

/// The payload's length and how many bytes of `rest` it took; `None` if they are not all there.
fn read_length(short: u8, rest: &[u8]) -> Result<Option<(u64, usize)>, ProtocolError> {
    let (length, length_bytes, least) = match short {
        126 => match rest.first_chunk() {
            Some(bytes) => (u64::from(u16::from_be_bytes(*bytes)), 2, 126),
            None => return Ok(None),
        },
        127 => match rest.first_chunk() {
            Some(bytes) => (u64::from_be_bytes(*bytes), 8, 0x1_0000),
            None => return Ok(None),
        },
        _ => (u64::from(short), 0, 0),
    };
    if length < least || length > i64::MAX as u64 {
        return Err(ProtocolError::BadLength);
    }
    Ok(Some((length, length_bytes)))
}

fn read_close(payload: &[u8]) -> Result<Incoming, ProtocolError> {
    if payload.is_empty() {
        return Ok(Incoming::Close(None));
    }
    let Some((code, reason)) = payload.split_first_chunk() else { return Err(ProtocolError::BadCloseCode) };
    let code = CloseCode(u16::from_be_bytes(*code));
    if !code.may_be_sent() {
        return Err(ProtocolError::BadCloseCode);
    }
    std::str::from_utf8(reason).map_err(|_| ProtocolError::NotUtf8)?;
    Ok(Incoming::Close(Some(code)))
}

fn whole(opcode: Opcode, payload: Vec<u8>) -> Result<Incoming, ProtocolError> {
    if opcode == Opcode::Text {
        return String::from_utf8(payload).map(Incoming::Text).map_err(|_| ProtocolError::NotUtf8);
    }
    Ok(Incoming::Binary(payload.into()))
}
