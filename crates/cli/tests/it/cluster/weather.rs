//! Bad weather: what befalls a cluster, drawn from a seed, and how it is mended.
//!
//! A *spell* is one blow, often while another trouble lasts. Each deck of blows has every kind once, in an order of its own, so
//! that a short run meets them all. After a spell everything is mended, and the clients must get on.
//!
//! Deliberately absent: any judgement of what clients saw. The same seed draws the same weather, but real processes do not
//! repeat themselves.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use conch_store::postgres::testing::Stop;
use rustix::process::Signal;
use tempfile::TempDir;

use super::gate::{Gate, Way};
use super::load::Load;
use super::network::{Cut, Network};
use super::pair::Pair;
use super::rig::{Cluster, try_rows};
use crate::node::Node;

/// A lease of the nodes; the beat is a quarter of it.
const LEASE_MS: u64 = 2000;
/// Acks after a spell.
const ACKS: u64 = 20;
/// Twice so many at the end.
const CALM_ACKS: u64 = 60;
/// Within which all nodes must be ready after a spell. Long: they may have to be started while the machine is busy.
const MENDED: Duration = Duration::from_secs(90);
/// A standby lags by no more than what is written in this time.
const LEAD: Duration = Duration::from_secs(5);
/// Between two looks at the nodes.
const LOOK: Duration = Duration::from_millis(50);

/// Numbers drawn from a seed.
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next one, by splitmix64.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, count: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(count).expect("few")).expect("below a usize")
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    fn between_ms(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(least + self.next() % (most - least))
    }

    fn shuffle<T>(&mut self, all: &mut [T]) {
        for last in (1..all.len()).rev() {
            all.swap(last, self.below(last + 1));
        }
    }
}

/// Something that lasts until it is lifted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    Stopped(usize),
    Cut(usize, Cut),
    /// What goes between a node and its database is held, this way.
    Held(usize, Way),
}

impl Trouble {
    fn node(self) -> usize {
        match self {
            Self::Stopped(node) | Self::Cut(node, _) | Self::Held(node, _) => node,
        }
    }
}

/// The kinds of blows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Blow {
    /// kill -9 of one node.
    Kill,
    /// The same of all at once.
    KillAll,
    /// SIGSTOP, SIGCONT.
    Stop,
    /// A cut between nodes, in one or both directions.
    Cut,
    /// A cut between a node and its database, in one direction.
    Hold,
    /// A node's session ends.
    EndSession,
    /// A session's process is killed: the server recovers.
    KillSession,
    RestartDatabase,
    /// The primary dies, and a standby that lags takes its place.
    Promote,
    /// SIGTERM of each node in turn.
    Roll,
    /// SIGTERM of two at once.
    Leave,
}

const ALL: [Blow; 11] = [
    Blow::Kill,
    Blow::KillAll,
    Blow::Stop,
    Blow::Cut,
    Blow::Hold,
    Blow::EndSession,
    Blow::KillSession,
    Blow::RestartDatabase,
    Blow::Promote,
    Blow::Roll,
    Blow::Leave,
];

/// A cluster in bad weather.
pub(crate) struct Weather {
    chance: Chance,
    deck: Vec<Blow>,
    /// How often each befell it.
    pub(crate) befell: BTreeMap<Blow, u64>,
    /// Whether a promotion lost what was acknowledged.
    pub(crate) lost_some: bool,
    /// Nodes that ended by themselves, because they had lost their lease or their database.
    pub(crate) ended: u64,
    begun: Instant,
    pub(crate) load: Option<Load>,
    gates: Vec<[Gate; 2]>,
    _gates: TempDir,
    pub(crate) cluster: Cluster,
    // In this order: nodes end first.
    network: Network,
    pub(crate) pair: Pair,
}

