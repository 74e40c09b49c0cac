//! The hub's task.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use conch_core::ids::{ConvRef, Epoch, Incarnation, LogId, Seq, Subject};
use conch_core::presence::{Announcement, Mode, Presence};
use conch_core::refusal::{Code, Refusal, Retry};
use conch_core::ring::Ring;
use conch_core::time::Monotonic;
use conch_core::turn::live::{Applied, LiveEvent, LiveView};
use conch_store::{Direction, RangeQuery};
use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};

use super::catch_up::CatchUpTask;
use super::sink::{CatchUp, Joined, Push, Sink};
use super::{Attach, Came, Command, HubHandle, Hubs, Join, Returns, Right, SessionId, Shared, unavailable};
use crate::bounded;
use crate::delivery::shard::{History, Member, Report, Shard, ShardLimits, Step};
use crate::frame::{Address, Frame};
use crate::metrics::Queue;
use crate::owner::{Follow, FollowFrame, FollowerReport, Present, Reports};
use crate::rules::Rule;
use gathering::{Crowd, Gathering};
use judging::{Heard, Judged, Judging};

mod following;
mod gathering;
mod judging;
mod members;
mod presence;
mod reach;
mod sessions;
mod showing;

use reach::Reach;
use showing::Tail;

/// Time between two looks at silence, lingering and waiting joins.
const TICK: Duration = Duration::from_millis(500);
/// How long changes of presence gather before they are shown.
const PRESENCE_WINDOW: Duration = Duration::from_millis(50);
/// Bounds of the pause before a lost owner is looked for again (F7).
const RETRY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_millis(1_750));

/// A hub's name in presence: the nodes' random numbers are so far from each other that no two hubs get the same.
fn hub_number(node: Incarnation, number: u64) -> u64 {
    (node.0 as u64).wrapping_add(number)
}

/// Starts a hub's task; no two of a node have the same `number`.
pub(super) fn start(hubs: Hubs, shared: Arc<Shared>, conversation: ConvRef, number: u64) -> HubHandle {
    let (commands, inbox) = mpsc::channel(shared.limits.commands);
    let handle = HubHandle { commands, returns: Arc::new(Returns::default()) };
    let seams = shared.node.seams.clone();
    let hub = Hub::new(hubs, shared, conversation, handle.clone(), inbox, number);
    seams.spawn("hub", hub.run());
    handle
}

/// Where a session stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It gets what follows; its delivery worker knows up to where it has everything.
    Live,
    /// A task of its own brings it nearer.
    CatchingUp,
}

struct Watcher {
    sink: Arc<dyn Sink>,
    sub: Subject,
    right: Right,
    stage: Stage,
    /// Held for the task that catches it up, which ends with it.
    stay: Option<oneshot::Sender<Infallible>>,
    /// The history changed, and it has not been told yet: nothing else comes before that.
    resync_due: bool,
}

struct Waiting {
    id: SessionId,
    join: Join,
    right: Right,
    asked: Monotonic,
    answer: oneshot::Sender<Result<(), Refusal>>,
    deadline: Monotonic,
    heard: Heard,
}

/// What is known of the followed log.
struct Position {
    address: Address,
    /// The highest one seen.
    epoch: Epoch,
    seq: Seq,
}

/// The owner's stream.
struct Stream {
    /// Of its reign.
    epoch: Epoch,
    frames: mpsc::Receiver<FollowFrame>,
}

struct Hub {
    hubs: Hubs,
    shared: Arc<Shared>,
    conversation: ConvRef,
    handle: HubHandle,
    inbox: mpsc::Receiver<Command>,
    follow: Option<Stream>,
    /// The way back to the owner.
    reports: Option<Reports>,
    seeking: Option<BoxFuture<'static, Result<Follow, Refusal>>>,
    heard: Monotonic,
    at: Option<Position>,
    ring: Ring<Arc<Frame>>,
    live: LiveView,
    /// What `live` shows, once somebody has asked: the same for all who do before it changes.
    snapshot: Option<Arc<Frame>>,
    /// Kept for others who need the same, until the next tick.
    tail: Option<Tail>,
    watchers: BTreeMap<SessionId, Watcher>,
    /// The live ones, by delivery worker; none where there is none yet.
    shards: Vec<Option<Arc<Shard>>>,
    history: History,
    gathering: Gathering,
    /// Joins that wait for the owner, or for the store.
    waiting: Vec<Waiting>,
    judging: Judging,
    presence: Presence,
    presence_due: Option<BoxFuture<'static, ()>>,
    members_due: BoxFuture<'static, ()>,
    had_peers: bool,
    reach: Reach,
    tick: BoxFuture<'static, ()>,
    last_session: Monotonic,
    /// The last look for the owner found that there is no such conversation.
    is_nowhere: bool,
}

