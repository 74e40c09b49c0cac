//! A real etcd cluster of three for tests: on loopback or where a test places it, in a temporary directory, gone with the
//! test process.
//!
//! Invariants: the members end when the process that started them does, however that ends: their supervisor watches a
//! pipe that only this process holds. Only processes that were started here are stopped, each by its id.
//!
//! Deliberately absent: installing anything. `./test` does that.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// Members of a cluster.
pub const MEMBERS: usize = 3;

/// The supervisor: starts a member, tells its process id, waits for the end of its input, ends it. A line ends the member at
/// once as a crash does; another one starts it again.
const SUPERVISOR: &str = r#"
log=$1; shift
start() { "$@" >>"$log" 2>&1 </dev/null & member=$!; echo "$member"; }
start "$@"
while IFS= read -r line; do
  case $line in
    kill) kill -KILL "$member" 2>/dev/null; wait "$member" 2>/dev/null; echo ended ;;
    start) start "$@" ;;
  esac
done
kill -KILL "$member" 2>/dev/null
wait "$member" 2>/dev/null
"#;

/// Where a member lives.
#[derive(Debug, Clone)]
pub struct Place {
    /// Address for clients, as `host:port`.
    pub client: String,
    /// Address for the other members.
    pub peer: String,
    /// What its command is started with, such as `ip netns exec NAME`; it must become the member's process.
    pub prefix: Vec<String>,
}

struct Member {
    client: SocketAddr,
    supervisor: Mutex<Supervisor>,
}

struct Supervisor {
    child: Child,
    /// Its end is the member's.
    orders: ChildStdin,
    answers: BufReader<std::process::ChildStdout>,
    process: u32,
}

impl Supervisor {
    fn order(&mut self, order: &str) -> String {
        writeln!(self.orders, "{order}").expect("the supervisor reads");
        self.answer()
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("the supervisor answers");
        line.trim().to_owned()
    }
}

/// A cluster of a test binary, or of one test.
pub struct TestCluster {
    members: Vec<Member>,
    directory: PathBuf,
}

impl TestCluster {
    /// The cluster that all tests of this binary share. No test may stop its members.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<TestCluster> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    /// Makes and starts a cluster of its own on loopback, and waits for its quorum.
    ///
    /// # Panics
    /// As [`TestCluster::start_at`].
    #[must_use]
    pub fn start() -> Self {
        // Found first, because each member is told of all; whoever takes one meanwhile is an error at the start.
        let held: Vec<TcpListener> =
            (0..2 * MEMBERS).map(|_| TcpListener::bind("127.0.0.1:0").expect("loopback has free ports")).collect();
        let address = |index: usize| held[index].local_addr().expect("it is bound").to_string();
        let place = |number| Place { client: address(number), peer: address(MEMBERS + number), prefix: Vec::new() };
        let places = std::array::from_fn(place);
        drop(held);
        Self::start_at(&places)
    }

    /// Makes and starts a cluster with its members at these places, and waits for its quorum.
    ///
    /// # Panics
    /// If etcd is not installed, or does not start; the message says what to do.
    #[must_use]
    pub fn start_at(places: &[Place; MEMBERS]) -> Self {
        let program = program();
        let directory = tempfile::Builder::new().prefix("conch-etcd.").tempdir().expect("a directory is made").keep();
        let all: Vec<String> =
            places.iter().enumerate().map(|(number, place)| format!("m{number}=http://{}", place.peer)).collect();
        let token = directory.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let start = |(number, place): (usize, &Place)| {
            let (client, peer) = (format!("http://{}", place.client), format!("http://{}", place.peer));
            let mut supervisor = Command::new("/bin/sh");
            supervisor.arg("-c").arg(SUPERVISOR).arg("supervisor").arg(directory.join(format!("log{number}")));
            supervisor.args(&place.prefix).arg(&program).arg("--name").arg(format!("m{number}"));
            supervisor.arg("--data-dir").arg(directory.join(format!("data{number}")));
            supervisor.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
            supervisor.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
            supervisor.args(["--initial-cluster", &all.join(","), "--initial-cluster-token", &token]);
            // A group of its own: an interrupt of the terminal ends the tests first, and those end it.
            supervisor.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
            let mut child = supervisor.spawn().expect("/bin/sh runs");
            let orders = child.stdin.take().expect("its input is a pipe");
            let answers = BufReader::new(child.stdout.take().expect("its output is a pipe"));
            let mut supervisor = Supervisor { child, orders, answers, process: 0 };
            supervisor.process = supervisor.answer().parse().expect("the member's process id");
            let client = place.client.parse().expect("an address and a port");
            Member { client, supervisor: Mutex::new(supervisor) }
        };
        let cluster = Self { members: places.iter().enumerate().map(start).collect(), directory };
        cluster.wait_for_quorum();
        cluster
    }

