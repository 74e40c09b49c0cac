//! Who is present where nobody watches on this node: asked of the owner, for reads, and never worth a claim.

use super::*;
use crate::owner::Present;

/// How long a read waits for an owner; then it goes on without.
pub const READ_WITHIN: Duration = Duration::from_millis(250);

/// What a read learns of a conversation's sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sighting {
    /// These are present.
    Present(Present),
    /// Nobody has been for a while.
    Nobody,
    /// Who could know did not say in time.
    Unknown,
}

impl Router {
    /// Who is present, as the owner knows, wherever it is; within [`READ_WITHIN`]. Claims nothing.
    pub async fn sight(&self, conversation: &ConvRef) -> Sighting {
        // Both branches are cancel safe: nobody waits for the answer afterwards.
        tokio::select! {
            biased;
            sighting = self.ask_who_is_present(conversation) => sighting,
            () = self.shared.node.seams.sleep(READ_WITHIN) => Sighting::Unknown,
        }
    }

    /// What the owner's task says, if it runs here.
    pub(crate) async fn present_here(&self, conversation: &ConvRef) -> Option<Present> {
        self.active(conversation)?.present().await
    }

    async fn ask_who_is_present(&self, conversation: &ConvRef) -> Sighting {
        if self.active(conversation).is_some() {
            return self.present_here(conversation).await.map_or(Sighting::Nobody, Sighting::Present);
        }
        let resolution = match self.shared.node.store.resolve(conversation).await {
            Ok(Some(resolution)) => resolution,
            Ok(None) => return Sighting::Nobody,
            Err(_) => return Sighting::Unknown,
        };
        let Some(row) = claims::owner_elsewhere(&resolution, self.shared.node.me) else { return Sighting::Nobody };
        let Ok(peer) = claims::reachable(row) else { return Sighting::Unknown };
        let request = Request::Sessions { conversation: conversation.id.clone() };
        match self.shared.link.ask(&peer, request, READ_WITHIN).await {
            Ok(Response::Sessions { connected: Some(connected), presence: Some(json) }) => {
                let connected = usize::try_from(connected).unwrap_or(usize::MAX);
                Sighting::Present(Present { connected, json })
            }
            Ok(Response::Sessions { .. }) => Sighting::Nobody,
            Ok(_) | Err(_) => Sighting::Unknown,
        }
    }
}
