//! What clients ask of turns, by HTTP and on a channel, on the owner's node and on others.

use serde_json::{Value, json};

use crate::harness::{Client, Cluster, Node, Socket, until};

const TURNS: &str = "/v1/conversations/s/turns";
const TOPIC: &str = "conversation:s";

/// How fast the agent is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// A turn takes a moment.
    Quick,
    /// A turn takes minutes.
    Slow,
}

/// A node with a session.
async fn desk(pace: Pace) -> (Node, Client) {
    let node = match pace {
        Pace::Quick => {
            Node::start_with(|config| config.agents.0.values_mut().for_each(|agent| agent.pace_ms = 20)).await
        }
        Pace::Slow => {
            Node::start_with(|config| config.agents.0.values_mut().for_each(|agent| agent.pace_ms = 2_000)).await
        }
    };
    let alice = node.client("alice");
    alice.session("s").await;
    (node, alice)
}

/// Starts a turn; gives its number.
async fn started(client: &Client, key: &str, text: &str) -> u64 {
    let started = client.post(TURNS, json!({"client_msg_id": key, "input": {"text": text}})).await.ok(202);
    started["turn"].as_u64().expect("a turn")
}

async fn shown(client: &Client, turn: u64) -> Value {
    client.get(&format!("{TURNS}/{turn}")).await.ok(200)
}

async fn in_state(client: &Client, turn: u64, state: &str) -> Value {
    until(&format!("turn {turn} to be {state}"), async || {
        Some(shown(client, turn).await).filter(|shown| shown["state"] == state)
    })
    .await
}

fn cancel_path(turn: u64) -> String {
    format!("{TURNS}/{turn}/cancel")
}

/// A turn that waits for an approval; gives it and the path of its await.
async fn waiting(client: &Client, key: &str) -> (u64, String) {
    let turn = started(client, key, "1 + 1, with my approval").await;
    let shown = in_state(client, turn, "waiting").await;
    let wait = shown["awaits"][0]["await"].as_str().expect("a name");
    (turn, format!("/v1/conversations/s/awaits/{wait}"))
}

#[tokio::test]
async fn a_turn_is_started_by_a_message_and_shown_from_the_log() {
    let (_node, alice) = desk(Pace::Quick).await;
    let body = json!({"client_msg_id": "1", "input": {"text": "what is 2 + 2", "tab": 7}});
    let first = alice.post(TURNS, body.clone()).await.ok(202);
    let turn = first["turn"].as_u64().expect("a turn");
    assert_eq!((&first["seq"], &first["duplicate"]), (&first["turn"], &json!(false)));
    let shown = in_state(&alice, turn, "completed").await;
    let again = alice.post(TURNS, body).await.ok(200);
    assert_eq!((&again["turn"], &again["duplicate"], &again["at"]), (&json!(turn), &json!(true), &first["at"]));
    let log = alice.log("s").await;
    assert_eq!(
        (&log[0]["kind"], &log[0]["sender"], &log[0]["client_msg_id"]),
        (&json!("message"), &json!("alice"), &json!("1"))
    );
    assert_eq!(log[0]["body"], json!({"text": "what is 2 + 2", "tab": 7}), "the same record as any message");
    alice.send("s", "1", "another").await.problem(409, "idempotency_key_reused");
    let of_kind = |kind: &str| log.iter().filter(|record| record["kind"] == kind).collect::<Vec<_>>();
    let steps: Vec<(&Value, &Value)> =
        of_kind("step.completed").iter().map(|record| (&record["body"]["step"], &record["seq"])).collect();
    let told = shown["steps"].as_array().expect("steps");
    assert_eq!(told.iter().map(|step| (&step["step"], &step["seq"])).collect::<Vec<_>>(), steps);
    assert_eq!(told[1]["attempts"], 1, "the tool was called once: {shown}");
    assert_eq!(shown["answer"], **of_kind("message").last().expect("an answer"));
    assert_eq!(shown["started_at"], of_kind("turn.started")[0]["at"]);
    assert_eq!(shown["ended_at"], of_kind("turn.completed")[0]["at"]);
    assert_eq!((&shown["agent"], &shown["usage"]["steps"], &shown["error"]), (&json!("demo"), &json!(3), &Value::Null));
    // The next turn's records are not this one's.
    let next = started(&alice, "2", "3 + 3").await;
    in_state(&alice, next, "completed").await;
    assert_eq!(self::shown(&alice, turn).await, shown);
    let by_header =
        alice.request("POST", TURNS).header("Idempotency-Key", "2").json(&json!({"input": {"text": "3 + 3"}}));
    assert_eq!(Client::answer(by_header).await.ok(200)["turn"], next);
}

