//! [`Link`] over TCP: one connection to each peer that is asked, made on demand and shared by all who ask.
//!
//! Invariants: one dial to a peer at a time, and after a failed one none before its back-off; what is asked meanwhile fails
//! at once with what failed. A connection that its peer ends at once counts as a failed dial. Whoever answers at an address with another incarnation is asked nothing.
//!
//! Deliberately absent: any retry of a request.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use conch_core::ids::{ConversationId, Incarnation};
use conch_core::refusal::Refusal;
use conch_core::time::Monotonic;
use tokio::sync::oneshot;

use super::dialled::Dialled;
use super::handshake::{NotMet, dial};
use super::settings::LinkSettings;
use super::{Link, LinkError, Notice, Peer, Request, Response};
use crate::metrics::{LinkOutcome, Queue};
use crate::owner::Follow;

/// The shortest back-off after a failed dial, doubled by each further one.
const BACK_OFF_LEAST: Duration = Duration::from_millis(25);
/// The longest.
const BACK_OFF_MOST: Duration = Duration::from_millis(500);
/// Peers that are remembered; those without a connection are forgotten first.
const PEERS_MAX: usize = 4_096;
/// Notices that wait for one connection to be made.
const NOTICES_MAX: usize = 1_024;

type Answer = Result<Arc<Dialled>, LinkError>;

enum State {
    /// Nobody is connected.
    Idle {
        /// Dials that failed in a row.
        failures: u32,
        /// None before this, and with what the last one failed.
        after: Option<(Monotonic, LinkError)>,
    },
    Dialling {
        failures: u32,
        waiting: Vec<oneshot::Sender<Answer>>,
        notices: VecDeque<Notice>,
    },
    Up {
        connection: Arc<Dialled>,
        /// Failures in a row before it.
        failures: u32,
        since: Monotonic,
    },
}

struct Shared {
    settings: Arc<LinkSettings>,
    peers: Mutex<Peers>,
}

#[derive(Default)]
struct Peers {
    by_name: BTreeMap<Peer, State>,
    stopped: bool,
}

/// The other nodes, over TCP. Cheap to clone.
#[derive(Clone)]
pub struct TcpLink(Arc<Shared>);

/// Where a connection to ask is.
enum Found {
    Up(Arc<Dialled>),
    Soon(oneshot::Receiver<Answer>),
}

impl TcpLink {
    /// A link that has no connection yet.
    #[must_use]
    pub fn new(settings: LinkSettings) -> Self {
        Self(Arc::new(Shared { settings: Arc::new(settings), peers: Mutex::default() }))
    }

    /// Says goodbye to all peers; nothing is asked any more. What waits for an answer gets none.
    pub fn stop(&self) {
        let mut peers = self.0.peers();
        peers.stopped = true;
        let states = std::mem::take(&mut peers.by_name);
        drop(peers);
        for state in states.into_values() {
            match state {
                State::Up { connection, .. } => connection.stop(),
                State::Dialling { waiting, .. } => fail(waiting, &stopped()),
                State::Idle { .. } => {}
            }
        }
    }

    /// A connection, within a time in which nothing was asked yet.
    async fn connection(&self, peer: &Peer, within: Duration) -> Answer {
        match self.0.find(peer)? {
            Found::Up(connection) => Ok(connection),
            Found::Soon(answer) => match tokio::time::timeout(within, answer).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(_)) => Err(stopped()),
                Err(_) => Err(LinkError::Unreachable(format!("no connection within {} ms", within.as_millis()))),
            },
        }
    }

    fn counted<T>(&self, result: Result<T, LinkError>) -> Result<T, LinkError> {
        let outcome = match &result {
            Ok(_) => LinkOutcome::Answered,
            Err(LinkError::Ambiguous(_)) => LinkOutcome::Unknown,
            Err(LinkError::Unreachable(_) | LinkError::OtherIncarnation(_)) => LinkOutcome::NotAsked,
        };
        self.0.settings.metrics.link_asked(outcome);
        result
    }
}

fn stopped() -> LinkError {
    LinkError::Unreachable("this node stops".to_owned())
}

