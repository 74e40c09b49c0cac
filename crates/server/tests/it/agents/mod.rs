//! Agents that call out: against models, tools and workers that are scripted.

mod gardener;
mod model;
mod rollout;
mod shown;
mod tools;
mod worker;

use conch_server::config::agents::{Agent, FromEnv};
use conch_server::config::{Config, Secret};
use serde_json::Value;

use crate::harness::{Client, Node, until};

/// The secret of the workers.
const WORKER_SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// Adds an agent named `helper`, as a file would say it.
pub(crate) fn helper(config: &mut Config, settings: &str) {
    let mut agent: Agent = toml::from_str(settings).unwrap_or_else(|error| panic!("{error}: {settings}"));
    if agent.secret_env.is_some() {
        agent.secret_env = Some(FromEnv::with_value("WORKER_SECRET", Secret::new(WORKER_SECRET)));
    }
    config.agents.0.insert("helper".parse().expect("a name"), agent);
}

/// Runs one turn and gives its log.
async fn turn(node: &Node) -> Vec<Value> {
    let alice = node.client("alice");
    alice.session_with("s", "helper").await;
    alice.sent("s", "1", "hello").await;
    ended(&alice, "s", 1).await
}

/// The log once a turn has ended so often, in whatever way.
async fn ended(client: &Client, id: &str, count: usize) -> Vec<Value> {
    until(&format!("{count} ends"), async || {
        let log = client.log(id).await;
        let is_end = |record: &&Value| {
            ["turn.completed", "turn.failed", "turn.cancelled"].contains(&record["kind"].as_str().unwrap_or_default())
        };
        (log.iter().filter(is_end).count() >= count).then_some(log)
    })
    .await
}

fn kinds(log: &[Value]) -> Vec<&str> {
    log.iter().map(|record| record["kind"].as_str().expect("a kind")).collect()
}

/// The bodies of this kind.
fn bodies<'a>(log: &'a [Value], kind: &str) -> Vec<&'a Value> {
    log.iter().filter(|record| record["kind"] == kind).map(|record| &record["body"]).collect()
}

/// Why the last turn failed: reason and detail.
fn failure(log: &[Value]) -> (String, String) {
    let failed = bodies(log, "turn.failed");
    let last = failed.last().unwrap_or_else(|| panic!("no failure in {log:?}"));
    let text = |name: &str| last[name].as_str().unwrap_or_default().to_owned();
    (text("reason"), text("detail"))
}

/// What the agent answered, in order.
fn answers(log: &[Value]) -> Vec<&str> {
    let is_answer = |record: &&Value| record["sender"] == "@agent:helper";
    log.iter().filter(is_answer).filter_map(|record| record["body"]["text"].as_str()).collect()
}
