//! Lifelines: session-level advisory locks, one a process, and the session that watches them.
//!
//! Invariants: a lifeline's lock is taken on a session that carries nothing else, so that it ends with the process (or by
//! force) and not otherwise; an observer keeps its number only as long as its session is unbroken.
//!
//! Deliberately absent: any conclusion. What a lost lifeline means is decided where the other evidence is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use conch_core::ids::Incarnation;
use tokio::sync::oneshot;

use super::error::CallError;
use super::lease_thread::LeaseThread;
use super::rows::{self, Id, millis};
use super::session::{Dialer, Session, not_dialled};
use crate::own_thread::Effect;
use crate::{HeldLifeline, Lifeline, Lifelines, LifelinesSeen, StoreError};

/// An idle lifeline's session is asked for a sign of life this often, so that one whose server is gone is noticed.
const PULSE_EVERY: Duration = Duration::from_secs(1);
/// Keys that are tried before a lifeline is given up; a key is random, so that one is free.
const KEY_TRIES: usize = 3;

pub(super) struct PostgresLifelines {
    thread: LeaseThread,
    observer: Arc<Observer>,
}

/// The session that looks at the locks.
struct Observer {
    session: tokio::sync::Mutex<Option<Arc<Session>>>,
    number: AtomicU64,
}

impl PostgresLifelines {
    pub(super) fn new(thread: LeaseThread) -> Self {
        let observer = Observer { session: tokio::sync::Mutex::new(None), number: AtomicU64::new(0) };
        Self { thread, observer: Arc::new(observer) }
    }

    /// Which of these are held; for lifelines that are listed in another store.
    pub(super) async fn observe_among(&self, keys: Vec<Lifeline>) -> Result<LifelinesSeen, StoreError> {
        self.look(Some(keys)).await
    }

    async fn look(&self, keys: Option<Vec<Lifeline>>) -> Result<LifelinesSeen, StoreError> {
        let (dialer, observer) = (Arc::clone(self.thread.dialer()), Arc::clone(&self.observer));
        self.thread.run(Effect::Read, move || async move { observer.observe(&dialer, keys).await }).await
    }

    /// Takes a lifeline on a session of its own, which ends when the answer is dropped. `None`: somebody holds it.
    pub(super) async fn take(&self, key: Lifeline) -> Result<Option<Box<dyn Send + Sync>>, StoreError> {
        let dialer = Arc::clone(self.thread.dialer());
        let take = move || async move {
            let session = dialer.dial("lifeline check").await.map_err(|error| not_dialled(&dialer, error))?;
            let row = session.first("SELECT pg_try_advisory_lock($1)", &[&key.0]).await.map_err(CallError::of_read)?;
            let taken = row.map(|row| rows::get(&row, 0, "pg_try_advisory_lock")).transpose()? == Some(true);
            Ok(taken.then(|| Box::new(session) as Box<dyn Send + Sync>))
        };
        self.thread.run(Effect::Read, take).await
    }
}

#[async_trait]
impl Lifelines for PostgresLifelines {
    async fn hold(&self) -> Result<HeldLifeline, StoreError> {
        let dialer = Arc::clone(self.thread.dialer());
        self.thread.run(Effect::Read, move || async move { hold(&dialer).await }).await
    }

    async fn observe(&self) -> Result<LifelinesSeen, StoreError> {
        self.look(None).await
    }
}

async fn hold(dialer: &Dialer) -> Result<HeldLifeline, StoreError> {
    let dialled = dialer.dial_watched("lifeline").await;
    let (session, driver) = dialled.map_err(|error| not_dialled(dialer, error))?;
    let session = Arc::new(session);
    let key = lock(&session).await.map_err(CallError::of_read)?;
    let (held, lost) = oneshot::channel();
    let watched = Arc::downgrade(&session);
    tokio::spawn(async move {
        // Ends with the session, however that ended; the receiver sees it by the sender's end.
        let _ends_with_the_session = held;
        let _ = driver.await;
    });
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(PULSE_EVERY).await;
            let Some(session) = watched.upgrade().filter(|session| !session.is_closed()) else { return };
            if session.first("SELECT 1", &[]).await.is_err() {
                session.give_up();
                return;
            }
        }
    });
    Ok(HeldLifeline { key, lost, session: Box::new(session) })
}

