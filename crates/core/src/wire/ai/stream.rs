//! One turn as a stream of parts.
//!
//! Invariant: the log has the last word. A step's text that was streamed is compared with its result, and goes on from what was
//! sent; where it cannot, the stream is given up. What an owner streams that is behind what a dead one streamed is held back
//! while it says the same.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::message_id;
use super::part::{FinishReason, Metadata, Part, TurnIs};
use crate::ids::{Epoch, Seq};
use crate::record::{Record, RecordKind};
use crate::turn::StepId;
use crate::turn::awaits::{AwaitId, Resolution};
use crate::turn::journal;
use crate::turn::live::{Applied, LiveEvent, LiveView};
use crate::turn::result::{AskedCall, StepResult, ToolStatus};

/// The name of an answer's text where no step has it.
const ANSWER: &str = "answer";
/// What is said of a call that was asked for and never came to a result.
const NO_RESULT: &str = "there is no result of this call";

/// What comes of a record or an event.
#[derive(Debug, Clone, PartialEq)]
pub struct Told {
    /// What is sent.
    pub parts: Vec<Part>,
    /// And then.
    pub next: Next,
}

/// What comes after these parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// More.
    GoOn,
    /// Nothing: the message is at its end.
    Ended,
    /// The input has no turn of its own: it is answered in this one. Nothing was sent, and nothing will be.
    Joined(Seq),
    /// What was sent is void and cannot be taken back: nothing more may be sent, the end neither.
    Retracted,
}

/// A turn on its way to one client.
#[derive(Debug)]
pub struct TurnStream {
    turn: Seq,
    stage: Stage,
    view: LiveView,
    step: Step,
    text: Option<OpenText>,
    /// The text that was last sent whole.
    last_text: String,
    calls: BTreeMap<StepId, Call>,
    completed: BTreeSet<StepId>,
    awaits: BTreeMap<AwaitId, Value>,
    parts: Vec<Part>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nothing was sent.
    Before,
    Within,
    Over(Next),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    None,
    Open,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Open,
    Settled,
}

/// A text that may get longer.
#[derive(Debug)]
struct OpenText {
    step: StepId,
    sent: String,
    /// The run that streamed it last.
    run: (Epoch, u32),
    reach: Reach,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// The run has said what was sent.
    Abreast,
    /// A later run has said only a part of it so far.
    Behind,
}

/// See [`Next::Retracted`].
struct Retracted;

impl TurnStream {
    /// The stream of a turn. It is told everything from the turn's input on.
    #[must_use]
    pub fn new(turn: Seq) -> Self {
        Self {
            turn,
            stage: Stage::Before,
            view: LiveView::default(),
            step: Step::None,
            text: None,
            last_text: String::new(),
            calls: BTreeMap::new(),
            completed: BTreeSet::new(),
            awaits: BTreeMap::new(),
            parts: Vec::new(),
        }
    }

    /// Which turn it is.
    #[must_use]
    pub fn turn(&self) -> Seq {
        self.turn
    }

    /// Takes the next record of the conversation.
    pub fn record(&mut self, record: &Record) -> Told {
        if let Stage::Over(next) = self.stage {
            return Told { parts: Vec::new(), next };
        }
        self.view.committed(record);
        if record.turn != Some(self.turn) {
            return self.told(Ok(()));
        }
        if record.kind == RecordKind::TurnSuperseded {
            if let Some(into) = journal::joined_into(record).filter(|_| self.stage == Stage::Before) {
                self.stage = Stage::Over(Next::Joined(into));
            }
            return self.told(Ok(()));
        }
        let begun = self.begin();
        let done = begun.and_then(|()| self.take(record));
        self.told(done)
    }

    /// Takes a live event.
    pub fn live(&mut self, event: &LiveEvent) -> Told {
        if let Stage::Over(next) = self.stage {
            return Told { parts: Vec::new(), next };
        }
        let fits = self.view.apply(event) == Applied::Fits;
        let done = if fits && self.stage == Stage::Within { self.show() } else { Ok(()) };
        self.told(done)
    }

