//! The load generator: sessions of a channel, as many as a process may have sockets, in one thread with one epoll loop. It
//! shares the machine with what it measures, so a delivery costs a read, a look at two numbers, and no allocation.
//!
//! Invariant: each session checks for itself that what it gets in a channel ascends, and counts it; so whether all of them
//! had everything can be told, not only whether there was as much. A session that loses its socket waits as the server
//! asked it to, comes back through the next gateway, and goes on behind the last record that it has.
//!
//! Deliberately absent: deciding anything. It is told by the bench, in JSON lines, how many sessions there should be and
//! what they say.

mod dialect;
mod frames;
mod hearing;
mod pool;
mod saying;
mod session;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

pub(super) use self::dialect::Dialect;
#[cfg(test)]
pub(super) use self::frames::number_after;
use self::pool::Pool;
use super::histogram::Histogram;
use super::ramp::Growth;
use super::{process, worker};
use crate::exit::Failure;

/// Whether the sessions read what they are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Reading {
    /// As it comes.
    Always,
    /// Not once they have joined.
    Never,
}

/// Whether all sessions share a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Common {
    /// The one that `--conversation` names.
    Joined,
    /// They have only those that are numbered.
    Absent,
}

/// How a load is started.
#[derive(Debug, Args)]
pub(super) struct LoadArgs {
    /// `host:port` of the servers, separated by commas; sessions go to them in turn.
    #[arg(long, value_delimiter = ',', required = true)]
    address: Vec<SocketAddr>,
    /// What they speak.
    #[arg(long, value_enum, default_value_t = Dialect::Conch)]
    dialect: Dialect,
    /// Most sessions.
    #[arg(long)]
    sessions: usize,
    /// The channel; the numbered ones are called `CHANNEL.NUMBER`.
    #[arg(long, default_value = "bench")]
    conversation: String,
    /// Whether all join it.
    #[arg(long, value_enum, default_value_t = Common::Joined)]
    common: Common,
    /// How many of the numbered channels each joins.
    #[arg(long, default_value_t = 0)]
    each: usize,
    /// How many numbered channels there are.
    #[arg(long, default_value_t = 0)]
    of: usize,
    /// The loopback address to connect from: one address has fewer than 28,232 ports.
    #[arg(long)]
    from: Option<IpAddr>,
    /// Whether they read.
    #[arg(long, value_enum, default_value_t = Reading::Always)]
    reading: Reading,
    /// The window for coming back, instead of the server's.
    #[arg(long)]
    jitter_ms: Option<u64>,
    /// After a short batch of events, wait so long for more, in microseconds: fewer wake-ups, for so much of latency.
    #[arg(long, default_value_t = 0)]
    gather_us: u64,
    /// For what is drawn.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The token, by the environment.
    #[arg(long, env = "CONCH_TOKEN", hide_env_values = true, default_value = "")]
    token: String,
}

/// What the bench says. Each is answered by one line.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Question {
    /// Let there be so many sessions, evenly over this time. Answered at once with [`Done`].
    Connect { sessions: usize, over_ms: u64 },
    /// What was delivered since the last `Reset`? Answered with [`Delivered`].
    Look,
    /// The same, and start counting from nothing.
    Reset,
    /// Push live events at this rate: typing, and sessions that leave and join again. Answered with [`Done`].
    Live { growth: Growth },
    /// Send messages of this size into the numbered channels, in turn. Answered with [`Done`].
    Send { growth: Growth, bytes: usize },
    /// Has every session all of these, ascending, from its join on? Answered with [`Checked`].
    Check { seqs: Vec<u64> },
    /// Has every session of the numbered channels all that was sent there? Answered with [`Checked`].
    CheckSent,
}

/// It was heard.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Done {}

