//! Starts, asks and ends real processes. Everything waits for a condition with a deadline; nothing waits for a time.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use conch_cli::client::{Endpoint, HttpClient, Request};
use serde_json::{Value, json};

/// How long anything may take before the test gives up. Generous: a loaded machine is no failure.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks at a condition.
const POLL: Duration = Duration::from_millis(5);

/// The command, without anything of this process's own configuration.
pub(crate) fn conch(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_conch"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CONCH_")) {
        command.env_remove(name);
    }
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Waits until `look` finds something.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "waited {PATIENCE:?} for {what}");
        std::thread::sleep(POLL);
    }
}

/// What a finished command left.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Done {
    pub(crate) fn of(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("the output is UTF-8");
        let code = output.status.code().expect("it was not killed by a signal");
        Self { code, stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    /// Its result lines, each of which must be JSON.
    pub(crate) fn lines(&self) -> Vec<Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).expect("every line is JSON")).collect()
    }

    /// Its only result line.
    pub(crate) fn line(&self) -> Value {
        let lines = self.lines();
        assert_eq!(lines.len(), 1, "{self:?}");
        lines[0].clone()
    }
}

/// Where a node lives: its data directory and its addresses, the same over restarts.
pub(crate) struct Home {
    pub(crate) data: PathBuf,
    listen: String,
    operations: String,
}

impl Home {
    pub(crate) fn new(data: &Path) -> Self {
        Self { data: data.to_owned(), listen: free_address(), operations: free_address() }
    }

    pub(crate) fn store(&self) -> String {
        format!("sqlite:{}", self.data.display())
    }

    /// A second home on the same data directory.
    pub(crate) fn twin(&self) -> Self {
        Self::new(&self.data)
    }

    pub(crate) fn serve(&self) -> Command {
        self.serve_on(&self.store())
    }

    /// As [`Home::serve`], on another store.
    pub(crate) fn serve_on(&self, store: &str) -> Command {
        conch(&["serve", "--listen", &self.listen, "--ops-listen", &self.operations, "--store", store])
    }

    /// Starts a node and waits until it is ready.
    pub(crate) fn start(&self) -> Node {
        self.start_with(self.serve())
    }

    pub(crate) fn start_with(&self, mut command: Command) -> Node {
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
        let mut node = Node { child, operations: self.operations.clone() };
        node.drain_output();
        node.wait_until_ready();
        node
    }

    /// Starts a node that must refuse, and waits for its end.
    pub(crate) fn start_refused(&self) -> Done {
        self.start_refused_with(self.serve())
    }

    pub(crate) fn start_refused_with(&self, mut serve: Command) -> Done {
        let child = serve.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
        // Held as a node, so that one which does start is killed when the test fails.
        let mut node = Node { child, operations: self.operations.clone() };
        let (mut stdout, mut stderr) =
            (node.child.stdout.take().expect("piped"), node.child.stderr.take().expect("piped"));
        let code = wait(&mut node.child).code().expect("it was not killed");
        let mut done = Done { code, stdout: String::new(), stderr: String::new() };
        stdout.read_to_string(&mut done.stdout).expect("UTF-8");
        stderr.read_to_string(&mut done.stderr).expect("UTF-8");
        done
    }

    /// A client command against this node, as the local user.
    pub(crate) fn run(&self, arguments: &[&str]) -> Done {
        Done::of(self.command(arguments).output().expect("the binary starts"))
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = conch(arguments);
        command.env("CONCH_URL", self.url()).env("CONCH_STORE", self.store()).env("USER", "tester");
        command
    }

    pub(crate) fn operations(&self) -> &str {
        &self.operations
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.listen)
    }

    /// A token whose rate is not limited.
    pub(crate) fn unlimited(&self, sub: &str) -> Endpoint {
        let can = "read,send,run,create,admin";
        let done = self.run(&["token", "--sub", sub, "--can", can, "--unlimited-rate"]);
        assert_eq!(done.code, 0, "{done:?}");
        Endpoint::new(&self.url(), Some(done.stdout.trim().to_owned())).expect("a good URL")
    }
}

/// A running node; killed when it is dropped.
pub(crate) struct Node {
    child: Child,
    operations: String,
}

impl Node {
    /// Starts it, without waiting until it is ready. Its output goes into a file.
    pub(crate) fn launch(mut command: Command, operations: &str, log: &Path) -> Self {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(log).expect("the log can be written");
        let errors = log.try_clone().expect("a file can be shared");
        let child = command.stdout(log).stderr(errors).spawn().expect("the binary starts");
        Self { child, operations: operations.to_owned() }
    }

