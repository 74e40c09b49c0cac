//! Requests that are asked again and again while something else goes on: whether the nodes say that they are alive, and how
//! fast somebody who opens the channel gets a page of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::task::JoinHandle;

use super::histogram::{Histogram, Percentiles};
use crate::client::{HttpClient, Request};
use crate::exit::Failure;

/// What was seen.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Probed {
    #[serde(flatten)]
    pub(super) took: Percentiles,
    /// Requests without a good answer.
    pub(super) failed: u64,
}

/// Whoever asks.
pub(super) struct Probe {
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<(Histogram, u64)>>,
}

impl Probe {
    /// Asks each of them at this interval.
    pub(super) fn start(clients: Vec<HttpClient>, request: &Request, every: Duration) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let task = |client| tokio::spawn(ask(client, request.clone(), every, Arc::clone(&stop)));
        let tasks = clients.into_iter().map(task).collect();
        Self { stop, tasks }
    }

    /// Stops.
    pub(super) async fn stop(self) -> Result<Probed, Failure> {
        self.stop.store(true, Ordering::Relaxed);
        let (mut all, mut failed) = (Histogram::default(), 0);
        for task in self.tasks {
            let (one, failures) = task.await.map_err(|error| Failure::other(error.to_string()))?;
            all.merge(&one);
            failed += failures;
        }
        Ok(Probed { took: all.percentiles(), failed })
    }
}

async fn ask(client: HttpClient, request: Request, every: Duration, stop: Arc<AtomicBool>) -> (Histogram, u64) {
    let (mut took, mut failed) = (Histogram::default(), 0);
    let mut due = tokio::time::Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let begun = Instant::now();
        match client.text(&request).await {
            Ok(_) => took.add(begun.elapsed()),
            Err(_) => failed += 1,
        }
        // An answer that was late makes no crowd.
        due = (due + every).max(tokio::time::Instant::now());
        tokio::time::sleep_until(due).await;
    }
    (took, failed)
}
