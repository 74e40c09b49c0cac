//! Cases about appends and their fence (invariants 1, 2, 3 and 8).

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use conch_core::ids::{Epoch, Generation, Incarnation, Seq};
use conch_core::record::{Record, RecordKind};

use super::world::{GAP, MARGIN, Reign, World, draft, message};
use super::{Verdict, Violation, check, check_eq};
use crate::{AppendOutcome, Batch};

impl World<'_> {
    /// Appends what must be refused with this outcome, and checks that nothing changed.
    async fn refused(&self, me: Incarnation, batch: Batch, expected: &AppendOutcome) -> Verdict {
        let conversation = batch.conversation.clone();
        let head_before = self.store.conversation(&conversation).await?;
        let log_before = self.log(&conversation).await?;
        let outcome = self.append(me, batch).await?;
        check_eq!(&outcome, expected, "a batch outside its reign is refused");
        check_eq!(self.store.conversation(&conversation).await?, head_before, "the head is as it was");
        check_eq!(self.log(&conversation).await?, log_before, "nothing was written");
        Ok(())
    }
}

fn one_more(reign: &Reign) -> Batch {
    reign.batch(vec![message("alice", "late", "late")])
}

pub(super) async fn an_append_is_read_back(world: &World<'_>) -> Verdict {
    let me = world.node(1).await?;
    let mut reign = world.reign("c", me).await?;
    let drafts = vec![
        message("alice", "k1", "one").with_name(Some(Arc::from("Alice A."))),
        draft(RecordKind::TurnStarted, "@start", "1", "go").in_turn(Seq(1)),
        draft(RecordKind::Event, "hook", "k1", "two"),
    ];
    let at = world.write(&mut reign, drafts.clone()).await?;
    let page = world.log(&reign.conversation).await?;
    let expected: Vec<Record> = (1..)
        .map(Seq)
        .zip(drafts)
        .map(|(seq, draft)| Record::from_draft(reign.conversation.id.clone(), seq, reign.epoch, at, draft))
        .collect();
    check_eq!(page.records, expected, "what landed is read as it was written, and shares the commit's time");
    check_eq!(page.head_seq, Seq(3), "the head is at the batch's end");
    check_eq!(page.log, world.store.log().await?, "a page names its log");
    let head = world.head(&reign.conversation).await?;
    check_eq!((head.last_seq, head.reserved_to), (Seq(3), Seq(3)), "so is the head row");
    let later = world.write(&mut reign, vec![message("bob", "k2", "three")]).await?;
    check!(later >= at, "time goes on with the store's clock");
    check_eq!(world.seqs(&reign.conversation).await?, vec![1, 2, 3, 4], "the next batch follows");
    Ok(())
}

pub(super) async fn an_append_of_another_epoch_is_fenced(world: &World<'_>) -> Verdict {
    let me = world.node(1).await?;
    let mut first = world.reign("c", me).await?;
    world.refused(me, Batch { epoch: Epoch(2), ..one_more(&first) }, &AppendOutcome::Fenced).await?;
    world.write(&mut first, vec![message("alice", "k1", "one")]).await?;
    let mut second = world.take(&first.conversation, me, Some(first.epoch), Some(me)).await?;
    world.refused(me, one_more(&first), &AppendOutcome::Fenced).await?;
    world.write(&mut second, vec![message("alice", "k2", "two")]).await?;
    check_eq!(world.seqs(&first.conversation).await?, vec![1, second.first.0], "the reign's own epoch writes");
    Ok(())
}

pub(super) async fn an_append_of_another_owner_is_fenced(world: &World<'_>) -> Verdict {
    let (a, b) = (world.node(1).await?, world.node(2).await?);
    let mut reign = world.reign("c", a).await?;
    world.refused(b, one_more(&reign), &AppendOutcome::Fenced).await?;
    world.write(&mut reign, vec![message("alice", "k1", "one")]).await?;
    Ok(())
}

pub(super) async fn an_append_after_the_reign_is_fenced(world: &World<'_>) -> Verdict {
    let (a, b) = (world.node(1).await?, world.node(2).await?);
    let first = world.reign("c", a).await?;
    world.store.release(&first.held(), first.next()).await?;
    world.refused(a, one_more(&first), &AppendOutcome::Fenced).await?;
    let second = world.take(&first.conversation, a, Some(first.epoch), None).await?;
    world.store.release_wedged(&second.held(), GAP).await?;
    world.refused(a, one_more(&second), &AppendOutcome::Fenced).await?;
    let third = world.take(&first.conversation, a, Some(second.epoch), None).await?;
    let armed = world.store.hand_off(&third.held(), b, third.next(), MARGIN).await?;
    let fourth = armed.map(|armed| Reign::new(&first.conversation, b, armed));
    let fourth = fourth.ok_or_else(|| Violation { detail: "a hand-off to a live peer".to_owned() })?;
    world.refused(a, one_more(&third), &AppendOutcome::Fenced).await?;
    world.store.expel(b).await?;
    let mut fifth = world.take(&first.conversation, a, Some(fourth.epoch), Some(b)).await?;
    for past in [&first, &second, &third] {
        world.refused(a, one_more(past), &AppendOutcome::Fenced).await?;
    }
    world.refused(b, one_more(&fourth), &AppendOutcome::Fenced).await?;
    world.write(&mut fifth, vec![message("alice", "k1", "one")]).await?;
    check_eq!(world.seqs(&first.conversation).await?, vec![fifth.first.0], "only the present reign writes");
    Ok(())
}

