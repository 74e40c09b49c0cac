//! The store as the simulation sees it: the memory store, with every claim and every commit written into the history at
//! the very moment it is applied. That is what makes invariants 7 and 8 checkable.
//!
//! Also the place of the one guard that no backend has: "ack before commit".

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use conch_core::history::Event;
use conch_core::ids::{ClientMsgId, ConvKey, ConvRef, ConversationId, Epoch, Incarnation, LogId, Region, Seq, Subject};
use conch_core::time::Timestamp;
use conch_server::seams::Clock as _;
use conch_store::memory::MemoryStore;
use conch_store::{
    AppendOutcome, Armed, Batch, Checkpoint, ClaimOutcome, ClaimRequest, ConversationInfo, ConversationPatch, Created,
    CursorOutcome, DueQuery, DueRow, Held, Landed, LeaseStore, Lifeline, Lifelines, LogStore, Member, MembershipChange,
    NewConversation, NodeRow, Page, RangeQuery, Registration, Resolution, Resolved, StoreError, Summary, SummaryPage,
};

use crate::coverage::Tally;
use crate::dice::Dice;
use crate::executor::Process;
use crate::history::History;
use crate::shared::{Shared, lock};

/// When a commit is answered.
#[derive(Clone)]
pub enum Answer {
    /// After it was applied.
    AfterCommit,
    /// Before it is applied, which is the mutant that every check of acks must catch.
    BeforeCommit(Shared<Dice>),
}

/// See the module's description.
#[derive(Clone)]
pub struct Recorder {
    inner: MemoryStore,
    history: History,
    world: Process,
    names: Arc<BTreeMap<ConvKey, ConversationId>>,
    answer: Answer,
    tally: Tally,
    regions: Shared<Regions>,
    resolved: Shared<u64>,
    traffic: Shared<Traffic>,
}

/// What went to the store and came from it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Rows of the log that were read.
    pub rows_read: u64,
    /// Bytes of records' bodies and of checkpoints that were sent to be written.
    pub bytes_written: u64,
}

/// Who is where, and what may be owned where.
#[derive(Default)]
struct Regions {
    nodes: BTreeMap<Incarnation, Region>,
    /// Empty: anywhere.
    allowed: BTreeMap<ConvKey, Vec<Region>>,
    /// Claims and hand-overs to where the conversation may not be, in sentences.
    trespasses: Vec<String>,
}

impl Recorder {
    /// Records what happens to these conversations.
    #[must_use]
    pub fn new(
        inner: MemoryStore,
        history: History,
        world: Process,
        conversations: &[ConvRef],
        tally: Tally,
        answer: Answer,
    ) -> Self {
        let names = conversations.iter().map(|conversation| (conversation.key, conversation.id.clone())).collect();
        Self {
            inner,
            history,
            world,
            names: Arc::new(names),
            answer,
            tally,
            regions: Shared::default(),
            resolved: Shared::default(),
            traffic: Shared::default(),
        }
    }

    /// Where conversations were owned that may not be there.
    #[must_use]
    pub fn trespasses(&self) -> Vec<String> {
        lock(&self.regions).trespasses.clone()
    }

    /// How often an owner was looked up.
    #[must_use]
    pub fn resolved(&self) -> u64 {
        *lock(&self.resolved)
    }

