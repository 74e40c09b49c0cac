//! What a turn looks like to somebody who asks: where it stands, what it did, what it waits for and what it used.
//!
//! Invariant: it follows from the turn's committed records alone, so that any node says the same, and none has to own the
//! conversation. What it says grows with the number of steps, never with what they read or wrote.
//!
//! Deliberately absent: inputs and outputs of steps, which are in the log under the seq that is given; text that is only
//! streamed.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::body::Body;
use crate::ids::{AgentName, Epoch, Seq};
use crate::record::{Record, RecordKind};
use crate::time::Timestamp;
use crate::turn::StepId;
use crate::turn::awaits::{AwaitId, Resolution};
use crate::turn::budget::Spent;
use crate::turn::journal;
use crate::turn::result::{StepResult, ToolStatus, Usage};

/// Where a turn stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Its input waits.
    Queued,
    /// It has started and not ended.
    Running,
    /// It has started, and waits for an answer.
    Waiting,
    /// It ended with its answer.
    Completed,
    /// It ended without one.
    Failed,
    /// Somebody, or the next input, ended it.
    Cancelled,
    /// Its input joined another turn, or it is run again.
    Superseded,
}

/// Where a step stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum StepState {
    /// A call is about to be made, or was and is not known to be over.
    Started,
    /// It is done.
    Completed,
    /// A call that got no answer.
    Failed,
    /// A call that may have happened.
    Unknown,
}

/// A step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Step {
    step: StepId,
    state: StepState,
    /// `model`, `tool` or `own`.
    #[serde(skip_serializing_if = "Option::is_none")]
    r#type: Option<&'static str>,
    /// The tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// How often a call was about to be made, where that is written down.
    #[serde(skip_serializing_if = "Option::is_none")]
    attempts: Option<u32>,
    /// The epoch of an owner that made the call again without writing that down: it has the result of a call that another
    /// owner began, and the tool is declared idempotent.
    #[serde(skip_serializing_if = "Option::is_none")]
    called_again_in: Option<Epoch>,
    /// The epoch of whoever wrote last that the call is about to be made.
    #[serde(skip)]
    begun_in: Option<Epoch>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
    /// Its newest record.
    seq: Seq,
    at: Timestamp,
}

/// Where an await stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AwaitState {
    /// It may be resolved.
    Open,
    /// Somebody resolved it.
    Resolved,
    /// Nobody did in time.
    Expired,
    /// Its turn ended before.
    Closed,
}

/// Something that the turn waits or waited for.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Await {
    r#await: AwaitId,
    step: StepId,
    state: AwaitState,
    expires_at: Timestamp,
    /// What an answer must fit, while it is open.
    #[serde(skip_serializing_if = "Option::is_none")]
    schema: Option<Value>,
    /// What a person is asked, while it is open.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt: Option<String>,
    /// Who resolved it.
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<String>,
    /// Its newest record.
    seq: Seq,
    at: Timestamp,
}

/// What the turn has used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Used {
    steps: u32,
    journal_bytes: u64,
    input_tokens: u64,
    output_tokens: u64,
}

/// See the module's header. Serialises to the wire form.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Overview {
    turn: Seq,
    state: State,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<AgentName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    started_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<Timestamp>,
    steps: Vec<Step>,
    awaits: Vec<Await>,
    /// The inputs that joined it.
    joined: Vec<Seq>,
    usage: Used,
    /// `turn.failed` says why.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Body>,
    /// `turn.cancelled` says how, and by whom.
    #[serde(skip_serializing_if = "Option::is_none")]
    cancelled: Option<Body>,
    /// `turn.superseded` says by what.
    #[serde(skip_serializing_if = "Option::is_none")]
    superseded: Option<Body>,
    answer: Option<Record>,
}

impl Overview {
    /// A turn of which only the input is known.
    #[must_use]
    pub fn queued(turn: Seq) -> Self {
        Self {
            turn,
            state: State::Queued,
            agent: None,
            started_at: None,
            deadline: None,
            ended_at: None,
            steps: Vec::new(),
            awaits: Vec::new(),
            joined: Vec::new(),
            usage: Used::default(),
            error: None,
            cancelled: None,
            superseded: None,
            answer: None,
        }
    }

    /// Where it stands.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// Takes the next record of the log, ascending by seq; those that are not of this turn say nothing.
    pub fn take(&mut self, record: &Record) {
        if record.kind == RecordKind::TurnSuperseded && journal::joined_into(record) == Some(self.turn) {
            self.joined.extend(record.turn);
        }
        if record.turn != Some(self.turn) {
            return;
        }
        self.use_up(record);
        match record.kind {
            RecordKind::TurnStarted => self.started(record),
            RecordKind::StepStarted => self.step_started(record),
            RecordKind::StepCompleted => self.step_completed(record),
            RecordKind::AwaitOpened => self.await_opened(record),
            RecordKind::AwaitResolved => self.await_resolved(record),
            RecordKind::Message => self.answer = Some(record.clone()),
            RecordKind::TurnCompleted => self.ended(State::Completed, record),
            RecordKind::TurnFailed => {
                self.error = Some(record.body.clone());
                self.ended(State::Failed, record);
            }
            RecordKind::TurnCancelled => {
                self.cancelled = Some(record.body.clone());
                self.ended(State::Cancelled, record);
            }
            RecordKind::TurnSuperseded => {
                self.superseded = Some(record.body.clone());
                self.ended(State::Superseded, record);
            }
            RecordKind::Event | RecordKind::MessageEdited | RecordKind::MessageDeleted => {}
        }
    }

