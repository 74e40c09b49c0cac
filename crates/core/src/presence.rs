//! Who is here: the presence of one conversation, in the shape that Phoenix clients read.
//!
//! Invariants: a client that starts from a state and applies every later diff has exactly the current state, whatever
//! came and went in between; below the threshold changes are told as diffs, above it only as a count, so that a rush
//! costs O(1) messages a window. Deliberately absent: timers (the shell calls [`Presence::flush`]), and merging gateways.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::ids::Subject;
use crate::time::Monotonic;
use crate::wire::push_json_text;

/// Connected sessions from which only a count is told, by default.
pub const COUNT_THRESHOLD: usize = 1000;
/// Most sessions of one subject that clients are shown. Others are kept, and move up as those leave.
pub const SHOWN_METAS_MAX: usize = 16;
/// Least time between two counts.
pub const COUNT_INTERVAL: Duration = Duration::from_secs(10);
/// How long the number must stay below 0.8 × the threshold before diffs are told again.
pub const CALM: Duration = Duration::from_secs(10);
/// Most subjects and metas remembered for one diff; a window with more tells the whole state instead.
pub const DIFF_MAX: usize = 4096;

/// How presence is told at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Everybody by name.
    Full,
    /// Only how many.
    Count,
}

/// An event for clients, with its compact JSON payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Announcement {
    /// Replaces what a client knows: `{key:{"metas":[…]},…}`.
    State(String),
    /// Changes what a client knows: `{"joins":{…},"leaves":{…}}`.
    Diff(String),
    /// `{"count":n}`, connected sessions.
    Count(String),
}

impl Announcement {
    /// The event's name on every transport.
    #[must_use]
    pub fn event(&self) -> &'static str {
        match self {
            Self::State(_) => "presence_state",
            Self::Diff(_) => "presence_diff",
            Self::Count(_) => "presence_count",
        }
    }

    /// The payload: compact JSON, an object.
    #[must_use]
    pub fn payload(&self) -> &str {
        match self {
            Self::State(payload) | Self::Diff(payload) | Self::Count(payload) => payload,
        }
    }
}

/// The number of a session in the order of joining; unique in one [`Presence`].
type Turn = u64;

type Name = Option<Arc<str>>;

/// What has changed for one subject since the last flush.
#[derive(Debug, Default)]
struct Change {
    /// Shown at the last flush.
    base: BTreeSet<Turn>,
    /// All that some client may have been shown: the base, and what states given out since have added.
    exposed: BTreeMap<Turn, Name>,
}

/// See the module.
#[derive(Debug)]
pub struct Presence {
    /// Tells this incarnation's references from those of any other.
    salt: u64,
    threshold: usize,
    next_turn: Turn,
    sessions: BTreeMap<u64, (Subject, Turn)>,
    subjects: BTreeMap<Subject, BTreeMap<Turn, Name>>,
    changes: BTreeMap<Subject, Change>,
    /// Subjects and metas in `changes`.
    change_size: usize,
    mode: Mode,
    /// A diff would not do: the next flush tells the state.
    state_is_due: bool,
    /// Since when the number has been low enough to tell diffs again.
    calm_since: Option<Monotonic>,
    /// The last count told, and when.
    counted: Option<(usize, Monotonic)>,
}

impl Presence {
    /// Nobody is here. `salt` differs for each incarnation and conversation; `threshold` is that of [`Mode::Count`]
    /// (at least 1).
    #[must_use]
    pub fn new(salt: u64, threshold: usize) -> Self {
        Self {
            salt,
            threshold: threshold.max(1),
            next_turn: 0,
            sessions: BTreeMap::new(),
            subjects: BTreeMap::new(),
            changes: BTreeMap::new(),
            change_size: 0,
            mode: Mode::Full,
            state_is_due: false,
            calm_since: None,
            counted: None,
        }
    }

