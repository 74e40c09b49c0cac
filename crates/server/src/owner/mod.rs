//! The owner of a conversation: one task, the only place on this node that numbers, acks and publishes its records.
//!
//! A task owns the state; everybody else holds an [`OwnerHandle`]. The durable steps run inside the task, so that a caller
//! who goes away cannot cut one in half.
//!
//! Invariants kept here: 7 and 8, by performing the sequencer's actions in order and nothing else; and F1, F3, F6 of the
//! follow protocol (docs/ARCHITECTURE.md, "Follow").
//!
//! Deliberately absent: finding the owner ([`crate::router`]), and any knowledge of sockets ([`crate::hub`]).

pub mod commit;
mod follow;
mod task;
#[cfg(test)]
mod tests;
mod turns;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use conch_core::conversation::{ConversationKind, Settings};
use conch_core::ids::{AgentName, ConvRef, Epoch, Generation, Incarnation, LogId, Region, Seq};
use conch_core::presence::merge::FollowerId;
use conch_core::record::Draft;
use conch_core::refusal::{Code, Refusal, Retry};
use conch_core::sequencer::{Receipt, Reign};
use conch_core::time::Monotonic;
use conch_core::turn::Gone;
use conch_core::turn::cancel::TurnAsk;
use conch_core::turn::live::LiveEvent;
use conch_store::{Armed, ConversationInfo};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use crate::bounded;
use crate::link::Handed;
use crate::metrics::{Metrics, Queue};
use crate::turn::agents::Agents;

pub use follow::{Follow, FollowFrame, FollowerReport, PresenceNews, Published, Reports};
pub(crate) use task::{start, store_refusal};

/// Where an append's outcome goes; called exactly once, from the owner's task, so it must not block.
pub type Reply = Box<dyn FnOnce(Result<Vec<Receipt>, Refusal>) + Send>;

/// What an owner is asked.
pub(crate) enum Command {
    /// Append these in one commit.
    Append { drafts: Vec<Draft>, reply: Reply },
    /// Append these for a turn, if it is still the runner's.
    RunnerAppend { drafts: Vec<Draft>, reply: Reply },
    /// A turn's runner is done, one way or another.
    RunnerGone { turn: Seq, how: Gone },
    /// Inputs that wait may join the turn; its runner asks for them.
    Join { turn: Seq, reply: oneshot::Sender<Result<Vec<Seq>, Refusal>> },
    /// Do this with the conversation's turns.
    Turn { ask: TurnAsk, reply: Reply },
    /// Show a live event of a turn.
    Live(LiveEvent),
    /// What the search of this number was for is nowhere.
    AgentIsNowhere { search: u64 },
    /// Turns are run in this way from now on, unless it was read before what is known.
    SetUp { read: SetUp, done: oneshot::Sender<()> },
    /// A follower tells something.
    Report(FollowerId, FollowerReport),
    /// Who is present over all gateways? For reads.
    Present { reply: oneshot::Sender<Option<Present>> },
    /// Attach a follower.
    Follow { reply: oneshot::Sender<Result<Follow, Refusal>> },
    /// Finish what is under way, release the lease, stop.
    Release { done: oneshot::Sender<()> },
    /// Finish what is under way, pass the lease to a peer, stop. `None`: it was not passed.
    HandOff { to: Incarnation, patience: Patience, done: oneshot::Sender<Option<Handed>> },
}

/// Who is present in a conversation, over all gateways.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Present {
    /// Connected sessions.
    pub connected: usize,
    /// The JSON of `GET …/presence`.
    pub json: String,
}

/// How long a running turn may keep an owner from being handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Not at all: an owner with a turn stays.
    OnlyIfIdle,
    /// Until then; after that its turn is handed over in its middle.
    Until(Monotonic),
    /// At once, its turn too, as long as the owner still looks for an agent by this search; else it stays.
    WhileSought(u64),
}

/// Counts a node's readings of how conversations' turns are run. Of two, the greater one began later; so it shows every change that
/// was written before the other one began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Reading(pub u64);

/// How a session's turns are run, as it was read.
#[derive(Debug, Clone)]
pub(crate) struct SetUp {
    pub agent: AgentName,
    pub settings: Settings,
    pub reading: Reading,
}

/// Ownership of a conversation whose task is not running: kept while it hibernates.
#[derive(Debug, Clone)]
pub(crate) struct Tenure {
    pub conversation: ConvRef,
    pub reign: Reign,
    pub generation: Generation,
    pub log: LogId,
    pub kind: ConversationKind,
    /// Who answers; only in a session.
    pub agent: Option<AgentName>,
    /// How its turns are run.
    pub settings: Settings,
    /// Which reading said so.
    pub reading: Reading,
    /// Where it may be owned; empty: anywhere.
    pub regions: Arc<[Region]>,
    /// Where it is preferred to be owned.
    pub home: Region,
}

