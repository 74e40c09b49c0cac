//! The repair of what a stream was not told of: each stream goes through its conversations now and then.
//!
//! Only where there are other nodes, for what happens here is never missed. A few streams read at once, and each at a
//! moment of its own. Invariant: a client that takes nothing holds up no other stream's look.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::*;

/// Time between two looks of a stream, and up to a half more.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(30);
/// Streams of a gateway that read a page at once while they look.
pub(super) const LOOKS: usize = 4;

/// Whether a look is worth its reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// There are other nodes, or were at the last moment to look.
    Needed,
    /// Nobody else could have told anything.
    Idle,
}

/// When a stream looks.
pub(super) struct Looks {
    due: BoxFuture<'static, ()>,
    had_peers: bool,
}

impl Looks {
    pub(super) fn begin(node: &Arc<Node>) -> Self {
        Self { due: pause(node), had_peers: !node.peers().is_empty() }
    }

    /// Completes when it is time. Cancel safe.
    pub(super) async fn due(&mut self) {
        (&mut self.due).await;
    }

    pub(super) fn next(&mut self, node: &Arc<Node>) -> Look {
        self.due = pause(node);
        let has_peers = !node.peers().is_empty();
        let had_peers = std::mem::replace(&mut self.had_peers, has_peers);
        if has_peers || had_peers { Look::Needed } else { Look::Idle }
    }
}

fn pause(node: &Arc<Node>) -> BoxFuture<'static, ()> {
    node.seams.sleep(LOOK_EVERY + node.seams.jitter(LOOK_EVERY / 2))
}

/// Tells one summary from another; not kept anywhere, so it may differ between versions.
pub(super) fn fingerprint(json: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    json.hash(&mut hasher);
    hasher.finish()
}

impl Stream {
    /// Sends what differs from what the client knows.
    pub(super) async fn look_again(&mut self, address: &Address) -> Result<(), Ended> {
        let people = self.people.clone();
        let (mut seen, mut after) = (BTreeSet::new(), None);
        while seen.len() < STREAM_CONVERSATIONS {
            let page = self.page(&people.shared.looks, after.as_ref()).await?;
            for summary in &page.summaries {
                let conversation = ConvRef::from(summary.id.clone());
                seen.insert(conversation.key);
                let known = self.known.get(&conversation.key).map(|known| known.fingerprint);
                if known.is_none() {
                    self.send_membership(address, &conversation, Change::Added).await?;
                } else if known != Some(fingerprint(&summary_json(address, summary))) {
                    self.show(address, summary).await?;
                }
            }
            after = match page.summaries.last() {
                Some(last) if page.more => Some((last.updated_at, last.id.clone())),
                _ => break,
            };
        }
        let unseen = self.known.values().map(|known| &known.conversation).filter(|it| !seen.contains(&it.key));
        for conversation in unseen.cloned().collect::<Vec<_>>() {
            // One that moved up between two pages is in neither.
            match self.summary(&conversation).await? {
                Some(_) => {}
                None => self.send_membership(address, &conversation, Change::Removed).await?,
            }
        }
        Ok(())
    }
}
