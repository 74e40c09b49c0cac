//! Due work whose owner is gone: claiming the conversation makes its new owner look at its turns.
//!
//! Invariant: what is due is tried by some node within a few looks, whoever else died; not by all of them at once.
//!
//! Deliberately absent: what is done about the work. The owner's turns see to that.

use std::sync::Arc;
use std::time::Duration;

use conch_core::due::DueTable;
use conch_core::ids::{ConvKey, ConvRef};
use futures_util::future::join_all;
use tokio::sync::Notify;

use super::within;
use crate::node::Node;
use crate::router::Router;

/// Time between two polls, and up to a fifth less.
const POLL: Duration = Duration::from_millis(500);
/// Due conversations looked at in one poll.
const DUE_LIMIT: usize = 64;
/// How long one poll of the store may take.
const POLL_TIME: Duration = Duration::from_secs(5);

/// Polls until the router shuts down; at once when `wake` says that somebody died.
pub(super) async fn run(node: Arc<Node>, router: Router, wake: Arc<Notify>) {
    let mut table = DueTable::default();
    while !router.is_closed() {
        take_up(&node, &router, &mut table).await;
        let pause = POLL - node.seams.jitter(POLL / 5);
        // Both branches are cancel safe.
        tokio::select! {
            biased;
            () = wake.notified() => {}
            () = node.seams.sleep(pause) => {}
        }
    }
}

async fn take_up(node: &Node, router: &Router, table: &mut DueTable) {
    let rows = match within(&node.seams, POLL_TIME, node.store.due(DUE_LIMIT)).await {
        Some(Ok(rows)) => rows,
        Some(Err(error)) => return tracing::debug!(%error, "the due rows could not be read"),
        None => return tracing::debug!("the due rows could not be read in time"),
    };
    let due: Vec<ConvRef> = rows.into_iter().map(|row| row.conversation.into()).collect();
    let keys: Vec<ConvKey> = due.iter().map(|conversation| conversation.key).collect();
    let now = node.seams.now();
    let mine = table.poll(now, &keys, node.me, &node.nodes.takers(node.me, now));
    let claims = mine.into_iter().map(|index| &due[index]).map(|conversation| async move {
        if let Err(refusal) = router.place(conversation, None).await {
            tracing::debug!(conversation = %conversation.id, %refusal, "due work waits");
        }
    });
    join_all(claims.collect::<Vec<_>>()).await;
}
