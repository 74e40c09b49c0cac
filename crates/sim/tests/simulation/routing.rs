//! Forwarding, handing over and leaving among several nodes, played on purpose: each scene with everything in place and,
//! where one rule carries it, again without that rule.

use std::time::Duration;

use conch_core::body::Body;
use conch_core::conversation::ConversationKind;
use conch_core::ids::{Epoch, Generation, Seq};
use conch_core::record::{Draft, RecordKind};
use conch_core::refusal::{Code, Refusal};
use conch_core::sequencer::Receipt;
use conch_server::events::{Event, WhyReleased};
use conch_server::link::Handed;
use conch_server::rules::Rule;
use conch_server::seams::Clock as _;
use conch_sim::executor::Halt;
use conch_sim::machine::Removed;
use conch_store::LogStore as _;
use conch_store::faulty::Call;
use futures_util::future::{Either, FusedFuture, FutureExt as _, join, join_all, select};

use crate::acts::acked;
use crate::scene::{Setting, play, play_in, whole, without_routing};

/// Many send to what nobody owns yet, through three nodes. In which epochs are they acked, how many were passed on, and what is
/// the epoch at the end?
fn many_first_claims(removed: Removed) -> (Vec<Epoch>, u64, Epoch) {
    play(3, removed, |scene| async move {
        let room = scene.fresh_room();
        let sends = (0..12).map(|number| {
            let (scene, room) = (&scene, room.clone());
            async move { acked(scene.send_to(&room, number % 3, &format!("key-{number}")).await).epoch }
        });
        let epochs = join_all(sends.collect::<Vec<_>>()).await;
        (epochs, scene.forwarded(), scene.epoch_and_owner(&room).await.0)
    })
}

#[test]
fn many_first_claims_of_one_conversation_make_one_owner() {
    let (epochs, forwarded, head) = many_first_claims(whole());
    assert_eq!(epochs, vec![Epoch(1); 12]);
    assert!(forwarded >= 8, "two of three nodes forward: {forwarded}");
    assert_eq!(head, Epoch(1));
    let (_, _, head) = many_first_claims(without_routing(Rule::ClaimsAreShared));
    assert!(head > Epoch(1), "the rule is needed");
}

/// The store says that node 1 owns it, and nobody was told; node 0 goes on as the owner it was.
#[test]
fn a_partition_while_rebalancing_leaves_one_owner_and_the_others_forward() {
    let (epochs, mut log, owner, second) = play(3, whole(), |scene| async move {
        scene.site.network.cut_one_way(&scene.machines[0].addr(), &scene.machines[1].addr());
        scene.hand_off_unheard(1).await;
        let sends = (0..9).map(|number| {
            let scene = &scene;
            async move { acked(scene.send(1 + number % 2, &format!("key-{number}")).await).epoch }
        });
        let mut epochs = join_all(sends.collect::<Vec<_>>()).await;
        let refused = scene.send(0, "behind").await.expect("an answer").expect_err("the owner is out of its reach");
        assert!(refused.retry.is_some(), "{refused}");
        scene.site.network.mend(&scene.machines[0].addr());
        epochs.push(acked(scene.send(0, "behind").await).epoch);
        (epochs, scene.log().await, scene.epoch_and_owner(&scene.room).await, scene.nodes[1].me)
    });
    assert_eq!(epochs, vec![Epoch(3); 10], "the hand-over is epoch 2, and its receiver's claim the third");
    assert_eq!(owner, (Epoch(3), Some(second)));
    log.sort();
    log.dedup();
    assert_eq!(log.len(), 11, "each once: {log:?}");
}

#[test]
fn a_hand_over_that_is_lost_on_the_way_costs_one_claim() {
    let (epoch, owner, second) = play(3, whole(), |scene| async move {
        scene.hand_off_unheard(1).await;
        scene.nodes[0].process.kill();
        let receipt = acked(scene.send(2, "second").await);
        (receipt.epoch, scene.epoch_and_owner(&scene.room).await, scene.nodes[1].me)
    });
    assert_eq!((epoch, owner), (Epoch(3), (Epoch(3), Some(second))));
}

