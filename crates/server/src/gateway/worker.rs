//! Where workers call back while their turn runs: a step is in the journal when this answers 200.
//!
//! Invariant: who calls has the URL, which the cluster signed for one attempt of one turn; nothing else is asked of them, and they
//! can do nothing else with it.
//!
//! Deliberately absent: whether the attempt is the one that runs. Its owner knows, on whichever node that is.

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use conch_core::ids::ConvRef;
use conch_core::refusal::{Code, Refusal};
use conch_core::turn::StepId;
use conch_core::turn::cancel::{OfferedStep, TurnAsk};
use conch_core::turn::result::STEP_OUTPUT_MAX_BYTES;
use http::header;
use serde::Deserialize;
use serde_json::Value;

use super::Gateway;
use super::errors::HttpError;
use super::input::{self, Path};
use crate::agents::Asked;

/// Most bytes of a request: a step of 1 MiB, and white space.
const BODY_MAX_BYTES: usize = STEP_OUTPUT_MAX_BYTES + 64 * 1024;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    #[serde(default)]
    input: Value,
    output: Value,
}

pub(super) async fn step(
    State(gateway): State<Gateway>,
    Path((token, key)): Path<(String, String)>,
    request: Request,
) -> Result<Response, HttpError> {
    let forged = || Refusal::new(Code::Forbidden, "the callback's URL is not one that this cluster signed");
    let asked = gateway.shared.callbacks.verify(&token).ok_or_else(forged)?;
    let step = own_step(&key)?;
    let text = input::json_text(&gateway, request, BODY_MAX_BYTES).await?;
    let Step { input, output } = input::from_json(&text)?;
    let Asked { conversation, turn, epoch, attempt } = asked;
    let conversation = ConvRef::from(conversation);
    let offered = OfferedStep { turn, epoch, attempt, step: step.clone(), input, output };
    gateway.router().turn(&conversation, TurnAsk::Step(offered)).await?;
    let done = serde_json::json!({ "step": step }).to_string();
    Ok(([(header::CONTENT_TYPE, "application/json")], done).into_response())
}

/// A worker's own step: `NAME`, or `NAME#2` and so on. What Conch itself names so is not for workers.
fn own_step(key: &str) -> Result<StepId, Refusal> {
    let refused = |problem: String| Refusal::new(Code::UnprocessableRequest, problem);
    let (name, occurrence) = match key.split_once('#') {
        Some((name, number)) => match number.parse() {
            Ok(number @ 2_u32..) if number.to_string() == key[name.len() + 1..] => (name, number),
            _ => return Err(refused(format!("step: {key:?} is not a name, or a name and # and a number from 2 on"))),
        },
        None => (key, 1),
    };
    let is_ours = name.strip_prefix('m').is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()));
    if is_ours {
        return Err(refused(format!("step: {name:?} looks like a model's; m and a digit begin none of a worker's")));
    }
    StepId::own(name, occurrence).map_err(|error| refused(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workers_steps_are_names_and_occurrences() {
        for key in ["find", "find#2", "find#10", "mail the bill", "m", "mail"] {
            assert_eq!(own_step(key).map(|step| step.to_string()).as_deref(), Ok(key));
        }
        for key in ["", "a/b", "find#1", "find#02", "find#x", "find#", "a#2#3", "a~2", "m1", "m1.t0", "ü"] {
            let refusal = own_step(key).expect_err(key);
            assert!(refusal.code == Code::UnprocessableRequest && refusal.detail.starts_with("step: "), "{refusal}");
        }
    }
}
