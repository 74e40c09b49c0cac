//! A turn, as its agent sees it.
//!
//! Invariants: a step that is in the journal is never run again nor shown again (invariant 9); what was streamed of one that
//! is not is retracted before it is run again; a step is in the log before the next begins; the intent of a call whose
//! effect cannot be undone is in the log before the call. An append that was refused with a directive is sent again under
//! the same key.
//!
//! Deliberately absent: any say in whether the turn still runs. The owner's machine admits or refuses each append, and
//! drops the run when it is to stop.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use conch_core::ids::{AgentName, ConversationId, Epoch, Seq};
use conch_core::record::{Draft, Record, RecordKind};
use conch_core::refusal::{Code, Refusal};
use conch_core::time::{Monotonic, Timestamp};
use conch_core::turn::budget::Spent;
use conch_core::turn::context::{CONTEXT_KINDS, ContextMessage, assemble, with_input};
use conch_core::turn::journal::{self, FailReason};
use conch_core::turn::live::{LiveEvent, Piece, utf16_len};
use conch_core::turn::replay::{JOURNAL_KINDS, Replay};
use conch_core::turn::result::{STEP_OUTPUT_MAX_BYTES, StepResult};
use conch_core::turn::{Begin, StepId};
use conch_store::Direction;
use serde_json::Value;
use tokio::sync::{mpsc, watch};

use super::agent::{Answer, Halt};
use super::agents::AgentLimits;
use super::port::{Offer, Records, Signal, TurnPort, TurnRun};
use crate::rules::{Rule, Rules};
use crate::seams::Seams;

mod calls;
mod outside;

pub use calls::{Await, OnUnknown, ToolCall};
pub use outside::Kept;
pub(crate) use outside::stale;

/// Shortest wait before an append or a read is tried again, whatever the directive says.
const RETRY_MIN: Duration = Duration::from_millis(10);
/// Records of one read.
const PAGE: usize = 200;
/// Most records that a model's context is made from: the newest ones.
const CONTEXT_MAX_RECORDS: usize = 2_000;
/// Most bytes of their bodies.
const CONTEXT_MAX_BYTES: usize = 4 * 1024 * 1024;
/// Most runs of one turn, one after the other, behind which its input is looked for.
const RUNS_AGAIN_MAX: usize = 100;

/// How a step begins.
#[derive(Debug, Clone, PartialEq)]
pub enum StepBegin {
    /// It is done: this is its result.
    Done(StepResult),
    /// It is to be run, and then completed.
    Run,
}

/// The step that runs.
struct Current {
    step: StepId,
    offset: u64,
}

/// See the module's description.
pub struct TurnContext {
    seams: Seams,
    rules: Rules,
    port: Arc<dyn TurnPort>,
    run: TurnRun,
    limits: AgentLimits,
    signal: watch::Receiver<Signal>,
    replay: Replay,
    input: Option<Record>,
    current: Option<Current>,
    /// What an earlier run may have streamed of its last step is not retracted yet.
    reset_due: bool,
    own_steps: BTreeMap<String, u32>,
    /// Steps that are done elsewhere, on their way into the journal.
    offers: mpsc::Receiver<Offer>,
    /// What is kept for the conversation's next turn.
    state: Value,
}

impl TurnContext {
    pub(super) fn new(
        seams: Seams,
        port: Arc<dyn TurnPort>,
        run: TurnRun,
        limits: AgentLimits,
        signal: watch::Receiver<Signal>,
        offers: mpsc::Receiver<Offer>,
    ) -> Self {
        let (replay, reset_due) = (Replay::new(run.turn), run.begin != Begin::First);
        let (input, current, own_steps, state) = (None, None, BTreeMap::new(), Value::Null);
        let rules = port.rules();
        Self { seams, rules, port, run, limits, signal, replay, input, current, reset_due, own_steps, offers, state }
    }

    /// Reads the turn's journal. There is one also before the first run, when inputs joined with the start.
    pub(super) async fn resume(&mut self) -> Result<(), Halt> {
        if self.run.begin == Begin::TakenOver {
            let TurnRun { turn, epoch, .. } = self.run;
            self.port.live(LiveEvent::TurnResumed { turn, epoch });
        }
        loop {
            let read = self.range(Direction::After(self.replay.at_seq()), &JOURNAL_KINDS, PAGE).await?;
            for record in &read.records {
                self.replay.take(record).map_err(|broken| Halt::failed(broken.to_string()))?;
            }
            if !read.more {
                return Ok(());
            }
        }
    }

