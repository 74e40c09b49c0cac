//! The journal of one turn, as whoever goes on with it needs it: which steps are done and with what result, which calls were
//! about to be made, what was answered.
//!
//! Invariant: a step has one result (invariant 9). A second one means that it was executed again; whoever reads it stops.
//!
//! Deliberately absent: the texts of the inputs.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::ids::Seq;
use crate::invariant::{Broken, Invariant};
use crate::record::{Record, RecordKind};
use crate::turn::StepId;
use crate::turn::awaits::{AwaitId, Resolution};
use crate::turn::budget::Spent;
use crate::turn::journal;
use crate::turn::result::StepResult;

/// The kinds that a turn's journal is read from.
pub const JOURNAL_KINDS: [RecordKind; 5] = [
    RecordKind::StepStarted,
    RecordKind::StepCompleted,
    RecordKind::AwaitOpened,
    RecordKind::AwaitResolved,
    RecordKind::TurnSuperseded,
];

/// What is in the journal of a turn.
#[derive(Debug, Clone, Default)]
pub struct Replay {
    turn: Seq,
    at_seq: Seq,
    steps: BTreeMap<StepId, StepResult>,
    /// Of each step that was about to be called: how often.
    intents: BTreeMap<StepId, u32>,
    awaits: BTreeMap<AwaitId, Option<Resolution>>,
    joined: Vec<Seq>,
    spent: Spent,
}

impl Replay {
    /// The journal of a turn of which nothing is read yet.
    #[must_use]
    pub fn new(turn: Seq) -> Self {
        Self { turn, at_seq: turn, ..Self::default() }
    }

    /// The last record that was told; the next read goes on behind it.
    #[must_use]
    pub fn at_seq(&self) -> Seq {
        self.at_seq
    }

