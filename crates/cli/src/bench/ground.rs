//! Where a bench makes its stores: directories of its own on a disk, or schemas of its own in a database.
//!
//! Invariant: nothing else on that disk or in that database is touched, and [`Ground::clear`] removes all of it again. A
//! bench that is killed leaves what it made, under a name that says whose it was (`conch-bench-…`, `conch_bench_…`).

use std::path::Path;
use std::sync::Arc;

use conch_server::config::{Config, StoreUrl};
use conch_server::stores;
use conch_store::Store;
use conch_store::postgres::bench::Area;
use conch_store::sqlite::{self, SqliteStore};

use super::progress;
use super::server::Scratch;
use crate::exit::Failure;
use crate::local;

/// A disk's directory, or a database.
pub(super) enum Ground {
    /// Stores are embedded ones.
    Disk(Scratch),
    /// Stores are schemas.
    Database {
        /// With its secret, if it has one: never shown.
        url: String,
        /// What sets this run's schemas apart.
        run: String,
        /// One a store.
        areas: Vec<Area>,
    },
}

impl Ground {
    /// A fresh directory in `beside`.
    pub(super) fn disk(beside: &Path) -> Result<Self, Failure> {
        Ok(Self::Disk(Scratch::new(beside)?))
    }

    /// The database that `--store` names, with the cluster's secret in the environment.
    pub(super) fn database(store: &str) -> Result<Self, Failure> {
        let config = local::config_of_store(Some(store)).map_err(Failure::usage)?;
        let StoreUrl::Postgres(url) = &config.store else {
            let text = "is no postgres:// URL; without --store a data directory is made, on the disk that --dir names";
            return Err(Failure::usage(format!("--store {}: {text}", config.store)));
        };
        stores::find_signing_key(&config).map_err(|error| Failure::usage(error.to_string()))?;
        let run = uuid::Uuid::now_v7().simple().to_string();
        Ok(Self::Database { url: url.expose().to_owned(), run, areas: Vec::new() })
    }

    /// The URL of a fresh, empty store.
    pub(super) async fn store(&mut self, name: &str) -> Result<String, Failure> {
        match self {
            Self::Disk(scratch) => Ok(format!("sqlite:{}", scratch.path().join(name).display())),
            Self::Database { url, run, areas } => {
                let area = Area::create(url, &format!("conch_bench_{run}_{name}")).await;
                let area = area.map_err(|error| Failure::other(error.to_string()))?;
                let url = area.url().to_owned();
                areas.push(area);
                Ok(url)
            }
        }
    }

    /// The schema of the store that was made last; `None` on a disk.
    pub(super) fn area(&self) -> Option<&Area> {
        match self {
            Self::Disk(_) => None,
            Self::Database { areas, .. } => areas.last(),
        }
    }

    /// Removes everything.
    pub(super) async fn clear(self) {
        let Self::Database { areas, .. } = self else { return };
        for area in areas {
            if let Err(error) = area.remove().await {
                progress(&format!("a schema of this bench stays: {error}"));
            }
        }
    }
}

/// Opens a store of a bench as a node would, in this process.
pub(super) async fn open(url: &str) -> Result<(Arc<dyn Store>, Config), Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::other(error.to_string());
    let config = local::config_of_store(Some(url)).map_err(Failure::usage)?;
    let store: Arc<dyn Store> = match &config.store {
        StoreUrl::Sqlite(directory) => {
            let options = sqlite::Options::new(config.node.clone());
            Arc::new(SqliteStore::open(directory, options).map_err(|error| failed(&error))?)
        }
        StoreUrl::Postgres(_) => {
            let key = stores::find_signing_key(&config).map_err(|error| failed(&error))?;
            stores::open(&config, &key).await.map_err(|error| failed(&error))?
        }
    };
    Ok((store, config))
}
