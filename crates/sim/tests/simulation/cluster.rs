//! Deaths and false evidence of death, played on purpose: each scene with everything in place, and again without the guard
//! that it is there to show.

use std::time::Duration;

use conch_core::death::Guard;
use conch_core::heart::Rule;
use conch_server::events::WhyDead;
use conch_sim::executor::Halt;
use conch_sim::machine::Removed;
use conch_sim::weather::Weather;
use conch_store::LeaseStore as _;

use crate::scene::{play, whole, without, without_rule};

#[test]
fn a_killed_process_is_replaced_within_two_seconds() {
    // Whenever in the rhythm of looks it dies.
    for offset in [0, 100, 250, 400] {
        let (took, why) = play(2, whole(), move |scene| async move {
            scene.wait(offset).await;
            scene.nodes[0].process.kill();
            let took = scene.until_it_writes(1, "second").await;
            (took, scene.deaths_declared_by(1))
        });
        assert_eq!(why, vec![WhyDead::ProcessDied]);
        assert!(took <= 2_000, "{took} ms");
    }
}

#[test]
fn a_restart_under_the_same_address_is_evidence_too() {
    let (took, why) = play(2, whole(), |scene| async move {
        scene.nodes[0].process.kill();
        scene.machines[0].start();
        let took = scene.until_it_writes(1, "second").await;
        (took, scene.deaths_declared_by(1))
    });
    assert_eq!(why, vec![WhyDead::ProcessDied]);
    assert!(took <= 2_000, "{took} ms");
}

#[test]
fn a_stopped_process_is_replaced_when_its_lease_ran_out_and_ends_when_it_goes_on() {
    let (took, why, acked, alive) = play(2, whole(), |scene| async move {
        scene.nodes[0].process.halt(Halt::Process);
        let took = scene.until_it_writes(1, "second").await;
        scene.nodes[0].process.resume(Halt::Process);
        let acked = scene.say(0, "from beyond").await;
        scene.wait(10_000).await;
        (took, scene.deaths_declared_by(1), acked, scene.nodes[0].process.is_alive())
    });
    assert_eq!(why, vec![WhyDead::LeaseRanOut]);
    // From its last renewal it is a lease; the halt came up to a beat later.
    assert!((10_000..=16_000).contains(&took), "{took} ms");
    assert!(!acked, "what it is asked afterwards is not acked by it");
    assert!(!alive, "its renewal found no row");
}

/// A live node's lifeline ends and it cannot replace it at once. Returns who is left, and whether it froze meanwhile.
fn false_evidence(removed: Removed) -> (Vec<usize>, bool, bool) {
    play(2, removed, |scene| async move {
        scene.weather(0, Weather::LeasesCut);
        scene.cut_lifeline(0).await;
        scene.wait(1_500).await;
        let froze = scene.is_frozen(0);
        scene.weather(0, Weather::Calm);
        scene.wait(10_000).await;
        (scene.registered().await, froze, scene.say(0, "second").await)
    })
}

#[test]
fn false_evidence_of_death_freezes_a_node_and_kills_nobody() {
    assert_eq!(false_evidence(whole()), (vec![0, 1], true, true));
    let (left, ..) = false_evidence(without(&[Guard::SecondChannel]));
    assert_eq!(left, vec![1], "the guard is needed");
    let (_, froze, _) = false_evidence(without_rule(Rule::LossFreezes));
    assert!(!froze, "the rule is needed");
}

#[test]
fn a_node_whose_lifeline_was_replaced_at_once_goes_on() {
    let (left, acked, rows) = play(2, whole(), |scene| async move {
        let before = scene.rows().await;
        scene.cut_lifeline(0).await;
        scene.wait(100).await;
        let acked = scene.say(0, "second").await;
        scene.wait(5_000).await;
        (scene.registered().await, acked, (before, scene.rows().await))
    });
    assert_eq!((left, acked), (vec![0, 1], true));
    assert!(
        rows.0.iter().zip(&rows.1).any(|(before, after)| before.registration.lifeline != after.registration.lifeline),
        "the row names the new one"
    );
}

