//! A real PostgreSQL server for tests: made in a temporary directory, reached over a Unix socket, gone with the test process.
//!
//! Invariants: the server ends when the process that started it does, however that ends: its supervisor watches a pipe
//! that only this process holds. Nothing else is ended, and no port is opened but the loopback one of a test of encryption. What is missing is said by a panic; no test
//! is skipped.
//!
//! Deliberately absent: installing anything. `./test` does that.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError, mpsc};

use tokio_postgres::NoTls;

mod pooler;

pub use pooler::Pooler;

/// The role and the first database of a test server.
const SUPERUSER: &str = "postgres";
/// The name of the socket is made from this; no port is opened.
const SOCKET_NUMBER: u16 = 5432;

/// Whether a test server waits for its disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disk {
    /// fsync=on, as a cluster needs it.
    Synced,
    /// fsync=off, for tests that open the store with [`super::Durability::Unchecked`].
    NotSynced,
}

/// Where a test server listens besides its socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Listening {
    Socket,
    Loopback(u16),
}

impl Listening {
    fn port(self) -> u16 {
        match self {
            Self::Socket => SOCKET_NUMBER,
            Self::Loopback(port) => port,
        }
    }
}

/// How a test server is stopped before it starts anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Sessions end, and everything is written out.
    Fast,
    /// As in a crash: the next start recovers from the log.
    Immediate,
}

/// The supervisor: starts the server, and anew for each line, which names the signal that stops it; waits for the end of its
/// input, stops the server, removes the directory.
const SUPERVISOR: &str = r#"
directory=$1; shift
"$@" >>"$directory/log" 2>&1 </dev/null &
server=$!
while IFS= read -r signal; do
  kill -"$signal" "$server" 2>/dev/null
  wait "$server"
  "$@" >>"$directory/log" 2>&1 </dev/null &
  server=$!
  echo again
done
kill -QUIT "$server" 2>/dev/null
wait "$server"
[ -n "$CONCH_KEEP_TEST_SERVER" ] || rm -rf "$directory"
"#;

/// The user that a server runs as: it refuses to be root.
#[derive(Clone, Copy)]
struct User {
    uid: u32,
    gid: u32,
}

/// A server of a test binary, or of one test.
pub struct TestServer {
    directory: PathBuf,
    programs: PathBuf,
    user: Option<User>,
    supervisor: Mutex<Child>,
    /// Its end is the server's.
    alive: Mutex<ChildStdin>,
    /// A line for each start but the first.
    started: Mutex<BufReader<ChildStdout>>,
    statements: Mutex<mpsc::Sender<Statement>>,
    databases: AtomicU32,
    listening: Listening,
}

struct Statement {
    sql: String,
    done: mpsc::Sender<Result<(), String>>,
}

