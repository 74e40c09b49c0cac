//! What all calls have in common: a client that follows no redirect, bodies within a bound, the time that a server asks for, and
//! what is said of those that fail.
//!
//! Invariant: what goes into a record names no address, for all who may read a conversation see it; the log does.

use std::time::Duration;

use futures_util::StreamExt;
use reqwest::header::{HeaderMap, RETRY_AFTER};
use reqwest::{Response, StatusCode, Url, redirect};

/// Longest wait that a server's `Retry-After` is believed.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// Until a connection stands.
pub(super) const CONNECT: Duration = Duration::from_secs(5);
/// Most bytes of a refusal's body that are read, for its text.
const REFUSAL_MAX_BYTES: usize = 16 * 1024;
/// Longest text of a refusal that is kept, in characters.
const REFUSAL_MAX_CHARACTERS: usize = 300;
/// Longest wait between two tries, but for what a server asks for.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Levels of JSON from outside that are kept as JSON. A record around them adds some, and all of it has to be read again.
pub(super) const DEPTH_MAX: usize = 64;

/// A client of its own pool of connections, for servers that are named in the configuration: they are reached directly, so that
/// what they are sent goes to them alone.
pub(super) fn client(connect: Duration) -> Result<reqwest::Client, reqwest::Error> {
    let direct = reqwest::Client::builder().no_proxy().redirect(redirect::Policy::none());
    direct.connect_timeout(connect).tcp_nodelay(true).build()
}

/// Why a URL of the configuration is not called. Neither repeats a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadUrl {
    /// Not absolute, of another scheme, or with parts that mean nothing here. What stands before an `@` is left out.
    #[error("{0:?} is not an http(s) URL such as http://127.0.0.1:8080/v1")]
    NotHttp(String),
    /// A URL is shown in logs and in the effective configuration, so it holds no secret.
    #[error("holds a user name or password, which a URL must not; put what authorises a call into {0}")]
    Userinfo(&'static str),
}

impl BadUrl {
    pub(super) fn not_http(text: &str) -> Self {
        Self::NotHttp(text.rsplit('@').next().unwrap_or_default().to_owned())
    }
}

/// An absolute `http` or `https` URL, and its host for the log. `instead`: the setting that holds what a user name and password
/// would be for.
pub(super) fn url(text: &str, instead: &'static str) -> Result<(Url, String), BadUrl> {
    let not_http = || BadUrl::not_http(text);
    let url: Url = text.parse().map_err(|_| not_http())?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(BadUrl::Userinfo(instead));
    }
    let host = host(&url).ok_or_else(not_http)?;
    let is_web = matches!(url.scheme(), "http" | "https") && url.fragment().is_none();
    if is_web { Ok((url, host)) } else { Err(not_http()) }
}

/// Host and port.
fn host(url: &Url) -> Option<String> {
    let host = url.host_str()?;
    Some(url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}")))
}

/// What went wrong with a call, in two ways.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// For all who see the turn, and for the model: a reason, without addresses, and without words of a server that may hold some.
    pub shown: String,
    /// For the log, which the operator alone reads.
    pub logged: String,
}

impl Trouble {
    pub(super) fn new(shown: impl Into<String>, logged: impl Into<String>) -> Self {
        Self { shown: shown.into(), logged: logged.into() }
    }

    /// What may be seen by all.
    pub(super) fn plain(text: impl Into<String>) -> Self {
        let shown = text.into();
        Self { logged: shown.clone(), shown }
    }

    /// Put in front of both.
    pub(super) fn of(self, who: &str) -> Self {
        let Self { shown, logged } = self;
        Self { shown: format!("{who} {shown}"), logged: format!("{who} {logged}") }
    }
}

/// What became of a request without an answer, as who called is told. What went wrong below HTTP may name hosts.
pub(super) fn lost(error: &reqwest::Error) -> Trouble {
    let what = if error.is_connect() { "cannot be reached" } else { "broke off" };
    Trouble::new(what, format!("{what}: {}", innermost(error)))
}

/// A status that is no success, with what was said about it, for the log alone.
pub(super) fn refused(status: StatusCode, text: &str) -> Trouble {
    let redirected = if status.is_redirection() { " (redirects are not followed)" } else { "" };
    let said = if text.is_empty() { String::new() } else { format!(": {text}") };
    let status = status.as_u16();
    Trouble::new(format!("answered {status}{redirected}"), format!("answered {status}{said}{redirected}"))
}

