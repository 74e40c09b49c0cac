//! Heads that hyper cannot read: bytes that are not HTTP, and heads that are larger than it may buffer. hyper has an answer
//! of its own for them, a status line without a document; this module keeps that back and writes what every other refusal
//! gets.
//!
//! How: the stream is lent to hyper ([`Lent`]), which swallows hyper's own answer and gives the stream back when hyper is
//! done with it. Only hyper knows why it gave up, and it says so only then.
//!
//! Deliberately absent: a parser. What is not HTTP is for hyper to say.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::response::IntoResponse;
use conch_core::refusal::{Code, Refusal};
use http_body_util::BodyExt;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::oneshot;

use super::errors::HttpError;

/// hyper's own answer is a head of three lines; none is longer than this.
const BARE_BYTES: usize = 256;
/// How long the last bytes may take to go, and the peer to close.
const LAST: Duration = Duration::from_secs(2);
/// Bytes read at once of what nobody wants.
const UNWANTED_BYTES: usize = 4 * 1024;

/// A stream that comes back when hyper drops it.
pub(super) struct Lent<S> {
    /// There until it is taken out.
    stream: Option<S>,
    swallowed: Swallowed,
    back: Option<oneshot::Sender<(S, Swallowed)>>,
}

/// Whether hyper has given an answer of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Swallowed {
    Nothing,
    BareAnswer,
}

/// Where a stream comes back.
pub(super) struct Back<S>(oneshot::Receiver<(S, Swallowed)>);

impl<S> Back<S> {
    /// The stream, if hyper is done with it and has left an answer to be given.
    pub(super) fn owed(mut self) -> Option<S> {
        self.0.try_recv().ok().filter(|(_, swallowed)| *swallowed == Swallowed::BareAnswer).map(|(stream, _)| stream)
    }
}

impl<S> Lent<S> {
    pub(super) fn new(stream: S) -> (Self, Back<S>) {
        let (back, comes_back) = oneshot::channel();
        (Self { stream: Some(stream), swallowed: Swallowed::Nothing, back: Some(back) }, Back(comes_back))
    }

    /// Keeps the stream: it does not come back.
    pub(super) fn into_inner(mut self) -> S {
        self.back = None;
        self.stream.take().expect("it is taken out once, here or by drop")
    }
}

impl<S> Drop for Lent<S> {
    fn drop(&mut self) {
        if let (Some(back), Some(stream)) = (self.back.take(), self.stream.take()) {
            // Nobody waits for it when the connection's task was ended.
            drop(back.send((stream, self.swallowed)));
        }
    }
}

impl<S: Unpin> Lent<S> {
    fn stream(&mut self) -> Pin<&mut S> {
        Pin::new(self.stream.as_mut().expect("it is taken out at the end only"))
    }
}

/// Where hyper's own answer begins, if these bytes end with it. It is the last that hyper writes on a connection. No
/// answer of the gateway looks like it: a refusal has a document, and no document has such line ends.
fn bare_answer(bytes: &[u8]) -> Option<usize> {
    const BEGIN: &[u8] = b"HTTP/1.";
    if !bytes.ends_with(b"\r\n\r\n") {
        return None;
    }
    let from = bytes.len().saturating_sub(BARE_BYTES);
    let begin = from + bytes[from..].windows(BEGIN.len()).rposition(|window| window == BEGIN)?;
    let head = std::str::from_utf8(&bytes[begin..]).ok()?.to_ascii_lowercase();
    let mut lines = head.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?;
    let (mut is_empty, mut others) = (false, false);
    for line in lines.filter(|line| !line.is_empty()) {
        match line {
            "content-length: 0" => is_empty = true,
            "connection: close" => {}
            line => others |= !line.starts_with("date: "),
        }
    }
    (matches!(status, "400" | "414" | "431") && is_empty && !others).then_some(begin)
}

