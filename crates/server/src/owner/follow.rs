//! What an owner sends to those who follow it.

use std::fmt;
use std::sync::Arc;

use conch_core::ids::{Epoch, Incarnation, LogId, Seq};
pub use conch_core::presence::shard::PresenceNews;
use conch_core::record::Record;
use conch_core::turn::live::LiveEvent;
pub use conch_core::wire::link::FollowerReport;
use tokio::sync::mpsc;

use crate::frame::Frame;

/// A record that was committed, encoded once.
#[derive(Debug)]
pub struct Published {
    /// The seq of the record before it in the log (F2).
    pub prev: Seq,
    /// The record.
    pub record: Record,
    /// The same, ready to be shown.
    pub frame: Arc<Frame>,
}

/// One message of a follow stream.
#[derive(Debug, Clone)]
pub enum FollowFrame {
    /// A committed record.
    Record(Arc<Published>),
    /// A live event; its place is after the last record sent before it.
    Live(Arc<LiveEvent>),
    /// Who is present, over all followers.
    Presence(Arc<PresenceNews>),
    /// Everything up to here was sent; once a second (F3).
    Position(Seq),
}

/// The way back from a follower to its owner. Never waits.
#[derive(Clone)]
pub struct Reports(Arc<dyn Fn(FollowerReport) + Send + Sync>);

impl Reports {
    /// Reports that go to `deliver`, which must not block.
    #[must_use]
    pub fn new(deliver: impl Fn(FollowerReport) + Send + Sync + 'static) -> Self {
        Self(Arc::new(deliver))
    }

    /// Tells the owner.
    pub fn send(&self, report: FollowerReport) {
        (self.0)(report);
    }
}

impl fmt::Debug for Reports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reports")
    }
}

/// A follow stream. It ends when the owner is one no longer (F6).
#[derive(Debug)]
pub struct Follow {
    /// The owner's epoch: frames of a lower one are dropped (F4).
    pub epoch: Epoch,
    /// The owner's incarnation.
    pub incarnation: Incarnation,
    /// The history that seqs belong to.
    pub log: LogId,
    /// Where the stream begins: what is at or below comes from the store (F1).
    pub position: Seq,
    /// The running step's text, for those who join in the middle of a turn.
    pub snapshot: Option<LiveEvent>,
    /// The stream.
    pub frames: mpsc::Receiver<FollowFrame>,
    /// The way back.
    pub reports: Reports,
}
