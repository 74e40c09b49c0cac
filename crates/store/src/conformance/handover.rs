//! Cases about the ends of a reign: clean release, a wedged task's release, hand-off.

use conch_core::ids::{Epoch, Incarnation, Seq};

use super::world::{GAP, MARGIN, MARGIN_MS, Reign, TTL_MS, World, message};
use super::{Verdict, Violation, check, check_eq};
use crate::{AppendOutcome, Held};

/// Holders that do not hold what `reign` holds.
fn impostors(reign: &Reign, other: Incarnation) -> [Held; 3] {
    let held = reign.held();
    [
        Held { epoch: Epoch(held.epoch.0 - 1), ..held },
        Held { epoch: Epoch(held.epoch.0 + 1), ..held },
        Held { me: other, ..held },
    ]
}

impl World<'_> {
    /// A reign in its second epoch, so that there is one before and one after.
    async fn second_reign(&self, me: Incarnation) -> Verdict<Reign> {
        let first = self.reign("c", me).await?;
        self.take(&first.conversation, me, Some(first.epoch), Some(me)).await
    }
}

pub(super) async fn only_the_holder_releases(world: &World<'_>) -> Verdict {
    let (a, b) = (world.node(1).await?, world.node(2).await?);
    let mut reign = world.second_reign(a).await?;
    let before = world.head(&reign.conversation).await?;
    for held in impostors(&reign, b) {
        check!(!world.store.release(&held, Seq(1)).await?, "{held:?} releases nothing");
        check!(!world.store.release_wedged(&held, GAP).await?, "{held:?} releases nothing as wedged");
    }
    check_eq!(world.head(&reign.conversation).await?, before, "the head is as it was");
    world.write(&mut reign, vec![message("alice", "k1", "one")]).await?;
    check!(world.store.release(&reign.held(), reign.next()).await?, "the holder releases");
    check!(!world.store.release(&reign.held(), reign.next()).await?, "once");
    check!(!world.store.release_wedged(&reign.held(), GAP).await?, "in one way");
    Ok(())
}

pub(super) async fn the_dead_release_nothing(world: &World<'_>) -> Verdict {
    let (a, b) = (world.node(1).await?, world.node(2).await?);
    let reign = world.reign("c", a).await?;
    world.store.expel(a).await?;
    let before = world.head(&reign.conversation).await?;
    check!(!world.store.release(&reign.held(), Seq(1)).await?, "a gone incarnation releases nothing");
    check!(!world.store.release_wedged(&reign.held(), GAP).await?, "nor as wedged");
    check_eq!(world.store.hand_off(&reign.held(), b, Seq(1), MARGIN).await?, None, "nor hands it off");
    check_eq!(world.head(&reign.conversation).await?, before, "the head is as it was");
    Ok(())
}

pub(super) async fn a_release_keeps_what_was_used(world: &World<'_>) -> Verdict {
    let me = world.node(1).await?;
    let mut reign = world.reign("c", me).await?;
    world.write(&mut reign, vec![message("alice", "k1", "one"), message("alice", "k2", "two")]).await?;
    check!(world.store.release(&reign.held(), Seq(1)).await?, "a release");
    let next = world.take(&reign.conversation, me, Some(reign.epoch), None).await?;
    check_eq!(next.first, Seq(3), "a release cannot give committed numbers again");
    check!(world.store.release(&next.held(), Seq(8)).await?, "a release after numbers that were assigned in vain");
    let last = world.take(&reign.conversation, me, Some(next.epoch), None).await?;
    check_eq!((last.prev, last.first), (Seq(2), Seq(8)), "those are not given again either");
    Ok(())
}

