//! The part of the owner's task that only sessions have: turns.

use conch_core::record::Draft;
use conch_core::sequencer::key_reused;
use conch_core::turn::journal;
use conch_core::turn::live::Applied;

use super::*;
use crate::owner::turns::OwnerPort;
use conch_store::Landed;

impl Owner {
    /// Reads what a session's turns need before anything is accepted.
    pub(super) async fn thaw(&mut self) -> Result<(), StoreError> {
        let Tenure { conversation, kind: ConversationKind::Session, agent: Some(agent), .. } = &self.charge.tenure
        else {
            return Ok(());
        };
        let turns = Turns::thaw(&*self.charge.node.store, conversation, agent.clone()).await?;
        self.turns = Some(turns);
        self.tell_turns(turn::Input::Thawed);
        self.perform_turn_actions();
        Ok(())
    }

    /// A session takes no more inputs than its queue holds.
    pub(super) fn may_accept(&self, drafts: &[Draft]) -> Result<(), Refusal> {
        match &self.turns {
            Some(turns) if drafts.iter().any(|draft| journal::is_input(draft.kind, &draft.sender)) => {
                turns.machine.may_accept()
            }
            _ => Ok(()),
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
        let handled = turns.machine.handle(self.charge.node.seams.now(), input, &mut actions);
        self.turn_actions.extend(actions);
        if let Err(broken) = handled {
            self.report(&broken);
            self.halted = true;
        }
    }

    pub(super) fn perform_turn_actions(&mut self) {
        while !self.halted && !self.is_leaving() {
            let Some(action) = self.turn_actions.pop_front() else { return };
            match action {
                turn::Action::Append(drafts) => self.append_own(drafts, Box::new(drop)),
                turn::Action::StartRunner { turn, agent } => {
                    let port = self.port(turn);
                    let (node, agents) = (&self.charge.node, &self.charge.agents);
                    if let Some(turns) = &mut self.turns {
                        turns.start_runner(node, agents, port, agent);
                    }
                }
                turn::Action::StopRunner { turn } => {
                    if let Some(turns) = &mut self.turns {
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

    fn append_own(&mut self, drafts: Vec<Draft>, reply: Reply) {
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

    fn port(&self, turn: Seq) -> OwnerPort {
        OwnerPort {
            turn,
            epoch: self.sequencer.epoch(),
            conversation: self.charge.tenure.conversation.clone(),
            store: Arc::clone(&self.charge.node.store),
            commands: self.commands.clone(),
        }
    }

    pub(super) fn live(&mut self, event: LiveEvent) {
        let Some(turns) = &mut self.turns else { return };
        // What a runner still had on its way when its turn ended is of no interest any more.
        let running = event.turn().is_some() && event.turn() == turns.machine.running();
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

    /// Saves the machine's state; it only saves reading later, so a failure is not retried.
    pub(super) async fn save_checkpoint(&mut self) {
        if let Some(saving) = self.checkpoint() {
            saving.await;
        }
    }

    fn checkpoint_soon(&mut self) {
        if let Some(saving) = self.checkpoint() {
            self.charge.node.seams.spawn("checkpoint", saving);
        }
    }

    fn checkpoint(&mut self) -> Option<impl Future<Output = ()> + Send + 'static> {
        let checkpoint = self.turns.as_mut()?.checkpoint()?;
        let node = Arc::clone(&self.charge.node);
        let (conversation, epoch) = (self.charge.tenure.conversation.clone(), self.sequencer.epoch());
        Some(async move {
            if let Err(error) = node.store.save_checkpoint(&conversation, epoch, node.me, &checkpoint).await {
                tracing::debug!(conversation = %conversation.id, %error, "a checkpoint was not saved");
            }
        })
    }
}
