//! Round trips, refusals and hostile bytes.

use bytes::BytesMut;
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::body::{Body, Limits};
use crate::ids::{ConvKey, ConversationId, Epoch, Generation, Incarnation, LogId, Seq};
use crate::presence::shard::{Meta, MetaRef, PresenceNews, ShardNews, ShardReport};
use crate::record::{Draft, Record, RecordKind};
use crate::refusal::{Code, Refusal, Retry};
use crate::sequencer::{Outcome, Receipt};
use crate::time::Timestamp;
use crate::turn::awaits::AwaitId;
use crate::turn::cancel::{Cancel, CancelMode, OfferedStep, Regenerate, Resolve, TurnAsk};
use crate::turn::live::{LiveEvent, Piece};

fn name() -> impl Strategy<Value = String> {
    "[a-z][a-z0-9._-]{0,20}"
}

fn id<T: std::str::FromStr + std::fmt::Debug>() -> impl Strategy<Value = T>
where
    T::Err: std::fmt::Debug,
{
    name().prop_map(|text| text.parse().expect("valid"))
}

fn seq() -> impl Strategy<Value = Seq> {
    any::<u64>().prop_map(Seq)
}

fn epoch() -> impl Strategy<Value = Epoch> {
    any::<u64>().prop_map(Epoch)
}

fn display_name() -> impl Strategy<Value = Option<std::sync::Arc<str>>> {
    option::of("\\PC{0,12}".prop_map(Into::into))
}

fn body() -> impl Strategy<Value = Body> {
    "\\PC{0,40}".prop_map(|text| Body::of(&serde_json::json!({"text": text, "n": 1.5})))
}

fn draft() -> impl Strategy<Value = Draft> {
    (prop::sample::select(RecordKind::ALL), id(), display_name(), id(), option::of(seq()), body()).prop_map(
        |(kind, sender, name, key, turn, body)| {
            let draft = Draft::new(kind, sender, key, body).with_name(name);
            match turn {
                Some(turn) => draft.in_turn(turn),
                None => draft,
            }
        },
    )
}

fn record() -> impl Strategy<Value = Record> {
    let at = || any::<i64>().prop_map(Timestamp);
    let times = (at(), option::of(at()), option::of(at()), any::<bool>());
    (id(), seq(), epoch(), draft(), times).prop_map(|(conversation, seq, epoch, draft, times)| {
        let (at, edited_at, deleted_at, keyless) = times;
        let record = Record::from_draft(conversation, seq, epoch, at, draft);
        let client_msg_id = record.client_msg_id.clone().filter(|_| !keyless);
        Record { client_msg_id, edited_at, deleted_at, ..record }
    })
}

fn refusal() -> impl Strategy<Value = Refusal> {
    let retry = (any::<u64>(), any::<u64>()).prop_map(|(after_ms, budget_ms)| Retry { after_ms, budget_ms });
    (prop::sample::select(Code::ALL), "\\PC{0,30}", option::of(retry)).prop_map(|(code, detail, retry)| Refusal {
        code,
        detail,
        retry,
    })
}

fn receipt() -> impl Strategy<Value = Receipt> {
    let outcome = prop_oneof![Just(Outcome::Appended), Just(Outcome::Duplicate)];
    (seq(), epoch(), any::<i64>(), outcome).prop_map(|(seq, epoch, at, outcome)| Receipt {
        seq,
        epoch,
        at: Timestamp(at),
        outcome,
    })
}

fn live() -> impl Strategy<Value = LiveEvent> {
    let piece = || {
        (seq(), id(), epoch(), any::<u32>(), any::<u64>(), "\\PC{0,40}").prop_map(
            |(turn, step, epoch, attempt, offset, text)| Piece {
                turn,
                step,
                epoch,
                attempt,
                offset,
                text: text.into(),
            },
        )
    };
    prop_oneof![
        piece().prop_map(LiveEvent::Delta),
        piece().prop_map(LiveEvent::Snapshot),
        (seq(), id(), epoch(), any::<u32>()).prop_map(|(turn, step, epoch, attempt)| LiveEvent::StepReset {
            turn,
            step,
            epoch,
            attempt
        }),
        (seq(), epoch()).prop_map(|(turn, epoch)| LiveEvent::TurnResumed { turn, epoch }),
        (id(), display_name()).prop_map(|(sender, name)| LiveEvent::Typing { sender, name }),
    ]
}

