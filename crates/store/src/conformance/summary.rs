//! Cases about read cursors and summaries.

use conch_core::ids::{ConvRef, ConversationId, Seq, Subject};
use conch_core::record::RecordKind;

use super::world::{PLENTY, Reign, World, draft, id, message, new_channel};
use super::{Verdict, Violation, check, check_eq};
use crate::{CursorOutcome, Summary, UNREAD_CAP};

impl World<'_> {
    async fn summary_for(&self, sub: &str, conversation: &ConvRef) -> Verdict<Summary> {
        let summary = self.store.summary(&id(sub), conversation).await?;
        summary.ok_or_else(|| Violation { detail: format!("{sub} is a member of {:?}", conversation.id) })
    }

    async fn cursor(&self, sub: &str, conversation: &ConvRef, to: u64) -> Verdict<CursorOutcome> {
        Ok(self.store.move_cursor(conversation, &id(sub), Seq(to)).await?)
    }

    /// A claimed channel with the members alice and bob.
    async fn shared(&self, name: &str) -> Verdict<Reign> {
        let new = new_channel(name, &["alice", "bob"]);
        self.store.create_conversation(&new).await?;
        let me = match self.store.nodes().await?.first() {
            Some(row) => row.registration.incarnation,
            None => self.node(1).await?,
        };
        self.take(&new.conversation, me, None, None).await
    }
}

pub(super) async fn a_cursor_only_moves_forward(world: &World<'_>) -> Verdict {
    let mut reign = world.shared("c").await?;
    let drafts = (0..5).map(|number| message("bob", &format!("k{number}"), "text")).collect();
    world.write(&mut reign, drafts).await?;
    let conversation = &reign.conversation;
    for (to, expected) in [(0, 0), (3, 3), (2, 3), (3, 3), (5, 5), (0, 5)] {
        let outcome = world.cursor("alice", conversation, to).await?;
        check_eq!(outcome, CursorOutcome::At(Seq(expected)), "moved to {to}: the larger of the old and the asked");
        check_eq!(world.summary_for("alice", conversation).await?.cursor, Seq(expected), "the summary shows it");
    }
    check_eq!(world.summary_for("bob", conversation).await?.cursor, Seq(0), "a cursor is one member's");
    Ok(())
}

pub(super) async fn a_cursor_stays_within_the_log(world: &World<'_>) -> Verdict {
    let mut reign = world.shared("c").await?;
    let conversation = reign.conversation.clone();
    let outcome = world.cursor("alice", &conversation, 1).await?;
    check_eq!(outcome, CursorOutcome::BeyondHead(Seq(0)), "nothing is there to be read");
    world.write(&mut reign, vec![message("bob", "k1", "one"), message("bob", "k2", "two")]).await?;
    world.cursor("alice", &conversation, 1).await?;
    let outcome = world.cursor("alice", &conversation, 3).await?;
    check_eq!(outcome, CursorOutcome::BeyondHead(Seq(2)), "beyond the head, which is answered");
    check_eq!(world.summary_for("alice", &conversation).await?.cursor, Seq(1), "the cursor stays");
    world.store.release(&reign.held(), reign.next()).await?;
    let outcome = world.cursor("alice", &conversation, 2).await?;
    check_eq!(outcome, CursorOutcome::At(Seq(2)), "a cursor needs no owner");
    let nowhere = ConvRef::from(id::<ConversationId>("nowhere"));
    let outcome = world.cursor("alice", &nowhere, 0).await?;
    check_eq!(outcome, CursorOutcome::NoConversation, "there is no such conversation");
    Ok(())
}

pub(super) async fn unread_counts_messages_by_others(world: &World<'_>) -> Verdict {
    let mut reign = world.shared("c").await?;
    let drafts = vec![
        message("bob", "k1", "one"),
        message("alice", "k1", "mine"),
        draft(RecordKind::TurnStarted, "@start", "3", "go"),
        draft(RecordKind::Event, "hook", "k1", "hook"),
        message("@agent:demo", "k1", "answer"),
    ];
    world.write(&mut reign, drafts).await?;
    // A duplicate leaves a hole at 6, and the head moves on by a hole to 20.
    let mut batch = reign.batch(vec![message("bob", "k1", "one")]);
    (batch.hi, batch.reserve) = (Seq(20), Seq(20));
    world.land(reign.me, batch).await?;
    let conversation = &reign.conversation;
    for (sub, cursor, unread) in [("alice", 0, 2), ("bob", 0, 2), ("alice", 1, 1), ("bob", 2, 1), ("alice", 5, 0)] {
        world.cursor(sub, conversation, cursor).await?;
        let summary = world.summary_for(sub, conversation).await?;
        check_eq!(summary.unread, unread, "{sub} has read up to {cursor}: messages by others after that");
        check_eq!(summary.head_seq, Seq(20), "the head is where it stands");
        let last = summary.last_message.map(|record| (record.seq, record.kind));
        check_eq!(last, Some((Seq(5), RecordKind::Message)), "the newest message is shown");
    }
    Ok(())
}

