//! Clients that watch: a session on a hub, then another one, each from the last seq that the client has seen.
//!
//! Two observers are written into the history for each session: the *wire*, which sees what the hub pushes at the moment
//! it is pushed, and the *client*, which sees what arrives, later and only as long as its session lives, and which lives
//! on across sessions.

use std::sync::Arc;
use std::time::Duration;

use conch_core::history::Event;
use conch_core::ids::{ConvRef, Seq, Subject};
use conch_core::record::Record;
use conch_core::refusal::Refusal;
use conch_server::frame::{Class, Frame};
use conch_server::hub::Join;
use conch_server::hub::sink::{CatchUp, FrameSink, Joined, Push, Sink};
use futures_util::future::{BoxFuture, Either, select};
use tokio::sync::{mpsc, oneshot, watch};

use crate::coverage::Tally;
use crate::dice::Dice;
use crate::executor::Process;
use crate::history::History;
use crate::machine::{Machine, Running};
use crate::shared::{Shared, lock, shared};

/// Frames that a session's connection holds: few, many.
const QUEUES: [usize; 2] = [2, 64];

/// Writes down what one observer sees.
#[derive(Clone)]
struct Scribe {
    history: History,
    name: String,
    conversation: ConvRef,
}

impl Scribe {
    fn joined(&self, after: Seq) {
        let (observer, conversation) = (self.name.clone(), self.conversation.id.clone());
        self.history.add(|t_us| Event::Joined { observer, conversation, after: Some(after), t_us });
    }

    /// Writes a frame down. Returns the position that it leaves its observer at, if it is about positions at all.
    fn saw(&self, frame: &Frame) -> Option<Seq> {
        let (observer, conversation) = (self.name.clone(), self.conversation.id.clone());
        let value = |name: &str| {
            let json: serde_json::Value = serde_json::from_str(frame.json()).expect("frames hold JSON");
            json.get(name).cloned().unwrap_or_else(|| panic!("{} has no {name}", frame.json()))
        };
        let number = |name: &str| Seq(value(name).as_u64().expect("a seq is a number"));
        match frame.event() {
            _ if frame.class() == Class::Live => None,
            "caught_up" => {
                let seq = number("seq");
                self.history.add(|t_us| Event::CaughtUp { observer, conversation, seq, t_us });
                Some(seq)
            }
            "resync" => {
                let (head_seq, log) = (number("head_seq"), value("log").as_str().expect("a log id is text").to_owned());
                self.history.add(|t_us| Event::Resync { observer, conversation, log, head_seq, t_us });
                Some(head_seq)
            }
            _ => {
                let record: Record = serde_json::from_str(frame.json()).expect("other durable frames are records");
                assert_eq!(record.conversation, conversation, "a hub shows its own conversation");
                self.history.add(|t_us| Event::observed(&observer, &record, &log_of(frame), t_us));
                Some(record.seq)
            }
        }
    }
}

/// The log that a frame's position belongs to, as a browser would read it.
fn log_of(frame: &Frame) -> String {
    let text = std::str::from_utf8(frame.event_stream()).expect("an event stream is text");
    let id = text.lines().find_map(|line| line.strip_prefix("id: ")).expect("a record's event has an id");
    id.rsplit_once(':').expect("an id is a log and a seq").0.to_owned()
}

/// The server's side of a session's connection.
struct Wire {
    scribe: Scribe,
    queue: mpsc::Sender<Arc<Frame>>,
    after: Option<Seq>,
    joined: watch::Sender<Option<Joined>>,
    ended: watch::Sender<bool>,
    tally: Tally,
}

impl Sink for Wire {
    fn joined(&self, joined: &Joined) {
        // A join that is answered by a resync begins where that says.
        self.scribe.joined(match joined.catch_up {
            CatchUp::Streaming => self.after.unwrap_or(joined.head_seq),
            CatchUp::Resync => joined.head_seq,
        });
        self.joined.send_replace(Some(joined.clone()));
    }
}

impl FrameSink for Wire {
    fn push(&self, frame: &Arc<Frame>) -> Push {
        assert!(self.joined.borrow().is_some(), "the join's answer comes first");
        if frame.class() == Class::Live && self.queue.capacity() < self.queue.max_capacity() / 2 {
            return Push::Behind;
        }
        match self.queue.try_send(frame.clone()) {
            Ok(()) => {
                self.scribe.saw(frame);
                Push::Accepted
            }
            Err(mpsc::error::TrySendError::Full(_)) => {
                self.tally.count(|coverage| coverage.slow_sessions += 1);
                Push::Behind
            }
            Err(mpsc::error::TrySendError::Closed(_)) => Push::Closed,
        }
    }

    fn room(&self) -> BoxFuture<'static, ()> {
        let queue = self.queue.clone();
        Box::pin(async move {
            // An error means that the client is gone, which is room enough.
            drop(queue.reserve_owned().await);
        })
    }

    fn end(&self, _reason: &Refusal) {
        self.ended.send_replace(true);
    }
}

/// One client that watches one conversation.
#[derive(Clone)]
pub struct Observer {
    world: Process,
    machines: Vec<Machine>,
    tally: Tally,
    scribe: Scribe,
    dice: Shared<Dice>,
    seen: Shared<Seen>,
    /// How often, in 1,000 frames, it takes its time.
    slowness: u64,
}

