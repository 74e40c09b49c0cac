//! Clients that mean harm, or are broken in the same way: what each may cost is bounded, it is refused or closed as
//! docs/PROTOCOL.md says under "Limits", and a pair that talks beside it has every message, in order.
//!
//! Each limit is raised once to where it limits nothing, to show that its test would notice.

use std::io;

use conch_cli::client::{
    Endpoint, FrameKind, Frames, HttpClient, Joined, PhoenixSocket, Request, connect_raw, encode_client_frame, upgrade,
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::memory::resident_kib;
use crate::node::{Home, Node, PATIENCE, message, runtime};

/// Where the pair talks.
const ROOM: &str = "room";
/// A message of the largest size allowed, and something around it.
const LARGE: usize = 60_000;

/// Settings, beside the defaults.
type Settings = &'static [(&'static str, &'static str)];

/// A node, and what it needs.
struct Bad {
    home: Home,
    node: Node,
    _scratch: tempfile::TempDir,
}

impl Bad {
    fn start(settings: &[Settings]) -> Self {
        let scratch = tempfile::tempdir().expect("a directory");
        let home = Home::new(scratch.path());
        let mut serve = home.serve();
        serve.envs(settings.iter().flat_map(|settings| settings.iter().copied()));
        let node = home.start_with(serve);
        assert_eq!(home.run(&["create", ROOM]).code, 0);
        Self { home, node, _scratch: scratch }
    }

    /// A token with the rate of everybody.
    fn limited(&self, sub: &str) -> Endpoint {
        let done = self.home.run(&["token", "--sub", sub, "--can", "read,send"]);
        assert_eq!(done.code, 0, "{done:?}");
        Endpoint::new(&self.home.url(), Some(done.stdout.trim().to_owned())).expect("a good URL")
    }

    /// The value of a metric's line; 0 while there is none.
    async fn metric(&self, line: &str) -> u64 {
        let operations = Endpoint::new(&format!("http://{}", self.home.operations()), None).expect("a good URL");
        let page = HttpClient::new(operations).expect("a client").text(&Request::get(&["metrics"])).await;
        let page = page.expect("metrics are always told");
        let value = page.lines().find_map(|found| found.strip_prefix(line)?.strip_prefix(' '));
        value.map_or(0, |value| value.parse().expect("a whole number"))
    }

    async fn metric_becomes(&self, line: &str, wanted: u64) {
        let becomes = async {
            while self.metric(line).await != wanted {
                tokio::task::yield_now().await;
            }
        };
        assert!(timeout(PATIENCE, becomes).await.is_ok(), "{line} is {} and not {wanted}", self.metric(line).await);
    }
}

/// Two who talk: what one says the other has before the next word, in order, whatever happens around them.
struct Pair {
    talks: (PhoenixSocket, Joined),
    listens: PhoenixSocket,
    said: u64,
}

impl Pair {
    async fn meet(bad: &Bad) -> Self {
        let endpoint = bad.home.unlimited("well-behaved");
        let topic = format!("conversation:{ROOM}");
        let mut talks = PhoenixSocket::connect(&endpoint).await.expect("upgrades");
        let joined = talks.join(&topic, "{}", &mut drop).await.expect("joins");
        let mut listens = PhoenixSocket::connect(&endpoint).await.expect("upgrades");
        listens.join(&topic, "{}", &mut drop).await.expect("joins");
        Self { talks: (talks, joined), listens, said: 0 }
    }

    /// Says one thing, which is acknowledged and heard.
    async fn talk(&mut self) {
        self.said += 1;
        let word = format!("{}", self.said);
        let push = json!({"client_msg_id": format!("word-{word}"), "body": {"text": word}}).to_string();
        let (socket, joined) = &mut self.talks;
        let said = async {
            let reference = socket.push(joined, "message", &push).await.expect("the socket stays");
            loop {
                let (answered, is_ok) = socket.next_reply().await.expect("the socket stays");
                if answered == reference {
                    assert!(is_ok, "word {word} was refused");
                    return;
                }
            }
        };
        let heard = async {
            loop {
                let incoming = self.listens.next().await.expect("the socket stays");
                assert!(!matches!(&*incoming.event, "resync" | "phx_close" | "phx_error"), "{incoming:?}");
                let payload: Value = serde_json::from_str(incoming.payload.get()).expect("JSON");
                let key = payload["client_msg_id"].as_str().unwrap_or_default();
                if incoming.event == "message" && key.starts_with("word-") {
                    assert_eq!(payload["body"]["text"], word, "in order, and nothing left out");
                    return;
                }
            }
        };
        let both = async { tokio::join!(said, heard) };
        assert!(timeout(PATIENCE, both).await.is_ok(), "the others have noticed: word {word} took {PATIENCE:?}");
    }

    /// Talks for as long as something else goes on, and a little longer.
    async fn beside<T: Send + 'static>(&mut self, other: impl Future<Output = T> + Send + 'static) -> T {
        let other = tokio::spawn(other);
        while !other.is_finished() {
            self.talk().await;
        }
        for _ in 0..10 {
            self.talk().await;
        }
        other.await.expect("it does not panic")
    }
}

