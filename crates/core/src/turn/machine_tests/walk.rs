//! Random stories: clients, runners, stores that refuse, and takeovers at every point.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;
use crate::turn::TurnState;
use crate::turn::cancel::Regenerate;

#[derive(Debug, Clone)]
enum Event {
    Input,
    InputAgain,
    Commit,
    Refuse,
    RefuseForGood,
    /// The queue is full: the last one is refused, and what came before is on its way.
    RefuseLast,
    Again(usize),
    Step,
    Wait,
    /// A runner that does not end when it waits.
    OpenAwait,
    Resolve(u64),
    Join,
    End,
    Die,
    StoppedSteps,
    StoppedIsGone,
    Cancel(usize, CancelMode),
    Regenerate,
    SecondMessage(SecondMessage),
    Checkpoint,
    CrashLost,
    CrashLanded,
    Tick,
}

fn second_message() -> impl Strategy<Value = SecondMessage> {
    use SecondMessage::{Interrupt, Merge, Queue, Reject, Steer};
    proptest::sample::select(vec![Queue, Reject, Interrupt, Steer, Merge])
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let mode = proptest::sample::select(vec![CancelMode::Keep, CancelMode::Rollback]);
    let event = prop_oneof![
        8 => Just(Event::Input),
        1 => Just(Event::InputAgain),
        16 => Just(Event::Commit),
        2 => Just(Event::Refuse),
        2 => Just(Event::RefuseForGood),
        3 => Just(Event::RefuseLast),
        4 => any::<usize>().prop_map(Event::Again),
        6 => Just(Event::Step),
        3 => Just(Event::Wait),
        1 => Just(Event::OpenAwait),
        3 => (0_u64..3).prop_map(Event::Resolve),
        3 => Just(Event::Join),
        6 => Just(Event::End),
        1 => Just(Event::Die),
        2 => Just(Event::StoppedSteps),
        3 => Just(Event::StoppedIsGone),
        3 => (any::<usize>(), mode).prop_map(|(which, mode)| Event::Cancel(which, mode)),
        1 => Just(Event::Regenerate),
        1 => second_message().prop_map(Event::SecondMessage),
        2 => Just(Event::Checkpoint),
        2 => Just(Event::CrashLost),
        2 => Just(Event::CrashLanded),
        4 => Just(Event::Tick),
    ];
    proptest::collection::vec(event, 0..120)
}

fn perform(owner: &mut Owner, event: &Event) {
    match event {
        Event::Input => owner.input(),
        Event::InputAgain => owner.input_again(),
        Event::Commit => owner.commit(),
        Event::Refuse => owner.refuse(Some(Retry::SOON)),
        Event::RefuseForGood => owner.refuse(None),
        Event::RefuseLast => owner.refuse_last(),
        Event::Again(which) => {
            if !owner.log.is_empty() {
                let record = owner.log[which % owner.log.len()].clone();
                owner.tell(Input::Committed(&record));
            }
        }
        Event::Step => owner.runner_steps(),
        Event::Wait => owner.runner_waits(),
        Event::OpenAwait => owner.runner_opens_an_await(),
        Event::Resolve(payload) => owner.resolve(*payload),
        Event::Join => drop(owner.runner_joins()),
        Event::End => owner.runner_ends(),
        Event::Die => owner.runner_dies(Gone::Over),
        Event::StoppedSteps => owner.stopped_steps(),
        Event::StoppedIsGone => owner.stopped_is_gone(),
        Event::Cancel(which, mode) => {
            let known: Vec<Seq> = owner.machine.queued.iter().copied().chain(owner.machine.running()).collect();
            if !known.is_empty() {
                owner.cancel(&cancel(known[which % known.len()], *mode));
            }
        }
        Event::Regenerate => regenerate(owner),
        Event::SecondMessage(second_message) => {
            owner.setup = setup(*second_message);
            owner.machine.set_up(owner.setup.clone());
        }
        Event::Checkpoint => owner.checkpoint(),
        Event::CrashLost => owner.crash(Unheard::Lost),
        Event::CrashLanded => owner.crash(Unheard::Landed),
        Event::Tick => owner.tick(),
    }
}

fn regenerate(owner: &mut Owner) {
    owner.inputs += 1;
    let (by, on_their_way) = ("alice".parse().expect("valid"), owner.inputs_on_their_way());
    let client_msg_id = format!("k{}", owner.inputs).parse().expect("valid");
    let ended = owner.log.iter().rfind(|record| record.kind.ends_turn()).and_then(|record| record.turn);
    let Some(turn) = ended else { return };
    let ask = Regenerate { turn, by, name: None, client_msg_id };
    if let Ok(drafts) = owner.machine.regenerate(&ask, on_their_way) {
        owner.pending.push(drafts);
    }
}

/// Plays a story, then lets everything come to its end, and says what went wrong.
fn play(second_message: SecondMessage, events: &[Event], without: Option<Rule>) -> Vec<String> {
    let mut owner = Owner::with(second_message, without);
    owner.on_fault = OnFault::Keep;
    for event in events {
        perform(&mut owner, event);
        if !owner.faults.is_empty() {
            return std::mem::take(&mut owner.faults);
        }
    }
    // From here on nothing goes wrong any more: all that is open must come to its end.
    for _ in 0..4 * (events.len() + 4) {
        owner.tick();
        owner.stopped_is_gone();
        owner.runner_ends();
        owner.commit();
        if owner.machine.is_idle() && owner.pending.is_empty() {
            break;
        }
    }
    let (idle, due) = (owner.machine.is_idle(), owner.due);
    owner.require(idle, "everything has ended");
    owner.require(due == Due::Clear, "nothing is due");
    let inputs: Vec<Seq> = owner
        .log
        .iter()
        .filter(|record| journal::is_input(record.kind, &record.sender))
        .map(|record| record.seq)
        .collect();
    for input in &inputs {
        let (starts, ends) = (owner.starts(*input), owner.ends(*input));
        owner.require(starts <= 1 && ends == 1, &format!("{input} has {starts} starts and {ends} ends"));
        let closed = owner.machine.state(*input) == TurnState::Closed;
        owner.require(closed, "what has ended is closed");
    }
    let starts = owner.log.iter().filter(|record| record.kind == RecordKind::TurnStarted).count();
    owner.require(starts <= inputs.len(), "no start without an input");
    let mut faults = std::mem::take(&mut owner.faults);
    faults.extend(judge(&owner.log));
    faults
}

proptest! {
    #[test]
    fn every_input_gets_one_end_whatever_happens(second_message in second_message(), events in events()) {
        prop_assert_eq!(play(second_message, &events, None), Vec::<String>::new());
    }
}

#[test]
fn every_rule_is_needed() {
    for rule in [
        Rule::EndCloses,
        Rule::LeavingStays,
        Rule::WaitingRests,
        Rule::WaitingRefuses,
        Rule::OneAtATime,
        Rule::SettledFirst,
        Rule::WaitingCounts,
    ] {
        let config = Config { cases: 2000, max_shrink_iters: 0, failure_persistence: None, ..Config::default() };
        let mut runner = TestRunner::new_with_rng(
            config,
            proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
        );
        let found = runner.run(&(second_message(), events()), |(second_message, events)| {
            prop_assert_eq!(play(second_message, &events, Some(rule)), Vec::<String>::new());
            Ok(())
        });
        assert!(found.is_err(), "without {rule:?} nothing went wrong");
    }
}
