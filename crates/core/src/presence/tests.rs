//! Tables for what is told when, and a stock client that must end up with the state.

use proptest::prelude::*;
use serde_json::{Map, Value};

use super::*;

fn subject(name: &str) -> Subject {
    name.parse().expect("a subject")
}

fn at_s(seconds: u64) -> Monotonic {
    Monotonic(0) + Duration::from_secs(seconds)
}

fn diff(text: &str) -> Option<Announcement> {
    Some(Announcement::Diff(text.to_owned()))
}

fn count(number: usize) -> Option<Announcement> {
    Some(Announcement::Count(format!(r#"{{"count":{number}}}"#)))
}

#[test]
fn joins_and_leaves_are_told_once() {
    let mut presence = Presence::new(0xabc, 1000);
    assert_eq!(presence.flush(at_s(0)), None);
    presence.join(1, &subject("alice"), Some("Al \"A\"".into()));
    presence.join(2, &subject("bob"), None);
    presence.join(3, &subject("alice"), None);
    assert_eq!(
        presence.greeting(),
        Some(Announcement::State(
            concat!(
                r#"{"alice":{"metas":[{"phx_ref":"abc.0","name":"Al \"A\""},{"phx_ref":"abc.2"}]},"#,
                r#""bob":{"metas":[{"phx_ref":"abc.1"}]}}"#
            )
            .to_owned()
        ))
    );
    let joins = concat!(
        r#"{"joins":{"alice":{"metas":[{"phx_ref":"abc.0","name":"Al \"A\""},{"phx_ref":"abc.2"}]},"#,
        r#""bob":{"metas":[{"phx_ref":"abc.1"}]}},"leaves":{}}"#
    );
    assert_eq!(presence.flush(at_s(1)), diff(joins));
    assert_eq!(presence.flush(at_s(2)), None);
    presence.leave(3);
    presence.leave(3);
    assert_eq!(presence.flush(at_s(3)), diff(r#"{"joins":{},"leaves":{"alice":{"metas":[{"phx_ref":"abc.2"}]}}}"#));
    assert_eq!(presence.count(), 2);
    presence.join(1, &subject("alice"), None);
    assert_eq!(presence.count(), 2, "a second join replaces the first");
    let replaced = concat!(
        r#"{"joins":{"alice":{"metas":[{"phx_ref":"abc.3"}]}},"#,
        r#""leaves":{"alice":{"metas":[{"phx_ref":"abc.0","name":"Al \"A\""}]}}}"#
    );
    assert_eq!(presence.flush(at_s(4)), diff(replaced));
}

#[test]
fn who_came_and_went_is_not_told_but_is_no_ghost_either() {
    let mut presence = Presence::new(1, 1000);
    presence.join(1, &subject("a"), None);
    presence.leave(1);
    assert_eq!(presence.flush(at_s(0)), None);
    presence.join(2, &subject("a"), None);
    assert_eq!(presence.state_json(), r#"{"a":{"metas":[{"phx_ref":"1.1"}]}}"#);
    presence.leave(2);
    assert_eq!(presence.flush(at_s(1)), diff(r#"{"joins":{},"leaves":{"a":{"metas":[{"phx_ref":"1.1"}]}}}"#));
}

#[test]
fn one_subject_shows_a_bounded_number_of_sessions() {
    let mut presence = Presence::new(1, 1000);
    for session in 0..20 {
        presence.join(session, &subject("a"), None);
    }
    assert_eq!(presence.state_json().matches("phx_ref").count(), SHOWN_METAS_MAX);
    let _ = presence.flush(at_s(0));
    presence.leave(19);
    assert_eq!(presence.flush(at_s(1)), None, "it was never shown");
    presence.leave(3);
    let moved_up = concat!(
        r#"{"joins":{"a":{"metas":[{"phx_ref":"1.16"}]}},"#,
        r#""leaves":{"a":{"metas":[{"phx_ref":"1.3"}]}}}"#
    );
    assert_eq!(presence.flush(at_s(2)), diff(moved_up), "a hidden one moves up");
}

#[test]
fn a_crowd_is_only_counted() {
    let mut presence = Presence::new(1, 10);
    let crowd = |presence: &mut Presence, sessions: std::ops::Range<u64>| {
        sessions.for_each(|session| presence.join(session, &subject(&format!("s{session}")), None));
    };
    crowd(&mut presence, 0..9);
    assert_eq!(presence.mode(), Mode::Full);
    crowd(&mut presence, 9..10);
    assert_eq!(presence.mode(), Mode::Count);
    assert_eq!(presence.greeting(), count(10));
    assert_eq!(presence.flush(at_s(0)), count(10));
    crowd(&mut presence, 10..12);
    assert_eq!(presence.flush(at_s(9)), None, "at most every 10 s");
    assert_eq!(presence.flush(at_s(10)), count(12));
    assert_eq!(presence.flush(at_s(30)), None, "nothing new");
    (0..4).for_each(|session| presence.leave(session));
    assert_eq!(presence.flush(at_s(40)), count(8));
    assert_eq!(presence.flush(at_s(60)), None);
    assert_eq!(presence.mode(), Mode::Count, "8 is not below 0.8 × 10");
    presence.leave(4);
    assert_eq!(presence.flush(at_s(61)), count(7));
    crowd(&mut presence, 4..5);
    presence.leave(4);
    assert_eq!(presence.flush(at_s(71)), None, "a short return starts the calm anew");
    assert_eq!(presence.flush(at_s(80)), None);
    let state = presence.flush(at_s(81)).expect("the state");
    assert_eq!((state.event(), presence.mode()), ("presence_state", Mode::Full));
    assert_eq!(state.payload().matches("phx_ref").count(), 7);
    presence.leave(5);
    assert_eq!(presence.flush(at_s(82)), diff(r#"{"joins":{},"leaves":{"s5":{"metas":[{"phx_ref":"1.5"}]}}}"#));
}

#[test]
fn under_pressure_it_is_a_count_and_then_nothing_and_names_come_back_late() {
    let mut presence = Presence::new(1, 10);
    presence.join(1, &subject("a"), None);
    let _ = presence.flush(at_s(0));
    presence.tell_at_most(Telling::Counts);
    assert_eq!((presence.greeting(), presence.flush(at_s(1))), (count(1), count(1)));
    presence.join(2, &subject("b"), None);
    assert_eq!(presence.flush(at_s(10)), None, "at most every 10 s");
    assert_eq!(presence.flush(at_s(11)), count(2));
    presence.tell_at_most(Telling::Nothing);
    presence.join(3, &subject("c"), None);
    assert_eq!((presence.greeting(), presence.flush(at_s(60)), presence.count()), (None, None, 3));
    presence.tell_at_most(Telling::Counts);
    assert_eq!(presence.flush(at_s(61)), count(3));
    presence.tell_at_most(Telling::Names);
    assert_eq!((presence.mode(), presence.flush(at_s(62))), (Mode::Count, None));
    presence.tell_at_most(Telling::Counts);
    presence.tell_at_most(Telling::Names);
    assert_eq!(presence.flush(at_s(72)), None, "the calm began anew");
    let state = presence.flush(at_s(82)).expect("the state");
    assert_eq!((state.event(), state.payload().matches("phx_ref").count()), ("presence_state", 3));
}

#[test]
fn an_endless_diff_becomes_a_state() {
    for is_watched in [true, false] {
        let mut presence = Presence::new(1, 100_000);
        for session in 0..=DIFF_MAX as u64 {
            let who = if is_watched { "a".to_owned() } else { format!("s{session}") };
            presence.join(session, &subject(&who), None);
            if is_watched {
                let _ = presence.state_json();
            }
            presence.leave(session);
            assert!(presence.change_size <= DIFF_MAX);
        }
        presence.join(0, &subject("b"), None);
        let state = r#"{"b":{"metas":[{"phx_ref":"1.4097"}]}}"#;
        assert_eq!(presence.flush(at_s(0)), Some(Announcement::State(state.to_owned())));
        assert_eq!(presence.flush(at_s(1)), None);
    }
}

/// What the stock client does with a diff (`Presence.syncDiff`): joins are added after what it has, leaves removed
/// by reference.
fn apply(state: &mut Map<String, Value>, diff: &Value) {
    let metas = |value: &Value| value["metas"].as_array().expect("metas").clone();
    for (key, joined) in diff["joins"].as_object().expect("joins") {
        let mut all = state.get(key).map(metas).unwrap_or_default();
        all.retain(|meta| !metas(joined).iter().any(|new| new["phx_ref"] == meta["phx_ref"]));
        all.extend(metas(joined));
        state.insert(key.clone(), serde_json::json!({ "metas": all }));
    }
    for (key, left) in diff["leaves"].as_object().expect("leaves") {
        let Some(current) = state.get(key) else { continue };
        let mut all = metas(current);
        all.retain(|meta| !metas(left).iter().any(|gone| gone["phx_ref"] == meta["phx_ref"]));
        if all.is_empty() {
            state.remove(key);
        } else {
            state.insert(key.clone(), serde_json::json!({ "metas": all }));
        }
    }
}

fn object(json: &str) -> Map<String, Value> {
    serde_json::from_str(json).expect("an object")
}

#[derive(Debug, Clone)]
enum Step {
    Join(u64, u8),
    Leave(u64),
    /// Somebody starts to watch.
    Watch,
    /// So many seconds pass.
    Flush(u64),
    /// The pressure changes.
    Tell(Telling),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0_u64..40, 0_u8..4).prop_map(|(session, who)| Step::Join(session, who)),
        4 => (0_u64..40).prop_map(Step::Leave),
        1 => Just(Step::Watch),
        2 => (0_u64..6).prop_map(Step::Flush),
        1 => prop_oneof![1 => Just(Telling::Nothing), 1 => Just(Telling::Counts), 3 => Just(Telling::Names)].prop_map(Step::Tell),
    ];
    proptest::collection::vec(step, 0..150)
}

proptest! {
    #[test]
    fn every_watcher_ends_up_with_the_state(steps in steps(), threshold in 1_usize..60) {
        let mut presence = Presence::new(7, threshold);
        let mut model: BTreeMap<u64, String> = BTreeMap::new();
        // What each watcher knows: `None` while it has been told but a count.
        let mut watchers: Vec<Option<Map<String, Value>>> = vec![];
        let mut now = 0;
        for step in steps.into_iter().chain([Step::Flush(0), Step::Flush(0)]) {
            match step {
                Step::Join(session, who) => {
                    presence.join(session, &subject(&format!("s{who}")), None);
                    model.insert(session, format!("s{who}"));
                }
                Step::Leave(session) => {
                    presence.leave(session);
                    model.remove(&session);
                }
                Step::Watch => watchers.push(match presence.greeting() {
                    Some(Announcement::State(json)) => Some(object(&json)),
                    _ => None,
                }),
                Step::Tell(telling) => presence.tell_at_most(telling),
                Step::Flush(seconds) => {
                    now += seconds;
                    let told = presence.flush(at_s(now));
                    for known in &mut watchers {
                        match (&told, &mut *known) {
                            (Some(Announcement::State(json)), _) => *known = Some(object(json)),
                            (Some(Announcement::Count(_)), _) => *known = None,
                            (Some(Announcement::Diff(json)), Some(known)) => {
                                apply(known, &Value::Object(object(json)));
                            }
                            _ => {}
                        }
                    }
                    if presence.mode() == Mode::Full {
                        let state = object(&presence.state_json());
                        for known in &watchers {
                            prop_assert_eq!(known.as_ref(), Some(&state));
                        }
                    }
                }
            }
            prop_assert_eq!(presence.count(), model.len());
            prop_assert!(presence.count() < threshold || presence.mode() == Mode::Count);
            let mut by_subject: BTreeMap<&String, usize> = BTreeMap::new();
            model.values().for_each(|who| *by_subject.entry(who).or_default() += 1);
            if presence.mode() == Mode::Full && presence.changes.is_empty() {
                let state = object(&presence.state_json());
                prop_assert_eq!(state.len(), by_subject.len());
                for (who, sessions) in by_subject {
                    let metas = state[who]["metas"].as_array().map_or(0, Vec::len);
                    prop_assert_eq!(metas, sessions.min(SHOWN_METAS_MAX));
                }
            }
        }
    }
}
