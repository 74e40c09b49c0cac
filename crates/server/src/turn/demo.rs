//! The demo agent: plays the script of [`conch_core::turn::demo`].
//!
//! Deliberately absent: what is said. The script follows from what is asked.

use std::time::Duration;

use async_trait::async_trait;
use conch_core::record::Record;
use conch_core::turn::StepId;
use conch_core::turn::awaits::{AWAIT_DEFAULT, Resolution};
use conch_core::turn::demo::{Asked, Decision, Script, ScriptedStep, script};
use conch_core::turn::journal;
use conch_core::turn::result::StepResult;
use serde_json::json;

use super::agent::{Answer, Halt, TurnAgent};
use super::context::{Await, OnUnknown, StepBegin, ToolCall, TurnContext};

/// The agent that needs no key and no network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demo {
    /// Time between two words.
    pub pace: Duration,
}

#[async_trait]
impl TurnAgent for Demo {
    async fn run(&self, turn: &mut TurnContext) -> Result<Answer, Halt> {
        let input = turn.input().await?;
        let text = text_of(&input);
        let asked = Asked { text: text.as_deref(), ..Asked::default() };
        let plan = script(asked, turn.turn(), self.pace);
        play(turn, &plan.steps[0]).await?;
        let decision = decide(turn, &plan).await?;
        let plan = script(Asked { decision, ..asked }, turn.turn(), self.pace);
        for step in &plan.steps[1..plan.steps.len() - 1] {
            play(turn, step).await?;
        }
        let joined: Vec<String> = turn.joined().await?.iter().filter_map(text_of).collect();
        let plan = script(Asked { decision, joined: &joined, ..asked }, turn.turn(), self.pace);
        let last = plan.steps.last().expect("a script ends with a model call");
        play(turn, last).await?;
        match turn.journal().result(&last.step) {
            Some(StepResult::Model { output, .. }) => Ok(Answer(output.clone())),
            _ => Err(Halt::failed("the last step has no text")),
        }
    }
}

fn text_of(input: &Record) -> Option<String> {
    journal::input_text(&input.body)
}

/// Asks for the approval that the script wants.
async fn decide(turn: &mut TurnContext, plan: &Script) -> Result<Decision, Halt> {
    let Some(question) = plan.approval else { return Ok(Decision::Approved) };
    let ask = Await {
        step: StepId::tool(1, 0),
        schema: json!({
            "type": "object",
            "required": ["approve"],
            "properties": { "approve": { "type": "boolean" } },
        }),
        prompt: Some(question.to_owned()),
        within: AWAIT_DEFAULT,
    };
    Ok(match turn.wait(&ask).await? {
        Resolution::Payload(payload) if payload["approve"] == true => Decision::Approved,
        Resolution::Payload(_) => Decision::Declined,
        Resolution::Expired => Decision::Expired,
    })
}

/// Streams a step, waits as long as it takes, and brings its result into the log; nothing of that if it is done.
async fn play(turn: &mut TurnContext, scripted: &ScriptedStep) -> Result<(), Halt> {
    let begun = match &scripted.result {
        // Its tools are functions without effects, and may be called again.
        StepResult::Tool { name, input, .. } => {
            let (step, name, input) = (scripted.step.clone(), name.clone(), input.clone());
            turn.begin_tool(&ToolCall { step, name, input, on_unknown: OnUnknown::Retry }).await?
        }
        StepResult::Model { .. } | StepResult::Own { .. } => turn.begin(&scripted.step, None).await?,
    };
    if let StepBegin::Done(_) = begun {
        return Ok(());
    }
    for piece in &scripted.pieces {
        turn.sleep(piece.after).await?;
        turn.emit(&piece.text)?;
    }
    turn.sleep(scripted.takes).await?;
    turn.complete(scripted.result.clone()).await
}