/// Two lifelines of three go at once, and the addresses refuse as well.
fn lost_together(removed: Removed) -> Vec<usize> {
    play(3, removed, |scene| async move {
        for node in [0, 1] {
            scene.weather(node, Weather::LeasesCut);
            scene.site.network.refuse(&scene.machines[node].addr());
            scene.cut_lifeline(node).await;
        }
        scene.wait(3_000).await;
        for node in [0, 1] {
            scene.weather(node, Weather::Calm);
            scene.site.network.mend(&scene.machines[node].addr());
        }
        scene.wait(20_000).await;
        scene.registered().await
    })
}

#[test]
fn lifelines_that_are_lost_together_are_the_stores_event() {
    assert_eq!(lost_together(whole()), vec![0, 1, 2]);
    assert_eq!(lost_together(without(&[Guard::LostAlone])), vec![2], "the guard is needed");
}

/// Two lifelines of three go at once. The first one's node cannot replace it, and its address refuses; the other one's does.
fn lost_beside_a_replaced_one(removed: Removed) -> Vec<usize> {
    play(3, removed, |scene| async move {
        scene.weather(0, Weather::LeasesCut);
        scene.site.network.refuse(&scene.machines[0].addr());
        scene.cut_lifeline(0).await;
        scene.cut_lifeline(1).await;
        scene.wait(3_000).await;
        scene.weather(0, Weather::Calm);
        scene.site.network.mend(&scene.machines[0].addr());
        scene.wait(20_000).await;
        scene.registered().await
    })
}

#[test]
fn a_lifeline_that_is_replaced_was_lost_all_the_same() {
    assert_eq!(lost_beside_a_replaced_one(whole()), vec![0, 1, 2]);
    let left = lost_beside_a_replaced_one(without(&[Guard::ReplacedIsLost]));
    assert_eq!(left, vec![1, 2], "the guard is needed");
}

#[test]
fn a_process_that_dies_while_another_stops_in_order_is_replaced_as_soon() {
    // The owner dies shortly before, at once with, and shortly after the other one's end.
    for (first, apart) in [("killed", 200), ("stopped", 0), ("stopped", 300)] {
        let (took, why) = play(3, whole(), move |scene| async move {
            let stop = scene.machines[2].shut_down(Duration::from_secs(5));
            if first == "killed" {
                scene.nodes[0].process.kill();
                scene.wait(apart).await;
                stop.await;
            } else {
                stop.await;
                scene.wait(apart).await;
                scene.nodes[0].process.kill();
            }
            let took = scene.until_it_writes(1, "second").await;
            (took, scene.deaths_declared_by(1))
        });
        assert_eq!(why, vec![WhyDead::ProcessDied], "{first} first, {apart} ms apart");
        assert!(took <= 2_000, "{took} ms, {first} first, {apart} ms apart");
    }
}

/// The database drops every session; observers start over with it.
fn all_sessions_lost(removed: Removed) -> Vec<usize> {
    play(3, removed, |scene| async move {
        for node in [0, 1] {
            scene.weather(node, Weather::LeasesCut);
            scene.site.network.refuse(&scene.machines[node].addr());
        }
        scene.site.recorder.inner().cut_all_lifelines();
        scene.wait(3_000).await;
        for node in [0, 1] {
            scene.weather(node, Weather::Calm);
            scene.site.network.mend(&scene.machines[node].addr());
        }
        scene.wait(20_000).await;
        scene.registered().await
    })
}

#[test]
fn a_crash_of_the_database_kills_nobody() {
    assert_eq!(all_sessions_lost(whole()), vec![0, 1, 2]);
    let removed = without(&[Guard::SameObserver, Guard::LostAlone]);
    assert_eq!(all_sessions_lost(removed), vec![2], "the guards are needed");
}

