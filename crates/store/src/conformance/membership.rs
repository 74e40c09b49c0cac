//! Cases about members.

use conch_core::conversation::ConversationKind;
use conch_core::ids::{ConvRef, ConversationId, Subject};

use super::world::{PLENTY, World, id, new_channel, subjects};
use super::{Verdict, Violation, check, check_eq};
use crate::{MembershipChange, NewConversation};

impl World<'_> {
    async fn member_names(
        &self,
        conversation: &ConvRef,
        after: Option<&str>,
        limit: usize,
    ) -> Verdict<(Vec<Subject>, bool)> {
        let after: Option<Subject> = after.map(id);
        let page = self.store.members(conversation, after.as_ref(), limit).await?;
        let (members, more) = page.ok_or_else(|| Violation { detail: "it exists and has members".to_owned() })?;
        Ok((members.into_iter().map(|member| member.sub).collect(), more))
    }
}

pub(super) async fn members_come_and_go(world: &World<'_>) -> Verdict {
    let conversation = world.channel("c").await?;
    let bob = id("bob");
    check!(!world.store.is_member(&conversation, &bob).await?, "who was not added is no member");
    let created = world.store.members(&conversation, None, PLENTY).await?;
    let since_start = created.and_then(|(members, _)| members.first().map(|member| member.since));
    world.pass(5_000).await;
    check_eq!(world.store.add_member(&conversation, &bob).await?, MembershipChange::Changed, "bob is added");
    check_eq!(world.store.add_member(&conversation, &bob).await?, MembershipChange::Unchanged, "once");
    check!(world.store.is_member(&conversation, &bob).await?, "and is a member");
    let asked = subjects(&["carol", "bob", "alice", "Zoe"]);
    let strangers = world.store.no_members(&conversation, &asked).await?;
    check_eq!(strangers, subjects(&["carol", "Zoe"]), "who is none is told apart, in the order asked");
    check_eq!(world.store.no_members(&conversation, &[]).await?, vec![], "nobody asked for is nobody missing");
    let page = world.store.members(&conversation, None, PLENTY).await?;
    let since: Vec<_> = page.into_iter().flat_map(|(members, _)| members).map(|member| Some(member.since)).collect();
    check_eq!(since.len(), 2, "both are listed");
    check!(since[0] == since_start && since[1] >= since[0], "each since they came: {since:?}");
    check_eq!(world.store.remove_member(&conversation, &bob).await?, MembershipChange::Changed, "bob is removed");
    check_eq!(world.store.remove_member(&conversation, &bob).await?, MembershipChange::Unchanged, "once");
    check!(!world.store.is_member(&conversation, &bob).await?, "and is no member");
    check_eq!(
        world.member_names(&conversation, None, PLENTY).await?,
        (subjects(&["alice"]), false),
        "alice is still there"
    );
    let nowhere = ConvRef::from(id::<ConversationId>("nowhere"));
    check_eq!(
        world.store.add_member(&nowhere, &bob).await?,
        MembershipChange::NoConversation,
        "there is nothing to join"
    );
    check_eq!(world.store.remove_member(&nowhere, &bob).await?, MembershipChange::NoConversation, "nor to leave");
    check!(!world.store.is_member(&nowhere, &bob).await?, "nobody is a member of what does not exist");
    let none = world.store.no_members(&nowhere, std::slice::from_ref(&bob)).await?;
    check_eq!(none, vec![bob.clone()], "nor among many");
    check_eq!(world.store.members(&nowhere, None, PLENTY).await?, None, "which has no list");
    Ok(())
}

pub(super) async fn members_are_paged(world: &World<'_>) -> Verdict {
    // Ascending by bytes: capitals first, then what is not ASCII last.
    let all = ["Zoe", "alice", "bob", "carol", "Ärne"];
    let new = new_channel("c", &["carol", "Ärne", "bob", "alice", "Zoe"]);
    world.store.create_conversation(&new).await?;
    let pages: [(Option<&str>, usize, &[&str], bool); 7] = [
        (None, PLENTY, &all, false),
        (None, 5, &all, false),
        (None, 2, &all[..2], true),
        (Some("alice"), 2, &all[2..4], true),
        (Some("carol"), 2, &all[4..], false),
        (Some("b"), 1, &all[2..3], true),
        (Some("Ärne"), 1, &[], false),
    ];
    for (after, limit, expected, more) in pages {
        let page = world.member_names(&new.conversation, after, limit).await?;
        check_eq!(page, (subjects(expected), more), "members above {after:?}, at most {limit}");
    }
    Ok(())
}

pub(super) async fn a_direct_conversation_keeps_its_two(world: &World<'_>) -> Verdict {
    let new = NewConversation { kind: ConversationKind::Direct, ..new_channel("c", &["alice", "bob"]) };
    world.store.create_conversation(&new).await?;
    let change = world.store.add_member(&new.conversation, &id("carol")).await?;
    check_eq!(change, MembershipChange::Direct, "a third is refused");
    let change = world.store.remove_member(&new.conversation, &id("bob")).await?;
    check_eq!(change, MembershipChange::Direct, "nobody leaves");
    let change = world.store.add_member(&new.conversation, &id("alice")).await?;
    check_eq!(change, MembershipChange::Unchanged, "what is so already is answered as such");
    let change = world.store.remove_member(&new.conversation, &id("carol")).await?;
    check_eq!(change, MembershipChange::Unchanged, "both ways");
    let two = (subjects(&["alice", "bob"]), false);
    check_eq!(world.member_names(&new.conversation, None, PLENTY).await?, two, "its first two are its members");
    Ok(())
}
