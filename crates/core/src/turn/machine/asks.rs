//! What clients and runners ask of the machine. What it lets pass is drafted here, in its own words, and appended by the
//! shell.
//!
//! Invariant: what would break an invariant of the log is refused before it is appended; so the owner alone decides.

use std::sync::Arc;

use super::{QUEUE_MAX_INPUTS, Rule, TurnMachine, TurnState};
use crate::conversation::SecondMessage;
use crate::ids::Seq;
use crate::record::{Draft, RecordKind};
use crate::refusal::{Code, Refusal, Retry};
use crate::turn::awaits::Resolution;
use crate::turn::cancel::{Cancel, CancelMode, Regenerate, Resolve};
use crate::turn::journal;
use crate::turn::running::{End, Runner, Running};

/// Why something is not done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotDone {
    /// The turn, or the await, is not open: the log says what became of it.
    Closed,
    /// For this reason.
    Refused(Refusal),
}

impl TurnMachine {
    /// May another input be appended, besides those on their way?
    ///
    /// # Errors
    /// [`Code::Overloaded`] with a directive while [`QUEUE_MAX_INPUTS`] wait; [`Code::Conflict`] while a turn is open, if the
    /// conversation refuses a second message.
    pub fn may_accept(&self, on_their_way: usize) -> Result<(), Refusal> {
        let waiting = self.queued.len() + on_their_way;
        if self.setup.second_message == SecondMessage::Reject && (waiting > 0 || self.running.is_some()) {
            let turn = self.running().or_else(|| self.queued.front().copied());
            let which = turn.map_or_else(|| "another turn".to_owned(), |turn| format!("turn {turn}"));
            return Err(Refusal::new(Code::Conflict, format!("second_message: {which} has not ended")));
        }
        if waiting < QUEUE_MAX_INPUTS {
            return Ok(());
        }
        let detail = format!("{QUEUE_MAX_INPUTS} inputs wait for the agent already; no more may wait");
        Err(Refusal::retry(Code::Overloaded, detail, Retry { after_ms: 1000, budget_ms: 20_000 }))
    }

    /// May the runner append this group, in one commit? An end that passes closes the turn for what follows, until it
    /// is told refused.
    ///
    /// # Errors
    /// [`Code::Conflict`] without a directive if the turn is not to be run any more: the runner is to stop.
    /// [`Code::UnprocessableRequest`] for a group that no runner should send, [`Code::TooLarge`] beyond the limits of a turn.
    pub fn admit(&mut self, drafts: &[Draft]) -> Result<(), Refusal> {
        let turn = drafts.first().and_then(|draft| draft.turn).unwrap_or_default();
        let conflict = |problem: &str| Err(Refusal::new(Code::Conflict, format!("turn: {turn} {problem}")));
        check_shape(drafts)?;
        let end_closes = self.holds(Rule::EndCloses);
        let waiting_refuses = self.holds(Rule::WaitingRefuses);
        let Some(running) = self.running.as_mut().filter(|running| running.turn == turn) else {
            return conflict("is not running");
        };
        if running.end == End::Appending && end_closes || running.runner != Runner::Alive {
            return conflict("is ending");
        }
        if running.awaiting.is_some() && waiting_refuses && drafts.iter().any(|draft| !draft.kind.ends_turn()) {
            return conflict("waits");
        }
        let spent = drafts.iter().fold(running.spent, |spent, draft| spent.with(draft.kind, &draft.body));
        spent.check().map_err(|exceeded| Refusal::new(Code::TooLarge, exceeded.to_string()))?;
        if drafts.iter().any(|draft| draft.kind.ends_turn()) {
            running.end = End::Appending;
        } else {
            running.outstanding = true;
        }
        Ok(())
    }

    /// The inputs that join the running turn before its next step, as its runner asks. Empty: none.
    ///
    /// # Errors
    /// As [`TurnMachine::admit`].
    pub fn admit_join(&mut self, turn: Seq) -> Result<Vec<Draft>, Refusal> {
        let is_run =
            |running: &&Running| running.turn == turn && running.runner == Runner::Alive && running.end == End::None;
        if self.running.as_ref().filter(is_run).is_none() {
            return Err(Refusal::new(Code::Conflict, format!("turn: {turn} is not running")));
        }
        if self.setup.second_message != SecondMessage::Steer {
            return Ok(Vec::new());
        }
        let inputs = self.may_join();
        Ok(self.join(&inputs, turn))
    }

