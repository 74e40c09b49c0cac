//! A WebSocket client's framing, by hand: a benchmark holds tens of thousands of sockets in one process, and must spend
//! less on a frame than the server does.
//!
//! Deliberately absent: checking `Sec-WebSocket-Accept` (it guards against caches and proxies, which a client of our
//! own server on a known address does not have), extensions, and fragmented messages, which our server never sends.

use std::io;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longest answer to an upgrade request.
const UPGRADE_BYTES_MAX: usize = 16 * 1024;
/// Longest frame that a client takes.
const FRAME_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The masking key of every frame. Masking protects proxies from hostile scripts; here it only has to be there.
const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// Text.
    Text,
    /// Binary.
    Binary,
    /// The end, with a code and a reason.
    Close,
    /// To be answered with a pong of the same payload.
    Ping,
    /// An answer to a ping.
    Pong,
}

impl FrameKind {
    fn opcode(self) -> u8 {
        match self {
            Self::Text => 0x1,
            Self::Binary => 0x2,
            Self::Close => 0x8,
            Self::Ping => 0x9,
            Self::Pong => 0xa,
        }
    }

    fn from_opcode(opcode: u8) -> Option<Self> {
        [Self::Text, Self::Binary, Self::Close, Self::Ping, Self::Pong].into_iter().find(|kind| kind.opcode() == opcode)
    }
}

