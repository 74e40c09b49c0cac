//! Cases about due work and checkpoints, which change under the fence.

use std::time::Duration;

use conch_core::ids::{ConvRef, ConversationId, Epoch, Region, Seq};

use super::world::{PLENTY, Reign, TTL, TTL_MS, World, id, message, new_channel};
use super::{Verdict, check, check_eq};
use crate::{AppendOutcome, Batch, Checkpoint, DueChange, DueQuery, DueWhy, NewConversation};

impl World<'_> {
    /// Writes one record and makes this change.
    async fn write_due(&self, reign: &mut Reign, key: &str, due: DueChange) -> Verdict {
        let batch = Batch { due, ..reign.batch(vec![message("alice", key, "text")]) };
        let hi = batch.hi;
        self.land(reign.me, batch).await?;
        reign.prev = hi;
        Ok(())
    }

    /// What is due, as a node of the conversations' home sees it.
    async fn due(&self) -> Verdict<Vec<(ConversationId, DueWhy)>> {
        let rows = self.store.due(&query(PLENTY)).await?;
        Ok(rows.into_iter().map(|row| (row.conversation, row.why)).collect())
    }

    async fn names(&self, query: DueQuery) -> Verdict<Vec<String>> {
        Ok(self.store.due(&query).await?.iter().map(|row| row.conversation.to_string()).collect())
    }
}

fn row(name: &str, why: DueWhy) -> (ConversationId, DueWhy) {
    (id(name), why)
}

