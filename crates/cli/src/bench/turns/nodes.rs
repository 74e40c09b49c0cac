//! The nodes of this bench: one on a data directory, or several on a schema, with an agent that asks the bench's model.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::model::Order;
use crate::bench::server::{ServerUnderTest, free_address};
use crate::client::{Endpoint, HttpClient, Request};
use crate::exit::Failure;

/// The agent's name. It shows its model the newest message alone, so that what a turn reads is not its context.
pub(super) const AGENT: &str = "bench";
/// How long nodes may take to see each other.
const SEEN_MAX: Duration = Duration::from_secs(60);
/// How long a turn that only warms, or fails, may take.
const TURN_MAX: Duration = Duration::from_secs(60);
/// An owner looks once a second whether it is idle.
const LETTING_GO: Duration = Duration::from_millis(1_500);
/// How often either is asked for.
const POLL: Duration = Duration::from_millis(20);

/// One node, and the way to it.
pub(super) struct Node {
    server: ServerUnderTest,
    pub(super) client: HttpClient,
    name: String,
}

impl Node {
    /// Starts a node with this number on a store.
    pub(super) async fn start(beside: &Path, store: &str, model: SocketAddr, number: usize) -> Result<Self, Failure> {
        Self::start_with(beside, store, model, number, "").await
    }

    /// The same with further tables of its configuration.
    pub(super) async fn start_with(
        beside: &Path,
        store: &str,
        model: SocketAddr,
        number: usize,
        tables: &str,
    ) -> Result<Self, Failure> {
        let name = format!("bench-turns-{number}");
        let link = store.starts_with("postgres").then(free_address).transpose()?;
        let config = config(&name, model, link.as_deref()) + tables;
        let server = ServerUnderTest::start_configured(beside, store, &config).await?;
        let client = HttpClient::new(server.endpoint().clone())?;
        Ok(Self { server, client, name })
    }

    /// Its clients' address, with a token.
    pub(super) fn endpoint(&self) -> &Endpoint {
        self.server.endpoint()
    }

    /// Its process.
    pub(super) fn pid(&self) -> u32 {
        self.server.pid()
    }

    /// Asks whether it is alive; how long that took.
    pub(super) async fn alive(&self) -> Result<Duration, Failure> {
        let begun = Instant::now();
        self.server.operations().text(&Request::get(&["livez"])).await?;
        Ok(begun.elapsed())
    }

    /// Ends it in order.
    pub(super) async fn stop(self) -> Result<(), Failure> {
        self.server.stop().await
    }

    /// Makes a session of the bench's agent.
    pub(super) async fn session(&self, conversation: &str) -> Result<(), Failure> {
        let wanted = json!({"kind": "session", "agent": AGENT});
        self.client.attempt(&Request::put(&["v1", "conversations", conversation], wanted)).await?;
        Ok(())
    }

    /// Whether the store says that it owns a conversation.
    pub(super) async fn owns(&self, conversation: &str) -> Result<bool, Failure> {
        let answer = self.client.attempt(&Request::get(&["v1", "conversations", conversation])).await?;
        Ok(answer.body["owner"]["node"] == Value::String(self.name.clone()))
    }

    /// Waits until no node owns any of these. Who looks is traffic, too, so it looks only after it could have been let go.
    pub(super) async fn let_go(&self, conversations: &[&str]) -> Result<(), Failure> {
        let begun = Instant::now();
        while begun.elapsed() < TURN_MAX {
            tokio::time::sleep(LETTING_GO).await;
            let mut owned = false;
            for conversation in conversations {
                let answer = self.client.attempt(&Request::get(&["v1", "conversations", conversation])).await?;
                owned |= !answer.body["owner"].is_null();
            }
            if !owned {
                return Ok(());
            }
        }
        Err(Failure::other(format!("one of {conversations:?} still has an owner after {TURN_MAX:?}")))
    }

    /// Starts a turn; its number.
    pub(super) async fn order(&self, conversation: &str, order: Order) -> Result<u64, Failure> {
        self.say(conversation, &super::order_text(order)).await
    }

    /// Sends a message; its number.
    pub(super) async fn say(&self, conversation: &str, text: &str) -> Result<u64, Failure> {
        let body = json!({"client_msg_id": uuid::Uuid::now_v7().to_string(), "body": {"text": text}});
        let answer =
            self.client.attempt(&Request::post(&["v1", "conversations", conversation, "messages"], body)).await?;
        answer.body["seq"].as_u64().ok_or_else(|| Failure::other("a message was acknowledged without a seq"))
    }

    /// Waits until a turn has ended, however it did.
    pub(super) async fn end_of(&self, conversation: &str, turn: u64) -> Result<(), Failure> {
        let begun = Instant::now();
        let request = Request::get(&["v1", "conversations", conversation, "turns", &turn.to_string()]);
        while begun.elapsed() < TURN_MAX {
            let answer = self.client.attempt(&request).await?;
            if !matches!(answer.body["state"].as_str(), Some("queued" | "running" | "waiting")) {
                return Ok(());
            }
            tokio::time::sleep(POLL).await;
        }
        Err(Failure::other(format!("turn {turn} did not end within {TURN_MAX:?}")))
    }
}

/// Waits until all see each other.
pub(super) async fn seen(nodes: &[Node]) -> Result<(), Failure> {
    let begun = Instant::now();
    while begun.elapsed() < SEEN_MAX {
        let mut all = true;
        for node in nodes {
            let answer = node.client.attempt(&Request::get(&["v1", "nodes"])).await?;
            let rows = answer.body["nodes"].as_array().map(Vec::as_slice).unwrap_or_default();
            all &= nodes.iter().all(|other| rows.iter().any(|row| row["name"] == other.name.as_str()));
        }
        if all {
            return Ok(());
        }
        tokio::time::sleep(POLL).await;
    }
    Err(Failure::other(format!("the nodes did not see each other within {SEEN_MAX:?}")))
}

fn config(name: &str, model: SocketAddr, link: Option<&str>) -> String {
    let link = link.map_or_else(String::new, |link| format!("link_listen = \"{link}\"\n"));
    format!(
        r#"node = "{name}"
{link}
[rebalance]
per_s = 0

[agents.{AGENT}]
kind = "openai"
base_url = "http://{model}/v1"
model = "bench"
context_messages = 1

[[agents.{AGENT}.tools]]
name = "note"
description = "Takes a note."
url = "http://{model}/tool"
on_unknown = "retry"
parameters = {{ type = "object" }}
"#
    )
}
