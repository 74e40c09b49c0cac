//! Greeting: both sides say who they are and prove that they have the key, before anything else.
//!
//! Invariant: a frame other than a hello or a proof is not looked at before the proof of its sender was found right, and
//! nothing said before is longer than [`HELLO_MAX_BYTES`]. The dialler proves first: whoever cannot learns who
//! answers, if it names the cluster, and nothing else.
//!
//! Deliberately absent: time. Whoever calls bounds the whole.

use std::io;

use conch_core::wire::link::{DecodeError, Frame, HELLO_MAX_BYTES, Hello, Reason, Side};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::rustls::{self, pki_types::ServerName};

use super::inbox::{Broken, Inbox, ReadHalf};
use super::settings::LinkSettings;
use crate::metrics::LinkRefusal;

/// The other half of a connection.
pub(super) type WriteHalf = Box<dyn AsyncWrite + Send + Unpin>;

/// A connection whose sides know each other.
pub(super) struct Met {
    pub(super) inbox: Inbox,
    pub(super) write: WriteHalf,
    /// What the other side said.
    pub(super) peer: Hello,
}

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotMet {
    /// Nobody listens there; the only evidence that a process is gone.
    #[error("{0}: the connection was refused")]
    Refused(String),
    #[error("{0}")]
    Unresolved(String),
    #[error("TLS: {0}{hint}", hint = without_tls(.0))]
    Tls(io::Error),
    #[error("{0}")]
    Broken(#[from] Broken),
    #[error("the link's secret differs from the peer's")]
    WrongSecret,
    #[error("it belongs to cluster {theirs:?}, this node to {ours:?}")]
    OtherCluster { theirs: String, ours: String },
}

/// What is meant by bytes that are no TLS.
fn without_tls(error: &io::Error) -> &'static str {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match inner {
        Some(rustls::Error::InvalidMessage(_)) => {
            "; the peer seems to speak without TLS: link.tls_cert, link.tls_key and link.tls_ca are for all nodes or for none"
        }
        _ => "",
    }
}

impl From<io::Error> for NotMet {
    fn from(error: io::Error) -> Self {
        Self::Broken(error.into())
    }
}

impl NotMet {
    /// How it is counted.
    pub(super) fn refusal(&self) -> LinkRefusal {
        match self {
            Self::WrongSecret => LinkRefusal::WrongSecret,
            Self::OtherCluster { .. } => LinkRefusal::OtherCluster,
            Self::Broken(Broken::BadFrame(DecodeError::OtherVersion { .. })) => LinkRefusal::OtherVersion,
            Self::Broken(Broken::BadFrame(_) | Broken::Misplaced(_)) => LinkRefusal::BadFrame,
            Self::Tls(_) => LinkRefusal::Tls,
            _ => LinkRefusal::Ended,
        }
    }

    /// What the other side is told, if anything.
    fn goodbye(&self) -> Option<Frame> {
        let reason = match self {
            Self::WrongSecret => Reason::WrongSecret,
            Self::OtherCluster { .. } => Reason::OtherCluster,
            Self::Broken(Broken::BadFrame(DecodeError::OtherVersion { .. } | DecodeError::OtherProtocol)) => {
                Reason::OtherVersion
            }
            Self::Broken(Broken::BadFrame(_) | Broken::Misplaced(_)) => Reason::BadFrame,
            _ => return None,
        };
        let detail = match self {
            // In the words of the one who is refused.
            Self::WrongSecret => "the link's secret differs from the peer's".to_owned(),
            Self::Broken(broken) => broken.to_string(),
            other => other.to_string(),
        };
        Some(Frame::Goodbye { reason, detail })
    }
}

async fn send(to: &mut WriteHalf, frame: &Frame) -> io::Result<()> {
    let mut bytes = Vec::new();
    frame.encode(&mut bytes);
    to.write_all(&bytes).await?;
    to.flush().await
}

async fn hello(inbox: &mut Inbox, ours: &Hello) -> Result<Hello, NotMet> {
    let theirs = match inbox.next().await?.0 {
        Frame::Hello(hello) => hello,
        Frame::Goodbye { reason, detail } => return Err(Broken::Goodbye { reason, detail }.into()),
        _ => return Err(Broken::Misplaced("it must say hello first").into()),
    };
    if theirs.cluster != ours.cluster {
        return Err(NotMet::OtherCluster { theirs: theirs.cluster, ours: ours.cluster.clone() });
    }
    Ok(theirs)
}

async fn proof(inbox: &mut Inbox) -> Result<conch_core::wire::link::Proof, NotMet> {
    match inbox.next().await?.0 {
        Frame::Proof(proof) => Ok(proof),
        Frame::Goodbye { reason, detail } => Err(Broken::Goodbye { reason, detail }.into()),
        _ => Err(Broken::Misplaced("it must prove that it has the key").into()),
    }
}

