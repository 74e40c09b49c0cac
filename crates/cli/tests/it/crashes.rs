//! kill -9 at any moment, a hundred times under load: nothing acknowledged is lost, nothing is there twice (invariants 1
//! to 6).

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use conch_cli::client::{ConversationStream, Endpoint, HttpClient, Item, Request, Start, deliver};
use conch_core::history::Event;
use conch_core::ids::Seq;
use conch_core::record::Record;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::node::{Home, message, runtime, until, whole_log};

const KILLS: u64 = 100;
const WRITERS: usize = 8;
const CONVERSATIONS: usize = 4;
/// Acks of a round before the next kill: 0 to this many, so that the kill falls on every stage of a start.
const ACKS_A_ROUND_MAX: u64 = 40;
/// A writer waits this long for a server that is being restarted; far above what a start takes.
const BUDGET: Duration = Duration::from_secs(60);

/// What happened, in the order in which it did.
#[derive(Clone)]
struct Recorder {
    events: Arc<Mutex<Vec<Event>>>,
    begun: Instant,
}

impl Recorder {
    fn add(&self, event: impl FnOnce(u64) -> Event) {
        let mut events = self.events.lock().expect("nobody panicked");
        // Under the lock, so that times do not go back.
        let t_us = u64::try_from(self.begun.elapsed().as_micros()).expect("a short test");
        events.push(event(t_us));
    }
}

fn name(conversation: usize) -> String {
    format!("room-{conversation}")
}

/// Sends until it is told to stop, and always until the ack.
async fn write(endpoint: Endpoint, writer: usize, stop: Arc<AtomicBool>, acks: Arc<AtomicU64>, recorder: Recorder) {
    let client = HttpClient::new(endpoint).expect("starts");
    let who = format!("w{writer}");
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let room = name((writer + number) % CONVERSATIONS);
        let key = format!("{who}-{number}");
        let ids = (room.parse().expect("valid"), who.parse().expect("valid"), key.parse().expect("valid"));
        let (conversation, sender, client_msg_id) = ids.clone();
        recorder.add(|t_us| Event::Invoked { client: who.clone(), conversation, sender, client_msg_id, t_us });
        let answer = deliver(&client, &message(&room, &key, &key), BUDGET, &mut |_| {}).await;
        let answer = answer.expect("a restart is waited out").body;
        let seq = Seq::deserialize(&answer["seq"]).expect("a seq");
        let epoch = conch_core::ids::Epoch::deserialize(&answer["epoch"]).expect("an epoch");
        let (conversation, sender, client_msg_id) = ids;
        recorder.add(|t_us| Event::Acked {
            client: who.clone(),
            conversation,
            sender,
            client_msg_id,
            seq,
            epoch,
            t_us,
        });
        acks.fetch_add(1, Ordering::Relaxed);
    }
}

/// Watches a conversation over all kills, on what is one stream to its reader.
async fn watch(endpoint: Endpoint, room: String, recorder: Recorder) {
    let client = HttpClient::new(endpoint).expect("starts");
    let observer = format!("watcher of {room}");
    let mut stream = ConversationStream::new(client, &room, Start { after: Seq(0), log: None });
    let conversation: conch_core::ids::ConversationId = room.parse().expect("valid");
    let who = observer.clone();
    recorder.add(|t_us| Event::Joined { observer: who, conversation, after: Some(Seq(0)), t_us });
    loop {
        match stream.next().await.expect("the stream goes on over restarts") {
            Item::Record(record, _) => {
                recorder.add(|t_us| Event::observed(&observer, &record, "one", t_us));
            }
            Item::Resync { .. } => panic!("nothing was rewound, and nothing is too far behind"),
            Item::CaughtUp(_) | Item::Live { .. } | Item::Waiting { .. } => {}
        }
    }
}

