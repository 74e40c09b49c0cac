//! Who watches: joining, leaving, and telling everybody who is present.

use super::*;
use crate::rules::Rule;

impl Hub {
    pub(super) fn command(&mut self, command: Command) {
        match command {
            Command::Join { id, join, right, asked, answer } => {
                let deadline = self.shared.node.seams.now() + self.shared.limits.join_wait;
                let waiting = Waiting { id, join, right, asked, answer, deadline, heard: Heard::default() };
                match self.follow {
                    Some(_) => self.join(waiting),
                    None => self.waiting.push(waiting),
                }
            }
            Command::Attach { id, position, answer } => drop(answer.send(self.attach(id, position))),
            Command::Resync { id, answer } => drop(answer.send(self.resync(id))),
            // The owner shows it to every gateway, this one too.
            Command::Typing { sub, name } => {
                if let Some(reports) = &self.reports {
                    reports.send(FollowerReport::Typing { sub, name });
                }
            }
            Command::Present { answer } => drop(answer.send(self.present())),
            Command::Expel { sub, reason } => self.expel(&sub, &reason),
        }
    }

    pub(super) fn join(&mut self, waiting: Waiting) {
        let Some(Waiting { id, join, right, answer, .. }) = self.judge(waiting) else { return };
        let Some(at) = &self.at else { return drop(answer.send(Err(unavailable()))) };
        let (head, other_log) = (at.seq, self.is_of_another_log(&join));
        let asked = join.after.unwrap_or(head);
        let void = join.after.is_some() && (other_log || asked > head || self.is_too_far_behind(asked));
        let Some(at) = &self.at else { return drop(answer.send(Err(unavailable()))) };
        let catch_up = if void { CatchUp::Resync } else { CatchUp::Streaming };
        let joined = Joined { head_seq: at.seq, log: at.address.log.clone(), epoch: at.epoch, catch_up };
        join.sink.joined(&joined);
        if answer.send(Ok(())).is_err() {
            return; // The client went away while it waited.
        }
        let asked = if self.shared.node.rules.hold(Rule::ResumeIsAfter) { asked } else { Seq(0) };
        let position = if void { at.seq } else { asked };
        if void {
            join.sink.push(&Arc::new(Frame::resync(&at.address, at.seq)));
            self.shared.node.metrics.resyncs.inc();
        }
        let Join { sink, sub, name, .. } = join;
        let watcher =
            Watcher { sink, sub: sub.clone(), right, stage: Stage::CatchingUp, stay: None, resync_due: false };
        self.watchers.insert(id, watcher);
        self.shared.node.metrics.sessions.inc();
        self.show_presence_to(id, &sub, name);
        self.bring(id, position);
    }

    /// Whether its position is one of another history.
    pub(super) fn is_of_another_log(&self, join: &Join) -> bool {
        let Some(at) = &self.at else { return false };
        let logs_matter = self.shared.node.rules.hold(Rule::OtherLogsAreVoid);
        logs_matter && join.log.as_ref().is_some_and(|log| log != at.address.log.as_str())
    }

    /// Sessions left, and workers have reported.
    pub(super) fn returned(&mut self) {
        let Came { left, reports } = self.handle.returns.take();
        if !left.is_empty() {
            self.last_session = self.shared.node.seams.now();
        }
        for id in left {
            self.waiting.retain(|waiting| waiting.id != id);
            if let Some(watcher) = self.watchers.remove(&id) {
                if watcher.stage == Stage::Live {
                    self.shard_of(id, &watcher.sink).tell(Step::Remove(id));
                }
                self.shared.node.metrics.sessions.dec();
                self.presence.leave(id.0);
                self.presence_changed();
            }
        }
        for report in reports {
            self.reported(report);
        }
    }

    fn reported(&mut self, report: Report) {
        match report {
            Report::Behind { id, position, history } => {
                // One that has left needs nothing more.
                let Some(watcher) = self.watchers.get_mut(&id) else { return };
                (watcher.stage, watcher.resync_due) = (Stage::CatchingUp, history != self.history);
                self.bring(id, position);
            }
            Report::MissedLive(id) => {
                let Some(watcher) = self.watchers.get(&id) else { return };
                let sink = Arc::clone(&watcher.sink);
                let snapshot = self.snapshot_frame();
                self.shard_of(id, &sink).tell(Step::Refresh(id, snapshot));
            }
        }
    }

    pub(super) fn expel(&mut self, sub: &Subject, reason: &Refusal) {
        for watcher in self.watchers.values().filter(|watcher| watcher.sub == *sub) {
            watcher.sink.end(reason);
        }
    }
}
