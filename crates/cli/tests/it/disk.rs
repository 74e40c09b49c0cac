//! A disk that is full and a database that is damaged: refused clearly, and nothing acknowledged is lost.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use conch_cli::client::{ClientError, Endpoint, HttpClient, Problem, Request};
use serde_json::json;

use crate::node::{Home, Node, message, runtime, until, whole_log};

/// Room on the small disk, in KiB.
const ROOM_KIB: u32 = 6 * 1024;
/// Bytes of a text: a hundred and some of them fill the room.
const TEXT_BYTES: usize = 40_000;
/// Most messages until the disk has to be full.
const MESSAGES_MAX: usize = 1_000;

/// A small file system of its own, unmounted when it is dropped.
struct SmallDisk {
    path: PathBuf,
}

impl SmallDisk {
    /// `None` where mounting is not allowed.
    fn mount(path: &Path) -> Option<Self> {
        let size = format!("size={ROOM_KIB}k");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "conch-test"]).arg(path).output();
        mounted.ok()?.status.success().then(|| Self { path: path.to_owned() })
    }

    fn grow(&self) {
        let grown = Command::new("mount").args(["-o", "remount,size=64m"]).arg(&self.path).status();
        assert!(grown.expect("mount runs").success());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // A mount that stays is seen by whoever removes the directory.
        let _ = Command::new("umount").arg("--lazy").arg(&self.path).status();
    }
}

/// Sends until the store refuses; the acknowledged keys, and the refusal.
async fn fill(client: &HttpClient) -> (Vec<String>, Problem) {
    let text = "x".repeat(TEXT_BYTES);
    let mut acked = Vec::new();
    for number in 0..MESSAGES_MAX {
        let key = format!("k{number}");
        match client.attempt(&message("room", &key, &text)).await {
            Ok(_) => acked.push(key),
            Err(ClientError::Refused(problem)) => return (acked, problem),
            Err(error) => panic!("neither an ack nor a refusal: {error}"),
        }
    }
    panic!("the disk was never full");
}

async fn keys(client: &HttpClient) -> Vec<String> {
    let log = whole_log(client, "room").await;
    log.iter().map(|record| record["client_msg_id"].as_str().expect("a key").to_owned()).collect()
}

fn create_room(home: &Home) -> (Endpoint, HttpClient) {
    let endpoint = home.unlimited("alice");
    let client = HttpClient::new(endpoint.clone()).expect("starts");
    let create = Request::put(&["v1", "conversations", "room"], json!({"kind": "channel"}));
    runtime().block_on(client.attempt(&create)).expect("created");
    (endpoint, client)
}

/// Fills the store, looks at the refusal, and at what is readable meanwhile.
fn fill_and_look(home: &Home) -> Vec<String> {
    let (_, client) = create_room(home);
    let runtime = runtime();
    let (acked, problem) = runtime.block_on(fill(&client));
    assert_eq!((problem.status, problem.code.as_str()), (503, "store_unavailable"), "{problem:?}");
    assert!(acked.len() > 10, "there was room at first");
    assert_eq!(runtime.block_on(keys(&client)), acked, "history works on a full disk");
    acked
}

#[test]
fn a_full_disk_is_refused_at_the_write_and_nothing_acknowledged_is_lost() {
    let scratch = tempfile::tempdir().expect("a directory");
    let Some(disk) = SmallDisk::mount(scratch.path()) else {
        // The limit on file sizes below is this test's other half, and runs everywhere.
        let notice = "NOT ALLOWED TO MOUNT: the full disk is shown by the limit on file sizes alone";
        writeln!(std::io::stderr(), "{notice}").expect("standard error is open");
        return;
    };
    let home = Home::new(&scratch.path().join("data"));
    let node = home.start();
    let acked = fill_and_look(&home);
    disk.grow();
    let client = HttpClient::new(home.unlimited("alice")).expect("starts");
    let runtime = runtime();
    until("the store to take writes again", || {
        runtime.block_on(client.attempt(&message("room", "after", "there is room"))).ok()
    });
    node.kill();
    let _node = home.start();
    let mut expected = acked;
    expected.push("after".to_owned());
    assert_eq!(runtime.block_on(keys(&client)), expected);
}

/// A node that may write no file beyond the room; the signal that would end it is ignored, so that writes fail.
fn start_limited(home: &Home) -> Node {
    let serve = home.serve();
    let blocks = ROOM_KIB.to_string();
    let mut limited = Command::new("bash");
    limited.args(["-c", "trap '' XFSZ; ulimit -f \"$1\"; shift; exec \"$@\"", "bash", &blocks]);
    limited.arg(serve.get_program()).args(serve.get_args());
    for (name, value) in serve.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    home.start_with(limited)
}

#[test]
fn a_limit_on_file_sizes_is_refused_at_the_write_and_nothing_acknowledged_is_lost() {
    let scratch = tempfile::tempdir().expect("a directory");
    let home = Home::new(&scratch.path().join("data"));
    let node = start_limited(&home);
    let acked = fill_and_look(&home);
    node.kill();
    let _node = home.start();
    let client = HttpClient::new(home.unlimited("alice")).expect("starts");
    let runtime = runtime();
    assert_eq!(runtime.block_on(keys(&client)), acked);
    runtime.block_on(client.attempt(&message("room", "after", "there is room"))).expect("it takes writes again");
}

#[test]
fn a_damaged_database_is_refused_at_the_start_and_left_as_it_is() {
    let scratch = tempfile::tempdir().expect("a directory");
    let home = Home::new(scratch.path());
    let node = home.start();
    create_room(&home);
    assert_eq!(node.terminate().code(), Some(0));
    let backup = files(&home.data);
    let file = home.data.join(conch_store::sqlite::DATABASE_FILE);
    let mut torn = std::fs::read(&file).expect("the database is there");
    torn[..64].fill(0xff);
    for damaged in [torn, b"this is no database, whatever its name says".to_vec()] {
        // The write-ahead log holds whole pages: with it beside it, a damaged file may be mended.
        for (path, _) in backup.iter().filter(|(path, _)| path.to_string_lossy().contains("-wal")) {
            std::fs::remove_file(path).expect("removed");
        }
        std::fs::write(&file, &damaged).expect("written");
        let refused = home.start_refused();
        assert_eq!(refused.code, 1, "{refused:?}");
        let said = format!("{}{}", refused.stdout, refused.stderr);
        assert!(said.contains(&*file.to_string_lossy()), "it names the file: {said}");
        assert_eq!(std::fs::read(&file).expect("still there"), damaged, "a refused file is left as it was");
        let verified = home.run(&["verify", "--store", &home.store()]);
        assert_eq!(verified.code, 1, "{verified:?}");
        for (path, bytes) in &backup {
            std::fs::write(path, bytes).expect("written");
        }
    }
    let _node = home.start();
    assert_eq!(home.run(&["send", "room", "restored"]).code, 0);
}

/// What lies in a directory.
fn files(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = std::fs::read_dir(directory).expect("it is there");
    let paths = entries.map(|entry| entry.expect("it can be read").path());
    paths.map(|path| (path.clone(), std::fs::read(&path).expect("it can be read"))).collect()
}
