//! The suite, on the memory store, through a fault plan without faults, and against every mutant.

use std::sync::Arc;

use async_trait::async_trait;

use super::{CASES, Fixture, MemoryFixture};
use crate::Store;
use crate::faulty::{Call, Fault, FaultPlan, FaultyStore};
use crate::memory::{MemoryStore, Mutant};

crate::conformance_tests!(memory, MemoryFixture::new());
crate::conformance_tests!(memory_behind_a_quiet_plan, QuietFixture::new());

struct Quiet;

impl FaultPlan for Quiet {
    fn next(&self, _call: Call) -> Fault {
        Fault::None
    }
}

/// Shows that a [`FaultyStore`] passes every call on as it is.
struct QuietFixture {
    memory: MemoryFixture,
    store: FaultyStore<MemoryStore>,
}

impl QuietFixture {
    fn new() -> Self {
        let memory = MemoryFixture::new();
        let inner = Arc::new(memory.memory().clone());
        let store = FaultyStore::new(inner, Arc::new(Quiet), Arc::new(|_| unreachable!("nothing is late")));
        Self { memory, store }
    }
}

#[async_trait]
impl Fixture for QuietFixture {
    fn store(&self) -> &dyn Store {
        &self.store
    }

    async fn move_clock(&self, by_ms: i64) {
        self.memory.move_clock(by_ms).await;
    }

    async fn raise_generation(&self) -> bool {
        self.memory.raise_generation().await
    }
}

/// A check that cannot fail is worse than none: each guard, taken out, is missed by at least one case.
#[tokio::test(flavor = "current_thread")]
async fn every_mutant_is_caught() {
    let mut escaped = Vec::new();
    for &mutant in Mutant::ALL {
        let mut caught_by = Vec::new();
        for case in CASES {
            if case.run(&MemoryFixture::mutated(mutant)).await.is_err() {
                caught_by.push(case.name);
            }
        }
        if caught_by.is_empty() {
            escaped.push(mutant);
        }
    }
    assert!(escaped.is_empty(), "no case of the suite misses the guards that these take out: {escaped:?}");
}

#[test]
fn names_are_unique() {
    let mut names: Vec<_> = CASES.iter().map(|case| case.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), CASES.len());
}