#[tokio::test]
async fn a_start_names_what_is_wrong_with_it() {
    let (_node, alice) = desk(Pace::Quick).await;
    let long = "x".repeat(70_000);
    let deep = format!("{}{}", "[".repeat(32), "]".repeat(32));
    let deep: Value = serde_json::from_str(&deep).expect("valid");
    for (body, status, detail) in [
        (json!({"input": {"text": "x"}}), 422, "client_msg_id: is missing (or Idempotency-Key)"),
        (
            json!({"client_msg_id": "", "input": {"text": "x"}}),
            422,
            "client_msg_id: is empty; 1 to 128 bytes are allowed",
        ),
        (json!({"client_msg_id": 1, "input": {"text": "x"}}), 400, "client_msg_id: invalid type: integer"),
        (json!({"client_msg_id": "k"}), 422, "input and regenerate: give one of them"),
        (json!({"client_msg_id": "k", "input": null}), 422, "input and regenerate: give one of them"),
        (
            json!({"client_msg_id": "k", "input": {"text": "x"}, "regenerate": 1}),
            422,
            "input and regenerate: are both given",
        ),
        (json!({"client_msg_id": "k", "input": "x"}), 422, "input: must be a JSON object"),
        (json!({"client_msg_id": "k", "input": {}}), 422, "input.text: must be a string"),
        (
            json!({"client_msg_id": "k", "input": {"text": "x", "a": deep}}),
            400,
            "input: is nested deeper than 32 levels",
        ),
        (json!({"client_msg_id": "k", "input": {"text": long}}), 413, "input: is 70011 bytes long; at most 65536"),
        (json!({"client_msg_id": "k", "input": {"text": "x"}, "kind": "event"}), 400, "kind: unknown field `kind`"),
        (json!({"client_msg_id": "k", "regenerate": "last"}), 400, "regenerate: invalid type: string \"last\""),
        (json!({"client_msg_id": "k", "regenerate": -1}), 400, "regenerate: invalid value: integer `-1`"),
        (json!({"client_msg_id": "k", "regenerate": 1}), 404, "turn: there is no 1"),
    ] {
        let code = match status {
            413 => "too_large",
            404 => "not_found",
            _ => "invalid_request",
        };
        let told = alice.post(TURNS, body.clone()).await.problem(status, code);
        assert!(told.starts_with(detail), "{body}: {told}");
    }
    alice.call_raw("POST", TURNS, "{").await.problem(400, "invalid_request");
    Client::answer(alice.request("POST", TURNS).body("{}")).await.problem(415, "unsupported_media_type");
    assert_eq!(alice.log("s").await, Vec::<Value>::new());
    let body = json!({"client_msg_id": "k", "input": {"text": "x"}});
    alice.post("/v1/conversations/absent/turns", body.clone()).await.problem(404, "not_found");
    alice.channel("c").await;
    let told = alice.post("/v1/conversations/c/turns", body).await.problem(409, "conflict");
    assert_eq!(told, "conversation: has no agent, and so no turns");
    assert_eq!(alice.log("c").await, Vec::<Value>::new());
}

#[tokio::test]
async fn what_is_no_turn_is_not_shown() {
    let (_node, alice) = desk(Pace::Quick).await;
    let turn = started(&alice, "1", "1 + 1").await;
    in_state(&alice, turn, "completed").await;
    alice.channel("c").await;
    alice.sent("c", "1", "no turn").await;
    for path in [
        &format!("{TURNS}/0"),
        &format!("{TURNS}/{}", turn + 1),
        &format!("{TURNS}/{}", u64::MAX),
        "/v1/conversations/c/turns/1",
        "/v1/conversations/absent/turns/1",
    ] {
        alice.get(path).await.problem(404, "not_found");
    }
    for bad in ["x", "-1", "+1", "1.0", "18446744073709551616", "%31x"] {
        let told = alice.get(&format!("{TURNS}/{bad}")).await.problem(422, "invalid_request");
        assert_eq!(told, "turn: must be its number", "{bad}");
        let told = alice.post(&format!("{TURNS}/{bad}/cancel"), json!({})).await.problem(422, "invalid_request");
        assert_eq!(told, "turn: must be its number", "{bad}");
    }
}

