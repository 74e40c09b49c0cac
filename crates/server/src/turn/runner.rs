//! Runs one turn, as a task beside the owner's.
//!
//! Invariants: a step is in the log before the next begins (invariant 9); the answer and the turn's end go into one
//! append; after a stop nothing more is streamed, called or sent to be appended: the agent's future is dropped (invariant
//! 14). What an agent does wrong, a panic included, ends its own turn and nothing else.
//!
//! Deliberately absent: any say in whether the turn still runs. The owner's machine admits or refuses each append.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use conch_core::turn::journal::FailReason;
use futures_util::FutureExt;
use tokio::sync::{mpsc, watch};

use super::agent::{Answer, Halt};
use super::agents::{Agent, AgentLimits, Agents};
use super::context::TurnContext;
use super::port::Offer;
pub use super::port::{Signal, TurnPort, TurnRun};
use crate::seams::Seams;

/// How a run ended. The owner tells its machine `RunnerGone` after each of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunOutcome {
    /// The answer and `turn.completed` are in the log.
    Completed,
    /// `turn.failed` is in the log.
    Failed(FailReason),
    /// The turn waits for an answer.
    Waiting,
    /// It was stopped, or the turn is not its own any more.
    Stopped,
    /// The log did not even take `turn.failed`; the owner's machine will bring it there.
    Unfinished(String),
}

/// Runs a turn to its end, or until it waits, or until it is told to stop.
pub async fn run(
    seams: Seams,
    port: Arc<dyn TurnPort>,
    agents: Arc<Agents>,
    run: TurnRun,
    signal: watch::Receiver<Signal>,
    offers: mpsc::Receiver<Offer>,
) -> RunOutcome {
    let mut stop = signal.clone();
    let working = AssertUnwindSafe(work(seams, port, agents, run, signal, offers)).catch_unwind();
    // Dropping the work stops it: what it holds besides is its own, and what it appends is the owner's.
    tokio::select! {
        biased;
        // An error is a dropped sender, which means the same.
        _ = stop.wait_for(|signal| *signal == Signal::Stop) => RunOutcome::Stopped,
        outcome = working => outcome.unwrap_or_else(|_| RunOutcome::Unfinished("the agent panicked".to_owned())),
    }
}

async fn work(
    seams: Seams,
    port: Arc<dyn TurnPort>,
    agents: Arc<Agents>,
    run: TurnRun,
    signal: watch::Receiver<Signal>,
    offers: mpsc::Receiver<Offer>,
) -> RunOutcome {
    let agent = agents.get(&run.agent).cloned();
    let limits = agent.as_ref().map_or_else(AgentLimits::default, |agent| agent.limits);
    let name = run.agent.clone();
    let mut context = TurnContext::new(seams, Arc::clone(&port), run, limits, signal, offers);
    let result = match &agent {
        Some(agent) => answer(&mut context, agent).await,
        None => {
            // Mostly this run ends meanwhile, for its owner is handed over.
            port.agent_is_nowhere(&name).await;
            Err(Halt::Failed(FailReason::AgentUnknown, format!("no node has the agent {name}")))
        }
    };
    match result {
        Ok(()) => RunOutcome::Completed,
        Err(Halt::Stopped) => RunOutcome::Stopped,
        Err(Halt::Waiting) => RunOutcome::Waiting,
        Err(Halt::Failed(reason, detail)) => match context.fail(reason, &detail).await {
            Ok(()) => RunOutcome::Failed(reason),
            Err(Halt::Stopped) => RunOutcome::Stopped,
            Err(Halt::Waiting | Halt::Failed(..)) => RunOutcome::Unfinished(detail),
        },
    }
}

async fn answer(context: &mut TurnContext, agent: &Agent) -> Result<(), Halt> {
    context.resume().await?;
    let Answer(text) = agent.work.run(context).await?;
    context.end(Answer(text)).await
}