fn log() -> impl Strategy<Value = LogId> {
    (name(), any::<u64>()).prop_map(|(system, generation)| LogId::new(&system, Generation(generation)))
}

fn handed() -> impl Strategy<Value = Handed> {
    (id(), epoch(), any::<u64>(), seq(), seq(), log()).prop_map(
        |(conversation, epoch, generation, last_seq, first_seq, log)| Handed {
            conversation,
            epoch,
            generation: Generation(generation),
            last_seq,
            first_seq,
            log,
        },
    )
}

fn turn_ask() -> impl Strategy<Value = TurnAsk> {
    let mode = prop::sample::select(vec![CancelMode::Keep, CancelMode::Rollback]);
    let payload = ("\\PC{0,20}", prop::num::f64::NORMAL)
        .prop_map(|(text, number)| serde_json::json!({"text": text, "n": [number, null]}));
    prop_oneof![
        (seq(), mode, id()).prop_map(|(turn, mode, by)| TurnAsk::Cancel(Cancel { turn, mode, by, reason: None })),
        (seq(), any::<u64>(), any::<u32>(), id(), payload.clone()).prop_map(|(turn, epoch, attempt, step, output)| {
            let input = serde_json::Value::Null;
            TurnAsk::Step(OfferedStep { turn, epoch: Epoch(epoch), attempt, step, input, output })
        }),
        (seq(), id(), payload, name()).prop_map(|(turn, step, payload, by)| {
            TurnAsk::Resolve(Resolve { id: AwaitId::of(turn, &step), payload, by: by.into() })
        }),
        (seq(), id(), display_name(), id()).prop_map(|(turn, by, name, client_msg_id)| {
            TurnAsk::Regenerate(Regenerate { turn, by, name, client_msg_id })
        }),
    ]
}

fn key() -> impl Strategy<Value = ConvKey> {
    any::<[u8; 16]>().prop_map(ConvKey)
}

fn owned() -> impl Strategy<Value = Owned> {
    let rest = prop_oneof![Just(Rest::Active), Just(Rest::Hibernating)];
    (id(), epoch(), rest).prop_map(|(conversation, epoch, rest)| Owned { conversation, epoch, rest })
}

fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        (id(), prop::collection::vec(draft(), 0..4), any::<u8>())
            .prop_map(|(conversation, drafts, hops)| Request::Append { conversation, drafts, hops: Hops(hops) }),
        (id(), id()).prop_map(|(conversation, agent)| Request::SetAgent { conversation, agent }),
        id().prop_map(|conversation| Request::ReadAgain { conversation }),
        id().prop_map(|agent| Request::TakeSession { agent }),
        (id(), turn_ask(), any::<u8>()).prop_map(|(conversation, ask, hops)| Request::Turn {
            conversation,
            ask,
            hops: Hops(hops)
        }),
        any::<u32>().prop_map(|conversations| Request::Offer { conversations }),
        handed().prop_map(Request::HandOff),
        id().prop_map(|conversation| Request::Sessions { conversation }),
        any::<[u32; 2]>().prop_map(|[conversations, level]| Request::Share { conversations, level }),
        (option::of(key()), "\\PC{0,12}", any::<u32>())
            .prop_map(|(after, contains, limit)| Request::Owned(OwnedQuery { after, contains, limit })),
        (option::of(any::<u64>()), any::<u32>()).prop_map(|(after, limit)| Request::Events { after, limit }),
    ]
}

fn response() -> impl Strategy<Value = Response> {
    prop_oneof![
        prop::collection::vec(receipt(), 0..4).prop_map(|receipts| Response::Appended(Ok(receipts))),
        refusal().prop_map(|refusal| Response::Appended(Err(refusal))),
        Just(Response::Heard),
        any::<u32>().prop_map(Response::Takes),
        (option::of(any::<u32>()), option::of("\\PC{0,30}"))
            .prop_map(|(connected, presence)| Response::Sessions { connected, presence }),
        (any::<u64>(), prop::collection::vec(owned(), 0..4), option::of(key()))
            .prop_map(|(total, owned, through)| Response::Owned(OwnedPage { total, owned, through })),
        ("\\PC{0,30}", any::<u64>(), any::<bool>())
            .prop_map(|(events, through, missed)| Response::Events(EventsPage { events, through, missed })),
    ]
}

