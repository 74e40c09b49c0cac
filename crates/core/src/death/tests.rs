//! Each guard alone keeps somebody alive: the same story with and without it.

use proptest::prelude::*;

use super::*;

const TIMING: LeaseTiming =
    LeaseTiming { ttl: Duration::from_secs(15), beat: Duration::from_secs(5), margin: Duration::from_secs(3) };
const OTHER: Incarnation = Incarnation(2);
/// The observer's, the suspect's and a third one's.
const MINE: Lifeline = Lifeline(1);
const THEIRS: Lifeline = Lifeline(2);
const THIRD: Lifeline = Lifeline(3);

fn at(ms: u64) -> Monotonic {
    Monotonic((ms + 1_000_000) * 1_000_000)
}

/// One look: when, the other's (beat, lease) if rows were read, the observer and what is held, own health.
struct Seen {
    ms: u64,
    row: Option<(u64, Lease)>,
    lifelines: Option<(u64, &'static [Lifeline])>,
    own: Own,
}

fn healthy(ms: u64) -> Own {
    Own { valid_until: at(ms + 12_000), healthy_since: Some(at(0)), lifeline: Some(MINE) }
}

fn seen(ms: u64, beat: u64, lease: Lease) -> Seen {
    Seen { ms, row: Some((beat, lease)), lifelines: Some((1, &[MINE, THEIRS, THIRD])), own: healthy(ms) }
}

fn gone(ms: u64, held: &'static [Lifeline]) -> Seen {
    Seen { lifelines: Some((1, held)), ..seen(ms, 1, Lease::Runs) }
}

/// Plays a story; suspects are answered with `answer`. Returns the deaths.
fn play(watch: &mut DeathWatch, story: &[Seen], answer: Answer) -> Vec<Death> {
    let mut deaths = Vec::new();
    for Seen { ms, row, lifelines, own } in story {
        let row = row.map(|(beat, lease)| [Row { incarnation: OTHER, beat, lifeline: Some(THEIRS), lease }]);
        let lifelines = lifelines.map(|(observer, held)| Lines { asked_at: at(*ms), observer, held });
        let look = Look { now: at(*ms), rows: row.as_ref().map(|row| &row[..]), lifelines, own: *own };
        for action in watch.look(&look) {
            match action {
                Action::Declare(death) => deaths.push(death),
                Action::Probe(suspect) => deaths.extend(watch.answered(&suspect, answer, at(*ms + 20), own)),
            }
        }
    }
    deaths
}

/// With all guards nobody dies; without this one, somebody does.
fn keeps_alive(guard: Guard, answer: Answer, story: &[Seen]) {
    assert_eq!(play(&mut DeathWatch::new(TIMING), story, answer), vec![], "{guard:?}");
    let killed = play(&mut DeathWatch::without(TIMING, &[guard]), story, answer);
    assert!(!killed.is_empty(), "without {guard:?} this story kills somebody");
}

#[test]
fn a_lease_that_ran_out_is_a_death() {
    let story = [seen(20_000, 1, Lease::Runs), seen(34_999, 1, Lease::RanOut), seen(35_000, 1, Lease::RanOut)];
    let deaths = play(&mut DeathWatch::new(TIMING), &story, Answer::Unknown);
    assert_eq!(deaths, vec![Death { incarnation: OTHER, beat: 1, cause: Cause::Expired }]);
}

#[test]
fn a_lifeline_that_goes_alone_and_an_address_that_refuses_are_a_death_within_a_second() {
    for answer in [Answer::Refused, Answer::Incarnation(Incarnation(9))] {
        let mut watch = DeathWatch::new(TIMING);
        let lost = [gone(20_000, &[MINE, THEIRS, THIRD]), gone(20_450, &[MINE, THIRD])];
        assert_eq!(play(&mut watch, &lost, answer), vec![]);
        assert_eq!(watch.next_judgement(), Some(at(20_950)));
        let deaths = play(&mut watch, &[gone(20_950, &[MINE, THIRD])], answer);
        assert_eq!(deaths, vec![Death { incarnation: OTHER, beat: 1, cause: Cause::ProcessDied(THEIRS) }]);
        assert_eq!(watch.next_judgement(), None);
    }
}

#[test]
fn a_clock_that_jumps_or_a_store_that_was_away_kills_nobody() {
    let moving = |ms, beat| seen(ms, beat, Lease::RanOut);
    keeps_alive(Guard::BeatStoodStill, Answer::Unknown, &[moving(20_000, 1), moving(25_000, 2), moving(30_000, 3)]);
    let still = |ms| seen(ms, 1, Lease::Runs);
    keeps_alive(Guard::StoreClock, Answer::Unknown, &[still(20_000), still(34_000), still(40_000)]);
    let unread = Seen { row: None, lifelines: None, ..seen(30_000, 1, Lease::RanOut) };
    keeps_alive(Guard::UnreadForgets, Answer::Unknown, &[moving(20_000, 1), unread, moving(36_000, 1)]);
}

#[test]
fn an_observer_that_was_unwell_declares_nobody_expired() {
    let late = |own| Seen { own, ..seen(36_000, 1, Lease::RanOut) };
    let recently = Own { healthy_since: Some(at(21_001)), ..healthy(36_000) };
    let failing = Own { healthy_since: None, ..healthy(36_000) };
    let lapsed = Own { valid_until: at(36_000), ..healthy(36_000) };
    for own in [recently, failing, lapsed] {
        let story = [seen(20_000, 1, Lease::Runs), late(own)];
        keeps_alive(Guard::HealthyForALease, Answer::Unknown, &story);
    }
}

#[test]
fn lifelines_that_go_together_are_an_event_of_the_store() {
    // At one look, at the next one, and shortly before: the latter two may lie within half a second.
    keeps_alive(
        Guard::LostAlone,
        Answer::Refused,
        &[gone(20_000, &[MINE, THEIRS, THIRD]), gone(20_450, &[MINE]), gone(21_000, &[MINE]), gone(30_000, &[MINE])],
    );
    keeps_alive(
        Guard::LostAlone,
        Answer::Refused,
        &[
            gone(20_000, &[MINE, THEIRS, THIRD]),
            gone(20_450, &[MINE, THIRD]),
            gone(20_900, &[MINE]),
            gone(40_000, &[MINE]),
        ],
    );
    keeps_alive(
        Guard::LostAlone,
        Answer::Refused,
        &[
            gone(20_000, &[MINE, THEIRS, THIRD]),
            gone(20_450, &[MINE, THEIRS]),
            gone(20_900, &[MINE]),
            gone(21_500, &[MINE]),
        ],
    );
    keeps_alive(
        Guard::Settled,
        Answer::Refused,
        &[
            gone(20_000, &[MINE, THEIRS, THIRD]),
            gone(20_450, &[MINE, THIRD]),
            gone(20_900, &[MINE]),
            gone(21_500, &[MINE]),
        ],
    );
}

/// The third node's row in a look; its lifeline went at 20_450, together with the suspect's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ThirdRow {
    Names(Lifeline),
    Gone,
    /// No row could be read.
    Unread,
}

