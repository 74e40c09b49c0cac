//! The sessions of one conversation that one worker writes to: the hub's side, and the worker's.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use conch_core::coalesce::BASE;
use conch_core::ids::Seq;
use conch_core::shed::Permille;
use conch_core::time::Monotonic;

use super::Worker;
use super::sessions::{Done, Rest, Sessions};
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
    node: Arc<Node>,
    inbox: Mutex<Inbox>,
    /// The worker's alone.
    sessions: Mutex<Sessions>,
    reports: Arc<dyn Reports>,
    limits: ShardLimits,
}

/// What was handed over since the worker last took it.
#[derive(Default)]
struct Inbox {
    steps: Vec<Step>,
    /// When the first of them was.
    since: Option<Monotonic>,
    /// Frames among them, and their bytes.
    frames: usize,
    bytes: usize,
    /// There was no more room.
    was_full: bool,
    /// Steps that were left by the last look for those that come to nothing.
    compacted: usize,
    is_scheduled: bool,
}

/// Steps from which on those that come to nothing are looked for; then twice as many as were left.
const COMPACT_FROM: usize = 1_024;

/// What may wait for a worker, per shard.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ShardLimits {
    pub(crate) frames: usize,
    pub(crate) bytes: usize,
}

impl Inbox {
    /// Puts a step behind the others (D3). Without room for it live events go first, and then everything.
    fn put(&mut self, step: Step, limits: ShardLimits) {
        let Step::Show(frame, _) = &step else {
            self.steps.push(step);
            if self.steps.len() >= COMPACT_FROM.max(2 * self.compacted) {
                self.compact();
            }
            return;
        };
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

    /// The share of the room that is taken.
    fn fill(&self, limits: ShardLimits) -> Permille {
        let share = |part: usize, whole: usize| Permille::of(part as u64, whole as u64);
        match self.was_full {
            true => Permille::ALL,
            false => share(self.frames, limits.frames).max(share(self.bytes, limits.bytes)),
        }
    }

    /// One frame has room, however large.
    fn is_over(&self, limits: ShardLimits) -> bool {
        self.frames > 1 && (self.frames > limits.frames || self.bytes > limits.bytes)
    }

    /// Drops what comes to nothing: who was added and has left, and what a later step makes void. So beside the frames there are two
    /// steps at most for each session that is here or was when the worker last looked, and a few more.
    fn compact(&mut self) {
        let added = self.steps.iter().filter_map(|step| match step {
            Step::Add(member) => Some(member.id),
            _ => None,
        });
        let added: BTreeSet<SessionId> = added.collect();
        let left = self.steps.iter().filter_map(|step| match step {
            Step::Remove(id) => Some(*id).filter(|id| added.contains(id)),
            _ => None,
        });
        let came_and_left: BTreeSet<SessionId> = left.collect();
        let last = |which: fn(&Step) -> bool| self.steps.iter().rposition(which).unwrap_or(0);
        let window = last(|step| matches!(step, Step::Window(_)));
        let start_over = last(|step| matches!(step, Step::StartOver(..)));
        let mut place = 0;
        self.steps.retain(|step| {
            let is_before = |last: usize| place < last;
            let keeps = match step {
                Step::Add(member) => !came_and_left.contains(&member.id),
                Step::Remove(id) => !came_and_left.contains(id),
                Step::Refresh(id, _) => !came_and_left.contains(id) && !is_before(start_over),
                Step::Show(..) | Step::StartOver(..) => !is_before(start_over),
                Step::Window(_) => !is_before(window),
                Step::LiveWasLeftOut | Step::Overrun => true,
            };
            place += 1;
            keeps
        });
        self.compacted = self.steps.len();
        self.count();
    }

    fn leave_out(&mut self, which: impl Fn(&Step) -> bool, instead: Step) {
        // The same twice is once, when the later one comes.
        self.steps.retain(|step| !which(step) && std::mem::discriminant(step) != std::mem::discriminant(&instead));
        self.count();
        self.steps.push(instead);
    }

    /// Counts the frames.
    fn count(&mut self) {
        let shown = self.steps.iter().filter_map(|step| match step {
            Step::Show(frame, _) => Some(frame.bytes()),
            _ => None,
        });
        (self.frames, self.bytes) = shown.fold((0, 0), |(frames, bytes), more| (frames + 1, bytes + more));
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
        let (worker, node) = (Arc::clone(worker), Arc::clone(node));
        let (inbox, sessions) = (Mutex::default(), Mutex::new(Sessions::new(Arc::clone(&node), limits)));
        Arc::new(Self { id: worker.shard_id(), worker, node, inbox, sessions, reports, limits })
    }

    pub(super) fn id(&self) -> ShardId {
        self.id
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().expect("no holder of the inbox panics")
    }

    /// Steps that wait.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.inbox().steps.len()
    }

    /// Hands something over. Never waits.
    pub(crate) fn tell(self: &Arc<Self>, step: Step) {
        let mut inbox = self.inbox();
        if inbox.steps.is_empty() {
            inbox.since = Some(self.node.seams.now());
        }
        inbox.put(step, self.limits);
        self.schedule(inbox);
    }

    fn schedule(self: &Arc<Self>, mut inbox: MutexGuard<'_, Inbox>) {
        if !std::mem::replace(&mut inbox.is_scheduled, true) {
            drop(inbox);
            self.worker.schedule_shard(Arc::clone(self));
        }
    }

    /// Takes what was handed over, writes what is due, and looks at `budget` sessions at most. What remains comes after whatever
    /// else the worker has to do; until then nothing more is taken.
    pub(super) fn work(self: &Arc<Self>, now: Monotonic, mut budget: usize) -> Done {
        let mut sessions = self.sessions.lock().expect("no holder of the sessions panics");
        let mut done = self.hand_over(&mut sessions, now);
        done.rest = match sessions.take(now, &mut budget, &mut done) {
            Rest::None => sessions.write(now, &mut budget, &mut done),
            Rest::More => Rest::More,
        };
        let reports = sessions.take_reports();
        drop(sessions);
        if !reports.is_empty() {
            self.reports.report(reports);
        }
        // What was handed over while it went on is yet to be taken.
        let inbox = self.inbox();
        if !inbox.steps.is_empty() {
            done.rest = Rest::More;
        }
        if done.rest == Rest::More {
            self.schedule(inbox);
        }
        done
    }

    /// Has the sessions take what was handed over, once they have taken what was before. Says how full it was, and how late that is.
    fn hand_over(&self, sessions: &mut Sessions, now: Monotonic) -> Done {
        let mut inbox = self.inbox();
        inbox.is_scheduled = false;
        let mut done = Done { queued: inbox.fill(self.limits), ..Done::default() };
        if !sessions.is_at_rest() {
            return done;
        }
        let Inbox { steps, since, .. } = std::mem::take(&mut *inbox);
        drop(inbox);
        // Where frames gather it is the window that says what is late.
        if let Some(since) = since.filter(|_| sessions.window() == Duration::ZERO) {
            done.late = Permille::of(nanos(now.since(since)), nanos(BASE));
        }
        sessions.hand_over(steps);
        done
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