/// A socket whose bytes the test chooses.
struct RawSocket {
    stream: TcpStream,
    frames: Frames,
}

impl RawSocket {
    async fn connect(endpoint: &Endpoint) -> Self {
        let connected = connect_raw(&endpoint.authority(), &PhoenixSocket::path(endpoint)).await.expect("connects");
        let (stream, frames) = connected.expect("upgrades");
        Self { stream, frames }
    }

    /// One whose kernel takes next to nothing before it is read.
    async fn connect_narrow(endpoint: &Endpoint) -> Self {
        let mut stream = narrow(endpoint).await;
        let upgraded = upgrade(&mut stream, &endpoint.authority(), &PhoenixSocket::path(endpoint)).await;
        Self { stream, frames: upgraded.expect("answers").expect("upgrades") }
    }

    /// Adds a text to what is written with the next write.
    fn queue(out: &mut Vec<u8>, text: &str) {
        encode_client_frame(FrameKind::Text, text.as_bytes(), out);
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        timeout(PATIENCE, self.stream.write_all(bytes)).await.expect("the node reads")
    }

    /// The next text, or the code of the node's close.
    async fn next(&mut self) -> Result<Value, u16> {
        loop {
            let taken = self.frames.next(|kind, payload| match kind {
                FrameKind::Text => Some(Ok(serde_json::from_slice(payload).expect("JSON"))),
                FrameKind::Close => Some(Err(payload.first_chunk().map_or(1005, |code| u16::from_be_bytes(*code)))),
                _ => None,
            });
            match taken.expect("frames of a server") {
                Some(Some(taken)) => return taken,
                Some(None) => continue,
                None => {}
            }
            let read = timeout(PATIENCE, self.stream.read_buf(self.frames.buffer())).await;
            let read = read.expect("the node says something").expect("it closes in order");
            assert!(read > 0, "it ended without a close");
        }
    }
}

async fn narrow(endpoint: &Endpoint) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4 * 1024).expect("it may be small");
    socket.connect(endpoint.authority().parse().expect("an address")).await.expect("the node accepts")
}

/// An event stream that is opened and of which nothing is read.
async fn unread_stream(endpoint: &Endpoint) -> TcpStream {
    let mut stream = narrow(endpoint).await;
    let head = format!(
        "GET /v1/conversations/{ROOM}/stream HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\n\r\n",
        endpoint.authority(),
        endpoint.token().expect("a token")
    );
    stream.write_all(head.as_bytes()).await.expect("the node reads");
    stream
}

/// What those who do not read are sent, in messages of [`LARGE`] bytes.
const UNREAD: u64 = 500;
/// What the store's cache, which fills up meanwhile, takes of that, and a few queues; less than what was sent, in two encodings.
const UNREAD_MAX_KIB: u64 = 60 * 1024;

