//! Cases about idempotency (invariants 3 and 4): one (conversation, sender, client message id) is in the log once.

use conch_core::ids::{ConvRef, ConversationId, Seq};

use super::world::{World, id, message, seqs};
use super::{Verdict, check, check_eq};
use crate::{Duplicate, Landed};

pub(super) async fn a_duplicate_names_its_original(world: &World<'_>) -> Verdict {
    let me = world.node(1).await?;
    let mut reign = world.reign("c", me).await?;
    let first = message("alice", "k1", "one");
    let at = world.write(&mut reign, vec![first.clone()]).await?;
    world.pass(1_000).await;
    let batch = reign.batch(vec![message("alice", "k0", "zero"), first.clone(), message("alice", "k2", "two")]);
    let (later, duplicates) = world.land(me, batch).await?;
    reign.prev = Seq(4);
    let original = Landed { seq: Seq(1), body_hash: first.body_hash, epoch: reign.epoch, at };
    check_eq!(duplicates, vec![Duplicate { seq: Seq(3), original }], "the second write is answered with the first");
    let page = world.log(&reign.conversation).await?;
    check_eq!(seqs(&page.records), vec![1, 2, 4], "its own number stays a hole, the others landed");
    check_eq!(page.head_seq, Seq(4), "the head stands at the batch's end");
    check!(page.records.iter().skip(1).all(|record| record.at == later), "those that landed have the commit's time");
    let batch = reign.batch(vec![first]);
    let (_, duplicates) = world.land(me, batch).await?;
    check_eq!(duplicates, vec![Duplicate { seq: Seq(5), original }], "a batch of a duplicate alone is answered alike");
    let page = world.log(&reign.conversation).await?;
    check_eq!((seqs(&page.records), page.head_seq), (vec![1, 2, 4], Seq(5)), "and moves the head all the same");
    Ok(())
}

pub(super) async fn a_duplicate_of_an_earlier_reign_keeps_its_epoch(world: &World<'_>) -> Verdict {
    let (a, b) = (world.node(1).await?, world.node(2).await?);
    let mut reign = world.reign("c", a).await?;
    let draft = message("alice", "k1", "one");
    let at = world.write(&mut reign, vec![draft.clone()]).await?;
    world.store.expel(a).await?;
    let next = world.take(&reign.conversation, b, Some(reign.epoch), Some(a)).await?;
    let (_, duplicates) = world.land(b, next.batch(vec![draft.clone()])).await?;
    let original = Landed { seq: Seq(1), body_hash: draft.body_hash, epoch: reign.epoch, at };
    check_eq!(duplicates, vec![Duplicate { seq: next.first, original }], "an acked write keeps its number for ever");
    check_eq!(world.seqs(&reign.conversation).await?, vec![1], "and appears once");
    Ok(())
}

pub(super) async fn another_body_is_told_by_its_hash(world: &World<'_>) -> Verdict {
    let me = world.node(1).await?;
    let mut reign = world.reign("c", me).await?;
    let (first, second) = (message("alice", "k1", "one"), message("alice", "k1", "another"));
    world.write(&mut reign, vec![first.clone()]).await?;
    let (_, duplicates) = world.land(me, reign.batch(vec![second.clone()])).await?;
    let hashes: Vec<_> = duplicates.iter().map(|duplicate| duplicate.original.body_hash).collect();
    check_eq!(hashes, vec![first.body_hash], "the first body's hash is answered, for the caller to judge");
    check!(first.body_hash != second.body_hash, "the bodies differ");
    let page = world.log(&reign.conversation).await?;
    check_eq!(
        page.records.iter().map(|record| &record.body).collect::<Vec<_>>(),
        vec![&first.body],
        "the first body stays"
    );
    Ok(())
}

pub(super) async fn a_batch_may_hold_its_own_duplicate(world: &World<'_>) -> Verdict {
    let me = world.node(1).await?;
    let reign = world.reign("c", me).await?;
    let (first, second) = (message("alice", "k1", "one"), message("alice", "k1", "another"));
    let batch = reign.batch(vec![message("bob", "k1", "bob"), first.clone(), second, first.clone()]);
    let (at, duplicates) = world.land(me, batch).await?;
    let original = Landed { seq: Seq(2), body_hash: first.body_hash, epoch: reign.epoch, at };
    let expected = [3, 4].map(|seq| Duplicate { seq: Seq(seq), original });
    check_eq!(duplicates, expected.to_vec(), "the first of the batch wins, and duplicates ascend by seq");
    check_eq!(world.seqs(&reign.conversation).await?, vec![1, 2], "the key is in the log once");
    Ok(())
}

pub(super) async fn keys_are_per_sender_and_conversation(world: &World<'_>) -> Verdict {
    let me = world.node(1).await?;
    let (mut c1, mut c2) = (world.reign("c1", me).await?, world.reign("c2", me).await?);
    for reign in [&mut c1, &mut c2] {
        for sender in ["alice", "bob", "Alice"] {
            world.write(reign, vec![message(sender, "k1", "text"), message(sender, "K1", "text")]).await?;
        }
        check_eq!(
            world.seqs(&reign.conversation).await?,
            vec![1, 2, 3, 4, 5, 6],
            "keys and senders are compared exactly"
        );
    }
    Ok(())
}

pub(super) async fn a_write_is_found_by_its_key(world: &World<'_>) -> Verdict {
    let me = world.node(1).await?;
    let mut reign = world.reign("c", me).await?;
    let drafts = vec![message("alice", "k1", "one"), message("bob", "k2", "two")];
    let at = world.write(&mut reign, drafts.clone()).await?;
    let (alice, bob) = (id("alice"), id("bob"));
    let found = world.store.find(&reign.conversation, &bob, &id("k2")).await?;
    let expected = Landed { seq: Seq(2), body_hash: drafts[1].body_hash, epoch: reign.epoch, at };
    check_eq!(found, Some(expected), "a write is found with its number, hash, epoch and time");
    check_eq!(world.store.find(&reign.conversation, &alice, &id("k2")).await?, None, "a key is its sender's");
    check_eq!(
        world.store.find(&reign.conversation, &alice, &id("k3")).await?,
        None,
        "what was not written is not found"
    );
    let other = world.channel("other").await?;
    check_eq!(world.store.find(&other, &bob, &id("k2")).await?, None, "a key is its conversation's");
    let nowhere = ConvRef::from(id::<ConversationId>("nowhere"));
    check_eq!(world.store.find(&nowhere, &bob, &id("k2")).await?, None, "nothing is found in what does not exist");
    Ok(())
}
