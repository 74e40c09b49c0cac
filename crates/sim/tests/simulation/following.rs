//! Following among several nodes, played on purpose: each scene with everything in place and, where one rule carries it,
//! again without that rule.

use std::time::Duration;

use conch_core::body::Body;
use conch_core::ids::{Epoch, Generation, Seq};
use conch_core::record::{Draft, RecordKind};
use conch_server::rules::Rule;
use conch_sim::executor::Halt;
use conch_sim::machine::Removed;
use conch_sim::scenario::TIMING;
use conch_store::{Batch, DueChange, LogStore as _};

use crate::scene::{Setting, play, play_in, whole, without_routing};

#[test]
fn a_viewer_sees_what_is_written_elsewhere_after_its_owner_left() {
    let (saw, owner_moved) = play(3, whole(), |scene| async move {
        let (viewer, _session) = scene.watch(1).await;
        scene.stop(0).await;
        assert!(scene.say(2, "second").await);
        scene.wait(3_000).await;
        let (_, owner) = scene.epoch_and_owner(&scene.room).await;
        (viewer.saw(), owner != Some(scene.nodes[0].me))
    });
    assert_eq!(saw, ["first", "second"]);
    assert!(owner_moved);
}

/// An event comes in on one node, the socket is on another, the owner on a third.
#[test]
fn a_socket_on_one_node_sees_what_came_in_on_another() {
    let saw = play(3, whole(), |scene| async move {
        let (viewer, _session) = scene.watch(2).await;
        assert!(scene.say(1, "second").await);
        scene.wait(100).await;
        viewer.saw()
    });
    assert_eq!(saw, ["first", "second"]);
}

/// An owner's task stands still past a lease, is relieved, and goes on before its follower finds it silent.
fn after_the_watchdog(removed: Removed) -> Vec<String> {
    let mut setting = Setting::of(2, removed);
    setting.limits.timing = TIMING;
    play_in(setting, |scene| async move {
        let (viewer, _session) = scene.watch(0).await;
        scene.wait(1_000).await;
        scene.nodes[0].process.halt(Halt::Named("owner"));
        scene.wait(2_300).await;
        scene.nodes[0].process.resume(Halt::Named("owner"));
        assert!(scene.say(1, "second").await);
        scene.wait(10_000).await;
        viewer.saw()
    })
}

#[test]
fn a_relieved_owner_strands_no_viewer() {
    assert_eq!(after_the_watchdog(whole()), ["first", "second"]);
    assert_eq!(after_the_watchdog(without_routing(Rule::DeposedEnds)), ["first"], "the rule is needed");
}

/// A record vanishes on its way to a follower, and with `another` one comes after it.
fn a_record_vanishes(another: Option<&'static str>, removed: Removed) -> Vec<String> {
    play(2, removed, move |scene| async move {
        let (viewer, _session) = scene.watch(1).await;
        scene.wait(500).await;
        scene.site.network.lose_a_record();
        assert!(scene.say(0, "lost").await);
        if let Some(key) = another {
            assert!(scene.say(0, key).await);
        }
        scene.wait(2_500).await;
        viewer.saw()
    })
}

#[test]
fn a_follower_reads_what_it_lacks_before_a_record() {
    assert_eq!(a_record_vanishes(Some("next"), whole()), ["first", "lost", "next"]);
    let saw = a_record_vanishes(Some("next"), without_routing(Rule::PrevFills));
    assert_eq!(saw, ["first", "next"], "the rule is needed");
}

#[test]
fn a_follower_that_is_behind_its_owners_position_reads() {
    assert_eq!(a_record_vanishes(None, whole()), ["first", "lost"]);
    assert_eq!(a_record_vanishes(None, without_routing(Rule::PositionFills)), ["first"], "the rule is needed");
}

/// The owner stops for good, and the stream from it stays open.
fn followed_into_silence(removed: Removed) -> Vec<String> {
    play(3, removed, |scene| async move {
        let (viewer, _session) = scene.watch(1).await;
        scene.nodes[0].process.halt(Halt::Process);
        scene.wait(20_000).await;
        assert!(scene.say(2, "second").await, "the lease ran out");
        scene.wait(8_000).await;
        viewer.saw()
    })
}

#[test]
fn a_follower_looks_again_for_an_owner_that_is_silent() {
    assert_eq!(followed_into_silence(whole()), ["first", "second"]);
    assert_eq!(followed_into_silence(without_routing(Rule::SilenceLooksAgain)), ["first"], "the rule is needed");
}

/// An owner dies between its commit and its broadcast, and nobody writes any more.
fn committed_and_never_broadcast(removed: Removed) -> Vec<String> {
    play(2, removed, |scene| async move {
        let (viewer, _session) = scene.watch(1).await;
        scene.wait(1_000).await;
        let body = Body::of(&serde_json::json!({ "text": "second" }));
        let (sender, key) = ("alice".parse().expect("valid"), "second".parse().expect("valid"));
        let batch = Batch {
            conversation: scene.room.clone(),
            epoch: Epoch(1),
            generation: Generation(1),
            prev: Seq(1),
            hi: Seq(2),
            reserve: Seq(2),
            due: DueChange::Keep,
            records: vec![(Seq(2), Draft::new(RecordKind::Message, sender, key, body))],
        };
        scene.site.recorder.append(scene.nodes[0].me, vec![batch]).await.expect("the memory store does not fail");
        scene.nodes[0].process.kill();
        scene.wait(10_000).await;
        viewer.saw()
    })
}