const THIRD_NODE: Incarnation = Incarnation(3);
const FOURTH: Lifeline = Lifeline(4);

/// Two lifelines of three go between two looks. Who is declared dead, if the third one's row is as this in the looks before
/// they went, when they were seen to be gone, and afterwards?
fn beside(mut watch: DeathWatch, third: [ThirdRow; 3]) -> Vec<Death> {
    let (mut deaths, all) = (Vec::new(), [MINE, THEIRS, THIRD]);
    let looks = [(20_000, 0, &all[..]), (20_450, 1, &all[..1]), (20_950, 2, &all[..1]), (21_500, 2, &all[..1])];
    for (ms, phase, held) in looks {
        let row = |incarnation, lifeline| Row { incarnation, beat: 1, lifeline: Some(lifeline), lease: Lease::Runs };
        let mut rows = vec![row(OTHER, THEIRS)];
        if let ThirdRow::Names(key) = third[phase] {
            rows.push(row(THIRD_NODE, key));
        }
        let rows = (third[phase] != ThirdRow::Unread).then_some(&rows[..]);
        let lifelines = Some(Lines { asked_at: at(ms), observer: 1, held });
        let own = healthy(ms);
        for action in watch.look(&Look { now: at(ms), rows, lifelines, own }) {
            let Action::Probe(suspect) = action else { panic!("no lease ran out: {action:?}") };
            deaths.extend(watch.answered(&suspect, Answer::Refused, at(ms + 20), &own));
        }
    }
    deaths.dedup();
    deaths
}

