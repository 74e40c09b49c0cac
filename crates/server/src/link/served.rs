//! A connection from a peer: answers it, lets it follow, takes its notices.
//!
//! Invariants: requests are answered beside each other, within a bound; over it they are declined, which says that nothing
//! was done. A stream sends no more than its follower gave credit for.
//!
//! Deliberately absent: what the answers are ([`Service`]).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use conch_core::ids::{ConversationId, Incarnation};
use conch_core::refusal::{Code, Refusal, Retry};
use conch_core::wire::link::{FollowerReport, Frame, Opened, Request, RequestId, StreamId};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::time::MissedTickBehavior;

use super::Service;
use super::credit::Credit;
use super::handshake::Met;
use super::inbox::{Broken, Inbox, LOOKS_PER_SILENCE};
use super::outbox::{NotQueued, Outbox, Queued};
use super::settings::LinkSettings;
use crate::metrics::Queue;
use crate::owner::{Follow, FollowFrame, Reports};

struct Stream {
    credit: Arc<Credit>,
    reports: Option<Reports>,
    /// Dropped with the stream, which ends its task.
    _alive: oneshot::Sender<()>,
}

struct Served {
    settings: Arc<LinkSettings>,
    service: Arc<dyn Service>,
    from: Incarnation,
    outbox: Outbox,
    requests: Arc<Semaphore>,
    streams: Mutex<BTreeMap<StreamId, Stream>>,
}

/// Serves a peer until the connection ends, and says why it did.
pub(super) async fn serve(
    settings: &Arc<LinkSettings>,
    service: &Arc<dyn Service>,
    met: Met,
    mut stop: watch::Receiver<bool>,
) -> Broken {
    let Met { mut inbox, write, peer } = met;
    let limits = &settings.limits;
    let served = Arc::new(Served {
        settings: Arc::clone(settings),
        service: Arc::clone(service),
        from: peer.incarnation,
        outbox: Outbox::new(limits.queue_bytes, limits.frame_bytes),
        requests: Arc::new(Semaphore::new(limits.requests)),
        streams: Mutex::default(),
    });
    settings.metrics.link_peers.inc();
    let writing = served.outbox.write_to(write, limits.silence, |bytes| {
        settings.metrics.link_sent.inc_by(bytes as u64);
    });
    let mut writing = std::pin::pin!(writing);
    // No branch is polled again after it has ended.
    let broken = tokio::select! {
        biased;
        _ = stop.wait_for(|stopping| *stopping) => Broken::Stopping,
        broken = served.read(&mut inbox) => broken,
        written = &mut writing => written.err().map_or(Broken::Closed, Broken::Io),
    };
    // The streams' tasks end, and with them what they follow.
    served.streams().clear();
    if let Some(goodbye) = broken.goodbye()
        && served.outbox.push_control(|out| goodbye.encode(out)).is_ok()
    {
        served.outbox.finish();
        // What the peer sent meanwhile is read, so that the goodbye is not lost to a reset.
        let parting = async { tokio::join!(&mut writing, inbox.drain()) };
        let _ = tokio::time::timeout(PARTING, parting).await;
    }
    served.outbox.end();
    settings.metrics.link_peers.dec();
    broken
}

/// Longest time for a goodbye.
const PARTING: Duration = Duration::from_millis(500);