/// A cluster of so many nodes, each in a namespace, with a wire to each server that can be held.
fn place(pair: &Pair, directory: &TempDir, nodes: usize) -> (Cluster, Network, Vec<[Gate; 2]>) {
    let mut cluster = Cluster::planned_on(&Pair::url(pair.seats()), nodes);
    let network = Network::new(nodes);
    network.place(&mut cluster);
    let mut gates = Vec::new();
    for place in &mut cluster.places {
        let [first, second] = [0, 1].map(|seat| {
            let directory = directory.path().join(format!("{}{seat}", place.name));
            std::fs::create_dir(&directory).expect("a directory");
            Gate::before_socket(&pair.seats()[seat], &directory)
        });
        place.store = Pair::url(&[first.1, second.1]);
        place.settings = vec![
            format!("lease.ttl_ms={LEASE_MS}"),
            format!("lease.beat_ms={}", LEASE_MS / 4),
            format!("lease.margin_ms={}", LEASE_MS / 5),
            "fanout.reconnect_jitter_ms=500".to_owned(),
            "limits.route_ms=500".to_owned(),
            "limits.drain_ms=10000".to_owned(),
        ];
        gates.push([first.0, second.0]);
    }
    (cluster, network, gates)
}

impl Weather {
    /// So many nodes, none of which is started, and the weather of this seed.
    pub(crate) fn new(seed: u64, nodes: usize) -> Self {
        let pair = Pair::start();
        let directory = tempfile::tempdir_in("/tmp").expect("a directory");
        let (cluster, network, gates) = place(&pair, &directory, nodes);
        Self {
            chance: Chance::new(seed),
            deck: Vec::new(),
            befell: BTreeMap::new(),
            lost_some: false,
            ended: 0,
            begun: Instant::now(),
            load: None,
            gates,
            _gates: directory,
            cluster,
            network,
            pair,
        }
    }

    fn load(&self) -> &Load {
        self.load.as_ref().expect("it has begun")
    }

    #[expect(clippy::print_stderr, reason = "the timeline, for whoever looks into a failure")]
    fn note(&self, what: &str) {
        eprintln!("{:8.2} s, {} acks: {what}", self.begun.elapsed().as_secs_f64(), self.load().acks());
    }

    /// One spell.
    pub(crate) fn spell(&mut self) {
        if self.deck.is_empty() {
            self.deck = ALL.to_vec();
            self.chance.shuffle(&mut self.deck);
        }
        let blow = self.deck.pop().expect("it was filled");
        *self.befell.entry(blow).or_default() += 1;
        // A rolling restart waits for each node to be well again.
        let beside = (blow != Blow::Roll && self.chance.below(5) < 2).then(|| self.draw_trouble());
        if let Some(trouble) = beside {
            self.begin(trouble);
        }
        self.strike(blow, beside.map(Trouble::node));
        if let Some(trouble) = beside {
            self.lift(trouble);
        }
        self.mend();
        let acks = ACKS + self.chance.next() % ACKS;
        self.load().go_on(acks);
    }

    fn draw_trouble(&mut self) -> Trouble {
        let blow = self.chance.of(&[Blow::Stop, Blow::Cut, Blow::Hold]);
        self.draw(blow)
    }

    fn draw(&mut self, blow: Blow) -> Trouble {
        let node = self.chance.below(self.cluster.places.len());
        match blow {
            Blow::Cut => Trouble::Cut(node, self.chance.of(&[Cut::Both, Cut::Mute, Cut::Deaf, Cut::Cable])),
            Blow::Hold => Trouble::Held(node, self.chance.of(&[Way::There, Way::Back])),
            _ => Trouble::Stopped(node),
        }
    }

    fn begin(&mut self, trouble: Trouble) {
        self.note(&format!("{trouble:?}"));
        match trouble {
            Trouble::Stopped(node) => self.cluster.node(node).signal(Signal::STOP),
            Trouble::Cut(node, cut) => self.network.cut(node, cut),
            Trouble::Held(node, way) => self.gates[node].iter().for_each(|gate| gate.hold(way)),
        }
    }

    fn lift(&mut self, trouble: Trouble) {
        self.note(&format!("{trouble:?} is over"));
        match trouble {
            // It may have been killed.
            Trouble::Stopped(node) => {
                if let Some(node) = &self.cluster.nodes[node] {
                    node.signal(Signal::CONT);
                }
            }
            Trouble::Cut(node, cut) => self.network.mend(node, cut),
            Trouble::Held(node, _) => {
                // What was held arrives late, or never.
                let lost = self.chance.below(2) == 0;
                self.gates[node].iter().for_each(|gate| if lost { gate.cut() } else { gate.let_go() });
            }
        }
    }

    /// Shorter than a lease, or longer.
    fn last(&mut self) {
        let (least, most) = self.chance.of(&[(200, LEASE_MS / 2), (LEASE_MS + 500, 2 * LEASE_MS + 500)]);
        std::thread::sleep(self.chance.between_ms(least, most));
    }

