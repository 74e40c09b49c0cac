//! A socket's outgoing side: shared bytes, written straight to the kernel where it takes them, queued within a bound
//! where it does not.
//!
//! A broadcast is written at once by whoever pushes it, if nothing waits before it. Answers wait for the socket's delivery worker,
//! and whatever comes meanwhile leaves with them in one write. Where the kernel takes no more, the connection's task waits until it
//! does.
//!
//! Invariant: bytes leave in the order of the calls, and no more than the bound waits, or half of it and one record; whoever was told
//! that there is room ([`Outbox::room`]) finds it for a record. Frames are shared [`Bytes`]: a
//! queue of a thousand slow sockets holds one copy of what they wait for.
//!
//! Deliberately absent: encoding. What comes in here goes out as it is.

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::{Buf, Bytes};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::delivery::{Worker, Write};
use crate::frame::Class;
use crate::hub::sink::Push;

/// Frames written with one call at most.
const GATHER: usize = 32;

/// See the module's description.
pub(super) struct Outbox {
    stream: Arc<TcpStream>,
    limit_bytes: usize,
    worker: Arc<Worker>,
    queue: Mutex<Queue>,
    /// Wakes the connection's task: the kernel took not all of it, or there is room to be read for again, or the outbox was closed.
    work: Notify,
    /// Wakes those who wait for room.
    room: Notify,
}

/// What a channel's frames go through, until the client leaves the channel. Changes and is looked at under the outbox's lock.
pub(super) struct Gate(AtomicBool);

impl Gate {
    pub(super) fn open() -> Self {
        Self(AtomicBool::new(true))
    }

    fn is_open(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Default)]
struct Queue {
    frames: VecDeque<Bytes>,
    bytes: usize,
    state: State,
    /// What waits is about to be written by the worker.
    is_scheduled: bool,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Open,
    /// Nothing more comes in; what waits is still written.
    Closing,
    /// Nothing more goes out.
    Closed,
}

/// What the connection's task has to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flush {
    /// Nothing waits.
    Empty,
    /// The kernel's buffer is full: wait until the socket is writable.
    Blocked,
    /// Everything was written and the outbox was closed, or the peer is gone: end the connection.
    Done,
}

impl Outbox {
    /// An outbox that lets `limit_bytes` wait, for this worker.
    #[must_use]
    pub(super) fn new(stream: Arc<TcpStream>, limit_bytes: usize, worker: Arc<Worker>) -> Self {
        Self { stream, limit_bytes, worker, queue: Mutex::default(), work: Notify::new(), room: Notify::new() }
    }

    /// The worker that it is pinned to.
    pub(super) fn worker(&self) -> usize {
        self.worker.number
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("no holder of the queue panics")
    }

    /// Sends a frame now, if nothing waits before it; else queues it. Live frames may fill half of the bound. Nothing passes a gate
    /// that is shut.
    pub(super) fn push(&self, gate: &Gate, frame: &Bytes, class: Class) -> Push {
        let mut queue = self.queue();
        if queue.state != State::Open || !gate.is_open() {
            return Push::Closed;
        }
        let mut rest = frame.clone();
        if queue.frames.is_empty() {
            match self.stream.try_write(&rest) {
                Ok(written) if written == rest.len() => return Push::Accepted,
                Ok(written) => rest.advance(written),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => {
                    self.close_now(&mut queue);
                    return Push::Closed;
                }
            }
        }
        let limit = if class == Class::Live { self.limit_bytes / 2 } else { self.limit_bytes };
        // A frame that has begun must go on, whatever its size.
        let begun = rest.len() < frame.len();
        // Who was told that there is room finds it for one record, however large: nobody asks in vain for ever.
        let has_room = class == Class::Durable && queue.bytes <= self.limit_bytes / 2;
        if !begun && !has_room && queue.bytes + rest.len() > limit {
            return Push::Behind;
        }
        if queue.frames.is_empty() {
            // The kernel's buffer is full: the connection's task sees when it is no more.
            self.work.notify_one();
        }
        queue.put(rest);
        Push::Accepted
    }

    /// The same with several frames as one, if they find the room of live ones. What is larger by itself goes in parts.
    pub(super) fn push_joined(&self, gate: &Gate, frames: &Bytes) -> Push {
        if frames.len() > self.limit_bytes / 2 { Push::Behind } else { self.push(gate, frames, Class::Live) }
    }

    /// Shuts a gate: what is pushed through it from now on does not leave, nor what is being pushed behind what is queued next.
    pub(super) fn shut(&self, gate: &Gate) {
        let _queue = self.queue();
        gate.0.store(false, Ordering::Relaxed);
    }