/// Both drain and neither has seen it of the other: each says that the other should take what nobody owns.
fn each_points_at_the_other(removed: Removed) -> (Option<Result<Receipt, Refusal>>, u64) {
    play(2, removed, |scene| async move {
        join_all(scene.nodes[..2].iter().map(|node| node.router.drain(Duration::ZERO))).await;
        let answer = scene.send_to(&scene.fresh_room(), 0, "lost").await;
        (answer, scene.forwarded())
    })
}

#[test]
fn two_nodes_that_point_at_each_other_end_in_a_directive() {
    let (answer, forwarded) = each_points_at_the_other(whole());
    let refusal = answer.expect("an answer").expect_err("nobody takes it");
    assert!(refusal.retry.is_some(), "{refusal}");
    assert!(forwarded < 100, "{forwarded}");
    let (_, endless) = each_points_at_the_other(without_routing(Rule::HopsEnd));
    assert!(endless > 3 * forwarded, "the rule is needed: {endless} and {forwarded}");
}

#[test]
fn a_link_that_is_reset_while_the_owner_works_on_makes_one_record() {
    let (during, log, forwarded) = play(2, whole(), |scene| async move {
        scene.nodes[0].process.halt(Halt::Named("group commit"));
        let began = scene.world.now();
        let reset = async {
            scene.wait(500).await;
            scene.site.network.reset(&scene.machines[0].addr(), &scene.machines[1].addr());
        };
        let (during, ()) = futures_util::future::join(scene.send(1, "second"), reset).await;
        while scene.world.now().since(began) < Duration::from_secs(10) {
            scene.wait(100).await;
        }
        scene.nodes[0].process.resume(Halt::Named("group commit"));
        let receipt = acked(scene.send(1, "second").await);
        assert_eq!(receipt.epoch, Epoch(1), "the owner stayed");
        (during, scene.log().await, scene.forwarded())
    });
    let refusal = during.expect("an answer").expect_err("it is not written yet");
    assert!(refusal.retry.is_some(), "{refusal}");
    assert!(forwarded >= 3, "it was asked again under the same key: {forwarded}");
    assert_eq!(log, ["first", "second"]);
}

/// The owner hangs; its lease runs out, another one takes over. Does a node that believed in it write again?
fn after_the_owner_hung(removed: Removed) -> bool {
    play(3, removed, |scene| async move {
        assert!(scene.say(1, "second").await && scene.say(2, "third").await, "both know the owner now");
        scene.nodes[0].process.halt(Halt::Process);
        scene.wait(20_000).await;
        scene.say(1, "fourth").await && scene.say(2, "fifth").await
    })
}

#[test]
fn a_believed_owner_that_hangs_is_looked_for_again() {
    assert!(after_the_owner_hung(whole()));
    // Trouble comes at once, the view of the nodes after its death: either one is enough here.
    for rule in [Rule::TroubleForgets, Rule::DeathForgets] {
        assert!(after_the_owner_hung(without_routing(rule)), "{rule:?}");
    }
    let neither = Removed { routing: vec![Rule::TroubleForgets, Rule::DeathForgets], ..Removed::default() };
    assert!(!after_the_owner_hung(neither), "one of the rules is needed");
}

/// An owner's task makes no progress. Who can write there a lease later, and who elsewhere meanwhile?
fn a_wedged_owner(removed: Removed) -> (bool, bool) {
    play(2, removed, |scene| async move {
        let other = scene.fresh_room();
        assert!(scene.send_to(&other, 1, "elsewhere").await.is_some_and(|answer| answer.is_ok()));
        scene.nodes[0].process.halt(Halt::Named("owner"));
        let others_go_on = scene.send_to(&other, 1, "still").await.is_some_and(|answer| answer.is_ok());
        scene.wait(19_000).await;
        (scene.say(1, "second").await, others_go_on)
    })
}