impl Tenure {
    /// What a claim or a hand-over gave, and what this reading said of the conversation.
    pub(crate) fn of(
        conversation: ConvRef,
        armed: Armed,
        log: LogId,
        (reading, info): (Reading, &ConversationInfo),
    ) -> Self {
        let reign = Reign {
            epoch: armed.epoch,
            last_seq: armed.last_seq,
            first_seq: armed.first_seq,
            reserved_to: Seq(armed.first_seq.0 - 1),
        };
        let (kind, agent, regions) = (info.kind, info.agent.clone(), info.regions.as_slice().into());
        let (settings, home) = (info.settings.clone(), info.home.clone());
        let generation = armed.generation;
        Self { conversation, reign, generation, log, kind, agent, settings, reading, regions, home }
    }

    /// Takes what was read, unless what is known was read later.
    pub(crate) fn set_up(&mut self, read: SetUp) {
        if read.reading > self.reading {
            (self.agent, self.settings, self.reading) = (Some(read.agent), read.settings, read.reading);
        }
    }

    /// What its next owner is told, who holds it as `armed`.
    pub(crate) fn handed(&self, armed: Armed) -> Handed {
        Handed {
            conversation: self.conversation.id.clone(),
            epoch: armed.epoch,
            generation: armed.generation,
            last_seq: armed.last_seq,
            first_seq: armed.first_seq,
            log: self.log.clone(),
        }
    }
}

/// How an owner's task ended.
pub(crate) enum End {
    /// Still ours, without a task.
    Hibernated(Tenure),
    /// Given up or passed on: whoever comes next resolves.
    Gone,
    /// A session's, lost or of unknown fate: its turns must not wait for somebody who comes.
    Lost,
}

/// What is known of an owner without asking it.
#[derive(Debug)]
pub(crate) struct Facts {
    pub conversation: ConvRef,
    pub epoch: Epoch,
    pub kind: ConversationKind,
    /// Where it may be owned; empty: anywhere.
    pub regions: Arc<[Region]>,
    /// Where it is preferred to be owned.
    pub home: Region,
    /// When its loop last came round, in the clock's nanoseconds.
    pub last_round: AtomicU64,
    /// When something was last written, or the reign began; likewise.
    pub last_write: AtomicU64,
    /// Its lease was given up over its head: it ends when it comes round again, and its follow streams with it (F6).
    pub deposed: AtomicBool,
}

/// A cheap handle on an owner.
#[derive(Clone)]
pub struct OwnerHandle {
    pub(crate) facts: Arc<Facts>,
    pub(crate) commands: mpsc::Sender<Command>,
    pub(crate) metrics: Arc<Metrics>,
}

