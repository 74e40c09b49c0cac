//! The part of the owner's task that only sessions have: turns.

use conch_core::conversation::Settings;
use conch_core::ids::AgentName;
use conch_core::record::Draft;
use conch_core::sequencer::key_reused;
use conch_core::turn::live::Applied;
use conch_core::turn::{Now, Setup, journal};

use super::*;
use crate::owner::turns::OwnerPort;
use conch_store::Landed;

/// Two readings of the clocks do not agree to the nanosecond: a timer is not set anew for less.
const TIMER_SLACK: Duration = Duration::from_millis(2);

impl Owner {
    /// Reads what a session's turns need before anything is accepted. Where an owner that was lost has to be counted, that is
    /// on disk before the turn is run again: it may be the turn that kills its owners.
    pub(super) async fn thaw(&mut self) -> Result<(), StoreError> {
        let Tenure { conversation, kind: ConversationKind::Session, agent: Some(agent), settings, .. } =
            &self.charge.tenure
        else {
            return Ok(());
        };
        let setup = self.setup(agent.clone(), settings);
        let turns = Turns::thaw(&self.charge.node, conversation, setup, self.now()).await?;
        self.turns = Some(turns);
        self.tell_turns(turn::Input::Thawed(self.sequencer.epoch()));
        if self.turn_actions.contains(&turn::Action::Save) && !self.save_checkpoint().await {
            return Err(StoreError::Unavailable("the loss of an owner was not counted".to_owned()));
        }
        self.perform_turn_actions();
        self.set_turns_timer();
        Ok(())
    }

    fn setup(&self, agent: AgentName, settings: &Settings) -> Setup {
        let time = self.charge.agents.limits(&agent).turn_time;
        let agent_is = self.where_is(&agent);
        Setup { agent, time, second_message: settings.second_message(), merge: settings.merge_time(), agent_is }
    }

    /// Runs turns as it was read, unless what is known was read later.
    pub(super) fn set_up(&mut self, read: SetUp) {
        self.charge.tenure.set_up(read);
        self.set_up_anew();
    }

    /// Runs turns as is known now.
    pub(super) fn set_up_anew(&mut self) {
        let Tenure { agent: Some(agent), settings, .. } = &self.charge.tenure else { return };
        let setup = self.setup(agent.clone(), settings);
        if let Some(turns) = &mut self.turns {
            turns.machine.set_up(setup);
            // It may wait for something else now.
            self.tell_turns(turn::Input::Tick);
        }
    }

    fn now(&self) -> Now {
        let seams = &self.charge.node.seams;
        Now { monotonic: seams.now(), wall: seams.clock.wall() }
    }

    /// Appends what a client sends, unless it is an input that the turns do not take.
    pub(super) fn append(&mut self, drafts: Vec<Draft>, reply: Reply) {
        let is_input = |draft: &&Draft| journal::is_input(draft.kind, &draft.sender);
        let (Some(turns), Some(input)) = (&mut self.turns, drafts.iter().find(is_input)) else {
            let ticket = self.ticket(reply);
            return self.step(Input::Append(ticket, drafts));
        };
        if let Err(refusal) = turns.may_accept(input) {
            self.count_overload(&refusal, Queue::Turns);
            return self.refuse_unless_there(drafts, reply, refusal);
        }
        let key = (input.sender.clone(), input.client_msg_id.clone());
        let ticket = self.ticket(reply);
        if let Some(turns) = &mut self.turns {
            turns.inputs.insert(ticket, key);
        }
        self.step(Input::Append(ticket, drafts));
    }

    /// What an append's outcome means for the turns. Returns the reply, unless it is given later.
    pub(super) fn settle_turns(
        &mut self,
        ticket: Ticket,
        reply: Option<Reply>,
        result: &Result<Vec<Receipt>, Refusal>,
    ) -> Option<Reply> {
        let Some(turns) = &mut self.turns else { return reply };
        turns.inputs.remove(&ticket);
        let (own, cancelled) = (turns.own.remove(&ticket), turns.cancels.remove(&ticket));
        if let (Some(drafts), Err(refusal)) = (own, result) {
            self.tell_turns(turn::Input::AppendRefused { drafts: &drafts, retry: refusal.retry });
        }
        match (cancelled, reply, &mut self.turns) {
            (Some(turn), Some(reply), Some(turns)) => {
                turns.answer_cancel(turn, reply, result.clone());
                None
            }
            (_, reply, _) => reply,
        }
    }

