//! Failures of messages and sockets, and everybody at once, named by their classes. Each is played with everything in place
//! and, where something carries it, again without that.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use conch_core::ids::Seq;
use conch_core::refusal::Refusal;
use conch_core::shed::{Permille, Rung};
use conch_server::frame::Frame;
use conch_server::hub::sink::{FrameSink, Joined, Push, Sink};
use conch_server::hub::{Join, Session};
use conch_server::router::Sighting;
use conch_server::rules::Rule;
use conch_server::seams::Clock as _;
use conch_sim::machine::Removed;
use conch_store::faulty::Call;
use conch_store::memory::Mutant;
use futures_util::future::{BoxFuture, join, join_all};

use crate::acts::Viewer;
use crate::scene::{Scene, Setting, play, play_in, whole, without_routing};

/// The keys that [`Scene::say_many`] sends.
fn keys(from: usize, to: usize) -> Vec<String> {
    (from..to).map(|number| format!("k{number}")).collect()
}

impl Scene {
    async fn say_many(&self, node: usize, from: usize, to: usize) {
        for key in keys(from, to) {
            assert!(self.say(node, &key).await, "a calm store takes it");
        }
    }

    /// So many sessions of one node at once.
    async fn watch_many(&self, node: usize, after: &[u64]) -> Vec<(Viewer, Session)> {
        let joins = after.iter().map(|after| self.watch_after(&self.room, node, Seq(*after)));
        let joined = join_all(joins.collect::<Vec<_>>()).await.into_iter();
        joined.map(|(viewer, session)| (viewer, session.expect("a calm store lets it in"))).collect()
    }

    /// How many are connected, as this node knows.
    async fn connected(&self, node: usize) -> usize {
        match self.nodes[node].hubs.sight(&self.room).await {
            Sighting::Present(present) => present.connected,
            Sighting::Nobody | Sighting::Unknown => 0,
        }
    }

    /// A worker of this node is busy all the time, and late, until the node sheds as this rung says.
    async fn press(&self, node: usize, rung: Rung) {
        let pressure = &self.nodes[node].node.pressure;
        while pressure.rung() < rung {
            pressure.busy(0, Duration::from_millis(100));
            pressure.late(0, Permille::ALL);
            self.wait(50).await;
        }
    }
}

/// Somebody comes back to a hub whose ring has gone on. What does it see?
fn back_after_the_ring_went_on(removed: Removed) -> Vec<String> {
    let mut setting = Setting::of(2, removed);
    setting.limits.hub.ring_records = 8;
    play_in(setting, |scene| async move {
        let (_stays, _session) = scene.watch(1).await;
        scene.wait(500).await;
        scene.say_many(0, 0, 30).await;
        scene.wait(500).await;
        let back = scene.watch_many(1, &[1]).await;
        scene.wait(2_000).await;
        back[0].0.saw()
    })
}

#[test]
fn cursor_older_than_the_ring() {
    assert_eq!(back_after_the_ring_went_on(whole()), keys(0, 30));
    let mutant = back_after_the_ring_went_on(without_routing(Rule::RingIsWhole));
    assert_eq!(mutant, keys(22, 30), "the rule is needed");
}

/// Somebody resumes a position of another history. How many resyncs, and which messages, is it shown?
fn with_a_position_of_another_log(removed: Removed) -> (usize, Vec<String>) {
    play(1, removed, |scene| async move {
        scene.say_many(0, 0, 5).await;
        let viewer = Viewer::default();
        let join = Join {
            sink: Arc::new(viewer.clone()),
            sub: "bob".parse().expect("valid"),
            name: None,
            after: Some(Seq(2)),
            log: Some("sim.99".to_owned()),
        };
        let _session = scene.nodes[0].hubs.join(&scene.room, join).await.expect("a calm store lets it in");
        scene.say_many(0, 5, 6).await;
        scene.wait(500).await;
        (viewer.saw_events("resync"), viewer.saw())
    })
}

#[test]
fn epoch_and_position_mismatched() {
    assert_eq!(with_a_position_of_another_log(whole()), (1, keys(5, 6)));
    let mutant = with_a_position_of_another_log(without_routing(Rule::OtherLogsAreVoid));
    assert_eq!(mutant, (0, keys(1, 6)), "the rule is needed");
}

