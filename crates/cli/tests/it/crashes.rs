//! kill -9 at any moment, a hundred times under load: nothing acknowledged is lost, nothing is there twice (invariants 1,
//! 2, 3 and 4).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use conch_cli::client::{Endpoint, HttpClient, Request, deliver};
use serde_json::{Value, json};

use crate::node::{Home, message, runtime, until, whole_log};

const KILLS: u64 = 100;
const WRITERS: usize = 8;
const CONVERSATIONS: usize = 4;
/// Acks of a round before the next kill: 0 to this many, so that the kill falls on every stage of a start.
const ACKS_A_ROUND_MAX: u64 = 40;
/// A writer waits this long for a server that is being restarted; far above what a start takes.
const BUDGET: Duration = Duration::from_secs(60);

/// A message that was acknowledged.
struct Acked {
    conversation: usize,
    key: String,
    seq: u64,
}

fn name(conversation: usize) -> String {
    format!("room-{conversation}")
}

async fn write(endpoint: Endpoint, writer: usize, stop: Arc<AtomicBool>, acks: Arc<AtomicU64>) -> Vec<Acked> {
    let client = HttpClient::new(endpoint).expect("starts");
    let mut acked = Vec::new();
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let conversation = (writer + number) % CONVERSATIONS;
        let key = format!("w{writer}-{number}");
        let request = message(&name(conversation), &key, &key);
        let answer = deliver(&client, &request, BUDGET, &mut |_| {}).await.expect("a restart is waited out");
        acked.push(Acked { conversation, key, seq: answer.body["seq"].as_u64().expect("a number") });
        acks.fetch_add(1, Ordering::Relaxed);
    }
    acked
}

#[test]
fn a_hundred_kills_under_load_lose_and_double_nothing() {
    let scratch = tempfile::tempdir().expect("a directory");
    let home = Home::new(scratch.path());
    let runtime = runtime();
    let mut node = home.start();
    let endpoints: Vec<Endpoint> = (0..WRITERS).map(|writer| home.unlimited(&format!("w{writer}"))).collect();
    let client = HttpClient::new(endpoints[0].clone()).expect("starts");
    for conversation in 0..CONVERSATIONS {
        let create = Request::put(&["v1", "conversations", &name(conversation)], json!({"kind": "channel"}));
        runtime.block_on(client.attempt(&create)).expect("created");
    }
    let (stop, acks) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let writers: Vec<_> = endpoints
        .into_iter()
        .enumerate()
        .map(|(writer, endpoint)| runtime.spawn(write(endpoint, writer, Arc::clone(&stop), Arc::clone(&acks))))
        .collect();
    for kill in 0..KILLS {
        // The same every time, and different in every round.
        let goal = acks.load(Ordering::Relaxed) + kill * 17 % (ACKS_A_ROUND_MAX + 1);
        until("acks", || (acks.load(Ordering::Relaxed) >= goal).then_some(()));
        node.kill();
        node = home.start();
    }
    stop.store(true, Ordering::Relaxed);
    let acked: Vec<Acked> = runtime.block_on(async {
        let mut all = Vec::new();
        for writer in writers {
            all.extend(writer.await.expect("no writer panicked"));
        }
        all
    });
    let logs: Vec<Vec<Value>> =
        (0..CONVERSATIONS).map(|conversation| runtime.block_on(whole_log(&client, &name(conversation)))).collect();
    check(&acked, &logs);
    assert_eq!(node.terminate().code(), Some(0));
    let verified = home.run(&["verify", "--store", &home.store()]);
    assert_eq!((verified.code, verified.line()["violations_total"].as_u64()), (0, Some(0)), "{verified:?}");
}

fn check(acked: &[Acked], logs: &[Vec<Value>]) {
    assert!(acked.len() as u64 > KILLS, "the load was there: {} acks", acked.len());
    let mut seqs: Vec<HashMap<&str, u64>> = Vec::new();
    for log in logs {
        let mut by_key = HashMap::new();
        let (mut last_seq, mut last_epoch) = (0, 0);
        for record in log {
            let number = |field: &str| record[field].as_u64().expect("a number");
            assert!(number("seq") > last_seq && number("epoch") >= last_epoch, "order: {record}");
            (last_seq, last_epoch) = (number("seq"), number("epoch"));
            let key = record["client_msg_id"].as_str().expect("a key");
            assert_eq!(record["body"]["text"], key, "the body is the one that was sent");
            assert_eq!(by_key.insert(key, last_seq), None, "{key} is there twice");
        }
        seqs.push(by_key);
    }
    for Acked { conversation, key, seq } in acked {
        assert_eq!(seqs[*conversation].get(key.as_str()), Some(seq), "{key} was acknowledged as {seq}");
    }
    let stored: usize = logs.iter().map(Vec::len).sum();
    assert_eq!(stored, acked.len(), "every writer ended with an ack, so nothing else may be there");
}
