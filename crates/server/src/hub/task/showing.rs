//! How a hub shows: the same frame to everybody who is live, and the way back to live for those who are behind.

use super::*;
use crate::rules::Rule;

impl Hub {
    /// Shows one frame to every live session; `seq` is a record's. One hand-over for each worker, whatever the number of sessions.
    pub(super) fn deliver(&mut self, frame: &Arc<Frame>, seq: Option<Seq>) {
        for shard in self.shards.iter().flatten() {
            shard.tell(Step::Show(Arc::clone(frame), seq));
        }
    }

    /// Where a session of this conversation is written to.
    pub(super) fn shard_of(&mut self, id: SessionId, sink: &Arc<dyn Sink>) -> Arc<Shard> {
        let Shared { node, workers, limits, .. } = &*self.shared;
        let number = sink.worker().unwrap_or_else(|| usize::try_from(id.0).unwrap_or(0)) % workers.all().len();
        let shard = self.shards[number].get_or_insert_with(|| {
            let limits = ShardLimits { frames: limits.ring_records, bytes: limits.ring_bytes };
            let shard = Shard::new(&workers.all()[number], node, limits, Arc::clone(&self.handle.returns) as _);
            shard.tell(Step::Window(self.gathering.window()));
            shard
        });
        Arc::clone(shard)
    }

    /// What who comes in the middle of a turn is shown; encoded once, for as long as nothing changes.
    pub(super) fn snapshot_frame(&mut self) -> Option<Arc<Frame>> {
        if self.snapshot.is_none() {
            let at = self.at.as_ref()?;
            let snapshot = self.live.snapshot()?;
            self.snapshot = Some(Arc::new(Frame::live(&at.address, snapshot.name(), snapshot.encode())));
        }
        self.snapshot.clone()
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
        let missed_live = snapshot.is_some_and(|snapshot| watcher.sink.push(&snapshot) != Push::Accepted);
        watcher.stage = Stage::Live;
        let sink = Arc::clone(&watcher.sink);
        let member = Member { id, sink: Arc::clone(&sink), position: reached, history: self.history, missed_live };
        self.shard_of(id, &sink).tell(Step::Add(member));
        Attach::Live
    }
}