#[derive(Debug, Clone, Default)]
struct Seen {
    /// `None` until the first join.
    position: Option<Seq>,
    log: Option<String>,
    sessions: u64,
}

/// A session under way, from the client's side.
struct Session {
    process: Process,
    frames: mpsc::Receiver<Arc<Frame>>,
    ended: watch::Receiver<bool>,
    /// Dropping it makes the server leave the hub.
    _leave: oneshot::Sender<()>,
}

impl Observer {
    /// An observer; with `from`, one that wants everything after that seq.
    #[must_use]
    pub fn new(
        (name, conversation): (String, ConvRef),
        from: Option<Seq>,
        machines: Vec<Machine>,
        (history, tally): (History, Tally),
        (world, mut dice): (Process, Dice),
    ) -> Self {
        let slowness = [20, 700][dice.index(2)];
        let scribe = Scribe { history, name, conversation };
        let seen = shared(Seen { position: from, ..Seen::default() });
        Self { world, machines, tally, scribe, dice: shared(dice), seen, slowness }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.scribe.name
    }

    /// What it watches.
    #[must_use]
    pub fn conversation(&self) -> &ConvRef {
        &self.scribe.conversation
    }

    /// How far it has come.
    #[must_use]
    pub fn position(&self) -> Seq {
        lock(&self.seen).position.unwrap_or_default()
    }

    fn pause(&self, least_ms: u64, most_ms: u64) -> Duration {
        lock(&self.dice).between(Duration::from_millis(least_ms), Duration::from_millis(most_ms))
    }

    /// Watches until its task is dropped.
    pub async fn watch(&self) {
        loop {
            let up: Vec<Running> = self.machines.iter().filter_map(Machine::running).collect();
            if !up.is_empty() {
                let running = up[lock(&self.dice).index(up.len())].clone();
                if let Some(session) = self.join(&running).await {
                    self.stay(session).await;
                }
            }
            self.world.sleep(self.pause(20, 800)).await;
        }
    }

    async fn join(&self, running: &Running) -> Option<Session> {
        let seen = {
            let mut seen = lock(&self.seen);
            seen.sessions += 1;
            seen.clone()
        };
        let (queue, frames) = mpsc::channel(QUEUES[lock(&self.dice).index(QUEUES.len())]);
        let (joined, mut answer) = watch::channel(None);
        let (ended, on_end) = watch::channel(false);
        let wire = Scribe { name: format!("{}.wire{}", self.scribe.name, seen.sessions), ..self.scribe.clone() };
        let sink = Wire { scribe: wire, queue, after: seen.position, joined, ended, tally: self.tally.clone() };
        let sub: Subject = self.scribe.name.parse().expect("a name is a subject");
        let join = Join { sink: Arc::new(sink), sub, name: None, after: seen.position, log: seen.log };
        let (leave, left) = oneshot::channel();
        let (hubs, conversation) = (running.hubs.clone(), self.scribe.conversation.clone());
        running.process.spawn("session", async move {
            let joined = hubs.join(&conversation, join).await;
            if joined.is_ok() {
                // An error is the client's leaving, too.
                let _ = left.await;
            }
        });
        let patience = self.world.sleep(self.pause(500, 8_000));
        match select(Box::pin(answer.wait_for(Option::is_some)), patience).await {
            Either::Left((Ok(_), _)) => {}
            Either::Left((Err(_), _)) | Either::Right(_) => return None,
        }
        let joined = answer.borrow().clone().expect("it was waited for");
        self.begin(&joined);
        Some(Session { process: running.process.clone(), frames, ended: on_end, _leave: leave })
    }

    fn begin(&self, joined: &Joined) {
        self.tally.count(|coverage| coverage.sessions += 1);
        let mut seen = lock(&self.seen);
        seen.log = Some(joined.log.to_string());
        let position = match joined.catch_up {
            CatchUp::Streaming => *seen.position.get_or_insert(joined.head_seq),
            CatchUp::Resync => joined.head_seq,
        };
        drop(seen);
        self.scribe.joined(position);
    }

    /// Takes what arrives until the session ends, one way or another.
    async fn stay(&self, mut session: Session) {
        let mut life = self.world.sleep(self.pause(1_000, 15_000));
        loop {
            if *session.ended.borrow() || !session.process.is_alive() {
                // What was on its way is lost with the connection.
                return;
            }
            let frame = match select(Box::pin(session.frames.recv()), life).await {
                Either::Left((Some(frame), rest)) => {
                    life = rest;
                    frame
                }
                Either::Left((None, _)) | Either::Right(_) => return,
            };
            if lock(&self.dice).chance(self.slowness) {
                self.world.sleep(self.pause(0, 400)).await;
            }
            self.take(&frame);
        }
    }

    fn take(&self, frame: &Frame) {
        let Some(position) = self.scribe.saw(frame) else { return };
        let mut seen = lock(&self.seen);
        seen.position = Some(position);
        if frame.event() == "resync" {
            let json: serde_json::Value = serde_json::from_str(frame.json()).expect("frames hold JSON");
            seen.log = json.get("log").and_then(|log| log.as_str()).map(str::to_owned);
            self.tally.count(|coverage| coverage.resyncs += 1);
        }
    }
}
