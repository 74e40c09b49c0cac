//! The link: what nodes say to each other.
//!
//! [`Link`] is what the router and the hubs need of other nodes; [`Service`] is what a node does for them. The two are
//! joined by TCP in production and by a simulated network in the simulation.
//!
//! Invariant: an outcome that is not known is said to be so ([`LinkError::Ambiguous`]); whoever asked settles it by
//! resolving again and sending the same key.
//!
//! Deliberately absent: any opinion about who owns what, and any retry. Both are the router's.

mod credit;
mod dialled;
mod handshake;
mod inbox;
mod listener;
pub mod notices;
mod outbox;
pub mod port;
mod served;
pub mod service;
mod settings;
mod stream;
mod tcp;
mod tls;

use std::time::Duration;

use async_trait::async_trait;
use conch_core::ids::{ConversationId, Incarnation};
use conch_core::refusal::Refusal;
pub use conch_core::wire::link::{Handed, Hops, Notice, Request, Response};

use crate::owner::Follow;

pub use listener::{LinkListenError, LinkListener};
pub use settings::{LinkKey, LinkLimits, LinkSettings};
pub use tcp::TcpLink;
pub use tls::{LinkTls, LinkTlsError, LinkTlsFiles};

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

    /// False on a node that has no link, and reaches nobody.
    fn exists(&self) -> bool {
        true
    }
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

    fn exists(&self) -> bool {
        false
    }
}

fn no_link() -> LinkError {
    LinkError::Unreachable("this node has no link".to_owned())
}

/// What a node does for the others.
#[async_trait]
pub trait Service: Send + Sync + 'static {
    /// Answers a peer, within the time that the peer allows.
    async fn answer(&self, from: Incarnation, request: Request) -> Response;

    /// Lets a peer follow a conversation that is owned here, or by nobody and best here. It is never passed on.
    async fn follow(&self, from: Incarnation, conversation: &ConversationId) -> Result<Follow, Refusal>;

    /// Takes notice.
    fn notice(&self, from: Incarnation, notice: Notice);
}
