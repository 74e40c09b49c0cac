//! The SQLite store: one directory, one process, the same tables and conditions as on a server database.
//!
//! Invariants: an answered write is on disk (write-ahead log, synced at each commit; invariant 3); a read sees one
//! snapshot; at most one process uses a directory, and while it holds the lock, every older node row is known to be dead.
//!
//! Deliberately absent: an asynchronous runtime. Threads do the work and channels of `tokio::sync` carry it, so that any
//! executor can call it. Dropping the store waits for what is queued, closes the database and frees the directory.

mod append;
mod conversations;
mod directory;
mod error;
mod leases;
mod queries;
mod readers;
mod rows;
mod schema;
mod size;
mod store;
#[cfg(test)]
mod tests;
mod verify;
mod writer;

use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use conch_core::ids::NodeName;

pub use directory::{DATABASE_FILE, LOCK_FILE};
pub use error::OpenError;
pub use size::size;
pub use verify::verify;

use directory::DirectoryLock;
use readers::Readers;
use schema::Identity;
use writer::Writer;

/// The store's clock: milliseconds since 1970.
pub type StoreClock = Arc<dyn Fn() -> i64 + Send + Sync>;

/// Threads that read, unless the options say otherwise.
const DEFAULT_READERS: usize = 4;
/// Most threads that read.
const READERS_MAX: usize = 64;

/// How a data directory is opened.
#[derive(Clone)]
pub struct Options {
    /// Who opens it; a second process is told.
    pub node: NodeName,
    /// The clock that leases and records are measured with.
    pub clock: StoreClock,
    /// Threads that read, 1 to 64; another number counts as the nearest of these.
    pub readers: usize,
}

impl Options {
    /// The machine's calendar and the usual number of readers.
    #[must_use]
    pub fn new(node: NodeName) -> Self {
        Self { node, clock: Arc::new(calendar_ms), readers: DEFAULT_READERS }
    }
}

fn calendar_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// What the threads share.
struct Shared {
    identity: Identity,
    clock: StoreClock,
}

/// A store in a data directory.
// The fields are dropped in this order: the lock goes last, when nothing can be written any more.
pub struct SqliteStore {
    readers: Readers,
    writer: Writer,
    shared: Arc<Shared>,
    _lock: DirectoryLock,
}

impl std::fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteStore").field("log", &self.shared.identity.log).finish_non_exhaustive()
    }
}

impl SqliteStore {
    /// Opens a data directory, which is made if it is missing, and takes it for this process alone.
    ///
    /// Every node row in it belongs to a process that is dead, since it does not hold the lock, and is deleted: what
    /// those owned may be claimed at once. Blocks while it opens and checks the files, well below a second.
    ///
    /// # Errors
    /// As [`OpenError`] lists; each names the file. A refused file is left as it was.
    pub fn open(directory: &Path, options: Options) -> Result<Self, OpenError> {
        let lock = directory::lock(directory, &options.node)?;
        let file = directory.join(DATABASE_FILE);
        let connection = schema::open_writer(&file)?;
        let sqlite = |error: rusqlite::Error| schema::open_error(&file, &error);
        let identity = schema::identity(&connection).map_err(sqlite)?;
        let dead = leases::delete_all_nodes(&connection).map_err(sqlite)?;
        if dead > 0 {
            tracing::info!(nodes = dead, "deleted the node rows of processes that are dead");
        }
        // After the first write: now the database and its log exist, and neither goes while a connection is open.
        let system = |source: std::io::Error| OpenError::Directory { path: directory.to_owned(), source };
        directory::sync(directory).map_err(system)?;
        let readers = (0..options.readers.clamp(1, READERS_MAX)).map(|_| schema::open_reader(&file));
        let readers = readers.collect::<Result<Vec<_>, _>>()?;
        let shared = Arc::new(Shared { identity, clock: options.clock });
        Ok(Self {
            readers: Readers::start(readers, &shared).map_err(system)?,
            writer: Writer::start(connection, Arc::clone(&shared)).map_err(system)?,
            shared,
            _lock: lock,
        })
    }
}
