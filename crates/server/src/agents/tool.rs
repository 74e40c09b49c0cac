//! A tool over HTTP: one JSON object in, JSON or text out, under a key that is the same whoever calls.
//!
//! Invariants: every try of a call carries the same `Idempotency-Key`; a call that may have happened is made again only if the
//! tool is declared idempotent; what a model gave is checked against the schema before anything is called.
//!
//! Deliberately absent: the journal. Who calls has written down what it is about to do.

use std::time::Duration;

use conch_core::json::is_deeper_than;
use conch_core::turn::StepId;
use conch_core::turn::result::STEP_OUTPUT_MAX_BYTES;
use conch_core::wire::openai::ToolSpec;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Response, StatusCode, Url};
use serde_json::Value;
use serde_json::value::RawValue;

use super::http::{self, Backoff, DEPTH_MAX, Trouble, Unread};
use crate::config::agents::{Approval, ToolConfig, WhenUnknown};
use crate::turn::agent::Halt;
use crate::turn::context::{OnUnknown, TurnContext};
use crate::turn::schema::Schema;

/// Tries of one call, where another can help.
const TRIES: u32 = 4;
/// The pause after the first.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// What came of a call.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Outcome {
    /// The tool's answer.
    Done(Value),
    /// It did not happen, or the tool says that it failed.
    Failed(String),
    /// It may have happened.
    Unknown(String),
}

/// Whether a call may have been made before, by this owner or another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Earlier {
    None,
    Perhaps,
}

/// One try.
enum Try {
    Over(Outcome),
    /// It did not happen, for good.
    Never(Trouble),
    /// It did not happen, and may a little later.
    Later(Trouble, Duration),
    /// It may have happened.
    Doubt(Trouble),
}

/// See the module's description.
pub(super) struct Tool {
    pub(super) name: String,
    pub(super) spec: ToolSpec,
    pub(super) on_unknown: OnUnknown,
    pub(super) approval: Approval,
    /// How long a person has for that.
    pub(super) approval_within: Duration,
    schema: Schema,
    url: Url,
    host: String,
    headers: HeaderMap,
    timeout: Duration,
    http: reqwest::Client,
}

impl Tool {
    /// A tool as it is configured; the error names the setting.
    pub(super) fn new(config: &ToolConfig, http: &reqwest::Client) -> Result<Self, String> {
        let schema = Schema::read(&config.parameters.0).map_err(|invalid| format!("parameters: {invalid}"))?;
        let (url, host) = http::url(&config.url, "headers_env").map_err(|bad| format!("url: {bad}"))?;
        let parameters = RawValue::from_string(config.parameters.0.to_string()).expect("a value's text is JSON");
        let (name, description) = (config.name.clone(), config.description.clone());
        Ok(Self {
            spec: ToolSpec { name: name.clone(), description, parameters },
            name,
            on_unknown: match config.on_unknown {
                WhenUnknown::Retry => OnUnknown::Retry,
                WhenUnknown::Fail => OnUnknown::Fail,
                WhenUnknown::Ask => OnUnknown::Ask,
            },
            approval: config.approval,
            approval_within: Duration::from_secs(config.approval_s),
            schema,
            url,
            host,
            headers: headers(config)?,
            timeout: Duration::from_millis(config.timeout_ms),
            http: http.clone(),
        })
    }

    /// What is wrong with these arguments.
    pub(super) fn misfit(&self, arguments: &Value) -> Option<String> {
        if !arguments.is_object() {
            return Some("arguments: must be a JSON object".to_owned());
        }
        self.schema.misfit(arguments).map(|problem| format!("arguments{problem}"))
    }

    /// Calls the tool for a step whose intent is in the journal. Once one try may have happened, only an answer of the tool
    /// ends the doubt: that another try did not reach it says nothing of the one before.
    pub(super) async fn call(
        &self,
        turn: &mut TurnContext,
        step: &StepId,
        arguments: &Value,
        mut earlier: Earlier,
    ) -> Result<Outcome, Halt> {
        let mut backoff = Backoff::from(FIRST_PAUSE);
        let mut tries = 1;
        loop {
            let tried = self.try_once(turn, step, arguments).await;
            if let Try::Never(Trouble { logged, .. })
            | Try::Later(Trouble { logged, .. }, _)
            | Try::Doubt(Trouble { logged, .. }) = &tried
            {
                let (conversation, turn) = (turn.conversation(), turn.turn());
                tracing::info!(%conversation, %turn, %step, tool = self.name, host = self.host, problem = logged, tries, "a call to a tool has no result");
            }
            let (problem, wait) = match tried {
                Try::Over(outcome) => return Ok(outcome),
                Try::Never(Trouble { shown, .. }) => return Ok(Outcome::Failed(shown)),
                Try::Later(Trouble { shown, .. }, wait) => (shown, wait),
                Try::Doubt(Trouble { shown, .. }) if self.on_unknown == OnUnknown::Retry => {
                    earlier = Earlier::Perhaps;
                    (shown, Duration::ZERO)
                }
                Try::Doubt(Trouble { shown, .. }) => return Ok(Outcome::Unknown(shown)),
            };
            if tries >= TRIES {
                return Ok(match earlier {
                    Earlier::None => Outcome::Failed(problem),
                    Earlier::Perhaps => Outcome::Unknown(problem),
                });
            }
            tries += 1;
            let pause = backoff.pause(wait, |below| turn.seams().jitter(below));
            turn.sleep(pause).await?;
        }
    }

