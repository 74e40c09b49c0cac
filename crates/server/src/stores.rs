//! From a store's URL to the store, for what an operator does to leases beside a running node.
//!
//! Deliberately absent: how a node opens its own store; see [`crate::serve`].

use std::sync::Arc;

use conch_core::ids::NodeName;
use conch_store::LeaseStore;
use conch_store::sqlite::{self, SqliteStore};

use crate::config::StoreUrl;

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenLeasesError {
    /// The data directory or its database. One in use belongs to a live process, which is not to be declared dead.
    #[error(transparent)]
    Sqlite(#[from] sqlite::OpenError),
}

/// Opens the leases of a store under the name of `node`, without registering one. Blocks while it opens files.
///
/// # Errors
/// As [`OpenLeasesError`] lists.
pub async fn open_leases(url: &StoreUrl, node: NodeName) -> Result<Arc<dyn LeaseStore>, OpenLeasesError> {
    match url {
        StoreUrl::Sqlite(directory) => Ok(Arc::new(SqliteStore::open(directory, sqlite::Options::new(node))?)),
    }
}
