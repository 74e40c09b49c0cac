//! The follower's end of a stream: from the connection to the hub, giving credit for what the hub's channel has taken.
//!
//! Invariant: order is kept, and when either side ends the other learns of it.

use std::sync::{Arc, Weak};

use conch_core::ids::Seq;
use conch_core::record::Record;
use conch_core::turn::live::LiveEvent;
use conch_core::wire::link::StreamId;
use tokio::sync::mpsc;

use super::dialled::Dialled;
use super::settings::LinkSettings;
use crate::bounded;
use crate::frame::{Address, Frame};
use crate::metrics::Queue;
use crate::owner::{FollowFrame, PresenceNews, Published};

/// What came for a stream, with its bytes on the wire.
pub(super) enum Arrived {
    Record { prev: Seq, record: Box<Record>, bytes: u32 },
    Live { event: Option<LiveEvent>, bytes: u32 },
    Presence { news: Option<PresenceNews>, bytes: u32 },
    Position { seq: Seq, bytes: u32 },
}

impl Arrived {
    fn bytes(&self) -> u32 {
        let (Self::Record { bytes, .. }
        | Self::Live { bytes, .. }
        | Self::Presence { bytes, .. }
        | Self::Position { bytes, .. }) = self;
        *bytes
    }

    /// As the hub takes it; `None`: of a kind that is not known here.
    fn shown(self, address: &Address) -> Option<FollowFrame> {
        match self {
            Self::Record { prev, record, .. } => {
                let frame = Arc::new(Frame::record(address, &record));
                Some(FollowFrame::Record(Arc::new(Published { prev, record: *record, frame })))
            }
            Self::Live { event, .. } => event.map(|event| FollowFrame::Live(Arc::new(event))),
            Self::Presence { news, .. } => news.map(|news| FollowFrame::Presence(Arc::new(news))),
            Self::Position { seq, .. } => Some(FollowFrame::Position(seq)),
        }
    }
}

/// The connection's side of a stream. Dropping it tells the owner.
pub(super) struct Arriving {
    pub(super) frames: mpsc::Receiver<Arrived>,
    pub(super) end: StreamEnd,
}

/// Closes a stream when it is dropped.
pub(super) struct StreamEnd {
    pub(super) at: Weak<Dialled>,
    pub(super) stream: StreamId,
}

impl StreamEnd {
    /// Somebody else closes it.
    pub(super) fn keep(mut self) {
        self.at = Weak::new();
    }
}

impl Drop for StreamEnd {
    fn drop(&mut self) {
        if let Some(at) = self.at.upgrade() {
            at.close(self.stream);
        }
    }
}

/// Brings frames to the hub until one side ends.
pub(super) async fn run(
    settings: Arc<LinkSettings>,
    address: Address,
    mut arriving: Arriving,
    to: mpsc::Sender<FollowFrame>,
) {
    let (half_frames, half_bytes) = (settings.limits.stream_frames.div_ceil(2), settings.limits.stream_bytes / 2);
    let (mut frames, mut bytes) = (0_u32, 0_u32);
    settings.metrics.link_streams.inc();
    loop {
        // Both branches are cancel safe.
        let next = tokio::select! {
            biased;
            () = to.closed() => break,
            next = arriving.frames.recv() => next,
        };
        let Some(next) = next else { break };
        (frames, bytes) = (frames + 1, bytes.saturating_add(next.bytes()));
        if let Some(frame) = next.shown(&address)
            && bounded::send(&to, frame, &settings.metrics, Queue::LinkFollowers).await.is_err()
        {
            break;
        }
        if frames >= half_frames || bytes >= half_bytes {
            if let Some(at) = arriving.end.at.upgrade() {
                at.give_credit(arriving.end.stream, frames, bytes);
            }
            (frames, bytes) = (0, 0);
        }
    }
    settings.metrics.link_streams.dec();
}
