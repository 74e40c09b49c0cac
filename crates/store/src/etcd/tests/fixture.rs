//! A fresh database beside a shared etcd, with a clock that the test moves.
//!
//! etcd's clock cannot be moved: what a test lets pass is taken off the time that etcd says is left of a lease, until the
//! lease is renewed. So a lease can have run out without being gone, as in the moments before etcd ends it.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

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

/// How far a test moved the clock, and where it stood at each renewal.
#[derive(Debug, Default)]
pub(in crate::etcd) struct MovedClock {
    moved: Mutex<(i64, BTreeMap<Incarnation, i64>)>,
}

impl MovedClock {
    /// Milliseconds that a test let pass since this node's last renewal, or its registration.
    pub(in crate::etcd) fn since_renewal(&self, incarnation: Incarnation) -> i64 {
        let moved = self.moved.lock().unwrap_or_else(PoisonError::into_inner);
        moved.0 - moved.1.get(&incarnation).copied().unwrap_or(0)
    }

    pub(in crate::etcd) fn renewed(&self, incarnation: Incarnation) {
        let mut moved = self.moved.lock().unwrap_or_else(PoisonError::into_inner);
        let now = moved.0;
        moved.1.insert(incarnation, now);
    }

    fn pass(&self, ms: i64) {
        self.moved.lock().unwrap_or_else(PoisonError::into_inner).0 += ms;
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
