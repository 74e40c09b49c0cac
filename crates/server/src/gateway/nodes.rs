//! The nodes, and asking one to drain: for operators, who hold `admin` on everything. What the nodes own and what happened on
//! them is in [`survey`].
//!
//! Deliberately absent: a read of the store for what is shown, which is this node's view, with its age, and what the others say
//! over the link. A drain is a mark on the node's row, so that it needs no link to that node and is not lost when this one goes
//! away.

pub(super) mod survey;

use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use conch_core::ids::{Incarnation, InvalidId, NodeName, Region};
use conch_core::refusal::{Code, Refusal};
use conch_store::NodeRow;
use http::StatusCode;
use serde::Serialize;

use super::errors::HttpError;
use super::input::Path;
use super::{Caller, Gateway};
use crate::auth::grants::{Permission, Principal};
use crate::events::as_text;
use crate::owner::store_refusal;
use crate::router::survey::Reach;

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
    /// Absent where the node did not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    owned: Option<u64>,
    /// How the answering node reaches it.
    link: Reach,
    /// Why it did not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    link_error: Option<&'a str>,
}

#[derive(Serialize)]
struct NodesJson<'a> {
    #[serde(serialize_with = "as_text")]
    answered_by: Incarnation,
    /// How old the view is; null: there is none yet.
    age_ms: Option<u64>,
    /// The view is older than a lease, so it says nothing of who is alive.
    stale: bool,
    /// How long a lease lasts from its renewal.
    lease_ms: u64,
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
    let told = gateway.router().survey_counts().await;
    let (view, now) = (node.nodes.view(), node.seams.now());
    let nodes = view.rows.iter().map(|row| {
        let NodeRow { registration, beat, draining, .. } = row;
        let told = told.iter().find(|told| told.incarnation == registration.incarnation);
        NodeJson {
            name: &registration.node,
            incarnation: registration.incarnation,
            region: &registration.region,
            addr: &registration.addr,
            beat: *beat,
            draining: *draining,
            expires_in_ms: view.left_ms(row, now),
            owned: told.and_then(|told| told.said.as_ref().ok().copied()),
            // One that came while the others were asked.
            link: told.map_or(Reach::NotAsked, |told| told.reach),
            link_error: told.and_then(|told| told.said.as_ref().err().map(String::as_str)),
        }
    });
    let age = view.age(now);
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let json = NodesJson {
        answered_by: node.me,
        age_ms: age.map(millis),
        stale: age.is_none_or(|age| age > node.timing.ttl),
        lease_ms: millis(node.timing.ttl),
        nodes: nodes.collect(),
    };
    Ok(axum::Json(json).into_response())
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

    /// A token for everything.
    pub(super) fn operator(gateway: &Gateway) -> String {
        token(gateway, Glob::any(), vec![Permission::Admin])
    }

    pub(super) async fn get(gateway: &Gateway, path: &str, token: &str) -> (StatusCode, Value) {
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
        let operator = operator(&gateway);
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
    async fn nodes_are_shown_with_the_age_of_the_view() {
        let gateway = testing::gateway(&Config::default());
        let operator = operator(&gateway);
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
        assert_eq!((&a["link"], &b["link"]), (&json!("here"), &json!("unreachable")), "this gateway has no link");
        assert!(b["link_error"].as_str().expect("why").contains("no link") && a["link_error"].is_null());
        assert_eq!((&b["incarnation"], &b["beat"]), (&json!("00000000-0000-0000-0000-000000000007"), &json!(3)));
        assert!(
            b["owned"].is_null() && b["draining"] == true && b["expires_in_ms"].as_i64().expect("a number") <= 9_000
        );

        node.nodes.set(vec![row(node.me, "a")], Monotonic(0));
        let (_, old) = get(&gateway, "/v1/nodes", &operator).await;
        assert_eq!(old["stale"], now.since(Monotonic(0)) > node.timing.ttl);
    }
}
