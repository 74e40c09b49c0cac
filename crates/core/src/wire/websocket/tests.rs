//! Tables for each close code, the limits, the cost of hostile cutting, and a comparison with another implementation.

use bytes::BytesMut;
use proptest::prelude::*;
use tungstenite::protocol::frame::coding::{Control, Data, OpCode};
use tungstenite::protocol::frame::{Frame, FrameHeader};

use super::*;

const MASK: [u8; 4] = [1, 2, 3, 4];

/// A client's frame with each bit as given; `first` is FIN, RSV and opcode.
fn raw(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = client_frame(Opcode::Text, MASK, payload).to_vec();
    bytes[0] = first;
    bytes
}

/// Everything that a server reads from `chunks`, and the error if there is one.
fn read(chunks: &[&[u8]], message_max_bytes: u32) -> (Vec<Incoming>, Option<ProtocolError>) {
    read_as(Side::Server, chunks.iter().copied(), message_max_bytes)
}

fn read_as<'a>(
    side: Side,
    chunks: impl IntoIterator<Item = &'a [u8]>,
    message_max_bytes: u32,
) -> (Vec<Incoming>, Option<ProtocolError>) {
    let (mut reader, mut buffer, mut all) = (Reader::new(side, message_max_bytes), BytesMut::new(), Vec::new());
    for chunk in chunks {
        buffer.extend_from_slice(chunk);
        loop {
            match reader.next(&mut buffer) {
                Ok(Some(incoming)) => all.push(incoming),
                Ok(None) => break,
                Err(error) => {
                    assert_eq!(reader.next(&mut BytesMut::from(&raw(0x81, b"later")[..])), Ok(None));
                    assert!(buffer.is_empty() && !reader.is_inside_message());
                    return (all, Some(error));
                }
            }
        }
    }
    (all, None)
}

#[test]
fn frames_are_encoded() {
    assert_eq!(&text_frame("Hello")[..], &[0x81, 5, 0x48, 0x65, 0x6c, 0x6c, 0x6f]);
    assert_eq!(encode_header(Opcode::Binary, 125), ([0x82, 125, 0, 0, 0, 0, 0, 0, 0, 0], 2));
    assert_eq!(encode_header(Opcode::Binary, 126), ([0x82, 126, 0, 126, 0, 0, 0, 0, 0, 0], 4));
    assert_eq!(encode_header(Opcode::Binary, 0xffff), ([0x82, 126, 0xff, 0xff, 0, 0, 0, 0, 0, 0], 4));
    assert_eq!(encode_header(Opcode::Binary, 0x1_0000), ([0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0], 10));
    assert_eq!(&frame(Opcode::Text, &[b"a", b"", b"bc"])[..], b"\x81\x03abc");
    assert_eq!(&close_frame(CloseCode::RESTART, "bye")[..], b"\x88\x05\x03\xf4bye");
    assert_eq!(&ping_frame(b"p")[..], b"\x89\x01p");
    assert_eq!(&pong_frame(b"p")[..], b"\x8a\x01p");
    assert_eq!(ping_frame(&[7; 200]).len(), 2 + CONTROL_MAX_BYTES);
    assert_eq!(
        &client_frame(Opcode::Text, [0x37, 0xfa, 0x21, 0x3d], b"Hello")[..],
        &[0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58],
        "the example of RFC 6455, 5.7"
    );
}

#[test]
fn a_long_reason_is_cut_at_a_character() {
    let cut = close_frame(CloseCode::NORMAL, &"é".repeat(100));
    assert_eq!(cut.len(), 2 + 2 + 122);
    assert!(std::str::from_utf8(&cut[4..]).is_ok());
}

