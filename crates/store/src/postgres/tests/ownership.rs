//! Failures of ownership that a store decides about alone, named by their classes: in memory with and without the guard, and
//! on PostgreSQL. All backends have these cases in the conformance suite.

use std::sync::Arc;

use conch_core::ids::Epoch;

use super::fixture::{Clock, database, options};
use super::rig::{A, B, TTL, append, batch, claim, create, register, seqs, take};
use crate::memory::{MemoryStore, Mutant};
use crate::postgres::PostgresStore;
use crate::{AppendOutcome, ClaimOutcome, Held, Store};

fn memory() -> MemoryStore {
    MemoryStore::new("memory", Arc::new(|| 1_796_000_000_000))
}

fn mutated(mutant: Mutant) -> MemoryStore {
    MemoryStore::mutated("memory", Arc::new(|| 1_796_000_000_000), mutant)
}

/// Does a write of the first of two reigns of one node land in the second one?
async fn an_old_token_writes(store: &dyn Store) -> bool {
    register(store, A).await;
    let conversation = create(store, "c").await;
    let old = take(store, &conversation, A, None).await;
    let new = take(store, &conversation, A, Some((old.epoch, Some(A)))).await;
    let outcome = append(store, A, batch(&conversation, old, "old")).await;
    if outcome == AppendOutcome::Fenced {
        assert!(matches!(append(store, A, batch(&conversation, new, "new")).await, AppendOutcome::Landed { .. }));
        assert_eq!(seqs(store, &conversation).await, [new.first_seq.0]);
    }
    outcome != AppendOutcome::Fenced
}

#[tokio::test]
async fn self_re_claim_with_an_old_token() {
    let (database, _client) = database(Clock::Real).await;
    let postgres = PostgresStore::open(&database.url(), options("a")).await.expect("opens");
    assert!(!an_old_token_writes(&postgres).await);
    assert!(!an_old_token_writes(&memory()).await);
    assert!(an_old_token_writes(&mutated(Mutant::EpochKeptOnClaim)).await, "the guard is needed");
}

/// The epochs of two reigns with a release in between.
async fn around_a_release(store: &dyn Store) -> (Epoch, Epoch) {
    register(store, A).await;
    let conversation = create(store, "c").await;
    let first = take(store, &conversation, A, None).await;
    let held = Held { conversation: conversation.key, epoch: first.epoch, me: A };
    assert_eq!(store.release(&held, first.first_seq).await, Ok(true));
    let seen = store.resolve(&conversation).await.expect("answers").expect("exists").epoch;
    let second = take(store, &conversation, A, seen.map(|epoch| (epoch, None))).await;
    (first.epoch, second.epoch)
}

#[tokio::test]
async fn epoch_reset() {
    let rises = |(before, after): (Epoch, Epoch)| after > before;
    let (database, _client) = database(Clock::Real).await;
    let postgres = PostgresStore::open(&database.url(), options("a")).await.expect("opens");
    assert!(rises(around_a_release(&postgres).await));
    assert!(rises(around_a_release(&memory()).await));
    assert!(!rises(around_a_release(&mutated(Mutant::EpochResetOnRelease)).await), "the guard is needed");
}

/// Does a node whose row is gone win a claim from whoever owns now, on whatever it believes?
async fn a_zombie_claims(store: &dyn Store) -> bool {
    register(store, A).await;
    let conversation = create(store, "c").await;
    let old = take(store, &conversation, A, None).await;
    assert_eq!(store.expel(A).await, Ok(true));
    register(store, B).await;
    let new = take(store, &conversation, B, Some((old.epoch, Some(A)))).await;
    assert_eq!(store.renew(A, TTL).await, Ok(None), "it is told");
    let mut won = false;
    for seen in [(old.epoch, Some(A)), (new.epoch, Some(B)), (new.epoch, None)] {
        let outcome = store.claim(&claim(&conversation, A, Some(seen))).await.expect("answers");
        won |= matches!(outcome, ClaimOutcome::Won(_));
    }
    won
}

#[tokio::test]
async fn zombie_fences_the_real_owner() {
    let (database, _client) = database(Clock::Real).await;
    let postgres = PostgresStore::open(&database.url(), options("a")).await.expect("opens");
    assert!(!a_zombie_claims(&postgres).await);
    assert!(!a_zombie_claims(&memory()).await);
    assert!(a_zombie_claims(&mutated(Mutant::UnregisteredClaims)).await, "the guard is needed");
}
