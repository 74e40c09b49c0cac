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
/// In each line of releases the first patch in which a leader that was stopped or stuck, and has been replaced, no longer ends
/// leases by its old clock when it wakes up: etcd-io/etcd#15247. Later lines have had it from the start.
const STALE_LEADER_MENDED: [(u64, u64, u64); 2] = [(3, 4, 31), (3, 5, 13)];
/// First pause between two tries; doubled each time.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// Longest pause between two tries.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(2);
/// Longest wait for one member's status.
const STATUS_LIMIT: Duration = Duration::from_secs(1);

/// gRPC's number for one call too many.
const TOO_MANY: i64 = 8;
/// gRPC's numbers for whoever has not said who he is, or may not do this.
const NOT_AUTHENTICATED: [i64; 2] = [7, 16];
/// What etcd says, as an invalid argument, where its authentication is enabled.
const NO_USER_NAME: &str = "user name is empty";

/// What keeps a try from succeeding, and may pass.
enum Trouble {
    Unreachable(String),
    NoQuorum(String),
    Refused(String),
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
        let left = patience.saturating_sub(started.elapsed());
        if left.is_zero() {
            let place = client.target().place();
            return Err(match trouble {
                Trouble::Unreachable(detail) => OpenError::Unreachable { place, tries, detail },
                Trouble::NoQuorum(detail) => OpenError::NoQuorum { place, tries, detail },
                Trouble::Refused(detail) => OpenError::Refused { place, detail },
            });
        }
        // The last try is made when the patience ends.
        tokio::time::sleep(pause.min(left)).await;
        pause = (pause * 2).min(RETRY_PAUSE_MAX);
    }
}

async fn attempt(client: &Client) -> Result<Result<u64, Trouble>, OpenError> {
    let mut found: Option<(String, u64)> = None;
    let (mut last, mut aged) = (String::new(), None);
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
        let version = check_version(&status).map_err(not_etcd)?;
        if stale_leader_ends_leases(version) {
            aged = status["version"].as_str().map(str::to_owned);
        }
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
        Ok(_) => {
            if let Some(version) = aged {
                tracing::warn!(
                    version,
                    "a leader of this etcd that was stuck can end every node's lease when it wakes up; 3.4.31, 3.5.13 and 3.6 do not"
                );
            }
            Ok(Ok(id))
        }
        Err(error) => of_read(client, error).map(Err),
    }
}

/// Why the read failed: only what may pass by itself is tried again, and only silence is a missing quorum.
fn of_read(client: &Client, error: CallError) -> Result<Trouble, OpenError> {
    let place = client.target().place();
    match error {
        CallError::Refused(TOO_MANY, text) => Ok(Trouble::Refused(text)),
        error if error.may_pass() => Ok(Trouble::NoQuorum(text_of(error))),
        CallError::Refused(code, mut detail) => {
            if NOT_AUTHENTICATED.contains(&code) || detail.contains(NO_USER_NAME) {
                detail.push_str(
                    "; its authentication is enabled, and names and passwords are not supported: disable it (etcdctl auth \
                     disable), and keep its port private",
                );
            }
            Err(OpenError::Refused { place, detail })
        }
        error => Err(OpenError::Failed { place, detail: text_of(error) }),
    }
}

fn text_of(error: CallError) -> String {
    match error {
        CallError::NotSent(text) | CallError::Lost(text) | CallError::Refused(_, text) => text,
        CallError::Store(error) => error.to_string(),
    }
}

/// A member's version, if it is one that can be used.
fn check_version(status: &Value) -> Result<(u64, u64, u64), String> {
    let text = status["version"].as_str().unwrap_or_default();
    let mut numbers = text.split(['.', '-', '+']).map(|part| part.parse::<u64>().ok());
    let mut next = || numbers.next().flatten();
    match (next(), next()) {
        (Some(major), Some(minor)) if (major, minor) >= VERSION_MIN => Ok((major, minor, next().unwrap_or(0))),
        _ => Err(format!("its version is {text:?}")),
    }
}

fn stale_leader_ends_leases((major, minor, patch): (u64, u64, u64)) -> bool {
    STALE_LEADER_MENDED.iter().any(|mended| (major, minor) == (mended.0, mended.1) && patch < mended.2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_those_whose_stale_leader_ends_leases_are_known() {
        let of = |text: &str| check_version(&json!({"version": text}));
        for (text, version, warned) in [
            ("3.4.23", (3, 4, 23), true),
            ("3.4.31", (3, 4, 31), false),
            ("3.5.12", (3, 5, 12), true),
            ("3.5.13", (3, 5, 13), false),
            ("3.5.0-rc.1", (3, 5, 0), true),
            ("3.6.0-alpha.0", (3, 6, 0), false),
            ("4.0", (4, 0, 0), false),
        ] {
            assert_eq!(of(text), Ok(version));
            assert_eq!(stale_leader_ends_leases(version), warned, "{text}");
        }
        for text in ["3.3.27", "2.3.8", "3", "", "new"] {
            assert_eq!(of(text), Err(format!("its version is {text:?}")));
        }
    }
}
