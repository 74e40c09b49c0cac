//! Network namespaces, one a node, on a bridge of their own; so that the way between two nodes can be cut and nothing else.
//!
//! Invariant: what is made here has this process's number in its name, and goes when the value is dropped, also in a panic.
//! Deliberately absent: skipping. Without root, or without `ip`, the test fails and says so.

use std::ops::Range;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use super::rig::Cluster;

/// A network of some places: nodes of ours, and behind them whatever else a test puts there; this process is on it too.
pub(crate) struct Network {
    name: String,
    subnet: String,
    nodes: usize,
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
        let network = Self { name: format!("c{}n{number}", process % 1_000_000), subnet, nodes };
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
        self.cut(node, 0..self.nodes);
    }

    pub(crate) fn heal(&self, node: usize) {
        self.mend(node, 0..self.nodes);
    }

    /// The same, from these others alone.
    pub(crate) fn cut(&self, node: usize, others: Range<usize>) {
        self.each_way(node, others, |space, address| must(&format!("-n {space} route add blackhole {address}/32")));
    }

    pub(crate) fn mend(&self, node: usize, others: Range<usize>) {
        self.each_way(node, others, |space, address| must(&format!("-n {space} route del blackhole {address}/32")));
    }

    fn each_way(&self, node: usize, others: Range<usize>, route: impl Fn(&str, &str)) {
        for other in others.filter(|other| *other != node) {
            route(&self.space(node), &self.address(other));
            route(&self.space(other), &self.address(node));
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
