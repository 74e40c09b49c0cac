//! The router: from a conversation to its owner, whoever that is, and back with an outcome.
//!
//! Every write and every follow of every entry point comes through here: resolve, then run here or pass on over the link.
//! The table holds what this node owns; it is a cache of beliefs, and whoever acts on it survives its being wrong, because
//! the fence decides.
//!
//! Invariants kept here: at most one owner task per conversation on a node (one entry, one claim at a time); an unknown
//! outcome is settled by asking again under the same key, never by assuming (invariant 4); a write is passed on at most
//! twice ([`Hops`]).
//!
//! Deliberately absent: opinions about who is alive ([`crate::cluster`]), and bytes on a wire ([`crate::link`]).

mod balance;
mod claims;
mod drain;
mod keeping;
mod lookups;
mod seeking;
mod setup;
mod sighting;
pub mod survey;
mod table;
#[cfg(test)]
mod tests;

use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use conch_core::ids::{ConvKey, ConvRef, Epoch, Incarnation, Region};
use conch_core::record::Draft;
use conch_core::refusal::{Code, Refusal, Retry};
use conch_core::sequencer::Receipt;
use conch_core::time::Monotonic;
use conch_core::turn::cancel::TurnAsk;
use conch_store::{Armed, ClaimRequest, Held};
use serde::Serialize;
use tokio::sync::{Semaphore, watch};

use self::lookups::Lookups;
use self::table::{Entry, Lookup, Sleeper, Stage, Table};
use crate::bounded;
use crate::cluster::claims::{ClaimRate, Urgency};
use crate::cluster::nodes::View;
use crate::link::{Hops, Link, LinkError, Peer, Request, Response};
use crate::metrics;
use crate::node::Node;
use crate::owner::commit::{self, Committer};
use crate::owner::{self, Charge, End, Follow, OnPublished, OwnerHandle, Tenure, moved, store_refusal};
use crate::rules::Rule;
use crate::turn::agents::Agents;
use crate::turn::{lookup, schema};
pub use sighting::{READ_WITHIN, Sighting};

/// How long one peer may take with one try; then it is resolved anew, and whoever owns it is asked the same again.
const TRY_AT_MOST: Duration = Duration::from_secs(1);

/// How long a follower stays away at most because it was told to.
const TOLD_AT_MOST: Duration = Duration::from_secs(1);

/// What a router needs besides its node.
pub struct Parts {
    /// Who answers in sessions.
    pub agents: Arc<Agents>,
    /// Told of what was published here.
    pub on_published: OnPublished,
    /// The way to other nodes.
    pub link: Arc<dyn Link>,
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
    lookups: Lookups,
    /// Owners that change hands at once when their patience is over.
    hand_overs: Arc<Semaphore>,
    /// Conversations whose reign ended in doubt that are resolved at once.
    looks: Semaphore,
    takers: seeking::Takers,
    claim_rate: ClaimRate,
    balance: Mutex<balance::Balance>,
    agents: Arc<Agents>,
    on_published: OnPublished,
    link: Arc<dyn Link>,
}

/// Where a conversation is owned, or should be.
#[derive(Clone)]
pub enum Place {
    /// By a task of this node.
    Here(OwnerHandle),
    /// By that node.
    There(Peer),
}

/// On whose behalf an owner is looked for.
#[derive(Debug, Clone, Copy)]
struct Seeking {
    /// A node that did not answer a moment ago.
    avoid: Option<Incarnation>,
    /// Whether somebody waits for a claim.
    urgency: Urgency,
}

/// One try at an owner.
enum Attempt<T> {
    /// The owner's definite answer.
    Answered(Result<T, Refusal>),
    /// The link's failure to reach this peer.
    Failed(Peer, LinkError),
}

impl Router {
    /// A router for a node, with its group commit, its sweep and its watchdog.
    #[must_use]
    pub fn start(node: Arc<Node>, parts: Parts) -> Self {
        let committer = commit::start(&node);
        let claims = Semaphore::new(node.limits.claims);
        let lookups = Lookups::start(&node);
        let few = if node.rules.hold(Rule::FewHandOverAtOnce) { drain::AT_ONCE } else { Semaphore::MAX_PERMITS };
        let hand_overs = Arc::new(Semaphore::new(few));
        let looks = Semaphore::new(keeping::LOOKS_AT_ONCE);
        let claim_rate = ClaimRate::new(node.limits.claims_per_s, node.limits.claims_burst);
        let balance = Mutex::new(balance::Balance::new(&node.limits, &node.rules));
        let table = Mutex::new(Table::default());
        let Parts { agents, on_published, link } = parts;
        let shared = Shared {
            node,
            committer,
            table,
            claims,
            lookups,
            hand_overs,
            looks,
            takers: seeking::Takers::default(),
            claim_rate,
            balance,
            agents,
            on_published,
            link,
        };
        let router = Self { shared: Arc::new(shared) };
        let seams = &router.shared.node.seams;
        seams.spawn("router sweep", router.clone().sweep());
        seams.spawn("watchdog", router.clone().watch());
        seams.spawn("evening out", router.clone().even_out());
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
        self.table().stage == Stage::Closed
    }