impl OwnerHandle {
    /// The epoch of its reign.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.facts.epoch
    }

    /// When its loop last came round.
    pub(crate) fn last_round(&self) -> Monotonic {
        Monotonic(self.facts.last_round.load(Ordering::Relaxed))
    }

    /// When something was last written, or the reign began.
    pub(crate) fn last_write(&self) -> Monotonic {
        Monotonic(self.facts.last_write.load(Ordering::Relaxed))
    }

    /// Its lease is gone; the task is told for when it goes on.
    pub(crate) fn depose(&self) {
        self.facts.deposed.store(true, Ordering::Relaxed);
    }

    /// True once its task accepts nothing more.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.commands.is_closed()
    }

    /// Asks for an append without waiting, in the order of calls. When the owner is gone or its queue is full, `reply` is
    /// called with a refusal that carries a directive.
    pub fn submit(&self, drafts: Vec<Draft>, reply: Reply) {
        let refused = match self.commands.try_send(Command::Append { drafts, reply }) {
            Ok(()) => return,
            Err(mpsc::error::TrySendError::Full(command)) => {
                self.metrics.limit_hit(Queue::OwnerCommands);
                (command, overloaded())
            }
            Err(mpsc::error::TrySendError::Closed(command)) => (command, moved()),
        };
        if let (Command::Append { reply, .. }, refusal) = refused {
            reply(Err(refusal));
        }
    }

    /// Appends and waits for the outcome. Dropping the future does not stop the append.
    ///
    /// # Errors
    /// The owner's refusal, or one with a directive when the owner is gone.
    pub async fn append(&self, drafts: Vec<Draft>) -> Result<Vec<Receipt>, Refusal> {
        let (answer, outcome) = oneshot::channel();
        let reply: Reply = Box::new(move |result| drop(answer.send(result)));
        self.ask(Command::Append { drafts, reply }).await?;
        outcome.await.unwrap_or_else(|_| Err(moved()))
    }

    async fn ask(&self, command: Command) -> Result<(), Refusal> {
        let sent = bounded::send(&self.commands, command, &self.metrics, Queue::OwnerCommands).await;
        sent.map_err(|bounded::Gone| moved())
    }

    /// Attaches a follower between two commits (F1).
    ///
    /// # Errors
    /// A refusal with a directive when the owner is gone or its lease uncertain.
    pub async fn follow(&self) -> Result<Follow, Refusal> {
        let (reply, answer) = oneshot::channel();
        self.ask(Command::Follow { reply }).await?;
        answer.await.unwrap_or_else(|_| Err(moved()))
    }

    /// Who is present over all gateways; `None`: nobody follows. An owner that is too busy is not waited for.
    pub(crate) async fn present(&self) -> Option<Present> {
        let (reply, present) = oneshot::channel();
        self.commands.try_send(Command::Present { reply }).ok()?;
        present.await.ok()?
    }

    /// Asks something of the conversation's turns, and waits for the outcome. Dropping the future does not take it back.
    ///
    /// # Errors
    /// The owner's refusal, or one with a directive when the owner is gone.
    pub async fn turn(&self, ask: TurnAsk) -> Result<Vec<Receipt>, Refusal> {
        let (answer, outcome) = oneshot::channel();
        let reply: Reply = Box::new(move |result| drop(answer.send(result)));
        self.ask(Command::Turn { ask, reply }).await?;
        outcome.await.unwrap_or_else(|_| Err(moved()))
    }

    /// Turns are run in this way from now on, unless it was read before what the owner knows.
    ///
    /// # Errors
    /// A refusal with a directive when the owner is gone, and may not have heard it.
    pub(crate) async fn set_up(&self, read: SetUp) -> Result<(), Refusal> {
        let (done, heard) = oneshot::channel();
        self.ask(Command::SetUp { read, done }).await?;
        heard.await.map_err(|_| moved())
    }

    /// Asks the owner to pass its lease on. `None`: it did not, and either stays or ended in another way.
    pub(crate) async fn hand_off(&self, to: Incarnation, patience: Patience) -> Option<Handed> {
        let (done, handed) = oneshot::channel();
        self.ask(Command::HandOff { to, patience, done }).await.ok()?;
        handed.await.ok()?
    }

    /// What the owner sought is nowhere. One that is gone need not know.
    pub(crate) async fn agent_is_nowhere(&self, search: u64) {
        let _ = self.ask(Command::AgentIsNowhere { search }).await;
    }

    /// Asks the owner to release and waits until it has; returns at once when it is gone.
    pub(crate) async fn release(&self) {
        let (done, released) = oneshot::channel();
        if self.ask(Command::Release { done }).await.is_ok() {
            // An error means that the task ended on its own, which is as good.
            let _ = released.await;
        }
    }
}

/// The refusal of an owner that is one no longer.
pub(crate) fn moved() -> Refusal {
    Refusal::retry(Code::ConversationUnavailable, "the conversation changes its owner", Retry::SOON)
}

fn overloaded() -> Refusal {
    let retry = Retry { after_ms: 500, budget_ms: 20_000 };
    Refusal::retry(Code::Overloaded, "the conversation's queue is full", retry)
}

/// Told of every published record: the conversation and its new last seq.
pub type OnPublished = Arc<dyn Fn(&ConvRef, Seq) + Send + Sync>;

/// An owner lacks the agent of what it is to do next.
#[derive(Debug, Clone)]
pub(crate) struct Search {
    pub conversation: ConvRef,
    pub epoch: Epoch,
    pub agent: AgentName,
    /// Counts those of this owner, from 1.
    pub number: u64,
    /// The number of the search that goes on; 0: none.
    pub current: watch::Receiver<u64>,
}

impl Search {
    /// Whether its owner still needs what is looked for.
    pub(crate) fn is_current(&self) -> bool {
        *self.current.borrow() == self.number
    }
}

/// Begins a search. It ends with the owner, which is handed over, with [`Command::AgentIsNowhere`], or when it is called off.
pub(crate) type Seek = Arc<dyn Fn(Search) + Send + Sync>;

/// Told to the router when an owner's task ends.
pub(crate) type OnEnd = Box<dyn FnOnce(End) + Send>;

/// What an owner's task needs.
pub(crate) struct Charge {
    pub node: Arc<crate::node::Node>,
    pub committer: commit::Committer,
    /// Whoever changes hands holds one.
    pub hand_overs: Arc<Semaphore>,
    pub tenure: Tenure,
    pub agents: Arc<Agents>,
    pub on_published: OnPublished,
    pub seek: Seek,
}
