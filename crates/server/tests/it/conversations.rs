//! Conversations: create, show, change, list mine.

use serde_json::{Value, json};

use crate::harness::Node;

#[tokio::test]
async fn create_is_idempotent_and_says_what_differs() {
    let node = Node::start().await;
    let alice = node.client("alice");
    let path = "/v1/conversations/team:a.b_c-1";
    let made = alice.put(path, json!({"kind": "channel", "title": "Team", "settings": {"coalesce_ms": 20}})).await;
    let made = made.ok(201);
    assert_eq!(made["id"], "team:a.b_c-1");
    assert_eq!((made["kind"].as_str(), made["title"].as_str()), (Some("channel"), Some("Team")));
    assert_eq!((&made["agent"], &made["head_seq"], &made["owner"]), (&Value::Null, &json!(0), &Value::Null));
    assert_eq!(made["regions"], json!([]));
    assert_eq!(made["settings"], json!({"coalesce_ms": 20}));
    assert!(made["log"].as_str().expect("a log").rsplit_once('.').is_some());
    let again = alice.put(path, json!({"kind": "channel", "title": "Other", "settings": {"coalesce_ms": 1}})).await;
    assert_eq!(again.ok(200)["title"], "Team", "other fields are ignored on a re-PUT");
    let detail = alice.put(path, json!({"kind": "session", "agent": "demo"})).await.problem(409, "conflict");
    assert!(detail.starts_with("kind:"), "{detail}");
    let detail = alice.put(path, json!({"kind": "channel", "regions": ["eu"]})).await.problem(409, "conflict");
    assert!(detail.starts_with("regions:"), "{detail}");
    let members = alice.get(&format!("{path}/members")).await.ok(200);
    assert_eq!(members["members"][0]["sub"], "alice", "the creator becomes a member");
    alice.sent("team:a.b_c-1", "k", "hello").await;
    let shown = alice.get(path).await.ok(200);
    assert_eq!((&shown["head_seq"], &shown["owner"]["node"]), (&json!(1), &json!("conch-1")));
    assert!(shown["owner"]["epoch"].as_u64() >= Some(1), "{shown}");
}

#[tokio::test]
async fn concurrent_creates_make_one() {
    let node = Node::start().await;
    let alice = node.client("alice");
    let create = || alice.put("/v1/conversations/one", json!({"kind": "channel"}));
    let answers = futures_util::future::join_all((0..8).map(|_| create())).await;
    let mut statuses: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 200, 200, 201]);
}

#[tokio::test]
async fn bad_fields_are_named() {
    let node = Node::start().await;
    let alice = node.client("alice");
    let long = "x".repeat(257);
    let many: Vec<String> = (0..101).map(|number| format!("m{number}")).collect();
    let cases = [
        (json!({}), 400, "kind"),
        (json!({"kind": "room"}), 400, "room"),
        (json!({"kind": "channel", "colour": "red"}), 400, "colour"),
        (json!({"kind": "channel", "settings": {"colour": 1}}), 400, "colour"),
        (json!({"kind": "channel", "settings": {"coalesce_ms": 1001}}), 422, "settings.coalesce_ms"),
        (json!({"kind": "channel", "settings": {"coalesce_max_ms": 1001}}), 422, "settings.coalesce_max_ms"),
        (json!({"kind": "channel", "settings": {"second_message": "drop"}}), 400, "drop"),
        (json!({"kind": "channel", "title": long}), 422, "title"),
        (json!({"kind": "channel", "title": "a\u{0}b"}), 422, "title"),
        (json!({"kind": "channel", "title": 1}), 400, "string"),
        (json!({"kind": "channel", "agent": "demo"}), 422, "agent"),
        (json!({"kind": "session"}), 422, "agent"),
        (json!({"kind": "session", "agent": "nobody"}), 422, "nobody"),
        (json!({"kind": "session", "agent": "a b"}), 400, "agent"),
        (json!({"kind": "channel", "members": ["@end"]}), 422, "@end"),
        (json!({"kind": "channel", "members": [""]}), 400, "sub"),
        (json!({"kind": "channel", "members": many}), 422, "members"),
        (json!({"kind": "channel", "regions": vec!["r"; 17]}), 422, "regions"),
        (json!({"kind": "channel", "regions": ["a/b"]}), 400, "region"),
        (json!({"kind": "direct"}), 422, "members"),
        (json!({"kind": "direct", "members": ["a", "b", "c"]}), 422, "members"),
        (json!([]), 400, ""),
    ];
    for (body, status, named) in cases {
        let shown = body.to_string();
        let detail = alice.put("/v1/conversations/bad", body).await.problem(status, "invalid_request");
        assert!(detail.contains(named), "{named} in {detail} for {shown}");
    }
    alice.get("/v1/conversations/bad").await.problem(404, "not_found");
}

