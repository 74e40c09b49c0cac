//! Peers that do not belong: wrong secrets, versions and clusters, and those that say nothing or nonsense.

use std::time::Duration;

use bytes::BytesMut;
use conch_core::ids::Incarnation;
use conch_core::wire::link::{FRAME_MAX_BYTES, Features, Frame, Reason, VERSION, next_frame};
use conch_server::auth::secret::{Mode, Secret};
use conch_server::link::{Link, LinkError, LinkKey, LinkLimits, LinkListener, Peer, TcpLink};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::harness::{LONG, Node, OWNER, asker, connected, metric, quick, sessions, settings};

/// All that the other side says until it closes, as frames.
async fn said(stream: &mut TcpStream) -> Vec<Frame> {
    let mut bytes = Vec::new();
    // A reset after the goodbye is an end too.
    let _ = tokio::time::timeout(LONG, stream.read_to_end(&mut bytes)).await.expect("it closes");
    let (mut received, mut frames) = (BytesMut::from(&bytes[..]), Vec::new());
    while let Some(content) = next_frame(&mut received, FRAME_MAX_BYTES).expect("frames") {
        frames.push(Frame::decode(&content).expect("a frame"));
    }
    frames
}

/// A hello of version 2.
fn hello_of_version_2() -> Vec<u8> {
    let mut bytes = vec![0, 0, 0, 17, 1];
    bytes.extend_from_slice(b"conch-link");
    bytes.extend_from_slice(&[0, 2, 0, 0, 9, 9]);
    bytes
}

async fn connection(node: &Node) -> TcpStream {
    TcpStream::connect(node.addr).await.expect("it listens")
}

#[tokio::test]
async fn a_wrong_secret_is_named_and_nothing_is_asked() {
    let node = Node::usual().await;
    let link = TcpLink::new(settings(Incarnation(0xa), 8, quick()));
    let refused = link.ask(&node.peer(), sessions("1"), LONG).await.expect_err("another secret");
    assert!(matches!(&refused, LinkError::Unreachable(why) if why.contains("secret differs")), "{refused:?}");
    let asked = link.who_answers(&node.addr.to_string(), LONG).await;
    assert!(matches!(asked, Err(LinkError::Ambiguous(_))), "no evidence of a death: {asked:?}");
    assert_eq!(metric(&node.metrics, "conch_link_refusals_total{reason=\"wrong_secret\"}"), "2");
    assert_eq!(node.service.asked.load(std::sync::atomic::Ordering::SeqCst), 0);
    assert_eq!(asker(quick()).ask(&node.peer(), sessions("1"), LONG).await, Ok(connected(1)));
    node.stop().await;
}

#[tokio::test]
async fn a_node_of_another_cluster_is_named() {
    let node = Node::usual().await;
    let mut other = settings(Incarnation(0xa), 7, quick());
    other.cluster = "d".to_owned();
    let refused = TcpLink::new(other).ask(&node.peer(), sessions("1"), LONG).await.expect_err("another cluster");
    let why = r#"it belongs to cluster "d", this node to "c""#;
    assert!(matches!(&refused, LinkError::Unreachable(text) if text.contains(why)), "{refused:?}");
    assert_eq!(metric(&node.metrics, "conch_link_refusals_total{reason=\"other_cluster\"}"), "1");
    node.stop().await;
}

#[tokio::test]
async fn a_dialler_of_another_version_is_told_both() {
    let node = Node::usual().await;
    let mut stream = connection(&node).await;
    stream.write_all(&hello_of_version_2()).await.expect("open");
    let frames = said(&mut stream).await;
    let [Frame::Goodbye { reason: Reason::OtherVersion, detail }] = &frames[..] else { panic!("{frames:?}") };
    assert!(detail.contains("version 2.0") && detail.contains(&format!("this node {VERSION}")), "{detail}");
    drop(stream);
    assert_eq!(metric(&node.metrics, "conch_link_refusals_total{reason=\"other_version\"}"), "1");
    node.stop().await;
}

#[tokio::test]
async fn a_listener_of_another_version_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let addr = listener.local_addr().expect("bound").to_string();
    let answering = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a dialler");
        stream.write_all(&hello_of_version_2()).await.expect("open");
        said(&mut stream).await
    });
    let link = asker(quick());
    let refused = link.ask(&Peer { incarnation: OWNER, addr }, sessions("1"), LONG).await.expect_err("another version");
    assert!(matches!(&refused, LinkError::Unreachable(why) if why.contains("version 2.0")), "{refused:?}");
    let heard = answering.await.expect("no panic");
    assert!(matches!(&heard[..], [Frame::Hello(_), Frame::Goodbye { reason: Reason::OtherVersion, .. }]), "{heard:?}");
}