#[test]
fn messages_are_read() {
    let long = "x".repeat(70_000);
    let cases: [(Vec<Vec<u8>>, Vec<Incoming>); 7] = [
        (vec![raw(0x81, b"")], vec![Incoming::Text(String::new())]),
        (vec![raw(0x81, "é".as_bytes())], vec![Incoming::Text("é".to_owned())]),
        (vec![raw(0x82, b"\xff")], vec![Incoming::Binary(Bytes::from_static(b"\xff"))]),
        (vec![raw(0x81, long.as_bytes())], vec![Incoming::Text(long.clone())]),
        (
            // A character cut in two by a fragment's end, and a ping in between.
            vec![raw(0x01, b"\xc3"), raw(0x89, b"p"), raw(0x00, b""), raw(0x80, b"\xa9"), raw(0x8a, b"q")],
            vec![
                Incoming::Ping(Bytes::from_static(b"p")),
                Incoming::Text("é".to_owned()),
                Incoming::Pong(Bytes::from_static(b"q")),
            ],
        ),
        (vec![raw(0x88, b""), raw(0x81, b"after")], vec![Incoming::Close(None)]),
        (
            vec![raw(0x88, b"\x03\xe8bye"), raw(0x70, b"rubbish after the close")],
            vec![Incoming::Close(Some(CloseCode::NORMAL))],
        ),
    ];
    for (frames, expected) in cases {
        let joined = frames.concat();
        assert_eq!(read(&[&joined], 1 << 20), (expected.clone(), None));
        assert_eq!(read_as(Side::Server, joined.chunks(1), 1 << 20), (expected, None), "byte by byte");
    }
}

#[test]
fn each_breach_has_its_close_code() {
    let mut long_ping = vec![0x89, 0x80 | 126, 0, 126];
    long_ping.extend_from_slice(&[0; 130]);
    let cases: Vec<(&str, Vec<u8>, ProtocolError, u16)> = vec![
        ("RSV1", raw(0xc1, b""), ProtocolError::ReservedBits, 1002),
        ("RSV2", raw(0xa1, b""), ProtocolError::ReservedBits, 1002),
        ("RSV3", raw(0x91, b""), ProtocolError::ReservedBits, 1002),
        ("opcode 3", raw(0x83, b""), ProtocolError::UnknownOpcode(3), 1002),
        ("opcode 7", raw(0x87, b""), ProtocolError::UnknownOpcode(7), 1002),
        ("opcode 11", raw(0x8b, b""), ProtocolError::UnknownOpcode(11), 1002),
        ("opcode 15", raw(0x8f, b""), ProtocolError::UnknownOpcode(15), 1002),
        ("unmasked", text_frame("x").to_vec(), ProtocolError::NotMasked, 1002),
        ("fragmented ping", raw(0x09, b""), ProtocolError::FragmentedControl, 1002),
        ("fragmented close", raw(0x08, b""), ProtocolError::FragmentedControl, 1002),
        ("long ping", long_ping, ProtocolError::LongControl, 1002),
        ("16-bit length of 125", vec![0x81, 0xfe, 0, 125], ProtocolError::BadLength, 1002),
        ("64-bit length of 65535", vec![0x81, 0xff, 0, 0, 0, 0, 0, 0, 255, 255], ProtocolError::BadLength, 1002),
        ("64-bit length's top bit", vec![0x81, 0xff, 128, 0, 0, 0, 0, 0, 0, 0], ProtocolError::BadLength, 1002),
        ("continuation of nothing", raw(0x80, b"x"), ProtocolError::UnexpectedContinuation, 1002),
        ("two beginnings", [raw(0x01, b"a"), raw(0x81, b"b")].concat(), ProtocolError::ExpectedContinuation, 1002),
        ("text", raw(0x81, b"\xff"), ProtocolError::NotUtf8, 1007),
        ("text ends early", raw(0x81, b"\xc3"), ProtocolError::NotUtf8, 1007),
        ("surrogate", raw(0x81, b"\xed\xa0\x80"), ProtocolError::NotUtf8, 1007),
        ("fragmented text", [raw(0x01, b"\xc3"), raw(0x80, b"x")].concat(), ProtocolError::NotUtf8, 1007),
        ("close reason", raw(0x88, b"\x03\xe8\xff"), ProtocolError::NotUtf8, 1007),
        ("close of one byte", raw(0x88, b"\x03"), ProtocolError::BadCloseCode, 1002),
        ("too big", vec![0x82, 0xfe, 0, 201], ProtocolError::TooBig { bytes: 201, limit: 200 }, 1009),
        (
            "too big in sum",
            [raw(0x02, &[0; 150]), raw(0x00, &[0; 50]), vec![0x80, 0x81]].concat(),
            ProtocolError::TooBig { bytes: 201, limit: 200 },
            1009,
        ),
        (
            "too big for any machine",
            vec![0x82, 0xff, 127, 255, 255, 255, 255, 255, 255, 255],
            ProtocolError::TooBig { bytes: i64::MAX as u64, limit: 200 },
            1009,
        ),
    ];
    for (name, bytes, error, code) in cases {
        assert_eq!(read(&[&bytes], 200).1, Some(error), "{name}");
        assert_eq!(read_as(Side::Server, bytes.chunks(1), 200).1, Some(error), "{name}, byte by byte");
        assert_eq!(error.close_code(), CloseCode(code), "{name}");
    }
    assert_eq!(read_as(Side::Client, [&raw(0x81, b"x")[..]], 200).1, Some(ProtocolError::Masked));
}

