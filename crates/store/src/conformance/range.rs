//! Cases about reading a log: ranges and counts.

use conch_core::ids::{ConvRef, ConversationId, Seq};
use conch_core::record::RecordKind;

use super::world::{PLENTY, World, draft, id, message, seqs};
use super::{Verdict, check, check_eq};
use crate::{Direction, RangeQuery};

/// What a query shall answer: the seqs, and whether there are more.
type Expected<'a> = (Direction, usize, &'a [u64], bool);

impl World<'_> {
    /// A log with the records 2, 4, 6, 8 and 10, and its head at 12.
    async fn even_log(&self, name: &str) -> Verdict<ConvRef> {
        let me = self.node(1).await?;
        let reign = self.reign(name, me).await?;
        let drafts = (0..5).map(|number| {
            let kind = if number % 2 == 0 { RecordKind::Message } else { RecordKind::Event };
            draft(kind, "alice", &format!("k{number}"), "text")
        });
        let mut batch = reign.batch(drafts.collect());
        for (number, record) in batch.records.iter_mut().enumerate() {
            record.0 = Seq(2 + 2 * number as u64);
        }
        (batch.hi, batch.reserve) = (Seq(12), Seq(12));
        self.land(me, batch).await?;
        Ok(reign.conversation)
    }

    async fn expect(&self, conversation: &ConvRef, kinds: &[RecordKind], cases: &[Expected<'_>]) -> Verdict {
        for &(direction, limit, expected, more) in cases {
            let page = self.page(conversation, direction, limit, kinds).await?;
            check_eq!(seqs(&page.records), expected.to_vec(), "{direction:?}, at most {limit}, of {kinds:?}");
            check_eq!(page.more, more, "{direction:?}, at most {limit}, of {kinds:?}: are there more?");
            check_eq!(page.head_seq, Seq(12), "every page has the head");
        }
        Ok(())
    }
}

pub(super) async fn a_range_after_a_position(world: &World<'_>) -> Verdict {
    let conversation = world.even_log("c").await?;
    let after = |seq| Direction::After(Seq(seq));
    let cases: [Expected<'_>; 9] = [
        (after(0), PLENTY, &[2, 4, 6, 8, 10], false),
        (after(0), 5, &[2, 4, 6, 8, 10], false),
        (after(0), 4, &[2, 4, 6, 8], true),
        (after(2), 2, &[4, 6], true),
        (after(3), 2, &[4, 6], true),
        (after(6), 2, &[8, 10], false),
        (after(10), 1, &[], false),
        (after(12), 1, &[], false),
        (after(1_000), 1, &[], false),
    ];
    world.expect(&conversation, &[], &cases).await
}

pub(super) async fn a_range_before_a_position(world: &World<'_>) -> Verdict {
    let conversation = world.even_log("c").await?;
    let before = |seq| Direction::Before(Seq(seq));
    let cases: [Expected<'_>; 8] = [
        (before(1_000), PLENTY, &[2, 4, 6, 8, 10], false),
        (before(11), 2, &[8, 10], true),
        (before(10), 2, &[6, 8], true),
        (before(7), 3, &[2, 4, 6], false),
        (before(7), 2, &[4, 6], true),
        (before(3), 1, &[2], false),
        (before(2), 1, &[], false),
        (before(0), 1, &[], false),
    ];
    world.expect(&conversation, &[], &cases).await
}

pub(super) async fn the_latest_records(world: &World<'_>) -> Verdict {
    let conversation = world.even_log("c").await?;
    let cases: [Expected<'_>; 4] = [
        (Direction::Latest, 1, &[10], true),
        (Direction::Latest, 2, &[8, 10], true),
        (Direction::Latest, 5, &[2, 4, 6, 8, 10], false),
        (Direction::Latest, PLENTY, &[2, 4, 6, 8, 10], false),
    ];
    world.expect(&conversation, &[], &cases).await
}

pub(super) async fn a_range_of_some_kinds(world: &World<'_>) -> Verdict {
    let conversation = world.even_log("c").await?;
    let messages: [Expected<'_>; 5] = [
        (Direction::After(Seq(0)), PLENTY, &[2, 6, 10], false),
        (Direction::After(Seq(0)), 2, &[2, 6], true),
        (Direction::After(Seq(2)), 2, &[6, 10], false),
        (Direction::Before(Seq(10)), 2, &[2, 6], false),
        (Direction::Latest, 1, &[10], true),
    ];
    world.expect(&conversation, &[RecordKind::Message], &messages).await?;
    let events: [Expected<'_>; 2] =
        [(Direction::Latest, 1, &[8], true), (Direction::After(Seq(4)), PLENTY, &[8], false)];
    world.expect(&conversation, &[RecordKind::Event], &events).await?;
    let both: [Expected<'_>; 1] = [(Direction::Before(Seq(7)), 2, &[4, 6], true)];
    world.expect(&conversation, &[RecordKind::Event, RecordKind::Message], &both).await?;
    let none: [Expected<'_>; 2] = [(Direction::Latest, 1, &[], false), (Direction::After(Seq(0)), 1, &[], false)];
    world.expect(&conversation, &[RecordKind::TurnFailed, RecordKind::AwaitOpened], &none).await
}

pub(super) async fn a_range_of_nothing(world: &World<'_>) -> Verdict {
    let conversation = world.channel("c").await?;
    for direction in [Direction::After(Seq(0)), Direction::Before(Seq(9)), Direction::Latest] {
        let page = world.page(&conversation, direction, 10, &[]).await?;
        check!(page.records.is_empty() && !page.more, "nothing was written: {page:?}");
        check_eq!(page.head_seq, Seq(0), "the head of what was never written is 0");
        check_eq!(page.log, world.store.log().await?, "the log is named");
        let nowhere = ConvRef::from(id::<ConversationId>("nowhere"));
        let query = RangeQuery { conversation: nowhere, direction, limit: 10, kinds: Vec::new() };
        check_eq!(world.store.range(&query).await?, None, "there is no such conversation");
    }
    Ok(())
}

pub(super) async fn records_are_counted_up_to_a_limit(world: &World<'_>) -> Verdict {
    let conversation = world.even_log("c").await?;
    for (after, limit, expected) in
        [(0, 100, 5), (0, 5, 5), (0, 3, 3), (4, 100, 3), (5, 100, 3), (10, 100, 0), (99, 1, 0)]
    {
        let count = world.store.count_after(&conversation, Seq(after), limit).await?;
        check_eq!(count, expected, "records above {after}, to {limit} at most");
    }
    let nowhere = ConvRef::from(id::<ConversationId>("nowhere"));
    check_eq!(world.store.count_after(&nowhere, Seq(0), 10).await?, 0, "there are none in what does not exist");
    let me = conch_core::ids::Incarnation(1);
    let mut other = world.reign("other", me).await?;
    world.write(&mut other, vec![message("alice", "k1", "one")]).await?;
    check_eq!(
        world.store.count_after(&other.conversation, Seq(0), 10).await?,
        1,
        "each conversation counts for itself"
    );
    Ok(())
}
