//! What is checked before a node may use an etcd cluster: that it is there, that it is one, and that a majority stands.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::client::{Client, Repeat};
use super::error::{CallError, OpenError};
use super::wire;
use crate::StoreError;

/// The oldest etcd: the first whose gateway is under /v3.
const VERSION_MIN: (u64, u64) = (3, 4);
/// First pause between two tries; doubled each time.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// Longest pause between two tries.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(2);
/// Longest wait for one member's status.
const STATUS_LIMIT: Duration = Duration::from_secs(1);

/// What keeps a try from succeeding, and may pass.
enum Trouble {
    Unreachable(String),
    NoQuorum(String),
}

/// The id of the cluster, once a majority of it has answered. Tries until the patience is spent.
pub(super) async fn probe(client: &Client, patience: Duration) -> Result<u64, OpenError> {
    let started = Instant::now();
    let (mut tries, mut pause) = (0, RETRY_PAUSE);
    loop {
        tries += 1;
        let trouble = match attempt(client).await? {
            Ok(cluster) => return Ok(cluster),
            Err(trouble) => trouble,
        };
        if started.elapsed() + pause > patience {
            let place = client.target().place();
            return Err(match trouble {
                Trouble::Unreachable(detail) => OpenError::Unreachable { place, tries, detail },
                Trouble::NoQuorum(detail) => OpenError::NoQuorum { place, tries, detail },
            });
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY_PAUSE_MAX);
    }
}

async fn attempt(client: &Client) -> Result<Result<u64, Trouble>, OpenError> {
    let mut found: Option<(String, u64)> = None;
    let mut last = String::new();
    for (index, endpoint) in client.target().endpoints.iter().enumerate() {
        let deadline = Instant::now() + STATUS_LIMIT;
        let status = match client.ask(index, "/v3/maintenance/status", &json!({}), deadline).await {
            Ok(status) => status,
            Err(CallError::Store(StoreError::Damaged(detail))) => {
                return Err(OpenError::NotEtcd { place: endpoint.to_string(), detail });
            }
            Err(error) => {
                last = text_of(error);
                continue;
            }
        };
        let not_etcd = |detail: String| OpenError::NotEtcd { place: endpoint.to_string(), detail };
        let id = wire::unsigned(&status["header"], "cluster_id").map_err(|error| not_etcd(error.to_string()))?;
        check_version(&status).map_err(not_etcd)?;
        match &found {
            Some((one, first)) if *first != id => {
                let (one, other) = (one.clone(), endpoint.to_string());
                return Err(OpenError::Mixed { one, first: *first, other, second: id });
            }
            _ => found = Some((endpoint.to_string(), id)),
        }
    }
    let Some((_, id)) = found else { return Ok(Err(Trouble::Unreachable(last))) };
    // A read that a majority has to confirm.
    match client.call("/v3/kv/range", &json!({"key": wire::encode(b"/conch")}), Repeat::Harmless).await {
        Ok(_) => Ok(Ok(id)),
        Err(error) => Ok(Err(Trouble::NoQuorum(text_of(error)))),
    }
}

fn text_of(error: CallError) -> String {
    match error {
        CallError::NotSent(text) | CallError::Lost(text) | CallError::Refused(_, text) => text,
        CallError::Store(error) => error.to_string(),
    }
}

fn check_version(status: &Value) -> Result<(), String> {
    let text = status["version"].as_str().unwrap_or_default();
    let mut numbers = text.split('.').map(str::parse::<u64>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= VERSION_MIN => Ok(()),
        _ => Err(format!("its version is {text:?}")),
    }
}
