//! Runs one turn, as a task beside the owner's.
//!
//! Invariants: a step is in the log before the next begins (invariant 9); the answer and the turn's end go into one
//! append; after a stop nothing more is streamed and nothing more is sent to be appended. An append that was sent is
//! waited for, so that its outcome is known when the runner is over.
//!
//! Deliberately absent: any say in whether the turn still runs. The owner's machine admits or refuses each append.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use conch_core::body::Body;
use conch_core::ids::{AgentName, Epoch, Seq};
use conch_core::record::Draft;
use conch_core::refusal::{Code, Refusal};
use conch_core::turn::StepId;
use conch_core::turn::demo::{self, ScriptedStep};
use conch_core::turn::journal::{self, FailReason, STEP_OUTPUT_MAX_BYTES};
use conch_core::turn::live::{LiveEvent, Piece, utf16_len};
use tokio::sync::watch;

use crate::seams::Seams;
use crate::turn::agents::{Agent, Agents};

/// The attempt of a step that nobody ran before.
pub const FIRST_ATTEMPT: u32 = 1;
/// Shortest wait before an append or a read is tried again, whatever the directive says.
const RETRY_MIN: Duration = Duration::from_millis(10);

/// The owner, as a runner sees it.
#[async_trait]
pub trait TurnPort: Send + Sync {
    /// The body of the turn's input: the record in the log whose seq is the turn. Read when the turn starts, since the
    /// machine keeps no texts.
    ///
    /// # Errors
    /// With a directive: ask again. Without: the turn fails.
    async fn input(&self, turn: Seq) -> Result<Body, Refusal>;

    /// Appends these in one commit, and returns when they are on disk. A group that is there already counts as appended.
    ///
    /// # Errors
    /// With a directive: send the same again. [`Code::Conflict`] without one: the turn is not this runner's any more.
    /// Another without one: the turn fails.
    async fn append(&self, drafts: Vec<Draft>) -> Result<(), Refusal>;

    /// Shows an event to those who watch. Never waits; may drop.
    fn live(&self, event: LiveEvent);
}

/// Which turn is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnRun {
    /// The turn.
    pub turn: Seq,
    /// The agent that its start names.
    pub agent: AgentName,
    /// The owner's epoch.
    pub epoch: Epoch,
    /// Counts the runs of the step that this run begins with; [`FIRST_ATTEMPT`] for a turn that is new.
    pub attempt: u32,
}

/// Told to a runner. A dropped sender counts as [`Signal::Stop`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Go on.
    Run,
    /// Stop at once and append nothing more.
    Stop,
}

/// How a run ended. The owner tells its machine `RunnerGone` after each of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunOutcome {
    /// The answer and `turn.completed` are in the log.
    Completed,
    /// `turn.failed` is in the log.
    Failed(FailReason),
    /// It was stopped, or the turn is not its own any more.
    Stopped,
    /// The log did not even take `turn.failed`; the owner's machine will bring it there.
    Unfinished(Refusal),
}

/// Why a run does not go on.
enum Halt {
    Stopped,
    /// A refusal that ends the turn, for this reason.
    Failed(FailReason, Refusal),
}

/// Runs a turn to its end.
pub async fn run<P: TurnPort>(
    seams: Seams,
    port: Arc<P>,
    agents: Arc<Agents>,
    run: TurnRun,
    signal: watch::Receiver<Signal>,
) -> RunOutcome {
    let agent = agents.get(&run.agent).cloned();
    let mut runner = Runner { seams, port, run, signal };
    let result = match agent {
        Some(Agent::Demo { pace }) => runner.demo(pace).await,
        None => {
            let detail = format!("agent: this node has none named {}", runner.run.agent);
            Err(Halt::Failed(FailReason::AgentUnknown, Refusal::new(Code::NotFound, detail)))
        }
    };
    match result {
        Ok(()) => RunOutcome::Completed,
        Err(Halt::Stopped) => RunOutcome::Stopped,
        Err(Halt::Failed(reason, refusal)) => runner.fail(reason, &refusal).await,
    }
}

struct Runner<P> {
    seams: Seams,
    port: Arc<P>,
    run: TurnRun,
    signal: watch::Receiver<Signal>,
}

impl<P: TurnPort> Runner<P> {
    async fn demo(&mut self, pace: Duration) -> Result<(), Halt> {
        let input = self.input().await?;
        let text = journal::input_text(&input);
        let script = demo::script(text.as_deref(), self.run.turn, pace);
        for step in &script.steps {
            self.step(step).await?;
        }
        let turn = self.run.turn;
        let end = vec![journal::answer(turn, &self.run.agent, script.answer()), journal::completed(turn)];
        self.append(end).await
    }