fn notice() -> impl Strategy<Value = Notice> {
    prop_oneof![
        (id(), seq()).prop_map(|(conversation, seq)| Notice::Published { conversation, seq }),
        (id(), id()).prop_map(|(conversation, sub)| Notice::MemberAdded { conversation, sub }),
        (id(), id()).prop_map(|(conversation, sub)| Notice::MemberRemoved { conversation, sub }),
        id().prop_map(|conversation| Notice::ConversationChanged { conversation }),
        (id(), id()).prop_map(|(conversation, sub)| Notice::CursorMoved { conversation, sub }),
        any::<u32>().prop_map(|owned| Notice::Load { owned }),
    ]
}

fn report() -> impl Strategy<Value = FollowerReport> {
    prop_oneof![
        (id(), display_name()).prop_map(|(sub, name)| FollowerReport::Typing { sub, name }),
        shard_report().prop_map(FollowerReport::Presence),
    ]
}

fn meta_ref() -> impl Strategy<Value = MetaRef> {
    (any::<u64>(), any::<u64>()).prop_map(|(turn, hub)| MetaRef { turn, hub })
}

fn metas() -> impl Strategy<Value = Vec<Meta>> {
    let meta = (meta_ref(), id(), display_name()).prop_map(|(reference, sub, name)| Meta { reference, sub, name });
    prop::collection::vec(meta, 0..4)
}

fn changed() -> impl Strategy<Value = (Vec<Meta>, Vec<MetaRef>)> {
    (metas(), prop::collection::vec(meta_ref(), 0..4))
}

fn shard_report() -> impl Strategy<Value = ShardReport> {
    let news = prop_oneof![
        Just(ShardNews::Still),
        metas().prop_map(ShardNews::Whole),
        changed().prop_map(|(joins, leaves)| ShardNews::Changed { joins, leaves }),
        Just(ShardNews::Counted),
    ];
    (any::<u64>(), any::<u64>(), any::<u32>(), news).prop_map(|(hub, serial, sessions, news)| ShardReport {
        hub,
        serial,
        sessions,
        news,
    })
}

fn presence_news() -> impl Strategy<Value = PresenceNews> {
    prop_oneof![
        metas().prop_map(PresenceNews::Whole),
        changed().prop_map(|(joins, leaves)| PresenceNews::Changed { joins, leaves }),
        any::<u32>().prop_map(PresenceNews::Count),
        Just(PresenceNews::Ask),
    ]
}

fn hello() -> impl Strategy<Value = Hello> {
    (any::<u16>(), any::<u64>(), name(), any::<u128>(), id(), any::<[u8; NONCE_BYTES]>()).prop_map(
        |(minor, features, cluster, incarnation, node, nonce)| Hello {
            version: Version { minor, ..VERSION },
            features: Features(features),
            cluster,
            incarnation: Incarnation(incarnation),
            node,
            nonce,
        },
    )
}

fn opened() -> impl Strategy<Value = Opened> {
    (epoch(), any::<u128>(), log(), seq(), option::of(live())).prop_map(
        |(epoch, incarnation, log, position, snapshot)| Opened {
            epoch,
            incarnation: Incarnation(incarnation),
            log,
            position,
            snapshot,
        },
    )
}