#[test]
fn what_was_committed_and_never_broadcast_is_shown() {
    assert_eq!(committed_and_never_broadcast(whole()), ["first", "second"]);
    let saw = committed_and_never_broadcast(without_routing(Rule::FollowersClaim));
    assert_eq!(saw, ["first"], "the rule is needed");
}

/// Two regions, the second of which is the home of what nobody owns yet. Was a viewer let in through the first, and what did
/// it see?
fn joined_outside_the_home_region(removed: Removed) -> (bool, Vec<String>) {
    let regions = vec!["a", "b"];
    play_in(Setting { regions, home: "b", ..Setting::of(2, removed) }, |scene| async move {
        let room = scene.fresh_room();
        let (viewer, session) = scene.watch_room(&room, 0).await;
        assert!(scene.send_to(&room, 1, "second").await.is_some_and(|answer| answer.is_ok()));
        scene.wait(100).await;
        (session.is_ok(), viewer.saw())
    })
}

#[test]
fn a_viewer_outside_the_home_region_joins_what_nobody_owns() {
    assert_eq!(joined_outside_the_home_region(whole()), (true, vec!["second".to_owned()]));
    let (joined, _) = joined_outside_the_home_region(without_routing(Rule::BetterPlaceSettles));
    assert!(!joined, "the rule is needed");
}

/// A stale owner has lost a record on its way to a follower, which reads more from the store than that owner knows of.
fn followed_into_the_past(removed: Removed) -> Vec<String> {
    play(3, removed, |scene| async move {
        let (viewer, _session) = scene.watch(2).await;
        scene.wait(500).await;
        scene.site.network.lose_a_record();
        assert!(scene.say(0, "lost").await);
        scene.hand_off_unheard(1).await;
        assert!(scene.say(1, "third").await, "the receiver claims it");
        scene.wait(4_000).await;
        assert!(scene.say(1, "fourth").await);
        scene.wait(500).await;
        viewer.saw()
    })
}

#[test]
fn a_stream_below_the_highest_epoch_is_left() {
    assert_eq!(followed_into_the_past(whole()), ["first", "lost", "third", "fourth"]);
    let saw = followed_into_the_past(without_routing(Rule::LowerEpochsDrop));
    assert_eq!(saw, ["first", "lost", "third"], "the rule is needed");
}

/// A follower that has seen a higher epoch is sent to a stale owner, since that is the better place for what nobody owns. How
/// many of the live events did it see that are that owner's, and what at the end?
fn events_of_a_stale_owner(removed: Removed) -> (usize, Vec<String>) {
    let regions = vec!["b", "a", "a"];
    play_in(Setting { regions, home: "b", ..Setting::of(3, removed) }, |scene| async move {
        let (viewer, _session) = scene.watch(2).await;
        let (_, typist) = scene.watch(0).await;
        scene.hand_off_unheard(1).await;
        assert!(scene.say(1, "second").await, "the receiver claims it");
        scene.site.network.reset(&scene.machines[2].addr(), &scene.machines[0].addr());
        scene.wait(3_000).await;
        assert_eq!(viewer.saw(), ["first", "second"]);
        scene.nodes[1].router.shut_down().await;
        for _ in 0..10 {
            scene.wait(500).await;
            typist.typing("carol".parse().expect("valid"), None);
        }
        let events = viewer.saw_events("typing");
        assert!(scene.say(2, "third").await);
        scene.wait(3_000).await;
        (events, viewer.saw())
    })
}

#[test]
fn live_events_of_a_lower_epoch_are_dropped() {
    let all = ["first", "second", "third"].map(str::to_owned).to_vec();
    assert_eq!(events_of_a_stale_owner(whole()), (0, all));
    let (events, _) = events_of_a_stale_owner(without_routing(Rule::LowerEpochsDrop));
    assert!(events > 0, "the rule is needed");
}

/// The owner hands over and lives on. Does its follower see, before silence would make it look, what is written then?
fn after_a_hand_over(removed: Removed) -> Vec<String> {
    play(3, removed, |scene| async move {
        let (viewer, _session) = scene.watch(2).await;
        scene.wait(500).await;
        scene.nodes[0].router.drain(Duration::ZERO).await;
        assert!(scene.say(1, "second").await);
        scene.wait(2_300).await;
        viewer.saw()
    })
}

#[test]
fn a_hand_over_closes_the_streams_of_the_one_who_gave() {
    assert_eq!(after_a_hand_over(whole()), ["first", "second"]);
    assert_eq!(after_a_hand_over(without_routing(Rule::StreamsClose)), ["first"], "the rule is needed");
}
