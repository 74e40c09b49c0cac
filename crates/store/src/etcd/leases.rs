//! Node leases in etcd: an etcd lease a node, its node key and its beat on it.
//!
//! Invariants: death is the end of the etcd lease (revoked, or run out), never the deletion of a key, so that a dead node's
//! keep-alive fails; the node key is made once, and only its value changes; a renewal is answered only when a majority has
//! written its beat while the node key stood.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use conch_core::ids::Incarnation;
use serde_json::{Value, json};

use super::client::{Client, Repeat};
use super::error::CallError;
use super::node::{Keys, NodeValue, incarnation_of};
use super::wire::{self, Answered, Compare, Kv, Step};
use crate::{Lifeline, NodeRow, Registration, StoreError};

const TXN: &str = "/v3/kv/txn";
const GRANT: &str = "/v3/lease/grant";
const KEEP_ALIVE: &str = "/v3/lease/keepalive";
const TIME_TO_LIVE: &str = "/v3/lease/timetolive";
const REVOKE: &str = "/v3/lease/revoke";
/// How often a change of a node's value is tried, when others change it as well.
const CHANGE_TRIES: usize = 5;

/// What a node that registered here knows of its own lease.
#[derive(Debug, Clone)]
pub(super) struct Own {
    pub(super) lease: i64,
    /// The node key's, for its whole life.
    pub(super) created: i64,
    /// The node key's value, as this process last saw it.
    pub(super) modified: i64,
    pub(super) draining: bool,
    /// When the last successful renewal was sent, and for how long it counts.
    sent: Instant,
    granted: Duration,
}

impl Own {
    /// Is there more than `margin` left, by the clock of this process?
    pub(super) fn has_more_than(&self, margin: Duration) -> bool {
        self.sent.elapsed() + margin < self.granted
    }
}

/// Sends a transaction once, or asks again where it only reads.
pub(super) async fn transact(
    client: &Client,
    compare: &[Compare],
    success: &[Step],
    failure: &[Step],
    repeat: Repeat,
) -> Result<Answered, CallError> {
    let answer = client.call(TXN, &wire::txn(compare, success, failure), repeat).await?;
    Ok(Answered::read(&answer)?)
}

/// Reads in one snapshot of the majority.
pub(super) async fn read(client: &Client, steps: &[Step]) -> Result<Answered, StoreError> {
    transact(client, &[], steps, &[], Repeat::Harmless).await.map_err(CallError::of_read)
}

/// etcd counts whole seconds: a lease never ends before what was asked for.
pub(super) fn whole_seconds(ttl: Duration) -> u64 {
    ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0)
}

/// The node leases of one cluster.
pub(super) struct Leases {
    pub(super) keys: Keys,
    own: Mutex<BTreeMap<Incarnation, Own>>,
    beats: Mutex<BTreeMap<Incarnation, Arc<AtomicU64>>>,
    #[cfg(test)]
    pub(super) clock: super::tests::MovedClock,
}

impl Leases {
    pub(super) fn new(keys: Keys) -> Self {
        Self {
            keys,
            own: Mutex::default(),
            beats: Mutex::default(),
            #[cfg(test)]
            clock: super::tests::MovedClock::default(),
        }
    }

    /// What is known of one's own lease; read from etcd if another store of this process registered it.
    pub(super) async fn own(&self, client: &Client, me: Incarnation) -> Result<Option<Own>, StoreError> {
        let known = self.own.lock().unwrap_or_else(PoisonError::into_inner).get(&me).cloned();
        if known.is_some() {
            return Ok(known);
        }
        let sent = Instant::now();
        let Some((kv, value)) = self.node(client, me).await? else { return Ok(None) };
        let Some(left) = self.left(client, me, kv.lease).await? else { return Ok(None) };
        let granted = Duration::from_millis(u64::try_from(left).unwrap_or(0));
        let own = Own {
            lease: kv.lease,
            created: kv.create_revision,
            modified: kv.mod_revision,
            draining: value.draining,
            sent,
            granted,
        };
        Ok(Some(own))
    }

    fn remember(&self, me: Incarnation, own: Own) {
        self.own.lock().unwrap_or_else(PoisonError::into_inner).insert(me, own);
    }

