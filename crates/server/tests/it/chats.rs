//! The endpoints of the Vercel AI SDK, as HTTP: streams of turns, resuming, other answers, messages, and bad input. The SDK's own
//! clients are tested beside the console.

use conch_server::auth::grants::Permission;
use reqwest::Response;
use serde_json::{Value, json};

use crate::harness::{Client, Node, within};

async fn node() -> Node {
    Node::start_with(|config| config.agents.0.values_mut().for_each(|agent| agent.pace_ms = 20)).await
}

pub(crate) fn said(id: &str, text: &str) -> Value {
    json!({"id": id, "role": "user", "parts": [{"type": "text", "text": text}]})
}

pub(crate) fn post(chat: &str, message: Value) -> Value {
    json!({"id": chat, "messages": [{"older": "ones do not count"}, message], "trigger": "submit-message"})
}

/// A chat's stream, read part by part.
pub(crate) struct Parts {
    response: Response,
    text: String,
    /// The body ended in order.
    pub(crate) ended: bool,
}

impl Parts {
    pub(crate) async fn posted(client: &Client, body: Value) -> Self {
        let sent = client.request("POST", "/ai/chat").json(&body).send();
        Self::of(within("a stream", sent).await.expect("the node answers"))
    }

    pub(crate) async fn resumed(client: &Client, chat: &str) -> Self {
        let sent = client.request("GET", &format!("/ai/chat/{chat}/stream")).send();
        Self::of(within("a stream", sent).await.expect("the node answers"))
    }

    fn of(response: Response) -> Self {
        assert_eq!(response.status(), 200, "{response:?}");
        let header = |name: &str| response.headers().get(name).expect("a header").to_str().expect("printable");
        assert_eq!(header("content-type"), "text/event-stream");
        assert_eq!(header("x-vercel-ai-ui-message-stream"), "v1");
        assert_eq!(header("cache-control"), "no-cache");
        Self { response, text: String::new(), ended: false }
    }

    /// The next part; `None` where the body ends, in order or not.
    async fn next(&mut self) -> Option<Value> {
        loop {
            while let Some(end) = self.text.find("\n\n") {
                let frame: String = self.text.drain(..end + 2).collect();
                match frame.trim_end().strip_prefix("data: ") {
                    Some("[DONE]") => {}
                    Some(part) => return Some(serde_json::from_str(part).expect("a part is JSON")),
                    None => assert!(frame.starts_with(':'), "a comment: {frame:?}"),
                }
            }
            match within("a part", self.response.chunk()).await {
                Ok(Some(chunk)) => self.text.push_str(std::str::from_utf8(&chunk).expect("UTF-8")),
                Ok(None) => {
                    self.ended = true;
                    return None;
                }
                Err(_) => return None,
            }
        }
    }

    pub(crate) async fn until(&mut self, kind: &str) -> Vec<Value> {
        let mut parts = Vec::new();
        loop {
            let part = self.next().await.unwrap_or_else(|| panic!("the stream ended before {kind}: {parts:?}"));
            let is_it = part["type"] == kind;
            parts.push(part);
            if is_it {
                return parts;
            }
        }
    }

    pub(crate) async fn rest(&mut self) -> Vec<Value> {
        let mut parts = Vec::new();
        while let Some(part) = self.next().await {
            parts.push(part);
        }
        parts
    }
}

/// The text of each `text-start`.
pub(crate) fn texts(parts: &[Value]) -> Vec<String> {
    let mut texts: Vec<String> = Vec::new();
    for part in parts {
        match part["type"].as_str() {
            Some("text-start") => texts.push(String::new()),
            Some("text-delta") => texts.last_mut().expect("begun").push_str(part["delta"].as_str().expect("text")),
            _ => {}
        }
    }
    texts
}

/// The types, several deltas in a row as one.
pub(crate) fn types(parts: &[Value]) -> Vec<&str> {
    let mut types: Vec<&str> = parts.iter().map(|part| part["type"].as_str().expect("a type")).collect();
    types.dedup();
    types
}

pub(crate) async fn messages(client: &Client, chat: &str) -> Vec<Value> {
    let answer = client.get(&format!("/ai/chat/{chat}/messages")).await.ok(200);
    answer.as_array().expect("a list").clone()
}