    /// Takes the next record; those of other turns say nothing.
    ///
    /// # Errors
    /// [`Broken`] if a step has a second result.
    pub fn take(&mut self, record: &Record) -> Result<(), Broken> {
        if record.seq <= self.at_seq {
            return Ok(());
        }
        self.at_seq = record.seq;
        if record.kind == RecordKind::TurnSuperseded {
            if let Some(input) = record.turn.filter(|_| journal::joined_into(record) == Some(self.turn)) {
                self.joined.push(input);
            }
            return Ok(());
        }
        if record.turn != Some(self.turn) {
            return Ok(());
        }
        self.spent = self.spent.with(record.kind, &record.body);
        match record.kind {
            RecordKind::StepStarted => {
                if let Some((step, attempt)) = intent_of(record) {
                    self.intents.insert(step, attempt);
                }
            }
            RecordKind::StepCompleted => {
                if let Some((step, result)) = StepResult::read(&record.body) {
                    self.completed(step, result)?;
                }
            }
            RecordKind::AwaitOpened => {
                if let Some(open) = journal::await_of(&record.body) {
                    self.awaits.insert(open.id, None);
                }
            }
            RecordKind::AwaitResolved => {
                if let Some((id, resolution)) = journal::resolution_of(&record.body) {
                    self.awaits.insert(id, Some(resolution));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// A step's result is in the log.
    ///
    /// # Errors
    /// [`Broken`] if it has one already.
    pub fn completed(&mut self, step: StepId, result: StepResult) -> Result<(), Broken> {
        if self.steps.contains_key(&step) {
            let detail = format!("turn {}: step {step} has a second result", self.turn);
            return Err(Invariant::StepOnce.broken(detail));
        }
        self.steps.insert(step, result);
        Ok(())
    }

    /// What the runner itself brought into the journal.
    pub fn spend(&mut self, spent: Spent) {
        self.spent = spent;
    }

    /// An intent is in the log.
    pub fn intended(&mut self, step: StepId, attempt: u32) {
        self.intents.insert(step, attempt);
    }

    /// Inputs have joined.
    pub fn join(&mut self, inputs: impl IntoIterator<Item = Seq>) {
        self.joined.extend(inputs);
    }

    /// The result of a step that is done.
    #[must_use]
    pub fn result(&self, step: &StepId) -> Option<&StepResult> {
        self.steps.get(step)
    }

    /// How often a step was about to be called; 0: never, or its calls are not written down.
    #[must_use]
    pub fn intents(&self, step: &StepId) -> u32 {
        self.intents.get(step).copied().unwrap_or(0)
    }

    /// What came of an await; `None`: it was never opened; inside: it is open.
    #[must_use]
    pub fn resolution(&self, id: &AwaitId) -> Option<Option<&Resolution>> {
        self.awaits.get(id).map(Option::as_ref)
    }

    /// Every step that is done, by name.
    pub fn steps(&self) -> impl Iterator<Item = (&StepId, &StepResult)> {
        self.steps.iter()
    }

    /// Every await that was opened, by name, and what came of it.
    pub fn awaits(&self) -> impl Iterator<Item = (&AwaitId, Option<&Resolution>)> {
        self.awaits.iter().map(|(id, resolution)| (id, resolution.as_ref()))
    }

    /// The inputs that joined the turn, in their order.
    #[must_use]
    pub fn joined(&self) -> &[Seq] {
        &self.joined
    }

    /// What the turn has used.
    #[must_use]
    pub fn spent(&self) -> Spent {
        self.spent
    }

    /// True if nothing is done yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.intents.is_empty() && self.awaits.is_empty()
    }
}

fn intent_of(record: &Record) -> Option<(StepId, u32)> {
    #[derive(Deserialize)]
    struct Intent {
        step: StepId,
        attempt: u32,
    }
    let intent: Intent = serde_json::from_str(record.body.as_str()).ok()?;
    Some((intent.step, intent.attempt))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Epoch;
    use crate::record::Draft;
    use crate::time::Timestamp;
    use crate::turn::awaits::OpenAwait;
    use serde_json::json;

    fn record(seq: u64, draft: Draft) -> Record {
        Record::from_draft("c".parse().expect("valid"), Seq(seq), Epoch(1), Timestamp(0), draft)
    }

    #[test]
    fn what_is_done_and_what_was_begun_is_known() {
        let (turn, m1, tool) = (Seq(7), StepId::model(1), StepId::tool(1, 0));
        let open = OpenAwait { id: AwaitId::of(turn, &tool), step: tool.clone(), expires_at: Timestamp(9) };
        let yes = Resolution::Payload(json!(true));
        let drafts = [
            journal::step_completed(turn, &m1, &StepResult::text("hi")),
            journal::step_completed(Seq(6), &StepId::model(9), &StepResult::text("another turn's")),
            journal::await_opened(turn, &open, &json!({}), None),
            journal::await_resolved(&open.id, &yes),
            journal::step_started(turn, &tool, 1, "pay", &json!({})),
            journal::joined(Seq(8), turn),
            journal::joined(Seq(9), Seq(3)),
        ];
        let mut replay = Replay::new(turn);
        let records: Vec<Record> = (10..).zip(drafts).map(|(seq, draft)| record(seq, draft)).collect();
        for record in records.iter().chain(&records) {
            replay.take(record).expect("each has one result, and a record may come twice");
        }
        assert_eq!(replay.result(&m1), Some(&StepResult::text("hi")));
        assert_eq!(replay.result(&StepId::model(9)), None);
        assert_eq!((replay.intents(&tool), replay.intents(&m1)), (1, 0));
        assert_eq!(replay.resolution(&open.id), Some(Some(&yes)));
        assert_eq!(replay.resolution(&AwaitId::of(turn, &m1)), None);
        assert_eq!((replay.joined(), replay.spent().steps, replay.at_seq()), (&[Seq(8)][..], 1, Seq(16)));
    }

    #[test]
    fn a_second_result_of_a_step_is_noticed() {
        let mut replay = Replay::new(Seq(7));
        let draft = journal::step_completed(Seq(7), &StepId::model(1), &StepResult::text("hi"));
        replay.take(&record(8, draft.clone())).expect("the first");
        let broken = replay.take(&record(9, draft)).expect_err("it was executed again");
        assert!(broken.to_string().starts_with("invariant 9 is broken"), "{broken}");
    }
}
