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

use super::http::{self, Backoff, DEPTH_MAX, Unread};
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
    /// It did not happen, and may a little later.
    Later(String, Duration),
    /// It may have happened.
    Doubt(String),
}

/// See the module's description.
pub(super) struct Tool {
    pub(super) name: String,
    pub(super) spec: ToolSpec,
    pub(super) on_unknown: OnUnknown,
    pub(super) approval: Approval,
    schema: Schema,
    url: Url,
    /// How long a person has for that.
    pub(super) approval_within: Duration,
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
            schema,
            url,
            approval_within: Duration::from_secs(config.approval_s),
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
            let (problem, wait) = match self.try_once(turn, step, arguments).await {
                Try::Over(outcome) => return Ok(outcome),
                Try::Later(problem, wait) => (problem, wait),
                Try::Doubt(problem) if self.on_unknown == OnUnknown::Retry => {
                    earlier = Earlier::Perhaps;
                    (problem, Duration::ZERO)
                }
                Try::Doubt(problem) => return Ok(Outcome::Unknown(problem)),
            };
            if tries >= TRIES {
                return Ok(match earlier {
                    Earlier::None => Outcome::Failed(problem),
                    Earlier::Perhaps => Outcome::Unknown(problem),
                });
            }
            tries += 1;
            tracing::debug!(tool = self.name, %step, problem, "a tool is called again");
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
        let host = &self.host;
        // The whole try is bounded, its answer's body included.
        let answered = async {
            match call.send().await {
                Ok(response) => self.read(response).await,
                Err(error) if error.is_connect() => Try::Later(
                    format!("the tool at {host} cannot be reached: {}", http::innermost(&error)),
                    Duration::ZERO,
                ),
                Err(error) => Try::Doubt(format!("the tool at {host}: {}", http::innermost(&error))),
            }
        };
        let timed = tokio::time::timeout(self.timeout, answered).await;
        timed.unwrap_or_else(|_| {
            Try::Doubt(format!("the tool at {host} did not answer within {} ms", self.timeout.as_millis()))
        })
    }

    async fn read(&self, response: Response) -> Try {
        let (host, status) = (&self.host, response.status());
        if status.is_success() {
            return match http::read_body(response, STEP_OUTPUT_MAX_BYTES, self.timeout).await {
                Ok(body) => Try::Over(self.output(body)),
                // It has answered: it was done.
                Err(too_long @ Unread::TooLong(_)) => {
                    Try::Over(Outcome::Failed(format!("the answer of the tool at {host} {too_long}")))
                }
                Err(broken) => Try::Doubt(format!("the answer of the tool at {host} {broken}")),
            };
        }
        let wait = http::retry_after(response.headers()).unwrap_or_default();
        let text = http::refusal_text(response, self.timeout).await;
        let said = if text.is_empty() { String::new() } else { format!(": {text}") };
        let problem = format!("the tool at {host} answered {}{said}", status.as_u16());
        match status {
            StatusCode::TOO_MANY_REQUESTS => Try::Later(problem, wait),
            _ if status.is_server_error() || status == StatusCode::REQUEST_TIMEOUT => Try::Doubt(problem),
            _ if status.is_redirection() => {
                Try::Over(Outcome::Failed(format!("{problem} (redirects are not followed)")))
            }
            _ => Try::Over(Outcome::Failed(problem)),
        }
    }

    /// JSON as it is, anything else, and what is nested too deeply for a record, as text.
    fn output(&self, body: Vec<u8>) -> Outcome {
        if body.is_empty() {
            return Outcome::Done(Value::Null);
        }
        let Ok(text) = String::from_utf8(body) else {
            return Outcome::Failed(format!("the answer of the tool at {} is not UTF-8", self.host));
        };
        let read = if is_deeper_than(&text, DEPTH_MAX) { None } else { serde_json::from_str(&text).ok() };
        Outcome::Done(read.unwrap_or(Value::String(text)))
    }
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
