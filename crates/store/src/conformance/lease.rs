//! Cases about node leases.

use std::time::Duration;

use conch_core::ids::Incarnation;

use super::world::{MARGIN, MARGIN_MS, TTL, TTL_MS, World, registration};
use super::{Verdict, Violation, check, check_eq};
use crate::NodeRow;

/// Real clocks go on while a case runs: so much may a remaining time be off.
const SLACK_MS: i64 = 2_000;

impl World<'_> {
    async fn row(&self, incarnation: Incarnation) -> Verdict<Option<NodeRow>> {
        let rows = self.store.nodes().await?;
        Ok(rows.into_iter().find(|row| row.registration.incarnation == incarnation))
    }

    async fn present_row(&self, incarnation: Incarnation) -> Verdict<NodeRow> {
        let row = self.row(incarnation).await?;
        row.ok_or_else(|| Violation { detail: format!("the row of {incarnation} is there") })
    }
}

fn about(remaining_ms: i64, expected_ms: i64) -> bool {
    remaining_ms <= expected_ms && remaining_ms > expected_ms - SLACK_MS
}

pub(super) async fn a_registered_node_is_listed(world: &World<'_>) -> Verdict {
    check_eq!(world.store.nodes().await?, Vec::new(), "a fresh store has no nodes");
    for number in [1, 2] {
        world.node(number).await?;
    }
    for number in [1, 2] {
        let row = world.present_row(Incarnation(number)).await?;
        check_eq!(row.registration, registration(number), "a row says what its node said");
        check!(!row.draining, "a node does not drain from the start");
        check!(about(row.expires_in_ms, TTL_MS), "a fresh lease lasts for its ttl: {} ms left", row.expires_in_ms);
    }
    check_eq!(world.store.nodes().await?.len(), 2, "every row is listed once");
    Ok(())
}

pub(super) async fn an_incarnation_registers_once(world: &World<'_>) -> Verdict {
    let me = world.node(1).await?;
    let again = world.store.register(&registration(1), TTL * 2).await;
    check!(again.is_err(), "an incarnation that is registered cannot register");
    let row = world.present_row(me).await?;
    check!(row.expires_in_ms <= TTL_MS, "a refused registration extends no lease");
    Ok(())
}

pub(super) async fn a_renewal_extends_the_lease_and_raises_the_beat(world: &World<'_>) -> Verdict {
    let me = world.node(1).await?;
    let other = world.node(2).await?;
    let mut beat = world.present_row(me).await?.beat;
    for _ in 0..3 {
        world.pass(5_000).await;
        let answered = world.store.renew(me, TTL).await?;
        beat += 1;
        check_eq!(answered, Some(beat), "a renewal raises the beat by one and answers it");
        let row = world.present_row(me).await?;
        check_eq!(row.beat, beat, "the row shows the beat");
        check!(about(row.expires_in_ms, TTL_MS), "a renewal counts from now: {} ms left", row.expires_in_ms);
    }
    let row = world.present_row(other).await?;
    check!(row.expires_in_ms <= 0, "a renewal is for one node alone: the other has {} ms left", row.expires_in_ms);
    Ok(())
}

pub(super) async fn an_expired_row_is_renewed(world: &World<'_>) -> Verdict {
    let me = world.node(1).await?;
    world.pass(TTL_MS * 3).await;
    let row = world.present_row(me).await?;
    check!(about(row.expires_in_ms, -2 * TTL_MS), "an expired row stays: {} ms left", row.expires_in_ms);
    check_eq!(world.store.renew(me, TTL).await?, Some(row.beat + 1), "an expired row that nobody deleted is renewed");
    check!(world.present_row(me).await?.expires_in_ms > 0, "and is good again");
    Ok(())
}

