//! A reader of Server-Sent Events, as a browser reads them.

use std::collections::VecDeque;

use conch_core::wire::sse::{Decoded, Decoder};
use reqwest::Response;
use serde_json::Value;

use super::{Client, within};

/// An event with its position, if it carries one of its own.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    pub(crate) id: Option<String>,
    pub(crate) name: String,
    pub(crate) data: Value,
}

impl Event {
    pub(crate) fn seq(&self) -> u64 {
        self.data["seq"].as_u64().unwrap_or_else(|| panic!("no seq: {self:?}"))
    }
}

/// An open stream.
pub(crate) struct Stream {
    pub(crate) response: Response,
    decoder: Decoder,
    waiting: VecDeque<Event>,
    bytes: Vec<u8>,
    /// How much of the bytes was decoded.
    decoded: usize,
    pub(crate) retry: Option<u64>,
}

impl Stream {
    /// Opens a stream and checks its head.
    pub(crate) async fn open(client: &Client, path: &str) -> Self {
        Self::open_after(client, path, None).await
    }

    /// As a browser opens it again.
    pub(crate) async fn open_after(client: &Client, path: &str, last_event_id: Option<&str>) -> Self {
        let mut request = client.request("GET", path).header("accept", "text/event-stream");
        if let Some(id) = last_event_id {
            request = request.header("last-event-id", id);
        }
        Self::of(within("a stream", request.send()).await.expect("the node answers"))
    }

    pub(crate) fn of(response: Response) -> Self {
        assert_eq!(response.status(), 200, "{response:?}");
        let header = |name: &str| response.headers().get(name).expect("a header").to_str().expect("printable");
        assert_eq!(header("content-type"), "text/event-stream");
        assert_eq!(header("cache-control"), "no-cache");
        assert_eq!(header("x-accel-buffering"), "no");
        let decoder = Decoder::default();
        Self { response, decoder, waiting: VecDeque::new(), bytes: Vec::new(), decoded: 0, retry: None }
    }

    /// The next event; `None` at the end.
    pub(crate) async fn next_or_end(&mut self) -> Option<Event> {
        while self.waiting.is_empty() {
            match self.bytes[self.decoded..].windows(2).position(|pair| pair == b"\n\n") {
                Some(end) => self.decode(self.decoded + end + 2),
                None => self.read().await?,
            }
        }
        self.waiting.pop_front()
    }

    async fn read(&mut self) -> Option<()> {
        let chunk = within("an event", self.response.chunk()).await.ok().flatten()?;
        self.bytes.extend_from_slice(&chunk);
        Some(())
    }

    fn decode(&mut self, end: usize) {
        let block = &self.bytes[self.decoded..end];
        self.decoded = end;
        for decoded in self.decoder.push(block).expect("events are bounded") {
            match decoded {
                Decoded::Retry(after_ms) => self.retry = Some(after_ms),
                Decoded::Event { id, event, data } => {
                    let id = block.starts_with(b"id: ").then_some(id);
                    let data = serde_json::from_str(&data).expect("data is JSON");
                    self.waiting.push_back(Event { id, name: event, data });
                }
            }
        }
    }

    pub(crate) async fn next(&mut self) -> Event {
        self.next_or_end().await.expect("the stream goes on")
    }

    /// The next event that is not about presence.
    pub(crate) async fn next_real(&mut self) -> Event {
        loop {
            let event = self.next().await;
            if !event.name.starts_with("presence_") {
                return event;
            }
        }
    }

    /// Everything up to and with the first event of this name, presence left out.
    pub(crate) async fn up_to(&mut self, name: &str) -> Vec<Event> {
        let mut events = Vec::new();
        loop {
            let event = self.next_real().await;
            let found = event.name == name;
            events.push(event);
            if found {
                return events;
            }
        }
    }

    /// Everything until the node ends the stream.
    pub(crate) async fn rest(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(event) = self.next_or_end().await {
            events.push(event);
        }
        events
    }

    /// Reads until the text holds something; nothing is decoded.
    pub(crate) async fn raw_holds(&mut self, wanted: &str) {
        while !String::from_utf8_lossy(&self.bytes).contains(wanted) {
            self.read().await.expect("the stream goes on");
        }
    }
}
