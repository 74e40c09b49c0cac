//! A machine of the simulated cluster: a node's processes, one after the other (or, when one is stopped and replaced under
//! its name, beside each other), and the way from a client to them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use conch_core::death::{DeathWatch, Guard};
use conch_core::heart::Rule;
use conch_core::ids::{ConvRef, Incarnation, NodeName, Region};
use conch_core::lease::LeaseTiming;
use conch_server::cluster::heartbeat::{self, LeaseState};
use conch_server::cluster::membership;
use conch_server::cluster::nodes::Nodes;
use conch_server::events::Events;
use conch_server::hub::{HubLimits, Hubs};
use conch_server::link::Link;
use conch_server::link::notices::Notices;
use conch_server::link::service::NodeService;
use conch_server::metrics::Metrics;
use conch_server::node::{Node, OwnerLimits, Validity};
use conch_server::people::People;
use conch_server::pressure::Pressure;
use conch_server::router::{Parts, Router};
use conch_server::rules::Rules;
use conch_server::turn::agent::TurnAgent;
use conch_server::turn::agents::{AgentConfig, AgentLimits, Agents, DEMO};
use conch_store::faulty::FaultyStore;
use conch_store::{LogStore as _, Store};
use futures_util::future::{Either, select};
use tokio::sync::oneshot;

use crate::asker::Asker;
use crate::coverage::Tally;
use crate::dice::Dice;
use crate::executor::{ClockStart, Executor, Process};
use crate::network::{Network, SimulatedLink};
use crate::outside::{Echo, Outside, Reader, Smith, Walker};
use crate::recorder::Recorder;
use crate::shared::{Shared, lock, shared};
use crate::weather::{Orders, SeededPlan, Weather};

/// Time between two words of the demo agent, in milliseconds.
const PACE_MS: u16 = 20;

/// How a node is configured.
#[derive(Debug, Clone, Copy)]
pub struct NodeLimits {
    /// Of leases.
    pub timing: LeaseTiming,
    /// Of owners.
    pub owner: OwnerLimits,
    /// Of hubs.
    pub hub: HubLimits,
}

/// What proves that a predecessor is dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// A lock that only one process can hold: a starting node removes every other row. There is one node at a time.
    Lock,
    /// The end of its lease, as its peers observe it.
    Lease,
}

/// What is removed from every node, to show that a check catches it.
#[derive(Debug, Clone, Default)]
pub struct Removed {
    /// Guards of the judgement of deaths.
    pub guards: Vec<Guard>,
    /// A rule of the heartbeat.
    pub rule: Option<Rule>,
    /// Rules of routing and following.
    pub routing: Vec<conch_server::rules::Rule>,
    /// Of machines, by name, an agent that they lack.
    pub agents: Vec<(&'static str, &'static str)>,
}

/// A running node.
#[derive(Clone)]
pub struct Running {
    /// Its incarnation.
    pub me: Incarnation,
    /// Its process.
    pub process: Process,
    /// Its router.
    pub router: Router,
    /// Its hubs.
    pub hubs: Hubs,
    /// The store as it reaches it.
    pub store: Arc<dyn Store>,
    /// The node.
    pub node: Arc<Node>,
}

/// What all machines share.
#[derive(Clone)]
pub struct Site {
    /// The executor.
    pub executor: Executor,
    /// The store.
    pub recorder: Recorder,
    /// How nodes are configured.
    pub limits: NodeLimits,
    /// What proves death.
    pub proof: Proof,
    /// The way between nodes.
    pub network: Network,
    /// What is removed from the nodes.
    pub removed: Removed,
    /// What happened.
    pub tally: Tally,
    /// The conversations.
    pub conversations: Vec<ConvRef>,
    /// What went wrong, in sentences.
    pub complaints: Shared<Vec<String>>,
    /// What each process that ever registered counted itself.
    pub metrics: Shared<Vec<Arc<Metrics>>>,
    /// What agents of scenes reach.
    pub outside: Outside,
}

impl Site {
    /// Adds what the nodes counted themselves to what the simulation saw.
    pub fn count_nodes(&self) {
        for metrics in lock(&self.metrics).drain(..) {
            self.tally.count(|coverage| {
                coverage.forwarded_writes += metrics.forwarded.get();
                coverage.adoptions += metrics.adopted.get();
                coverage.rebalanced += metrics.rebalanced.get();
            });
        }
    }
}

/// One machine; clones are the same one.
#[derive(Clone)]
pub struct Machine {
    name: String,
    region: Region,
    site: Site,
    /// The way from this machine to the store.
    pub weather: Shared<Weather>,
    /// What becomes of single calls from this machine to the store.
    pub orders: Shared<Orders>,
    state: Shared<State>,
}