/// By how many KiB a node grows while one socket and one stream read nothing, and another socket reads a byte for each message.
fn growth_of_the_unread(settings: Settings) -> u64 {
    let bad = Bad::start(&[settings]);
    let writer = HttpClient::new(bad.home.unlimited("writer")).expect("a client");
    let (deaf, slow) = (bad.home.unlimited("deaf"), bad.home.unlimited("slow"));
    runtime().block_on(async {
        let mut pair = Pair::meet(&bad).await;
        pair.talk().await;
        let mut join = Vec::new();
        RawSocket::queue(&mut join, &format!(r#"["j","r","conversation:{ROOM}","phx_join",{{}}]"#));
        let (mut socket, stream) = (RawSocket::connect_narrow(&deaf).await, unread_stream(&deaf).await);
        let mut slow = RawSocket::connect_narrow(&slow).await;
        socket.write(&join).await.expect("open");
        slow.write(&join).await.expect("open");
        bad.metric_becomes("conch_sessions", 5).await;
        let text = "x".repeat(LARGE);
        let before = resident_kib(bad.node.pid());
        let mut most = 0;
        for key in 0..UNREAD {
            writer.attempt(&message(ROOM, &key.to_string(), &text)).await.expect("acked");
            slow.frames.buffer().extend_from_slice(&[slow.stream.read_u8().await.expect("there is more")]);
            pair.talk().await;
            most = most.max(resident_kib(bad.node.pid()));
        }
        // Whoever goes on reading after that has everything, in order.
        let mut wanted = 0;
        while wanted < UNREAD {
            let frame = slow.next().await.expect("the socket stays");
            if frame[3] == "message" && frame[4]["sender"] == "writer" {
                assert_eq!(frame[4]["client_msg_id"], wanted.to_string());
                wanted += 1;
            }
        }
        drop((socket, stream));
        bad.metric_becomes("conch_sessions", 3).await;
        most.saturating_sub(before)
    })
}

#[test]
fn a_client_that_never_reads_and_one_that_reads_a_byte_at_a_time_cost_a_queue_each() {
    let growth = growth_of_the_unread(&[]);
    assert!(growth < UNREAD_MAX_KIB, "they took {growth} KiB");
    let unbounded = growth_of_the_unread(&[("CONCH_LIMITS_OUTBOX_BYTES", "67108864")]);
    assert!(unbounded >= UNREAD_MAX_KIB, "without the limit they took {unbounded} KiB, which nobody would notice");
}

/// Topics that one client asks for, or pushes that it makes.
const MANY: usize = 10_000;
/// Of these are on the way at once.
const AT_ONCE: usize = 1_000;
/// Topics of one socket by default.
const TOPICS_MAX: usize = 100;
const MANY_TOPICS: Settings = &[("CONCH_LIMITS_TOPICS_PER_SOCKET", "10000")];
/// Claims are so slow that every join waits for longer than the test does.
const SLOW_CLAIMS: Settings = &[("CONCH_LIMITS_CLAIMS_PER_S", "1"), ("CONCH_LIMITS_CLAIMS_BURST", "1")];

impl RawSocket {
    /// Sends many texts; gives the responses of all replies that came before they were all looked at.
    async fn flood(&mut self, text: impl Fn(usize) -> String) -> Vec<Value> {
        let mut replies = Vec::new();
        for first in (0..MANY).step_by(AT_ONCE) {
            let mut out = Vec::new();
            (first..first + AT_ONCE).for_each(|number| Self::queue(&mut out, &text(number)));
            Self::queue(&mut out, r#"[null,"all","phoenix","heartbeat",{}]"#);
            self.write(&out).await.expect("the socket stays");
            loop {
                let frame = self.next().await.expect("the socket stays");
                if frame[1] == "all" {
                    break;
                }
                if frame[3] == "phx_reply" {
                    replies.push(frame[4].clone());
                }
            }
        }
        replies
    }
}

/// How many replies refuse with this code, and that each of them which may be tried again says when.
fn refused(replies: &[Value], code: &str) -> usize {
    let refused: Vec<&Value> = replies.iter().filter(|reply| reply["response"]["code"] == code).collect();
    for reply in &refused {
        assert_eq!(reply["status"], "error");
        assert_eq!(reply["response"]["retry"]["after_ms"].is_u64(), code != "invalid_request", "{reply}");
    }
    refused.len()
}

/// Joins ten thousand times; the first hundred conversations are there, and nobody owns them. How many joins are refused with this
/// code, and how many conversations were followed at most.
fn storm_of_joins(settings: Settings, topic: fn(usize) -> usize, code: &'static str) -> (usize, u64) {
    let bad = Bad::start(&[SLOW_CLAIMS, settings]);
    let (greedy, owner) = (bad.home.unlimited("greedy"), HttpClient::new(bad.home.unlimited("owner")));
    let owner = owner.expect("a client");
    let join = |number| format!(r#"["j","r","conversation:idle-{number}","phx_join",{{}}]"#);
    runtime().block_on(async {
        let mut pair = Pair::meet(&bad).await;
        for number in 0..TOPICS_MAX {
            let create = Request::put(&["v1", "conversations", &format!("idle-{number}")], json!({"kind": "channel"}));
            owner.attempt(&create).await.expect("created");
        }
        // One before it takes the turns of the next seconds.
        let mut before = RawSocket::connect(&greedy).await;
        for number in (1..TOPICS_MAX).rev() {
            before.write(&text_frame(&join(number))).await.expect("open");
        }
        bad.metric_becomes("conch_hubs", TOPICS_MAX as u64).await;
        let mut socket = RawSocket::connect(&greedy).await;
        let storm = async move {
            let replies = socket.flood(|number| join(topic(number))).await;
            (replies, socket)
        };
        let (replies, _socket) = pair.beside(storm).await;
        (refused(&replies, code), bad.metric("conch_hubs").await)
    })
}

fn text_frame(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    RawSocket::queue(&mut out, text);
    out
}

#[test]
fn of_ten_thousand_topics_a_socket_has_a_hundred() {
    let topic = |number| number;
    let (refused, hubs) = storm_of_joins(&[], topic, "invalid_request");
    assert_eq!(refused, MANY - TOPICS_MAX);
    assert_eq!(hubs, TOPICS_MAX as u64 + 1, "those, and the pair's");
    let (refused, _) = storm_of_joins(MANY_TOPICS, topic, "invalid_request");
    assert_eq!(refused, 0, "without the limit");
}

#[test]
fn one_topic_that_is_joined_ten_thousand_times_has_a_hundred_joins_under_way() {
    let topic = |_| 0;
    let (refused, _) = storm_of_joins(&[], topic, "overloaded");
    assert_eq!(refused, MANY - TOPICS_MAX);
    let (refused, _) = storm_of_joins(MANY_TOPICS, topic, "overloaded");
    assert_eq!(refused, 0, "without the limit");
}

/// Typing events that a sender may show at once by default, and in a second after that.
const TYPING_MAX: (usize, usize) = (100, 20);

/// Floods typing: how many of ten thousand events were let through, how many were refused, and how long that took in seconds.
fn typing_flood(settings: Settings) -> (usize, usize, usize) {
    let bad = Bad::start(&[settings]);
    let restless = bad.limited("restless");
    runtime().block_on(async {
        let mut pair = Pair::meet(&bad).await;
        let begun = std::time::Instant::now();
        let flood = async move {
            let mut socket = RawSocket::connect(&restless).await;
            let topic = format!("conversation:{ROOM}");
            socket.write(&text_frame(&format!(r#"["j","r","{topic}","phx_join",{{}}]"#))).await.expect("open");
            while socket.next().await.expect("open")[3] != "caught_up" {}
            socket.flood(|number| format!(r#"["j","t{number}","{topic}","typing",{{}}]"#)).await
        };
        let replies = pair.beside(flood).await;
        let shown = replies.iter().filter(|reply| reply["status"] == "ok").count();
        let seconds = usize::try_from(begun.elapsed().as_secs()).expect("a short test");
        (shown, refused(&replies, "rate_limited"), seconds + 1)
    })
}

#[test]
fn who_floods_typing_is_shown_at_the_rate_of_a_sender() {
    let most = |seconds: usize| TYPING_MAX.0 + TYPING_MAX.1 * seconds;
    let (shown, refused, seconds) = typing_flood(&[]);
    assert_eq!(shown + refused, MANY, "each has its answer");
    assert!(shown <= most(seconds), "{shown} were shown in {seconds} s");
    let (shown, _, seconds) = typing_flood(&[("CONCH_RATE_BURST", "1000000")]);
    assert!(shown > most(seconds), "without the limit {shown} in {seconds} s, which nobody would notice");
}

/// Connections at once.
const CONNECTIONS_MAX: u64 = 40;
/// Opened by somebody who keeps them.
const OPENED: usize = 400;

/// Opens connections that say nothing: how many the node has at most.
fn opened_at_once(settings: Settings) -> u64 {
    let bad = Bad::start(&[settings]);
    let authority = bad.home.unlimited("x").authority();
    runtime().block_on(async {
        let mut pair = Pair::meet(&bad).await;
        let opens = async move {
            let mut open = Vec::new();
            for _ in 0..OPENED {
                open.push(TcpStream::connect(&authority).await.expect("the kernel accepts"));
            }
            open
        };
        let open = pair.beside(opens).await;
        // Each is taken or cut; what is cut is told at once.
        let cut = async || bad.metric(r#"conch_limit_hits_total{queue="connections"}"#).await;
        let mut held = bad.metric("conch_connections").await;
        while held + cut().await < open.len() as u64 {
            held = held.max(bad.metric("conch_connections").await);
        }
        held
    })
}

#[test]
fn who_opens_as_many_connections_as_it_can_has_as_many_as_are_allowed() {
    assert_eq!(opened_at_once(&[("CONCH_LIMITS_CONNECTIONS", "40")]), CONNECTIONS_MAX);
    let most = opened_at_once(&[]);
    assert!(most > CONNECTIONS_MAX, "without the limit it has {most}");
}

/// Sockets, streams and connections that come and go.
const COMES_AND_GOES: usize = 1_500;

/// Whoever comes and goes leaves nothing behind: no connection, session, descriptor.
#[test]
fn who_opens_and_closes_as_fast_as_it_can_leaves_nothing_behind() {
    let bad = Bad::start(&[&[("CONCH_LIMITS_SOCKETS", "60"), ("CONCH_LIMITS_STREAMS", "60")]]);
    let restless = bad.home.unlimited("restless");
    let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", bad.node.pid())).expect("it runs").count();
    runtime().block_on(async {
        let mut pair = Pair::meet(&bad).await;
        pair.talk().await;
        let before = descriptors();
        let comes_and_goes = async move {
            let mut let_in = 0;
            for number in 0..COMES_AND_GOES {
                match number % 3 {
                    0 => drop(TcpStream::connect(restless.authority()).await.expect("the kernel accepts")),
                    1 => drop(unread_stream(&restless).await),
                    _ => {
                        let path = PhoenixSocket::path(&restless);
                        let connected = connect_raw(&restless.authority(), &path).await.expect("the node answers");
                        let Ok((mut stream, _)) = connected else { continue };
                        let_in += 1;
                        let join = format!(r#"["j","r","conversation:{ROOM}","phx_join",{{}}]"#);
                        stream.write_all(&text_frame(&join)).await.expect("open");
                    }
                }
            }
            let_in
        };
        let let_in = pair.beside(comes_and_goes).await;
        assert!(let_in > 60, "{let_in} were let in, so places came back");
        for (gauge, wanted) in
            [("conch_sockets", 2), ("conch_streams", 0), ("conch_connections", 0), ("conch_sessions", 2)]
        {
            bad.metric_becomes(gauge, wanted).await;
        }
        let closed = async {
            while descriptors() > before {
                tokio::task::yield_now().await;
            }
        };
        assert!(timeout(PATIENCE, closed).await.is_ok(), "{} descriptors, {before} before", descriptors());
    });
}

/// Longest message on a socket by default, in bytes.
const MESSAGE_MAX: usize = 1024 * 1024;

/// Sends one message in fragments of a byte. The code of the error that it is answered with, or of the node's close.
fn in_one_byte_fragments(settings: Settings, bytes: usize) -> String {
    let bad = Bad::start(&[settings]);
    let tedious = bad.home.unlimited("tedious");
    runtime().block_on(async {
        let mut pair = Pair::meet(&bad).await;
        let sends = async move {
            let mut socket = RawSocket::connect(&tedious).await;
            let text = format!(r#"["j","r","conversation:{ROOM}","no such event",{{"x":""}}]"#);
            let (begin, end) = text.split_at(text.len() - 3);
            let text = format!("{begin}{}{end}", "x".repeat(bytes - text.len()));
            let last = text.len() - 1;
            // With a mask of nothing, for which a server cares no more than for any other.
            let fragments = text.bytes().enumerate().flat_map(|(at, byte)| {
                let first = if at == 0 { 0x01 } else { 0x00 };
                [if at == last { first | 0x80 } else { first }, 0x81, 0, 0, 0, 0, byte]
            });
            let fragments: Vec<u8> = fragments.collect();
            // An error says that the node has closed, which is told below.
            let _ = socket.write(&fragments).await;
            match socket.next().await {
                Ok(frame) => frame[4]["response"]["code"].as_str().expect("a code").to_owned(),
                Err(code) => code.to_string(),
            }
        };
        pair.beside(sends).await
    })
}

#[test]
fn a_message_of_the_largest_size_may_come_in_fragments_of_a_byte_and_one_byte_more_closes() {
    assert_eq!(in_one_byte_fragments(&[], MESSAGE_MAX), "not_found", "it is not joined");
    assert_eq!(in_one_byte_fragments(&[], MESSAGE_MAX + 1), "1009");
    let higher = &[("CONCH_LIMITS_FRAME_BYTES", "2097152")];
    assert_eq!(in_one_byte_fragments(higher, MESSAGE_MAX + 1), "not_found", "without the limit");
}
