//! The turns of a stored log: are their records where they may be?
//!
//! Each record of a turn has the sender and key that its kind prescribes, so that the store's unique key admits one of it
//! (which the rest of the checker holds against the index); and the records come in an order in which one turn runs at a
//! time, a step only in a turn that runs, nothing while it waits, and nothing after its end.
//!
//! Invariant: a turn that runs and what it waits for are all that is kept. Deliberately absent: bodies; and turns that were
//! cut off before the log began.

use crate::ids::Seq;
use crate::invariant::Invariant;
use crate::record::RecordKind;
use crate::turn::awaits::AwaitId;
use crate::turn::journal;

/// The turn that runs, as far as it is needed.
#[derive(Debug, Default)]
pub(super) struct TurnRules {
    running: Option<Seq>,
    waiting: Option<AwaitId>,
    /// The highest turn that has started: an end of a later one is that of an input that waited.
    started: Seq,
}

impl TurnRules {
    /// Takes the next record. What is wrong with it, and which invariant it breaks.
    pub(super) fn record(&mut self, kind: RecordKind, sender: &str, key: &str) -> Option<(Invariant, String)> {
        let by = sender_of(kind)?;
        if by != sender {
            // Agents' answers and clients' inputs are messages and events; nothing else is written in another name.
            return Some((Invariant::OneTerminal, format!("is a {kind} of {sender}, and not of {by}")));
        }
        if matches!(kind, RecordKind::AwaitOpened | RecordKind::AwaitResolved) {
            let Ok(id) = key.parse::<AwaitId>() else {
                return Some((Invariant::AwaitOnce, format!("has the key {key}, which names no await")));
            };
            return self.awaits(kind, id);
        }
        // A turn that is superseded once more, after its other run was rolled back, names that run, too.
        let named = match kind {
            RecordKind::TurnSuperseded => key.split('~').next(),
            _ => key.split('/').next(),
        };
        let turn = named.unwrap_or(key).parse().map(Seq);
        let Ok(turn) = turn else {
            return Some((Invariant::OneTerminal, format!("has the key {key}, which names no turn")));
        };
        match kind {
            RecordKind::TurnStarted => self.starts(turn),
            RecordKind::StepStarted | RecordKind::StepCompleted => self.steps(turn),
            RecordKind::TurnSuperseded | RecordKind::TurnCancelled if self.running != Some(turn) => {
                self.ends_what_does_not_run(kind, turn)
            }
            _ => self.ends(turn),
        }
    }

    fn starts(&mut self, turn: Seq) -> Option<(Invariant, String)> {
        let before = self.running.replace(turn);
        self.started = self.started.max(turn);
        self.waiting = None;
        before.map(|before| (Invariant::OneTerminal, format!("starts turn {turn} while turn {before} runs")))
    }

    fn steps(&mut self, turn: Seq) -> Option<(Invariant, String)> {
        if self.running != Some(turn) {
            return Some((Invariant::StepOnce, format!("is a step of turn {turn}, which does not run")));
        }
        let waiting = self.waiting.as_ref()?;
        Some((Invariant::AwaitOnce, format!("is a step of a turn that waits for {waiting}")))
    }

    fn awaits(&mut self, kind: RecordKind, id: AwaitId) -> Option<(Invariant, String)> {
        if self.running != Some(id.turn()) {
            return Some((Invariant::AwaitOnce, format!("is about {id}, whose turn does not run")));
        }
        let is_open = self.waiting.as_ref() == Some(&id);
        let nothing_is = self.waiting.is_none();
        if kind == RecordKind::AwaitResolved {
            self.waiting = None;
            return (!is_open).then(|| (Invariant::AwaitOnce, format!("resolves {id}, which is not open")));
        }
        let detail = format!("opens {id} while another is open");
        self.waiting = Some(id);
        (!nothing_is).then_some((Invariant::AwaitOnce, detail))
    }

    /// An input that waited is cancelled or joins another; a turn that has ended is run again.
    fn ends_what_does_not_run(&mut self, kind: RecordKind, turn: Seq) -> Option<(Invariant, String)> {
        let never_ran = turn > self.started || self.running.is_some_and(|running| turn > running);
        let is_ended = kind == RecordKind::TurnSuperseded && self.running.is_none();
        let detail = format!("is a {kind} of turn {turn}, which has ended");
        (!never_ran && !is_ended).then_some((Invariant::OneTerminal, detail))
    }

    fn ends(&mut self, turn: Seq) -> Option<(Invariant, String)> {
        if self.running != Some(turn) {
            return Some((Invariant::OneTerminal, format!("ends turn {turn}, which does not run")));
        }
        (self.running, self.waiting) = (None, None);
        None
    }
}

