//! Catching up: brings one session from its position to the live stream, at its own pace.
//!
//! Reads pages from the store and pushes them; after each page it asks the hub to be attached, which happens at the very
//! record where the hub's ring takes over. A full connection queue makes it wait for room; it holds one page at most.

use std::sync::Arc;
use std::time::Duration;

use conch_core::ids::{ConvRef, Seq};
use conch_store::{Direction, RangeQuery};
use tokio::sync::oneshot;

use super::sink::{Push, Sink};
use super::{Attach, Command, HubHandle, SessionId, Shared};
use crate::bounded;
use crate::frame::{Address, Frame};
use crate::metrics::Queue;

/// What a catch-up works on.
pub(super) struct CatchUpTask {
    pub(super) shared: Arc<Shared>,
    pub(super) conversation: ConvRef,
    pub(super) address: Address,
    pub(super) hub: HubHandle,
    pub(super) id: SessionId,
    pub(super) sink: Arc<dyn Sink>,
    pub(super) position: Seq,
}

/// How pushing a page ended.
enum Pushed {
    All,
    Closed,
}

impl CatchUpTask {
    pub(super) async fn run(mut self) {
        self.shared.node.metrics.catch_ups.inc();
        loop {
            match self.attach().await {
                Attach::Live | Attach::Gone => return,
                Attach::Wait(position) => {
                    self.position = position;
                    self.sink.room().await;
                }
                Attach::ReadOn(position) => {
                    self.position = position;
                    if let Pushed::Closed = self.read_on().await {
                        return;
                    }
                }
            }
        }
    }

    async fn attach(&self) -> Attach {
        let (answer, attached) = oneshot::channel();
        let command = Command::Attach { id: self.id, position: self.position, answer };
        let metrics = &self.shared.node.metrics;
        if bounded::send(&self.hub.commands, command, metrics, Queue::HubCommands).await.is_err() {
            return Attach::Gone;
        }
        attached.await.unwrap_or(Attach::Gone)
    }

    /// Reads one page after the position and pushes it whole.
    async fn read_on(&mut self) -> Pushed {
        let query = RangeQuery {
            conversation: self.conversation.clone(),
            direction: Direction::After(self.position),
            limit: self.shared.limits.catch_up_page,
            kinds: Vec::new(),
        };
        let page = {
            let _turn = bounded::acquire(&self.shared.reads, &self.shared.node.metrics, Queue::Reads).await;
            self.shared.node.store.range(&query).await
        };
        let page = match page {
            Ok(Some(page)) if page.log == self.address.log => page,
            // Another history than the one that it was asked to show: the hub will say so.
            Ok(Some(_)) => return self.pause().await,
            Ok(None) => return Pushed::Closed,
            Err(error) => {
                tracing::debug!(conversation = %self.conversation.id, %error, "catching up waits for the store");
                return self.pause().await;
            }
        };
        for record in &page.records {
            let frame = Arc::new(Frame::record(&self.address, record));
            loop {
                match self.sink.push(&frame) {
                    Push::Accepted => break,
                    Push::Behind => self.sink.room().await,
                    Push::Closed => return Pushed::Closed,
                }
            }
            self.position = record.seq;
        }
        if !page.more {
            // What lies between the last record and the head are holes.
            self.position = self.position.max(page.head_seq);
        }
        Pushed::All
    }

    async fn pause(&self) -> Pushed {
        let seams = &self.shared.node.seams;
        seams.sleep(Duration::from_millis(250) + seams.jitter(Duration::from_millis(500))).await;
        Pushed::All
    }
}