    /// What went to the store and came from it so far.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        *lock(&self.traffic)
    }

    /// The store behind.
    #[must_use]
    pub fn inner(&self) -> &MemoryStore {
        &self.inner
    }

    fn claimed(&self, key: ConvKey, by: Incarnation, armed: &Armed) {
        lock(&self.regions).claimed(key, by);
        let conversation = self.names.get(&key).expect("a conversation of this simulation").clone();
        self.tally.count(|coverage| coverage.claims += 1);
        self.history.add(|t_us| Event::Claimed { conversation, epoch: armed.epoch, t_us });
    }

    async fn apply(&self, me: Incarnation, batches: Vec<Batch>) -> Result<Vec<AppendOutcome>, StoreError> {
        let asked = batches.clone();
        let bodies = batches.iter().flat_map(|batch| &batch.records).map(|(_, draft)| draft.body.as_str().len() as u64);
        lock(&self.traffic).bytes_written += bodies.sum::<u64>();
        let outcomes = self.inner.append(me, batches).await?;
        for (batch, outcome) in asked.iter().zip(&outcomes) {
            match outcome {
                AppendOutcome::Landed { duplicates, .. } => {
                    let landed =
                        batch.records.iter().filter(|(seq, _)| duplicates.iter().all(|known| known.seq != *seq));
                    for (seq, _) in landed {
                        let (conversation, epoch) = (batch.conversation.id.clone(), batch.epoch);
                        self.history.add(|t_us| Event::Committed { conversation, seq: *seq, epoch, t_us });
                    }
                }
                other => {
                    self.tally.count(|coverage| {
                        coverage.fenced += u64::from(*other == AppendOutcome::Fenced);
                        coverage.rewound += u64::from(*other == AppendOutcome::Rewound);
                    });
                    self.world.note(format_args!("append to {} by {}: {other:?}", batch.conversation.id, batch.epoch));
                }
            }
        }
        Ok(outcomes)
    }

    /// Says that everything has landed, and applies it a little later.
    fn answer_first(&self, dice: &Shared<Dice>, me: Incarnation, batches: Vec<Batch>) -> Vec<AppendOutcome> {
        let at = self.world.wall();
        let outcomes = batches.iter().map(|_| AppendOutcome::Landed { at, duplicates: Vec::new() }).collect();
        let wait = lock(dice).between(Duration::ZERO, Duration::from_millis(20));
        let (store, world) = (self.clone(), self.world.clone());
        self.world.spawn("late commit", async move {
            world.sleep(wait).await;
            drop(store.apply(me, batches).await);
        });
        outcomes
    }
}

impl Regions {
    fn claimed(&mut self, key: ConvKey, by: Incarnation) {
        let allowed = self.allowed.get(&key).map(Vec::as_slice).unwrap_or_default();
        let region = self.nodes.get(&by);
        if !allowed.is_empty() && !region.is_some_and(|region| allowed.contains(region)) {
            self.trespasses.push(format!("{key:?} is owned in {region:?}, but may only be in {allowed:?}"));
        }
    }
}

/// Passes calls on; the `special` ones are written out.
macro_rules! pass_on {
    (impl $trait:ident { $(fn $name:ident($($argument:ident: $type:ty),*) -> $answer:ty;)* special { $($special:tt)* } }) => {
        #[async_trait]
        impl $trait for Recorder {
            $(async fn $name(&self, $($argument: $type),*) -> Result<$answer, StoreError> {
                self.inner.$name($($argument),*).await
            })*
            $($special)*
        }
    };
}

pass_on! {
    impl LeaseStore {
        fn renew(me: Incarnation, ttl: Duration) -> Option<u64>;
        fn replace_lifeline(me: Incarnation, ttl: Duration, lifeline: Lifeline) -> Option<u64>;
        fn nodes() -> Vec<NodeRow>;
        fn set_draining(me: Incarnation) -> bool;
        fn deregister(me: Incarnation) -> bool;
        fn expel(dead: Incarnation) -> bool;
        fn release(held: &Held, first_seq: Seq) -> bool;
        special {
            async fn register(&self, registration: &Registration, ttl: Duration) -> Result<(), StoreError> {
                let Registration { incarnation, region, .. } = registration.clone();
                lock(&self.regions).nodes.insert(incarnation, region);
                self.inner.register(registration, ttl).await
            }

            async fn release_wedged(&self, held: &Held, gap: u64) -> Result<bool, StoreError> {
                let released = self.inner.release_wedged(held, gap).await?;
                self.tally.count(|coverage| coverage.wedged += u64::from(released));
                Ok(released)
            }

            async fn resolve(&self, conversation: &ConvRef) -> Result<Option<Resolution>, StoreError> {
                *lock(&self.resolved) += 1;
                self.inner.resolve(conversation).await
            }

            async fn resolve_many(&self, conversations: &[ConvRef]) -> Result<Vec<Resolved>, StoreError> {
                *lock(&self.resolved) += conversations.len() as u64;
                self.inner.resolve_many(conversations).await
            }

            fn lifelines(&self) -> Option<Arc<dyn Lifelines>> {
                self.inner.lifelines()
            }

            async fn declare_expired(
                &self,
                dead: Incarnation,
                seen_beat: u64,
                ttl: Duration,
                margin: Duration,
            ) -> Result<bool, StoreError> {
                let declared = self.inner.declare_expired(dead, seen_beat, ttl, margin).await?;
                self.tally.count(|coverage| coverage.expired += u64::from(declared));
                Ok(declared)
            }

            async fn declare_process_dead(
                &self,
                dead: Incarnation,
                seen_beat: u64,
                seen_lifeline: Lifeline,
            ) -> Result<bool, StoreError> {
                let declared = self.inner.declare_process_dead(dead, seen_beat, seen_lifeline).await?;
                self.tally.count(|coverage| coverage.processes_dead += u64::from(declared));
                Ok(declared)
            }

            async fn claim(&self, request: &ClaimRequest) -> Result<ClaimOutcome, StoreError> {
                let outcome = self.inner.claim(request).await?;
                if let ClaimOutcome::Won(armed) = &outcome {
                    self.claimed(request.conversation, request.me, armed);
                    let takeover = request.seen_owner.is_some_and(|owner| owner != request.me);
                    self.tally.count(|coverage| coverage.takeovers += u64::from(takeover));
                }
                Ok(outcome)
            }

            async fn hand_off(
                &self,
                held: &Held,
                to: Incarnation,
                first_seq: Seq,
                margin: Duration,
            ) -> Result<Option<Armed>, StoreError> {
                let armed = self.inner.hand_off(held, to, first_seq, margin).await?;
                if let Some(armed) = &armed {
                    self.claimed(held.conversation, to, armed);
                    self.tally.count(|coverage| coverage.hand_overs += 1);
                }
                Ok(armed)
            }
        }
    }
}