pub(super) async fn a_gone_row_is_never_renewed(world: &World<'_>) -> Verdict {
    let (left, expelled, declared) = (world.node(1).await?, world.node(2).await?, world.node(3).await?);
    world.store.deregister(left).await?;
    world.store.expel(expelled).await?;
    let beat = world.present_row(declared).await?.beat;
    world.pass(TTL_MS + 1).await;
    check!(world.store.declare_expired(declared, beat, TTL, MARGIN).await?, "an expired lease can be declared dead");
    for gone in [left, expelled, declared, Incarnation(99)] {
        check_eq!(world.store.renew(gone, TTL).await?, None, "a row that is gone cannot be renewed");
        check_eq!(world.row(gone).await?, None, "and does not come back");
    }
    Ok(())
}

pub(super) async fn leaving_removes_the_row_once(world: &World<'_>) -> Verdict {
    let (a, b, c) = (world.node(1).await?, world.node(2).await?, world.node(3).await?);
    check!(world.store.deregister(a).await?, "a registered node deregisters");
    check!(!world.store.deregister(a).await?, "only once");
    check!(world.store.expel(b).await?, "a registered node can be expelled, with a good lease too");
    check!(!world.store.expel(b).await?, "only once");
    check!(!world.store.expel(a).await?, "one that left cannot be expelled");
    let left: Vec<_> = world.store.nodes().await?.into_iter().map(|row| row.registration.incarnation).collect();
    check_eq!(left, vec![c], "the others stay");
    Ok(())
}

pub(super) async fn draining_is_kept(world: &World<'_>) -> Verdict {
    let (me, other) = (world.node(1).await?, world.node(2).await?);
    check!(world.store.set_draining(me).await?, "a registered node is marked");
    check!(world.store.set_draining(me).await?, "marking again is answered alike");
    check!(!world.store.set_draining(Incarnation(99)).await?, "one without a row is not");
    world.store.renew(me, TTL).await?;
    check!(world.present_row(me).await?.draining, "the mark survives renewals");
    check!(!world.present_row(other).await?.draining, "the mark is for one node alone");
    Ok(())
}

pub(super) async fn death_needs_the_expiry(world: &World<'_>) -> Verdict {
    let me = world.node(1).await?;
    let beat = world.present_row(me).await?.beat;
    let declare = || world.store.declare_expired(me, beat, TTL, MARGIN);
    check!(!declare().await?, "a good lease is not declared dead");
    world.pass(TTL_MS - SLACK_MS).await;
    check!(!declare().await?, "nor one inside its margin");
    world.pass(SLACK_MS + 1).await;
    check!(declare().await?, "an expired one is");
    check!(!declare().await?, "once");
    check_eq!(world.row(me).await?, None, "its row is gone");
    Ok(())
}

pub(super) async fn death_needs_the_beat(world: &World<'_>) -> Verdict {
    let me = world.node(1).await?;
    let seen = world.present_row(me).await?.beat;
    world.store.renew(me, TTL).await?;
    world.pass(TTL_MS + 1).await;
    for wrong in [seen, seen + 2] {
        check!(
            !world.store.declare_expired(me, wrong, TTL, MARGIN).await?,
            "another beat was seen: nothing is declared"
        );
    }
    check!(world.row(me).await?.is_some(), "the row is there");
    check!(world.store.declare_expired(me, seen + 1, TTL, MARGIN).await?, "with the beat it is declared");
    Ok(())
}

pub(super) async fn a_clock_set_back_ends_the_lease(world: &World<'_>) -> Verdict {
    let me = world.node(1).await?;
    let beat = world.present_row(me).await?.beat;
    world.pass(-(MARGIN_MS - SLACK_MS)).await;
    let longer = Duration::from_millis(TTL_MS.unsigned_abs());
    check!(!world.store.declare_expired(me, beat, longer, MARGIN).await?, "a step within the margin kills nobody");
    world.pass(-60_000).await;
    check!(!world.store.declare_expired(me, beat + 1, TTL, MARGIN).await?, "the beat still counts");
    check!(
        world.store.declare_expired(me, beat, TTL, MARGIN).await?,
        "a lease further ahead than any renewal could put it can be declared dead"
    );
    Ok(())
}
