//! Notices to all other nodes.
//!
//! Published records gather for [`WINDOW`], so that a busy conversation costs each peer a bounded number of notices. Nothing
//! here is promised: whoever missed one looks into the store sooner or later.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use conch_core::ids::{ConvKey, ConvRef, Seq};
use tokio::sync::Notify;

use super::{Link, Notice, Peer};
use crate::metrics::Queue;
use crate::node::Node;

/// How long notices of published records gather.
pub const WINDOW: Duration = Duration::from_millis(50);
/// Conversations that one window holds; what comes above it is left out.
pub const WINDOW_CONVERSATIONS: usize = 65_536;

/// Tells the other nodes. Cheap to clone.
#[derive(Clone)]
pub struct Notices {
    shared: Arc<Shared>,
}

struct Shared {
    node: Arc<Node>,
    link: Arc<dyn Link>,
    published: Mutex<BTreeMap<ConvKey, (ConvRef, Seq)>>,
    wake: Notify,
}

impl Notices {
    /// Notices of a node, and the task that sends the gathered ones.
    #[must_use]
    pub fn start(node: Arc<Node>, link: Arc<dyn Link>) -> Self {
        let shared = Shared { node, link, published: Mutex::default(), wake: Notify::new() };
        let notices = Self { shared: Arc::new(shared) };
        notices.shared.node.seams.spawn("notices", notices.clone().send_gathered());
        notices
    }

    fn published_table(&self) -> MutexGuard<'_, BTreeMap<ConvKey, (ConvRef, Seq)>> {
        self.shared.published.lock().expect("no holder of the notices panics")
    }

    /// A record was published here.
    pub fn published(&self, conversation: &ConvRef, seq: Seq) {
        let mut table = self.published_table();
        if table.len() >= WINDOW_CONVERSATIONS && !table.contains_key(&conversation.key) {
            self.shared.node.metrics.limit_hit(Queue::Notices);
            return;
        }
        if table.is_empty() {
            self.shared.wake.notify_one();
        }
        table.entry(conversation.key).or_insert_with(|| (conversation.clone(), seq)).1 = seq;
    }

    /// Tells at once.
    pub fn tell(&self, notice: &Notice) {
        let peers = self.peers();
        if !peers.is_empty() {
            self.shared.link.tell(&peers, notice);
        }
    }

    fn peers(&self) -> Vec<Peer> {
        let node = &self.shared.node;
        node.nodes.peers(node.me, node.seams.now())
    }

    async fn send_gathered(self) {
        loop {
            self.shared.wake.notified().await;
            self.shared.node.seams.sleep(WINDOW).await;
            let gathered = std::mem::take(&mut *self.published_table());
            let peers = self.peers();
            if peers.is_empty() {
                continue;
            }
            for (conversation, seq) in gathered.into_values() {
                self.shared.link.tell(&peers, &Notice::Published { conversation: conversation.id, seq });
            }
        }
    }
}