#[test]
fn reader_passes_an_uncommitted_write() {
    let (early, late) = play(2, whole(), |scene| async move {
        let (viewer, _session) = scene.watch(1).await;
        scene.slow_down(0, Call::Append, Duration::from_secs(1));
        let first = scene.say(0, "n");
        let second = async {
            scene.wait(10).await;
            scene.say(0, "n+1").await
        };
        let looking = async {
            scene.wait(500).await;
            (viewer.saw(), scene.log().await)
        };
        let ((one, two), early) = join(join(first, second), looking).await;
        assert!(one && two, "both are written in the end");
        scene.wait(500).await;
        (early, (viewer.saw(), scene.log().await))
    });
    let texts = |keys: &[&str]| keys.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(early, (texts(&["first"]), texts(&["first"])), "nobody sees what is not committed");
    assert_eq!(late, (texts(&["first", "n", "n+1"]), texts(&["first", "n", "n+1"])));
}

/// What becomes of the first try.
#[derive(Clone, Copy)]
enum FirstTry {
    /// Its owner is killed before it is committed.
    Dies,
    /// It is committed, and its answer is lost.
    Lands,
}

/// A write is tried, its owner dies, and it is tried twice again, under the same key.
fn tried_again(first: FirstTry, mutant: Option<Mutant>) -> Vec<String> {
    let setting = Setting { mutant, ..Setting::of(3, whole()) };
    play_in(setting, move |scene| async move {
        match first {
            FirstTry::Dies => scene.slow_down(0, Call::Append, Duration::from_secs(30)),
            FirstTry::Lands => scene.lose_an_answer(0, Call::Append),
        }
        let killing = async {
            scene.wait(100).await;
            scene.nodes[0].process.kill();
        };
        let (answer, ()) = join(scene.send(0, "k"), killing).await;
        assert!(!matches!(answer, Some(Ok(_))) || matches!(first, FirstTry::Lands), "it was not committed");
        scene.wait(20_000).await;
        assert!(scene.say(1, "k").await, "the retry is accepted");
        // Whoever owns it now has the key in its memory.
        let (_, owner) = scene.epoch_and_owner(&scene.room).await;
        let owner = (1..3).find(|node| Some(scene.nodes[*node].me) == owner).expect("one of both");
        scene.nodes[owner].process.kill();
        scene.wait(20_000).await;
        assert!(scene.say(3 - owner, "k").await, "and so is another one");
        scene.log().await
    })
}

#[test]
fn dedup_before_commit() {
    for first in [FirstTry::Dies, FirstTry::Lands] {
        assert_eq!(tried_again(first, None), ["first", "k"]);
        assert!(tried_again(first, Some(Mutant::DedupOff)).len() > 2, "dedup is needed");
    }
}

/// Takes a few frames, and then reads no more.
#[derive(Default)]
struct Stalled(Mutex<usize>);

impl FrameSink for Stalled {
    fn push(&self, _frame: &Arc<Frame>) -> Push {
        let mut taken = self.0.lock().expect("one thread");
        *taken += 1;
        if *taken > 5 { Push::Behind } else { Push::Accepted }
    }

    fn room(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }

    fn end(&self, _reason: &Refusal) {}
}

impl Sink for Stalled {
    fn joined(&self, _joined: &Joined) {}
}

#[test]
fn slow_consumer_stalls_the_hub() {
    let (saw, pushes) = play(2, whole(), |scene| async move {
        let viewers = scene.watch_many(1, &[0; 99]).await;
        let stalled = Arc::new(Stalled::default());
        let sub = "carol".parse().expect("valid");
        let join = Join { sink: stalled.clone(), sub, name: None, after: Some(Seq(0)), log: None };
        let _session = scene.nodes[1].hubs.join(&scene.room, join).await.expect("a calm store lets it in");
        scene.say_many(0, 0, 50).await;
        scene.wait(200).await;
        let pushes = *stalled.0.lock().expect("one thread");
        (viewers.iter().map(|(viewer, _)| viewer.saw().len()).collect::<Vec<_>>(), pushes)
    });
    assert_eq!(saw, [51; 99], "all of it, at once");
    assert!(pushes < 20, "it is left alone until it has room: {pushes}");
}

