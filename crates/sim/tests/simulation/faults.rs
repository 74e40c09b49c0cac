//! Failures of ownership that no process can be made to have from outside, named by their classes: clocks, tasks and beliefs.
//! Each is played with everything in place, and again without the rule that carries it.

use std::time::Duration;

use conch_core::heart;
use conch_server::rules::Rule;
use conch_sim::executor::Halt;
use conch_sim::machine::Removed;
use futures_util::future::join_all;

use crate::scene::{play, whole, without_routing, without_rule};

/// A suspended machine's timers stand still for 60 s while its lease runs out and somebody else takes over. Who acks then: the
/// one that was suspended, and the other one?
fn after_a_suspension(removed: Removed) -> (bool, bool) {
    play(2, removed, |scene| async move {
        scene.nodes[0].process.halt(Halt::Named("heartbeat"));
        scene.nodes[0].process.jump_clock(Duration::from_secs(60));
        let acked = scene.say(0, "second").await;
        scene.wait(20_000).await;
        (acked, scene.say(1, "third").await)
    })
}

#[test]
fn clock_stops_in_suspend() {
    assert_eq!(after_a_suspension(whole()), (false, true));
    let (acked, _) = after_a_suspension(without_rule(heart::Rule::ValidityEnds));
    assert!(acked, "the rule is needed");
}

/// Each node believes that the other one should take a conversation. How often it was passed on, and whether whoever sent was
/// told when to come again.
fn each_believes_in_the_other(removed: Removed) -> (u64, bool) {
    play(2, removed, |scene| async move {
        join_all(scene.nodes[..2].iter().map(|node| node.router.drain(Duration::ZERO))).await;
        let unowned = scene.site.conversations[1].clone();
        let answer = scene.send_to(&unowned, 0, "lost").await.expect("an answer");
        let forwarded = scene.nodes.iter().map(|node| node.node.metrics.forwarded.get()).sum();
        (forwarded, answer.expect_err("nobody takes it").retry.is_some())
    })
}

#[test]
fn endless_forward_loop() {
    let (forwarded, told) = each_believes_in_the_other(whole());
    assert!(told && forwarded < 100, "{forwarded}");
    let (endless, _) = each_believes_in_the_other(without_routing(Rule::HopsEnd));
    assert!(endless > 3 * forwarded, "the rule is needed: {endless} and {forwarded}");
}

/// One conversation's task hangs while its node goes on to beat. Who is registered a lease later, and can the other one write?
fn with_a_task_that_hangs(removed: Removed) -> (Vec<usize>, bool) {
    play(2, removed, |scene| async move {
        scene.nodes[0].process.halt(Halt::Named("owner"));
        scene.wait(19_000).await;
        (scene.registered().await, scene.say(1, "second").await)
    })
}

#[test]
fn wedged_but_heartbeating() {
    assert_eq!(with_a_task_that_hangs(whole()), (vec![0, 1], true));
    let kept = with_a_task_that_hangs(without_routing(Rule::WatchdogReleases));
    assert_eq!(kept, (vec![0, 1], false), "the rule is needed");
}