#[test]
fn a_wedged_owner_is_relieved_within_a_lease_and_the_others_go_on() {
    assert_eq!(a_wedged_owner(whole()), (true, true));
    assert_eq!(a_wedged_owner(without_routing(Rule::WatchdogReleases)), (false, true), "the rule is needed");
}

#[test]
fn two_nodes_that_stop_at_once_both_end_and_the_next_message_is_immediate() {
    let (alive, took, complaints) = play(3, whole(), |scene| async move {
        join_all([scene.stop(0), scene.stop(1)]).await;
        let alive: Vec<bool> = scene.nodes.iter().map(|node| node.process.is_alive()).collect();
        (alive, scene.until_it_writes(2, "second").await, scene.complaints())
    });
    assert_eq!(alive, [false, false, true]);
    assert!(took <= 250, "{took} ms");
    assert_eq!(complaints, Vec::<String>::new());
}

#[test]
fn the_last_node_ends_cleanly() {
    let (alive, rows, head, complaints) = play(1, whole(), |scene| async move {
        scene.stop(0).await;
        let head = scene.epoch_and_owner(&scene.room).await;
        let (conversation, why) = (scene.room.id.clone(), WhyReleased::Draining);
        let released = Event::Released { conversation, epoch: Epoch(1), why };
        assert!(scene.events(0).contains(&released), "operators are told");
        (scene.nodes[0].process.is_alive(), scene.rows().await.len(), head, scene.complaints())
    });
    assert_eq!((alive, rows, head), (false, 0, (Epoch(1), None)));
    assert_eq!(complaints, Vec::<String>::new());
}

#[test]
fn what_another_one_has_by_now_is_not_said_to_be_released() {
    let events = play(2, whole(), |scene| async move {
        scene.hand_off_unheard(1).await;
        scene.nodes[0].router.shut_down().await;
        scene.events(0)
    });
    assert!(!events.iter().any(|event| matches!(event, Event::Released { .. })), "{events:?}");
}

/// A hand-over is heard of that was made long ago.
#[test]
fn an_old_hand_over_makes_no_owner() {
    let (stale, fresh) = play(2, whole(), |scene| async move {
        let log = scene.site.recorder.log().await.expect("the memory store does not fail");
        let (last_seq, first_seq) = (Seq(1), Seq(2));
        let handed = |epoch| Handed {
            conversation: scene.room.id.clone(),
            epoch,
            generation: Generation(1),
            last_seq,
            first_seq,
            log: log.clone(),
        };
        let (router, from) = (&scene.nodes[1].router, scene.nodes[0].node.me);
        router.adopt(from, handed(Epoch(1))).await;
        let stale = router.active(&scene.room).is_some();
        scene.hand_off_unheard(1).await;
        router.adopt(from, handed(Epoch(2))).await;
        (stale, router.active(&scene.room).is_some())
    });
    assert_eq!((stale, fresh), (false, true));
}

/// Who owns a new conversation that comes in on a draining node, and the one that it owned itself? `true`: that node.
fn through_a_draining_node(removed: Removed) -> (bool, bool) {
    play(2, removed, |scene| async move {
        // The store does not know that it drains, and would let it claim.
        scene.nodes[0].router.drain(Duration::from_secs(1)).await;
        let (room, me) = (scene.fresh_room(), Some(scene.nodes[0].me));
        assert!(scene.say(0, "second").await, "what it gave away it passes on");
        let answer = scene.send_to(&room, 0, "new").await;
        let new_is_mine = answer.is_some_and(|answer| answer.is_ok()) && scene.epoch_and_owner(&room).await.1 == me;
        (new_is_mine, scene.epoch_and_owner(&scene.room).await.1 == me)
    })
}

#[test]
fn a_draining_node_claims_nothing_and_passes_on() {
    assert_eq!(through_a_draining_node(whole()), (false, false));
    let mutant = through_a_draining_node(without_routing(Rule::DrainingClaimsNothing));
    assert_eq!(mutant, (true, false), "the rule is needed");
}