    fn told(&mut self, done: Result<(), Retracted>) -> Told {
        if done.is_err() {
            self.stage = Stage::Over(Next::Retracted);
        }
        let next = match self.stage {
            Stage::Over(next) => next,
            Stage::Before | Stage::Within => Next::GoOn,
        };
        Told { parts: std::mem::take(&mut self.parts), next }
    }

    /// Live events may have come before the record of the start.
    fn begin(&mut self) -> Result<(), Retracted> {
        if self.stage != Stage::Before {
            return Ok(());
        }
        self.stage = Stage::Within;
        let (message_id, message_metadata) = (message_id(self.turn), self.metadata(TurnIs::Running));
        self.parts.push(Part::Start { message_id, message_metadata });
        self.show()
    }

    fn take(&mut self, record: &Record) -> Result<(), Retracted> {
        match record.kind {
            RecordKind::StepStarted => self.call_of(record),
            RecordKind::StepCompleted => self.step_completed(record)?,
            RecordKind::AwaitOpened => self.await_opened(record),
            RecordKind::AwaitResolved => self.await_resolved(record),
            RecordKind::Message if record.deleted_at.is_none() => self.answered(record)?,
            RecordKind::TurnCompleted => self.end(TurnIs::Completed, None)?,
            RecordKind::TurnFailed => self.end(TurnIs::Failed, Some(reason_of(record)))?,
            RecordKind::TurnCancelled => self.end(TurnIs::Cancelled, None)?,
            _ => {}
        }
        Ok(())
    }

    /// Sends what the viewer does not have yet of the text that is shown.
    fn show(&mut self) -> Result<(), Retracted> {
        let Some(shown) = self.view.shown().filter(|shown| shown.turn == self.turn) else { return Ok(()) };
        if self.completed.contains(shown.step) {
            return Ok(());
        }
        let (run, step) = ((shown.epoch, shown.attempt), shown.step.clone());
        if let Some(open) = self.text.as_mut().filter(|open| open.step == step) {
            let rest = match shown.text.get(open.sent.len()..) {
                // A run only ever adds to its own text.
                Some(rest) if run == open.run && open.reach == Reach::Abreast => rest,
                Some(rest) if shown.text.starts_with(&open.sent) => rest,
                None if open.sent.starts_with(shown.text) => {
                    (open.run, open.reach) = (run, Reach::Behind);
                    return Ok(());
                }
                _ => return Err(Retracted),
            };
            let rest = rest.to_owned();
            (open.run, open.reach) = (run, Reach::Abreast);
            self.more_text(&rest);
            return Ok(());
        }
        // Another run streams another step, so that what the dead one streamed is void.
        if self.text.as_ref().is_some_and(|open| open.run != run) {
            return Err(Retracted);
        }
        if !shown.text.is_empty() {
            let text = shown.text.to_owned();
            self.end_text();
            self.start_step();
            self.start_text(step, run);
            self.more_text(&text);
        }
        Ok(())
    }

    fn step_completed(&mut self, record: &Record) -> Result<(), Retracted> {
        let Some((step, result)) = StepResult::read(&record.body) else { return Ok(()) };
        if !self.completed.insert(step.clone()) {
            return Ok(());
        }
        match result {
            StepResult::Model { output, calls, .. } => self.model_completed(record.epoch, step, &output, calls),
            StepResult::Tool { name, input, output, status } => {
                self.tool_completed(&step, &name, input, output, status);
                Ok(())
            }
            // Its result is its agent's own affair; what it streamed is not written down.
            StepResult::Own { .. } if self.text.as_ref().is_some_and(|open| open.step == step) => {
                self.leave_text(record.epoch)
            }
            StepResult::Own { .. } => Ok(()),
        }
    }

    fn model_completed(
        &mut self,
        epoch: Epoch,
        step: StepId,
        output: &str,
        calls: Vec<AskedCall>,
    ) -> Result<(), Retracted> {
        if self.text.as_ref().is_some_and(|open| open.step == step) {
            self.complete_text(output)?;
        } else {
            self.leave_text(epoch)?;
            self.start_step();
            self.whole_text(step.clone(), output);
        }
        for (index, call) in (0..).zip(calls) {
            self.call(&step.call(index), &call.name, call.input);
        }
        Ok(())
    }

