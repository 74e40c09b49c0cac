//! What several tasks of one simulation share. There is one thread, so a lock never waits; it is never held across an
//! await.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A cell shared by tasks.
pub type Shared<T> = Arc<Mutex<T>>;

/// A new cell.
pub(crate) fn shared<T>(value: T) -> Shared<T> {
    Arc::new(Mutex::new(value))
}

/// Looks into a cell. A poisoned lock means that a panic is on its way out already; the value is whole between statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
