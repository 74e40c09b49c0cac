//! What waits to be written to one connection, and the task that writes it.
//!
//! Whatever is ready goes out in one write. Invariant: a frame is whole or absent, and each has a position, so that after a
//! break it is known which frames cannot have left (their position was never taken).

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;

/// Room beyond the limit for what keeps a connection alive or frees memory: pings, credit, ends of streams.
const CONTROL_BYTES: usize = 1024 * 1024;
/// A larger buffer is given back after use.
const KEPT_BYTES: usize = 256 * 1024;

/// Why a frame was not taken. Nothing of it will be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotQueued {
    #[error("the connection's queue is full")]
    Full,
    #[error("the frame has {bytes} bytes; link.frame_bytes allows {limit}")]
    TooLong { bytes: usize, limit: usize },
    #[error("the connection has ended")]
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    /// What is queued is still written, then the connection ends.
    Finishing,
    Ended,
}

struct State {
    bytes: Vec<u8>,
    /// Position of the first byte that was not taken.
    taken: u64,
    phase: Phase,
}

/// See the module.
pub(super) struct Outbox {
    state: Mutex<State>,
    ready: Notify,
    room: Notify,
    queue_bytes: usize,
    frame_bytes: usize,
}

impl Outbox {
    pub(super) fn new(queue_bytes: usize, frame_bytes: usize) -> Self {
        let state = State { bytes: Vec::new(), taken: 0, phase: Phase::Open };
        Self { state: Mutex::new(state), ready: Notify::new(), room: Notify::new(), queue_bytes, frame_bytes }
    }

    /// Frames are encoded by code that does not panic half-way, so a poisoned lock is as good as another.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a frame and says its position, or says why not.
    pub(super) fn push(&self, encode: impl FnOnce(&mut Vec<u8>) -> usize) -> Result<Queued, NotQueued> {
        self.push_below(self.queue_bytes, encode)
    }

    /// Queues a small frame that the connection's life depends on.
    pub(super) fn push_control(&self, encode: impl FnOnce(&mut Vec<u8>) -> usize) -> Result<Queued, NotQueued> {
        self.push_below(self.queue_bytes.saturating_add(CONTROL_BYTES), encode)
    }

    fn push_below(&self, limit: usize, encode: impl FnOnce(&mut Vec<u8>) -> usize) -> Result<Queued, NotQueued> {
        let mut state = self.state();
        if state.phase != Phase::Open {
            return Err(NotQueued::Ended);
        }
        let start = state.bytes.len();
        if start >= limit {
            return Err(NotQueued::Full);
        }
        let bytes = encode(&mut state.bytes);
        if bytes > self.frame_bytes {
            state.bytes.truncate(start);
            return Err(NotQueued::TooLong { bytes, limit: self.frame_bytes });
        }
        let position = state.taken + start as u64;
        drop(state);
        if start == 0 {
            self.ready.notify_one();
        }
        Ok(Queued { position, bytes })
    }

    /// As [`Outbox::push`], waiting for room. Cancel safe: the frame is queued or not.
    pub(super) async fn push_wait(&self, encode: impl Fn(&mut Vec<u8>) -> usize) -> Result<Queued, NotQueued> {
        loop {
            let mut room = std::pin::pin!(self.room.notified());
            // Before the attempt, so that room made in between is not missed.
            room.as_mut().enable();
            match self.push(&encode) {
                Err(NotQueued::Full) => room.await,
                done => return done,
            }
        }
    }

    /// Whatever is queued is still written, then the connection ends; nothing more is queued.
    pub(super) fn finish(&self) {
        let mut state = self.state();
        if state.phase == Phase::Open {
            state.phase = Phase::Finishing;
        }
        drop(state);
        self.wake_all();
    }

    /// Nothing more is written. Frames at or after the position that it answers cannot have left.
    pub(super) fn end(&self) -> u64 {
        let mut state = self.state();
        state.phase = Phase::Ended;
        state.bytes = Vec::new();
        let taken = state.taken;
        drop(state);
        self.wake_all();
        taken
    }