    fn tool_completed(&mut self, step: &StepId, name: &str, input: Value, output: Value, status: ToolStatus) {
        self.call(step, name, input);
        if self.calls.insert(step.clone(), Call::Settled) != Some(Call::Open) {
            return;
        }
        let tool_call_id = self.call_id(step);
        let (provider_executed, dynamic) = (true, true);
        self.parts.push(match status {
            ToolStatus::Done => Part::ToolOutputAvailable { tool_call_id, output, provider_executed, dynamic },
            ToolStatus::Failed | ToolStatus::Unknown => {
                Part::ToolOutputError { tool_call_id, error_text: error_text(&output), provider_executed, dynamic }
            }
        });
    }

    /// The intent of a call, which no model need have asked for.
    fn call_of(&mut self, record: &Record) {
        let body = record.body.to_value();
        let step = body["step"].as_str().and_then(|step| step.parse::<StepId>().ok());
        if let (Some(step), Some(name)) = (step, body["name"].as_str()) {
            self.call(&step, name, body["input"].clone());
        }
    }

    /// Shows a call, once.
    fn call(&mut self, step: &StepId, tool_name: &str, input: Value) {
        if self.calls.contains_key(step) {
            return;
        }
        if self.step == Step::None {
            self.start_step();
        }
        self.calls.insert(step.clone(), Call::Open);
        let (tool_call_id, tool_name) = (self.call_id(step), tool_name.to_owned());
        let (provider_executed, dynamic) = (true, true);
        self.parts.push(Part::ToolInputAvailable { tool_call_id, tool_name, input, provider_executed, dynamic });
    }

    /// Unique over all messages of a conversation: clients look calls up without their message.
    fn call_id(&self, step: &StepId) -> String {
        format!("{}-{step}", self.turn)
    }

    fn await_opened(&mut self, record: &Record) {
        let Some(open) = journal::await_of(&record.body) else { return };
        let mut data = record.body.to_value();
        data["state"] = "open".into();
        self.awaits.insert(open.id.clone(), data.clone());
        self.parts.push(Part::DataAwait { id: open.id.to_string(), data });
    }

    fn await_resolved(&mut self, record: &Record) {
        let Some((id, resolution)) = journal::resolution_of(&record.body) else { return };
        let mut data = self.awaits.remove(&id).unwrap_or_else(|| json!({ "await": id }));
        match resolution {
            Resolution::Payload(payload) => {
                data["state"] = "resolved".into();
                data["payload"] = payload;
            }
            Resolution::Expired => data["state"] = "expired".into(),
        }
        self.parts.push(Part::DataAwait { id: id.to_string(), data });
    }

    /// Nobody can answer any more what the turn still waited for.
    fn close_awaits(&mut self) {
        for (id, mut data) in std::mem::take(&mut self.awaits) {
            data["state"] = "closed".into();
            self.parts.push(Part::DataAwait { id: id.to_string(), data });
        }
    }

    /// The answer is mostly what the last step said. After a cancel it is as much as was shown.
    fn answered(&mut self, record: &Record) -> Result<(), Retracted> {
        let answer = journal::input_text(&record.body).unwrap_or_default();
        if self.text.as_ref().is_some_and(|open| answer.starts_with(&open.sent)) {
            return self.complete_text(&answer);
        }
        self.leave_text(record.epoch)?;
        if self.last_text != answer {
            if self.step == Step::None {
                self.start_step();
            }
            let step = ANSWER.parse().expect("six letters are a step's name");
            self.whole_text(step, &answer);
        }
        Ok(())
    }

