//! Who watches: joining, leaving, and telling everybody who is present.

use super::*;
use crate::rules::Rule;

impl Hub {
    pub(super) async fn command(&mut self, command: Command) {
        match command {
            Command::Join { id, join, right, asked, answer } => {
                let deadline = self.shared.node.seams.now() + self.shared.limits.join_wait;
                let waiting = Waiting { id, join, right, asked, answer, deadline };
                match self.follow {
                    Some(_) => self.join(waiting).await,
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

    pub(super) async fn join(&mut self, waiting: Waiting) {
        let Waiting { id, join, right, asked, answer, .. } = waiting;
        if join.after.is_some_and(|after| self.at.as_ref().is_some_and(|at| after > at.seq)) {
            self.reach_the_head(asked).await;
        }
        let Some(at) = &self.at else { return drop(answer.send(Err(unavailable()))) };
        let head = at.seq;
        let logs_matter = self.shared.node.rules.hold(Rule::OtherLogsAreVoid);
        let other_log = logs_matter && join.log.as_ref().is_some_and(|log| log != at.address.log.as_str());
        let asked = join.after.unwrap_or(head);
        let void = join.after.is_some() && (other_log || asked > head || self.is_too_far_behind(asked).await);
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
        let watcher = Watcher { sink, sub: sub.clone(), right, stage: Stage::CatchingUp, resync_due: false };
        self.watchers.insert(id, watcher);
        self.shared.node.metrics.sessions.inc();
        self.show_presence_to(id, &sub, name);
        match self.attach(id, position) {
            Attach::Live | Attach::Gone => {}
            Attach::ReadOn(position) | Attach::Wait(position) => self.catch_up(id, position),
        }
    }

    /// A session that caught up from the store may have seen a record that this hub has not been sent yet. A look that began
    /// after it asked shows all that it can have seen: however many ask, who waited for a look needs none of their own.
    async fn reach_the_head(&mut self, asked: Monotonic) {
        if self.looked_at_head.is_some_and(|looked| looked > asked) {
            return;
        }
        let began = self.shared.node.seams.now();
        let conversation = self.conversation.clone();
        let query = RangeQuery { conversation, direction: Direction::Latest, limit: 1, kinds: Vec::new() };
        // When the store does not answer, the position is judged by what this hub knows.
        if let Ok(Some(page)) = self.shared.node.store.range(&query).await
            && self.fill_to(page.head_seq).await
        {
            self.looked_at_head = Some(began);
        }
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
                watcher.resync_due = history != self.history;
                self.catch_up(id, position);
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