    /// A blow, beside a trouble of this node.
    fn strike(&mut self, blow: Blow, troubled: Option<usize>) {
        self.note(&format!("{blow:?}"));
        match blow {
            Blow::Kill => {
                let node = self.chance.below(self.cluster.places.len());
                self.kill(node);
                self.last();
            }
            Blow::KillAll => (0..self.cluster.places.len()).for_each(|node| self.kill(node)),
            Blow::Stop | Blow::Cut | Blow::Hold => {
                let trouble = self.draw(blow);
                // Two of one kind cannot be told apart when one is lifted.
                if Some(trouble.node()) != troubled {
                    self.begin(trouble);
                    self.last();
                    self.lift(trouble);
                }
            }
            Blow::EndSession => self.pair.end_session(self.chance.next()),
            Blow::KillSession => self.pair.kill_session(self.chance.next()),
            Blow::RestartDatabase => {
                let stop = self.chance.of(&[Stop::Fast, Stop::Immediate]);
                self.pair.restart(stop);
            }
            Blow::Promote => self.promote(),
            Blow::Roll => self.roll(),
            Blow::Leave => {
                let mut nodes: Vec<_> = (0..self.cluster.places.len()).filter(|node| Some(*node) != troubled).collect();
                self.chance.shuffle(&mut nodes);
                self.leave(&nodes[..2]);
            }
        }
    }

    fn kill(&mut self, node: usize) {
        if let Some(node) = self.cluster.nodes[node].take() {
            node.kill();
        }
    }

    fn promote(&mut self) {
        if self.chance.below(4) > 0 {
            // What is acknowledged from here on is the primary's alone.
            self.pair.detach();
            let before = self.load().acks();
            let goal = before + 5 + self.chance.next() % 60;
            let begun = Instant::now();
            // Nobody reaches what a node owns that is cut off from everybody but the database.
            while self.load().acks() < goal && begun.elapsed() < LEAD {
                std::thread::sleep(LOOK);
            }
            self.lost_some |= self.load().acks() > before;
        }
        let log = self.pair.promote();
        self.note(&format!("the log is {log}"));
        self.load().failed_over(log);
        self.pair.replace_standby();
    }

    fn roll(&mut self) {
        for node in 0..self.cluster.places.len() {
            self.leave(&[node]);
            self.mend();
        }
    }

    /// SIGTERM, and the end of each.
    fn leave(&mut self, nodes: &[usize]) {
        let leaving: Vec<Node> = nodes.iter().filter_map(|node| self.cluster.nodes[*node].take()).collect();
        for node in &leaving {
            node.signal(Signal::TERM);
        }
        for node in leaving {
            let status = node.wait();
            self.note(&format!("left with {status}"));
        }
    }

    /// No more bad weather. All conversations are written to, since a failover shows only behind it; a node that has yet to find
    /// out that it lost its lease does so.
    pub(crate) fn calm(&mut self) {
        self.note("peace");
        for _ in 0..2 {
            self.mend();
            self.load().go_on(CALM_ACKS);
        }
    }

    /// Starts what is not running, as a supervisor would, until all are ready and registered.
    fn mend(&mut self) {
        let begun = Instant::now();
        while !self.are_well() {
            assert!(begun.elapsed() < MENDED, "waited {MENDED:?} for all nodes to be ready");
            std::thread::sleep(LOOK);
        }
    }

    fn are_registered(&self) -> bool {
        let names = "SELECT count(DISTINCT node_name) FROM node_lease WHERE expires_at > clock_timestamp()";
        let found = try_rows(&self.pair.primary().url("postgres"), names);
        found.is_ok_and(|found| found == [self.cluster.places.len().to_string()])
    }

    fn are_well(&mut self) -> bool {
        let mut well = self.are_registered();
        for index in 0..self.cluster.places.len() {
            if let Some(status) = self.cluster.nodes[index].as_mut().and_then(Node::ended) {
                self.note(&format!("{} ended with {status}", self.cluster.places[index].name));
                self.cluster.nodes[index] = None;
                self.ended += 1;
            }
            if self.cluster.nodes[index].is_none() {
                self.cluster.nodes[index] = Some(self.cluster.begin(&self.cluster.places[index]));
            }
            well &= self.cluster.node(index).is_ready();
        }
        well
    }
}
