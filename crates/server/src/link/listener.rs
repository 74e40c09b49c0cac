//! The link's listener: accepts peers, within bounds, and serves those who prove that they have the key.
//!
//! Invariant: connections whose other side has not proved itself are bounded in number, time and bytes, and telling them
//! why they are refused is bounded in rate.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use conch_core::limit::TokenBucket;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

use super::Service;
use super::handshake::{Met, NotMet, accept, turn_away};
use super::served::serve;
use super::settings::LinkSettings;
use crate::auth::secret::{Mode, NotLoopback, may_bind};
use crate::metrics::{LinkRefusal, Queue};

/// Pause after a connection could not be accepted, which happens when the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Refusals a second that are explained to the peer and logged; further connections are just closed.
const EXPLAINED_PER_S: u32 = 10;
/// Refusals that are explained at once after a quiet time.
const EXPLAINED_BURST: u32 = 20;

/// Why the link does not listen.
#[derive(Debug, thiserror::Error)]
pub enum LinkListenError {
    /// The address cannot be bound.
    #[error("link_listen ({addr}): {source}")]
    Io {
        /// Which.
        addr: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// Without a configured secret only loopback is bound.
    #[error(transparent)]
    NotLoopback(#[from] NotLoopback),
}

/// A bound listener for peers.
pub struct LinkListener {
    listener: TcpListener,
    addr: SocketAddr,
}

struct Door {
    settings: Arc<LinkSettings>,
    service: Arc<dyn Service>,
    handshakes: Arc<Semaphore>,
    connections: Arc<Semaphore>,
    explained: Mutex<TokenBucket>,
    stop: watch::Receiver<bool>,
}

impl LinkListener {
    /// Binds the address. `mode` says whether a secret is configured: the cluster's, the link's own, or TLS files.
    ///
    /// # Errors
    /// When it cannot or may not be bound.
    pub async fn bind(addr: SocketAddr, mode: Mode) -> Result<Self, LinkListenError> {
        may_bind("link_listen", addr, mode)?;
        let error = |source| LinkListenError::Io { addr, source };
        let listener = TcpListener::bind(addr).await.map_err(error)?;
        let addr = listener.local_addr().map_err(error)?;
        Ok(Self { listener, addr })
    }

    /// Where it listens, with the port that a 0 became.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Serves peers until `stopped` completes; then says goodbye to all, and returns when they are gone.
    pub async fn serve(self, settings: LinkSettings, service: Arc<dyn Service>, stopped: impl Future<Output = ()>) {
        let (stop, stopping) = watch::channel(false);
        let limits = &settings.limits;
        let door = Arc::new(Door {
            handshakes: Arc::new(Semaphore::new(limits.handshakes)),
            connections: Arc::new(Semaphore::new(limits.connections)),
            explained: Mutex::new(TokenBucket::new(EXPLAINED_PER_S, EXPLAINED_BURST)),
            settings: Arc::new(settings),
            service,
            stop: stopping,
        });
        let mut peers = JoinSet::new();
        let mut stopped = std::pin::pin!(stopped);
        loop {
            // All branches are cancel safe.
            let accepted = tokio::select! {
                biased;
                () = &mut stopped => break,
                Some(_) = peers.join_next() => continue,
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, from)) => match door.admit() {
                    Some(permit) => drop(peers.spawn(Arc::clone(&door).enter(stream, from, permit))),
                    None => drop(stream),
                },
                Err(error) => {
                    tracing::warn!(%error, "a link connection was not accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        drop(self.listener);
        stop.send_replace(true);
        while peers.join_next().await.is_some() {}
    }
}

impl Door {
    /// Room for one more that has not proved itself.
    fn admit(&self) -> Option<OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.handshakes).try_acquire_owned().ok();
        if permit.is_none() {
            self.settings.metrics.limit_hit(Queue::LinkHandshakes);
            self.settings.metrics.link_refused(LinkRefusal::Full);
        }
        permit
    }

    /// Counts a refusal, and logs it so often. Whether it is explained to the peer.
    fn refuse(&self, from: SocketAddr, error: &NotMet) -> bool {
        let reason = error.refusal();
        self.settings.metrics.link_refused(reason);
        if reason == LinkRefusal::Ended {
            tracing::debug!(%from, %error, "a peer went away");
            return false;
        }
        let now = self.settings.seams.now();
        let explained = self.explained.lock().unwrap_or_else(PoisonError::into_inner).take(now, 1).is_ok();
        if explained {
            tracing::warn!(%from, %error, "a peer was refused");
        }
        explained
    }

    async fn enter(self: Arc<Self>, stream: TcpStream, from: SocketAddr, permit: OwnedSemaphorePermit) {
        let mut stop = self.stop.clone();
        let limit = self.settings.limits.hello;
        let refused = AtomicBool::new(false);
        let refuse = |error: &NotMet| {
            refused.store(true, Ordering::Relaxed);
            self.refuse(from, error)
        };
        // Neither branch goes on after it has ended.
        let met = tokio::select! {
            biased;
            _ = stop.wait_for(|stopping| *stopping) => return,
            met = tokio::time::timeout(limit, accept(&self.settings, stream, refuse)) => met,
        };
        let met = match met {
            Ok(Some(met)) => met,
            Err(_) if !refused.load(Ordering::Relaxed) => {
                self.settings.metrics.link_refused(LinkRefusal::TimedOut);
                return tracing::debug!(%from, limit_ms = limit.as_millis(), "a peer did not greet in time");
            }
            // One who was refused, and may not have heard why.
            Ok(None) | Err(_) => return,
        };
        drop(permit);
        self.host(met, from, stop).await;
    }

    async fn host(&self, met: Met, from: SocketAddr, stop: watch::Receiver<bool>) {
        let Ok(_place) = Arc::clone(&self.connections).try_acquire_owned() else {
            self.settings.metrics.limit_hit(Queue::LinkConnections);
            self.settings.metrics.link_refused(LinkRefusal::Full);
            let detail = format!("at most {} nodes may connect", self.settings.limits.connections);
            // Bounded in time; a peer that does not listen is left behind.
            let _ = tokio::time::timeout(self.settings.limits.hello, turn_away(met, detail)).await;
            return;
        };
        let (node, incarnation) = (met.peer.node.clone(), met.peer.incarnation);
        let broken = serve(&self.settings, &self.service, met, stop).await;
        tracing::debug!(%from, %node, %incarnation, why = %broken, "a link from a peer ended");
    }
}
