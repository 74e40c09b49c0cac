//! The fenced append: the hot path.
//!
//! Invariants: nothing is written under another epoch, owner, generation or last seq than the head's (invariant 8); a
//! batch lands whole or not at all; one (sender, client message id) is in a log once (invariants 3 and 4); a batch harms
//! no other. Once begun, an append runs to its end, whether or not its caller still waits, and is never cancelled. It waits
//! a bounded time for its turn, for a connection and for each answer.
//!
//! One statement writes the batches of many conversations, over one of a few connections that carry nothing else.
//! Statements follow each other on a connection without waiting for answers. What the statement leaves out is settled by
//! itself ([`settle`]), and an error reruns each conversation alone, so that the bad one fails alone. The good case pays
//! nothing for it.

mod settle;
mod statement;

use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use conch_core::ids::Incarnation;
use conch_core::invariant::{Broken, Invariant};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

pub(super) use self::settle::originals;
use self::statement::Locking;
pub(super) use self::statement::{FenceGuard, Records};
use super::error::CallError;
use super::session::{Dialer, Session, Slot};
use crate::{AppendOutcome, Batch, StoreError};

/// Most conversations in one statement.
const STATEMENT_MAX_CONVERSATIONS: usize = 256;
/// A statement takes no further conversation once it has this many records.
const STATEMENT_MAX_RECORDS: usize = 1024;
/// Or this many bytes of bodies.
const STATEMENT_MAX_BYTES: usize = 4 * 1024 * 1024;
/// Most calls under way for each connection; others wait.
const CALLS_PER_CONNECTION: usize = 16;
/// Longest wait of a call for the end of another one.
const WAIT_LIMIT: Duration = Duration::from_secs(3);

/// How the server plans what goes over these connections, besides [`super::session::SETTINGS`].
const PLANNING: &[(&str, &str)] = &[
    // One plan for every batch. Planning (16 partitions with three indexes each) takes longer than writing a few records,
    // and left alone the server does it again for each statement if the first ones of a session were small.
    ("plan_cache_mode", "force_generic_plan"),
    // That plan may be made while the tables are empty: heads and due rows are to be found by their keys all the same.
    ("enable_seqscan", "off"),
    // Compiling takes longer than any append.
    ("jit", "off"),
];

/// The connections that appends go over.
pub(super) struct Writers {
    dialer: Arc<Dialer>,
    slots: Vec<Slot>,
    next: AtomicUsize,
    calls: Arc<Semaphore>,
    guard: FenceGuard,
}

impl Writers {
    pub(super) fn new(dialer: Arc<Dialer>, connections: usize, guard: FenceGuard) -> Arc<Self> {
        let dialer = Arc::new(dialer.with(PLANNING));
        let slots = (0..connections).map(|_| Slot::new("append")).collect();
        let calls = Arc::new(Semaphore::new(connections * CALLS_PER_CONNECTION));
        Arc::new(Self { dialer, slots, next: AtomicUsize::new(0), calls, guard })
    }

    /// Takes all places, as that many calls do that are not answered.
    #[cfg(test)]
    pub(super) async fn occupy(&self) -> (usize, tokio::sync::SemaphorePermit<'_>) {
        let most = self.slots.len() * CALLS_PER_CONNECTION;
        let all = u32::try_from(most).expect("a few");
        (most, self.calls.acquire_many(all).await.expect("the semaphore is never closed"))
    }

    /// A session, in turns.
    async fn session(&self) -> Result<Arc<Session>, StoreError> {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        self.slots[next % self.slots.len()].get(&self.dialer).await
    }

