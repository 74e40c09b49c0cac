//! How a hub shows: the same frame to everybody who is live, and the way back to live for those who are behind.

use super::*;
use crate::rules::Rule;

impl Hub {
    /// Pushes one frame to every live session; `seq` is a record's.
    pub(super) fn deliver(&mut self, frame: &Arc<Frame>, seq: Option<Seq>) {
        let snapshot = self.snapshot_frame();
        let mut behind = Vec::new();
        let (mut delivered, mut dropped) = (0, 0);
        for (&id, watcher) in &mut self.watchers {
            let Stage::Live(position) = watcher.stage else { continue };
            match seq {
                Some(seq) if seq <= position => {}
                Some(seq) => match watcher.sink.push(frame) {
                    Push::Accepted => {
                        watcher.stage = Stage::Live(seq);
                        delivered += 1;
                    }
                    Push::Behind => behind.push((id, position)),
                    Push::Closed => {}
                },
                None => dropped += u64::from(watcher.push_live(frame, snapshot.as_ref()) == Push::Behind),
            }
        }
        let metrics = &self.shared.node.metrics;
        metrics.deliveries.inc_by(delivered);
        metrics.live_dropped.inc_by(dropped);
        metrics.delivered.inc_by(delivered * frame.json().len() as u64);
        for (id, position) in behind {
            self.shared.node.metrics.slow_sessions.inc();
            self.shared.node.metrics.limit_hit(Queue::Outbox);
            self.catch_up(id, position);
        }
    }

    pub(super) fn snapshot_frame(&self) -> Option<Arc<Frame>> {
        let at = self.at.as_ref()?;
        let snapshot = self.live.snapshot()?;
        Some(Arc::new(Frame::live(&at.address, snapshot.name(), snapshot.encode())))
    }

    pub(super) fn catch_up(&mut self, id: SessionId, position: Seq) {
        let (Some(watcher), Some(at)) = (self.watchers.get_mut(&id), &self.at) else { return };
        watcher.stage = Stage::CatchingUp;
        let task = CatchUpTask {
            shared: Arc::clone(&self.shared),
            conversation: self.conversation.clone(),
            address: at.address.clone(),
            hub: self.handle.clone(),
            id,
            sink: Arc::clone(&watcher.sink),
            position,
        };
        self.shared.node.seams.spawn("catch-up", task.run());
    }

    /// A session says that it has everything up to `position`: attach it to the live stream, if the ring reaches back.
    pub(super) fn attach(&mut self, id: SessionId, mut position: Seq) -> Attach {
        let snapshot = self.snapshot_frame();
        let (Some(watcher), Some(at)) = (self.watchers.get_mut(&id), &self.at) else { return Attach::Gone };
        if watcher.resync_due {
            match watcher.sink.push(&Arc::new(Frame::resync(&at.address, at.seq))) {
                Push::Accepted => watcher.resync_due = false,
                Push::Behind => return Attach::Wait(position),
                Push::Closed => return Attach::Gone,
            }
            position = at.seq;
        }
        if position < at.seq && !self.ring.covers(position) && self.shared.node.rules.hold(Rule::RingIsWhole) {
            return Attach::ReadOn(position);
        }
        let mut reached = position;
        for (seq, frame) in self.ring.after(position) {
            match watcher.sink.push(frame) {
                Push::Accepted => reached = seq,
                Push::Behind => return Attach::Wait(reached),
                Push::Closed => return Attach::Gone,
            }
        }
        reached = reached.max(at.seq);
        match watcher.sink.push(&Arc::new(Frame::caught_up(&at.address, reached))) {
            Push::Accepted => {}
            Push::Behind => return Attach::Wait(reached),
            Push::Closed => return Attach::Gone,
        }
        watcher.stage = Stage::Live(reached);
        if let Some(snapshot) = snapshot {
            watcher.missed_live = watcher.sink.push(&snapshot) != Push::Accepted;
        }
        Attach::Live
    }
}

impl Watcher {
    fn push_live(&mut self, frame: &Arc<Frame>, snapshot: Option<&Arc<Frame>>) -> Push {
        if self.missed_live
            && let Some(snapshot) = snapshot
        {
            let pushed = self.sink.push(snapshot);
            if pushed != Push::Accepted {
                return pushed;
            }
            self.missed_live = false;
        }
        let pushed = self.sink.push(frame);
        self.missed_live |= pushed == Push::Behind;
        pushed
    }
}
