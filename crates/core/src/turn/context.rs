//! What a model is shown of a conversation: the log's records as messages.
//!
//! Invariants: an input stands where its turn began, or where it joined one, not where it was posted, so that each answer
//! follows what it answers; every tool call that the model asked for is followed by its result, known or not; what was
//! rolled back, run again, replaced or erased is not there; a run that was rolled back replaces nothing.
//!
//! Deliberately absent: a provider's format, and how much of a long log is shown. Whoever asks chooses the records.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::body::Body;
use crate::ids::{Seq, Subject};
use crate::record::{Record, RecordKind};
use crate::turn::StepId;
use crate::turn::journal;
use crate::turn::replaced::Replaced;
use crate::turn::result::{AskedCall, StepResult, ToolStatus};

/// The kinds that messages are made from.
pub const CONTEXT_KINDS: [RecordKind; 6] = [
    RecordKind::Message,
    RecordKind::Event,
    RecordKind::TurnStarted,
    RecordKind::StepCompleted,
    RecordKind::TurnCancelled,
    RecordKind::TurnSuperseded,
];

/// One message.
#[derive(Debug, Clone, PartialEq)]
pub struct ContextMessage {
    /// The turn that it is part of.
    pub turn: Seq,
    /// Whose it is.
    pub content: Content,
}

/// Whose a message is, and what it says.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// An input.
    User {
        /// Who wrote it.
        sender: Subject,
        /// Their display name.
        name: Option<Arc<str>>,
        /// What.
        body: Body,
    },
    /// The agent's.
    Assistant {
        /// Its text.
        text: String,
        /// The tools that it asked for, under the identities of their steps.
        calls: Vec<(StepId, AskedCall)>,
    },
    /// A tool's answer.
    Tool {
        /// The step that was the call.
        step: StepId,
        /// The tool.
        name: String,
        /// What it answered.
        output: Value,
        /// How the call ended; [`ToolStatus::Unknown`] also if there is no result.
        status: ToolStatus,
    },
}

/// The messages of these records, which ascend; those at its beginning whose input is not among them are left out.
#[must_use]
pub fn assemble(records: &[Record]) -> Vec<ContextMessage> {
    let void = Replaced::of(records);
    let inputs: BTreeMap<Seq, &Record> = records
        .iter()
        .filter(|record| journal::is_input(record.kind, &record.sender) && record.deleted_at.is_none())
        .map(|record| (record.seq, record))
        .collect();
    let mut assembly = Assembly { void, inputs, messages: Vec::new(), open: BTreeMap::new() };
    for record in records {
        assembly.take(record);
    }
    // The calls of a turn that still runs are left open: they are about to be made.
    assembly.messages
}

/// The same with what the run of `turn` is to answer, however little of the log was looked at: before the first message of the
/// turn, if it is not there.
#[must_use]
pub fn with_input(mut messages: Vec<ContextMessage>, turn: Seq, input: &Record) -> Vec<ContextMessage> {
    let content = Content::User { sender: input.sender.clone(), name: input.name.clone(), body: input.body.clone() };
    // A turn that is run again answers the input of another one, which stands where that one began.
    let is_there = |message: &ContextMessage| [turn, input.seq].contains(&message.turn) && message.content == content;
    if input.deleted_at.is_none() && !messages.iter().any(is_there) {
        let first = messages.iter().position(|message| message.turn == turn).unwrap_or(messages.len());
        messages.insert(first, ContextMessage { turn, content });
    }
    messages
}

struct Assembly<'a> {
    void: Replaced,
    inputs: BTreeMap<Seq, &'a Record>,
    messages: Vec<ContextMessage>,
    /// The calls last asked for that have no result yet, and the tools they ask.
    open: BTreeMap<StepId, String>,
}

impl Assembly<'_> {
    fn take(&mut self, record: &Record) {
        let Some(turn) = record.turn else { return };
        match record.kind {
            RecordKind::TurnStarted => self.input(turn, turn),
            RecordKind::TurnSuperseded => {
                if let Some(into) = journal::joined_into(record) {
                    self.input(turn, into);
                }
            }
            _ if self.void.is_rolled_back(turn) || self.void.is_run_again(turn) || record.deleted_at.is_some() => {}
            RecordKind::StepCompleted => self.step(turn, &record.body),
            RecordKind::Message => self.answer(turn, &record.body),
            _ => {}
        }
    }

    fn input(&mut self, input: Seq, turn: Seq) {
        if self.void.is_rolled_back(turn) {
            return;
        }
        // One that asks for another run says nothing to a model.
        let Some(record) = self.inputs.get(&input).filter(|record| journal::regenerates(&record.body).is_none()) else {
            return;
        };
        let content =
            Content::User { sender: record.sender.clone(), name: record.name.clone(), body: record.body.clone() };
        self.settle_calls();
        self.messages.push(ContextMessage { turn, content });
    }

    fn step(&mut self, turn: Seq, body: &Body) {
        match StepResult::read(body) {
            Some((step, StepResult::Model { output, calls, .. })) => {
                self.settle_calls();
                let calls: Vec<_> = (0..).zip(calls).map(|(index, call)| (step.call(index), call)).collect();
                self.open = calls.iter().map(|(step, call)| (step.clone(), call.name.clone())).collect();
                self.messages.push(ContextMessage { turn, content: Content::Assistant { text: output, calls } });
            }
            Some((step, StepResult::Tool { name, output, status, .. })) if self.open.remove(&step).is_some() => {
                self.messages.push(ContextMessage { turn, content: Content::Tool { step, name, output, status } });
            }
            // What no model asked for, no model is told of.
            _ => {}
        }
    }

    fn answer(&mut self, turn: Seq, body: &Body) {
        let text = journal::input_text(body).unwrap_or_default();
        self.settle_calls();
        let said = Content::Assistant { text, calls: Vec::new() };
        // The last model call says it already.
        let is_said = self.messages.last().is_some_and(|last| last.turn == turn && last.content == said);
        if !is_said {
            self.messages.push(ContextMessage { turn, content: said });
        }
    }

    /// A call without a result gets one that says so: providers refuse it otherwise.
    fn settle_calls(&mut self) {
        let Some(turn) = self.messages.last().map(|last| last.turn) else { return };
        for (step, name) in std::mem::take(&mut self.open) {
            let content = Content::Tool { step, name, output: Value::Null, status: ToolStatus::Unknown };
            self.messages.push(ContextMessage { turn, content });
        }
    }
}
