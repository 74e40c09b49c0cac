//! Ranges, members, summaries, cursors and checkpoints.

use conch_core::ids::{ConvKey, Seq};
use conch_core::record::RecordKind;

use super::*;
use crate::{Checkpoint, Created, CursorOutcome, Direction, MembershipChange, RangeQuery, StoreError};

async fn filled(bench: &Bench) -> (Incarnation, ConvRef, Armed) {
    let (me, room) = (bench.register(1).await, bench.create("room").await);
    let armed = bench.won(&room, me).await;
    let mut drafts: Vec<Draft> =
        (1..=9).map(|n| message(if n % 2 == 0 { "bob" } else { "alice" }, &format!("k{n}"), "x")).collect();
    let event = Draft::new(RecordKind::Event, subject("hook"), "e".parse().expect("valid"), drafts[0].body.clone());
    drafts.push(event);
    landed(bench.append(me, batch(&room, &armed, Seq(0), Seq(1), drafts)).await);
    (me, room, armed)
}

#[tokio::test]
async fn ranges_ascend_whatever_their_direction() {
    let bench = Bench::new();
    let (_, room, _) = filled(&bench).await;
    let cases = [
        (Direction::After(Seq(0)), 3, vec![], vec![1, 2, 3], true),
        (Direction::After(Seq(7)), 3, vec![], vec![8, 9, 10], false),
        (Direction::After(Seq(10)), 3, vec![], vec![], false),
        (Direction::Before(Seq(5)), 3, vec![], vec![2, 3, 4], true),
        (Direction::Before(Seq(3)), 3, vec![], vec![1, 2], false),
        (Direction::Latest, 2, vec![], vec![9, 10], true),
        (Direction::Latest, 2, vec![RecordKind::Message], vec![8, 9], true),
        (Direction::After(Seq(0)), 5, vec![RecordKind::Event, RecordKind::TurnFailed], vec![10], false),
    ];
    for (direction, limit, kinds, seqs, more) in cases {
        let query = RangeQuery { conversation: room.clone(), direction, limit, kinds };
        let page = bench.store().range(&query).await.expect("reads").expect("exists");
        assert_eq!(page.records.iter().map(|record| record.seq.0).collect::<Vec<_>>(), seqs, "{query:?}");
        assert_eq!((page.more, page.head_seq), (more, Seq(10)), "{query:?}");
    }
}

#[tokio::test]
async fn a_page_is_bounded_in_bytes() {
    let bench = Bench::new();
    let (me, room) = (bench.register(1).await, bench.create("room").await);
    let armed = bench.won(&room, me).await;
    let text = "x".repeat(60_000);
    let drafts = (0..100).map(|n| message("alice", &format!("k{n}"), &text)).collect();
    landed(bench.append(me, batch(&room, &armed, Seq(0), Seq(1), drafts)).await);
    let query = RangeQuery { conversation: room, direction: Direction::After(Seq(0)), limit: 1000, kinds: Vec::new() };
    let page = bench.store().range(&query).await.expect("reads").expect("exists");
    assert!(page.more);
    assert_eq!(page.records.len(), super::super::queries::PAGE_MAX_BYTES.div_ceil(60_011));
}

#[tokio::test]
async fn unknown_conversations_and_colliding_keys_are_told_apart() {
    let bench = Bench::new();
    let (room, unknown) = (bench.create("room").await, conversation("unknown"));
    let query = |conversation: &ConvRef| RangeQuery {
        conversation: conversation.clone(),
        direction: Direction::Latest,
        limit: 1,
        kinds: Vec::new(),
    };
    assert_eq!(bench.store().resolve(&unknown).await, Ok(None));
    assert_eq!(bench.store().range(&query(&unknown)).await, Ok(None));
    assert_eq!(bench.store().conversation(&unknown).await, Ok(None));
    assert_eq!(bench.store().members(&unknown, None, 1).await, Ok(None));
    assert_eq!(bench.store().patch_conversation(&unknown, &crate::ConversationPatch::default()).await, Ok(None));
    assert_eq!(bench.store().add_member(&unknown, &subject("x")).await, Ok(MembershipChange::NoConversation));
    assert_eq!(bench.store().move_cursor(&unknown, &subject("x"), Seq(0)).await, Ok(CursorOutcome::NoConversation));
    let collides = ConvRef { key: ConvKey(room.key.0), ..unknown };
    assert_eq!(bench.store().resolve(&collides).await, Err(StoreError::Collision));
    assert_eq!(bench.store().range(&query(&collides)).await, Err(StoreError::Collision));
    let mut new = new_conversation("unknown", ConversationKind::Channel, &[]);
    new.conversation = collides;
    assert_eq!(bench.store().create_conversation(&new).await, Err(StoreError::Collision));
}