    /// One outcome a batch, in their order.
    pub(super) async fn append(
        self: &Arc<Self>,
        me: Incarnation,
        batches: Vec<Batch>,
    ) -> Result<Vec<AppendOutcome>, StoreError> {
        let Ok(Ok(_permit)) = timeout(WAIT_LIMIT, self.calls.acquire()).await else {
            let most = self.slots.len() * CALLS_PER_CONNECTION;
            return Err(StoreError::Unavailable(format!("all {most} appends that may be under way at once are")));
        };
        let mut outcomes: Vec<Option<AppendOutcome>> = batches.iter().map(refusal).collect();
        let mut seen = HashSet::new();
        for (batch, outcome) in batches.iter().zip(&mut outcomes).filter(|(_, outcome)| outcome.is_none()) {
            if !seen.insert(batch.conversation.key) {
                let broken = Invariant::SeqOnce.broken("a call holds two batches of one conversation");
                *outcome = Some(AppendOutcome::Failed(StoreError::Damaged(broken.to_string())));
            }
        }
        let good = batches.into_iter().enumerate().filter(|(index, _)| outcomes[*index].is_none());
        let parts = split(good.map(|(index, batch)| (index, Arc::new(batch))).collect());
        let runs = parts.into_iter().map(|part| {
            let writers = Arc::clone(self);
            async move {
                let (indexes, batches): (Vec<_>, Vec<_>) = part.into_iter().unzip();
                indexes.into_iter().zip(writers.together(me, batches).await).collect::<Vec<_>>()
            }
        });
        for (index, outcome) in all(runs).await.into_iter().flatten().flatten() {
            outcomes[index] = Some(outcome);
        }
        let lost = || AppendOutcome::Failed(StoreError::Ambiguous("an append was ended".to_owned()));
        Ok(outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(lost)).collect())
    }

    /// Batches of different conversations in one statement, and then what it left open.
    async fn together(self: &Arc<Self>, me: Incarnation, batches: Vec<Arc<Batch>>) -> Vec<AppendOutcome> {
        let written = match self.session().await {
            Ok(session) => statement::write(&session, me, &batches, Locking::Skip, self.guard).await,
            Err(error) => return vec![AppendOutcome::Failed(error); batches.len()],
        };
        let written = match written {
            Ok(written) => written,
            Err(error) => return self.after_error(me, batches, error).await,
        };
        let runs = batches.into_iter().map(|batch| {
            let landed = written.get(&batch.conversation.key).cloned();
            let writers = Arc::clone(self);
            async move {
                match landed {
                    Some(landed) => settle::landed(&writers, &batch, landed).await,
                    None => settle::missing(&writers, me, &batch).await,
                }
            }
        });
        // Without duplicates and refusals nothing of this waits.
        finished(runs).await
    }

    /// An error of the whole statement: what the server refused may be one conversation's fault.
    async fn after_error(
        self: &Arc<Self>,
        me: Incarnation,
        batches: Vec<Arc<Batch>>,
        error: CallError,
    ) -> Vec<AppendOutcome> {
        let answered = matches!(&error, CallError::Postgres(error) if error.as_db_error().is_some());
        let error = error.of_write();
        // No room for one is no room for any, and what may have landed is not sent again.
        let for_all = !answered || matches!(error, StoreError::Ambiguous(_) | StoreError::Full(_));
        if for_all || batches.len() == 1 {
            return vec![AppendOutcome::Failed(error); batches.len()];
        }
        tracing::debug!(%error, batches = batches.len(), "an append was refused; each conversation is tried alone");
        finished(batches.into_iter().map(|batch| {
            let writers = Arc::clone(self);
            async move { settle::missing(&writers, me, &batch).await }
        }))
        .await
    }
}

/// Runs them side by side and returns their outcomes in order.
async fn finished<W>(runs: impl Iterator<Item = W>) -> Vec<AppendOutcome>
where
    W: Future<Output = AppendOutcome> + Send + 'static,
{
    let lost = || AppendOutcome::Failed(StoreError::Ambiguous("an append was ended".to_owned()));
    all(runs).await.into_iter().map(|outcome| outcome.unwrap_or_else(lost)).collect()
}

/// Runs all side by side; `None` for one that was ended with the runtime, or panicked. A single one runs in place.
async fn all<T, W>(runs: impl Iterator<Item = W>) -> Vec<Option<T>>
where
    T: Send + 'static,
    W: Future<Output = T> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    let mut results = Vec::new();
    for (index, mut run) in runs.map(Box::pin).enumerate() {
        // Most are done at once, and need no task.
        match poll_once(&mut run).await {
            Some(result) => results.push(Some(result)),
            None => {
                results.push(None);
                tasks.spawn(async move { (index, run.await) });
            }
        }
    }
    while let Some(done) = tasks.join_next().await {
        if let Ok((index, result)) = done {
            results[index] = Some(result);
        }
    }
    results
}

async fn poll_once<T>(run: &mut (impl Future<Output = T> + Unpin)) -> Option<T> {
    std::future::poll_fn(|context| match std::pin::Pin::new(&mut *run).poll(context) {
        std::task::Poll::Ready(result) => std::task::Poll::Ready(Some(result)),
        std::task::Poll::Pending => std::task::Poll::Ready(None),
    })
    .await
}

/// Cuts a call into statements.
fn split(batches: Vec<(usize, Arc<Batch>)>) -> Vec<Vec<(usize, Arc<Batch>)>> {
    let mut parts: Vec<Vec<(usize, Arc<Batch>)>> = Vec::new();
    let (mut records, mut bytes) = (0, 0);
    for (index, batch) in batches {
        let open = parts.last().is_some_and(|part| part.len() < STATEMENT_MAX_CONVERSATIONS);
        if !open || records >= STATEMENT_MAX_RECORDS || bytes >= STATEMENT_MAX_BYTES {
            parts.push(Vec::new());
            (records, bytes) = (0, 0);
        }
        records += batch.records.len();
        bytes += batch.records.iter().map(|(_, draft)| draft.body.as_str().len()).sum::<usize>();
        parts.last_mut().expect("one was pushed if there was none").push((index, batch));
    }
    parts
}

fn refusal(batch: &Batch) -> Option<AppendOutcome> {
    check(batch).err().map(|broken| AppendOutcome::Failed(StoreError::Damaged(broken.to_string())))
}

/// What the writer of a batch must have seen to: a number at or below the head would be given a second time.
fn check(batch: &Batch) -> Result<(), Broken> {
    let mut below = batch.prev;
    for (seq, _) in &batch.records {
        if *seq <= below || *seq > batch.hi {
            let detail = format!("a batch for ({}, {}] holds seq {seq} after {below}", batch.prev, batch.hi);
            return Err(Invariant::SeqOnce.broken(detail));
        }
        below = *seq;
    }
    if batch.hi < batch.prev {
        let detail = format!("a batch sets the head back from {} to {}", batch.prev, batch.hi);
        return Err(Invariant::SeqOnce.broken(detail));
    }
    Ok(())
}
