//! One call over HTTP.

use std::time::Duration;

use conch_core::wire::openai::{Answer, AnswerLimits, AnswerReader, BrokenAnswer, ChatRequest};
use futures_util::StreamExt;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Response, StatusCode, Url};

use crate::agents::http::{self, BadUrl, Trouble, Unread, retry_after};
use crate::auth::secret::Secret;

/// Where a model is.
#[derive(Debug, Clone)]
pub struct ModelEndpoint {
    /// Ends in `/v1` as a rule; `/chat/completions` is added.
    pub base_url: String,
    /// Sent as a bearer token.
    pub key: Option<Secret>,
}

/// How long a call may stand still. The whole call is bounded by its turn's deadline.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// Until the connection stands.
    pub connect: Duration,
    /// From the request to the answer's head: a loaded model may take long.
    pub head: Duration,
    /// Between two pieces of the answer.
    pub silence: Duration,
}

impl Default for Timeouts {
    /// 5 s, 60 s, 30 s.
    fn default() -> Self {
        Self { connect: Duration::from_secs(5), head: Duration::from_secs(60), silence: Duration::from_secs(30) }
    }
}

/// Why an endpoint cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidEndpoint {
    /// Not an absolute `http` or `https` URL without a query, or one with a user name or password.
    #[error("base_url: {0}")]
    Url(BadUrl),
    /// A key that no header can carry.
    #[error("api_key: holds characters that no HTTP header may hold")]
    Key,
    /// The system's HTTP or TLS could not be set up.
    #[error("HTTP: {0}")]
    Client(String),
}

/// Why a call brought no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// No connection, or it broke, or it stood still.
    #[error("the model at {host} {}", .trouble.logged)]
    Unreachable {
        /// Host and port.
        host: String,
        /// What happened.
        trouble: Trouble,
    },
    /// The server refused.
    #[error("the model at {host} answered {status}: {text}")]
    Refused {
        /// Host and port.
        host: String,
        /// The status.
        status: u16,
        /// What it said, cut short.
        text: String,
        /// How long it asks to be left alone.
        retry_after: Option<Duration>,
    },
    /// The answer is not one.
    #[error("the model at {host}: {broken}")]
    Broken {
        /// Host and port.
        host: String,
        /// What is wrong.
        broken: BrokenAnswer,
    },
}

/// Whether the same call may succeed later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// It may, not before this time has passed.
    After(Duration),
    /// It cannot.
    None,
}

impl CallError {
    /// The same for all who see the turn: without the address, and without what the server said, which may hold such things.
    #[must_use]
    pub fn shown(&self) -> String {
        match self {
            Self::Unreachable { trouble, .. } => format!("the model {}", trouble.shown),
            Self::Refused { status, .. } => {
                let status = StatusCode::from_u16(*status).unwrap_or_default();
                format!("the model {}", http::refused(status, "").shown)
            }
            Self::Broken { broken: BrokenAnswer::Server(_), .. } => {
                "the model's server reported an error in the middle of its answer".to_owned()
            }
            Self::Broken { broken: BrokenAnswer::Malformed(_), .. } => {
                "the model's server sent what is no chat completion".to_owned()
            }
            Self::Broken { broken, .. } => format!("the model: {broken}"),
        }
    }

    /// Whether to call again: yes after 408, 409, 429 and 5xx, a lost connection and a broken stream; no after any other
    /// refusal and after an answer over the limits, which would come again.
    #[must_use]
    pub fn patience(&self) -> Patience {
        match self {
            Self::Unreachable { .. } => Patience::After(Duration::ZERO),
            Self::Refused { status, retry_after, .. } => match status {
                408 | 409 | 429 | 500..=599 => Patience::After(retry_after.unwrap_or_default()),
                _ => Patience::None,
            },
            Self::Broken { broken: BrokenAnswer::TooLarge { .. }, .. } => Patience::None,
            Self::Broken { .. } => Patience::After(Duration::ZERO),
        }
    }
}

/// A model's client; cheap to clone, one pool of connections.
#[derive(Debug, Clone)]
pub struct ModelClient {
    http: reqwest::Client,
    url: Url,
    host: String,
    headers: HeaderMap,
    timeouts: Timeouts,
    limits: AnswerLimits,
}

