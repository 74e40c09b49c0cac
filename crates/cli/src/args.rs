//! The command line, a contract: names, defaults and environment variables are in docs/CLI.md and do not change.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use conch_core::conversation::ConversationKind;
use conch_core::ids::{AgentName, ClientMsgId, ConversationId, Incarnation, NodeName, Subject};
use conch_core::record::RecordKind;
use conch_server::auth::grants::Permission;
use conch_server::config::LeasesUrl;

use crate::bench;
use crate::duration;
use crate::exit;

/// Conch: a conversation server. Each conversation has one writer, one order, and can be watched from anywhere.
#[derive(Debug, Parser)]
#[command(name = "conch", version, after_help = exit::TABLE, propagate_version = true)]
pub(crate) struct Arguments {
    /// Print JSON lines. The default when standard output is not a terminal.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a node. Without arguments: data in ./conch-data, on loopback, with a console.
    Serve(ServeArgs),
    /// Mint a token with the development secret of the data directory, or with CONCH_AUTH_SECRET.
    Token(TokenArgs),
    /// Create a conversation; creating it again is no mistake.
    Create(CreateArgs),
    /// Send a message. Sent again with the same id until it is acknowledged or the budget is spent.
    Send(SendArgs),
    /// Show a turn of a session, cancel it, answer what it waits for, or run it again.
    Turn {
        #[command(subcommand)]
        command: TurnCommand,
    },
    /// Watch a conversation live; resumes by itself.
    Tail(TailArgs),
    /// Show a page of a conversation's log, oldest first.
    History(HistoryArgs),
    /// List my conversations, newest activity first.
    Conversations(ConversationsArgs),
    /// List, add or remove a conversation's members.
    Members(MembersArgs),
    /// List the nodes, as the server sees them.
    Nodes(NodesArgs),
    /// Declare a node's process dead, which is known for certain: directly in the store, without a server.
    Expel(ExpelArgs),
    /// Ask a node to drain: it hands its conversations over, sends its clients away and stops with exit code 0.
    Drain(DrainArgs),
    /// Let two nodes fight over a conversation of their own, and show that the store's fence holds.
    Canary(StoreArgs),
    /// Declare that a PostgreSQL database was restored from a backup, so that no number is given twice.
    Restored(RestoredArgs),
    /// Change where a cluster's leases are kept.
    Leases(LeasesArgs),
    /// Show the effective configuration, secrets hidden.
    Config(ServeArgs),
    /// Check a store's records: epochs never fall, no number and no message id twice, hashes right.
    Verify(StoreArgs),
    /// Check a recorded history (JSON lines) against the invariants.
    CheckHistory(CheckHistoryArgs),
    /// Measure.
    Bench(bench::BenchArgs),
}

/// How a node runs. What is not given comes from CONCH_… variables, the configuration file, or the defaults.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// The node's name [env: CONCH_NODE].
    #[arg(long)]
    pub(crate) node: Option<String>,
    /// The region it runs in [env: CONCH_REGION].
    #[arg(long)]
    pub(crate) region: Option<String>,
    /// Where clients connect [env: CONCH_LISTEN] [default: 127.0.0.1:4000].
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) listen: Option<String>,
    /// Where /livez, /readyz and /metrics are [env: CONCH_OPS_LISTEN] [default: 127.0.0.1:4001].
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) ops_listen: Option<String>,
    /// Where other nodes connect; without it the node has no link [env: CONCH_LINK_LISTEN].
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) link_listen: Option<String>,
    /// Where other nodes reach this one [env: CONCH_LINK_ADVERTISE] [default: link-listen].
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) link_advertise: Option<String>,
    /// The store, `sqlite:DIRECTORY` or `postgres://…` [env: CONCH_STORE] [default: sqlite:./conch-data].
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// Where ownership is kept: `postgres` (beside the records) or `etcd://HOST:PORT,…` [env: CONCH_LEASES] [default: postgres].
    #[arg(long, value_name = "postgres|etcd://…")]
    pub(crate) leases: Option<String>,
    /// A TOML file.
    #[arg(long, env = "CONCH_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// How logs are written: text or json [env: CONCH_LOG_FORMAT].
    #[arg(long)]
    pub(crate) log_format: Option<String>,
    /// How much is logged: error, warn, info, debug or trace [env: CONCH_LOG_LEVEL].
    #[arg(long)]
    pub(crate) log_level: Option<String>,
    /// Write this registration's incarnation there once the node is ready, and remove it at an end in order: for an exit hook
    /// that calls `conch expel`.
    #[arg(long, value_name = "PATH")]
    pub(crate) incarnation_file: Option<PathBuf>,
    /// Any setting, as `conch config` names them; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
}

