//! The observation of other nodes: who has died, and whose work is due.
//!
//! Death is an explicit, irreversible act, guarded three times: the store's clock says that the lease ran out, the row's
//! beat stood still for a whole lease on this node's own clock, and this node's own lease is certain. So an outage of the
//! store kills nobody, and neither does a clock that jumps.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use conch_core::ids::Incarnation;
use conch_core::time::Monotonic;
use conch_store::NodeRow;

use crate::node::Node;
use crate::router::Router;

/// Time between two looks at the node rows and the due rows.
const LOOK: Duration = Duration::from_millis(500);
/// Due conversations taken up at one look.
const DUE_LIMIT: usize = 64;

/// What was seen of a node's row.
struct Sighting {
    beat: u64,
    since: Monotonic,
}

/// Watches the others until the router shuts down.
pub async fn run(node: Arc<Node>, router: Router) {
    let mut sightings = BTreeMap::new();
    while !router.is_closed() {
        observe(&node, &mut sightings).await;
        take_up_due(&node, &router).await;
        node.seams.sleep(LOOK).await;
    }
}

async fn observe(node: &Node, sightings: &mut BTreeMap<Incarnation, Sighting>) {
    let rows = match node.store.nodes().await {
        Ok(rows) => rows,
        Err(error) => {
            // What was seen before an outage proves nothing after it.
            sightings.clear();
            tracing::debug!(%error, "the node rows could not be read");
            return;
        }
    };
    let now = node.seams.now();
    sightings.retain(|incarnation, _| rows.iter().any(|row| row.registration.incarnation == *incarnation));
    for row in rows.iter().filter(|row| row.registration.incarnation != node.me) {
        let sighting = sightings.entry(row.registration.incarnation).or_insert(Sighting { beat: row.beat, since: now });
        if sighting.beat != row.beat {
            *sighting = Sighting { beat: row.beat, since: now };
        }
        let stood_still = now.since(sighting.since) >= node.timing.ttl;
        let moment = node.moment();
        if row.expires_in_ms < 0 && stood_still && moment.now < moment.valid_until {
            declare(node, row).await;
        }
    }
}

async fn declare(node: &Node, row: &NodeRow) {
    let (ttl, margin) = (node.timing.ttl, node.timing.margin);
    let dead = row.registration.incarnation;
    match node.store.declare_expired(dead, row.beat, ttl, margin).await {
        Ok(true) => {
            tracing::warn!(node = %row.registration.node, incarnation = %dead, "declared dead: its lease ran out")
        }
        Ok(false) => {}
        Err(error) => tracing::debug!(%error, "a death could not be declared"),
    }
}

/// Work that nobody asks for: claiming a conversation makes its owner look at its turns.
async fn take_up_due(node: &Node, router: &Router) {
    let due = match node.store.due(DUE_LIMIT).await {
        Ok(due) => due,
        Err(error) => return tracing::debug!(%error, "the due rows could not be read"),
    };
    for row in due {
        let conversation = row.conversation.into();
        if let Err(refusal) = router.place(&conversation, None).await {
            tracing::debug!(conversation = %conversation.id, %refusal, "due work waits");
        }
    }
}