impl ModelClient {
    /// A client of this endpoint. Connects to nothing yet.
    ///
    /// # Errors
    /// As [`InvalidEndpoint`] lists.
    pub fn new(endpoint: &ModelEndpoint, timeouts: Timeouts, limits: AnswerLimits) -> Result<Self, InvalidEndpoint> {
        let (url, host) = completions_url(&endpoint.base_url).map_err(InvalidEndpoint::Url)?;
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream, application/json"));
        if let Some(key) = &endpoint.key {
            let bearer = [b"Bearer ", key.expose()].concat();
            let mut bearer = HeaderValue::from_bytes(&bearer).map_err(|_| InvalidEndpoint::Key)?;
            bearer.set_sensitive(true);
            headers.insert(AUTHORIZATION, bearer);
        }
        let http = http::client(timeouts.connect).map_err(|error| InvalidEndpoint::Client(error.to_string()))?;
        Ok(Self { http, url, host, headers, timeouts, limits })
    }

    /// Calls the model; every piece of text is shown as it comes. Dropping the future ends the call.
    ///
    /// # Errors
    /// As [`CallError`] lists. Text that was shown by then is no answer: whoever showed it retracts it.
    pub async fn call(
        &self,
        request: &ChatRequest<'_>,
        mut show: impl FnMut(&str) + Send,
    ) -> Result<Answer, CallError> {
        let call = self.http.post(self.url.clone()).headers(self.headers.clone()).body(request.encode());
        let response = tokio::time::timeout(self.timeouts.head, call.send()).await;
        let response = response
            .map_err(|_| {
                let within = self.timeouts.head.as_secs();
                self.unreachable(Trouble::plain(format!("gave no answer within {within} s")))
            })?
            .map_err(|error| self.unreachable(http::lost(&error)))?;
        if response.status() != StatusCode::OK {
            return Err(self.refusal(response).await);
        }
        let mut reader = AnswerReader::new(self.limits);
        let broken = |broken| CallError::Broken { host: self.host.clone(), broken };
        if is_stream(&response) {
            self.read_stream(response, &mut reader, &mut show).await?;
        } else {
            let body = self.read_body(response, self.limits.event_bytes).await?;
            show(&reader.whole(&body).map_err(broken)?);
        }
        reader.finish().map_err(broken)
    }

    async fn read_stream(
        &self,
        response: Response,
        reader: &mut AnswerReader,
        show: &mut (impl FnMut(&str) + Send),
    ) -> Result<(), CallError> {
        let mut body = response.bytes_stream();
        while !reader.is_done() {
            let piece = tokio::time::timeout(self.timeouts.silence, body.next()).await;
            let piece = piece.map_err(|_| {
                let silence = self.timeouts.silence.as_secs();
                self.unreachable(Trouble::plain(format!("said nothing for {silence} s")))
            })?;
            let Some(piece) = piece else { break };
            let piece = piece.map_err(|error| self.unreachable(http::lost(&error)))?;
            let text = reader.push(&piece);
            let text = text.map_err(|broken| CallError::Broken { host: self.host.clone(), broken })?;
            if !text.is_empty() {
                show(&text);
            }
        }
        Ok(())
    }

    /// Reads a body that is not streamed, up to `limit_bytes`.
    async fn read_body(&self, response: Response, limit_bytes: usize) -> Result<Vec<u8>, CallError> {
        let body = http::read_body(response, limit_bytes, self.timeouts.silence).await;
        body.map_err(|unread| match unread {
            Unread::TooLong(limit) => {
                let broken = BrokenAnswer::TooLarge { what: "body", limit, unit: "bytes" };
                CallError::Broken { host: self.host.clone(), broken }
            }
            Unread::Silence => self.unreachable(Trouble::plain("stopped in the middle of its answer")),
            Unread::Broken(trouble) => self.unreachable(trouble),
        })
    }

    async fn refusal(&self, response: Response) -> CallError {
        let status = response.status().as_u16();
        let retry_after = retry_after(response.headers());
        let text = http::refusal_text(response, self.timeouts.silence).await;
        CallError::Refused { host: self.host.clone(), status, text, retry_after }
    }

    fn unreachable(&self, trouble: Trouble) -> CallError {
        CallError::Unreachable { host: self.host.clone(), trouble }
    }
}

fn completions_url(base: &str) -> Result<(Url, String), BadUrl> {
    let whole = format!("{}/chat/completions", base.trim_end_matches('/'));
    match http::url(&whole, "api_key_env") {
        Ok((url, host)) if url.query().is_none() => Ok((url, host)),
        // What was written is repeated, not what was made of it.
        Ok(_) | Err(BadUrl::NotHttp(_)) => Err(BadUrl::not_http(base)),
        Err(bad @ BadUrl::Userinfo(_)) => Err(bad),
    }
}

fn is_stream(response: &Response) -> bool {
    let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with("text/event-stream"))
}
