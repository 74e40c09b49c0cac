//! The router: from a conversation to its owner, whoever that is, and back with an outcome.
//!
//! Every write and every follow of every entry point comes through here: resolve, then run. The table holds what this node
//! owns; it is a cache of beliefs, and whoever acts on it survives its being wrong, because the fence decides.
//!
//! Invariants kept here: at most one owner task per conversation on a node (one entry, one claim at a time); an unknown
//! outcome is settled by asking again under the same key, never by assuming (invariant 4).
//!
//! Deliberately absent: forwarding to another node. A conversation whose owner lives elsewhere is refused with a directive.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use conch_core::ids::{ConvKey, ConvRef, Epoch, Seq};
use conch_core::record::Draft;
use conch_core::refusal::{Code, Refusal, Retry};
use conch_core::sequencer::{Receipt, Reign};
use conch_core::time::Monotonic;
use conch_store::{Armed, ClaimOutcome, ClaimRequest, Held, Resolution};
use futures_util::future::join_all;
use tokio::sync::{Semaphore, watch};

use crate::bounded;
use crate::metrics;
use crate::node::Node;
use crate::owner::commit::{self, Committer};
use crate::owner::{self, Charge, End, Follow, OnPublished, OwnerHandle, Tenure, moved, store_refusal};
use crate::turn::agents::Agents;

/// How often the router looks for hibernating conversations whose lease may go.
const SWEEP: Duration = Duration::from_secs(10);

/// Time between two looks at owners that are about to end.
const ENDING: Duration = Duration::from_millis(10);

/// What this node has of a conversation.
enum Entry {
    /// A claim is under way; the receiver wakes when it is settled.
    Claiming(watch::Receiver<()>),
    /// Its task runs here.
    Active(OwnerHandle),
    /// Owned, without a task.
    Hibernating { tenure: Tenure, since: Monotonic },
}

/// See the module's description. Cheap to clone.
#[derive(Clone)]
pub struct Router {
    shared: Arc<Shared>,
}

struct Shared {
    node: Arc<Node>,
    committer: Committer,
    table: Mutex<Table>,
    claims: Semaphore,
    agents: Arc<Agents>,
    on_published: OnPublished,
}

#[derive(Default)]
struct Table {
    entries: BTreeMap<ConvKey, Entry>,
    closed: bool,
}

/// What a look at the table says.
enum Lookup {
    Active(OwnerHandle),
    Wait(watch::Receiver<()>),
    /// The entry is ours to settle; dropping the sender wakes those who wait.
    Settle(watch::Sender<()>, Option<Tenure>),
}

impl Router {
    /// A router for a node, with its group commit and its sweep.
    #[must_use]
    pub fn start(node: Arc<Node>, agents: Arc<Agents>, on_published: OnPublished) -> Self {
        let committer = commit::start(&node);
        let claims = Semaphore::new(node.limits.claims);
        let table = Mutex::new(Table::default());
        let router = Self { shared: Arc::new(Shared { node, committer, table, claims, agents, on_published }) };
        router.shared.node.seams.spawn("router sweep", router.clone().sweep());
        router
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.shared.table.lock().expect("no holder of the table panics")
    }

    /// The owner, if its task runs here; never waits.
    #[must_use]
    pub fn active(&self, conversation: &ConvRef) -> Option<OwnerHandle> {
        match self.table().entries.get(&conversation.key) {
            Some(Entry::Active(handle)) if !handle.is_gone() => Some(handle.clone()),
            _ => None,
        }
    }

