//! A worker: waits until something was handed over or a window is due, then works until nothing is left.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use conch_core::shed::Permille;
use conch_core::time::Monotonic;
use tokio::sync::Notify;

use super::Write;
use super::shard::{Shard, ShardId};
use crate::node::Node;
use crate::ops;

/// A worker with nothing to do says that it is there.
const IDLE_TICK: Duration = Duration::from_millis(100);
/// Sessions that are looked at before answers, and the other conversations, get their turn.
pub(super) const BREATH: usize = 256;

/// See the module's description.
pub(crate) struct Worker {
    pub(crate) number: usize,
    queue: Mutex<Queue>,
    wake: Notify,
    next_shard: AtomicU64,
    /// Where it says that it moves.
    progress: OnceLock<ops::Worker>,
}

/// What was handed over since the worker last looked. A shard and a writer are in it once at most.
#[derive(Default)]
struct Queue {
    shards: Vec<Arc<Shard>>,
    writers: Vec<Arc<dyn Write>>,
    has_ended: bool,
}

impl Worker {
    pub(super) fn start(node: &Arc<Node>, number: usize) -> Arc<Self> {
        let (queue, wake, next_shard) = (Mutex::default(), Notify::new(), AtomicU64::new(0));
        let worker = Arc::new(Self { number, queue, wake, next_shard, progress: OnceLock::new() });
        node.seams.spawn("delivery worker", Running { worker: Arc::clone(&worker), node: Arc::clone(node) }.run());
        worker
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("no holder of the queue panics")
    }

    pub(super) fn shard_id(&self) -> ShardId {
        ShardId(self.next_shard.fetch_add(1, Ordering::Relaxed))
    }

    /// Has a writer called. Whoever calls this makes sure that a writer is in the queue once.
    pub(crate) fn schedule(&self, writer: Arc<dyn Write>) {
        self.queue().writers.push(writer);
        self.wake.notify_one();
    }

    /// Has a shard looked at; as above.
    pub(super) fn schedule_shard(&self, shard: Arc<Shard>) {
        self.queue().shards.push(shard);
        self.wake.notify_one();
    }

    /// From now on it says there that it moves. Once.
    pub(super) fn report_to(&self, progress: ops::Worker) {
        // A second board would be a mistake of composition, and the first one stays right.
        let _ = self.progress.set(progress);
    }

    fn tick(&self, now: Monotonic) {
        if let Some(progress) = self.progress.get() {
            progress.tick(now);
        }
    }

    /// Lets the worker finish what was handed over, and end.
    pub(super) fn end(&self) {
        self.queue().has_ended = true;
        self.wake.notify_one();
    }
}

/// From one breath to the next.
struct Pass {
    begun: Monotonic,
    written: usize,
    /// The most that waited in one shard.
    queued: Permille,
}

/// The worker's task.
struct Running {
    worker: Arc<Worker>,
    node: Arc<Node>,
}

impl Running {
    async fn run(self) {
        // Shards with a window in which something waits.
        let mut due: BTreeMap<(Monotonic, ShardId), Arc<Shard>> = BTreeMap::new();
        let (mut ends, mut was_queued) = (false, Permille::NONE);
        loop {
            // What was said to wait has to be taken back, too.
            let ticks = self.worker.progress.get().is_some() || was_queued > Permille::NONE;
            let idle = ticks.then(|| self.node.seams.now() + IDLE_TICK);
            let first_due = due.first_key_value().map(|((at, _), _)| *at);
            let next = async {
                match idle.into_iter().chain(first_due).min() {
                    Some(at) => self.node.seams.clock.sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                // Both branches are cancel safe.
                () = self.worker.wake.notified() => {}
                () = next => {}
            }
            self.worker.tick(self.node.seams.now());
            // Those who are about to hand something over do so first: what they have for one socket leaves in one write.
            tokio::task::yield_now().await;
            let Queue { shards, mut writers, has_ended } = std::mem::take(&mut *self.worker.queue());
            let mut pass = Pass { begun: self.node.seams.now(), written: 0, queued: Permille::NONE };
            for shard in shards {
                self.work(shard, &mut due, &mut pass);
                self.breathe(&mut pass, &mut writers).await;
            }
            // What is due again by the end of this pass is for the next one, which takes what was handed over meanwhile.
            let now = self.node.seams.now();
            while let Some(entry) = due.first_entry()
                && entry.key().0 <= now
            {
                let shard = entry.remove();
                self.work(shard, &mut due, &mut pass);
                self.breathe(&mut pass, &mut writers).await;
            }
            writers.iter().for_each(|writer| writer.write());
            self.told_busy(&pass);
            was_queued = pass.queued;
            ends |= has_ended;
            // What has not finished has put itself there again.
            if ends && self.worker.queue().shards.is_empty() {
                return;
            }
        }
    }

    fn work(&self, shard: Arc<Shard>, due: &mut BTreeMap<(Monotonic, ShardId), Arc<Shard>>, pass: &mut Pass) {
        let done = shard.work(self.node.seams.now(), BREATH);
        pass.written += done.sessions;
        pass.queued = pass.queued.max(done.queued);
        self.node.pressure.late(self.worker.number, done.late);
        if let Some(at) = done.next {
            due.insert((at, shard.id()), shard);
        }
    }

    /// Many rooms take a while, as one large room does, which comes again and again: answers and whatever else this thread has to do do
    /// not wait for all of it.
    async fn breathe(&self, pass: &mut Pass, writers: &mut Vec<Arc<dyn Write>>) {
        if pass.written >= BREATH {
            writers.append(&mut self.worker.queue().writers);
            writers.drain(..).for_each(|writer| writer.write());
            self.told_busy(pass);
            tokio::task::yield_now().await;
            *pass = Pass { begun: self.node.seams.now(), written: 0, ..*pass };
        }
    }

    fn told_busy(&self, pass: &Pass) {
        let now = self.node.seams.now();
        self.worker.tick(now);
        self.node.pressure.busy(self.worker.number, now.since(pass.begun));
        self.node.pressure.queued(self.worker.number, pass.queued);
    }
}
