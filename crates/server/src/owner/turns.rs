//! The turns of a session conversation, hosted by its owner: the machine decides, a runner works, the owner appends.
//!
//! Deliberately absent: any state of its own beyond the machine's, which is in the log. When the owner goes, the runner
//! is stopped, and the next owner finds in the log what there is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use conch_core::body::Body;
use conch_core::ids::{AgentName, ConvRef, Epoch, Seq};
use conch_core::record::{Draft, Record};
use conch_core::refusal::{Code, Refusal};
use conch_core::sequencer::Ticket;
use conch_core::turn::live::{LiveEvent, LiveView};
use conch_core::turn::{Due, TurnCheckpoint, TurnMachine};
use conch_store::{Checkpoint, Direction, DueChange, DueWhy, RangeQuery, Store, StoreError};
use tokio::sync::{mpsc, oneshot, watch};

use super::{Command, moved, store_refusal};
use crate::metrics::LiveTurn;
use crate::node::Node;
use crate::turn::agents::Agents;
use crate::turn::runner::{self, FIRST_ATTEMPT, Signal, TurnPort, TurnRun};

/// Records of one read while thawing.
const THAW_PAGE: usize = 500;

/// The turns of one conversation.
pub(super) struct Turns {
    pub(super) machine: TurnMachine,
    pub(super) view: LiveView,
    /// Drafts of the appends under way that the machine or its runner asked for.
    pub(super) own: BTreeMap<Ticket, Vec<Draft>>,
    runner: Option<(Seq, watch::Sender<Signal>)>,
    checkpoint_version: u64,
}

impl Turns {
    /// Folds a session's log: its checkpoint, then what came after it.
    pub(super) async fn thaw(store: &dyn Store, conversation: &ConvRef, agent: AgentName) -> Result<Self, StoreError> {
        let damaged = |detail: String| StoreError::Damaged(format!("conversation {}: {detail}", conversation.id));
        let checkpoint = store.checkpoint(conversation).await?;
        let checkpoint_version = checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.version);
        let mut machine = match &checkpoint {
            Some(checkpoint) => {
                let state = TurnCheckpoint::decode(&checkpoint.state).map_err(|error| damaged(error.to_string()))?;
                TurnMachine::from_checkpoint(agent, state)
            }
            None => TurnMachine::new(agent),
        };
        let mut after = checkpoint.map_or(Seq(0), |checkpoint| checkpoint.at_seq);
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
                let handled = machine.handle(conch_core::time::Monotonic(0), input, &mut Vec::new());
                handled.map_err(|broken| damaged(broken.to_string()))?;
                after = record.seq;
            }
            if !page.more {
                break;
            }
        }
        Ok(Self { machine, view: LiveView::default(), own: BTreeMap::new(), runner: None, checkpoint_version })
    }

    /// The due row that goes with a commit of these drafts.
    pub(super) fn due_after(&self, records: &[(Seq, Draft)]) -> Due {
        self.machine.due_after(records.iter().map(|(_, draft)| draft))
    }

    /// Starts the work on a turn.
    pub(super) fn start_runner(&mut self, node: &Node, agents: &Arc<Agents>, port: OwnerPort, agent: AgentName) {
        let (signal, observed) = watch::channel(Signal::Run);
        let turn = port.turn;
        self.runner = Some((turn, signal));
        let run = TurnRun { turn, agent, epoch: port.epoch, attempt: FIRST_ATTEMPT };
        let (seams, agents, commands) = (node.seams.clone(), Arc::clone(agents), port.commands.clone());
        // Counted by the runner itself, so that it counts down however its owner ends.
        let running = node.metrics.turns(LiveTurn::Running);
        running.inc();
        node.seams.spawn("turn", async move {
            let outcome = runner::run(seams, Arc::new(port), agents, run, observed).await;
            running.dec();
            tracing::debug!(%turn, ?outcome, "a turn's runner is done");
            // An owner that is gone does not need to know.
            let _ = commands.send(Command::RunnerGone { turn }).await;
        });
    }

    /// Stops the work on a turn, or on whichever runs.
    pub(super) fn stop_runner(&mut self, turn: Option<Seq>) {
        if let Some((running, signal)) = self.runner.take_if(|(running, _)| turn.is_none_or(|turn| turn == *running)) {
            tracing::debug!(turn = %running, "a turn's runner is stopped");
            // A runner that is over needs no signal.
            let _ = signal.send(Signal::Stop);
        }
    }

    /// The machine's state, to be saved under the fence. `None`: it is too large to be saved, and thawing reads more.
    pub(super) fn checkpoint(&mut self) -> Option<Checkpoint> {
        let state = self.machine.checkpoint();
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

/// The due row's change, as the store takes it. What is due is due at once, for whoever finds the owner gone.
pub(super) fn due_change(due: Due) -> DueChange {
    match due {
        Due::Keep => DueChange::Keep,
        Due::Clear => DueChange::Clear,
        Due::Input => DueChange::Set(DueWhy::Input, Duration::ZERO),
        Due::Turn => DueChange::Set(DueWhy::Turn, Duration::ZERO),
    }
}

/// A runner's way to the owner.
pub(super) struct OwnerPort {
    pub(super) turn: Seq,
    pub(super) epoch: Epoch,
    pub(super) conversation: ConvRef,
    pub(super) store: Arc<dyn Store>,
    pub(super) commands: mpsc::Sender<Command>,
}

#[async_trait]
impl TurnPort for OwnerPort {
    async fn input(&self, turn: Seq) -> Result<Body, Refusal> {
        let query = RangeQuery {
            conversation: self.conversation.clone(),
            direction: Direction::After(Seq(turn.0 - 1)),
            limit: 1,
            kinds: Vec::new(),
        };
        let page = self.store.range(&query).await.map_err(|error| store_refusal(&error))?;
        let record = page.and_then(|page| page.records.into_iter().find(|record| record.seq == turn));
        record
            .map(|record| record.body)
            .ok_or_else(|| Refusal::new(Code::NotFound, format!("turn: there is no record {turn}")))
    }

    async fn append(&self, drafts: Vec<Draft>) -> Result<(), Refusal> {
        let (answer, outcome) = oneshot::channel();
        let reply = Box::new(move |result: Result<Vec<_>, Refusal>| drop(answer.send(result.map(drop))));
        if self.commands.send(Command::RunnerAppend { drafts, reply }).await.is_err() {
            return Err(moved());
        }
        outcome.await.unwrap_or_else(|_| Err(moved()))
    }

    fn live(&self, event: LiveEvent) {
        // A full queue drops it; the next snapshot or the record heals what viewers see.
        let _ = self.commands.try_send(Command::Live(event));
    }
}
