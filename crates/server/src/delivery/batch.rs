//! Frames that are shown together: their bytes are joined once for all who get them.

use std::sync::{Arc, OnceLock};

use bytes::{Bytes, BytesMut};
use conch_core::ids::Seq;

use crate::frame::Frame;

/// A frame, and its number if it is a record.
#[derive(Debug, Clone)]
pub(crate) struct Shown {
    pub(crate) frame: Arc<Frame>,
    pub(crate) seq: Option<Seq>,
}

/// Frames of one conversation, in order, at least one.
pub struct Batch {
    pub(super) shown: Vec<Shown>,
    websocket: OnceLock<Bytes>,
    event_stream: OnceLock<Bytes>,
}

impl Batch {
    /// Of at least one.
    pub(crate) fn new(shown: Vec<Shown>) -> Self {
        debug_assert!(!shown.is_empty(), "nothing is not shown");
        Self { shown, websocket: OnceLock::new(), event_stream: OnceLock::new() }
    }

    /// One by one.
    pub(crate) fn shown(&self) -> &[Shown] {
        &self.shown
    }

    /// Whether all of its records are above a position.
    pub(super) fn is_after(&self, position: Seq) -> bool {
        self.shown.iter().find_map(|shown| shown.seq).is_none_or(|first| first > position)
    }

    pub(super) fn last_seq(&self) -> Option<Seq> {
        self.shown.iter().rev().find_map(|shown| shown.seq)
    }

    /// All of them as WebSocket frames, one after another.
    pub fn websocket(&self) -> &Bytes {
        self.websocket.get_or_init(|| self.join(Frame::websocket))
    }

    /// All of them as Server-Sent Events, one after another.
    pub fn event_stream(&self) -> &Bytes {
        self.event_stream.get_or_init(|| self.join(Frame::event_stream))
    }

    fn join(&self, encode: impl Fn(&Frame) -> &Bytes) -> Bytes {
        if let [only] = &*self.shown {
            return encode(&only.frame).clone();
        }
        let mut joined = BytesMut::with_capacity(self.shown.iter().map(|shown| encode(&shown.frame).len()).sum());
        self.shown.iter().for_each(|shown| joined.extend_from_slice(encode(&shown.frame)));
        joined.freeze()
    }
}
