//! Cases about claims: who may take a conversation, at which epoch and from which number on.

use conch_core::ids::{ConvRef, ConversationId, Epoch, Incarnation, Seq};

use super::world::{GAP, MARGIN_MS, Reign, TTL, TTL_MS, World, claim, id, message, new_channel, registration};
use super::{Epochs, Verdict, Violation, check, check_eq};
use crate::{AppendOutcome, ClaimOutcome, ClaimRequest, RESOLVE_MANY_MAX, Resolution, Resolved, StoreError};

/// What each generation skips (docs/ARCHITECTURE.md, "Ownership").
const SKIP_PER_GENERATION: u64 = 1_000_000;

impl World<'_> {
    pub(super) async fn resolution(&self, conversation: &ConvRef) -> Verdict<Resolution> {
        let resolution = self.store.resolve(conversation).await?;
        resolution.ok_or_else(|| Violation { detail: format!("{:?} exists", conversation.id) })
    }

    /// True if the claim is lost, and changed nothing of the conversation `c`, which it is about.
    async fn loses(&self, request: &ClaimRequest) -> Verdict<bool> {
        let conversation = ConvRef::from(id::<ConversationId>("c"));
        let before = self.store.conversation(&conversation).await?;
        let lost = self.store.claim(request).await? == ClaimOutcome::Lost;
        if lost {
            check_eq!(self.store.conversation(&conversation).await?, before, "a lost claim changes nothing");
        }
        Ok(lost)
    }
}

pub(super) async fn an_unknown_conversation_resolves_to_nothing(world: &World<'_>) -> Verdict {
    let nowhere = ConvRef::from(id::<ConversationId>("nowhere"));
    check_eq!(world.store.resolve(&nowhere).await?, None, "there is no such conversation");
    Ok(())
}

/// What does not change by itself from one look to the next.
fn still(resolved: Resolved) -> Resolved {
    resolved.map(|resolution| {
        resolution.map(|mut resolution| {
            if let Some(row) = resolution.owner.as_mut().and_then(|owner| owner.node.as_mut()) {
                row.expires_in_ms = 0;
            }
            resolution
        })
    })
}

pub(super) async fn several_resolve_as_each_does(world: &World<'_>) -> Verdict {
    check_eq!(world.store.resolve_many(&[]).await?, Vec::new(), "nobody asked, nothing is answered");
    let (a, b) = (world.node(1).await?, world.node(2).await?);
    let owned = world.reign("owned", a).await?.conversation;
    let also_owned = world.reign("also-owned", a).await?.conversation;
    let orphaned = world.reign("orphaned", b).await?.conversation;
    let released = world.reign("released", a).await?;
    check!(world.store.release(&released.held(), released.next()).await?, "the owner releases");
    world.store.expel(b).await?;
    let never_owned = world.channel("never-owned").await?;
    let nowhere = ConvRef::from(id::<ConversationId>("nowhere"));
    let collides = ConvRef { id: id("other"), key: owned.key };
    let mut asked =
        vec![owned.clone(), nowhere, released.conversation, collides, orphaned, never_owned, owned, also_owned];
    for _ in 0..2 {
        let several = world.store.resolve_many(&asked).await?;
        check_eq!(several.len(), asked.len(), "one answer for each");
        for (conversation, answer) in asked.iter().zip(several) {
            let alone = world.store.resolve(conversation).await;
            check_eq!(still(answer), still(alone), "{:?} resolves among others as it does alone", conversation.id);
        }
        asked.reverse();
    }
    let full: Vec<ConvRef> = asked.iter().cycle().take(RESOLVE_MANY_MAX).cloned().collect();
    check_eq!(world.store.resolve_many(&full).await?.len(), RESOLVE_MANY_MAX, "as many as may be asked are answered");
    Ok(())
}

pub(super) async fn the_first_claim_starts_at_the_beginning(world: &World<'_>) -> Verdict {
    let me = world.node(1).await?;
    let conversation = world.channel("c").await?;
    let resolution = world.resolution(&conversation).await?;
    check_eq!(resolution, Resolution { epoch: None, owner: None }, "a new conversation was never owned");
    let reign = world.take(&conversation, me, None, None).await?;
    check_eq!(reign.generation.0, 1, "a fresh store is in generation 1");
    check!(world.follows(Epoch(0), reign.epoch, 1), "the first epoch is 1");
    check_eq!((reign.prev, reign.first), (Seq(0), Seq(1)), "nothing is written, and the first number is 1");
    Ok(())
}

