//! What a client that never reads may cost the server: bounded memory, and nothing for the others.

use conch_cli::client::{HttpClient, PhoenixSocket};

use crate::node::{Home, Node, message, runtime};

/// Pushes under way on one socket by default.
const PUSHES: u64 = 64;
/// What 64 unread pages of a mebibyte each, and their encodings, would exceed by far.
const GROWTH_MAX_KIB: u64 = 64 * 1024;

pub(crate) fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
    line.trim().trim_end_matches(" kB").trim().parse().expect("a number")
}

/// A node with a conversation, perhaps without one of its rules.
fn start(home: &Home, mutant: Option<&str>) -> Node {
    let mut serve = home.serve();
    serve.envs(mutant.map(|mutant| ("CONCH_MUTANT", mutant)));
    let node = home.start_with(serve);
    assert_eq!(home.run(&["create", "room"]).code, 0);
    node
}

/// By how many KiB a node grows while a client pushes for pages that it does not read, and others go on.
fn growth_kib(mutant: Option<&str>) -> u64 {
    let scratch = tempfile::tempdir().expect("a directory");
    let home = Home::new(scratch.path());
    let node = start(&home, mutant);
    let client = HttpClient::new(home.unlimited("writer")).expect("a client");
    runtime().block_on(async {
        let text = "x".repeat(60_000);
        for key in 0..80 {
            client.attempt(&message("room", &key.to_string(), &text)).await.expect("acked");
        }
        let before = resident_kib(node.pid());
        let mut socket = PhoenixSocket::connect(&home.unlimited("deaf")).await.expect("upgrades");
        let joined = socket.join("conversation:room", "{}", &mut drop).await.expect("joins");
        for _ in 0..PUSHES {
            socket.push(&joined, "history", r#"{"limit":500}"#).await.expect("sent");
        }
        let mut most = 0;
        for key in 100..200 {
            // Others are served while the pages wait.
            client.attempt(&message("room", &key.to_string(), "hi")).await.expect("acked");
            most = most.max(resident_kib(node.pid()));
        }
        // Whoever reads at last has an answer to each push: the page, or a directive.
        for _ in 0..PUSHES {
            socket.next_reply().await.expect("answered");
        }
        most.saturating_sub(before)
    })
}

#[test]
fn pages_of_history_that_nobody_reads_cost_a_page_and_not_one_for_each_push() {
    let growth = growth_kib(None);
    assert!(growth < GROWTH_MAX_KIB, "{PUSHES} unread pages took {growth} KiB");
    let unbounded = growth_kib(Some("unread_pages"));
    assert!(unbounded >= GROWTH_MAX_KIB, "without the rule they took {unbounded} KiB, which nobody would notice");
}

/// Idle sockets.
const SOCKETS: usize = 600;
/// Twice what a session may take in a release build: this one is none.
const SESSION_MAX_BYTES: u64 = 16 * 1024;
/// What each has sent before it is idle.
const SENT_BYTES: usize = 24 * 1024;

/// By how many bytes a node grows for each of many sockets that have joined, said something large and are idle.
fn growth_per_socket(mutant: Option<&str>) -> u64 {
    let scratch = tempfile::tempdir().expect("a directory");
    let home = Home::new(scratch.path());
    let node = start(&home, mutant);
    let endpoint = home.unlimited("idle");
    runtime().block_on(async {
        let large = format!(r#"{{"nothing":"{}"}}"#, "x".repeat(SENT_BYTES));
        let mut sockets = Vec::new();
        let mut before = 0;
        for number in 0..=SOCKETS {
            let mut socket = PhoenixSocket::connect(&endpoint).await.expect("upgrades");
            let joined = socket.join("conversation:room", "{}", &mut drop).await.expect("joins");
            socket.push(&joined, "no such event", &large).await.expect("sent");
            let (_, is_ok) = socket.next_reply().await.expect("answered");
            assert!(!is_ok, "there is no such event");
            sockets.push(socket);
            if number == 0 {
                // What is there once, however many come.
                before = resident_kib(node.pid());
            }
        }
        let grown_kib = resident_kib(node.pid()).saturating_sub(before);
        grown_kib * 1024 / u64::try_from(SOCKETS).expect("few")
    })
}

#[test]
fn memory_blow_up_per_connection() {
    let growth = growth_per_socket(None);
    assert!(growth < SESSION_MAX_BYTES, "an idle session takes {growth} bytes");
    let unbounded = growth_per_socket(Some("idle_buffers"));
    assert!(unbounded >= SESSION_MAX_BYTES, "without the rule it takes {unbounded} bytes, which nobody would notice");
}