fn frame() -> impl Strategy<Value = Frame> {
    let request_id = || any::<u64>().prop_map(RequestId);
    let stream = || any::<u64>().prop_map(StreamId);
    let reason = prop_oneof![
        Just(Reason::WrongSecret),
        Just(Reason::OtherVersion),
        Just(Reason::OtherCluster),
        Just(Reason::BadFrame),
        Just(Reason::Full),
        Just(Reason::Stopping),
        Just(Reason::Other),
    ];
    let ends = prop_oneof![
        hello().prop_map(Frame::Hello),
        any::<[u8; PROOF_BYTES]>().prop_map(Frame::Proof),
        Just(Frame::Ping),
        Just(Frame::Pong),
        (reason, "\\PC{0,30}").prop_map(|(reason, detail)| Frame::Goodbye { reason, detail }),
        option::of(notice()).prop_map(|notice| Frame::Notice(Known(notice))),
    ];
    let requests = prop_oneof![
        (request_id(), any::<u32>(), request()).prop_map(|(request, within_ms, ask)| Frame::Ask {
            request,
            within_ms,
            ask
        }),
        (request_id(), response()).prop_map(|(request, answer)| Frame::Answer { request, answer }),
        request_id().prop_map(|request| Frame::Declined { request }),
    ];
    let streams = prop_oneof![
        (stream(), id(), any::<[u32; 3]>()).prop_map(|(stream, conversation, [within_ms, frames, bytes])| {
            Frame::Open { stream, conversation, within_ms, frames, bytes }
        }),
        (stream(), opened()).prop_map(|(stream, opened)| Frame::Opened { stream, opened }),
        (stream(), refusal()).prop_map(|(stream, refusal)| Frame::Refused { stream, refusal }),
        (stream(), seq(), record()).prop_map(|(stream, prev, record)| Frame::Record { stream, prev, record }),
        (stream(), option::of(live())).prop_map(|(stream, event)| Frame::Live { stream, event: Known(event) }),
        (stream(), option::of(presence_news()))
            .prop_map(|(stream, news)| Frame::Presence { stream, news: Known(news) }),
        (stream(), seq()).prop_map(|(stream, seq)| Frame::Position { stream, seq }),
        (stream(), any::<[u32; 2]>()).prop_map(|(stream, [frames, bytes])| Frame::Credit { stream, frames, bytes }),
        stream().prop_map(|stream| Frame::Closed { stream }),
        (stream(), option::of(report())).prop_map(|(stream, report)| Frame::Report { stream, report: Known(report) }),
    ];
    prop_oneof![ends, requests, streams]
}

fn encoded(frame: &Frame) -> Vec<u8> {
    let mut out = Vec::new();
    assert_eq!(frame.encode(&mut out), out.len());
    out
}

fn content(frame: &Frame) -> Vec<u8> {
    encoded(frame).split_off(4)
}

