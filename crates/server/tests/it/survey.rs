//! What operators are shown of all nodes, through any of them.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::harness::{Client, Cluster, until};

/// Owner by conversation, over all pages; `None`: a node did not answer within its second.
async fn owners(operator: &Client, limit: usize) -> Option<BTreeMap<String, String>> {
    let (mut owners, mut after) = (BTreeMap::new(), String::new());
    loop {
        let page = operator.get(&format!("/v1/nodes/owned?limit={limit}{after}")).await.ok(200);
        if page["unanswered"] != json!([]) {
            return None;
        }
        for one in page["owned"].as_array().expect("a list") {
            let text = |key: &str| one[key].as_str().expect("a text").to_owned();
            assert!(one["epoch"].as_u64() >= Some(1) && text("state") == "active", "{one}");
            assert_eq!(owners.insert(text("conversation"), text("node")), None, "once");
        }
        match page["after"].as_str() {
            Some(key) => after = format!("&after={key}"),
            None => return Some(owners),
        }
    }
}

/// The kinds of each node's events, in order, and what to ask after; once all nodes answer.
async fn events(operator: &Client, after: &str) -> (BTreeMap<String, Vec<String>>, Value) {
    let page = until("all nodes to answer", async || {
        let page = operator.get(&format!("/v1/nodes/events?after={after}")).await.ok(200);
        (page["unanswered"] == json!([])).then_some(page)
    })
    .await;
    let nodes = page["nodes"].as_array().expect("nodes").iter().map(|node| {
        let events = node["events"].as_array().expect("events").iter();
        let kinds = events.map(|event| event["kind"].as_str().expect("a kind").to_owned()).collect();
        (node["name"].as_str().expect("a name").to_owned(), kinds)
    });
    (nodes.collect(), page)
}

#[tokio::test]
async fn operators_see_what_all_nodes_own_and_do_through_any_and_who_does_not_say() {
    let mut cluster = Cluster::start(3).await;
    let mut expected = BTreeMap::new();
    for (index, node) in cluster.nodes.iter().enumerate() {
        let alice = node.client("alice");
        for number in 0..=index {
            let id = format!("c-{index}-{number}");
            alice.channel(&id).await;
            alice.sent(&id, "1", "hi").await;
            expected.insert(id, format!("node-{index}"));
        }
    }
    for node in &cluster.nodes {
        let operator = node.client("operator");
        for limit in [2, 50] {
            assert_eq!(until("all nodes to answer", async || owners(&operator, limit).await).await, expected);
        }
        let found = until("node-2 to answer", async || {
            let found = operator.get("/v1/nodes/owned?contains=C-2-").await.ok(200);
            (found["unanswered"] == json!([])).then_some(found)
        });
        assert_eq!(found.await["owned"].as_array().map(Vec::len), Some(3));
        let (told, _) = events(&operator, "").await;
        for (index, node) in ["node-0", "node-1", "node-2"].into_iter().enumerate() {
            let claims = told[node].iter().filter(|kind| *kind == "claim_won").count();
            assert_eq!(claims, index + 1, "{told:?}");
        }
        let seen = until("all nodes to answer", async || {
            let seen = operator.get("/v1/nodes").await.ok(200);
            seen["nodes"].as_array()?.iter().all(|row| row["link_error"].is_null()).then_some(seen)
        })
        .await;
        for row in seen["nodes"].as_array().expect("nodes") {
            let link = if row["incarnation"] == seen["answered_by"] { "here" } else { "up" };
            let index =
                ["node-0", "node-1", "node-2"].iter().position(|name| row["name"] == *name).expect("one of them");
            assert_eq!((&row["owned"], &row["link"]), (&json!(index + 1), &json!(link)));
        }
    }

    // A cursor of one node is good at another, and skips what was told.
    let (_, page) = events(&cluster.nodes[0].client("operator"), "").await;
    let after = page["after"].as_str().expect("a cursor");
    cluster.nodes[2].client("alice").channel("later").await;
    cluster.nodes[2].client("alice").sent("later", "1", "hi").await;
    let (told, _) = events(&cluster.nodes[1].client("operator"), after).await;
    let expected = [("node-0", vec![]), ("node-1", vec![]), ("node-2", vec!["claim_won".to_owned()])];
    assert_eq!(told, expected.map(|(node, kinds)| (node.to_owned(), kinds)).into());

    cluster.kill(2);
    let operator = cluster.nodes[0].client("operator");
    let silent = until("the dead node to be named", async || {
        let page = operator.get("/v1/nodes/owned").await.ok(200);
        page["unanswered"].as_array().expect("a list").first().cloned()
    })
    .await;
    assert_eq!(silent["name"], "node-2");
    assert!(silent["link"] != "up" && silent["link_error"].is_string(), "{silent}");
    let seen = operator.get("/v1/nodes").await.ok(200);
    let dead = seen["nodes"].as_array().expect("nodes").iter().find(|row| row["name"] == "node-2").expect("its row");
    assert!(dead["owned"].is_null() && dead["link_error"].is_string(), "{dead}");
}
