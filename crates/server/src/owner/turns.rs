//! The turns of a session conversation, hosted by its owner: the machine decides, a runner works, the owner appends.
//!
//! Deliberately absent: any state of its own beyond the machine's, which is in the log. When the owner goes, the runner
//! is stopped, and the next owner finds in the log what there is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use conch_core::ids::{AgentName, ClientMsgId, ConvRef, ConversationId, Epoch, Seq, Subject};
use conch_core::record::{Draft, Record, RecordKind};
use conch_core::refusal::{Code, Refusal, Retry};
use conch_core::sequencer::{Receipt, Ticket};
use conch_core::time::Timestamp;
use conch_core::turn::cancel::OfferedStep;
use conch_core::turn::live::{LiveEvent, LiveView};
use conch_core::turn::{Due, Gone, Now, Setup, StartRunner, TurnCheckpoint, TurnMachine};
use conch_store::{Checkpoint, Direction, DueChange, DueWhy, RangeQuery, StoreError};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot, watch};

use super::{Command, Reply, moved, store_refusal};
use crate::metrics::LiveTurn;
use crate::node::Node;
use crate::rules::{Rule, Rules};
use crate::turn::agents::Agents;
use crate::turn::context::stale;
use crate::turn::port::{OFFERS_MAX, Offer, Records, Signal, TurnPort, TurnRun};
use crate::turn::runner::{self, RunOutcome};

/// Records of one read while thawing.
const THAW_PAGE: usize = 500;

/// The turns of one conversation.
pub(super) struct Turns {
    pub(super) machine: TurnMachine,
    pub(super) view: LiveView,
    /// Drafts of the appends under way that the machine is told of if they are refused.
    pub(super) own: BTreeMap<Ticket, Vec<Draft>>,
    /// The inputs under way, by their keys.
    pub(super) inputs: BTreeMap<Ticket, (Subject, ClientMsgId)>,
    /// The turns that appends under way cancel.
    pub(super) cancels: BTreeMap<Ticket, Seq>,
    /// Answers to cancels that wait for the end of what ran.
    parked: Vec<(Seq, Reply, Result<Vec<Receipt>, Refusal>)>,
    runner: Option<Runner>,
    /// The last turn that was run, and the number of its last attempt in this epoch.
    attempts: (Seq, Arc<AtomicU32>),
    /// Runners that were told to stop and are not over yet.
    stopping: BTreeSet<Seq>,
    checkpoint_version: u64,
    /// The agent that is looked for elsewhere.
    pub(super) sought: Sought,
}

/// An agent that this owner lacks.
#[derive(Default)]
pub(super) struct Sought {
    /// Which is looked for.
    pub(super) agent: Option<AgentName>,
    /// How many searches there were.
    pub(super) searches: u64,
    /// The number of the one that goes on; 0: none.
    pub(super) current: watch::Sender<u64>,
    /// Which was not found: its turns fail.
    pub(super) nowhere: watch::Sender<Option<AgentName>>,
}

/// The work on a turn.
struct Runner {
    turn: Seq,
    signal: watch::Sender<Signal>,
    offers: mpsc::Sender<Offer>,
}

