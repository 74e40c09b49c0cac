//! A TCP stream that gives up on a peer that takes nothing: HTTP answers and event streams to a client that never reads
//! would otherwise be held for ever, whatever became of the client's token.
//!
//! Deliberately absent: a limit on silence where nothing waits to be written.

use std::future::Future as _;
use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

/// How long bytes may wait without one of them being taken.
pub(super) const STALL: Duration = Duration::from_secs(30);

/// See the module's description.
pub(super) struct Stalling<S = TcpStream> {
    stream: S,
    /// Runs while a write waits; made only then, so that an idle connection holds no timer.
    since: Option<Pin<Box<Sleep>>>,
}

impl<S> Stalling<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, since: None }
    }

    pub(super) fn into_inner(self) -> S {
        self.stream
    }

    /// A write's outcome, or the end of patience.
    fn judge<T>(&mut self, context: &mut Context<'_>, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.since = None;
            return outcome;
        }
        let since = self.since.get_or_insert_with(|| Box::pin(sleep(STALL)));
        ready!(since.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(ErrorKind::TimedOut, "the peer takes no bytes")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stalling<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stalling<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.judge(context, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.judge(context, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_flush(context);
        self.judge(context, outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_shutdown(context);
        self.judge(context, outcome)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_takes_nothing_is_given_up_and_one_that_is_slow_is_not() {
        let (ours, mut theirs) = duplex(8);
        let mut stream = Stalling::new(ours);
        stream.write_all(b"12345678").await.expect("fits");
        let error = stream.write_all(b"9").await.expect_err("nobody reads");
        assert_eq!(error.kind(), ErrorKind::TimedOut);

        let mut stream = Stalling::new(stream.into_inner());
        let slow = tokio::spawn(async move {
            let mut taken = [0; 4];
            for _ in 0..4 {
                tokio::time::sleep(STALL / 2).await;
                theirs.read_exact(&mut taken).await.expect("written");
            }
        });
        stream.write_all(b"abcdefgh").await.expect("each pause is shorter than the limit");
        slow.await.expect("no panic");
    }
}
