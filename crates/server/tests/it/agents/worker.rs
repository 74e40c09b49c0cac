//! An agent of kind `http` against workers that are scripted: what they may say and do, and what they may not.

use std::sync::Arc;
use std::time::Duration;

use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::{answers, bodies, ended, failure, helper, kinds, turn};
use crate::harness::{Cluster, Fake, Node, Reply, Request, Stream, until};

fn settings(worker: &Fake, more: &str) -> String {
    format!("kind = 'http'\nurl = '{}'\nsecret_env = 'WORKER_SECRET'\n{more}", worker.url("/turn"))
}

async fn node(worker: &Fake, more: &str) -> Node {
    let settings = settings(worker, more);
    Node::start_as(move |config| helper(config, &settings)).await
}

/// Says these lines, and ends the answer.
async fn say(mut reply: Reply, lines: &[Value]) {
    reply.begin("application/x-ndjson").await;
    for line in lines {
        reply.more(&format!("{line}\n")).await;
    }
    reply.end().await;
}

/// Makes a step durable, as a worker does; the status and the problem's code.
async fn step(callback: &str, key: &str, body: &Value) -> (u16, Value) {
    let url = format!("{callback}/steps/{}", key.replace('#', "%23"));
    let answer = reqwest::Client::new().post(url).json(body).send().await.expect("an answer");
    let status = answer.status().as_u16();
    (status, answer.json::<Value>().await.unwrap_or_default())
}

fn callback(request: &Request) -> String {
    request.body["callback"].as_str().expect("a callback").to_owned()
}

#[tokio::test]
async fn a_worker_streams_journals_and_keeps_what_it_likes() {
    let worker = Fake::start(|request, mut reply| async move {
        reply.begin("application/x-ndjson").await;
        reply.more("{\"type\":\"delta\",\"text\":\"Looking. \"}\n").await;
        let found = json!({ "input": { "q": 1 }, "output": { "train": "R 12" } });
        assert_eq!(step(&callback(&request), "find", &found).await.0, 200);
        assert_eq!(step(&callback(&request), "find", &found).await.0, 200, "the same again is the same");
        assert_eq!(step(&callback(&request), "find#2", &json!({ "output": null })).await.0, 200);
        reply.more("\n{\"type\":\"delta\",\"text\":\"Found.\"}\n").await;
        let trips = request.body["state"]["trips"].as_u64().unwrap_or(0) + 1;
        reply.more(&format!("{}\n", json!({ "type": "done", "state": { "trips": trips } }))).await;
        reply.end().await;
    })
    .await;
    let node = node(&worker, "").await;
    let alice = node.client("alice");
    let log = turn(&node).await;
    let expected = ["message", "turn.started", "step.completed", "step.completed", "message", "turn.completed"];
    assert_eq!(kinds(&log), expected);
    let steps = bodies(&log, "step.completed");
    assert_eq!(*steps[0], json!({ "step": "find", "type": "own", "input": { "q": 1 }, "output": { "train": "R 12" } }));
    assert_eq!(*steps[1], json!({ "step": "find#2", "type": "own", "output": null }));
    assert_eq!(answers(&log), ["Looking. Found."], "without a message, the answer is what was shown");
    assert_eq!(*bodies(&log, "turn.completed")[0], json!({ "state": { "trips": 1 } }));
    alice.sent("s", "2", "again").await;
    let log = ended(&alice, "s", 2).await;
    assert_eq!(*bodies(&log, "turn.completed")[1], json!({ "state": { "trips": 2 } }));
    let asked = &worker.seen()[1];
    let roles: Vec<&str> =
        asked.body["messages"].as_array().expect("messages").iter().filter_map(|m| m["role"].as_str()).collect();
    assert_eq!(roles, ["user", "assistant", "user"]);
    assert_eq!((&asked.body["conversation"], &asked.body["attempt"]), (&json!("s"), &json!(1)));
    assert_eq!(asked.body["journal"], json!([]), "the journal is of this turn alone");
    assert!(["webhook-id", "webhook-timestamp", "webhook-signature"].iter().all(|name| asked.has(name)));
}

#[tokio::test]
async fn a_worker_that_waits_ends_its_run_and_nothing_runs_meanwhile() {
    let worker = Fake::start(|_, reply| async move {
        let ask = json!({ "type": "await", "id": "approve", "prompt": "Book?", "schema": { "type": "object" }, "expires_in_ms": 400 });
        say(reply, &[json!({ "type": "delta", "text": "Hm. " }), ask]).await;
    })
    .await;
    let node = node(&worker, "attempts = 1\n").await;
    let log = turn(&node).await;
    let opened = bodies(&log, "await.opened");
    assert_eq!((&opened[0]["await"], &opened[0]["prompt"]), (&json!("1-approve"), &json!("Book?")));
    assert_eq!(*bodies(&log, "await.resolved")[0], json!({ "await": "1-approve", "expired": true }));
    let asked = &worker.seen()[1].body;
    assert_eq!(asked["journal"], json!([{ "await": "approve", "state": "expired" }]));
    assert!(asked["attempt"].as_u64() > worker.seen()[0].body["attempt"].as_u64());
    let (_, detail) = failure(&log);
    assert!(detail.ends_with("asks for \"approve\", which is answered"), "{detail}");
}

