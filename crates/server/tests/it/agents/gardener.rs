//! The example of an embedded agent, in a real node.

use std::sync::Arc;

use conch_server::serve;
use conch_server::turn::agents::{AgentLimits, Agents};
use serde_json::json;
use tokio::sync::oneshot;

use super::{ended, kinds};
use crate::harness::{Client, config, until, within};

#[path = "../../../examples/gardener/agent.rs"]
mod agent;

#[tokio::test]
async fn the_gardener_looks_remembers_and_asks_before_it_waters_what_is_dry() {
    let data = tempfile::tempdir().expect("a directory");
    let mut config = config(data.path());
    config.auth.secret = None;
    let (ready, is_ready) = oneshot::channel();
    let (stop, stopped) = oneshot::channel::<()>();
    let embed = |agents: Agents| {
        agents.with("helper".parse().expect("a name"), AgentLimits::default(), Arc::new(agent::Gardener))
    };
    let started = |started: serve::Started| {
        // Nobody may wait for it any more.
        let _ = ready.send(started.listen);
    };
    let node = tokio::spawn(serve::run_with(config, embed, started, async move { drop(stopped.await) }));
    let address = within("the node to start", is_ready).await.expect("it starts");
    let login = Client::new(address, None).post("/dev/login", json!({ "name": "Alice" })).await.ok(200);
    let alice = Client::new(address, login["token"].as_str().map(str::to_owned));
    alice.session_with("g", "helper").await;
    alice.sent("g", "1", "cactus").await;
    ended(&alice, "g", 1).await;
    alice.sent("g", "2", "rose").await;
    let log = ended(&alice, "g", 2).await;
    let watered =
        |times, plant: &str| format!("{plant} has {} mm of water now. I have watered {times} times here.", plant.len());
    assert_eq!(super::answers(&log), [watered(1, "cactus"), watered(2, "rose")]);
    alice.sent("g", "3", "fern").await;
    let log = until("a question", async || {
        let log = alice.log("g").await;
        (kinds(&log).last() == Some(&"await.opened")).then_some(log)
    })
    .await;
    assert_eq!(log.last().expect("a record")["body"]["prompt"], "Water fern?");
    drop(stop);
    within("the node to end", node).await.expect("no panic").expect("it ends in order");
}