impl Served {
    /// Nothing in it panics half-way, so a poisoned lock is as good as another.
    fn streams(&self) -> MutexGuard<'_, BTreeMap<StreamId, Stream>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn read(self: &Arc<Self>, inbox: &mut Inbox) -> Broken {
        let silence = self.settings.limits.silence;
        let mut looks = tokio::time::interval(silence / LOOKS_PER_SILENCE);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // Both branches are cancel safe.
            tokio::select! {
                biased;
                _ = looks.tick() => {
                    if let Err(broken) = inbox.look() {
                        return broken;
                    }
                }
                next = inbox.next() => {
                    let taken = match next {
                        Ok((frame, _)) => self.take(frame),
                        Err(broken) => Err(broken),
                    };
                    if let Err(broken) = taken {
                        return broken;
                    }
                }
            }
        }
    }

    fn take(self: &Arc<Self>, frame: Frame) -> Result<(), Broken> {
        match frame {
            Frame::Ask { request, within_ms, ask } => self.ask(request, within_ms, ask),
            Frame::Open { stream, conversation, within_ms, frames, bytes } => {
                self.open(stream, conversation, within_ms, Credit::new(frames, bytes))
            }
            Frame::Credit { stream, frames, bytes } => {
                // A stream that is not known has ended here, and the peer does not know yet.
                if let Some(stream) = self.streams().get(&stream) {
                    stream.credit.give(frames, bytes);
                }
                Ok(())
            }
            Frame::Closed { stream } => {
                self.remove(stream);
                Ok(())
            }
            Frame::Report { stream, report } => {
                if let Some(report) = report.0 {
                    self.report(stream, report);
                }
                Ok(())
            }
            Frame::Notice(notice) => {
                if let Some(notice) = notice.0 {
                    self.service.notice(self.from, notice);
                }
                Ok(())
            }
            Frame::Ping => self.control(&Frame::Pong),
            Frame::Goodbye { reason, detail } => Err(Broken::Goodbye { reason, detail }),
            _ => Err(Broken::Misplaced("a dialler's frame was expected")),
        }
    }

    /// A small frame that must not wait; a peer that leaves no room even for those takes nothing.
    fn control(&self, frame: &Frame) -> Result<(), Broken> {
        self.outbox.push_control(|out| frame.encode(out)).map(drop).map_err(|_| Broken::Stalled)
    }

    fn report(&self, stream: StreamId, report: FollowerReport) {
        let reports = self.streams().get(&stream).and_then(|stream| stream.reports.clone());
        if let Some(reports) = reports {
            reports.send(report);
        }
    }

    fn remove(&self, stream: StreamId) -> Option<Stream> {
        let mut streams = self.streams();
        streams.remove(&stream)
    }

    fn ask(self: &Arc<Self>, request: RequestId, within_ms: u32, ask: Request) -> Result<(), Broken> {
        let Ok(permit) = Arc::clone(&self.requests).try_acquire_owned() else {
            self.settings.metrics.limit_hit(Queue::LinkRequests);
            return self.control(&Frame::Declined { request });
        };
        let this = Arc::clone(self);
        self.settings.seams.spawn("link-answer", async move { this.answer(request, within_ms, ask, permit).await });
        Ok(())
    }

    /// Answers for as long as somebody waits; what was begun goes on in its owner's task.
    async fn answer(&self, request: RequestId, within_ms: u32, ask: Request, _permit: OwnedSemaphorePermit) {
        let within = Duration::from_millis(within_ms.into());
        let answering = async {
            let answer = self.service.answer(self.from, ask).await;
            self.settings.metrics.link_answers.inc();
            let frame = Frame::Answer { request, answer };
            self.push(|out| frame.encode(out)).await
        };
        match tokio::time::timeout(within, answering).await {
            Ok(Ok(_)) | Ok(Err(NotQueued::Ended | NotQueued::Full)) | Err(_) => {}
            Ok(Err(why @ NotQueued::TooLong { .. })) => tracing::warn!(%why, "an answer to a peer was not sent"),
        }
    }

    /// Queues a frame, waiting for room and counting that it did.
    async fn push(&self, encode: impl Fn(&mut Vec<u8>) -> usize) -> Result<Queued, NotQueued> {
        match self.outbox.push(&encode) {
            Err(NotQueued::Full) => {
                self.settings.metrics.limit_hit(Queue::LinkQueue);
                self.outbox.push_wait(encode).await
            }
            done => done,
        }
    }

    fn open(
        self: &Arc<Self>,
        stream: StreamId,
        conversation: ConversationId,
        within_ms: u32,
        credit: Credit,
    ) -> Result<(), Broken> {
        let mut streams = self.streams();
        if streams.contains_key(&stream) {
            return Err(Broken::Misplaced("a stream's number was used again"));
        }
        if streams.len() >= self.settings.limits.streams {
            drop(streams);
            self.settings.metrics.limit_hit(Queue::LinkStreams);
            let retry = Retry { after_ms: 1_000, budget_ms: 20_000 };
            let refusal = Refusal::retry(Code::Overloaded, "too many conversations are followed from there", retry);
            return self.control(&Frame::Refused { stream, refusal });
        }
        let (alive, gone) = oneshot::channel();
        let credit = Arc::new(credit);
        streams.insert(stream, Stream { credit: Arc::clone(&credit), reports: None, _alive: alive });
        drop(streams);
        let this = Arc::clone(self);
        self.settings.seams.spawn("link-followed", async move {
            let within = Duration::from_millis(within_ms.into());
            // Dropping the stream's task at any point loses nothing: the follower that ended it reads the store.
            tokio::select! {
                biased;
                _ = gone => {}
                () = this.follow(stream, &conversation, within, &credit) => drop(this.remove(stream)),
            }
        });
        Ok(())
    }

    async fn follow(&self, stream: StreamId, conversation: &ConversationId, within: Duration, credit: &Credit) {
        let follow = match tokio::time::timeout(within, self.service.follow(self.from, conversation)).await {
            Ok(Ok(follow)) => follow,
            Ok(Err(refusal)) => {
                let frame = Frame::Refused { stream, refusal };
                // An error means that the connection has ended.
                let _ = self.push(|out| frame.encode(out)).await;
                return;
            }
            Err(_) => return, // Nobody waits any more.
        };
        let Follow { epoch, incarnation, log, position, snapshot, mut frames, reports } = follow;
        if let Some(stream) = self.streams().get_mut(&stream) {
            stream.reports = Some(reports);
        }
        let opened = Opened { epoch, incarnation, log, position, snapshot };
        let frame = Frame::Opened { stream, opened };
        if self.push(|out| frame.encode(out)).await.is_err() {
            return;
        }
        self.settings.metrics.link_followed.inc();
        let _counted = Counted(&self.settings);
        loop {
            credit.wait(|| self.settings.metrics.limit_hit(Queue::LinkCredit)).await;
            let Some(frame) = frames.recv().await else { break };
            match self.push(|out| encode(stream, &frame, out)).await {
                // The length before a frame is not of its content.
                Ok(queued) => credit.spend(queued.bytes),
                Err(why) => {
                    if let NotQueued::TooLong { .. } = why {
                        tracing::warn!(%conversation, %why, "a follow stream was ended");
                        break;
                    }
                    return;
                }
            }
        }
        let closed = Frame::Closed { stream };
        let _ = self.push(|out| closed.encode(out)).await;
    }
}

struct Counted<'a>(&'a LinkSettings);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.metrics.link_followed.dec();
    }
}

fn encode(stream: StreamId, frame: &FollowFrame, out: &mut Vec<u8>) -> usize {
    match frame {
        FollowFrame::Record(published) => Frame::encode_record(stream, published.prev, &published.record, out),
        FollowFrame::Live(event) => Frame::encode_live(stream, event, out),
        FollowFrame::Presence(news) => Frame::encode_presence(stream, news, out),
        FollowFrame::Position(seq) => Frame::Position { stream, seq: *seq }.encode(out),
    }
}