#[test]
fn a_node_that_stops_in_order_delays_no_death_beside_it() {
    use ThirdRow::{Gone, Names};
    let death = vec![Death { incarnation: OTHER, beat: 1, cause: Cause::ProcessDied(THEIRS) }];
    // Its row went before its lifeline: in the same look, or in an earlier one.
    assert_eq!(beside(DeathWatch::new(TIMING), [Names(THIRD), Gone, Gone]), death);
    let mut watch = DeathWatch::new(TIMING);
    let known = play(&mut watch, &[seen(19_000, 1, Lease::Runs)], Answer::Refused);
    assert_eq!(known, vec![]);
    let with_row = [OTHER, THIRD_NODE].map(|incarnation| {
        let lifeline = Some(if incarnation == OTHER { THEIRS } else { THIRD });
        Row { incarnation, beat: 1, lifeline, lease: Lease::Runs }
    });
    let lifelines = Some(Lines { asked_at: at(19_500), observer: 1, held: &[MINE, THEIRS, THIRD] });
    let look = Look { now: at(19_500), rows: Some(&with_row), lifelines, own: healthy(19_500) };
    assert_eq!(watch.look(&look), vec![]);
    assert_eq!(beside(watch, [Gone, Gone, Gone]), death);
}

#[test]
fn a_row_that_stands_or_goes_later_is_company() {
    use ThirdRow::{Gone, Names, Unread};
    let replaced = [Names(THIRD), Names(FOURTH), Names(FOURTH)];
    assert_eq!(beside(DeathWatch::new(TIMING), replaced), vec![]);
    let killed = beside(DeathWatch::without(TIMING, &[Guard::ReplacedIsLost]), replaced);
    assert!(!killed.is_empty(), "without the guard this story kills somebody");
    for third in [
        [Names(THIRD), Names(THIRD), Names(THIRD)],
        // The store ended both sessions; that the node was stopped, or declared dead, afterwards, is no excuse.
        [Names(THIRD), Names(THIRD), Gone],
        [Names(THIRD), Unread, Gone],
        [Names(THIRD), Names(FOURTH), Gone],
        // Nobody knows whose it was.
        [Gone, Gone, Gone],
        [Unread, Gone, Gone],
    ] {
        assert_eq!(beside(DeathWatch::new(TIMING), third), vec![], "{third:?}");
    }
}

#[test]
fn what_is_remembered_of_lifelines_is_bounded_by_what_is_held_or_named() {
    let mut watch = DeathWatch::new(TIMING);
    for number in 0..100_u64 {
        let key = Lifeline(i64::try_from(number).expect("small") + 10);
        let rows = [Row { incarnation: OTHER, beat: number, lifeline: Some(key), lease: Lease::Runs }];
        let now = at(20_000 + number * 1_000);
        let lifelines = Some(Lines { asked_at: now, observer: 1, held: &[key] });
        watch.look(&Look { now, rows: Some(&rows), lifelines, own: healthy(20_000) });
    }
    assert_eq!((watch.holders.len(), watch.registered.len()), (1, 1));
}

#[test]
fn a_new_observing_session_proves_nothing() {
    let another = |ms| Seen { lifelines: Some((2, &[MINE, THIRD])), ..seen(ms, 1, Lease::Runs) };
    let story = [seen(20_000, 1, Lease::Runs), another(20_450), another(21_000), another(30_000)];
    keeps_alive(Guard::SameObserver, Answer::Refused, &story);
    // Never seen held at all.
    let never = [gone(20_000, &[MINE, THIRD]), gone(20_500, &[MINE, THIRD]), gone(30_000, &[MINE, THIRD])];
    assert_eq!(play(&mut DeathWatch::new(TIMING), &never, Answer::Refused), vec![]);
}