#[test]
fn a_hundred_kills_under_load_lose_and_double_nothing() {
    let scratch = tempfile::tempdir().expect("a directory");
    let home = Home::new(&scratch.path().join("data"));
    let runtime = runtime();
    let mut node = home.start();
    let endpoints: Vec<Endpoint> = (0..WRITERS).map(|writer| home.unlimited(&format!("w{writer}"))).collect();
    let client = HttpClient::new(endpoints[0].clone()).expect("starts");
    let recorder = Recorder { events: Arc::default(), begun: Instant::now() };
    let (stop, acks) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    for room in (0..CONVERSATIONS).map(name) {
        let create = Request::put(&["v1", "conversations", &room], json!({"kind": "channel"}));
        runtime.block_on(client.attempt(&create)).expect("created");
        runtime.spawn(watch(endpoints[0].clone(), room, recorder.clone()));
    }
    let load = |(writer, endpoint)| {
        runtime.spawn(write(endpoint, writer, Arc::clone(&stop), Arc::clone(&acks), recorder.clone()))
    };
    let writers: Vec<_> = endpoints.into_iter().enumerate().map(load).collect();
    for kill in 0..KILLS {
        // The same every time, and different in every round.
        let goal = acks.load(Ordering::Relaxed) + kill * 17 % (ACKS_A_ROUND_MAX + 1);
        until("acks", || (acks.load(Ordering::Relaxed) >= goal).then_some(()));
        node.kill();
        node = home.start();
    }
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        runtime.block_on(writer).expect("no writer panicked");
    }
    let mut logs: Vec<Vec<Value>> = Vec::new();
    for room in (0..CONVERSATIONS).map(name) {
        logs.push(runtime.block_on(whole_log(&client, &room)));
    }
    let stored: usize = logs.iter().map(Vec::len).sum();
    let seen = |event: &&Event| matches!(event, Event::Observed { .. });
    until("the watchers to see the end", || {
        let events = recorder.events.lock().expect("nobody panicked");
        (events.iter().filter(seen).count() >= stored).then_some(())
    });
    assert!(acks.load(Ordering::Relaxed) > KILLS, "the load was there");
    let texts_are_right = |record: &Value| record["body"]["text"] == record["client_msg_id"];
    assert!(logs.iter().flatten().all(texts_are_right), "every body is the one that was sent under its key");
    let acked = usize::try_from(acks.load(Ordering::Relaxed)).expect("few");
    assert_eq!(stored, acked, "every write ended with an ack, so nothing else may be there");
    check(&home, &recorder, &logs, scratch.path());
    assert_eq!(node.terminate().code(), Some(0));
    let verified = home.run(&["verify", "--store", &home.store()]);
    assert_eq!((verified.code, verified.line()["violations_total"].as_u64()), (0, Some(0)), "{verified:?}");
}

/// The product's own checker finds nothing, and finds something in the same history with one acked record less.
fn check(home: &Home, recorder: &Recorder, logs: &[Vec<Value>], scratch: &Path) {
    let events = recorder.events.lock().expect("nobody panicked");
    let mut lines: Vec<String> = events.iter().map(Event::to_line).collect();
    for record in logs.iter().flatten() {
        let Record { conversation, seq, epoch, sender, client_msg_id, .. } =
            Record::deserialize(record).expect("a record");
        lines.push(Event::Final { conversation, seq, epoch, sender, client_msg_id }.to_line());
    }
    let file = scratch.join("history.jsonl");
    let path = file.to_str().expect("UTF-8");
    std::fs::write(&file, lines.join("\n")).expect("written");
    let checked = home.run(&["check-history", path]);
    assert_eq!(checked.code, 0, "{checked:?}");
    assert!(checked.line()["shown"].as_u64() > Some(KILLS), "the watchers saw the load: {checked:?}");
    lines.pop();
    std::fs::write(&file, lines.join("\n")).expect("written");
    let lost = home.run(&["check-history", path]);
    assert_eq!(lost.code, 5, "a lost record is found: {lost:?}");
}