    /// A session of `subject` is here. A session that was here already leaves first.
    pub fn join(&mut self, session: u64, subject: &Subject, name: Name) {
        self.leave(session);
        self.note_change(subject);
        let turn = self.next_turn;
        self.next_turn += 1;
        self.sessions.insert(session, (subject.clone(), turn));
        self.subjects.entry(subject.clone()).or_default().insert(turn, name);
        if self.sessions.len() >= self.threshold && self.mode == Mode::Full {
            self.mode = Mode::Count;
            self.state_is_due = false;
            self.forget_changes();
        }
        if !self.is_calm() {
            self.calm_since = None;
        }
    }

    /// A session is gone. One that was not here changes nothing.
    pub fn leave(&mut self, session: u64) {
        let Some((subject, turn)) = self.sessions.remove(&session) else { return };
        self.note_change(&subject);
        if let Some(metas) = self.subjects.get_mut(&subject) {
            metas.remove(&turn);
            if metas.is_empty() {
                self.subjects.remove(&subject);
            }
        }
    }

    /// Connected sessions.
    #[must_use]
    pub fn count(&self) -> usize {
        self.sessions.len()
    }

    /// How presence is told at the moment.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// What a session is told when it has joined: the state, or the count.
    #[must_use]
    pub fn greeting(&mut self) -> Announcement {
        match self.mode {
            Mode::Full => Announcement::State(self.state_json()),
            Mode::Count => self.count_announcement(),
        }
    }

    /// Everybody who is here, as a client is shown them. Whoever gets this must get the later flushes too.
    #[must_use]
    pub fn state_json(&mut self) -> String {
        // Whoever is in this state and leaves before the next flush must be in its diff, or would be a ghost for ever.
        for (subject, change) in &mut self.changes {
            for (turn, name) in shown(self.subjects.get(subject)) {
                if change.exposed.insert(turn, name.clone()).is_none() {
                    self.change_size += 1;
                }
            }
        }
        self.bound_changes();
        let mut json = JsonOfMetas::new(self.salt);
        for (subject, metas) in &self.subjects {
            json.subject(subject, shown(Some(metas)));
        }
        json.finish()
    }