fn fail(waiting: Vec<oneshot::Sender<Answer>>, error: &LinkError) {
    for waiting in waiting {
        // Whoever does not wait any more needs no answer.
        let _ = waiting.send(Err(error.clone()));
    }
}

impl Shared {
    /// Nothing in it panics half-way, so a poisoned lock is as good as another.
    fn peers(&self) -> MutexGuard<'_, Peers> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(self: &Arc<Self>, peer: &Peer) -> Result<Found, LinkError> {
        let mut peers = self.peers();
        self.dial_if_needed(&mut peers, peer)?;
        match peers.by_name.get_mut(peer) {
            Some(State::Up { connection, .. }) => Ok(Found::Up(Arc::clone(connection))),
            Some(State::Dialling { waiting, .. }) => {
                if waiting.len() >= self.settings.limits.requests {
                    self.settings.metrics.limit_hit(Queue::LinkRequests);
                    return Err(LinkError::Unreachable("too many requests wait for this peer's connection".to_owned()));
                }
                let (to, answer) = oneshot::channel();
                waiting.push(to);
                Ok(Found::Soon(answer))
            }
            Some(State::Idle { .. }) | None => Err(stopped()),
        }
    }

    /// Afterwards the peer is connected or being dialled, or it is said why not.
    fn dial_if_needed(self: &Arc<Self>, peers: &mut Peers, peer: &Peer) -> Result<(), LinkError> {
        if peers.stopped {
            return Err(stopped());
        }
        let failures = match peers.by_name.get(peer) {
            Some(State::Up { connection, .. }) if connection.is_open() => return Ok(()),
            Some(State::Dialling { .. }) => return Ok(()),
            Some(State::Idle { after: Some((after, error)), .. }) if self.settings.seams.now() < *after => {
                return Err(error.clone());
            }
            Some(State::Idle { failures, .. }) => *failures,
            Some(State::Up { .. }) => 0,
            None => {
                self.make_room(peers)?;
                0
            }
        };
        let state = State::Dialling { failures, waiting: Vec::new(), notices: VecDeque::new() };
        peers.by_name.insert(peer.clone(), state);
        let (this, peer) = (Arc::clone(self), peer.clone());
        self.settings.seams.spawn("link-dial", async move { this.dial(peer).await });
        Ok(())
    }

    /// Forgets peers without a connection, where too many are known.
    fn make_room(&self, peers: &mut Peers) -> Result<(), LinkError> {
        if peers.by_name.len() < PEERS_MAX {
            return Ok(());
        }
        self.settings.metrics.limit_hit(Queue::LinkPeers);
        let now = self.settings.seams.now();
        peers.by_name.retain(|_, state| match state {
            State::Idle { after, .. } => after.as_ref().is_some_and(|(after, _)| now < *after),
            State::Dialling { .. } | State::Up { .. } => true,
        });
        if peers.by_name.len() < PEERS_MAX {
            return Ok(());
        }
        Err(LinkError::Unreachable(format!("more than {PEERS_MAX} peers")))
    }

    async fn dial(self: Arc<Self>, peer: Peer) {
        let limit = self.settings.limits.hello;
        let met = match tokio::time::timeout(limit, dial(&self.settings, &peer.addr)).await {
            Ok(Ok(met)) if met.peer.incarnation == peer.incarnation => Ok(met),
            Ok(Ok(met)) => Err(LinkError::OtherIncarnation(met.peer.incarnation)),
            Ok(Err(error)) => Err(LinkError::Unreachable(error.to_string())),
            Err(_) => Err(LinkError::Unreachable(format!("no greeting within {} ms", limit.as_millis()))),
        };
        let mut peers = self.peers();
        let Some(State::Dialling { failures, waiting, notices }) = peers.by_name.remove(&peer) else {
            return; // Stopped meanwhile; dropping what was met closes it.
        };
        match met {
            Ok(met) => {
                let (this, of) = (Arc::downgrade(&self), peer.clone());
                let connection = Dialled::start(&self.settings, met, move |why| {
                    if let Some(this) = this.upgrade() {
                        this.ended(&of, why);
                    }
                });
                for notice in &notices {
                    connection.tell(notice);
                }
                let since = self.settings.seams.now();
                let up = State::Up { connection: Arc::clone(&connection), failures, since };
                peers.by_name.insert(peer, up);
                drop(peers);
                for waiting in waiting {
                    let _ = waiting.send(Ok(Arc::clone(&connection)));
                }
            }
            Err(error) => {
                // Once for each time that it goes away.
                if failures == 0 {
                    tracing::warn!(incarnation = %peer.incarnation, addr = peer.addr, %error, "a peer was not reached");
                }
                self.settings.metrics.link_dropped.inc_by(notices.len() as u64);
                peers.by_name.insert(peer, self.backing_off(failures, error.clone()));
                drop(peers);
                fail(waiting, &error);
            }
        }
    }

    /// After one more failure.
    fn backing_off(&self, failures: u32, error: LinkError) -> State {
        let wait = BACK_OFF_MOST.min(BACK_OFF_LEAST * 2_u32.saturating_pow(failures.min(16)));
        let after = self.settings.seams.now() + wait / 2 + self.settings.seams.jitter(wait / 2);
        State::Idle { failures: failures.saturating_add(1), after: Some((after, error)) }
    }

    /// A connection is over: the next request dials, unless the peer ended it as soon as it was made, which is a failure like
    /// another.
    fn ended(&self, peer: &Peer, why: &str) {
        let mut peers = self.peers();
        if let Some(state @ State::Up { .. }) = peers.by_name.get_mut(peer)
            && let State::Up { failures, since, .. } = *state
        {
            let lived = self.settings.seams.now().since(since);
            *state = if lived < BACK_OFF_MOST {
                self.backing_off(failures, LinkError::Unreachable(why.to_owned()))
            } else {
                State::Idle { failures: 0, after: None }
            };
        }
    }
}

