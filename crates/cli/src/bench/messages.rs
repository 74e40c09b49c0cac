//! Messages into a channel at a rate, through all gateways in turn, each until it is acknowledged: so it is known exactly what
//! is in the log.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::task::{JoinHandle, JoinSet};

use super::histogram::Histogram;
use super::process;
use super::ramp::Growth;
use crate::client::{ClientError, HttpClient, Request};
use crate::exit::Failure;

/// A message that is not acknowledged within this is lost.
const SEND_MAX: Duration = Duration::from_secs(60);
/// Shortest and longest pause before the same is sent again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(2));
/// How often it is looked whether to stop while nothing is due.
const LOOK: Duration = Duration::from_millis(50);

/// What became of the messages.
#[derive(Debug, Default)]
pub(super) struct Sent {
    /// Their numbers in the log.
    pub(super) seqs: Vec<u64>,
    /// From the first attempt to the acknowledgement.
    pub(super) acks: Histogram,
    /// Answers that were refusals.
    pub(super) refused: u64,
    /// Attempts without an answer, after which the next gateway was tried.
    pub(super) moved: u64,
    /// Messages of which it is not known whether they are in the log.
    pub(super) lost: u64,
}

impl Sent {
    fn add(&mut self, other: Self) {
        self.seqs.extend(other.seqs);
        self.acks.merge(&other.acks);
        self.refused += other.refused;
        self.moved += other.moved;
        self.lost += other.lost;
    }
}

/// Whoever sends.
pub(super) struct Sender {
    stop: Arc<AtomicBool>,
    task: JoinHandle<Sent>,
}

impl Sender {
    /// Begins.
    pub(super) fn start(clients: Vec<HttpClient>, conversation: &str, growth: Growth, bytes: u32) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (until, conversation) = (Arc::clone(&stop), conversation.to_owned());
        let task = tokio::spawn(send(clients.into(), conversation, growth, bytes, until));
        Self { stop, task }
    }

    /// Stops, and waits until all that were sent are acknowledged.
    pub(super) async fn stop(self) -> Result<Sent, Failure> {
        self.stop.store(true, Ordering::Relaxed);
        let mut sent = self.task.await.map_err(|error| Failure::other(error.to_string()))?;
        sent.seqs.sort_unstable();
        Ok(sent)
    }
}

async fn send(
    clients: Arc<[HttpClient]>,
    conversation: String,
    growth: Growth,
    bytes: u32,
    stop: Arc<AtomicBool>,
) -> Sent {
    let (mut all, mut under_way) = (Sent::default(), JoinSet::new());
    let begun = tokio::time::Instant::now();
    'sending: for number in 0_u64.. {
        let Some(at_s) = growth.moment(number) else { break };
        let due = begun + Duration::from_secs_f64(at_s);
        while tokio::time::Instant::now() < due {
            if stop.load(Ordering::Relaxed) {
                break 'sending;
            }
            tokio::time::sleep_until(due.min(tokio::time::Instant::now() + LOOK)).await;
        }
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let first = usize::try_from(number).unwrap_or(0);
        under_way.spawn(one(Arc::clone(&clients), conversation.clone(), first, bytes));
        while let Some(done) = under_way.try_join_next() {
            all.add(done.unwrap_or_else(|_| Sent { lost: 1, ..Sent::default() }));
        }
    }
    while let Some(done) = under_way.join_next().await {
        all.add(done.unwrap_or_else(|_| Sent { lost: 1, ..Sent::default() }));
    }
    all
}

/// One message, until it is acknowledged; begins at the gateway `first`.
async fn one(clients: Arc<[HttpClient]>, conversation: String, first: usize, bytes: u32) -> Sent {
    let body = json!({
        "client_msg_id": uuid::Uuid::now_v7().to_string(),
        "body": {"sent_ns": process::shared_now_ns(), "text": "x".repeat(bytes as usize)},
    });
    let request = Request::post(&["v1", "conversations", &conversation, "messages"], body);
    let (mut sent, mut gateway, begun) = (Sent::default(), first, Instant::now());
    while begun.elapsed() < SEND_MAX {
        let mut pause = PAUSE.0;
        match clients[gateway % clients.len()].attempt(&request).await {
            Ok(answer) => {
                sent.acks.add(begun.elapsed());
                match answer.body["seq"].as_u64() {
                    Some(seq) => sent.seqs.push(seq),
                    None => sent.lost += 1,
                }
                return sent;
            }
            Err(ClientError::Unreachable(_)) => {
                sent.moved += 1;
                gateway += 1;
            }
            Err(ClientError::Refused(problem)) => {
                sent.refused += 1;
                let Some(retry) = problem.retry else { break };
                pause = Duration::from_millis(retry.after_ms).clamp(PAUSE.0, PAUSE.1);
            }
            Err(_) => sent.refused += 1,
        }
        tokio::time::sleep(pause).await;
    }
    sent.lost += 1;
    sent
}
