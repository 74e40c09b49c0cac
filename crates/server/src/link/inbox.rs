//! Frames as they arrive on one connection.
//!
//! Invariant: what is received but not yet a frame is at most one frame's limit and one read.

use std::io;
use std::sync::Arc;

use bytes::BytesMut;
use conch_core::wire::link::{DecodeError, Frame, Reason, next_frame};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::Instant;

use crate::metrics::Metrics;

/// Room for one read.
const READ_BYTES: usize = 32 * 1024;

/// Looks at a connection in the time after which a silent peer is given up.
pub(super) const LOOKS_PER_SILENCE: u32 = 4;

/// Why a connection is over.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    #[error("the peer closed the connection")]
    Closed,
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the peer was silent for {0} ms")]
    Silent(u128),
    #[error("{who}{0}", who = introduction(.0))]
    BadFrame(#[from] DecodeError),
    #[error("the peer sent a frame that is not its to send: {0}")]
    Misplaced(&'static str),
    #[error("the peer said goodbye: {detail}")]
    Goodbye { reason: Reason, detail: String },
    #[error("the peer takes nothing")]
    Stalled,
    #[error("this node stops")]
    Stopping,
}

/// Who speaks otherwise has not sent a bad frame.
fn introduction(error: &DecodeError) -> &'static str {
    match error {
        DecodeError::OtherVersion { .. } | DecodeError::OtherProtocol | DecodeError::Foreign(_) => {
            "the peer cannot be understood: "
        }
        _ => "the peer sent a bad frame: ",
    }
}

impl Broken {
    /// What the peer is told before the connection ends, if anything.
    pub(super) fn goodbye(&self) -> Option<Frame> {
        let reason = match self {
            Self::BadFrame(_) | Self::Misplaced(_) => Reason::BadFrame,
            Self::Stopping => Reason::Stopping,
            _ => return None,
        };
        Some(Frame::Goodbye { reason, detail: self.to_string() })
    }
}

/// One half of a connection.
pub(super) type ReadHalf = Box<dyn AsyncRead + Send + Unpin>;

/// See the module.
pub(super) struct Inbox {
    from: ReadHalf,
    received: BytesMut,
    limit: usize,
    last: Instant,
    /// Whether anything arrived since the last look.
    heard: bool,
    /// Looks in a row at which nothing had arrived.
    quiet: u32,
    metrics: Arc<Metrics>,
}

impl Inbox {
    pub(super) fn new(from: ReadHalf, limit: usize, metrics: Arc<Metrics>) -> Self {
        Self { from, received: BytesMut::new(), limit, last: Instant::now(), heard: true, quiet: 0, metrics }
    }

    /// From now on frames may be this long.
    pub(super) fn limit(&mut self, bytes: usize) {
        self.limit = bytes;
    }

    /// Looks whether the peer is still there. Looks are counted, and not the time alone, because after a pause of this
    /// process what arrived meanwhile is still to be read.
    ///
    /// # Errors
    /// When nothing arrived between one look and the next too often in a row.
    pub(super) fn look(&mut self) -> Result<(), Broken> {
        if std::mem::take(&mut self.heard) {
            self.quiet = 0;
            return Ok(());
        }
        self.quiet += 1;
        if self.quiet < LOOKS_PER_SILENCE - 1 { Ok(()) } else { Err(Broken::Silent(self.last.elapsed().as_millis())) }
    }

    /// The next frame and its bytes on the wire. Cancel safe: what was read stays.
    pub(super) async fn next(&mut self) -> Result<(Frame, u32), Broken> {
        loop {
            if let Some(content) = next_frame(&mut self.received, self.limit)? {
                let bytes = u32::try_from(content.len()).unwrap_or(u32::MAX);
                return Ok((Frame::decode(&content)?, bytes));
            }
            self.received.reserve(READ_BYTES);
            let count = self.from.read_buf(&mut self.received).await?;
            if count == 0 {
                return Err(Broken::Closed);
            }
            self.last = Instant::now();
            self.heard = true;
            self.metrics.link_received.inc_by(count as u64);
        }
    }

    /// Reads and forgets until the peer closes, so that what it was told arrives before the connection is reset.
    pub(super) async fn drain(&mut self) {
        loop {
            self.received.clear();
            self.received.reserve(READ_BYTES);
            if !matches!(self.from.read_buf(&mut self.received).await, Ok(1..)) {
                return;
            }
        }
    }
}