pub(super) async fn a_wedged_release_keeps_the_gap(world: &World<'_>) -> Verdict {
    let (a, b) = (world.node(1).await?, world.node(2).await?);
    let reign = world.reign("c", a).await?;
    let mut batch = reign.batch(vec![message("alice", "k1", "one")]);
    batch.reserve = Seq(1_000);
    world.land(a, batch).await?;
    check!(world.store.release_wedged(&reign.held(), GAP).await?, "the watchdog releases");
    let resolution = world.resolution(&reign.conversation).await?;
    check_eq!((resolution.epoch, resolution.owner), (Some(reign.epoch), None), "it has no owner, and its epoch stays");
    let next = world.take(&reign.conversation, b, Some(reign.epoch), None).await?;
    check_eq!(next.first, Seq(1_000 + GAP + 1), "something may be in flight: the block and the gap are skipped");
    check!(world.follows(reign.epoch, next.epoch, 1), "the next reign has the next epoch");
    Ok(())
}

pub(super) async fn a_hand_off_passes_ownership(world: &World<'_>) -> Verdict {
    let (a, b) = (world.node(1).await?, world.node(2).await?);
    let mut reign = world.reign("c", a).await?;
    let mut batch = reign.batch(vec![message("alice", "k1", "one")]);
    batch.reserve = Seq(1_000);
    world.land(a, batch).await?;
    reign.prev = Seq(1);
    let armed = world.store.hand_off(&reign.held(), b, reign.next(), MARGIN).await?;
    let armed = armed.ok_or_else(|| Violation { detail: "a hand-off to a live peer succeeds".to_owned() })?;
    check!(world.follows(reign.epoch, armed.epoch, 1), "a change of owner raises the epoch");
    check_eq!(armed.generation, reign.generation, "in the same generation");
    check_eq!((armed.last_seq, armed.first_seq), (Seq(1), Seq(2)), "nothing was in flight: there is no hole");
    let head = world.head(&reign.conversation).await?;
    check_eq!((head.owner, head.epoch), (Some(b), armed.epoch), "the peer owns it");
    let late = world.append(a, reign.batch(vec![message("alice", "k2", "late")])).await?;
    check_eq!(late, AppendOutcome::Fenced, "the old owner is fenced");
    let mut next = Reign::new(&reign.conversation, b, armed);
    world.write(&mut next, vec![message("alice", "k3", "two")]).await?;
    check_eq!(world.seqs(&reign.conversation).await?, vec![1, 2], "the peer writes on without a claim");
    Ok(())
}

pub(super) async fn a_hand_off_needs_a_fit_peer(world: &World<'_>) -> Verdict {
    let expiring = world.node(2).await?;
    world.pass(TTL_MS - MARGIN_MS).await;
    let (a, draining, gone) = (world.node(1).await?, world.node(3).await?, world.node(4).await?);
    world.store.set_draining(draining).await?;
    world.store.expel(gone).await?;
    let mut reign = world.reign("c", a).await?;
    let before = world.head(&reign.conversation).await?;
    for (peer, why) in
        [(draining, "draining"), (gone, "gone"), (expiring, "inside its margin"), (Incarnation(99), "unknown")]
    {
        let armed = world.store.hand_off(&reign.held(), peer, reign.next(), MARGIN).await?;
        check_eq!(armed, None, "a peer that is {why} may not take it");
    }
    world.pass(MARGIN_MS + 1).await;
    let armed = world.store.hand_off(&reign.held(), expiring, reign.next(), MARGIN).await?;
    check_eq!(armed, None, "a peer whose lease ran out may not take it");
    check_eq!(world.head(&reign.conversation).await?, before, "it is the old owner's");
    world.write(&mut reign, vec![message("alice", "k1", "one")]).await?;
    Ok(())
}

pub(super) async fn only_the_holder_hands_off(world: &World<'_>) -> Verdict {
    let (a, b) = (world.node(1).await?, world.node(2).await?);
    let reign = world.second_reign(a).await?;
    let before = world.head(&reign.conversation).await?;
    for held in impostors(&reign, b) {
        let armed = world.store.hand_off(&held, b, Seq(1), MARGIN).await?;
        check_eq!(armed, None, "{held:?} hands off nothing");
    }
    check_eq!(world.head(&reign.conversation).await?, before, "the head is as it was");
    Ok(())
}