    /// Streams a step, waits as long as it takes, and brings its result into the log.
    async fn step(&mut self, scripted: &ScriptedStep) -> Result<(), Halt> {
        let mut offset = 0;
        for piece in &scripted.pieces {
            self.sleep(piece.after).await?;
            self.delta(&scripted.step, offset, &piece.text);
            offset += utf16_len(&piece.text);
        }
        self.sleep(scripted.takes).await?;
        let draft = journal::step_completed(self.run.turn, &scripted.step, &scripted.result);
        let bytes = draft.body.as_str().len();
        if bytes > STEP_OUTPUT_MAX_BYTES {
            let detail =
                format!("step {}: is {bytes} bytes long; at most {STEP_OUTPUT_MAX_BYTES} are allowed", scripted.step);
            return Err(Halt::Failed(FailReason::StepTooLarge, Refusal::new(Code::TooLarge, detail)));
        }
        self.append(vec![draft]).await
    }

    fn delta(&self, step: &StepId, offset: u64, text: &str) {
        let TurnRun { turn, epoch, attempt, .. } = self.run;
        let piece = Piece { turn, step: step.clone(), epoch, attempt, offset, text: text.into() };
        self.port.live(LiveEvent::Delta(piece));
    }

    async fn fail(&mut self, reason: FailReason, cause: &Refusal) -> RunOutcome {
        let TurnRun { turn, agent, epoch, .. } = &self.run;
        tracing::warn!(%turn, %agent, %epoch, reason = reason.as_str(), %cause, "a turn fails");
        match self.append(vec![journal::failed(self.run.turn, reason)]).await {
            Ok(()) => RunOutcome::Failed(reason),
            Err(Halt::Stopped) => RunOutcome::Stopped,
            Err(Halt::Failed(_, refusal)) => RunOutcome::Unfinished(refusal),
        }
    }

    async fn input(&mut self) -> Result<Body, Halt> {
        let mut patience = Patience::new(&self.seams);
        loop {
            self.go_on()?;
            match self.port.input(self.run.turn).await {
                Ok(body) => return Ok(body),
                Err(refusal) => self.pause(&mut patience, refusal).await?,
            }
        }
    }

    /// Appends; tries again with the same keys as long as the refusals' directives allow.
    async fn append(&mut self, drafts: Vec<Draft>) -> Result<(), Halt> {
        let mut patience = Patience::new(&self.seams);
        loop {
            self.go_on()?;
            match self.port.append(drafts.clone()).await {
                Ok(()) => return Ok(()),
                Err(refusal) if refusal.code == Code::Conflict && refusal.retry.is_none() => return Err(Halt::Stopped),
                Err(refusal) => self.pause(&mut patience, refusal).await?,
            }
        }
    }

    async fn pause(&mut self, patience: &mut Patience, refusal: Refusal) -> Result<(), Halt> {
        match patience.wait_for(&self.seams, &refusal) {
            Some(wait) => self.sleep(wait).await,
            None => Err(Halt::Failed(FailReason::AppendRefused, refusal)),
        }
    }

    fn go_on(&self) -> Result<(), Halt> {
        let told_to_run = *self.signal.borrow() == Signal::Run;
        // `has_changed` fails when the owner is gone.
        if told_to_run && self.signal.has_changed().is_ok() { Ok(()) } else { Err(Halt::Stopped) }
    }

    /// Sleeps unless told to stop. Both arms are cancel safe.
    async fn sleep(&mut self, duration: Duration) -> Result<(), Halt> {
        self.go_on()?;
        tokio::select! {
            biased;
            // An error is a dropped sender, which means the same.
            _ = self.signal.wait_for(|signal| *signal == Signal::Stop) => Err(Halt::Stopped),
            () = self.seams.sleep(duration) => Ok(()),
        }
    }
}

/// The time that is left for one request and its repetitions.
struct Patience {
    began: conch_core::time::Monotonic,
}

impl Patience {
    fn new(seams: &Seams) -> Self {
        Self { began: seams.now() }
    }

    /// How long to wait before the next attempt; `None`: the refusal has no directive, or its budget is used up.
    fn wait_for(&self, seams: &Seams, refusal: &Refusal) -> Option<Duration> {
        let retry = refusal.retry?;
        let wait = Duration::from_millis(retry.after_ms).max(RETRY_MIN);
        let wait = wait + seams.jitter(wait / 4);
        let spent = seams.now().since(self.began);
        (spent + wait <= Duration::from_millis(retry.budget_ms)).then_some(wait)
    }
}
