//! The cluster under test: nodes of this very binary on a given database, each a process of its own.
//!
//! Invariant: every process is ended by its id when this value is dropped; a stopped one, too.

use std::net::TcpListener;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::bench::server::Scratch;
use crate::client::{Endpoint, HttpClient, Request};
use crate::exit::Failure;

/// How long a node may take to be ready, to end, or to be seen by the others.
const CHANGE_MAX: Duration = Duration::from_secs(90);
/// How often that is asked for.
const POLL: Duration = Duration::from_millis(20);
/// Ports below those that the kernel hands out to clients, so that none of them takes a node's while it restarts.
const PORTS: std::ops::Range<u16> = 10_000..30_000;

/// What cluster is wanted.
pub(super) struct Plan {
    /// The database.
    pub(super) store: String,
    /// An operator's token, whose rate is not limited.
    pub(super) token: String,
    /// The cluster's secret; `None`: the environment's.
    pub(super) secret: Option<String>,
    /// How many nodes.
    pub(super) nodes: usize,
    /// Settings of all of them, as `--set` takes them.
    pub(super) settings: Vec<String>,
}

pub(super) struct Node {
    name: String,
    listen: String,
    operations: String,
    link: String,
    child: Option<Child>,
    /// The way of its clients.
    pub(super) client: HttpClient,
    /// The way of its operators.
    pub(super) ops: HttpClient,
}

pub(super) struct Cluster {
    pub(super) nodes: Vec<Node>,
    plan: Plan,
    scratch: Scratch,
}

impl Cluster {
    /// Starts all nodes, and waits until each sees the others.
    pub(super) async fn start(plan: Plan) -> Result<Self, Failure> {
        let scratch = Scratch::new(&std::env::temp_dir())?;
        let run = uuid::Uuid::now_v7().simple().to_string();
        let mut ports = free_ports();
        let mut nodes = Vec::new();
        for number in 1..=plan.nodes {
            let mut address = || ports.next().ok_or_else(|| Failure::other("no free port on loopback"));
            let (listen, operations, link) = (address()?, address()?, address()?);
            let endpoint = |address: &str| Endpoint::new(&format!("http://{address}"), None).map_err(Failure::other);
            let client = HttpClient::new(endpoint(&listen)?.with_token(&plan.token))?;
            let ops = HttpClient::new(endpoint(&operations)?)?;
            let name = format!("bench-{}-{number}", &run[run.len() - 8..]);
            nodes.push(Node { name, listen, operations, link, child: None, client, ops });
        }
        let mut cluster = Self { nodes, plan, scratch };
        for index in 0..cluster.nodes.len() {
            cluster.spawn(index)?;
        }
        cluster.settled().await?;
        Ok(cluster)
    }

    fn spawn(&mut self, index: usize) -> Result<(), Failure> {
        let node = &mut self.nodes[index];
        let log = std::fs::File::options().create(true).append(true).open(self.scratch.path().join(&node.name))?;
        let mut command = Command::new(std::env::current_exe()?);
        for (name, _) in std::env::vars_os() {
            let name_text = name.to_string_lossy();
            // Configured by these arguments alone, but for the key.
            if name_text.starts_with("CONCH_") && !name_text.starts_with("CONCH_AUTH_") {
                command.env_remove(name);
            }
        }
        command.args(["serve", "--node", &node.name, "--listen", &node.listen, "--ops-listen", &node.operations]);
        // By a variable: a database's URL may hold a password, and arguments are for everybody to see.
        command.args(["--link-listen", &node.link, "--log-level", "warn"]).env("CONCH_STORE", &self.plan.store);
        if let Some(secret) = &self.plan.secret {
            command.env("CONCH_AUTH_SECRET", secret);
        }
        command.args(self.plan.settings.iter().flat_map(|setting| ["--set", setting]));
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().map_err(|error| Failure::other(format!("a node could not be started: {error}")))?;
        node.child = Some(child);
        Ok(())
    }

    /// Starts a node that has ended, and waits until all see each other.
    pub(super) async fn restart(&mut self, index: usize) -> Result<(), Failure> {
        self.spawn(index)?;
        self.settled().await
    }

