//! Requests, notices and greetings that go well, and bounds on them.

use std::sync::atomic::Ordering;
use std::time::Duration;

use conch_core::ids::{Incarnation, Seq};
use conch_core::wire::link::Features;
use conch_server::link::{Hops, Link, LinkError, LinkLimits, LinkSettings, Notice, Peer, Request};

use super::harness::{LONG, Node, OWNER, asker, connected, conversation, metric, quick, sessions, settings};

#[tokio::test]
async fn requests_are_answered_beside_each_other_on_one_connection() {
    let node = Node::usual().await;
    let (link, peer) = (asker(quick()), node.peer());
    let held = tokio::spawn({
        let (link, peer) = (link.clone(), peer.clone());
        async move { link.ask(&peer, sessions("held"), LONG).await }
    });
    node.service.held.notified().await;
    let asks = (0..100_u32).map(|number| {
        let (link, peer) = (&link, &peer);
        async move { (number, link.ask(peer, sessions(&number.to_string()), LONG).await) }
    });
    for (number, answer) in futures_util::future::join_all(asks).await {
        assert_eq!(answer, Ok(connected(number)));
    }
    assert!(!held.is_finished());
    node.service.release.add_permits(1);
    assert!(held.await.expect("no panic").is_ok());
    assert_eq!(metric(&node.metrics, "conch_link_peers"), "1", "one connection for all");
    assert_eq!(metric(&node.metrics, "conch_link_answers_total"), "101");
    node.stop().await;
}

/// With several threads, tasks that are spawned one after the other are not begun in that order.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn appends_are_begun_in_the_order_in_which_they_were_asked_for() {
    let node = Node::usual().await;
    let (link, peer) = (asker(quick()), node.peer());
    assert_eq!(link.ask(&peer, sessions("1"), LONG).await, Ok(connected(1)), "the connection stands");
    let mut asked = Vec::new();
    for number in 0..200_u32 {
        let append =
            Request::Append { conversation: conversation(&number.to_string()), drafts: Vec::new(), hops: Hops::START };
        let mut asking = Box::pin(link.ask(&peer, append, LONG));
        // Once polled, it is on its way.
        assert!(futures_util::poll!(&mut asking).is_pending());
        asked.push(asking);
    }
    for answer in futures_util::future::join_all(asked).await {
        assert_eq!(answer, Ok(connected(0)));
    }
    let begun = std::mem::take(&mut *node.service.appends.lock().expect("not poisoned"));
    assert_eq!(begun, (0..200).map(|number| number.to_string()).collect::<Vec<_>>());
    node.stop().await;
}

#[tokio::test]
async fn a_peer_that_does_not_know_a_request_is_not_asked_it() {
    let older = Node::start(LinkSettings { features: Features::NONE, ..settings(OWNER, 7, quick()) }).await;
    let link = asker(quick());
    let asked = link.ask(&older.peer(), Request::Events { after: None, limit: 1 }, LONG).await;
    let why = "its version does not know this request";
    assert!(matches!(&asked, Err(LinkError::Unreachable(said)) if said == why), "{asked:?}");
    assert_eq!(link.ask(&older.peer(), sessions("1"), LONG).await, Ok(connected(1)), "the connection stands");
    assert_eq!(older.service.asked.load(Ordering::SeqCst), 1);
    older.stop().await;
}

#[tokio::test]
async fn an_answer_that_takes_too_long_is_of_unknown_outcome_and_harms_no_other() {
    let node = Node::usual().await;
    let link = asker(quick());
    let late = link.ask(&node.peer(), sessions("held"), Duration::from_millis(50)).await;
    assert!(matches!(&late, Err(LinkError::Ambiguous(why)) if why.contains("no answer within")), "{late:?}");
    node.service.release.add_permits(1);
    assert_eq!(link.ask(&node.peer(), sessions("1"), LONG).await, Ok(connected(1)));
    node.stop().await;
}

