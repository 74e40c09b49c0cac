//! What a backend needs that keeps leases in another store and records here (design: leases in a consensus store).
//!
//! The other store decides who owns a conversation and at which epoch; [`PostgresStore::arm`] then makes this database's
//! fence know it, before the first number is assigned. Giving up is done here first, then there.
//!
//! Invariant: arming raises a head's epoch, or repeats what was armed; an older epoch never comes back.

use conch_core::ids::{ConvKey, Epoch, Incarnation, Seq};

use super::PostgresStore;
use super::error::CallError;
use super::ownership::{self, Registry, armed};
use super::queries;
use super::rows::Id;
use super::session::Session;
use crate::own_thread::Effect;
use crate::{Armed, DueQuery, DueRow, Held, Lifeline, LifelinesSeen, LogStore, StoreError};

/// How an arming ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArmOutcome {
    /// The fence knows this reign.
    Armed(Armed),
    /// A later reign has been armed, or the store went into a later generation meanwhile: discard the reign, claim again.
    Fenced,
}

impl PostgresStore {
    /// Makes the fence of a conversation that exists know a reign that the lease store gave. Repeating it changes nothing.
    ///
    /// # Errors
    /// [`StoreError::Ambiguous`]: arm again, or claim again.
    pub async fn arm(
        &self,
        conversation: ConvKey,
        epoch: Epoch,
        me: Incarnation,
        gap: u64,
    ) -> Result<ArmOutcome, StoreError> {
        let guard = self.inner.arm;
        self.pooled(
            Effect::Write,
            move |session| async move { arm(&session, conversation, epoch, me, gap, guard).await },
        )
        .await
    }

    /// Gives ownership up here, with nothing in flight. False: it was not ours any more.
    ///
    /// # Errors
    /// As every call of the store.
    pub async fn release_elsewhere(&self, held: &Held, first_seq: Seq) -> Result<bool, StoreError> {
        let held = *held;
        let registry = Registry::Elsewhere;
        self.pooled(Effect::Write, move |session| async move {
            ownership::release(&session, &held, first_seq, registry).await
        })
        .await
    }

    /// As [`PostgresStore::release_elsewhere`], on behalf of a task that no longer answers: the gap is kept.
    ///
    /// # Errors
    /// As every call of the store.
    pub async fn release_wedged_elsewhere(&self, held: &Held, gap: u64) -> Result<bool, StoreError> {
        let held = *held;
        let registry = Registry::Elsewhere;
        self.pooled(Effect::Write, move |session| async move {
            ownership::release_wedged(&session, &held, gap, registry).await
        })
        .await
    }

    /// Makes the fence know the reign that the lease store gave to another by a hand-off, with nothing in flight, so that no
    /// hole remains. `None`: it was not ours any more, or the store went into another generation; the receiver claims then.
    ///
    /// # Errors
    /// As every call of the store.
    pub async fn hand_off_elsewhere(
        &self,
        held: &Held,
        to: Incarnation,
        epoch: Epoch,
        first_seq: Seq,
    ) -> Result<Option<Armed>, StoreError> {
        let held = *held;
        self.pooled(Effect::Write, move |session| async move { hand_off(&session, &held, to, epoch, first_seq).await })
            .await
    }

    /// Which of these lifelines are held.
    ///
    /// # Errors
    /// As every call of the store.
    pub async fn observe_among(&self, keys: Vec<Lifeline>) -> Result<LifelinesSeen, StoreError> {
        self.inner.lifelines.observe_among(keys).await
    }

    /// Takes a lifeline that nobody holds, for as long as the answer is kept. `None`: somebody holds it.
    ///
    /// # Errors
    /// As every call of the store.
    pub async fn take_lifeline(&self, key: Lifeline) -> Result<Option<Box<dyn Send + Sync>>, StoreError> {
        self.inner.lifelines.take(key).await
    }

    /// The database's own name: that of its log without the generation.
    ///
    /// # Errors
    /// As every call of the store.
    pub async fn system_id(&self) -> Result<String, StoreError> {
        let log = self.log().await?;
        let id = log.as_str();
        Ok(id.rsplit_once('.').map_or(id, |(system_id, _)| system_id).to_owned())
    }

