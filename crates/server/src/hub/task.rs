//! The hub's task.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use conch_core::ids::{ConvRef, Epoch, Seq, Subject};
use conch_core::presence::{Announcement, Mode, Presence};
use conch_core::refusal::{Code, Refusal};
use conch_core::ring::Ring;
use conch_core::time::Monotonic;
use conch_core::turn::live::{Applied, LiveEvent, LiveView};
use conch_store::{Direction, RangeQuery};
use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};

use super::catch_up::CatchUpTask;
use super::sink::{CatchUp, Joined, Push, Sink};
use super::{Attach, Command, HubHandle, Hubs, Join, Leavers, SessionId, Shared, unavailable};
use crate::frame::{Address, Frame};
use crate::owner::{Follow, FollowFrame};

/// Time between two looks at silence, lingering and waiting joins.
const TICK: Duration = Duration::from_millis(500);
/// How long changes of presence gather before they are shown.
const PRESENCE_WINDOW: Duration = Duration::from_millis(50);
/// Bounds of the pause before a lost owner is looked for again (F7).
const RETRY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_millis(1_750));

/// Starts a hub's task.
pub(super) fn start(hubs: Hubs, shared: Arc<Shared>, conversation: ConvRef) -> HubHandle {
    let (commands, inbox) = mpsc::channel(shared.limits.commands);
    let handle = HubHandle { commands, leavers: Arc::new(Leavers::default()) };
    let seams = shared.node.seams.clone();
    let hub = Hub::new(hubs, shared, conversation, handle.clone(), inbox);
    seams.spawn("hub", hub.run());
    handle
}

/// Where a session stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It has everything up to this seq and gets what follows.
    Live(Seq),
    /// A task of its own brings it nearer.
    CatchingUp,
}

struct Watcher {
    sink: Arc<dyn Sink>,
    sub: Subject,
    stage: Stage,
    /// A live event was dropped: the next one needs a snapshot before it.
    missed_live: bool,
    /// The history changed, and it has not been told yet: nothing else comes before that.
    resync_due: bool,
}

struct Waiting {
    id: SessionId,
    join: Join,
    answer: oneshot::Sender<Result<(), Refusal>>,
    deadline: Monotonic,
}

/// What is known of the followed log.
struct Position {
    address: Address,
    epoch: Epoch,
    seq: Seq,
}

struct Hub {
    hubs: Hubs,
    shared: Arc<Shared>,
    conversation: ConvRef,
    handle: HubHandle,
    inbox: mpsc::Receiver<Command>,
    follow: Option<mpsc::Receiver<FollowFrame>>,
    seeking: Option<BoxFuture<'static, Result<Follow, Refusal>>>,
    heard: Monotonic,
    at: Option<Position>,
    ring: Ring<Arc<Frame>>,
    live: LiveView,
    watchers: BTreeMap<SessionId, Watcher>,
    waiting: Vec<Waiting>,
    presence: Presence,
    presence_due: Option<BoxFuture<'static, ()>>,
    tick: BoxFuture<'static, ()>,
    last_session: Monotonic,
}

enum Wake {
    Frame(Option<FollowFrame>),
    Command(Option<Command>),
    Followed(Result<Follow, Refusal>),
    Left,
    PresenceDue,
    Tick,
}

impl Hub {
    fn new(
        hubs: Hubs,
        shared: Arc<Shared>,
        conversation: ConvRef,
        handle: HubHandle,
        inbox: mpsc::Receiver<Command>,
    ) -> Self {
        let limits = shared.limits;
        let now = shared.node.seams.now();
        let salt = shared.node.me.0 as u64;
        Self {
            inbox,
            follow: None,
            seeking: None,
            heard: now,
            at: None,
            ring: Ring::new(limits.ring_records, limits.ring_bytes),
            live: LiveView::default(),
            watchers: BTreeMap::new(),
            waiting: Vec::new(),
            presence: Presence::new(salt, limits.presence_threshold),
            presence_due: None,
            tick: shared.node.seams.sleep(TICK),
            last_session: now,
            hubs,
            shared,
            conversation,
            handle,
        }
    }

    async fn run(mut self) {
        self.seek(Duration::ZERO);
        loop {
            match self.wake().await {
                Wake::Frame(Some(frame)) => self.frame(frame).await,
                Wake::Frame(None) => self.lost(),
                Wake::Command(Some(command)) => self.command(command).await,
                Wake::Command(None) => return,
                Wake::Followed(Ok(follow)) => self.followed(follow).await,
                Wake::Followed(Err(refusal)) => self.not_followed(&refusal),
                Wake::Left => self.remove_leavers(),
                Wake::PresenceDue => self.show_presence(),
                Wake::Tick => self.tick(),
            }
            if self.has_lingered() && self.hubs.retire(&self.conversation) {
                return;
            }
        }
    }