#[tokio::test]
async fn a_cancel_is_answered_as_it_was_and_another_end_is_named() {
    let (_node, alice) = desk(Pace::Slow).await;
    let running = started(&alice, "1", "1 + 1").await;
    let queued = started(&alice, "2", "2 + 2").await;
    in_state(&alice, running, "running").await;
    assert_eq!(shown(&alice, queued).await["state"], "queued");
    for (turn, body, mode) in [(queued, json!({"mode": "rollback"}), "rollback"), (running, json!({}), "keep")] {
        let done = alice.post(&cancel_path(turn), body.clone()).await.ok(200);
        assert_eq!((&done["turn"], &done["duplicate"]), (&json!(turn), &json!(false)));
        let shown = shown(&alice, turn).await;
        assert_eq!(
            (&shown["state"], &shown["cancelled"]),
            (&json!("cancelled"), &json!({"mode": mode, "by": "alice"}))
        );
        let again = alice.post(&cancel_path(turn), body).await.ok(200);
        assert_eq!((&again["seq"], &again["duplicate"]), (&done["seq"], &json!(true)));
        let other = if mode == "keep" { "rollback" } else { "keep" };
        let told = alice.post(&cancel_path(turn), json!({"mode": other})).await.problem(409, "conflict");
        assert_eq!(told, format!("turn: {turn} has ended by turn.cancelled, seq {}", done["seq"]));
    }
    let starts = alice.log("s").await.iter().filter(|record| record["kind"] == "turn.started").count();
    assert_eq!(starts, 1, "what was cancelled while it waited never started");
}

#[tokio::test]
async fn a_cancel_names_what_is_wrong_with_it() {
    let (_node, alice) = desk(Pace::Quick).await;
    let turn = started(&alice, "1", "1 + 1").await;
    in_state(&alice, turn, "completed").await;
    for (body, detail) in [
        (json!({"mode": "drop"}), "mode: unknown variant `drop`, expected `keep` or `rollback`"),
        (json!({"mode": 1}), "mode: "),
        (json!({"reason": "bored"}), "reason: unknown field `reason`, expected `mode`"),
    ] {
        let told = alice.post(&cancel_path(turn), body).await.problem(400, "invalid_request");
        assert!(told.starts_with(detail), "{told}");
    }
    let end = alice.log("s").await.last().expect("an end")["seq"].clone();
    let told = alice.post(&cancel_path(turn), json!({})).await.problem(409, "conflict");
    assert_eq!(told, format!("turn: {turn} has ended by turn.completed, seq {end}"));
    let told = alice.post(&cancel_path(turn + 1), json!({})).await.problem(404, "not_found");
    assert_eq!(told, format!("turn: {} is no turn, but a turn.started", turn + 1));
    for absent in [0, 99, u64::MAX] {
        let told = alice.post(&cancel_path(absent), json!({})).await.problem(404, "not_found");
        assert_eq!(told, format!("turn: there is no {absent}"));
    }
    alice.post("/v1/conversations/absent/turns/1/cancel", json!({})).await.problem(404, "not_found");
    alice.channel("c").await;
    alice.post("/v1/conversations/c/turns/1/cancel", json!({})).await.problem(409, "conflict");
}

