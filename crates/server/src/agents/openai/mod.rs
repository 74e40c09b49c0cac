//! An agent of kind `openai`: asks a model, makes the calls that it asks for, and asks again, until it only speaks.
//!
//! Invariants: the n-th model call is step `m<n>`, its calls `m<n>.t<index>`, so that whoever goes on with the turn arrives at the
//! same names; text of a broken answer is retracted before the call is made again; a call that cannot be made is told to the model and
//! is in the journal, and a model that does not stop asking for such calls ends its turn.

mod messages;

pub(super) use messages::{newest, text_of};

use std::time::Duration;

use async_trait::async_trait;
use conch_core::json::is_deeper_than;
use conch_core::turn::StepId;
use conch_core::turn::awaits::Resolution;
use conch_core::turn::result::{AskedCall, STEP_OUTPUT_MAX_BYTES, StepResult, ToolStatus, Usage};
use conch_core::wire::openai::{Answer as ModelAnswer, AnswerLimits, ChatMessage, ChatRequest, FinishReason, ToolSpec};
use serde_json::{Value, json};

use super::http::{self, Backoff, DEPTH_MAX};
use super::model::{ModelClient, ModelEndpoint, Patience, Timeouts};
use super::tool::{Earlier, Outcome, Tool};
use crate::config::Agent;
use crate::config::agents::{Approval, OPENAI_BASE_URL};
use crate::turn::agent::{Answer, Halt, TurnAgent};
use crate::turn::context::{Await, StepBegin, ToolCall, TurnContext};

/// Answers of one turn with calls that cannot be made, after which it fails.
const BAD_ANSWERS_MAX: u32 = 3;
/// The pause after the first broken call of a model.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// Most characters of a name or of arguments that are repeated to people.
const SHOWN_MAX_CHARACTERS: usize = 200;

/// See the module's description.
pub struct ModelAgent {
    client: ModelClient,
    model: String,
    system: Option<String>,
    temperature: Option<f32>,
    max_tokens: Option<u32>,
    max_steps: u32,
    attempts: u32,
    context_messages: usize,
    tools: Vec<Tool>,
    specs: Vec<ToolSpec>,
}

impl ModelAgent {
    /// The agent as it is configured.
    ///
    /// # Errors
    /// The setting that cannot be used, and why.
    pub fn new(config: &Agent) -> Result<Self, String> {
        let model = config.model.clone().filter(|model| !model.is_empty()).ok_or("model: must be set")?;
        let base_url = config.base_url.clone().unwrap_or_else(|| OPENAI_BASE_URL.to_owned());
        let key = config.api_key_env.as_ref().and_then(|variable| variable.value().cloned());
        let silence = config.silence();
        let timeouts = Timeouts { connect: http::CONNECT, head: silence, silence };
        let client = ModelClient::new(&ModelEndpoint { base_url, key }, timeouts, AnswerLimits::default());
        let client = client.map_err(|invalid| invalid.to_string())?;
        let http = http::client(http::CONNECT).map_err(|error| format!("tools: HTTP: {error}"))?;
        let tool = |tool| Tool::new(tool, &http).map_err(|problem| format!("tools: {:?}: {problem}", tool.name));
        let tools: Vec<Tool> = config.tools.0.iter().map(tool).collect::<Result<_, _>>()?;
        #[expect(clippy::cast_possible_truncation, reason = "0 to 2, of which nobody needs sixteen digits")]
        let temperature = config.temperature.map(|temperature| temperature.0 as f32);
        Ok(Self {
            client,
            model,
            system: config.system.clone(),
            temperature,
            max_tokens: config.max_tokens,
            max_steps: config.max_steps,
            attempts: config.attempts,
            context_messages: config.context_messages,
            specs: tools.iter().map(|tool| tool.spec.clone()).collect(),
            tools,
        })
    }

    /// Asks the model until an answer is whole, and journals it.
    async fn ask(&self, turn: &mut TurnContext) -> Result<(String, Vec<AskedCall>), Halt> {
        let shown = newest(turn.messages().await?, self.context_messages);
        let messages = messages::chat(self.system.as_deref(), shown);
        let answer = self.answer(turn, &messages).await?;
        if answer.text.is_empty() && answer.calls.is_empty() && answer.reason == FinishReason::ContentFilter {
            return Err(Halt::failed("the model's server filtered its answer"));
        }
        let ModelAnswer { text, calls, usage, .. } = answer;
        let calls: Vec<AskedCall> = calls.into_iter().map(asked_call).collect();
        let usage = usage.map_or_else(Usage::default, |usage| Usage {
            input_tokens: usage.prompt_tokens,
            output_tokens: usage.completion_tokens,
        });
        turn.complete(StepResult::Model { output: text.clone(), calls: calls.clone(), usage }).await?;
        Ok((text, calls))
    }

