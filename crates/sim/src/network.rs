//! The simulated network between nodes: calls, follow streams and notices, with delays, losses, resets and cuts.
//!
//! A request travels in a task of the world, so a caller who gives up does not call it back. A process that runs answers, a
//! killed one refuses, a stopped one lets the caller wait, and so does a cut. What the caller is told is as true as on a
//! real network: [`LinkError::Unreachable`] only where nothing was asked, else [`LinkError::Ambiguous`].
//!
//! Deliberately absent: the bytes. The link's codec has tests of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use conch_core::ids::{ConversationId, Incarnation};
use conch_core::refusal::Refusal;
use conch_server::link::{Link, LinkError, Notice, Peer, Request, Response, Service};
use conch_server::owner::Follow;
use futures_util::future::{BoxFuture, Either, select};
use tokio::sync::{oneshot, watch};

use crate::coverage::Tally;
use crate::dice::Dice;
use crate::executor::Process;
use crate::shared::{Shared, lock, shared};

mod streams;

/// Time of one way there and back, of a greeting.
const ROUND_TRIP: Duration = Duration::from_millis(1);
/// Longest way of a message, by weather.
const CALM_DELAY: Duration = Duration::from_millis(2);
const ROUGH_DELAY: Duration = Duration::from_millis(300);
/// Longest time by which a request comes late, and by which a call without an answer is given up: past a whole lease of the
/// simulation.
const LATE: Duration = Duration::from_secs(3);

/// How bad the ways between nodes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sea {
    /// Everything arrives within milliseconds.
    Calm,
    /// One call in five fails in some way, streams break, the others are slow.
    Rough,
}

/// All addresses and the ways between them; clones are the same network.
#[derive(Clone)]
pub struct Network {
    world: Process,
    tally: Tally,
    state: Shared<State>,
}

struct State {
    dice: Dice,
    sea: Sea,
    listening: BTreeMap<String, Listener>,
    cut: BTreeSet<String>,
    /// From, to: nothing gets through in this direction.
    one_way: BTreeSet<(String, String)>,
    refusing: BTreeSet<String>,
    /// By the pair of addresses, the lower one first: changed when what is between them is reset.
    resets: BTreeMap<(String, String), watch::Sender<u64>>,
}

#[derive(Clone)]
struct Listener {
    me: Incarnation,
    process: Process,
    service: Option<Arc<dyn Service>>,
}

/// What becomes of a call.
struct Fate {
    there: Duration,
    back: Duration,
    request: Journey,
    reply: Journey,
}

/// What becomes of one message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Journey {
    Arrives,
    /// Nobody learns of it.
    Lost,
    /// It is lost, and the sender learns that at once.
    Reset,
}

/// What is at an address, for one who asks from another.
enum Found {
    Answer(Listener),
    Refusal,
    Silence,
}

impl Network {
    /// A calm network where nobody listens yet.
    #[must_use]
    pub fn new(world: Process, dice: Dice, tally: Tally) -> Self {
        let state = State {
            dice,
            sea: Sea::Calm,
            listening: BTreeMap::new(),
            cut: BTreeSet::new(),
            one_way: BTreeSet::new(),
            refusing: BTreeSet::new(),
            resets: BTreeMap::new(),
        };
        Self { world, tally, state: shared(state) }
    }

    /// A process listens at an address, in place of whoever did. It says who it is; it does nothing for others yet.
    pub fn listen(&self, addr: &str, me: Incarnation, process: Process) {
        lock(&self.state).listening.insert(addr.to_owned(), Listener { me, process, service: None });
    }

    /// From now on the process does things for others, if it still listens there.
    pub fn serve(&self, addr: &str, me: Incarnation, service: Arc<dyn Service>) {
        if let Some(listener) = lock(&self.state).listening.get_mut(addr)
            && listener.me == me
        {
            listener.service = Some(service);
        }
    }

    /// From now on all ways are like this.
    pub fn set_sea(&self, sea: Sea) {
        lock(&self.state).sea = sea;
    }

    /// Nobody reaches this address, nor does anybody there reach others.
    pub fn cut(&self, addr: &str) {
        lock(&self.state).cut.insert(addr.to_owned());
    }

    /// What one address sends to another is lost; the other direction is as it was.
    pub fn cut_one_way(&self, from: &str, to: &str) {
        lock(&self.state).one_way.insert((from.to_owned(), to.to_owned()));
    }

    /// This address refuses, though a process listens there: false evidence.
    pub fn refuse(&self, addr: &str) {
        lock(&self.state).refusing.insert(addr.to_owned());
    }

