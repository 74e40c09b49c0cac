//! How a conversation without a task here gets one: by the tenure that is kept, or by a claim, or not at all because
//! somebody else owns it or should.

use conch_core::conversation::ConversationKind;
use conch_core::placement::{self, Candidate, Intake, Placement, Wish};
use conch_store::{ClaimOutcome, ConversationInfo, NodeRow, Resolution};
use tokio::sync::SemaphorePermit;

use super::*;
use crate::events::{Event, WhyClaimed};
use crate::owner::Reading;

/// What came of settling an entry.
enum Settled {
    /// It is ours.
    Ours(Tenure),
    /// It is theirs, by the store's word.
    Theirs(Peer),
    /// Nobody owns it, and this one should.
    Better(Peer),
}

impl Router {
    /// Turns our `Claiming` entry into an active one, or removes it. Runs in a task of its own, so that a caller who goes
    /// away leaves no entry behind that nobody settles.
    pub(super) async fn settle(
        &self,
        conversation: &ConvRef,
        tenure: Option<Tenure>,
        seeking: Seeking,
        settled: watch::Sender<()>,
    ) -> Result<Place, Refusal> {
        let (answer, outcome) = tokio::sync::oneshot::channel();
        let (router, conversation) = (self.clone(), conversation.clone());
        self.shared.node.seams.spawn("claim", async move {
            let result = match router.arm(&conversation, tenure, seeking).await {
                Ok(Settled::Ours(tenure)) => Ok(Place::Here(router.start_owner(tenure))),
                Ok(Settled::Theirs(peer)) => {
                    router.remember(&conversation, &peer);
                    Ok(Place::There(peer))
                }
                Ok(Settled::Better(peer)) => Ok(Place::There(peer)),
                Err(refusal) => Err(refusal),
            };
            if !matches!(result, Ok(Place::Here(_))) {
                router.table().entries.remove(&conversation.key);
            }
            drop(settled);
            // A caller who went away needs no answer.
            let _ = answer.send(result);
        });
        outcome.await.unwrap_or_else(|_| Err(moved()))
    }

    fn remember(&self, conversation: &ConvRef, peer: &Peer) {
        let node = &self.shared.node;
        let spread = node.seams.random.bits();
        self.table().remember(conversation.key, peer.clone(), node.limits.known_owners, spread);
    }

    async fn arm(&self, conversation: &ConvRef, tenure: Option<Tenure>, seeking: Seeking) -> Result<Settled, Refusal> {
        if let Some(tenure) = tenure {
            return Ok(Settled::Ours(tenure));
        }
        let node = &self.shared.node;
        if seeking.urgency == Urgency::Background
            && node.rules.hold(Rule::ClaimsWaitTheirTurn)
            && let Some(wait) = self.shared.claim_rate.still_waits(node.seams.now(), conversation.key)
        {
            return Err(self.not_yet(wait));
        }
        let store = &node.store;
        let (resolved, permit) = match seeking.urgency {
            Urgency::Waiting => {
                let permit = self.permit().await?;
                (store.resolve(conversation).await, Some(permit))
            }
            // One of many, as a rule: who comes back resumes all that it held.
            Urgency::Background => (self.shared.lookups.resolve(&node.metrics, conversation).await, None),
        };
        let Some(resolution) = resolved.map_err(|error| store_refusal(&error))? else {
            return Err(Refusal::new(Code::NotFound, format!("there is no conversation {}", conversation.id)));
        };
        if let Some(row) = owner_elsewhere(&resolution, node.me) {
            node.metrics.claimed(metrics::ClaimOutcome::Held);
            if !self.shared.link.exists() {
                return Err(no_way(row, "and this node has no link"));
            }
            return reachable(row).map(Settled::Theirs);
        }
        let _permit = match permit {
            Some(permit) => permit,
            None => self.permit().await?,
        };
        let reading = self.table().next_reading();
        let info = store.conversation(conversation).await.map_err(|error| store_refusal(&error))?.ok_or_else(moved)?;
        let mine = resolution.owner.as_ref().is_some_and(|owner| owner.incarnation == node.me);
        if !mine && let Some(peer) = self.better_place(conversation, &info, seeking.avoid)? {
            return Ok(Settled::Better(peer));
        }
        if seeking.urgency == Urgency::Background && !node.rules.hold(Rule::FollowersClaim) {
            return Err(moved());
        }
        let admitted = self.shared.claim_rate.admit(node.seams.now(), conversation.key, seeking.urgency);
        admitted.map_err(|wait| self.not_yet(wait))?;
        let claimed = self.claim_and_read(conversation, &resolution, (reading, &info)).await;
        if claimed.is_err() && info.kind == ConversationKind::Session {
            // It may have been won all the same.
            self.look_again(conversation);
        }
        claimed.map(Settled::Ours)
    }

