//! A watcher that remembers what it was shown.
//!
//! Invariant: it is never behind, so that nothing is kept from it; bounded, because a canary writes four records.

use std::sync::Arc;
use std::time::Duration;

use conch_core::ids::ClientMsgId;
use conch_core::refusal::Refusal;
use futures_util::future::BoxFuture;
use tokio::sync::watch;

use crate::frame::{Class, Frame};
use crate::hub::Session;
use crate::hub::sink::{FrameSink, Joined, Push, Sink};

/// Frames that are kept; far more than a canary causes.
const FRAMES_MAX: usize = 10_000;

/// Where a hub pushes.
#[derive(Default)]
pub(super) struct Seen(watch::Sender<Vec<String>>);

impl FrameSink for Seen {
    fn push(&self, frame: &Arc<Frame>) -> Push {
        // Only what is durable names a write.
        if frame.class() == Class::Durable {
            self.0.send_if_modified(|frames| {
                let room = frames.len() < FRAMES_MAX;
                if room {
                    frames.push(frame.json().to_owned());
                }
                room
            });
        }
        Push::Accepted
    }

    fn room(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    fn end(&self, _reason: &Refusal) {}
}

impl Sink for Seen {
    fn joined(&self, _joined: &Joined) {}
}

/// A joined watcher; dropping it leaves.
pub(super) struct Watcher {
    pub(super) seen: Arc<Seen>,
    pub(super) _session: Session,
}

impl Watcher {
    /// Whether a write was shown so far.
    pub(super) fn saw(&self, key: &ClientMsgId) -> bool {
        names(&self.seen.0.borrow(), key)
    }

    /// Whether it is shown within this time.
    pub(super) async fn shows(&self, key: &ClientMsgId, within: Duration) -> bool {
        let mut frames = self.seen.0.subscribe();
        let shown = frames.wait_for(|frames| names(frames, key));
        matches!(tokio::time::timeout(within, shown).await, Ok(Ok(_)))
    }
}

fn names(frames: &[String], key: &ClientMsgId) -> bool {
    frames.iter().any(|frame| frame.contains(key.as_str()))
}
