//! The PostgreSQL store: records and, by default, leases of a cluster, on a server of version 15 or later.
//!
//! Invariants: an answered write is committed (synchronous_commit on, fsync on); a read sees one snapshot; an append is
//! checked against the head in its own statement, whoever sends it and whenever it arrives (invariant 8); node leases are
//! kept on a thread and connections of their own, so that nothing starves a heartbeat; a dropped future never cuts a
//! statement that was begun.
//!
//! Deliberately absent: retries of what may have happened, caches, and opinions about liveness.

mod admin;
mod append;
pub mod bench;
mod conversations;
mod elsewhere;
mod error;
mod lease_thread;
mod lifelines;
mod nodes;
mod ownership;
mod pool;
mod queries;
mod rows;
mod schema;
mod session;
mod start;
mod store;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
pub(crate) mod tests;
mod tls;
mod url;
mod verify;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use conch_core::ids::NodeName;
use tokio::runtime::Handle;

pub use admin::{NodesInEtcd, restored, switch_leases, system_id};
pub(crate) use elsewhere::ArmGuard;
pub use elsewhere::ArmOutcome;
pub use error::OpenError;
pub use verify::{verify, verify_conversation};

use append::{FenceGuard, Writers};
use error::CallError;
use lease_thread::LeaseThread;
use lifelines::PostgresLifelines;
use ownership::GapGuard;
use pool::{Pool, Pooled};
use session::Dialer;
use start::Facts;

use crate::StoreError;
use crate::own_thread::Effect;

/// Connections that carry appends, unless the options say otherwise.
const DEFAULT_WRITERS: usize = 4;
/// Most connections that carry appends.
const WRITERS_MAX: usize = 64;
/// Connections for everything else but the leases, unless the options say otherwise.
const DEFAULT_POOL: usize = 8;
/// Most of them.
const POOL_MAX: usize = 256;
/// How long a start waits for a server that is not there yet.
const DEFAULT_CONNECT_PATIENCE: Duration = Duration::from_secs(10);

/// Where the cluster's leases are kept. All nodes of a database must agree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseMode {
    /// In this database.
    Postgres,
    /// In etcd; records are here.
    Etcd {
        /// etcd's own id of its cluster.
        cluster_id: u64,
    },
}

impl LeaseMode {
    /// As `cluster_meta` keeps it: the mode and the other store's id.
    fn stored(&self) -> (&'static str, Option<String>) {
        match self {
            Self::Postgres => ("postgres", None),
            Self::Etcd { cluster_id } => ("etcd", Some(format!("{cluster_id:x}"))),
        }
    }

    /// For a message.
    fn describe(mode: &str, cluster: Option<&str>) -> String {
        match (mode, cluster) {
            ("postgres", _) => "this database".to_owned(),
            (mode, Some(cluster)) => format!("the {mode} cluster {cluster}"),
            (mode, None) => mode.to_owned(),
        }
    }
}

/// What is demanded of the server's disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// A server with fsync=off is refused.
    Checked,
    /// It is not, which is right for nothing but tests.
    Unchecked,
}

/// How a database is opened.
#[derive(Debug, Clone)]
pub struct Options {
    /// Who opens it; shown in the server's list of activity.
    pub node: NodeName,
    /// A digest of the cluster's secret. The database keeps a salted digest of this, and refuses another one.
    pub secret_fingerprint: [u8; 32],
    /// Where the leases are kept.
    pub lease_mode: LeaseMode,
    /// Connections that carry appends, 1 to 64; another number counts as the nearest of these.
    pub writers: usize,
    /// Connections for reads and claims, 1 to 256; another number counts as the nearest of these.
    pub pool: usize,
    /// How long a start waits for a server that cannot be reached.
    pub connect_patience: Duration,
    /// What is demanded of the server's disk.
    pub durability: Durability,
}

impl Options {
    /// Leases in the database, the usual numbers of connections, and a checked disk.
    #[must_use]
    pub fn new(node: NodeName, secret_fingerprint: [u8; 32]) -> Self {
        Self {
            node,
            secret_fingerprint,
            lease_mode: LeaseMode::Postgres,
            writers: DEFAULT_WRITERS,
            pool: DEFAULT_POOL,
            connect_patience: DEFAULT_CONNECT_PATIENCE,
            durability: Durability::Checked,
        }
    }
}

