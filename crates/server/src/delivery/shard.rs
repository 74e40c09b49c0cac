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
    /// Frames were left out: everybody is behind.
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
    is_scheduled: bool,
}

/// What may wait for a worker, per shard.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ShardLimits {
    pub(crate) frames: usize,
    pub(crate) bytes: usize,
}

impl Inbox {
    /// Puts a step behind the others (D3).
    fn put(&mut self, step: Step, limits: ShardLimits) {
        if let Step::Show(frame, _) = &step {
            self.frames += 1;
            self.bytes += frame.bytes();
            if self.frames > limits.frames || self.bytes > limits.bytes {
                self.steps.retain(|step| !matches!(step, Step::Show(..) | Step::Refresh(..)));
                (self.frames, self.bytes) = (0, 0);
                return self.steps.push(Step::Overrun);
            }
        }
        self.steps.push(step);
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
        let Inbox { steps, frames, bytes, .. } = std::mem::take(&mut *self.inbox());
        let mut sessions = self.sessions.lock().expect("no holder of the sessions panics");
        for step in steps {
            sessions.take(step, now);
        }
        let share = |part: usize, whole: usize| Permille::of(part as u64, whole as u64);
        let queued = share(frames, self.limits.frames).max(share(bytes, self.limits.bytes));
        let done = Done { queued, ..sessions.write(now) };
        let reports = sessions.take_reports();
        drop(sessions);
        if !reports.is_empty() {
            self.reports.report(reports);
        }
        done
    }
}
