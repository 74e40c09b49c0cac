//! A session whose queue is full: new inputs are refused with a directive, a retry is still the same message.

use std::sync::Arc;

use conch_core::body::Body;
use conch_core::conversation::{ConversationKind, Settings};
use conch_core::ids::{ConvRef, ConversationId};
use conch_core::record::{Draft, RecordKind};
use conch_core::refusal::Code;
use conch_core::sequencer::Outcome;
use conch_store::NewConversation;

use crate::cluster::heartbeat;
use crate::config::Config;
use crate::testing;

fn input(key: usize, text: &str) -> Vec<Draft> {
    let body = Body::of(&serde_json::json!({"text": text}));
    let key = key.to_string().parse().expect("valid");
    vec![Draft::new(RecordKind::Message, "alice".parse().expect("valid"), key, body)]
}

#[tokio::test]
async fn a_retry_is_the_same_message_even_when_the_turn_queue_is_full() {
    let config = Config::default();
    let node = testing::node(&config, testing::empty_store());
    let _lease = heartbeat::start(&node, String::new()).await.expect("registered");
    let id: ConversationId = "s".parse().expect("valid");
    let conversation = ConvRef::from(id);
    let new = NewConversation {
        conversation: conversation.clone(),
        kind: ConversationKind::Session,
        regions: Vec::new(),
        home: config.region.clone(),
        title: None,
        agent: Some("demo".parse().expect("valid")),
        settings: Settings::default(),
        creator: "alice".parse().expect("valid"),
        members: Vec::new(),
    };
    node.store.create_conversation(&new).await.expect("created");
    let router = testing::router(&Arc::clone(&node));

    let first = router.append(&conversation, input(0, "hi")).await.expect("accepted")[0];
    let mut refused = None;
    for key in 1..2_000 {
        if let Err(refusal) = router.append(&conversation, input(key, "hi")).await {
            refused = Some((key, refusal));
            break;
        }
    }
    let (key, refusal) = refused.expect("a queue is bounded");
    assert!(refusal.code == Code::Overloaded && refusal.retry.is_some(), "{refusal:?}");

    let again = router.append(&conversation, input(0, "hi")).await.expect("the same message")[0];
    assert_eq!((again.seq, again.at, again.outcome), (first.seq, first.at, Outcome::Duplicate));
    let reused = router.append(&conversation, input(0, "other")).await.expect_err("another body");
    assert_eq!(reused.code, Code::IdempotencyKeyReused);
    let new = router.append(&conversation, input(key, "hi")).await.expect_err("still full");
    assert_eq!(new.code, Code::Overloaded);
}
