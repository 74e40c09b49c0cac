//! A runtime whose every thread is blocked, and the heartbeat beside it. Named by its class of failure.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use conch_core::lease::LeaseTiming;
use futures_util::future::BoxFuture;

use super::heartbeat;
use crate::config::Config;
use crate::node::Node;
use crate::seams::Spawn;
use crate::testing::{empty_store, node};

const TIMING: LeaseTiming = LeaseTiming {
    ttl: Duration::from_millis(600),
    beat: Duration::from_millis(100),
    margin: Duration::from_millis(100),
};
/// Threads of the runtime.
const THREADS: usize = 2;
/// For so many leases all of them are blocked.
const LEASES: u32 = 5;

/// The mutant: what should have a thread of its own is one of the runtime's tasks.
struct Shared;

impl Spawn for Shared {
    fn spawn(&self, _name: &'static str, task: BoxFuture<'static, ()>) {
        tokio::spawn(task);
    }

    fn spawn_dedicated(&self, name: &'static str, task: BoxFuture<'static, ()>) {
        self.spawn(name, task);
    }
}

/// How often a node's lease was renewed while every thread of its runtime was blocked.
fn beats_while_blocked(change: impl FnOnce(&mut Node)) -> u64 {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build();
    let runtime = runtime.expect("a runtime starts");
    let mut node = node(&Config::default(), empty_store());
    let inner = Arc::get_mut(&mut node).expect("nobody else has it yet");
    inner.timing = TIMING;
    change(inner);
    let _lease = runtime.block_on(heartbeat::start(&node, String::new())).expect("registers");
    let beat = || {
        let rows = at_once(node.store.nodes()).expect("the memory store does not fail");
        rows.first().expect("it is registered").beat
    };
    let goal = beat() + 1;
    while beat() < goal {
        std::thread::yield_now();
    }
    let blocked = Arc::new(AtomicBool::new(true));
    let begun = Arc::new(std::sync::Barrier::new(THREADS + 1));
    for _ in 0..THREADS {
        let (blocked, begun) = (Arc::clone(&blocked), Arc::clone(&begun));
        runtime.spawn(async move {
            begun.wait();
            while blocked.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
    }
    begun.wait();
    let before = beat();
    // The length of the incident.
    std::thread::sleep(TIMING.ttl * LEASES);
    let beats = beat() - before;
    blocked.store(false, Ordering::Relaxed);
    beats
}

/// Runs what never waits, as the memory store's calls do not.
fn at_once<T>(work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match work.as_mut().poll(&mut context) {
        std::task::Poll::Ready(value) => value,
        std::task::Poll::Pending => panic!("a call of the memory store waits"),
    }
}

#[test]
fn starved_heartbeat() {
    let beats = beats_while_blocked(|_| ());
    assert!(beats >= u64::from(LEASES), "{beats} beats in {LEASES} leases");
    let starved = beats_while_blocked(|node| node.seams.spawner = Arc::new(Shared));
    assert_eq!(starved, 0, "a thread of its own is needed");
}
