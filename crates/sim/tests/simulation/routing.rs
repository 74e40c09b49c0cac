//! Forwarding, following and leaving among several nodes, played on purpose: each scene with everything in place and, where
//! one rule carries it, again without that rule.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use conch_core::body::Body;
use conch_core::ids::{ConvRef, Epoch, Generation, Incarnation, Seq};
use conch_core::record::{Draft, RecordKind};
use conch_core::refusal::{Code, Refusal};
use conch_core::sequencer::Receipt;
use conch_server::frame::Frame;
use conch_server::hub::sink::{FrameSink, Joined, Push, Sink};
use conch_server::hub::{Join, Session};
use conch_server::rules::Rule;
use conch_server::seams::Clock as _;
use conch_sim::executor::Halt;
use conch_sim::machine::Removed;
use conch_sim::scenario::TIMING;
use conch_store::{Batch, Direction, DueChange, Held, LeaseStore as _, LogStore as _, RangeQuery};
use futures_util::future::{BoxFuture, Either, FusedFuture, FutureExt as _, join_all, select};

use crate::scene::{Scene, Setting, play, play_in, whole, without_routing};

/// A session that takes everything and remembers the keys of the messages that it was shown.
#[derive(Clone, Default)]
pub(crate) struct Viewer(Arc<Mutex<Vec<String>>>);

impl FrameSink for Viewer {
    fn push(&self, frame: &Arc<Frame>) -> Push {
        if frame.event() == "message" {
            let json: serde_json::Value = serde_json::from_str(frame.json()).expect("frames hold JSON");
            let key = json["client_msg_id"].as_str().expect("a message has a key").to_owned();
            self.0.lock().expect("one thread").push(key);
        }
        Push::Accepted
    }

    fn room(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    fn end(&self, _reason: &Refusal) {}
}

impl Sink for Viewer {
    fn joined(&self, _joined: &Joined) {}
}

impl Viewer {
    pub(crate) fn saw(&self) -> Vec<String> {
        self.0.lock().expect("one thread").clone()
    }
}

impl Scene {
    /// Somebody watches through a node, from the beginning.
    pub(crate) async fn watch(&self, node: usize) -> (Viewer, Session) {
        self.watch_room(&self.room, node).await
    }

    pub(crate) async fn watch_room(&self, room: &ConvRef, node: usize) -> (Viewer, Session) {
        let viewer = Viewer::default();
        let sub = "bob".parse().expect("valid");
        let join = Join { sink: Arc::new(viewer.clone()), sub, name: None, after: Some(Seq(0)), log: None };
        let session = self.nodes[node].hubs.join(room, join).await.expect("a calm store lets it in");
        (viewer, session)
    }

    /// A channel that nobody has claimed yet.
    fn fresh_room(&self) -> ConvRef {
        self.site.conversations[1].clone()
    }

    pub(crate) async fn epoch_and_owner(&self, room: &ConvRef) -> (Epoch, Option<Incarnation>) {
        let info = self.site.recorder.conversation(room).await.expect("the memory store does not fail");
        let head = info.expect("it was created").head.expect("it was claimed");
        (head.epoch, head.owner)
    }

    /// The keys of the log, in its order.
    async fn log(&self) -> Vec<String> {
        let (direction, conversation) = (Direction::After(Seq(0)), self.room.clone());
        let query = RangeQuery { conversation, direction, limit: 500, kinds: Vec::new() };
        let page = self.site.recorder.range(&query).await.expect("the memory store does not fail");
        let keys = page.expect("it was created").records.into_iter().filter_map(|record| record.client_msg_id);
        keys.map(|key| key.to_string()).collect()
    }

    /// Passes the channel on as its first owner would, in the store alone: nobody is told.
    async fn hand_off_unheard(&self, to: usize) {
        let held = Held { conversation: self.room.key, epoch: Epoch(1), me: self.nodes[0].me };
        let margin = Duration::from_secs(1);
        let armed = self.site.recorder.hand_off(&held, self.nodes[to].me, Seq(2), margin).await;
        assert!(armed.expect("the memory store does not fail").is_some(), "the first node owned it");
    }

    /// Restarts a node in order, and nobody starts it again.
    async fn stop(&self, node: usize) {
        self.machines[node].drain(Duration::from_secs(1)).await;
        self.machines[node].shut_down(Duration::from_secs(5)).await;
    }

    fn forwarded(&self) -> u64 {
        self.nodes.iter().map(|node| node.node.metrics.forwarded.get()).sum()
    }

    fn complaints(&self) -> Vec<String> {
        self.site.complaints.lock().expect("one thread").clone()
    }
}

fn acked(answer: Option<Result<Receipt, Refusal>>) -> Receipt {
    answer.expect("an answer").expect("an ack")
}

#[test]
fn many_first_claims_of_one_conversation_make_one_owner() {
    let (epochs, forwarded, head) = play(3, whole(), |scene| async move {
        let room = scene.fresh_room();
        let sends = (0..12).map(|number| {
            let (scene, room) = (&scene, room.clone());
            async move { acked(scene.send_to(&room, number % 3, &format!("key-{number}")).await).epoch }
        });
        let epochs = join_all(sends.collect::<Vec<_>>()).await;
        (epochs, scene.forwarded(), scene.epoch_and_owner(&room).await)
    });
    assert_eq!(epochs, vec![Epoch(1); 12]);
    assert!(forwarded >= 8, "two of three nodes forward: {forwarded}");
    assert_eq!(head.0, Epoch(1));
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
    assert!(!after_the_owner_hung(without_routing(Rule::TroubleForgets)), "the rule is needed");
}

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
        (scene.nodes[0].process.is_alive(), scene.rows().await.len(), head, scene.complaints())
    });
    assert_eq!((alive, rows, head), (false, 0, (Epoch(1), None)));
    assert_eq!(complaints, Vec::<String>::new());
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

#[test]
fn a_rolling_restart_refuses_no_message() {
    let (refused, slowest, log) = play(3, whole(), |scene| async move {
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
        (refused, slowest, scene.log().await)
    });
    assert_eq!(refused, Vec::<String>::new());
    assert!(slowest <= 250, "{slowest} ms");
    assert_eq!(log.len(), 500, "a page of the log");
}

/// Runs one thing to its end, and another one, which may have ended, beside it as far as that takes.
async fn tick_beside(beside: &mut (impl FusedFuture<Output = ()> + Unpin), main: impl Future<Output = ()>) {
    let main = std::pin::pin!(main);
    if let Either::Right(((), main)) = select(main, beside).await {
        main.await;
    }
}