    /// True once [`Router::shut_down`] was called.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.table().closed
    }

    /// How many conversations this node owns, with a task and hibernating.
    #[must_use]
    pub fn owned(&self) -> usize {
        self.table().entries.len()
    }

    /// Appends through the owner, waiting and asking again inside the node's own bounds.
    ///
    /// # Errors
    /// `not_found`, the owner's definite refusal, or one with a directive when the bounds are spent.
    pub async fn append(&self, conversation: &ConvRef, drafts: Vec<Draft>) -> Result<Vec<Receipt>, Refusal> {
        self.with_owner(conversation, |owner| {
            let drafts = drafts.clone();
            async move { owner.append(drafts).await }
        })
        .await
    }

    /// Follows a conversation, claiming it where nobody owns it (F7).
    ///
    /// # Errors
    /// As [`Router::append`].
    pub async fn follow(&self, conversation: &ConvRef) -> Result<Follow, Refusal> {
        self.with_owner(conversation, |owner| async move { owner.follow().await }).await
    }

    /// Runs `ask` on the owner, again and again while the refusal says that ownership moves, inside the route budget.
    async fn with_owner<T, F, A>(&self, conversation: &ConvRef, ask: A) -> Result<T, Refusal>
    where
        A: Fn(OwnerHandle) -> F,
        F: Future<Output = Result<T, Refusal>>,
    {
        let seams = &self.shared.node.seams;
        let give_up = seams.now() + self.shared.node.limits.route_budget;
        let mut wait = Duration::from_millis(10);
        loop {
            let refusal = match self.owner(conversation).await {
                Ok(owner) => match ask(owner).await {
                    Ok(answer) => return Ok(answer),
                    Err(refusal) => refusal,
                },
                Err(refusal) => refusal,
            };
            let moving = refusal.code == Code::ConversationUnavailable && refusal.retry.is_some();
            if !moving || seams.now() + wait >= give_up {
                return Err(refusal);
            }
            seams.sleep(wait / 2 + seams.jitter(wait / 2)).await;
            wait = (wait * 2).min(Duration::from_millis(500));
        }
    }

    /// The owner, here: its running task, or one started after a claim.
    ///
    /// # Errors
    /// `not_found`, or a refusal with a directive.
    pub async fn owner(&self, conversation: &ConvRef) -> Result<OwnerHandle, Refusal> {
        loop {
            match self.look_up(conversation)? {
                Lookup::Active(handle) => return Ok(handle),
                // An error means that the claim was settled, one way or another.
                Lookup::Wait(mut settled) => drop(settled.changed().await),
                Lookup::Settle(settled, tenure) => return self.settle(conversation, tenure, settled).await,
            }
        }
    }

    fn look_up(&self, conversation: &ConvRef) -> Result<Lookup, Refusal> {
        let mut table = self.table();
        if table.closed {
            return Err(draining());
        }
        match table.entries.get(&conversation.key) {
            Some(Entry::Active(handle)) if !handle.is_gone() => return Ok(Lookup::Active(handle.clone())),
            Some(Entry::Claiming(settled)) => return Ok(Lookup::Wait(settled.clone())),
            _ => {}
        }
        let (settle, settled) = watch::channel(());
        let tenure = match table.entries.insert(conversation.key, Entry::Claiming(settled)) {
            Some(Entry::Hibernating { tenure, .. }) => Some(tenure),
            _ => None,
        };
        Ok(Lookup::Settle(settle, tenure))
    }

    /// Turns our `Claiming` entry into an active one, or removes it. Runs in a task of its own, so that a caller who goes
    /// away leaves no entry behind that nobody settles.
    async fn settle(
        &self,
        conversation: &ConvRef,
        tenure: Option<Tenure>,
        settled: watch::Sender<()>,
    ) -> Result<OwnerHandle, Refusal> {
        let (answer, outcome) = tokio::sync::oneshot::channel();
        let (router, conversation) = (self.clone(), conversation.clone());
        self.shared.node.seams.spawn("claim", async move {
            let result = router.arm(&conversation, tenure).await.map(|tenure| router.start_owner(tenure));
            if result.is_err() {
                router.table().entries.remove(&conversation.key);
            }
            drop(settled);
            // A caller who went away needs no answer.
            let _ = answer.send(result);
        });
        outcome.await.unwrap_or_else(|_| Err(moved()))
    }

    async fn arm(&self, conversation: &ConvRef, tenure: Option<Tenure>) -> Result<Tenure, Refusal> {
        if let Some(tenure) = tenure {
            return Ok(tenure);
        }
        let node = &self.shared.node;
        let _permit = bounded::acquire(&self.shared.claims, &node.metrics, metrics::Queue::Claims)
            .await
            .map_err(|_| draining())?;
        let store = &self.shared.node.store;
        let resolution = store.resolve(conversation).await.map_err(|error| store_refusal(&error))?;
        let Some(resolution) = resolution else {
            return Err(Refusal::new(Code::NotFound, format!("there is no conversation {}", conversation.id)));
        };
        let armed = self.claim(conversation, &resolution).await?;
        let log = store.log().await.map_err(|error| store_refusal(&error))?;
        let reign = Reign {
            epoch: armed.epoch,
            last_seq: armed.last_seq,
            first_seq: armed.first_seq,
            reserved_to: Seq(armed.first_seq.0 - 1),
        };
        let info = store.conversation(conversation).await.map_err(|error| store_refusal(&error))?.ok_or_else(moved)?;
        let (kind, agent) = (info.kind, info.agent);
        Ok(Tenure { conversation: conversation.clone(), reign, generation: armed.generation, log, kind, agent })
    }

    /// The four cases of a claim; see docs/ARCHITECTURE.md, "Ownership".
    async fn claim(&self, conversation: &ConvRef, resolution: &Resolution) -> Result<Armed, Refusal> {
        let node = &self.shared.node;
        let seen_owner = resolution.owner.as_ref().map(|owner| owner.incarnation);
        if let Some(owner) = &resolution.owner
            && owner.incarnation != node.me
            && let Some(row) = &owner.node
        {
            node.metrics.claimed(metrics::ClaimOutcome::Held);
            let detail = format!("node {} owns the conversation", row.registration.node);
            return Err(Refusal::retry(Code::ConversationUnavailable, detail, Retry::SOON));
        }
        let moment = node.moment();
        if moment.now >= moment.valid_until {
            let detail = "the node renews its lease";
            return Err(Refusal::retry(Code::ConversationUnavailable, detail, Retry::SOON));
        }
        let request = ClaimRequest {
            conversation: conversation.key,
            me: node.me,
            seen_epoch: resolution.epoch,
            seen_owner,
            margin: node.timing.margin,
            gap: node.limits.gap,
        };
        let outcome = node.store.claim(&request).await;
        node.metrics.claimed(match &outcome {
            Ok(ClaimOutcome::Won(_)) => metrics::ClaimOutcome::Won,
            Ok(ClaimOutcome::Lost) => metrics::ClaimOutcome::Lost,
            Err(_) => metrics::ClaimOutcome::Failed,
        });
        match outcome {
            Ok(ClaimOutcome::Won(armed)) => Ok(armed),
            Ok(ClaimOutcome::Lost) => Err(moved()),
            // Whether it was applied is found out by the next resolve: "mine, without a task".
            Err(error) if error.is_ambiguous() => Err(moved()),
            Err(error) => Err(store_refusal(&error)),
        }
    }

    fn start_owner(&self, tenure: Tenure) -> OwnerHandle {
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
        table.entries.insert(key, Entry::Active(handle.clone()));
        self.count_owned(&table);
        handle
    }

    fn count_owned(&self, table: &Table) {
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
        match end {
            End::Hibernated(tenure) => {
                table.entries.insert(conversation.key, Entry::Hibernating { tenure, since });
            }
            End::Gone => {
                table.entries.remove(&conversation.key);
            }
        }
        self.count_owned(&table);
    }

    /// Gives up the leases of conversations that hibernate for long.
    async fn sweep(self) {
        loop {
            self.shared.node.seams.sleep(SWEEP).await;
            let now = self.shared.node.seams.now();
            let release_after = self.shared.node.limits.release_after;
            let due = self.take_hibernating(|since| now.since(since) >= release_after);
            for (tenure, settled) in due {
                self.release(&tenure).await;
                self.table().entries.remove(&tenure.conversation.key);
                drop(settled);
            }
            if self.table().closed {
                return;
            }
        }
    }

    /// Marks hibernating entries as being settled and hands them out.
    fn take_hibernating(&self, wanted: impl Fn(Monotonic) -> bool) -> Vec<(Tenure, watch::Sender<()>)> {
        let mut taken = Vec::new();
        for entry in self.table().entries.values_mut() {
            if let Entry::Hibernating { tenure, since } = entry
                && wanted(*since)
            {
                let (settle, settled) = watch::channel(());
                taken.push((tenure.clone(), settle));
                *entry = Entry::Claiming(settled);
            }
        }
        taken
    }

    async fn release(&self, tenure: &Tenure) {
        let Tenure { conversation, reign, .. } = tenure;
        let held = Held { conversation: conversation.key, epoch: reign.epoch, me: self.shared.node.me };
        if let Err(error) = self.shared.node.store.release(&held, reign.first_seq).await {
            tracing::warn!(conversation = %conversation.id, epoch = %reign.epoch, %error, "a lease was not released");
        }
    }

    /// Refuses whatever comes from now on, lets every owner finish what is under way and releases all leases.
    pub async fn shut_down(&self) {
        self.table().closed = true;
        loop {
            let Unfinished { active, mut claiming, ending } = self.unfinished();
            if active.is_empty() && claiming.is_empty() && ending == 0 {
                break;
            }
            // All at once, so that they share the store's commits.
            join_all(active.iter().map(OwnerHandle::release)).await;
            for settled in &mut claiming {
                // An error means that the claim was settled; its owner is found at the next look.
                let _ = settled.changed().await;
            }
            if ending > 0 {
                self.shared.node.seams.sleep(ENDING).await;
            }
        }
        let hibernating = self.take_hibernating(|_| true);
        join_all(hibernating.iter().map(|(tenure, _settled)| self.release(tenure))).await;
    }

    /// What a shutdown still waits for.
    fn unfinished(&self) -> Unfinished {
        let mut unfinished = Unfinished::default();
        for entry in self.table().entries.values() {
            match entry {
                Entry::Active(handle) if handle.is_gone() => unfinished.ending += 1,
                Entry::Active(handle) => unfinished.active.push(handle.clone()),
                Entry::Claiming(settled) => unfinished.claiming.push(settled.clone()),
                Entry::Hibernating { .. } => {}
            }
        }
        unfinished
    }
}

/// See [`Router::unfinished`].
#[derive(Default)]
struct Unfinished {
    /// Owners that run.
    active: Vec<OwnerHandle>,
    /// Claims under way.
    claiming: Vec<watch::Receiver<()>>,
    /// Owners that accept nothing more and are about to say how they ended.
    ending: usize,
}

/// The refusal of a node that stops.
pub(crate) fn draining() -> Refusal {
    Refusal::retry(Code::Draining, "the node shuts down", Retry { after_ms: 1_000, budget_ms: 30_000 })
}
