//! A connection to a peer: asks it, follows it, tells it.
//!
//! Invariants: every request gets exactly one outcome, and it is called unknown exactly if the request may have left this
//! node. The frames of a stream that its follower has not taken are bounded by the credit that was given for it, so that
//! one slow follower holds up nobody else.
//!
//! Deliberately absent: dialling again ([`super::tcp`]).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use conch_core::ids::ConversationId;
use conch_core::refusal::Refusal;
use conch_core::wire::link::{
    Features, FollowerReport, Frame, Known, Notice, Opened, Request, RequestId, Response, StreamId,
};
use tokio::sync::{mpsc, oneshot};
use tokio::time::MissedTickBehavior;

use super::LinkError;
use super::handshake::Met;
use super::inbox::{Broken, Inbox, LOOKS_PER_SILENCE};
use super::outbox::{NotQueued, Outbox};
use super::settings::LinkSettings;
use super::stream::{Arrived, Arriving, StreamEnd, run};
use crate::metrics::Queue;
use crate::owner::{Follow, Reports};

type Outcome = Result<Response, LinkError>;
type Opening = Result<Result<(Opened, Arriving), Refusal>, LinkError>;

struct Pending {
    /// Where its frame begins in the outbox.
    position: u64,
    outcome: oneshot::Sender<Outcome>,
}

enum Stream {
    Opening { position: u64, opened: oneshot::Sender<Opening>, arriving: Arriving, arrived: mpsc::Sender<Arrived> },
    Open(mpsc::Sender<Arrived>),
}

#[derive(Default)]
struct Table {
    next: u64,
    pending: BTreeMap<RequestId, Pending>,
    streams: BTreeMap<StreamId, Stream>,
    /// Why nothing more is asked here.
    ended: Option<String>,
}

/// See the module.
pub(super) struct Dialled {
    settings: Arc<LinkSettings>,
    /// What the peer can.
    features: Features,
    outbox: Outbox,
    table: Mutex<Table>,
}

impl Dialled {
    /// Starts the connection's tasks; `ended` is called when it is over.
    pub(super) fn start(
        settings: &Arc<LinkSettings>,
        met: Met,
        ended: impl FnOnce(&str) + Send + 'static,
    ) -> Arc<Self> {
        let limits = &settings.limits;
        let outbox = Outbox::new(limits.queue_bytes, limits.frame_bytes);
        let features = met.peer.features;
        let this = Arc::new(Self { settings: Arc::clone(settings), features, outbox, table: Mutex::default() });
        let running = Arc::clone(&this);
        settings.metrics.link_connections.inc();
        settings.seams.spawn("link-dialled", async move {
            let Met { mut inbox, write, peer } = met;
            let (stall, metrics) = (running.settings.limits.silence, &running.settings.metrics);
            let broken = {
                let writing = running.outbox.write_to(write, stall, |bytes| {
                    metrics.link_sent.inc_by(bytes as u64);
                });
                let mut writing = std::pin::pin!(writing);
                // Neither branch is polled again after it has ended.
                let broken = tokio::select! {
                    biased;
                    broken = running.read(&mut inbox) => broken,
                    written = &mut writing => written.err().map_or(Broken::Stopping, Broken::Io),
                };
                if let Some(goodbye) = broken.goodbye()
                    && running.outbox.push_control(|out| goodbye.encode(out)).is_ok()
                {
                    running.outbox.finish();
                    let _ = tokio::time::timeout(stall, &mut writing).await;
                }
                broken
            };
            let why = broken.to_string();
            tracing::debug!(node = %peer.node, incarnation = %peer.incarnation, why, "a link to a peer ended");
            ended(&why);
            running.end(&why);
            metrics.link_connections.dec();
        });
        this
    }

    /// Nothing in it panics half-way, so a poisoned lock is as good as another.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it takes requests.
    pub(super) fn is_open(&self) -> bool {
        self.table().ended.is_none()
    }

    /// Ends it with a goodbye, as this node stops.
    pub(super) fn stop(&self) {
        let goodbye = Broken::Stopping.goodbye().expect("a stop is told");
        // Where there is no room the peer sees the end itself.
        let _ = self.outbox.push_control(|out| goodbye.encode(out));
        self.outbox.finish();
    }

    fn end(&self, why: &str) {
        let mut table = self.table();
        table.ended = Some(why.to_owned());
        let taken = self.outbox.end();
        let (pending, streams) = (std::mem::take(&mut table.pending), std::mem::take(&mut table.streams));
        drop(table);
        let outcome = |position: u64| {
            if position < taken { LinkError::Ambiguous(why.to_owned()) } else { LinkError::Unreachable(why.to_owned()) }
        };
        // Whoever does not wait any more needs no outcome.
        for Pending { position, outcome: to } in pending.into_values() {
            let _ = to.send(Err(outcome(position)));
        }
        for stream in streams.into_values() {
            if let Stream::Opening { position, opened, .. } = stream {
                let _ = opened.send(Err(outcome(position)));
            }
        }
    }