async fn lock(session: &Session) -> Result<Lifeline, CallError> {
    for _ in 0..KEY_TRIES {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).map_err(|error| StoreError::Unavailable(format!("no randomness: {error}")))?;
        let key = i64::from_le_bytes(bytes);
        let row = session.first("SELECT pg_try_advisory_lock($1)", &[&key]).await?;
        if row.map(|row| rows::get(&row, 0, "pg_try_advisory_lock")).transpose()? == Some(true) {
            return Ok(Lifeline(key));
        }
    }
    Err(StoreError::Unavailable(format!("{KEY_TRIES} random lifelines were all taken")).into())
}

impl Observer {
    async fn observe(&self, dialer: &Dialer, among: Option<Vec<Lifeline>>) -> Result<LifelinesSeen, StoreError> {
        let mut held = self.session.lock().await;
        let session = match held.as_ref().filter(|session| !session.is_closed()) {
            Some(session) => Arc::clone(session),
            None => {
                let dialled = dialer.dial("observer").await;
                let session = Arc::new(dialled.map_err(|error| not_dialled(dialer, error))?);
                self.number.fetch_add(1, Ordering::Relaxed);
                *held = Some(Arc::clone(&session));
                session
            }
        };
        let observer = self.number.load(Ordering::Relaxed);
        // Locks on two 32-bit halves of one key; those of other programs in the database are not ours to count.
        let sql = "SELECT k.key FROM (SELECT (classid::bigint << 32) | objid::bigint AS key FROM pg_locks
                     WHERE locktype = 'advisory' AND objsubid = 1 AND granted AND mode = 'ExclusiveLock'
                       AND database = (SELECT oid FROM pg_database WHERE datname = current_database())) k
                   WHERE CASE WHEN $1::bigint[] IS NULL THEN EXISTS (SELECT 1 FROM node_lease n WHERE n.lifeline = k.key)
                     ELSE k.key = ANY($1) END ORDER BY k.key";
        let among = among.map(|keys| keys.into_iter().map(|key| key.0).collect::<Vec<i64>>());
        let found = session.query(sql, &[&among]).await.map_err(CallError::of_read)?;
        let keys = found.iter().map(|row| rows::get(row, 0, "pg_locks").map(Lifeline));
        Ok(LifelinesSeen { observer, held: keys.collect::<Result<_, _>>()? })
    }
}

pub(super) async fn replace(
    session: &Session,
    me: Incarnation,
    ttl: Duration,
    lifeline: Lifeline,
) -> Result<Option<u64>, CallError> {
    let sql =
        "UPDATE node_lease SET expires_at = clock_timestamp() + $2::bigint * interval '1 millisecond', beat = beat + 1,
               lifeline = $3 WHERE incarnation = $1 RETURNING beat";
    let row = session.first(sql, &[&Id::from(me), &millis(ttl), &lifeline.0]).await?;
    Ok(row.map(|row| rows::count(&row, 0, "node_lease.beat")).transpose()?)
}

/// Deletes the row if it is as it was seen and nobody holds its lock: the lock is taken for the length of the statement.
pub(super) async fn declare_process_dead(
    session: &Session,
    dead: Incarnation,
    seen_beat: u64,
    seen_lifeline: Lifeline,
) -> Result<bool, CallError> {
    let Ok(seen_beat) = i64::try_from(seen_beat) else { return Ok(false) };
    let sql = "WITH x AS MATERIALIZED (SELECT incarnation, lifeline FROM node_lease
                 WHERE incarnation = $1 AND beat = $2 AND lifeline = $3),
               l AS MATERIALIZED (SELECT incarnation FROM x WHERE pg_try_advisory_xact_lock(lifeline))
               DELETE FROM node_lease n USING l WHERE n.incarnation = l.incarnation AND n.beat = $2 AND n.lifeline = $3";
    Ok(session.execute(sql, &[&Id::from(dead), &seen_beat, &seen_lifeline.0]).await? > 0)
}
