//! What nodes ask, answer and tell each other: the data of the link, without its encoding.
//!
//! Invariant: a value of one of these types fits the wire as it is; nothing here holds a handle on anything local.
//!
//! Deliberately absent: who sends what when; that is the router's and the hubs'.

use std::sync::Arc;

use super::hello::Features;
use super::survey::{EventsPage, OwnedPage, OwnedQuery};
use crate::ids::{AgentName, ConversationId, Epoch, Generation, LogId, Seq, Subject};
use crate::presence::shard::ShardReport;
use crate::record::Draft;
use crate::refusal::Refusal;
use crate::sequencer::Receipt;
use crate::turn::cancel::TurnAsk;

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
#[derive(Debug, Clone, PartialEq)]
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
    /// What an earlier version says when the agent is another one: [`Request::ReadAgain`], in its words.
    SetAgent {
        /// Where.
        conversation: ConversationId,
        /// Whose.
        agent: AgentName,
    },
    /// Its agent or its settings are others: read them again, if you own the conversation.
    ReadAgain {
        /// Where.
        conversation: ConversationId,
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
    /// Do this with its turns, if you own the conversation, or pass it on while hops are left.
    Turn {
        /// Where.
        conversation: ConversationId,
        /// What.
        ask: TurnAsk,
        /// How often it may be passed on again.
        hops: Hops,
    },
    /// Would you take this many conversations, to even out or because they are at home with you? Asked of those alone who
    /// told what they own ([`Notice::Load`]), for earlier versions know neither.
    Share {
        /// How many.
        conversations: u32,
        /// Take only as many as leave you with at most this many.
        level: u32,
    },
    /// Would you take a session whose next turn is this agent's: do you have it?
    TakeSession {
        /// Whose turns are to be run.
        agent: AgentName,
    },
    /// What do you own? For operators, with a short time-out.
    Owned(OwnedQuery),
    /// What happened to ownership on you lately? For operators, with a short time-out.
    Events {
        /// After the event of this id; `None`: the newest.
        after: Option<u64>,
        /// At most so many.
        limit: u32,
    },
}

impl Request {
    /// What a peer has to know before it may be asked this: one that cannot read a request ends the connection.
    #[must_use]
    pub fn needs(&self) -> Features {
        match self {
            Self::Owned(_) | Self::Events { .. } => Features::SURVEY,
            Self::ReadAgain { .. } | Self::Turn { .. } => Features::TURNS,
            Self::TakeSession { .. } => Features::AGENTS,
            _ => Features::NONE,
        }
    }
}

/// What it answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Response {
    /// To an append, or to what is asked of turns: one receipt for each record, or the definite refusal.
    Appended(Result<Vec<Receipt>, Refusal>),
    /// To what needs no more: it was heard.
    Heard,
    /// To an offer, a share or a session: at most this many.
    Takes(u32),
    /// To [`Request::Sessions`]: how many sessions there are over all gateways, and who, as far as this node knows.
    Sessions {
        /// Sessions that watch; `None`: nobody has for a while.
        connected: Option<u32>,
        /// Who is present, as the JSON of the presence call; `None` likewise.
        presence: Option<String>,
    },
    /// To [`Request::Owned`].
    Owned(OwnedPage),
    /// To [`Request::Events`].
    Events(EventsPage),
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
    /// A member has read on.
    CursorMoved {
        /// Where.
        conversation: ConversationId,
        /// Who.
        sub: Subject,
    },
    /// How much this node owns; it takes part in evening out.
    Load {
        /// Conversations.
        owned: u32,
    },
}

/// What a follower tells the owner: never durable, and dropped when the owner is busy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FollowerReport {
    /// Somebody types; the owner shows it to every follower.
    Typing {
        /// Who.
        sub: Subject,
        /// The display name.
        name: Option<Arc<str>>,
    },
    /// Who is present through this follower.
    Presence(ShardReport),
}
