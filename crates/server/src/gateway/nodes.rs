//! The nodes, and what happened to ownership lately: for operators, who hold `admin` on everything.
//!
//! Deliberately absent: a read of the store. What is shown is this node's view, with its age.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use conch_core::ids::{Incarnation, NodeName, Region};
use conch_core::refusal::{Code, Refusal};
use conch_store::NodeRow;
use serde::{Deserialize, Serialize};

use super::errors::HttpError;
use super::input::Query;
use super::{Caller, Gateway};
use crate::auth::grants::{Permission, Principal};
use crate::events::as_text;

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