#[test]
fn close_codes_follow_the_registry() {
    let allowed = |code: u16| matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999);
    for code in (0..=5100).chain([u16::MAX]) {
        let (incoming, error) = read(&[&raw(0x88, &code.to_be_bytes())], 200);
        if allowed(code) {
            assert_eq!((incoming, error), (vec![Incoming::Close(Some(CloseCode(code)))], None));
        } else {
            assert_eq!((incoming, error), (vec![], Some(ProtocolError::BadCloseCode)), "{code}");
        }
    }
}

#[test]
fn a_full_message_is_within_the_limit_in_any_cut() {
    let payload = vec![b'x'; MESSAGE_MAX_BYTES];
    let limit = u32::try_from(MESSAGE_MAX_BYTES).expect("1 MiB fits");
    let expected = (vec![Incoming::Text("x".repeat(MESSAGE_MAX_BYTES))], None);
    let whole = raw(0x81, &payload);
    assert_eq!(read_as(Side::Server, whole.chunks(1), limit), expected, "one byte a read");
    let mut fragments = raw(0x01, b"");
    for byte in &payload {
        fragments.extend_from_slice(&raw(0x00, &[*byte]));
    }
    fragments.extend_from_slice(&raw(0x80, b""));
    assert_eq!(read_as(Side::Server, [&fragments[..]], limit), expected, "one byte a fragment");
}

#[test]
fn an_idle_reader_is_small() {
    assert!(size_of::<Reader>() <= 64);
    let mut reader = Reader::new(Side::Server, 200);
    let mut buffer = BytesMut::from(&[raw(0x01, b"a"), raw(0x80, b"b")].concat()[..]);
    assert_eq!(reader.next(&mut buffer), Ok(Some(Incoming::Text("ab".to_owned()))));
    assert!(buffer.is_empty() && !reader.is_inside_message(), "nothing is held between messages");
}

/// One client's frame, as another implementation writes it.
fn foreign(opcode: OpCode, fin: bool, mask: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let header = FrameHeader { is_final: fin, opcode, mask: Some(mask), ..FrameHeader::default() };
    let frame = Frame::from_payload(header, payload.to_vec().into());
    let mut bytes = Vec::new();
    frame.format(&mut bytes).expect("a vector takes every byte");
    bytes
}

/// A message as a client may send it: whole or in fragments, with pings in between.
#[derive(Debug, Clone)]
struct Sent {
    text: Option<String>,
    binary: Vec<u8>,
    cuts: Vec<usize>,
    ping: Option<Vec<u8>>,
    mask: [u8; 4],
}

