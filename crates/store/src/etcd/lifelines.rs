//! The database's lifelines, for nodes that are listed in etcd.
//!
//! Invariant: only keys that a node's value names are shown as held; the list is read before the locks, so that a key that
//! is missing among the locks was listed while it was looked for.

use std::sync::Arc;

use async_trait::async_trait;

use super::client::Client;
use super::leases::Leases;
use crate::own_thread::{Effect, Lane, OwnThread};
use crate::postgres::PostgresStore;
use crate::{HeldLifeline, LeaseStore, Lifelines, LifelinesSeen, StoreError};

pub(super) struct ListedLifelines {
    records: PostgresStore,
    leases: Arc<Leases>,
    thread: OwnThread,
    client: Arc<Client>,
}

impl ListedLifelines {
    pub(super) fn new(records: PostgresStore, leases: Arc<Leases>, thread: OwnThread, client: Arc<Client>) -> Self {
        Self { records, leases, thread, client }
    }
}

#[async_trait]
impl Lifelines for ListedLifelines {
    async fn hold(&self) -> Result<HeldLifeline, StoreError> {
        let lifelines = self.records.lifelines();
        lifelines.ok_or_else(|| StoreError::Unavailable("the database has no lifelines".to_owned()))?.hold().await
    }

    async fn observe(&self) -> Result<LifelinesSeen, StoreError> {
        let (leases, client) = (Arc::clone(&self.leases), Arc::clone(&self.client));
        let listed = self
            .thread
            .run(Lane::Membership, Effect::Read, move || async move { leases.lifelines(&client).await })
            .await?;
        self.records.observe_among(listed).await
    }
}