impl TestServer {
    /// The server that all tests of this binary share, without synced writes.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<TestServer> = OnceLock::new();
        SHARED.get_or_init(|| Self::start(Disk::NotSynced, &[]))
    }

    /// Makes and starts a server of its own, with these settings (`name=value`) besides.
    ///
    /// # Panics
    /// If PostgreSQL is not installed, or does not start; the message says what to do.
    #[must_use]
    pub fn start(disk: Disk, settings: &[&str]) -> Self {
        let (programs, user) = (programs(), server_user());
        let directory = make_directory(user);
        make_data(&directory, &programs, user);
        Self::start_in(directory, programs, user, disk, Listening::Socket, settings)
    }

    /// As [`TestServer::start`], with a loopback port that takes encrypted connections alone, under this certificate.
    ///
    /// # Panics
    /// As [`TestServer::start`], or if the files cannot be copied.
    #[must_use]
    pub fn start_encrypted(disk: Disk, certificate: &Path, key: &Path) -> Self {
        let (programs, user) = (programs(), server_user());
        let directory = make_directory(user);
        let data = make_data(&directory, &programs, user);
        for (from, name) in [(certificate, "server.crt"), (key, "server.key")] {
            let to = data.join(name);
            std::fs::copy(from, &to).expect("the file is copied");
            std::fs::set_permissions(&to, std::fs::Permissions::from_mode(0o600)).expect("it is ours");
            if let Some(User { uid, gid }) = user {
                chown(&to, Some(uid), Some(gid)).expect("root may give it away");
            }
        }
        std::fs::write(data.join("pg_hba.conf"), "local all all trust\nhostssl all all 127.0.0.1/32 trust\n")
            .expect("the access rules are written");
        // The socket's name would have the port in it, so the port is found first; whoever takes it meanwhile is an error.
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let port = free.local_addr().expect("it is bound").port();
        drop(free);
        Self::start_in(directory, programs, user, disk, Listening::Loopback(port), &["ssl=on"])
    }

    /// The loopback port, if it has one.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        match self.listening {
            Listening::Socket => None,
            Listening::Loopback(port) => Some(port),
        }
    }

    /// Copies this server as a standby that follows it, and starts that.
    ///
    /// # Panics
    /// If that fails.
    #[must_use]
    pub fn standby(&self, disk: Disk, settings: &[&str]) -> Self {
        let directory = make_directory(self.user);
        let mut backup = as_user(&self.programs.join("pg_basebackup"), self.user);
        backup.args([
            "--username",
            SUPERUSER,
            "--checkpoint",
            "fast",
            "--wal-method",
            "stream",
            "--write-recovery-conf",
        ]);
        backup.args(["--no-sync", "--port", &self.listening.port().to_string(), "--host"]).arg(&self.directory);
        run(backup.arg("--pgdata").arg(directory.join("data")), "pg_basebackup");
        Self::start_in(directory, self.programs.clone(), self.user, disk, Listening::Socket, settings)
    }

    fn start_in(
        directory: PathBuf,
        programs: PathBuf,
        user: Option<User>,
        disk: Disk,
        listening: Listening,
        settings: &[&str],
    ) -> Self {
        const SETTINGS: [&str; 6] = [
            "max_connections=300",
            "max_wal_senders=8",
            "shared_buffers=32MB",
            "autovacuum=off",
            "timezone=UTC",
            "wal_level=replica",
        ];
        let mut supervisor = as_user(Path::new("/bin/sh"), user);
        supervisor.arg("-c").arg(SUPERVISOR).arg("supervisor").arg(&directory);
        supervisor.arg(programs.join("postgres")).arg("-D").arg(directory.join("data"));
        let address = match listening {
            Listening::Socket => "",
            Listening::Loopback(_) => "127.0.0.1",
        };
        supervisor.arg("-c").arg(format!("listen_addresses={address}"));
        supervisor.arg("-c").arg(format!("port={}", listening.port()));
        supervisor.arg("-c").arg(format!("unix_socket_directories={}", directory.display()));
        supervisor.arg("-c").arg(match disk {
            Disk::Synced => "fsync=on",
            Disk::NotSynced => "fsync=off",
        });
        for setting in SETTINGS.iter().chain(settings) {
            supervisor.arg("-c").arg(setting);
        }
        // A group of its own: an interrupt of the terminal ends the tests first, and those end it.
        supervisor.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = supervisor.spawn().expect("/bin/sh runs");
        let alive = Mutex::new(child.stdin.take().expect("its input is a pipe"));
        let started = Mutex::new(BufReader::new(child.stdout.take().expect("its output is a pipe")));
        wait_until_ready(&directory, &programs, user, listening.port());
        let statements = Mutex::new(start_statements(&directory, listening.port()));
        Self {
            directory,
            programs,
            user,
            supervisor: Mutex::new(child),
            alive,
            started,
            statements,
            databases: AtomicU32::new(0),
            listening,
        }
    }

    /// The directory of its socket, its log and, in `data`, its files.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The URL of one of its databases.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!("postgres://{SUPERUSER}@/{database}?host={}&port={}", self.directory.display(), self.listening.port())
    }

    /// Makes an empty database, which goes when the value is dropped.
    #[must_use]
    pub fn database(&self) -> TestDatabase<'_> {
        self.database_like("template1")
    }

    /// Makes a copy of a database that nobody is connected to.
    #[must_use]
    pub fn database_like(&self, template: &str) -> TestDatabase<'_> {
        let number = self.databases.fetch_add(1, Ordering::Relaxed);
        let name = format!("test_{}_{number}", std::process::id());
        self.sql(&format!("CREATE DATABASE {name} TEMPLATE {template}"));
        TestDatabase { server: self, name }
    }

    /// Runs statements in the first database, outside of any transaction.
    ///
    /// # Panics
    /// With the server's message, if it refuses.
    pub fn sql(&self, sql: &str) {
        if let Err(error) = self.try_sql(sql) {
            panic!("{sql}: {error}");
        }
    }

    fn try_sql(&self, sql: &str) -> Result<(), String> {
        let (done, answer) = mpsc::channel();
        let statement = Statement { sql: sql.to_owned(), done };
        let statements = self.statements.lock().unwrap_or_else(PoisonError::into_inner);
        statements.send(statement).map_err(|_| "the statements' thread has ended".to_owned())?;
        answer.recv().map_err(|_| "the statements' thread has ended".to_owned())?
    }

    /// Makes a standby take writes, on the next timeline.
    ///
    /// # Panics
    /// If it does not.
    pub fn promote(&self) {
        let mut promote = as_user(&self.programs.join("pg_ctl"), self.user);
        run(promote.args(["promote", "--wait", "--pgdata"]).arg(self.directory.join("data")), "pg_ctl promote");
    }

    /// Stops it and starts it on the same files, and waits until it takes sessions.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart(&self, stop: Stop) {
        let signal = match stop {
            Stop::Fast => "INT",
            Stop::Immediate => "QUIT",
        };
        let mut alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(alive, "{signal}").expect("its supervisor reads");
        let mut line = String::new();
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        started.read_line(&mut line).expect("its supervisor says so");
        wait_until_ready(&self.directory, &self.programs, self.user, self.listening.port());
    }

    /// Stops it as a crash would, and waits for its end. Its files are removed.
    pub fn crash(self) {
        drop(self.alive);
        let _ = self.supervisor.lock().unwrap_or_else(PoisonError::into_inner).wait();
    }
}

