//! Connections that break: what is known afterwards, and what goes on.

use std::sync::atomic::Ordering;
use std::time::Duration;

use conch_core::body::Body;
use conch_core::record::{Draft, RecordKind};
use conch_server::link::{Hops, Link, LinkError, LinkLimits, Request, TcpLink};
use tokio::task::JoinHandle;

use super::follow::record;
use super::harness::{Cut, LONG, Node, Proxy, asker, connected, conversation, metric, quick, sessions};

type Asking = JoinHandle<Result<conch_server::link::Response, LinkError>>;

/// Asks what the node holds back, and waits until it does.
async fn held(node: &Node, link: &TcpLink, peer: conch_server::link::Peer) -> Asking {
    let link = link.clone();
    let asking = tokio::spawn(async move { link.ask(&peer, sessions("held"), LONG).await });
    node.service.held.notified().await;
    asking
}

/// Asks until a connection is there again; a back-off says so meanwhile.
async fn reached(link: &TcpLink, peer: &conch_server::link::Peer) {
    let trying = async {
        loop {
            match link.ask(peer, sessions("1"), LONG).await {
                Ok(answer) => return assert_eq!(answer, connected(1)),
                Err(LinkError::Unreachable(_)) => tokio::time::sleep(Duration::from_millis(5)).await,
                Err(other) => panic!("{other}"),
            }
        }
    };
    tokio::time::timeout(LONG, trying).await.expect("the node runs");
}

#[tokio::test]
async fn a_reset_link_leaves_the_peer_at_work_and_the_outcome_unknown() {
    let node = Node::usual().await;
    let proxy = Proxy::to(node.addr).await;
    let link = asker(quick());
    let asking = held(&node, &link, proxy.peer()).await;
    proxy.cut.send_replace(Cut::Reset);
    let outcome = asking.await.expect("no panic");
    assert!(matches!(outcome, Err(LinkError::Ambiguous(_))), "{outcome:?}");
    assert_eq!(node.service.done.load(Ordering::SeqCst), 0);
    node.service.release.add_permits(1);
    proxy.cut.send_replace(Cut::Through);
    reached(&link, &proxy.peer()).await;
    while node.service.done.load(Ordering::SeqCst) < 2 {
        tokio::task::yield_now().await;
    }
    assert_eq!(node.service.asked.load(Ordering::SeqCst), 2, "the reset one was done once, and nothing asked again");
    node.stop().await;
}

#[tokio::test]
async fn a_silent_peer_is_dropped_and_its_streams_end() {
    let node = Node::usual().await;
    let proxy = Proxy::to(node.addr).await;
    let link = asker(quick());
    let to = node.owns("c", 8);
    let mut follow = link.follow(&proxy.peer(), &conversation("c"), LONG).await.expect("reached").expect("owned");
    to.send(record(6)).await.expect("followed");
    assert!(follow.frames.recv().await.is_some());
    let asking = held(&node, &link, proxy.peer()).await;
    proxy.cut.send_replace(Cut::Silent);
    let outcome = asking.await.expect("no panic");
    assert!(matches!(&outcome, Err(LinkError::Ambiguous(why)) if why.contains("silent")), "{outcome:?}");
    assert!(follow.frames.recv().await.is_none(), "the follower resolves again");
    tokio::time::timeout(LONG, to.closed()).await.expect("the owner notices the silence too");
    node.stop().await;
}

#[tokio::test]
async fn a_connection_with_nothing_to_say_stays() {
    let node = Node::usual().await;
    let link = asker(LinkLimits { silence: Duration::from_millis(300), ..quick() });
    assert_eq!(link.ask(&node.peer(), sessions("1"), LONG).await, Ok(connected(1)));
    let before: u64 = metric(&node.metrics, "conch_link_received_bytes_total").parse().expect("a number");
    // Pings go on for several times the silence that would end it.
    let pinged = async {
        while metric(&node.metrics, "conch_link_received_bytes_total").parse::<u64>().expect("a number") < before + 50 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LONG, pinged).await.expect("it pings");
    assert_eq!(metric(&node.metrics, "conch_link_peers"), "1");
    assert_eq!(link.ask(&node.peer(), sessions("2"), LONG).await, Ok(connected(2)));
    node.stop().await;
}

#[tokio::test]
async fn a_stop_says_goodbye_and_what_was_asked_is_of_unknown_outcome() {
    let node = Node::usual().await;
    let (link, peer) = (asker(quick()), node.peer());
    let _to = node.owns("c", 8);
    let mut follow = link.follow(&peer, &conversation("c"), LONG).await.expect("reached").expect("owned");
    let asking = held(&node, &link, peer.clone()).await;
    node.stop().await;
    let outcome = asking.await.expect("no panic");
    assert!(matches!(&outcome, Err(LinkError::Ambiguous(why)) if why.contains("stops")), "{outcome:?}");
    assert!(follow.frames.recv().await.is_none());
    let after = link.ask(&peer, sessions("1"), LONG).await;
    assert!(matches!(after, Err(LinkError::Unreachable(_))), "nobody listens: {after:?}");
}

#[tokio::test]
async fn an_asker_that_stops_gives_up_what_it_asked() {
    let node = Node::usual().await;
    let (link, peer) = (asker(quick()), node.peer());
    let asking = held(&node, &link, peer.clone()).await;
    link.stop();
    let outcome = asking.await.expect("no panic");
    assert!(matches!(outcome, Err(LinkError::Ambiguous(_))), "{outcome:?}");
    let after = link.ask(&peer, sessions("1"), LONG).await;
    assert_eq!(after, Err(LinkError::Unreachable("this node stops".to_owned())));
    node.stop().await;
}

fn append(bytes: usize) -> Request {
    let body = Body::of(&serde_json::json!({"text": "x".repeat(bytes)}));
    let draft = Draft::new(RecordKind::Message, "alice".parse().expect("valid"), "k".parse().expect("valid"), body);
    Request::Append { conversation: conversation("c"), drafts: vec![draft], hops: Hops::START }
}

#[tokio::test]
async fn a_request_over_the_frame_limit_is_not_asked_and_harms_no_other() {
    let node = Node::usual().await;
    let link = asker(LinkLimits { frame_bytes: 4096, ..quick() });
    let refused = link.ask(&node.peer(), append(5000), LONG).await.expect_err("too long");
    assert!(
        matches!(&refused, LinkError::Unreachable(why) if why.contains("link.frame_bytes allows 4096")),
        "{refused}"
    );
    assert_eq!(link.ask(&node.peer(), append(3000), LONG).await, Ok(connected(1)));
    node.stop().await;
}

#[tokio::test]
async fn a_peer_that_sends_a_frame_over_the_limit_is_told_and_dropped() {
    let node =
        Node::start(super::harness::settings(super::harness::OWNER, 7, LinkLimits { frame_bytes: 4096, ..quick() }))
            .await;
    let link = asker(quick());
    let refused = link.ask(&node.peer(), append(5000), LONG).await.expect_err("too long");
    assert!(matches!(&refused, LinkError::Ambiguous(why) if why.contains("at most 4096 are allowed")), "{refused}");
    assert_eq!(node.service.asked.load(Ordering::SeqCst), 0);
    reached(&link, &node.peer()).await;
    node.stop().await;
}