    /// Undoes [`Network::cut`], [`Network::cut_one_way`] and [`Network::refuse`] of this address.
    pub fn mend(&self, addr: &str) {
        let mut state = lock(&self.state);
        state.cut.remove(addr);
        state.refusing.remove(addr);
        state.one_way.retain(|(from, to)| from != addr && to != addr);
    }

    /// Breaks every call and stream between two addresses. What was begun there goes on.
    pub fn reset(&self, one: &str, other: &str) {
        self.world.note(format_args!("what is between {one} and {other} is reset"));
        let mut state = lock(&self.state);
        if let Some(changed) = state.resets.get_mut(&pair(one, other)) {
            changed.send_modify(|times| *times += 1);
        }
    }

    /// Wakes when what is between two addresses is reset.
    fn resets(&self, one: &str, other: &str) -> watch::Receiver<u64> {
        let mut state = lock(&self.state);
        let mut resets = state.resets.entry(pair(one, other)).or_insert_with(|| watch::Sender::new(0)).subscribe();
        resets.mark_unchanged();
        resets
    }

    fn is_lost(&self, from: &str, to: &str) -> bool {
        let state = lock(&self.state);
        let cut = state.cut.contains(from) || state.cut.contains(to);
        cut || state.one_way.contains(&(from.to_owned(), to.to_owned()))
    }

    fn listener(&self, addr: &str) -> Option<Listener> {
        let state = lock(&self.state);
        let refusing = state.refusing.contains(addr);
        state.listening.get(addr).filter(|listener| listener.process.is_alive() && !refusing).cloned()
    }

    fn at(&self, from: &str, addr: &str) -> Found {
        if self.is_lost(from, addr) || self.is_lost(addr, from) {
            return Found::Silence;
        }
        match self.listener(addr) {
            Some(listener) if listener.process.answers() => Found::Answer(listener),
            Some(_) => Found::Silence,
            None => Found::Refusal,
        }
    }

    fn fate(&self) -> Fate {
        let state = &mut *lock(&self.state);
        let rough = state.sea == Sea::Rough;
        let longest = if rough { ROUGH_DELAY } else { CALM_DELAY };
        let journey = |dice: &mut Dice| match dice.below(20) {
            0 if rough => Journey::Lost,
            1 if rough => Journey::Reset,
            _ => Journey::Arrives,
        };
        let (request, reply) = (journey(&mut state.dice), journey(&mut state.dice));
        let late = rough && state.dice.chance(50);
        let there = state.dice.between(Duration::ZERO, if late { LATE } else { longest });
        Fate { there, back: state.dice.between(Duration::ZERO, longest), request, reply }
    }

    /// The way of one message of a stream: how long, and whether the stream breaks instead.
    fn next_of_a_stream(&self) -> (Duration, bool) {
        let state = &mut *lock(&self.state);
        match state.sea {
            Sea::Calm => (state.dice.between(Duration::ZERO, CALM_DELAY), false),
            Sea::Rough => (state.dice.between(Duration::ZERO, ROUGH_DELAY), state.dice.chance(20)),
        }
    }

    /// Takes a request to its peer and the answer back. Ends without an answer where the caller learns nothing; dropping
    /// `answer` is a reset.
    async fn carry<T: Send + 'static>(
        self,
        way: Way,
        work: impl FnOnce(Listener, Arc<dyn Service>) -> BoxFuture<'static, T> + Send,
        answer: oneshot::Sender<Result<T, LinkError>>,
    ) {
        let Way { from, peer, within } = way;
        let fate = self.fate();
        let mut resets = self.resets(&from, &peer.addr);
        self.world.sleep(fate.there).await;
        if fate.request == Journey::Reset {
            // The connection could not be made: nothing left, and the caller knows.
            return drop(answer.send(Err(LinkError::Unreachable("no connection".to_owned()))));
        }
        if fate.request == Journey::Lost || self.is_lost(&from, &peer.addr) {
            return self.world.sleep(within + LATE).await;
        }
        let refused = match self.listener(&peer.addr) {
            None => LinkError::Unreachable("refused".to_owned()),
            Some(listener) if listener.me != peer.incarnation => LinkError::OtherIncarnation(listener.me),
            Some(Listener { service: None, .. }) => LinkError::Unreachable("not yet".to_owned()),
            Some(listener) => {
                let service = listener.service.clone().expect("the arm above");
                let done = run_within(within, listener, service, work);
                let reset = Box::pin(resets.changed());
                let Either::Left((Ok(value), _)) = select(done, reset).await else { return };
                self.world.sleep(fate.back).await;
                match fate.reply {
                    Journey::Reset => return,
                    Journey::Lost => return self.world.sleep(within + LATE).await,
                    Journey::Arrives if self.is_lost(&peer.addr, &from) => {
                        return self.world.sleep(within + LATE).await;
                    }
                    // A caller who went away needs no answer.
                    Journey::Arrives => return drop(answer.send(Ok(value))),
                }
            }
        };
        self.world.sleep(fate.back).await;
        let _ = answer.send(Err(refused));
    }
}

