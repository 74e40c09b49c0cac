//! The values of labels: enums, so that each is bounded.

use conch_core::record::RecordKind;

use super::Label;

/// An enum whose variants are label values.
macro_rules! label {
    ($(#[$meta:meta])* $name:ident = $label:literal { $($(#[$doc:meta])* $variant:ident = $value:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$doc])* $variant,)+ }

        impl $name {
            /// Every value.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            pub(super) fn label(self) -> Label {
                [($label, match self { $(Self::$variant => $value,)+ })]
            }
        }
    };
}

label! {
    /// A bounded queue, table or window; docs/OPERATIONS.md says which setting bounds it.
    Queue = "queue" {
        /// Writes that wait for one conversation's commit.
        Owner = "owner",
        /// Commands that wait for one conversation's owner.
        OwnerCommands = "owner_commands",
        /// Messages that wait for a turn in one session.
        Turns = "turns",
        /// Conversations that wait for the commit loop.
        Commit = "commit",
        /// Ownership claims in flight.
        Claims = "claims",
        /// Ownership claims that nobody waits for.
        ClaimRate = "claim_rate",
        /// Running conversations that change hands.
        HandOvers = "hand_overs",
        /// Conversations whose reign ended in doubt.
        Looks = "looks",
        /// Look-ups of owners that nobody waits for.
        Lookups = "lookups",
        /// Frames that wait for one follower of an owner.
        Followers = "followers",
        /// Commands that wait for one hub.
        HubCommands = "hub_commands",
        /// Frames that wait for a delivery worker, per conversation.
        Shard = "shard",
        /// How far behind a client may be.
        CatchUp = "catch_up",
        /// Reads for catching up a second.
        CatchUpRate = "catch_up_rate",
        /// Reads for catching up in flight.
        Reads = "reads",
        /// Reads of personal streams that begin, or look again.
        PersonalReads = "personal_reads",
        /// Bytes that wait for one socket or stream.
        Outbox = "outbox",
        /// Conversations of which the other nodes are to be told.
        Notices = "notices",
        /// Cursors that wait to be written.
        Cursors = "cursors",
        /// Client connections.
        Connections = "connections",
        /// WebSockets.
        Sockets = "sockets",
        /// Server-Sent Event streams.
        Streams = "streams",
        /// Joined sessions.
        Sessions = "sessions",
        /// Topics of one socket.
        Topics = "topics",
        /// Pushes of one socket in flight.
        Pushes = "pushes",
        /// Bytes of one WebSocket frame.
        Frame = "frame",
        /// Time for a request's answer.
        RequestTime = "request_time",
        /// Senders whose allowance is remembered.
        Senders = "senders",
        /// Requests to or from one peer that wait for their answer.
        LinkRequests = "link_requests",
        /// Follow streams of one link.
        LinkStreams = "link_streams",
        /// Bytes that wait to be written to one peer.
        LinkQueue = "link_queue",
        /// What a stream's follower has not taken.
        LinkCredit = "link_credit",
        /// Frames of a stream that wait for the hub that follows.
        LinkFollowers = "link_followers",
        /// Notices that wait for a link to be made.
        LinkNotices = "link_notices",
        /// Links of other nodes to this one.
        LinkConnections = "link_connections",
        /// Links whose other side has not proved itself yet.
        LinkHandshakes = "link_handshakes",
        /// Peers that are remembered.
        LinkPeers = "link_peers",
    }
}

label! {
    /// What a gateway under pressure sheds, where it can be counted.
    Shed = "what" {
        /// A typing event: one of a client's, or one that was to be shown.
        Typing = "typing",
        /// A new socket or stream.
        Newcomers = "newcomers",
    }
}

label! {
    /// How a claim of ownership ended.
    ClaimOutcome = "outcome" {
        /// This node owns it now.
        Won = "won",
        /// Somebody else was faster.
        Lost = "lost",
        /// A live node owns it.
        Held = "held",
        /// The store failed, or this node may not claim now.
        Failed = "failed",
    }
}

label! {
    /// How a request to a peer ended.
    LinkOutcome = "outcome" {
        /// With an answer, be it a refusal.
        Answered = "answered",
        /// It was not asked.
        NotAsked = "not_asked",
        /// It may have been done.
        Unknown = "unknown",
    }
}

label! {
    /// Why a connection to the link's listener was refused.
    LinkRefusal = "reason" {
        /// It does not have the key.
        WrongSecret = "wrong_secret",
        /// It speaks another version of the protocol.
        OtherVersion = "other_version",
        /// It belongs to another cluster.
        OtherCluster = "other_cluster",
        /// What it said is not a greeting.
        BadFrame = "bad_frame",
        /// It has no good certificate.
        Tls = "tls",
        /// It did not prove itself in time.
        TimedOut = "timed_out",
        /// There are too many.
        Full = "full",
        /// It went away itself.
        Ended = "ended",
    }
}

label! {
    /// Where a turn that has not ended is.
    LiveTurn = "state" {
        /// At work.
        Running = "running",
    }
}

label! {
    /// How a turn ended.
    EndedTurn = "state" {
        /// With its answer.
        Completed = "completed",
        /// Without one.
        Failed = "failed",
        /// By request.
        Cancelled = "cancelled",
        /// Replaced by another.
        Superseded = "superseded",
    }
}

impl EndedTurn {
    /// How a record of this kind ends a turn, if it does.
    #[must_use]
    pub fn of(kind: RecordKind) -> Option<Self> {
        match kind {
            RecordKind::TurnCompleted => Some(Self::Completed),
            RecordKind::TurnFailed => Some(Self::Failed),
            RecordKind::TurnCancelled => Some(Self::Cancelled),
            RecordKind::TurnSuperseded => Some(Self::Superseded),
            _ => None,
        }
    }
}
