//! Group commit: batches of many conversations, one fenced write.
//!
//! While as many writes are under way as may be, the batches of other conversations gather behind them and go together in
//! the next, so the price of a sync is shared by everybody who waits for it. Each owner has at most one batch here (the
//! sequencer sees to that), so the order within a conversation needs no care, whichever write ends first.
//!
//! Deliberately absent: any judgement of an outcome; each owner gets its own and decides.

use std::sync::Arc;

use conch_store::{AppendOutcome, Batch, StoreError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::node::Node;

/// A batch and whoever waits for its fate.
pub struct Submission {
    /// What to write.
    pub batch: Batch,
    /// Where its outcome goes. Dropped without an answer only when the committer is gone.
    pub answer: oneshot::Sender<AppendOutcome>,
}

/// Where owners submit their batches.
pub type Committer = mpsc::Sender<Submission>;

/// Starts the committer of a node.
#[must_use]
pub fn start(node: &Arc<Node>) -> Committer {
    let (submit, submissions) = mpsc::channel(node.limits.commit_queue);
    node.seams.spawn("gathering of commits", run(Arc::clone(node), submissions));
    submit
}

async fn run(node: Arc<Node>, mut submissions: mpsc::Receiver<Submission>) {
    let calls = Arc::new(Semaphore::new(node.limits.commits));
    let mut gathered = Vec::new();
    loop {
        // First the permit, then the batches: while all calls are under way, those of other conversations gather.
        let permit = Arc::clone(&calls).acquire_owned().await.expect("the semaphore is never closed");
        if submissions.recv_many(&mut gathered, node.limits.commit_batches).await == 0 {
            return;
        }
        node.seams.spawn("group commit", commit(Arc::clone(&node), std::mem::take(&mut gathered), permit));
    }
}

/// One call of the store. It runs to its end, whoever still waits.
async fn commit(node: Arc<Node>, submissions: Vec<Submission>, permit: OwnedSemaphorePermit) {
    let (batches, answers): (Vec<_>, Vec<_>) =
        submissions.into_iter().map(|submission| (submission.batch, submission.answer)).unzip();
    let records: usize = batches.iter().map(|batch| batch.records.len()).sum();
    let conversations = count(batches.len());
    let started = node.seams.now();
    let outcomes = node.store.append(node.me, batches).await;
    drop(permit);
    node.metrics.committed(records, node.seams.now().since(started));
    // Counted up where it was submitted, so that those who wait for their turn are in it.
    node.metrics.commit_queue.dec_by(conversations);
    match outcomes {
        Ok(outcomes) => {
            debug_assert_eq!(outcomes.len(), answers.len(), "one outcome a batch");
            for (answer, outcome) in answers.into_iter().zip(outcomes) {
                // An owner that is gone needs no answer.
                let _ = answer.send(outcome);
            }
        }
        Err(error) => fail_all(answers, &error),
    }
}

fn count(conversations: usize) -> i64 {
    i64::try_from(conversations).unwrap_or(i64::MAX)
}

fn fail_all(answers: Vec<oneshot::Sender<AppendOutcome>>, error: &StoreError) {
    tracing::warn!(%error, batches = answers.len(), "a group commit failed");
    for answer in answers {
        // An owner that is gone needs no answer.
        let _ = answer.send(AppendOutcome::Failed(error.clone()));
    }
}
