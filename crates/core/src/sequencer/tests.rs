//! Tables on the sequencer, and a random walk that checks its invariants against a plain model.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::body::{Body, Limits};
use crate::ids::ConversationId;
use crate::record::RecordKind;

const CERTAIN: Moment = Moment { now: Monotonic(0), valid_until: Monotonic(1) };
const UNCERTAIN: Moment = Moment { now: Monotonic(1), valid_until: Monotonic(1) };
const AT: Timestamp = Timestamp(1_000);

fn sequencer(limits: SequencerLimits) -> Sequencer {
    let id: ConversationId = "c".parse().expect("valid");
    let reign = Reign { epoch: Epoch(3), last_seq: Seq(10), first_seq: Seq(2_001), reserved_to: Seq(2_000) };
    Sequencer::new(id.into(), reign, limits)
}

fn draft(key: &str, text: &str) -> Draft {
    let body = Body::parse_message(&format!(r#"{{"text":"{text}"}}"#), Limits::default()).expect("valid");
    Draft::new(RecordKind::Message, "alice".parse().expect("valid"), key.parse().expect("valid"), body)
}

fn step(sequencer: &mut Sequencer, moment: Moment, input: Input) -> Vec<Action> {
    let mut out = Vec::new();
    sequencer.handle(moment, input, &mut out);
    out
}

fn commit(actions: &[Action]) -> &CommitRequest {
    match actions {
        [Action::Commit(request)] => request,
        other => panic!("expected one commit, got {other:?}"),
    }
}

fn landed() -> Input {
    Input::Landed { at: AT, duplicates: Vec::new() }
}

#[test]
fn numbers_start_after_what_was_reserved_and_blocks_are_reserved_with_the_write() {
    let mut sequencer = sequencer(SequencerLimits::default());
    let actions = step(&mut sequencer, CERTAIN, Input::Append(Ticket(1), vec![draft("a", "x")]));
    let request = commit(&actions);
    assert_eq!((request.prev, request.hi, request.reserve), (Seq(10), Seq(2_001), Seq(3_000)));

    let actions = step(&mut sequencer, CERTAIN, landed());
    assert!(matches!(&actions[0], Action::Ack(Ticket(1), receipts) if receipts[0].outcome == Outcome::Appended));
    assert!(matches!(&actions[1], Action::Publish { prev: Seq(10), record } if record.seq == Seq(2_001)));

    let actions = step(&mut sequencer, CERTAIN, Input::Append(Ticket(2), vec![draft("b", "x")]));
    let request = commit(&actions);
    assert_eq!((request.prev, request.hi, request.reserve), (Seq(2_001), Seq(2_002), Seq(3_000)));
}

#[test]
fn one_batch_is_under_way_at_a_time_and_the_next_takes_all_that_waits() {
    let mut sequencer = sequencer(SequencerLimits { batch_records: 3, ..SequencerLimits::default() });
    assert_eq!(
        commit(&step(&mut sequencer, CERTAIN, Input::Append(Ticket(1), vec![draft("a", "x")]))).records.len(),
        1
    );
    for ticket in 2..=5 {
        let key = format!("k{ticket}");
        assert!(step(&mut sequencer, CERTAIN, Input::Append(Ticket(ticket), vec![draft(&key, "x")])).is_empty());
    }
    let actions = step(&mut sequencer, CERTAIN, landed());
    let Some(Action::Commit(request)) = actions.last() else { panic!("the next commit follows") };
    assert_eq!(request.records.len(), 3);
}

#[test]
fn a_key_under_way_is_joined_and_a_known_one_is_answered() {
    let mut sequencer = sequencer(SequencerLimits::default());
    step(&mut sequencer, CERTAIN, Input::Append(Ticket(1), vec![draft("a", "x")]));
    assert!(step(&mut sequencer, CERTAIN, Input::Append(Ticket(2), vec![draft("a", "x")])).is_empty());
    assert!(step(&mut sequencer, CERTAIN, Input::Append(Ticket(3), vec![draft("a", "other")])).is_empty());
    let actions = step(&mut sequencer, CERTAIN, landed());
    let duplicate = |action: &Action| matches!(action, Action::Ack(Ticket(2), r) if r[0].outcome == Outcome::Duplicate);
    let reused =
        |action: &Action| matches!(action, Action::Refuse(Ticket(3), r) if r.code == Code::IdempotencyKeyReused);
    assert!(actions.iter().any(duplicate) && actions.iter().any(reused));

    let actions = step(&mut sequencer, CERTAIN, Input::Append(Ticket(4), vec![draft("a", "x")]));
    assert!(matches!(&actions[..], [Action::Ack(Ticket(4), r)] if r[0].seq == Seq(2_001)));
}

#[test]
fn a_duplicate_that_the_store_found_leaves_a_hole_and_is_not_shown() {
    let mut sequencer = sequencer(SequencerLimits::default());
    let first = draft("a", "x");
    let original = Original { seq: Seq(5), body_hash: first.body_hash, epoch: Epoch(1), at: Timestamp(1) };
    step(&mut sequencer, CERTAIN, Input::Append(Ticket(1), vec![first]));
    let actions = step(&mut sequencer, CERTAIN, Input::Landed { at: AT, duplicates: vec![(Seq(2_001), original)] });
    let receipt = Receipt { seq: Seq(5), epoch: Epoch(1), at: Timestamp(1), outcome: Outcome::Duplicate };
    assert_eq!(actions, vec![Action::Ack(Ticket(1), vec![receipt])]);

    let actions = step(&mut sequencer, CERTAIN, Input::Append(Ticket(2), vec![draft("b", "x")]));
    assert_eq!(commit(&actions).prev, Seq(2_001), "the head moved to the hole");
    let actions = step(&mut sequencer, CERTAIN, landed());
    let shown =
        |action: &Action| matches!(action, Action::Publish { prev: Seq(10), record } if record.seq == Seq(2_002));
    assert!(shown(&actions[1]), "a hole stands before no record");
}

#[test]
fn an_uncertain_lease_numbers_nothing_and_acks_nothing() {
    let mut sequencer = sequencer(SequencerLimits::default());
    let actions = step(&mut sequencer, UNCERTAIN, Input::Append(Ticket(1), vec![draft("a", "x")]));
    assert!(matches!(&actions[..], [Action::Refuse(Ticket(1), r)] if r.retry.is_some()));

    step(&mut sequencer, CERTAIN, Input::Append(Ticket(2), vec![draft("a", "x")]));
    let actions = step(&mut sequencer, UNCERTAIN, landed());
    assert!(matches!(&actions[..], [Action::Refuse(Ticket(2), r), Action::Halt(None)] if r.retry.is_some()));
}

#[test]
fn a_definite_failure_consumes_no_key_and_no_number_twice() {
    let mut sequencer = sequencer(SequencerLimits::default());
    step(&mut sequencer, CERTAIN, Input::Append(Ticket(1), vec![draft("a", "x")]));
    let full = Refusal::new(Code::StoreUnavailable, "full");
    let actions = step(&mut sequencer, CERTAIN, Input::Failed(full.clone()));
    assert_eq!(actions, vec![Action::Refuse(Ticket(1), full)]);
    let actions = step(&mut sequencer, CERTAIN, Input::Append(Ticket(2), vec![draft("a", "x")]));
    assert_eq!(commit(&actions).hi, Seq(2_002));
}

/// How many appends in a row, each of so many records, a reign of these limits takes while all of them fail for certain;
/// and the highest number that it gave.
fn failures_survived(limits: SequencerLimits, records: usize) -> (usize, Seq) {
    let (mut sequencer, mut highest) = (sequencer(limits), Seq(0));
    for round in 0..10_000 {
        let drafts = (0..records).map(|number| draft(&format!("{round}-{number}"), "x")).collect();
        let actions = step(&mut sequencer, CERTAIN, Input::Append(Ticket(round as u64), drafts));
        let [Action::Commit(request)] = &actions[..] else {
            assert!(
                matches!(&actions[..], [Action::Refuse(_, r), Action::Halt(None)] if r.retry.is_some()),
                "{actions:?}"
            );
            return (round, highest);
        };
        highest = highest.max(request.hi);
        step(&mut sequencer, CERTAIN, Input::Failed(Refusal::new(Code::StoreUnavailable, "full")));
    }
    panic!("it never ends");
}

#[test]
fn a_reign_ends_before_it_gives_a_number_that_the_next_one_could_give() {
    // 2,000 is reserved; whoever comes after an unclean end starts above the gap.
    let limits = |gap| SequencerLimits { gap, ..SequencerLimits::default() };
    assert_eq!(failures_survived(limits(1_000), 1), (1_000, Seq(3_000)));
    assert_eq!(failures_survived(limits(1_000), 512), (1, Seq(2_512)));
    assert_eq!(failures_survived(limits(1), 1), (1, Seq(2_001)));
    // What exceeds the gap alone could never be written otherwise.
    assert_eq!(failures_survived(limits(2), 3), (1, Seq(2_003)));
}

#[test]
fn a_batch_is_no_longer_than_the_gap() {
    let mut sequencer = sequencer(SequencerLimits { gap: 2, ..SequencerLimits::default() });
    step(&mut sequencer, CERTAIN, Input::Append(Ticket(1), vec![draft("a", "x")]));
    for ticket in 2..=5 {
        step(&mut sequencer, CERTAIN, Input::Append(Ticket(ticket), vec![draft(&format!("k{ticket}"), "x")]));
    }
    let actions = step(&mut sequencer, CERTAIN, landed());
    let Some(Action::Commit(request)) = actions.last() else { panic!("the next commit follows") };
    assert_eq!(request.records.len(), 2);
}

#[test]
fn a_fenced_reign_refuses_everything_with_a_directive() {
    let mut sequencer = sequencer(SequencerLimits::default());
    step(&mut sequencer, CERTAIN, Input::Append(Ticket(1), vec![draft("a", "x")]));
    step(&mut sequencer, CERTAIN, Input::Append(Ticket(2), vec![draft("b", "x")]));
    let actions = step(&mut sequencer, CERTAIN, Input::Ended(moved()));
    assert_eq!(actions.len(), 3);
    assert!(matches!(actions[2], Action::Halt(None)));
    let actions = step(&mut sequencer, CERTAIN, Input::Append(Ticket(3), vec![draft("c", "x")]));
    assert!(matches!(&actions[..], [Action::Refuse(Ticket(3), r)] if r.retry.is_some()));
}

#[test]
fn a_full_queue_is_refused_with_a_directive() {
    let mut sequencer = sequencer(SequencerLimits { queue_records: 1, ..SequencerLimits::default() });
    step(&mut sequencer, CERTAIN, Input::Append(Ticket(1), vec![draft("a", "x")]));
    step(&mut sequencer, CERTAIN, Input::Append(Ticket(2), vec![draft("b", "x")]));
    let actions = step(&mut sequencer, CERTAIN, Input::Append(Ticket(3), vec![draft("c", "x")]));
    assert!(matches!(&actions[..], [Action::Refuse(Ticket(3), r)] if r.code == Code::Overloaded && r.retry.is_some()));
}

#[test]
fn repetitions_of_a_key_under_way_are_bounded() {
    let mut sequencer = sequencer(SequencerLimits { queue_records: 2, ..SequencerLimits::default() });
    step(&mut sequencer, CERTAIN, Input::Append(Ticket(1), vec![draft("a", "x")]));
    for ticket in [2, 3] {
        assert_eq!(step(&mut sequencer, CERTAIN, Input::Append(Ticket(ticket), vec![draft("a", "x")])), []);
    }
    let actions = step(&mut sequencer, CERTAIN, Input::Append(Ticket(4), vec![draft("a", "x")]));
    assert!(matches!(&actions[..], [Action::Refuse(Ticket(4), r)] if r.code == Code::Overloaded && r.retry.is_some()));
    let actions = step(&mut sequencer, CERTAIN, landed());
    let acks = actions.iter().filter(|action| matches!(action, Action::Ack(..))).count();
    assert_eq!(acks, 3, "those that were taken are answered");
}

#[derive(Debug, Clone)]
enum Op {
    Append(u8, u8),
    Land,
    Fail,
    Wait(u8),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..12_u8, 0..2_u8).prop_map(|(key, text)| Op::Append(key, text)),
        3 => Just(Op::Land),
        1 => Just(Op::Fail),
        1 => (0..4_u8).prop_map(Op::Wait),
    ]
}

