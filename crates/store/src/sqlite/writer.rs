//! The one writer: a thread, a connection, a bounded queue. Jobs that wait together are committed together.
//!
//! Invariants:
//! - A job is answered after its transaction's commit is on disk, or with an error that says whether it may have happened.
//! - A job that fails changes nothing and harms no job that was merely committed with it.
//!
//! What a failed COMMIT means. SQLite writes the transaction's pages to the write-ahead log, the commit mark last, and
//! then syncs the log. If a write failed (disk full, quota, a bad block), the mark is not there: **definite**, nothing was
//! applied, and the next commit overwrites the torn frames. If the sync failed, the mark may be in the file although this
//! process ignores it, and a restart would honour it: **ambiguous**. After such a failure the kernel may have dropped the
//! unwritten pages and will report success the next time, so nothing that this process syncs can be trusted any more:
//! the writer refuses everything until the process is restarted, when the log is read back from the disk.
//!
//! Deliberately absent: retries and time limits. Cancel safety: once queued, a job runs to its end, whether or not its
//! caller still waits.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use rusqlite::{Connection, ErrorCode, ffi};
use tokio::sync::{mpsc, oneshot};

use super::error::store_error;
use super::{Shared, StoreClock};
use crate::StoreError;
use conch_core::ids::Generation;

/// Most jobs that wait for the writer; callers beyond it wait for a place.
const QUEUE_MAX_JOBS: usize = 1024;
/// Most jobs that are committed together.
const GROUP_MAX_JOBS: usize = 256;
/// A group takes no further job once it has this many rows, so that a commit and its sync stay short.
const GROUP_MAX_ROWS: usize = 8192;

/// What a job sees of its transaction.
pub(super) struct WriteTransaction<'a> {
    /// The connection, inside BEGIN IMMEDIATE.
    pub(super) connection: &'a Connection,
    /// The store's clock, read when the job began, in milliseconds since 1970.
    pub(super) now_ms: i64,
    /// The store's generation.
    pub(super) generation: Generation,
    /// How much may go wrong in it.
    pub(super) attempt: Attempt,
}

/// A job runs with others first, because that is fast; alone, if anything in the group failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attempt {
    /// An error of any part fails the group, which is run again one by one.
    Together,
    /// An error is this job's; one with independent parts isolates each.
    Alone,
}

