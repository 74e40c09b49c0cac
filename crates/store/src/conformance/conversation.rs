//! Cases about creating and changing conversations.

use conch_core::conversation::{ConversationKind, Settings};
use conch_core::ids::{ConvRef, ConversationId};

use super::world::{World, id, is_new, new_channel, subjects};
use super::{Verdict, check, check_eq};
use crate::{ConversationInfo, ConversationPatch, Created, NewConversation};

fn session() -> NewConversation {
    NewConversation {
        kind: ConversationKind::Session,
        title: Some("Help".to_owned()),
        agent: Some(id("demo")),
        settings: Settings { coalesce_ms: Some(50), ..Settings::default() },
        regions: vec![id("south"), id("north")],
        ..new_channel("c", &["alice", "bob"])
    }
}

fn info(created: &Created) -> &ConversationInfo {
    match created {
        Created::New(info) | Created::Existing(info) => info,
    }
}

pub(super) async fn a_conversation_is_created_once(world: &World<'_>) -> Verdict {
    let new = session();
    check_eq!(world.store.conversation(&new.conversation).await?, None, "it is not there before");
    let created = world.store.create_conversation(&new).await?;
    check!(is_new(&created), "the first create makes it: {created:?}");
    let first = info(&created).clone();
    let expected = ConversationInfo {
        id: id("c"),
        kind: new.kind,
        regions: new.regions.clone(),
        home: id("south"),
        title: new.title.clone(),
        agent: new.agent.clone(),
        settings: new.settings.clone(),
        created_at: first.created_at,
        head: None,
    };
    check_eq!(first, expected, "it is as it was asked for");
    check_eq!(world.store.conversation(&new.conversation).await?, Some(first.clone()), "and is read back so");
    world.pass(1_000).await;
    let again = world.store.create_conversation(&new_channel("c", &["mallory"])).await?;
    check_eq!(again, Created::Existing(first), "a later create answers the first one, whatever it asks for");
    check!(!world.store.is_member(&new.conversation, &id("mallory")).await?, "its members do not come in");
    for member in subjects(&["alice", "bob"]) {
        check!(world.store.is_member(&new.conversation, &member).await?, "{member} is a member from the start");
    }
    Ok(())
}

pub(super) async fn the_home_is_the_first_region(world: &World<'_>) -> Verdict {
    let anywhere = NewConversation { home: id("east"), ..new_channel("c1", &[]) };
    let created = world.store.create_conversation(&anywhere).await?;
    check_eq!(info(&created).home, id("east"), "without regions the creator's is the home");
    check_eq!(info(&created).regions, Vec::new(), "and it may be owned anywhere");
    let bound = NewConversation { regions: vec![id("west"), id("south")], ..anywhere };
    let bound = NewConversation { conversation: new_channel("c2", &[]).conversation, ..bound };
    let created = world.store.create_conversation(&bound).await?;
    check_eq!(info(&created).home, id("west"), "with regions the first one is the home");
    check_eq!(info(&created).regions, bound.regions, "their order is kept");
    Ok(())
}

pub(super) async fn a_conversation_is_patched(world: &World<'_>) -> Verdict {
    let new = session();
    let created = world.store.create_conversation(&new).await?;
    let mut expected = info(&created).clone();
    let settings = Settings { coalesce_max_ms: Some(900), ..Settings::default() };
    let patches = [
        ConversationPatch::default(),
        ConversationPatch { title: Some(Some("Other".to_owned())), ..ConversationPatch::default() },
        ConversationPatch { title: Some(None), ..ConversationPatch::default() },
        ConversationPatch { agent: Some(id("helper")), settings: Some(settings), ..ConversationPatch::default() },
    ];
    for patch in patches {
        if let Some(title) = &patch.title {
            expected.title.clone_from(title);
        }
        expected.agent = patch.agent.clone().or(expected.agent);
        expected.settings = patch.settings.clone().unwrap_or(expected.settings);
        let patched = world.store.patch_conversation(&new.conversation, &patch).await?;
        check_eq!(patched.as_ref(), Some(&expected), "{patch:?} changes what it names and nothing else");
        check_eq!(world.store.conversation(&new.conversation).await?, patched, "the change is read back");
    }
    let nowhere = ConvRef::from(id::<ConversationId>("nowhere"));
    let patched = world.store.patch_conversation(&nowhere, &ConversationPatch::default()).await?;
    check_eq!(patched, None, "there is no such conversation");
    check_eq!(world.store.conversation(&nowhere).await?, None, "a patch creates nothing");
    Ok(())
}
