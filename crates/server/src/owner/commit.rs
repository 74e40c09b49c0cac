//! Group commit: batches of many conversations, one fenced write.
//!
//! While one write is under way the batches of other conversations gather behind it and go together in the next, so the
//! price of a sync is shared by everybody who waits for it. Each owner has at most one batch here (the sequencer sees to
//! that), so the order within a conversation needs no care.
//!
//! Deliberately absent: any judgement of an outcome; each owner gets its own and decides.

use std::sync::Arc;

use conch_store::{AppendOutcome, Batch, StoreError};
use tokio::sync::{mpsc, oneshot};

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
    node.seams.spawn("group commit", run(Arc::clone(node), submissions));
    submit
}

async fn run(node: Arc<Node>, mut submissions: mpsc::Receiver<Submission>) {
    let mut gathered = Vec::new();
    while submissions.recv_many(&mut gathered, node.limits.commit_batches).await > 0 {
        node.metrics.commit_queue.set(count(gathered.len() + submissions.len()));
        let (batches, answers): (Vec<_>, Vec<_>) =
            gathered.drain(..).map(|submission| (submission.batch, submission.answer)).unzip();
        let records: usize = batches.iter().map(|batch| batch.records.len()).sum();
        let started = node.seams.now();
        let outcomes = node.store.append(node.me, batches).await;
        node.metrics.committed(records, node.seams.now().since(started));
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
        node.metrics.commit_queue.set(count(submissions.len()));
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