struct State {
    dice: Dice,
    /// The process under the machine's name, dead or alive.
    process: Option<Process>,
    /// Its node, once that has started.
    running: Option<Running>,
    started: u64,
}

impl Machine {
    /// A machine on which nothing runs yet, in a region.
    #[must_use]
    pub fn new(name: &str, region: &str, site: Site, dice: Dice) -> Self {
        let state = State { dice, process: None, running: None, started: 0 };
        let region = region.parse().expect("a region's name");
        Self {
            name: name.to_owned(),
            region,
            site,
            weather: shared(Weather::Calm),
            orders: Shared::default(),
            state: shared(state),
        }
    }

    /// The node, if it has started and its process is alive.
    #[must_use]
    pub fn running(&self) -> Option<Running> {
        lock(&self.state).running.clone().filter(|running| running.process.is_alive())
    }

    /// The process under the machine's name, if it is alive.
    #[must_use]
    pub fn process(&self) -> Option<Process> {
        lock(&self.state).process.clone().filter(Process::is_alive)
    }

    /// Where its node listens for others.
    #[must_use]
    pub fn addr(&self) -> String {
        format!("{}:1", self.name)
    }

    /// Leaves the present process to itself, so that a twin can be started under the same name.
    pub fn disown(&self) {
        let mut state = lock(&self.state);
        state.process = None;
        state.running = None;
    }

    /// Starts a process if there is none. It ends by itself when it cannot register.
    pub fn start(&self) {
        if self.process().is_some() {
            return;
        }
        let (process, plan) = {
            let mut state = lock(&self.state);
            state.started += 1;
            let clock = ClockStart { boot_ns: state.dice.below(1_000_000_000_000), ..ClockStart::default() };
            let process = self.site.executor.process(&format!("{}.{}", self.name, state.started), clock);
            state.process = Some(process.clone());
            state.running = None;
            let seed = state.dice.bits();
            (process, Dice::new(seed, 0))
        };
        let world = self.site.executor.world();
        let (weather, orders) = (self.weather.clone(), self.orders.clone());
        let plan = SeededPlan::new(plan, world.clone(), weather, orders, self.site.tally.clone());
        let late = Arc::new(move |work| world.spawn("late call", work));
        let store: Arc<dyn Store> =
            Arc::new(FaultyStore::new(Arc::new(self.site.recorder.clone()), Arc::new(plan), late));
        let (machine, booting) = (self.clone(), process.clone());
        process.spawn("boot", async move { machine.boot(booting, store).await });
    }

    /// What `serve` does: register, prove the predecessors dead, then serve.
    async fn boot(&self, process: Process, store: Arc<dyn Store>) {
        let limits = self.site.limits;
        let node = Arc::new(Node {
            me: process.seams().incarnation(),
            name: self.name.parse::<NodeName>().expect("a machine's name is a node's name"),
            region: self.region.clone(),
            store: store.clone(),
            seams: process.seams(),
            timing: limits.timing,
            validity: Validity::default(),
            limits: limits.owner,
            metrics: Arc::new(Metrics::default()),
            pressure: Pressure::default(),
            nodes: Nodes::default(),
            events: Events::new(process.seams().clock),
            rules: Rules::without(&self.site.removed.routing),
        });
        lock(&self.site.metrics).push(node.metrics.clone());
        let network = self.site.network.clone();
        network.listen(&self.addr(), node.me, process.clone());
        let started = match self.site.removed.rule {
            None => heartbeat::start(&node, self.addr()).await,
            Some(rule) => heartbeat::start_without(&node, self.addr(), rule).await,
        };
        let expelled = self.site.proof == Proof::Lease || expel_predecessors(&node).await;
        let (Ok(mut lease), true) = (started, expelled) else {
            process.note("cannot start");
            return process.kill();
        };
        let me = node.me;
        let link: Arc<dyn Link> =
            Arc::new(SimulatedLink { network: network.clone(), me, addr: self.addr(), process: process.clone() });
        let people = People::new(node.clone());
        let publishing = (people.clone(), Notices::start(node.clone(), link.clone()));
        let on_published = Arc::new(move |conversation: &_, seq| {
            publishing.0.published(conversation);
            publishing.1.published(conversation, seq);
        });
        let lacks = |agent: &str| self.site.removed.agents.contains(&(self.name.as_str(), agent));
        let parts = Parts { agents: Arc::new(agents(&self.site.outside, lacks)), on_published, link: link.clone() };
        let router = Router::start(node.clone(), parts);
        let hubs = Hubs::new(node.clone(), router.clone(), limits.hub);
        let watch = DeathWatch::without(limits.timing, &self.site.removed.guards);
        process.spawn("membership", membership::run_with(node.clone(), router.clone(), Some(link), watch));
        let service = NodeService { node: node.clone(), router: router.clone(), hubs: hubs.clone(), people };
        network.serve(&self.addr(), me, Arc::new(service));
        self.serve(Running { me, process: process.clone(), router, hubs, store, node });
        while lease.changed().await.is_ok() {
            if *lease.borrow() == LeaseState::Lost {
                self.site.tally.count(|coverage| coverage.lost_leases += 1);
                return process.kill();
            }
        }
    }

