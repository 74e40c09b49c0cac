//! The memory store as a fixture.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use async_trait::async_trait;

use super::Fixture;
use crate::Store;
#[cfg(any(test, feature = "mutants"))]
use crate::memory::Mutant;
use crate::memory::{MemoryStore, StoreClock};

/// Where the clock of a fixture starts, in milliseconds since 1970: some day in November 2026.
pub(crate) const START_MS: i64 = 1_796_000_000_000;

/// A memory store with a clock that stands still until it is moved.
pub struct MemoryFixture {
    store: MemoryStore,
    now_ms: Arc<AtomicI64>,
}

impl MemoryFixture {
    /// A fresh one.
    #[must_use]
    pub fn new() -> Self {
        Self::with(|clock| MemoryStore::new("memory", clock))
    }

    /// A fresh one with one guard off.
    #[cfg(any(test, feature = "mutants"))]
    #[must_use]
    pub fn mutated(mutant: Mutant) -> Self {
        Self::with(|clock| MemoryStore::mutated("memory", clock, mutant))
    }

    fn with(make: impl FnOnce(StoreClock) -> MemoryStore) -> Self {
        let now_ms = Arc::new(AtomicI64::new(START_MS));
        let read = Arc::clone(&now_ms);
        Self { store: make(Arc::new(move || read.load(Ordering::Relaxed))), now_ms }
    }

    /// The store itself.
    #[must_use]
    pub fn memory(&self) -> &MemoryStore {
        &self.store
    }
}

impl Default for MemoryFixture {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Fixture for MemoryFixture {
    fn store(&self) -> &dyn Store {
        &self.store
    }

    async fn move_clock(&self, by_ms: i64) {
        self.now_ms.fetch_add(by_ms, Ordering::Relaxed);
    }

    async fn raise_generation(&self) -> bool {
        self.store.bump_generation();
        true
    }
}
