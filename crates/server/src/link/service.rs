//! What this node does for the others.
//!
//! Invariant: what a peer passes on was authenticated, authorised and limited where it came in; here it is only run. A
//! write that came with hops left may be passed on once more, and a follow never is.

use std::time::Duration;

use async_trait::async_trait;
use conch_core::ids::{ConvRef, ConversationId, Incarnation};
use conch_core::refusal::{Code, Refusal};

use super::{Notice, Request, Response, Service};
use crate::hub::Hubs;
use crate::node::Node;
use crate::owner::Follow;
use crate::people::{Change, People};
use crate::router::Router;
use std::sync::Arc;

/// How long a node looks for an owner on behalf of another, which has its own budget and knows better whom to ask next.
const ON_BEHALF: Duration = Duration::from_secs(1);

/// See the module's description.
#[derive(Clone)]
pub struct NodeService {
    /// The node.
    pub node: Arc<Node>,
    /// Its owners.
    pub router: Router,
    /// Its sessions.
    pub hubs: Hubs,
    /// Its personal streams.
    pub people: People,
}

#[async_trait]
impl Service for NodeService {
    async fn answer(&self, from: Incarnation, request: Request) -> Response {
        match request {
            Request::Append { conversation, drafts, hops } => {
                let conversation = conversation.into();
                Response::Appended(self.router.append_within(&conversation, drafts, hops, ON_BEHALF).await)
            }
            Request::ReadAgain { conversation } | Request::SetAgent { conversation, .. } => {
                self.router.read_again_here(&conversation.into()).await;
                Response::Heard
            }
            Request::Turn { conversation, ask, hops } => {
                Response::Appended(self.router.turn_within(&conversation.into(), ask, hops, ON_BEHALF).await)
            }
            Request::Offer { conversations } => Response::Takes(self.router.takes(conversations)),
            Request::TakeSession { agent } => Response::Takes(self.router.takes_session(&agent)),
            Request::Share { conversations, level } => {
                Response::Takes(self.router.takes_share(from, conversations, level))
            }
            Request::HandOff(handed) => {
                self.router.adopt(from, handed).await;
                Response::Heard
            }
            Request::Sessions { conversation } => {
                let conversation = conversation.into();
                // An owner elsewhere is not asked: the one that asks resolved it a moment ago.
                let present = match self.router.present_here(&conversation).await {
                    Some(present) => Some(present),
                    None => self.hubs.present(&conversation).await,
                };
                let connected = present.as_ref().map(|present| u32::try_from(present.connected).unwrap_or(u32::MAX));
                Response::Sessions { connected, presence: present.map(|present| present.json) }
            }
            Request::Owned(query) => Response::Owned(self.router.owned_page(&query)),
            Request::Events { after, limit } => Response::Events(self.node.events.page(after, limit)),
        }
    }

    async fn follow(&self, _from: Incarnation, conversation: &ConversationId) -> Result<Follow, Refusal> {
        self.router.follow_here(&conversation.clone().into()).await
    }

    fn notice(&self, from: Incarnation, notice: Notice) {
        match notice {
            Notice::Published { conversation, .. } => self.people.published(&conversation.into()),
            Notice::MemberAdded { conversation, sub } => {
                self.people.membership(&conversation.into(), &sub, Change::Added);
            }
            Notice::MemberRemoved { conversation, sub } => {
                let conversation = ConvRef::from(conversation);
                self.people.membership(&conversation, &sub, Change::Removed);
                let hubs = self.hubs.clone();
                self.node.seams.spawn("expel", async move {
                    hubs.expel(&conversation, &sub, no_member()).await;
                });
            }
            Notice::ConversationChanged { conversation } => self.people.changed(&conversation.into()),
            Notice::CursorMoved { conversation, sub } => self.people.changed_for(&conversation.into(), &sub),
            Notice::Load { owned } => self.router.heard_load(from, owned),
        }
    }
}

/// What the sessions of a removed member are told.
#[must_use]
pub fn no_member() -> Refusal {
    Refusal::new(Code::Forbidden, "the subject is no member any more")
}
