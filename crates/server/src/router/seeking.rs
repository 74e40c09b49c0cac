//! Finds the node that has an agent which an owner here lacks, and hands the conversation over.
//!
//! Invariant: who is asked says whether it has the agent, so nobody is handed what it would have to hand on; a search ends with its
//! owner, or after `limits.agent_wait_ms`, when the owner is told.
//!
//! Deliberately absent: any knowledge of other nodes' agents beyond an answer.

use conch_core::ids::AgentName;
use conch_core::placement::{self, Candidate, Intake, Wish};
use futures_util::future::join_all;

use super::*;
use crate::owner::{Patience, Search, Seek};

/// Time between two rounds of asking.
const ROUND: Duration = Duration::from_secs(1);
/// How long a peer may take to answer.
const PEER_ANSWERS: Duration = Duration::from_secs(2);

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
        let Search { conversation, epoch, agent, number } = search;
        let seams = &self.shared.node.seams;
        let give_up = seams.now() + self.shared.node.limits.agent_wait;
        // An owner of another epoch has a search of its own.
        while let Some(owner) = self.active(&conversation).filter(|owner| owner.epoch() == epoch) {
            if let Some(peer) = self.who_has(&agent, &owner).await {
                tracing::info!(conversation = %conversation.id, %agent, peer = %peer.incarnation, "a session goes to a node that has its agent");
                if self.give_awake(owner.clone(), peer, Patience::Until(seams.now())).await {
                    return;
                }
            }
            if seams.now() >= give_up || !self.shared.link.exists() {
                tracing::warn!(conversation = %conversation.id, %agent, "no node has the agent of a session");
                return owner.agent_is_nowhere(number).await;
            }
            seams.sleep(ROUND).await;
        }
    }

    /// The peer that has an agent and that the conversation belongs to most.
    async fn who_has(&self, agent: &AgentName, owner: &OwnerHandle) -> Option<Peer> {
        let rows = self.peer_rows(None);
        let asked = rows.iter().filter(|row| !row.draining).map(|row| {
            let registration = &row.registration;
            let peer = Peer { incarnation: registration.incarnation, addr: registration.addr.clone() };
            async move {
                let request = Request::TakeSession { agent: agent.clone() };
                match self.shared.link.ask(&peer, request, PEER_ANSWERS).await {
                    Ok(Response::Takes(room)) if room > 0 => Some((peer, &registration.region)),
                    _ => None,
                }
            }
        });
        let takers: Vec<(Peer, &Region)> = join_all(asked.collect::<Vec<_>>()).await.into_iter().flatten().collect();
        let candidates = takers.iter().map(|(peer, region)| {
            let incarnation = peer.incarnation;
            Candidate { incarnation, region, intake: Intake::Open }
        });
        let candidates: Vec<Candidate<'_>> = candidates.collect();
        let wish = Wish { regions: &owner.facts.regions, home: &owner.facts.home };
        let best = placement::circle(&candidates, wish);
        let first = best.first()?.incarnation;
        takers.into_iter().map(|(peer, _)| peer).find(|peer| peer.incarnation == first)
    }
}
