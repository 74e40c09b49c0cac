//! What waits for a stream's client, within a bound.
//!
//! Invariant: no more than the limit waits, or half of it and one item that may not be dropped; an item that may be dropped finds
//! less room than one that may not, so that records always find some, and whoever was told that there is room finds it.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

use tokio::sync::Notify;

use crate::frame::Class;
use crate::hub::sink::Push;

/// Items between a hub that pushes and a response that is read. Pushing never waits.
pub(super) struct Queue<T> {
    limit_bytes: usize,
    state: Mutex<Waiting<T>>,
    filled: Notify,
    room: Notify,
}

struct Waiting<T> {
    items: VecDeque<(T, usize)>,
    bytes: usize,
    closed: bool,
}

impl<T> Queue<T> {
    pub(super) fn new(limit_bytes: usize) -> Self {
        let state = Mutex::new(Waiting { items: VecDeque::new(), bytes: 0, closed: false });
        Self { limit_bytes, state, filled: Notify::new(), room: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, Waiting<T>> {
        self.state.lock().expect("no holder of the queue panics")
    }

    /// Takes an item of so many bytes, or says why not.
    pub(super) fn push(&self, item: T, bytes: usize, class: Class) -> Push {
        let mut state = self.state();
        if state.closed {
            return Push::Closed;
        }
        let limit = if class == Class::Live { self.limit_bytes / 2 } else { self.limit_bytes };
        let has_room = class == Class::Durable && state.bytes <= self.limit_bytes / 2;
        if !state.items.is_empty() && !has_room && state.bytes + bytes > limit {
            return Push::Behind;
        }
        state.bytes += bytes;
        state.items.push_back((item, bytes));
        self.filled.notify_one();
        Push::Accepted
    }

    /// The same with an item of which a part may be dropped and a part may not: as one if it finds the room of the former. One
    /// that is larger by itself goes in parts.
    pub(super) fn push_joined(&self, item: T, bytes: usize) -> Push {
        if bytes > self.limit_bytes / 2 { Push::Behind } else { self.push(item, bytes, Class::Live) }
    }

    /// The next item; `None` when the queue is closed and empty. Cancel safe.
    pub(super) async fn next(&self) -> Option<T> {
        loop {
            {
                let mut state = self.state();
                if let Some((item, bytes)) = state.items.pop_front() {
                    state.bytes -= bytes;
                    if state.bytes <= self.limit_bytes / 2 {
                        self.room.notify_waiters();
                    }
                    return Some(item);
                }
                if state.closed {
                    return None;
                }
            }
            self.filled.notified().await;
        }
    }

    pub(super) fn close(&self) {
        self.state().closed = true;
        self.filled.notify_one();
        self.room.notify_waiters();
    }

    /// Completes when there is room again, or nobody reads any more. Cancel safe.
    pub(super) async fn room(&self) {
        loop {
            let notified = self.room.notified();
            tokio::pin!(notified);
            // Registered before the look, so that no wake-up falls in between.
            notified.as_mut().enable();
            {
                let state = self.state();
                if state.closed || state.bytes <= self.limit_bytes / 2 {
                    return;
                }
            }
            notified.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    /// Whoever waits for room and is told of it must not be refused, or it asks for ever.
    #[test]
    fn where_there_is_room_a_record_of_any_size_finds_it() {
        let queue = Queue::new(1_000);
        assert_eq!(queue.push("a", 400, Class::Durable), Push::Accepted);
        assert!(queue.room().now_or_never().is_some());
        assert_eq!(queue.push("live", 700, Class::Live), Push::Behind);
        assert_eq!(queue.push("b", 5_000, Class::Durable), Push::Accepted);
        assert!(queue.room().now_or_never().is_none());
        assert_eq!(queue.push("c", 1, Class::Durable), Push::Behind);
    }
}