    /// Refuses an input, unless it is a retry of one that is in the log: that is the same message, however full the queue
    /// is (invariant 3). Asked beside the loop, because it reads the store.
    pub(super) fn refuse_unless_there(&self, drafts: Vec<Draft>, reply: Reply, refusal: Refusal) {
        let store = Arc::clone(&self.charge.node.store);
        let conversation = self.charge.tenure.conversation.clone();
        self.charge.node.seams.spawn("look for a retry", async move {
            let [draft] = drafts.as_slice() else { return reply(Err(refusal)) };
            let found = store.find(&conversation, &draft.sender, &draft.client_msg_id).await;
            reply(match found {
                Ok(Some(Landed { seq, body_hash, epoch, at })) if body_hash == draft.body_hash => {
                    Ok(vec![Receipt { seq, epoch, at, outcome: Outcome::Duplicate }])
                }
                Ok(Some(_)) => Err(key_reused()),
                // Not there, or not to be known now: either way the directive stands.
                Ok(None) | Err(_) => Err(refusal),
            });
        });
    }

    /// Lets the turn machine decide; what it asks for is done when the loop comes round, never in the middle of a step.
    pub(super) fn tell_turns(&mut self, input: turn::Input<'_>) {
        let Some(turns) = &mut self.turns else { return };
        let mut actions = Vec::new();
        let seams = &self.charge.node.seams;
        let now = Now { monotonic: seams.now(), wall: seams.clock.wall() };
        let handled = turns.machine.handle(now, input, &mut actions);
        self.turn_actions.extend(actions);
        if let Err(broken) = handled {
            self.report(&broken);
            self.halted = true;
        }
        self.seek_agent();
    }

    pub(super) fn perform_turn_actions(&mut self) {
        while !self.halted && !self.is_leaving() {
            let Some(action) = self.turn_actions.pop_front() else { return };
            match action {
                turn::Action::Append(drafts) => self.append_own(drafts, Box::new(drop)),
                // Done where it is asked for, before anything is run.
                turn::Action::Save => {}
                turn::Action::StartRunner(start) => {
                    let port = self.port(start.turn);
                    let (node, agents) = (&self.charge.node, &self.charge.agents);
                    if let Some(turns) = &mut self.turns {
                        turns.start_runner(node, agents, port, start);
                    }
                }
                // What comes of it is told as of every append.
                turn::Action::Interrupt(cancel) => self.cancel(cancel, Box::new(drop)),
                turn::Action::StopRunner { turn } => {
                    if self.charge.node.rules.hold(Rule::CancelStops)
                        && let Some(turns) = &mut self.turns
                    {
                        turns.stop_runner(Some(turn));
                    }
                    self.checkpoint_soon();
                }
                turn::Action::Due(due) if self.sequencer.is_idle() && self.flight.is_none() => self.write_due(due),
                // The next batch says what is due, and is looked at again when it has landed.
                turn::Action::Due(_) => {}
            }
        }
    }

    /// Appends what the machine is told of if it is refused.
    pub(super) fn append_own(&mut self, drafts: Vec<Draft>, reply: Reply) {
        let ticket = self.ticket(reply);
        if let Some(turns) = &mut self.turns {
            turns.own.insert(ticket, drafts.clone());
        }
        self.step(Input::Append(ticket, drafts));
    }

    pub(super) fn runner_append(&mut self, drafts: Vec<Draft>, reply: Reply) {
        let admitted = match &mut self.turns {
            Some(turns) => turns.machine.admit(&drafts),
            None => Err(moved()),
        };
        match admitted {
            Ok(()) => self.append_own(drafts, reply),
            Err(refusal) => reply(Err(refusal)),
        }
    }

