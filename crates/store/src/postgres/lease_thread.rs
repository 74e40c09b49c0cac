//! The thread on which node leases are kept: its own runtime, its own connections.
//!
//! Invariants: nothing that fills the caller's runtime or the pool delays a renewal; a renewal shares its connection only
//! with other calls about its own row, and never waits behind a look at the other nodes; a lost connection is dialled
//! again at the next call. Any executor may await an answer: it comes over a channel.
//!
//! Deliberately absent: retries. The heartbeat decides what a failed beat means.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::error::CallError;
use super::session::{Dialer, Session, Slot};
use crate::StoreError;

/// Most calls that wait for the thread.
const QUEUE_MAX_CALLS: usize = 256;

type Job = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

/// Which connection a call goes over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    /// What keeps one's own lease.
    Heartbeat,
    /// What looks at, or acts on, the nodes.
    Membership,
}

/// Whether a call whose answer was lost may have changed something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    Read,
    Write,
}

impl Effect {
    pub(super) fn judge(self, error: CallError) -> StoreError {
        match self {
            Self::Read => error.of_read(),
            Self::Write => error.of_write(),
        }
    }

    pub(super) fn lost(self, what: &str) -> StoreError {
        match self {
            Self::Read => StoreError::Unavailable(what.to_owned()),
            Self::Write => StoreError::Ambiguous(what.to_owned()),
        }
    }
}

/// The way to the thread. It ends when the last of these is dropped, and with it its connections.
#[derive(Clone)]
pub(super) struct LeaseThread {
    jobs: mpsc::Sender<Job>,
    dialer: Arc<Dialer>,
    heartbeat: Arc<Slot>,
    membership: Arc<Slot>,
}

impl LeaseThread {
    pub(super) fn start(dialer: Arc<Dialer>) -> std::io::Result<Self> {
        let (jobs, mut queue) = mpsc::channel::<Job>(QUEUE_MAX_CALLS);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("postgres-leases".to_owned()).spawn(move || {
            runtime.block_on(async move {
                while let Some(job) = queue.recv().await {
                    tokio::spawn(job());
                }
            });
        })?;
        let (heartbeat, membership) = (Arc::new(Slot::new("heartbeat")), Arc::new(Slot::new("membership")));
        Ok(Self { jobs, dialer, heartbeat, membership })
    }

    pub(super) fn dialer(&self) -> &Arc<Dialer> {
        &self.dialer
    }

    /// Runs `work` on a lane's session, whether or not the caller still waits.
    pub(super) async fn call<T, F, W>(&self, lane: Lane, effect: Effect, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(Arc<Session>) -> W + Send + 'static,
        W: Future<Output = Result<T, CallError>> + Send,
    {
        let slot = Arc::clone(match lane {
            Lane::Heartbeat => &self.heartbeat,
            Lane::Membership => &self.membership,
        });
        let dialer = Arc::clone(&self.dialer);
        self.run(effect, move || async move {
            let session = slot.get(&dialer).await?;
            work(session).await.map_err(|error| effect.judge(error))
        })
        .await
    }

    /// Runs `work` on the thread.
    pub(super) async fn run<T, F, W>(&self, effect: Effect, work: F) -> Result<T, StoreError>
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