proptest! {
    #[test]
    fn frames_go_there_and_back(frames in prop::collection::vec(frame(), 1..4), cut in 1_usize..64) {
        let sent: Vec<u8> = frames.iter().flat_map(encoded).collect();
        let (mut received, mut got) = (BytesMut::new(), Vec::new());
        for piece in sent.chunks(cut) {
            received.extend_from_slice(piece);
            while let Some(content) = next_frame(&mut received, FRAME_MAX_BYTES).expect("short enough") {
                got.push(Frame::decode(&content).expect("what was encoded"));
            }
        }
        prop_assert_eq!(got, frames);
        prop_assert!(received.is_empty());
    }

    #[test]
    fn what_is_cut_short_is_refused(frame in frame(), at in any::<prop::sample::Index>()) {
        let whole = content(&frame);
        let part = &whole[..at.index(whole.len())];
        prop_assert!(matches!(
            Frame::decode(part),
            Err(DecodeError::Truncated(_) | DecodeError::OtherProtocol)
        ), "{:?}", Frame::decode(part));
    }

    #[test]
    fn what_goes_on_is_refused(frame in frame(), more in prop::collection::vec(any::<u8>(), 1..9)) {
        let mut long = content(&frame);
        long.extend_from_slice(&more);
        let growing = matches!(
            frame,
            Frame::Notice(Known(None))
                | Frame::Live { event: Known(None), .. }
                | Frame::Presence { news: Known(None), .. }
                | Frame::Report { report: Known(None), .. }
        );
        if growing {
            prop_assert_eq!(Frame::decode(&long), Ok(frame), "a later version's fields are skipped");
        } else {
            prop_assert_eq!(Frame::decode(&long), Err(DecodeError::Trailing(more.len())));
        }
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0_u8..21) {
        let mut content = vec![kind];
        content.extend_from_slice(&bytes);
        for content in [&bytes, &content] {
            if let Ok(frame) = Frame::decode(content) {
                let again = self::content(&frame);
                prop_assert_eq!(Frame::decode(&again), Ok(frame));
            }
        }
        let mut received = BytesMut::from(&bytes[..]);
        while let Ok(Some(_)) = next_frame(&mut received, 64) {}
    }

    #[test]
    fn a_changed_byte_does_no_harm(frame in frame(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = content(&frame);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(frame) = Frame::decode(&bytes) {
            if let Frame::Record { record, .. } = &frame {
                prop_assert!(serde_json::to_string(record).is_ok(), "a record can be shown");
            }
            prop_assert_eq!(Frame::decode(&content(&frame)), Ok(frame));
        }
    }

    #[test]
    fn shared_values_are_sent_as_others(
        stream in any::<u64>(), prev in seq(), record in record(), event in live(), news in presence_news(),
    ) {
        let stream = StreamId(stream);
        let mut out = Vec::new();
        Frame::encode_record(stream, prev, &record, &mut out);
        prop_assert_eq!(&out, &encoded(&Frame::Record { stream, prev, record }));
        out.clear();
        Frame::encode_live(stream, &event, &mut out);
        prop_assert_eq!(&out, &encoded(&Frame::Live { stream, event: Known(Some(event)) }));
        out.clear();
        Frame::encode_presence(stream, &news, &mut out);
        prop_assert_eq!(&out, &encoded(&Frame::Presence { stream, news: Known(Some(news)) }));
    }
}

fn refused(content: &[u8]) -> String {
    Frame::decode(content).expect_err("must be refused").to_string()
}

#[test]
fn bad_frames_are_named() {
    assert_eq!(refused(&[]), "frame: the frame ends inside of it");
    assert_eq!(refused(&[99]), "frame: 99 is not known");
    assert_eq!(refused(&[16, 0]), "1 bytes after the frame's last field");
    assert_eq!(refused(&[3, 1, 1, 77]), "request: 77 is not known");
    assert_eq!(refused(&[13, 0x80, 0]), "stream: is a number that could be shorter");
    assert_eq!(refused(&[&[13][..], &[0xff; 10]].concat()), "stream: is a number of more than 64 bits");
    assert_eq!(
        refused(&[12, 1, 0x80, 0x80, 0x80, 0x80, 0x10, 0]),
        "frames: is 4294967296; at most 4294967295 is allowed"
    );
    assert_eq!(refused(&[&[6, 1, 3][..], b"a b"].concat()), "conversation: may hold only A-Z a-z 0-9 . _ : -");
    assert_eq!(refused(&[6, 1, 1, 0xff]), "conversation: is not UTF-8: invalid utf-8 sequence of 1 bytes from index 0");
    let mut received = BytesMut::from(&[0, 0, 4, 1][..]);
    assert_eq!(
        next_frame(&mut received, HELLO_MAX_BYTES).expect_err("must be refused").to_string(),
        "a frame of 1025 bytes; at most 1024 are allowed"
    );
}

#[test]
fn bodies_must_be_objects_and_stay_as_they_are() {
    let text = r#"{"text":"a  \u00e9","n":1.50}"#;
    let body = Body::parse(text, Limits::default()).expect("valid");
    let draft = Draft::new(RecordKind::Message, "a".parse().expect("valid"), "k".parse().expect("valid"), body);
    let record = Record::from_draft("c".parse().expect("valid"), Seq(1), Epoch(1), Timestamp(0), draft);
    let frame = |record| Frame::Record { stream: StreamId(1), prev: Seq(0), record };
    let Ok(Frame::Record { record: same, .. }) = Frame::decode(&content(&frame(record.clone()))) else {
        panic!("a record comes back")
    };
    assert_eq!(same.body.as_str(), text);
    for (bad, problem) in [
        ("[1]", "body: is not a JSON object"),
        (r#"{"a":1} "#, "body: goes on after the JSON object"),
        (r#"{"a":1}}"#, "body: is not JSON: trailing characters at line 1 column 8"),
    ] {
        let record = Record { body: Body::from_store(bad), ..record.clone() };
        assert_eq!(refused(&content(&frame(record))), problem);
    }
}

#[test]
fn another_version_or_protocol_is_refused_by_name() {
    let mut head = b"\x01conch-link".to_vec();
    head.extend_from_slice(&[0, 2, 0, 7, 1, 2, 3]);
    assert_eq!(refused(&head), "it speaks version 2.7 of the link's protocol, this node 1.1");
    assert_eq!(refused(b"\x01GET / HTTP/1.1\r\n"), "it does not speak the link's protocol");
}

#[test]
fn tls_and_http_are_named_and_other_lengths_are_too_long() {
    let refused = |bytes: &[u8]| {
        let refused = super::next_frame(&mut BytesMut::from(bytes), super::FRAME_MAX_BYTES);
        refused.expect_err("beyond every limit").to_string()
    };
    for tls in [[0x15, 3, 3, 0], [0x16, 3, 1, 2]] {
        assert!(refused(&tls).starts_with("it sends TLS (link.tls_cert"), "{}", refused(&tls));
    }
    for http in [b"GET ", b"POST", b"HTTP"] {
        assert_eq!(refused(http), "it sends HTTP, not the link's protocol");
    }
    assert_eq!(refused(&[0x18, 3, 3, 0]), "a frame of 402850560 bytes; at most 67108864 are allowed");
}

#[test]
fn only_a_peer_that_knows_them_is_asked_newer_requests() {
    let cancel = Cancel { turn: Seq(1), mode: CancelMode::Keep, by: "ada".parse().expect("valid"), reason: None };
    let conversation: ConversationId = "a".parse().expect("valid");
    let newer = [
        Request::Owned(OwnedQuery::default()),
        Request::Events { after: None, limit: 1 },
        Request::ReadAgain { conversation: conversation.clone() },
        Request::TakeSession { agent: "demo".parse().expect("valid") },
        Request::Turn { conversation, ask: TurnAsk::Cancel(cancel), hops: Hops::START },
    ];
    for request in newer {
        assert!(FEATURES.have(request.needs()) && !Features::NONE.have(request.needs()), "{request:?}");
        assert!(Features(u64::MAX).have(request.needs()), "unknown features mean nothing");
    }
    assert!(Features::NONE.have(Request::Offer { conversations: 1 }.needs()));
}

#[test]
fn numbers_of_a_payload_arrive_as_they_were() {
    for number in [31.245_270_191_439_438, 121.487_919_511_619_45, f64::MIN_POSITIVE, f64::MAX, -0.0] {
        let resolve = Resolve {
            id: AwaitId::of(Seq(1), &"m1".parse().expect("valid")),
            payload: number.into(),
            by: "ada".into(),
        };
        let ask = Request::Turn {
            conversation: "a".parse().expect("valid"),
            ask: TurnAsk::Resolve(resolve),
            hops: Hops::START,
        };
        let frame = Frame::Ask { request: RequestId(1), within_ms: 1, ask };
        assert_eq!(Frame::decode(&content(&frame)), Ok(frame), "{number}");
    }
}

#[test]
fn each_side_proves_another_thing() {
    let hello = |incarnation, nonce| Hello {
        version: VERSION,
        features: Features::NONE,
        cluster: "c".to_owned(),
        incarnation: Incarnation(incarnation),
        node: "n".parse().expect("valid"),
        nonce: [nonce; NONCE_BYTES],
    };
    let (a, b) = (hello(1, 1), hello(2, 2));
    let all = [
        transcript(Side::Dialler, &a, &b),
        transcript(Side::Listener, &a, &b),
        transcript(Side::Dialler, &b, &a),
        transcript(Side::Dialler, &hello(1, 3), &b),
        transcript(Side::Dialler, &a, &hello(2, 3)),
        transcript(Side::Dialler, &a, &hello(3, 2)),
    ];
    for (index, one) in all.iter().enumerate() {
        assert!(all[index + 1..].iter().all(|other| other != one), "{index}");
    }
    let longest = Hello { cluster: "c".repeat(128), node: "n".repeat(64).parse().expect("valid"), ..a };
    assert!(content(&Frame::Hello(longest)).len() <= HELLO_MAX_BYTES);
}
