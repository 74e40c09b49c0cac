//! The sections of the configuration. One line per setting holds its meaning, type, default and allowed values.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use conch_core::body;
use conch_core::ids::{AgentName, NodeName, Region};
use conch_core::lease::LeaseTiming;
use conch_core::wire::link::FRAME_MAX_BYTES;

use super::agents::{Agent, Agents};
use super::field::Allowed::{Range, Text};
use super::field::section;
use super::values::{AdvertiseUrl, LeasesUrl, LinkAddr, LogFormat, LogLevel, StoreUrl};
use crate::auth::origin::{AllowedOrigin, Origin};
use crate::auth::secret::{Configured, Secret};

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;
const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;

fn fixed<T: std::str::FromStr>(text: &str) -> T {
    text.parse().ok().expect("the built-in default is valid, as the tests of this module show")
}

section! {
    /// The whole configuration of one node.
    Config, "" {
        /// The node's name. Owns nothing: a restarted node is a new incarnation of it.
        node: NodeName = fixed("conch-1"), Text("1 to 64 of A-Z a-z 0-9 . _ -");
        /// The region the node runs in.
        region: Region = fixed("local"), Text("1 to 64 of A-Z a-z 0-9 . _ -");
        /// Where clients connect. Loopback only until auth.secret or auth.secret_file is set.
        listen: SocketAddr = fixed("127.0.0.1:4000"), Text("ADDRESS:PORT");
        /// Where /livez, /readyz and /metrics answer. It has no authentication: keep it off public networks.
        ops_listen: SocketAddr = fixed("127.0.0.1:4001"), Text("ADDRESS:PORT");
        /// Where workers (agents of kind http) reach this node's public listener, or a load balancer before the cluster's; not set: listen, over http, which then must not be 0.0.0.0 or [::].
        advertise_url: Option<AdvertiseUrl> = None, Text("http(s)://HOST[:PORT]");
        /// Where other nodes connect; not set: this node has no link. Never a public network. Loopback only until auth.secret, auth.secret_file, link.secret or the link's TLS files are set.
        link_listen: Option<SocketAddr> = None, Text("ADDRESS:PORT");
        /// Where other nodes reach this very process (a pod or host, not a service address, and not 0.0.0.0 or [::]); not set: link_listen, which then must not be one of these either.
        link_advertise: Option<LinkAddr> = None, Text("HOST:PORT");
        /// Where clients reach the nodes of this cluster, the same on all of them: the console goes on with the next one when one cannot be reached, and pages of these are let in. Not needed behind a load balancer.
        client_urls: Vec<Origin> = Vec::new(), Text("a list of at most 16 http:// or https://HOST[:PORT]");
        /// Where the records are.
        store: StoreUrl = fixed("sqlite:./conch-data"), Text("sqlite:DIR or postgres://USER@HOST/DATABASE");
        /// Where ownership is kept: beside the records, or in an etcd cluster. All nodes of a database must agree; etcd needs a postgres:// store and counts leases in whole seconds.
        leases: LeasesUrl = LeasesUrl::Postgres, Text("postgres or etcd://HOST:PORT,HOST:PORT,HOST:PORT");
    }
    nested {
        /// The connections to PostgreSQL.
        postgres: Postgres;
        /// The node's lease.
        lease: LeaseConfig;
        /// What is at most accepted, held or waited for.
        limits: Limits;
        /// When an idle conversation leaves memory and its lease.
        hibernation: Hibernation;
        /// How fast nodes even out what they own.
        rebalance: Rebalance;
        /// How numbers are reserved.
        sequencer: Sequencer;
        /// How records reach many sockets.
        fanout: Fanout;
        /// How much one sender may send.
        rate: Rate;
        /// Who gets in.
        auth: Auth;
        /// What nodes say to each other.
        link: LinkConfig;
        /// The agents, by name. `demo` always exists.
        agents: Agents;
        /// The endpoints for front ends of the Vercel AI SDK.
        ai: Ai;
        /// What is logged, and how.
        log: Log;
    }
}

section! {
    /// The connections to PostgreSQL, where `store` is one.
    Postgres, "postgres." {
        /// Connections that carry appends.
        writers: usize = 4, Range(1, 64);
        /// Connections that carry reads, claims and the rest. Leases have connections of their own.
        pool: usize = 8, Range(1, 256);
        /// Milliseconds for which a start waits for a server that cannot be reached.
        connect_patience_ms: u64 = 10_000, Range(0, 10 * MINUTE_MS);
    }
}