#[tokio::test]
async fn a_post_makes_the_session_and_streams_its_turn_to_the_stored_answer() {
    let node = node().await;
    let alice = node.client("alice");
    assert_eq!(messages(&alice, "s").await, Vec::<Value>::new(), "a page may ask before there is anything");
    assert_eq!(alice.get("/ai/chat/s/stream").await.status, 204);
    let mut stream = Parts::posted(&alice, post("s", said("u1", "what is 2 + 2"))).await;
    let parts = stream.rest().await;
    assert!(stream.ended, "in order");
    let expected = [
        "start",
        "start-step",
        "text-start",
        "text-delta",
        "text-end",
        "tool-input-available",
        "tool-output-available",
        "finish-step",
        "start-step",
        "text-start",
        "text-delta",
        "text-end",
        "finish-step",
        "finish",
    ];
    assert_eq!(types(&parts), expected);
    let log = alice.log("s").await;
    assert_eq!((&log[0]["client_msg_id"], &log[0]["body"]), (&json!("u1"), &json!({"text": "what is 2 + 2"})));
    let outputs: Vec<&str> = log.iter().filter_map(|record| record["body"]["output"].as_str()).collect();
    assert_eq!(texts(&parts), outputs);
    let turn = log[0]["seq"].as_u64().expect("a seq");
    assert_eq!(parts[0]["messageId"], format!("turn-{turn}"));
    let kept = messages(&alice, "s").await;
    assert_eq!((kept.len(), &kept[0]["id"], &kept[1]["id"]), (2, &json!("u1"), &parts[0]["messageId"]));
    assert_eq!(kept[1]["metadata"], json!({"turn": turn, "state": "completed"}));
    assert_eq!(kept[1]["parts"][4]["text"], *outputs.last().expect("an answer"), "{kept:?}");
    assert_eq!(alice.get("/ai/chat/s/stream").await.status, 204, "nothing runs");
    // The same post again is the same turn, told again.
    let again = Parts::posted(&alice, post("s", said("u1", "what is 2 + 2"))).await.rest().await;
    assert_eq!((types(&again), texts(&again), &again[0]), (types(&parts), texts(&parts), &parts[0]));
    assert_eq!(alice.log("s").await.len(), log.len(), "nothing was written");
    let detail = Client::answer(alice.request("POST", "/ai/chat").json(&post("s", said("u1", "another text")))).await;
    detail.problem(409, "idempotency_key_reused");
}

#[tokio::test]
async fn who_comes_back_in_the_middle_gets_all_of_it_under_the_same_name() {
    let node = node().await;
    let alice = node.client("alice");
    let mut first = Parts::posted(&alice, post("s", said("u1", "1 + 1"))).await;
    let begun = first.until("text-delta").await;
    let kept = messages(&alice, "s").await;
    assert_eq!(kept.len(), 2, "{kept:?}");
    assert_eq!((&kept[1]["id"], &kept[1]["metadata"]["state"]), (&begun[0]["messageId"], &json!("running")));
    // The same post, sent again by a client that did not get its answer; and a page that was loaded again.
    let mut again = Parts::posted(&alice, post("s", said("u1", "1 + 1"))).await;
    let mut late = Parts::resumed(&alice, "s").await;
    drop(first);
    let (again, late) = tokio::join!(again.rest(), late.rest());
    assert_eq!(late[0], begun[0]);
    assert_eq!((types(&late), texts(&late)), (types(&again), texts(&again)));
    let log = alice.log("s").await;
    assert_eq!(log.iter().filter(|record| record["kind"] == "turn.completed").count(), 1);
    let outputs: Vec<&str> = log.iter().filter_map(|record| record["body"]["output"].as_str()).collect();
    assert_eq!(texts(&late), outputs);
}

#[tokio::test]
async fn another_answer_takes_the_place_of_the_last_one() {
    let node = node().await;
    let alice = node.client("alice");
    Parts::posted(&alice, post("s", said("u1", "1 + 1"))).await.rest().await;
    let again = json!({"id": "s", "messages": [said("u1", "1 + 1")], "trigger": "regenerate-message"});
    let mut second = Parts::posted(&alice, again.clone()).await;
    let begun = second.until("text-delta").await;
    let same = Parts::posted(&alice, again.clone()).await.until("start").await;
    assert_eq!(same[0], begun[0], "the same post again, while it runs");
    second.rest().await;
    let kept = messages(&alice, "s").await;
    assert_eq!((kept.len(), &kept[0]["id"], &kept[1]["id"]), (2, &json!("u1"), &begun[0]["messageId"]), "{kept:?}");
    // By name: the one that answers the first one's place is found, too.
    let first = alice.log("s").await[0]["seq"].clone();
    let named =
        json!({"id": "s", "messages": [], "trigger": "regenerate-message", "messageId": format!("turn-{first}")});
    let found = Parts::posted(&alice, named).await.until("start").await;
    assert_eq!(found[0]["messageId"], begun[0]["messageId"]);
    // What never arrived is said instead.
    let lost = json!({"id": "s", "messages": [said("u2", "2 + 2")], "trigger": "regenerate-message"});
    Parts::posted(&alice, lost).await.rest().await;
    let kept = messages(&alice, "s").await;
    assert_eq!((kept.len(), &kept[2]["id"]), (4, &json!("u2")));
    assert!(kept[3]["parts"].to_string().contains("2 + 2 is 4"), "{kept:?}");
}