/// Connects to an address, and the two sides get to know each other.
pub(super) async fn dial(settings: &LinkSettings, addr: &str) -> Result<Met, NotMet> {
    let stream = connect(addr).await?;
    stream.set_nodelay(true)?;
    let (read, mut write) = match &settings.tls {
        None => halves(stream),
        Some(tls) => {
            let host = addr.rsplit_once(':').map_or(addr, |(host, _)| host).trim_matches(['[', ']']);
            let name = ServerName::try_from(host.to_owned())
                .map_err(|error| NotMet::Unresolved(format!("{addr}: {error}")))?;
            halves(tls.connector.connect(name, stream).await.map_err(NotMet::Tls)?)
        }
    };
    let mut inbox = Inbox::new(read, HELLO_MAX_BYTES, settings.metrics.clone());
    let ours = settings.hello();
    let met: Result<Hello, NotMet> = async {
        send(&mut write, &Frame::Hello(ours.clone())).await?;
        let theirs = hello(&mut inbox, &ours).await?;
        send(&mut write, &Frame::Proof(settings.key.prove(Side::Dialler, &ours, &theirs))).await?;
        let proof = proof(&mut inbox).await?;
        if !settings.key.verifies(&proof, Side::Listener, &ours, &theirs) {
            return Err(NotMet::WrongSecret);
        }
        Ok(theirs)
    }
    .await;
    match met {
        Ok(peer) => {
            inbox.limit(settings.limits.frame_bytes);
            Ok(Met { inbox, write, peer })
        }
        Err(error) => {
            if let Some(goodbye) = error.goodbye() {
                part(&goodbye, &mut write).await;
            }
            Err(error)
        }
    }
}

/// Gets to know whoever connected. `refuse` is told of one who does not belong, and says whether that one is told why.
pub(super) async fn accept(
    settings: &LinkSettings,
    stream: TcpStream,
    refuse: impl FnOnce(&NotMet) -> bool,
) -> Option<Met> {
    let (read, mut write) = match accepted(settings, stream).await {
        Ok(halves) => halves,
        Err(error) => {
            refuse(&error);
            return None;
        }
    };
    let mut inbox = Inbox::new(read, HELLO_MAX_BYTES, settings.metrics.clone());
    let ours = settings.hello();
    let met: Result<Hello, NotMet> = async {
        let theirs = hello(&mut inbox, &ours).await?;
        send(&mut write, &Frame::Hello(ours.clone())).await?;
        let proof = proof(&mut inbox).await?;
        if !settings.key.verifies(&proof, Side::Dialler, &theirs, &ours) {
            return Err(NotMet::WrongSecret);
        }
        send(&mut write, &Frame::Proof(settings.key.prove(Side::Listener, &theirs, &ours))).await?;
        Ok(theirs)
    }
    .await;
    match met {
        Ok(peer) => {
            inbox.limit(settings.limits.frame_bytes);
            Some(Met { inbox, write, peer })
        }
        Err(error) => {
            if refuse(&error)
                && let Some(goodbye) = error.goodbye()
            {
                part(&goodbye, &mut write).await;
                inbox.drain().await;
            }
            None
        }
    }
}

async fn accepted(settings: &LinkSettings, stream: TcpStream) -> Result<(ReadHalf, WriteHalf), NotMet> {
    stream.set_nodelay(true)?;
    match &settings.tls {
        None => Ok(halves(stream)),
        Some(tls) => Ok(halves(tls.acceptor.accept(stream).await.map_err(NotMet::Tls)?)),
    }
}

/// Tells one who proved itself that there are too many.
pub(super) async fn turn_away(mut met: Met, detail: String) {
    part(&Frame::Goodbye { reason: Reason::Full, detail }, &mut met.write).await;
    met.inbox.drain().await;
}

/// Says goodbye; whether it arrives does not matter.
async fn part(goodbye: &Frame, write: &mut WriteHalf) {
    let told = send(write, goodbye).await;
    if let Err(error) = told.and(write.shutdown().await) {
        tracing::debug!(%error, "a peer was not told why it is refused");
    }
}

/// The first of the host's addresses that answers. It counts as refused only if all of them refuse.
async fn connect(addr: &str) -> Result<TcpStream, NotMet> {
    let found = lookup_host(addr).await.map_err(|error| NotMet::Unresolved(format!("{addr}: {error}")))?;
    let (mut tried, mut other) = (false, None);
    for addr in found {
        tried = true;
        match TcpStream::connect(addr).await {
            Ok(stream) => return Ok(stream),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(error) => other = Some(error),
        }
    }
    match other {
        Some(error) => Err(error.into()),
        None if tried => Err(NotMet::Refused(addr.to_owned())),
        None => Err(NotMet::Unresolved(format!("{addr}: has no address"))),
    }
}

fn halves<S>(stream: S) -> (ReadHalf, WriteHalf)
where
    S: tokio::io::AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (read, write) = tokio::io::split(stream);
    (Box::new(read), Box::new(write))
}
