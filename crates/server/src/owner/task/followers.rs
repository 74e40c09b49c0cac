//! Those who follow: attaching and dropping them, what they report, and presence, which the owner merges.

use super::*;

/// How long changes of presence gather before the followers are told.
const PRESENCE_WINDOW: Duration = Duration::from_millis(50);

impl Owner {
    pub(super) fn follow(&mut self) -> Result<Follow, Refusal> {
        let moment = self.charge.node.moment();
        if moment.now >= moment.valid_until {
            return Err(moved());
        }
        let id = FollowerId(self.next_follower);
        self.next_follower += 1;
        let (sender, frames) = mpsc::channel(self.charge.node.limits.follower_frames);
        let greeting = FollowFrame::Presence(Arc::new(self.presence.attach(id)));
        sender.try_send(greeting).expect("a new channel has room for at least one frame");
        self.followers.push((id, sender));
        Ok(Follow {
            epoch: self.sequencer.epoch(),
            incarnation: self.charge.node.me,
            log: self.address.log.clone(),
            position: self.sequencer.last_seq(),
            snapshot: self.turns.as_ref().and_then(|turns| turns.view.snapshot()),
            frames,
            reports: self.reports(id),
        })
    }

    /// The way back from followers here: into the inbox, or nowhere when it is full.
    fn reports(&self, from: FollowerId) -> Reports {
        let (commands, metrics) = (self.commands.downgrade(), Arc::clone(&self.charge.node.metrics));
        Reports::new(move |report| {
            let Some(commands) = commands.upgrade() else { return };
            if let Err(TrySendError::Full(_)) = commands.try_send(Command::Report(from, report)) {
                metrics.limit_hit(Queue::OwnerCommands);
            }
        })
    }

    pub(super) fn report_from_follower(&mut self, from: FollowerId, report: FollowerReport) {
        match report {
            FollowerReport::Typing { sub, name } => {
                let typing = LiveEvent::Typing { sender: sub, name };
                self.send_to_followers(&FollowFrame::Live(Arc::new(typing)));
            }
            FollowerReport::Presence(report) => match self.presence.report(from, report) {
                Heard::Fits => self.presence_changed(),
                // A follower that does not take the question is gone, or asked after its next report.
                Heard::Gap => {
                    if let Some((_, follower)) = self.followers.iter().find(|(id, _)| *id == from) {
                        let _ = follower.try_send(FollowFrame::Presence(Arc::new(PresenceNews::Ask)));
                    }
                }
            },
        }
    }

    fn presence_changed(&mut self) {
        if self.presence_due.is_none() && self.presence.is_dirty() {
            self.presence_due = Some(self.charge.node.seams.sleep(PRESENCE_WINDOW));
        }
    }

    pub(super) fn show_presence(&mut self) {
        self.presence_due = None;
        if let Some(news) = self.presence.flush(self.charge.node.seams.now()) {
            self.send_to_followers(&FollowFrame::Presence(Arc::new(news)));
        }
    }

    pub(super) fn present(&self) -> Option<Present> {
        let json = self.presence.json()?;
        Some(Present { connected: self.presence.count(), json })
    }

    /// A follower whose queue is full is dropped: its stream ends and it comes back with its position. Its presence goes
    /// with it.
    pub(super) fn send_to_followers(&mut self, frame: &FollowFrame) {
        let (metrics, rules) = (&self.charge.node.metrics, &self.charge.node.rules);
        let presence = &mut self.presence;
        self.followers.retain(|(id, follower)| match follower.try_send(frame.clone()) {
            Ok(()) => true,
            Err(error) => {
                if matches!(error, TrySendError::Full(_)) {
                    metrics.limit_hit(Queue::Followers);
                }
                if rules.hold(Rule::LostFollowersLeave) {
                    presence.detach(*id);
                }
                false
            }
        });
        self.presence_changed();
    }
}