    /// Cancels a turn: what is to be appended in one commit. From here on the turn is ending, so its runner is to be stopped at
    /// once; it counts as cancelled with the commit. `partial`: the text that is shown of it.
    ///
    /// # Errors
    /// [`NotDone::Closed`] if the log knows its end, or knows no such turn; a refusal with a directive while another end, or
    /// its start, is on its way.
    pub fn cancel(&mut self, cancel: &Cancel, partial: Option<&str>) -> Result<Vec<Draft>, NotDone> {
        let turn = cancel.turn;
        match self.state(turn) {
            TurnState::Closed => Err(NotDone::Closed),
            TurnState::Queued => {
                if self.own == Some(super::Own::Start(turn)) || !self.leaving.insert(turn) {
                    return Err(changing(turn));
                }
                let runs_again = self.replaced.is_some_and(|replaced| replaced.by == turn);
                let cancel = if runs_again { cancel.before_it_runs_again() } else { cancel.clone() };
                Ok(vec![journal::cancelled(&cancel)])
            }
            TurnState::Running | TurnState::Waiting => {
                let Some(running) = self.running.as_mut().filter(|running| running.end == End::None) else {
                    return Err(changing(turn));
                };
                running.end = End::Appending;
                if running.runner == Runner::Alive {
                    running.runner = Runner::Stopping;
                }
                let kept = partial.filter(|text| cancel.mode == CancelMode::Keep && !text.is_empty());
                let answer = kept.map(|text| journal::answer_so_far(turn, &running.agent, text));
                Ok(answer.into_iter().chain([journal::cancelled(cancel)]).collect())
            }
        }
    }

    /// Resolves an await: what is to be appended. The store's key decides between several.
    ///
    /// # Errors
    /// [`NotDone::Closed`] if it is not open: the log says what became of it. A refusal with a directive while its turn is
    /// ending.
    pub fn resolve(&self, ask: &Resolve) -> Result<Draft, NotDone> {
        let id = &ask.id;
        let running = self.running.as_ref().filter(|running| running.turn == id.turn());
        let Some(running) = running.filter(|running| running.awaiting.as_ref().is_some_and(|open| open.id == *id))
        else {
            return Err(NotDone::Closed);
        };
        if running.end != End::None {
            return Err(changing(running.turn));
        }
        Ok(ask.draft())
    }

    /// Runs the last turn again: what is to be appended in one commit, the event that is the new turn's input last.
    ///
    /// # Errors
    /// [`NotDone::Closed`] if it is not the last turn that ended; [`Code::Conflict`] while a turn is open.
    pub fn regenerate(&mut self, ask: &Regenerate, on_their_way: usize) -> Result<Vec<Draft>, NotDone> {
        if self.last != Some(ask.turn) && self.state(ask.turn) == TurnState::Closed {
            return Err(NotDone::Closed);
        }
        if self.regenerating || on_their_way > 0 || !self.is_idle() {
            let detail = format!("turn: {} cannot be run again while another turn is open", ask.turn);
            return Err(NotDone::Refused(Refusal::new(Code::Conflict, detail)));
        }
        self.regenerating = true;
        // One that counts again has been superseded before, under the key without this.
        let undone = self.replaced.filter(|replaced| replaced.of == ask.turn).map(|replaced| replaced.by);
        let superseded = undone
            .map_or_else(|| journal::regenerated(ask.turn), |undone| journal::regenerated_after(ask.turn, undone));
        Ok(vec![superseded, ask.draft()])
    }
}

impl Resolve {
    /// The record that it becomes.
    #[must_use]
    pub fn draft(&self) -> Draft {
        let resolution = Resolution::Payload(self.payload.clone());
        journal::await_resolved(&self.id, &resolution).with_name(Some(Arc::clone(&self.by)))
    }
}

impl Regenerate {
    /// The event that is the new turn's input.
    #[must_use]
    pub fn draft(&self) -> Draft {
        let body = journal::regenerate_body(self.turn);
        let event = Draft::new(RecordKind::Event, self.by.clone(), self.client_msg_id.clone(), body);
        event.with_name(self.name.clone())
    }
}

fn changing(turn: Seq) -> NotDone {
    let detail = format!("turn: {turn} is changing its state");
    NotDone::Refused(Refusal::retry(Code::ConversationUnavailable, detail, Retry::SOON))
}

/// What a runner may send: intents, results and awaits, one at a time; or one end, last, with the answer before it exactly if
/// it is `turn.completed`.
fn check_shape(drafts: &[Draft]) -> Result<(), Refusal> {
    use RecordKind::{AwaitOpened, Message, StepCompleted, StepStarted, TurnCompleted, TurnFailed};
    let kinds: Vec<RecordKind> = drafts.iter().map(|draft| draft.kind).collect();
    match kinds.as_slice() {
        [StepStarted | StepCompleted | AwaitOpened | TurnFailed] => Ok(()),
        [Message, TurnCompleted] if drafts[0].turn == drafts[1].turn => Ok(()),
        _ => {
            let names: Vec<&str> = kinds.iter().map(|kind| kind.as_str()).collect();
            let detail = format!("kind: a runner may not append [{}] in one commit", names.join(", "));
            Err(Refusal::new(Code::UnprocessableRequest, detail))
        }
    }
}