/// The home of a conversation is lost. What does a node elsewhere answer, and was it owned where it may not be?
fn without_its_home(allowed: Vec<&'static str>, removed: Removed) -> (Option<Result<Receipt, Refusal>>, Vec<String>) {
    let regions = vec!["a", "b"];
    play_in(Setting { regions, allowed, home: "a", ..Setting::of(2, removed) }, |scene| async move {
        scene.nodes[0].process.kill();
        scene.wait(5_000).await;
        (scene.send(1, "second").await, scene.site.recorder.trespasses())
    })
}

#[test]
fn strict_residency_accepts_an_outage_and_another_region_takes_over_where_it_may() {
    let (answer, trespasses) = without_its_home(vec!["a"], whole());
    let refusal = answer.expect("an answer").expect_err("it may only be owned in a");
    assert_eq!(refusal.code, Code::ConversationUnavailable);
    assert!(refusal.retry.is_some() && refusal.detail.contains("regions (a)"), "{refusal}");
    assert_eq!(trespasses, Vec::<String>::new());
    let (answer, trespasses) = without_its_home(Vec::new(), whole());
    assert_eq!((acked(answer).epoch, trespasses), (Epoch(2), Vec::new()));
    let (_, trespasses) = without_its_home(vec!["a"], without_routing(Rule::ResidencyIsKept));
    assert_eq!(trespasses.len(), 1, "the rule is needed");
}

/// A node believes in an owner that has given everything away and is closed, with its link still open. What does it answer?
fn through_a_peer_that_is_closed(removed: Removed) -> Option<Result<Receipt, Refusal>> {
    play(3, removed, |scene| async move {
        assert!(scene.say(1, "second").await, "it knows the owner now");
        // So that another one takes it.
        scene.site.network.cut_one_way(&scene.machines[0].addr(), &scene.machines[1].addr());
        scene.nodes[0].router.drain(Duration::ZERO).await;
        scene.site.network.mend(&scene.machines[0].addr());
        scene.nodes[0].router.shut_down().await;
        assert_eq!(scene.epoch_and_owner(&scene.room).await.1, Some(scene.nodes[2].me));
        scene.send(1, "third").await
    })
}

#[test]
fn a_peer_that_is_closed_is_asked_past() {
    acked(through_a_peer_that_is_closed(whole()));
    let answer = through_a_peer_that_is_closed(without_routing(Rule::DrainingMoves));
    let refusal = answer.expect("an answer").expect_err("the rule is needed");
    assert_eq!(refusal.code, Code::Draining);
}

/// Nobody watches a session, and in the middle of its turn the store's answer to a call of its owner is lost, or the one that
/// takes it over cannot read it. How does its log end?
fn a_turn_in_doubt(lost: Lost, removed: Removed) -> RecordKind {
    play_in(Setting { kind: ConversationKind::Session, ..Setting::of(2, removed) }, move |scene| async move {
        // The turn of the first message is over.
        scene.wait(30_000).await;
        assert!(scene.say(0, "second").await);
        scene.wait(60).await;
        match lost {
            Lost::Commit => scene.lose_an_answer(0, Call::Append),
            Lost::HandedOver => {
                scene.lose_an_answer(1, Call::Conversation);
                scene.nodes[0].router.drain(Duration::ZERO).await;
            }
            Lost::HandOver => {
                // Nothing was changed.
                scene.refuse_once(0, Call::HandOff);
                scene.nodes[0].router.drain(Duration::ZERO).await;
            }
            Lost::HandOverDone => {
                scene.lose_an_answer(0, Call::HandOff);
                scene.nodes[0].router.drain(Duration::ZERO).await;
            }
            Lost::Telling => {
                scene.slow_down(0, Call::HandOff, Duration::from_millis(500));
                let refused = async {
                    scene.wait(200).await;
                    scene.site.network.refuse(&scene.machines[1].addr());
                    scene.wait(3_000).await;
                    scene.site.network.mend(&scene.machines[1].addr());
                };
                join(scene.nodes[0].router.drain(Duration::ZERO), refused).await;
            }
            Lost::Claim => {
                scene.lose_an_answer(1, Call::Claim);
                scene.nodes[0].process.kill();
            }
        }
        assert_ne!(scene.kinds().await.last(), Some(&RecordKind::TurnCompleted), "it is in the middle");
        scene.wait(60_000).await;
        scene.kinds().await.pop().expect("it has records")
    })
}