    /// Waits until every node is ready and sees as many nodes of this run as there are.
    async fn settled(&mut self) -> Result<(), Failure> {
        let begun = Instant::now();
        while begun.elapsed() < CHANGE_MAX {
            let (mut good, all) = (0, self.nodes.len());
            for index in 0..all {
                good += usize::from(self.is_ready(index).await? && self.seen_by(index).await == all);
            }
            if good == all {
                return Ok(());
            }
            tokio::time::sleep(POLL).await;
        }
        Err(Failure::other(format!("the nodes did not see each other within {CHANGE_MAX:?}: {}", self.log_tail())))
    }

    async fn is_ready(&mut self, index: usize) -> Result<bool, Failure> {
        let node = &mut self.nodes[index];
        if let Some(child) = &mut node.child
            && let Some(status) = child.try_wait()?
        {
            let name = node.name.clone();
            return Err(Failure::other(format!("{name} ended ({status}): {}", self.log_tail())));
        }
        Ok(node.ops.text(&Request::get(&["readyz"])).await.is_ok())
    }

    async fn seen_by(&self, index: usize) -> usize {
        let Ok(answer) = self.nodes[index].client.attempt(&Request::get(&["v1", "nodes"])).await else { return 0 };
        let rows = answer.body["nodes"].as_array().map(Vec::as_slice).unwrap_or_default();
        rows.iter().filter(|row| self.nodes.iter().any(|node| row["name"] == node.name.as_str())).count()
    }

    /// The node that owns a conversation, as the store says.
    pub(super) async fn owner(&self, conversation: &str) -> Result<usize, Failure> {
        let answer = self.nodes[0].client.attempt(&Request::get(&["v1", "conversations", conversation])).await?;
        let name = answer.body["owner"]["node"].clone();
        let owner = self.nodes.iter().position(|node| name == Value::String(node.name.clone()));
        owner.ok_or_else(|| Failure::other(format!("{conversation} is owned by {name}, which is not of this bench")))
    }

    /// `host:port` of each node's clients.
    pub(super) fn addresses(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.listen.clone()).collect()
    }

    /// The processes of the nodes that run, each with its place.
    pub(super) fn processes(&self) -> Vec<(usize, u32)> {
        let pid = |(index, node): (usize, &Node)| node.child.as_ref().map(|child| (index, child.id()));
        self.nodes.iter().enumerate().filter_map(pid).collect()
    }

    /// Sends a signal to a node's process.
    pub(super) fn signal(&self, index: usize, signal: Signal) -> Result<(), Failure> {
        let Some(child) = &self.nodes[index].child else { return Ok(()) };
        kill_process(Pid::from_child(child), signal).map_err(|error| Failure::other(error.to_string()))
    }

    /// Waits for the end of a node.
    pub(super) async fn ended(&mut self, index: usize) -> Result<ExitStatus, Failure> {
        let begun = Instant::now();
        let Some(child) = &mut self.nodes[index].child else {
            return Err(Failure::other("the node was not running"));
        };
        while begun.elapsed() < CHANGE_MAX {
            if let Some(status) = child.try_wait()? {
                self.nodes[index].child = None;
                return Ok(status);
            }
            tokio::time::sleep(POLL).await;
        }
        Err(Failure::other(format!("a node did not end within {CHANGE_MAX:?}")))
    }

    fn log_tail(&self) -> String {
        let last = |node: &Node| {
            let text = std::fs::read_to_string(self.scratch.path().join(&node.name)).unwrap_or_default();
            text.lines().last().map(|line| format!("{}: {line}", node.name))
        };
        self.nodes.iter().filter_map(last).collect::<Vec<_>>().join("; ")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in self.nodes.iter_mut().filter_map(|node| node.child.as_mut()) {
            // It may have ended already; then there is nothing to end.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn free_ports() -> impl Iterator<Item = String> {
    let count = PORTS.end - PORTS.start;
    let first = u16::try_from(std::process::id() % u32::from(count)).unwrap_or(0);
    (0..count).filter_map(move |step| {
        let address = format!("127.0.0.1:{}", PORTS.start + (first + step) % count);
        TcpListener::bind(&address).is_ok().then_some(address)
    })
}
