//! The memory store's lifelines: locks that end with whoever holds them, and that a test may break.
//!
//! Invariant: a key is given once, and it is held exactly as long as its holder keeps it and nobody breaks it.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use tokio::sync::oneshot;

use crate::{HeldLifeline, Lifeline, Lifelines, LifelinesSeen, StoreError};

/// The locks of one memory store. Cheap to clone; clones are the same locks.
#[derive(Clone, Default)]
pub(super) struct MemoryLifelines {
    table: Arc<Mutex<Table>>,
}

#[derive(Default)]
struct Table {
    last_key: i64,
    /// How often the server has dropped every session.
    restarts: u64,
    held: BTreeMap<Lifeline, oneshot::Sender<Infallible>>,
}

impl MemoryLifelines {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_held(&self, key: Lifeline) -> bool {
        self.table().held.contains_key(&key)
    }

    /// Ends one session, as a terminated backend does.
    pub(super) fn cut(&self, key: Lifeline) -> bool {
        self.table().held.remove(&key).is_some()
    }

    /// Ends every session, as a crash of the database does; observers start over, too.
    pub(super) fn cut_all(&self) {
        let mut table = self.table();
        table.restarts += 1;
        table.held.clear();
    }
}

/// Gives the lock up when dropped.
struct MemorySession {
    lifelines: MemoryLifelines,
    key: Lifeline,
}

impl Drop for MemorySession {
    fn drop(&mut self) {
        self.lifelines.cut(self.key);
    }
}

#[async_trait]
impl Lifelines for MemoryLifelines {
    async fn hold(&self) -> Result<HeldLifeline, StoreError> {
        let (held, lost) = oneshot::channel();
        let mut table = self.table();
        table.last_key += 1;
        let key = Lifeline(table.last_key);
        table.held.insert(key, held);
        Ok(HeldLifeline { key, lost, session: Box::new(MemorySession { lifelines: self.clone(), key }) })
    }

    async fn observe(&self) -> Result<LifelinesSeen, StoreError> {
        let table = self.table();
        Ok(LifelinesSeen { observer: table.restarts, held: table.held.keys().copied().collect() })
    }
}