    /// How many conversations this node owns, with a task and hibernating.
    #[must_use]
    pub fn owned(&self) -> usize {
        self.table().entries.len()
    }

    /// Appends through the owner, wherever it is, waiting and asking again inside the node's own bounds.
    ///
    /// # Errors
    /// `not_found`, the owner's definite refusal, or one with a directive when the bounds are spent.
    pub async fn append(&self, conversation: &ConvRef, drafts: Vec<Draft>) -> Result<Vec<Receipt>, Refusal> {
        self.append_within(conversation, drafts, Hops::START, self.shared.node.limits.route_budget).await
    }

    /// As [`Router::append`], for a write that another node passed on.
    ///
    /// # Errors
    /// As [`Router::append`]; with no hops left, a conversation that is owned elsewhere is refused with a directive.
    pub async fn append_within(
        &self,
        conversation: &ConvRef,
        drafts: Vec<Draft>,
        hops: Hops,
        budget: Duration,
    ) -> Result<Vec<Receipt>, Refusal> {
        let drafts = &drafts;
        self.with_owner(conversation, budget, Urgency::Waiting, |place, left| async move {
            match place {
                Place::Here(owner) => Attempt::Answered(owner.append(drafts.clone()).await),
                Place::There(peer) => {
                    let (conversation, drafts) = (conversation.id.clone(), drafts.clone());
                    self.pass_on(peer, |hops| Request::Append { conversation, drafts, hops }, hops, left).await
                }
            }
        })
        .await
    }

    async fn pass_on(
        &self,
        peer: Peer,
        request: impl FnOnce(Hops) -> Request,
        hops: Hops,
        within: Duration,
    ) -> Attempt<Vec<Receipt>> {
        let hops = match hops.less_one() {
            None if self.shared.node.rules.hold(Rule::HopsEnd) => return Attempt::Answered(Err(moved())),
            less => less.unwrap_or(hops),
        };
        self.shared.node.metrics.forwarded.inc();
        match self.while_it_lives(&peer, self.shared.link.ask(&peer, request(hops), within)).await {
            Ok(Response::Appended(answer)) => Attempt::Answered(answer),
            Ok(other) => Attempt::Failed(peer, LinkError::Ambiguous(format!("the peer answered {other:?}"))),
            Err(error) => Attempt::Failed(peer, error),
        }
    }

