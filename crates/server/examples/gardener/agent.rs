//! An agent of one's own, in a program that embeds Conch: it looks something up once, asks a person, and streams its answer.
//!
//! The rules of a [`TurnAgent`]: its future may be dropped wherever it waits, and another owner, perhaps on another node, runs it
//! from its beginning. So what must not happen twice is a step; what is remembered between turns is the state.

use async_trait::async_trait;
use conch_core::turn::StepId;
use conch_core::turn::awaits::{AWAIT_DEFAULT, Resolution};
use conch_core::turn::journal;
use conch_server::turn::agent::{Answer, Halt, TurnAgent};
use conch_server::turn::context::{Await, StepBegin, TurnContext};
use serde_json::{Value, json};

/// Looks after a garden.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gardener;

#[async_trait]
impl TurnAgent for Gardener {
    async fn run(&self, turn: &mut TurnContext) -> Result<Answer, Halt> {
        let asked = journal::input_text(&turn.input().await?.body).unwrap_or_default();
        // Once, whoever runs the turn how often: the result is in the log before it is returned.
        let bed = turn.step("look", Some(json!({ "plant": asked })), look_at(&asked)).await?;
        if bed["dry"] == true && !may_water(turn, &asked).await? {
            return Ok(Answer(format!("I leave {asked} dry.")));
        }
        let watered = turn.state().await?["watered"].as_u64().unwrap_or(0) + 1;
        turn.keep_state(json!({ "watered": watered }));
        let text = format!("{asked} has {} mm of water now. I have watered {watered} times here.", bed["needs_mm"]);
        speak(turn, &text).await?;
        Ok(Answer(text))
    }
}

/// Stands for a sensor. A future that is dropped has not looked.
async fn look_at(plant: &str) -> Result<Value, String> {
    if plant.is_empty() {
        // Fails the turn, and its record says so.
        return Err("which plant?".to_owned());
    }
    Ok(json!({ "dry": plant.contains("fern"), "needs_mm": plant.len() }))
}

/// Asks a person. The first time the run ends here, and costs nothing until somebody has answered; then it begins anew, and this
/// returns.
async fn may_water(turn: &mut TurnContext, plant: &str) -> Result<bool, Halt> {
    let ask = Await {
        step: StepId::own("water", 1).map_err(|error| Halt::failed(error.to_string()))?,
        schema: json!({ "type": "object", "required": ["ok"], "properties": { "ok": { "type": "boolean" } } }),
        prompt: Some(format!("Water {plant}?")),
        within: AWAIT_DEFAULT,
    };
    Ok(match turn.wait(&ask).await? {
        Resolution::Payload(answer) => answer["ok"] == true,
        Resolution::Expired => false,
    })
}

/// Streams a text as the turn's next model call would.
async fn speak(turn: &mut TurnContext, text: &str) -> Result<(), Halt> {
    if let StepBegin::Done(_) = turn.begin_model(1).await? {
        return Ok(());
    }
    for word in text.split_inclusive(' ') {
        turn.emit(word)?;
    }
    turn.complete(conch_core::turn::result::StepResult::text(text)).await
}