impl Sent {
    fn strategy() -> impl Strategy<Value = Self> {
        (
            proptest::option::of(".{0,200}"),
            proptest::collection::vec(any::<u8>(), 0..400),
            proptest::collection::vec(0_usize..500, 0..4),
            proptest::option::of(proptest::collection::vec(any::<u8>(), 0..126)),
            any::<[u8; 4]>(),
        )
            .prop_map(|(text, binary, cuts, ping, mask)| Self { text, binary, cuts, ping, mask })
    }

    fn encode(&self) -> (Vec<u8>, Vec<Incoming>) {
        let (kind, payload, expected) = match &self.text {
            Some(text) => (Data::Text, text.as_bytes(), Incoming::Text(text.clone())),
            None => (Data::Binary, &self.binary[..], Incoming::Binary(self.binary.clone().into())),
        };
        let mut cuts: Vec<usize> = self.cuts.iter().map(|cut| (*cut).min(payload.len())).collect();
        cuts.sort_unstable();
        let bounds: Vec<usize> = [0].into_iter().chain(cuts).chain([payload.len()]).collect();
        let (mut bytes, mut incoming) = (Vec::new(), Vec::new());
        for (index, bound) in bounds.windows(2).enumerate() {
            let opcode = OpCode::Data(if index == 0 { kind } else { Data::Continue });
            let fin = index + 2 == bounds.len();
            bytes.extend(foreign(opcode, fin, self.mask, &payload[bound[0]..bound[1]]));
            if let (Some(ping), false) = (&self.ping, fin) {
                bytes.extend(foreign(OpCode::Control(Control::Ping), true, self.mask, ping));
                incoming.push(Incoming::Ping(ping.clone().into()));
            }
        }
        incoming.push(expected);
        (bytes, incoming)
    }
}

proptest! {
    #[test]
    fn what_another_implementation_writes_is_read(
        sent in proptest::collection::vec(Sent::strategy(), 1..6),
        packet_bytes in 1_usize..300,
    ) {
        let (mut bytes, mut expected) = (Vec::new(), Vec::new());
        for message in &sent {
            let (encoded, incoming) = message.encode();
            bytes.extend(encoded);
            expected.extend(incoming);
        }
        prop_assert_eq!(read_as(Side::Server, bytes.chunks(packet_bytes), 1 << 20), (expected, None));
    }

    #[test]
    fn both_implementations_write_the_same(payload in proptest::collection::vec(any::<u8>(), 0..700), mask: [u8; 4]) {
        let ours = client_frame(Opcode::Binary, mask, &payload);
        prop_assert_eq!(&ours[..], &foreign(OpCode::Data(Data::Binary), true, mask, &payload)[..]);
        let (incoming, error) = read(&[&ours], 1000);
        prop_assert_eq!((incoming, error), (vec![Incoming::Binary(payload.into())], None));
    }

    #[test]
    fn what_the_server_writes_is_read(text in ".{0,300}", packet_bytes in 1_usize..50) {
        let bytes = [&text_frame(&text)[..], &ping_frame(b"x"), &close_frame(CloseCode::RESTART, &text)].concat();
        let expected = vec![
            Incoming::Text(text),
            Incoming::Ping(Bytes::from_static(b"x")),
            Incoming::Close(Some(CloseCode::RESTART)),
        ];
        prop_assert_eq!(read_as(Side::Client, bytes.chunks(packet_bytes), 1 << 20), (expected, None));
    }

    #[test]
    fn no_bytes_panic_and_the_cut_does_not_matter(
        bytes in proptest::collection::vec(
            prop_oneof![any::<u8>(), proptest::sample::select(vec![0x00, 0x01, 0x80, 0x81, 0x82, 0x84, 0x88, 0x89])],
            0..200,
        ),
        packet_bytes in 1_usize..20,
    ) {
        let whole = read_as(Side::Server, [&bytes[..]], 300);
        prop_assert_eq!(&read_as(Side::Server, bytes.chunks(packet_bytes), 300), &whole);
        let _ = read_as(Side::Client, [&bytes[..]], 300);
    }
}