#[tokio::test]
async fn requests_over_the_askers_bound_are_not_asked() {
    let node = Node::usual().await;
    let link = asker(LinkLimits { requests: 1, ..quick() });
    let peer = node.peer();
    let held = tokio::spawn({
        let (link, peer) = (link.clone(), peer.clone());
        async move { link.ask(&peer, sessions("held"), LONG).await }
    });
    node.service.held.notified().await;
    let refused = link.ask(&peer, sessions("1"), LONG).await.expect_err("over the bound");
    assert!(matches!(&refused, LinkError::Unreachable(why) if why.contains("too many requests")), "{refused:?}");
    node.service.release.add_permits(1);
    assert!(held.await.expect("no panic").is_ok());
    assert_eq!(link.ask(&peer, sessions("1"), LONG).await, Ok(connected(1)), "there is room again");
    node.stop().await;
}

#[tokio::test]
async fn requests_over_the_peers_bound_are_declined() {
    let node = Node::start(settings(OWNER, 7, LinkLimits { requests: 1, ..quick() })).await;
    let link = asker(quick());
    let peer = node.peer();
    let held = tokio::spawn({
        let (link, peer) = (link.clone(), peer.clone());
        async move { link.ask(&peer, sessions("held"), LONG).await }
    });
    node.service.held.notified().await;
    let declined = link.ask(&peer, sessions("1"), LONG).await.expect_err("over the bound");
    assert!(matches!(&declined, LinkError::Unreachable(why) if why.contains("too many requests")), "{declined:?}");
    assert_eq!(node.service.asked.load(Ordering::SeqCst), 1, "it was not looked at");
    node.service.release.add_permits(1);
    assert!(held.await.expect("no panic").is_ok());
    node.stop().await;
}

#[tokio::test]
async fn notices_arrive_in_order_and_the_first_makes_the_connection() {
    let mut node = Node::usual().await;
    let link = asker(quick());
    for seq in 1..=20 {
        link.tell(&[node.peer()], &Notice::Published { conversation: conversation("c"), seq: Seq(seq) });
    }
    for seq in 1..=20 {
        let (from, notice) = node.notices.recv().await.expect("the node runs");
        assert_eq!(from, Incarnation(0xa));
        assert_eq!(notice, Notice::Published { conversation: conversation("c"), seq: Seq(seq) });
    }
    node.stop().await;
}

#[tokio::test]
async fn another_incarnation_at_the_address_is_asked_nothing() {
    let node = Node::usual().await;
    let link = asker(quick());
    let predecessor = Peer { incarnation: Incarnation(0xdead), ..node.peer() };
    let answer = link.ask(&predecessor, sessions("1"), LONG).await;
    assert_eq!(answer, Err(LinkError::OtherIncarnation(OWNER)));
    let followed = link.follow(&predecessor, &conversation("c"), LONG).await.map(drop);
    assert_eq!(followed, Err(LinkError::OtherIncarnation(OWNER)), "in the back-off too");
    assert_eq!(node.service.asked.load(Ordering::SeqCst), 0);
    assert_eq!(link.who_answers(&node.addr.to_string(), LONG).await, Ok(OWNER));
    assert_eq!(link.ask(&node.peer(), sessions("1"), LONG).await, Ok(connected(1)));
    node.stop().await;
}

#[tokio::test]
async fn only_a_refusing_address_is_evidence_of_a_death() {
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let addr = closed.local_addr().expect("bound").to_string();
    let link = asker(quick());
    let silent = link.who_answers(&addr, Duration::from_millis(50)).await;
    assert!(matches!(silent, Err(LinkError::Ambiguous(_))), "it accepts and says nothing: {silent:?}");
    drop(closed);
    let refused = link.who_answers(&addr, LONG).await;
    assert!(matches!(refused, Err(LinkError::Unreachable(_))), "{refused:?}");
    let unnamed = link.who_answers("no-such-host.invalid:1", LONG).await;
    assert!(matches!(unnamed, Err(LinkError::Ambiguous(_))), "a name that is not found proves nothing: {unnamed:?}");
}
