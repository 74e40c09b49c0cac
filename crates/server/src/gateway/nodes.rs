//! The nodes, what happened to ownership lately, and asking a node to drain: for operators, who hold `admin` on everything.
//!
//! Deliberately absent: a read of the store for what is shown, which is this node's view, with its age. A drain is a mark on
//! the node's row, so that it needs no link to that node and is not lost when this one goes away.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use conch_core::ids::{ConvKey, ConversationId, Incarnation, InvalidId, NodeName, Region};
use conch_core::refusal::{Code, Refusal};
use conch_store::NodeRow;
use http::StatusCode;
use serde::{Deserialize, Serialize};

use super::errors::HttpError;
use super::input::{Path, Query};
use super::operations::page_limit;
use super::{Caller, Gateway};
use crate::auth::grants::{Permission, Principal};
use crate::events::as_text;
use crate::owner::store_refusal;
use crate::router::Owned;

/// Most events of one answer.
const EVENTS_PAGE: usize = 256;

#[derive(Serialize)]
struct NodeJson<'a> {
    name: &'a NodeName,
    #[serde(serialize_with = "as_text")]
    incarnation: Incarnation,
    region: &'a Region,
    addr: &'a str,
    beat: u64,
    draining: bool,
    expires_in_ms: i64,
    /// Only of the node that answers: others are not asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    owned: Option<usize>,
}

#[derive(Serialize)]
struct NodesJson<'a> {
    #[serde(serialize_with = "as_text")]
    answered_by: Incarnation,
    /// How old the view is; null: there is none yet.
    age_ms: Option<u64>,
    /// The view is older than a lease, so it says nothing of who is alive.
    stale: bool,
    nodes: Vec<NodeJson<'a>>,
}

fn require_operator(principal: &Principal) -> Result<(), Refusal> {
    if principal.allows_everywhere(Permission::Admin) {
        return Ok(());
    }
    Err(Refusal::new(Code::Forbidden, "the token does not grant admin on every conversation (*)"))
}

/// `GET /v1/nodes`.
pub(super) async fn list(State(gateway): State<Gateway>, Caller(principal): Caller) -> Result<Response, HttpError> {
    require_operator(&principal)?;
    let node = gateway.node();
    let (view, now) = (node.nodes.view(), node.seams.now());
    let nodes = view.rows.iter().map(|row| {
        let NodeRow { registration, beat, draining, .. } = row;
        NodeJson {
            name: &registration.node,
            incarnation: registration.incarnation,
            region: &registration.region,
            addr: &registration.addr,
            beat: *beat,
            draining: *draining,
            expires_in_ms: view.left_ms(row, now),
            owned: (registration.incarnation == node.me).then(|| gateway.router().owned()),
        }
    });
    let age = view.age(now);
    let json = NodesJson {
        answered_by: node.me,
        age_ms: age.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX)),
        stale: age.is_none_or(|age| age > node.timing.ttl),
        nodes: nodes.collect(),
    };
    Ok(axum::Json(json).into_response())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EventsQuery {
    after: Option<u64>,
}