    /// What a peer answers, unless its row goes first: who was declared dead answers no more, and a successor waits.
    async fn while_it_lives<T>(
        &self,
        peer: &Peer,
        call: impl Future<Output = Result<T, LinkError>>,
    ) -> Result<T, LinkError> {
        let mut views = self.shared.node.nodes.watch();
        let asked_at = self.shared.node.seams.now();
        // A view that was read before may be older than the peer, and not know it yet.
        let lacks_it = |view: &Arc<View>| {
            view.read_at.is_some_and(|read_at| read_at >= asked_at)
                && view.rows.iter().all(|row| row.registration.incarnation != peer.incarnation)
        };
        let gone = async {
            if views.wait_for(lacks_it).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        // Dropping the call gives its answer up, which is of unknown outcome then.
        tokio::select! {
            biased;
            answer = call => answer,
            () = gone => Err(LinkError::Ambiguous("its row is gone".to_owned())),
        }
    }

    /// Follows a conversation wherever it is owned, claiming it where nobody owns it (F7), at the rate of claims that nobody
    /// waits for.
    ///
    /// # Errors
    /// As [`Router::append`].
    pub async fn follow(&self, conversation: &ConvRef) -> Result<Follow, Refusal> {
        let budget = self.shared.node.limits.route_budget;
        self.with_owner(conversation, budget, Urgency::Background, |place, left| async move {
            match place {
                Place::Here(owner) => Attempt::Answered(owner.follow().await),
                Place::There(peer) => {
                    match self.while_it_lives(&peer, self.shared.link.follow(&peer, &conversation.id, left)).await {
                        Ok(answer) => Attempt::Answered(answer),
                        Err(error) => Attempt::Failed(peer, error),
                    }
                }
            }
        })
        .await
    }

    /// Lets a peer follow what is owned here, or by nobody and best here (F7). Passes nothing on: a follower of an owner that
    /// is none resolves again.
    ///
    /// # Errors
    /// A refusal with a directive when another node owns the conversation, or should.
    pub async fn follow_here(&self, conversation: &ConvRef) -> Result<Follow, Refusal> {
        if !self.shared.node.rules.hold(Rule::BetterPlaceSettles)
            && !self.table().entries.contains_key(&conversation.key)
        {
            return Err(moved());
        }
        let seeking = Seeking { avoid: None, urgency: Urgency::Background };
        match self.place_for(conversation, seeking).await? {
            Place::Here(owner) => owner.follow().await,
            Place::There(_) => Err(moved()),
        }
    }

    /// Asks something of a conversation's turns through its owner, wherever it is, as [`Router::append`] appends: it is asked
    /// again while ownership moves, and what was done before answers as it did.
    ///
    /// # Errors
    /// As [`Router::append`]; a conflict that says what became of the turn or await; `invalid_request` for an answer that does
    /// not fit the await's schema; `idempotency_key_reused` for a request to run a turn again under a key of something else.
    pub async fn turn(&self, conversation: &ConvRef, ask: TurnAsk) -> Result<Vec<Receipt>, Refusal> {
        let store = &*self.shared.node.store;
        if let TurnAsk::Resolve(answer) = &ask {
            schema::fits(store, conversation, answer).await?;
        }
        if let TurnAsk::Regenerate(again) = &ask
            && let Some(receipt) = lookup::written(store, conversation, &again.draft()).await?
        {
            return Ok(vec![receipt]);
        }
        self.turn_within(conversation, ask, Hops::START, self.shared.node.limits.route_budget).await
    }

    /// As [`Router::turn`], for what another node passed on.
    ///
    /// # Errors
    /// As [`Router::append_within`].
    pub async fn turn_within(
        &self,
        conversation: &ConvRef,
        ask: TurnAsk,
        hops: Hops,
        budget: Duration,
    ) -> Result<Vec<Receipt>, Refusal> {
        let ask = &ask;
        self.with_owner(conversation, budget, Urgency::Waiting, |place, left| async move {
            match place {
                Place::Here(owner) => Attempt::Answered(owner.turn(ask.clone()).await),
                Place::There(peer) => {
                    let request =
                        |hops| Request::Turn { conversation: conversation.id.clone(), ask: ask.clone(), hops };
                    self.pass_on(peer, request, hops, left).await
                }
            }
        })
        .await
    }

    /// True if the last look at the nodes does not show it. It was declared dead, and may answer all the same because it does
    /// not know; or it came so lately that the next look will show it, and until then the store is asked.
    fn is_missing(&self, peer: &Peer) -> bool {
        let view = self.shared.node.nodes.view();
        let judged = view.read_at.is_some() && self.shared.node.rules.hold(Rule::DeathForgets);
        judged && view.rows.iter().all(|row| row.registration.incarnation != peer.incarnation)
    }

    /// What is believed of an owner elsewhere has proved wrong, or useless.
    pub fn forget(&self, conversation: &ConvRef) {
        self.table().forget(conversation.key);
    }

    /// Runs `ask` on the owner, again and again while ownership moves or the link fails, inside the budget. Each call is
    /// given what is left of that, up to [`TRY_AT_MOST`].
    async fn with_owner<T, F, A>(
        &self,
        conversation: &ConvRef,
        budget: Duration,
        urgency: Urgency,
        ask: A,
    ) -> Result<T, Refusal>
    where
        A: Fn(Place, Duration) -> F,
        F: Future<Output = Attempt<T>>,
    {
        let seams = &self.shared.node.seams;
        let give_up = seams.now() + budget;
        let mut wait = Duration::from_millis(10);
        let mut avoid = None;
        loop {
            let refusal = match self.place_by(conversation, Seeking { avoid, urgency }, give_up).await {
                Ok(place) => match ask(place, give_up.since(seams.now()).min(TRY_AT_MOST)).await {
                    Attempt::Answered(Ok(answer)) => return Ok(answer),
                    Attempt::Answered(Err(refusal)) => refusal,
                    Attempt::Failed(peer, error) => {
                        tracing::debug!(conversation = %conversation.id, peer = %peer.incarnation, %error, "a peer did not answer");
                        avoid = Some(peer.incarnation);
                        self.shared.node.metrics.link_failures.inc();
                        moved()
                    }
                },
                Err(refusal) => refusal,
            };
            // Whoever waits is told the reason at once; a follower stays.
            let no_way = urgency == Urgency::Waiting && claims::has_no_way(&refusal);
            let moving = self.is_moving(&refusal) && !no_way;
            if moving && self.shared.node.rules.hold(Rule::TroubleForgets) {
                self.forget(conversation);
            }
            let pause = (wait / 2 + seams.jitter(wait / 2)).max(self.told_to_wait(&refusal, urgency));
            if !moving || !self.shared.node.rules.hold(Rule::MovingAsksAgain) || seams.now() + pause >= give_up {
                return Err(refusal);
            }
            seams.sleep(pause).await;
            wait = (wait * 2).min(Duration::from_millis(500));
        }
    }

    /// Does a refusal say that ownership moves? A peer that is on its way out has given away what it owned; this node's own
    /// end is definite.
    fn is_moving(&self, refusal: &Refusal) -> bool {
        let by_draining =
            refusal.code == Code::Draining && self.shared.node.rules.hold(Rule::DrainingMoves) && !self.is_closed();
        refusal.retry.is_some() && (refusal.code == Code::ConversationUnavailable || by_draining)
    }

    /// How long a refusal tells somebody whom nobody waits for to stay away, beyond what is usual.
    fn told_to_wait(&self, refusal: &Refusal, urgency: Urgency) -> Duration {
        let after_ms = refusal.retry.map_or(0, |retry| retry.after_ms);
        let honoured = self.shared.node.rules.hold(Rule::ClaimsWaitTheirTurn) && urgency == Urgency::Background;
        if !honoured || after_ms <= Retry::SOON.after_ms {
            return Duration::ZERO;
        }
        // Not for longer: somebody else may own it by then.
        let told = Duration::from_millis(after_ms).min(TOLD_AT_MOST);
        told + self.shared.node.seams.jitter(told / 4)
    }

    /// Where a conversation is owned: a running task here (one is started after a claim), or another node.
    ///
    /// # Errors
    /// `not_found`, or a refusal with a directive.
    pub async fn place(&self, conversation: &ConvRef, avoid: Option<Incarnation>) -> Result<Place, Refusal> {
        let by = self.shared.node.seams.now() + self.shared.node.limits.route_budget;
        self.place_by(conversation, Seeking { avoid, urgency: Urgency::Waiting }, by).await
    }

    /// The same, until then.
    async fn place_by(&self, conversation: &ConvRef, seeking: Seeking, by: Monotonic) -> Result<Place, Refusal> {
        if !self.shared.node.rules.hold(Rule::BudgetBoundsLooking) {
            return self.place_for(conversation, seeking).await;
        }
        // Both branches may be dropped: a claim goes on in its own task.
        tokio::select! {
            biased;
            place = self.place_for(conversation, seeking) => place,
            () = self.shared.node.seams.clock.sleep_until(by) => Err(moved()),
        }
    }

    async fn place_for(&self, conversation: &ConvRef, seeking: Seeking) -> Result<Place, Refusal> {
        loop {
            if self.is_closed() {
                return Err(draining());
            }
            let lookup = self.table().look_up(conversation.key);
            match lookup {
                Lookup::Active(handle) => return Ok(Place::Here(handle)),
                Lookup::Elsewhere(peer) if self.is_missing(&peer) => self.forget(conversation),
                Lookup::Elsewhere(peer) => return Ok(Place::There(peer)),
                // An error means that the claim was settled, one way or another.
                Lookup::Wait(mut settled) if self.shared.node.rules.hold(Rule::ClaimsAreShared) => {
                    drop(settled.changed().await);
                }
                Lookup::Wait(_) => return self.settle(conversation, None, seeking, watch::Sender::new(())).await,
                Lookup::Settle(settled, tenure) => return self.settle(conversation, tenure, seeking, settled).await,
            }
        }
    }
}

/// The refusal of a node that stops.
pub(crate) fn draining() -> Refusal {
    Refusal::retry(Code::Draining, "the node shuts down", Retry { after_ms: 1_000, budget_ms: 30_000 })
}
