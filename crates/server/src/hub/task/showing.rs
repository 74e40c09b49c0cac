//! How a hub shows: the same frame to everybody who is live, and the way back to live for those who are behind.

use futures_util::FutureExt;

use super::*;
use crate::delivery::{Batch, Shown};
use crate::rules::Rule;

/// What is joined at most for those who are brought to the live stream.
const TAIL_MAX_BYTES: usize = 64 * 1024;

/// What the last one was shown to be live.
pub(super) struct Tail {
    after: Seq,
    head: Seq,
    batch: Batch,
}

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

    /// Brings a session that has everything up to a position to the live stream: at once if the ring reaches back and there is room,
    /// else by a task of its own.
    pub(super) fn bring(&mut self, id: SessionId, position: Seq) {
        match self.attach(id, position) {
            Attach::Live | Attach::Gone => {}
            next @ (Attach::ReadOn { .. } | Attach::Wait(_)) => self.catch_up(id, position, next),
        }
    }

    fn catch_up(&mut self, id: SessionId, position: Seq, next: Attach) {
        let (Some(watcher), Some(at)) = (self.watchers.get_mut(&id), &self.at) else { return };
        let (stay, gone) = oneshot::channel();
        watcher.stay = Some(stay);
        let task = CatchUpTask {
            shared: Arc::clone(&self.shared),
            conversation: self.conversation.clone(),
            address: at.address.clone(),
            hub: self.handle.clone(),
            id,
            sink: Arc::clone(&watcher.sink),
            position,
            gone: gone.fuse(),
        };
        self.shared.node.seams.spawn("catch-up", task.run(next));
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
            return Attach::ReadOn { from: position, address: at.address.clone() };
        }
        let (sink, head) = (Arc::clone(&watcher.sink), at.seq.max(position));
        match self.show_tail(&*sink, position, head) {
            Push::Accepted => {}
            Push::Closed => return Attach::Gone,
            Push::Behind => match self.show_tail_one_by_one(&*sink, position, head) {
                Attach::Live => {}
                other => return other,
            },
        }
        let missed_live = snapshot.is_some_and(|snapshot| sink.push(&snapshot) != Push::Accepted);
        if let Some(watcher) = self.watchers.get_mut(&id) {
            (watcher.stage, watcher.stay) = (Stage::Live, None);
        }
        let member = Member { id, sink: Arc::clone(&sink), position: head, history: self.history, missed_live };
        self.shard_of(id, &sink).tell(Step::Add(member));
        Attach::Live
    }

    /// Shows the ring above a position, and that this was all, as one: who comes back, and who was behind, does so with many others at
    /// the same position. [`Push::Behind`]: it has to go one by one.
    fn show_tail(&mut self, sink: &dyn Sink, after: Seq, head: Seq) -> Push {
        let Some(at) = &self.at else { return Push::Closed };
        if self.tail.as_ref().is_none_or(|tail| (tail.after, tail.head) != (after, head)) {
            let records = self.ring.after(after).map(|(seq, frame)| Shown { frame: Arc::clone(frame), seq: Some(seq) });
            let caught_up = Shown { frame: Arc::new(Frame::caught_up(&at.address, head)), seq: None };
            let shown: Vec<Shown> = records.chain([caught_up]).collect();
            if shown.iter().map(|shown| shown.frame.bytes()).sum::<usize>() > TAIL_MAX_BYTES {
                return Push::Behind;
            }
            self.tail = Some(Tail { after, head, batch: Batch::new(shown) });
        }
        self.tail.as_ref().map_or(Push::Behind, |tail| sink.push_joined(&tail.batch))
    }

    fn show_tail_one_by_one(&self, sink: &dyn Sink, after: Seq, head: Seq) -> Attach {
        let Some(at) = &self.at else { return Attach::Gone };
        let mut reached = after;
        for (seq, frame) in self.ring.after(after) {
            match sink.push(frame) {
                Push::Accepted => reached = seq,
                Push::Behind => return Attach::Wait(reached),
                Push::Closed => return Attach::Gone,
            }
        }
        match sink.push(&Arc::new(Frame::caught_up(&at.address, head))) {
            Push::Accepted => Attach::Live,
            Push::Behind => Attach::Wait(head),
            Push::Closed => Attach::Gone,
        }
    }
}
