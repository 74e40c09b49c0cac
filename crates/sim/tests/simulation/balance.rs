//! Evening out, and going home, played on purpose: with everything in place and, where one rule carries it, again without it.

use std::time::Duration;

use conch_core::ids::{ConvRef, Incarnation, Seq};
use conch_core::lease::LeaseTiming;
use conch_server::rules::Rule;
use conch_sim::executor::Halt;
use conch_sim::machine::Removed;
use conch_store::{Batch, ClaimOutcome, ClaimRequest, DueChange, DueWhy, LeaseStore as _, LogStore as _, Registration};

use crate::acts::Viewer;
use crate::scene::{Scene, Setting, play_in, whole, without_routing};

/// Hand-overs a second in these scenes, and so many at once.
const PER_S: u32 = 4;
/// Nothing is written for so long: what was written before is idle.
const IDLE_MS: u64 = 6_000;

fn setting(machines: usize, rooms: usize, late: usize, removed: Removed) -> Setting {
    let mut setting = Setting { rooms, late, ..Setting::of(machines, removed) };
    setting.limits.owner.rebalance_per_s = PER_S;
    setting
}

impl Scene {
    fn owned(&self) -> Vec<usize> {
        self.nodes.iter().map(|node| node.router.owned()).collect()
    }

    fn handed_over(&self) -> u64 {
        self.nodes.iter().map(|node| node.node.metrics.rebalanced.get()).sum()
    }

    /// Something is written in each channel, through these nodes in turn.
    async fn write_everywhere(&self, through: &[usize], key: &str) {
        for (number, room) in self.site.conversations.iter().enumerate() {
            let answer = self.send_to(room, through[number % through.len()], key).await;
            assert!(answer.is_some_and(|answer| answer.is_ok()), "{key} in {} is acknowledged", room.id);
        }
    }

    async fn owner_of(&self, room: &ConvRef) -> Option<Incarnation> {
        self.epoch_and_owner(room).await.1
    }
}

/// What was seen while a node joined two that own thirty each.
struct Joined {
    /// Owned by the new one soon after it started.
    soon: usize,
    owned: Vec<usize>,
    handed_over: u64,
    /// Handed over in the minute after that.
    later: u64,
    /// What viewers of some channels saw.
    saw: Vec<Vec<String>>,
    moved_and_watched: usize,
}

fn a_node_joins(removed: Removed) -> Joined {
    play_in(setting(3, 60, 1, removed), |mut scene| async move {
        scene.write_everywhere(&[0, 1], "begin").await;
        let watched: Vec<ConvRef> = scene.site.conversations.iter().step_by(3).cloned().collect();
        let (mut viewers, mut before): (Vec<(Viewer, _)>, _) = (Vec::new(), Vec::new());
        for (number, room) in watched.iter().enumerate() {
            let (viewer, session) = scene.watch_room(room, number % 2).await;
            viewers.push((viewer, session.expect("a calm store lets it in")));
            before.push(scene.owner_of(room).await);
        }
        scene.wait(IDLE_MS).await;
        assert_eq!(scene.owned(), [30, 30]);
        scene.start(2).await;
        scene.wait(2_500).await;
        let soon = scene.nodes[2].router.owned();
        for step in 0..80_usize {
            let room = &scene.site.conversations[step * 7 % 60];
            let key = format!("step-{step}");
            let answer = scene.send_to(room, step % 3, &key).await;
            assert!(answer.is_some_and(|answer| answer.is_ok()), "{key} is acknowledged");
            scene.wait(300).await;
        }
        scene.wait(20_000).await;
        let (owned, handed_over) = (scene.owned(), scene.handed_over());
        scene.wait(60_000).await;
        scene.write_everywhere(&[2, 0, 1], "end").await;
        scene.wait(3_000).await;
        let mut moved_and_watched = 0;
        for (room, before) in watched.iter().zip(before) {
            moved_and_watched += usize::from(scene.owner_of(room).await != before);
        }
        let saw = viewers.iter().map(|(viewer, _)| viewer.saw()).collect();
        Joined { soon, owned, handed_over, later: scene.handed_over() - handed_over, saw, moved_and_watched }
    })
}