    /// What is to be told to everybody now, if anything. The shell calls it once a window, and the diff covers what
    /// has happened since the last call: who came and went in between is not in it.
    #[must_use]
    pub fn flush(&mut self, now: Monotonic) -> Option<Announcement> {
        if self.mode == Mode::Count {
            return self.flush_count(now);
        }
        if std::mem::take(&mut self.state_is_due) {
            return Some(Announcement::State(self.state_json()));
        }
        self.change_size = 0;
        let (mut joins, mut leaves) = (JsonOfMetas::new(self.salt), JsonOfMetas::new(self.salt));
        for (subject, change) in std::mem::take(&mut self.changes) {
            let metas = self.subjects.get(&subject);
            let is_shown = |turn: &Turn| shown(metas).any(|(shown, _)| shown == *turn);
            joins.subject(&subject, shown(metas).filter(|(turn, _)| !change.base.contains(turn)));
            let gone = change.exposed.iter().filter(|(turn, _)| !is_shown(turn));
            leaves.subject(&subject, gone.map(|(turn, name)| (*turn, name)));
        }
        if joins.is_empty() && leaves.is_empty() {
            return None;
        }
        Some(Announcement::Diff(format!(r#"{{"joins":{},"leaves":{}}}"#, joins.finish(), leaves.finish())))
    }

    fn flush_count(&mut self, now: Monotonic) -> Option<Announcement> {
        if self.is_calm() {
            let since = *self.calm_since.get_or_insert(now);
            if now.since(since) >= CALM {
                self.mode = Mode::Full;
                self.calm_since = None;
                self.counted = None;
                return Some(Announcement::State(self.state_json()));
            }
        }
        let is_news = self.counted.is_none_or(|(count, at)| count != self.count() && now.since(at) >= COUNT_INTERVAL);
        if !is_news {
            return None;
        }
        self.counted = Some((self.count(), now));
        Some(self.count_announcement())
    }

    fn count_announcement(&self) -> Announcement {
        Announcement::Count(format!(r#"{{"count":{}}}"#, self.count()))
    }

    /// Below 0.8 × the threshold.
    fn is_calm(&self) -> bool {
        self.sessions.len().saturating_mul(5) < self.threshold.saturating_mul(4)
    }

    /// Remembers what is shown of a subject, before the first change since the last flush.
    fn note_change(&mut self, subject: &Subject) {
        if self.mode == Mode::Count || self.state_is_due || self.changes.contains_key(subject) {
            return;
        }
        let exposed: BTreeMap<Turn, Name> =
            shown(self.subjects.get(subject)).map(|(turn, name)| (turn, name.clone())).collect();
        self.change_size += 1 + exposed.len();
        let change = Change { base: exposed.keys().copied().collect(), exposed };
        self.changes.insert(subject.clone(), change);
        self.bound_changes();
    }

    fn bound_changes(&mut self) {
        if self.change_size > DIFF_MAX {
            self.state_is_due = true;
            self.forget_changes();
        }
    }

    fn forget_changes(&mut self) {
        self.changes.clear();
        self.change_size = 0;
    }
}

/// The metas of a subject that clients are shown: the first to have joined.
fn shown(metas: Option<&BTreeMap<Turn, Name>>) -> impl Iterator<Item = (Turn, &Name)> {
    metas.into_iter().flatten().take(SHOWN_METAS_MAX).map(|(turn, name)| (*turn, name))
}

/// Writes `{key:{"metas":[{"phx_ref":…,"name":…},…]},…}`.
struct JsonOfMetas {
    salt: u64,
    json: String,
}

impl JsonOfMetas {
    fn new(salt: u64) -> Self {
        Self { salt, json: "{".to_owned() }
    }

    fn is_empty(&self) -> bool {
        self.json.len() == 1
    }

    /// A subject without metas leaves no trace.
    fn subject<'a>(&mut self, subject: &Subject, metas: impl Iterator<Item = (Turn, &'a Name)>) {
        let mut is_first = true;
        for (turn, name) in metas {
            if is_first {
                let separator = if self.is_empty() { "" } else { "," };
                self.json.push_str(separator);
                push_json_text(&mut self.json, subject.as_str());
                self.json.push_str(r#":{"metas":["#);
            } else {
                self.json.push(',');
            }
            is_first = false;
            self.meta(turn, name.as_deref());
        }
        if !is_first {
            self.json.push_str("]}");
        }
    }

    fn meta(&mut self, turn: Turn, name: Option<&str>) {
        self.json.push_str(r#"{"phx_ref":"#);
        push_json_text(&mut self.json, &format!("{:x}.{turn}", self.salt));
        if let Some(name) = name {
            self.json.push_str(r#","name":"#);
            push_json_text(&mut self.json, name);
        }
        self.json.push('}');
    }

    fn finish(mut self) -> String {
        self.json.push('}');
        self.json
    }
}

#[cfg(test)]
mod tests {
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
            Announcement::State(
                concat!(
                    r#"{"alice":{"metas":[{"phx_ref":"abc.0","name":"Al \"A\""},{"phx_ref":"abc.2"}]},"#,
                    r#""bob":{"metas":[{"phx_ref":"abc.1"}]}}"#
                )
                .to_owned()
            )
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
        assert_eq!(Some(presence.greeting()), count(10));
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
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0_u64..40, 0_u8..4).prop_map(|(session, who)| Step::Join(session, who)),
            4 => (0_u64..40).prop_map(Step::Leave),
            1 => Just(Step::Watch),
            2 => (0_u64..6).prop_map(Step::Flush),
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
                        Announcement::State(json) => Some(object(&json)),
                        _ => None,
                    }),
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
}