pub(super) async fn an_owner_is_shown_with_its_node(world: &World<'_>) -> Verdict {
    let me = world.node(1).await?;
    let reign = world.reign("c", me).await?;
    world.store.set_draining(me).await?;
    let resolution = world.resolution(&reign.conversation).await?;
    check_eq!(resolution.epoch, Some(reign.epoch), "the epoch is the claim's");
    let owner =
        resolution.owner.ok_or_else(|| Violation { detail: "a claimed conversation has an owner".to_owned() })?;
    check_eq!(owner.incarnation, me, "the owner is the claimant");
    let node = owner.node.ok_or_else(|| Violation { detail: "a registered owner's row is shown".to_owned() })?;
    check_eq!(node.registration, registration(1), "with its address");
    check!(node.draining, "and its drain mark");
    let head = world.head(&reign.conversation).await?;
    check_eq!(head.owner_node, Some(id("node-1")), "the head names the owner's node");
    check_eq!((head.epoch, head.owner), (reign.epoch, Some(me)), "the head is as it resolves");
    check_eq!(head.generation, reign.generation, "the head keeps the generation");
    world.store.expel(me).await?;
    let owner = world.resolution(&reign.conversation).await?.owner;
    check!(owner.is_some_and(|owner| owner.incarnation == me && owner.node.is_none()), "a gone owner has no row");
    let head = world.head(&reign.conversation).await?;
    check_eq!((head.owner, head.owner_node), (Some(me), None), "its head names it, but no node");
    Ok(())
}

pub(super) async fn a_released_conversation_is_taken_without_a_hole(world: &World<'_>) -> Verdict {
    let (a, b) = (world.node(1).await?, world.node(2).await?);
    let mut reign = world.reign("c", a).await?;
    let mut batch = reign.batch(vec![message("alice", "k1", "one"), message("alice", "k2", "two")]);
    batch.reserve = Seq(1_000);
    world.land(a, batch).await?;
    reign.prev = Seq(2);
    check!(world.store.release(&reign.held(), Seq(3)).await?, "the owner releases");
    let next = world.take(&reign.conversation, b, Some(reign.epoch), None).await?;
    check!(world.follows(reign.epoch, next.epoch, 1), "no owner: epoch + 1");
    check_eq!((next.prev, next.first), (Seq(2), Seq(3)), "after a clean release there is no hole");
    Ok(())
}

pub(super) async fn a_claim_of_ones_own_skips_the_gap(world: &World<'_>) -> Verdict {
    let me = world.node(1).await?;
    let mut reign = world.reign("c", me).await?;
    world.write(&mut reign, vec![message("alice", "k1", "one")]).await?;
    let next = world.take(&reign.conversation, me, Some(reign.epoch), Some(me)).await?;
    check!(world.follows(reign.epoch, next.epoch, 1), "mine without a task: epoch + 1");
    check_eq!(next.prev, Seq(1), "what was committed is there");
    check_eq!(next.first, Seq(1 + GAP + 1), "something may have been in flight: the gap is skipped");
    Ok(())
}

pub(super) async fn a_claim_after_a_death_skips_what_was_reserved_and_the_gap(world: &World<'_>) -> Verdict {
    let (a, b) = (world.node(1).await?, world.node(2).await?);
    let reign = world.reign("c", a).await?;
    let mut batch = reign.batch(vec![message("alice", "k1", "one")]);
    batch.reserve = Seq(1_000);
    world.land(a, batch).await?;
    world.store.expel(a).await?;
    let next = world.take(&reign.conversation, b, Some(reign.epoch), Some(a)).await?;
    check!(world.follows(reign.epoch, next.epoch, 1), "an unregistered owner's: epoch + 1");
    check_eq!(next.prev, Seq(1), "what was committed is there");
    check_eq!(next.first, Seq(1_000 + GAP + 1), "the rest of the block and the gap are skipped");
    Ok(())
}

