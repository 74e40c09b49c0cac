//! The sessions of one conversation that one worker writes to: the hub's side, and the worker's.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use conch_core::ids::Seq;
use conch_core::shed::Permille;
use conch_core::time::Monotonic;

use super::Worker;
use super::sessions::{Done, Sessions};
use crate::frame::Frame;
use crate::hub::SessionId;
use crate::hub::sink::Sink;
use crate::node::Node;

/// Names a shard within its worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ShardId(pub(super) u64);

/// Counts the histories that a hub has shown: one more with each resync of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct History(pub(crate) u32);

/// A session that has everything up to a position.
pub(crate) struct Member {
    pub(crate) id: SessionId,
    pub(crate) sink: Arc<dyn Sink>,
    pub(crate) position: Seq,
    pub(crate) history: History,
    /// A live event was dropped: the next ones need a snapshot before them.
    pub(crate) missed_live: bool,
}

/// What a hub hands over.
pub(crate) enum Step {
    /// It is shown what is handed over from now on.
    Add(Member),
    Remove(SessionId),
    /// A record with its number, or a live event.
    Show(Arc<Frame>, Option<Seq>),
    /// What a session that missed live events needs before the next one; `None`: nothing.
    Refresh(SessionId, Option<Arc<Frame>>),
    /// Another history begins, with everybody at this position.
    StartOver(Arc<Frame>, Seq, History),
    /// Frames gather for so long from now on.
    Window(Duration),
    /// Live events were left out: everybody needs a snapshot before the next one.
    LiveWasLeftOut,
    /// Records were left out: everybody is behind.
    Overrun,
}

/// What a worker tells a hub of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Report {
    /// Its queue is full, or the worker was too far behind. It is in the shard no more, and has everything up to here.
    Behind { id: SessionId, position: Seq, history: History },
    /// It missed a live event, and is shown no more of them before it is refreshed.
    MissedLive(SessionId),
}

/// Takes reports; never waits.
pub(crate) trait Reports: Send + Sync + 'static {
    fn report(&self, reports: Vec<Report>);
}

/// See the module's description.
pub(crate) struct Shard {
    id: ShardId,
    worker: Arc<Worker>,
    inbox: Mutex<Inbox>,
    /// The worker's alone.
    sessions: Mutex<Sessions>,
    reports: Arc<dyn Reports>,
    limits: ShardLimits,
}

/// What was handed over since the worker last looked.
#[derive(Default)]
struct Inbox {
    steps: Vec<Step>,
    /// Frames among them, and their bytes.
    frames: usize,
    bytes: usize,
    /// There was no more room.
    was_full: bool,
    is_scheduled: bool,
}

/// What may wait for a worker, per shard.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ShardLimits {
    pub(crate) frames: usize,
    pub(crate) bytes: usize,
}

impl Inbox {
    /// Puts a step behind the others (D3). Without room for it live events go first, and then everything.
    fn put(&mut self, step: Step, limits: ShardLimits) {
        let Step::Show(frame, _) = &step else { return self.steps.push(step) };
        self.frames += 1;
        self.bytes += frame.bytes();
        self.steps.push(step);
        if self.is_over(limits) {
            self.was_full = true;
            self.leave_out(|step| matches!(step, Step::Show(_, None) | Step::Refresh(..)), Step::LiveWasLeftOut);
        }
        if self.is_over(limits) {
            self.leave_out(|step| matches!(step, Step::Show(..)), Step::Overrun);
        }
    }

    /// One frame has room, however large.
    fn is_over(&self, limits: ShardLimits) -> bool {
        self.frames > 1 && (self.frames > limits.frames || self.bytes > limits.bytes)
    }

    fn leave_out(&mut self, which: impl Fn(&Step) -> bool, instead: Step) {
        self.steps.retain(|step| !which(step));
        let shown = self.steps.iter().filter_map(|step| match step {
            Step::Show(frame, _) => Some(frame.bytes()),
            _ => None,
        });
        (self.frames, self.bytes) = shown.fold((0, 0), |(frames, bytes), more| (frames + 1, bytes + more));
        self.steps.push(instead);
    }
}

impl Shard {
    /// A shard without sessions.
    pub(crate) fn new(
        worker: &Arc<Worker>,
        node: &Arc<Node>,
        limits: ShardLimits,
        reports: Arc<dyn Reports>,
    ) -> Arc<Self> {
        let (inbox, sessions) = (Mutex::default(), Mutex::new(Sessions::new(Arc::clone(node), limits)));
        Arc::new(Self { id: worker.shard_id(), worker: Arc::clone(worker), inbox, sessions, reports, limits })
    }

    pub(super) fn id(&self) -> ShardId {
        self.id
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().expect("no holder of the inbox panics")
    }

    /// Hands something over. Never waits.
    pub(crate) fn tell(self: &Arc<Self>, step: Step) {
        let mut inbox = self.inbox();
        inbox.put(step, self.limits);
        if !std::mem::replace(&mut inbox.is_scheduled, true) {
            drop(inbox);
            self.worker.schedule_shard(Arc::clone(self));
        }
    }

    /// Takes what was handed over, and writes what is due.
    pub(super) fn work(&self, now: Monotonic) -> Done {
        let Inbox { steps, frames, bytes, was_full, .. } = std::mem::take(&mut *self.inbox());
        let mut sessions = self.sessions.lock().expect("no holder of the sessions panics");
        for step in steps {
            sessions.take(step, now);
        }
        let share = |part: usize, whole: usize| Permille::of(part as u64, whole as u64);
        let queued = match was_full {
            true => Permille::ALL,
            false => share(frames, self.limits.frames).max(share(bytes, self.limits.bytes)),
        };
        let done = Done { queued, ..sessions.write(now) };
        let reports = sessions.take_reports();
        drop(sessions);
        if !reports.is_empty() {
            self.reports.report(reports);
        }
        done
    }
}