    /// As [`LogStore::due`]: due work whose owner is none of these.
    ///
    /// # Errors
    /// As every call of the store.
    pub async fn due_unowned(&self, live: &[Incarnation], query: &DueQuery) -> Result<Vec<DueRow>, StoreError> {
        let (live, query) = (live.to_vec(), query.clone());
        self.pooled(Effect::Read, move |session| async move { queries::due_unowned(&session, &live, &query).await })
            .await
    }

    /// What is added to the lease store's revisions to make epochs, so that they rise above all that were used before.
    #[must_use]
    pub fn epoch_base(&self) -> u64 {
        self.inner.facts.epoch_base
    }
}

/// Arming; `$condition` is what must hold of the epoch and the owner.
macro_rules! arm_sql {
    ($condition:literal) => {
        concat!(
            "INSERT INTO conv_head AS h (conv_id, epoch, owner, gen, last_seq, reserved_to)
             SELECT $1, $2, $3, g.g, (g.g - 1) * 1000000, (g.g - 1) * 1000000 FROM (SELECT store_gen() AS g) g
             ON CONFLICT (conv_id) DO UPDATE SET epoch = EXCLUDED.epoch, owner = EXCLUDED.owner, gen = EXCLUDED.gen,
               reserved_to = h.reserved_to + CASE WHEN h.gen <> EXCLUDED.gen THEN (EXCLUDED.gen - h.gen) * 1000000
                 WHEN h.owner IS NULL OR h.epoch = EXCLUDED.epoch THEN 0 ELSE $4 END
             WHERE ",
            $condition,
            " AND h.gen <= EXCLUDED.gen
             RETURNING h.epoch, h.gen, h.last_seq, h.reserved_to"
        )
    };
}

const ARM: &str = arm_sql!("(h.epoch < EXCLUDED.epoch OR (h.epoch = EXCLUDED.epoch AND h.owner = EXCLUDED.owner))");
/// The comparison of the epochs taken out.
#[cfg(test)]
const ARM_WITHOUT_EPOCH: &str = arm_sql!("true");

/// Which statement arms; tests can take its guard out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum ArmGuard {
    #[default]
    On,
    #[cfg(test)]
    EpochOff,
}

async fn arm(
    session: &Session,
    conversation: ConvKey,
    epoch: Epoch,
    me: Incarnation,
    gap: u64,
    guard: ArmGuard,
) -> Result<ArmOutcome, CallError> {
    let sql = match guard {
        ArmGuard::On => ARM,
        #[cfg(test)]
        ArmGuard::EpochOff => ARM_WITHOUT_EPOCH,
    };
    let gap = i64::try_from(gap).unwrap_or(i64::MAX);
    let row = session.first(sql, &[&Id::from(conversation), &epoch.to_i64(), &Id::from(me), &gap]).await?;
    Ok(match row {
        Some(row) => ArmOutcome::Armed(armed(&row)?),
        None => ArmOutcome::Fenced,
    })
}

async fn hand_off(
    session: &Session,
    held: &Held,
    to: Incarnation,
    epoch: Epoch,
    first_seq: Seq,
) -> Result<Option<Armed>, CallError> {
    // Across generations numbers must skip, which only arming does.
    let sql = "UPDATE conv_head h SET owner = $4, epoch = $5, reserved_to = GREATEST(h.last_seq, $6)
               WHERE h.conv_id = $1 AND h.epoch = $2 AND h.owner = $3 AND h.gen = (SELECT store_gen()) AND h.epoch < $5
               RETURNING h.epoch, h.gen, h.last_seq, h.reserved_to";
    let (conversation, me, to) = (Id::from(held.conversation), Id::from(held.me), Id::from(to));
    let used = first_seq.to_i64().saturating_sub(1);
    let row = session.first(sql, &[&conversation, &held.epoch.to_i64(), &me, &to, &epoch.to_i64(), &used]).await?;
    Ok(row.map(|row| armed(&row)).transpose()?)
}