    /// Waits for the next thing to do. Cancel safe: receivers lose nothing, futures are kept across calls.
    async fn wake(&mut self) -> Wake {
        let frame = async {
            match &mut self.follow {
                Some(frames) => frames.recv().await,
                None => std::future::pending().await,
            }
        };
        let followed = async {
            match &mut self.seeking {
                Some(seeking) => seeking.await,
                None => std::future::pending().await,
            }
        };
        let presence_due = async {
            match &mut self.presence_due {
                Some(due) => due.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            frame = frame => Wake::Frame(frame),
            result = followed => Wake::Followed(result),
            command = self.inbox.recv() => Wake::Command(command),
            () = self.handle.leavers.wake.notified() => Wake::Left,
            () = presence_due => Wake::PresenceDue,
            () = &mut self.tick => Wake::Tick,
        }
    }

    // ---- following the owner ------------------------------------------------------------------------------------

    fn seek(&mut self, pause: Duration) {
        let (shared, conversation) = (Arc::clone(&self.shared), self.conversation.clone());
        self.seeking = Some(Box::pin(async move {
            shared.node.seams.sleep(pause).await;
            shared.router.follow(&conversation).await
        }));
    }

    /// The stream ended: the owner is one no longer, or this hub was too slow for it.
    fn lost(&mut self) {
        self.follow = None;
        let pause = RETRY.0 + self.shared.node.seams.jitter(RETRY.1);
        self.seek(pause);
    }

    async fn followed(&mut self, follow: Follow) {
        self.seeking = None;
        let Follow { epoch, log, position, snapshot, frames, .. } = follow;
        self.heard = self.shared.node.seams.now();
        let known = self.at.take();
        let address = Address::conversation(&self.conversation.id, log);
        match known {
            // Frames of a lower epoch are a stale owner's (F4): look again.
            Some(at) if epoch < at.epoch && at.address.log == address.log => {
                self.at = Some(at);
                return self.lost();
            }
            Some(at) if at.address.log == address.log => {
                self.at = Some(Position { epoch, ..at });
                if !self.fill_to(position).await {
                    return self.lost();
                }
            }
            Some(_) => self.start_over(Position { address, epoch, seq: position }),
            None => self.at = Some(Position { address, epoch, seq: position }),
        }
        self.follow = Some(frames);
        if let Some(snapshot) = snapshot {
            self.live_event(&snapshot);
        }
        for waiting in std::mem::take(&mut self.waiting) {
            self.join(waiting).await;
        }
    }

    fn not_followed(&mut self, refusal: &Refusal) {
        self.seeking = None;
        if refusal.code == Code::NotFound {
            for waiting in self.waiting.drain(..) {
                let _ = waiting.answer.send(Err(refusal.clone()));
            }
        }
        let pause = RETRY.0 + self.shared.node.seams.jitter(RETRY.1);
        self.seek(pause);
    }

    /// Another history: every position is void (F5).
    fn start_over(&mut self, at: Position) {
        self.ring.clear();
        self.live = LiveView::default();
        let resync = Arc::new(Frame::resync(&at.address, at.seq));
        let mut behind = Vec::new();
        for (&id, watcher) in &mut self.watchers {
            // One that catches up is told when it next asks to be attached.
            watcher.resync_due = true;
            if watcher.stage != Stage::CatchingUp {
                match watcher.sink.push(&resync) {
                    Push::Accepted => {
                        watcher.resync_due = false;
                        watcher.stage = Stage::Live(at.seq);
                    }
                    Push::Behind => behind.push(id),
                    Push::Closed => {}
                }
            }
        }
        self.shared.node.metrics.resyncs.inc_by(self.watchers.len() as u64);
        let position = at.seq;
        self.at = Some(at);
        for id in behind {
            self.catch_up(id, position);
        }
    }

    async fn frame(&mut self, frame: FollowFrame) {
        self.heard = self.shared.node.seams.now();
        let Some(seq) = self.at.as_ref().map(|at| at.seq) else { return };
        match frame {
            FollowFrame::Record(published) => {
                let is_new = |hub: &Self| hub.at.as_ref().is_some_and(|at| published.record.seq > at.seq);
                if is_new(self) && published.prev > seq && !self.fill_to(published.prev).await {
                    return self.lost();
                }
                // The read may have brought this very record, too: it is in the store before it is published.
                if is_new(self) {
                    self.record(&published.record, &published.frame);
                }
            }
            FollowFrame::Live(event) => self.live_event(&event),
            FollowFrame::Position(head) => {
                if head > seq && !self.fill_to(head).await {
                    self.lost();
                }
            }
        }
    }

    /// Reads what lies between the hub's position and `target` (F2, F3). False: the store did not answer.
    async fn fill_to(&mut self, target: Seq) -> bool {
        while let Some(at) = &self.at
            && at.seq < target
        {
            let query = RangeQuery {
                conversation: self.conversation.clone(),
                direction: Direction::After(at.seq),
                limit: self.shared.limits.catch_up_page,
                kinds: Vec::new(),
            };
            let address = at.address.clone();
            let page = match self.shared.node.store.range(&query).await {
                Ok(Some(page)) if page.log == address.log => page,
                Ok(_) => return false,
                Err(error) => {
                    tracing::debug!(conversation = %self.conversation.id, %error, "a hub could not fill a gap");
                    return false;
                }
            };
            for record in &page.records {
                self.record(record, &Arc::new(Frame::record(&address, record)));
            }
            if !page.more
                && let Some(at) = &mut self.at
            {
                // The rest are holes.
                at.seq = at.seq.max(target);
            }
        }
        true
    }

    /// The next record of the log: into the ring, to everybody who is live.
    fn record(&mut self, record: &conch_core::record::Record, frame: &Arc<Frame>) {
        let Some(at) = &mut self.at else { return };
        debug_assert!(record.seq > at.seq, "records come in order (invariant 6)");
        self.ring.push(at.seq, record.seq, frame.bytes(), Arc::clone(frame));
        at.seq = record.seq;
        self.live.committed(record);
        self.deliver(frame, Some(record.seq));
    }

    fn live_event(&mut self, event: &LiveEvent) {
        let Some(at) = &self.at else { return };
        if self.live.apply(event) == Applied::Stale {
            return;
        }
        let frame = Arc::new(Frame::live(&at.address, event.name(), event.encode()));
        self.deliver(&frame, None);
    }

    // ---- showing ------------------------------------------------------------------------------------------------

    /// Pushes one frame to every live session; `seq` is a record's.
    fn deliver(&mut self, frame: &Arc<Frame>, seq: Option<Seq>) {
        let snapshot = self.snapshot_frame();
        let mut behind = Vec::new();
        let mut delivered = 0;
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
                None => watcher.push_live(frame, snapshot.as_ref()),
            }
        }
        let metrics = &self.shared.node.metrics;
        metrics.deliveries.inc_by(delivered);
        metrics.delivered.inc_by(delivered * frame.json().len() as u64);
        for (id, position) in behind {
            self.shared.node.metrics.slow_sessions.inc();
            self.catch_up(id, position);
        }
    }

    fn snapshot_frame(&self) -> Option<Arc<Frame>> {
        let at = self.at.as_ref()?;
        let snapshot = self.live.snapshot()?;
        Some(Arc::new(Frame::live(&at.address, snapshot.name(), snapshot.encode())))
    }

    fn catch_up(&mut self, id: SessionId, position: Seq) {
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
    fn attach(&mut self, id: SessionId, mut position: Seq) -> Attach {
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
        if position < at.seq && !self.ring.covers(position) {
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

    // ---- sessions -----------------------------------------------------------------------------------------------

    async fn command(&mut self, command: Command) {
        match command {
            Command::Join { id, join, answer } => {
                let deadline = self.shared.node.seams.now() + self.shared.limits.join_wait;
                let waiting = Waiting { id, join, answer, deadline };
                match self.follow {
                    Some(_) => self.join(waiting).await,
                    None => self.waiting.push(waiting),
                }
            }
            Command::Attach { id, position, answer } => drop(answer.send(self.attach(id, position))),
            Command::Typing { sub, name } => self.live_event(&LiveEvent::Typing { sender: sub, name }),
            Command::Presence { answer } => drop(answer.send(self.presence_json())),
            Command::Expel { sub, reason } => self.expel(&sub, &reason),
        }
    }

    async fn join(&mut self, waiting: Waiting) {
        let Waiting { id, join, answer, .. } = waiting;
        let Some(at) = &self.at else { return drop(answer.send(Err(unavailable()))) };
        let head = at.seq;
        let other_log = join.log.as_ref().is_some_and(|log| log != at.address.log.as_str());
        let asked = join.after.unwrap_or(head);
        let void = join.after.is_some() && (other_log || asked > head || self.is_too_far_behind(asked).await);
        let Some(at) = &self.at else { return drop(answer.send(Err(unavailable()))) };
        let catch_up = if void { CatchUp::Resync } else { CatchUp::Streaming };
        let joined = Joined { head_seq: at.seq, log: at.address.log.clone(), epoch: at.epoch, catch_up };
        join.sink.joined(&joined);
        if answer.send(Ok(())).is_err() {
            return; // The client went away while it waited.
        }
        let position = if void { at.seq } else { asked };
        if void {
            join.sink.push(&Arc::new(Frame::resync(&at.address, at.seq)));
            self.shared.node.metrics.resyncs.inc();
        }
        let Join { sink, sub, name, .. } = join;
        let watcher =
            Watcher { sink, sub: sub.clone(), stage: Stage::CatchingUp, missed_live: false, resync_due: false };
        self.watchers.insert(id, watcher);
        self.shared.node.metrics.sessions.inc();
        self.show_presence_to(id, &sub, name);
        match self.attach(id, position) {
            Attach::Live | Attach::Gone => {}
            Attach::ReadOn(position) | Attach::Wait(position) => self.catch_up(id, position),
        }
    }

    async fn is_too_far_behind(&mut self, after: Seq) -> bool {
        if self.ring.covers(after) {
            return false;
        }
        let limit = self.shared.limits.catch_up_records;
        // When the store does not answer, catching up waits for it.
        let count = self.shared.node.store.count_after(&self.conversation, after, limit + 1).await;
        count.is_ok_and(|count| count > limit)
    }

    fn remove_leavers(&mut self) {
        for id in self.handle.leavers.take() {
            self.waiting.retain(|waiting| waiting.id != id);
            if self.watchers.remove(&id).is_some() {
                self.shared.node.metrics.sessions.dec();
                self.presence.leave(id.0);
                self.presence_changed();
            }
        }
        self.last_session = self.shared.node.seams.now();
    }

    fn expel(&mut self, sub: &Subject, reason: &Refusal) {
        for watcher in self.watchers.values().filter(|watcher| watcher.sub == *sub) {
            watcher.sink.end(reason);
        }
    }

    // ---- presence -----------------------------------------------------------------------------------------------

    fn show_presence_to(&mut self, id: SessionId, sub: &Subject, name: Option<Arc<str>>) {
        self.presence.join(id.0, sub, name);
        self.presence_changed();
        let (Some(at), Some(watcher)) = (&self.at, self.watchers.get(&id)) else { return };
        let greeting = self.presence.greeting();
        watcher.sink.push(&Arc::new(announcement(&at.address, &greeting)));
    }

    fn presence_changed(&mut self) {
        if self.presence_due.is_none() {
            self.presence_due = Some(self.shared.node.seams.sleep(PRESENCE_WINDOW));
        }
    }

    /// Who is here, or how many, as `GET …/presence` answers.
    fn presence_json(&mut self) -> String {
        let count = self.presence.count();
        match self.presence.mode() {
            Mode::Full => format!(r#"{{"count":{count},"present":{}}}"#, self.presence.state_json()),
            Mode::Count => format!(r#"{{"count":{count},"present":null}}"#),
        }
    }

    fn show_presence(&mut self) {
        self.presence_due = None;
        let Some(at) = &self.at else { return };
        if let Some(change) = self.presence.flush(self.shared.node.seams.now()) {
            let frame = Arc::new(announcement(&at.address, &change));
            self.deliver(&frame, None);
        }
    }

    // ---- time ---------------------------------------------------------------------------------------------------

    fn tick(&mut self) {
        self.tick = self.shared.node.seams.sleep(TICK);
        let now = self.shared.node.seams.now();
        if self.follow.is_some() && now.since(self.heard) >= self.shared.limits.silence {
            self.lost();
        }
        let (late, waiting) = std::mem::take(&mut self.waiting).into_iter().partition(|w: &Waiting| w.deadline <= now);
        self.waiting = waiting;
        for waiting in late {
            let _ = waiting.answer.send(Err(unavailable()));
        }
        self.show_presence();
    }

    fn has_lingered(&self) -> bool {
        let lingered = self.shared.node.seams.now().since(self.last_session) >= self.shared.limits.linger;
        self.watchers.is_empty() && self.waiting.is_empty() && lingered
    }
}

fn announcement(address: &Address, announcement: &Announcement) -> Frame {
    Frame::live(address, announcement.event(), announcement.payload().to_owned())
}

impl Watcher {
    fn push_live(&mut self, frame: &Arc<Frame>, snapshot: Option<&Arc<Frame>>) {
        if self.missed_live
            && let Some(snapshot) = snapshot
        {
            self.missed_live = self.sink.push(snapshot) != Push::Accepted;
            if self.missed_live {
                return;
            }
        }
        if self.sink.push(frame) == Push::Behind {
            self.missed_live = true;
        }
    }
}
