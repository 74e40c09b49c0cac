//! A fresh database whose clock the test moves.
//!
//! The store's statements call `clock_timestamp()`. In a test's database the schema `public` is searched before
//! `pg_catalog`, and holds a function of that name which reads a table: so the store runs its own statements unchanged.

use std::sync::Mutex;

use async_trait::async_trait;

use super::super::testing::{TestDatabase, TestServer};
use super::super::{Durability, Guards, Options, PostgresStore};
use crate::Store;
use crate::conformance::Fixture;

/// Where the clock starts: the memory fixture's moment, so that answers can be compared.
const START_MS: i64 = 1_796_000_000_000;

pub(super) fn options(node: &str) -> Options {
    let mut options = Options::new(node.parse().expect("valid"), [7; 32]);
    options.durability = Durability::Unchecked;
    options.writers = 2;
    options
}

/// A connection of the test's own.
pub(super) async fn connect(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.expect("connects");
    tokio::spawn(connection);
    client
}

pub(super) struct PostgresFixture {
    store: PostgresStore,
    client: tokio_postgres::Client,
    pub(super) database: TestDatabase<'static>,
    generations: Mutex<u64>,
}

impl PostgresFixture {
    pub(super) async fn new() -> Self {
        Self::with(Guards::default()).await
    }

    /// With guards taken out.
    pub(super) async fn with(guards: Guards) -> Self {
        let server = TestServer::shared();
        let database = server.database();
        server.sql(&format!("ALTER DATABASE {} SET search_path = public, pg_catalog", database.name()));
        let client = connect(&database.url()).await;
        let clock = format!(
            "CREATE TABLE public.test_clock(now_ms bigint NOT NULL);
             INSERT INTO public.test_clock VALUES ({START_MS});
             CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
               AS $$ SELECT 'epoch'::timestamptz + now_ms * interval '1 millisecond' FROM public.test_clock $$"
        );
        client.batch_execute(&clock).await.expect("the clock is made");
        let store = PostgresStore::open_with(&database.url(), options("n1"), guards).await.expect("opens");
        Self { store, client, database, generations: Mutex::new(0) }
    }

    pub(super) fn postgres(&self) -> &PostgresStore {
        &self.store
    }
}

#[async_trait]
impl Fixture for PostgresFixture {
    fn store(&self) -> &dyn Store {
        &self.store
    }

    async fn move_clock(&self, by_ms: i64) {
        let sql = "UPDATE public.test_clock SET now_ms = now_ms + $1";
        self.client.execute(sql, &[&by_ms]).await.expect("the clock moves");
    }

    async fn raise_generation(&self) -> bool {
        let above = {
            let mut generations = self.generations.lock().expect("not poisoned");
            *generations += 1;
            *generations
        };
        // As a promotion does it, one timeline a time.
        let sql = format!(
            "CREATE OR REPLACE FUNCTION store_gen() RETURNS bigint LANGUAGE sql STABLE AS $$ SELECT 1 + {above}::bigint $$"
        );
        self.client.batch_execute(&sql).await.expect("the generation rises");
        true
    }
}