#[tokio::test]
async fn a_direct_conversation_is_of_two() {
    let node = Node::start().await;
    let alice = node.client("alice");
    alice.put("/v1/conversations/d1", json!({"kind": "direct", "members": ["bob"]})).await.ok(201);
    alice.put("/v1/conversations/d2", json!({"kind": "direct", "members": ["bob", "carol"]})).await.ok(201);
    for (id, expected) in [("d1", ["alice", "bob"]), ("d2", ["bob", "carol"])] {
        let members = alice.get(&format!("/v1/conversations/{id}/members")).await.ok(200);
        let subs: Vec<&str> =
            members["members"].as_array().expect("a list").iter().filter_map(|member| member["sub"].as_str()).collect();
        assert_eq!(subs, expected);
        for call in ["PUT", "DELETE"] {
            let sub = if call == "PUT" { "dave" } else { "bob" };
            let answer = alice.call(call, &format!("/v1/conversations/{id}/members/{sub}"), json!({})).await;
            answer.problem(409, "conflict");
        }
    }
}

#[tokio::test]
async fn patch_changes_what_it_names_and_nothing_else() {
    let node = Node::start().await;
    let alice = node.client("alice");
    let path = "/v1/conversations/c";
    alice.put(path, json!({"kind": "channel", "title": "One", "settings": {"coalesce_ms": 7}})).await.ok(201);
    let changed = alice.call("PATCH", path, json!({"title": "Two"})).await.ok(200);
    assert_eq!((&changed["title"], &changed["settings"]), (&json!("Two"), &json!({"coalesce_ms": 7})));
    let changed = alice.call("PATCH", path, json!({"settings": {"coalesce_max_ms": 9}})).await.ok(200);
    assert_eq!((&changed["title"], &changed["settings"]), (&json!("Two"), &json!({"coalesce_max_ms": 9})));
    let changed = alice.call("PATCH", path, json!({"title": null})).await.ok(200);
    assert_eq!(changed["title"], Value::Null);
    for (body, status, named) in [
        (json!({"kind": "direct"}), 400, "kind"),
        (json!({"settings": {"coalesce_ms": 1001}}), 422, "settings.coalesce_ms"),
        (json!({"title": "x".repeat(257)}), 422, "title"),
        (json!({"agent": "demo"}), 422, "agent"),
        (json!({"agent": null}), 422, "agent"),
        (json!({"settings": null}), 422, "settings"),
    ] {
        let detail = alice.call("PATCH", path, body).await.problem(status, "invalid_request");
        assert!(detail.contains(named), "{detail}");
    }
    alice.call("PATCH", "/v1/conversations/none", json!({"title": "x"})).await.problem(404, "not_found");
    alice.session("s").await;
    let detail = alice.call("PATCH", "/v1/conversations/s", json!({"agent": "nobody"})).await;
    assert!(detail.problem(422, "invalid_request").contains("nobody"));
    let answer = alice.call("PATCH", "/v1/conversations/s", json!({"agent": "demo"})).await.ok(200);
    assert_eq!(answer["agent"], "demo");
    // A session always has an agent: what cannot be taken away is not silently kept.
    let detail = alice.call("PATCH", "/v1/conversations/s", json!({"agent": null, "title": "x"})).await;
    assert!(detail.problem(422, "invalid_request").starts_with("agent"));
    assert_eq!(alice.get("/v1/conversations/s").await.ok(200)["title"], Value::Null, "nothing of it was done");
}

fn ids(page: &Value) -> Vec<&str> {
    page["conversations"].as_array().expect("a list").iter().filter_map(|summary| summary["id"].as_str()).collect()
}

