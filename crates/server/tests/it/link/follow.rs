//! Follow streams: order, credit, and how each side learns of the other's end.

use std::sync::Arc;
use std::time::Duration;

use conch_core::body::Body;
use conch_core::ids::{Epoch, Generation, LogId, Seq};
use conch_core::presence::shard::{ShardNews, ShardReport};
use conch_core::record::{Draft, Record, RecordKind};
use conch_core::refusal::{Code, Refusal};
use conch_core::time::Timestamp;
use conch_core::turn::live::LiveEvent;
use conch_server::frame::{Address, Frame};
use conch_server::link::{Link, LinkError, LinkLimits};
use conch_server::owner::{Follow, FollowFrame, FollowerReport, PresenceNews, Published};
use tokio::sync::mpsc;

use super::harness::{LONG, Node, OWNER, asker, conversation, metric, quick, settings};

pub(super) fn record(seq: u64) -> FollowFrame {
    let body = Body::of(&serde_json::json!({"text": format!("number {seq}")}));
    let key = format!("k{seq}").parse().expect("valid");
    let draft = Draft::new(RecordKind::Message, "alice".parse().expect("valid"), key, body);
    let record = Record::from_draft(conversation("c"), Seq(seq), Epoch(3), Timestamp(0), draft);
    let address = Address::conversation(&conversation("c"), LogId::new("s", Generation(1)));
    let frame = Arc::new(Frame::record(&address, &record));
    FollowFrame::Record(Arc::new(Published { prev: Seq(seq - 1), record, frame }))
}

async fn next(follow: &mut Follow) -> Option<FollowFrame> {
    tokio::time::timeout(LONG, follow.frames.recv()).await.expect("soon enough")
}

async fn assert_records(follow: &mut Follow, seqs: std::ops::RangeInclusive<u64>) {
    for seq in seqs {
        let Some(FollowFrame::Record(got)) = next(follow).await else { panic!("record {seq} is missing") };
        let FollowFrame::Record(sent) = record(seq) else { unreachable!("a record") };
        assert_eq!((got.prev, &got.record), (sent.prev, &sent.record));
        assert_eq!(got.frame.event_stream(), sent.frame.event_stream(), "viewers here see what viewers there see");
    }
}

#[tokio::test]
async fn frames_come_in_order_with_reports_going_up() {
    let mut node = Node::usual().await;
    let to = node.owns("c", 8);
    let link = asker(quick());
    let mut follow = link.follow(&node.peer(), &conversation("c"), LONG).await.expect("reached").expect("owned");
    assert_eq!((follow.epoch, follow.incarnation, follow.position), (Epoch(3), OWNER, Seq(5)));
    assert_eq!(follow.log, LogId::new("s", Generation(1)));
    let sent = FollowerReport::Presence(ShardReport { hub: 7, serial: 1, sessions: 4, news: ShardNews::Counted });
    follow.reports.send(sent.clone());
    let report = tokio::time::timeout(LONG, node.reports.recv()).await.expect("soon enough");
    assert_eq!(report, Some(sent));
    let typing = LiveEvent::Typing { sender: "bob".parse().expect("valid"), name: Some("Bob".into()) };
    let sending = tokio::spawn({
        let typing = Arc::new(typing.clone());
        async move {
            for seq in 6..=2_000 {
                to.send(record(seq)).await.expect("followed");
            }
            to.send(FollowFrame::Live(typing)).await.expect("followed");
            to.send(FollowFrame::Presence(Arc::new(PresenceNews::Count(9)))).await.expect("followed");
            to.send(FollowFrame::Position(Seq(2_000))).await.expect("followed");
        }
    });
    assert_records(&mut follow, 6..=2_000).await;
    assert!(matches!(next(&mut follow).await, Some(FollowFrame::Live(event)) if *event == typing));
    assert!(matches!(next(&mut follow).await, Some(FollowFrame::Presence(news)) if *news == PresenceNews::Count(9)));
    assert!(matches!(next(&mut follow).await, Some(FollowFrame::Position(Seq(2_000)))));
    sending.await.expect("no panic");
    assert!(next(&mut follow).await.is_none(), "the owner ended it");
    node.stop().await;
}