/// An empty database of a test.
pub struct TestDatabase<'a> {
    server: &'a TestServer,
    name: String,
}

impl TestDatabase<'_> {
    /// Its URL.
    #[must_use]
    pub fn url(&self) -> String {
        self.server.url(&self.name)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for TestDatabase<'_> {
    fn drop(&mut self) {
        // A server that a test has stopped needs nothing dropped.
        let _ = self.server.try_sql(&format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name));
    }
}

/// Where `initdb` and `postgres` are.
fn programs() -> PathBuf {
    let mut candidates = Vec::new();
    if let Ok(answer) = Command::new("pg_config").arg("--bindir").output() {
        candidates.push(PathBuf::from(String::from_utf8_lossy(&answer.stdout).trim()));
    }
    let mut versions: Vec<_> = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten().collect();
    versions.sort_by_key(|entry| std::cmp::Reverse(entry.file_name().to_string_lossy().parse::<u32>().unwrap_or(0)));
    candidates.extend(versions.iter().map(|entry| entry.path().join("bin")));
    let complete =
        |folder: &PathBuf| ["initdb", "postgres", "pg_basebackup"].iter().all(|name| folder.join(name).is_file());
    candidates.into_iter().find(complete).expect(
        "these tests start a PostgreSQL server, and none is installed: Debian's package is `postgresql` (`./test store` \
         installs it); looked at `pg_config --bindir` and /usr/lib/postgresql/*/bin",
    )
}

/// `None`: this process is not root, and its own user will do.
fn server_user() -> Option<User> {
    let own = std::fs::metadata("/proc/self").map(|metadata| std::os::unix::fs::MetadataExt::uid(&metadata));
    if own.expect("/proc is there") != 0 {
        return None;
    }
    let users = std::fs::read_to_string("/etc/passwd").expect("/etc/passwd is there");
    let fields = users.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|fields| fields[0] == "postgres");
    let fields = fields.expect("PostgreSQL refuses to run as root, and there is no user `postgres` to run it as");
    let number = |index: usize| fields[index].parse().expect("a user's numbers are numbers");
    Some(User { uid: number(2), gid: number(3) })
}

fn make_data(directory: &Path, programs: &Path, user: Option<User>) -> PathBuf {
    let data = directory.join("data");
    let mut initdb = as_user(&programs.join("initdb"), user);
    initdb.args(["--username", SUPERUSER, "--auth", "trust", "--no-sync", "--encoding", "UTF8", "--locale", "C.UTF-8"]);
    run(initdb.arg("--pgdata").arg(&data), "initdb");
    data
}

fn make_directory(user: Option<User>) -> PathBuf {
    // Short, because a socket's path has about 100 bytes.
    let directory = tempfile::Builder::new().prefix("conch-pg.").tempdir_in("/tmp").expect("/tmp takes a directory");
    let path = directory.keep();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    if let Some(User { uid, gid }) = user {
        chown(&path, Some(uid), Some(gid)).expect("root may give it away");
    }
    path
}

fn as_user(program: &Path, user: Option<User>) -> Command {
    let mut command = Command::new(program);
    command.current_dir("/tmp").env("LC_ALL", "C");
    if let Some(User { uid, gid }) = user {
        command.uid(uid).gid(gid);
    }
    command
}

fn run(command: &mut Command, what: &str) {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{what} cannot be run: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{what} failed ({}): {said}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout)
    );
}

fn wait_until_ready(directory: &Path, programs: &Path, user: Option<User>, port: u16) {
    // A recovery syncs every file first, which takes long on a busy disk.
    const TRIES: u32 = 2400;
    for _ in 0..TRIES {
        let mut ready = as_user(&programs.join("pg_isready"), user);
        ready.args(["--quiet", "--port", &port.to_string(), "--host"]).arg(directory);
        if ready.status().is_ok_and(|status| status.success()) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let mut log = String::new();
    let _ = std::fs::File::open(directory.join("log")).and_then(|mut file| file.read_to_string(&mut log));
    panic!("the PostgreSQL server did not start: {log}");
}

/// A thread with a connection, for statements of tests that have no runtime at hand.
fn start_statements(directory: &Path, port: u16) -> mpsc::Sender<Statement> {
    let (sender, statements) = mpsc::channel::<Statement>();
    let config = format!("host={} port={port} user={SUPERUSER} dbname={SUPERUSER}", directory.display());
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
        let mut client: Option<tokio_postgres::Client> = None;
        for Statement { sql, done } in statements {
            let result = runtime.block_on(async {
                if client.as_ref().is_none_or(tokio_postgres::Client::is_closed) {
                    let (dialled, connection) =
                        tokio_postgres::connect(&config, NoTls).await.map_err(|error| error.to_string())?;
                    tokio::spawn(connection);
                    client = Some(dialled);
                }
                let client = client.as_ref().expect("just dialled");
                client.batch_execute(&sql).await.map_err(|error| super::error::text_of(&error))
            });
            let _ = done.send(result);
        }
    });
    sender
}

impl std::fmt::Debug for TestServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TestServer({})", self.directory.display())
    }
}
