//! A primary and an asynchronous standby that change places: each new primary gets a new standby where the old one was.
//!
//! Nodes find the servers in two *seats*, directories of which one always has the primary. Invariant: an old primary is dead
//! before its standby is promoted.

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use conch_core::ids::LogId;
use conch_store::postgres::testing::{Disk, Stop, TestServer};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::rig::{rows, try_rows};
use crate::node::until;

/// Within which a server must have recovered. It syncs every file first, which takes long on a busy disk.
const RECOVERED: Duration = Duration::from_secs(120);
/// Between two looks at it.
const LOOK: Duration = Duration::from_millis(50);
/// Sessions of nodes.
const OF_NODES: &str = "pg_stat_activity WHERE application_name LIKE 'conch/%' AND pid <> pg_backend_pid()";

/// Two servers.
pub(crate) struct Pair {
    seats: [PathBuf; 2],
    servers: [Option<TestServer>; 2],
    primary: usize,
    _directory: TempDir,
}

impl Pair {
    pub(crate) fn start() -> Self {
        let directory = tempfile::tempdir_in("/tmp").expect("a directory");
        let seats = ["0", "1"].map(|name| directory.path().join(name));
        let mut pair = Self { seats, servers: [None, None], primary: 0, _directory: directory };
        pair.seat(0, TestServer::start(Disk::Synced, &[]));
        pair.follow();
        pair
    }

    fn seat(&mut self, seat: usize, server: TestServer) {
        // The one that sat there is gone, and its directory with it.
        let _ = std::fs::remove_file(&self.seats[seat]);
        symlink(server.directory(), &self.seats[seat]).expect("the seat is free");
        self.servers[seat] = Some(server);
    }

    /// Makes a standby of the primary, in the other seat.
    fn follow(&mut self) {
        let standby = self.primary().standby(Disk::Synced, &[]);
        self.seat(1 - self.primary, standby);
    }

    pub(crate) fn primary(&self) -> &TestServer {
        self.servers[self.primary].as_ref().expect("there is a primary")
    }

    fn standby(&self) -> &TestServer {
        self.servers[1 - self.primary].as_ref().expect("there is a standby")
    }

    pub(crate) fn seats(&self) -> &[PathBuf; 2] {
        &self.seats
    }

    /// The URL of whatever server is the primary, where the seats are these.
    pub(crate) fn url(seats: &[PathBuf; 2]) -> String {
        let [first, second] = seats.each_ref().map(|seat| seat.display());
        format!("postgres://postgres@/postgres?host={first},{second}&port=5432,5432&target_session_attrs=read-write")
    }

    /// The standby gets nothing any more.
    pub(crate) fn detach(&self) {
        let standby = self.standby().url("postgres");
        rows(&standby, "ALTER SYSTEM SET primary_conninfo = ''");
        rows(&standby, "SELECT pg_reload_conf()");
        let followers = "SELECT pid FROM pg_stat_replication";
        until("the standby to stop", || rows(&self.primary().url("postgres"), followers).is_empty().then_some(()));
    }

    /// The primary dies, the standby takes its place and gets a standby itself. Returns the log that begins.
    pub(crate) fn promote(&mut self) -> LogId {
        self.servers[self.primary].take().expect("there is a primary").crash();
        self.primary = 1 - self.primary;
        self.primary().promote();
        let url = self.primary().url("postgres");
        rows(&url, "ALTER SYSTEM RESET primary_conninfo");
        rows(&url, "SELECT pg_reload_conf()");
        let log = rows(&url, "SELECT system_id || '.' || store_gen() FROM cluster_meta");
        log[0].parse().expect("a log's id")
    }

    /// The new primary gets a standby.
    pub(crate) fn replace_standby(&mut self) {
        self.follow();
    }

    pub(crate) fn restart(&self, stop: Stop) {
        self.primary().restart(stop);
        self.wait_for_writes();
    }

    /// Ends a session of a node in good order, drawn by this number.
    pub(crate) fn end_session(&self, drawn: u64) {
        let pid = self.session(drawn);
        self.ask(&format!("SELECT pg_terminate_backend({pid})"));
    }

    /// Kills the process of a node's session, upon which the server ends all others and recovers.
    pub(crate) fn kill_session(&self, drawn: u64) {
        let pid = Pid::from_raw(self.session(drawn)).expect("not 0");
        // It may have ended meanwhile.
        let _ = kill_process(pid, Signal::KILL);
        self.wait_for_writes();
    }

    fn session(&self, drawn: u64) -> i32 {
        until("a session of a node", || {
            let pids = self.ask(&format!("SELECT pid FROM {OF_NODES} ORDER BY pid"));
            let index = usize::try_from(drawn % u64::try_from(pids.len()).ok()?.max(1)).ok()?;
            pids.get(index)?.parse().ok()
        })
    }

    fn ask(&self, sql: &str) -> Vec<String> {
        let begun = Instant::now();
        loop {
            match try_rows(&self.primary().url("postgres"), sql) {
                Ok(rows) => return rows,
                Err(problem) => assert!(begun.elapsed() < RECOVERED, "{sql}: after {RECOVERED:?}: {problem}"),
            }
            std::thread::sleep(LOOK);
        }
    }

    fn wait_for_writes(&self) {
        assert_eq!(self.ask("SELECT pg_is_in_recovery()"), ["f"]);
    }
}