    /// Queues a frame for the worker, which writes several with one call: answers to pushes, which come in bursts. They go
    /// beyond the bound by a little: a socket over it is read no further ([`Outbox::is_over`]).
    pub(super) fn answer(self: &Arc<Self>, frame: Bytes) {
        let mut queue = self.queue();
        if queue.state != State::Open {
            return;
        }
        // Where something waits already, somebody is about to write it.
        let is_first = queue.frames.is_empty();
        queue.put(frame);
        if is_first && !std::mem::replace(&mut queue.is_scheduled, true) {
            drop(queue);
            self.worker.schedule(Arc::clone(self) as Arc<dyn Write>);
        }
    }

    /// Sends a last frame; then the connection ends.
    pub(super) fn finish(&self, frame: Bytes) {
        let mut queue = self.queue();
        if queue.state == State::Open {
            queue.put(frame);
            queue.state = State::Closing;
            self.work.notify_one();
            self.room.notify_waiters();
        }
    }

    /// Ends the connection without another byte.
    pub(super) fn abort(&self) {
        let mut queue = self.queue();
        self.close_now(&mut queue);
    }

    fn close_now(&self, queue: &mut Queue) {
        *queue = Queue { state: State::Closed, ..Queue::default() };
        self.work.notify_one();
        self.room.notify_waiters();
    }

    /// Writes what waits, until it is all gone or the kernel takes no more.
    pub(super) fn flush(&self) -> Flush {
        let mut queue = self.queue();
        let was_over = queue.bytes > self.limit_bytes;
        while !queue.frames.is_empty() {
            let mut slices = [IoSlice::new(&[]); GATHER];
            let gathered =
                queue.frames.iter().zip(&mut slices).map(|(frame, slice)| *slice = IoSlice::new(frame)).count();
            match self.stream.try_write_vectored(&slices[..gathered]) {
                Ok(0) => self.close_now(&mut queue),
                Ok(written) => queue.advance(written),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if queue.bytes <= self.limit_bytes / 2 {
                        self.room.notify_waiters();
                    }
                    return Flush::Blocked;
                }
                Err(_) => self.close_now(&mut queue),
            }
        }
        // Memory of a burst goes back; an idle session holds none.
        queue.frames.shrink_to(0);
        self.room.notify_waiters();
        if was_over {
            // The connection's task reads on; it may wait for nothing else.
            self.work.notify_one();
        }
        if queue.state == State::Open { Flush::Empty } else { Flush::Done }
    }

    /// Whether more waits than the bound: the peer takes less than it asks for, and must not be asked for more.
    pub(super) fn is_over(&self) -> bool {
        self.queue().bytes > self.limit_bytes
    }

    /// Completes when there is something to flush, or no more than the bound waits any more. Cancel safe.
    pub(super) async fn work(&self) {
        self.work.notified().await;
    }

    /// Completes when less than half of the bound waits, or the connection is gone.
    pub(super) async fn room(&self) {
        loop {
            let notified = self.room.notified();
            tokio::pin!(notified);
            // Registered before the look, so that no wake-up falls in between.
            notified.as_mut().enable();
            {
                let queue = self.queue();
                if queue.state != State::Open || queue.bytes <= self.limit_bytes / 2 {
                    return;
                }
            }
            notified.await;
        }
    }
}

impl Write for Outbox {
    fn write(&self) {
        self.queue().is_scheduled = false;
        if self.flush() != Flush::Empty {
            self.work.notify_one();
        }
    }
}

impl Queue {
    fn put(&mut self, frame: Bytes) {
        self.bytes += frame.len();
        self.frames.push_back(frame);
    }

    fn advance(&mut self, mut written: usize) {
        self.bytes -= written;
        while let Some(front) = self.frames.front_mut() {
            if written < front.len() {
                front.advance(written);
                return;
            }
            written -= front.len();
            self.frames.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tokio::net::TcpListener;

    use super::*;

    /// The peer's side, and an outbox that lets so many bytes wait.
    async fn outbox(limit_bytes: usize) -> (TcpStream, Arc<Outbox>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let stream = TcpStream::connect(listener.local_addr().expect("bound")).await.expect("connects");
        let (peer, _) = listener.accept().await.expect("it is there");
        stream.writable().await.expect("it is connected");
        let gateway = crate::testing::gateway(&crate::config::Config::default());
        let worker = Arc::clone(gateway.hubs().workers().pin());
        (peer, Arc::new(Outbox::new(Arc::new(stream), limit_bytes, worker)))
    }

    /// The connection's task saw that too much waits, and waits for the outbox alone: whoever writes all of it wakes it, or the
    /// client is never read again.
    #[tokio::test]
    async fn whoever_writes_what_was_too_much_has_the_client_read_again() {
        let (_peer, outbox) = outbox(1_024).await;
        outbox.answer(Bytes::from_static(&[b'x'; 100]));
        outbox.write();
        assert!(outbox.work().now_or_never().is_none(), "it was read all the time");
        outbox.answer(Bytes::from_static(&[b'x'; 2_000]));
        assert!(outbox.is_over());
        outbox.write();
        assert!(!outbox.is_over());
        assert!(outbox.work().now_or_never().is_some());
    }
}