    /// Opens the way for clients, unless a twin has taken this process's place meanwhile.
    fn serve(&self, running: Running) {
        let mut state = lock(&self.state);
        if state.process.as_ref().is_some_and(|process| process.is_same(&running.process)) {
            state.running = Some(running);
        }
    }

    /// An orderly restart's beginning: the node's row says that it drains, what it owns is handed to its peers, and all the
    /// while it answers. Turns that run may keep their owner for `patience`.
    pub async fn drain(&self, patience: Duration) {
        let Some(running) = self.running() else { return };
        let Running { me, process, router, store, .. } = running;
        let (done, drained) = oneshot::channel();
        process.spawn("drain", async move {
            // Peers that do not hear of it offer to take more, and are refused.
            drop(store.set_draining(me).await);
            router.drain(patience).await;
            let _ = done.send(());
        });
        // An error is the end of the process.
        let _ = drained.await;
        self.site.tally.count(|coverage| coverage.drains += 1);
    }

    /// Lets the node finish what is under way, release what it owns and take its row away, within `patience`; then ends
    /// the process.
    pub async fn shut_down(&self, patience: Duration) {
        let Some(running) = self.running() else { return };
        lock(&self.state).running = None;
        let before = self.site.tally.coverage();
        let (done, finished) = oneshot::channel();
        let Running { me, process, router, store, .. } = running;
        process.spawn("shut down", async move {
            router.shut_down().await;
            // A row that stays runs out.
            drop(store.deregister(me).await);
            let _ = done.send(());
        });
        let patience = self.site.executor.world().sleep(patience);
        let in_order = matches!(select(finished, patience).await, Either::Left((Ok(()), _)));
        let was_alive = process.is_alive();
        self.site.tally.count(|coverage| coverage.shut_downs += 1);
        process.kill();
        let after = self.site.tally.coverage();
        let undisturbed = after.failed_calls() == before.failed_calls() && after.late_calls == 0;
        if in_order && was_alive && undisturbed {
            self.complain_about_what_it_keeps(me).await;
        }
    }

    /// What a node that is gone still owns must be free to be taken at once.
    async fn complain_about_what_it_keeps(&self, me: Incarnation) {
        for conversation in &self.site.conversations {
            let info = self.site.recorder.conversation(conversation).await;
            let head = info.expect("the memory store does not fail by itself").and_then(|info| info.head);
            if head.is_some_and(|head| head.owner == Some(me) && head.owner_node.is_some()) {
                let complaint = format!("{} is still kept by {} after its shut-down", conversation.id, self.name);
                lock(&self.site.complaints).push(complaint);
            }
        }
    }
}

/// The demo agent at its quickest, and those that scenes need, but for those that it lacks.
fn agents(outside: &Outside, lacks: impl Fn(&str) -> bool) -> Agents {
    let name = |text: &str| text.parse().expect("an agent's name");
    let quick = (AgentConfig::Demo { pace_ms: Some(PACE_MS) }, AgentLimits::default());
    let agents = Agents::from_config(&BTreeMap::from([(name(DEMO), quick)])).expect("a pace within its range");
    let own: [(&str, Arc<dyn TurnAgent>); 5] = [
        ("asker", Arc::new(Asker)),
        ("smith", Arc::new(Smith(outside.clone()))),
        ("reader", Arc::new(Reader(outside.clone()))),
        ("walker", Arc::new(Walker)),
        ("echo", Arc::new(Echo)),
    ];
    let own = own.into_iter().filter(|(own, _)| !lacks(own));
    own.fold(agents, |agents, (own, work)| agents.with(name(own), AgentLimits::default(), work))
}

/// Whoever holds the lock knows that no other process lives.
async fn expel_predecessors(node: &Node) -> bool {
    let Ok(rows) = node.store.nodes().await else { return false };
    for row in rows.iter().filter(|row| row.registration.incarnation != node.me) {
        if node.store.expel(row.registration.incarnation).await.is_err() {
            return false;
        }
    }
    true
}
