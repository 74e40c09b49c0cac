//! How much of a stream may be sent before its follower has taken some.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

#[derive(Debug, Clone, Copy)]
struct Left {
    frames: u64,
    /// Below zero after a frame larger than what was left.
    bytes: i64,
}

/// See the module.
pub(super) struct Credit {
    left: Mutex<Left>,
    given: Notify,
}

impl Credit {
    pub(super) fn new(frames: u32, bytes: u32) -> Self {
        Self { left: Mutex::new(Left { frames: frames.into(), bytes: bytes.into() }), given: Notify::new() }
    }

    /// Two numbers: a poisoned lock is as good as another.
    fn left(&self) -> MutexGuard<'_, Left> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_left(&self) -> bool {
        let left = self.left();
        left.frames > 0 && left.bytes > 0
    }

    /// The follower has taken this much.
    pub(super) fn give(&self, frames: u32, bytes: u32) {
        let mut left = self.left();
        left.frames = left.frames.saturating_add(frames.into());
        left.bytes = left.bytes.saturating_add(bytes.into());
        drop(left);
        self.given.notify_one();
    }

    /// One frame of this many bytes, its length's own four included, was sent.
    pub(super) fn spend(&self, bytes: usize) {
        let mut left = self.left();
        left.frames = left.frames.saturating_sub(1);
        left.bytes = left.bytes.saturating_sub(i64::try_from(bytes.saturating_sub(4)).unwrap_or(i64::MAX));
    }

    /// Until one frame may be sent; `waits` is called where that is not now. For one waiter at a time.
    pub(super) async fn wait(&self, waits: impl FnOnce()) {
        if self.is_left() {
            return;
        }
        waits();
        while !self.is_left() {
            self.given.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn frames_and_bytes_both_count() {
        let credit = Credit::new(2, 10);
        let ready = || credit.wait(|| {}).now_or_never().is_some();
        assert!(ready());
        credit.spend(4 + 9);
        assert!(ready(), "a byte and a frame are left");
        credit.spend(4 + 100);
        assert!(!ready());
        credit.give(1, 50);
        assert!(!ready(), "the large frame is not paid yet");
        credit.give(1, 50);
        assert!(ready());
        credit.spend(4);
        credit.spend(4);
        assert!(!ready(), "no frame is left");
    }
}
