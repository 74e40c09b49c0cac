//! HTTP: a client that behaves, and a raw one.

use std::net::SocketAddr;

use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::within;

/// A client with its token.
#[derive(Clone)]
pub(crate) struct Client {
    http: reqwest::Client,
    address: SocketAddr,
    pub(crate) token: Option<String>,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: reqwest::header::HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("a printable header"))
    }

    /// The document of a success.
    #[track_caller]
    pub(crate) fn ok(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        if self.text.is_empty() { Value::Null } else { self.json() }
    }

    /// A problem document with everything that it promises; gives its detail.
    #[track_caller]
    pub(crate) fn problem(self, status: u16, code: &str) -> String {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let document = self.json();
        assert_eq!(document["code"], code, "{self:?}");
        assert_eq!(document["status"], status, "{self:?}");
        assert_eq!(document["type"], format!("urn:conch:problem:{code}"));
        assert!(document["title"].is_string(), "{self:?}");
        let after = document["retry"]["after_ms"].as_u64();
        assert_eq!(after.is_some(), self.header("retry-after").is_some(), "{self:?}");
        if let (Some(after), Some(header)) = (after, self.header("retry-after")) {
            assert_eq!(header.parse::<u64>().expect("whole seconds"), after.div_ceil(1000).max(1));
            assert!(document["retry"]["budget_ms"].is_u64(), "{self:?}");
        }
        document["detail"].as_str().expect("a detail").to_owned()
    }
}

impl Client {
    pub(crate) fn new(address: SocketAddr, token: Option<String>) -> Self {
        let http = reqwest::Client::builder().no_proxy().build().expect("a client");
        Self { http, address, token }
    }

    pub(crate) fn request(&self, method: &str, path: &str) -> RequestBuilder {
        let method = Method::from_bytes(method.as_bytes()).expect("a method");
        let request = self.http.request(method, format!("http://{}{path}", self.address));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    pub(crate) async fn answer(request: RequestBuilder) -> Answer {
        within("an answer", async {
            let response = request.send().await.expect("the node answers");
            let (status, headers) = (response.status().as_u16(), response.headers().clone());
            Answer { status, headers, text: response.text().await.expect("a whole body") }
        })
        .await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        Self::answer(self.request("GET", path)).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        Self::answer(self.request("DELETE", path)).await
    }

    pub(crate) async fn call(&self, method: &str, path: &str, body: Value) -> Answer {
        Self::answer(self.request(method, path).json(&body)).await
    }

    /// A body that is JSON by its type alone.
    pub(crate) async fn call_raw(&self, method: &str, path: &str, body: impl Into<reqwest::Body>) -> Answer {
        Self::answer(self.request(method, path).header("content-type", "application/json").body(body)).await
    }

    pub(crate) async fn put(&self, path: &str, body: Value) -> Answer {
        self.call("PUT", path, body).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.call("POST", path, body).await
    }

    /// Makes a channel.
    pub(crate) async fn channel(&self, id: &str) {
        self.put(&format!("/v1/conversations/{id}"), json!({"kind": "channel"})).await.ok(201);
    }

    /// Makes a channel with members.
    pub(crate) async fn channel_of(&self, id: &str, members: &[&str]) {
        let body = json!({"kind": "channel", "members": members});
        self.put(&format!("/v1/conversations/{id}"), body).await.ok(201);
    }

    /// Makes a session with the demo agent.
    pub(crate) async fn session(&self, id: &str) {
        self.session_with(id, "demo").await;
    }

    /// Makes a session with this agent.
    pub(crate) async fn session_with(&self, id: &str, agent: &str) {
        let body = json!({"kind": "session", "agent": agent});
        self.put(&format!("/v1/conversations/{id}"), body).await.ok(201);
    }

    pub(crate) async fn send(&self, id: &str, key: &str, text: &str) -> Answer {
        let body = json!({"client_msg_id": key, "body": {"text": text}});
        self.post(&format!("/v1/conversations/{id}/messages"), body).await
    }

    /// Sends a message; gives its seq.
    #[track_caller]
    pub(crate) fn sent(&self, id: &str, key: &str, text: &str) -> impl Future<Output = u64> + use<> {
        let (client, id, key, text) = (self.clone(), id.to_owned(), key.to_owned(), text.to_owned());
        async move { client.send(&id, &key, &text).await.ok(201)["seq"].as_u64().expect("a seq") }
    }

    /// The whole log, page by page.
    pub(crate) async fn log(&self, id: &str) -> Vec<Value> {
        let mut records: Vec<Value> = Vec::new();
        loop {
            let after = records.last().map_or(0, |record| record["seq"].as_u64().expect("a seq"));
            let page = self.get(&format!("/v1/conversations/{id}/messages?after={after}&limit=500")).await.ok(200);
            records.extend(page["messages"].as_array().expect("messages").iter().cloned());
            if page["more"] == false {
                return records;
            }
        }
    }
}

/// Bytes that no client library would send.
pub(crate) struct Raw {
    stream: TcpStream,
}

impl Raw {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self { stream: TcpStream::connect(address).await.expect("the node accepts") }
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.expect("the node reads");
    }

    /// Everything until the node closes.
    pub(crate) async fn read_to_end(mut self) -> String {
        let mut bytes = Vec::new();
        within("the node to close", self.stream.read_to_end(&mut bytes)).await.expect("the node closes in order");
        String::from_utf8(bytes).expect("the head is ASCII, and the body UTF-8")
    }

    /// One request on a connection of its own; the status and everything that came.
    pub(crate) async fn exchange(address: SocketAddr, request: &[u8]) -> (u16, String) {
        let mut raw = Self::connect(address).await;
        raw.write(request).await;
        let text = raw.read_to_end().await;
        let status = text.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
        (status.unwrap_or_else(|| panic!("no status: {text:?}")), text)
    }
}
