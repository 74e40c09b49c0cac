//! A server that is scripted by a test: a model, a tool, a worker. It stalls, breaks, throttles and lies as it is told.
//!
//! Invariant: this exists with the feature `testing` alone, which no release has.
//!
//! Deliberately absent: any patience with a client that does not speak as this server's own do; it panics.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use futures_util::future::BoxFuture;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// A request, as it came.
#[derive(Debug, Clone)]
pub struct Request {
    /// How many came before it.
    pub number: usize,
    head: String,
    /// What it carried.
    pub body: Value,
}

impl Request {
    /// A header that it must have.
    ///
    /// # Panics
    /// If it has none of this name.
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        let line = self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then_some(value.trim())
        });
        line.unwrap_or_else(|| panic!("no {name} in {}", self.head))
    }

    /// Does it have this header?
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.head.lines().any(|line| line.split(':').next().is_some_and(|found| found.eq_ignore_ascii_case(name)))
    }
}

/// The way back. Dropped without an end, it breaks off.
pub struct Reply(TcpStream);

impl Reply {
    /// A whole answer.
    pub async fn whole(mut self, status: u16, headers: &str, body: &str) {
        let length = body.len();
        let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\nconnection: close\r\n{headers}\r\n");
        self.raw(&head).await;
        self.raw(body).await;
    }

    /// An answer that goes on.
    pub async fn begin(&mut self, kind: &str) {
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
        );
        self.raw(&head).await;
    }

    /// A piece of it.
    pub async fn more(&mut self, text: &str) {
        self.raw(&format!("{:x}\r\n{text}\r\n", text.len())).await;
    }

    /// Its end.
    pub async fn end(mut self) {
        self.raw("0\r\n\r\n").await;
    }

    /// Keeps the connection until the other side closes it.
    pub async fn stall(mut self) {
        let _ = self.0.read(&mut [0]).await;
    }

    /// A client may have gone away meanwhile.
    async fn raw(&mut self, text: &str) {
        let _ = self.0.write_all(text.as_bytes()).await;
    }
}

type Script = Arc<dyn Fn(Request, Reply) -> BoxFuture<'static, ()> + Send + Sync>;

/// See the module's description. Ends with its test.
pub struct Fake {
    /// Where it listens, on loopback.
    pub address: SocketAddr,
    seen: Arc<Mutex<Vec<Request>>>,
    serving: JoinHandle<()>,
}

impl Fake {
    /// Serves by this script; each request on its own.
    ///
    /// # Panics
    /// If there is no loopback.
    pub async fn start<F>(script: impl Fn(Request, Reply) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let script: Script = Arc::new(move |request, reply| Box::pin(script(request, reply)));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let address = listener.local_addr().expect("bound");
        let seen: Arc<Mutex<Vec<Request>>> = Arc::default();
        let requests = Arc::clone(&seen);
        let serving = tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.expect("a connection");
                let (requests, script) = (Arc::clone(&requests), Arc::clone(&script));
                tokio::spawn(async move {
                    let mut socket = socket;
                    let Some((head, body)) = read(&mut socket).await else { return };
                    let request = {
                        let mut seen = requests.lock().expect("not poisoned");
                        let number = seen.len();
                        seen.push(Request { number, head, body });
                        seen.last().expect("just pushed").clone()
                    };
                    script(request, Reply(socket)).await;
                });
            }
        });
        Self { address, seen, serving }
    }

    /// The URL of a path here.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// The requests so far.
    ///
    /// # Panics
    /// If a script has.
    #[must_use]
    pub fn seen(&self) -> Vec<Request> {
        self.seen.lock().expect("not poisoned").clone()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn read(socket: &mut TcpStream) -> Option<(String, Value)> {
    let mut request = Vec::new();
    let mut piece = vec![0; 64 * 1024];
    loop {
        let length = socket.read(&mut piece).await.ok().filter(|length| *length > 0)?;
        request.extend_from_slice(&piece[..length]);
        let Some(at) = request.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let head = String::from_utf8(request[..at].to_vec()).expect("a head is ASCII");
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
        let body = &request[at + 4..];
        if length == Some(body.len()) {
            return Some((head, serde_json::from_slice(body).expect("JSON")));
        }
    }
}

/// An event of a model's stream with this delta.
#[must_use]
pub fn chunk(delta: &Value, finish: Option<&str>) -> String {
    format!("data: {}\n\n", serde_json::json!({ "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }] }))
}