section! {
    /// The node's lease; see [`LeaseTiming`].
    LeaseConfig, "lease." {
        /// Milliseconds from a renewal to the end of the lease. At least 2 beats and the margin.
        ttl_ms: u64 = 15_000, Range(500, 10 * MINUTE_MS);
        /// Milliseconds between renewals.
        beat_ms: u64 = 5_000, Range(50, 5 * MINUTE_MS);
        /// Milliseconds before the end in which nothing is assigned any more.
        margin_ms: u64 = 3_000, Range(50, 5 * MINUTE_MS);
    }
}

impl LeaseConfig {
    /// As the core takes it.
    #[must_use]
    pub fn timing(&self) -> LeaseTiming {
        LeaseTiming {
            ttl: Duration::from_millis(self.ttl_ms),
            beat: Duration::from_millis(self.beat_ms),
            margin: Duration::from_millis(self.margin_ms),
        }
    }
}

section! {
    /// Limits. What goes over one gets a clear error and loses nothing.
    Limits, "limits." {
        /// Bytes of a record's body, compacted.
        message_bytes: usize = 64 * KIB, Range(1024, 1024 * 1024);
        /// Levels of objects and arrays in a body.
        body_depth: usize = 32, Range(2, 100);
        /// Bytes of one WebSocket frame or HTTP request body; a longer frame closes the socket with 1009. At least twice limits.message_bytes.
        frame_bytes: usize = MIB, Range(8 * 1024, 16 * 1024 * 1024);
        /// Bytes of a request's head (request line and headers).
        header_bytes: usize = 16 * KIB, Range(8 * 1024, 1024 * 1024);
        /// Header lines of one request.
        headers: usize = 100, Range(16, 1000);
        /// Milliseconds within which a request's head must have arrived.
        header_timeout_ms: u64 = 10_000, Range(100, 5 * MINUTE_MS);
        /// Milliseconds within which the head of a request's answer goes out, its body read; over it 503. At least limits.route_ms and limits.join_wait_ms.
        request_timeout_ms: u64 = 10_000, Range(100, 5 * MINUTE_MS);
        /// Client connections at once, all kinds together. The process needs that many file descriptors and some more.
        connections: usize = 16_384, Range(1, 1_000_000);
        /// WebSockets at once; over it new ones are refused with 503.
        sockets: usize = 16_384, Range(1, 1_000_000);
        /// Server-Sent Event streams at once; over it new ones are told to reconnect later.
        streams: usize = 16_384, Range(1, 1_000_000);
        /// Sessions in conversations at once, over all sockets and streams; over it a join is refused with a directive.
        sessions: usize = 65_536, Range(1, 10_000_000);
        /// Topics that one socket may have joined, with joins under way of topics that it left.
        topics_per_socket: usize = 100, Range(1, 10_000);
        /// Pushes of one socket that are being answered at once; over it the socket is read no further.
        pushes_per_socket: usize = 64, Range(1, 10_000);
        /// Bytes that may wait for one slow socket or stream; over it live events go, then it is told to resync. At least 2 × limits.message_bytes.
        outbox_bytes: usize = 512 * KIB, Range(16 * 1024, 64 * 1024 * 1024);
        /// Commands that may wait for one conversation's owner.
        owner_commands: usize = 4_096, Range(16, 1_000_000);
        /// Writes that may wait for one conversation's commit; over it `overloaded`.
        owner_queue_records: usize = 4_096, Range(1, 1_000_000);
        /// Bytes of bodies that may wait for one conversation's commit. At least limits.message_bytes.
        owner_queue_bytes: usize = 16 * MIB, Range(4096, 1024 * 1024 * 1024);
        /// Records of one conversation in one commit.
        append_records: usize = 512, Range(1, 100_000);
        /// Bytes of one conversation's bodies in one commit; a single larger group goes alone. At least limits.message_bytes.
        append_bytes: usize = 4 * MIB, Range(4096, 256 * 1024 * 1024);
        /// Conversations in one commit.
        commit_batches: usize = 512, Range(1, 100_000);
        /// Commits under way at once.
        commits: usize = 2, Range(1, 64);
        /// Conversations that may wait for the commit. At least limits.commit_batches.
        commit_queue: usize = 1_024, Range(1, 1_000_000);
        /// Client message ids of a conversation that are remembered in memory; older ones are looked up in the store.
        recent_keys: usize = 64, Range(1, 1_000_000);
        /// Owners on other nodes that are remembered, to save look-ups.
        known_owners: usize = 65_536, Range(16, 10_000_000);
        /// Ownership claims under way at once.
        claims: usize = 64, Range(1, 10_000);
        /// Ownership claims a second that nobody waits for (for those who only watch); claims of waiting senders and of due work
        /// are not counted.
        claims_per_s: u32 = 500, Range(1, 100_000);
        /// Of these at once.
        claims_burst: u32 = 100, Range(1, 100_000);
        /// Milliseconds for which a node itself looks for an owner before it answers with a directive. At most limits.request_timeout_ms.
        route_ms: u64 = 5_000, Range(100, MINUTE_MS);
        /// Milliseconds for which a turn whose agent its node lacks waits for a node that has it; then it fails (`agent_unknown`).
        agent_wait_ms: u64 = 60_000, Range(0, 10 * MINUTE_MS);
        /// Frames that may wait for one follower; over it the follower is dropped and comes back.
        follower_frames: usize = 4_096, Range(16, 1_000_000);
        /// Commands that may wait for one hub.
        hub_commands: usize = 1_024, Range(16, 1_000_000);
        /// Milliseconds that a hub outlives its last session.
        hub_linger_ms: u64 = 5_000, Range(0, 10 * MINUTE_MS);
        /// Milliseconds for which a join waits for the owner before it is refused with a directive; stock clients leave after 10 s. At most limits.request_timeout_ms.
        join_wait_ms: u64 = 6_000, Range(100, 9_000);
        /// Milliseconds of an owner's silence after which a hub looks for it again.
        owner_silence_ms: u64 = 3_000, Range(100, 5 * MINUTE_MS);
        /// Newest records of a conversation that its hub keeps in memory for those who resume, and frames that may wait for a delivery worker.
        ring_records: usize = 1_024, Range(1, 100_000);
        /// Bytes of a conversation's records that its hub keeps in memory, and of frames that may wait for a delivery worker.
        ring_bytes: usize = 2 * MIB, Range(4096, 256 * 1024 * 1024);
        /// Records that a client may be behind and still be caught up record by record; further behind it is told to resync.
        catch_up_records: usize = 10_000, Range(1, 1_000_000);
        /// Records of one read while catching up.
        catch_up_page: usize = 200, Range(1, 10_000);
        /// Reads for catching up under way at once on this node.
        catch_up_reads: usize = 16, Range(1, 10_000);
        /// Records of one history page when the request does not say.
        history_default: usize = 50, Range(1, 10_000);
        /// Records of one history page at most. At least limits.history_default.
        history_limit: usize = 500, Range(1, 10_000);
        /// Milliseconds for which a stopping node finishes what was begun.
        drain_ms: u64 = 30_000, Range(100, 10 * MINUTE_MS);
        /// Milliseconds without a sign of progress after which a worker counts as wedged and /livez fails.
        wedged_ms: u64 = 15_000, Range(500, 10 * MINUTE_MS);
    }
}

