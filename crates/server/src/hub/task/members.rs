//! Whether those who watch by a membership still have it. A removal is told by a notice, which may be lost; so the store is
//! asked now and then, once for all of a hub's members, and only where there are nodes that could have removed somebody.

use std::collections::BTreeSet;

use super::*;
use crate::link::service::no_member;
use crate::node::Node;

/// Time between two looks, and up to a third more.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(30);

/// Members of one read.
const MEMBERS_PAGE: usize = 1_000;

pub(super) fn pause(node: &Node) -> BoxFuture<'static, ()> {
    node.seams.sleep(LOOK_EVERY + node.seams.jitter(LOOK_EVERY / 3))
}

impl Hub {
    pub(super) fn look_at_members(&mut self) {
        let node = Arc::clone(&self.shared.node);
        self.members_due = pause(&node);
        let has_peers = !node.peers().is_empty();
        let had_peers = std::mem::replace(&mut self.had_peers, has_peers);
        if !has_peers && !had_peers {
            return;
        }
        let members = self.watchers.values().filter(|watcher| watcher.right == Right::Membership);
        let members: BTreeSet<Subject> = members.map(|watcher| watcher.sub.clone()).collect();
        if members.is_empty() {
            return;
        }
        let (conversation, hub) = (self.conversation.clone(), self.handle.clone());
        self.shared.node.seams.spawn("look at members", async move {
            let members: Vec<Subject> = members.into_iter().collect();
            for page in members.chunks(MEMBERS_PAGE) {
                let gone = match node.store.no_members(&conversation, page).await {
                    Ok(gone) => gone,
                    Err(error) => {
                        // The next look comes soon enough.
                        tracing::debug!(conversation = %conversation.id, %error, "the members could not be looked at");
                        return;
                    }
                };
                for sub in gone {
                    // A hub that is gone has no sessions.
                    let expel = Command::Expel { sub, reason: no_member() };
                    let _ = bounded::send(&hub.commands, expel, &node.metrics, Queue::HubCommands).await;
                }
            }
        });
    }
}