#[tokio::test]
async fn a_create_is_idempotent_and_a_patch_keeps_the_rest() {
    let bench = Bench::new();
    let mut new = new_conversation("room", ConversationKind::Session, &["alice"]);
    new.title = Some("Title".to_owned());
    new.agent = Some("demo".parse().expect("valid"));
    new.regions = vec!["eu".parse().expect("valid"), "us".parse().expect("valid")];
    new.settings.coalesce_ms = Some(50);
    let Ok(Created::New(info)) = bench.store().create_conversation(&new).await else { panic!("it is new") };
    assert_eq!((info.regions.len(), info.home.as_str(), info.created_at.0), (2, "eu", START_MS));
    assert_eq!(info.settings, new.settings);
    new.title = None;
    bench.advance(5);
    assert_eq!(bench.store().create_conversation(&new).await, Ok(Created::Existing(info.clone())));
    let patch = crate::ConversationPatch { title: Some(None), ..crate::ConversationPatch::default() };
    let patched = bench.store().patch_conversation(&new.conversation, &patch).await.expect("patches");
    assert_eq!(patched, Some(crate::ConversationInfo { title: None, ..info }));
}

#[tokio::test]
async fn members_come_in_pages_and_direct_ones_are_fixed() {
    let bench = Bench::new();
    let room = bench.create("room").await;
    let store = bench.store();
    assert_eq!(store.add_member(&room, &subject("carol")).await, Ok(MembershipChange::Changed));
    assert_eq!(store.add_member(&room, &subject("carol")).await, Ok(MembershipChange::Unchanged));
    let (page, more) = store.members(&room, None, 2).await.expect("reads").expect("exists");
    assert_eq!(page.iter().map(|member| member.sub.as_str()).collect::<Vec<_>>(), ["alice", "bob"]);
    assert!(more);
    let (page, more) = store.members(&room, Some(&subject("bob")), 2).await.expect("reads").expect("exists");
    assert_eq!((page.len(), page[0].sub.as_str(), more), (1, "carol", false));
    assert_eq!(store.remove_member(&room, &subject("carol")).await, Ok(MembershipChange::Changed));
    assert_eq!(store.is_member(&room, &subject("carol")).await, Ok(false));
    let direct = new_conversation("direct", ConversationKind::Direct, &["alice", "bob"]);
    store.create_conversation(&direct).await.expect("creates");
    assert_eq!(store.add_member(&direct.conversation, &subject("carol")).await, Ok(MembershipChange::Direct));
    assert_eq!(store.remove_member(&direct.conversation, &subject("bob")).await, Ok(MembershipChange::Direct));
}

#[tokio::test]
async fn summaries_count_what_others_said_after_the_cursor() {
    let bench = Bench::new();
    let (_, room, _) = filled(&bench).await;
    bench.advance(10);
    bench.create("quiet").await;
    let store = bench.store();
    let alice = subject("alice");
    let page = store.summaries(&alice, None, 1).await.expect("reads");
    assert_eq!((page.summaries[0].id.as_str(), page.more), ("quiet", true));
    let last = (page.summaries[0].updated_at, page.summaries[0].id.clone());
    let page = store.summaries(&alice, Some(&last), 5).await.expect("reads");
    assert_eq!((page.summaries.len(), page.more), (1, false));
    let summary = &page.summaries[0];
    assert_eq!((summary.unread, summary.cursor, summary.head_seq), (4, Seq(0), Seq(10)));
    assert_eq!(summary.last_message.as_ref().map(|record| record.seq), Some(Seq(9)));
    assert_eq!(store.move_cursor(&room, &alice, Seq(4)).await, Ok(CursorOutcome::At(Seq(4))));
    assert_eq!(store.move_cursor(&room, &alice, Seq(2)).await, Ok(CursorOutcome::At(Seq(4))));
    assert_eq!(store.move_cursor(&room, &alice, Seq(11)).await, Ok(CursorOutcome::BeyondHead(Seq(10))));
    let summary = store.summary(&alice, &room).await.expect("reads").expect("a member");
    assert_eq!((summary.unread, summary.cursor), (2, Seq(4)));
    assert_eq!(store.summary(&subject("mallory"), &room).await, Ok(None));
}

#[tokio::test]
async fn a_checkpoint_is_fenced_and_only_gets_newer() {
    let bench = Bench::new();
    let (me, room, armed) = filled(&bench).await;
    let checkpoint = |version| Checkpoint { version, at_seq: Seq(10), state: vec![1, 2, 3] };
    let save = async |epoch, me, version| {
        bench.store().save_checkpoint(&room, epoch, me, &checkpoint(version)).await.expect("answers")
    };
    assert!(save(armed.epoch, me, 2).await);
    assert!(!save(armed.epoch, me, 1).await);
    assert!(!save(conch_core::ids::Epoch(9), me, 3).await);
    assert!(!save(armed.epoch, Incarnation(9), 3).await);
    assert_eq!(bench.store().checkpoint(&room).await, Ok(Some(checkpoint(2))));
    let again = bench.won(&room, me).await;
    assert!(save(again.epoch, me, 1).await, "a later epoch starts counting again");
    assert_eq!(bench.store().checkpoint(&room).await, Ok(Some(checkpoint(1))));
}