impl Limits {
    /// What a body from outside is held to.
    #[must_use]
    pub fn body(&self) -> body::Limits {
        body::Limits { bytes: self.message_bytes, depth: self.body_depth }
    }
}

section! {
    /// When an idle conversation leaves memory, and when its lease is given up.
    Hibernation, "hibernation." {
        /// Milliseconds without traffic after which an unwatched conversation leaves memory.
        memory_ms: u64 = MINUTE_MS, Range(100, DAY_MS);
        /// Milliseconds without traffic after which an unwatched conversation's lease is released. At least hibernation.memory_ms.
        release_ms: u64 = 10 * MINUTE_MS, Range(100, 7 * DAY_MS);
    }
}

section! {
    /// How nodes hand idle conversations to each other, so that all own about as many and each is owned at its home. The same
    /// on all nodes.
    Rebalance, "rebalance." {
        /// Conversations a second that this node hands over, and likewise takes, at most; 0: it does neither, and the others leave it out.
        per_s: u32 = 20, Range(0, 10_000);
        /// Milliseconds between two looks at what all own; with per_s above 0, at least one conversation a look. The same on all nodes.
        interval_ms: u64 = 1_000, Range(50, 10 * MINUTE_MS);
        /// Milliseconds without a message or event after which a conversation without a running turn may be handed over.
        idle_ms: u64 = 5_000, Range(100, HOUR_MS);
    }
}

