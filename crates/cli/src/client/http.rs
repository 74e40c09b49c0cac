//! One HTTP call, one attempt. Sending again is the outbox's business.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use reqwest::{Method, StatusCode, Url};
use serde_json::Value;

use super::{ClientError, Problem};

/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest wait for a whole answer; above the server's own longest wait (10 s).
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
/// Longest answer that is read, in bytes; far above the longest page of a server with the usual limits.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Most bytes of an answer that is no JSON to show.
const SHOWN_BYTES_MAX: usize = 200;

/// A server, and the token to show it.
#[derive(Clone)]
pub struct Endpoint {
    base: Url,
    token: Option<String>,
}

impl Endpoint {
    /// A server at `url` (`http://host:port`), and a token.
    ///
    /// # Errors
    /// A sentence that names the URL and what is wrong with it.
    pub fn new(url: &str, token: Option<String>) -> Result<Self, String> {
        if !url.contains("://") {
            return Err(format!("url {url:?}: must begin with http://, such as http://127.0.0.1:4000"));
        }
        let base = Url::parse(url).map_err(|error| format!("url {url:?}: {error}"))?;
        if base.scheme() != "http" {
            return Err(format!(
                "url {url:?}: only http:// is supported; put a TLS proxy on this side, or use loopback"
            ));
        }
        if base.host_str().is_none() || base.cannot_be_a_base() {
            return Err(format!("url {url:?}: has no host"));
        }
        Ok(Self { base, token })
    }

    /// The same server with another token.
    #[must_use]
    pub fn with_token(&self, token: impl Into<String>) -> Self {
        Self { base: self.base.clone(), token: Some(token.into()) }
    }

    /// The token.
    #[must_use]
    pub fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// `host:port`, to connect to.
    #[must_use]
    pub fn authority(&self) -> String {
        let host = self.base.host_str().unwrap_or_default();
        format!("{host}:{}", self.base.port_or_known_default().unwrap_or(80))
    }

    /// Where people see a conversation in a browser.
    #[must_use]
    pub fn console(&self, conversation: &str) -> String {
        format!("http://{}/#/c/{conversation}", self.authority())
    }

    /// True if the server is on this machine.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        let host = self.base.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

/// A request that may be sent any number of times.
#[derive(Debug, Clone)]
pub struct Request {
    method: Method,
    segments: Vec<String>,
    query: Vec<(&'static str, String)>,
    body: Option<Value>,
}

impl Request {
    fn new(method: Method, segments: &[&str]) -> Self {
        let segments = segments.iter().map(|segment| (*segment).to_owned()).collect();
        Self { method, segments, query: Vec::new(), body: None }
    }

    /// A read. Segments are the path's parts, escaped as needed.
    #[must_use]
    pub fn get(segments: &[&str]) -> Self {
        Self::new(Method::GET, segments)
    }

    /// A PUT with a JSON body.
    #[must_use]
    pub fn put(segments: &[&str], body: Value) -> Self {
        Self { body: Some(body), ..Self::new(Method::PUT, segments) }
    }

    /// A POST with a JSON body that carries its idempotency key.
    #[must_use]
    pub fn post(segments: &[&str], body: Value) -> Self {
        Self { body: Some(body), ..Self::new(Method::POST, segments) }
    }

    /// A POST without a body, which may be sent again.
    #[must_use]
    pub fn post_empty(segments: &[&str]) -> Self {
        Self::new(Method::POST, segments)
    }

    /// A DELETE.
    #[must_use]
    pub fn delete(segments: &[&str]) -> Self {
        Self::new(Method::DELETE, segments)
    }

    /// With a query parameter, if there is a value.
    #[must_use]
    pub fn with_query(mut self, name: &'static str, value: Option<String>) -> Self {
        self.query.extend(value.map(|value| (name, value)));
        self
    }
}

/// A good answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The HTTP status, 200 to 299.
    pub status: u16,
    /// The JSON, or null when there was none.
    pub body: Value,
}

/// Calls with one connection pool, to one server, or to several of a cluster of which one is asked at a time. Clones ask the
/// same one.
#[derive(Clone)]
pub struct HttpClient {
    http: reqwest::Client,
    /// At least one.
    endpoints: Arc<[Endpoint]>,
    /// Counts up; which one is asked is the rest by their number.
    current: Arc<AtomicUsize>,
}

impl HttpClient {
    /// A client for a server.
    ///
    /// # Errors
    /// If the HTTP library cannot start.
    pub fn new(endpoint: Endpoint) -> Result<Self, ClientError> {
        Self::of_any(endpoint, Vec::new())
    }

    /// A client for the first of these servers, and for the next one whenever the one that was asked cannot be reached.
    ///
    /// # Errors
    /// If the HTTP library cannot start.
    pub fn of_any(first: Endpoint, others: Vec<Endpoint>) -> Result<Self, ClientError> {
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .no_proxy()
            .build()
            .map_err(|error| ClientError::Unexpected(format!("the HTTP client could not be started: {error}")))?;
        let endpoints = std::iter::once(first).chain(others).collect();
        Ok(Self { http, endpoints, current: Arc::default() })
    }

