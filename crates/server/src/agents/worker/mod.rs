//! An agent of kind `http`: a worker in any language, which is asked by one signed POST, answers in lines, and makes its steps durable
//! by calling back meanwhile.
//!
//! Invariants: a worker's step is in the journal before the worker is told so; what a worker says is taken only from the attempt that
//! runs, for a later one has another signed URL; a stream that ends without `done` is no answer; what a worker says that is not the
//! contract ends the turn with a record that names it.
//!
//! Deliberately absent: who may call back where ([`super::Callbacks`], the gateway and the router).

mod lines;
mod request;
mod signature;

use std::time::Duration;

use async_trait::async_trait;
use conch_core::refusal::Refusal;
use conch_core::turn::StepId;
use conch_core::turn::awaits::Resolution;
use conch_core::turn::journal::FailReason;
use futures_util::StreamExt;
use reqwest::header::{ACCEPT, CONTENT_TYPE};
use reqwest::{Response, StatusCode, Url};
use serde_json::Value;

use self::lines::{Asking, Lines, Said};
use self::signature::WebhookKey;
use super::http::{self, Backoff, Trouble};
use super::{Asked, Callbacks};
use crate::config::Agent;
use crate::turn::agent::{Answer, Halt, TurnAgent};
use crate::turn::context::{Await, Kept, TurnContext};
use crate::turn::port::Offer;

/// The pause after the first try that brought no answer.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The subject of what is said of it: whom an agent asks is the operator's affair.
const WORKER: &str = "the worker";

/// See the module's description.
pub struct WorkerAgent {
    http: reqwest::Client,
    url: Url,
    host: String,
    key: WebhookKey,
    silence: Duration,
    attempts: u32,
    context_messages: usize,
    callbacks: Callbacks,
}

/// What came of asking a worker once.
enum Told {
    /// Its answer, and what it keeps.
    Answer(String, Value),
    /// It waits for somebody.
    Waits(Asking),
    /// No answer, and another try may bring one, not before this time.
    Broken(Trouble, Duration),
    /// No answer, and none will come.
    Never(FailReason, Trouble),
}

/// What a worker has said so far.
#[derive(Default)]
struct Heard {
    shown: String,
    message: Option<String>,
}

impl WorkerAgent {
    /// The agent as it is configured.
    ///
    /// # Errors
    /// The setting that cannot be used, and why.
    pub fn new(config: &Agent, callbacks: Callbacks) -> Result<Self, String> {
        let text = config.url.as_deref().ok_or("url: must be set")?;
        let (url, host) = http::url(text, "secret_env").map_err(|bad| format!("url: {bad}"))?;
        let secret = config.secret_env.as_ref().ok_or("secret_env: must be set")?;
        let secret = secret.value().ok_or("secret_env: the environment variable is not set")?;
        let key = WebhookKey::read(secret).map_err(|problem| format!("secret_env: the secret {problem}"))?;
        Ok(Self {
            http: http::client(http::CONNECT).map_err(|error| format!("url: HTTP: {error}"))?,
            url,
            host,
            key,
            silence: config.silence(),
            attempts: config.attempts,
            context_messages: config.context_messages,
            callbacks,
        })
    }

    /// Asks the worker, and hears it out.
    async fn ask(&self, turn: &mut TurnContext) -> Result<Told, Halt> {
        let asked = Asked {
            conversation: turn.conversation().clone(),
            turn: turn.turn(),
            epoch: turn.epoch(),
            attempt: turn.attempt(),
        };
        let body = request::body(turn, self.context_messages, &self.callbacks.url(&asked)).await?;
        let id = format!("{}.{}.{}.{}", asked.conversation, asked.turn, asked.epoch, asked.attempt);
        let mut call = self.http.post(self.url.clone());
        call = call.header(CONTENT_TYPE, "application/json").header(ACCEPT, "application/x-ndjson");
        for (name, value) in self.key.headers(&id, turn.seams().clock.wall(), &body) {
            call = call.header(name, value);
        }
        match self.next(turn, call.body(body).send()).await? {
            None => Ok(self.silent("said nothing")),
            Some(Err(error)) => Ok(Told::Broken(http::lost(&error).of(WORKER), Duration::ZERO)),
            Some(Ok(response)) if response.status() == StatusCode::OK => self.hear(turn, response).await,
            Some(Ok(response)) => Ok(self.refused(response).await),
        }
    }

    async fn refused(&self, response: Response) -> Told {
        let status = response.status();
        let wait = http::retry_after(response.headers()).unwrap_or_default();
        let text = http::refusal_text(response, self.silence).await;
        let trouble = http::refused(status, &text).of(WORKER);
        match status {
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => Told::Broken(trouble, wait),
            _ if status.is_server_error() => Told::Broken(trouble, wait),
            _ => Told::Never(FailReason::AgentFailed, trouble),
        }
    }

    async fn hear(&self, turn: &mut TurnContext, response: Response) -> Result<Told, Halt> {
        let mut body = response.bytes_stream();
        let (mut lines, mut heard) = (Lines::default(), Heard::default());
        loop {
            let (said, ended) = match self.next(turn, body.next()).await? {
                None => return Ok(self.silent("said nothing more")),
                Some(Some(Err(error))) => return Ok(Told::Broken(http::lost(&error).of(WORKER), Duration::ZERO)),
                Some(Some(Ok(piece))) => (lines.push(&piece), false),
                Some(None) => (lines.finish(), true),
            };
            let said = match said {
                Ok(said) => said,
                Err(nonsense) => {
                    let trouble = Trouble::plain(format!("{WORKER}: {nonsense}"));
                    return Ok(Told::Never(nonsense.reason(), trouble));
                }
            };
            for said in said {
                if let Some(told) = heard.take(turn, said)? {
                    return Ok(told);
                }
            }
            if ended {
                let trouble = Trouble::plain(format!("{WORKER} ended its answer without done"));
                return Ok(Told::Broken(trouble, Duration::ZERO));
            }
        }
    }