    async fn try_once(&self, turn: &TurnContext, step: &StepId, arguments: &Value) -> Try {
        let call = self
            .http
            .post(self.url.clone())
            .headers(self.headers.clone())
            .header("idempotency-key", turn.idempotency_key(step))
            .header("conch-epoch", turn.epoch().to_string())
            .header("conch-conversation", turn.conversation().as_str())
            .header("conch-turn", turn.turn().to_string())
            .header("conch-step", step.as_str())
            .body(arguments.to_string());
        // The whole try is bounded, its answer's body included.
        let answered = async {
            match call.send().await {
                Ok(response) => self.read(response).await,
                Err(error) if error.is_connect() => Try::Later(http::lost(&error).of(TOOL), Duration::ZERO),
                Err(error) => Try::Doubt(http::lost(&error).of(TOOL)),
            }
        };
        let timed = tokio::time::timeout(self.timeout, answered).await;
        timed.unwrap_or_else(|_| {
            Try::Doubt(Trouble::plain(format!("{TOOL} did not answer within {} ms", self.timeout.as_millis())))
        })
    }

    async fn read(&self, response: Response) -> Try {
        let status = response.status();
        if status.is_success() {
            return match http::read_body(response, STEP_OUTPUT_MAX_BYTES, self.timeout).await {
                Ok(body) => output(body),
                // It has answered: it was done.
                Err(too_long @ Unread::TooLong(_)) => Try::Never(too_long.trouble().of(ANSWER)),
                Err(broken) => Try::Doubt(broken.trouble().of(ANSWER)),
            };
        }
        let wait = http::retry_after(response.headers()).unwrap_or_default();
        let text = http::refusal_text(response, self.timeout).await;
        let trouble = http::refused(status, &text).of(TOOL);
        match status {
            StatusCode::TOO_MANY_REQUESTS => Try::Later(trouble, wait),
            _ if status.is_server_error() || status == StatusCode::REQUEST_TIMEOUT => Try::Doubt(trouble),
            // What is wrong with the call is for the model to know: it may ask for another one.
            _ if status.is_client_error() => Try::Never(Trouble::plain(trouble.logged)),
            _ => Try::Never(trouble),
        }
    }
}

/// The subject of what is said of a tool: its name is in the step.
const TOOL: &str = "the tool";
const ANSWER: &str = "the tool's answer";

/// JSON as it is, anything else, and what is nested too deeply for a record, as text.
fn output(body: Vec<u8>) -> Try {
    if body.is_empty() {
        return Try::Over(Outcome::Done(Value::Null));
    }
    let Ok(text) = String::from_utf8(body) else { return Try::Never(Trouble::plain(format!("{ANSWER} is not UTF-8"))) };
    let read = if is_deeper_than(&text, DEPTH_MAX) { None } else { serde_json::from_str(&text).ok() };
    Try::Over(Outcome::Done(read.unwrap_or(Value::String(text))))
}

fn headers(config: &ToolConfig) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let plain = config.headers.iter().map(|(name, value)| (name, value.as_bytes(), "headers"));
    let empty: &[u8] = &[];
    let secret = config.headers_env.iter();
    let secret = secret.map(|(name, from)| (name, from.value().map_or(empty, |value| value.expose()), "headers_env"));
    for (name, value, setting) in plain.chain(secret) {
        let refused = |what: &str| format!("{setting}.{name}: {what}");
        let key: HeaderName = name.parse().map_err(|_| refused("is not a header's name"))?;
        if key.as_str().starts_with("conch-") || ["idempotency-key", "content-length", "host"].contains(&key.as_str()) {
            return Err(refused("is set by Conch"));
        }
        let mut value = HeaderValue::from_bytes(value).map_err(|_| refused("holds what no header may hold"))?;
        value.set_sensitive(setting == "headers_env");
        headers.insert(key, value);
    }
    Ok(headers)
}
