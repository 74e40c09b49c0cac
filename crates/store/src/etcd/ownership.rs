//! Who owns a conversation, in etcd: one key a conversation, changed by compare-and-set.
//!
//! Invariants: an epoch is the base plus the revision of the change that began the reign, so that it only rises; a claim
//! holds only while the claimant's node key stands as it was registered, and only where the owner it replaces has none.
//! Nothing here touches the records: the caller arms their fence before the first number, and releases there first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use conch_core::ids::{ConvKey, Epoch, Incarnation};

use super::client::{Client, Repeat};
use super::leases::{Leases, read, transact};
use super::node::{NodeValue, Ownership};
use super::wire::{Compare, Kv, Step};
use crate::{ClaimRequest, Held, NodeRow, OwnerSeen, Resolution, StoreError};

/// Keys that one transaction reads; etcd takes 128 steps by default.
const READS_AT_ONCE: usize = 64;

/// Whether a claim looks at the node keys; a test can take that out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum NodeKeyGuard {
    #[default]
    On,
    #[cfg(test)]
    Off,
}

/// Conversation keys of one cluster.
pub(super) struct Ownerships {
    pub(super) leases: Arc<Leases>,
    pub(super) epoch_base: u64,
    pub(super) guard: NodeKeyGuard,
}

impl Ownerships {
    fn epoch(&self, revision: i64) -> Epoch {
        Epoch(self.epoch_base.saturating_add(revision.unsigned_abs()))
    }

    /// The revision of an epoch; `None`: it is none of this era's.
    fn revision(&self, epoch: Epoch) -> Option<i64> {
        epoch.0.checked_sub(self.epoch_base).and_then(|revision| i64::try_from(revision).ok())
    }

    pub(super) async fn resolve(&self, client: &Client, conversation: ConvKey) -> Result<Resolution, StoreError> {
        let keys = &self.leases.keys;
        let answer = read(client, &[Step::Get(keys.conversation(conversation))]).await?;
        let Some(kv) = answer.one(0)? else { return Ok(Resolution { epoch: None, owner: None }) };
        let ownership = Ownership::read(kv)?;
        let epoch = Some(self.epoch(ownership.revision()));
        let Ownership::Owned { by, .. } = ownership else { return Ok(Resolution { epoch, owner: None }) };
        let answer = read(client, &[Step::Get(keys.node(by)), Step::Get(keys.beat(by))]).await?;
        let node = match answer.one(0)? {
            Some(kv) => self.leases.row(client, kv, answer.one(1)?).await?,
            None => None,
        };
        Ok(Resolution { epoch, owner: Some(OwnerSeen { incarnation: by, node }) })
    }

    /// The same for several, in their order: two transactions for as many as [`READS_AT_ONCE`], and a look at each owner's lease.
    pub(super) async fn resolve_many(
        &self,
        client: &Client,
        conversations: &[ConvKey],
    ) -> Result<Vec<Resolution>, StoreError> {
        let keys = &self.leases.keys;
        let mut ownerships = Vec::with_capacity(conversations.len());
        for chunk in conversations.chunks(READS_AT_ONCE) {
            let steps: Vec<Step> = chunk.iter().map(|key| Step::Get(keys.conversation(*key))).collect();
            let answer = read(client, &steps).await?;
            for index in 0..steps.len() {
                ownerships.push(answer.one(index)?.map(Ownership::read).transpose()?);
            }
        }
        let owner = |ownership: &Option<Ownership>| match ownership {
            Some(Ownership::Owned { by, .. }) => Some(*by),
            _ => None,
        };
        let owners: BTreeSet<Incarnation> = ownerships.iter().filter_map(owner).collect();
        let nodes = self.registered(client, &owners.into_iter().collect::<Vec<_>>()).await?;
        let resolution = |ownership: Option<Ownership>| Resolution {
            epoch: ownership.map(|ownership| self.epoch(ownership.revision())),
            owner: owner(&ownership)
                .map(|incarnation| OwnerSeen { incarnation, node: nodes.get(&incarnation).cloned() }),
        };
        Ok(ownerships.into_iter().map(resolution).collect())
    }

    /// The rows of those that are registered.
    async fn registered(
        &self,
        client: &Client,
        owners: &[Incarnation],
    ) -> Result<BTreeMap<Incarnation, NodeRow>, StoreError> {
        let keys = &self.leases.keys;
        let mut nodes = BTreeMap::new();
        // Two keys each.
        for chunk in owners.chunks(READS_AT_ONCE / 2) {
            let steps: Vec<Step> =
                chunk.iter().flat_map(|by| [Step::Get(keys.node(*by)), Step::Get(keys.beat(*by))]).collect();
            let answer = read(client, &steps).await?;
            for (number, by) in chunk.iter().enumerate() {
                if let Some(kv) = answer.one(number * 2)?
                    && let Some(row) = self.leases.row(client, kv, answer.one(number * 2 + 1)?).await?
                {
                    nodes.insert(*by, row);
                }
            }
        }
        Ok(nodes)
    }