    pub(crate) fn wait_until_ready(&mut self) {
        until("the node to be ready", || {
            let ended = self.child.try_wait().expect("it is our child");
            assert!(ended.is_none(), "the node ended at its start: {ended:?}");
            self.is_ready().then_some(())
        });
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it did.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("it is our child")
    }

    /// Sends it a signal and goes on.
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("it is our child");
    }

    /// Waits until it ends by itself.
    pub(crate) fn wait(mut self) -> ExitStatus {
        wait(&mut self.child)
    }

    pub(crate) fn is_ready(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect(&self.operations) else { return false };
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out can be set");
        let request = format!("GET /readyz HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.operations);
        let mut answer = String::new();
        stream.write_all(request.as_bytes()).is_ok()
            && stream.read_to_string(&mut answer).is_ok()
            && answer.starts_with("HTTP/1.1 200")
    }

    /// Reads its output to nowhere, so that a full pipe never stops it.
    fn drain_output(&mut self) {
        let (stdout, stderr) = (self.child.stdout.take(), self.child.stderr.take());
        for mut pipe in [stdout.map(Pipe::Out), stderr.map(Pipe::Err)].into_iter().flatten() {
            std::thread::spawn(move || std::io::copy(&mut pipe, &mut std::io::sink()));
        }
    }

    /// kill -9.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it is our child");
        wait(&mut self.child);
    }

    /// Its exit status, when it ends by itself.
    pub(crate) fn end(mut self) -> ExitStatus {
        wait(&mut self.child)
    }

    /// SIGTERM, and its exit status.
    pub(crate) fn terminate(self) -> ExitStatus {
        self.stop(rustix::process::Signal::TERM)
    }

    /// Ends it with this signal, and waits for its end.
    pub(crate) fn stop(self, signal: rustix::process::Signal) -> ExitStatus {
        self.signal(signal);
        self.wait()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

enum Pipe {
    Out(std::process::ChildStdout),
    Err(std::process::ChildStderr),
}

impl Read for Pipe {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Out(pipe) => pipe.read(buffer),
            Self::Err(pipe) => pipe.read(buffer),
        }
    }
}

fn wait(child: &mut Child) -> ExitStatus {
    until("a process to end", || child.try_wait().expect("it is our child"))
}

/// A command whose lines are read while it runs; killed when it is dropped.
pub(crate) struct Running {
    child: Child,
    lines: Receiver<String>,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the binary starts");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, lines }
    }

    /// The next line, as JSON.
    pub(crate) fn next(&self) -> Value {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => serde_json::from_str(&line).expect("every line is JSON"),
            Err(RecvTimeoutError::Timeout) => panic!("no line within {PATIENCE:?}"),
            Err(RecvTimeoutError::Disconnected) => panic!("the command ended"),
        }
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("it is our child").is_none()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A loopback address below the ports that the kernel hands out to clients: a client that tries again while its server is
/// away could otherwise be given the server's own port, connect to itself, and keep the server from coming back.
pub(crate) fn free_address() -> String {
    const FIRST: u32 = 10_000;
    const COUNT: u32 = 20_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let free = || {
        let offset = (std::process::id().wrapping_mul(97) % COUNT + NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
        let address = format!("127.0.0.1:{}", FIRST + offset);
        TcpListener::bind(&address).is_ok().then_some(address)
    };
    until("a free port", free)
}

/// The whole log of a conversation, page by page.
pub(crate) async fn whole_log(client: &HttpClient, conversation: &str) -> Vec<Value> {
    let mut records: Vec<Value> = Vec::new();
    loop {
        let after = records.last().map_or(0, |record| record["seq"].as_u64().expect("a number"));
        let request = Request::get(&["v1", "conversations", conversation, "messages"])
            .with_query("after", Some(after.to_string()))
            .with_query("limit", Some("500".to_owned()));
        let page = client.attempt(&request).await.expect("history needs no owner").body;
        records.extend(page["messages"].as_array().expect("messages").iter().cloned());
        if page["more"] != true {
            return records;
        }
    }
}

/// A send's request.
pub(crate) fn message(conversation: &str, key: &str, text: &str) -> Request {
    let body = json!({"client_msg_id": key, "body": {"text": text}});
    Request::post(&["v1", "conversations", conversation, "messages"], body)
}

/// A runtime for a test that uses the client.
pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime starts")
}