    /// The server that is asked now.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        self.numbered(self.current.load(Ordering::Relaxed))
    }

    fn numbered(&self, number: usize) -> &Endpoint {
        &self.endpoints[number % self.endpoints.len()]
    }

    /// The one that was asked cannot be reached: the next one is asked from now on, unless somebody has gone on already.
    fn leave(&self, number: usize) {
        let next = number.wrapping_add(1);
        // Lost to somebody who was as quick: the same has happened.
        let _ = self.current.compare_exchange(number, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Notes who could not be reached.
    fn noted<T>(&self, number: usize, result: Result<T, ClientError>) -> Result<T, ClientError> {
        if let Err(ClientError::Unreachable(_)) = result {
            self.leave(number);
        }
        result
    }

    fn prepare(&self, endpoint: &Endpoint, request: &Request) -> Result<reqwest::RequestBuilder, ClientError> {
        let mut url = endpoint.base.clone();
        if request.segments.iter().any(|segment| segment == "." || segment == "..") {
            return Err(ClientError::Unexpected("the ids . and .. cannot be addressed in a URL".to_owned()));
        }
        match url.path_segments_mut() {
            Ok(mut path) => drop(path.pop_if_empty().extend(&request.segments)),
            Err(()) => return Err(ClientError::Unexpected("the URL cannot hold a path".to_owned())),
        }
        for (name, value) in &request.query {
            url.query_pairs_mut().append_pair(name, value);
        }
        let mut builder = self.http.request(request.method.clone(), url);
        if let Some(token) = &endpoint.token {
            builder = builder.bearer_auth(token);
        }
        Ok(match &request.body {
            Some(body) => builder.json(body),
            None => builder,
        })
    }

    /// Sends once.
    ///
    /// # Errors
    /// `Refused` for every problem document, with or without directive; `Unreachable` if no answer came;
    /// `Unexpected` for an answer that is neither.
    pub async fn attempt(&self, request: &Request) -> Result<Answer, ClientError> {
        let (status, bytes) = self.exchange(request).await?;
        let body = if bytes.is_empty() { Value::Null } else { json(&bytes)? };
        Ok(Answer { status: status.as_u16(), body })
    }

    /// The text of a good answer, whatever its type (metrics).
    ///
    /// # Errors
    /// As [`HttpClient::attempt`].
    pub async fn text(&self, request: &Request) -> Result<String, ClientError> {
        let (_, bytes) = self.exchange(request).await?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Sends once and reads a good answer whole.
    async fn exchange(&self, request: &Request) -> Result<(StatusCode, Vec<u8>), ClientError> {
        let number = self.current.load(Ordering::Relaxed);
        let result = self.exchange_with(self.numbered(number), request).await;
        self.noted(number, result)
    }

    async fn exchange_with(
        &self,
        endpoint: &Endpoint,
        request: &Request,
    ) -> Result<(StatusCode, Vec<u8>), ClientError> {
        let sent = self.prepare(endpoint, request)?.timeout(ANSWER_TIMEOUT).send().await;
        let response = sent.map_err(|error| unreachable(&error))?;
        let status = response.status();
        let bytes = read(response).await?;
        if status.is_success() { Ok((status, bytes)) } else { Err(refused(status, &bytes)) }
    }

    /// Opens an event stream; the answer's body is read by the caller.
    pub(super) async fn open_stream(
        &self,
        request: &Request,
        last_event_id: Option<&str>,
    ) -> Result<reqwest::Response, ClientError> {
        let number = self.current.load(Ordering::Relaxed);
        let result = self.open_stream_at(self.numbered(number), request, last_event_id).await;
        self.noted(number, result)
    }

    async fn open_stream_at(
        &self,
        endpoint: &Endpoint,
        request: &Request,
        last_event_id: Option<&str>,
    ) -> Result<reqwest::Response, ClientError> {
        let mut builder = self.prepare(endpoint, request)?.header("accept", "text/event-stream");
        if let Some(id) = last_event_id {
            builder = builder.header("last-event-id", id);
        }
        let opening = tokio::time::timeout(ANSWER_TIMEOUT, builder.send()).await;
        let response = match opening {
            Ok(sent) => sent.map_err(|error| unreachable(&error))?,
            Err(_) => return Err(ClientError::Unreachable("no answer to the stream's request".to_owned())),
        };
        let status = response.status();
        if status == StatusCode::OK {
            return Ok(response);
        }
        match tokio::time::timeout(ANSWER_TIMEOUT, read(response)).await {
            Ok(bytes) => Err(refused(status, &bytes?)),
            Err(_) => Err(ClientError::Unreachable("no end of the answer to the stream's request".to_owned())),
        }
    }
}

async fn read(response: reqwest::Response) -> Result<Vec<u8>, ClientError> {
    collect(response.bytes_stream(), ANSWER_BYTES_MAX).await
}

/// The whole of a body that is at most `bytes_max` long. A longer one is given up when that many have come, whatever
/// length was announced.
async fn collect(
    body: impl Stream<Item = Result<bytes::Bytes, reqwest::Error>>,
    bytes_max: usize,
) -> Result<Vec<u8>, ClientError> {
    let mut body = std::pin::pin!(body);
    let mut read = Vec::new();
    while let Some(part) = body.next().await {
        let part = part.map_err(|error| unreachable(&error))?;
        if part.len() > bytes_max - read.len() {
            return Err(ClientError::Unexpected(format!("it is longer than {bytes_max} bytes")));
        }
        read.extend_from_slice(&part);
    }
    Ok(read)
}

fn unreachable(error: &reqwest::Error) -> ClientError {
    // reqwest's own sentence names only the URL; the cause is at the end of the chain.
    let mut cause: &dyn std::error::Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    ClientError::Unreachable(format!("the server cannot be reached: {cause}"))
}

fn refused(status: StatusCode, bytes: &[u8]) -> ClientError {
    match serde_json::from_slice::<Problem>(bytes) {
        Ok(problem) => ClientError::Refused(Problem { status: status.as_u16(), ..problem }),
        Err(_) => ClientError::Unexpected(format!("status {status} with {}", shown(bytes))),
    }
}

fn json(bytes: &[u8]) -> Result<Value, ClientError> {
    serde_json::from_slice(bytes).map_err(|error| ClientError::Unexpected(format!("{error} in {}", shown(bytes))))
}

fn shown(bytes: &[u8]) -> String {
    let head = &bytes[..bytes.len().min(SHOWN_BYTES_MAX)];
    format!("{:?}", String::from_utf8_lossy(head))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_checked() {
        for (url, why) in [
            ("nonsense", "nonsense"),
            ("https://example.org", "only http://"),
            ("mailto:a@example.org", "must begin with http://"),
            ("localhost:4000", "must begin with http://"),
        ] {
            let Err(message) = Endpoint::new(url, None) else { panic!("{url} was taken") };
            assert!(message.contains(why), "{message}");
        }
    }

    #[test]
    fn loopback_is_recognised() {
        let cases = [
            ("http://127.0.0.1:4000", true),
            ("http://localhost", true),
            ("http://[::1]:4000/", true),
            ("http://192.0.2.1:4000", false),
            ("http://localhost.example.org", false),
        ];
        for (url, expected) in cases {
            assert_eq!(Endpoint::new(url, None).expect("valid").is_loopback(), expected, "{url}");
        }
    }

    #[tokio::test]
    async fn the_next_server_is_asked_when_one_cannot_be_reached() {
        // Bound and never accepted from: connections are refused once it is dropped.
        let gone = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let address = gone.local_addr().expect("it is bound");
        drop(gone);
        let endpoint = |text: &str| Endpoint::new(text, None).expect("valid");
        let first = endpoint(&format!("http://{address}"));
        let client = HttpClient::of_any(first, vec![endpoint("http://127.0.0.1:1/other")]).expect("starts");
        let lost = client.attempt(&Request::get(&["v1"])).await;
        assert!(matches!(lost, Err(ClientError::Unreachable(_))), "{lost:?}");
        assert_eq!(client.endpoint().authority(), "127.0.0.1:1");
        client.leave(0);
        assert_eq!(client.endpoint().authority(), "127.0.0.1:1", "somebody had gone on already");
        client.leave(1);
        assert_eq!(client.endpoint().authority(), address.to_string(), "and around");
    }

    #[tokio::test]
    async fn a_body_is_read_up_to_its_limit() {
        let body = |parts: &[&'static str]| {
            let parts: Vec<_> = parts.iter().map(|part| Ok(bytes::Bytes::from_static(part.as_bytes()))).collect();
            futures_util::stream::iter(parts)
        };
        assert_eq!(collect(body(&["ab", "", "cd"]), 4).await.expect("it fits"), b"abcd");
        let endless = futures_util::stream::repeat_with(|| Ok(bytes::Bytes::from_static(b"abc")));
        let error = collect(endless, 4).await.expect_err("it does not end");
        assert_eq!(error.to_string(), "unexpected answer: it is longer than 4 bytes");
    }

    #[test]
    fn path_segments_are_escaped() {
        let endpoint = Endpoint::new("http://127.0.0.1:1/base/", None).expect("valid");
        let client = HttpClient::new(endpoint).expect("starts");
        let request =
            Request::get(&["v1", "conversations", "a", "members", "x/y z?"]).with_query("after", Some("&".into()));
        let built = client.prepare(client.endpoint(), &request).expect("fits").build().expect("builds");
        assert_eq!(built.url().as_str(), "http://127.0.0.1:1/base/v1/conversations/a/members/x%2Fy%20z%3F?after=%26");
        assert!(client.prepare(client.endpoint(), &Request::get(&["v1", ".."])).is_err());
    }
}