#[tokio::test]
async fn nonsense_is_refused() {
    let node = Node::usual().await;
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 64], &[0, 0, 0, 1, 16], &[0, 0, 0, 0], &[0, 0, 0, 2, 3, 0]] {
        let mut stream = connection(&node).await;
        stream.write_all(bytes).await.expect("open");
        let frames = said(&mut stream).await;
        assert!(matches!(&frames[..], [Frame::Goodbye { .. }]), "{bytes:?}: {frames:?}");
    }
    assert_eq!(metric(&node.metrics, "conch_link_refusals_total{reason=\"bad_frame\"}"), "5");
    assert_eq!(asker(quick()).ask(&node.peer(), sessions("1"), LONG).await, Ok(connected(1)));
    node.stop().await;
}

#[tokio::test]
async fn a_request_before_the_proof_is_not_looked_at() {
    let node = Node::usual().await;
    let mut stream = connection(&node).await;
    let hello = conch_core::wire::link::Hello {
        version: conch_core::wire::link::VERSION,
        features: Features::NONE,
        cluster: "c".to_owned(),
        incarnation: Incarnation(0xa),
        node: "n".parse().expect("valid"),
        nonce: [1; 32],
    };
    let request = conch_core::wire::link::RequestId(1);
    let mut bytes = Vec::new();
    Frame::Hello(hello).encode(&mut bytes);
    Frame::Ask { request, within_ms: 1000, ask: sessions("1") }.encode(&mut bytes);
    stream.write_all(&bytes).await.expect("open");
    let frames = said(&mut stream).await;
    assert!(matches!(&frames[..], [Frame::Hello(_), Frame::Goodbye { reason: Reason::BadFrame, .. }]), "{frames:?}");
    assert_eq!(node.service.asked.load(std::sync::atomic::Ordering::SeqCst), 0);
    node.stop().await;
}

#[tokio::test]
async fn a_slow_greeting_is_cut_and_takes_a_bounded_place() {
    let limits = LinkLimits { handshakes: 1, hello: Duration::from_millis(500), ..quick() };
    let node = Node::start(settings(OWNER, 7, limits)).await;
    let mut slow = connection(&node).await;
    slow.write_all(&[0, 0]).await.expect("open");
    // Connections are accepted in order: the second finds the only place taken.
    let mut second = connection(&node).await;
    assert_eq!(said(&mut second).await, []);
    assert_eq!(said(&mut slow).await, []);
    assert_eq!(metric(&node.metrics, "conch_link_refusals_total{reason=\"full\"}"), "1");
    assert_eq!(metric(&node.metrics, "conch_link_refusals_total{reason=\"timed_out\"}"), "1");
    node.stop().await;
}

#[tokio::test]
async fn a_peer_that_ends_each_connection_at_once_is_not_dialled_for_every_request() {
    let node = Node::start(settings(OWNER, 7, LinkLimits { connections: 1, ..quick() })).await;
    let first = asker(quick());
    assert_eq!(first.ask(&node.peer(), sessions("1"), LONG).await, Ok(connected(1)));
    let second = TcpLink::new(settings(Incarnation(0xc), 7, quick()));
    for _ in 0..200 {
        assert!(second.ask(&node.peer(), sessions("1"), LONG).await.is_err(), "the only place is taken");
    }
    let refused: u32 = metric(&node.metrics, "conch_link_refusals_total{reason=\"full\"}").parse().expect("a number");
    assert!((1..100).contains(&refused), "{refused}");
    node.stop().await;
}

#[tokio::test]
async fn refusals_are_explained_only_so_often() {
    let node = Node::start(settings(OWNER, 7, LinkLimits { handshakes: 256, ..quick() })).await;
    let mut explained = 0;
    for _ in 0..200 {
        let mut stream = connection(&node).await;
        stream.write_all(&[0, 0, 0, 1, 16]).await.expect("open");
        explained += said(&mut stream).await.len();
    }
    assert!((20..200).contains(&explained), "{explained} of 200");
    node.stop().await;
}

#[tokio::test]
async fn without_a_secret_only_loopback_is_bound() {
    let any = "0.0.0.0:0".parse().expect("an address");
    let refused = LinkListener::bind(any, Mode::Development).await.err().expect("not loopback").to_string();
    assert!(refused.starts_with("link_listen (0.0.0.0:0) is not a loopback address"), "{refused}");
    assert!(LinkListener::bind(any, Mode::Configured).await.is_ok());
}

#[test]
fn the_key_is_not_shown() {
    let key = LinkKey::derived(&Secret::new(b"0123456789abcdef0123456789abcdef".to_vec()));
    assert_eq!(format!("{key:?}"), "<hidden>");
}
