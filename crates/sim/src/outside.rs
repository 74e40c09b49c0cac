//! The world outside of all nodes, as agents of scenes reach it: what was called there, under which key and by which epoch, and
//! how much was read. And the agents that reach it.
//!
//! Invariant: it outlives every process, so that it knows what really happened.

use std::time::Duration;

use async_trait::async_trait;
use conch_core::ids::Epoch;
use conch_core::turn::StepId;
use conch_core::turn::result::{StepResult, ToolStatus, Usage};
use conch_server::turn::agent::{Answer, Halt, TurnAgent};
use conch_server::turn::context::{OnUnknown, StepBegin, ToolCall, TurnContext};
use serde_json::json;

use crate::shared::{Shared, lock};

/// How many tools a [`Smith`] calls in a turn.
pub const SMITH_CALLS: u32 = 10;
/// How long each of them takes.
pub const SMITH_CALL_TAKES: Duration = Duration::from_millis(100);
/// How many words a [`Reader`] is given.
pub const READER_WORDS: u64 = 600;
/// Time between two of them.
const READER_PACE: Duration = Duration::from_millis(50);
/// How many steps a [`Walker`] takes.
pub const WALKER_STEPS: u32 = 40;
/// How long each of them takes.
const WALKER_STEP_TAKES: Duration = Duration::from_secs(1);

/// A tool's call, as it arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Its idempotency key.
    pub key: String,
    /// Who called.
    pub epoch: Epoch,
    /// The step.
    pub step: StepId,
}

#[derive(Debug, Default)]
struct Seen {
    calls: Vec<Call>,
    read: u64,
}

/// See the module's description. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Outside(Shared<Seen>);

impl Outside {
    /// Every call of a tool, in order.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        lock(&self.0).calls.clone()
    }

    /// How many words were read of models.
    #[must_use]
    pub fn read(&self) -> u64 {
        lock(&self.0).read
    }
}

/// Calls one tool after the other, each of which may be called again.
#[derive(Debug, Clone)]
pub struct Smith(pub Outside);

#[async_trait]
impl TurnAgent for Smith {
    async fn run(&self, turn: &mut TurnContext) -> Result<Answer, Halt> {
        for index in 0..SMITH_CALLS {
            let (step, input) = (StepId::tool(1, index), json!({ "n": index }));
            let name = "hammer".to_owned();
            let call = ToolCall { step: step.clone(), name, input: input.clone(), on_unknown: OnUnknown::Retry };
            if let StepBegin::Done(_) = turn.begin_tool(&call).await? {
                continue;
            }
            let arrived = Call { key: turn.idempotency_key(&step), epoch: turn.epoch(), step };
            lock(&self.0.0).calls.push(arrived);
            turn.seams().clone().sleep(SMITH_CALL_TAKES).await;
            turn.complete(StepResult::Tool {
                name: call.name,
                input,
                output: json!("struck"),
                status: ToolStatus::Done,
            })
            .await?;
        }
        Ok(Answer("forged".to_owned()))
    }
}

/// Streams what it reads, word by word, as one step.
#[derive(Debug, Clone)]
pub struct Reader(pub Outside);

#[async_trait]
impl TurnAgent for Reader {
    async fn run(&self, turn: &mut TurnContext) -> Result<Answer, Halt> {
        if turn.begin_model(1).await? == StepBegin::Run {
            let (mut output, seams) = (String::new(), turn.seams().clone());
            for _ in 0..READER_WORDS {
                seams.sleep(READER_PACE).await;
                lock(&self.0.0).read += 1;
                output.push_str("word ");
                // As one that does not look whether it is to stop.
                drop(turn.emit("word "));
            }
            turn.complete(StepResult::Model { output, calls: Vec::new(), usage: Usage::default() }).await?;
        }
        Ok(Answer("word ".repeat(usize::try_from(READER_WORDS).expect("a few hundred"))))
    }
}

/// Takes many steps, each a little slow.
#[derive(Debug, Clone, Copy)]
pub struct Walker;

#[async_trait]
impl TurnAgent for Walker {
    async fn run(&self, turn: &mut TurnContext) -> Result<Answer, Halt> {
        for _ in 0..WALKER_STEPS {
            let pause = turn.seams().sleep(WALKER_STEP_TAKES);
            turn.step("walk", None, async {
                pause.await;
                Ok(json!("walked"))
            })
            .await?;
        }
        Ok(Answer("arrived".to_owned()))
    }
}

/// Answers at once.
#[derive(Debug, Clone, Copy)]
pub struct Echo;

#[async_trait]
impl TurnAgent for Echo {
    async fn run(&self, turn: &mut TurnContext) -> Result<Answer, Halt> {
        let input = turn.input().await?;
        Ok(Answer(format!("noted: {}", input.seq)))
    }
}