    fn end(&mut self, state: TurnIs, error: Option<String>) -> Result<(), Retracted> {
        match state {
            TurnIs::Completed if self.text.as_ref().is_some_and(|open| open.reach == Reach::Behind) => {
                return Err(Retracted);
            }
            _ => self.end_text(),
        }
        self.finish_step();
        self.close_awaits();
        let message_metadata = Metadata { error: error.clone(), ..self.metadata(state) };
        match (state, error) {
            (TurnIs::Cancelled, _) => {
                self.parts.push(Part::MessageMetadata { message_metadata });
                self.parts.push(Part::Abort);
            }
            (_, Some(error_text)) => {
                // A client reads nothing behind an error.
                self.parts.push(Part::MessageMetadata { message_metadata: message_metadata.clone() });
                self.parts.push(Part::Error { error_text });
                self.parts.push(Part::Finish { finish_reason: FinishReason::Error, message_metadata });
            }
            (_, None) => self.parts.push(Part::Finish { finish_reason: FinishReason::Stop, message_metadata }),
        }
        self.stage = Stage::Over(Next::Ended);
        Ok(())
    }

    fn metadata(&self, state: TurnIs) -> Metadata {
        Metadata { turn: self.turn, state, error: None }
    }

    /// Ends the step that is open, and begins one.
    fn start_step(&mut self) {
        self.finish_step();
        self.step = Step::Open;
        self.parts.push(Part::StartStep);
    }

    fn finish_step(&mut self) {
        if self.step == Step::None {
            return;
        }
        self.end_text();
        let open: Vec<StepId> =
            self.calls.iter().filter(|(_, call)| **call == Call::Open).map(|(step, _)| step.clone()).collect();
        for step in open {
            self.calls.insert(step.clone(), Call::Settled);
            self.parts.push(Part::ToolOutputError {
                tool_call_id: self.call_id(&step),
                error_text: NO_RESULT.to_owned(),
                provider_executed: true,
                dynamic: true,
            });
        }
        self.step = Step::None;
        self.parts.push(Part::FinishStep);
    }

    fn start_text(&mut self, step: StepId, run: (Epoch, u32)) {
        self.parts.push(Part::TextStart { id: step.to_string() });
        self.text = Some(OpenText { step, sent: String::new(), run, reach: Reach::Abreast });
    }

    fn more_text(&mut self, text: &str) {
        let Some(open) = self.text.as_mut().filter(|_| !text.is_empty()) else { return };
        open.sent.push_str(text);
        self.parts.push(Part::TextDelta { id: open.step.to_string(), delta: text.to_owned() });
    }

    fn end_text(&mut self) {
        if let Some(open) = self.text.take() {
            self.parts.push(Part::TextEnd { id: open.step.to_string() });
            self.last_text = open.sent;
        }
    }

    fn whole_text(&mut self, step: StepId, text: &str) {
        if !text.is_empty() {
            self.start_text(step, (Epoch(0), 0));
            self.more_text(text);
            self.end_text();
        }
    }

    /// The open text is to read so in the end.
    fn complete_text(&mut self, whole: &str) -> Result<(), Retracted> {
        let Some(open) = &self.text else { return Ok(()) };
        let rest = whole.strip_prefix(&open.sent).ok_or(Retracted)?.to_owned();
        self.more_text(&rest);
        self.end_text();
        Ok(())
    }

    /// The turn goes on without a result for the open text, in this epoch: what was sent of it stands, unless another owner
    /// began it again.
    fn leave_text(&mut self, epoch: Epoch) -> Result<(), Retracted> {
        if self.text.as_ref().is_some_and(|open| open.reach == Reach::Behind || open.run.0 < epoch) {
            return Err(Retracted);
        }
        self.end_text();
        Ok(())
    }
}

fn error_text(output: &Value) -> String {
    let text = output.as_str().or_else(|| output.get("error").and_then(Value::as_str));
    text.map_or_else(|| output.to_string(), str::to_owned)
}

fn reason_of(record: &Record) -> String {
    let body = record.body.to_value();
    let reason = body["reason"].as_str().unwrap_or("failed");
    body["detail"].as_str().map_or_else(|| reason.to_owned(), |detail| format!("{reason}: {detail}"))
}