pass_on! {
    impl LogStore {
        fn log() -> LogId;
        fn count_after(conversation: &ConvRef, after: Seq, limit: usize) -> usize;
        fn find(conversation: &ConvRef, sender: &Subject, id: &ClientMsgId) -> Option<Landed>;
        fn conversation(conversation: &ConvRef) -> Option<ConversationInfo>;
        fn patch_conversation(conversation: &ConvRef, patch: &ConversationPatch) -> Option<ConversationInfo>;
        fn add_member(conversation: &ConvRef, sub: &Subject) -> MembershipChange;
        fn remove_member(conversation: &ConvRef, sub: &Subject) -> MembershipChange;
        fn is_member(conversation: &ConvRef, sub: &Subject) -> bool;
        fn members(conversation: &ConvRef, after: Option<&Subject>, limit: usize) -> Option<(Vec<Member>, bool)>;
        fn summaries(sub: &Subject, after: Option<&(Timestamp, ConversationId)>, limit: usize) -> SummaryPage;
        fn summary(sub: &Subject, conversation: &ConvRef) -> Option<Summary>;
        fn move_cursor(conversation: &ConvRef, sub: &Subject, to: Seq) -> CursorOutcome;
        fn due(query: &DueQuery) -> Vec<DueRow>;
        fn checkpoint(conversation: &ConvRef) -> Option<Checkpoint>;
        special {
            async fn create_conversation(&self, new: &NewConversation) -> Result<Created, StoreError> {
                lock(&self.regions).allowed.insert(new.conversation.key, new.regions.clone());
                self.inner.create_conversation(new).await
            }

            async fn range(&self, query: &RangeQuery) -> Result<Option<Page>, StoreError> {
                let page = self.inner.range(query).await?;
                lock(&self.traffic).rows_read += page.as_ref().map_or(0, |page| page.records.len() as u64);
                Ok(page)
            }

            async fn save_checkpoint(
                &self,
                conversation: &ConvRef,
                epoch: Epoch,
                me: Incarnation,
                checkpoint: &Checkpoint,
            ) -> Result<bool, StoreError> {
                lock(&self.traffic).bytes_written += checkpoint.state.len() as u64;
                self.inner.save_checkpoint(conversation, epoch, me, checkpoint).await
            }

            async fn append(&self, me: Incarnation, batches: Vec<Batch>) -> Result<Vec<AppendOutcome>, StoreError> {
                match &self.answer {
                    Answer::AfterCommit => self.apply(me, batches).await,
                    Answer::BeforeCommit(dice) => Ok(self.answer_first(dice, me, batches)),
                }
            }
        }
    }
}