    /// Where the turn runs.
    #[must_use]
    pub fn conversation(&self) -> &ConversationId {
        &self.run.conversation
    }

    /// The turn.
    #[must_use]
    pub fn turn(&self) -> Seq {
        self.run.turn
    }

    /// Whose turn it is.
    #[must_use]
    pub fn agent(&self) -> &AgentName {
        &self.run.agent
    }

    /// The owner's epoch: what is called can refuse calls of a lower one.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.run.epoch
    }

    /// Counts the turn's runs in this epoch, and within them what was begun again.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.run.attempt
    }

    /// By when the turn has to end.
    #[must_use]
    pub fn deadline(&self) -> Timestamp {
        self.run.deadline
    }

    /// What the turn has used.
    #[must_use]
    pub fn spent(&self) -> Spent {
        self.replay.spent()
    }

    /// Time, randomness and tasks, as this node has them.
    #[must_use]
    pub fn seams(&self) -> &Seams {
        &self.seams
    }

    /// What is in the journal.
    #[must_use]
    pub fn journal(&self) -> &Replay {
        &self.replay
    }

    /// What every call of a step carries, the same over all attempts and owners.
    #[must_use]
    pub fn idempotency_key(&self, step: &StepId) -> String {
        let key = journal::idempotency_key(&self.run.conversation, self.run.turn, step);
        if self.rules.hold(Rule::KeysOutliveOwners) { key } else { format!("{key}-{}", self.run.epoch) }
    }

    /// The next own step of this name: its name and occurrence.
    ///
    /// # Errors
    /// [`Halt::Failed`] for a name that cannot be one.
    pub fn own_step(&mut self, name: &str) -> Result<StepId, Halt> {
        let count = self.own_steps.get(name).map_or(1, |count| count + 1);
        let step = StepId::own(name, count).map_err(|error| Halt::failed(error.to_string()))?;
        self.own_steps.insert(name.to_owned(), count);
        Ok(step)
    }

    /// What the turn is to answer: its input or, where that asks for another run of a turn, what that turn was to answer.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn input(&mut self) -> Result<Record, Halt> {
        if let Some(input) = &self.input {
            return Ok(input.clone());
        }
        let mut input = self.record(self.run.turn).await?;
        // Anybody may send an event that looks as if it asked for that: only what lies before it is looked at.
        for _ in 0..RUNS_AGAIN_MAX {
            let Some(of) = journal::regenerates(&input.body).filter(|of| *of < input.seq) else { break };
            let before = self.found(of).await?;
            let Some(before) = before.filter(|record| journal::is_input(record.kind, &record.sender)) else { break };
            input = before;
        }
        self.input = Some(input.clone());
        Ok(input)
    }

    /// Lets waiting inputs join, where the conversation's settings say so, and returns all that have joined.
    ///
    /// # Errors
    /// As every append.
    pub async fn joined(&mut self) -> Result<Vec<Record>, Halt> {
        self.join().await?;
        let mut records = Vec::new();
        for seq in self.replay.joined().to_vec() {
            records.push(self.record(seq).await?);
        }
        Ok(records)
    }

    async fn join(&mut self) -> Result<(), Halt> {
        let mut patience = Patience::new(&self.seams);
        loop {
            self.go_on()?;
            match self.port.join().await {
                Ok(inputs) => {
                    self.replay.join(inputs);
                    return Ok(());
                }
                Err(refusal) => self.pause(&mut patience, refusal).await?,
            }
        }
    }

    /// What a model is shown of the conversation, with the inputs that wait to join; the newest 2,000 records or 4 MiB, and what
    /// this turn is to answer in any case.
    ///
    /// # Errors
    /// As every append; when the log cannot be read.
    pub async fn messages(&mut self) -> Result<Vec<ContextMessage>, Halt> {
        self.join().await?;
        let (mut pages, mut records, mut bytes) = (Vec::new(), 0, 0);
        let mut direction = Direction::Latest;
        while records < CONTEXT_MAX_RECORDS && bytes < CONTEXT_MAX_BYTES {
            let page = self.range(direction, &CONTEXT_KINDS, PAGE).await?;
            records += page.records.len();
            bytes += page.records.iter().map(|record| record.body.as_str().len()).sum::<usize>();
            let (first, more) = (page.records.first().map(|record| record.seq), page.more);
            pages.push(page.records);
            match first {
                Some(first) if more => direction = Direction::Before(first),
                _ => break,
            }
        }
        let records: Vec<Record> = pages.into_iter().rev().flatten().collect();
        let input = self.input().await?;
        Ok(with_input(assemble(&records), self.run.turn, &input))
    }

    /// Begins a step. `input`: what it is done with, if the same step must never be done with something else.
    ///
    /// # Errors
    /// `journal_mismatch` if it was done with another input.
    pub async fn begin(&mut self, step: &StepId, input: Option<&Value>) -> Result<StepBegin, Halt> {
        self.go_on()?;
        let replayed = self.replay.result(step).filter(|_| self.rules.hold(Rule::StepsAreReplayed));
        if let Some(done) = replayed {
            if input.is_some() && done.input().is_some() && done.input() != input {
                let detail = format!("step {step} is in the journal with another input");
                return Err(Halt::Failed(FailReason::JournalMismatch, detail));
            }
            return Ok(StepBegin::Done(done.clone()));
        }
        self.current = Some(Current { step: step.clone(), offset: 0 });
        if std::mem::take(&mut self.reset_due) {
            let TurnRun { turn, epoch, attempt, .. } = self.run;
            self.port.live(LiveEvent::StepReset { turn, step: step.clone(), epoch, attempt });
        }
        Ok(StepBegin::Run)
    }

    /// Begins the turn's `call`-th model call, counted from 1.
    ///
    /// # Errors
    /// When the agent's tokens are used up.
    pub async fn begin_model(&mut self, call: u32) -> Result<StepBegin, Halt> {
        let step = StepId::model(call);
        if self.replay.result(&step).is_none() {
            self.replay.spent().check_tokens(self.limits.tokens)?;
        }
        self.begin(&step, None).await
    }

    /// Streams more text of the step that runs.
    ///
    /// # Errors
    /// [`Halt::Failed`] if none does.
    pub fn emit(&mut self, text: &str) -> Result<(), Halt> {
        self.go_on()?;
        let Some(current) = &mut self.current else {
            return Err(Halt::failed("text was streamed while no step runs"));
        };
        let TurnRun { turn, epoch, attempt, .. } = self.run;
        let (step, offset) = (current.step.clone(), current.offset);
        current.offset += utf16_len(text);
        self.port.live(LiveEvent::Delta(Piece { turn, step, epoch, attempt, offset, text: text.into() }));
        Ok(())
    }

    /// Brings the result of the step that runs into the log.
    ///
    /// # Errors
    /// [`Halt::Failed`] if none does, if the result is too large, or if the turn's limits are reached.
    pub async fn complete(&mut self, result: StepResult) -> Result<(), Halt> {
        let Some(Current { step, .. }) = self.current.take() else {
            return Err(Halt::failed("a step was completed that was not begun"));
        };
        let draft = journal::step_completed(self.run.turn, &step, &result);
        self.journal_one(draft).await?;
        self.replay.completed(step, result).map_err(|broken| Halt::failed(broken.to_string()))
    }

    /// A whole step of the agent's own: its result from the journal, or what the work gives, once that is in the journal.
    ///
    /// # Errors
    /// As [`TurnContext::begin`] and [`TurnContext::complete`]; the work's own failure fails the turn.
    pub async fn step(
        &mut self,
        name: &str,
        input: Option<Value>,
        work: impl Future<Output = Result<Value, String>> + Send,
    ) -> Result<Value, Halt> {
        let step = self.own_step(name)?;
        match self.begin(&step, input.as_ref()).await? {
            StepBegin::Done(StepResult::Own { output, .. } | StepResult::Tool { output, .. }) => Ok(output),
            StepBegin::Done(StepResult::Model { output, .. }) => Ok(output.into()),
            StepBegin::Run => {
                let output = work.await.map_err(Halt::failed)?;
                self.complete(StepResult::Own { input, output: output.clone() }).await?;
                Ok(output)
            }
        }
    }

    /// Sleeps, unless the turn is to stop.
    ///
    /// # Errors
    /// [`Halt::Stopped`].
    pub async fn sleep(&mut self, duration: Duration) -> Result<(), Halt> {
        self.go_on()?;
        self.seams.sleep(duration).await;
        self.go_on()
    }

    /// The answer and the turn's end, in one commit.
    pub(super) async fn end(&mut self, answer: Answer) -> Result<(), Halt> {
        let turn = self.run.turn;
        let draft = journal::answer(turn, &self.run.agent, &answer.0);
        let end = journal::completed_with(turn, &self.state);
        check_size(&draft)?;
        check_size(&end)?;
        self.append(vec![draft, end]).await
    }

    /// The turn's failure.
    pub(super) async fn fail(&mut self, reason: FailReason, detail: &str) -> Result<(), Halt> {
        let TurnRun { conversation, turn, agent, epoch, .. } = &self.run;
        tracing::warn!(%conversation, %turn, %agent, %epoch, reason = reason.as_str(), detail, "a turn fails");
        self.append(vec![journal::failed(self.run.turn, reason, detail)]).await
    }

    async fn record(&mut self, seq: Seq) -> Result<Record, Halt> {
        self.found(seq).await?.ok_or_else(|| Halt::failed(format!("there is no record {seq}")))
    }

    async fn found(&mut self, seq: Seq) -> Result<Option<Record>, Halt> {
        let before = Seq(seq.0.saturating_sub(1));
        let read = self.range(Direction::After(before), &[], 1).await?;
        Ok(read.records.into_iter().find(|record| record.seq == seq))
    }

    async fn range(&mut self, direction: Direction, kinds: &[RecordKind], limit: usize) -> Result<Records, Halt> {
        let mut patience = Patience::new(&self.seams);
        loop {
            self.go_on()?;
            match self.port.range(direction, kinds, limit).await {
                Ok(records) => return Ok(records),
                Err(refusal) => self.pause(&mut patience, refusal).await?,
            }
        }
    }

    /// One more record of the journal, within the limits of a turn.
    async fn journal_one(&mut self, draft: Draft) -> Result<(), Halt> {
        check_size(&draft)?;
        let spent = self.replay.spent().with(draft.kind, &draft.body);
        spent.check()?;
        self.append(vec![draft]).await?;
        self.replay.spend(spent);
        Ok(())
    }

    /// Appends; tries again with the same keys as long as the refusals' directives allow.
    async fn append(&mut self, drafts: Vec<Draft>) -> Result<(), Halt> {
        let mut patience = Patience::new(&self.seams);
        loop {
            self.go_on()?;
            match self.port.append(drafts.clone()).await {
                Ok(()) => return Ok(()),
                Err(refusal) => self.pause(&mut patience, refusal).await?,
            }
        }
    }

    async fn pause(&mut self, patience: &mut Patience, refusal: Refusal) -> Result<(), Halt> {
        if refusal.code == Code::Conflict && refusal.retry.is_none() {
            return Err(Halt::Stopped);
        }
        match patience.wait_for(&self.seams, &refusal) {
            Some(wait) => self.sleep(wait).await,
            None => Err(Halt::refused(&refusal)),
        }
    }

    fn go_on(&self) -> Result<(), Halt> {
        let told_to_run = *self.signal.borrow() == Signal::Run;
        // `has_changed` fails when the owner is gone.
        if told_to_run && self.signal.has_changed().is_ok() { Ok(()) } else { Err(Halt::Stopped) }
    }
}

fn check_size(draft: &Draft) -> Result<(), Halt> {
    let bytes = draft.body.as_str().len();
    if bytes <= STEP_OUTPUT_MAX_BYTES {
        return Ok(());
    }
    let (kind, key) = (draft.kind, &draft.client_msg_id);
    let detail = format!("{kind} {key}: is {bytes} bytes long; at most {STEP_OUTPUT_MAX_BYTES} are allowed");
    Err(Halt::Failed(FailReason::StepTooLarge, detail))
}

/// The time that is left for one request and its repetitions.
struct Patience {
    began: Monotonic,
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