#[tokio::test]
async fn a_refusal_is_passed_on() {
    let node = Node::usual().await;
    let refused = asker(quick()).follow(&node.peer(), &conversation("c"), LONG).await.expect("reached");
    assert_eq!(refused.map(drop), Err(Refusal::new(Code::NotFound, "nobody owns it here")));
    node.stop().await;
}

#[tokio::test]
async fn the_owner_learns_that_a_follower_is_gone() {
    let node = Node::usual().await;
    let to = node.owns("c", 8);
    let link = asker(quick());
    let follow = link.follow(&node.peer(), &conversation("c"), LONG).await.expect("reached").expect("owned");
    drop(follow);
    tokio::time::timeout(LONG, to.closed()).await.expect("the owner's end is dropped");
    node.stop().await;
}

#[tokio::test]
async fn a_follow_that_is_given_up_leaves_no_stream() {
    let node = Node::usual().await;
    let to = node.owns("held", 8);
    let link = asker(quick());
    let late = link.follow(&node.peer(), &conversation("held"), Duration::from_millis(50)).await.map(drop);
    assert!(matches!(&late, Err(LinkError::Ambiguous(why)) if why.contains("no stream within")), "{late:?}");
    node.service.release.add_permits(1);
    // Whether the owner had attached it or not: its end is free again, or was never taken.
    let again = node.owns("c", 8);
    let mut follow = link.follow(&node.peer(), &conversation("c"), LONG).await.expect("reached").expect("owned");
    again.send(record(6)).await.expect("followed");
    assert_records(&mut follow, 6..=6).await;
    drop(to);
    node.stop().await;
}

#[tokio::test]
async fn a_stalled_follower_is_bounded_and_holds_up_nobody_else() {
    let limits = LinkLimits { stream_frames: 8, follower_frames: 16, ..quick() };
    let node = Node::start(settings(OWNER, 7, limits.clone())).await;
    let (stalled, lively) = (node.owns("stalled", 8), node.owns("lively", 8));
    let link = asker(limits);
    let peer = node.peer();
    let mut first = link.follow(&peer, &conversation("stalled"), LONG).await.expect("reached").expect("owned");
    let mut second = link.follow(&peer, &conversation("lively"), LONG).await.expect("reached").expect("owned");
    let (counted, mut count) = mpsc::unbounded_channel();
    let sending = tokio::spawn(async move {
        for seq in 6..=1_000 {
            stalled.send(record(seq)).await.expect("followed");
            counted.send(seq).expect("counted");
        }
    });
    for seq in 6..=3_000 {
        lively.send(record(seq)).await.expect("followed");
        assert_records(&mut second, seq..=seq).await;
    }
    let mut sent = 0;
    while count.try_recv().is_ok() {
        sent += 1;
    }
    // The owner's channel, the credit, what is on its way to the hub, the hub's channel, and one in each hand.
    let bound = 8 + 8 + 8 + 16 + 3;
    assert!((16..=bound).contains(&sent), "{sent} frames were taken from the owner");
    assert_ne!(metric(&node.metrics, "conch_limit_hits_total{queue=\"link_credit\"}"), "0");
    assert_records(&mut first, 6..=1_000).await;
    sending.await.expect("no panic");
    node.stop().await;
}

#[tokio::test]
async fn streams_over_the_owners_bound_are_refused_with_a_directive() {
    let node = Node::start(settings(OWNER, 7, LinkLimits { streams: 1, ..quick() })).await;
    let (_first, _second) = (node.owns("a", 8), node.owns("b", 8));
    let link = asker(quick());
    let held = link.follow(&node.peer(), &conversation("a"), LONG).await.expect("reached").expect("owned");
    let refusal =
        link.follow(&node.peer(), &conversation("b"), LONG).await.expect("reached").expect_err("one too many");
    assert_eq!((refusal.code, refusal.retry.is_some()), (Code::Overloaded, true));
    drop(held);
    node.stop().await;
}
