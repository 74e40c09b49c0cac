//! Where a hub pushes frames: one side of a client connection, seen from the hub.

use std::sync::Arc;

use conch_core::ids::{Epoch, LogId, Seq};
use conch_core::refusal::Refusal;
use futures_util::future::BoxFuture;

use crate::delivery::Batch;
use crate::frame::Frame;

/// What became of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Push {
    /// Written, or queued within the bound.
    Accepted,
    /// The queue is at its bound; the frame was not taken.
    Behind,
    /// The connection is gone.
    Closed,
}

/// How a join begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CatchUp {
    /// The records after the asked position follow, then `caught_up`.
    Streaming,
    /// The asked position is of no use; a `resync` follows.
    Resync,
}

impl CatchUp {
    /// The name on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Streaming => "streaming",
            Self::Resync => "resync",
        }
    }
}

/// The answer to a join.
#[derive(Debug, Clone)]
pub struct Joined {
    /// The conversation's last seq.
    pub head_seq: Seq,
    /// The history that positions belong to.
    pub log: LogId,
    /// The owner's epoch.
    pub epoch: Epoch,
    /// What follows.
    pub catch_up: CatchUp,
}

/// A client connection's way in for frames. Pushes never block.
pub trait FrameSink: Send + Sync + 'static {
    /// Takes a frame, or says why not. A live frame is refused at a lower fill than a durable one, so that records always
    /// find more room.
    fn push(&self, frame: &Arc<Frame>) -> Push;

    /// Takes several frames as one, or none of them: [`Push::Behind`] where it cannot, or finds room only where records do.
    fn push_joined(&self, _batch: &Batch) -> Push {
        Push::Behind
    }

    /// The delivery worker that the connection is pinned to, if it is to one.
    fn worker(&self) -> Option<usize> {
        None
    }

    /// Completes when there is room again (or the connection is gone): after [`Push::Behind`].
    fn room(&self) -> BoxFuture<'static, ()>;

    /// The session ends: its connection or its channel is to be closed for this reason.
    fn end(&self, reason: &Refusal);
}

/// One session's way to its client.
pub trait Sink: FrameSink {
    /// The join succeeded; called once, before any push.
    fn joined(&self, joined: &Joined);
}
