//! The heartbeat: renews the node's one lease row, whatever the node owns.
//!
//! It runs on a thread of its own (in production) so that no busy runtime can starve it. A failed renewal never ends it:
//! it tries again, and validity simply runs out in the meantime. A row that is gone ends the node: whoever deleted it has
//! declared this incarnation dead, and a dead one never registers again.

use std::sync::Arc;
use std::time::Duration;

use conch_store::{Registration, StoreError};
use tokio::sync::watch;

use crate::node::Node;

/// How the node's lease stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseState {
    /// Held; whether it may be acted upon right now is [`crate::node::Validity`]'s to say.
    Held,
    /// The row is gone. The process must end.
    Lost,
}

/// Registers the node and starts its heartbeat. Validity counts from before the request was sent.
///
/// # Errors
/// The store's, when the first registration fails.
pub async fn start(node: &Arc<Node>, address: String) -> Result<watch::Receiver<LeaseState>, StoreError> {
    let registration = Registration {
        incarnation: node.me,
        node: node.name.clone(),
        region: node.region.clone(),
        addr: address,
        lifeline: None,
    };
    let sent = node.seams.now();
    node.store.register(&registration, node.timing.ttl).await?;
    let valid_until = node.timing.valid_until(sent);
    node.validity.set(valid_until);
    node.metrics.lease_valid_for(valid_until.since(node.seams.now()));
    let (state, observed) = watch::channel(LeaseState::Held);
    node.seams.spawner.spawn_dedicated("heartbeat", Box::pin(run(Arc::clone(node), state)));
    Ok(observed)
}

async fn run(node: Arc<Node>, state: watch::Sender<LeaseState>) {
    let mut failures = 0_u32;
    loop {
        // Both branches are cancel safe.
        tokio::select! {
            biased;
            () = state.closed() => return, // The node has shut down.
            () = node.seams.sleep(pause(&node, failures)) => {}
        }
        let sent = node.seams.now();
        match node.store.renew(node.me, node.timing.ttl).await {
            Ok(Some(_beat)) => {
                let valid_until = node.timing.valid_until(sent);
                node.validity.set(valid_until);
                node.metrics.lease_valid_for(valid_until.since(node.seams.now()));
                failures = 0;
            }
            Ok(None) => {
                node.validity.end();
                tracing::error!(incarnation = %node.me, "the node's lease row is gone; this process ends");
                let _ = state.send(LeaseState::Lost);
                return;
            }
            Err(error) => {
                failures += 1;
                node.metrics.heartbeat_failures.inc();
                node.metrics.lease_valid_for(node.validity.until().since(node.seams.now()));
                tracing::warn!(%error, failures, "a lease renewal failed");
            }
        }
    }
}

/// A beat, or after a failure a tenth of one, so that a short outage of the store costs no validity.
fn pause(node: &Node, failures: u32) -> Duration {
    if failures == 0 { node.timing.beat } else { node.timing.beat / 10 }
}