#[tokio::test]
async fn an_await_is_resolved_once_with_what_fits() {
    let (_node, alice) = desk(Pace::Quick).await;
    let (turn, path) = waiting(&alice, "1").await;
    let open = shown(&alice, turn).await["awaits"][0].clone();
    assert_eq!((&open["state"], &open["schema"]["required"]), (&json!("open"), &json!(["approve"])));
    assert!(open["prompt"].is_string() && open["expires_at"].is_string(), "{open}");
    let nested = format!("{{\"payload\":{}{}}}", "[".repeat(33), "]".repeat(33));
    let long = "x".repeat(70_000);
    for (body, status, detail) in [
        (json!({"payload": {"approve": "yes"}}), 422, "payload/approve: "),
        (json!({"payload": {}}), 422, "payload: "),
        (json!({"payload": null}), 422, "payload: "),
        (json!({}), 400, "missing field `payload`"),
        (json!({"payload": {"approve": true}, "by": "bob"}), 400, "by: unknown field `by`"),
        (json!({"payload": long}), 413, "payload: is 70002 bytes long; at most 65536 are allowed"),
        (serde_json::from_str(&nested).expect("valid"), 400, "payload: is nested deeper than 32 levels"),
    ] {
        let code = if status == 413 { "too_large" } else { "invalid_request" };
        let told = alice.post(&path, body).await.problem(status, code);
        assert!(told.starts_with(detail), "{told}");
    }
    let lone = alice.call_raw("POST", &path, r#"{"payload":"\ud800"}"#).await.problem(400, "invalid_request");
    assert!(lone.starts_with("payload: is not valid JSON"), "{lone}");
    let yes = json!({"payload": {"approve": true}});
    for (bad, status, code, detail) in [
        ("x", 422, "invalid_request", "await: must be a turn, a hyphen and a step"),
        ("07-m1", 422, "invalid_request", "await: must be a turn, a hyphen and a step"),
        ("1-a%2Fb", 422, "invalid_request", "step: may hold only printable ASCII without a slash"),
        ("1-nothing", 404, "not_found", "await: there is no 1-nothing"),
        ("99-m1", 404, "not_found", "await: there is no 99-m1"),
    ] {
        let told = alice.post(&format!("/v1/conversations/s/awaits/{bad}"), yes.clone()).await.problem(status, code);
        assert_eq!(told, detail);
    }
    let first = alice.post(&path, yes.clone()).await.ok(200);
    assert_eq!((&first["await"], &first["duplicate"]), (&open["await"], &json!(false)));
    let again = alice.post(&path, yes.clone()).await.ok(200);
    assert_eq!((&again["seq"], &again["duplicate"]), (&first["seq"], &json!(true)));
    alice.post(&path, json!({"payload": {"approve": false}})).await.problem(409, "conflict");
    let done = in_state(&alice, turn, "completed").await;
    assert_eq!((&done["awaits"][0]["state"], &done["awaits"][0]["by"]), (&json!("resolved"), &json!("alice")));
    let late = alice.post(&path, yes.clone()).await.ok(200);
    assert_eq!(late["seq"], first["seq"], "also when the turn has ended");
    let (other, path) = waiting(&alice, "2").await;
    alice.post(&cancel_path(other), json!({"mode": "rollback"})).await.ok(200);
    let told = alice.post(&path, yes).await.problem(409, "conflict");
    assert!(told.ends_with("has ended"), "{told}");
    assert_eq!(shown(&alice, other).await["awaits"][0]["state"], "closed");
}

#[tokio::test]
async fn the_last_turn_is_run_again() {
    let (_node, alice) = desk(Pace::Quick).await;
    let first = started(&alice, "1", "1 + 1").await;
    in_state(&alice, first, "completed").await;
    let again = json!({"client_msg_id": "again", "regenerate": first});
    let done = alice.post(TURNS, again.clone()).await.ok(202);
    let second = done["turn"].as_u64().expect("a turn");
    let shown = in_state(&alice, second, "completed").await;
    assert!(shown["answer"]["body"]["text"].as_str().is_some_and(|text| text.contains("1 + 1 is 2")), "{shown}");
    let before = self::shown(&alice, first).await;
    assert_eq!((&before["state"], &before["superseded"]), (&json!("superseded"), &json!({"reason": "regenerate"})));
    let repeated = alice.post(TURNS, again).await.ok(200);
    assert_eq!((&repeated["turn"], &repeated["duplicate"]), (&json!(second), &json!(true)));
    let told = alice.post(TURNS, json!({"client_msg_id": "k", "regenerate": first})).await.problem(409, "conflict");
    assert_eq!(told, format!("turn: {first} has been run again already, as turn {second}"));
    alice
        .post(TURNS, json!({"client_msg_id": "again", "regenerate": second}))
        .await
        .problem(409, "idempotency_key_reused");
    assert_eq!(self::shown(&alice, second).await["state"], "completed", "what was refused changes nothing");
}

#[tokio::test]
async fn a_run_that_is_rolled_back_has_replaced_nothing() {
    let (_node, alice) = desk(Pace::Quick).await;
    let (first, path) = waiting(&alice, "1").await;
    alice.post(&path, json!({"payload": {"approve": true}})).await.ok(200);
    in_state(&alice, first, "completed").await;
    let again = async |key: &str, turn: u64| {
        let body = json!({"client_msg_id": key, "regenerate": turn});
        alice.post(TURNS, body).await
    };
    for key in ["r1", "r2"] {
        let run = again(key, first).await.ok(202)["turn"].as_u64().expect("a turn");
        in_state(&alice, run, "waiting").await;
        assert_eq!(shown(&alice, first).await["state"], "superseded");
        let told = again("k", first).await.problem(409, "conflict");
        assert_eq!(told, format!("turn: {first} has been run again already, as turn {run}"));
        let told = again("k", run).await.problem(409, "conflict");
        assert_eq!(told, format!("turn: {run} cannot be run again while another turn is open"));
        alice.post(&cancel_path(run), json!({"mode": "rollback"})).await.ok(200);
        assert_eq!(shown(&alice, first).await["state"], "completed", "it counts again");
        let told = again("k", run).await.problem(409, "conflict");
        assert_eq!(told, format!("turn: {run} was rolled back, so that there is nothing to run again"));
    }
}

/// Nothing was said that could be kept: the former answer counts again, and may be run again.
#[tokio::test]
async fn a_run_that_is_cancelled_before_it_begins_has_replaced_nothing() {
    let (_node, alice) = desk(Pace::Quick).await;
    let first = started(&alice, "1", "1 + 1").await;
    in_state(&alice, first, "completed").await;
    let set = async |settings: Value| {
        alice.call("PATCH", "/v1/conversations/s", json!({ "settings": settings })).await.ok(200);
    };
    // What comes waits ten seconds for more.
    set(json!({"second_message": "merge", "merge_ms": 10_000})).await;
    let again = async |key: &str| alice.post(TURNS, json!({"client_msg_id": key, "regenerate": first})).await;
    let run = again("r1").await.ok(202)["turn"].as_u64().expect("a turn");
    assert_eq!(shown(&alice, run).await["state"], "queued");
    let keep = json!({"mode": "keep"});
    let done = alice.post(&cancel_path(run), keep.clone()).await.ok(200);
    let same = alice.post(&cancel_path(run), keep).await.ok(200);
    assert_eq!((&same["seq"], &same["duplicate"]), (&done["seq"], &json!(true)));
    assert_eq!(shown(&alice, run).await["cancelled"], json!({"mode": "rollback", "by": "alice"}));
    assert_eq!(shown(&alice, first).await["state"], "completed", "it counts again");
    set(json!({"second_message": "queue"})).await;
    let run = again("r2").await.ok(202)["turn"].as_u64().expect("a turn");
    in_state(&alice, run, "completed").await;
}

#[tokio::test]
async fn a_channel_takes_the_same() {
    let (node, alice) = desk(Pace::Quick).await;
    let (turn, path) = waiting(&alice, "1").await;
    let wait = path.rsplit('/').next().expect("a name");
    let mut socket = Socket::joined(&node, &alice, "s").await;
    for (event, payload, detail) in [
        ("turn.cancel", json!({}), "missing field `turn`"),
        ("turn.cancel", json!({"turn": "1"}), "turn: invalid type: string"),
        ("turn.cancel", json!({"turn": turn, "mode": "drop"}), "mode: unknown variant `drop`"),
        ("turn.cancel", json!({"turn": turn, "why": 1}), "why: unknown field"),
        ("turn.regenerate", json!({"turn": turn}), "missing field `client_msg_id`"),
        (
            "turn.regenerate",
            json!({"turn": turn, "client_msg_id": ""}),
            "client_msg_id: is empty; 1 to 128 bytes are allowed",
        ),
        ("await.resolve", json!({"await": wait}), "missing field `payload`"),
        ("await.resolve", json!({"await": "x", "payload": 1}), "await: must be a turn, a hyphen and a step"),
        ("await.resolve", json!({"await": wait, "payload": {"approve": 1}}), "payload/approve: "),
        ("await.resolve", json!({"await": wait, "payload": "x".repeat(70_000)}), "payload: is 70002 bytes long"),
    ] {
        let code =
            if detail.ends_with("bytes long") && event == "await.resolve" { "too_large" } else { "invalid_request" };
        let reply = socket.push(TOPIC, event, payload.clone()).await;
        let told = reply.refused(code)["detail"].as_str().expect("a detail");
        assert!(told.starts_with(detail), "{event} {payload}: {told}");
    }
    let yes = json!({"await": wait, "payload": {"approve": true}});
    let reply = socket.push(TOPIC, "await.resolve", yes.clone()).await;
    assert_eq!((&reply.response("ok")["await"], &reply.response("ok")["duplicate"]), (&json!(wait), &json!(false)));
    assert_eq!(socket.push(TOPIC, "await.resolve", yes).await.response("ok")["duplicate"], true);
    let no = json!({"await": wait, "payload": {"approve": false}});
    socket.push(TOPIC, "await.resolve", no).await.refused("conflict");
    socket.push(TOPIC, "await.resolve", json!({"await": "1-none", "payload": 1})).await.refused("not_found");
    in_state(&alice, turn, "completed").await;
    socket.push(TOPIC, "turn.cancel", json!({"turn": turn})).await.refused("conflict");
    socket.push(TOPIC, "turn.cancel", json!({"turn": 99})).await.refused("not_found");
    let again = json!({"turn": turn, "client_msg_id": "again"});
    let second = socket.push(TOPIC, "turn.regenerate", again).await.response("ok")["turn"].clone();
    let second = second.as_u64().expect("a turn");
    in_state(&alice, second, "waiting").await;
    let cancel = json!({"turn": second, "mode": "rollback"});
    assert_eq!(socket.push(TOPIC, "turn.cancel", cancel).await.response("ok")["turn"], second);
    assert_eq!(shown(&alice, second).await["state"], "cancelled");
}

#[tokio::test]
async fn any_node_takes_what_is_asked_and_it_has_one_effect() {
    let cluster = Cluster::start_with(3, |config| {
        config.agents.0.values_mut().for_each(|agent| agent.pace_ms = 20);
    })
    .await;
    let clients: Vec<Client> = cluster.nodes.iter().map(|node| node.client("alice")).collect();
    clients[0].session("s").await;
    let (turn, path) = waiting(&clients[0], "1").await;
    assert_eq!(shown(&clients[1], turn).await["state"], "waiting", "any node shows it");
    let mut callers = tokio::task::JoinSet::new();
    for number in 0..30_usize {
        let (client, path) = (clients[number % 3].clone(), path.clone());
        let payload = json!({"payload": {"approve": number % 2 == 0}});
        callers.spawn(async move { (number % 2 == 0, client.post(&path, payload).await) });
    }
    let answers = callers.join_all().await;
    let taken: Vec<bool> = answers.iter().filter(|(_, answer)| answer.status == 200).map(|(yes, _)| *yes).collect();
    assert!(!taken.is_empty() && taken.iter().all(|yes| *yes == taken[0]), "one of both counts: {answers:?}");
    assert_eq!(taken.len(), 15, "and whoever said the same is told so: {answers:?}");
    assert!(answers.iter().all(|(_, answer)| answer.status == 200 || answer.status == 409), "{answers:?}");
    in_state(&clients[2], turn, "completed").await;
    let (second, _) = waiting(&clients[1], "2").await;
    clients[2].post(&cancel_path(second), json!({})).await.ok(200);
    assert_eq!(shown(&clients[0], second).await["state"], "cancelled");
    let log = clients[0].log("s").await;
    let count = |kind: &str| log.iter().filter(|record| record["kind"] == kind).count();
    assert_eq!((count("await.resolved"), count("turn.completed"), count("turn.cancelled")), (1, 1, 1));
}