proptest! {
    /// A model store keeps what landed; whatever happens, tickets are answered once, keys land once, numbers go up.
    #[test]
    fn invariants_hold_on_any_walk(ops in prop::collection::vec(op(), 1..120)) {
        let limits = SequencerLimits { block: 5, batch_records: 4, queue_records: 6, recent_keys: 3, ..SequencerLimits::default() };
        let mut sequencer = sequencer(limits);
        let mut log: BTreeMap<String, Original> = BTreeMap::new();
        let mut in_flight: Option<CommitRequest> = None;
        let (mut open, mut given, mut shown) = (BTreeSet::new(), Seq(2_000), Seq(10));
        let (mut head, mut reserved, mut ticket, mut uncertain) = (Seq(10), Seq(2_000), 0_u64, 0_u8);
        for op in ops {
            let moment = if uncertain > 0 { UNCERTAIN } else { CERTAIN };
            uncertain = uncertain.saturating_sub(1);
            let input = match op {
                Op::Append(key, text) => {
                    ticket += 1;
                    open.insert(ticket);
                    Input::Append(Ticket(ticket), vec![draft(&format!("k{key}"), &format!("t{text}"))])
                }
                Op::Land => {
                    let Some(request) = in_flight.take() else { continue };
                    head = request.hi;
                    reserved = reserved.max(request.reserve);
                    let mut duplicates = Vec::new();
                    for (seq, draft) in request.records {
                        let key = draft.client_msg_id.to_string();
                        match log.get(&key) {
                            Some(original) => duplicates.push((seq, *original)),
                            None => {
                                let landed = Original { seq, body_hash: draft.body_hash, epoch: Epoch(3), at: AT };
                                log.insert(key, landed);
                            }
                        }
                    }
                    Input::Landed { at: AT, duplicates }
                }
                Op::Fail => {
                    if in_flight.take().is_none() { continue }
                    Input::Failed(moved())
                }
                Op::Wait(steps) => { uncertain = steps; continue }
            };
            for action in step(&mut sequencer, moment, input) {
                match action {
                    Action::Commit(request) => {
                        prop_assert!(in_flight.is_none(), "one batch at a time");
                        prop_assert_eq!(request.prev, head);
                        prop_assert!(request.hi <= request.reserve.max(reserved));
                        let mut keys = BTreeSet::new();
                        for (seq, draft) in &request.records {
                            prop_assert!(*seq > given, "numbers only go up");
                            given = *seq;
                            prop_assert!(keys.insert(draft.client_msg_id.to_string()), "a key once in a batch");
                        }
                        in_flight = Some(request);
                    }
                    Action::Ack(Ticket(t), receipts) => {
                        prop_assert!(open.remove(&t), "answered once");
                        prop_assert!(log.values().any(|original| original.seq == receipts[0].seq), "acked means landed");
                    }
                    Action::Refuse(Ticket(t), _) => prop_assert!(open.remove(&t), "answered once"),
                    Action::Publish { prev, record } => {
                        prop_assert!(prev < record.seq && record.seq > shown, "shown in order");
                        shown = record.seq;
                        let key = record.client_msg_id.expect("has a key").to_string();
                        prop_assert_eq!(log.get(&key).map(|original| original.seq), Some(record.seq), "shown means landed");
                    }
                    Action::Halt(broken) => prop_assert!(broken.is_none(), "no invariant breaks"),
                }
            }
            if sequencer.halted { break }
        }
        if sequencer.is_idle() {
            prop_assert!(open.is_empty(), "nobody is left without an answer");
        }
    }
}