/// What ends a turn at once, and what its record says.
#[tokio::test]
async fn a_worker_that_breaks_the_contract_ends_its_turn_with_a_record_that_says_why() {
    let elsewhere = Fake::start(|_, reply| async move { say(reply, &[json!({ "type": "done" })]).await }).await;
    let location = format!("location: {}\r\n", elsewhere.url("/"));
    let flood = format!("{}\n", " ".repeat(1024 * 1024));
    let cases: [(u16, String, Vec<String>, &str, &str); 9] = [
        (200, String::new(), vec!["<html>".to_owned(), "\n".to_owned()], "agent_failed", ": line 1: is not JSON: "),
        (
            200,
            String::new(),
            vec!["{\"type\":\"dance\"}\n".to_owned()],
            "agent_failed",
            ": line 1: unknown variant `dance`",
        ),
        (200, String::new(), vec!["x".repeat(1024 * 1024); 3], "step_too_large", ": line 1: is over 2097152 bytes"),
        (200, String::new(), vec![flood; 17], "journal_too_large", ": the answer is over 16777216 bytes"),
        (307, location, Vec::new(), "agent_failed", " answered 307 (redirects are not followed)"),
        (401, String::new(), vec!["who?".to_owned()], "agent_failed", " answered 401"),
        (
            200,
            String::new(),
            vec![json!({ "type": "await", "id": "a", "schema": { "type": "thing" } }).to_string() + "\n"],
            "agent_failed",
            "schema/type: ",
        ),
        (
            200,
            String::new(),
            vec![json!({ "type": "await", "id": "a", "schema": { "items": { "$ref": "#" } } }).to_string() + "\n"],
            "agent_failed",
            "schema: $ref \"#\" must not lead back to itself",
        ),
        (
            200,
            String::new(),
            vec![json!({ "type": "await", "id": "a/b" }).to_string() + "\n"],
            "agent_failed",
            "await: step: ",
        ),
    ];
    for (status, headers, pieces, reason, problem) in cases {
        let worker = Fake::start(move |_, reply| {
            let (headers, pieces) = (headers.clone(), pieces.clone());
            async move {
                if status != 200 {
                    return reply.whole(status, &headers, &pieces.concat()).await;
                }
                let mut reply = reply;
                reply.begin("application/x-ndjson").await;
                for piece in pieces {
                    reply.more(&piece).await;
                }
                reply.stall().await;
            }
        })
        .await;
        let node = node(&worker, "").await;
        let (told, detail) = failure(&turn(&node).await);
        assert!(told == reason && detail.contains(problem), "{told}: {detail}, not {reason}: {problem}");
        assert_eq!(worker.seen().len(), 1, "{detail}");
    }
    assert!(elsewhere.seen().is_empty(), "a redirect is never followed");
}

/// What may be better the next time is asked again, as another attempt; what was shown is retracted.
#[tokio::test]
async fn a_worker_that_fails_is_asked_again_and_its_earlier_attempt_is_stale() {
    let worker = Fake::start(|request, mut reply| async move {
        match request.number {
            0 => reply.whole(500, "", "oops").await,
            1 => {
                reply.begin("application/x-ndjson").await;
                reply.more("{\"type\":\"delta\",\"text\":\"partial\"}\n").await;
                assert_eq!(step(&callback(&request), "find", &json!({ "output": 1 })).await.0, 200);
            }
            2 => {
                reply.begin("application/x-ndjson").await;
                reply.end().await;
            }
            3 => reply.stall().await,
            _ => {
                assert_eq!(request.body["journal"], json!([{ "key": "find", "input": null, "output": 1 }]));
                say(reply, &[json!({ "type": "message", "body": { "text": "done" } }), json!({ "type": "done" })])
                    .await;
            }
        }
    })
    .await;
    let node = node(&worker, "silence_ms = 3000\n").await;
    let alice = node.client("alice");
    alice.session_with("s", "helper").await;
    let mut watching = Stream::open(&alice, "/v1/conversations/s/stream?after=0").await;
    alice.sent("s", "1", "hello").await;
    let log = ended(&alice, "s", 1).await;
    assert_eq!(answers(&log), ["done"]);
    let attempts: Vec<u64> = worker.seen().iter().filter_map(|asked| asked.body["attempt"].as_u64()).collect();
    assert_eq!(attempts, [1, 2, 3, 4, 5]);
    let events = watching.up_to("turn.completed").await;
    let last_shown = events.iter().rev().find(|event| ["delta", "step.reset"].contains(&event.name.as_str()));
    assert_eq!(last_shown.map(|event| event.name.as_str()), Some("step.reset"), "the partial text is retracted");
    let (status, problem) = step(&callback(&worker.seen()[1]), "late", &json!({ "output": 3 })).await;
    assert_eq!((status, &problem["code"]), (409, &json!("stale_attempt")));
}

