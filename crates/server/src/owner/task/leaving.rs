//! How an owner's task ends: asleep, released, handed over, or because its reign is over.

use super::*;
use crate::bounded;
use crate::events::WhyReleased;
use crate::seams::Seams;

impl Owner {
    pub(super) fn begin_hand_off(
        &mut self,
        to: Incarnation,
        patience: Patience,
        done: oneshot::Sender<Option<Handed>>,
    ) {
        let in_a_turn = self.turns.as_ref().is_some_and(|turns| !turns.machine.is_at_rest());
        let by = match patience {
            Patience::OnlyIfIdle if in_a_turn => return drop(done.send(None)),
            Patience::OnlyIfIdle => self.charge.node.seams.now(),
            Patience::Until(by) => by,
            Patience::WhileSought(search) => {
                let is_sought = self.turns.as_ref().is_some_and(|turns| *turns.sought.current.borrow() == search);
                if !is_sought && self.charge.node.rules.hold(Rule::SearchesAreCalledOff) {
                    return drop(done.send(None));
                }
                self.charge.node.seams.now()
            }
        };
        // An earlier one that is still waiting is told that it did not happen.
        self.handing = Some(Handing { to, by, done });
    }

    /// Passes the lease on with nothing under way. What waits in the inbox is refused only after that, so that whoever asks
    /// again finds the new owner.
    pub(super) async fn hand_off(mut self, handing: Handing) -> End {
        let hand_overs = Arc::clone(&self.charge.hand_overs);
        // Never closed; and without a permit, late is better than never.
        let (waiting, facts) = (Arc::clone(&self.charge.node), Arc::clone(&self.facts));
        let permit = bounded::acquire(&hand_overs, &waiting.metrics, Queue::HandOvers);
        let _permit = still_alive(&waiting.seams, &facts, permit).await;
        self.inbox.close();
        self.stop_runner();
        self.save_checkpoint().await;
        let reign = self.sequencer.reign();
        let node = Arc::clone(&self.charge.node);
        let held = Held { conversation: self.charge.tenure.conversation.key, epoch: reign.epoch, me: node.me };
        let handed = node.store.hand_off(&held, handing.to, reign.first_seq, node.timing.margin).await;
        if let Err(error) = &handed {
            let id = &self.charge.tenure.conversation.id;
            tracing::warn!(conversation = %id, epoch = %reign.epoch, %error, "a hand-over failed");
            let _ = handing.done.send(None);
            // It may be ours still.
            return self.ended();
        }
        let handed = handed.ok().flatten().map(|armed| self.charge.tenure.handed(armed));
        if handed.is_none() {
            // The peer cannot take it after all: whoever asks next does.
            self.release_lease(WhyReleased::NotTaken).await;
        }
        let _ = handing.done.send(handed);
        self.refuse_inbox();
        self.close_streams();
        End::Gone
    }

    pub(super) fn may_hibernate(&self) -> bool {
        if self.turns.as_ref().is_some_and(|turns| !turns.machine.is_at_rest()) {
            return false;
        }
        let idle = self.charge.node.seams.now().since(self.last_use);
        self.followers.is_empty() && self.inbox.is_empty() && idle >= self.charge.node.limits.hibernate_after
    }

    /// True if a turn waits for an answer: the next thing that happens may be that it expires.
    pub(super) fn waits(&self) -> bool {
        self.turns.as_ref().is_some_and(|turns| !turns.machine.is_idle())
    }

    pub(super) async fn hibernate(mut self) -> End {
        self.inbox.close();
        self.refuse_inbox();
        self.save_checkpoint().await;
        let tenure = Tenure { reign: self.sequencer.reign(), ..self.charge.tenure };
        End::Hibernated(tenure)
    }

    /// Gives the lease up with nothing under way; followers see the end of their stream (F6).
    pub(super) async fn release(mut self) -> End {
        self.inbox.close();
        self.refuse_inbox();
        self.stop_runner();
        self.save_checkpoint().await;
        self.release_lease(WhyReleased::Draining).await;
        self.close_streams();
        for done in self.releasing.drain(..) {
            let _ = done.send(());
        }
        End::Gone
    }

    /// After a halt: the fate of what was under way is not ours to tell any more.
    pub(super) fn ended(mut self) -> End {
        self.inbox.close();
        self.refuse_inbox();
        self.stop_runner();
        self.close_streams();
        match self.charge.tenure.kind {
            ConversationKind::Session => End::Lost,
            ConversationKind::Channel | ConversationKind::Direct => End::Gone,
        }
    }

    fn release_lease(&self, why: WhyReleased) -> impl Future<Output = ()> + Send + 'static {
        let (node, conversation) = (Arc::clone(&self.charge.node), self.charge.tenure.conversation.clone());
        let reign = self.sequencer.reign();
        async move { node.release(&conversation, &reign, why).await }
    }

    /// Followers see the end of their stream (F6).
    fn close_streams(&mut self) {
        let followers = std::mem::take(&mut self.followers);
        if !self.charge.node.rules.hold(Rule::StreamsClose) {
            std::mem::forget(followers);
        }
    }

    /// Everything that was still waiting in the inbox gets a directive; the router sends it again.
    fn refuse_inbox(&mut self) {
        while let Ok(command) = self.inbox.try_recv() {
            match command {
                Command::Append { reply, .. } | Command::RunnerAppend { reply, .. } | Command::Turn { reply, .. } => {
                    reply(Err(moved()));
                }
                Command::RunnerGone { .. }
                | Command::Live(_)
                | Command::AgentIsNowhere { .. }
                | Command::SetUp { .. }
                | Command::Report(..) => {}
                Command::Join { reply, .. } => drop(reply.send(Err(moved()))),
                Command::Present { reply } => drop(reply.send(None)),
                Command::Follow { reply } => drop(reply.send(Err(moved()))),
                Command::Release { done } => self.releasing.push(done),
                Command::HandOff { done, .. } => drop(done.send(None)),
            }
        }
    }
}

/// Waits for something that others hold up, which the watchdog must not take for a wedged loop.
async fn still_alive<T>(seams: &Seams, facts: &Facts, wait: impl Future<Output = T>) -> T {
    let mut wait = std::pin::pin!(wait);
    loop {
        tokio::select! {
            biased;
            done = &mut wait => return done,
            () = seams.sleep(TICK) => facts.last_round.store(seams.now().0, Ordering::Relaxed),
        }
    }
}
