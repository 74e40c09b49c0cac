//! The model that the agents of this bench ask: an OpenAI-compatible server that streams as many deltas as it is asked for,
//! each of which is the moment at which it was written to the socket. And the tool that it calls.
//!
//! Invariant: a delta is stamped when its turn to be written has come, however late that is, so that what the model itself is
//! late counts for nobody.

use std::fmt::Write;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::BytesMut;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use crate::bench::process;
use crate::exit::Failure;

/// Bytes of a stamp: microseconds in thirteen digits, and a space.
pub(super) const STAMP_BYTES: usize = 14;
/// Longest request that is read.
const REQUEST_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Most deltas in one write: a stamp must not be old when it goes out.
const TOGETHER_MAX: u32 = 100;
/// What begins an answer. It ends with the connection.
const STREAM_HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
/// What ends a stream of text.
const TEXT_END: &str =
    concat!("data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n", "data: [DONE]\n\n");
/// An answer that calls the tool.
const CALL: &str = concat!(
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"c\",\"type\":\"function\",",
    "\"function\":{\"name\":\"note\",\"arguments\":\"{}\"}}]},\"finish_reason\":null}]}\n\n",
    "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"tool_calls\"}]}\n\n",
    "data: [DONE]\n\n"
);
/// What the tool answers.
const NOTED: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 14\r\nconnection: close\r\n\r\n{\"noted\":true}";

/// What an input asks of the model, as JSON in its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Order {
    /// How many deltas.
    pub(super) deltas: u32,
    /// How many a second; 0: all at once.
    pub(super) rate: u32,
    /// Whether a tool is called first, and only then spoken.
    pub(super) first: First,
}

/// What a model does first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum First {
    /// It speaks.
    Speak,
    /// It calls the tool.
    Call,
}

impl Order {
    /// Deltas at a rate.
    pub(super) fn paced(deltas: u32, rate: u32) -> Self {
        Self { deltas, rate, first: First::Speak }
    }

    /// What a chat asks for: what its newest input says, or its next step where that has been called.
    fn of_chat(body: &[u8]) -> Option<Self> {
        let chat: Value = serde_json::from_slice(body).ok()?;
        let messages = chat["messages"].as_array()?;
        let input = messages.iter().rev().find(|message| message["role"] == "user")?;
        let order: Self = serde_json::from_str(input["content"].as_str()?).ok()?;
        let called = messages.last()?["role"] == "tool";
        Some(if called { Self { first: First::Speak, ..order } } else { order })
    }
}

/// A running model server; it ends when this value is dropped.
pub(super) struct Model {
    address: SocketAddr,
    serving: AbortHandle,
}

impl Model {
    pub(super) async fn start() -> Result<Self, Failure> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let serving = tokio::spawn(async move {
            // Ends its connections when it is dropped.
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => match accepted {
                        Ok((stream, _)) => drop(connections.spawn(async move {
                            // Whoever hangs up has what he wanted.
                            let _ = serve(stream).await;
                        })),
                        Err(_) => return,
                    },
                    Some(_) = connections.join_next() => {}
                }
            }
        });
        Ok(Self { address, serving: serving.abort_handle() })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (head, body) = read_request(&mut stream).await?;
    if head.starts_with("POST /tool ") {
        return stream.write_all(NOTED.as_bytes()).await;
    }
    match Order::of_chat(&body) {
        None => stream.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await,
        Some(Order { first: First::Call, .. }) => stream.write_all(format!("{STREAM_HEAD}{CALL}").as_bytes()).await,
        Some(order) => speak(&mut stream, order).await,
    }
}

async fn read_request(stream: &mut TcpStream) -> io::Result<(String, BytesMut)> {
    let mut bytes = BytesMut::with_capacity(4_096);
    let broken = || io::Error::new(io::ErrorKind::InvalidData, "no request");
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        if bytes.len() > REQUEST_BYTES_MAX || stream.read_buf(&mut bytes).await? == 0 {
            return Err(broken());
        }
    };
    let mut body = bytes.split_off(end);
    let head = String::from_utf8_lossy(&bytes).into_owned();
    let length = head.lines().filter_map(|line| line.split_once(':'));
    let mut length = length.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let length = length.find_map(|(_, value)| value.trim().parse::<usize>().ok());
    let length = length.filter(|length| *length <= REQUEST_BYTES_MAX).ok_or_else(broken)?;
    while body.len() < length {
        if stream.read_buf(&mut body).await? == 0 {
            return Err(broken());
        }
    }
    Ok((head, body))
}

async fn speak(stream: &mut TcpStream, order: Order) -> io::Result<()> {
    stream.write_all(STREAM_HEAD.as_bytes()).await?;
    let (begun, mut said, mut out) = (Instant::now(), 0, String::new());
    while said < order.deltas {
        let due = match order.rate {
            0 => order.deltas,
            rate => (begun.elapsed().as_secs_f64() * f64::from(rate)) as u32 + 1,
        };
        let due = due.min(order.deltas).min(said + TOGETHER_MAX);
        if due <= said {
            tokio::time::sleep_until(begun + Duration::from_secs_f64(f64::from(said) / f64::from(order.rate))).await;
            continue;
        }
        out.clear();
        for _ in said..due {
            let us = process::shared_now_ns() / 1_000;
            let line = r#"{"choices":[{"index":0,"delta":{"content":""#;
            write!(out, "data: {line}{us:013} \"}},\"finish_reason\":null}}]}}\n\n")
                .expect("a string takes everything");
        }
        stream.write_all(out.as_bytes()).await?;
        said = due;
    }
    stream.write_all(TEXT_END.as_bytes()).await?;
    stream.shutdown().await
}

/// How old the stamps of a text are. Anything else in it is no stamp, and does not count.
pub(super) fn ages(text: &str, now_ns: u64) -> impl Iterator<Item = Duration> {
    let stamps = text.as_bytes().chunks(STAMP_BYTES).filter_map(|stamp| {
        let digits = std::str::from_utf8(stamp).ok()?.trim_end();
        if digits.len() == STAMP_BYTES - 1 { digits.parse::<u64>().ok() } else { None }
    });
    stamps.map(move |us| Duration::from_micros((now_ns / 1_000).saturating_sub(us)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_chat_says_what_is_wanted() {
        let order = Order { deltas: 3, rate: 0, first: First::Call };
        let text = serde_json::to_string(&order).expect("numbers");
        let user = json!({"role": "user", "content": text});
        let chat = |messages: Value| json!({ "messages": messages }).to_string();
        assert_eq!(Order::of_chat(chat(json!([user])).as_bytes()), Some(order));
        let called = chat(json!([user, {"role": "assistant"}, {"role": "tool", "content": "{}"}]));
        assert_eq!(Order::of_chat(called.as_bytes()), Some(Order { first: First::Speak, ..order }));
        assert_eq!(Order::of_chat(chat(json!([{"role": "user", "content": "hello"}])).as_bytes()), None);
    }

    #[test]
    fn ages_are_those_of_whole_stamps() {
        let text = "0000000000010 0000000000012 00000";
        let ages: Vec<u128> = ages(text, 15_000).map(|age| age.as_micros()).collect();
        assert_eq!(ages, [5, 3]);
    }
}
