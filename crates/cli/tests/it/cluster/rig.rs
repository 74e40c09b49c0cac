//! Nodes of one cluster: started, asked, and ended; and the database behind them.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use conch_cli::client::{Endpoint, HttpClient, Request};
use conch_store::postgres::testing::{Disk, TestDatabase, TestServer};
use serde_json::json;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::node::{Done, Node, conch, free_address, runtime, until};

/// The cluster's secret.
pub(crate) const SECRET: &str = "the nodes of this test share this secret";
/// What all nodes of a test run with.
const SETTINGS: [&str; 4] =
    ["lease.ttl_ms=1500", "lease.beat_ms=500", "lease.margin_ms=300", "fanout.reconnect_jitter_ms=500"];

/// The server of all tests that leave it alone. Synced: a node refuses another one.
pub(crate) fn shared_server() -> &'static TestServer {
    static SHARED: OnceLock<TestServer> = OnceLock::new();
    SHARED.get_or_init(|| TestServer::start(Disk::Synced, &[]))
}

/// The turn of one test. A test that failed hands it on.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where a node lives: its name and its addresses, the same over restarts.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) name: String,
    pub(crate) listen: String,
    pub(crate) operations: String,
    pub(crate) link: String,
    /// Where the others find its link, if that is not where it listens.
    pub(crate) advertised: Option<String>,
    /// The database as this node reaches it.
    pub(crate) store: String,
    /// Settings, as `--set` takes them.
    pub(crate) settings: Vec<String>,
    /// Variables of its environment.
    pub(crate) variables: Vec<(&'static str, String)>,
    /// The binary.
    pub(crate) program: PathBuf,
    /// What the command is started with, such as `ip netns exec NAME`.
    pub(crate) prefix: Vec<String>,
}

/// Some nodes of one cluster.
pub(crate) struct Cluster {
    pub(crate) runtime: Runtime,
    pub(crate) places: Vec<Place>,
    /// By place; `None` while it is away.
    pub(crate) nodes: Vec<Option<Node>>,
    pub(crate) store: String,
    pub(crate) scratch: TempDir,
    _database: Option<TestDatabase<'static>>,
    // Last: the next test begins when all of this is gone.
    _turn: MutexGuard<'static, ()>,
}

impl Drop for Cluster {
    #[expect(clippy::print_stderr, reason = "what the nodes said, where a test failed")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            for place in &self.places {
                let log = std::fs::read_to_string(self.log(&place.name)).unwrap_or_default();
                eprintln!("---- the log of node {}\n{log}", place.name);
            }
        }
    }
}

impl Cluster {
    /// Nodes `a`, `b`, … on a database of their own; none is started.
    pub(crate) fn planned(count: usize) -> Self {
        let turn = turn();
        let database = shared_server().database();
        Self::on(turn, database.url(), Some(database), count)
    }

    /// The same on any database.
    pub(crate) fn planned_on(store: &str, count: usize) -> Self {
        Self::on(turn(), store.to_owned(), None, count)
    }

    fn on(turn: MutexGuard<'static, ()>, store: String, database: Option<TestDatabase<'static>>, count: usize) -> Self {
        let place = |index: usize| Place {
            name: char::from(b'a' + u8::try_from(index).expect("a few")).to_string(),
            listen: free_address(),
            operations: free_address(),
            link: free_address(),
            advertised: None,
            store: store.clone(),
            settings: SETTINGS.map(str::to_owned).to_vec(),
            variables: Vec::new(),
            program: env!("CARGO_BIN_EXE_conch").into(),
            prefix: Vec::new(),
        };
        Self {
            runtime: runtime(),
            places: (0..count).map(place).collect(),
            nodes: (0..count).map(|_| None).collect(),
            scratch: tempfile::tempdir().expect("a directory"),
            store,
            _database: database,
            _turn: turn,
        }
    }

    /// So many nodes, all ready.
    pub(crate) fn started(count: usize) -> Self {
        let mut cluster = Self::planned(count);
        cluster.start_all();
        cluster
    }