/// Where the data is.
#[derive(Debug, Clone, Args)]
pub(crate) struct StoreArgs {
    /// The store, `sqlite:DIRECTORY` or `postgres://…`; a directory has the development secret, too [env: CONCH_STORE]
    /// [default: sqlite:./conch-data].
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct CheckHistoryArgs {
    /// The history; `-` reads standard input.
    pub(crate) file: PathBuf,
}

/// Which server, and as whom.
#[derive(Debug, Clone, Args)]
pub(crate) struct TargetArgs {
    /// The server, or several nodes of a cluster, separated by commas: the next one is asked when one cannot be reached.
    #[arg(long, env = "CONCH_URL", default_value = "http://127.0.0.1:4000")]
    pub(crate) url: String,
    /// The token. Without one, when the server is on loopback, a token for $USER is minted on the spot with CONCH_AUTH_SECRET,
    /// or else with the data directory's development secret.
    #[arg(long, env = "CONCH_TOKEN", hide_env_values = true)]
    pub(crate) token: Option<String>,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// How long to go on trying while the server cannot be reached. A directive of the server's replaces it.
    #[arg(long, value_name = "DURATION", default_value = "20s", value_parser = duration::parse)]
    pub(crate) budget: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct TokenArgs {
    /// Whose token.
    #[arg(long)]
    pub(crate) sub: Subject,
    /// The name that others see.
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// The conversations that the grant is for: a glob.
    #[arg(long, value_name = "GLOB", default_value = "*")]
    pub(crate) conversations: String,
    /// What the grant allows. Membership allows reading and sending without any: `none` mints such a token.
    #[arg(long, value_delimiter = ',', default_value = "read,send,run,create")]
    pub(crate) can: Vec<Can>,
    /// Lift the rate limit, for benchmarks; takes effect with `admin` on `*` only.
    #[arg(long)]
    pub(crate) unlimited_rate: bool,
    /// How long it is valid.
    #[arg(long, default_value = "1h", value_parser = duration::parse, value_name = "DURATION")]
    pub(crate) ttl: Duration,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// What a grant may allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Can {
    /// Read and watch.
    Read,
    /// Send messages and events.
    Send,
    /// Start turns, cancel them, and answer what they wait for.
    Run,
    /// Create conversations.
    Create,
    /// Members, title, agent, settings.
    Admin,
    /// No grant at all: memberships only.
    None,
}

impl Can {
    /// The permission; none for `none`.
    pub(crate) fn permission(self) -> Option<Permission> {
        match self {
            Self::Read => Some(Permission::Read),
            Self::Send => Some(Permission::Send),
            Self::Run => Some(Permission::Run),
            Self::Create => Some(Permission::Create),
            Self::Admin => Some(Permission::Admin),
            Self::None => None,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// Its id: 1 to 128 of A-Z a-z 0-9 . _ : -
    pub(crate) conversation: ConversationId,
    /// Its kind: channel, direct or session.
    #[arg(long, default_value = "channel")]
    pub(crate) kind: ConversationKind,
    /// Its title.
    #[arg(long)]
    pub(crate) title: Option<String>,
    /// Its agent, for a session.
    #[arg(long)]
    pub(crate) agent: Option<AgentName>,
    /// A first member; may be repeated.
    #[arg(long = "member", value_name = "SUB")]
    pub(crate) members: Vec<Subject>,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
}

#[derive(Debug, Args)]
pub(crate) struct SendArgs {
    /// Where.
    pub(crate) conversation: ConversationId,
    /// The text; `-` reads it from standard input.
    pub(crate) text: String,
    /// The idempotency key; without it a fresh one.
    #[arg(long, value_name = "ID")]
    pub(crate) client_msg_id: Option<ClientMsgId>,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
}

/// Which conversation of which server.
#[derive(Debug, Args)]
pub(crate) struct OfArgs {
    /// Where.
    pub(crate) conversation: ConversationId,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TurnCommand {
    /// Where it stands: its steps, what it waits for, how it ended.
    Show {
        #[command(flatten)]
        of: OfArgs,
        /// Which: the number of its input, as `conch send` prints it.
        turn: u64,
    },
    /// End it, queued, running or waiting.
    Cancel {
        #[command(flatten)]
        of: OfArgs,
        /// Which.
        turn: u64,
        /// What becomes of what it did: `keep` makes the text so far its answer, `rollback` hides all of it from later turns.
        #[arg(long, default_value = "keep")]
        mode: Mode,
    },
    /// Answer what it waits for.
    Resolve {
        #[command(flatten)]
        of: OfArgs,
        /// The await's name, as `await.opened` and `conch turn show` say it.
        #[arg(value_name = "AWAIT")]
        wait: String,
        /// JSON that fits the await's schema, such as '{"approve":true}'; `-` reads it from standard input.
        payload: String,
    },
    /// Run it again: it must be the last one that ended.
    Regenerate {
        #[command(flatten)]
        of: OfArgs,
        /// Which.
        turn: u64,
        /// The idempotency key; without it a fresh one.
        #[arg(long, value_name = "ID")]
        client_msg_id: Option<ClientMsgId>,
    },
}

/// What becomes of what a cancelled turn did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// It stays.
    Keep,
    /// Later turns do not see it.
    Rollback,
}

impl Mode {
    /// The name on the wire.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Rollback => "rollback",
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct TailArgs {
    /// Which.
    pub(crate) conversation: ConversationId,
    /// Start after this number; 0 is the beginning. Without it: the newest 20 records, then live.
    #[arg(long, value_name = "SEQ")]
    pub(crate) after: Option<u64>,
    /// End when everything that was there has been shown.
    #[arg(long)]
    pub(crate) until_caught_up: bool,
    /// With JSON: print live events too (deltas, presence, typing), as {"event": NAME, "data": …}.
    #[arg(long)]
    pub(crate) live: bool,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
}

#[derive(Debug, Args)]
pub(crate) struct HistoryArgs {
    /// Which.
    pub(crate) conversation: ConversationId,
    /// The records before this number.
    #[arg(long, value_name = "SEQ", conflicts_with = "after")]
    pub(crate) before: Option<u64>,
    /// The records after this number.
    #[arg(long, value_name = "SEQ")]
    pub(crate) after: Option<u64>,
    /// At most this many, 1 to 500.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=500))]
    pub(crate) limit: u16,
    /// Only these kinds, separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "KIND")]
    pub(crate) kinds: Vec<RecordKind>,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ConversationsArgs {
    /// Continue behind the page before: what it said at its end.
    #[arg(long)]
    pub(crate) after: Option<String>,
    /// At most this many, 1 to 500.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=500))]
    pub(crate) limit: u16,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
}

#[derive(Debug, Args)]
pub(crate) struct NodesArgs {
    #[command(flatten)]
    pub(crate) target: TargetArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ExpelArgs {
    /// Which registration, as `conch nodes` and the node's log show it. It is final: the process must not be running.
    #[arg(value_parser = crate::commands::nodes::parse_incarnation)]
    pub(crate) incarnation: Incarnation,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DrainArgs {
    /// Which node, by its name; any node may be asked.
    pub(crate) node: NodeName,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RestoredArgs {
    /// The highest generation that anybody may have seen: the number behind the last dot of `log` in an answer.
    #[arg(long, value_name = "GENERATION")]
    pub(crate) above: u64,
    #[command(flatten)]
    pub(crate) kept: KeptInArgs,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// Where nodes may be registered that the database does not list. One of these is needed where the leases are in etcd.
#[derive(Debug, Args)]
pub(crate) struct KeptInArgs {
    /// The etcd that keeps the leases until now: refused, with their names, while nodes are registered there.
    #[arg(long, value_name = "etcd://…", value_parser = parse_etcd)]
    pub(crate) from: Option<String>,
    /// That etcd is lost for good, and all nodes are stopped: nobody looks there.
    #[arg(long, conflicts_with = "from")]
    pub(crate) etcd_is_lost: bool,
}

fn parse_etcd(text: &str) -> Result<String, String> {
    match text.parse()? {
        LeasesUrl::Etcd(url) => Ok(url),
        LeasesUrl::Postgres => {
            Err("must be etcd://HOST:PORT,…; leave it out where the leases are in the database".to_owned())
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct LeasesArgs {
    #[command(subcommand)]
    pub(crate) change: LeasesChange,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LeasesChange {
    /// Keep them there from now on. All nodes must be stopped.
    Switch {
        /// Where: `postgres`, which is the records' own database, or `etcd://HOST:PORT,…`.
        #[arg(long, value_name = "postgres|etcd://…")]
        leases: LeasesUrl,
        #[command(flatten)]
        kept: KeptInArgs,
        #[command(flatten)]
        store: StoreArgs,
    },
}

#[derive(Debug, Args)]
pub(crate) struct MembersArgs {
    /// Whose.
    pub(crate) conversation: ConversationId,
    #[command(subcommand)]
    pub(crate) change: Option<MemberChange>,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum MemberChange {
    /// Make somebody a member.
    Add {
        /// Who.
        sub: Subject,
    },
    /// End a membership.
    Remove {
        /// Who.
        sub: Subject,
    },
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn serve_needs_no_arguments() {
        let parsed = Arguments::try_parse_from(["conch", "serve"]).expect("valid");
        assert!(matches!(parsed.command, Command::Serve(_)));
    }

    #[test]
    fn permissions_are_a_list() {
        let line = ["conch", "token", "--sub", "alice", "--can", "read,send,admin"];
        let Command::Token(token) = Arguments::try_parse_from(line).expect("valid").command else {
            panic!("another command");
        };
        assert_eq!(token.can, [Can::Read, Can::Send, Can::Admin]);
        assert_eq!(token.ttl, Duration::from_secs(3600));
    }
}
