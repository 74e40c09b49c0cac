//! The example's agent in a real node.

use std::sync::Arc;
use std::time::Duration;

use conch_agent_example::Gardener;
use conch_server::config::{Config, StoreUrl};
use conch_server::serve;
use conch_server::turn::agents::{AgentLimits, Agents};
use serde_json::{Value, json};

struct Garden {
    url: String,
    token: String,
    http: reqwest::Client,
}

impl Garden {
    async fn call(&self, method: &str, path: &str, body: Value) -> Value {
        let method = method.parse().expect("a method");
        let call = self.http.request(method, format!("{}{path}", self.url)).bearer_auth(&self.token).json(&body);
        let answer = call.send().await.expect("an answer");
        assert!(answer.status().is_success(), "{path}: {answer:?}");
        answer.json().await.expect("JSON")
    }

    /// The log, once it has so many records of this kind.
    async fn log_with(&self, kind: &str, count: usize) -> Vec<Value> {
        let look = async {
            loop {
                let page = self.call("GET", "/v1/conversations/g/messages?after=0&limit=500", json!({})).await;
                let log = page["messages"].as_array().expect("messages").clone();
                if log.iter().filter(|record| record["kind"] == kind).count() >= count {
                    return log;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(40), look).await.unwrap_or_else(|_| panic!("waited for {kind}"))
    }

    async fn say(&self, key: &str, text: &str) {
        let message = json!({ "client_msg_id": key, "body": { "text": text } });
        self.call("POST", "/v1/conversations/g/messages", message).await;
    }
}

#[tokio::test]
async fn the_gardener_looks_remembers_and_asks_before_it_waters_what_is_dry() {
    let data = tempfile::tempdir().expect("a directory");
    let mut config = Config { store: StoreUrl::Sqlite(data.path().to_owned()), ..Config::default() };
    config.listen = "127.0.0.1:0".parse().expect("an address");
    config.ops_listen = config.listen;
    let (ready, is_ready) = tokio::sync::oneshot::channel();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let embed =
        |agents: Agents| agents.with("gardener".parse().expect("a name"), AgentLimits::default(), Arc::new(Gardener));
    let started = |started: serve::Started| {
        let _ = ready.send(started.listen);
    };
    let node = tokio::spawn(serve::run_with(config, embed, started, async move { drop(stopped.await) }));
    let url = format!("http://{}", is_ready.await.expect("it starts"));
    let http = reqwest::Client::builder().no_proxy().build().expect("a client");
    let login =
        http.post(format!("{url}/dev/login")).json(&json!({ "name": "Alice" })).send().await.expect("an answer");
    let token = login.json::<Value>().await.expect("JSON")["token"].as_str().expect("a token").to_owned();
    let garden = Garden { url, token, http };
    garden.call("PUT", "/v1/conversations/g", json!({ "kind": "session", "agent": "gardener" })).await;
    garden.say("1", "cactus").await;
    garden.log_with("turn.completed", 1).await;
    garden.say("2", "rose").await;
    let log = garden.log_with("turn.completed", 2).await;
    let texts: Vec<&str> = log
        .iter()
        .filter(|record| record["sender"] == "@agent:gardener")
        .filter_map(|record| record["body"]["text"].as_str())
        .collect();
    let expected = [
        "cactus has 6 mm of water now. I have watered 1 times here.",
        "rose has 4 mm of water now. I have watered 2 times here.",
    ];
    assert_eq!(texts, expected);
    garden.say("3", "fern").await;
    let log = garden.log_with("await.opened", 1).await;
    assert_eq!(log.last().expect("a record")["body"]["prompt"], "Water fern?");
    drop(stop);
    node.await.expect("no panic").expect("it ends in order");
}
