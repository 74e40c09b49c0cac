//! The link: what nodes say to each other.
//!
//! [`Link`] is what the router and the hubs need of other nodes; [`Service`] is what a node does for them. The two are
//! joined by TCP in production and by a simulated network in the simulation.
//!
//! Invariant: an outcome that is not known is said to be so ([`LinkError::Ambiguous`]); whoever asked settles it by
//! resolving again and sending the same key.
//!
//! Deliberately absent: any opinion about who owns what, and any retry. Both are the router's.

pub mod notices;
pub mod service;

use std::time::Duration;

use async_trait::async_trait;
use conch_core::ids::{AgentName, ConversationId, Epoch, Generation, Incarnation, LogId, Seq, Subject};
use conch_core::record::Draft;
use conch_core::refusal::Refusal;
use conch_core::sequencer::Receipt;

use crate::owner::Follow;

/// Another node, as its row says.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Peer {
    /// Who is to answer; anybody else at that address is refused.
    pub incarnation: Incarnation,
    /// The advertised address of its link, `HOST:PORT`.
    pub addr: String,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// Nothing was asked: the peer was not reached, or the link refuses more.
    #[error("the peer was not reached: {0}")]
    Unreachable(String),
    /// Another process answers at that address, so the one that was asked for is gone from there. Nothing was asked.
    #[error("incarnation {0} answers there")]
    OtherIncarnation(Incarnation),
    /// It was asked, and whether it was done is not known.
    #[error("the outcome is not known: {0}")]
    Ambiguous(String),
}

/// How many more nodes may pass a write on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hops(pub u8);

impl Hops {
    /// What an entry point starts with: the owner it believes in, and one more where that one knows better.
    pub const START: Self = Self(2);

    /// What is left after one more; `None`: none is allowed.
    #[must_use]
    pub fn less_one(self) -> Option<Self> {
        self.0.checked_sub(1).map(Self)
    }
}

/// A conversation on its way from one owner to the next, in the words of the giver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handed {
    /// Which.
    pub conversation: ConversationId,
    /// The receiver's epoch.
    pub epoch: Epoch,
    /// The generation it holds in.
    pub generation: Generation,
    /// The last committed seq.
    pub last_seq: Seq,
    /// The first seq that the receiver may give.
    pub first_seq: Seq,
    /// The history that these belong to.
    pub log: LogId,
}

/// What a node is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Append these in one commit, if you own the conversation, or pass it on while hops are left.
    Append {
        /// Where.
        conversation: ConversationId,
        /// What.
        drafts: Vec<Draft>,
        /// How often it may be passed on again.
        hops: Hops,
    },
    /// Turns that start from now on are this agent's, if you own the conversation.
    SetAgent {
        /// Where.
        conversation: ConversationId,
        /// Whose.
        agent: AgentName,
    },
    /// Would you take this many conversations?
    Offer {
        /// How many.
        conversations: u32,
    },
    /// This one is yours: the store says so already.
    HandOff(Handed),
    /// What does this node know of a conversation's sessions? For reads, with a short time-out.
    Sessions {
        /// Where.
        conversation: ConversationId,
    },
}

/// What it answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Response {
    /// To an append: one receipt for each draft, or the definite refusal.
    Appended(Result<Vec<Receipt>, Refusal>),
    /// To what needs no more: it was heard.
    Heard,
    /// To an offer: at most this many.
    Takes(u32),
    /// To [`Request::Sessions`]: sessions that watch here, and who is present here, as the JSON of the presence call.
    Sessions {
        /// Sessions that watch here; `None`: nobody has for a while.
        connected: Option<u32>,
        /// Who is present here; `None` likewise.
        presence: Option<String>,
    },
}

/// What a node tells all others, without an answer and without a promise: who missed one looks into the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// A record was published; conversations that were told of a moment ago may be left out.
    Published {
        /// Where.
        conversation: ConversationId,
        /// The new last seq.
        seq: Seq,
    },
    /// A membership was added.
    MemberAdded {
        /// Where.
        conversation: ConversationId,
        /// Whose.
        sub: Subject,
    },
    /// A membership was removed: whoever joined by it has to go.
    MemberRemoved {
        /// Where.
        conversation: ConversationId,
        /// Whose.
        sub: Subject,
    },
    /// A conversation's title or settings changed.
    ConversationChanged {
        /// Which.
        conversation: ConversationId,
    },
}

/// The other nodes, as one node reaches them.
#[async_trait]
pub trait Link: Send + Sync + 'static {
    /// Asks a peer. Dropping the future gives the answer up, not what was asked.
    ///
    /// # Errors
    /// As [`LinkError`] lists; [`LinkError::Ambiguous`] when `within` passes after the request went out.
    async fn ask(&self, peer: &Peer, request: Request, within: Duration) -> Result<Response, LinkError>;

    /// Follows a conversation at a peer that owns it. The stream ends when the owner's does, and when the link breaks.
    ///
    /// # Errors
    /// [`LinkError`] if the peer did not answer; inside, its refusal.
    async fn follow(
        &self,
        peer: &Peer,
        conversation: &ConversationId,
        within: Duration,
    ) -> Result<Result<Follow, Refusal>, LinkError>;

    /// Who answers at this address? A fresh connection and its greeting; the second channel of evidence of a death.
    ///
    /// # Errors
    /// [`LinkError::Unreachable`], as an address that refuses is; it says nothing of one that does not answer in time
    /// ([`LinkError::Ambiguous`]).
    async fn who_answers(&self, addr: &str, within: Duration) -> Result<Incarnation, LinkError>;

    /// Tells these peers, without waiting. What does not fit into a peer's bounded queue is dropped.
    fn tell(&self, peers: &[Peer], notice: &Notice);
}

/// The link of a node that has none: there is nobody else.
#[derive(Debug, Clone, Copy)]
pub struct NoLink;

#[async_trait]
impl Link for NoLink {
    async fn ask(&self, _peer: &Peer, _request: Request, _within: Duration) -> Result<Response, LinkError> {
        Err(no_link())
    }

    async fn follow(
        &self,
        _peer: &Peer,
        _conversation: &ConversationId,
        _within: Duration,
    ) -> Result<Result<Follow, Refusal>, LinkError> {
        Err(no_link())
    }

    async fn who_answers(&self, _addr: &str, _within: Duration) -> Result<Incarnation, LinkError> {
        // Not "unreachable": that would be evidence of a death.
        Err(LinkError::Ambiguous("this node has no link".to_owned()))
    }

    fn tell(&self, _peers: &[Peer], _notice: &Notice) {}
}

fn no_link() -> LinkError {
    LinkError::Unreachable("this node has no link".to_owned())
}

/// What a node does for the others.
#[async_trait]
pub trait Service: Send + Sync + 'static {
    /// Answers a peer, within the time that the peer allows.
    async fn answer(&self, from: Incarnation, request: Request) -> Response;

    /// Lets a peer follow a conversation that is owned here; it never claims one.
    async fn follow(&self, from: Incarnation, conversation: &ConversationId) -> Result<Follow, Refusal>;

    /// Takes notice.
    fn notice(&self, from: Incarnation, notice: Notice);
}