#[tokio::test]
async fn an_approval_is_a_part_and_a_stream_goes_on_when_it_is_given() {
    let node = node().await;
    let alice = node.client("alice");
    let mut stream = Parts::posted(&alice, post("s", said("u1", "with my approval: 3 + 4"))).await;
    let parts = stream.until("data-await").await;
    let asked = parts.last().expect("it was waited for").clone();
    let data = &asked["data"];
    assert_eq!(
        (&asked["id"], &data["state"], &data["prompt"]),
        (&data["await"], &json!("open"), &json!("May I use my tool?"))
    );
    assert_eq!(data["schema"]["required"], json!(["approve"]));
    let kept = messages(&alice, "s").await;
    assert!(
        kept[1]["parts"].as_array().is_some_and(|parts| parts.iter().any(|part| part["data"] == *data)),
        "{kept:?}"
    );
    let resumed = Parts::resumed(&alice, "s").await.until("data-await").await;
    assert_eq!(resumed.last(), Some(&asked), "who waits is open, whoever comes back");
}

#[tokio::test]
async fn a_question_whose_turn_is_cancelled_is_closed_for_who_watches_and_for_who_comes_back() {
    let node = node().await;
    let alice = node.client("alice");
    let mut stream = Parts::posted(&alice, post("s", said("u1", "with my approval: 3 + 4"))).await;
    let asked = stream.until("data-await").await.pop().expect("it was waited for");
    let turn = alice.log("s").await[0]["seq"].clone();
    alice.post(&format!("/v1/conversations/s/turns/{turn}/cancel"), json!({"mode": "keep"})).await.ok(200);
    let rest = stream.rest().await;
    assert!(stream.ended && types(&rest).ends_with(&["data-await", "message-metadata", "abort"]), "{rest:?}");
    let closed = &rest[rest.len() - 3];
    assert_eq!((&closed["id"], &closed["data"]["state"]), (&asked["id"], &json!("closed")));
    let kept = messages(&alice, "s").await;
    let parts = kept[1]["parts"].as_array().expect("parts");
    let of_await: Vec<&Value> = parts.iter().filter(|part| part["type"] == "data-await").collect();
    assert_eq!(of_await.len(), 1, "{kept:?}");
    assert_eq!(of_await[0]["data"], closed["data"], "a page that is loaded again shows no buttons either");
}

#[tokio::test]
async fn bad_input_is_refused_by_name() {
    let node = node().await;
    let alice = node.client("alice");
    alice.channel("general").await;
    alice.session("taken").await;
    let last = |message: Value| json!({"id": "s", "messages": [message]});
    let message = |parts: Value| last(json!({"id": "u1", "role": "user", "parts": parts}));
    for (body, status, expected) in [
        (json!({"messages": []}), 400, "missing field `id`"),
        (json!({"id": 7}), 400, "id: invalid type"),
        (json!({"id": "a b", "messages": [said("u1", "x")]}), 422, "id: may hold only"),
        (json!({"id": "s"}), 422, "messages: there is none"),
        (json!({"id": "s", "messages": []}), 422, "messages: there is none"),
        (json!({"id": "s", "messages": {"0": 1}}), 400, "messages: invalid type: map"),
        (json!({"id": "s", "trigger": "resume-stream"}), 400, "trigger: unknown variant `resume-stream`"),
        (last(json!(7)), 400, "messages[0]: invalid type"),
        (last(json!({"role": "user", "parts": []})), 400, "messages[0]: missing field `id`"),
        (last(json!({"id": "u", "role": "assistant", "parts": []})), 422, "messages[0].role: the last message must be"),
        (last(json!({"id": "ü", "role": "user", "parts": []})), 422, "messages[0].id: "),
        (message(json!([])), 422, "messages[0].parts: there is no text"),
        (message(json!([{"type": "file", "url": "data:,x"}])), 422, "messages[0].parts[0].type: only text is taken"),
        (message(json!([{"type": "text", "text": 7}])), 400, "messages[0]: parts[0].text: invalid type"),
        (json!({"id": "s", "messages": [said("u1", "x")], "agent": "nobody"}), 422, "agent: there is no agent nobody"),
        (json!({"id": "s", "messages": [said("u1", "x")], "agent": "a b"}), 400, "agent: "),
        (json!({"id": "general", "messages": [said("u1", "x")]}), 422, "id: the conversation is a channel"),
    ] {
        let answer = alice.post("/ai/chat", body.clone()).await;
        let code = "invalid_request";
        let detail = answer.problem(status, code);
        assert!(detail.starts_with(expected), "{body}: {detail}");
    }
    let other = json!({"id": "taken", "messages": [said("u1", "x")], "agent": "other"});
    assert_eq!(alice.post("/ai/chat", other).await.problem(409, "conflict"), "agent: the conversation's is demo");
    let both = json!({"id": "s", "messages": [said("u1", "x")], "agent": "demo"});
    let detail = alice.post("/ai/chat?agent=other", both).await.problem(422, "invalid_request");
    assert_eq!(detail, "agent: the query and the body differ");
    let huge = json!({"id": "s", "messages": [said("u1", &"x".repeat(70_000))]});
    alice.post("/ai/chat", huge).await.problem(413, "too_large");
    let beyond = json!({"id": "s", "messages": [said("u0", &"x".repeat(2_000_000)), said("u1", "x")]});
    alice.post("/ai/chat", beyond).await.problem(413, "too_large");
    alice.get("/ai/chat/s/messages?limit=501").await.problem(422, "invalid_request");
    alice.get("/ai/chat/general/messages").await.problem(422, "invalid_request");
    alice.get("/ai/chat/general/stream").await.problem(422, "invalid_request");
    alice.get("/v1/conversations/s").await.problem(404, "not_found");
    let stranger = json!({"id": "taken", "trigger": "regenerate-message", "messageId": "turn-9", "messages": []});
    alice.post("/ai/chat", stranger).await.problem(404, "not_found");
}