pub(super) async fn an_append_behind_the_head_is_refused(world: &World<'_>) -> Verdict {
    let me = world.node(1).await?;
    let mut reign = world.reign("c", me).await?;
    let start = reign.clone();
    world.write(&mut reign, vec![message("alice", "k1", "one"), message("alice", "k2", "two")]).await?;
    world.refused(me, one_more(&start), &AppendOutcome::Rewound).await?;
    let ahead = Reign { prev: Seq(7), ..reign.clone() };
    world.refused(me, one_more(&ahead), &AppendOutcome::Rewound).await?;
    world.write(&mut reign, vec![message("alice", "k3", "three")]).await?;
    Ok(())
}

pub(super) async fn a_batch_sent_again_lands_once(world: &World<'_>) -> Verdict {
    let me = world.node(1).await?;
    let mut reign = world.reign("c", me).await?;
    world.write(&mut reign, vec![message("alice", "k1", "one")]).await?;
    let batch =
        reign.batch(vec![message("alice", "k2", "two"), message("alice", "k1", "one"), message("bob", "k1", "x")]);
    let first = world.append(me, batch.clone()).await?;
    let log = world.log(&reign.conversation).await?;
    world.pass(1_000).await;
    check_eq!(world.append(me, batch.clone()).await?, first, "the answer is the first one's");
    check_eq!(world.log(&reign.conversation).await?, log, "nothing was written");
    let other =
        reign.batch(vec![message("carol", "k1", "a"), message("carol", "k2", "b"), message("carol", "k3", "c")]);
    world.refused(me, other, &AppendOutcome::Rewound).await?;
    Ok(())
}

pub(super) async fn a_malformed_batch_fails_alone(world: &World<'_>) -> Verdict {
    let me = world.node(1).await?;
    let (mut bad, good) = (world.reign("c1", me).await?, world.reign("c2", me).await?);
    world.write(&mut bad, vec![message("alice", "k1", "one")]).await?;
    let two = || bad.batch(vec![message("alice", "k2", "two"), message("alice", "k3", "three")]);
    let with_seqs = |seqs: [u64; 2], hi: u64| {
        let mut batch = two();
        (batch.records[0].0, batch.records[1].0, batch.hi) = (Seq(seqs[0]), Seq(seqs[1]), Seq(hi));
        batch
    };
    let malformed = [with_seqs([1, 2], 2), with_seqs([3, 2], 3), with_seqs([2, 2], 2), with_seqs([2, 4], 3), {
        let mut batch = bad.batch(Vec::new());
        batch.hi = Seq(0);
        batch
    }];
    let mut reign = good;
    for (number, batch) in malformed.into_iter().enumerate() {
        let fine = reign.batch(vec![message("alice", &format!("k{number}"), "fine")]);
        let hi = fine.hi;
        let outcomes = world.store.append(me, vec![batch, fine]).await?;
        check!(matches!(outcomes[0], AppendOutcome::Failed(_)), "malformed batch {number} fails: {outcomes:?}");
        check!(matches!(outcomes[1], AppendOutcome::Landed { .. }), "the other one lands: {outcomes:?}");
        reign.prev = hi;
    }
    check_eq!(world.seqs(&bad.conversation).await?, vec![1], "nothing of them was written");
    check_eq!(world.head(&bad.conversation).await?.last_seq, Seq(1), "the head is where it was");
    Ok(())
}

pub(super) async fn a_logs_times_never_go_back(world: &World<'_>) -> Verdict {
    let me = world.node(1).await?;
    let mut reign = world.reign("c", me).await?;
    let first = world.write(&mut reign, vec![message("alice", "k1", "one")]).await?;
    world.pass(-60_000).await;
    let second = world.write(&mut reign, vec![message("alice", "k2", "two")]).await?;
    check!(second >= first, "the clock was set back, the log's times stay in order: {first}, {second}");
    Ok(())
}

pub(super) async fn an_append_of_another_generation_is_rewound(world: &World<'_>) -> Verdict {
    let me = world.node(1).await?;
    let mut reign = world.reign("c", me).await?;
    let other = Generation(reign.generation.0 + 1);
    world.refused(me, Batch { generation: other, ..one_more(&reign) }, &AppendOutcome::Rewound).await?;
    world.write(&mut reign, vec![message("alice", "k1", "one")]).await?;
    Ok(())
}

