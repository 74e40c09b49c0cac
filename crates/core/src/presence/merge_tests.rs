//! Hubs and owners that tell each other, with reports that are lost and owners that change.

use std::collections::VecDeque;
use std::time::Duration;

use proptest::prelude::*;

use super::merge::{FollowerId, Heard, Merged};
use super::shard::{COUNTED_INTERVAL, Meta, MetaRef, PresenceNews, STILL_INTERVAL, ShardNews, ShardReport};
use super::*;

fn subject(name: &str) -> Subject {
    name.parse().expect("a subject")
}

fn at_s(seconds: u64) -> Monotonic {
    Monotonic(0) + Duration::from_secs(seconds)
}

fn meta(hub: u64, turn: u64, sub: &str) -> Meta {
    Meta { reference: MetaRef { turn, hub }, sub: subject(sub), name: None }
}

fn report(hub: u64, serial: u64, sessions: u32, news: ShardNews) -> ShardReport {
    ShardReport { hub, serial, sessions, news }
}

fn joined(metas: &[Meta]) -> ShardNews {
    ShardNews::Changed { joins: metas.to_vec(), leaves: vec![] }
}

fn left(references: &[MetaRef]) -> ShardNews {
    ShardNews::Changed { joins: vec![], leaves: references.to_vec() }
}

const A: FollowerId = FollowerId(1);
const B: FollowerId = FollowerId(2);