impl Turns {
    /// Folds a session's log: its checkpoint, then what came after it; all of it where there is no checkpoint that can be
    /// read.
    pub(super) async fn thaw(node: &Node, conversation: &ConvRef, setup: Setup, now: Now) -> Result<Self, StoreError> {
        let store = &*node.store;
        let checkpoint = store.checkpoint(conversation).await?;
        let checkpoint_version = checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.version);
        let usable = checkpoint.filter(|_| node.rules.hold(Rule::CheckpointsAreUsed));
        let state = usable.and_then(|checkpoint| match TurnCheckpoint::decode(&checkpoint.state) {
            Ok(state) => Some(state),
            Err(error) => {
                tracing::info!(conversation = %conversation.id, %error, "the whole log is folded");
                None
            }
        });
        let mut after = state.as_ref().map_or(Seq(0), |state| state.at_seq);
        let mut machine = match state {
            Some(state) => TurnMachine::from_checkpoint(setup, state),
            None => TurnMachine::new(setup),
        };
        loop {
            let query = RangeQuery {
                conversation: conversation.clone(),
                direction: Direction::After(after),
                limit: THAW_PAGE,
                kinds: Vec::new(),
            };
            let Some(page) = store.range(&query).await? else { break };
            for record in &page.records {
                let input = conch_core::turn::Input::Committed(record);
                let handled = machine.handle(now, input, &mut Vec::new());
                handled.map_err(|broken| StoreError::Damaged(format!("conversation {}: {broken}", conversation.id)))?;
                after = record.seq;
            }
            if !page.more {
                break;
            }
        }
        Ok(Self {
            machine,
            view: LiveView::default(),
            own: BTreeMap::new(),
            inputs: BTreeMap::new(),
            cancels: BTreeMap::new(),
            parked: Vec::new(),
            runner: None,
            attempts: (Seq(0), Arc::default()),
            stopping: BTreeSet::new(),
            checkpoint_version,
            sought: Sought::default(),
        })
    }

    /// May this input be appended? One that is under way already is the same one.
    pub(super) fn may_accept(&self, draft: &Draft) -> Result<(), Refusal> {
        let is_same = |(sender, key): &(Subject, ClientMsgId)| *sender == draft.sender && *key == draft.client_msg_id;
        if self.inputs.values().any(is_same) { Ok(()) } else { self.machine.may_accept(self.inputs.len()) }
    }

    /// The text of a turn that is shown.
    pub(super) fn partial(&self, turn: Seq) -> Option<Arc<str>> {
        match self.view.snapshot() {
            Some(LiveEvent::Snapshot(piece)) if piece.turn == turn => Some(piece.text),
            _ => None,
        }
    }

    /// The due row that goes with a commit of these drafts.
    pub(super) fn due_after(&self, records: &[(Seq, Draft)]) -> Due {
        self.machine.due_after(records.iter().map(|(_, draft)| draft))
    }

    /// Starts the work on a turn.
    pub(super) fn start_runner(&mut self, node: &Node, agents: &Arc<Agents>, port: OwnerPort, start: StartRunner) {
        let (signal, observed) = watch::channel(Signal::Run);
        let (offers, offered) = mpsc::channel(OFFERS_MAX);
        let StartRunner { turn, agent, attempt, begin, deadline } = start;
        // Attempts only rise, also above those that a run before counted within itself.
        let attempt = attempt.max(port.attempts.load(Ordering::Relaxed) + 1);
        port.attempts.store(attempt, Ordering::Relaxed);
        self.runner = Some(Runner { turn, signal, offers });
        let conversation: ConversationId = port.conversation.id.clone();
        let run = TurnRun { conversation, turn, agent, epoch: port.epoch, attempt, begin, deadline };
        let (seams, agents, commands) = (node.seams.clone(), Arc::clone(agents), port.commands.clone());
        // Counted by the runner itself, so that it counts down however its owner ends.
        let running = node.metrics.turns(LiveTurn::Running);
        running.inc();
        node.seams.spawn("turn", async move {
            let outcome = runner::run(seams, Arc::new(port), agents, run, observed, offered).await;
            running.dec();
            tracing::debug!(%turn, ?outcome, "a turn's runner is done");
            let how = if outcome == RunOutcome::Waiting { Gone::Waiting } else { Gone::Over };
            // An owner that is gone does not need to know.
            let _ = commands.send(Command::RunnerGone { turn, how }).await;
        });
    }

    /// Stops the work on a turn, or on whichever runs.
    pub(super) fn stop_runner(&mut self, turn: Option<Seq>) {
        if let Some(runner) = self.runner.take_if(|runner| turn.is_none_or(|turn| turn == runner.turn)) {
            tracing::debug!(turn = %runner.turn, "a turn's runner is stopped");
            // A runner that is over needs no signal.
            let _ = runner.signal.send(Signal::Stop);
            self.stopping.insert(runner.turn);
        }
    }

    /// Counts the attempts of a turn.
    pub(super) fn attempts(&mut self, turn: Seq) -> Arc<AtomicU32> {
        if self.attempts.0 != turn {
            self.attempts = (turn, Arc::default());
        }
        Arc::clone(&self.attempts.1)
    }

    /// Gives a step that was done elsewhere to the run that asked for it.
    pub(super) fn offer(&self, step: OfferedStep, reply: Reply) {
        let Some(runner) = self.runner.as_ref().filter(|runner| runner.turn == step.turn) else {
            return reply(Err(stale(format!("turn {} is not run", step.turn))));
        };
        let reply = Box::new(move |result: Result<(), Refusal>| reply(result.map(|()| Vec::new())));
        match runner.offers.try_send(Offer { step, reply }) {
            Ok(()) => {}
            Err(TrySendError::Full(offer)) => {
                let retry = Retry { after_ms: 500, budget_ms: 20_000 };
                let detail = format!("more than {OFFERS_MAX} steps wait for their turn's journal");
                (offer.reply)(Err(Refusal::retry(Code::Overloaded, detail, retry)));
            }
            Err(TrySendError::Closed(offer)) => (offer.reply)(Err(stale("the turn's run is over"))),
        }
    }

    /// A runner is over: nothing of it goes on any more, and who cancelled its turn may know.
    pub(super) fn runner_gone(&mut self, turn: Seq) {
        self.runner.take_if(|runner| runner.turn == turn);
        self.stopping.remove(&turn);
        for (_, reply, result) in self.parked.extract_if(.., |(parked, ..)| *parked == turn) {
            reply(result);
        }
    }

    /// Answers a cancel, once what ran of the turn is over (invariant 14).
    pub(super) fn answer_cancel(&mut self, turn: Seq, reply: Reply, result: Result<Vec<Receipt>, Refusal>) {
        if self.stopping.contains(&turn) {
            self.parked.push((turn, reply, result));
        } else {
            reply(result);
        }
    }

    /// The machine's state, to be saved under the fence. `None`: it is too large to be saved, and thawing reads more.
    pub(super) fn checkpoint(&mut self, rules: &Rules) -> Option<Checkpoint> {
        let mut state = self.machine.checkpoint();
        if !rules.hold(Rule::CheckpointsForget) {
            state.queued = (1..=state.at_seq.0).map(Seq).collect();
        }
        match state.encode() {
            Ok(bytes) => {
                self.checkpoint_version += 1;
                Some(Checkpoint { version: self.checkpoint_version, at_seq: state.at_seq, state: bytes })
            }
            Err(error) => {
                tracing::warn!(%error, "a checkpoint was not saved");
                None
            }
        }
    }

    /// Takes note of a committed record.
    pub(super) fn committed(&mut self, record: &Record) {
        self.view.committed(record);
    }
}

