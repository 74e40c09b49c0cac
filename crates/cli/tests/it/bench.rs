//! The parts of a bench that need no server. What a bench measures is no test; that it counts right is.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use serde_json::{Value, json};

use crate::node::{conch, until};

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
    let mut clients = Worker::start(&["bench", "fanout-clients", "--address", &address, "--sessions", "40"]);
    assert_eq!(clients.answer(), json!({"sessions": 40}));
    assert_eq!(sender.answer(), json!({"sockets": 40}));
    let sent = sender.ask(&json!({"messages": 25, "rate": 1000, "frame_bytes": 400}));
    assert_eq!(sent["sends"], 1_000);
    let delivered = until("everything to arrive", || {
        let delivered = clients.ask(&json!("Look"));
        (delivered["deliveries"] == 1_000).then_some(delivered)
    });
    assert_eq!((&delivered["least"], &delivered["most"]), (&json!(25), &json!(25)));
    assert_eq!((&delivered["out_of_order"], &delivered["bytes"]), (&json!(0), &json!(400_000)));
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