#[test]
fn an_owner_tells_each_change_once_and_nothing_to_a_hub_that_is_alone() {
    let mut owner = Merged::new(100);
    assert_eq!((owner.attach(A), owner.json()), (PresenceNews::Whole(vec![]), None));
    assert_eq!(owner.report(A, report(1, 1, 1, ShardNews::Whole(vec![meta(1, 0, "a")]))), Heard::Fits);
    assert!(owner.is_dirty());
    assert_eq!(owner.flush(at_s(0)), None, "it is alone");
    assert!(!owner.is_dirty());
    assert_eq!(owner.attach(B), PresenceNews::Whole(vec![meta(1, 0, "a")]));
    assert_eq!(owner.report(A, report(1, 2, 2, joined(&[meta(1, 1, "b")]))), Heard::Fits);
    let told = PresenceNews::Changed { joins: vec![meta(1, 1, "b")], leaves: vec![] };
    assert_eq!(owner.flush(at_s(0)), Some(told), "another follows, who has not reported yet");
    assert_eq!(owner.flush(at_s(1)), None);
    assert_eq!(owner.report(B, report(2, 1, 1, ShardNews::Whole(vec![meta(2, 0, "a")]))), Heard::Fits);
    let state = r#"{"a":{"metas":[{"phx_ref":"1.0"},{"phx_ref":"2.0"}]},"b":{"metas":[{"phx_ref":"1.1"}]}}"#;
    assert_eq!(owner.json(), Some(format!(r#"{{"count":3,"present":{state}}}"#)));
    let _ = owner.flush(at_s(1));
    owner.detach(B);
    let told = PresenceNews::Changed { joins: vec![], leaves: vec![MetaRef { turn: 0, hub: 2 }] };
    assert_eq!(owner.flush(at_s(2)), Some(told), "its presence vanishes with it");
    assert_eq!(owner.report(B, report(2, 2, 2, ShardNews::Whole(vec![meta(2, 1, "c")]))), Heard::Fits);
    assert_eq!((owner.count(), owner.flush(at_s(3))), (2, None), "a late report of one that is gone");
}

#[test]
fn a_lost_report_is_found_out_by_the_next() {
    let mut owner = Merged::new(100);
    let _ = owner.attach(A);
    assert_eq!(owner.report(A, report(1, 4, 0, ShardNews::Still)), Heard::Gap, "nothing is known of it");
    assert_eq!(owner.report(A, report(1, 4, 1, joined(&[meta(1, 0, "a")]))), Heard::Gap);
    assert_eq!(owner.report(A, report(1, 5, 1, ShardNews::Whole(vec![meta(1, 0, "a")]))), Heard::Fits);
    assert_eq!(owner.report(A, report(1, 5, 1, ShardNews::Still)), Heard::Fits);
    assert_eq!(owner.report(A, report(1, 7, 0, left(&[MetaRef { turn: 0, hub: 1 }]))), Heard::Gap);
    assert_eq!(owner.report(A, report(1, 7, 1, ShardNews::Still)), Heard::Gap);
    assert_eq!(owner.report(A, report(1, 8, 1, ShardNews::Counted)), Heard::Gap, "names are wanted");
    assert_eq!(owner.report(A, report(1, 8, 1, ShardNews::Still)), Heard::Gap, "still without names");
    assert_eq!(owner.report(A, report(1, u64::MAX, 0, ShardNews::Whole(vec![]))), Heard::Fits);
    assert_eq!(owner.report(A, report(1, 0, 0, joined(&[]))), Heard::Gap, "no serial follows the last one");
}

#[test]
fn a_hub_that_comes_back_before_it_is_missed_has_one_shard() {
    let mut owner = Merged::new(100);
    let (_, _) = (owner.attach(A), owner.attach(B));
    let whole = || ShardNews::Whole(vec![meta(1, 0, "a")]);
    assert_eq!(owner.report(A, report(1, 1, 1, whole())), Heard::Fits);
    let _ = owner.flush(at_s(0));
    assert_eq!(owner.report(B, report(1, 2, 1, whole())), Heard::Fits);
    assert_eq!((owner.count(), owner.flush(at_s(0))), (1, None));
    assert_eq!(owner.report(A, report(1, 2, 0, left(&[MetaRef { turn: 0, hub: 1 }]))), Heard::Fits, "from before");
    owner.detach(A);
    assert_eq!((owner.count(), owner.flush(at_s(1))), (1, None));
    assert_eq!(owner.report(B, report(3, 1, 1, ShardNews::Whole(vec![meta(3, 0, "a")]))), Heard::Fits);
    assert_eq!(owner.count(), 1, "another hub by the same stream");
}

#[test]
fn a_crowd_over_all_gateways_is_only_counted() {
    let mut owner = Merged::new(10);
    let (_, _) = (owner.attach(A), owner.attach(B));
    let crowd = |hub, many| ShardNews::Whole((0..many).map(|turn| meta(hub, turn, &format!("s{turn}"))).collect());
    let _ = owner.report(A, report(1, 1, 6, crowd(1, 6)));
    assert!(matches!(owner.flush(at_s(0)), Some(PresenceNews::Changed { .. })));
    let _ = owner.report(B, report(2, 1, 4, crowd(2, 4)));
    assert_eq!(owner.flush(at_s(1)), Some(PresenceNews::Count(10)));
    assert_eq!(owner.json().as_deref(), Some(r#"{"count":10,"present":null}"#));
    assert_eq!(owner.attach(FollowerId(3)), PresenceNews::Count(10));
    let _ = owner.report(B, report(2, 2, 3, ShardNews::Counted));
    assert_eq!(owner.flush(at_s(10)), None, "at most every 10 s");
    assert_eq!(owner.flush(at_s(11)), Some(PresenceNews::Count(9)));
    let _ = owner.report(B, report(2, 3, 1, ShardNews::Counted));
    assert_eq!(owner.flush(at_s(21)), Some(PresenceNews::Count(7)));
    assert_eq!(owner.flush(at_s(30)), None);
    assert_eq!(owner.flush(at_s(31)), Some(PresenceNews::Ask), "calm for 10 s");
    assert_eq!(owner.report(B, report(2, 4, 1, crowd(2, 1))), Heard::Fits);
    assert_eq!(owner.report(A, report(1, 2, 6, crowd(1, 6))), Heard::Fits);
    let Some(PresenceNews::Changed { joins, leaves }) = owner.flush(at_s(31)) else { panic!("names again") };
    assert_eq!((joins.len(), leaves.len()), (7, 0));
}

#[test]
fn a_count_that_comes_back_is_known_to_who_attached_meanwhile() {
    let mut owner = Merged::new(3);
    let _ = owner.attach(A);
    let _ = owner.report(A, report(1, 1, 9, ShardNews::Counted));
    assert_eq!(owner.flush(at_s(0)), Some(PresenceNews::Count(9)));
    let _ = owner.report(A, report(1, 2, 8, ShardNews::Counted));
    assert_eq!(owner.attach(B), PresenceNews::Count(9), "what all know; a change is told to all");
    let _ = owner.report(A, report(1, 3, 9, ShardNews::Counted));
    assert_eq!(owner.flush(at_s(0) + COUNT_INTERVAL), None, "as it was");
    let _ = owner.report(A, report(1, 4, 7, ShardNews::Counted));
    assert_eq!(owner.flush(at_s(0) + COUNT_INTERVAL), Some(PresenceNews::Count(7)));
}

#[test]
fn a_hub_reports_its_shard_then_what_changes_and_still_now_and_then() {
    let mut hub = Presence::new(1, 3);
    hub.join(1, &subject("a"), None);
    hub.attached(at_s(0));
    let due = |hub: &mut Presence, now| hub.report(now).map(|report| (report.serial, report.sessions, report.news));
    assert_eq!(due(&mut hub, at_s(0)), Some((1, 1, ShardNews::Whole(vec![meta(1, 0, "a")]))));
    assert_eq!(due(&mut hub, at_s(1)), None);
    hub.join(2, &subject("b"), None);
    hub.leave(2);
    assert_eq!(due(&mut hub, at_s(1)), None, "it came and went");
    hub.join(3, &subject("b"), None);
    assert_eq!(due(&mut hub, at_s(1)), Some((2, 2, joined(&[meta(1, 2, "b")]))));
    assert_eq!(due(&mut hub, at_s(1) + STILL_INTERVAL), Some((2, 2, ShardNews::Still)));
    hub.hear(&PresenceNews::Ask);
    assert!(matches!(due(&mut hub, at_s(7)), Some((3, 2, ShardNews::Whole(_)))));
    hub.join(4, &subject("c"), None);
    assert_eq!(due(&mut hub, at_s(8)), Some((4, 3, ShardNews::Counted)), "three are counted");
    hub.join(5, &subject("d"), None);
    assert_eq!(due(&mut hub, at_s(8)), None);
    assert_eq!(due(&mut hub, at_s(8) + COUNTED_INTERVAL), Some((5, 4, ShardNews::Counted)));
    hub.hear(&PresenceNews::Count(9));
    assert_eq!(hub.count(), 9);
    hub.hear(&PresenceNews::Count(2));
    assert_eq!(hub.count(), 4, "never fewer than its own");
}

#[test]
fn nobody_flaps_while_the_owner_changes() {
    let mut hub = Presence::new(1, 100);
    hub.join(1, &subject("own"), None);
    hub.attached(at_s(0));
    hub.hear(&PresenceNews::Whole(vec![meta(2, 0, "stays"), meta(3, 0, "goes"), meta(1, 0, "own")]));
    let _ = hub.flush(at_s(0));
    hub.attached(at_s(10));
    hub.hear(&PresenceNews::Whole(vec![]));
    assert_eq!(hub.flush(at_s(10)), None, "the others have not found the new owner yet");
    hub.hear(&PresenceNews::Changed { joins: vec![meta(2, 0, "stays")], leaves: vec![] });
    assert_eq!((hub.flush(at_s(15)), hub.count()), (None, 3));
    let gone = r#"{"joins":{},"leaves":{"goes":{"metas":[{"phx_ref":"3.0"}]}}}"#;
    assert_eq!(hub.flush(at_s(16)), Some(Announcement::Diff(gone.to_owned())), "it did not come back");
    assert_eq!(hub.flush(at_s(17)), None);
}

#[test]
fn a_count_does_not_fall_while_the_owner_changes() {
    let mut hub = Presence::new(1, 10);
    hub.attached(at_s(0));
    hub.hear(&PresenceNews::Count(50));
    assert_eq!(hub.flush(at_s(0)), Some(Announcement::Count(r#"{"count":50}"#.to_owned())));
    hub.attached(at_s(20));
    hub.hear(&PresenceNews::Whole(vec![]));
    assert_eq!((hub.count(), hub.flush(at_s(20))), (50, None));
    hub.hear(&PresenceNews::Count(20));
    assert_eq!(hub.count(), 50, "others may be on their way");
    assert_eq!(hub.flush(at_s(25)), None);
    assert_eq!(hub.flush(at_s(26)), Some(Announcement::Count(r#"{"count":20}"#.to_owned())), "now it is known");
}

/// A hub with the stream that it follows by.
struct Follower {
    hub: Presence,
    stream: Option<FollowerId>,
    /// On the way to it.
    news: VecDeque<PresenceNews>,
}

/// Three hubs and one owner at a time.
struct World {
    followers: Vec<Follower>,
    owner: Merged,
    next_stream: u64,
    now: Monotonic,
    threshold: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Open,
    Lost,
}

impl World {
    fn new(threshold: usize) -> Self {
        let follower = |hub| Follower { hub: Presence::new(hub, threshold), stream: None, news: VecDeque::new() };
        let followers = (1..=3).map(follower).collect();
        Self { followers, owner: Merged::new(threshold), next_stream: 0, now: at_s(0), threshold }
    }

    fn attach(&mut self, index: usize) {
        self.next_stream += 1;
        let stream = FollowerId(self.next_stream);
        let follower = &mut self.followers[index];
        // The old stream, if there is one, is missed only later.
        follower.stream = Some(stream);
        follower.hub.attached(self.now);
        follower.news = VecDeque::from([self.owner.attach(stream)]);
    }

    fn report(&mut self, index: usize, way: Way) {
        let follower = &mut self.followers[index];
        let Some(stream) = follower.stream else { return };
        if let Some(report) = follower.hub.report(self.now)
            && way == Way::Open
            && self.owner.report(stream, report) == Heard::Gap
        {
            follower.news.push_back(PresenceNews::Ask);
        }
    }

    fn flush(&mut self) {
        if let Some(news) = self.owner.flush(self.now) {
            for follower in self.followers.iter_mut().filter(|follower| follower.stream.is_some()) {
                follower.news.push_back(news.clone());
            }
        }
    }

    fn deliver(&mut self, index: usize) {
        let follower = &mut self.followers[index];
        if let Some(news) = follower.news.pop_front() {
            follower.hub.hear(&news);
        }
    }

    /// Streams that nobody reads any more are missed.
    fn miss(&mut self) {
        for stream in (1..=self.next_stream).map(FollowerId) {
            if self.followers.iter().all(|follower| follower.stream != Some(stream)) {
                self.owner.detach(stream);
            }
        }
    }

    fn change_owner(&mut self) {
        self.owner = Merged::new(self.threshold);
        for follower in &mut self.followers {
            follower.stream = None;
            follower.news.clear();
        }
    }

    /// Nothing happens for a while.
    fn quiet(&mut self) {
        for index in 0..3 {
            if self.followers[index].stream.is_none() {
                self.attach(index);
            }
        }
        for _ in 0..20 {
            self.now = self.now + Duration::from_secs(3);
            self.miss();
            (0..3).for_each(|index| self.report(index, Way::Open));
            self.flush();
            for index in 0..3 {
                while !self.followers[index].news.is_empty() {
                    self.deliver(index);
                }
                let _ = self.followers[index].hub.flush(self.now);
            }
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Join(usize, u64, u8),
    Leave(usize, u64),
    Attach(usize),
    Miss,
    Report(usize, Way),
    Deliver(usize),
    Flush,
    ChangeOwner,
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let hub = || 0_usize..3;
    let way = prop_oneof![4 => Just(Way::Open), 1 => Just(Way::Lost)];
    let step = prop_oneof![
        8 => (hub(), 0_u64..12, 0_u8..4).prop_map(|(hub, session, who)| Step::Join(hub, session, who)),
        6 => (hub(), 0_u64..12).prop_map(|(hub, session)| Step::Leave(hub, session)),
        3 => hub().prop_map(Step::Attach),
        1 => Just(Step::Miss),
        8 => (hub(), way).prop_map(|(hub, way)| Step::Report(hub, way)),
        8 => hub().prop_map(Step::Deliver),
        4 => Just(Step::Flush),
        1 => Just(Step::ChangeOwner),
        2 => (0_u64..8).prop_map(Step::Pass),
    ];
    proptest::collection::vec(step, 0..120)
}

proptest! {
    #[test]
    fn whatever_happened_every_hub_ends_up_with_the_union(
        steps in steps(),
        threshold in prop_oneof![Just(1_000_usize), 1_usize..30],
    ) {
        let mut world = World::new(threshold);
        let mut present: BTreeMap<(usize, u64), String> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Join(hub, session, who) => {
                    let who = format!("s{who}");
                    world.followers[hub].hub.join(session, &subject(&who), None);
                    present.insert((hub, session), who);
                }
                Step::Leave(hub, session) => {
                    world.followers[hub].hub.leave(session);
                    present.remove(&(hub, session));
                }
                Step::Attach(hub) => world.attach(hub),
                Step::Miss => world.miss(),
                Step::Report(hub, way) => world.report(hub, way),
                Step::Deliver(hub) => world.deliver(hub),
                Step::Flush => world.flush(),
                Step::ChangeOwner => world.change_owner(),
                Step::Pass(seconds) => world.now = world.now + Duration::from_secs(seconds),
            }
        }
        world.quiet();
        let total = present.len();
        prop_assert_eq!(world.owner.count(), total);
        let mut subjects: BTreeMap<&str, usize> = BTreeMap::new();
        present.values().for_each(|who| *subjects.entry(who).or_default() += 1);
        let is_calm = total * 5 < threshold * 4;
        let mut states = BTreeSet::new();
        for follower in &mut world.followers {
            prop_assert_eq!(follower.hub.count(), total);
            prop_assert!(total < threshold || follower.hub.mode() == Mode::Count);
            prop_assert!(!is_calm || follower.hub.mode() == Mode::Full, "{} of {}", total, threshold);
            if is_calm {
                states.insert(follower.hub.state_json());
            }
        }
        if is_calm {
            prop_assert_eq!(states.len(), 1);
            let state = states.pop_first().expect("three hubs have one");
            let shown: usize = subjects.values().map(|many| (*many).min(SHOWN_METAS_MAX)).sum();
            prop_assert_eq!(state.matches("phx_ref").count(), shown);
            let parsed: serde_json::Value = serde_json::from_str(&state).expect("JSON");
            prop_assert!(parsed.as_object().expect("an object").keys().map(String::as_str).eq(subjects.into_keys()));
            prop_assert_eq!(world.owner.json(), Some(format!(r#"{{"count":{total},"present":{state}}}"#)));
        }
    }
}