    /// The epoch of the reign that the claim began; `None`: it was lost.
    pub(super) async fn claim(&self, client: &Client, request: &ClaimRequest) -> Result<Option<Epoch>, StoreError> {
        let Some(as_seen) = self.as_seen(request) else { return Ok(None) };
        let Some(own) = self.leases.own(client, request.me).await? else { return Ok(None) };
        let (keys, me) = (&self.leases.keys, request.me);
        let mine = request.seen_owner == Some(me);
        if (own.draining && !mine) || !self.leases.own_has_more_than(me, &own, request.margin) {
            return Ok(None);
        }
        let mut compare = as_seen;
        if self.guard == NodeKeyGuard::On {
            compare.push(Compare::Created(keys.node(me), own.created));
            if !mine {
                // Its value, too: whoever marked it as draining may have been another process.
                compare.push(Compare::Modified(keys.node(me), own.modified));
            }
            if let Some(other) = request.seen_owner.filter(|_| !mine) {
                compare.push(Compare::Created(keys.node(other), 0));
            }
        }
        let put = [Step::Put(keys.conversation(request.conversation), Ownership::owned(me), 0)];
        let look = [Step::Get(keys.node(me))];
        let answer = transact(client, &compare, &put, &look, Repeat::Never).await.map_err(|error| error.of_write())?;
        if answer.succeeded {
            return Ok(Some(self.epoch(answer.revision)));
        }
        self.leases.refresh(me, answer.one(0)?)?;
        Ok(None)
    }

    /// The conversation's key is as the claimant saw it. `None`: it cannot be.
    fn as_seen(&self, request: &ClaimRequest) -> Option<Vec<Compare>> {
        let key = self.leases.keys.conversation(request.conversation);
        Some(match (request.seen_epoch, request.seen_owner) {
            (None, None) => vec![Compare::Created(key, 0)],
            (None, Some(_)) => return None,
            // Each reign is released once, so that this value stood once.
            (Some(epoch), None) => vec![Compare::Value(key, Ownership::released(self.revision(epoch)?))],
            (Some(epoch), Some(owner)) => self.owned(key, owner, self.revision(epoch)?),
        })
    }

    fn owned(&self, key: String, by: Incarnation, revision: i64) -> Vec<Compare> {
        vec![Compare::Modified(key.clone(), revision), Compare::Value(key, Ownership::owned(by))]
    }

    /// What has to hold for a holder to give up or pass on. `None`: it does not hold it, or is not registered.
    async fn held(&self, client: &Client, held: &Held) -> Result<Option<Vec<Compare>>, StoreError> {
        let Some(revision) = self.revision(held.epoch) else { return Ok(None) };
        let keys = &self.leases.keys;
        let (key, node) = (keys.conversation(held.conversation), keys.node(held.me));
        let answer = read(client, &[Step::Get(key.clone()), Step::Get(node.clone())]).await?;
        let (Some(conversation), Some(me)) = (answer.one(0)?, answer.one(1)?) else { return Ok(None) };
        if Ownership::read(conversation)? != (Ownership::Owned { by: held.me, revision }) {
            return Ok(None);
        }
        let mut compare = self.owned(key, held.me, revision);
        compare.push(Compare::Created(node, me.create_revision));
        Ok(Some(compare))
    }

    /// Is it this holder's, and the holder registered? To be asked before the records' store is told.
    pub(super) async fn is_held(&self, client: &Client, held: &Held) -> Result<bool, StoreError> {
        Ok(self.held(client, held).await?.is_some())
    }

    /// Gives up. False: it was not the holder's any more.
    pub(super) async fn release(&self, client: &Client, held: &Held) -> Result<bool, StoreError> {
        let Some(compare) = self.held(client, held).await? else { return Ok(false) };
        let Some(revision) = self.revision(held.epoch) else { return Ok(false) };
        let key = self.leases.keys.conversation(held.conversation);
        let put = [Step::Put(key, Ownership::released(revision), 0)];
        let answer = transact(client, &compare, &put, &[], Repeat::Never).await.map_err(|error| error.of_write())?;
        Ok(answer.succeeded)
    }

    /// Passes on to a peer that may take it. The epoch of the peer's reign; `None`: it was not the holder's, or the peer
    /// may not.
    pub(super) async fn hand_off(
        &self,
        client: &Client,
        held: &Held,
        to: Incarnation,
        margin: Duration,
    ) -> Result<Option<Epoch>, StoreError> {
        let Some(mut compare) = self.held(client, held).await? else { return Ok(None) };
        let Some((peer, NodeValue { draining: false, .. })) = self.leases.node(client, to).await? else {
            return Ok(None);
        };
        if !self.has_more_than(client, to, &peer, margin).await? {
            return Ok(None);
        }
        compare.push(Compare::Modified(peer.key.clone(), peer.mod_revision));
        let put = [Step::Put(self.leases.keys.conversation(held.conversation), Ownership::owned(to), 0)];
        let answer = transact(client, &compare, &put, &[], Repeat::Never).await.map_err(|error| error.of_write())?;
        Ok(answer.succeeded.then(|| self.epoch(answer.revision)))
    }

    async fn has_more_than(
        &self,
        client: &Client,
        node: Incarnation,
        kv: &Kv,
        margin: Duration,
    ) -> Result<bool, StoreError> {
        let left = self.leases.left(client, node, kv.lease).await?;
        Ok(left.is_some_and(|ms| u128::try_from(ms).is_ok_and(|ms| ms > margin.as_millis())))
    }
}