#[test]
fn a_node_that_joins_is_filled_slowly_and_nobody_misses_anything() {
    let joined = a_node_joins(whole());
    assert!((1..=8).contains(&joined.soon), "slowly: {}", joined.soon);
    assert_eq!(joined.owned.iter().sum::<usize>(), 60);
    assert!(joined.owned.iter().all(|owned| (17..=23).contains(owned)), "evenly: {:?}", joined.owned);
    assert!((17..=24).contains(&joined.handed_over), "each once: {}", joined.handed_over);
    assert_eq!(joined.later, 0, "then nothing moves");
    assert!(joined.moved_and_watched > 0, "watched ones are moved, too");
    for (number, saw) in joined.saw.iter().enumerate() {
        let room = number * 3;
        let steps = (0..80).filter(|step| step * 7 % 60 == room).map(|step| format!("step-{step}"));
        let first = (room == 0).then(|| "first".to_owned());
        let whole = first.into_iter().chain(["begin".to_owned()]).chain(steps).chain(["end".to_owned()]);
        assert_eq!(*saw, whole.collect::<Vec<_>>(), "channel {room}, without a gap");
    }
    let wave = a_node_joins(without_routing(Rule::EveningOutIsGradual)).soon;
    assert!(wave >= 10, "the rule is needed: {wave}");
}

/// What the third node tells is not heard: the others go on believing that it owns nothing. How many does it get at most, and
/// how many hand-overs are there?
fn old_words(removed: Removed) -> (usize, u64) {
    play_in(setting(3, 60, 1, removed), |mut scene| async move {
        scene.write_everywhere(&[0, 1], "begin").await;
        scene.wait(IDLE_MS).await;
        scene.start(2).await;
        let (third, mut most) = (scene.nodes[2].me, 0);
        for _ in 0..600 {
            for giver in [0, 1] {
                scene.nodes[giver].router.heard_load(third, 0);
            }
            scene.wait(100).await;
            most = most.max(scene.nodes[2].router.owned());
        }
        (most, scene.handed_over())
    })
}

#[test]
fn nobody_takes_more_than_makes_it_even_whatever_is_believed() {
    let (most, handed_over) = old_words(whole());
    assert!((15..=24).contains(&most) && handed_over <= 30, "{most} and {handed_over}");
    let (_, endless) = old_words(without_routing(Rule::EveningOutStops));
    assert!(endless > 5 * handed_over, "the rule is needed, or they go back and forth: {endless}");
}

/// All that the first node owns is in use while another one joins. How much is handed over, and how much once nobody writes?
fn busy(removed: Removed) -> (u64, u64) {
    play_in(setting(2, 12, 1, removed), |mut scene| async move {
        scene.write_everywhere(&[0], "begin").await;
        scene.start(1).await;
        for step in 0..10 {
            scene.write_everywhere(&[0], &format!("step-{step}")).await;
            scene.wait(2_000).await;
        }
        let in_use = scene.handed_over();
        scene.wait(IDLE_MS * 3).await;
        (in_use, scene.handed_over())
    })
}

#[test]
fn what_is_in_use_stays_where_it_is() {
    let (in_use, afterwards) = busy(whole());
    assert_eq!(in_use, 0);
    assert!(afterwards >= 4, "{afterwards}");
    let (in_use, _) = busy(without_routing(Rule::IdleAloneMoves));
    assert!(in_use > 0, "the rule is needed");
}

/// The home of ten channels is lost, another region takes over, and the home comes back. Who owns how many: at first, a second
/// later, in the end? And what did a viewer in the other region see?
fn home_comes_back(removed: Removed) -> (Vec<usize>, usize, Vec<usize>, Vec<String>) {
    let (regions, home) = (vec!["a", "b"], "a");
    play_in(Setting { regions, home, ..setting(2, 10, 0, removed) }, |mut scene| async move {
        scene.write_everywhere(&[0, 1], "begin").await;
        let (viewer, _session) = scene.watch(1).await;
        scene.nodes[0].process.kill();
        scene.wait(4_000).await;
        scene.write_everywhere(&[1], "without").await;
        scene.wait(IDLE_MS).await;
        scene.start(0).await;
        let at_first = scene.owned();
        scene.wait(1_500).await;
        let soon = scene.nodes[0].router.owned();
        scene.wait(10_000).await;
        scene.write_everywhere(&[1], "again").await;
        scene.wait(2_000).await;
        assert_eq!(scene.site.recorder.trespasses(), Vec::<String>::new());
        (at_first, soon, scene.owned(), viewer.saw())
    })
}