/// Guards that a test can take out, to show that its checks can fail.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Guards {
    fence: FenceGuard,
    gap: GapGuard,
    pub(crate) arm: ArmGuard,
}

impl Guards {
    /// All of them.
    #[cfg(not(feature = "mutants"))]
    pub(crate) fn of_process() -> Self {
        Self::default()
    }

    /// All of them, unless the variable `CONCH_MUTANT` (names, with commas between them) has `fence`: a process of a test,
    /// which that test must catch.
    #[cfg(feature = "mutants")]
    pub(crate) fn of_process() -> Self {
        let mutants = std::env::var("CONCH_MUTANT").unwrap_or_default();
        let fence = if mutants.split(',').any(|name| name == "fence") { FenceGuard::Off } else { FenceGuard::On };
        Self { fence, ..Self::default() }
    }
}

struct Inner {
    pool: Arc<Pool>,
    writers: Arc<Writers>,
    leases: LeaseThread,
    lifelines: Arc<PostgresLifelines>,
    /// Where everything but the leases runs.
    runtime: Handle,
    facts: Facts,
    lease_mode: LeaseMode,
    gap: GapGuard,
    arm: ArmGuard,
}

/// A store on a PostgreSQL server. Cheap to clone; clones are the same store.
#[derive(Clone)]
pub struct PostgresStore {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresStore").field("lease_mode", &self.inner.lease_mode).finish_non_exhaustive()
    }
}

impl PostgresStore {
    /// Connects, checks the server and whose database it is, and creates the tables if there are none.
    ///
    /// Appends and reads run on the tokio runtime that this is called on; node leases on a thread of the store's own. Any
    /// executor may await the calls.
    ///
    /// # Errors
    /// As [`OpenError`] lists; each names what is wrong. A refused database is left as it was.
    pub async fn open(database: &str, options: Options) -> Result<Self, OpenError> {
        Self::open_with(database, options, Guards::of_process()).await
    }

    pub(crate) async fn open_with(database: &str, options: Options, guards: Guards) -> Result<Self, OpenError> {
        let dialer = Arc::new(Dialer::new(url::parse(database)?, options.node.to_string(), options.durability));
        let session = start::prepare(&dialer, &options).await?;
        let facts = start::join(&session, dialer.place(), &options).await?;
        let leases = LeaseThread::start(Arc::clone(&dialer)).map_err(|error| OpenError::Failed {
            place: dialer.place().to_owned(),
            detail: format!("the thread of the node leases cannot be started: {error}"),
        })?;
        let inner = Inner {
            pool: Pool::new(&dialer, options.pool.clamp(1, POOL_MAX)),
            writers: Writers::new(Arc::clone(&dialer), options.writers.clamp(1, WRITERS_MAX), guards.fence),
            lifelines: Arc::new(PostgresLifelines::new(leases.clone())),
            leases,
            runtime: Handle::current(),
            facts,
            lease_mode: options.lease_mode,
            gap: guards.gap,
            arm: guards.arm,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Where the cluster's leases are kept.
    #[must_use]
    pub fn lease_mode(&self) -> &LeaseMode {
        &self.inner.lease_mode
    }

    /// Runs `work` on a pooled session, whether or not the caller still waits.
    async fn pooled<T, F, W>(&self, effect: Effect, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(Pooled) -> W + Send + 'static,
        W: Future<Output = Result<T, CallError>> + Send,
    {
        let pool = Arc::clone(&self.inner.pool);
        self.on_runtime(effect, async move {
            let session = pool.take().await?;
            work(session).await.map_err(|error| effect.judge(error))
        })
        .await
    }

    /// Runs `work` as a task, so that a caller who goes away cannot cut it.
    async fn on_runtime<T>(
        &self,
        effect: Effect,
        work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
    {
        let task = self.inner.runtime.spawn(work);
        task.await.unwrap_or_else(|_| Err(effect.lost("the runtime ended meanwhile")))
    }
}