/// Appends one masked frame to `out`.
pub fn encode_client_frame(kind: FrameKind, payload: &[u8], out: &mut Vec<u8>) {
    out.push(0x80 | kind.opcode());
    match payload.len() {
        short @ 0..=125 => out.push(0x80 | u8::try_from(short).unwrap_or(125)),
        medium @ 126..=0xffff => {
            out.push(0x80 | 126);
            out.extend_from_slice(&u16::try_from(medium).unwrap_or(u16::MAX).to_be_bytes());
        }
        long => {
            out.push(0x80 | 127);
            out.extend_from_slice(&(long as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(&MASK);
    let begun = out.len();
    out.extend_from_slice(payload);
    for chunk in out[begun..].chunks_mut(MASK.len()) {
        chunk.iter_mut().zip(MASK).for_each(|(byte, mask)| *byte ^= mask);
    }
}

/// Frames out of the bytes of a server, which come in any cut.
#[derive(Debug, Default)]
pub struct Frames {
    buffer: BytesMut,
}

impl Frames {
    /// Starts with what was read after the upgrade's answer.
    #[must_use]
    pub fn new(rest: BytesMut) -> Self {
        Self { buffer: rest }
    }

    /// Where the next bytes go.
    pub fn buffer(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    /// Hands the next whole frame to `take`, with its payload. `None`: more bytes are needed.
    ///
    /// # Errors
    /// `InvalidData` if the bytes are no frames of a server.
    pub fn next<T>(&mut self, take: impl FnOnce(FrameKind, &[u8]) -> T) -> io::Result<Option<T>> {
        let Some((kind, header, length)) = parse_header(&self.buffer)? else { return Ok(None) };
        if self.buffer.len() < header + length {
            self.buffer.reserve(header + length - self.buffer.len());
            return Ok(None);
        }
        let taken = take(kind, &self.buffer[header..header + length]);
        self.buffer.advance(header + length);
        Ok(Some(taken))
    }
}

/// Kind, header's length and payload's length of the frame at the start of `bytes`.
fn parse_header(bytes: &[u8]) -> io::Result<Option<(FrameKind, usize, usize)>> {
    let [first, second, rest @ ..] = bytes else { return Ok(None) };
    let invalid = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why.to_owned());
    if first & 0xf0 != 0x80 {
        return Err(invalid("a fragmented frame, or one with reserved bits"));
    }
    let kind = FrameKind::from_opcode(first & 0x0f).ok_or_else(|| invalid("an unknown opcode"))?;
    let (header, length) = match (second, rest) {
        (0..=125, _) => (2, usize::from(*second)),
        (126, [high, low, ..]) => (4, usize::from(u16::from_be_bytes([*high, *low]))),
        (127, [a, b, c, d, e, f, g, h, ..]) => {
            let long = u64::from_be_bytes([*a, *b, *c, *d, *e, *f, *g, *h]);
            (10, usize::try_from(long).unwrap_or(usize::MAX))
        }
        (126 | 127, _) => return Ok(None),
        _ => return Err(invalid("a masked frame from a server")),
    };
    if length > FRAME_BYTES_MAX {
        return Err(invalid("a frame over the client's limit"));
    }
    Ok(Some((kind, header, length)))
}

/// Connects and upgrades. `Ok(Err(text))`: the server answered with another status, which `text` begins with.
///
/// # Errors
/// If the connection fails.
pub async fn connect_raw(authority: &str, path_and_query: &str) -> io::Result<Result<(TcpStream, Frames), String>> {
    let mut stream = TcpStream::connect(authority).await?;
    stream.set_nodelay(true)?;
    let upgraded = upgrade(&mut stream, authority, path_and_query).await?;
    Ok(upgraded.map(|frames| (stream, frames)))
}

/// Upgrades a fresh connection. `Ok(Err(text))`: the server answered with another status, which `text` begins with.
///
/// # Errors
/// If the connection breaks, or the answer is no HTTP.
pub async fn upgrade(
    stream: &mut TcpStream,
    authority: &str,
    path_and_query: &str,
) -> io::Result<Result<Frames, String>> {
    let request = format!(
        "GET {path_and_query} HTTP/1.1\r\nHost: {authority}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut head = BytesMut::with_capacity(512);
    let end = loop {
        if let Some(end) = head.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        if head.len() > UPGRADE_BYTES_MAX || stream.read_buf(&mut head).await? == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "no whole answer to the upgrade"));
        }
    };
    if head.starts_with(b"HTTP/1.1 101") {
        head.advance(end);
        return Ok(Ok(Frames::new(head)));
    }
    let text = String::from_utf8_lossy(&head);
    Ok(Err(text.trim_start_matches("HTTP/1.1 ").trim_end().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server_frame(opcode: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0x80 | opcode];
        match payload.len() {
            short @ 0..=125 => frame.push(short as u8),
            medium @ 126..=0xffff => {
                frame.push(126);
                frame.extend_from_slice(&(medium as u16).to_be_bytes());
            }
            long => {
                frame.push(127);
                frame.extend_from_slice(&(long as u64).to_be_bytes());
            }
        }
        frame.extend_from_slice(payload);
        frame
    }

    #[test]
    fn frames_come_out_whole_whatever_the_cuts() {
        let payloads = [0, 1, 125, 126, 300, 70_000].map(|length| vec![b'x'; length]);
        let bytes: Vec<u8> = payloads.iter().flat_map(|payload| server_frame(0x1, payload)).collect();
        for cut in [1, 2, 3, 7, 1_000, bytes.len()] {
            let mut frames = Frames::default();
            let mut seen = Vec::new();
            for chunk in bytes.chunks(cut) {
                frames.buffer().extend_from_slice(chunk);
                while let Some(length) = frames.next(|_, payload| payload.len()).expect("frames") {
                    seen.push(length);
                }
            }
            assert_eq!(seen, [0, 1, 125, 126, 300, 70_000], "cut at {cut}");
        }
    }

    #[test]
    fn what_no_server_sends_is_refused() {
        for bytes in
            [&[0x01, 0x00][..], &[0xc1, 0x00], &[0x83, 0x00], &[0x81, 0x80], &[0x82, 127, 1, 0, 0, 0, 0, 0, 0, 0]]
        {
            let mut frames = Frames::new(BytesMut::from(bytes));
            assert!(frames.next(|_, _| ()).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn a_clients_frame_is_masked() {
        let mut out = Vec::new();
        encode_client_frame(FrameKind::Text, b"Hello", &mut out);
        assert_eq!(out, [0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58], "the example of RFC 6455");
    }
}