    fn use_up(&mut self, record: &Record) {
        let spent = Spent::default().with(record.kind, &record.body);
        self.usage.steps += spent.steps;
        self.usage.journal_bytes += spent.bytes;
    }

    fn started(&mut self, record: &Record) {
        self.state = State::Running;
        self.started_at = Some(record.at);
        if let Some((agent, deadline)) = journal::start_of(&record.body) {
            (self.agent, self.deadline) = (Some(agent), deadline);
        }
    }

    fn step_started(&mut self, record: &Record) {
        #[derive(Deserialize)]
        struct Intent {
            step: StepId,
            attempt: u32,
            name: String,
        }
        let Ok(Intent { step, attempt, name }) = serde_json::from_str(record.body.as_str()) else { return };
        let shown = self.step(step, record);
        (shown.name, shown.attempts, shown.begun_in) = (Some(name), Some(attempt), Some(record.epoch));
    }

    fn step_completed(&mut self, record: &Record) {
        let Some((step, result)) = StepResult::read(&record.body) else { return };
        let used = result.usage();
        self.usage.input_tokens = self.usage.input_tokens.saturating_add(used.input_tokens);
        self.usage.output_tokens = self.usage.output_tokens.saturating_add(used.output_tokens);
        let shown = self.step(step, record);
        shown.state = StepState::Completed;
        match result {
            StepResult::Model { usage, .. } => {
                shown.r#type = Some("model");
                shown.usage = Some(usage).filter(|usage| usage.total() > 0);
            }
            StepResult::Tool { name, status, .. } => {
                (shown.r#type, shown.name) = (Some("tool"), Some(name));
                shown.state = match status {
                    ToolStatus::Done => StepState::Completed,
                    ToolStatus::Failed => StepState::Failed,
                    ToolStatus::Unknown => StepState::Unknown,
                };
                // Who does not know what came of another owner's call, and does not make it again, says that it is unknown.
                let is_again =
                    status != ToolStatus::Unknown && shown.begun_in.is_some_and(|epoch| record.epoch > epoch);
                shown.called_again_in = Some(record.epoch).filter(|_| is_again);
            }
            StepResult::Own { .. } => shown.r#type = Some("own"),
        }
    }

    /// The step of a record, which is its newest one. What began last is looked at first.
    fn step(&mut self, step: StepId, record: &Record) -> &mut Step {
        let place = self.steps.iter().rposition(|known| known.step == step);
        let place = place.unwrap_or_else(|| {
            self.steps.push(Step {
                step,
                state: StepState::Started,
                r#type: None,
                name: None,
                attempts: None,
                called_again_in: None,
                begun_in: None,
                usage: None,
                seq: record.seq,
                at: record.at,
            });
            self.steps.len() - 1
        });
        let shown = &mut self.steps[place];
        (shown.seq, shown.at) = (record.seq, record.at);
        shown
    }

    fn await_opened(&mut self, record: &Record) {
        let Some(open) = journal::await_of(&record.body) else { return };
        self.state = State::Waiting;
        let mut body = record.body.to_value();
        self.awaits.push(Await {
            r#await: open.id,
            step: open.step,
            state: AwaitState::Open,
            expires_at: open.expires_at,
            schema: body.get_mut("schema").map(Value::take),
            prompt: body.get("prompt").and_then(Value::as_str).map(str::to_owned),
            by: None,
            seq: record.seq,
            at: record.at,
        });
    }

    fn await_resolved(&mut self, record: &Record) {
        let Some((id, resolution)) = journal::resolution_of(&record.body) else { return };
        self.state = State::Running;
        let state = match resolution {
            Resolution::Payload(_) => AwaitState::Resolved,
            Resolution::Expired => AwaitState::Expired,
        };
        for shown in self.awaits.iter_mut().filter(|shown| shown.r#await == id) {
            shown.over(state);
            shown.by = record.name.as_deref().map(str::to_owned);
            (shown.seq, shown.at) = (record.seq, record.at);
        }
    }

    /// A turn that has ended and is run again keeps the time of its end.
    fn ended(&mut self, state: State, record: &Record) {
        self.state = state;
        self.ended_at.get_or_insert(record.at);
        for open in self.awaits.iter_mut().filter(|shown| shown.state == AwaitState::Open) {
            open.over(AwaitState::Closed);
        }
    }
}

impl Await {
    fn over(&mut self, state: AwaitState) {
        self.state = state;
        (self.schema, self.prompt) = (None, None);
    }
}
