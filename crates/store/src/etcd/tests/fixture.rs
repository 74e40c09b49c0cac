//! A fresh database beside a shared etcd, with a clock that the test moves.
//!
//! etcd's clock cannot be moved, and goes on while a test runs: here leases are granted for much longer than was asked, and
//! what is left of them is counted on a clock that stands still until it is moved. So a lease can have run out without being
//! gone, as in the moments before etcd ends it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use conch_core::ids::Incarnation;

use super::super::testing::TestCluster;
use super::super::{EtcdStore, Guards};
use crate::Store;
use crate::conformance::{Epochs, Fixture, Steals};
use crate::postgres::testing::TestDatabase;
use crate::postgres::tests::fixture::{Clock, database, options};

/// Epochs begin above this, so that none of a test's made-up ones is anybody's.
const EPOCH_BASE: i64 = 1_000;

/// So many times longer than asked a lease is granted while the clock stands still.
const STRETCH: u64 = 40;

/// The clock of a store under test: the real one, until a fixture takes hold of it.
#[derive(Debug, Default)]
pub(in crate::etcd) struct MovedClock {
    held: Mutex<Option<Held>>,
}

#[derive(Debug, Default)]
struct Held {
    now_ms: i64,
    /// By the node: when its lease ends.
    ends_ms: BTreeMap<Incarnation, i64>,
}

impl MovedClock {
    fn lock(&self) -> MutexGuard<'_, Option<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stands still from here on.
    fn hold(&self) {
        *self.lock() = Some(Held::default());
    }

    fn pass(&self, ms: i64) {
        if let Some(held) = self.lock().as_mut() {
            held.now_ms += ms;
        }
    }

    /// The seconds to ask etcd for.
    pub(in crate::etcd) fn stretched(&self, seconds: u64) -> u64 {
        if self.lock().is_some() { seconds * STRETCH } else { seconds }
    }

    pub(in crate::etcd) fn renewed(&self, incarnation: Incarnation, ttl: Duration) {
        if let Some(held) = self.lock().as_mut() {
            let ttl_ms = i64::try_from(ttl.as_millis()).expect("tests use short leases");
            held.ends_ms.insert(incarnation, held.now_ms + ttl_ms);
        }
    }

    /// Milliseconds to the end of a node's lease; `None`: etcd's clock counts.
    pub(in crate::etcd) fn left(&self, incarnation: Incarnation) -> Option<i64> {
        let held = self.lock();
        let held = held.as_ref()?;
        held.ends_ms.get(&incarnation).map(|end| end - held.now_ms)
    }
}

pub(super) struct EtcdFixture {
    store: EtcdStore,
    client: tokio_postgres::Client,
    // Goes last, when nobody is connected any more.
    _database: TestDatabase<'static>,
    generations: Mutex<u64>,
}

impl EtcdFixture {
    pub(super) async fn new() -> Self {
        Self::with(Guards::default()).await
    }

    /// With guards taken out.
    pub(super) async fn with(guards: Guards) -> Self {
        let (database, client) = database(Clock::Moved).await;
        client.execute("UPDATE cluster_meta SET epoch_base = $1", &[&EPOCH_BASE]).await.expect("the base is set");
        let etcd = TestCluster::shared().url();
        let store = EtcdStore::open_with(&etcd, &database.url(), options("n1"), guards).await.expect("opens");
        store.inner.leases.clock.hold();
        Self { store, client, _database: database, generations: Mutex::new(0) }
    }
}

#[async_trait]
impl Fixture for EtcdFixture {
    fn store(&self) -> &dyn Store {
        &self.store
    }

    async fn move_clock(&self, by_ms: i64) {
        let sql = "UPDATE public.test_clock SET now_ms = now_ms + $1";
        self.client.execute(sql, &[&by_ms]).await.expect("the clock moves");
        self.store.inner.leases.clock.pass(by_ms);
    }

    async fn raise_generation(&self) -> bool {
        let above = {
            let mut generations = self.generations.lock().expect("not poisoned");
            *generations += 1;
            *generations
        };
        let sql = format!(
            "CREATE OR REPLACE FUNCTION store_gen() RETURNS bigint LANGUAGE sql STABLE AS $$ SELECT 1 + {above}::bigint $$"
        );
        self.client.batch_execute(&sql).await.expect("the generation rises");
        true
    }

    fn epochs(&self) -> Epochs {
        Epochs::Rising
    }

    fn steals(&self) -> Steals {
        Steals::Refused
    }
}