section! {
    /// How sequence numbers are reserved.
    Sequencer, "sequencer." {
        /// Numbers reserved at once.
        block: u64 = 1_000, Range(1, 1_000_000);
        /// Numbers that an unclean takeover skips. At least sequencer.block; the same on all nodes.
        gap: u64 = 1_000, Range(1, 1_000_000);
    }
}

section! {
    /// How records reach many sockets.
    Fanout, "fanout." {
        /// Connected sessions of a conversation, over all nodes, from which on its presence is a count. The same on all nodes.
        presence_count_from: usize = 1_000, Range(1, 3_000);
        /// Reads a second for clients that catch up from the store, on this node; those that need the same share one. Above it they wait for their turn, at most 10 s, and are then told to resync.
        catch_up_reads_per_s: u32 = 200, Range(1, 100_000);
        /// Bytes of what was read for them that this node keeps for 30 s, for those who need the same a moment later.
        catch_up_kept_bytes: usize = 8 * MIB, Range(0, 1024 * 1024 * 1024);
        /// Milliseconds over which clients spread their reconnects.
        reconnect_jitter_ms: u64 = 30_000, Range(0, 10 * MINUTE_MS);
        /// Connected sessions of a conversation, over all nodes, from which on its frames gather before they are written.
        coalesce_sessions: usize = 1_000, Range(2, 1_000_000);
        /// Milliseconds for which they gather, if the conversation's settings do not say.
        coalesce_ms: u64 = 50, Range(0, 1_000);
        /// To which that grows under pressure, if the conversation's settings do not say.
        coalesce_max_ms: u64 = 300, Range(0, 1_000);
        /// Tasks that write to sockets and streams, each to those that are pinned to it. 0: one for each processor.
        workers: usize = 0, Range(0, 256);
    }
}

section! {
    /// How much one sender may send; a bench's token may lift it.
    Rate, "rate." {
        /// Messages a second, per sender, in the long run.
        per_second: u32 = 20, Range(1, 1_000_000);
        /// Messages that a sender who was quiet may send at once.
        burst: u32 = 100, Range(1, 1_000_000);
        /// Joins of conversations and streams a second, per sender, in the long run.
        joins_per_second: u32 = 20, Range(1, 1_000_000);
        /// Joins of a sender who was quiet at once: all of its sockets may come back at the same time.
        joins_burst: u32 = 500, Range(1, 1_000_000);
        /// Senders whose allowance is remembered; the least recent are forgotten.
        senders: usize = 100_000, Range(1, 10_000_000);
    }
}

section! {
    /// Who gets in. Without `secret` and `secret_file` the node is in development mode: it makes its own secret, binds
    /// loopback addresses only, and the console gives out names.
    Auth, "auth." {
        /// The key of HS256 tokens. Never shown. Not together with auth.secret_file.
        secret: Option<Secret> = None, Text("a string of at least 32 bytes");
        /// A file that holds the key, as bytes; one line feed at its end is ignored.
        secret_file: Option<PathBuf> = None, Text("a path");
        /// Browser origins beside the server's own that may use the API: `SCHEME://HOST[:PORT]`, or `*` for any.
        allowed_origins: Vec<AllowedOrigin> = Vec::new(), Text("a list of SCHEME://HOST[:PORT], or *");
        /// Milliseconds for which a token of the development login is good.
        token_ttl_ms: u64 = 12 * HOUR_MS, Range(1_000, 366 * DAY_MS);
    }
}

impl Auth {
    /// The key, or where it is.
    #[must_use]
    pub fn configured(&self) -> Configured<'_> {
        Configured { secret: self.secret.as_ref(), file: self.secret_file.as_deref() }
    }
}

