//! Calls to tools whose effects cannot be undone, and waiting for people.
//!
//! Invariant: the intent of a call is in the log before the call, so that whoever goes on with the turn knows that it may have
//! happened. Each further call has an intent of its own, so that the question is asked again, too; but for one that is declared
//! idempotent, whose first intent says all.

use std::time::Duration;

use conch_core::time::Timestamp;
use conch_core::turn::StepId;
use conch_core::turn::awaits::{AWAIT_DEFAULT, AWAIT_MAX, AwaitId, OpenAwait, Resolution};
use conch_core::turn::journal;
use conch_core::turn::result::{StepResult, ToolStatus};
use serde_json::{Value, json};

use super::{StepBegin, TurnContext};
use crate::turn::agent::Halt;
use crate::turn::schema::Schema;

/// What becomes of a call of which nobody knows whether it happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnUnknown {
    /// It is made again, under the same key: the tool is declared idempotent.
    Retry,
    /// It is not; whoever asked is told that the outcome is unknown.
    #[default]
    Fail,
    /// A person decides between the two.
    Ask,
}

/// A call to a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// The step that it is.
    pub step: StepId,
    /// The tool.
    pub name: String,
    /// What it is called with.
    pub input: Value,
    /// What becomes of it if its owner goes away in the middle.
    pub on_unknown: OnUnknown,
}

/// What is waited for.
#[derive(Debug, Clone, PartialEq)]
pub struct Await {
    /// The step that waits; of a turn's awaits each has one of its own.
    pub step: StepId,
    /// The JSON Schema of what resolves it.
    pub schema: Value,
    /// What people are asked.
    pub prompt: Option<String>,
    /// After this long it resolves by itself; at most 30 days.
    pub within: Duration,
}

impl TurnContext {
    /// Begins a call to a tool: its intent is in the log when this returns [`StepBegin::Run`]. One that may have been made
    /// before is treated as it says.
    ///
    /// # Errors
    /// As [`TurnContext::begin`]; [`Halt::Waiting`] while a person decides.
    pub async fn begin_tool(&mut self, call: &ToolCall) -> Result<StepBegin, Halt> {
        if let done @ StepBegin::Done(_) = self.begin(&call.step, Some(&call.input)).await? {
            return Ok(done);
        }
        let attempts = self.replay.intents(&call.step);
        let again = match (attempts, call.on_unknown) {
            (0, _) => true,
            (_, OnUnknown::Retry) => return Ok(StepBegin::Run),
            (_, OnUnknown::Fail) => false,
            (_, OnUnknown::Ask) => self.ask_about(call, attempts).await?,
        };
        if !again {
            let output = json!({ "error": "the outcome of this call is not known: it may have happened" });
            let (name, input) = (call.name.clone(), call.input.clone());
            let result = StepResult::Tool { name, input, output, status: ToolStatus::Unknown };
            self.complete(result.clone()).await?;
            return Ok(StepBegin::Done(result));
        }
        let intent = journal::step_started(self.run.turn, &call.step, attempts + 1, &call.name, &call.input);
        self.journal_one(intent).await?;
        self.replay.intended(call.step.clone(), attempts + 1);
        Ok(StepBegin::Run)
    }

    /// True if a person wants a call to be made again that may have been made.
    async fn ask_about(&mut self, call: &ToolCall, attempts: u32) -> Result<bool, Halt> {
        let ask = Await {
            step: call.step.attempt(attempts),
            schema: json!({
                "type": "object",
                "required": ["decision"],
                "properties": { "decision": { "enum": ["retry", "fail"] } },
            }),
            prompt: Some(format!("A call to {} may or may not have happened. Make it again?", call.name)),
            within: AWAIT_DEFAULT,
        };
        let resolution = self.wait(&ask).await?;
        Ok(matches!(resolution, Resolution::Payload(payload) if payload["decision"] == "retry"))
    }

    /// Waits for an answer. The first time the turn rests: the run ends, and the turn is run again when it is answered, or the
    /// time is over; then this returns what came of it.
    ///
    /// # Errors
    /// [`Halt::Waiting`], to be passed on; [`Halt::Failed`] if the schema is none.
    pub async fn wait(&mut self, what: &Await) -> Result<Resolution, Halt> {
        self.go_on()?;
        let id = AwaitId::of(self.run.turn, &what.step);
        match self.replay.resolution(&id) {
            Some(Some(resolution)) => return Ok(resolution.clone()),
            Some(None) => return Err(Halt::Waiting),
            None => {}
        }
        Schema::read(&what.schema).map_err(|invalid| Halt::failed(format!("step {}: {invalid}", what.step)))?;
        let within = i64::try_from(what.within.min(AWAIT_MAX).as_millis()).unwrap_or(i64::MAX);
        let expires_at = Timestamp(self.seams.clock.wall().0.saturating_add(within));
        let open = OpenAwait { id, step: what.step.clone(), expires_at };
        let draft = journal::await_opened(self.run.turn, &open, &what.schema, what.prompt.as_deref());
        self.journal_one(draft).await?;
        Err(Halt::Waiting)
    }
}