/// The due row's change, as the store takes it. Work that an owner has is due at once, for whoever finds the owner gone; what
/// waits is due when its time is over.
pub(super) fn due_change(due: Due, wall: Timestamp) -> DueChange {
    let until = |time: Timestamp| Duration::from_millis(u64::try_from(time.0.saturating_sub(wall.0)).unwrap_or(0));
    match due {
        Due::Keep => DueChange::Keep,
        Due::Clear => DueChange::Clear,
        Due::Input => DueChange::Set(DueWhy::Input, Duration::ZERO),
        Due::Turn => DueChange::Set(DueWhy::Turn, Duration::ZERO),
        Due::Await(expires_at) => DueChange::Set(DueWhy::Await, until(expires_at)),
        Due::Deadline(deadline) => DueChange::Set(DueWhy::Deadline, until(deadline)),
    }
}

/// A runner's way to the owner.
pub(super) struct OwnerPort {
    pub(super) turn: Seq,
    pub(super) epoch: Epoch,
    pub(super) conversation: ConvRef,
    pub(super) node: Arc<Node>,
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) attempts: Arc<AtomicU32>,
    pub(super) nowhere: Option<watch::Receiver<Option<AgentName>>>,
}

#[async_trait]
impl TurnPort for OwnerPort {
    async fn range(&self, direction: Direction, kinds: &[RecordKind], limit: usize) -> Result<Records, Refusal> {
        let query = RangeQuery { conversation: self.conversation.clone(), direction, limit, kinds: kinds.to_vec() };
        let page = self.node.store.range(&query).await.map_err(|error| store_refusal(&error))?;
        let page = page.ok_or_else(|| Refusal::new(Code::NotFound, "the conversation is gone"))?;
        Ok(Records { records: page.records, more: page.more })
    }

    async fn append(&self, drafts: Vec<Draft>) -> Result<(), Refusal> {
        let (answer, outcome) = oneshot::channel();
        let reply = Box::new(move |result: Result<Vec<_>, Refusal>| drop(answer.send(result.map(drop))));
        if self.commands.send(Command::RunnerAppend { drafts, reply }).await.is_err() {
            return Err(moved());
        }
        outcome.await.unwrap_or_else(|_| Err(moved()))
    }

    async fn join(&self) -> Result<Vec<Seq>, Refusal> {
        let (reply, joined) = oneshot::channel();
        if self.commands.send(Command::Join { turn: self.turn, reply }).await.is_err() {
            return Err(moved());
        }
        joined.await.unwrap_or_else(|_| Err(moved()))
    }

    fn live(&self, event: LiveEvent) {
        // A full queue drops it; the next snapshot or the record heals what viewers see.
        let _ = self.commands.try_send(Command::Live(event));
    }

    async fn agent_is_nowhere(&self, agent: &AgentName) {
        let Some(mut nowhere) = self.nowhere.clone() else { return };
        let told = nowhere.wait_for(|gone| gone.as_ref() == Some(agent)).await.is_ok();
        if !told {
            // The owner is gone, and drops this run.
            std::future::pending::<()>().await;
        }
    }

    fn rules(&self) -> Rules {
        self.node.rules.clone()
    }

    fn next_attempt(&self) -> u32 {
        self.attempts.fetch_add(1, Ordering::Relaxed) + 1
    }
}
