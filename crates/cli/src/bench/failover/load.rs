//! Clients that send all the while: each in a conversation of its own, through whichever node answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::bench::histogram::Histogram;
use crate::client::{ClientError, HttpClient, Request};

/// Pause of a client between two sends.
const PAUSE: Duration = Duration::from_millis(20);
/// Pause before the next node is tried.
const NEXT_NODE: Duration = Duration::from_millis(5);
/// A send that is not acknowledged within this is lost, and counted as refused.
const SEND_MAX: Duration = Duration::from_secs(60);

/// What the clients saw.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// From the first attempt to the acknowledgement, over all nodes that were tried.
    pub(super) acks: Histogram,
    /// Answers that were a refusal, with or without a directive.
    pub(super) refused: u64,
    /// Attempts without an answer, after which another node was tried with the same key.
    pub(super) moved: u64,
}

/// A message with a key of its own.
pub(super) fn message(conversation: &str) -> Request {
    let body = json!({"client_msg_id": uuid::Uuid::now_v7().to_string(), "body": {"text": "failover"}});
    Request::post(&["v1", "conversations", conversation, "messages"], body)
}

/// Creates a conversation.
pub(super) async fn create(client: &HttpClient, conversation: &str) -> Result<(), ClientError> {
    client.attempt(&Request::put(&["v1", "conversations", conversation], json!({"kind": "channel"}))).await?;
    Ok(())
}

/// One client, until it is told to stop. Begins at the node `first`.
pub(super) async fn send_on(
    clients: Arc<[HttpClient]>,
    conversation: String,
    first: usize,
    stop: Arc<AtomicBool>,
) -> Seen {
    let (mut seen, mut node) = (Seen::default(), first);
    while !stop.load(Ordering::Relaxed) {
        let (request, begun) = (message(&conversation), Instant::now());
        loop {
            match clients[node % clients.len()].attempt(&request).await {
                Ok(_) => {
                    seen.acks.add(begun.elapsed());
                    break;
                }
                Err(ClientError::Unreachable(_)) if begun.elapsed() < SEND_MAX => {
                    seen.moved += 1;
                    node += 1;
                    tokio::time::sleep(NEXT_NODE).await;
                }
                Err(_) => {
                    seen.refused += 1;
                    if begun.elapsed() >= SEND_MAX {
                        break;
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
    seen
}