pub(super) async fn a_claim_on_an_old_view_loses(world: &World<'_>) -> Verdict {
    let (a, b) = (world.node(1).await?, world.node(2).await?);
    let conversation = world.channel("c").await?;
    check!(world.loses(&claim(&conversation, b, Some(Epoch(1)), None)).await?, "an epoch was seen where there is none");
    let first = world.take(&conversation, a, None, None).await?;
    let second = world.take(&conversation, a, Some(first.epoch), Some(a)).await?;
    world.store.expel(a).await?;
    let epochs = [None, Some(Epoch(first.epoch.0)), Some(Epoch(second.epoch.0 + 1))];
    for seen_epoch in epochs {
        check!(
            world.loses(&claim(&conversation, b, seen_epoch, Some(a))).await?,
            "another epoch was seen: {seen_epoch:?}"
        );
    }
    for seen_owner in [None, Some(b), Some(Incarnation(99))] {
        let request = claim(&conversation, b, Some(second.epoch), seen_owner);
        check!(world.loses(&request).await?, "another owner was seen: {seen_owner:?}");
    }
    world.take(&conversation, b, Some(second.epoch), Some(a)).await?;
    Ok(())
}

pub(super) async fn of_two_claims_on_one_view_one_wins(world: &World<'_>) -> Verdict {
    let (a, b) = (world.node(1).await?, world.node(2).await?);
    let conversation = world.channel("c").await?;
    let first = world.take(&conversation, a, None, None).await?;
    check!(world.loses(&claim(&conversation, b, None, None)).await?, "the second first claim loses");
    world.store.release(&first.held(), first.next()).await?;
    let second = world.take(&conversation, b, Some(first.epoch), None).await?;
    check!(world.loses(&claim(&conversation, a, Some(first.epoch), None)).await?, "so does the second after a release");
    world.store.expel(b).await?;
    let c = world.node(3).await?;
    world.take(&conversation, c, Some(second.epoch), Some(b)).await?;
    let late = claim(&conversation, a, Some(second.epoch), Some(b));
    check!(world.loses(&late).await?, "and the second after a death");
    Ok(())
}

pub(super) async fn only_the_registered_claim(world: &World<'_>) -> Verdict {
    let (a, b) = (world.node(1).await?, world.node(2).await?);
    let conversation = world.channel("c").await?;
    check!(world.loses(&claim(&conversation, Incarnation(99), None, None)).await?, "one without a row cannot claim");
    world.store.deregister(a).await?;
    check!(world.loses(&claim(&conversation, a, None, None)).await?, "nor one whose row is gone");
    let reign = world.take(&conversation, b, None, None).await?;
    world.store.expel(b).await?;
    let own = claim(&conversation, b, Some(reign.epoch), Some(b));
    check!(world.loses(&own).await?, "not even what it owned");
    Ok(())
}

pub(super) async fn the_draining_claim_only_what_they_own(world: &World<'_>) -> Verdict {
    let me = world.node(1).await?;
    let conversation = world.channel("c").await?;
    world.store.set_draining(me).await?;
    check!(world.loses(&claim(&conversation, me, None, None)).await?, "a draining node takes no new conversation");
    let other = world.node(2).await?;
    let reign = world.take(&conversation, other, None, None).await?;
    world.store.set_draining(other).await?;
    let own = world.take(&conversation, other, Some(reign.epoch), Some(other)).await?;
    check!(world.follows(reign.epoch, own.epoch, 1), "but settles a write of unknown outcome on what it owns");
    check!(world.store.release(&own.held(), own.next()).await?, "and releases it");
    let back = claim(&conversation, other, Some(own.epoch), None);
    check!(world.loses(&back).await?, "what it released it takes no more");
    Ok(())
}

pub(super) async fn inside_the_margin_claims_lose(world: &World<'_>) -> Verdict {
    let me = world.node(1).await?;
    let conversation = world.channel("c").await?;
    world.pass(TTL_MS - MARGIN_MS).await;
    check!(
        world.loses(&claim(&conversation, me, None, None)).await?,
        "a lease with no more than the margin left cannot claim"
    );
    world.pass(TTL_MS).await;
    check!(world.loses(&claim(&conversation, me, None, None)).await?, "nor an expired one");
    world.store.renew(me, TTL).await?;
    world.take(&conversation, me, None, None).await?;
    Ok(())
}