/// `GET /v1/nodes/events`.
pub(super) async fn events(
    State(gateway): State<Gateway>,
    Caller(principal): Caller,
    Query(query): Query<EventsQuery>,
) -> Result<Response, HttpError> {
    require_operator(&principal)?;
    let page = gateway.node().events.after(query.after.unwrap_or(0), EVENTS_PAGE);
    Ok(axum::Json(page).into_response())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OwnedQuery {
    after: Option<ConversationId>,
    limit: Option<usize>,
}

#[derive(Serialize)]
struct OwnedJson {
    #[serde(serialize_with = "as_text")]
    answered_by: Incarnation,
    owned: Vec<Owned>,
    more: bool,
}

/// `GET /v1/nodes/owned`: of the answering node alone, in an order that is none of people's.
pub(super) async fn owned(
    State(gateway): State<Gateway>,
    Caller(principal): Caller,
    Query(query): Query<OwnedQuery>,
) -> Result<Response, HttpError> {
    require_operator(&principal)?;
    let limits = gateway.limits();
    let limit = page_limit(query.limit, limits.history_default, limits.history_limit)?;
    let after = query.after.as_ref().map(ConvKey::of);
    let (owned, more) = gateway.router().owned_after(after, limit);
    Ok(axum::Json(OwnedJson { answered_by: gateway.node().me, owned, more }).into_response())
}

#[derive(Serialize)]
struct DrainJson {
    name: NodeName,
    /// Those that were told; more than one while a predecessor of the same name has not been declared dead.
    incarnations: Vec<String>,
}

/// `POST /v1/nodes/{name}/drain`.
pub(super) async fn drain(
    State(gateway): State<Gateway>,
    Caller(principal): Caller,
    Path(name): Path<String>,
) -> Result<Response, HttpError> {
    require_operator(&principal)?;
    let invalid = |error: InvalidId| Refusal::new(Code::InvalidRequest, error.to_string());
    let name: NodeName = name.parse().map_err(invalid)?;
    let store = &gateway.node().store;
    // Not the view: whoever has just started can be told, too.
    let rows = store.nodes().await.map_err(|error| store_refusal(&error))?;
    let named = rows.iter().filter(|row| row.registration.node == name && row.expires_in_ms > 0);
    let mut incarnations = Vec::new();
    for incarnation in named.map(|row| row.registration.incarnation) {
        if store.set_draining(incarnation).await.map_err(|error| store_refusal(&error))? {
            incarnations.push(incarnation.to_string());
        }
    }
    if incarnations.is_empty() {
        return Err(Refusal::new(Code::NotFound, format!("no live node is called {name}")).into());
    }
    Ok((StatusCode::ACCEPTED, axum::Json(DrainJson { name, incarnations })).into_response())
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::body::Body;
    use axum::extract::ConnectInfo;
    use conch_core::time::{Monotonic, Timestamp};
    use conch_store::Registration;
    use http::{Method, Request, header};
    use http_body_util::BodyExt;
    use serde_json::{Value, json};
    use tower::ServiceExt;

    use super::*;
    use crate::auth::glob::Glob;
    use crate::auth::grants::{Grant, RateLimit};
    use crate::auth::token::Mint;
    use crate::config::Config;
    use crate::events::Event;
    use crate::testing;

    fn token(gateway: &Gateway, glob: Glob, can: Vec<Permission>) -> String {
        let now = gateway.node().seams.clock.wall();
        let mint = Mint {
            sub: "alice".to_owned(),
            name: None,
            expires_at: Timestamp(now.0 + 60_000),
            grants: vec![Grant { conversations: glob, can }],
            rate_limit: RateLimit::Default,
        };
        gateway.shared.key.mint(&mint, now).expect("a good token")
    }

    async fn get(gateway: &Gateway, path: &str, token: &str) -> (StatusCode, Value) {
        call(gateway, Method::GET, path, token).await
    }

    async fn call(gateway: &Gateway, method: Method, path: &str, token: &str) -> (StatusCode, Value) {
        let peer: SocketAddr = "127.0.0.1:1".parse().expect("an address");
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "localhost")
            .header(header::AUTHORIZATION, format!("Bearer {token}"))
            .extension(ConnectInfo(peer))
            .body(Body::empty())
            .expect("a request");
        let response = gateway.service().oneshot(request).await.expect("infallible");
        let status = response.status();
        let bytes = response.into_body().collect().await.expect("infallible").to_bytes();
        (status, serde_json::from_slice(&bytes).expect("JSON"))
    }

    #[tokio::test]
    async fn only_operators_see_the_nodes() {
        let gateway = testing::gateway(&Config::default());
        let some = token(&gateway, "team:*".parse().expect("a pattern"), vec![Permission::Admin]);
        let other = token(&gateway, Glob::any(), vec![Permission::Read]);
        for path in ["/v1/nodes", "/v1/nodes/events", "/v1/nodes/owned"] {
            for token in [&some, &other] {
                let (status, problem) = get(&gateway, path, token).await;
                assert_eq!((status, &problem["code"]), (StatusCode::FORBIDDEN, &json!("forbidden")), "{path}");
            }
        }
    }

    #[tokio::test]
    async fn a_drain_marks_the_row_of_the_named_node_alone() {
        let gateway = testing::gateway(&Config::default());
        let operator = token(&gateway, Glob::any(), vec![Permission::Admin]);
        let reader = token(&gateway, Glob::any(), vec![Permission::Read]);
        let node = gateway.node();
        for (number, name) in [(1, "a"), (2, "b")] {
            let registration = Registration {
                incarnation: Incarnation(number),
                node: name.parse().expect("a name"),
                region: "local".parse().expect("a region"),
                addr: String::new(),
                lifeline: None,
            };
            node.store.register(&registration, node.timing.ttl).await.expect("registers");
        }
        let ask = |name: &str| format!("/v1/nodes/{name}/drain");
        let (status, _) = call(&gateway, Method::POST, &ask("b"), &reader).await;
        assert_eq!(status, StatusCode::FORBIDDEN);
        for (name, expected) in [("c", StatusCode::NOT_FOUND), ("a%20b", StatusCode::BAD_REQUEST)] {
            assert_eq!(call(&gateway, Method::POST, &ask(name), &operator).await.0, expected, "{name}");
        }
        let told = json!({"name": "b", "incarnations": ["00000000-0000-0000-0000-000000000002"]});
        for _ in 0..2 {
            let answer = call(&gateway, Method::POST, &ask("b"), &operator).await;
            assert_eq!(answer, (StatusCode::ACCEPTED, told.clone()));
        }
        let rows = node.store.nodes().await.expect("in memory");
        let mut draining: Vec<_> = rows.iter().map(|row| (row.registration.node.as_str(), row.draining)).collect();
        draining.sort_unstable();
        assert_eq!(draining, [("a", false), ("b", true)]);
    }

    #[tokio::test]
    async fn what_a_node_owns_is_shown_page_by_page() {
        let gateway = testing::gateway(&Config::default());
        let operator = token(&gateway, Glob::any(), vec![Permission::Admin]);
        let node = gateway.node();
        let _lease = crate::cluster::heartbeat::start(node, String::new()).await.expect("registers");
        let names = ["a", "b", "c"];
        for name in names {
            let conversation = testing::channel(node, name).await;
            gateway.router().append(&conversation, vec![testing::message("m")]).await.expect("written");
        }
        let mut seen = Vec::new();
        let mut path = "/v1/nodes/owned?limit=2".to_owned();
        loop {
            let (status, page) = get(&gateway, &path, &operator).await;
            assert_eq!((status, &page["answered_by"]), (StatusCode::OK, &json!(node.me.to_string())));
            let owned = page["owned"].as_array().expect("a list").clone();
            assert!(owned.iter().all(|one| one["epoch"].is_u64() && one["state"] == "active"), "{page}");
            seen.extend(owned.iter().map(|one| one["conversation"].as_str().expect("an id").to_owned()));
            if page["more"] == false {
                break;
            }
            assert_eq!(owned.len(), 2);
            path = format!("/v1/nodes/owned?limit=2&after={}", seen.last().expect("two"));
        }
        seen.sort_unstable();
        assert_eq!(seen, names);
    }

    #[tokio::test]
    async fn nodes_are_shown_with_the_age_of_the_view() {
        let gateway = testing::gateway(&Config::default());
        let operator = token(&gateway, Glob::any(), vec![Permission::Admin]);
        let (status, none) = get(&gateway, "/v1/nodes", &operator).await;
        let expected = (StatusCode::OK, Value::Null, json!(true), json!([]));
        assert_eq!((status, none["age_ms"].clone(), none["stale"].clone(), none["nodes"].clone()), expected);

        let node = gateway.node();
        let row = |incarnation, name: &str| NodeRow {
            registration: Registration {
                incarnation,
                node: name.parse().expect("a name"),
                region: "local".parse().expect("a region"),
                addr: "h:1".to_owned(),
                lifeline: None,
            },
            beat: 3,
            draining: name == "b",
            expires_in_ms: 9_000,
        };
        let now = node.seams.now();
        node.nodes.set(vec![row(node.me, "a"), row(Incarnation(7), "b")], now);
        let (_, shown) = get(&gateway, "/v1/nodes", &operator).await;
        assert_eq!((&shown["stale"], &shown["answered_by"]), (&json!(false), &json!(node.me.to_string())));
        let [a, b] = &shown["nodes"].as_array().expect("nodes")[..] else { panic!("{shown}") };
        assert_eq!((&a["name"], &a["owned"], &a["draining"]), (&json!("a"), &json!(0), &json!(false)));
        assert_eq!((&b["incarnation"], &b["beat"]), (&json!("00000000-0000-0000-0000-000000000007"), &json!(3)));
        assert!(
            b["owned"].is_null() && b["draining"] == true && b["expires_in_ms"].as_i64().expect("a number") <= 9_000
        );

        node.nodes.set(vec![row(node.me, "a")], Monotonic(0));
        let (_, old) = get(&gateway, "/v1/nodes", &operator).await;
        assert_eq!(old["stale"], now.since(Monotonic(0)) > node.timing.ttl);
    }

    #[tokio::test]
    async fn events_come_after_the_last_one_that_the_caller_has() {
        let gateway = testing::gateway(&Config::default());
        let operator = token(&gateway, Glob::any(), vec![Permission::Admin]);
        gateway.node().events.record(Event::LifelineLost);
        gateway.node().events.record(Event::LeaseLost);
        let (status, page) = get(&gateway, "/v1/nodes/events?after=1", &operator).await;
        assert_eq!((status, &page["latest"], &page["missed"]), (StatusCode::OK, &json!(2), &json!(false)));
        assert_eq!(page["events"].as_array().expect("events").len(), 1);
        assert_eq!(page["events"][0]["kind"], "lease_lost");
        let (status, problem) = get(&gateway, "/v1/nodes/events?since=1", &operator).await;
        assert!(status.is_client_error() && problem["detail"].as_str().expect("text").contains("since"), "{problem}");
    }
}
