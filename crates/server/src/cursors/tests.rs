//! Many moves, few writes; the furthest wins; a move beyond the head harms no other.

use std::sync::atomic::{AtomicUsize, Ordering};

use conch_core::conversation::{ConversationKind, Settings};
use conch_core::record::{Draft, RecordKind};
use conch_store::faulty::{Call, Fault, FaultPlan, FaultyStore};
use conch_store::memory::MemoryStore;
use conch_store::{Batch, ClaimOutcome, ClaimRequest, DueChange, LeaseStore, LogStore, NewConversation, Registration};

use super::*;
use crate::config::Config;
use crate::runtime;
use crate::testing;

#[derive(Default)]
struct Writes(AtomicUsize);

impl FaultPlan for Writes {
    fn next(&self, call: Call) -> Fault {
        if call == Call::MoveCursor {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
        Fault::None
    }
}

fn sub(name: &str) -> Subject {
    name.parse().expect("valid")
}

/// A store whose one conversation has the records 1 to 9.
async fn written(store: &MemoryStore, config: &Config) -> ConvRef {
    let id: conch_core::ids::ConversationId = "c".parse().expect("valid");
    let conversation = ConvRef::from(id);
    let new = NewConversation {
        conversation: conversation.clone(),
        kind: ConversationKind::Channel,
        regions: Vec::new(),
        home: config.region.clone(),
        title: None,
        agent: None,
        settings: Settings::default(),
        creator: sub("a"),
        members: vec![sub("a")],
    };
    store.create_conversation(&new).await.expect("created");
    let me = runtime::seams().incarnation();
    let registration = Registration {
        incarnation: me,
        node: config.node.clone(),
        region: config.region.clone(),
        addr: String::new(),
        lifeline: None,
    };
    store.register(&registration, Duration::from_secs(15)).await.expect("registered");
    let claim = ClaimRequest {
        conversation: conversation.key,
        me,
        seen_epoch: None,
        seen_owner: None,
        margin: Duration::from_secs(3),
        gap: 1_000,
    };
    let ClaimOutcome::Won(armed) = store.claim(&claim).await.expect("claimed") else { panic!("nobody else claims") };
    let body = conch_core::body::Body::of(&serde_json::json!({"text": "x"}));
    let draft = |seq: u64| {
        let key = seq.to_string().parse().expect("valid");
        (Seq(seq), Draft::new(RecordKind::Message, sub("a"), key, body.clone()))
    };
    let batch = Batch {
        conversation: conversation.clone(),
        epoch: armed.epoch,
        generation: armed.generation,
        prev: Seq(0),
        hi: Seq(9),
        reserve: Seq(1_000),
        due: DueChange::Keep,
        records: (1..=9).map(draft).collect(),
    };
    store.append(me, vec![batch]).await.expect("appended");
    conversation
}

#[tokio::test(start_paused = true)]
async fn a_thousand_moves_are_a_few_writes_and_the_furthest_wins() {
    let config = Config::default();
    let store = MemoryStore::new("test", Arc::new(|| 0));
    let conversation = written(&store, &config).await;
    let writes = Arc::new(Writes::default());
    let faulty = FaultyStore::new(Arc::new(store), Arc::clone(&writes) as Arc<dyn FaultPlan>, Arc::new(|_| {}));
    let node = testing::node(&config, Arc::new(faulty));
    let cursors = Cursors::start(node);

    let (alice, bob) = (sub("alice"), sub("bob"));
    let moves = (0..1_000_u64).map(|n| {
        let who = if n % 2 == 0 { &alice } else { &bob };
        cursors.move_to(&conversation, who, Seq(n % 11))
    });
    let outcomes = join_all(moves).await;
    for (n, outcome) in (0..1_000_u64).zip(outcomes) {
        match outcome.expect("the store answers") {
            CursorOutcome::BeyondHead(head) => assert_eq!((head, n % 11), (Seq(9), 10)),
            CursorOutcome::At(at) => assert!(at >= Seq(n % 11) && at <= Seq(9), "asked {}, at {at}", n % 11),
            CursorOutcome::NoConversation => panic!("the conversation is there"),
        }
    }
    assert_eq!(cursors.move_to(&conversation, &alice, Seq(3)).await, Ok(CursorOutcome::At(Seq(9))), "never back");
    let writes = writes.0.load(Ordering::SeqCst);
    assert!(writes <= 10, "1,001 moves were {writes} writes");
}

#[tokio::test]
async fn moves_over_the_limit_are_refused_and_counted() {
    use futures_util::FutureExt;

    let node = testing::node(&Config::default(), testing::empty_store());
    let cursors = Cursors::start(Arc::clone(&node));
    let conversation = ConvRef::from("c".parse::<conch_core::ids::ConversationId>().expect("valid"));
    let hits = |count: u32| {
        let page = node.metrics.encode("").1;
        assert!(page.contains(&format!("conch_limit_hits_total{{queue=\"cursors\"}} {count}\n")), "{page}");
    };
    // The task that writes does not run between these.
    for n in 0..WAITING_MAX {
        let waits = cursors.move_to(&conversation, &sub("a"), Seq(n as u64)).now_or_never();
        assert_eq!(waits, None, "there is room");
    }
    hits(0);
    let refused = cursors.move_to(&conversation, &sub("a"), Seq(1)).now_or_never().expect("at once");
    let refusal = refused.expect_err("there is no room");
    assert!(refusal.code == Code::Overloaded && refusal.retry.is_some(), "{refusal:?}");
    hits(1);
}