section! {
    /// What nodes say to each other. All nodes of a cluster have the same secret and frame_bytes.
    LinkConfig, "link." {
        /// The nodes' shared secret. Never shown. Not set: derived from the cluster's key (auth.secret or auth.secret_file).
        secret: Option<Secret> = None, Text("a string of at least 32 bytes");
        /// This node's certificate chain in PEM, for servers and clients, naming the host of link_advertise. Together with link.tls_key and link.tls_ca.
        tls_cert: Option<PathBuf> = None, Text("a path");
        /// The certificate's private key in PEM.
        tls_key: Option<PathBuf> = None, Text("a path");
        /// The authority of all nodes' certificates in PEM. Other nodes must show one of its certificates.
        tls_ca: Option<PathBuf> = None, Text("a path");
        /// Bytes of one frame between nodes. At least twice limits.frame_bytes.
        frame_bytes: usize = 4 * MIB, Range(2 * 1024 * 1024, FRAME_MAX_BYTES as u64);
        /// Requests to one node that wait for their answer, and from one that are answered at once; over it they are not asked.
        requests: usize = 4_096, Range(1, 1_000_000);
        /// Conversations followed at one node, and by one; over it a follow is refused with a directive.
        streams: usize = 65_536, Range(1, 1_000_000);
        /// Bytes that may wait to be written to one node; over it requests are not asked, notices are dropped, streams wait.
        queue_bytes: usize = 8 * MIB, Range(64 * 1024, 1024 * 1024 * 1024);
        /// Frames of one follow stream that its follower has not taken.
        stream_frames: u32 = 256, Range(2, 65_536);
        /// Bytes of one follow stream that its follower has not taken; one frame may exceed it.
        stream_bytes: u32 = 1024 * 1024, Range(4096, 64 * 1024 * 1024);
        /// Connections of other nodes to this one.
        connections: usize = 1_024, Range(1, 100_000);
        /// Connections whose other side has not proved yet that it has the secret.
        handshakes: usize = 64, Range(1, 10_000);
        /// Milliseconds within which a connection is made and both sides have proved themselves.
        hello_timeout_ms: u64 = 2_000, Range(50, MINUTE_MS);
        /// Milliseconds of a node's silence after which its connection is dropped; it is asked for a sign of life at a quarter of it.
        silence_ms: u64 = 3_000, Range(100, MINUTE_MS);
    }
}

section! {
    /// The endpoints for front ends of the Vercel AI SDK.
    Ai, "ai." {
        /// The agent of a chat that its first message creates without naming one; not set: `assistant` where there is one, else `demo`.
        agent: Option<AgentName> = None, Text("the name of an agent");
    }
}

section! {
    /// What is logged, and how.
    Log, "log." {
        /// `text` for people, `json` for machines.
        format: LogFormat = LogFormat::Text, Text("text or json");
        /// The least severe lines that are written.
        level: LogLevel = LogLevel::Info, Text("error, warn, info, debug or trace");
    }
}

/// Every setting, in the order in which they are documented.
pub fn fields() -> impl Iterator<Item = &'static super::field::Field> {
    [
        Config::FIELDS,
        Postgres::FIELDS,
        LeaseConfig::FIELDS,
        Limits::FIELDS,
        Hibernation::FIELDS,
        Rebalance::FIELDS,
        Sequencer::FIELDS,
        Fanout::FIELDS,
        Rate::FIELDS,
        Auth::FIELDS,
        LinkConfig::FIELDS,
        Agent::FIELDS,
        Ai::FIELDS,
        Log::FIELDS,
    ]
    .into_iter()
    .flatten()
}

impl Config {
    /// Every number with the key it has, for the range check.
    pub(super) fn all_numbers(&self) -> Vec<(String, &'static super::field::Field, u64)> {
        let sections = [
            self.postgres.numbers(),
            self.lease.numbers(),
            self.limits.numbers(),
            self.hibernation.numbers(),
            self.rebalance.numbers(),
            self.sequencer.numbers(),
            self.fanout.numbers(),
            self.rate.numbers(),
            self.auth.numbers(),
            self.link.numbers(),
        ];
        let fixed = sections.into_iter().flatten().map(|(field, number)| (field.key.to_owned(), field, number));
        let agents = self.agents.0.iter().flat_map(|(name, agent)| {
            let named = move |field: &super::field::Field| field.key.replace("NAME", name.as_str());
            agent.numbers().into_iter().map(move |(field, number)| (named(field), field, number))
        });
        fixed.chain(agents).collect()
    }
}
