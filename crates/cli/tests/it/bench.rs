//! The parts of a bench that need no server. What a bench measures is no test; that it counts right is.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use serde_json::{Value, json};

use crate::node::{Done, conch, until};

/// A worker that is spoken to in JSON lines; killed when it is dropped.
struct Worker {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Worker {
    fn start(arguments: &[&str]) -> Self {
        let mut command = conch(arguments);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the binary starts");
        let (input, output) = (child.stdin.take(), child.stdout.take().expect("piped"));
        Self { child, input, output: BufReader::new(output) }
    }

    fn ask(&mut self, question: &Value) -> Value {
        let input = self.input.as_mut().expect("it is open");
        writeln!(input, "{question}").expect("the worker listens");
        self.answer()
    }

    fn answer(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("the worker answers");
        serde_json::from_str(&line).expect("a JSON line")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn every_bare_send_is_counted_once_and_in_order() {
    let mut sender = Worker::start(&["bench", "bare-sender", "--sockets", "40"]);
    let address = sender.answer()["address"].as_str().expect("an address").to_owned();
    let mut clients = Worker::start(&["bench", "load", "--dialect", "bare", "--address", &address, "--sessions", "40"]);
    assert_eq!(clients.ask(&json!({"Connect": {"sessions": 40, "over_ms": 0}})), json!({}));
    assert_eq!(sender.answer(), json!({"sockets": 40}));
    let sent = sender.ask(&json!({"messages": 25, "rate": 1000, "frame_bytes": 400}));
    assert_eq!(sent["sends"], 1_000);
    let delivered = until("everything to arrive", || {
        let delivered = clients.ask(&json!("Look"));
        (delivered["deliveries"] == 1_000).then_some(delivered)
    });
    assert_eq!((&delivered["least"], &delivered["most"]), (&json!(25), &json!(25)));
    assert_eq!((&delivered["out_of_order"], &delivered["bytes"]), (&json!(0), &json!(396_000)), "payloads");
    let checked = clients.ask(&json!({"Check": {"seqs": (1..=25).collect::<Vec<u64>>()}}));
    assert_eq!(checked, json!({"looked_at": 40, "complete": 40, "missing": 0, "unknown": 0}));
    let checked = clients.ask(&json!({"Check": {"seqs": (1..=26).collect::<Vec<u64>>()}}));
    assert_eq!((&checked["complete"], &checked["missing"]), (&json!(0), &json!(40)), "one more was sent");
    clients.ask(&json!("Reset"));
    assert_eq!(clients.ask(&json!("Look"))["deliveries"], 0);
}

#[test]
fn workers_end_with_the_bench() {
    let mut sender = Worker::start(&["bench", "bare-sender", "--sockets", "0"]);
    sender.answer();
    sender.answer();
    sender.input = None;
    let status = until("the worker to end", || sender.child.try_wait().expect("it is our child"));
    assert!(status.success());
}

#[test]
fn a_storm_is_modelled_and_drawn_without_a_server() {
    let directory = tempfile::tempdir().expect("a directory");
    let plot = directory.path().join("storm.svg");
    let mut command =
        conch(&["bench", "storm", "--model", "--json", "--sessions", "3000", "--gateways", "2", "--plot"]);
    let done = Done::of(command.arg(&plot).args(["--joins", "150"]).output().expect("the binary starts"));
    assert_eq!(done.code, 0, "{done:?}");
    let report = done.line();
    assert!(report["with_window"]["all_back_ms"].is_u64(), "{report}");
    let in_vain = |course: &str| report[course]["in_vain"].as_u64().expect("a count");
    // So few joins a second are more than gateways recover from when all come at once.
    assert!(in_vain("with_window") == 0 && in_vain("at_once") > 3_000, "{report}");
    assert!(std::fs::read_to_string(&plot).expect("it was drawn").starts_with("<svg "), "{report}");
}

#[test]
fn benches_of_crowds_refuse_what_cannot_be() {
    for (arguments, why) in [
        (["bench", "fanout", "--gateways", "0"], "1..=16"),
        (["bench", "fanout", "--workspace-rate", "fast"], "FROM..TO"),
        (["bench", "fanout", "--stalled", "3"], "--gateways"),
        (["bench", "storm", "--gateways", "1"], "2..=16"),
        (["bench", "storm", "--joins", "3"], "--model"),
    ] {
        let done = Done::of(conch(&arguments).output().expect("the binary starts"));
        assert!(done.code == 2 && done.stderr.contains(why), "{arguments:?}: {done:?}");
    }
}
