//! What is owned, kept: owners start and end, hibernating leases go after a while, and a task that no longer answers loses
//! what it holds.

use futures_util::stream::{self, StreamExt};

use super::drain::AT_ONCE;
use super::*;
use crate::bounded;
use crate::events::{Event, WhyReleased};
use crate::metrics::Queue;

/// How often the router looks for hibernating conversations whose lease may go.
const SWEEP: Duration = Duration::from_secs(10);
/// The pause, and up to as much again, before a conversation whose reign ended in doubt is resolved again.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// The longest such pause; each is twice the one before.
const LOOK_AGAIN_MOST: Duration = Duration::from_secs(8);
/// So many of these conversations are resolved at once, so that they leave the claims' permits to senders.
pub(super) const LOOKS_AT_ONCE: usize = 16;
/// Looks at every owner's progress within one lease.
const LOOKS_PER_LEASE: u32 = 5;

impl Router {
    pub(super) fn start_owner(&self, tenure: Tenure) -> OwnerHandle {
        let (router, conversation) = (self.clone(), tenure.conversation.clone());
        let epoch = tenure.reign.epoch;
        let charge = Charge {
            node: Arc::clone(&self.shared.node),
            committer: self.shared.committer.clone(),
            hand_overs: Arc::clone(&self.shared.hand_overs),
            tenure,
            agents: Arc::clone(&self.shared.agents),
            on_published: Arc::clone(&self.shared.on_published),
            seek: self.seek(),
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
    /// node, nobody else would take up its due work: others see a live owner; and the same holds for a node that was handed
    /// the conversation and has not heard of it.
    pub(super) fn look_again(&self, conversation: &ConvRef) {
        if !self.shared.node.rules.hold(Rule::DoubtLooksAgain) || !self.table().looking.insert(conversation.key) {
            return;
        }
        let (router, conversation) = (self.clone(), conversation.clone());
        self.shared.node.seams.spawn("look again", async move {
            let Shared { node, looks, .. } = &*router.shared;
            let mut pause = LOOK_AGAIN;
            loop {
                node.seams.sleep(pause + node.seams.jitter(pause)).await;
                // Never closed; who waits here is in `looking`, once a conversation that this node owned.
                let look = bounded::acquire(looks, &node.metrics, Queue::Looks).await;
                if router.is_settled(&conversation).await || router.is_closed() {
                    router.table().looking.remove(&conversation.key);
                    return;
                }
                drop(look);
                pause = (pause * 2).min(LOOK_AGAIN_MOST);
            }
        });
    }

    /// Whether an owner is there that knows that it is one. Another node may own it and not have heard: to be followed makes it
    /// look.
    async fn is_settled(&self, conversation: &ConvRef) -> bool {
        match self.place(conversation, None).await {
            Ok(Place::Here(_)) => true,
            Ok(Place::There(peer)) => {
                let followed = self.shared.link.follow(&peer, &conversation.id, TRY_AT_MOST).await;
                self.forget(conversation);
                matches!(followed, Ok(Ok(_)))
            }
            Err(refusal) => refusal.code == Code::NotFound,
        }
    }

    /// Gives up the leases of conversations that hibernate for long.
    pub(super) async fn sweep(self) {
        let this = &self;
        loop {
            self.shared.node.seams.sleep(SWEEP).await;
            let now = self.shared.node.seams.now();
            let release_after = self.shared.node.limits.release_after;
            let due = stream::iter(self.sleepers(move |since| now.since(since) >= release_after));
            let released = due.for_each_concurrent(AT_ONCE, |Sleeper { tenure, settle, .. }| async move {
                this.release(&tenure, WhyReleased::Idle).await;
                this.drop_entry(&tenure.conversation);
                drop(settle);
            });
            released.await;
            if self.is_closed() {
                return;
            }
        }
    }

    /// Conversations at rest, in the order of their keys. Each is marked as being settled only when it is asked for: who
    /// writes to one whose turn has not come waits for nobody.
    pub(super) fn sleepers<'a>(
        &'a self,
        wanted: impl Fn(Monotonic) -> bool + Send + 'a,
    ) -> Box<dyn Iterator<Item = Sleeper> + Send + 'a> {
        let mut last = None;
        let sleepers = std::iter::from_fn(move || {
            let taken = self.table().take_sleeper(last, &wanted)?;
            last = Some(taken.tenure.conversation.key);
            Some(taken)
        });
        if self.shared.node.rules.hold(Rule::SleepersGoOneByOne) {
            return Box::new(sleepers);
        }
        Box::new(sleepers.collect::<Vec<_>>().into_iter())
    }

    pub(super) fn drop_entry(&self, conversation: &ConvRef) {
        let mut table = self.table();
        table.entries.remove(&conversation.key);
        self.count_owned(&table);
    }

    pub(super) async fn release(&self, tenure: &Tenure, why: WhyReleased) {
        self.shared.node.release(&tenure.conversation, &tenure.reign, why).await;
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
        tracing::error!(conversation = %conversation.id, %epoch, "an owner makes no progress; its conversation is released");
        let held = Held { conversation: conversation.key, epoch, me: node.me };
        match node.store.release_wedged(&held, node.limits.sequencer.gap).await {
            Ok(true) => {
                node.metrics.wedged_owners.inc();
                let (conversation, why) = (conversation.id.clone(), WhyReleased::Wedged);
                node.events.record(Event::Released { conversation, epoch, why });
            }
            // Somebody else has it by now.
            Ok(false) => {}
            // The entry stays, and so does the watchdog.
            Err(error) => {
                return tracing::warn!(conversation = %conversation.id, %epoch, %error, "a wedged owner was not released");
            }
        }
        handle.depose();
        self.ended(conversation, epoch, End::Gone);
    }
}
