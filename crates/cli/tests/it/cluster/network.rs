//! Network namespaces, one a node, on a bridge of their own; so that the way between two nodes can be cut and nothing else.
//!
//! Invariant: what is made here has this process's number in its name, and goes when the value is dropped, also in a panic.
//! Deliberately absent: skipping. Without root, or without `ip`, the test fails and says so.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use super::rig::Cluster;

/// What of a node's network is cut. The database, which is reached over a Unix socket, stays in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Nothing passes between it and the others.
    Both,
    /// Nothing passes from it to the others.
    Mute,
    /// Nothing passes from the others to it.
    Deaf,
    /// Nothing passes at all, to and from its clients too.
    Cable,
}

#[derive(Clone, Copy)]
enum Change {
    Add,
    Remove,
}

/// A network of some places: nodes of ours, and behind them whatever else a test puts there; this process is on it too.
pub(crate) struct Network {
    name: String,
    subnet: String,
    nodes: usize,
    /// How often the way from one node to another is cut.
    cuts: RefCell<BTreeMap<(usize, usize), u32>>,
}

fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    let output = output.map_err(|error| format!("`ip` cannot be run ({error}); Debian's package is `iproute2`"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("ip {arguments}: {said}(it needs root)")) }
}

fn must(arguments: &str) {
    ip(arguments).unwrap_or_else(|problem| panic!("{problem}"));
}

impl Network {
    /// A namespace for each of so many nodes.
    pub(crate) fn new(nodes: usize) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (process, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        // Of the addresses that are set aside for tests of networks (198.18.0.0/15).
        let subnet = format!("198.18.{}", (process.wrapping_add(number)) % 256);
        let network =
            Self { name: format!("c{}n{number}", process % 1_000_000), subnet, nodes, cuts: RefCell::default() };
        let Self { name, subnet, .. } = &network;
        must(&format!("link add {name} type bridge"));
        must(&format!("address add {subnet}.1/24 dev {name}"));
        must(&format!("link set {name} up"));
        for node in 0..nodes {
            let (space, address) = (network.space(node), network.address(node));
            must(&format!("netns add {space}"));
            must(&format!("link add {name}v{node} type veth peer name eth0 netns {space}"));
            must(&format!("link set {name}v{node} master {name} up"));
            must(&format!("-n {space} address add {address}/24 dev eth0"));
            must(&format!("-n {space} link set eth0 up"));
            must(&format!("-n {space} link set lo up"));
        }
        network
    }

    /// What a command is started with to run at a place, and the place's address.
    pub(crate) fn spot(&self, node: usize) -> (Vec<String>, String) {
        let prefix = ["ip", "netns", "exec", &self.space(node)];
        (prefix.map(str::to_owned).to_vec(), self.address(node))
    }

    fn space(&self, node: usize) -> String {
        format!("{}s{node}", self.name)
    }

    fn address(&self, node: usize) -> String {
        format!("{}.{}", self.subnet, node + 2)
    }

    /// Places the nodes of a cluster, which are not started yet, each in its namespace.
    pub(crate) fn place(&self, cluster: &mut Cluster) {
        for (index, place) in cluster.places.iter_mut().enumerate() {
            let (prefix, address) = self.spot(index);
            (place.listen, place.operations, place.link) =
                (format!("{address}:4000"), format!("{address}:4001"), format!("{address}:4002"));
            place.prefix = prefix;
        }
    }

    /// Cuts a node from all others, in both directions and without a word to either side; clients and database stay.
    pub(crate) fn isolate(&self, node: usize) {
        self.cut(node, Cut::Both);
    }

    pub(crate) fn heal(&self, node: usize) {
        self.mend(node, Cut::Both);
    }

    /// Cuts a node from these others alone, in both directions, until it is mended in the same way.
    pub(crate) fn cut_from(&self, node: usize, others: Range<usize>) {
        self.each_way(node, others, Cut::Both, Change::Add);
    }

    pub(crate) fn mend_from(&self, node: usize, others: Range<usize>) {
        self.each_way(node, others, Cut::Both, Change::Remove);
    }

    /// Cuts a node off, until it is mended in the same way.
    pub(crate) fn cut(&self, node: usize, cut: Cut) {
        self.each_way(node, 0..self.nodes, cut, Change::Add);
        if cut == Cut::Cable {
            must(&format!("link set {}v{node} down", self.name));
        }
    }

    pub(crate) fn mend(&self, node: usize, cut: Cut) {
        self.each_way(node, 0..self.nodes, cut, Change::Remove);
        if cut == Cut::Cable {
            must(&format!("link set {}v{node} up", self.name));
        }
    }

    fn each_way(&self, node: usize, others: Range<usize>, cut: Cut, change: Change) {
        let route = |from: usize, to: usize| {
            let mut cuts = self.cuts.borrow_mut();
            let count = cuts.entry((from, to)).or_default();
            let before = *count;
            let (after, verb) = match change {
                Change::Add => (before + 1, "add"),
                Change::Remove => (before - 1, "del"),
            };
            *count = after;
            // A way that is cut twice is open when both cuts are mended.
            if before == 0 || after == 0 {
                must(&format!("-n {} route {verb} blackhole {}/32", self.space(from), self.address(to)));
            }
        };
        for other in others.filter(|other| *other != node) {
            if matches!(cut, Cut::Both | Cut::Mute) {
                route(node, other);
            }
            if matches!(cut, Cut::Both | Cut::Deaf) {
                route(other, node);
            }
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // What was not made cannot be removed. A namespace takes its end of a pair with it.
        for node in 0..self.nodes {
            let _ = ip(&format!("netns del {}", self.space(node)));
            let _ = ip(&format!("link del {}v{node}", self.name));
        }
        let _ = ip(&format!("link del {}", self.name));
    }
}