#[test]
fn an_observer_without_lease_or_lifeline_declares_no_process_dead() {
    let lost = |ms, own| Seen { own, ..gone(ms, &[MINE, THIRD]) };
    let without = Own { lifeline: None, ..healthy(21_000) };
    let another = Own { lifeline: Some(Lifeline(9)), ..healthy(21_000) };
    let failing = Own { healthy_since: None, ..healthy(21_000) };
    let lapsed = Own { valid_until: at(21_000), ..healthy(21_000) };
    for own in [without, another, failing, lapsed] {
        let story = [gone(20_000, &[MINE, THEIRS, THIRD]), lost(20_450, own), lost(21_000, own)];
        keeps_alive(Guard::OwnStands, Answer::Refused, &story);
    }
}

#[test]
fn a_beat_after_the_loss_is_a_sign_of_life() {
    let beating = |ms| Seen { row: Some((2, Lease::Runs)), ..gone(ms, &[MINE, THIRD]) };
    let story = [gone(20_000, &[MINE, THEIRS, THIRD]), gone(20_450, &[MINE, THIRD]), beating(21_000), beating(30_000)];
    keeps_alive(Guard::BeatSinceLoss, Answer::Refused, &story);
}

#[test]
fn an_address_that_answers_or_stays_silent_is_no_evidence() {
    let story = [gone(20_000, &[MINE, THEIRS, THIRD]), gone(20_450, &[MINE, THIRD]), gone(21_000, &[MINE, THIRD])];
    for answer in [Answer::Unknown, Answer::Incarnation(OTHER)] {
        keeps_alive(Guard::SecondChannel, answer, &story);
    }
}

#[test]
fn a_process_that_answered_is_not_asked_again_and_a_stale_answer_is_void() {
    let mut watch = DeathWatch::new(TIMING);
    let story = [gone(20_000, &[MINE, THEIRS, THIRD]), gone(20_450, &[MINE, THIRD]), gone(21_000, &[MINE, THIRD])];
    assert_eq!(play(&mut watch, &story, Answer::Incarnation(OTHER)), vec![]);
    assert_eq!(play(&mut watch, &[gone(22_000, &[MINE, THIRD])], Answer::Refused), vec![]);

    let suspect = Suspect { incarnation: OTHER, beat: 1, lifeline: THEIRS, at: at(21_000) };
    let answered = |watch: &mut DeathWatch, ms| watch.answered(&suspect, Answer::Refused, at(ms), &healthy(ms));
    assert!(answered(&mut watch, 23_000).is_some());
    assert_eq!(answered(&mut watch, 23_001), None);
}

#[test]
fn time_left_is_judged_by_the_longest_lease_there_can_be() {
    let judged = [(-1, Lease::RanOut), (0, Lease::Runs), (18_000, Lease::Runs), (18_001, Lease::RanOut)];
    for (left, lease) in judged {
        assert_eq!(Lease::with_left(left, &TIMING), lease, "{left}");
    }
}

#[derive(Debug, Clone)]
struct Step {
    ms: u64,
    observer: u64,
    held: u8,
    beat: u64,
    expired: bool,
    readable: bool,
    own: u8,
    /// What becomes of the third node's row: 0 it goes, 1 it comes back as another node's, 2 it names another lifeline.
    third: u8,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (50_u64..6_000, 0_u64..12, any::<u8>(), 0_u64..6, any::<bool>(), 0_u8..8, 0_u8..12, 0_u8..10).prop_map(
        |(ms, observer, held, beat, expired, readable, own, third)| Step {
            ms,
            observer: u64::from(observer == 0),
            // Mostly all of them.
            held: if held < 128 { 7 } else { held & 7 },
            beat: u64::from(beat == 0),
            expired,
            readable: readable != 0,
            own,
            third,
        },
    );
    proptest::collection::vec(step, 1..40)
}