pub(super) async fn a_fenced_batch_harms_no_other(world: &World<'_>) -> Verdict {
    let me = world.node(1).await?;
    let names = ["c1", "c2", "c3", "c4"];
    let mut reigns = Vec::new();
    for name in names {
        reigns.push(world.reign(name, me).await?);
    }
    let unowned = world.channel("c5").await?;
    let mut batches: Vec<Batch> = reigns.iter().map(one_more).collect();
    batches[1].epoch = Epoch(9);
    batches[2].prev = Seq(5);
    batches.push(Batch { conversation: unowned.clone(), ..one_more(&reigns[0]) });
    batches.swap(3, 4);
    let outcomes = world.store.append(me, batches).await?;
    check_eq!(outcomes.len(), 5, "there is one outcome a batch");
    check!(matches!(outcomes[0], AppendOutcome::Landed { .. }), "the first lands: {outcomes:?}");
    check_eq!(outcomes[1], AppendOutcome::Fenced, "the one with another epoch is fenced");
    check!(!matches!(outcomes[2], AppendOutcome::Landed { .. }), "the malplaced one does not land: {outcomes:?}");
    check_eq!(outcomes[3], AppendOutcome::Fenced, "the one without an owner is fenced");
    check!(matches!(outcomes[4], AppendOutcome::Landed { .. }), "the last lands: {outcomes:?}");
    for (reign, expected) in reigns.iter().zip([1, 0, 0, 1]) {
        let count = world.seqs(&reign.conversation).await?.len();
        check_eq!(count, expected, "{:?} holds what its outcome says", reign.conversation.id);
    }
    check!(world.seqs(&unowned).await?.is_empty(), "nothing is written where nobody owns");
    check_eq!(world.store.append(me, Vec::new()).await?, Vec::new(), "no batches, no outcomes");
    Ok(())
}

pub(super) async fn numbers_may_have_holes(world: &World<'_>) -> Verdict {
    let me = world.node(1).await?;
    let mut reign = world.reign("c", me).await?;
    let mut batch = reign.batch(vec![message("alice", "k1", "one"), message("alice", "k2", "two")]);
    batch.records[0].0 = Seq(3);
    batch.records[1].0 = Seq(10);
    (batch.hi, batch.reserve) = (Seq(10), Seq(10));
    world.land(me, batch).await?;
    reign.prev = Seq(10);
    world.write(&mut reign, vec![message("alice", "k3", "three")]).await?;
    check_eq!(world.seqs(&reign.conversation).await?, vec![3, 10, 11], "holes stay");
    check_eq!(world.store.count_after(&reign.conversation, Seq(2), 10).await?, 3, "holes are no records");
    Ok(())
}

pub(super) async fn the_reserve_is_never_lowered(world: &World<'_>) -> Verdict {
    let me = world.node(1).await?;
    let mut reign = world.reign("c", me).await?;
    for (reserve, expected) in [(1_000, 1_000), (2, 1_000), (2_000, 2_000), (1_999, 2_000)] {
        let mut batch = reign.batch(vec![message("alice", &format!("k{reserve}"), "text")]);
        let hi = batch.hi;
        batch.reserve = Seq(reserve);
        world.land(me, batch).await?;
        reign.prev = hi;
        let head = world.head(&reign.conversation).await?;
        check_eq!(
            (head.last_seq, head.reserved_to),
            (hi, Seq(expected)),
            "the mark rises with the append and never falls"
        );
    }
    Ok(())
}

pub(super) async fn batches_are_seen_whole_and_in_order(world: &World<'_>) -> Verdict {
    const BATCHES: u64 = 20;
    const SIZE: u64 = 3;
    let me = world.node(1).await?;
    let mut reign = world.reign("c", me).await?;
    let conversation = reign.conversation.clone();
    let writer = async {
        for number in 0..BATCHES {
            let drafts = (0..SIZE).map(|part| message("alice", &format!("k{number}-{part}"), "text")).collect();
            world.write(&mut reign, drafts).await?;
        }
        Ok::<_, Violation>(())
    };
    let reader = async {
        let mut seen = 0;
        while seen < BATCHES * SIZE {
            let page = world.log(&conversation).await?;
            let seqs: Vec<u64> = page.records.iter().map(|record| record.seq.0).collect();
            let count = seqs.len() as u64;
            check_eq!(seqs, (1..=count).collect::<Vec<_>>(), "a reader sees a prefix of the log");
            check_eq!(count % SIZE, 0, "in whole batches");
            check_eq!(page.head_seq, Seq(count), "with the head of the same snapshot");
            check!(count >= seen, "what was seen stays");
            seen = count;
            // Lets the writer go on when the store answers at once.
            yield_once().await;
        }
        Ok::<_, Violation>(())
    };
    both(writer, reader).await
}

/// Runs both, in turns, until both are done or one failed.
async fn both(a: impl Future<Output = Verdict>, b: impl Future<Output = Verdict>) -> Verdict {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let (mut a_done, mut b_done) = (false, false);
    poll_fn(|context| {
        if !a_done && let Poll::Ready(verdict) = a.as_mut().poll(context) {
            verdict?;
            a_done = true;
        }
        if !b_done && let Poll::Ready(verdict) = b.as_mut().poll(context) {
            verdict?;
            b_done = true;
        }
        if a_done && b_done { Poll::Ready(Ok(())) } else { Poll::Pending }
    })
    .await
}

async fn yield_once() {
    let mut yielded = false;
    poll_fn(|context| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