    /// Changes what is known of one's own lease, if it is known.
    fn note(&self, me: Incarnation, change: impl FnOnce(&mut Own)) {
        if let Some(own) = self.own.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&me) {
            change(own);
        }
    }

    pub(super) fn forget(&self, me: Incarnation) {
        self.own.lock().unwrap_or_else(PoisonError::into_inner).remove(&me);
        self.beats.lock().unwrap_or_else(PoisonError::into_inner).remove(&me);
    }

    /// Takes in what a lost claim showed of one's own node key.
    pub(super) fn refresh(&self, me: Incarnation, kv: Option<&Kv>) -> Result<(), StoreError> {
        match kv {
            Some(kv) => {
                let (modified, draining) = (kv.mod_revision, NodeValue::read(kv)?.draining);
                self.note(me, |own| (own.modified, own.draining) = (modified, draining));
            }
            None => self.forget(me),
        }
        Ok(())
    }

    /// A node's key and what it holds.
    pub(super) async fn node(&self, client: &Client, me: Incarnation) -> Result<Option<(Kv, NodeValue)>, StoreError> {
        let answer = read(client, &[Step::Get(self.keys.node(me))]).await?;
        answer.one(0)?.map(|kv| Ok((kv.clone(), NodeValue::read(kv)?))).transpose()
    }

    pub(super) async fn register(
        &self,
        client: &Client,
        registration: &Registration,
        ttl: Duration,
    ) -> Result<(), StoreError> {
        let me = registration.incarnation;
        let sent = Instant::now();
        // A grant whose answer is lost runs out by itself.
        let seconds_asked = whole_seconds(ttl);
        #[cfg(test)]
        let seconds_asked = self.clock.stretched(seconds_asked);
        let asked = json!({"TTL": seconds_asked.to_string(), "ID": "0"});
        let granted = client.call(GRANT, &asked, Repeat::Harmless).await.map_err(CallError::of_read)?;
        let (lease, granted) = (wire::number(&granted, "ID")?, seconds(&granted)?);
        let value = NodeValue { registration: registration.clone(), draining: false };
        let (node, beat) = (self.keys.node(me), self.keys.beat(me));
        let absent = [Compare::Created(node.clone(), 0)];
        let puts = [Step::Put(node, value.write(), lease), Step::Put(beat, b"0".to_vec(), lease)];
        let answer = transact(client, &absent, &puts, &[], Repeat::Never).await.map_err(CallError::of_write)?;
        if !answer.succeeded {
            revoke(client, lease).await?;
            let text = format!("incarnation {me} is registered already; a registration needs a fresh one");
            return Err(StoreError::Unavailable(text));
        }
        let (created, modified) = (answer.revision, answer.revision);
        self.remember(me, Own { lease, created, modified, draining: false, sent, granted });
        self.beats.lock().unwrap_or_else(PoisonError::into_inner).insert(me, Arc::default());
        #[cfg(test)]
        self.clock.renewed(me, ttl);
        Ok(())
    }

    /// Keeps the lease alive, then writes a beat, if the node key stands.
    pub(super) async fn renew(
        &self,
        client: &Client,
        me: Incarnation,
        ttl: Duration,
    ) -> Result<Option<u64>, StoreError> {
        let Some(own) = self.own(client, me).await? else { return Ok(None) };
        let sent = Instant::now();
        let Some(granted) = keep_alive(client, own.lease).await? else { return Ok(self.lost(me)) };
        if granted < ttl {
            let text =
                format!("etcd grants {} s, and a lease of {} ms is asked for", granted.as_secs(), ttl.as_millis());
            return Err(StoreError::Unavailable(text));
        }
        let beat = self.next_beat(client, me).await?;
        let stands = [Compare::Created(self.keys.node(me), own.created)];
        let put = [Step::Put(self.keys.beat(me), beat.to_string().into_bytes(), own.lease)];
        match transact(client, &stands, &put, &[], Repeat::Never).await {
            Ok(answer) if answer.succeeded => {}
            Ok(_) => {
                // The key is gone, and the lease is not: somebody's hand. Nobody may come back from that.
                revoke(client, own.lease).await?;
                return Ok(self.lost(me));
            }
            Err(error) if error.is_lease_gone() => return Ok(self.lost(me)),
            Err(error) => return Err(error.of_write()),
        }
        self.note(me, |own| (own.sent, own.granted) = (sent, granted));
        #[cfg(test)]
        self.clock.renewed(me, ttl);
        Ok(Some(beat))
    }

    fn lost(&self, me: Incarnation) -> Option<u64> {
        self.forget(me);
        None
    }

    async fn next_beat(&self, client: &Client, me: Incarnation) -> Result<u64, StoreError> {
        let known = self.beats.lock().unwrap_or_else(PoisonError::into_inner).get(&me).cloned();
        if let Some(beat) = known {
            return Ok(beat.fetch_add(1, Ordering::Relaxed) + 1);
        }
        let answer = read(client, &[Step::Get(self.keys.beat(me))]).await?;
        Ok(answer.one(0)?.map(beat_of).transpose()?.unwrap_or(0) + 1)
    }

    /// Changes a node's value, and keeps the key on its lease. False: there is no such node.
    pub(super) async fn change(
        &self,
        client: &Client,
        me: Incarnation,
        change: impl Fn(&mut NodeValue),
    ) -> Result<bool, StoreError> {
        for _ in 0..CHANGE_TRIES {
            let Some((kv, mut value)) = self.node(client, me).await? else { return Ok(false) };
            change(&mut value);
            let as_read = [Compare::Modified(kv.key.clone(), kv.mod_revision)];
            let put = [Step::Put(kv.key.clone(), value.write(), kv.lease)];
            match transact(client, &as_read, &put, &[], Repeat::Never).await {
                Ok(answer) if answer.succeeded => {
                    self.note(me, |own| (own.modified, own.draining) = (answer.revision, value.draining));
                    return Ok(true);
                }
                Ok(_) => {}
                Err(error) if error.is_lease_gone() => return Ok(false),
                Err(error) => return Err(error.of_write()),
            }
        }
        Err(StoreError::Unavailable(format!("the value of node {me} changed {CHANGE_TRIES} times meanwhile")))
    }

    pub(super) async fn replace_lifeline(
        &self,
        client: &Client,
        me: Incarnation,
        ttl: Duration,
        lifeline: Lifeline,
    ) -> Result<Option<u64>, StoreError> {
        if !self.change(client, me, |value| value.registration.lifeline = Some(lifeline)).await? {
            return Ok(self.lost(me));
        }
        self.renew(client, me, ttl).await
    }

    /// All nodes, by incarnation.
    pub(super) async fn nodes(&self, client: &Arc<Client>) -> Result<Vec<NodeRow>, StoreError> {
        let answer = read(client, &[Step::List(self.keys.nodes()), Step::List(self.keys.beats())]).await?;
        let mut beats = BTreeMap::new();
        for kv in answer.list(1)? {
            beats.insert(incarnation_of(&kv.key)?, beat_of(kv)?);
        }
        let mut asked = tokio::task::JoinSet::new();
        for kv in answer.list(0)? {
            let (client, lease, incarnation) = (Arc::clone(client), kv.lease, incarnation_of(&kv.key)?);
            asked.spawn(async move { Ok::<_, StoreError>((incarnation, time_to_live(&client, lease).await?)) });
        }
        let mut left = BTreeMap::new();
        while let Some(answered) = asked.join_next().await {
            let answered = answered.map_err(|_| StoreError::Unavailable("the runtime ended meanwhile".to_owned()))?;
            let (incarnation, ms) = answered?;
            left.insert(incarnation, ms);
        }
        let mut rows = Vec::new();
        for kv in answer.list(0)? {
            let NodeValue { registration, draining } = NodeValue::read(kv)?;
            let incarnation = registration.incarnation;
            // Its lease ended between the two questions.
            let Some(ms) = left.get(&incarnation).copied().flatten() else { continue };
            let beat = beats.get(&incarnation).copied().unwrap_or(0);
            rows.push(NodeRow { registration, beat, draining, expires_in_ms: self.moved(incarnation, ms) });
        }
        Ok(rows)
    }

    /// The lifelines that nodes name.
    pub(super) async fn lifelines(&self, client: &Client) -> Result<Vec<Lifeline>, StoreError> {
        let answer = read(client, &[Step::List(self.keys.nodes())]).await?;
        let values = answer.list(0)?.iter().map(NodeValue::read).collect::<Result<Vec<_>, _>>()?;
        Ok(values.into_iter().filter_map(|value| value.registration.lifeline).collect())
    }

    /// Who is registered.
    pub(super) async fn live(&self, client: &Client) -> Result<Vec<Incarnation>, StoreError> {
        let answer = read(client, &[Step::List(self.keys.nodes())]).await?;
        answer.list(0)?.iter().map(|kv| incarnation_of(&kv.key)).collect()
    }

    /// A node's row from its key.
    pub(super) async fn row(&self, client: &Client, kv: &Kv, beat: Option<&Kv>) -> Result<Option<NodeRow>, StoreError> {
        let NodeValue { registration, draining } = NodeValue::read(kv)?;
        let Some(expires_in_ms) = self.left(client, registration.incarnation, kv.lease).await? else { return Ok(None) };
        let beat = beat.map(beat_of).transpose()?.unwrap_or(0);
        Ok(Some(NodeRow { registration, beat, draining, expires_in_ms }))
    }

    /// Milliseconds to the end of a node's lease, rounded down to a second; `None`: it has ended.
    pub(super) async fn left(
        &self,
        client: &Client,
        incarnation: Incarnation,
        lease: i64,
    ) -> Result<Option<i64>, StoreError> {
        Ok(time_to_live(client, lease).await?.map(|ms| self.moved(incarnation, ms)))
    }

    /// Outside of tests etcd's clock is not moved.
    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "the same call as in tests")]
    fn moved(&self, _incarnation: Incarnation, ms: i64) -> i64 {
        ms
    }

    #[cfg(test)]
    fn moved(&self, incarnation: Incarnation, ms: i64) -> i64 {
        self.clock.left(incarnation).unwrap_or(ms)
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "the same call as in tests")]
    pub(super) fn own_has_more_than(&self, _me: Incarnation, own: &Own, margin: Duration) -> bool {
        own.has_more_than(margin)
    }

    #[cfg(test)]
    pub(super) fn own_has_more_than(&self, me: Incarnation, own: &Own, margin: Duration) -> bool {
        match self.clock.left(me) {
            Some(ms) => u128::try_from(ms).is_ok_and(|ms| ms > margin.as_millis()),
            None => own.has_more_than(margin),
        }
    }

    /// Revokes a node's lease, if its key is as `judge` wants it. False: it is not, or there is none.
    ///
    /// etcd revokes without conditions, so between the look and the revocation the node may renew. It is dead then all the
    /// same, finds out at its next renewal, and its writes meet the fence.
    pub(super) async fn end(
        &self,
        client: &Client,
        dead: Incarnation,
        judge: impl FnOnce(&NodeRow) -> bool,
    ) -> Result<bool, StoreError> {
        let answer = read(client, &[Step::Get(self.keys.node(dead)), Step::Get(self.keys.beat(dead))]).await?;
        let Some(kv) = answer.one(0)? else { return Ok(false) };
        let Some(row) = self.row(client, kv, answer.one(1)?).await? else { return Ok(false) };
        if !judge(&row) {
            return Ok(false);
        }
        let ended = revoke(client, kv.lease).await?;
        self.forget(dead);
        Ok(ended)
    }
}

