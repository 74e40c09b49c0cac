//! Server-Sent Events: replay, order, resync, and how a stream ends.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::harness::{Client, Event, Node, Stream};

const STREAM: &str = "/v1/conversations/c/stream";

fn seqs(events: &[Event]) -> Vec<u64> {
    events.iter().filter(|event| event.name == "message").map(Event::seq).collect()
}

async fn log_of(client: &Client) -> String {
    client.get("/v1/conversations/c").await.ok(200)["log"].as_str().expect("a log").to_owned()
}

#[tokio::test]
async fn a_stream_replays_says_caught_up_and_goes_on_live() {
    let node = Node::start().await;
    let alice = node.client("alice");
    alice.channel("c").await;
    for number in 1..=5 {
        alice.sent("c", &number.to_string(), "old").await;
    }
    let log = log_of(&alice).await;
    let mut stream = Stream::open(&alice, &format!("{STREAM}?after=2&log={log}")).await;
    let events = stream.up_to("caught_up").await;
    assert_eq!(seqs(&events), [3, 4, 5]);
    let caught_up = events.last().expect("it is there");
    assert_eq!((&caught_up.data, caught_up.id.as_deref()), (&json!({"seq": 5}), Some(format!("{log}:5").as_str())));
    let history = alice.get("/v1/conversations/c/messages?after=2").await.ok(200);
    for (event, record) in events.iter().zip(history["messages"].as_array().expect("a list")) {
        assert_eq!((&event.data, event.name.as_str()), (record, "message"), "the same on every transport");
        assert_eq!(event.id, Some(format!("{log}:{}", record["seq"])));
    }
    let seq = alice.sent("c", "6", "new").await;
    let live = stream.next_real().await;
    assert_eq!((live.seq(), live.id), (seq, Some(format!("{log}:{seq}"))));
    // Without a position a stream begins now.
    let mut stream = Stream::open(&alice, STREAM).await;
    let first = stream.next_real().await;
    assert_eq!((first.name.as_str(), first.seq()), ("caught_up", seq));
}

#[tokio::test]
async fn last_event_id_wins_over_the_query() {
    let node = Node::start().await;
    let alice = node.client("alice");
    alice.channel("c").await;
    for number in 1..=5 {
        alice.sent("c", &number.to_string(), "old").await;
    }
    let log = log_of(&alice).await;
    let path = format!("{STREAM}?after=0&log=other.1");
    let mut stream = Stream::open_after(&alice, &path, Some(&format!("{log}:4"))).await;
    assert_eq!(seqs(&stream.up_to("caught_up").await), [5]);
    for bad in ["x", ":4", "a:b", "a:-1", "a:18446744073709551616"] {
        let request = alice.request("GET", STREAM).header("last-event-id", bad);
        let detail = Client::answer(request).await.problem(400, "invalid_request");
        assert!(detail.starts_with("last-event-id"), "{detail}");
    }
    for bad in ["after=-1", "after=x", "colour=red", "after=1&after=2"] {
        alice.get(&format!("{STREAM}?{bad}")).await.problem(400, "invalid_request");
    }
    alice.get("/v1/stream?after=1").await.problem(400, "invalid_request");
    alice.get("/v1/conversations/none/stream").await.problem(404, "not_found");
}

#[tokio::test]
async fn ids_are_on_durable_events_alone() {
    let node = Node::start().await;
    let alice = node.client("alice");
    alice.channel("c").await;
    alice.session("s").await;
    let mut stream = Stream::open(&alice, "/v1/conversations/s/stream?after=0").await;
    alice.sent("s", "1", "what is 2 + 2").await;
    let mut names = BTreeSet::new();
    loop {
        let event = stream.next().await;
        let durable = event.data["seq"].is_u64();
        assert_eq!(event.id.is_some(), durable, "{event:?}");
        names.insert(event.name.clone());
        if event.name == "turn.completed" {
            break;
        }
    }
    for name in ["message", "caught_up", "turn.started", "step.completed", "delta"] {
        assert!(names.contains(name), "{names:?}");
    }
}

