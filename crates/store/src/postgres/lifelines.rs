//! Lifelines: session-level advisory locks, one a process, and the session that watches them.
//!
//! Invariants: a lifeline's lock is taken on a session that carries nothing else, so that it ends with the process (or by
//! force) and not otherwise; an observer keeps its number only as long as its session is unbroken.
//!
//! Deliberately absent: any conclusion. What a lost lifeline means is decided where the other evidence is.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use conch_core::ids::Incarnation;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::error::CallError;
use super::lease_thread::LeaseThread;
use super::rows::{self, Id, millis};
use super::session::{Session, Slot, not_dialled};
use crate::own_thread::Lane;
use crate::{HeldLifeline, Lifeline, Lifelines, LifelinesSeen, StoreError};

/// An idle lifeline's session is asked for a sign of life this often, so that one whose server is gone is noticed.
const PULSE_EVERY: Duration = Duration::from_secs(1);
/// Keys that are tried before a lifeline is given up; a key is random, so that one is free.
const KEY_TRIES: usize = 3;

pub(super) struct PostgresLifelines {
    thread: LeaseThread,
    /// The session that looks at the locks.
    observer: Arc<Slot>,
}

impl PostgresLifelines {
    pub(super) fn new(thread: LeaseThread) -> Self {
        Self { thread, observer: Arc::new(Slot::new("observer")) }
    }

    /// Which of these are held; for lifelines that are listed in another store.
    pub(super) async fn observe_among(&self, keys: Vec<Lifeline>) -> Result<LifelinesSeen, StoreError> {
        self.look(Some(keys)).await
    }

    async fn look(&self, keys: Option<Vec<Lifeline>>) -> Result<LifelinesSeen, StoreError> {
        let (dialer, observer) = (Arc::clone(self.thread.dialer()), Arc::clone(&self.observer));
        let ready = async move { observer.numbered(&dialer).await };
        let look = move |(session, number): (Arc<Session>, u64)| async move { observe(&session, number, keys).await };
        self.thread.ask(Lane::Membership, ready, look).await
    }

    /// Takes a lifeline on a session of its own, which ends when the answer is dropped. `None`: somebody holds it.
    pub(super) async fn take(&self, key: Lifeline) -> Result<Option<Box<dyn Send + Sync>>, StoreError> {
        let dialer = Arc::clone(self.thread.dialer());
        let dialled = async move { dialer.dial("lifeline check").await.map_err(|error| not_dialled(&dialer, error)) };
        let take = move |session: Session| async move {
            let taken = try_lock(&session, key.0).await?;
            Ok(taken.then(|| Box::new(session) as Box<dyn Send + Sync>))
        };
        self.thread.ask(Lane::Membership, dialled, take).await
    }
}

#[async_trait]
impl Lifelines for PostgresLifelines {
    async fn hold(&self) -> Result<HeldLifeline, StoreError> {
        let dialer = Arc::clone(self.thread.dialer());
        let dialled = async move { dialer.dial_watched("lifeline").await.map_err(|error| not_dialled(&dialer, error)) };
        self.thread.ask(Lane::Heartbeat, dialled, |(session, driver)| hold(session, driver)).await
    }

    async fn observe(&self) -> Result<LifelinesSeen, StoreError> {
        self.look(None).await
    }
}

async fn hold(session: Session, driver: JoinHandle<()>) -> Result<HeldLifeline, CallError> {
    let session = Arc::new(session);
    let key = lock(&session).await?;
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
        if try_lock(session, key).await? {
            return Ok(Lifeline(key));
        }
    }
    Err(StoreError::Unavailable(format!("{KEY_TRIES} random lifelines were all taken")).into())
}

async fn try_lock(session: &Session, key: i64) -> Result<bool, CallError> {
    let row = session.first("SELECT pg_try_advisory_lock($1)", &[&key]).await?;
    Ok(row.map(|row| rows::get(&row, 0, "pg_try_advisory_lock")).transpose()? == Some(true))
}

async fn observe(session: &Session, observer: u64, among: Option<Vec<Lifeline>>) -> Result<LifelinesSeen, CallError> {
    // Locks on two 32-bit halves of one key; those of other programs in the database are not ours to count.
    let sql = "SELECT k.key FROM (SELECT (classid::bigint << 32) | objid::bigint AS key FROM pg_locks
                 WHERE locktype = 'advisory' AND objsubid = 1 AND granted AND mode = 'ExclusiveLock'
                   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())) k
               WHERE CASE WHEN $1::bigint[] IS NULL THEN EXISTS (SELECT 1 FROM node_lease n WHERE n.lifeline = k.key)
                 ELSE k.key = ANY($1) END ORDER BY k.key";
    let among = among.map(|keys| keys.into_iter().map(|key| key.0).collect::<Vec<i64>>());
    let found = session.query(sql, &[&among]).await?;
    let keys = found.iter().map(|row| rows::get(row, 0, "pg_locks").map(Lifeline));
    Ok(LifelinesSeen { observer, held: keys.collect::<Result<_, _>>()? })
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
