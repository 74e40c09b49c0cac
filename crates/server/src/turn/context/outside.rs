//! What an agent needs whose work is done elsewhere: steps that arrive from there, text that is begun again, and what is kept
//! from one turn of a conversation to the next.
//!
//! Invariant: a step that arrives is one of the journal's: it has one result, and whoever offers another is refused.

use conch_core::refusal::{Code, Refusal};
use conch_core::turn::cancel::OfferedStep;
use conch_core::turn::journal::{self, STATE_KINDS};
use conch_core::turn::live::LiveEvent;
use conch_core::turn::replaced::Backwards;
use conch_core::turn::result::StepResult;
use conch_store::Direction;
use serde_json::Value;

use super::{CONTEXT_MAX_RECORDS, Current, PAGE, TurnContext, check_size};
use crate::turn::agent::Halt;
use crate::turn::port::{Offer, TurnRun};

/// What became of a step that was offered.
#[derive(Debug, Clone, PartialEq)]
pub enum Kept {
    /// It is in the journal.
    Yes,
    /// It is not, and that is no reason to end the turn.
    No(Refusal),
    /// It is not, and the turn ends for it.
    Never(Refusal, Halt),
}

impl TurnContext {
    /// Begins the running step again: what was streamed of it is retracted, and what was asked of others under the attempt until
    /// now is stale.
    ///
    /// # Errors
    /// [`Halt::Stopped`].
    pub fn restart(&mut self) -> Result<(), Halt> {
        self.go_on()?;
        let Some(Current { step, offset }) = &mut self.current else {
            return Err(Halt::failed("a step was begun again while none runs"));
        };
        *offset = 0;
        self.run.attempt = self.port.next_attempt();
        let TurnRun { turn, epoch, attempt, .. } = self.run;
        self.port.live(LiveEvent::StepReset { turn, step: step.clone(), epoch, attempt });
        Ok(())
    }

    /// The next step that is offered from elsewhere. Never ends by itself. Cancel safe.
    pub async fn offered(&mut self) -> Offer {
        match self.offers.recv().await {
            Some(offer) => offer,
            // The owner is gone, and drops this run.
            None => std::future::pending().await,
        }
    }

    /// Brings a step that was done elsewhere into the journal, beside the one that streams.
    ///
    /// # Errors
    /// As an append; a step that cannot be kept is no error.
    pub async fn keep(&mut self, offered: &OfferedStep) -> Result<Kept, Halt> {
        self.go_on()?;
        if offered.attempt != self.run.attempt {
            let (theirs, ours) = (offered.attempt, self.run.attempt);
            return Ok(Kept::No(stale(format!("this is attempt {theirs}, and attempt {ours} runs now"))));
        }
        let input = (!offered.input.is_null()).then(|| offered.input.clone());
        let result = StepResult::Own { input, output: offered.output.clone() };
        if let Some(done) = self.replay.result(&offered.step) {
            if *done == result {
                return Ok(Kept::Yes);
            }
            let detail = format!("step {}: is in the journal with another input or output", offered.step);
            let refusal = Refusal::new(Code::JournalMismatch, detail.clone());
            return Ok(Kept::Never(refusal, Halt::Failed(journal::FailReason::JournalMismatch, detail)));
        }
        let draft = journal::step_completed(self.run.turn, &offered.step, &result);
        if let Err(too_large) = check_size(&draft) {
            let Halt::Failed(_, detail) = &too_large else { return Err(too_large) };
            return Ok(Kept::No(Refusal::new(Code::TooLarge, detail.clone())));
        }
        match self.journal_one(draft).await {
            Ok(()) => {}
            Err(Halt::Failed(reason, detail)) => {
                let refusal = Refusal::new(Code::Conflict, detail.clone());
                return Ok(Kept::Never(refusal, Halt::Failed(reason, detail)));
            }
            Err(halt) => return Err(halt),
        }
        let broken = self.replay.completed(offered.step.clone(), result);
        broken.map_err(|broken| Halt::failed(broken.to_string())).map(|()| Kept::Yes)
    }

    /// What the agent kept when the conversation's last turn completed; null: nothing.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub async fn state(&mut self) -> Result<Value, Halt> {
        let (mut direction, mut looked_at, mut later) = (Direction::Latest, 0, Backwards::default());
        while looked_at < CONTEXT_MAX_RECORDS {
            let page = self.range(direction, &STATE_KINDS, PAGE).await?;
            looked_at += page.records.len();
            if let Some(state) = journal::kept_state(&page.records, &mut later) {
                return Ok(state);
            }
            match page.records.first() {
                Some(first) if page.more => direction = Direction::Before(first.seq),
                _ => break,
            }
        }
        Ok(Value::Null)
    }

    /// Keeps this for the conversation's next turn, if this one completes; at most 1 MiB.
    pub fn keep_state(&mut self, state: Value) {
        self.state = state;
    }
}

/// The refusal of who is not the one that the owner waits for.
pub(crate) fn stale(detail: impl Into<String>) -> Refusal {
    Refusal::new(Code::StaleAttempt, detail)
}
