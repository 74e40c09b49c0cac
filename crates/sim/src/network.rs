//! The simulated network between nodes: who answers at an address.
//!
//! A process that runs answers, a killed one refuses, a stopped one lets the caller wait, and so does a cut.
//!
//! Deliberately absent: everything else of a link. Nodes of the simulation do not forward.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use async_trait::async_trait;
use conch_core::ids::{ConversationId, Incarnation};
use conch_core::refusal::Refusal;
use conch_server::link::{Link, LinkError, Notice, Peer, Request, Response};
use conch_server::owner::Follow;

use crate::executor::Process;
use crate::shared::{Shared, lock};

/// Time of one way there and back.
const ROUND_TRIP: Duration = Duration::from_millis(1);

/// All addresses; clones are the same network.
#[derive(Clone, Default)]
pub struct Network(Shared<State>);

#[derive(Default)]
struct State {
    listening: BTreeMap<String, (Incarnation, Process)>,
    cut: BTreeSet<String>,
    refusing: BTreeSet<String>,
}

impl Network {
    /// A process listens at an address, in place of whoever did.
    pub fn listen(&self, addr: &str, me: Incarnation, process: Process) {
        lock(&self.0).listening.insert(addr.to_owned(), (me, process));
    }

    /// Nobody reaches this address, nor does anybody there reach others.
    pub fn cut(&self, addr: &str) {
        lock(&self.0).cut.insert(addr.to_owned());
    }

    /// This address refuses, though a process listens there: false evidence.
    pub fn refuse(&self, addr: &str) {
        lock(&self.0).refusing.insert(addr.to_owned());
    }

    /// Undoes [`Network::cut`] and [`Network::refuse`].
    pub fn mend(&self, addr: &str) {
        let mut state = lock(&self.0);
        state.cut.remove(addr);
        state.refusing.remove(addr);
    }

    fn at(&self, from: &str, addr: &str) -> Found {
        let state = lock(&self.0);
        if state.cut.contains(from) || state.cut.contains(addr) {
            return Found::Silence;
        }
        match state.listening.get(addr) {
            Some((me, process)) if process.is_alive() && !state.refusing.contains(addr) => {
                if process.answers() {
                    Found::Answer(*me)
                } else {
                    Found::Silence
                }
            }
            _ => Found::Refusal,
        }
    }
}

enum Found {
    Answer(Incarnation),
    Refusal,
    Silence,
}

/// The network as one process sees it.
pub struct SimulatedLink {
    /// The network.
    pub network: Network,
    /// The own address.
    pub addr: String,
    /// The process, whose clock measures the waiting.
    pub process: Process,
}

fn not_simulated() -> LinkError {
    LinkError::Unreachable("nodes of the simulation do not forward".to_owned())
}

#[async_trait]
impl Link for SimulatedLink {
    async fn ask(&self, _peer: &Peer, _request: Request, _within: Duration) -> Result<Response, LinkError> {
        Err(not_simulated())
    }

    async fn follow(
        &self,
        _peer: &Peer,
        _conversation: &ConversationId,
        _within: Duration,
    ) -> Result<Result<Follow, Refusal>, LinkError> {
        Err(not_simulated())
    }

    async fn who_answers(&self, addr: &str, within: Duration) -> Result<Incarnation, LinkError> {
        match self.network.at(&self.addr, addr) {
            Found::Answer(incarnation) => {
                self.process.sleep(ROUND_TRIP).await;
                Ok(incarnation)
            }
            Found::Refusal => {
                self.process.sleep(ROUND_TRIP).await;
                Err(LinkError::Unreachable("refused".to_owned()))
            }
            Found::Silence => {
                self.process.sleep(within).await;
                Err(LinkError::Ambiguous("no answer in time".to_owned()))
            }
        }
    }

    fn tell(&self, _peers: &[Peer], _notice: &Notice) {}
}
