//! An agent that asks somebody a question and answers with what it was told. So it also shows what an embedded agent looks
//! like.

use std::time::Duration;

use async_trait::async_trait;
use conch_core::turn::StepId;
use conch_core::turn::awaits::Resolution;
use conch_server::turn::agent::{Answer, Halt, TurnAgent};
use conch_server::turn::context::{Await, TurnContext};
use serde_json::json;

/// How long it waits for an answer.
pub const ASKER_WAITS: Duration = Duration::from_secs(300);

/// See the module.
#[derive(Debug, Clone, Copy)]
pub struct Asker;

#[async_trait]
impl TurnAgent for Asker {
    async fn run(&self, turn: &mut TurnContext) -> Result<Answer, Halt> {
        turn.step("prepare", None, async { Ok(json!("prepared")) }).await?;
        let step = StepId::own("ask", 1).expect("a step's name");
        let prompt = Some("Well?".to_owned());
        let resolution =
            turn.wait(&Await { step, schema: json!({ "type": "integer" }), prompt, within: ASKER_WAITS }).await?;
        turn.step("conclude", None, async { Ok(json!("concluded")) }).await?;
        Ok(Answer(match resolution {
            Resolution::Payload(payload) => format!("I was told {payload}"),
            Resolution::Expired => "nobody answered".to_owned(),
        }))
    }
}