pub(super) async fn unread_is_capped(world: &World<'_>) -> Verdict {
    let mut reign = world.shared("c").await?;
    let cap = u64::from(UNREAD_CAP);
    let drafts = (0..cap + 1).map(|number| message("bob", &format!("k{number}"), "text")).collect();
    world.write(&mut reign, drafts).await?;
    for (cursor, unread) in [(0, cap), (1, cap), (2, cap - 1), (cap, 1), (cap + 1, 0)] {
        world.cursor("alice", &reign.conversation, cursor).await?;
        let summary = world.summary_for("alice", &reign.conversation).await?;
        check_eq!(u64::from(summary.unread), unread, "{} messages after {cursor}, counted to {cap}", cap + 1 - cursor);
    }
    Ok(())
}

pub(super) async fn a_summary_is_for_members(world: &World<'_>) -> Verdict {
    let new = crate::NewConversation { title: Some("Team".to_owned()), ..new_channel("c", &["alice"]) };
    let created = world.store.create_conversation(&new).await?;
    let created_at = match created {
        crate::Created::New(info) | crate::Created::Existing(info) => info.created_at,
    };
    let summary = world.summary_for("alice", &new.conversation).await?;
    let expected = Summary {
        id: id("c"),
        kind: new.kind,
        title: new.title.clone(),
        agent: None,
        head_seq: Seq(0),
        cursor: Seq(0),
        unread: 0,
        last_message: None,
        updated_at: created_at,
    };
    check_eq!(summary, expected, "of a conversation without records");
    check_eq!(world.store.summary(&id("bob"), &new.conversation).await?, None, "who is no member has none");
    check!(world.store.summaries(&id("bob"), None, PLENTY).await?.summaries.is_empty(), "and an empty list");
    world.store.add_member(&new.conversation, &id("bob")).await?;
    let listed = world.store.summaries(&id("bob"), None, PLENTY).await?;
    check_eq!(listed.summaries, vec![expected], "a member has it in the list, the same");
    check_eq!(listed.log, world.store.log().await?, "which names its log");
    world.store.remove_member(&new.conversation, &id("bob")).await?;
    check!(world.store.summaries(&id("bob"), None, PLENTY).await?.summaries.is_empty(), "who left has it no more");
    let nowhere = ConvRef::from(id::<ConversationId>("nowhere"));
    check_eq!(world.store.summary(&id("alice"), &nowhere).await?, None, "there is no such conversation");
    Ok(())
}

pub(super) async fn summaries_are_ordered_and_paged(world: &World<'_>) -> Verdict {
    let mut reigns = Vec::new();
    // Two of them at the same moment, if the clock stands.
    for (name, wait) in [("b", 10), ("a", 0), ("c", 10), ("d", 10)] {
        reigns.push(world.shared(name).await?);
        world.pass(wait).await;
    }
    let at = world.write(&mut reigns[0], vec![message("bob", "k1", "one"), message("bob", "k2", "two")]).await?;
    let summary = world.summary_for("alice", &reigns[0].conversation).await?;
    check_eq!(summary.updated_at, at, "a record is activity");
    let alice: Subject = id("alice");
    let all = world.store.summaries(&alice, None, PLENTY).await?;
    check!(!all.more, "that is all");
    let mut expected = all.summaries.clone();
    expected.sort_by(|a, b| b.updated_at.cmp(&a.updated_at).then_with(|| a.id.cmp(&b.id)));
    check_eq!(all.summaries, expected, "newest activity first, ties by ascending id");
    let names: Vec<_> = all.summaries.iter().map(|summary| summary.id.to_string()).collect();
    check_eq!(names[..2], ["b", "d"], "the last written leads");
    check_eq!(names.len(), 4, "every conversation is listed once: {names:?}");
    for limit in 1..=4 {
        let (mut paged, mut after) = (Vec::new(), None);
        loop {
            let page = world.store.summaries(&alice, after.as_ref(), limit).await?;
            check!(page.summaries.len() <= limit, "a page holds {limit} at most");
            paged.extend(page.summaries);
            check_eq!(page.more, paged.len() < 4, "after {} of 4", paged.len());
            if !page.more {
                break;
            }
            after = paged.last().map(|summary| (summary.updated_at, summary.id.clone()));
        }
        check_eq!(paged, all.summaries, "pages of {limit} make up the list");
    }
    Ok(())
}