impl<S: AsyncRead + Unpin> AsyncRead for Lent<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream().poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Lent<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match bare_answer(bytes) {
            None => self.stream().poll_write(context, bytes),
            Some(0) => {
                self.swallowed = Swallowed::BareAnswer;
                Poll::Ready(Ok(bytes.len()))
            }
            // What comes before it is the answer to an earlier request.
            Some(begin) => self.stream().poll_write(context, &bytes[..begin]),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // hyper keeps heads together, in a slice of their own before all bodies.
        match slices.iter().find(|slice| !slice.is_empty()) {
            Some(first) if bare_answer(first).is_some() => self.poll_write(context, first),
            _ => self.stream().poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.as_ref().is_some_and(S::is_write_vectored)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.swallowed {
            Swallowed::Nothing => self.stream().poll_shutdown(context),
            // The answer is still to come.
            Swallowed::BareAnswer => Poll::Ready(Ok(())),
        }
    }
}

/// Why hyper gave up, as the client is told it. `too_large` names the limits.
pub(super) fn refusal(error: &hyper::Error, too_large: Refusal) -> Refusal {
    if error.is_parse_too_large() {
        return too_large;
    }
    Refusal::new(Code::InvalidRequest, format!("request head: {error}"))
}

/// Answers a request that was not read, and ends the connection so that the answer arrives: one that is closed with unread
/// bytes is reset, and the reset takes the answer along.
pub(super) async fn answer<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, refusal: Refusal) -> io::Result<()> {
    let (head, body) = HttpError(refusal).into_response().into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let mut bytes = format!("HTTP/1.1 {}\r\nconnection: close\r\ncontent-length: {}\r\n", head.status, body.len());
    for (name, value) in &head.headers {
        bytes.push_str(&format!("{name}: {}\r\n", value.to_str().map_err(io::Error::other)?));
    }
    bytes.push_str("\r\n");
    let mut bytes = bytes.into_bytes();
    bytes.extend_from_slice(&body);
    let said = async {
        stream.write_all(&bytes).await?;
        stream.shutdown().await?;
        let mut unwanted = vec![0; UNWANTED_BYTES];
        while stream.read(&mut unwanted).await? > 0 {}
        Ok(())
    };
    tokio::time::timeout(LAST, said).await.unwrap_or(Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hypers_own_answer_is_told_from_the_gateways() {
        let bare = "HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\
                    date: Mon, 30 Nov 2026 08:00:00 GMT\r\n\r\n";
        assert_eq!(bare_answer(bare.as_bytes()), Some(0));
        assert_eq!(bare_answer(bare.replace("1.1 431", "1.0 400").as_bytes()), Some(0));
        let earlier = "HTTP/1.1 204 No Content\r\ndate: x\r\n\r\n";
        assert_eq!(bare_answer(format!("{earlier}{bare}").as_bytes()), Some(earlier.len()));
        for other in [
            earlier,
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 12\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            "data: HTTP/1.1 400 Bad Request\n\n",
            "\r\n\r\n",
            "",
        ] {
            assert_eq!(bare_answer(other.as_bytes()), None, "{other}");
        }
    }

    #[tokio::test]
    async fn a_stream_comes_back_to_be_answered_only_after_a_bare_answer() {
        let bare = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        let (ours, mut theirs) = tokio::io::duplex(1024);
        let (mut lent, back) = Lent::new(ours);
        lent.write_all(&[b"first", &bare[..]].concat()).await.expect("there is room");
        lent.shutdown().await.expect("nothing happens");
        drop(lent);
        let mut stream = back.owed().expect("there is an answer to give");
        stream.write_all(b" second").await.expect("it is open");
        drop(stream);
        let mut written = String::new();
        theirs.read_to_string(&mut written).await.expect("it was closed");
        assert_eq!(written, "first second");

        let (lent, back) = Lent::new(tokio::io::duplex(1).0);
        drop(lent);
        assert!(back.owed().is_none());
        let (lent, back) = Lent::new(tokio::io::duplex(1).0);
        drop(lent.into_inner());
        assert!(back.owed().is_none());
    }
}
