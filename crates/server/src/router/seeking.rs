//! Finds the node that has an agent which an owner here lacks, and hands the conversation over.
//!
//! Invariant: who is asked says whether it has the agent, so nobody is handed what it would have to hand on; a search ends with its
//! owner, when it is called off, or after `limits.agent_wait_ms`, when the owner is told. However many sessions look for an agent,
//! its peers are asked for it once a round.
//!
//! Deliberately absent: any knowledge of other nodes' agents beyond an answer.

use std::collections::BTreeMap;

use conch_core::ids::AgentName;
use conch_core::placement::{self, Candidate, Intake, Wish};
use futures_util::future::join_all;

use super::claims::salt;
use super::*;
use crate::owner::{Patience, Search, Seek};

/// Time between two rounds of asking.
const ROUND: Duration = Duration::from_secs(1);
/// How long a peer may take to answer.
const PEER_ANSWERS: Duration = Duration::from_millis(500);

/// What peers said of the agents that are looked for. As many entries as agents, whose names come from sessions that were made for one
/// that a node had.
#[derive(Default)]
pub(super) struct Takers(Mutex<BTreeMap<AgentName, Arc<tokio::sync::Mutex<Asked>>>>);

/// The last round of asking for an agent.
#[derive(Default)]
struct Asked {
    at: Option<Monotonic>,
    takers: Vec<(Peer, Region)>,
}

impl Router {
    /// Begins searches.
    pub(super) fn seek(&self) -> Seek {
        let router = self.clone();
        Arc::new(move |search| {
            let searching = router.clone().search(search);
            router.shared.node.seams.spawn("look for an agent", searching);
        })
    }

    /// Whether this node takes a session whose next turn is this agent's.
    #[must_use]
    pub fn takes_session(&self, agent: &AgentName) -> u32 {
        if self.shared.agents.get(agent).is_some() { self.takes(1) } else { 0 }
    }

    async fn search(self, search: Search) {
        let Search { conversation, epoch, agent, number, .. } = &search;
        let seams = &self.shared.node.seams;
        let give_up = seams.now() + self.shared.node.limits.agent_wait;
        // An owner of another epoch has a search of its own.
        while let Some(owner) = self.active(conversation).filter(|owner| owner.epoch() == *epoch) {
            let found = self.who_has(agent, &owner).await;
            if !search.is_current() {
                return;
            }
            if let Some(peer) = found {
                tracing::info!(conversation = %conversation.id, %agent, peer = %peer.incarnation, "a session goes to a node that has its agent");
                if self.give_awake(owner.clone(), peer, Patience::WhileSought(*number)).await {
                    return;
                }
            }
            if seams.now() >= give_up || !self.shared.link.exists() {
                tracing::warn!(conversation = %conversation.id, %agent, "no node has the agent of a session");
                return owner.agent_is_nowhere(*number).await;
            }
            seams.sleep(ROUND).await;
            if !search.is_current() {
                return;
            }
        }
    }

    /// The peer that has an agent and that the conversation belongs to; of several, one by its key.
    async fn who_has(&self, agent: &AgentName, owner: &OwnerHandle) -> Option<Peer> {
        let takers = self.who_takes(agent).await;
        let candidates: Vec<Candidate<'_>> = takers
            .iter()
            .map(|(peer, region)| Candidate { incarnation: peer.incarnation, region, intake: Intake::Open })
            .collect();
        let wish = Wish { regions: &owner.facts.regions, home: &owner.facts.home };
        let best = placement::circle(&candidates, wish);
        let chosen = best.get(salt(&owner.facts.conversation).checked_rem(best.len() as u64)? as usize)?.incarnation;
        takers.iter().map(|(peer, _)| peer).find(|peer| peer.incarnation == chosen).cloned()
    }

    /// Who takes sessions of an agent, as they said in this round.
    async fn who_takes(&self, agent: &AgentName) -> Vec<(Peer, Region)> {
        let known = {
            let mut takers = self.shared.takers.0.lock().expect("no holder of the takers panics");
            Arc::clone(takers.entry(agent.clone()).or_default())
        };
        // Whoever comes while others are asked waits for what they say.
        let mut known = known.lock().await;
        let now = self.shared.node.seams.now();
        if known.at.is_none_or(|at| now.since(at) >= ROUND) {
            known.takers = self.ask_for(agent).await;
            known.at = Some(self.shared.node.seams.now());
        }
        known.takers.clone()
    }

    async fn ask_for(&self, agent: &AgentName) -> Vec<(Peer, Region)> {
        let rows = self.peer_rows(None);
        let asked = rows.iter().filter(|row| !row.draining).map(|row| {
            let registration = &row.registration;
            let peer = Peer { incarnation: registration.incarnation, addr: registration.addr.clone() };
            async move {
                let request = Request::TakeSession { agent: agent.clone() };
                match self.shared.link.ask(&peer, request, PEER_ANSWERS).await {
                    Ok(Response::Takes(room)) if room > 0 => Some((peer, registration.region.clone())),
                    _ => None,
                }
            }
        });
        join_all(asked.collect::<Vec<_>>()).await.into_iter().flatten().collect()
    }
}
