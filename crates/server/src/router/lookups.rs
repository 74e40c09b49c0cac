//! Look-ups of owners that nobody waits for, gathered: who comes back resumes every conversation that it held, and where
//! their owners are unknown that is one statement, not one for each.
//!
//! Invariants: a look-up that is alone is made at once, for nothing here waits for a time; what comes while [`AT_ONCE`]
//! statements are under way waits for the next one and shares it; a statement is for [`RESOLVE_MANY_MAX`] at most, and those
//! that wait for one are bounded. One that cannot be resolved harms no other.
//!
//! Deliberately absent: a cache (that is the table's), and the look-ups of waiting senders, which are made alone so that
//! nothing else can hold them up.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use conch_core::ids::ConvRef;
use conch_store::{RESOLVE_MANY_MAX, Resolved, StoreError};
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::bounded;
use crate::metrics::{Metrics, Queue};
use crate::node::Node;

/// Statements under way at once: one that the store is slow to answer does not hold up all others.
const AT_ONCE: usize = 2;
/// Look-ups that wait for a statement; whoever comes then waits for a place.
const WAITING_MAX: usize = 4_096;

/// See the module's description. Its task ends when this is dropped.
pub(super) struct Lookups(mpsc::Sender<Lookup>);

struct Lookup {
    conversation: ConvRef,
    answer: oneshot::Sender<Resolved>,
}

impl Lookups {
    pub(super) fn start(node: &Arc<Node>) -> Self {
        let (asked, inbox) = mpsc::channel(WAITING_MAX);
        node.seams.spawn("look-ups", gather(Arc::clone(node), inbox));
        Self(asked)
    }

    /// As the store resolves.
    pub(super) async fn resolve(&self, metrics: &Metrics, conversation: &ConvRef) -> Resolved {
        let (answer, resolved) = oneshot::channel();
        let lookup = Lookup { conversation: conversation.clone(), answer };
        let ended = || StoreError::Unavailable("the node looks for owners no more".to_owned());
        if bounded::send(&self.0, lookup, metrics, Queue::Lookups).await.is_err() {
            return Err(ended());
        }
        resolved.await.unwrap_or_else(|_| Err(ended()))
    }
}

/// Takes what is asked together with whatever else waits by the time there is a statement for it.
async fn gather(node: Arc<Node>, mut inbox: mpsc::Receiver<Lookup>) {
    let statements = Arc::new(Semaphore::new(AT_ONCE));
    while let Some(first) = inbox.recv().await {
        let statement = Arc::clone(&statements).acquire_owned().await.expect("it is never closed");
        others_first().await;
        let mut lookups = vec![first];
        while lookups.len() < RESOLVE_MANY_MAX
            && let Ok(next) = inbox.try_recv()
        {
            lookups.push(next);
        }
        let asking = Arc::clone(&node);
        node.seams.spawn("look-up", async move {
            resolve(&asking, lookups).await;
            drop(statement);
        });
    }
}

/// Lets those who are about to ask do so. Waits for nothing but the tasks that could go on now.
async fn others_first() {
    let mut has_let = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_let, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

async fn resolve(node: &Node, mut lookups: Vec<Lookup>) {
    // Whoever went away asks for nothing.
    lookups.retain(|lookup| !lookup.answer.is_closed());
    let conversations: Vec<ConvRef> = lookups.iter().map(|lookup| lookup.conversation.clone()).collect();
    let answers = if conversations.is_empty() { Ok(Vec::new()) } else { node.store.resolve_many(&conversations).await };
    match answers {
        Ok(answers) => {
            for (lookup, resolved) in lookups.into_iter().zip(answers) {
                // Gone meanwhile.
                let _ = lookup.answer.send(resolved);
            }
        }
        Err(error) => {
            for lookup in lookups {
                let _ = lookup.answer.send(Err(error.clone()));
            }
        }
    }
}
