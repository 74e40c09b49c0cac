//! The conformance suite on SQLite.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use async_trait::async_trait;
use conch_store::Store;
use conch_store::conformance::Fixture;
use conch_store::sqlite::{Options, SqliteStore};
use tempfile::TempDir;

/// Where the clock starts: the memory fixture's moment, so that answers can be compared.
const START_MS: i64 = 1_796_000_000_000;

/// A fresh data directory and a clock that stands still until it is moved.
pub(crate) struct SqliteFixture {
    // Before the directory: a store is closed before its files go.
    store: SqliteStore,
    now_ms: Arc<AtomicI64>,
    _directory: TempDir,
}

impl SqliteFixture {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let now_ms = Arc::new(AtomicI64::new(START_MS));
        let read = Arc::clone(&now_ms);
        let mut options = Options::new("n1".parse().expect("valid"));
        options.clock = Arc::new(move || read.load(Ordering::Relaxed));
        options.readers = 1;
        let store = SqliteStore::open(&directory.path().join("data"), options).expect("opens");
        Self { store, now_ms, _directory: directory }
    }
}

#[async_trait]
impl Fixture for SqliteFixture {
    fn store(&self) -> &dyn Store {
        &self.store
    }

    async fn move_clock(&self, by_ms: i64) {
        self.now_ms.fetch_add(by_ms, Ordering::Relaxed);
    }
}

conch_store::conformance_tests!(conformance, SqliteFixture::new());