/// Why a body was not read to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Unread {
    /// It is longer than what is read.
    TooLong(usize),
    /// Nothing came for this long.
    Silence,
    /// The connection broke.
    Broken(Trouble),
}

impl Unread {
    pub(super) fn trouble(self) -> Trouble {
        match self {
            Self::TooLong(bytes) => Trouble::plain(format!("is over {bytes} bytes")),
            Self::Silence => Trouble::plain("stopped in the middle"),
            Self::Broken(trouble) => trouble,
        }
    }
}

/// Reads a body of up to `limit` bytes, of which some comes within each `silence`.
pub(super) async fn read_body(response: Response, limit: usize, silence: Duration) -> Result<Vec<u8>, Unread> {
    let mut pieces = response.bytes_stream();
    let mut body = Vec::new();
    loop {
        let piece = tokio::time::timeout(silence, pieces.next()).await.map_err(|_| Unread::Silence)?;
        let Some(piece) = piece else { return Ok(body) };
        let piece = piece.map_err(|error| Unread::Broken(lost(&error)))?;
        if body.len() + piece.len() > limit {
            return Err(Unread::TooLong(limit));
        }
        body.extend_from_slice(&piece);
    }
}

/// What a refusal says, cut short; nothing if that cannot be read.
pub(super) async fn refusal_text(response: Response, silence: Duration) -> String {
    let body = read_body(response, REFUSAL_MAX_BYTES, silence).await.unwrap_or_default();
    short(String::from_utf8_lossy(&body).trim(), REFUSAL_MAX_CHARACTERS)
}

/// The first characters of a text.
pub(super) fn short(text: &str, characters: usize) -> String {
    text.chars().take(characters).collect()
}

/// `Retry-After` in seconds; a date is not read, and too long a wait is cut.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(RETRY_AFTER_MAX))
}

/// The innermost cause: the outer ones repeat the URL.
pub(super) fn innermost(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// Pauses between tries, each twice the one before.
pub(super) struct Backoff {
    next: Duration,
}

impl Backoff {
    pub(super) fn from(first: Duration) -> Self {
        Self { next: first }
    }

    /// The next pause: not shorter than the other side asks for. `jitter` gives a random duration below its argument.
    pub(super) fn pause(&mut self, asked: Duration, jitter: impl FnOnce(Duration) -> Duration) -> Duration {
        let pause = self.next.max(asked);
        self.next = (self.next * 2).min(PAUSE_MAX);
        pause + jitter(pause / 4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_bound_and_honour_what_is_asked() {
        let mut backoff = Backoff::from(Duration::from_secs(8));
        let mut pause = |asked_s| backoff.pause(Duration::from_secs(asked_s), |_| Duration::ZERO).as_secs();
        assert_eq!([pause(0), pause(60), pause(0), pause(7), pause(0)], [8, 60, 30, 30, 30]);
        let longest = Backoff::from(Duration::from_secs(4)).pause(Duration::ZERO, |below| below);
        assert_eq!(longest, Duration::from_secs(5));
    }

    #[test]
    fn only_absolute_urls_of_the_web_are_called() {
        let called = |text: &str| url(text, "headers_env").map(|(_, host)| host);
        assert_eq!(called("http://[::1]:9/x?y=1").as_deref(), Ok("[::1]:9"));
        assert_eq!(called("https://tools.example/@a").as_deref(), Ok("tools.example"), "a path");
        for bad in ["", "tools.example", "/a", "ftp://h/", "file:///etc/passwd", "http://h/#x"] {
            assert_eq!(called(bad), Err(BadUrl::NotHttp(bad.to_owned())));
        }
        for secret in
            ["http://u:hush@h/", "http://hush@h/", "https://:hush@h/", "ftp://u:hush@h/", "hush@h:1", "http://u:hush@"]
        {
            let refused = called(secret).expect_err(secret).to_string();
            assert!(!refused.contains("hush"), "{refused}");
        }
        assert_eq!(called("http://u@h/"), Err(BadUrl::Userinfo("headers_env")));
    }
}