fn beat_of(kv: &Kv) -> Result<u64, StoreError> {
    let text = std::str::from_utf8(&kv.value).unwrap_or_default();
    text.parse().map_err(|_| wire::odd(format!("{} holds {text:?}", kv.key)))
}

fn seconds(value: &Value) -> Result<Duration, StoreError> {
    Ok(Duration::from_secs(u64::try_from(wire::number(value, "TTL")?).unwrap_or(0)))
}

/// For how long the lease was renewed; `None`: there is no such lease.
async fn keep_alive(client: &Client, lease: i64) -> Result<Option<Duration>, StoreError> {
    let asked = json!({"ID": lease.to_string()});
    let answer = client.call(KEEP_ALIVE, &asked, Repeat::Harmless).await;
    let granted = match answer {
        Ok(answer) => seconds(&answer["result"])?,
        Err(error) if error.is_lease_gone() => return Ok(None),
        Err(error) => return Err(error.of_read()),
    };
    Ok((granted > Duration::ZERO).then_some(granted))
}

/// Milliseconds to the end of a lease, rounded down to a second; `None`: there is no such lease.
async fn time_to_live(client: &Client, lease: i64) -> Result<Option<i64>, StoreError> {
    let asked = json!({"ID": lease.to_string()});
    let answer = client.call(TIME_TO_LIVE, &asked, Repeat::Harmless).await.map_err(CallError::of_read)?;
    let left = wire::number(&answer, "TTL")?;
    Ok((left >= 0).then(|| left.saturating_mul(1_000)))
}

/// Ends a lease, and with it its keys. False: there is no such lease. A second time changes nothing more.
pub(super) async fn revoke(client: &Client, lease: i64) -> Result<bool, StoreError> {
    match client.call(REVOKE, &json!({"ID": lease.to_string()}), Repeat::Harmless).await {
        Ok(_) => Ok(true),
        Err(error) if error.is_lease_gone() => Ok(false),
        Err(error) => Err(error.of_write()),
    }
}