    /// The URL of all members.
    #[must_use]
    pub fn url(&self) -> String {
        let places: Vec<String> = (0..MEMBERS).map(|number| self.place(number)).collect();
        format!("etcd://{}", places.join(","))
    }

    /// A member's address for clients.
    #[must_use]
    pub fn place(&self, number: usize) -> String {
        self.members[number].client.to_string()
    }

    /// Which member leads.
    ///
    /// # Panics
    /// If none does.
    #[must_use]
    pub fn leader(&self) -> usize {
        let leads = |number: &usize| {
            self.status(*number).is_some_and(|status| {
                let id = &status["header"]["member_id"];
                id.is_string() && *id == status["leader"]
            })
        };
        (0..MEMBERS).find(leads).expect("one member leads")
    }

    /// Stops a member as it is, until it is continued.
    pub fn pause(&self, number: usize) {
        self.signal(number, "STOP");
    }

    /// Lets a stopped member go on.
    pub fn resume(&self, number: usize) {
        self.signal(number, "CONT");
    }

    /// Ends a member as a crash does.
    pub fn kill(&self, number: usize) {
        self.supervisor(number).order("kill");
    }

    /// Starts a member that was killed.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart(&self, number: usize) {
        let mut supervisor = self.supervisor(number);
        supervisor.process = supervisor.order("start").parse().expect("the member's process id");
    }

    fn supervisor(&self, number: usize) -> std::sync::MutexGuard<'_, Supervisor> {
        self.members[number].supervisor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn signal(&self, number: usize, signal: &str) {
        let process = self.supervisor(number).process.to_string();
        let sent = Command::new("/bin/kill").args(["-s", signal, &process]).status();
        assert!(sent.is_ok_and(|status| status.success()), "member {number} is there");
    }

    /// Waits until every member knows a leader.
    ///
    /// # Panics
    /// With the members' last words, if that takes too long.
    pub fn wait_for_quorum(&self) {
        const TRIES: u32 = 600;
        for _ in 0..TRIES {
            let led = |number| {
                self.status(number).is_some_and(|status| status["leader"].is_string() && status["leader"] != "0")
            };
            if (0..MEMBERS).all(led) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let log = |number| std::fs::read_to_string(self.directory.join(format!("log{number}"))).unwrap_or_default();
        let logs: Vec<String> = (0..MEMBERS).map(log).collect();
        panic!("the etcd cluster did not start: {}", logs.join("\n"));
    }

    /// One blocking request, so that no runtime is needed.
    fn status(&self, number: usize) -> Option<serde_json::Value> {
        use std::io::Read;
        let address = &self.members[number].client;
        let mut stream = std::net::TcpStream::connect_timeout(address, Duration::from_secs(1)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
        let request =
            "POST /v3/maintenance/status HTTP/1.1\r\nhost: m\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}";
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (_, body) = answer.split_once("\r\n\r\n")?;
        serde_json::from_str(body).ok()
    }
}

impl Drop for TestCluster {
    fn drop(&mut self) {
        for number in 0..self.members.len() {
            let mut supervisor = self.supervisor(number);
            supervisor.order("kill");
            let _ = supervisor.child.kill();
            let _ = supervisor.child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

impl std::fmt::Debug for TestCluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TestCluster({})", self.url())
    }
}

/// Where `etcd` is.
fn program() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found =
        std::env::split_paths(&path).map(|folder| folder.join("etcd")).find(|file: &PathBuf| Path::is_file(file));
    found.expect(
        "these tests start etcd, and none is installed: Debian's package is `etcd-server` (`./test store` installs it); looked \
         along PATH",
    )
}