enum Wake {
    Frame(Option<FollowFrame>),
    Command(Option<Command>),
    Followed(Result<Follow, Refusal>),
    Looked(Option<Crowd>),
    Judged(Judged),
    Returned,
    PresenceDue,
    MembersDue,
    Tick,
}

impl Hub {
    fn new(
        hubs: Hubs,
        shared: Arc<Shared>,
        conversation: ConvRef,
        handle: HubHandle,
        inbox: mpsc::Receiver<Command>,
        number: u64,
    ) -> Self {
        let limits = shared.limits;
        let now = shared.node.seams.now();
        let this_hub = hub_number(shared.node.me, number);
        Self {
            inbox,
            follow: None,
            reports: None,
            seeking: None,
            heard: now,
            at: None,
            ring: Ring::new(limits.ring_records, limits.ring_bytes),
            live: LiveView::default(),
            snapshot: None,
            tail: None,
            watchers: BTreeMap::new(),
            shards: vec![None; shared.workers.all().len()],
            history: History::default(),
            gathering: Gathering::default(),
            waiting: Vec::new(),
            judging: Judging::default(),
            presence: Presence::new(this_hub, limits.presence_threshold),
            presence_due: None,
            members_due: members::pause(&shared.node),
            had_peers: !shared.node.peers().is_empty(),
            reach: Reach::default(),
            tick: shared.node.seams.sleep(TICK),
            last_session: now,
            is_nowhere: false,
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
                Wake::Command(Some(command)) => self.command(command),
                Wake::Command(None) => return,
                Wake::Followed(Ok(follow)) => self.followed(follow).await,
                Wake::Followed(Err(refusal)) => self.not_followed(&refusal),
                Wake::Looked(crowd) => self.looked(crowd),
                Wake::Judged(judged) => self.judged(judged).await,
                Wake::Returned => self.returned(),
                Wake::PresenceDue => self.show_presence(),
                Wake::MembersDue => self.look_at_members(),
                Wake::Tick => self.tick(),
            }
            if self.has_lingered() && self.hubs.retire(&self.conversation) {
                return;
            }
        }
    }

    /// Waits for the next thing to do. Cancel safe: receivers lose nothing, futures are kept across calls.
    ///
    /// Commands come last: they are what clients make as many of as they like, and a storm of joins must hold up neither those
    /// who leave nor what is due.
    async fn wake(&mut self) -> Wake {
        let frame = async {
            match &mut self.follow {
                Some(stream) => stream.frames.recv().await,
                None => std::future::pending().await,
            }
        };
        let followed = async {
            match &mut self.seeking {
                Some(seeking) => seeking.await,
                None => std::future::pending().await,
            }
        };
        let looked = self.gathering.looked();
        let judged = self.judging.judged();
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
            () = &mut self.tick => Wake::Tick,
            () = presence_due => Wake::PresenceDue,
            () = &mut self.members_due => Wake::MembersDue,
            crowd = looked => Wake::Looked(crowd),
            judged = judged => Wake::Judged(judged),
            () = self.handle.returns.wake.notified() => Wake::Returned,
            command = self.inbox.recv() => Wake::Command(command),
        }
    }

    fn tick(&mut self) {
        self.tick = self.shared.node.seams.sleep(TICK);
        self.tail = None;
        let now = self.shared.node.seams.now();
        let is_silent = self.follow.is_some() && now.since(self.heard) >= self.shared.limits.silence;
        if is_silent && self.shared.node.rules.hold(Rule::SilenceLooksAgain) {
            self.lost();
        }
        let (late, waiting) = std::mem::take(&mut self.waiting).into_iter().partition(|w: &Waiting| w.deadline <= now);
        self.waiting = waiting;
        for waiting in late {
            let refusal =
                Refusal::retry(Code::ConversationUnavailable, "the owner was not reached in time", Retry::SOON);
            // A client that went away while it waited needs no answer.
            let _ = waiting.answer.send(Err(refusal));
        }
        self.show_presence();
        self.look_at_the_crowd();
    }

    /// Nobody watches, and nobody is expected to come back soon: one who asks for what there is not leaves nothing behind.
    fn has_lingered(&self) -> bool {
        let lingered = || self.shared.node.seams.now().since(self.last_session) >= self.shared.limits.linger;
        let holds = self.shared.node.rules.hold(Rule::NowhereEndsAtOnce);
        self.watchers.is_empty() && self.waiting.is_empty() && ((self.is_nowhere && holds) || lingered())
    }
}
