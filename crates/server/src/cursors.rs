//! Read cursors on their way to the store: gathered for a moment, so that a busy channel whose every reader moves on with
//! every message costs one commit a second, not one a reader.
//!
//! Invariant 11: the store keeps the maximum, so a cursor never moves back; and an answer is given only after the store's,
//! so what was answered is durable.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use conch_core::ids::{ConvKey, ConvRef, Seq, Subject};
use conch_core::refusal::{Code, Refusal, Retry};
use conch_store::{CursorOutcome, StoreError};
use futures_util::future::join_all;
use tokio::sync::{Notify, oneshot};

use crate::metrics::Queue;
use crate::node::Node;
use crate::owner::store_refusal;

/// Time between two writes of cursors. The first after a pause goes at once.
pub const WINDOW: Duration = Duration::from_secs(1);
/// Most moves that wait for a write.
pub const WAITING_MAX: usize = 65_536;

/// What a mover is told.
type Answer = oneshot::Sender<Result<CursorOutcome, Refusal>>;

/// The moves of one subject in one conversation.
struct Moves {
    conversation: ConvRef,
    sub: Subject,
    asked: Vec<(Seq, Answer)>,
}

#[derive(Default)]
struct Waiting {
    moves: BTreeMap<(ConvKey, Subject), Moves>,
    count: usize,
}

/// The cursors of a gateway. Cheap to clone.
#[derive(Clone)]
pub struct Cursors {
    shared: Arc<Shared>,
}

struct Shared {
    node: Arc<Node>,
    waiting: Mutex<Waiting>,
    wake: Notify,
}

impl Cursors {
    /// Starts the task that writes.
    #[must_use]
    pub fn start(node: Arc<Node>) -> Self {
        let cursors = Self { shared: Arc::new(Shared { node, waiting: Mutex::default(), wake: Notify::new() }) };
        let seams = cursors.shared.node.seams.clone();
        seams.spawn("cursors", cursors.clone().run());
        cursors
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.shared.waiting.lock().expect("no holder of the waiting moves panics")
    }

    /// Moves a cursor forward and waits until the store has it.
    ///
    /// # Errors
    /// `overloaded` above [`WAITING_MAX`], or the store's refusal.
    pub async fn move_to(&self, conversation: &ConvRef, sub: &Subject, to: Seq) -> Result<CursorOutcome, Refusal> {
        let (answer, outcome) = oneshot::channel();
        {
            let mut waiting = self.waiting();
            if waiting.count >= WAITING_MAX {
                self.shared.node.metrics.limit_hit(Queue::Cursors);
                let retry = Retry { after_ms: 1_000, budget_ms: 20_000 };
                return Err(Refusal::retry(Code::Overloaded, "too many cursors wait to be written", retry));
            }
            waiting.count += 1;
            let moves = waiting.moves.entry((conversation.key, sub.clone())).or_insert_with(|| Moves {
                conversation: conversation.clone(),
                sub: sub.clone(),
                asked: Vec::new(),
            });
            moves.asked.push((to, answer));
        }
        self.shared.wake.notify_one();
        outcome.await.unwrap_or_else(|_| Err(store_refusal(&StoreError::Unavailable("the node shuts down".to_owned()))))
    }

    async fn run(self) {
        loop {
            self.shared.wake.notified().await;
            let moves = std::mem::take(&mut *self.waiting()).moves;
            // Asked for together, so that the store writes them in one commit.
            join_all(moves.into_values().map(|moves| self.settle(moves))).await;
            self.shared.node.seams.sleep(WINDOW).await;
        }
    }

    /// Writes the furthest of a subject's moves; those beyond the head are refused, and harm no other.
    async fn settle(&self, mut moves: Moves) {
        while let Some(to) = moves.asked.iter().map(|(to, _)| *to).max() {
            let written = self.shared.node.store.move_cursor(&moves.conversation, &moves.sub, to).await;
            let outcome = written.map_err(|error| store_refusal(&error));
            let answered = match outcome {
                Ok(CursorOutcome::BeyondHead(head)) => moves.asked.extract_if(.., |(to, _)| *to > head).collect(),
                _ => std::mem::take(&mut moves.asked),
            };
            debug_assert!(!answered.is_empty(), "each round answers somebody");
            for (_, answer) in answered {
                // A mover that went away needs no answer.
                let _ = answer.send(outcome.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests;