    fn port(&mut self, turn: Seq) -> OwnerPort {
        let attempts = self.turns.as_mut().map_or_else(Default::default, |turns| turns.attempts(turn));
        OwnerPort {
            attempts,
            turn,
            epoch: self.sequencer.epoch(),
            conversation: self.charge.tenure.conversation.clone(),
            node: Arc::clone(&self.charge.node),
            commands: self.commands.clone(),
            nowhere: self.turns.as_ref().map(|turns| turns.sought.nowhere.subscribe()),
        }
    }

    pub(super) fn live(&mut self, event: LiveEvent) {
        let Some(turns) = &mut self.turns else { return };
        // What a runner still had on its way when its turn ended, or was to end, is of no interest any more (invariant 14).
        let running = event.turn().is_some() && event.turn() == turns.machine.shown();
        if running && turns.view.apply(&event) != Applied::Stale {
            self.send_to_followers(&FollowFrame::Live(Arc::new(event)));
        }
    }

    /// A commit without records.
    fn write_due(&mut self, due: Due) {
        let reign = self.sequencer.reign();
        self.due = due;
        self.due_alone = true;
        let (prev, reserve) = (reign.last_seq, reign.reserved_to);
        self.submit(CommitRequest { prev, hi: prev, reserve, records: Vec::new() });
    }

    pub(super) fn due_outcome(&mut self, outcome: &AppendOutcome) {
        self.due_alone = false;
        match outcome {
            AppendOutcome::Landed { .. } => {}
            // It is only a reminder: the next thaw or the next batch sets it right.
            AppendOutcome::Failed(error) if !error.is_ambiguous() => {
                tracing::debug!(%error, "a due row was not written")
            }
            _ => return self.step(Input::Ended(moved())),
        }
        if let Some(request) = self.next_commit.take() {
            self.commit(request);
        }
    }

    pub(super) fn stop_runner(&mut self) {
        if let Some(turns) = &mut self.turns {
            turns.stop_runner(None);
        }
    }

    /// Saves the machine's state. It mostly only saves reading later, so a failure is not retried; true if it is on disk.
    pub(super) async fn save_checkpoint(&mut self) -> bool {
        match self.checkpoint() {
            Some(saving) => saving.await,
            None => false,
        }
    }

    fn checkpoint_soon(&mut self) {
        if let Some(saving) = self.checkpoint() {
            self.charge.node.seams.spawn("checkpoint", async move {
                // Whether it was saved, the next thaw sees.
                let _ = saving.await;
            });
        }
    }

    fn checkpoint(&mut self) -> Option<impl Future<Output = bool> + Send + 'static> {
        let node = Arc::clone(&self.charge.node);
        let checkpoint = self.turns.as_mut()?.checkpoint(&node.rules)?;
        let (conversation, epoch) = (self.charge.tenure.conversation.clone(), self.sequencer.epoch());
        Some(async move {
            match node.store.save_checkpoint(&conversation, epoch, node.me, &checkpoint).await {
                Ok(saved) => saved,
                Err(error) => {
                    tracing::debug!(conversation = %conversation.id, %error, "a checkpoint was not saved");
                    false
                }
            }
        })
    }

    pub(super) fn runner_gone(&mut self, turn: Seq, how: turn::Gone) {
        if let Some(turns) = &mut self.turns {
            turns.runner_gone(turn);
        }
        self.tell_turns(turn::Input::RunnerGone { turn, how });
    }

    /// The time that the machine waits for has come.
    pub(super) fn turns_are_due(&mut self) {
        self.turns_timer = None;
        self.tell_turns(turn::Input::Tick);
    }

    /// Wakes the loop when the machine wants to be told of the time; now and then a little early, which harms nobody.
    pub(super) fn set_turns_timer(&mut self) {
        let wake_at = self.turns.as_ref().and_then(|turns| turns.machine.wake_at(self.now()));
        let Some(at) = wake_at else {
            self.turns_timer = None;
            return;
        };
        let is_set = self.turns_timer.as_ref().is_some_and(|(set, _)| *set <= at + TIMER_SLACK);
        if !is_set {
            self.turns_timer = Some((at, self.charge.node.seams.clock.sleep_until(at)));
        }
    }
}
