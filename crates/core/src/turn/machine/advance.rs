//! What the machine does by itself: starts and resumes turns, fails those that nobody can go on with, expires awaits,
//! interrupts.
//!
//! Invariant: each decision follows from the state alone, so that an owner that takes over decides the same.

use std::time::Duration;

use super::{Action, AgentIs, Begin, JOIN_MAX_INPUTS, Mode, NO_DEADLINE, Now, Own, Rule, StartRunner, TurnMachine};
use crate::conversation::SecondMessage;
use crate::ids::{Epoch, Seq, Subject};
use crate::record::Draft;
use crate::time::{Monotonic, Timestamp};
use crate::turn::awaits::Resolution;
use crate::turn::budget::TURN_OWNERS_MAX;
use crate::turn::cancel::{Cancel, CancelMode, CancelReason};
use crate::turn::journal::{self, FailReason, INTERRUPT_SENDER};
use crate::turn::running::{End, Runner, Running};

/// Inputs that keep coming put a merged turn off for so many times its pause, and no longer.
const MERGE_PAUSES_MAX: u32 = 10;

impl TurnMachine {
    /// When the machine has to be told [`super::Input::Tick`] again, however quiet it is.
    #[must_use]
    pub fn wake_at(&self, now: Now) -> Option<Monotonic> {
        let at = |time: Timestamp| now.monotonic + until(now.wall, time);
        let running = self.running.as_ref().filter(|running| running.end == End::None);
        let expiry = running.and_then(|running| running.awaiting.as_ref()).map(|open| at(open.expires_at));
        let deadline = running.map(|running| at(running.deadline));
        let merge = self.merges_at().filter(|_| self.running.is_none());
        [self.retry_at, expiry, deadline, merge].into_iter().flatten().filter(|at| *at > now.monotonic).min()
    }

    pub(super) fn advance(&mut self, now: Now, epoch: Epoch, out: &mut Vec<Action>) {
        let may_append =
            (self.own.is_none() || !self.holds(Rule::OneAtATime)) && self.retry_at.is_none_or(|at| now.monotonic >= at);
        if may_append {
            self.retry_at = None;
        }
        let waits = self.running.as_ref().is_some_and(|running| running.awaiting.is_some());
        let overlooked = waits && may_append && !self.holds(Rule::WaitingCounts);
        match self.running {
            Some(_) if !overlooked => {
                if may_append {
                    self.append_for_running(now, out);
                }
                self.run(epoch, out);
            }
            _ if may_append => self.start_next(now, out),
            _ => {}
        }
    }

    /// The running turn's end, if nobody can go on with it; the end of its wait, if that is over.
    fn append_for_running(&mut self, now: Now, out: &mut Vec<Action>) {
        let interrupts = self.setup.second_message == SecondMessage::Interrupt && !self.queued.is_empty();
        let Some(running) = self.running.as_mut().filter(|running| running.end == End::None) else { return };
        let turn = running.turn;
        if let Some((reason, detail)) = failure(running, now.wall) {
            running.end = End::Appending;
            self.own = Some(Own::Failure(turn));
            return out.push(Action::Append(vec![journal::failed(turn, reason, &detail)]));
        }
        if interrupts && !running.interrupting {
            running.interrupting = true;
            let by = self.newcomer.clone().unwrap_or_else(|| Subject::system(INTERRUPT_SENDER));
            let reason = Some(CancelReason::Interrupted);
            return out.push(Action::Interrupt(Cancel { turn, mode: CancelMode::Keep, by, reason }));
        }
        let expired = running.awaiting.as_ref().filter(|open| open.expires_at <= now.wall);
        if let Some(open) = expired {
            self.own = Some(Own::Expiry(turn));
            out.push(Action::Append(vec![journal::await_resolved(&open.id, &Resolution::Expired)]));
        }
    }