#[tokio::test]
async fn steps_of_an_attempt_that_was_given_up_are_no_sign_of_life() {
    let worker = Fake::start(|request, mut reply| async move {
        if request.number == 0 {
            return reply.whole(500, "", "oops").await;
        }
        reply.begin("application/x-ndjson").await;
        reply.stall().await;
    })
    .await;
    let node = node(&worker, "attempts = 2\nsilence_ms = 1000\nturn_time_s = 20\n").await;
    let given_up = async {
        let callback = until("the second attempt", async || worker.seen().get(1).map(|_| callback(&worker.seen()[0])));
        let callback = callback.await;
        // Refused until the turn is over, and then as well.
        while step(&callback, "late", &json!({ "output": 1 })).await.0 == 409 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("a step of the first attempt was taken");
    };
    let log = tokio::select! {
        log = turn(&node) => log,
        () = given_up => unreachable!("it goes on for ever"),
    };
    let (reason, detail) = failure(&log);
    assert_eq!(reason, "agent_failed", "the turn's own time is much longer: {detail}");
    assert!(detail.contains("the worker said nothing more for 1000 ms"), "{detail}");
}

#[tokio::test]
async fn a_worker_that_never_succeeds_ends_its_turn_after_its_attempts() {
    let worker = Fake::start(|_, reply| async move { reply.whole(500, "", "oops").await }).await;
    let node = node(&worker, "attempts = 2\n").await;
    let (reason, detail) = failure(&turn(&node).await);
    let expected = "the worker answered 500 (after 2 attempts)";
    assert_eq!((reason.as_str(), detail.as_str(), worker.seen().len()), ("agent_failed", expected, 2));
}

