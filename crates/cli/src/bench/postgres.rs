//! A PostgreSQL server of a bench's own: made in a temporary directory, reached over a Unix socket, synced as a real one is.
//!
//! Invariant: it ends with the bench, however that ends: whoever started it watches a pipe that only the bench holds. No port
//! is opened, and no other server is touched.
//!
//! Deliberately absent: installing it. Without it a bench takes a database by `--store`.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::exit::Failure;

/// The role and the database.
const NAME: &str = "postgres";
/// How long it may take to start.
const START_MAX: Duration = Duration::from_secs(60);
/// How often it is asked whether it has.
const POLL: Duration = Duration::from_millis(50);
/// Starts the server, waits for the end of its own input, ends the server, and removes the directory.
const KEEPER: &str = r#"
directory=$1; shift
"$@" >"$directory/log" 2>&1 </dev/null &
server=$!
read -r nothing
kill -QUIT "$server" 2>/dev/null
wait "$server"
rm -rf "$directory"
"#;

/// A running server.
pub(super) struct Postgres {
    directory: PathBuf,
    keeper: Child,
}

impl Postgres {
    /// Makes one, for so many connections, and waits until it takes them.
    pub(super) fn start(connections: usize) -> Result<Self, Failure> {
        let programs = programs()?;
        let user = other_user()?;
        // Short: a socket's path has about 100 bytes.
        let directory = std::env::temp_dir().join(format!("conch-pg-{}", std::process::id()));
        std::fs::create_dir(&directory)?;
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o755))?;
        if let Some((uid, gid)) = user {
            chown(&directory, Some(uid), Some(gid))?;
        }
        let data = directory.join("data");
        let mut make = command(&programs.join("initdb"), &directory, user);
        make.args(["--username", NAME, "--auth", "trust", "--encoding", "UTF8", "--locale", "C.UTF-8", "--no-sync"]);
        let made = make.arg("--pgdata").arg(&data).stdin(Stdio::null()).output()?;
        if !made.status.success() {
            // What was begun is of no use.
            let _ = std::fs::remove_dir_all(&directory);
            return Err(Failure::other(format!("initdb: {}", String::from_utf8_lossy(&made.stderr).trim())));
        }
        let mut keeper = command(Path::new("/bin/sh"), &directory, user);
        keeper.args(["-c", KEEPER, "keeper"]).arg(&directory).arg(programs.join("postgres")).arg("-D").arg(&data);
        let socket = format!("unix_socket_directories={}", directory.display());
        let connections = format!("max_connections={}", connections.max(100));
        for setting in ["listen_addresses=", socket.as_str(), connections.as_str(), "timezone=UTC"] {
            keeper.args(["-c", setting]);
        }
        // A group of its own: an interrupt of the terminal ends the bench first, and that ends it.
        keeper.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut server = Self { keeper: keeper.spawn()?, directory };
        server.wait_until_ready(&programs)?;
        Ok(server)
    }

    fn wait_until_ready(&mut self, programs: &Path) -> Result<(), Failure> {
        let begun = Instant::now();
        while begun.elapsed() < START_MAX {
            let mut ask = Command::new(programs.join("pg_isready"));
            ask.args(["--quiet", "--host"]).arg(&self.directory);
            if ask.status()?.success() {
                return Ok(());
            }
            if self.keeper.try_wait()?.is_some() {
                break;
            }
            std::thread::sleep(POLL);
        }
        let log = std::fs::read_to_string(self.directory.join("log")).unwrap_or_default();
        Err(Failure::other(format!("PostgreSQL did not start: {}", log.trim())))
    }

    /// The URL of its database.
    pub(super) fn url(&self) -> String {
        format!("postgres://{NAME}@/{NAME}?host={}", self.directory.display())
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        // The keeper has ended the server and removed the directory when it ends; if it cannot, it says so nowhere.
        let _ = self.keeper.wait();
    }
}

fn command(program: &Path, directory: &Path, user: Option<(u32, u32)>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(directory).env("LC_ALL", "C");
    if let Some((uid, gid)) = user {
        command.uid(uid).gid(gid);
    }
    command
}

/// Where its programs are.
fn programs() -> Result<PathBuf, Failure> {
    let mut places: Vec<PathBuf> = Vec::new();
    if let Ok(answer) = Command::new("pg_config").arg("--bindir").output() {
        places.push(PathBuf::from(String::from_utf8_lossy(&answer.stdout).trim()));
    }
    let version = |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().parse::<u32>().unwrap_or(0);
    let mut versions: Vec<_> = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten().collect();
    versions.sort_by_key(|entry| std::cmp::Reverse(version(entry)));
    places.extend(versions.iter().map(|entry| entry.path().join("bin")));
    let path = std::env::var_os("PATH").unwrap_or_default();
    places.extend(std::env::split_paths(&path));
    let is_whole = |place: &PathBuf| ["initdb", "postgres", "pg_isready"].iter().all(|name| place.join(name).is_file());
    places.into_iter().find(is_whole).ok_or_else(|| {
        Failure::usage(
            "several gateways need a PostgreSQL database, and no server is installed here to start one: name one with \
             --store postgres://…, with CONCH_AUTH_SECRET",
        )
    })
}

/// The user that it runs as if this process is root, which it refuses to be.
fn other_user() -> Result<Option<(u32, u32)>, Failure> {
    if std::fs::metadata("/proc/self")?.uid() != 0 {
        return Ok(None);
    }
    let users = std::fs::read_to_string("/etc/passwd")?;
    let fields = users.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|fields| fields[0] == NAME);
    let number = |fields: &[&str], index: usize| fields.get(index).and_then(|number| number.parse::<u32>().ok());
    let found = fields.and_then(|fields| Some((number(&fields, 2)?, number(&fields, 3)?)));
    found.map(Some).ok_or_else(|| {
        Failure::usage(
            "PostgreSQL refuses to run as root, and there is no user `postgres`: name a database with --store",
        )
    })
}
