//! What is owned, kept: owners start and end, hibernating leases go after a while, and a task that no longer answers loses
//! what it holds.

use super::*;
use crate::events::{Event, WhyReleased};

/// How often the router looks for hibernating conversations whose lease may go.
const SWEEP: Duration = Duration::from_secs(10);
/// The pause, and up to as much again, before a conversation whose reign ended in doubt is resolved again.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// Looks at every owner's progress within one lease.
const LOOKS_PER_LEASE: u32 = 5;

impl Router {
    pub(super) fn start_owner(&self, tenure: Tenure) -> OwnerHandle {
        let (router, conversation) = (self.clone(), tenure.conversation.clone());
        let epoch = tenure.reign.epoch;
        let charge = Charge {
            node: Arc::clone(&self.shared.node),
            committer: self.shared.committer.clone(),
            tenure,
            agents: Arc::clone(&self.shared.agents),
            on_published: Arc::clone(&self.shared.on_published),
        };
        // The entry is written before the task can end, so that its end finds it.
        let mut table = self.table();
        let ended = Box::new(move |end| router.ended(&conversation, epoch, end));
        let key = charge.tenure.conversation.key;
        let handle = owner::start(charge, ended);
        table.forget(key);
        table.entries.insert(key, Entry::Active(handle.clone()));
        self.count_owned(&table);
        handle
    }

    pub(super) fn count_owned(&self, table: &Table) {
        self.shared.node.metrics.owned_conversations.set(i64::try_from(table.entries.len()).unwrap_or(i64::MAX));
    }

    fn ended(&self, conversation: &ConvRef, epoch: Epoch, end: End) {
        let since = self.shared.node.seams.now();
        let mut table = self.table();
        let ours =
            matches!(table.entries.get(&conversation.key), Some(Entry::Active(handle)) if handle.epoch() == epoch);
        if !ours {
            return;
        }
        let lost = matches!(end, End::Lost);
        match end {
            End::Hibernated(tenure) => {
                table.entries.insert(conversation.key, Entry::Hibernating { tenure, since });
            }
            End::Gone | End::Lost => {
                table.entries.remove(&conversation.key);
            }
        }
        self.count_owned(&table);
        drop(table);
        if lost {
            self.look_again(conversation);
        }
    }

    /// Resolves a conversation whose reign here ended in doubt, until that says whose it is. Where the store still names this
    /// node, nobody else would take up its due work: others see a live owner.
    pub(super) fn look_again(&self, conversation: &ConvRef) {
        if !self.shared.node.rules.hold(Rule::DoubtLooksAgain) || !self.table().looking.insert(conversation.key) {
            return;
        }
        let (router, conversation) = (self.clone(), conversation.clone());
        self.shared.node.seams.spawn("look again", async move {
            loop {
                let seams = &router.shared.node.seams;
                seams.sleep(LOOK_AGAIN + seams.jitter(LOOK_AGAIN)).await;
                let answer = router.place(&conversation, None).await;
                let unknown = matches!(&answer, Err(refusal) if refusal.code != Code::NotFound);
                if router.is_closed() || !unknown {
                    router.table().looking.remove(&conversation.key);
                    return;
                }
            }
        });
    }

    /// Gives up the leases of conversations that hibernate for long.
    pub(super) async fn sweep(self) {
        loop {
            self.shared.node.seams.sleep(SWEEP).await;
            let now = self.shared.node.seams.now();
            let release_after = self.shared.node.limits.release_after;
            let due = self.table().take_hibernating(usize::MAX, |since| now.since(since) >= release_after);
            for (tenure, settled) in due {
                self.release(&tenure, WhyReleased::Idle).await;
                self.drop_entry(&tenure.conversation);
                drop(settled);
            }
            if self.is_closed() {
                return;
            }
        }
    }

    pub(super) fn drop_entry(&self, conversation: &ConvRef) {
        let mut table = self.table();
        table.entries.remove(&conversation.key);
        self.count_owned(&table);
    }

    pub(super) async fn release(&self, tenure: &Tenure, why: WhyReleased) {
        let Tenure { conversation, reign, .. } = tenure;
        let held = Held { conversation: conversation.key, epoch: reign.epoch, me: self.shared.node.me };
        match self.shared.node.store.release(&held, reign.first_seq).await {
            Ok(_) => {
                let event = Event::Released { conversation: conversation.id.clone(), epoch: reign.epoch, why };
                self.shared.node.events.record(event);
            }
            Err(error) => {
                tracing::warn!(conversation = %conversation.id, epoch = %reign.epoch, %error, "a lease was not released")
            }
        }
    }

    /// The progress watchdog: an owner whose loop has not come round for a lease loses its conversation, though its node
    /// lives. What it may still have in flight is fenced, for the next reign has a higher epoch.
    pub(super) async fn watch(self) {
        let ttl = self.shared.node.timing.ttl;
        while !self.is_closed() {
            self.shared.node.seams.sleep(ttl / LOOKS_PER_LEASE).await;
            let now = self.shared.node.seams.now();
            let wedged = self.wedged(now, ttl);
            for wedged in wedged.iter().filter(|_| self.shared.node.rules.hold(Rule::WatchdogReleases)) {
                self.release_wedged(wedged).await;
            }
        }
    }

    fn wedged(&self, now: Monotonic, ttl: Duration) -> Vec<OwnerHandle> {
        let table = self.table();
        let active = table.entries.values().filter_map(|entry| match entry {
            Entry::Active(handle) => Some(handle),
            _ => None,
        });
        active.filter(|handle| now.since(handle.last_round()) >= ttl).cloned().collect()
    }

    async fn release_wedged(&self, handle: &OwnerHandle) {
        let node = &self.shared.node;
        let (conversation, epoch) = (&handle.facts.conversation, handle.epoch());
        node.metrics.wedged_owners.inc();
        tracing::error!(conversation = %conversation.id, %epoch, "an owner makes no progress; its conversation is released");
        let held = Held { conversation: conversation.key, epoch, me: node.me };
        if let Err(error) = node.store.release_wedged(&held, node.limits.sequencer.gap).await {
            // The entry stays, and so does the watchdog.
            return tracing::warn!(conversation = %conversation.id, %epoch, %error, "a wedged owner was not released");
        }
        node.events.record(Event::Released { conversation: conversation.id.clone(), epoch, why: WhyReleased::Wedged });
        handle.depose();
        self.ended(conversation, epoch, End::Gone);
    }
}
