//! `conch verify` on stores that this test writes itself: clean, and with a record whose hash is another body's.

use std::path::Path;
use std::time::Duration;

use conch_core::body::Body;
use conch_core::conversation::{ConversationKind, Settings};
use conch_core::ids::{ConvRef, Incarnation, NodeName, Region, Seq, Subject};
use conch_core::record::{Draft, RecordKind};
use conch_store::sqlite::{Options, SqliteStore};
use conch_store::{
    AppendOutcome, Batch, ClaimOutcome, ClaimRequest, DueChange, LeaseStore, LogStore, NewConversation, Registration,
};
use serde_json::json;

use crate::node::{Home, runtime};

/// A store with one conversation and two records.
async fn write(directory: &Path, second: Draft) {
    let node: NodeName = "n1".parse().expect("valid");
    let region: Region = "here".parse().expect("valid");
    let store = SqliteStore::open(directory, Options::new(node.clone())).expect("opens");
    let me = Incarnation(7);
    let registration =
        Registration { incarnation: me, node, region: region.clone(), addr: String::new(), lifeline: None };
    store.register(&registration, Duration::from_secs(60)).await.expect("registers");
    let conversation = ConvRef::from("room".parse::<conch_core::ids::ConversationId>().expect("valid"));
    let creator: Subject = "alice".parse().expect("valid");
    let new = NewConversation {
        conversation: conversation.clone(),
        kind: ConversationKind::Channel,
        regions: Vec::new(),
        home: region,
        title: None,
        agent: None,
        settings: Settings::default(),
        members: vec![creator.clone()],
        creator,
    };
    store.create_conversation(&new).await.expect("created");
    let request = ClaimRequest {
        conversation: conversation.key,
        me,
        seen_epoch: None,
        seen_owner: None,
        margin: Duration::from_secs(1),
        gap: 1000,
    };
    let ClaimOutcome::Won(armed) = store.claim(&request).await.expect("claims") else { panic!("lost") };
    let batch = Batch {
        conversation,
        epoch: armed.epoch,
        generation: armed.generation,
        prev: armed.last_seq,
        hi: Seq(2),
        reserve: Seq(1000),
        due: DueChange::Keep,
        records: vec![(Seq(1), draft("one")), (Seq(2), second)],
    };
    let outcomes = store.append(me, vec![batch]).await.expect("appends");
    assert!(matches!(&outcomes[..], [AppendOutcome::Landed { .. }]), "{outcomes:?}");
}

fn draft(text: &str) -> Draft {
    let body = Body::of(&json!({ "text": text }));
    Draft::new(RecordKind::Message, "alice".parse().expect("valid"), text.parse().expect("valid"), body)
}

#[test]
fn a_clean_store_is_exit_code_0_and_a_wrong_hash_is_5() {
    let scratch = tempfile::tempdir().expect("a directory");
    let wrong = Draft { body_hash: draft("another").body_hash, ..draft("two") };
    for (name, second, code, violations) in [("good", draft("two"), 0, 0), ("bad", wrong, 5, 1)] {
        let home = Home::new(&scratch.path().join(name));
        runtime().block_on(write(&home.data, second));
        let done = home.run(&["verify", "--store", &home.store()]);
        assert_eq!(done.code, code, "{done:?}");
        let report = done.line();
        assert_eq!((&report["records"], &report["violations_total"]), (&json!(2), &json!(violations)), "{report}");
        if code == 5 {
            let violation = &report["violations"][0];
            assert_eq!((&violation["conversation"], &violation["seq"]), (&json!("room"), &json!(2)), "{report}");
            assert!(done.stderr.contains("1 violations"), "{done:?}");
        }
    }
}