fn query(limit: usize) -> DueQuery {
    DueQuery { region: id("north"), after: None, limit }
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(super) async fn due_work_is_listed_when_its_owner_is_gone(world: &World<'_>) -> Verdict {
    let (me, other) = (world.node(1).await?, world.node(2).await?);
    let (mut released, mut orphaned) = (world.reign("c1", me).await?, world.reign("c2", other).await?);
    check_eq!(world.due().await?, Vec::new(), "nothing is due at first");
    world.write_due(&mut released, "k", DueChange::Set(DueWhy::Input, seconds(5))).await?;
    world.write_due(&mut orphaned, "k", DueChange::Set(DueWhy::Turn, seconds(60))).await?;
    world.pass(10_000).await;
    check_eq!(world.due().await?, Vec::new(), "an owner that lives sees to it itself");
    world.store.release(&released.held(), released.next()).await?;
    check_eq!(world.due().await?, vec![row("c1", DueWhy::Input)], "without an owner it is listed");
    world.store.expel(other).await?;
    check_eq!(world.due().await?, vec![row("c1", DueWhy::Input)], "but not before its time");
    world.pass(60_000).await;
    let both = vec![row("c1", DueWhy::Input), row("c2", DueWhy::Turn)];
    check_eq!(world.due().await?, both, "nor when its owner is gone, after its time");
    world.store.renew(me, TTL).await?;
    let taken = world.take(&orphaned.conversation, me, Some(orphaned.epoch), Some(other)).await?;
    check_eq!(world.due().await?, vec![row("c1", DueWhy::Input)], "who takes it sees to it");
    world.pass(TTL_MS * 2).await;
    check_eq!(
        world.due().await?,
        vec![row("c1", DueWhy::Input)],
        "an expired owner that nobody declared dead counts as one"
    );
    world.store.renew(me, TTL).await?;
    world.store.release(&taken.held(), taken.next()).await?;
    check_eq!(world.due().await?, both, "a release leaves the due row as it was");
    Ok(())
}

pub(super) async fn due_work_is_kept_replaced_and_cleared(world: &World<'_>) -> Verdict {
    let me = world.node(1).await?;
    let mut reign = world.reign("c", me).await?;
    let steps = [
        (DueChange::Set(DueWhy::Input, seconds(0)), Some(DueWhy::Input), "set"),
        (DueChange::Keep, Some(DueWhy::Input), "kept"),
        (DueChange::Set(DueWhy::Turn, seconds(100)), None, "replaced by a later one"),
        (DueChange::Keep, None, "kept as it is"),
        (DueChange::Set(DueWhy::Await, seconds(0)), Some(DueWhy::Await), "replaced by an earlier one"),
        (DueChange::Set(DueWhy::Deadline, seconds(0)), Some(DueWhy::Deadline), "replaced by another reason"),
        (DueChange::Clear, None, "cleared"),
        (DueChange::Keep, None, "kept absent"),
        (DueChange::Clear, None, "cleared though absent"),
    ];
    for (number, (change, expected, what)) in steps.into_iter().enumerate() {
        world.write_due(&mut reign, &format!("k{number}"), change).await?;
        world.store.release(&reign.held(), reign.next()).await?;
        world.pass(1).await;
        let rows: Vec<DueWhy> = world.due().await?.into_iter().map(|(_, why)| why).collect();
        check_eq!(rows, expected.into_iter().collect::<Vec<_>>(), "step {number}: the due row is {what}");
        reign = world.take(&reign.conversation, me, Some(reign.epoch), None).await?;
    }
    Ok(())
}

pub(super) async fn due_work_is_listed_earliest_first(world: &World<'_>) -> Verdict {
    let me = world.node(1).await?;
    for (name, after) in [("c1", 30), ("c2", 10), ("c3", 40), ("c4", 20)] {
        let mut reign = world.reign(name, me).await?;
        world.write_due(&mut reign, "k", DueChange::Set(DueWhy::Turn, seconds(after))).await?;
    }
    world.store.expel(me).await?;
    world.pass(35_000).await;
    check_eq!(world.names(query(PLENTY)).await?, ["c2", "c4", "c1"], "what is due, earliest first");
    check_eq!(world.names(query(2)).await?, ["c2", "c4"], "up to the limit");
    Ok(())
}

pub(super) async fn due_work_is_listed_page_by_page(world: &World<'_>) -> Verdict {
    let me = world.node(1).await?;
    // Some of it becomes due at one moment, where the clock stands still between two calls.
    let mut reigns = Vec::new();
    for (name, after) in [("c5", 10), ("c3", 10), ("c1", 20), ("c4", 10), ("c2", 10)] {
        let mut reign = world.reign(name, me).await?;
        world.write_due(&mut reign, "k", DueChange::Set(DueWhy::Turn, seconds(after))).await?;
        reigns.push(reign);
    }
    world.store.expel(me).await?;
    world.pass(35_000).await;
    let whole = world.store.due(&query(PLENTY)).await?;
    check_eq!(whole.len(), 5, "all of it is due");
    for limit in 1..6 {
        let (mut pages, mut after) = (Vec::new(), None);
        loop {
            let page = world.store.due(&DueQuery { after: after.clone(), ..query(limit) }).await?;
            check!(page.len() <= limit, "a page of {} rows, at most {limit}", page.len());
            let Some(last) = page.last() else { break };
            after = Some(last.mark());
            pages.extend(page);
            check!(pages.len() <= whole.len(), "the list does not end: {pages:?}");
        }
        check_eq!(pages, whole, "pages of {limit} make the whole list");
    }
    let (other, second) = (world.node(2).await?, whole[1].mark());
    for taken in reigns.iter().filter(|reign| reign.conversation.id == second.conversation) {
        world.take(&taken.conversation, other, Some(taken.epoch), Some(me)).await?;
    }
    let rest = world.store.due(&DueQuery { after: Some(second), ..query(PLENTY) }).await?;
    check_eq!(rest, whole[2..].to_vec(), "behind a row that is due no more");
    Ok(())
}

pub(super) async fn due_work_is_listed_where_it_may_be_done(world: &World<'_>) -> Verdict {
    let me = world.node(1).await?;
    let places: [(&str, &[&str]); 4] =
        [("c1", &[]), ("c2", &["north"]), ("c3", &["south"]), ("c4", &["south", "north", "east"])];
    for (name, regions) in places {
        let regions = regions.iter().map(|region| id(region)).collect();
        world.store.create_conversation(&NewConversation { regions, ..new_channel(name, &[]) }).await?;
        let conversation = ConvRef::from(id::<ConversationId>(name));
        let mut reign = world.take(&conversation, me, None, None).await?;
        world.write_due(&mut reign, "k", DueChange::Set(DueWhy::Turn, seconds(1))).await?;
        world.pass(1).await;
    }
    world.store.expel(me).await?;
    world.pass(10_000).await;
    for (region, names) in
        [("north", &["c1", "c2", "c4"][..]), ("south", &["c1", "c3", "c4"]), ("east", &["c1", "c4"]), ("eas", &["c1"])]
    {
        let here = DueQuery { region: id(region), ..query(PLENTY) };
        check_eq!(world.names(here).await?, names, "what may be done in {region}");
    }
    let rows = world.store.due(&query(PLENTY)).await?;
    let shown: Vec<(&[Region], &Region)> = rows.iter().map(|row| (&row.regions[..], &row.home)).collect();
    let (north, all) = ([id("north")], [id("south"), id("north"), id("east")]);
    let wanted: Vec<(&[Region], &Region)> = vec![(&[], &north[0]), (&north, &north[0]), (&all, &all[0])];
    check_eq!(shown, wanted, "where each may be, and its home");
    Ok(())
}

pub(super) async fn a_fenced_append_leaves_due_work(world: &World<'_>) -> Verdict {
    let (me, other) = (world.node(1).await?, world.node(2).await?);
    let mut reign = world.reign("c", me).await?;
    world.write_due(&mut reign, "k1", DueChange::Set(DueWhy::Turn, seconds(0))).await?;
    world.store.expel(me).await?;
    world.pass(1).await;
    for due in [DueChange::Clear, DueChange::Set(DueWhy::Await, seconds(100))] {
        let batch = Batch { due, ..reign.batch(vec![message("alice", "k2", "late")]) };
        check_eq!(world.append(other, batch).await?, AppendOutcome::Fenced, "another's append is fenced");
        check_eq!(world.due().await?, vec![row("c", DueWhy::Turn)], "and the due row with it");
    }
    Ok(())
}

fn state(version: u64, text: &str) -> Checkpoint {
    Checkpoint { version, at_seq: Seq(version * 10), state: text.as_bytes().to_vec() }
}

pub(super) async fn the_newest_checkpoint_is_kept(world: &World<'_>) -> Verdict {
    let me = world.node(1).await?;
    let first = world.reign("c", me).await?;
    let conversation = first.conversation.clone();
    check_eq!(world.store.checkpoint(&conversation).await?, None, "there is none at first");
    let save = |epoch: Epoch, checkpoint: Checkpoint| {
        let conversation = conversation.clone();
        async move { world.store.save_checkpoint(&conversation, epoch, me, &checkpoint).await }
    };
    check!(save(first.epoch, state(2, "a")).await?, "the first is saved");
    check!(!save(first.epoch, state(2, "b")).await?, "the same version is not newer");
    check!(!save(first.epoch, state(1, "c")).await?, "nor is an older one");
    check_eq!(world.store.checkpoint(&conversation).await?, Some(state(2, "a")), "the newest is there, whole");
    check!(save(first.epoch, state(3, "d")).await?, "a newer one is saved");
    let second = world.take(&conversation, me, Some(first.epoch), Some(me)).await?;
    check!(save(second.epoch, state(1, "e")).await?, "in a new epoch versions may start anew");
    check!(!save(second.epoch, state(1, "f")).await?, "and count from there");
    check_eq!(world.store.checkpoint(&conversation).await?, Some(state(1, "e")), "the newest by epoch, then version");
    let nowhere = ConvRef::from(id::<ConversationId>("nowhere"));
    check_eq!(world.store.checkpoint(&nowhere).await?, None, "there is none of what does not exist");
    Ok(())
}

pub(super) async fn a_checkpoint_is_fenced(world: &World<'_>) -> Verdict {
    let (me, other) = (world.node(1).await?, world.node(2).await?);
    let reign = world.reign("c", me).await?;
    let conversation = &reign.conversation;
    let before = Epoch(reign.epoch.0 - 1);
    for (epoch, by) in [(before, me), (Epoch(reign.epoch.0 + 1), me), (reign.epoch, other)] {
        let saved = world.store.save_checkpoint(conversation, epoch, by, &state(5, "x")).await?;
        check!(!saved, "{by} does not own {conversation:?} at epoch {epoch}");
    }
    check_eq!(world.store.checkpoint(conversation).await?, None, "nothing was saved");
    world.store.release(&reign.held(), reign.next()).await?;
    let saved = world.store.save_checkpoint(conversation, reign.epoch, me, &state(5, "x")).await?;
    check!(!saved, "after a release nothing is saved either");
    let unowned = world.channel("unowned").await?;
    check!(!world.store.save_checkpoint(&unowned, Epoch(1), me, &state(1, "x")).await?, "nor where nobody owns");
    Ok(())
}