#[tokio::test]
async fn a_chat_needs_what_its_session_needs() {
    let node = node().await;
    let alice = node.client("alice");
    Parts::posted(&alice, post("s", said("u1", "1 + 1"))).await.rest().await;
    let nobody = node.client_with("bob", &[]);
    for (method, path) in [("POST", "/ai/chat"), ("GET", "/ai/chat/s/messages"), ("GET", "/ai/chat/s/stream")] {
        let request = nobody.request(method, path);
        let request = if method == "POST" { request.json(&post("s", said("b1", "x"))) } else { request };
        Client::answer(request).await.problem(403, "forbidden");
    }
    nobody.post("/ai/chat", post("new", said("b1", "x"))).await.problem(403, "forbidden");
    nobody.get("/ai/chat/new/messages").await.problem(403, "forbidden");
    let again = json!({"id": "s", "messages": [said("u1", "1 + 1")], "trigger": "regenerate-message"});
    let sender = node.client_with("alice", &[("*", &[Permission::Read, Permission::Send])]);
    sender.post("/ai/chat", again).await.problem(403, "forbidden");
    let creator = node.client_with("carol", &[("*", &[Permission::Create])]);
    assert_eq!(messages(&creator, "hers").await, Vec::<Value>::new());
    let parts = Parts::posted(&creator, post("hers", said("c1", "1 + 1"))).await.rest().await;
    assert_eq!(parts.last().expect("an end")["type"], "finish", "who creates is a member");
}

#[tokio::test]
async fn a_post_over_the_callers_rate_creates_nothing() {
    let node = Node::start_with(|config| (config.rate.per_second, config.rate.burst) = (1, 1)).await;
    let alice = node.client_with("alice", &[("*", &Permission::ALL)]);
    let ids: Vec<String> = (0..20).map(|number| format!("s{number}")).collect();
    let posts = ids.iter().map(|id| alice.request("POST", "/ai/chat").json(&post(id, said("u1", "1 + 1"))).send());
    let posts = within("answers", futures_util::future::join_all(posts)).await;
    let mut refused = 0;
    for (id, answer) in ids.iter().zip(posts) {
        let status = answer.expect("the node answers").status().as_u16();
        let created = alice.get(&format!("/v1/conversations/{id}")).await.status;
        assert_eq!((status, created), if status == 429 { (429, 404) } else { (200, 200) });
        refused += usize::from(status == 429);
    }
    assert!(refused > 0, "twenty at once are more than one a second");
}

#[tokio::test]
async fn a_stream_whose_node_goes_away_breaks_without_an_end() {
    let mut node = Node::start_with(|config| config.agents.0.values_mut().for_each(|agent| agent.pace_ms = 200)).await;
    let alice = node.client("alice");
    let mut stream = Parts::posted(&alice, post("s", said("u1", "1 + 1"))).await;
    stream.until("text-delta").await;
    node.ask_to_stop();
    let parts = stream.rest().await;
    assert!(!stream.ended, "an end in order is taken for a whole answer: {parts:?}");
    assert!(parts.iter().all(|part| part["type"] == "text-delta"), "{parts:?}");
    node.ended().await;
}