/// Many leave at once, while messages are published. What is one who stays shown of presence, and of messages?
fn when_many_leave(removed: Removed) -> (usize, Vec<String>) {
    play(2, removed, |scene| async move {
        let crowd = scene.watch_many(1, &[0; 300]).await;
        let (stays, _session) = scene.watch(1).await;
        scene.wait(1_000).await;
        let before = stays.saw_events("presence_diff");
        drop(crowd);
        scene.say_many(0, 0, 10).await;
        scene.wait(1_000).await;
        assert_eq!(scene.connected(1).await, 1);
        (stays.saw_events("presence_diff") - before, stays.saw())
    })
}

fn first_and(from: usize, to: usize) -> Vec<String> {
    [vec!["first".to_owned()], keys(from, to)].concat()
}

#[test]
fn leaving_is_o_n() {
    let (diffs, saw) = when_many_leave(whole());
    assert_eq!((diffs, saw), (1, first_and(0, 10)), "one message for all who left in a window");
    let (mutant, _) = when_many_leave(without_routing(Rule::PresenceGathers));
    assert!(mutant > 50, "the rule is needed: {mutant}");
}

/// Everybody comes and goes for two seconds. What is one who stays shown of presence, and of messages?
fn while_everybody_flips(removed: Removed) -> (usize, Vec<String>) {
    play(2, removed, |scene| async move {
        let (stays, _session) = scene.watch(1).await;
        for round in 0..20 {
            let crowd = scene.watch_many(1, &[1; 40]).await;
            scene.say_many(0, round, round + 1).await;
            drop(crowd);
            scene.wait(100).await;
        }
        scene.wait(500).await;
        (stays.saw_events("presence_diff"), stays.saw())
    })
}

#[test]
fn presence_storm() {
    let (diffs, saw) = while_everybody_flips(whole());
    assert_eq!(saw, first_and(0, 20), "messages are unaffected");
    assert!(diffs <= 60, "a few windows a round: {diffs}");
    let (mutant, saw) = while_everybody_flips(without_routing(Rule::PresenceGathers));
    assert!(mutant > 200 && saw == first_and(0, 20), "the rule is needed: {mutant}");
}

/// A gateway comes under more and more pressure. What does a session see, in all, and how far does it go?
fn under_pressure(removed: Removed) -> ([usize; 3], Vec<String>) {
    play(1, removed, |scene| async move {
        let (viewer, session) = scene.watch(0).await;
        for (number, rung) in Rung::ALL.into_iter().enumerate().skip(1) {
            if scene.nodes[0].node.rules.hold(Rule::PressureSheds) {
                scene.press(0, rung).await;
            }
            scene.wait(500).await;
            session.typing("alice".parse().expect("valid"), None);
            let guest = scene.watch(0).await;
            scene.say_many(0, number, number + 1).await;
            scene.wait(100).await;
            drop(guest);
        }
        scene.wait(500).await;
        let shown = ["typing", "presence_diff", "presence_count"].map(|event| viewer.saw_events(event));
        (shown, viewer.saw())
    })
}

#[test]
fn a_gateway_under_pressure_sheds_in_the_stated_order_and_never_messages() {
    let ([typing, diffs, counts], saw) = under_pressure(whole());
    assert_eq!(saw, first_and(1, 7));
    assert_eq!((typing, counts), (0, 1), "counts have a rung of their own");
    let ([typing, all_diffs, counts], saw) = under_pressure(without_routing(Rule::PressureSheds));
    assert_eq!((typing, counts, saw), (6, 0, first_and(1, 7)));
    assert!(diffs < all_diffs, "the rule is needed: {diffs} of {all_diffs}");
}

