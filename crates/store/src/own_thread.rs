//! A thread with a runtime of its own, for what must not wait behind anything else: node leases.
//!
//! Invariants: nothing that fills the caller's runtime delays what runs here; work that was begun is finished, whether or
//! not its caller still waits. Any executor may await an answer: it comes over a channel.

use std::future::Future;
use std::pin::Pin;

use tokio::sync::{mpsc, oneshot};

use crate::StoreError;

/// Most calls that wait for the thread.
const QUEUE_MAX_CALLS: usize = 256;

type Job = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

/// Whether a call whose answer was lost may have changed something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    Read,
    Write,
}

impl Effect {
    pub(crate) fn lost(self, what: &str) -> StoreError {
        match self {
            Self::Read => StoreError::Unavailable(what.to_owned()),
            Self::Write => StoreError::Ambiguous(what.to_owned()),
        }
    }
}

/// The way to the thread. It ends when the last of these is dropped, and with it what runs there.
#[derive(Clone)]
pub(crate) struct OwnThread {
    jobs: mpsc::Sender<Job>,
}

impl OwnThread {
    pub(crate) fn start(name: &str) -> std::io::Result<Self> {
        let (jobs, mut queue) = mpsc::channel::<Job>(QUEUE_MAX_CALLS);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            runtime.block_on(async move {
                while let Some(job) = queue.recv().await {
                    tokio::spawn(job());
                }
            });
        })?;
        Ok(Self { jobs })
    }

    /// Runs `work` on the thread.
    pub(crate) async fn run<T, F, W>(&self, effect: Effect, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce() -> W + Send + 'static,
        W: Future<Output = Result<T, StoreError>> + Send,
    {
        let (answer, answered) = oneshot::channel();
        let job: Job = Box::new(move || {
            Box::pin(async move {
                // The caller may be gone; what was done stands all the same.
                let _ = answer.send(work().await);
            })
        });
        if self.jobs.send(job).await.is_err() {
            return Err(StoreError::Unavailable("the thread of the node leases has ended".to_owned()));
        }
        answered.await.unwrap_or_else(|_| Err(effect.lost("the thread of the node leases ended meanwhile")))
    }
}
