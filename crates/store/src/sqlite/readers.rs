//! The readers: a few threads, each with a connection that cannot write, fed from one bounded queue.
//!
//! Invariant: one job sees one snapshot, that of a commit; so it sees a batch whole or not at all.
//!
//! Deliberately absent: fairness between callers, and time limits. A read is bounded by its own limits.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::Shared;
use super::error::store_error;
use crate::StoreError;

/// Most jobs that wait for a reader; callers beyond it wait for a place.
const QUEUE_MAX_JOBS: usize = 256;

/// What a job sees of its snapshot.
pub(super) struct ReadTransaction<'a> {
    /// The connection, inside a transaction.
    pub(super) connection: &'a Connection,
    /// The store's clock, in milliseconds since 1970.
    pub(super) now_ms: i64,
    /// Which history this is.
    pub(super) shared: &'a Shared,
}

type Job = Box<dyn FnOnce(&Connection, &Shared) + Send>;

/// The way to the readers' threads.
pub(super) struct Readers {
    queue: Option<mpsc::Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
}

impl Readers {
    /// Starts a thread for each connection. They end when this is dropped.
    pub(super) fn start(connections: Vec<Connection>, shared: &Arc<Shared>) -> std::io::Result<Self> {
        let (queue, jobs) = mpsc::channel::<Job>(QUEUE_MAX_JOBS);
        let jobs = Arc::new(Mutex::new(jobs));
        let mut threads = Vec::new();
        for (number, connection) in connections.into_iter().enumerate() {
            let (jobs, shared) = (Arc::clone(&jobs), Arc::clone(shared));
            let thread = std::thread::Builder::new()
                .name(format!("sqlite-reader-{number}"))
                .spawn(move || serve(&connection, &shared, &jobs))?;
            threads.push(thread);
        }
        Ok(Self { queue: Some(queue), threads })
    }

    /// Runs `work` in a snapshot of its own.
    pub(super) async fn read<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&ReadTransaction<'_>) -> Result<T, StoreError> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let job: Job = Box::new(move |connection, shared| {
            let _ = reply.send(snapshot(connection, shared, work));
        });
        let gone = || StoreError::Unavailable("the SQLite readers have ended".to_owned());
        let queue = self.queue.as_ref().expect("the queue is there until the drop");
        queue.send(job).await.map_err(|_| gone())?;
        answer.await.unwrap_or_else(|_| Err(StoreError::Unavailable("a read panicked".to_owned())))
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        drop(self.queue.take());
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn serve(connection: &Connection, shared: &Shared, jobs: &Mutex<mpsc::Receiver<Job>>) {
    loop {
        // The one idle reader that holds the lock waits for a job; the others wait for the lock.
        let next = jobs.lock().unwrap_or_else(PoisonError::into_inner).blocking_recv();
        let Some(job) = next else { return };
        // A panic in one read must not cost the pool a thread; the transaction was ended by its guard.
        let _ = catch_unwind(AssertUnwindSafe(|| job(connection, shared)));
    }
}

fn snapshot<T>(
    connection: &Connection,
    shared: &Shared,
    work: impl FnOnce(&ReadTransaction<'_>) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    // Rolled back when dropped, which for a read is the same as a commit.
    let transaction = connection.unchecked_transaction().map_err(|error| store_error(&error))?;
    let clock = &shared.clock;
    work(&ReadTransaction { connection: &transaction, now_ms: clock(), shared })
}