#[test]
fn a_cut_network_is_no_evidence_of_death() {
    let left = play(2, whole(), |scene| async move {
        scene.weather(0, Weather::LeasesCut);
        scene.site.network.cut(&scene.machines[0].addr());
        scene.cut_lifeline(0).await;
        scene.wait(4_000).await;
        let left = scene.registered().await;
        scene.wait(16_000).await;
        (left, scene.registered().await)
    });
    assert_eq!(left, (vec![0, 1], vec![1]), "only when its lease has run out");
}

/// A suspended machine's clock goes on. Does the owner ack before it has renewed?
fn after_a_suspension(removed: Removed) -> bool {
    play(1, removed, |scene| async move {
        scene.nodes[0].process.halt(Halt::Named("heartbeat"));
        scene.nodes[0].process.jump_clock(Duration::from_secs(60));
        scene.say(0, "second").await
    })
}

#[test]
fn a_node_that_was_suspended_serves_nothing_before_it_has_renewed() {
    assert!(!after_a_suspension(whole()));
    assert!(after_a_suspension(without_rule(Rule::ValidityEnds)), "the rule is needed");
}

/// Somebody deletes a node's row. Is its process alive a beat later?
fn after_its_row_was_deleted(removed: Removed) -> bool {
    play(1, removed, |scene| async move {
        assert!(scene.site.recorder.expel(scene.nodes[0].me).await.expect("the memory store does not fail"));
        scene.wait(5_500).await;
        scene.nodes[0].process.is_alive()
    })
}

#[test]
fn a_lost_lease_ends_the_process_within_a_beat() {
    assert!(!after_its_row_was_deleted(whole()));
    assert!(after_its_row_was_deleted(without_rule(Rule::NoRowEnds)), "the rule is needed");
}

/// Renewals fail for a while, then the way is free again.
fn after_failed_renewals(removed: Removed) -> Vec<usize> {
    play(2, removed, |scene| async move {
        scene.weather(0, Weather::LeasesCut);
        scene.wait(6_000).await;
        scene.weather(0, Weather::Calm);
        scene.wait(40_000).await;
        scene.registered().await
    })
}

#[test]
fn an_error_does_not_end_the_heartbeat() {
    assert_eq!(after_failed_renewals(whole()), vec![0, 1]);
    assert_eq!(after_failed_renewals(without_rule(Rule::ErrorsPass)), vec![1], "the rule is needed");
}

/// Nobody reaches the store for longer than a lease, and nothing of the first one's is applied there; the second one gets
/// back to it a little earlier.
fn after_an_outage(removed: Removed) -> Vec<usize> {
    play(2, removed, |scene| async move {
        // The last beat before it is seen.
        scene.wait(2_000).await;
        [0, 1].into_iter().for_each(|node| scene.weather(node, Weather::Cut));
        scene.nodes[0].process.halt(Halt::Named("heartbeat"));
        scene.wait(40_000).await;
        scene.weather(1, Weather::Calm);
        scene.wait(3_000).await;
        scene.nodes[0].process.resume(Halt::Named("heartbeat"));
        scene.weather(0, Weather::Calm);
        scene.wait(40_000).await;
        scene.registered().await
    })
}

#[test]
fn an_outage_of_the_store_kills_nobody() {
    assert_eq!(after_an_outage(whole()), vec![0, 1]);
    // Either one is enough.
    let removed = without(&[Guard::HealthyForALease, Guard::UnreadForgets]);
    assert_eq!(after_an_outage(removed), vec![1], "the guards are needed");
}

/// The store's clock jumps far ahead, or back.
fn after_a_jump_of_the_stores_clock(by_ms: i64, removed: Removed) -> Vec<usize> {
    play(2, removed, move |scene| async move {
        scene.world.shift_calendar(by_ms);
        scene.wait(40_000).await;
        scene.registered().await
    })
}

#[test]
fn a_jump_of_the_stores_clock_kills_nobody() {
    for by_ms in [3_600_000, -3_600_000] {
        assert_eq!(after_a_jump_of_the_stores_clock(by_ms, whole()), vec![0, 1], "{by_ms}");
    }
    let left = after_a_jump_of_the_stores_clock(3_600_000, without(&[Guard::BeatStoodStill]));
    assert!(left.len() < 2, "the guard is needed");
}
