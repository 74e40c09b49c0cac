//! From a store's URL to the store: for a node, and for what an operator does beside running ones.
//!
//! Deliberately absent: any decision about what a store holds. See [`conch_store`].

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest;
use conch_core::ids::NodeName;
use conch_store::etcd::{self, EtcdStore};
use conch_store::postgres::{self, PostgresStore};
use conch_store::sqlite::{self, SqliteStore};
use conch_store::{LeaseStore, Store};

use crate::auth::secret::{Mode, SecretError, SigningKey};
use crate::config::{Config, LeasesUrl, StoreUrl};

/// How long a predecessor may take to vanish after it was killed.
const PREDECESSOR_EXIT: Duration = Duration::from_millis(500);
/// What sets the digest of a secret that a database may see apart from every other use of the secret.
const FINGERPRINT_LABEL: &[u8] = b"conch cluster secret fingerprint v1";

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenStoreError {
    /// The data directory or its database. One in use belongs to a live process.
    #[error(transparent)]
    Sqlite(#[from] sqlite::OpenError),
    /// The database server.
    #[error(transparent)]
    Postgres(#[from] postgres::OpenError),
    /// The etcd cluster of the leases.
    #[error(transparent)]
    Etcd(#[from] etcd::OpenError),
    /// The key.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// Nodes of a cluster have to agree on a key.
    #[error("auth.secret: a postgres:// store needs one that all its nodes share; set CONCH_AUTH_SECRET")]
    NeedsSecret,
}

/// The key of a node: the configured one; on an embedded store also the development key of its data directory, which is made
/// from `fresh` if there is none yet.
///
/// # Errors
/// [`OpenStoreError::Secret`] or [`OpenStoreError::NeedsSecret`].
pub fn signing_key(config: &Config, fresh: impl FnOnce() -> [u8; 32]) -> Result<SigningKey, OpenStoreError> {
    match &config.store {
        StoreUrl::Sqlite(directory) => Ok(SigningKey::load(config.auth.configured(), directory, fresh)?),
        StoreUrl::Postgres(_) => configured_key(config),
    }
}

/// The key as a command beside a node finds it; nothing is made.
///
/// # Errors
/// As [`signing_key`].
pub fn find_signing_key(config: &Config) -> Result<SigningKey, OpenStoreError> {
    match &config.store {
        StoreUrl::Sqlite(directory) => Ok(SigningKey::find(config.auth.configured(), directory)?),
        StoreUrl::Postgres(_) => configured_key(config),
    }
}

fn configured_key(config: &Config) -> Result<SigningKey, OpenStoreError> {
    let key = SigningKey::configured(config.auth.configured())?.ok_or(OpenStoreError::NeedsSecret)?;
    debug_assert_eq!(key.mode, Mode::Configured);
    Ok(key)
}

/// How a node opens its database.
#[must_use]
pub fn postgres_options(config: &Config, key: &SigningKey) -> postgres::Options {
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(FINGERPRINT_LABEL);
    context.update(key.secret.expose());
    let fingerprint = context.finish().as_ref().try_into().expect("SHA-256 gives 32 bytes");
    let mut options = postgres::Options::new(config.node.clone(), fingerprint);
    options.writers = config.postgres.writers;
    options.pool = config.postgres.pool;
    options.connect_patience = Duration::from_millis(config.postgres.connect_patience_ms);
    options
}

/// Opens the store of a node. A predecessor that was killed a moment ago may still be on its way out of a data directory, so
/// one in use is tried again for a short while before it is refused.
///
/// # Errors
/// As [`OpenStoreError`] lists.
pub async fn open(config: &Config, key: &SigningKey) -> Result<Arc<dyn Store>, OpenStoreError> {
    match &config.store {
        StoreUrl::Sqlite(directory) => Ok(Arc::new(open_sqlite(directory, config.node.clone()).await?)),
        StoreUrl::Postgres(url) => match &config.leases {
            LeasesUrl::Postgres => {
                Ok(Arc::new(PostgresStore::open(url.expose(), postgres_options(config, key)).await?))
            }
            LeasesUrl::Etcd(leases) => {
                Ok(Arc::new(EtcdStore::open(leases, url.expose(), postgres_options(config, key)).await?))
            }
        },
    }
}

async fn open_sqlite(directory: &Path, node: NodeName) -> Result<SqliteStore, OpenStoreError> {
    let give_up = tokio::time::Instant::now() + PREDECESSOR_EXIT;
    loop {
        let (directory, options) = (directory.to_owned(), sqlite::Options::new(node.clone()));
        let opened = tokio::task::spawn_blocking(move || SqliteStore::open(&directory, options)).await;
        match opened.expect("opening a store does not panic") {
            Ok(store) => return Ok(store),
            Err(sqlite::OpenError::InUse { .. }) if tokio::time::Instant::now() < give_up => {
                tokio::time::sleep(PREDECESSOR_EXIT / 50).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Opens the leases of a store, without registering a node.
///
/// # Errors
/// As [`OpenStoreError`] lists.
pub async fn open_leases(config: &Config) -> Result<Arc<dyn LeaseStore>, OpenStoreError> {
    match &config.store {
        StoreUrl::Sqlite(directory) => {
            Ok(Arc::new(SqliteStore::open(directory, sqlite::Options::new(config.node.clone()))?))
        }
        StoreUrl::Postgres(url) => {
            let (key, database) = (find_signing_key(config)?, url.expose());
            match &config.leases {
                LeasesUrl::Postgres => {
                    Ok(Arc::new(PostgresStore::open(database, postgres_options(config, &key)).await?))
                }
                LeasesUrl::Etcd(leases) => {
                    Ok(Arc::new(EtcdStore::open(leases, database, postgres_options(config, &key)).await?))
                }
            }
        }
    }
}