    async fn answer(&self, turn: &mut TurnContext, messages: &[ChatMessage]) -> Result<ModelAnswer, Halt> {
        let request = ChatRequest {
            model: &self.model,
            messages,
            tools: &self.specs,
            max_tokens: self.max_tokens,
            temperature: self.temperature,
        };
        let mut backoff = Backoff::from(FIRST_PAUSE);
        let mut attempts = 1;
        loop {
            let (mut shown, mut showing) = (0_usize, Ok(()));
            let answer = self.client.call(&request, |text| {
                shown += text.len();
                if showing.is_ok() {
                    showing = turn.emit(text);
                }
            });
            let answer = answer.await;
            showing?;
            let error = match answer {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let asked = match error.patience() {
                Patience::After(asked) if attempts < self.attempts => asked,
                _ => {
                    let (conversation, turn) = (turn.conversation(), turn.turn());
                    tracing::warn!(%conversation, %turn, %error, attempts, "a model fails its turn");
                    let times = if attempts > 1 { format!(" (after {attempts} attempts)") } else { String::new() };
                    return Err(Halt::failed(format!("{}{times}", error.shown())));
                }
            };
            attempts += 1;
            tracing::info!(conversation = %turn.conversation(), turn = %turn.turn(), %error, "a model is asked again");
            if shown > 0 {
                turn.restart()?;
            }
            let pause = backoff.pause(asked, |below| turn.seams().jitter(below));
            turn.sleep(pause).await?;
        }
    }

    /// Makes a call that the model asked for, unless that cannot be: then says why.
    async fn call(&self, turn: &mut TurnContext, step: StepId, asked: &AskedCall) -> Result<Option<String>, Halt> {
        let tool = match self.callable(asked) {
            Ok(tool) => tool,
            Err(problem) => {
                give(turn, &step, asked, ToolStatus::Failed, &problem).await?;
                return Ok(Some(problem));
            }
        };
        if tool.approval == Approval::Ask
            && turn.journal().result(&step).is_none()
            && let Some(refused) = approve(turn, &step, asked, tool.approval_within).await?
        {
            give(turn, &step, asked, ToolStatus::Failed, refused).await?;
            return Ok(None);
        }
        let call = ToolCall {
            step: step.clone(),
            name: tool.name.clone(),
            input: asked.input.clone(),
            on_unknown: tool.on_unknown,
        };
        // A call of unknown outcome is begun again where a person is to decide about it: then its intent is there already.
        loop {
            let earlier = if turn.journal().intents(&step) > 0 { Earlier::Perhaps } else { Earlier::None };
            if turn.begin_tool(&call).await? != StepBegin::Run {
                return Ok(None);
            }
            let (output, status) = match tool.call(turn, &step, &asked.input, earlier).await? {
                Outcome::Done(output) => (output, ToolStatus::Done),
                Outcome::Failed(problem) => (json!({ "error": problem }), ToolStatus::Failed),
                Outcome::Unknown(problem) if tool.on_unknown == crate::turn::context::OnUnknown::Ask => {
                    tracing::info!(turn = %turn.turn(), %step, problem, "a person is asked about a call");
                    continue;
                }
                Outcome::Unknown(problem) => {
                    (json!({ "error": format!("it may have happened: {problem}") }), ToolStatus::Unknown)
                }
            };
            turn.complete(within_limit(&step, asked, output, status)).await?;
            return Ok(None);
        }
    }

    /// The tool that a call asks for, if it can be made.
    fn callable(&self, asked: &AskedCall) -> Result<&Tool, String> {
        let Some(tool) = self.tools.iter().find(|tool| tool.name == asked.name) else {
            let names: Vec<&str> = self.tools.iter().map(|tool| tool.name.as_str()).collect();
            let known =
                if names.is_empty() { "there are none".to_owned() } else { format!("there are {}", names.join(", ")) };
            return Err(format!("there is no tool {:?}; {known}", http::short(&asked.name, SHOWN_MAX_CHARACTERS)));
        };
        tool.misfit(&asked.input).map_or(Ok(tool), |problem| Err(format!("{}: {problem}", tool.name)))
    }
}

#[async_trait]
impl TurnAgent for ModelAgent {
    async fn run(&self, turn: &mut TurnContext) -> Result<Answer, Halt> {
        let mut bad_answers = 0;
        for number in 1..=self.max_steps {
            let (text, calls) = match turn.begin_model(number).await? {
                StepBegin::Run => self.ask(turn).await?,
                StepBegin::Done(StepResult::Model { output, calls, .. }) => (output, calls),
                StepBegin::Done(_) => return Err(Halt::failed(format!("step m{number} is no model call"))),
            };
            if calls.is_empty() {
                return Ok(Answer(text));
            }
            let mut problem = None;
            for (index, asked) in (0..).zip(&calls) {
                problem = self.call(turn, StepId::tool(number, index), asked).await?.or(problem);
            }
            if let Some(problem) = problem {
                bad_answers += 1;
                if bad_answers >= BAD_ANSWERS_MAX {
                    let times = format!("the model asked {bad_answers} times for calls that cannot be made");
                    return Err(Halt::failed(format!("{times}; the last time: {problem}")));
                }
            }
        }
        Err(Halt::failed(format!("the model was called {} times, and still wants to call tools", self.max_steps)))
    }
}

/// Journals the result of a call that was not made.
async fn give(
    turn: &mut TurnContext,
    step: &StepId,
    asked: &AskedCall,
    status: ToolStatus,
    problem: &str,
) -> Result<(), Halt> {
    if turn.begin(step, Some(&asked.input)).await? == StepBegin::Run {
        turn.complete(within_limit(step, asked, json!({ "error": problem }), status)).await?;
    }
    Ok(())
}

/// A result that fits a step. The model is told of one that does not; only a call that is too large by itself ends the turn.
fn within_limit(step: &StepId, asked: &AskedCall, output: Value, status: ToolStatus) -> StepResult {
    let result = StepResult::Tool { name: asked.name.clone(), input: asked.input.clone(), output, status };
    if result.body_text(step).len() <= STEP_OUTPUT_MAX_BYTES {
        return result;
    }
    let problem = format!("the call and its answer are over {STEP_OUTPUT_MAX_BYTES} bytes");
    let (name, input, output) = (asked.name.clone(), asked.input.clone(), json!({ "error": problem }));
    StepResult::Tool { name, input, output, status: ToolStatus::Failed }
}

/// Asks a person whether a call may be made; what the model is told if not.
async fn approve(
    turn: &mut TurnContext,
    step: &StepId,
    asked: &AskedCall,
    within: Duration,
) -> Result<Option<&'static str>, Halt> {
    let whole = asked.input.to_string();
    let input = http::short(&whole, SHOWN_MAX_CHARACTERS);
    // Nobody is to approve what they were not told of.
    let hidden = match whole.chars().count().saturating_sub(SHOWN_MAX_CHARACTERS) {
        0 => String::new(),
        more => format!(" … ({more} characters more, in the step that asked)"),
    };
    let ask = Await {
        // A call of unknown outcome is asked about under the step's own name.
        step: format!("{step}.approval").parse().expect("a step of a model is short"),
        schema: json!({
            "type": "object",
            "required": ["approve"],
            "properties": { "approve": { "type": "boolean" } },
        }),
        prompt: Some(format!("May {} be called with {input}{hidden}?", asked.name)),
        within,
    };
    Ok(match turn.wait(&ask).await? {
        Resolution::Payload(payload) if payload["approve"] == true => None,
        Resolution::Payload(_) => Some("a person declined this call"),
        Resolution::Expired => Some("nobody approved this call in time"),
    })
}

/// Arguments as JSON, or as the text that they are: also where they are nested so deeply that a record around them could not be
/// read again.
fn asked_call(call: conch_core::wire::openai::AskedCall) -> AskedCall {
    let conch_core::wire::openai::AskedCall { id, name, arguments } = call;
    // Some servers leave them out where a tool takes none.
    let arguments = if arguments.trim().is_empty() { "{}".to_owned() } else { arguments };
    let read = if is_deeper_than(&arguments, DEPTH_MAX) { None } else { serde_json::from_str(&arguments).ok() };
    let input = read.unwrap_or(Value::String(arguments));
    AskedCall { name, input, id: Some(id) }
}
