//! A fresh database whose clock the test moves.
//!
//! The store's statements call `clock_timestamp()`. In a test's database the schema `public` is searched before
//! `pg_catalog`, and holds a function of that name which reads a table: so the store runs its own statements unchanged.

use std::sync::{Mutex, OnceLock};

use async_trait::async_trait;

use super::super::schema::SYSTEM_ID;
use super::super::testing::{TestDatabase, TestServer};
use super::super::{Durability, Guards, Options, PostgresStore};
use crate::Store;
use crate::conformance::Fixture;

/// Where the clock starts: the memory fixture's moment, so that answers can be compared.
const START_MS: i64 = 1_796_000_000_000;

pub(crate) fn options(node: &str) -> Options {
    let mut options = Options::new(node.parse().expect("valid"), [7; 32]);
    options.durability = Durability::Unchecked;
    options.writers = 2;
    options
}

/// A connection of the test's own.
pub(crate) async fn connect(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.expect("connects");
    tokio::spawn(connection);
    client
}

/// Databases with the tables in them, to be copied: that is quicker than to make the tables each time.
fn template(clock: Clock) -> &'static str {
    static REAL: OnceLock<TestDatabase<'static>> = OnceLock::new();
    static MOVED: OnceLock<TestDatabase<'static>> = OnceLock::new();
    let cell = match clock {
        Clock::Real => &REAL,
        Clock::Moved => &MOVED,
    };
    let make = || {
        // On a thread of its own: the caller is inside a runtime.
        let made = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
            runtime.block_on(make_template(clock))
        });
        made.join().expect("the template is made")
    };
    cell.get_or_init(make).name()
}

async fn make_template(clock: Clock) -> TestDatabase<'static> {
    let server = TestServer::shared();
    let database = server.database();
    let client = connect(&database.url()).await;
    if clock == Clock::Moved {
        let sql = format!(
            "CREATE TABLE public.test_clock(now_ms bigint NOT NULL);
             INSERT INTO public.test_clock VALUES ({START_MS});
             CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
               AS $$ SELECT 'epoch'::timestamptz + now_ms * interval '1 millisecond' FROM public.test_clock $$"
        );
        client.batch_execute(&sql).await.expect("the clock is made");
    }
    drop(PostgresStore::open(&database.url(), options("template")).await.expect("opens"));
    // Whoever opens a copy is the first node of its cluster.
    let sql = "UPDATE cluster_meta SET lease_mode = NULL, secret_hash = NULL";
    client.execute(sql, &[]).await.expect("forgets its cluster");
    database
}

/// The clock that a database's statements see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clock {
    /// The server's.
    Real,
    /// One that stands still until it is moved.
    Moved,
}

/// A database with empty tables, and a connection to it.
pub(crate) async fn database(clock: Clock) -> (TestDatabase<'static>, tokio_postgres::Client) {
    let server = TestServer::shared();
    let database = server.database_like(template(clock));
    if clock == Clock::Moved {
        server.sql(&format!("ALTER DATABASE {} SET search_path = public, pg_catalog", database.name()));
    }
    let client = connect(&database.url()).await;
    let sql = format!("UPDATE cluster_meta SET system_id = {SYSTEM_ID}");
    client.execute(&sql, &[]).await.expect("the copy is no copy");
    (database, client)
}

pub(crate) struct PostgresFixture {
    store: PostgresStore,
    client: tokio_postgres::Client,
    // Goes last, when nobody is connected any more.
    _database: TestDatabase<'static>,
    generations: Mutex<u64>,
}

impl PostgresFixture {
    pub(super) async fn new() -> Self {
        Self::with(Guards::default()).await
    }

    /// With guards taken out.
    pub(super) async fn with(guards: Guards) -> Self {
        let (database, client) = database(Clock::Moved).await;
        let store = PostgresStore::open_with(&database.url(), options("n1"), guards).await.expect("opens");
        Self { store, client, _database: database, generations: Mutex::new(0) }
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