pub(super) async fn every_change_of_owner_raises_the_epoch(world: &World<'_>) -> Verdict {
    let (a, b) = (world.node(1).await?, world.node(2).await?);
    let first = world.reign("c", a).await?;
    let conversation = first.conversation.clone();
    world.store.release(&first.held(), first.next()).await?;
    let second = world.take(&conversation, a, Some(first.epoch), None).await?;
    let armed = world.store.hand_off(&second.held(), b, second.next(), super::world::MARGIN).await?;
    let armed = armed.ok_or_else(|| Violation { detail: "a hand-off to a live peer".to_owned() })?;
    let third = Reign::new(&conversation, b, armed);
    world.store.release_wedged(&third.held(), GAP).await?;
    let fourth = world.take(&conversation, a, Some(third.epoch), None).await?;
    world.store.expel(a).await?;
    let fifth = world.take(&conversation, b, Some(fourth.epoch), Some(a)).await?;
    let epochs = [first, second, third, fourth, fifth].map(|reign| reign.epoch);
    let in_order = epochs.windows(2).all(|pair| world.follows(pair[0], pair[1], 1));
    check!(in_order && world.follows(Epoch(0), epochs[0], 1), "each reign has the next epoch: {epochs:?}");
    Ok(())
}

pub(super) async fn the_epoch_survives_release(world: &World<'_>) -> Verdict {
    let me = world.node(1).await?;
    let reign = world.reign("c", me).await?;
    let next = world.take(&reign.conversation, me, Some(reign.epoch), Some(me)).await?;
    world.store.release(&next.held(), next.next()).await?;
    let resolution = world.resolution(&reign.conversation).await?;
    check_eq!(resolution, Resolution { epoch: Some(next.epoch), owner: None }, "released: no owner, the same epoch");
    world.store.deregister(me).await?;
    let resolution = world.resolution(&reign.conversation).await?;
    check_eq!(resolution.epoch, Some(next.epoch), "a head row is never deleted");
    Ok(())
}

pub(super) async fn a_new_generation_skips_numbers_and_epochs(world: &World<'_>) -> Verdict {
    let me = world.node(1).await?;
    let mut reign = world.reign("c", me).await?;
    world.write(&mut reign, vec![message("alice", "k1", "one")]).await?;
    let log = world.store.log().await?;
    if !world.fixture.raise_generation().await {
        return Ok(());
    }
    check!(world.store.log().await? != log, "another generation is another log");
    let late = world.append(me, reign.batch(vec![message("alice", "k2", "two")])).await?;
    check_eq!(late, AppendOutcome::Rewound, "the old generation's owner has to claim again");
    check_eq!(world.seqs(&reign.conversation).await?, vec![1], "and wrote nothing");
    // A node that lost its row with the failover registers anew, as another incarnation.
    world.store.expel(me).await?;
    let other = world.node(2).await?;
    let next = world.take(&reign.conversation, other, Some(reign.epoch), Some(me)).await?;
    let skip = (next.generation.0 - reign.generation.0) * SKIP_PER_GENERATION;
    check!(skip > 0, "the generation rose");
    check!(world.follows(reign.epoch, next.epoch, skip), "a million epochs a generation are skipped");
    check_eq!(next.first.0, 1 + skip + 1, "and a million numbers");
    check_eq!(next.prev, Seq(1), "what was committed is there");
    let fresh = new_channel("fresh", &["alice"]);
    world.store.create_conversation(&fresh).await?;
    let fresh = world.take(&fresh.conversation, other, None, None).await?;
    let start = (next.generation.0 - 1) * SKIP_PER_GENERATION;
    check_eq!(fresh.first.0, start + 1, "a new conversation starts in its generation's range");
    let fits = world.follows(Epoch(start), fresh.epoch, 1) || world.fixture.epochs() == Epochs::Rising;
    check!(fits, "with its epochs, too");
    Ok(())
}

pub(super) async fn a_key_belongs_to_one_id(world: &World<'_>) -> Verdict {
    let conversation = world.channel("c").await?;
    let collides = ConvRef { id: id("other"), key: conversation.key };
    check_eq!(world.store.resolve(&collides).await, Err(StoreError::Collision), "another id's key does not resolve");
    let new = crate::NewConversation { conversation: collides, ..new_channel("other", &["mallory"]) };
    check_eq!(world.store.create_conversation(&new).await, Err(StoreError::Collision), "nor is it created");
    check!(!world.store.is_member(&conversation, &id("mallory")).await?, "the first one is as it was");
    Ok(())
}