    async fn read(self: &Arc<Self>, inbox: &mut Inbox) -> Broken {
        let silence = self.settings.limits.silence;
        let mut pings = tokio::time::interval(silence / LOOKS_PER_SILENCE);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // Both branches are cancel safe.
            tokio::select! {
                biased;
                _ = pings.tick() => {
                    if let Err(broken) = inbox.look() {
                        return broken;
                    }
                    if self.outbox.push_control(|out| Frame::Ping.encode(out)).is_err() {
                        return Broken::Stalled;
                    }
                }
                next = inbox.next() => match next {
                    Ok((frame, bytes)) => if let Err(broken) = self.take(frame, bytes) {
                        return broken;
                    },
                    Err(broken) => return broken,
                },
            }
        }
    }

    fn take(&self, frame: Frame, bytes: u32) -> Result<(), Broken> {
        match frame {
            Frame::Answer { request, answer } => self.answered(request, Ok(answer)),
            Frame::Declined { request } => {
                let why = "the peer has too many requests under way".to_owned();
                self.answered(request, Err(LinkError::Unreachable(why)));
            }
            Frame::Opened { stream, opened } => self.opened(stream, opened),
            Frame::Refused { stream, refusal } => {
                if let Some(Stream::Opening { opened, .. }) = self.remove_stream(stream) {
                    let _ = opened.send(Ok(Err(refusal)));
                }
            }
            Frame::Record { stream, prev, record } => {
                self.arrived(stream, Arrived::Record { prev, record: Box::new(record), bytes })?;
            }
            Frame::Live { stream, event } => self.arrived(stream, Arrived::Live { event: event.0, bytes })?,
            Frame::Presence { stream, news } => self.arrived(stream, Arrived::Presence { news: news.0, bytes })?,
            Frame::Position { stream, seq } => self.arrived(stream, Arrived::Position { seq, bytes })?,
            Frame::Closed { stream } => drop(self.remove_stream(stream)),
            Frame::Pong => {}
            Frame::Goodbye { reason, detail } => return Err(Broken::Goodbye { reason, detail }),
            _ => return Err(Broken::Misplaced("a listener's frame was expected")),
        }
        Ok(())
    }

    /// The lock is released before what was removed is dropped, which takes it again.
    fn remove_stream(&self, stream: StreamId) -> Option<Stream> {
        let mut table = self.table();
        table.streams.remove(&stream)
    }

    fn answered(&self, request: RequestId, outcome: Outcome) {
        // One that is not known was given up.
        let pending = self.table().pending.remove(&request);
        if let Some(pending) = pending {
            let _ = pending.outcome.send(outcome);
        }
    }

    fn opened(&self, id: StreamId, with: Opened) {
        let mut table = self.table();
        if let Some(Stream::Opening { opened, arriving, arrived, .. }) = table.streams.remove(&id) {
            table.streams.insert(id, Stream::Open(arrived));
            drop(table);
            // Whoever gave up meanwhile drops what it gets, and with it the stream.
            let _ = opened.send(Ok(Ok((with, arriving))));
        }
    }

    fn arrived(&self, stream: StreamId, what: Arrived) -> Result<(), Broken> {
        let table = self.table();
        let Some(Stream::Open(arrived)) = table.streams.get(&stream) else {
            return Ok(()); // It was closed here, and the owner does not know yet.
        };
        match arrived.try_send(what) {
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => Ok(()),
            Err(mpsc::error::TrySendError::Full(_)) => Err(Broken::Misplaced("a stream's frame beyond its credit")),
        }
    }

    /// Asks and waits for the answer.
    pub(super) async fn ask(self: &Arc<Self>, ask: Request, within: Duration) -> Outcome {
        if !self.features.have(ask.needs()) {
            return Err(LinkError::Unreachable("its version does not know this request".to_owned()));
        }
        let (request, answer) = {
            let mut table = self.table();
            self.check(&table)?;
            if table.pending.len() >= self.settings.limits.requests {
                self.settings.metrics.limit_hit(Queue::LinkRequests);
                return Err(LinkError::Unreachable("too many requests to this peer wait for an answer".to_owned()));
            }
            let request = RequestId(table.next);
            table.next += 1;
            let frame = Frame::Ask { request, within_ms: millis(within), ask };
            let queued = self.outbox.push(|out| frame.encode(out)).map_err(|why| self.not_queued(&why))?;
            let (outcome, answer) = oneshot::channel();
            table.pending.insert(request, Pending { position: queued.position, outcome });
            (request, answer)
        };
        let _forget = Forget { at: self, request };
        match tokio::time::timeout(within, answer).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err(LinkError::Ambiguous("the connection ended".to_owned())),
            Err(_) => Err(LinkError::Ambiguous(format!("no answer within {} ms", within.as_millis()))),
        }
    }

    /// Follows a conversation at the peer.
    pub(super) async fn follow(
        self: &Arc<Self>,
        conversation: &ConversationId,
        within: Duration,
    ) -> Result<Result<Follow, Refusal>, LinkError> {
        let limits = &self.settings.limits;
        let (stream, answer) = {
            let mut table = self.table();
            self.check(&table)?;
            if table.streams.len() >= limits.streams {
                self.settings.metrics.limit_hit(Queue::LinkStreams);
                return Err(LinkError::Unreachable("too many streams from this peer".to_owned()));
            }
            let stream = StreamId(table.next);
            table.next += 1;
            let (frames, bytes) = (limits.stream_frames, limits.stream_bytes);
            let conversation = conversation.clone();
            let frame = Frame::Open { stream, conversation, within_ms: millis(within), frames, bytes };
            let queued = self.outbox.push(|out| frame.encode(out)).map_err(|why| self.not_queued(&why))?;
            let (opened, answer) = oneshot::channel();
            let (arrived, arriving) = mpsc::channel(frames as usize);
            let arriving = Arriving { frames: arriving, end: StreamEnd { at: Arc::downgrade(self), stream } };
            let opening = Stream::Opening { position: queued.position, opened, arriving, arrived };
            table.streams.insert(stream, opening);
            (stream, answer)
        };
        let given_up = StreamEnd { at: Arc::downgrade(self), stream };
        let answered = tokio::time::timeout(within, answer).await;
        let answered = match answered {
            Ok(Ok(answered)) => answered,
            Ok(Err(_)) => Err(LinkError::Ambiguous("the connection ended".to_owned())),
            Err(_) => Err(LinkError::Ambiguous(format!("no stream within {} ms", within.as_millis()))),
        };
        if let Ok(Ok(_)) = &answered {
            given_up.keep();
        }
        Ok(answered?.map(|(opened, arriving)| self.begin(conversation, stream, opened, arriving)))
    }

    fn begin(
        self: &Arc<Self>,
        conversation: &ConversationId,
        stream: StreamId,
        opened: Opened,
        arriving: Arriving,
    ) -> Follow {
        let Opened { epoch, incarnation, log, position, snapshot } = opened;
        let (to, frames) = mpsc::channel(self.settings.limits.follower_frames);
        let address = crate::frame::Address::conversation(conversation, log.clone());
        let settings = Arc::clone(&self.settings);
        self.settings.seams.spawn("link-stream", run(settings, address, arriving, to));
        let at = Arc::downgrade(self);
        let reports = Reports::new(move |report| report_to(&at, stream, report));
        Follow { epoch, incarnation, log, position, snapshot, frames, reports }
    }

    /// Tells the peer, if there is room.
    pub(super) fn tell(&self, notice: &Notice) {
        let frame = Frame::Notice(Known(Some(notice.clone())));
        self.push_or_drop(&frame);
    }

    fn push_or_drop(&self, frame: &Frame) {
        if let Err(why) = self.outbox.push(|out| frame.encode(out)) {
            self.settings.metrics.link_dropped.inc();
            if why == NotQueued::Full {
                self.settings.metrics.limit_hit(Queue::LinkQueue);
            }
        }
    }

    /// What a stream's follower has taken may be sent again.
    pub(super) fn give_credit(&self, stream: StreamId, frames: u32, bytes: u32) {
        let frame = Frame::Credit { stream, frames, bytes };
        // A connection so full is about to end.
        let _ = self.outbox.push_control(|out| frame.encode(out));
    }

    /// The follower is gone: the owner is told, unless it ended the stream itself.
    pub(super) fn close(&self, stream: StreamId) {
        if self.remove_stream(stream).is_some() {
            let frame = Frame::Closed { stream };
            let _ = self.outbox.push_control(|out| frame.encode(out));
        }
    }

    fn check(&self, table: &Table) -> Result<(), LinkError> {
        table.ended.as_ref().map_or(Ok(()), |why| Err(LinkError::Unreachable(why.clone())))
    }

    fn not_queued(&self, why: &NotQueued) -> LinkError {
        if *why == NotQueued::Full {
            self.settings.metrics.limit_hit(Queue::LinkQueue);
        }
        LinkError::Unreachable(why.to_string())
    }
}

fn report_to(at: &Weak<Dialled>, stream: StreamId, report: FollowerReport) {
    if let Some(at) = at.upgrade() {
        at.push_or_drop(&Frame::Report { stream, report: Known(Some(report)) });
    }
}

fn millis(within: Duration) -> u32 {
    u32::try_from(within.as_millis()).unwrap_or(u32::MAX)
}

/// Forgets a request that nobody waits for any more.
struct Forget<'a> {
    at: &'a Dialled,
    request: RequestId,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.at.table().pending.remove(&self.request);
    }
}
