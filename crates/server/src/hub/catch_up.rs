//! Catching up: brings one session from its position to the live stream, at its own pace.
//!
//! Takes pages of the log ([`super::reads`]) and pushes them; after each page it asks the hub to be attached, which happens
//! at the very record where the hub's ring takes over. A full connection queue makes it wait for room; it holds one page at
//! most, which it may share. Where reads have to wait for too long, the session is told `resync`: nothing is left out
//! silently.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use conch_core::ids::{ConvRef, Seq};
use futures_util::future::Fuse;
use tokio::sync::oneshot;

use super::reads::{Page, Read};
use super::sink::{Push, Sink};
use super::{Attach, Command, HubHandle, SessionId, Shared};
use crate::bounded;
use crate::delivery::Batch;
use crate::frame::{Address, Frame};
use crate::metrics::Queue;

/// Completes when the session has left; held open by its watcher.
pub(super) type Gone = Fuse<oneshot::Receiver<Infallible>>;

/// What a catch-up works on.
pub(super) struct CatchUpTask {
    pub(super) shared: Arc<Shared>,
    pub(super) conversation: ConvRef,
    pub(super) address: Address,
    pub(super) hub: HubHandle,
    pub(super) id: SessionId,
    pub(super) sink: Arc<dyn Sink>,
    pub(super) position: Seq,
    pub(super) gone: Gone,
}

/// How reading on ended.
enum Pushed {
    All,
    /// The read's turn did not come in time.
    TooLate,
    Closed,
}

impl CatchUpTask {
    /// Goes on from what came of attaching the session.
    pub(super) async fn run(mut self, mut next: Attach) {
        self.shared.node.metrics.catch_ups.inc();
        loop {
            next = match next {
                Attach::Live | Attach::Gone => return,
                Attach::Wait(position) => {
                    self.position = position;
                    self.sink.room().await;
                    self.attach().await
                }
                Attach::ReadOn { from, address } => {
                    (self.position, self.address) = (from, address);
                    match self.read_on().await {
                        Pushed::All => self.attach().await,
                        Pushed::TooLate => self.resync().await,
                        Pushed::Closed => return,
                    }
                }
            }
        }
    }

    async fn attach(&self) -> Attach {
        self.ask(|answer| Command::Attach { id: self.id, position: self.position, answer }).await
    }

    async fn resync(&self) -> Attach {
        self.shared.node.metrics.catch_up_resyncs.inc();
        self.ask(|answer| Command::Resync { id: self.id, answer }).await
    }

    async fn ask(&self, command: impl FnOnce(oneshot::Sender<Attach>) -> Command) -> Attach {
        let (answer, attached) = oneshot::channel();
        let metrics = &self.shared.node.metrics;
        if bounded::send(&self.hub.commands, command(answer), metrics, Queue::HubCommands).await.is_err() {
            return Attach::Gone;
        }
        attached.await.unwrap_or(Attach::Gone)
    }

    /// Takes the page after the position and pushes it whole.
    async fn read_on(&mut self) -> Pushed {
        match self.shared.reads.page(&self.conversation, &self.address, self.position, &mut self.gone).await {
            Read::Page(page) => self.push(&page).await,
            // The hub will say which one it shows.
            Read::OtherLog | Read::Failed => self.pause().await,
            Read::Nothing | Read::Unwanted => Pushed::Closed,
            Read::TooLate => Pushed::TooLate,
        }
    }

    async fn push(&mut self, page: &Page) -> Pushed {
        let as_one = page.records.as_ref().map_or(Push::Accepted, |records| self.sink.push_joined(records));
        match as_one {
            Push::Accepted => {}
            Push::Closed => return Pushed::Closed,
            // One by one, as there is room.
            Push::Behind => {
                for shown in page.records.iter().flat_map(Batch::shown) {
                    if self.push_one(&shown.frame).await == Push::Closed {
                        return Pushed::Closed;
                    }
                }
            }
        }
        self.position = self.position.max(page.end);
        Pushed::All
    }

    /// Pushes once there is room.
    async fn push_one(&self, frame: &Arc<Frame>) -> Push {
        loop {
            match self.sink.push(frame) {
                Push::Behind => self.sink.room().await,
                pushed => return pushed,
            }
        }
    }

    async fn pause(&self) -> Pushed {
        let seams = &self.shared.node.seams;
        seams.sleep(Duration::from_millis(250) + seams.jitter(Duration::from_millis(500))).await;
        Pushed::All
    }
}
