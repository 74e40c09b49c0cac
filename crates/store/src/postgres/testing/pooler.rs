//! A pooler before a test's server: in session mode a way that a node may take, in every other one what leases and lifelines
//! must not go through.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::{SOCKET_NUMBER, SUPERUSER, TestServer};

const PROGRAM: &str = "/usr/sbin/pgbouncer";
/// Whom it runs as where the tests are root's, which it refuses to be; it only needs the sockets.
const NOBODY: u32 = 65_534;
/// Longest wait for its socket: generous, for a busy machine is no failure.
const PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);
/// Starts the pooler, and ends it with its own input.
const SUPERVISOR: &str = r#""$@" >/dev/null 2>&1 & child=$!; while read -r line; do :; done; kill -9 $child"#;

/// The pooler; it ends when this is dropped, or with the test's process.
pub struct Pooler {
    directory: tempfile::TempDir,
    child: Child,
}

impl Pooler {
    /// Starts one in this mode, with these further lines of its configuration.
    ///
    /// # Panics
    /// If it is not installed, or does not start.
    #[must_use]
    pub fn start(server: &TestServer, mode: &str, settings: &str) -> Self {
        let program = Path::new(PROGRAM);
        assert!(program.is_file(), "this test starts a pooler, and none is installed: Debian's package is `pgbouncer`");
        let directory =
            tempfile::Builder::new().prefix("conch-pb.").tempdir_in("/tmp").expect("/tmp takes a directory");
        let (path, server) = (directory.path().display(), server.directory().display());
        let file = directory.path().join("ini");
        let text = format!(
            "[databases]\n* = user={SUPERUSER} host={server} port={SOCKET_NUMBER}\n[pgbouncer]\nlisten_addr =\n\
             listen_port = {SOCKET_NUMBER}\nunix_socket_dir = {path}\nauth_type = any\npool_mode = {mode}\n{settings}\n"
        );
        std::fs::write(&file, text).expect("the directory takes a file");
        let owner = std::fs::metadata(directory.path()).expect("it was made").uid();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", SUPERVISOR, "pooler"]);
        if owner == 0 {
            std::fs::set_permissions(directory.path(), Permissions::from_mode(0o777)).expect("it is ours");
            command.args(["setpriv", &format!("--reuid={NOBODY}"), &format!("--regid={NOBODY}"), "--clear-groups"]);
        }
        command.arg(program).arg(&file).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let pooler = Self { child: command.spawn().expect("/bin/sh runs"), directory };
        pooler.wait_until_it_listens();
        pooler
    }

    fn wait_until_it_listens(&self) {
        let socket = self.directory.path().join(format!(".s.PGSQL.{SOCKET_NUMBER}"));
        let begun = Instant::now();
        while !socket.exists() {
            assert!(begun.elapsed() < PATIENCE, "the pooler does not listen");
            std::thread::sleep(POLL);
        }
    }

    /// The URL of a database through it.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!("postgres://{SUPERUSER}@/{database}?host={}&port={SOCKET_NUMBER}", self.directory.path().display())
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // It may have ended already.
        let _ = self.child.wait();
    }
}