    pub(crate) fn start_all(&mut self) {
        // The first one alone: it makes the tables, which several would wait for.
        for index in 0..self.places.len() {
            self.start(index);
        }
    }

    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.scratch.path().join(format!("{name}.log"))
    }

    /// The command of a node.
    fn serve(place: &Place) -> Command {
        let mut arguments = vec!["serve", "--node", &place.name, "--listen", &place.listen];
        arguments.extend(["--ops-listen", &place.operations, "--link-listen", &place.link, "--store", &place.store]);
        if let Some(advertised) = &place.advertised {
            arguments.extend(["--link-advertise", advertised]);
        }
        for setting in &place.settings {
            arguments.extend(["--set", setting]);
        }
        let before = place.prefix.first().map_or(place.program.as_path(), Path::new);
        let mut command = Command::new(before);
        if let Some((_, rest)) = place.prefix.split_first() {
            command.args(rest).arg(&place.program);
        }
        // Without anything of this process's own configuration, and without input.
        let bare = conch(&arguments);
        for (name, _) in bare.get_envs() {
            command.env_remove(name);
        }
        command.args(bare.get_args()).stdin(std::process::Stdio::null());
        command.env("CONCH_AUTH_SECRET", SECRET).envs(place.variables.iter().cloned());
        command
    }

    /// Starts a node at any place, and waits until it is ready.
    pub(crate) fn launch(&self, place: &Place) -> Node {
        let mut node = self.begin(place);
        node.wait_until_ready();
        node
    }

    /// Starts a node at any place.
    pub(crate) fn begin(&self, place: &Place) -> Node {
        Node::launch(Self::serve(place), &place.operations, &self.log(&place.name))
    }

    pub(crate) fn start(&mut self, index: usize) {
        let node = self.launch(&self.places[index]);
        self.nodes[index] = Some(node);
    }

    pub(crate) fn take(&mut self, index: usize) -> Node {
        self.nodes[index].take().expect("it is running")
    }

    /// How a node ended by itself, if it has.
    pub(crate) fn ended(&mut self, index: usize) -> Option<ExitStatus> {
        self.nodes[index].as_mut().expect("it was started").ended()
    }

    pub(crate) fn node(&self, index: usize) -> &Node {
        self.nodes[index].as_ref().expect("it is running")
    }

    /// A command beside the nodes.
    pub(crate) fn run(&self, arguments: &[&str]) -> Done {
        let mut command = conch(arguments);
        command.env("CONCH_AUTH_SECRET", SECRET).env("CONCH_STORE", &self.store).env("USER", "tester");
        Done::of(command.output().expect("the binary starts"))
    }

    /// A token for everything, whose rate is not limited.
    pub(crate) fn token(&self, sub: &str) -> String {
        let can = "read,send,run,create,admin";
        let done = self.run(&["token", "--sub", sub, "--can", can, "--unlimited-rate"]);
        assert_eq!(done.code, 0, "{done:?}");
        done.stdout.trim().to_owned()
    }

    /// A client of one node.
    pub(crate) fn client(&self, index: usize, token: &str) -> HttpClient {
        let url = format!("http://{}", self.places[index].listen);
        HttpClient::new(Endpoint::new(&url, Some(token.to_owned())).expect("a good URL")).expect("starts")
    }

    /// Clients of all nodes.
    pub(crate) fn clients(&self, token: &str) -> Vec<HttpClient> {
        (0..self.places.len()).map(|index| self.client(index, token)).collect()
    }

    pub(crate) fn create(&self, client: &HttpClient, conversation: &str) {
        let create = Request::put(&["v1", "conversations", conversation], json!({"kind": "channel"}));
        self.runtime.block_on(client.attempt(&create)).expect("created");
    }

    /// Rows of a query in the database of the nodes, each one's columns separated by `|`.
    pub(crate) fn rows(&self, sql: &str) -> Vec<String> {
        rows(&self.store, sql)
    }

    /// Which of the places owns a conversation.
    pub(crate) fn owner(&self, conversation: &str) -> Option<usize> {
        let names = self.rows(&format!(
            "SELECT n.node_name FROM conversation v JOIN conv_head h USING (conv_id) JOIN node_lease n ON n.incarnation = h.owner WHERE v.id = '{conversation}'"
        ));
        let name = names.first()?;
        Some(self.places.iter().position(|place| place.name == *name).expect("a node of this cluster"))
    }

    /// Waits until a conversation has an owner.
    pub(crate) fn owned(&self, conversation: &str) -> usize {
        until("an owner", || self.owner(conversation))
    }

    /// Waits until a conversation has another owner than this one, and returns it.
    pub(crate) fn taken_from(&self, conversation: &str, owner: usize) -> usize {
        until("another owner", || self.owner(conversation).filter(|next| *next != owner))
    }

    /// The incarnation that is registered under a name, the newest one last.
    pub(crate) fn incarnations(&self, index: usize) -> Vec<String> {
        let name = &self.places[index].name;
        self.rows(&format!("SELECT incarnation FROM node_lease WHERE node_name = '{name}' ORDER BY expires_at"))
    }
}

/// Rows of a query, each one's columns separated by `|`.
pub(crate) fn rows(database: &str, sql: &str) -> Vec<String> {
    try_rows(database, sql).unwrap_or_else(|problem| panic!("{sql}: {problem}"))
}

/// The same, of a database that may be away.
pub(crate) fn try_rows(database: &str, sql: &str) -> Result<Vec<String>, String> {
    let mut psql = Command::new("psql");
    psql.args(["--no-psqlrc", "--no-align", "--tuples-only", "--set", "ON_ERROR_STOP=1", "--command", sql, database]);
    let output = psql.output().expect("psql comes with PostgreSQL (Debian's package is `postgresql`)");
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    Ok(text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect())
}

/// A file of a test.
pub(crate) fn write(file: &Path, lines: &[String]) {
    std::fs::write(file, lines.join("\n")).expect("written");
}
