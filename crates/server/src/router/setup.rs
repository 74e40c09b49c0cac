//! How the owner of a session learns that its turns are to be run by another agent, or in another way.
//!
//! Invariant: of several changes at once an owner ends with the last one that was written. Each is written before it is read, and of
//! two readings the one that began later counts, in whatever order they arrive.
//!
//! Deliberately absent: certainty where ownership moves at that moment. Who owns next reads when it claims or is handed the
//! conversation.

use super::table::Hearer;
use super::*;
use crate::owner::SetUp;

/// How long an owner elsewhere may take to hear that its conversation has changed.
const READ_AGAIN_WITHIN: Duration = Duration::from_secs(2);
/// How often a change is read for an owner that comes or goes meanwhile.
const READ_AGAIN_TIMES: u32 = 7;
/// The pause after the first time; each is twice the one before.
const READ_AGAIN_PAUSE: Duration = Duration::from_millis(10);

impl Router {
    /// A conversation's agent or settings are others: its owner reads them again. One that does not hear it reads them when it
    /// claims.
    pub async fn read_again(&self, conversation: &ConvRef) {
        let is_here = self.table().entries.contains_key(&conversation.key);
        if is_here {
            return self.read_again_here(conversation).await;
        }
        let Ok(Some(resolution)) = self.shared.node.store.resolve(conversation).await else { return };
        if let Some(peer) =
            claims::owner_elsewhere(&resolution, self.shared.node.me).and_then(|row| claims::reachable(row).ok())
        {
            let request = Request::ReadAgain { conversation: conversation.id.clone() };
            if let Err(error) = self.shared.link.ask(&peer, request, READ_AGAIN_WITHIN).await {
                tracing::debug!(conversation = %conversation.id, %error, "the owner was not told to read again");
            }
        }
    }

    /// The same for the owner here, if there is one, be it at rest or about to be one.
    pub async fn read_again_here(&self, conversation: &ConvRef) {
        for time in 0..READ_AGAIN_TIMES {
            let reading = self.table().next_reading();
            let Ok(Some(info)) = self.shared.node.store.conversation(conversation).await else { return };
            let Some(agent) = info.agent else { return };
            let read = SetUp { agent, settings: info.settings, reading };
            let hearer = self.table().set_up(conversation.key, &read);
            match hearer {
                Hearer::Nobody => return,
                Hearer::Owner(owner) if owner.set_up(read).await.is_ok() => return,
                // It goes to rest, with what it knew.
                Hearer::Owner(_) => self.shared.node.seams.sleep(READ_AGAIN_PAUSE * 2_u32.pow(time)).await,
                Hearer::Claiming(mut settled) => {
                    // The claim may have read before the change. An error is its end.
                    let _ = settled.changed().await;
                }
            }
        }
    }
}