    /// Runs the running turn, if nobody does and it does not wait.
    fn run(&mut self, epoch: Epoch, out: &mut Vec<Action>) {
        let (waiting_rests, settled_first) = (self.holds(Rule::WaitingRests), self.holds(Rule::SettledFirst));
        let Some(running) = &mut self.running else { return };
        let to_be_run = running.runner == Runner::Nobody
            && (running.awaiting.is_none() || !waiting_rests)
            && running.end == End::None
            && !(running.outstanding && settled_first)
            && !running.is_stuck()
            && !running.interrupting;
        if !to_be_run {
            return;
        }
        let begin = match running.runs {
            Some(runs) if runs.epoch == epoch => Begin::Again,
            None if running.progress.epoch == epoch && running.spent.bytes == 0 => Begin::First,
            _ => Begin::TakenOver,
        };
        let attempt = running.run_again(epoch);
        let (turn, agent, deadline) = (running.turn, running.agent.clone(), running.deadline);
        out.push(Action::StartRunner(StartRunner { turn, agent, attempt, begin, deadline }));
    }

    /// The start of the next turn, with the inputs that join it.
    fn start_next(&mut self, now: Now, out: &mut Vec<Action>) {
        debug_assert!(matches!(self.mode, Mode::Live(_)), "nothing is done while replaying");
        if self.setup.agent_is == AgentIs::Elsewhere {
            return;
        }
        let merges = self.setup.second_message == SecondMessage::Merge;
        if merges && self.merges_at().is_some_and(|at| now.monotonic < at) {
            return;
        }
        let mut waiting = self.queued.iter().copied().filter(|input| !self.is_leaving(*input));
        let Some(turn) = waiting.next() else { return };
        let joining: Vec<Seq> = if merges { waiting.take(JOIN_MAX_INPUTS).collect() } else { Vec::new() };
        let mut drafts = vec![journal::started(turn, &self.setup.agent, deadline(now.wall, self.setup.time))];
        drafts.extend(joining.iter().map(|input| journal::joined(*input, turn)));
        self.leaving.extend(joining);
        self.own = Some(Own::Start(turn));
        out.push(Action::Append(drafts));
    }

    fn is_leaving(&self, input: Seq) -> bool {
        self.leaving.contains(&input) && self.holds(Rule::LeavingStays)
    }

    /// When what waits becomes one turn.
    fn merges_at(&self) -> Option<Monotonic> {
        let arrivals = self.arrivals.filter(|_| self.setup.second_message == SecondMessage::Merge)?;
        let pause = self.setup.merge;
        Some((arrivals.last + pause).min(arrivals.first + pause.saturating_mul(MERGE_PAUSES_MAX)))
    }

    /// Inputs that wait and may join the running turn.
    pub(super) fn may_join(&self) -> Vec<Seq> {
        let waiting = self.queued.iter().copied().filter(|input| !self.is_leaving(*input));
        waiting.take(JOIN_MAX_INPUTS).collect()
    }

    /// Ends for these are on their way.
    pub(super) fn join(&mut self, inputs: &[Seq], into: Seq) -> Vec<Draft> {
        self.leaving.extend(inputs);
        inputs.iter().map(|input| journal::joined(*input, into)).collect()
    }
}

/// Why nobody can go on with a turn.
fn failure(running: &Running, wall: Timestamp) -> Option<(FailReason, String)> {
    if running.deadline <= wall {
        return Some((FailReason::DeadlinePassed, format!("it was to end by {}", running.deadline)));
    }
    if let Runner::Failed(reason) = running.runner {
        return Some((reason, String::new()));
    }
    if running.runner == Runner::Nobody && running.awaiting.is_none() && running.is_stuck() {
        let detail = format!("{TURN_OWNERS_MAX} owners went away one after the other, and none got any further");
        return Some((FailReason::NoProgress, detail));
    }
    None
}

fn deadline(wall: Timestamp, time: Duration) -> Timestamp {
    Timestamp(wall.0.saturating_add(i64::try_from(time.as_millis()).unwrap_or(i64::MAX))).min(NO_DEADLINE)
}

fn until(wall: Timestamp, time: Timestamp) -> Duration {
    Duration::from_millis(u64::try_from(time.0.saturating_sub(wall.0)).unwrap_or(0))
}
