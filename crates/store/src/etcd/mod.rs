//! Ownership leases in etcd, records in PostgreSQL: for clusters whose nodes must agree across regions.
//!
//! etcd decides who owns a conversation and at which epoch; the database's fence is then told (*armed*), before the first
//! number is assigned, and checks each append as ever. Giving up is done in the database first, then in etcd. See
//! docs/adr/0010-leases-in-etcd.md.
//!
//! Invariants: an owner is armed before it may write, so that a fallen-behind claim never writes; what is not known to
//! have happened in both stores is [`StoreError::Ambiguous`] and settled by a claim; node leases are kept on a thread of
//! their own.
//!
//! Deliberately absent: streams of etcd's, which do not come back by themselves, and any opinion about liveness.

mod admin;
mod client;
mod error;
mod leases;
mod lifelines;
mod node;
mod ownership;
mod start;
mod store;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod tls;
mod url;
mod wire;

use std::future::Future;
use std::sync::{Arc, Mutex};

use tokio::runtime::Handle;
use tokio::time::Instant;

pub use admin::{KeptIn, restored, switch_to_etcd, switch_to_postgres};
pub use error::OpenError;
pub use url::check as check_url;

use client::Client;
use leases::Leases;
use lifelines::ListedLifelines;
use node::Keys;
use ownership::{NodeKeyGuard, Ownerships};

use crate::StoreError;
use crate::own_thread::{Effect, Lane, OwnThread};
use crate::postgres::{self, LeaseMode, Options, PostgresStore};

/// Guards that a test can take out, to show that its checks can fail.
#[derive(Debug, Clone, Copy, Default)]
struct Guards {
    node_key: NodeKeyGuard,
    records: postgres::Guards,
}

struct Inner {
    records: PostgresStore,
    leases: Arc<Leases>,
    ownerships: Ownerships,
    thread: OwnThread,
    /// Of one's own lease.
    heartbeat: Arc<Client>,
    /// Of the nodes'.
    membership: Arc<Client>,
    /// Of the conversations'; lives on the runtime.
    claims: Arc<Client>,
    lifelines: Arc<ListedLifelines>,
    runtime: Handle,
    /// Until then etcd is not asked for mere names, because it did not answer.
    names_paused_until: Mutex<Option<Instant>>,
}

/// A store with its leases in etcd and its records in PostgreSQL. Cheap to clone; clones are the same store.
#[derive(Clone)]
pub struct EtcdStore {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let place = self.inner.claims.target().place();
        f.debug_struct("EtcdStore").field("etcd", &place).field("records", &self.inner.records).finish()
    }
}

impl EtcdStore {
    /// Connects to both, checks that a majority of etcd stands and that the database's leases are in this very cluster.
    /// `options.lease_mode` is set here. Claims and records run on the tokio runtime that this is called on; node leases
    /// on a thread of the store's own.
    ///
    /// # Errors
    /// As [`OpenError`] lists, after `options.connect_patience` at most for what may pass.
    pub async fn open(leases: &str, database: &str, options: Options) -> Result<Self, OpenError> {
        let guards = Guards { records: postgres::Guards::of_process(), ..Guards::default() };
        Self::open_with(leases, database, options, guards).await
    }

    async fn open_with(leases: &str, database: &str, mut options: Options, guards: Guards) -> Result<Self, OpenError> {
        let target = url::parse(leases)?;
        let place = target.place();
        let failed = |detail: String| OpenError::Failed { place: place.clone(), detail };
        let claims = Client::new(target.clone());
        let cluster_id = start::probe(&claims, options.connect_patience).await?;
        options.lease_mode = LeaseMode::Etcd { cluster_id };
        let records = PostgresStore::open_with(database, options, guards.records).await?;
        let system_id = records.system_id().await.map_err(|error| failed(error.to_string()))?;
        let thread = OwnThread::start("etcd-leases")
            .map_err(|error| failed(format!("the thread of the node leases cannot be started: {error}")))?;
        let (heartbeat, membership) = (Client::new(target.clone()), Client::new(target));
        for client in [&claims, &heartbeat, &membership] {
            client.expect_cluster(cluster_id);
        }
        let leases = Arc::new(Leases::new(Keys::new(&system_id)));
        let epoch_base = records.epoch_base();
        let lifelines =
            ListedLifelines::new(records.clone(), Arc::clone(&leases), thread.clone(), Arc::clone(&membership));
        let inner = Inner {
            ownerships: Ownerships { leases: Arc::clone(&leases), epoch_base, guard: guards.node_key },
            records,
            leases,
            thread,
            heartbeat,
            membership,
            claims,
            lifelines: Arc::new(lifelines),
            runtime: Handle::current(),
            names_paused_until: Mutex::default(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The records' store.
    #[must_use]
    pub fn records(&self) -> &PostgresStore {
        &self.inner.records
    }

    /// Runs work about conversations as a task, so that a caller who goes away cannot cut it.
    async fn on_runtime<T, F, W>(&self, effect: Effect, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(Arc<Inner>) -> W,
        W: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let task = self.inner.runtime.spawn(work(Arc::clone(&self.inner)));
        task.await.unwrap_or_else(|_| Err(effect.lost("the runtime ended meanwhile")))
    }

    /// Runs work about node leases on their thread.
    async fn on_thread<T, F, W>(&self, lane: Lane, effect: Effect, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(Arc<Inner>) -> W + Send + 'static,
        W: Future<Output = Result<T, StoreError>> + Send,
    {
        let inner = Arc::clone(&self.inner);
        self.inner.thread.run(lane, effect, move || work(inner)).await
    }
}