#[async_trait]
impl Link for TcpLink {
    async fn ask(&self, peer: &Peer, request: Request, within: Duration) -> Result<Response, LinkError> {
        let until = self.0.settings.seams.now() + within;
        let asked = async {
            let connection = self.connection(peer, within).await?;
            connection.ask(request, until.since(self.0.settings.seams.now())).await
        };
        self.counted(asked.await)
    }

    async fn follow(
        &self,
        peer: &Peer,
        conversation: &ConversationId,
        within: Duration,
    ) -> Result<Result<Follow, Refusal>, LinkError> {
        let until = self.0.settings.seams.now() + within;
        let asked = async {
            let connection = self.connection(peer, within).await?;
            connection.follow(conversation, until.since(self.0.settings.seams.now())).await
        };
        self.counted(asked.await)
    }

    async fn who_answers(&self, addr: &str, within: Duration) -> Result<Incarnation, LinkError> {
        match tokio::time::timeout(within, dial(&self.0.settings, addr)).await {
            Ok(Ok(met)) => Ok(met.peer.incarnation),
            // Anything else than a refusal of the machine itself is no evidence of a death.
            Ok(Err(error @ NotMet::Refused(_))) => Err(LinkError::Unreachable(error.to_string())),
            Ok(Err(error)) => Err(LinkError::Ambiguous(error.to_string())),
            Err(_) => Err(LinkError::Ambiguous(format!("{addr}: no greeting within {} ms", within.as_millis()))),
        }
    }

    fn tell(&self, peers: &[Peer], notice: &Notice) {
        let mut known = self.0.peers();
        for peer in peers {
            let found = self.0.dial_if_needed(&mut known, peer).ok().and_then(|()| known.by_name.get_mut(peer));
            match found {
                Some(State::Up { connection, .. }) => connection.tell(notice),
                Some(State::Dialling { notices, .. }) if notices.len() < NOTICES_MAX => {
                    notices.push_back(notice.clone());
                }
                Some(State::Dialling { .. }) => {
                    self.0.settings.metrics.limit_hit(Queue::LinkNotices);
                    self.0.settings.metrics.link_dropped.inc();
                }
                Some(State::Idle { .. }) | None => drop(self.0.settings.metrics.link_dropped.inc()),
            }
        }
    }
}