/// What is lost in [`a_turn_in_doubt`].
#[derive(Debug, Clone, Copy)]
enum Lost {
    /// The answer to the owner's next commit.
    Commit,
    /// The read of the one that it is handed to.
    HandedOver,
    /// The answer to the claim of the one that takes it over.
    Claim,
    /// The hand-over itself, which is not done.
    HandOver,
    /// The answer to the hand-over, which is done.
    HandOverDone,
    /// What the one that it is handed to is told.
    Telling,
}

#[test]
fn a_turn_ends_though_its_reign_ended_in_doubt_and_nobody_comes() {
    let all = [Lost::Commit, Lost::HandedOver, Lost::HandOver, Lost::HandOverDone, Lost::Telling, Lost::Claim];
    for lost in all {
        assert_eq!(a_turn_in_doubt(lost, whole()), RecordKind::TurnCompleted, "{lost:?}");
        let mutant = a_turn_in_doubt(lost, without_routing(Rule::DoubtLooksAgain));
        assert_ne!(mutant, RecordKind::TurnCompleted, "the rule is needed: {lost:?}");
    }
}

/// Three nodes are restarted one after the other, while messages come in through the others. What was refused, how many
/// milliseconds did the slowest take, and how many were written?
fn a_rolling_restart(removed: Removed) -> (Vec<String>, u128, usize) {
    play(3, removed, |scene| async move {
        let (mut refused, mut slowest, mut number) = (Vec::new(), 0, 0);
        for restarted in 0..3 {
            let mut stopping = Box::pin(scene.stop(restarted).fuse());
            for step in 0..200_u32 {
                let others: Vec<_> = (0..3).filter(|node| *node != restarted).collect();
                let through = scene.machines[others[step as usize % 2]].running().expect("only one is restarted");
                let body = Body::of(&serde_json::json!({ "text": "." }));
                let key = format!("key-{number}");
                let (sender, id) = ("alice".parse().expect("valid"), key.parse().expect("valid"));
                let draft = Draft::new(RecordKind::Message, sender, id, body);
                let began = scene.world.now();
                let sending = async {
                    if let Err(refusal) = through.router.append(&scene.room, vec![draft]).await {
                        refused.push(format!("{key}: {refusal}"));
                    }
                };
                tick_beside(&mut stopping, sending).await;
                slowest = slowest.max(scene.world.now().since(began).as_millis());
                tick_beside(&mut stopping, scene.wait(20)).await;
                number += 1;
            }
            drop(stopping);
            scene.machines[restarted].start();
            while scene.machines[restarted].running().is_none() {
                scene.wait(10).await;
            }
            scene.wait(2_000).await;
        }
        (refused, slowest, scene.log().await.len())
    })
}

#[test]
fn a_rolling_restart_refuses_no_message() {
    let (refused, slowest, written) = a_rolling_restart(whole());
    assert_eq!(refused, Vec::<String>::new());
    assert!(slowest <= 250, "{slowest} ms");
    assert_eq!(written, 601, "each of them, and the first of the scene");
    let (refused, ..) = a_rolling_restart(without_routing(Rule::MovingAsksAgain));
    assert!(!refused.is_empty(), "the rule is needed");
}

/// Runs one thing to its end, and another one, which may have ended, beside it as far as that takes.
async fn tick_beside(beside: &mut (impl FusedFuture<Output = ()> + Unpin), main: impl Future<Output = ()>) {
    let main = std::pin::pin!(main);
    if let Either::Right(((), main)) = select(main, beside).await {
        main.await;
    }
}