#[tokio::test]
async fn void_positions_get_exactly_one_resync() {
    let node = Node::start_with(|config| {
        config.limits.catch_up_records = 10;
        config.limits.ring_records = 5;
    })
    .await;
    let alice = node.client("alice");
    alice.channel("c").await;
    for number in 1..=20 {
        alice.sent("c", &number.to_string(), "old").await;
    }
    let log = log_of(&alice).await;
    for (query, id) in [
        ("?after=3&log=other.1".to_owned(), None),
        (format!("?after=21&log={log}"), None),
        ("?after=18446744073709551615".to_owned(), None),
        ("?after=2".to_owned(), None),
        ("".to_owned(), Some("other.1:3".to_owned())),
        ("".to_owned(), Some(format!("{log}:21"))),
        ("".to_owned(), Some(format!("{log}:2"))),
    ] {
        let mut stream = Stream::open_after(&alice, &format!("{STREAM}{query}"), id.as_deref()).await;
        let events = stream.up_to("caught_up").await;
        let names: Vec<&str> = events.iter().map(|event| event.name.as_str()).collect();
        assert_eq!(names, ["resync", "caught_up"], "{query} {id:?}");
        assert_eq!(events[0].data, json!({"log": log, "head_seq": 20}), "{query} {id:?}");
        assert_eq!(events[0].id, Some(format!("{log}:20")));
    }
    node.metric_becomes(r#"conch_limit_hits_total{queue="catch_up"}"#, 2.0).await;
    // As far as the limit goes, record by record.
    let mut stream = Stream::open(&alice, &format!("{STREAM}?after=10")).await;
    assert_eq!(seqs(&stream.up_to("caught_up").await), (11..=20).collect::<Vec<u64>>());
}

/// Invariants 6 and 7: whoever joins wherever while others write sees every record above, once, in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joining_anywhere_under_load_shows_no_gap_no_double_and_no_disorder() {
    const WRITERS: u64 = 4;
    const EACH: u64 = 150;
    const READERS: u64 = 40;
    let node = Node::start_with(|config| {
        config.limits.ring_records = 16;
        config.limits.catch_up_page = 7;
    })
    .await;
    let alice = node.client("alice");
    alice.channel("c").await;
    let writers = (0..WRITERS).map(|writer| {
        let client = node.client(&format!("writer{writer}"));
        tokio::spawn(async move {
            for number in 0..EACH {
                client.sent("c", &number.to_string(), "hi").await;
            }
        })
    });
    let writers: Vec<_> = writers.collect();
    let total = WRITERS * EACH;
    let readers = (0..READERS).map(|_| {
        let reader = alice.clone();
        tokio::spawn(async move {
            let head = reader.get("/v1/conversations/c").await.ok(200)["head_seq"].as_u64().expect("a head");
            let after = rand::random::<u64>() % (head + 1);
            let mut stream = Stream::open(&reader, &format!("{STREAM}?after={after}")).await;
            let (mut seen, mut caught_up) = (Vec::new(), 0);
            while seen.last().copied().unwrap_or(after) < total {
                let event = stream.next_real().await;
                match event.name.as_str() {
                    "message" => seen.push(event.seq()),
                    "caught_up" => {
                        caught_up += 1;
                        assert_eq!(event.seq(), seen.last().copied().unwrap_or(after), "all before it was shown");
                    }
                    other => panic!("{other}"),
                }
            }
            assert_eq!(seen, (after + 1..=total).collect::<Vec<u64>>());
            assert!(caught_up <= 1, "{caught_up}");
        })
    });
    for reader in readers.collect::<Vec<_>>() {
        reader.await.expect("a reader sees everything");
    }
    for writer in writers {
        writer.await.expect("every send is acked");
    }
    node.ended().await;
}

#[tokio::test]
async fn a_stream_begins_with_a_comment_and_comments_when_idle() {
    let node = Node::start().await;
    let alice = node.client("alice");
    alice.channel("c").await;
    let mut stream = Stream::open(&alice, STREAM).await;
    stream.raw_holds(": conch\n\n").await;
    stream.raw_holds("\n\n: \n\n").await;
    let mut stream = Stream::open(&alice, "/v1/stream").await;
    stream.raw_holds("\n\n: \n\n").await;
}

