//! What only a second process can show. A test that needs one runs this very test binary again, for itself alone and with
//! [`ROLE`] set; the child tells what it does on its standard error, a line at a time.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStderr, Command, Stdio};

use conch_core::ids::Seq;

use super::*;
use crate::sqlite::{DATABASE_FILE, verify};

/// Set in a child: the data directory that it works on.
const ROLE: &str = "CONCH_TEST_DIRECTORY";

struct Helper {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStderr>>,
}

impl Helper {
    /// Runs a test of this binary as a child, by its name; `wrapper` is a command to run it with.
    fn start(test: &str, directory: &Path, wrapper: &[&str]) -> Self {
        let binary = std::env::current_exe().expect("has a path");
        let mut words = wrapper.iter().map(std::ffi::OsString::from).collect::<Vec<_>>();
        words.push(binary.into());
        let name = format!("{}::{test}", module_path!().split_once("::").expect("has a crate").1);
        let mut child = Command::new(&words[0])
            .args(&words[1..])
            .args(["--exact", &name, "--nocapture"])
            .env(ROLE, directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts");
        let lines = BufReader::new(child.stderr.take().expect("is piped")).lines();
        Self { child, lines }
    }

    fn line(&mut self) -> String {
        self.lines.next().expect("the child speaks").expect("reads")
    }

    /// Ends it as `kill -9` does.
    fn kill(self) {
        drop(self);
    }
}

impl Drop for Helper {
    /// Also when the test fails: no child outlives its parent.
    fn drop(&mut self) {
        self.child.kill().expect("kills");
        self.child.wait().expect("ends");
    }
}

fn role() -> Option<std::path::PathBuf> {
    std::env::var_os(ROLE).map(Into::into)
}

fn say(line: &str) {
    writeln!(std::io::stderr(), "{line}").expect("the parent listens");
}

fn opened(directory: &Path) -> Bench {
    let mut bench = Bench::new();
    bench.directory = tempfile::tempdir().expect("a temporary directory");
    let clock = Arc::clone(&bench.clock);
    bench.store = Some(SqliteStore::open(directory, options(&clock)).expect("opens"));
    bench
}

/// Appends one record at a time and says so after each answer, until it is killed.
async fn append_for_ever(directory: &Path) {
    let bench = opened(directory);
    let me = bench.register(u128::from(std::process::id()) << 64 | 1).await;
    let room = bench.create("room").await;
    let armed = bench.won(&room, me).await;
    say("ready");
    let (mut prev, mut next) = (armed.last_seq, armed.first_seq);
    loop {
        let key = format!("{}-{next}", armed.epoch);
        landed(bench.append(me, batch(&room, &armed, prev, next, vec![message("alice", &key, "hi")])).await);
        say(&format!("{next} {key}"));
        (prev, next) = (next, next.next());
    }
}

#[tokio::test]
async fn a_second_process_is_refused_and_takes_over_when_the_first_is_killed() {
    if let Some(directory) = role() {
        return append_for_ever(&directory).await;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let test = "a_second_process_is_refused_and_takes_over_when_the_first_is_killed";
    let mut helper = Helper::start(test, directory.path(), &[]);
    assert_eq!(helper.line(), "ready");
    let clock = Arc::new(AtomicI64::new(START_MS));
    let error = SqliteStore::open(directory.path(), options(&clock)).expect_err("must be refused").to_string();
    assert!(error.contains(&format!("process {} (node n1)", helper.child.id())), "{error}");
    let report = verify(directory.path(), |_| {}).expect("verifies beside the server");
    assert!(report.is_clean(), "{report:?}");
    helper.kill();
    let store = SqliteStore::open(directory.path(), options(&clock)).expect("opens");
    assert_eq!(store.nodes().await, Ok(vec![]), "the dead process's row is gone");
}

#[tokio::test]
async fn what_was_answered_survives_kill_9() {
    if let Some(directory) = role() {
        return append_for_ever(&directory).await;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut acked = Vec::new();
    for round in 0..5 {
        let mut helper = Helper::start("what_was_answered_survives_kill_9", directory.path(), &[]);
        assert_eq!(helper.line(), "ready");
        for _ in 0..20 + round * 7 {
            let line = helper.line();
            let (seq, key) = line.split_once(' ').expect("a seq and a key");
            acked.push((seq.parse::<u64>().map(Seq).expect("a number"), key.to_owned()));
        }
        helper.kill();
    }
    let report = verify(directory.path(), |_| {}).expect("verifies");
    assert!(report.is_clean(), "{report:?}");
    let bench = opened(directory.path());
    for (seq, key) in acked {
        let key = key.parse().expect("valid");
        let found = bench.store().find(&conversation("room"), &subject("alice"), &key).await.expect("finds");
        assert_eq!(found.map(|landed| landed.seq), Some(seq), "{key}");
    }
    let head = bench.store().conversation(&conversation("room")).await.expect("reads").expect("exists").head;
    assert_eq!(head.map(|head| head.epoch.0), Some(5), "one epoch a process");
}

/// The wrapper makes a write beyond a file's size limit an error and not the process's end.
const IGNORING_SIZE_SIGNAL: &[&str] = &["sh", "-c", "trap '' XFSZ; exec \"$@\"", "sh"];

/// Lets no file of this process grow beyond so many bytes, which is how a full disk looks to it.
fn limit_file_bytes(bytes: Option<u64>) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Fsize).maximum;
    setrlimit(Resource::Fsize, Rlimit { current: bytes.or(maximum), maximum }).expect("sets the limit");
}

/// Fills the log up to the limit, lifts it and goes on; says which seqs were answered.
async fn fill_and_go_on(directory: &Path) {
    let bench = opened(directory);
    let (me, room) = (bench.register(1).await, bench.create("room").await);
    let armed = bench.won(&room, me).await;
    limit_file_bytes(Some(2 * 1024 * 1024));
    let text = "x".repeat(50_000);
    let mut prev = Seq(0);
    let error = loop {
        let one = batch(&room, &armed, prev, prev.next(), vec![message("alice", &format!("k{prev}"), &text)]);
        match bench.store().append(me, vec![one]).await {
            Ok(outcomes) => {
                assert!(matches!(outcomes[0], AppendOutcome::Landed { .. }), "{outcomes:?}");
                prev = prev.next();
            }
            Err(error) => break error,
        }
    };
    assert!(matches!(error, crate::StoreError::Full(_)), "{error:?}");
    assert!(prev > Seq(5), "some had room: {prev}");
    assert_eq!(bench.store().count_after(&room, Seq(0), 1000).await, Ok(prev.0 as usize));
    limit_file_bytes(None);
    let one = batch(&room, &armed, prev, prev.next(), vec![message("alice", &format!("k{prev}"), &text)]);
    landed(bench.append(me, one).await);
    say(&format!("answered {}", prev.next()));
    std::future::pending().await
}

#[tokio::test]
async fn a_commit_that_cannot_be_written_is_void_and_later_ones_are_good() {
    if let Some(directory) = role() {
        return fill_and_go_on(&directory).await;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let test = "a_commit_that_cannot_be_written_is_void_and_later_ones_are_good";
    let mut helper = Helper::start(test, directory.path(), IGNORING_SIZE_SIGNAL);
    let line = helper.line();
    let answered: u64 = line.strip_prefix("answered ").unwrap_or_else(|| panic!("{line}")).parse().expect("a number");
    helper.kill();
    let bench = opened(directory.path());
    assert_eq!(bench.store().count_after(&conversation("room"), Seq(0), 1000).await, Ok(answered as usize));
    let report = verify(directory.path(), |_| {}).expect("verifies");
    assert!(report.is_clean(), "{report:?}");
    assert!(directory.path().join(DATABASE_FILE).exists());
}