fn keys(bits: u8) -> Vec<Lifeline> {
    (0..3).filter(|bit| bits >> bit & 1 == 1).map(|bit| Lifeline(bit + 1)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Held against what the rules say in plain words, over the whole history of looks.
    #[test]
    fn nobody_is_declared_dead_against_the_rules(steps in steps()) {
        let mut watch = DeathWatch::new(TIMING);
        let (mut ms, mut beat, mut observer) = (20_000, 0, 0);
        // (when, beat if readable, observer, held)
        let mut looks: Vec<(u64, Option<u64>, u64, u8)> = Vec::new();
        // By look: was the third lifeline's holder known once, and gone from the rows that were read last?
        let (mut third, mut third_was_seen, mut given_up) = (Some(THIRD), false, Vec::new());
        for step in steps {
            ms += step.ms;
            beat += step.beat;
            observer += step.observer;
            looks.push((ms, step.readable.then_some(beat), observer, step.held));
            let own = Own { healthy_since: (step.own != 0).then_some(at(0)), ..healthy(ms) };
            let lease = if step.expired { Lease::RanOut } else { Lease::Runs };
            third = match step.third {
                0 => None,
                1 if third.is_none() => Some(THIRD),
                2 => third.map(|_| FOURTH),
                _ => third,
            };
            let mut rows = vec![Row { incarnation: OTHER, beat, lifeline: Some(THEIRS), lease }];
            let other = |lifeline| Row { incarnation: THIRD_NODE, beat, lifeline: Some(lifeline), lease: Lease::Runs };
            rows.extend(third.map(other));
            if step.readable {
                third_was_seen |= third == Some(THIRD);
                given_up.push(third.is_none() && third_was_seen);
            } else {
                given_up.push(given_up.last().copied().unwrap_or(false));
            }
            let held = keys(step.held);
            let lifelines = Some(Lines { asked_at: at(ms), observer, held: &held });
            let look = Look { now: at(ms), rows: step.readable.then_some(&rows[..]), lifelines, own };
            for action in watch.look(&look) {
                prop_assert!(step.readable && step.own != 0);
                if matches!(action, Action::Probe(suspect) if suspect.incarnation == THIRD_NODE) {
                    continue;
                }
                match action {
                    Action::Declare(death) => {
                        prop_assert_eq!((death.beat, death.cause), (beat, Cause::Expired));
                        let still = looks.iter().rev().take_while(|seen| seen.1 == Some(beat)).last().expect("this one");
                        prop_assert!(step.expired && ms - still.0 >= 15_000);
                    }
                    Action::Probe(suspect) => {
                        prop_assert_eq!((suspect.beat, suspect.lifeline), (beat, THEIRS));
                        prop_assert!(step.held & 1 == 1, "the observer's own is held");
                        let absent = looks.iter().rev().take_while(|seen| seen.3 & 2 == 0 && seen.2 == observer).count();
                        let first = looks.len() - absent;
                        let before = first.checked_sub(1).map(|index| looks[index]);
                        prop_assert!(before.is_some_and(|seen| seen.2 == observer && seen.3 & 2 == 2), "seen held before");
                        prop_assert!(absent > 0 && ms - looks[first].0 >= 500);
                        // No other one went in a look within half a second of that.
                        let (from, to) = (before.expect("checked").0, looks[first].0);
                        let same = |pair: &&[(u64, Option<u64>, u64, u8)]| pair[0].2 == observer && pair[1].2 == observer;
                        for (index, pair) in looks.windows(2).enumerate().filter(|(_, pair)| same(pair)) {
                            let counts = if given_up[index + 1] { 1 } else { 5 };
                            let went = pair[0].3 & !pair[1].3 & counts != 0;
                            let near = pair[0].0 < to + 500 && pair[1].0 + 500 > from;
                            let came_back = looks.iter().any(|seen| seen.0 > pair[1].0 && pair[0].3 & !pair[1].3 & 5 & seen.3 != 0);
                            prop_assert!(!(went && near && !came_back), "another went from {} to {}", pair[0].0, pair[1].0);
                        }
                    }
                }
            }
        }
    }
}
