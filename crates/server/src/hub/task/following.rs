//! How a hub follows the owner: one stream, gaps filled from the store, another history announced.

use super::*;
use crate::rules::Rule;

impl Hub {
    pub(super) fn seek(&mut self, pause: Duration) {
        let (shared, conversation) = (Arc::clone(&self.shared), self.conversation.clone());
        self.seeking = Some(Box::pin(async move {
            if pause > Duration::ZERO {
                shared.node.seams.sleep(pause).await;
            }
            shared.router.follow(&conversation).await
        }));
    }

    /// The stream ended: the owner is one no longer, or this hub was too slow for it.
    pub(super) fn lost(&mut self) {
        self.follow = None;
        self.reports = None;
        self.shared.router.forget(&self.conversation);
        let pause = RETRY.0 + self.shared.node.seams.jitter(RETRY.1);
        self.seek(pause);
    }

    pub(super) async fn followed(&mut self, follow: Follow) {
        self.seeking = None;
        self.is_nowhere = false;
        let Follow { epoch, log, position, snapshot, frames, reports, .. } = follow;
        self.heard = self.shared.node.seams.now();
        let known = self.at.take();
        let address = Address::conversation(&self.conversation.id, log);
        match known {
            // Frames of a lower epoch are a stale owner's (F4): look again.
            Some(at) if epoch < at.epoch && at.address.log == address.log && self.drops_lower_epochs() => {
                self.at = Some(at);
                return self.lost();
            }
            Some(at) if at.address.log == address.log => {
                self.at = Some(Position { epoch, ..at });
                if !self.fill_to(position).await || self.is_below(epoch) {
                    return self.lost();
                }
            }
            Some(_) => self.start_over(Position { address, epoch, seq: position }),
            None => self.at = Some(Position { address, epoch, seq: position }),
        }
        self.follow = Some(Stream { epoch, frames });
        self.reports = Some(reports);
        self.presence.attached(self.heard);
        self.gathering.attached(self.heard);
        self.report_presence();
        if let Some(snapshot) = snapshot {
            self.live_event(&snapshot);
        }
        self.join_waiting();
    }

    pub(super) fn not_followed(&mut self, refusal: &Refusal) {
        self.seeking = None;
        self.is_nowhere = refusal.code == Code::NotFound;
        if self.is_nowhere {
            for waiting in self.waiting.drain(..) {
                let _ = waiting.answer.send(Err(refusal.clone()));
            }
        }
        let pause = RETRY.0 + self.shared.node.seams.jitter(RETRY.1);
        self.seek(pause);
    }

    /// Another history: every position is void (F5).
    pub(super) fn start_over(&mut self, at: Position) {
        self.ring.clear();
        self.live = LiveView::default();
        (self.snapshot, self.tail) = (None, None);
        self.history = History(self.history.0.wrapping_add(1));
        // One that catches up is told when it next asks to be attached.
        for watcher in self.watchers.values_mut().filter(|watcher| watcher.stage == Stage::CatchingUp) {
            watcher.resync_due = true;
        }
        let resync = Arc::new(Frame::resync(&at.address, at.seq));
        for shard in self.shards.iter().flatten() {
            shard.tell(Step::StartOver(Arc::clone(&resync), at.seq, self.history));
        }
        self.shared.node.metrics.resyncs.inc_by(self.watchers.len() as u64);
        self.at = Some(at);
    }

    /// What the followed owner sends, unless a record of a higher epoch was read from the store meanwhile: then it is one no
    /// longer (F4).
    pub(super) async fn frame(&mut self, frame: FollowFrame) {
        if !self.follows_the_past() {
            self.take(frame).await;
        }
        if self.follows_the_past() {
            self.lost();
        }
    }

    fn follows_the_past(&self) -> bool {
        self.follow.as_ref().is_some_and(|stream| self.is_below(stream.epoch))
    }

    /// Is this epoch below the highest one seen?
    fn is_below(&self, epoch: Epoch) -> bool {
        self.drops_lower_epochs() && self.at.as_ref().is_some_and(|at| epoch < at.epoch)
    }

    fn drops_lower_epochs(&self) -> bool {
        self.shared.node.rules.hold(Rule::LowerEpochsDrop)
    }

    async fn take(&mut self, frame: FollowFrame) {
        self.heard = self.shared.node.seams.now();
        let Some(seq) = self.at.as_ref().map(|at| at.seq) else { return };
        match frame {
            FollowFrame::Record(published) => {
                let is_new = |hub: &Self| hub.at.as_ref().is_some_and(|at| published.record.seq > at.seq);
                let lacks_prev = published.prev > seq && self.shared.node.rules.hold(Rule::PrevFills);
                if is_new(self) && lacks_prev && !self.fill_to(published.prev).await {
                    return self.lost();
                }
                // The read may have brought this very record, too: it is in the store before it is published.
                if is_new(self) {
                    self.record(&published.record, &published.frame);
                }
            }
            FollowFrame::Live(event) => self.live_event(&event),
            FollowFrame::Presence(news) => {
                self.presence.hear(&news);
                self.presence_changed();
            }
            FollowFrame::Position(head) => {
                let is_behind = head > seq && self.shared.node.rules.hold(Rule::PositionFills);
                if is_behind && !self.fill_to(head).await {
                    self.lost();
                }
            }
        }
    }

    /// Reads what lies between the hub's position and `target` (F2, F3). False: the store did not answer.
    pub(super) async fn fill_to(&mut self, target: Seq) -> bool {
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
    pub(super) fn record(&mut self, record: &conch_core::record::Record, frame: &Arc<Frame>) {
        let Some(at) = &mut self.at else { return };
        debug_assert!(record.seq > at.seq, "records come in order (invariant 6)");
        self.ring.push(at.seq, record.seq, frame.bytes(), Arc::clone(frame));
        at.seq = record.seq;
        at.epoch = at.epoch.max(record.epoch);
        self.live.committed(record);
        self.snapshot = None;
        self.deliver(frame, Some(record.seq));
    }

    pub(super) fn live_event(&mut self, event: &LiveEvent) {
        let Some(at) = &self.at else { return };
        if self.sheds(event) || self.live.apply(event) == Applied::Stale {
            return;
        }
        self.snapshot = None;
        let frame = Arc::new(Frame::live(&at.address, event.name(), event.encode()));
        self.deliver(&frame, None);
    }
}