fn pair(one: &str, other: &str) -> (String, String) {
    let (low, high) = if one <= other { (one, other) } else { (other, one) };
    (low.to_owned(), high.to_owned())
}

/// From where, to whom, and how long the caller waits.
struct Way {
    from: String,
    peer: Peer,
    within: Duration,
}

/// Runs what was asked in the peer's process, for as long as the caller may wait. An error is the end of that process, or
/// of its patience.
fn run_within<T: Send + 'static>(
    within: Duration,
    listener: Listener,
    service: Arc<dyn Service>,
    work: impl FnOnce(Listener, Arc<dyn Service>) -> BoxFuture<'static, T>,
) -> oneshot::Receiver<T> {
    let (done, result) = oneshot::channel();
    let process = listener.process.clone();
    let (work, patience) = (work(listener, service), process.sleep(within));
    process.spawn("link-answer", async move {
        if let Either::Left((value, _)) = select(work, patience).await {
            let _ = done.send(value);
        }
    });
    result
}

/// The network as one process sees it.
pub struct SimulatedLink {
    /// The network.
    pub network: Network,
    /// Who asks.
    pub me: Incarnation,
    /// The own address.
    pub addr: String,
    /// The process, whose clock measures the waiting.
    pub process: Process,
}

impl SimulatedLink {
    async fn call<T: Send + 'static>(
        &self,
        peer: &Peer,
        within: Duration,
        work: impl FnOnce(Listener, Arc<dyn Service>) -> BoxFuture<'static, T> + Send + 'static,
    ) -> Result<T, LinkError> {
        let (answer, answered) = oneshot::channel();
        let way = Way { from: self.addr.clone(), peer: peer.clone(), within };
        self.network.world.spawn("wire", self.network.clone().carry(way, work, answer));
        let result = match select(answered, self.process.sleep(within)).await {
            Either::Left((Ok(result), _)) => result,
            Either::Left((Err(_), _)) => Err(LinkError::Ambiguous("the connection was reset".to_owned())),
            Either::Right(_) => Err(LinkError::Ambiguous("no answer in time".to_owned())),
        };
        self.network.tally.count(|coverage| match &result {
            Err(LinkError::Ambiguous(_)) => coverage.ambiguous_calls += 1,
            Err(_) => coverage.unreached_calls += 1,
            Ok(_) => {}
        });
        result
    }
}

#[async_trait]
impl Link for SimulatedLink {
    async fn ask(&self, peer: &Peer, request: Request, within: Duration) -> Result<Response, LinkError> {
        let from = self.me;
        let work = move |_: Listener, service: Arc<dyn Service>| -> BoxFuture<'static, Response> {
            Box::pin(async move { service.answer(from, request).await })
        };
        self.call(peer, within, work).await
    }

    async fn follow(
        &self,
        peer: &Peer,
        conversation: &ConversationId,
        within: Duration,
    ) -> Result<Result<Follow, Refusal>, LinkError> {
        let (from, conversation) = (self.me, conversation.clone());
        let (network, here, there) = (self.network.clone(), self.addr.clone(), peer.addr.clone());
        let work = move |listener: Listener, service: Arc<dyn Service>| -> BoxFuture<'static, _> {
            Box::pin(async move {
                let follow = service.follow(from, &conversation).await?;
                network.tally.count(|coverage| coverage.forwarded_follows += 1);
                Ok(streams::lay(&network, &listener.process, (there, here), follow))
            })
        };
        self.call(peer, within, work).await
    }

    async fn who_answers(&self, addr: &str, within: Duration) -> Result<Incarnation, LinkError> {
        match self.network.at(&self.addr, addr) {
            Found::Answer(listener) => {
                self.process.sleep(ROUND_TRIP).await;
                Ok(listener.me)
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

    fn tell(&self, peers: &[Peer], notice: &Notice) {
        for peer in peers {
            let (network, from, me) = (self.network.clone(), self.addr.clone(), self.me);
            let (peer, notice, fate) = (peer.clone(), notice.clone(), self.network.fate());
            self.network.world.spawn("notice", async move {
                network.world.sleep(fate.there).await;
                if fate.request != Journey::Arrives || network.is_lost(&from, &peer.addr) {
                    return;
                }
                let Some(listener) = network.listener(&peer.addr) else { return };
                if let Some(service) = listener.service
                    && listener.me == peer.incarnation
                {
                    listener.process.spawn("link-notice", async move { service.notice(me, notice) });
                }
            });
        }
    }
}