    /// Waits for something of the worker, while its steps go into the journal. `None`: nothing came for too long, and no step that
    /// got there: what is refused may be of a worker that was given up long ago, and is no sign of life.
    async fn next<T>(&self, turn: &mut TurnContext, what: impl Future<Output = T> + Send) -> Result<Option<T>, Halt> {
        let mut what = std::pin::pin!(what);
        let mut silent = std::pin::pin!(tokio::time::sleep(self.silence));
        loop {
            // All branches are cancel safe: what is waited for is pinned outside.
            tokio::select! {
                biased;
                offer = turn.offered() => {
                    if keep(turn, offer).await? == Sign::OfLife {
                        silent.as_mut().reset(tokio::time::Instant::now() + self.silence);
                    }
                }
                next = &mut what => return Ok(Some(next)),
                () = &mut silent => return Ok(None),
            }
        }
    }

    fn silent(&self, problem: &str) -> Told {
        let trouble = Trouble::plain(format!("{WORKER} {problem} for {} ms", self.silence.as_millis()));
        Told::Broken(trouble, Duration::ZERO)
    }

    /// Ends the turn: the record says why, the log also where.
    fn fails(&self, turn: &TurnContext, reason: FailReason, trouble: &Trouble, attempts: u32) -> Halt {
        let (conversation, turn) = (turn.conversation(), turn.turn());
        tracing::warn!(%conversation, %turn, host = self.host, problem = trouble.logged, attempts, "a worker fails its turn");
        let times = if attempts > 1 { format!(" (after {attempts} attempts)") } else { String::new() };
        Halt::Failed(reason, format!("{}{times}", trouble.shown))
    }
}

impl Heard {
    fn take(&mut self, turn: &mut TurnContext, said: Said) -> Result<Option<Told>, Halt> {
        match said {
            Said::Delta(text) => {
                turn.emit(&text)?;
                self.shown.push_str(&text);
                Ok(None)
            }
            Said::Message(text) => {
                self.message = Some(text);
                Ok(None)
            }
            Said::Await(asking) => Ok(Some(Told::Waits(asking))),
            Said::Done(state) => {
                let text = self.message.take().unwrap_or_else(|| std::mem::take(&mut self.shown));
                Ok(Some(Told::Answer(text, state)))
            }
        }
    }
}

/// What a step that was offered says of the worker that is heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sign {
    OfLife,
    None,
}

/// Brings a step into the journal, and tells the worker.
async fn keep(turn: &mut TurnContext, offer: Offer) -> Result<Sign, Halt> {
    let (told, going_on): (Result<(), Refusal>, Result<Sign, Halt>) = match turn.keep(&offer.step).await? {
        Kept::Yes => (Ok(()), Ok(Sign::OfLife)),
        Kept::No(refusal) => (Err(refusal), Ok(Sign::None)),
        Kept::Never(refusal, halt) => (Err(refusal), Err(halt)),
    };
    (offer.reply)(told);
    going_on
}

#[async_trait]
impl TurnAgent for WorkerAgent {
    async fn run(&self, turn: &mut TurnContext) -> Result<Answer, Halt> {
        // All that a worker streams is shown as one step; its own steps are journalled beside it.
        turn.begin(&StepId::model(1), None).await?;
        let mut backoff = Backoff::from(FIRST_PAUSE);
        let mut attempts = 1;
        loop {
            let (trouble, asked) = match self.ask(turn).await? {
                Told::Answer(text, state) => {
                    turn.keep_state(state);
                    return Ok(Answer(text));
                }
                Told::Waits(asking) => {
                    let name = asking.id.clone();
                    wait(turn, asking).await?;
                    (Trouble::plain(format!("{WORKER} asks for {name:?}, which is answered")), Duration::ZERO)
                }
                Told::Broken(trouble, asked) => (trouble, asked),
                Told::Never(reason, trouble) => return Err(self.fails(turn, reason, &trouble, 1)),
            };
            if attempts >= self.attempts {
                return Err(self.fails(turn, FailReason::AgentFailed, &trouble, attempts));
            }
            attempts += 1;
            let (conversation, problem) = (turn.conversation(), trouble.logged);
            tracing::info!(%conversation, turn = %turn.turn(), host = self.host, problem, "a worker is asked again");
            // Whatever still goes on of the attempt before is stale from here on.
            turn.restart()?;
            let pause = backoff.pause(asked, |below| turn.seams().jitter(below));
            turn.sleep(pause).await?;
        }
    }
}

/// Lets the turn wait. Returns only if the answer is there already.
async fn wait(turn: &mut TurnContext, asking: Asking) -> Result<Resolution, Halt> {
    let within = asking.within();
    let step = StepId::own(&asking.id, 1).map_err(|error| Halt::failed(format!("the worker's await: {error}")))?;
    turn.wait(&Await { step, schema: asking.schema, prompt: asking.prompt, within }).await
}
