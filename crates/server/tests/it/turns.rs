//! Turns of the demo agent: the journal, the stream, the queue, and what a restart does to them.

use serde_json::{Value, json};

use crate::harness::{Client, Event, Node, Socket, Stream, until};

async fn node() -> Node {
    Node::start_with(|config| config.agents.0.values_mut().for_each(|agent| agent.pace_ms = 20)).await
}

fn kinds(log: &[Value]) -> Vec<&str> {
    log.iter().map(|record| record["kind"].as_str().expect("a kind")).collect()
}

async fn log_with(client: &Client, id: &str, kind: &str, count: usize) -> Vec<Value> {
    until(&format!("{count} of {kind}"), async || {
        let log = client.log(id).await;
        (log.iter().filter(|record| record["kind"] == kind).count() >= count).then_some(log)
    })
    .await
}

#[tokio::test]
async fn a_turn_is_journalled_in_order_and_ends_with_its_answer() {
    let node = node().await;
    let alice = node.client("alice");
    alice.session("s").await;
    let input = alice.sent("s", "1", "what is 2 + 2").await;
    let log = log_with(&alice, "s", "turn.completed", 1).await;
    let expected = [
        "message",
        "turn.started",
        "step.completed",
        "step.started",
        "step.completed",
        "step.completed",
        "message",
        "turn.completed",
    ];
    assert_eq!(kinds(&log), expected);
    let senders: Vec<&str> = log.iter().filter_map(|record| record["sender"].as_str()).collect();
    assert_eq!(senders, ["alice", "@start", "@step", "@intent", "@step", "@step", "@agent:demo", "@end"]);
    let turn = log[1]["turn"].clone();
    assert!(log[1..].iter().all(|record| record["turn"] == turn), "{log:?}");
    assert_eq!(turn, json!(input), "a turn is named by its input");
    let (answer, end) = (&log[6], &log[7]);
    assert_eq!(answer["at"], end["at"], "one commit");
    assert_eq!(end["seq"].as_u64(), answer["seq"].as_u64().map(|seq| seq + 1));
    assert!(answer["body"]["text"].as_str().is_some_and(|text| text.contains("2 + 2 is 4")), "{answer}");
    node.metric_becomes(r#"conch_turns_ended_total{state="completed"}"#, 1.0).await;
    node.metric_becomes(r#"conch_turns{state="running"}"#, 0.0).await;
}

fn utf16(text: &str) -> u64 {
    text.encode_utf16().count() as u64
}

/// The text of each step, put together as a client does.
fn texts(events: &[Event]) -> Vec<(String, String)> {
    let mut steps: Vec<(String, String)> = Vec::new();
    for event in events {
        let data = &event.data;
        let word = |name: &str| data[name].as_str().expect("a string").to_owned();
        let offset = data["offset"].as_u64();
        match event.name.as_str() {
            "delta" => {
                if steps.last().is_none_or(|(step, _)| *step != word("step")) {
                    steps.push((word("step"), String::new()));
                }
                let (_, text) = steps.last_mut().expect("just made");
                assert_eq!(offset, Some(utf16(text)), "a delta fits where the text ends: {event:?}");
                text.push_str(&word("text"));
            }
            "turn.snapshot" => {
                assert_eq!(offset, Some(utf16(&word("text"))), "{event:?}");
                steps.retain(|(step, _)| *step != word("step"));
                steps.push((word("step"), word("text")));
            }
            _ => {}
        }
    }
    steps
}

#[tokio::test]
async fn deltas_put_together_are_the_output_of_the_step_wherever_one_joins() {
    let node = node().await;
    let alice = node.client("alice");
    alice.session("s").await;
    let mut first = Stream::open(&alice, "/v1/conversations/s/stream?after=0").await;
    alice.sent("s", "1", "say 🐚 \u{1d11e} ünïcode").await;
    let mut begun = Vec::new();
    while begun.iter().filter(|event: &&Event| event.name == "delta").count() < 4 {
        begun.push(first.next_real().await);
    }
    let mut late = Stream::open(&alice, "/v1/conversations/s/stream?after=0").await;
    let (rest, late) = tokio::join!(first.up_to("turn.completed"), late.up_to("turn.completed"));
    begun.extend(rest);
    let snapshots = |events: &[Event]| events.iter().filter(|event| event.name == "turn.snapshot").count();
    assert_eq!((snapshots(&begun), snapshots(&late)), (0, 1), "a snapshot for who joins in the middle");
    let names: Vec<&str> = late.iter().map(|event| event.name.as_str()).collect();
    let at = |name: &str| names.iter().position(|found| *found == name).expect("it is there");
    assert!(at("caught_up") < at("turn.snapshot") && at("turn.snapshot") < at("delta"), "{names:?}");
    assert_eq!(texts(&late), texts(&begun), "the same text as a viewer from the start");
    let log = alice.log("s").await;
    let outputs: Vec<&str> = log.iter().filter_map(|record| record["body"]["output"].as_str()).collect();
    let texts = texts(&begun);
    let streamed: Vec<&str> = texts.iter().map(|(_, text)| text.as_str()).collect();
    assert_eq!(streamed, outputs);
    let answer = log.iter().rfind(|record| record["kind"] == "message").expect("an answer");
    assert_eq!(answer["body"]["text"], *outputs.last().expect("a last step"));
    assert!(outputs.last().is_some_and(|text| text.contains('🐚')), "beyond the basic plane: {outputs:?}");
}

#[tokio::test]
async fn a_second_message_waits_and_runs_afterwards() {
    let node = node().await;
    let alice = node.client("alice");
    alice.session("s").await;
    let mut socket = Socket::joined(&node, &alice, "s").await;
    let one = alice.sent("s", "1", "1 + 1").await;
    socket.until_event("delta").await;
    let two = alice.sent("s", "2", "2 + 2").await;
    let event = json!({"client_msg_id": "3", "kind": "event", "body": {"deploy": "done"}});
    let three = alice.post("/v1/conversations/s/messages", event).await.ok(201)["seq"].as_u64().expect("a seq");
    let log = log_with(&alice, "s", "turn.completed", 3).await;
    let turns = |kind: &str| -> Vec<u64> {
        let of_kind = log.iter().filter(|record| record["kind"] == kind);
        of_kind.map(|record| record["turn"].as_u64().expect("a turn")).collect()
    };
    assert_eq!(turns("turn.started"), [one, two, three], "events start turns, too");
    assert_eq!(turns("turn.completed"), [one, two, three]);
    let position = |kind: &str, turn: u64| {
        log.iter().position(|record| record["kind"] == kind && record["turn"] == turn).expect("it is there")
    };
    assert!(position("turn.completed", one) < position("turn.started", two), "one at a time");
    assert!(position("turn.completed", two) < position("turn.started", three));
}

#[tokio::test]
async fn a_turn_that_a_restart_cut_off_goes_on_and_so_does_the_queue() {
    let node = Node::start_with(|config| config.agents.0.values_mut().for_each(|agent| agent.pace_ms = 60)).await;
    let alice = node.client("alice");
    alice.session("s").await;
    let mut socket = Socket::joined(&node, &alice, "s").await;
    let one = alice.sent("s", "1", "1 + 1").await;
    socket.until_event("step.completed").await;
    let two = alice.sent("s", "2", "2 + 2").await;
    let node = node.restart().await;
    let alice = node.client("alice");
    // Nobody looks: the due row brings the conversation an owner.
    let log = log_with(&alice, "s", "turn.completed", 2).await;
    let ends: Vec<(&str, &Value)> = log
        .iter()
        .filter(|record| record["sender"] == "@end")
        .map(|record| (record["kind"].as_str().expect("a kind"), &record["turn"]))
        .collect();
    assert_eq!(ends, [("turn.completed", &json!(one)), ("turn.completed", &json!(two))]);
    let steps: Vec<&str> = log
        .iter()
        .filter(|record| record["kind"] == "step.completed" && record["turn"] == one)
        .map(|record| record["body"]["step"].as_str().expect("a step"))
        .collect();
    assert_eq!(steps, ["m1", "m1.t0", "m2"], "each once");
    let epochs: Vec<u64> = log.iter().filter_map(|record| record["epoch"].as_u64()).collect();
    assert!(epochs.is_sorted() && epochs.first() < epochs.last(), "{epochs:?}");
}

#[tokio::test]
async fn settings_say_what_happens_to_a_second_message() {
    let node = node().await;
    let alice = node.client("alice");
    alice.session("s").await;
    let one = alice.sent("s", "1", "1 + 1").await;
    let settings = json!({"settings": {"second_message": "reject"}});
    alice.call("PATCH", "/v1/conversations/s", settings).await.ok(200);
    let detail = alice.send("s", "2", "2 + 2").await.problem(409, "conflict");
    assert_eq!(detail, format!("second_message: turn {one} has not ended"));
    let again = alice.send("s", "1", "1 + 1").await.ok(200);
    assert_eq!(again["seq"], json!(one), "a retry of what was accepted is no second message");
    log_with(&alice, "s", "turn.completed", 1).await;
}

#[tokio::test]
async fn a_channel_has_no_agent() {
    let node = node().await;
    let alice = node.client("alice");
    alice.channel("c").await;
    alice.session("s").await;
    alice.sent("c", "1", "1 + 1").await;
    alice.sent("s", "1", "1 + 1").await;
    log_with(&alice, "s", "turn.completed", 1).await;
    assert_eq!(kinds(&alice.log("c").await), ["message"]);
}
