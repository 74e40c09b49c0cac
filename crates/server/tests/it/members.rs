//! Members: who may change what, and the list.

use conch_server::auth::grants::Permission::{Admin, Read, Send};
use serde_json::{Value, json};

use crate::harness::Node;

const MEMBERS: &str = "/v1/conversations/c/members";

fn subs(page: &Value) -> Vec<&str> {
    page["members"].as_array().expect("a list").iter().filter_map(|member| member["sub"].as_str()).collect()
}

#[tokio::test]
async fn administrators_change_members_and_others_only_themselves() {
    let node = Node::start().await;
    let owner = node.client("owner");
    owner.channel_of("c", &["bob"]).await;
    let admin = node.client_with("admin", &[("c", &[Admin])]);
    assert_eq!(admin.put(&format!("{MEMBERS}/carol"), json!({})).await.status, 201);
    assert_eq!(admin.put(&format!("{MEMBERS}/carol"), json!({})).await.status, 204, "idempotent");
    assert_eq!(admin.delete(&format!("{MEMBERS}/carol")).await.status, 204);
    assert_eq!(admin.delete(&format!("{MEMBERS}/carol")).await.status, 204, "idempotent");
    let bob = node.client_with("bob", &[]);
    bob.put(&format!("{MEMBERS}/dave"), json!({})).await.problem(403, "forbidden");
    bob.delete(&format!("{MEMBERS}/owner")).await.problem(403, "forbidden");
    let sender = node.client_with("dave", &[("c", &[Send])]);
    sender.put(&format!("{MEMBERS}/dave"), json!({})).await.problem(403, "forbidden");
    let sender = node.client_with("dave", &[("c", &[Read, Send])]);
    assert_eq!(
        sender.put(&format!("{MEMBERS}/dave"), json!({})).await.status,
        201,
        "one's own, where one may read and send"
    );
    sender.put(&format!("{MEMBERS}/erin"), json!({})).await.problem(403, "forbidden");
    let reader = node.client_with("erin", &[("c", &[Read])]);
    reader.put(&format!("{MEMBERS}/erin"), json!({})).await.problem(403, "forbidden");
    assert_eq!(bob.delete(&format!("{MEMBERS}/bob")).await.status, 204, "leaving takes no grant");
    bob.get("/v1/conversations/c").await.problem(403, "forbidden");
    assert_eq!(subs(&owner.get(MEMBERS).await.ok(200)), ["dave", "owner"]);
    assert_eq!(bob.get("/v1/conversations").await.ok(200)["conversations"], json!([]));
    owner.put("/v1/conversations/none/members/bob", json!({})).await.problem(404, "not_found");
}

#[tokio::test]
async fn a_member_reads_sends_and_nothing_more() {
    let node = Node::start().await;
    node.client("owner").channel_of("c", &["bob"]).await;
    let bob = node.client_with("bob", &[]);
    bob.send("c", "k", "hi").await.ok(201);
    bob.get("/v1/conversations/c/messages").await.ok(200);
    bob.get("/v1/conversations/c/presence").await.ok(200);
    bob.put("/v1/conversations/c/cursor", json!({"seq": 1})).await.ok(200);
    bob.get(MEMBERS).await.ok(200);
    bob.call("PATCH", "/v1/conversations/c", json!({"title": "Bob's"})).await.problem(403, "forbidden");
    bob.put("/v1/conversations/d", json!({"kind": "channel"})).await.problem(403, "forbidden");
}

#[tokio::test]
async fn members_are_listed_in_order_and_in_pages() {
    let node = Node::start().await;
    let owner = node.client("owner");
    let mut all: Vec<String> = (0..25).map(|number| format!("m{number:02}")).collect();
    let named: Vec<&str> = all.iter().map(String::as_str).collect();
    owner.channel_of("c", &named).await;
    all.push("owner".to_owned());
    let (mut found, mut after): (Vec<String>, _) = (Vec::new(), String::new());
    loop {
        let page = owner.get(&format!("{MEMBERS}?limit=10{after}")).await.ok(200);
        found.extend(subs(&page).iter().map(|sub| (*sub).to_owned()));
        assert!(page["members"][0]["since"].as_str().is_some_and(|since| since.ends_with('Z')), "{page}");
        if page["more"] == false {
            break;
        }
        after = format!("&after={}", found.last().expect("a page is not empty"));
    }
    assert_eq!(found, all);
    owner.get(&format!("{MEMBERS}?limit=501")).await.problem(422, "invalid_request");
    owner.get(&format!("{MEMBERS}?colour=red")).await.problem(400, "invalid_request");
    owner.get("/v1/conversations/none/members").await.problem(404, "not_found");
}
