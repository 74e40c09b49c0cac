//! A thread with a runtime of its own, for what must not wait behind anything else: node leases.
//!
//! Invariants: nothing that fills the caller's runtime delays what runs here; work that was begun is finished, whether or
//! not its caller still waits, and work that was not is dropped with its caller; calls of one kind never keep those of
//! another out. Any executor may await an answer: it comes over a channel.
//!
//! Deliberately absent: waiting for room. A store that does not answer holds calls up for as long as they are bounded, and
//! whoever comes in vain is told so at once.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::StoreError;

/// Most calls of the heartbeat's under way: it gives one up after a beat, and a call ends by itself soon after.
pub(crate) const HEARTBEAT_MAX_CALLS: usize = 16;
/// Most other calls under way.
pub(crate) const MEMBERSHIP_MAX_CALLS: usize = 128;

type Job = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

/// What kind of call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// What keeps one's own lease.
    Heartbeat,
    /// What looks at, or acts on, the nodes.
    Membership,
}

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
    heartbeat: Arc<Semaphore>,
    membership: Arc<Semaphore>,
}

impl OwnThread {
    pub(crate) fn start(name: &str) -> std::io::Result<Self> {
        let (jobs, mut queue) = mpsc::channel::<Job>(HEARTBEAT_MAX_CALLS + MEMBERSHIP_MAX_CALLS);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            runtime.block_on(async move {
                while let Some(job) = queue.recv().await {
                    tokio::spawn(job());
                }
            });
        })?;
        let [heartbeat, membership] =
            [HEARTBEAT_MAX_CALLS, MEMBERSHIP_MAX_CALLS].map(|most| Arc::new(Semaphore::new(most)));
        Ok(Self { jobs, heartbeat, membership })
    }

    /// Runs `work` on the thread.
    pub(crate) async fn run<T, F, W>(&self, lane: Lane, effect: Effect, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce() -> W + Send + 'static,
        W: Future<Output = Result<T, StoreError>> + Send,
    {
        self.run_when(lane, effect, async { Ok(()) }, move |()| work()).await
    }

    /// Waits on the thread until it is `ready`, as long as the caller does, and then runs `work`, whether or not the caller
    /// still waits. An error of `ready` is the answer.
    pub(crate) async fn run_when<P, R, T, F, W>(
        &self,
        lane: Lane,
        effect: Effect,
        ready: R,
        work: F,
    ) -> Result<T, StoreError>
    where
        P: Send,
        R: Future<Output = Result<P, StoreError>> + Send + 'static,
        T: Send + 'static,
        F: FnOnce(P) -> W + Send + 'static,
        W: Future<Output = Result<T, StoreError>> + Send,
    {
        let room = match lane {
            Lane::Heartbeat => &self.heartbeat,
            Lane::Membership => &self.membership,
        };
        let Ok(permit) = Arc::clone(room).try_acquire_owned() else { return Err(no_room(lane)) };
        let (mut answer, answered) = oneshot::channel();
        let job: Job = Box::new(move || {
            Box::pin(async move {
                // Both branches may be dropped. Whoever has given up meanwhile has no use for what was not begun: a renewal
                // that is sent long after nobody counts on it, say.
                let ready = tokio::select! {
                    biased;
                    () = answer.closed() => return,
                    ready = ready => ready,
                };
                let result = match ready {
                    Ok(ready) => work(ready).await,
                    Err(error) => Err(error),
                };
                drop(permit);
                // The caller may be gone; what was done stands all the same.
                let _ = answer.send(result);
            })
        });
        // The queue has a place for each permit.
        if self.jobs.try_send(job).is_err() {
            return Err(StoreError::Unavailable("the thread of the node leases has ended".to_owned()));
        }
        answered.await.unwrap_or_else(|_| Err(effect.lost("the thread of the node leases ended meanwhile")))
    }
}

fn no_room(lane: Lane) -> StoreError {
    StoreError::Unavailable(match lane {
        Lane::Heartbeat => format!("{HEARTBEAT_MAX_CALLS} calls about the node's own lease are under way"),
        Lane::Membership => format!("{MEMBERSHIP_MAX_CALLS} calls about the nodes are under way"),
    })
}