#[tokio::test]
async fn mine_are_listed_newest_activity_first_and_in_pages() {
    let node = Node::start().await;
    let (alice, bob) = (node.client("alice"), node.client("bob"));
    for id in ["c1", "c2", "c3", "c4", "c5"] {
        alice.channel_of(id, &["bob"]).await;
    }
    bob.channel("only-bobs").await;
    for (number, id) in ["c4", "c2", "c5", "c1", "c3"].iter().enumerate() {
        // Activity is counted in milliseconds.
        let before = crate::harness::now();
        crate::harness::until("the next millisecond", async || (crate::harness::now() > before).then_some(())).await;
        bob.sent(id, &format!("k{number}"), "hello").await;
    }
    let expected = ["c3", "c1", "c5", "c2", "c4"];
    assert_eq!(ids(&alice.get("/v1/conversations").await.ok(200)), expected);
    let (mut found, mut after) = (Vec::new(), String::new());
    loop {
        let page = alice.get(&format!("/v1/conversations?limit=2{after}")).await.ok(200);
        found.extend(ids(&page).iter().map(|id| (*id).to_owned()));
        assert_eq!(page["more"] == true, page["after"].is_string(), "{page}");
        match page["after"].as_str() {
            Some(position) => after = format!("&after={position}"),
            None => break,
        }
    }
    assert_eq!(found, expected);
    for (query, named) in
        [("limit=0", "limit"), ("limit=501", "limit"), ("after=x", "after"), ("after=1:a%2Fb", "after")]
    {
        let detail = alice.get(&format!("/v1/conversations?{query}")).await.problem(422, "invalid_request");
        assert!(detail.starts_with(named), "{detail}");
    }
    let detail = alice.get("/v1/conversations?colour=red").await.problem(400, "invalid_request");
    assert!(detail.contains("colour"), "{detail}");
}

fn summary<'a>(page: &'a Value, id: &str) -> &'a Value {
    let all = page["conversations"].as_array().expect("a list");
    all.iter().find(|summary| summary["id"] == id).unwrap_or_else(|| panic!("{id} is not in {page}"))
}

#[tokio::test]
async fn unread_counts_messages_of_others_after_my_cursor() {
    let node = Node::start().await;
    let (alice, bob) = (node.client("alice"), node.client("bob"));
    alice.channel_of("c", &["bob"]).await;
    let first = bob.sent("c", "1", "one").await;
    alice.sent("c", "1", "mine").await;
    bob.sent("c", "2", "two").await;
    let event = json!({"client_msg_id": "e", "kind": "event", "body": {"x": 1}});
    bob.post("/v1/conversations/c/messages", event).await.ok(201);
    // A new epoch after a clean stop; numbers may skip.
    let node = node.restart().await;
    let (alice, bob) = (node.client("alice"), node.client("bob"));
    let last = bob.sent("c", "3", "three").await;
    let page = alice.get("/v1/conversations").await.ok(200);
    let mine = summary(&page, "c");
    assert_eq!((&mine["unread"], &mine["cursor"], &mine["head_seq"]), (&json!(3), &json!(0), &json!(last)));
    assert_eq!(mine["last_message"]["body"]["text"], "three");
    assert_eq!((&mine["unread_capped"], &mine["kind"]), (&json!(false), &json!("channel")));
    alice.put("/v1/conversations/c/cursor", json!({"seq": first})).await.ok(200);
    let page = alice.get("/v1/conversations").await.ok(200);
    assert_eq!((&summary(&page, "c")["unread"], &summary(&page, "c")["cursor"]), (&json!(2), &json!(first)));
    alice.put("/v1/conversations/c/cursor", json!({"seq": last})).await.ok(200);
    let page = alice.get("/v1/conversations").await.ok(200);
    assert_eq!(summary(&page, "c")["unread"], 0);
    let page = bob.get("/v1/conversations").await.ok(200);
    assert_eq!(summary(&page, "c")["unread"], 1, "alice's only");
}

#[tokio::test]
async fn unread_is_counted_to_a_hundred_and_system_records_do_not_count() {
    let node = Node::start_with(|config| config.agents.0.values_mut().for_each(|agent| agent.pace_ms = 20)).await;
    let (alice, bob) = (node.client("alice"), node.client("bob"));
    alice.channel_of("c", &["bob"]).await;
    let sends = (0..105).map(|number| bob.sent("c", &number.to_string(), "hello"));
    futures_util::future::join_all(sends).await;
    let page = alice.get("/v1/conversations").await.ok(200);
    assert_eq!((&summary(&page, "c")["unread"], &summary(&page, "c")["unread_capped"]), (&json!(100), &json!(true)));
    alice.session("s").await;
    alice.sent("s", "1", "2 + 2").await;
    crate::harness::until("the turn's end", async || {
        let page = alice.get("/v1/conversations/s/messages?kinds=turn.completed").await.ok(200);
        (page["messages"] != json!([])).then_some(())
    })
    .await;
    let page = alice.get("/v1/conversations").await.ok(200);
    assert_eq!(summary(&page, "s")["unread"], 1, "the agent's answer, and nothing of the journal");
    assert_eq!(summary(&page, "s")["last_message"]["sender"], "@agent:demo");
}