    /// A place among the claims under way.
    async fn permit(&self) -> Result<SemaphorePermit<'_>, Refusal> {
        let permit = bounded::acquire(&self.shared.claims, &self.shared.node.metrics, metrics::Queue::Claims).await;
        permit.map_err(|_| draining())
    }

    /// The refusal of a claim that nobody waits for, and that is one too many of them.
    fn not_yet(&self, wait: Duration) -> Refusal {
        self.shared.node.metrics.limit_hit(metrics::Queue::ClaimRate);
        let after_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).saturating_add(1);
        let retry = Retry { after_ms, ..Retry::SOON };
        Refusal::retry(
            Code::ConversationUnavailable,
            "the node takes over many conversations; this one has to wait",
            retry,
        )
    }

    async fn claim_and_read(
        &self,
        conversation: &ConvRef,
        resolution: &Resolution,
        read: (Reading, &ConversationInfo),
    ) -> Result<Tenure, Refusal> {
        let armed = self.claim(conversation, resolution).await?;
        let log = self.shared.node.store.log().await.map_err(|error| store_refusal(&error))?;
        Ok(Tenure::of(conversation.clone(), armed, log, read))
    }

    /// The node that should take a conversation that nobody owns; `None`: this one.
    fn better_place(
        &self,
        conversation: &ConvRef,
        info: &ConversationInfo,
        avoid: Option<Incarnation>,
    ) -> Result<Option<Peer>, Refusal> {
        let node = &self.shared.node;
        let rows = self.peer_rows(avoid);
        let others: Vec<Candidate<'_>> = rows.iter().map(candidate).collect();
        let open = self.table().stage == Stage::Open || !node.rules.hold(Rule::DrainingClaimsNothing);
        let intake = if open { Intake::Open } else { Intake::Draining };
        let me = Candidate { incarnation: node.me, region: &node.region, intake };
        let regions = if node.rules.hold(Rule::ResidencyIsKept) { info.regions.as_slice() } else { &[] };
        let wish = Wish { regions, home: &info.home };
        match placement::place(me, &others, wish, salt(conversation)) {
            Placement::Here => Ok(None),
            Placement::There(chosen) => {
                let row = rows.iter().find(|row| row.registration.incarnation == chosen).ok_or_else(moved)?;
                reachable(row).map(Some)
            }
            Placement::Nowhere if wish.allows(&node.region) => Err(draining()),
            Placement::Nowhere => {
                let regions: Vec<&str> = info.regions.iter().map(|region| region.as_str()).collect();
                let detail = format!("no node is available in the conversation's regions ({})", regions.join(", "));
                Err(Refusal::retry(Code::ConversationUnavailable, detail, Retry::SOON))
            }
        }
    }

    /// The other nodes that live, as they were last seen, and can be reached over a link.
    pub(super) fn peer_rows(&self, avoid: Option<Incarnation>) -> Vec<NodeRow> {
        let node = &self.shared.node;
        let view = node.nodes.view();
        let others = view.live(node.seams.now()).filter(|row| {
            let who = row.registration.incarnation;
            who != node.me && Some(who) != avoid && !row.registration.addr.is_empty()
        });
        others.cloned().collect()
    }

    /// The four cases of a claim; see docs/ARCHITECTURE.md, "Ownership".
    async fn claim(&self, conversation: &ConvRef, resolution: &Resolution) -> Result<Armed, Refusal> {
        let node = &self.shared.node;
        let moment = node.moment();
        if moment.now >= moment.valid_until {
            let detail = "the node renews its lease";
            return Err(Refusal::retry(Code::ConversationUnavailable, detail, Retry::SOON));
        }
        let request = ClaimRequest {
            conversation: conversation.key,
            me: node.me,
            seen_epoch: resolution.epoch,
            seen_owner: resolution.owner.as_ref().map(|owner| owner.incarnation),
            margin: node.timing.margin,
            gap: node.limits.sequencer.gap,
        };
        let outcome = node.store.claim(&request).await;
        node.metrics.claimed(match &outcome {
            Ok(ClaimOutcome::Won(_)) => metrics::ClaimOutcome::Won,
            Ok(ClaimOutcome::Lost) => metrics::ClaimOutcome::Lost,
            Err(_) => metrics::ClaimOutcome::Failed,
        });
        let id = conversation.id.clone();
        match outcome {
            Ok(ClaimOutcome::Won(armed)) => {
                let why = match request.seen_owner {
                    None => WhyClaimed::Unowned,
                    Some(owner) if owner == node.me => WhyClaimed::Lost,
                    Some(_) => WhyClaimed::OwnerDied,
                };
                node.events.record(Event::ClaimWon { conversation: id, epoch: armed.epoch, why });
                Ok(armed)
            }
            Ok(ClaimOutcome::Lost) => {
                node.events.record(Event::ClaimLost { conversation: id });
                Err(moved())
            }
            // Whether it was applied is found out by the next resolve: "mine, without a task".
            Err(error) if error.is_ambiguous() => Err(moved()),
            Err(error) => Err(store_refusal(&error)),
        }
    }
}