#[tokio::test]
async fn an_event_source_is_told_to_come_back_and_others_get_the_status() {
    let node = Node::start_with(|config| config.limits.streams = 1).await;
    let alice = node.client("alice");
    alice.channel("c").await;
    let mut held = Stream::open(&alice, STREAM).await;
    held.up_to("caught_up").await;
    for path in [STREAM, "/v1/stream"] {
        let mut stream = Stream::open(&alice, path).await;
        let events = stream.rest().await;
        assert_eq!(events.len(), 1, "{events:?}");
        assert_eq!((events[0].name.as_str(), &events[0].id), ("reconnect", &None));
        assert_eq!(events[0].data["after_ms"].as_u64(), stream.retry);
        assert!(stream.retry.is_some_and(|ms| (250..=30_000).contains(&ms)), "{:?}", stream.retry);
        let detail = alice.get(path).await.problem(503, "overloaded");
        assert!(detail.contains("streams"), "{detail}");
        // What no retry mends is told to everybody with its status.
        let answer = Client::answer(node.stranger().request("GET", path).header("accept", "text/event-stream")).await;
        answer.problem(401, "unauthenticated");
    }
    drop(held);
    node.metric_becomes("conch_sse_streams", 0.0).await;
    Stream::open(&alice, STREAM).await.up_to("caught_up").await;
}

#[tokio::test]
async fn a_shutdown_ends_streams_with_reconnect() {
    let mut node = Node::start().await;
    let alice = node.client("alice");
    alice.channel("c").await;
    let (mut one, mut me) = (Stream::open(&alice, STREAM).await, Stream::open(&alice, "/v1/stream").await);
    one.up_to("caught_up").await;
    me.up_to("caught_up").await;
    node.ask_to_stop();
    for stream in [&mut one, &mut me] {
        let last = stream.rest().await.pop().expect("a last event");
        assert_eq!(last.name, "reconnect");
        assert_eq!(last.data["after_ms"].as_u64(), stream.retry);
    }
    node.ended().await;
}

#[tokio::test]
async fn the_personal_stream_shows_conversations_and_what_changes() {
    let node = Node::start().await;
    let (alice, bob) = (node.client("alice"), node.client("bob"));
    alice.channel("old").await;
    let mut stream = Stream::open(&alice, "/v1/stream").await;
    let first = stream.up_to("caught_up").await;
    let shown: Vec<&Value> = first.iter().map(|event| &event.data["id"]).collect();
    assert_eq!((shown[0], first.len()), (&json!("old"), 2));
    assert!(first.iter().all(|event| event.id.is_none()), "a personal stream has no position");
    bob.channel_of("new", &["alice"]).await;
    let event = stream.next().await;
    assert_eq!((event.name.as_str(), &event.data), ("membership", &json!({"conversation": "new", "change": "added"})));
    let event = stream.next().await;
    assert_eq!((event.name.as_str(), &event.data["unread"]), ("conversation", &json!(0)));
    let seq = bob.sent("new", "1", "hi").await;
    let event = stream.next().await;
    assert_eq!(
        (&event.data["id"], &event.data["unread"], &event.data["head_seq"]),
        (&json!("new"), &json!(1), &json!(seq))
    );
    assert_eq!(event.data["last_message"]["body"]["text"], "hi");
    alice.put("/v1/conversations/new/cursor", json!({"seq": seq})).await.ok(200);
    let event = stream.next().await;
    assert_eq!((&event.data["unread"], &event.data["cursor"]), (&json!(0), &json!(seq)));
    bob.call("PATCH", "/v1/conversations/new", json!({"title": "New"})).await.ok(200);
    assert_eq!(stream.next().await.data["title"], "New");
    bob.delete("/v1/conversations/new/members/alice").await.ok(204);
    let event = stream.next().await;
    assert_eq!(
        (event.name.as_str(), &event.data),
        ("membership", &json!({"conversation": "new", "change": "removed"}))
    );
    bob.sent("new", "2", "she is gone").await;
    alice.sent("old", "1", "mine").await;
    assert_eq!(stream.next().await.data["id"], "old", "nothing of a conversation that is not hers");
}