    fn wake_all(&self) {
        self.ready.notify_one();
        self.room.notify_waiters();
    }

    /// What is to be written next; `buffer` is empty and may be used for it.
    fn take(&self, buffer: &mut Vec<u8>) -> Next {
        let mut state = self.state();
        if state.phase == Phase::Ended {
            return Next::End;
        }
        if state.bytes.is_empty() {
            return if state.phase == Phase::Finishing { Next::End } else { Next::Wait };
        }
        std::mem::swap(&mut state.bytes, buffer);
        state.taken += buffer.len() as u64;
        drop(state);
        self.room.notify_waiters();
        Next::Write
    }

    /// Writes until the connection ends, and says why; `stall` is how long the peer may take nothing.
    pub(super) async fn write_to(
        &self,
        mut to: impl AsyncWrite + Unpin,
        stall: Duration,
        written: impl Fn(usize),
    ) -> std::io::Result<()> {
        let mut buffer = Vec::new();
        loop {
            match self.take(&mut buffer) {
                Next::Wait => self.ready.notified().await,
                Next::End => return tokio::time::timeout(stall, to.shutdown()).await?,
                Next::Write => {
                    let mut left = &buffer[..];
                    while !left.is_empty() {
                        let count = tokio::time::timeout(stall, to.write(left)).await??;
                        if count == 0 {
                            return Err(std::io::ErrorKind::WriteZero.into());
                        }
                        written(count);
                        left = &left[count..];
                    }
                    tokio::time::timeout(stall, to.flush()).await??;
                    buffer.clear();
                    if buffer.capacity() > KEPT_BYTES {
                        buffer = Vec::new();
                    }
                }
            }
        }
    }
}

enum Next {
    Write,
    Wait,
    End,
}

/// A frame that was queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Queued {
    pub(super) position: u64,
    pub(super) bytes: usize,
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn bytes(count: usize) -> impl Fn(&mut Vec<u8>) -> usize {
        move |out| {
            out.extend(std::iter::repeat_n(7, count));
            count
        }
    }

    #[test]
    fn what_does_not_fit_waits_for_what_was_taken() {
        let outbox = Outbox::new(10, 8);
        assert_eq!(outbox.push(bytes(8)), Ok(Queued { position: 0, bytes: 8 }));
        assert_eq!(outbox.push(bytes(8)), Ok(Queued { position: 8, bytes: 8 }), "one may exceed the limit");
        assert_eq!(outbox.push(bytes(1)), Err(NotQueued::Full));
        assert_eq!(outbox.push_control(bytes(1)), Ok(Queued { position: 16, bytes: 1 }));
        let mut waiting = Box::pin(outbox.push_wait(bytes(2)));
        assert_eq!(waiting.as_mut().now_or_never(), None);
        let mut taken = Vec::new();
        assert!(matches!(outbox.take(&mut taken), Next::Write));
        assert_eq!(taken.len(), 17);
        assert_eq!(waiting.now_or_never(), Some(Ok(Queued { position: 17, bytes: 2 })));
        assert_eq!(outbox.end(), 17, "the last one cannot have left");
        assert_eq!(outbox.push(bytes(1)), Err(NotQueued::Ended));
    }

    #[test]
    fn a_frame_over_the_limit_leaves_nothing_behind() {
        let outbox = Outbox::new(10, 8);
        assert_eq!(outbox.push(bytes(9)), Err(NotQueued::TooLong { bytes: 9, limit: 8 }));
        assert_eq!(outbox.push(bytes(1)), Ok(Queued { position: 0, bytes: 1 }));
    }

    #[tokio::test]
    async fn what_was_queued_is_written_before_the_end() {
        let outbox = Outbox::new(10, 8);
        outbox.push(bytes(3)).expect("room");
        outbox.finish();
        assert_eq!(outbox.push(bytes(1)), Err(NotQueued::Ended));
        let mut out = Vec::new();
        outbox.write_to(&mut out, Duration::from_secs(1), |_| {}).await.expect("a Vec takes all");
        assert_eq!(out, [7, 7, 7]);
    }
}