trait Job: Send {
    fn rows(&self) -> usize;
    /// May run twice (in a group, then alone), each time in a fresh transaction.
    fn run(&mut self, transaction: &WriteTransaction<'_>) -> Result<(), StoreError>;
    /// Consumes the job; `Ok` means that its last run is on disk.
    fn answer(self: Box<Self>, committed: Result<(), StoreError>);
}

struct Work<T, F> {
    rows: usize,
    work: F,
    value: Option<T>,
    reply: oneshot::Sender<Result<T, StoreError>>,
}

impl<T, F> Job for Work<T, F>
where
    T: Send,
    F: FnMut(&WriteTransaction<'_>) -> Result<T, StoreError> + Send,
{
    fn rows(&self) -> usize {
        self.rows
    }

    fn run(&mut self, transaction: &WriteTransaction<'_>) -> Result<(), StoreError> {
        self.value = Some((self.work)(transaction)?);
        Ok(())
    }

    fn answer(self: Box<Self>, committed: Result<(), StoreError>) {
        let Self { value, reply, .. } = *self;
        // The caller may be gone; the write stands all the same.
        let _ = reply.send(committed.map(|()| value.expect("a committed job has run")));
    }
}

/// The way to the writer's thread.
pub(super) struct Writer {
    queue: Option<mpsc::Sender<Box<dyn Job>>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Starts the thread. It ends when the writer is dropped, with the jobs that were queued until then.
    pub(super) fn start(connection: Connection, shared: Arc<Shared>) -> std::io::Result<Self> {
        let (queue, jobs) = mpsc::channel(QUEUE_MAX_JOBS);
        let thread = std::thread::Builder::new()
            .name("sqlite-writer".to_owned())
            .spawn(move || Loop { connection, shared, jobs, distrust: None }.run())?;
        Ok(Self { queue: Some(queue), thread: Some(thread) })
    }

    /// Runs `work` in a transaction, perhaps with others', and answers when it is on disk. `rows` is about how many rows
    /// it writes.
    ///
    /// # Errors
    /// Whatever `work` fails with, definite; or how the commit failed.
    pub(super) async fn write<T, F>(&self, rows: usize, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&WriteTransaction<'_>) -> Result<T, StoreError> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let job = Box::new(Work { rows, work, value: None, reply });
        let queue = self.queue.as_ref().expect("the queue is there until the drop");
        if queue.send(job).await.is_err() {
            return Err(StoreError::Unavailable("the SQLite writer has ended".to_owned()));
        }
        answer.await.unwrap_or_else(|_| Err(StoreError::Ambiguous("the SQLite writer ended meanwhile".to_owned())))
    }
}

impl Drop for Writer {
    /// Waits for what is queued: the directory's lock must not be free while something may still be written.
    fn drop(&mut self) {
        drop(self.queue.take());
        if let Some(thread) = self.thread.take() {
            // Jobs' panics are caught; one of the loop itself was reported when it happened.
            let _ = thread.join();
        }
    }
}

struct Loop {
    connection: Connection,
    shared: Arc<Shared>,
    jobs: mpsc::Receiver<Box<dyn Job>>,
    /// Why nothing may be written any more.
    distrust: Option<String>,
}

impl Loop {
    fn run(mut self) {
        while let Some(first) = self.jobs.blocking_recv() {
            let group = self.gather(first);
            self.serve(group);
        }
    }

    /// The first job and those that wait behind it, within the limits.
    fn gather(&mut self, first: Box<dyn Job>) -> Vec<Box<dyn Job>> {
        let mut rows = first.rows();
        let mut group = vec![first];
        while group.len() < GROUP_MAX_JOBS && rows < GROUP_MAX_ROWS {
            let Ok(job) = self.jobs.try_recv() else { break };
            rows = rows.saturating_add(job.rows());
            group.push(job);
        }
        group
    }

    fn serve(&mut self, mut group: Vec<Box<dyn Job>>) {
        let attempt = if group.len() == 1 { Attempt::Alone } else { Attempt::Together };
        match self.transact(&mut group, attempt) {
            Ok(()) => group.into_iter().for_each(|job| job.answer(Ok(()))),
            Err(error) if attempt == Attempt::Alone || error.is_ambiguous() => {
                group.into_iter().for_each(|job| job.answer(Err(error.clone())));
            }
            Err(_) => {
                for job in group {
                    let mut alone = vec![job];
                    let result = self.transact(&mut alone, Attempt::Alone);
                    alone.into_iter().for_each(|job| job.answer(result.clone()));
                }
            }
        }
    }

    fn transact(&mut self, group: &mut [Box<dyn Job>], attempt: Attempt) -> Result<(), StoreError> {
        if let Some(reason) = &self.distrust {
            return Err(StoreError::Unavailable(reason.clone()));
        }
        self.connection.execute_batch("BEGIN IMMEDIATE").map_err(|error| store_error(&error))?;
        let clock: &StoreClock = &self.shared.clock;
        let connection = &self.connection;
        let generation = self.shared.identity.generation;
        // A panic of one job must not end the writer, with every later write, and leave a transaction open.
        let ran = catch_unwind(AssertUnwindSafe(|| {
            group
                .iter_mut()
                .try_for_each(|job| job.run(&WriteTransaction { connection, now_ms: clock(), generation, attempt }))
        }));
        let ran = ran.unwrap_or_else(|_| Err(StoreError::Unavailable("a write panicked; it was undone".to_owned())));
        let committed = ran.and_then(|()| self.commit());
        if committed.is_err() {
            self.roll_back();
        }
        committed
    }

    fn commit(&mut self) -> Result<(), StoreError> {
        let Err(error) = self.connection.execute_batch("COMMIT") else { return Ok(()) };
        if commit_is_definitely_void(&error) {
            return Err(StoreError::Full(format!("the commit could not be written: {error}")));
        }
        let reason = format!("a commit could not be synced to the disk ({error}); restart the process");
        tracing::error!(%error, "a commit could not be synced; nothing more is written until the process is restarted");
        self.distrust = Some(reason.clone());
        Err(StoreError::Ambiguous(reason))
    }

    /// SQLite has rolled back by itself after the graver errors; then there is nothing left to do.
    fn roll_back(&mut self) {
        if self.connection.is_autocommit() {
            return;
        }
        if let Err(error) = self.connection.execute_batch("ROLLBACK") {
            tracing::error!(%error, "a transaction could not be rolled back; nothing more is written");
            self.distrust = Some(format!("a transaction could not be rolled back ({error}); restart the process"));
        }
    }
}

/// True if the commit failed before its mark was in the log; see the module's header.
fn commit_is_definitely_void(error: &rusqlite::Error) -> bool {
    match error {
        rusqlite::Error::SqliteFailure(failure, _) => {
            failure.code == ErrorCode::DiskFull || failure.extended_code == ffi::SQLITE_IOERR_WRITE
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_failed_write_makes_a_commit_definitely_void() {
        let failure = |code| rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
        for (code, void) in [
            (ffi::SQLITE_FULL, true),
            (ffi::SQLITE_IOERR_WRITE, true),
            (ffi::SQLITE_IOERR_FSYNC, false),
            (ffi::SQLITE_IOERR_DIR_FSYNC, false),
            (ffi::SQLITE_IOERR_SHMMAP, false),
            (ffi::SQLITE_INTERNAL, false),
        ] {
            assert_eq!(commit_is_definitely_void(&failure(code)), void, "code {code}");
        }
    }
}
