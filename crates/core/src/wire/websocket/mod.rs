//! WebSocket framing (RFC 6455), without extensions: writing frames here, reading them in [`Reader`].
//!
//! Invariant: a server's frame depends on its opcode and payload alone (it is not masked), so one frame, header
//! included, is shared by all sockets. Deliberately absent: the handshake, sockets, and permessage-deflate.

mod reader;
#[cfg(test)]
mod tests;

use bytes::{BufMut, Bytes, BytesMut};

pub use reader::{Incoming, MESSAGE_MAX_BYTES, ProtocolError, Reader, Side};

/// Longest payload of a control frame, in bytes (RFC 6455, 5.5).
pub const CONTROL_MAX_BYTES: usize = 125;
/// Longest reason in a close frame, in bytes: a control frame's payload less the code.
pub const CLOSE_REASON_MAX_BYTES: usize = CONTROL_MAX_BYTES - 2;
/// Longest header that a server writes, in bytes.
pub const HEADER_MAX_BYTES: usize = 10;

/// What a frame is. The number is the one on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opcode {
    /// Goes on with a fragmented message.
    Continuation = 0x0,
    /// UTF-8 text.
    Text = 0x1,
    /// Bytes.
    Binary = 0x2,
    /// The end.
    Close = 0x8,
    /// Asks for a pong with the same payload.
    Ping = 0x9,
    /// Answers a ping.
    Pong = 0xa,
}

impl Opcode {
    /// The opcode with this number; the reserved ones are none.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        let all = [Self::Continuation, Self::Text, Self::Binary, Self::Close, Self::Ping, Self::Pong];
        all.into_iter().find(|opcode| *opcode as u8 == number)
    }

    /// True for close, ping and pong.
    #[must_use]
    pub fn is_control(self) -> bool {
        self as u8 & 0x8 != 0
    }
}

/// Why a socket is closed (RFC 6455, 7.4, and the registry that it opens).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CloseCode(pub u16);

impl CloseCode {
    /// Done.
    pub const NORMAL: Self = Self(1000);
    /// Not this protocol.
    pub const PROTOCOL_ERROR: Self = Self(1002);
    /// Text that is not UTF-8.
    pub const INVALID_PAYLOAD: Self = Self(1007);
    /// Against the server's policy.
    pub const POLICY: Self = Self(1008);
    /// A message over the limit.
    pub const TOO_BIG: Self = Self(1009);
    /// The server restarts; come back.
    pub const RESTART: Self = Self(1012);

    /// Whether it may stand in a close frame: the registered codes and those for libraries and applications.
    /// 1004 to 1006 and 1015 are reserved and never sent.
    #[must_use]
    pub fn may_be_sent(self) -> bool {
        matches!(self.0, 1000..=1003 | 1007..=1014 | 3000..=4999)
    }
}

/// The header of an unmasked, unfragmented frame, and how many of its bytes count.
#[must_use]
pub fn encode_header(opcode: Opcode, payload_bytes: usize) -> ([u8; HEADER_MAX_BYTES], usize) {
    const FIN: u8 = 0x80;
    let mut header = [0; HEADER_MAX_BYTES];
    header[0] = FIN | opcode as u8;
    let used = match payload_bytes {
        0..=125 => {
            header[1] = payload_bytes as u8;
            2
        }
        126..=0xffff => {
            header[1] = 126;
            header[2..4].copy_from_slice(&(payload_bytes as u16).to_be_bytes());
            4
        }
        _ => {
            header[1] = 127;
            header[2..10].copy_from_slice(&(payload_bytes as u64).to_be_bytes());
            10
        }
    };
    (header, used)
}

/// A server's frame, header and payload in one piece; `payload_parts` follow each other. A control frame's payload is
/// at most [`CONTROL_MAX_BYTES`].
#[must_use]
pub fn frame(opcode: Opcode, payload_parts: &[&[u8]]) -> Bytes {
    let payload_bytes = payload_parts.iter().map(|part| part.len()).sum();
    debug_assert!(!opcode.is_control() || payload_bytes <= CONTROL_MAX_BYTES, "a control frame is short");
    let (header, used) = encode_header(opcode, payload_bytes);
    let mut frame = BytesMut::with_capacity(used + payload_bytes);
    frame.put_slice(&header[..used]);
    for part in payload_parts {
        frame.put_slice(part);
    }
    frame.freeze()
}

/// A server's text frame.
#[must_use]
pub fn text_frame(text: &str) -> Bytes {
    frame(Opcode::Text, &[text.as_bytes()])
}

/// A server's close frame. A reason over [`CLOSE_REASON_MAX_BYTES`] is cut at a character's boundary.
#[must_use]
pub fn close_frame(code: CloseCode, reason: &str) -> Bytes {
    debug_assert!(code.may_be_sent(), "reserved codes never stand in a frame");
    let reason = &reason[..reason.floor_char_boundary(CLOSE_REASON_MAX_BYTES)];
    frame(Opcode::Close, &[&code.0.to_be_bytes(), reason.as_bytes()])
}

/// A server's ping. A payload over [`CONTROL_MAX_BYTES`] is cut.
#[must_use]
pub fn ping_frame(payload: &[u8]) -> Bytes {
    frame(Opcode::Ping, &[&payload[..payload.len().min(CONTROL_MAX_BYTES)]])
}

/// A server's answer to a ping. A payload over [`CONTROL_MAX_BYTES`] is cut; no valid ping has one.
#[must_use]
pub fn pong_frame(payload: &[u8]) -> Bytes {
    frame(Opcode::Pong, &[&payload[..payload.len().min(CONTROL_MAX_BYTES)]])
}

/// A client's frame, masked with `mask` (four random bytes, fresh for every frame).
#[must_use]
pub fn client_frame(opcode: Opcode, mask: [u8; 4], payload: &[u8]) -> Bytes {
    let (mut header, used) = encode_header(opcode, payload.len());
    header[1] |= 0x80;
    let mut frame = BytesMut::with_capacity(used + mask.len() + payload.len());
    frame.put_slice(&header[..used]);
    frame.put_slice(&mask);
    frame.put_slice(payload);
    apply_mask(&mut frame[used + mask.len()..], mask);
    frame.freeze()
}

/// Masks, or unmasks, in place (RFC 6455, 5.3).
fn apply_mask(payload: &mut [u8], mask: [u8; 4]) {
    let wide = u64::from_ne_bytes([mask[0], mask[1], mask[2], mask[3], mask[0], mask[1], mask[2], mask[3]]);
    let mut words = payload.chunks_exact_mut(8);
    for word in &mut words {
        let masked = u64::from_ne_bytes(word.try_into().expect("chunks of eight are eight long")) ^ wide;
        word.copy_from_slice(&masked.to_ne_bytes());
    }
    for (byte, key) in words.into_remainder().iter_mut().zip(mask.into_iter().cycle()) {
        *byte ^= key;
    }
}