/// The row of an owner that is another, registered node.
pub(super) fn owner_elsewhere(resolution: &Resolution, me: Incarnation) -> Option<&NodeRow> {
    let owner = resolution.owner.as_ref()?;
    if owner.incarnation == me { None } else { owner.node.as_ref() }
}

/// What is said where there is no way to the owner, whoever waits: that node may end, and somebody else own it then.
const NO_WAY: Retry = Retry { after_ms: 2_000, budget_ms: 20_000 };

/// The refusal where there is no way to the owner.
fn no_way(row: &NodeRow, why: &str) -> Refusal {
    let node = &row.registration.node;
    let detail =
        format!("node {node} owns the conversation, {why}: nodes of one store need --link-listen (link_listen)");
    Refusal::retry(Code::ConversationUnavailable, detail, NO_WAY)
}

/// True for the refusal of [`no_way`]: asking again in a moment is of no use.
pub(super) fn has_no_way(refusal: &Refusal) -> bool {
    refusal.retry == Some(NO_WAY)
}

/// The way to a node.
pub(super) fn reachable(row: &NodeRow) -> Result<Peer, Refusal> {
    if row.registration.addr.is_empty() {
        return Err(no_way(row, "which has no link"));
    }
    Ok(Peer { incarnation: row.registration.incarnation, addr: row.registration.addr.clone() })
}

fn candidate(row: &NodeRow) -> Candidate<'_> {
    let intake = if row.draining { Intake::Draining } else { Intake::Open };
    Candidate { incarnation: row.registration.incarnation, region: &row.registration.region, intake }
}

/// Spreads conversations over nodes that are equal to them.
pub(super) fn salt(conversation: &ConvRef) -> u64 {
    u64::from_be_bytes(conversation.key.0[..8].try_into().expect("a key has 16 bytes"))
}
