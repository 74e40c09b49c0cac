//! A few sessions for everything that is not the heartbeat and not an append.
//!
//! Invariants: at most as many sessions as the options say; a caller waits for one a bounded time and is then refused; a
//! session that failed to answer is never used again; a session in the pool is outside of any transaction.
//!
//! Deliberately absent: fairness beyond the semaphore's, and checks of idle sessions: a lost one tells so by itself.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::session::{Dialer, Session, not_dialled};
use crate::StoreError;

/// Longest wait for a session.
const WAIT_LIMIT: Duration = Duration::from_secs(3);

/// How the server plans what goes over these sessions, besides [`super::session::SETTINGS`].
const PLANNING: &[(&str, &str)] = &[
    // One plan for every page. Planning (16 partitions with three indexes each) takes longer than reading most of them.
    ("plan_cache_mode", "force_generic_plan"),
    // Everything is found by an index, whose order is the page's. Without statistics (a new database), the server takes a
    // conversation for a few records, and would fetch all of it and sort it for every page.
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    // Compiling takes longer than any page.
    ("jit", "off"),
];

pub(super) struct Pool {
    dialer: Arc<Dialer>,
    size: usize,
    permits: Arc<Semaphore>,
    idle: Mutex<Vec<Session>>,
}

impl Pool {
    pub(super) fn new(dialer: &Dialer, size: usize) -> Arc<Self> {
        let dialer = Arc::new(dialer.with(PLANNING));
        Arc::new(Self { dialer, size, permits: Arc::new(Semaphore::new(size)), idle: Mutex::default() })
    }

    /// Takes a session out, which comes back when it is dropped.
    pub(super) async fn take(self: &Arc<Self>) -> Result<Pooled, StoreError> {
        let permit = match tokio::time::timeout(WAIT_LIMIT, Arc::clone(&self.permits).acquire_owned()).await {
            Ok(Ok(permit)) => permit,
            _ => {
                let text = format!("all {} pooled connections to the database are in use", self.size);
                return Err(StoreError::Unavailable(text));
            }
        };
        loop {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let session = match idle {
                Some(session) if session.is_closed() => continue,
                Some(session) => session,
                None => self.dialer.dial("pool").await.map_err(|error| not_dialled(&self.dialer, error))?,
            };
            return Ok(Pooled { session: Some(session), pool: Arc::clone(self), _permit: permit });
        }
    }
}

/// A session out of the pool.
pub(super) struct Pooled {
    session: Option<Session>,
    pool: Arc<Pool>,
    _permit: OwnedSemaphorePermit,
}

impl std::ops::Deref for Pooled {
    type Target = Session;
    fn deref(&self) -> &Session {
        self.session.as_ref().expect("it is there until the drop")
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        if let Some(session) = self.session.take().filter(|session| !session.is_closed()) {
            self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner).push(session);
        }
    }
}