#[tokio::test]
async fn a_worker_that_never_ends_meets_the_deadline_of_its_turn() {
    let worker = Fake::start(|_, mut reply| async move {
        reply.begin("application/x-ndjson").await;
        for _ in 0..600 {
            reply.more("\n").await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    let node = node(&worker, "turn_time_s = 2\nsilence_ms = 1000\n").await;
    assert_eq!(failure(&turn(&node).await).0, "deadline_passed");
}

#[tokio::test]
async fn a_worker_that_floods_with_steps_meets_the_limit_of_its_turn() {
    /// Of every turn.
    const STEPS_MAX: usize = 1_000;
    let worker = Fake::start(|request, mut reply| async move {
        reply.begin("application/x-ndjson").await;
        let (client, callback) = (reqwest::Client::new(), callback(&request));
        for number in 0..=STEPS_MAX {
            let sent =
                client.post(format!("{callback}/steps/s{number}")).json(&json!({ "output": number })).send().await;
            let status = sent.expect("an answer").status().as_u16();
            assert_eq!(status, if number < STEPS_MAX { 200 } else { 409 }, "step {number}");
        }
        reply.stall().await;
    })
    .await;
    let settings = settings(&worker, "attempts = 1\n");
    // In memory, so that a thousand commits are quick.
    let cluster = Cluster::start_as(1, move |config| helper(config, &settings)).await;
    let log = turn(&cluster.nodes[0]).await;
    assert_eq!(bodies(&log, "step.completed").len(), STEPS_MAX);
    let (reason, detail) = failure(&log);
    assert_eq!((reason.as_str(), worker.seen().len()), ("too_many_steps", 1), "{detail}");
}

#[tokio::test]
async fn a_step_with_another_body_is_refused_and_ends_the_turn() {
    let worker = Fake::start(|request, mut reply| async move {
        reply.begin("application/x-ndjson").await;
        assert_eq!(step(&callback(&request), "pay", &json!({ "input": 1, "output": 1 })).await.0, 200);
        let (status, problem) = step(&callback(&request), "pay", &json!({ "input": 2, "output": 1 })).await;
        assert_eq!((status, &problem["code"]), (409, &json!("journal_mismatch")));
        reply.stall().await;
    })
    .await;
    let node = node(&worker, "").await;
    let (reason, detail) = failure(&turn(&node).await);
    assert_eq!(
        (reason.as_str(), detail.as_str()),
        ("journal_mismatch", "step pay: is in the journal with another input or output")
    );
}

#[tokio::test]
async fn what_is_no_step_is_refused_by_name_and_the_turn_goes_on() {
    let worker = Fake::start(|request, reply| async move {
        let callback = callback(&request);
        let refused = async |key: &str, body: Value, status: u16, code: &str, problem: &str| {
            let (told, answer) = step(&callback, key, &body).await;
            let detail = answer["detail"].as_str().unwrap_or_default();
            assert!(told == status && answer["code"] == code && detail.contains(problem), "{told} {answer}");
        };
        refused("a", json!({}), 400, "invalid_request", "missing field `output`").await;
        refused("a", json!({ "output": 1, "x": 1 }), 400, "invalid_request", "x: unknown field `x`").await;
        refused("m1", json!({ "output": 1 }), 422, "invalid_request", "step: \"m1\" looks like a model's").await;
        refused("a#1", json!({ "output": 1 }), 422, "invalid_request", "step: \"a#1\" is not a name").await;
        let large = |bytes: usize| json!({ "output": "x".repeat(bytes) });
        refused("a", large(1024 * 1024), 413, "too_large", "at most 1048576 are allowed").await;
        refused("a", large(1200 * 1024), 413, "too_large", "the request body is over").await;
        let client = reqwest::Client::new();
        let forged = callback.replace("/v1/worker/", "/v1/worker/x");
        let answer = client.post(format!("{forged}/steps/a")).json(&json!({ "output": 1 })).send().await;
        assert_eq!(answer.expect("an answer").status(), StatusCode::FORBIDDEN);
        let answer = client.post(format!("{callback}/steps/a")).body("{}").send().await.expect("an answer");
        assert_eq!(answer.status(), StatusCode::UNSUPPORTED_MEDIA_TYPE);
        say(reply, &[json!({ "type": "done" })]).await;
    })
    .await;
    let node = node(&worker, "attempts = 1\n").await;
    let log = turn(&node).await;
    assert_eq!(bodies(&log, "turn.completed"), [&json!({})]);
}

/// Behind a load balancer a callback arrives anywhere, and after a takeover from anybody.
#[tokio::test]
async fn a_step_is_taken_by_any_node_and_only_from_the_attempt_that_runs() {
    let go_on = Arc::new(Notify::new());
    let waiting = Arc::clone(&go_on);
    let worker = Fake::start(move |request, mut reply| {
        let waiting = Arc::clone(&waiting);
        async move {
            if request.number == 0 {
                reply.begin("application/x-ndjson").await;
                return reply.stall().await;
            }
            reply.begin("application/x-ndjson").await;
            waiting.notified().await;
            let done = json!({ "type": "done", "state": { "journal": request.body["journal"] } });
            reply.more(&format!("{done}\n")).await;
            reply.end().await;
        }
    })
    .await;
    let settings = settings(&worker, "");
    let mut cluster = Cluster::start_as(3, move |config| {
        helper(config, &settings);
        (config.lease.ttl_ms, config.lease.beat_ms, config.lease.margin_ms) = (1_500, 500, 300);
    })
    .await;
    let alice = cluster.nodes[0].client("alice");
    alice.session_with("s", "helper").await;
    alice.sent("s", "1", "hello").await;
    let first = until("the first request", async || worker.seen().first().cloned()).await;
    let owner = cluster.owner_of("s").await;
    let path = callback(&first).split_once("/v1/").map(|(_, path)| format!("/v1/{path}")).expect("a path");
    for (index, node) in cluster.nodes.iter().enumerate() {
        let key = format!("step {index}");
        let (status, answer) = step(&node.url(&path), &key, &json!({ "output": index })).await;
        assert_eq!(status, 200, "{answer}");
    }
    cluster.kill(owner);
    let second = until("the next owner's request", async || worker.seen().get(1).cloned()).await;
    let epoch = |request: &Request| request.body["epoch"].as_u64().expect("an epoch");
    assert!(epoch(&second) > epoch(&first));
    assert_eq!(second.body["journal"].as_array().map(Vec::len), Some(3), "{:?}", second.body);
    let other = (owner + 1) % 3;
    let (status, answer) = step(&cluster.nodes[other].url(&path), "late", &json!({ "output": 1 })).await;
    assert_eq!((status, &answer["code"]), (409, &json!("stale_attempt")));
    go_on.notify_one();
    let log = ended(&cluster.nodes[other].client("alice"), "s", 1).await;
    assert_eq!(bodies(&log, "step.completed").len(), 3);
    assert_eq!(bodies(&log, "turn.completed").len(), 1);
}