#[test]
fn ownership_goes_home_gradually_when_the_home_is_back() {
    let (at_first, soon, owned, saw) = home_comes_back(whole());
    assert_eq!(at_first, [0, 10]);
    assert!(soon <= 8, "gradually: {soon}");
    assert_eq!(owned, [10, 0]);
    assert_eq!(saw, ["first", "begin", "without", "again"]);
    let (_, _, owned, _) = home_comes_back(without_routing(Rule::HomeIsReturnedTo));
    assert_eq!(owned, [0, 10], "the rule is needed");
}

/// A node that is set to take no part.
#[test]
fn what_is_switched_off_moves_nothing() {
    let mut off = setting(2, 20, 1, whole());
    off.limits.owner.rebalance_per_s = 0;
    let owned = play_in(off, |mut scene| async move {
        scene.write_everywhere(&[0], "begin").await;
        scene.start(1).await;
        scene.wait(40_000).await;
        scene.owned()
    });
    assert_eq!(owned, [20, 0]);
}

/// Somebody who is gone left a due row in each of these channels, the last one's the latest.
async fn leave_due_work(scene: &Scene, rooms: &[ConvRef]) {
    let store = &scene.site.recorder;
    let timing = LeaseTiming::default();
    let gone = Registration {
        incarnation: Incarnation(77),
        node: "gone".parse().expect("valid"),
        region: "b".parse().expect("valid"),
        addr: String::new(),
        lifeline: None,
    };
    store.register(&gone, timing.ttl).await.expect("the memory store does not fail");
    for room in rooms {
        let me = gone.incarnation;
        let (key, margin) = (room.key, timing.margin);
        let claim = ClaimRequest { conversation: key, me, seen_epoch: None, seen_owner: None, margin, gap: 10 };
        let claimed = store.claim(&claim).await.expect("the memory store does not fail");
        let ClaimOutcome::Won(armed) = claimed else { panic!("nobody owned it") };
        let batch = Batch {
            conversation: room.clone(),
            epoch: armed.epoch,
            generation: armed.generation,
            prev: armed.last_seq,
            hi: Seq(0),
            reserve: Seq(0),
            due: DueChange::Set(DueWhy::Turn, Duration::ZERO),
            records: Vec::new(),
        };
        store.append(me, vec![batch]).await.expect("the memory store does not fail");
        scene.wait(1).await;
    }
    assert!(store.expel(gone.incarnation).await.expect("the memory store does not fail"));
}

/// Much due work belongs to a node that lives and does not look for it; one more, the latest, to the other node, which is
/// where? And how many of the former has that other node taken?
fn behind_what_waits(removed: Removed) -> (bool, usize, usize) {
    let (regions, home, last_home) = (vec!["a", "b"], "b", Some("a"));
    play_in(Setting { regions, home, last_home, ..setting(2, 90, 0, removed) }, |scene| async move {
        scene.nodes[1].process.halt(Halt::Named("due"));
        let rooms = &scene.site.conversations[1..];
        leave_due_work(&scene, rooms).await;
        scene.wait(10_000).await;
        let (a, b) = (scene.nodes[0].me, scene.nodes[1].me);
        let latest = scene.owner_of(&rooms[rooms.len() - 1]).await == Some(a);
        let mut strangers = 0;
        for room in &rooms[..rooms.len() - 1] {
            strangers += usize::from(scene.owner_of(room).await == Some(a));
        }
        scene.nodes[1].process.resume(Halt::Named("due"));
        scene.wait(10_000).await;
        let mut at_home = 0;
        for room in rooms {
            at_home += usize::from(scene.owner_of(room).await == Some(b));
        }
        (latest, strangers, at_home)
    })
}

#[test]
fn due_work_that_nobody_takes_up_starves_none_behind_it_and_home_comes_first() {
    assert_eq!(behind_what_waits(whole()), (true, 0, 88));
    let (latest, _, _) = behind_what_waits(without_routing(Rule::DuePagesGoOn));
    assert!(!latest, "the rule is needed");
}