/// In whose name records of this kind are written; `None`: in anybody's.
fn sender_of(kind: RecordKind) -> Option<&'static str> {
    match kind {
        RecordKind::TurnStarted => Some(journal::START_SENDER),
        RecordKind::StepStarted => Some(journal::INTENT_SENDER),
        RecordKind::StepCompleted => Some(journal::STEP_SENDER),
        RecordKind::AwaitOpened => Some(journal::AWAIT_SENDER),
        RecordKind::AwaitResolved => Some(journal::RESOLVE_SENDER),
        RecordKind::TurnCompleted | RecordKind::TurnFailed | RecordKind::TurnCancelled => Some(journal::END_SENDER),
        RecordKind::TurnSuperseded => Some(journal::SUPERSEDE_SENDER),
        RecordKind::Message | RecordKind::Event | RecordKind::MessageEdited | RecordKind::MessageDeleted => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use RecordKind::{
        AwaitOpened, AwaitResolved, Message, StepCompleted, StepStarted, TurnCancelled, TurnCompleted, TurnStarted,
        TurnSuperseded,
    };

    type Log = Vec<(RecordKind, &'static str, &'static str)>;

    /// A turn with a call that was asked about, an input that joined, one that was cancelled while it waited, and another run.
    fn good() -> Log {
        vec![
            (Message, "alice", "a"),
            (TurnStarted, "@start", "1"),
            (StepCompleted, "@step", "1/m1"),
            (AwaitOpened, "@await", "1-m1.t0"),
            (TurnCancelled, "@end", "3"),
            (AwaitResolved, "@resolve", "1-m1.t0"),
            (StepStarted, "@intent", "1/m1.t0"),
            (StepCompleted, "@step", "1/m1.t0"),
            (TurnSuperseded, "@supersede", "6"),
            (Message, "@agent:demo", "1"),
            (TurnCompleted, "@end", "1"),
            (TurnSuperseded, "@supersede", "1"),
            (TurnStarted, "@start", "14"),
            (TurnCancelled, "@end", "14"),
            (TurnSuperseded, "@supersede", "1~14"),
            (TurnStarted, "@start", "18"),
        ]
    }

    fn check(log: &Log) -> Vec<Invariant> {
        let mut rules = TurnRules::default();
        let found = log.iter().filter_map(|(kind, sender, key)| rules.record(*kind, sender, key));
        found.map(|(invariant, _)| invariant).collect()
    }

    #[test]
    fn a_good_log_is_clean() {
        assert_eq!(check(&good()), Vec::new());
    }

    /// How a mutant breaks a good log, and the invariant that must be reported.
    type Mutant = (&'static str, fn(&mut Log), Invariant);

    #[test]
    fn every_rule_catches_its_mutant() {
        let mutants: [Mutant; 13] = [
            ("an end in another name", |log| log[10].1 = "alice", Invariant::OneTerminal),
            ("an end of nothing", |log| log[10].2 = "x", Invariant::OneTerminal),
            ("a second start", |log| log.insert(2, (TurnStarted, "@start", "5")), Invariant::OneTerminal),
            ("a second end", |log| log.insert(11, (TurnCompleted, "@end", "1")), Invariant::OneTerminal),
            ("a cancel after the end", |log| log.insert(11, (TurnCancelled, "@end", "1")), Invariant::OneTerminal),
            ("an end without a start", |log| log[1] = log[0], Invariant::OneTerminal),
            ("a step after the end", |log| log.insert(11, (StepCompleted, "@step", "1/m2")), Invariant::StepOnce),
            ("a step of another turn", |log| log[7].2 = "2/m1.t0", Invariant::StepOnce),
            ("a step while it waits", |log| log.swap(5, 7), Invariant::AwaitOnce),
            ("an await of no turn", |log| log[3].2 = "m1", Invariant::AwaitOnce),
            ("an await of another turn", |log| log[3].2 = "9-m1", Invariant::AwaitOnce),
            ("resolved twice", |log| log.insert(6, (AwaitResolved, "@resolve", "1-m1.t0")), Invariant::AwaitOnce),
            ("two awaits at once", |log| log.insert(4, (AwaitOpened, "@await", "1-m2")), Invariant::AwaitOnce),
        ];
        for (name, mutate, invariant) in mutants {
            let mut log = good();
            mutate(&mut log);
            assert!(check(&log).contains(&invariant), "{name}: {:?}", check(&log));
        }
    }
}