/// What was delivered, and how the sessions are.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Delivered {
    /// Sessions that have joined all their channels, now.
    pub(super) joined: usize,
    /// Sessions whose socket is lost, or which have not caught up since.
    pub(super) away: usize,
    /// Messages, over all sessions.
    pub(super) deliveries: u64,
    /// Their bytes, frame headers not included.
    pub(super) bytes: u64,
    /// Reads that brought something.
    pub(super) reads: u64,
    /// Fewest messages of a session.
    pub(super) least: u64,
    /// Most of one.
    pub(super) most: u64,
    /// Messages whose seq was not above the one before.
    pub(super) out_of_order: u64,
    /// Messages of a channel that a session had left, and not joined again yet.
    pub(super) late: u64,
    /// Sockets of joined sessions that ended.
    pub(super) ended: u64,
    /// Sessions that came back and were caught up.
    pub(super) returned: u64,
    /// Connections and joins that were refused, broken off or not answered; tried again.
    pub(super) refused: u64,
    /// Sessions that gave up.
    pub(super) gave_up: u64,
    /// Sessions that were told to load the newest page.
    pub(super) resyncs: u64,
    /// From the sender's clock to the read, of sessions that never lost their socket.
    pub(super) latency: Histogram,
    /// The same, of those that came back.
    pub(super) latency_returned: Histogram,
    /// From the loss of a socket to having been caught up.
    pub(super) back: Histogram,
    /// Messages of the load's own that were acknowledged.
    pub(super) sent: u64,
    /// And refused.
    pub(super) not_sent: u64,
    /// Live events that were pushed.
    pub(super) live: u64,
    /// The newest reason for the end of a socket.
    pub(super) why: Option<String>,
    /// The newest window for coming back that a server gave.
    pub(super) jitter_ms: Option<u64>,
}

impl Delivered {
    /// Of none; [`Delivered::add`] then adds.
    pub(super) fn nothing() -> Self {
        Self { least: u64::MAX, ..Self::default() }
    }

    /// Another process's, or a later one's. What says how sessions are now is added, too.
    pub(super) fn add(&mut self, other: &Self) {
        self.joined += other.joined;
        self.away += other.away;
        self.deliveries += other.deliveries;
        self.bytes += other.bytes;
        self.reads += other.reads;
        self.least = self.least.min(other.least);
        self.most = self.most.max(other.most);
        self.out_of_order += other.out_of_order;
        self.late += other.late;
        self.ended += other.ended;
        self.returned += other.returned;
        self.refused += other.refused;
        self.gave_up += other.gave_up;
        self.resyncs += other.resyncs;
        self.latency.merge(&other.latency);
        self.latency_returned.merge(&other.latency_returned);
        self.back.merge(&other.back);
        self.sent += other.sent;
        self.not_sent += other.not_sent;
        self.live += other.live;
        self.why = other.why.clone().or(self.why.take());
        self.jitter_ms = other.jitter_ms.or(self.jitter_ms);
    }
}

/// What a check found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Checked {
    /// Sessions in channels that were looked at.
    pub(super) looked_at: u64,
    /// Of these: those that have everything.
    pub(super) complete: u64,
    /// Messages that some session has not.
    pub(super) missing: u64,
    /// Messages that some session has although nobody is known to have sent them.
    pub(super) unknown: u64,
}

impl Checked {
    /// Another process's.
    pub(super) fn add(&mut self, other: Self) {
        self.looked_at += other.looked_at;
        self.complete += other.complete;
        self.missing += other.missing;
        self.unknown += other.unknown;
    }

    fn count(&mut self, expected: u64, has: u64) {
        self.looked_at += 1;
        self.complete += u64::from(expected == has);
        self.missing += expected.saturating_sub(has);
        self.unknown += has.saturating_sub(expected);
    }
}

/// The worker: until the bench is gone.
pub(super) fn run(args: &LoadArgs) -> Result<(), Failure> {
    let mut pool = Pool::new(args)?;
    let (questions, asked) = std::sync::mpsc::sync_channel(1);
    // Standard input blocks: it has a thread of its own.
    std::thread::spawn(move || {
        while let Ok(Some(question)) = worker::next_question::<Question>() {
            if questions.send(question).is_err() {
                return;
            }
        }
    });
    loop {
        match asked.try_recv() {
            Ok(question) => answer(&mut pool, question)?,
            Err(std::sync::mpsc::TryRecvError::Empty) => {}
            Err(std::sync::mpsc::TryRecvError::Disconnected) => return Ok(()),
        }
        pool.turn(process::shared_now_ns())?;
        if args.gather_us > 0 && pool.was_short() {
            std::thread::sleep(Duration::from_micros(args.gather_us));
        }
    }
}

fn answer(pool: &mut Pool, question: Question) -> Result<(), Failure> {
    let now_ns = process::shared_now_ns();
    match question {
        Question::Connect { sessions, over_ms } => pool.connect(sessions, over_ms, now_ns),
        Question::Live { growth } => pool.live(growth, now_ns),
        Question::Send { growth, bytes } => pool.send(growth, bytes, now_ns),
        Question::Look => return worker::answer(&pool.delivered()),
        Question::Reset => {
            worker::answer(&pool.delivered())?;
            pool.reset();
            return Ok(());
        }
        Question::Check { seqs } => return worker::answer(&pool.check(&seqs)),
        Question::CheckSent => return worker::answer(&pool.check_sent()),
    }
    worker::answer(&Done {})
}