/// A gateway dies, and its sessions come to another one at once, with two positions. How many pages does that one read, and
/// how many of them have everything?
fn when_a_gateway_dies(removed: Removed) -> (u64, usize) {
    play(3, removed, |scene| async move {
        let crowd = scene.watch_many(1, &[0; 200]).await;
        scene.say_many(0, 0, 20).await;
        scene.wait(500).await;
        scene.nodes[1].process.kill();
        scene.say_many(0, 20, 40).await;
        let positions: Vec<u64> = (0..200).map(|number| if number % 2 == 0 { 21 } else { 11 }).collect();
        let back = scene.watch_many(2, &positions).await;
        scene.wait(3_000).await;
        let is_whole = |((viewer, _), after): (&(Viewer, Session), &u64)| {
            viewer.saw() == keys(usize::try_from(*after).expect("small") - 1, 40)
        };
        let whole = back.iter().zip(&positions).filter(|pair| is_whole(*pair)).count();
        drop(crowd);
        (scene.nodes[2].node.metrics.catch_up_reads.get(), whole)
    })
}

#[test]
fn everybody_reconnects_together() {
    assert_eq!(when_a_gateway_dies(whole()), (2, 200), "one read for each position");
    let (mutant, whole) = when_a_gateway_dies(without_routing(Rule::ReadsAreShared));
    assert!(mutant >= 200 && whole == 200, "the rule is needed: {mutant}");
}

/// Forty sessions need forty different reads of a gateway that may do one a second. After these many milliseconds: how many
/// have everything, how many were told to resync instead, and how many wait in silence?
fn when_reads_are_few(after_ms: u64, removed: Removed) -> (usize, usize, usize) {
    let mut setting = Setting::of(2, removed);
    setting.limits.hub.catch_up_reads_per_s = 1;
    play_in(setting, move |scene| async move {
        scene.say_many(0, 0, 60).await;
        let positions: Vec<u64> = (1..=40).collect();
        let back = scene.watch_many(1, &positions).await;
        scene.wait(after_ms).await;
        let (mut caught_up, mut resynced) = (0, 0);
        for ((viewer, _), after) in back.iter().zip(&positions) {
            let everything = keys(usize::try_from(*after).expect("small") - 1, 60);
            match (viewer.saw_events("resync"), viewer.saw_events("caught_up")) {
                (0, 1) if viewer.saw() == everything => caught_up += 1,
                (1, 1) if viewer.saw().is_empty() => resynced += 1,
                (0, 0) => {}
                other => panic!("position {after}: {other:?}, {} messages", viewer.saw().len()),
            }
        }
        (caught_up, resynced, back.len() - caught_up - resynced)
    })
}

#[test]
fn a_catch_up_waits_for_its_turn_and_then_resyncs() {
    let (caught_up, resynced, silent) = when_reads_are_few(9_000, whole());
    assert!((9..=12).contains(&caught_up) && resynced == 0 && silent > 0, "{caught_up} {resynced} {silent}");
    let (caught_up, resynced, silent) = when_reads_are_few(11_000, whole());
    assert!((11..=13).contains(&caught_up) && silent == 0, "{caught_up} {resynced} {silent}");
    let patient = when_reads_are_few(11_000, without_routing(Rule::CatchUpGivesUp));
    assert!(patient.1 == 0 && patient.2 > 20, "the rule is needed: {patient:?}");
    let unlimited = when_reads_are_few(1_000, without_routing(Rule::CatchUpIsLimited));
    assert_eq!(unlimited, (40, 0, 0), "the rule is needed");
}

/// A gateway with three of four sessions is killed. How many are connected a lease later, as another node knows?
fn after_a_gateway_was_killed(removed: Removed) -> (usize, usize) {
    play(3, removed, |scene| async move {
        let crowd = scene.watch_many(1, &[0; 3]).await;
        let (_stays, _session) = scene.watch(2).await;
        scene.wait(1_000).await;
        let before = scene.connected(2).await;
        let began = scene.world.now();
        scene.nodes[1].process.kill();
        let lease = scene.site.limits.timing.ttl;
        while scene.world.now().since(began) < lease {
            scene.wait(500).await;
        }
        drop(crowd);
        (before, scene.connected(2).await)
    })
}

#[test]
fn zombie_presence() {
    assert_eq!(after_a_gateway_was_killed(whole()), (4, 1));
    assert_eq!(after_a_gateway_was_killed(without_routing(Rule::LostFollowersLeave)), (4, 4), "the rule is needed");
}
