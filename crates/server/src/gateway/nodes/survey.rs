//! What all nodes own, and what happened to ownership on them lately, whichever node answers.
//!
//! Invariant: a cursor is passed on as it was given, to any node. A node that did not answer keeps its place in it, so nothing of it
//! is skipped when it answers again.
//!
//! Deliberately absent: an order between the events of different nodes, whose clocks differ; and whatever a node that is gone had
//! not told yet.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use conch_core::ids::{ConvKey, Incarnation, NodeName};
use conch_core::refusal::{Code, Refusal};
use conch_core::wire::link::{EventsPage, OwnedQuery};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::require_operator;
use crate::events::as_text;
use crate::gateway::errors::HttpError;
use crate::gateway::input::Query;
use crate::gateway::operations::page_limit;
use crate::gateway::{Caller, Gateway};
use crate::router::survey::{ASKED_MAX, OWNED_MAX, OwnedBy, Ownership, Reach, Told};

/// Most events of one answer, over all nodes.
const EVENTS_PAGE: u32 = 256;
/// Events that each of many nodes may give all the same.
const EVENTS_EACH: u32 = 16;
/// Most bytes of a part of an id that is looked for: as many as an id may have.
const CONTAINS_MAX_BYTES: usize = 128;
/// Hexadecimal digits of a key, and of an incarnation, in a cursor.
const HEX_DIGITS: usize = 32;

/// A node that did not say what it was asked.
#[derive(Serialize)]
struct SilentJson {
    name: NodeName,
    #[serde(serialize_with = "as_text")]
    incarnation: Incarnation,
    link: Reach,
    link_error: String,
}

impl SilentJson {
    fn of<T>(told: Told<T>) -> Self {
        let Told { node, incarnation, reach, said } = told;
        Self { name: node, incarnation, link: reach, link_error: said.err().unwrap_or_default() }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::gateway) struct EventsQuery {
    after: Option<String>,
}

#[derive(Serialize)]
struct NodeEventsJson {
    name: NodeName,
    #[serde(serialize_with = "as_text")]
    incarnation: Incarnation,
    events: Box<RawValue>,
    missed: bool,
}

#[derive(Serialize)]
struct EventsJson {
    #[serde(serialize_with = "as_text")]
    answered_by: Incarnation,
    nodes: Vec<NodeEventsJson>,
    unanswered: Vec<SilentJson>,
    after: String,
}

/// `GET /v1/nodes/events`.
pub(in crate::gateway) async fn events(
    State(gateway): State<Gateway>,
    Caller(principal): Caller,
    Query(query): Query<EventsQuery>,
) -> Result<Response, HttpError> {
    require_operator(&principal)?;
    let mut places = query.after.as_deref().map_or(Ok(BTreeMap::new()), places)?;
    let node = gateway.node();
    let nodes = u32::try_from(node.nodes.view().rows.len()).unwrap_or(u32::MAX).max(1);
    let each = (EVENTS_PAGE / nodes).max(EVENTS_EACH);
    let all = gateway.router().survey_events(|incarnation| places.get(&incarnation).copied(), each).await;
    // Who is gone needs no place any more.
    places.retain(|incarnation, _| all.iter().any(|told| told.incarnation == *incarnation));
    let (mut told, mut unanswered) = (Vec::new(), Vec::new());
    for one in all {
        let (name, incarnation) = (one.node.clone(), one.incarnation);
        match one.said.and_then(readable) {
            Ok((events, EventsPage { through, missed, .. })) => {
                places.insert(incarnation, through);
                told.push(NodeEventsJson { name, incarnation, events, missed });
            }
            Err(why) => {
                unanswered.push(SilentJson { name, incarnation, link: one.reach, link_error: why });
            }
        }
    }
    let json = EventsJson { answered_by: node.me, nodes: told, unanswered, after: cursor(&places) };
    Ok(axum::Json(json).into_response())
}

fn readable(page: EventsPage) -> Result<(Box<RawValue>, EventsPage), String> {
    let events =
        RawValue::from_string(page.events.clone()).map_err(|error| format!("its events are no JSON: {error}"))?;
    Ok((events, page))
}

/// Up to where each node's events were given.
fn cursor(places: &BTreeMap<Incarnation, u64>) -> String {
    let places = places.iter().take(ASKED_MAX + 1).map(|(incarnation, id)| format!("{:032x}.{id}", incarnation.0));
    places.collect::<Vec<_>>().join(",")
}

fn places(cursor: &str) -> Result<BTreeMap<Incarnation, u64>, Refusal> {
    let refused = || Refusal::new(Code::InvalidRequest, "after: is not what an answer of this call gave");
    if cursor.is_empty() {
        return Ok(BTreeMap::new());
    }
    let mut places = BTreeMap::new();
    for place in cursor.split(',') {
        let (incarnation, id) = place.split_once('.').ok_or_else(refused)?;
        let incarnation = Incarnation(u128::from_be_bytes(bytes(incarnation).ok_or_else(refused)?));
        places.insert(incarnation, id.parse().map_err(|_| refused())?);
        if places.len() > ASKED_MAX + 1 {
            return Err(refused());
        }
    }
    Ok(places)
}

/// Sixteen bytes in hexadecimal digits.
fn bytes(hex: &str) -> Option<[u8; 16]> {
    let is_hex = hex.len() == HEX_DIGITS && hex.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_hex.then(|| u128::from_str_radix(hex, 16).expect("these digits are a number of 128 bits").to_be_bytes())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::gateway) struct OwnedPageQuery {
    after: Option<String>,
    limit: Option<usize>,
    contains: Option<String>,
}

#[derive(Serialize)]
struct OwnedJson {
    #[serde(serialize_with = "as_text")]
    answered_by: Incarnation,
    owned: Vec<OwnedBy>,
    more: bool,
    after: Option<String>,
    unanswered: Vec<SilentJson>,
}

/// `GET /v1/nodes/owned`: in an order that is none of people's.
pub(in crate::gateway) async fn owned(
    State(gateway): State<Gateway>,
    Caller(principal): Caller,
    Query(query): Query<OwnedPageQuery>,
) -> Result<Response, HttpError> {
    require_operator(&principal)?;
    let limits = gateway.limits();
    let limit = page_limit(query.limit, limits.history_default, limits.history_limit)?;
    let contains = query.contains.unwrap_or_default();
    if contains.len() > CONTAINS_MAX_BYTES {
        let detail = format!("contains: is {} bytes long; at most {CONTAINS_MAX_BYTES} are allowed", contains.len());
        return Err(Refusal::new(Code::UnprocessableRequest, detail).into());
    }
    let after =
        match query.after.as_deref() {
            None => None,
            Some(after) => {
                let key = bytes(after).map(ConvKey);
                Some(key.ok_or_else(|| {
                    Refusal::new(Code::InvalidRequest, "after: is not what an answer of this call gave")
                })?)
            }
        };
    let limit = u32::try_from(limit).unwrap_or(OWNED_MAX).min(OWNED_MAX);
    let Ownership { owned, through, silent } =
        gateway.router().survey_owned(&OwnedQuery { after, contains, limit }).await;
    let json = OwnedJson {
        answered_by: gateway.node().me,
        owned,
        more: through.is_some(),
        after: through.map(|key| format!("{key:?}")),
        unanswered: silent.into_iter().map(SilentJson::of).collect(),
    };
    Ok(axum::Json(json).into_response())
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use serde_json::{Value, json};

    use super::super::tests::{get, operator};
    use super::*;
    use crate::config::Config;
    use crate::events::Event;
    use crate::testing;

    #[tokio::test]
    async fn what_is_owned_is_shown_page_by_page_with_its_node() {
        let gateway = testing::gateway(&Config::default());
        let operator = operator(&gateway);
        let node = gateway.node();
        let _lease = crate::cluster::heartbeat::start(node, String::new()).await.expect("registers");
        let names = ["a", "b", "c", "d", "e"];
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
            let is_whole =
                |one: &Value| one["epoch"].is_u64() && one["state"] == "active" && one["node"] == json!(node.name);
            assert!(owned.iter().all(is_whole), "{page}");
            seen.extend(owned.iter().map(|one| one["conversation"].as_str().expect("an id").to_owned()));
            assert_eq!(page["more"] == true, page["after"].is_string(), "{page}");
            let Some(after) = page["after"].as_str() else { break };
            assert_eq!(owned.len(), 2);
            path = format!("/v1/nodes/owned?limit=2&after={after}");
        }
        seen.sort_unstable();
        assert_eq!(seen, names);
        let (_, found) = get(&gateway, "/v1/nodes/owned?contains=C", &operator).await;
        assert_eq!(
            (found["owned"].as_array().map(Vec::len), &found["owned"][0]["conversation"]),
            (Some(1), &json!("c"))
        );
        let long = format!("/v1/nodes/owned?contains={}", "x".repeat(129));
        for (path, field) in [(long.as_str(), "contains"), ("/v1/nodes/owned?after=a", "after")] {
            let (status, problem) = get(&gateway, path, &operator).await;
            assert!(
                status.is_client_error() && problem["detail"].as_str().expect("text").starts_with(field),
                "{problem}"
            );
        }
    }

    #[tokio::test]
    async fn events_come_after_what_the_caller_has() {
        let gateway = testing::gateway(&Config::default());
        let operator = operator(&gateway);
        let events = &gateway.node().events;
        events.record(Event::LifelineLost);
        let kinds = |page: &Value| {
            let events = page["nodes"][0]["events"].as_array().expect("events");
            events.iter().map(|event| event["kind"].as_str().expect("a kind").to_owned()).collect::<Vec<_>>()
        };
        let (status, first) = get(&gateway, "/v1/nodes/events", &operator).await;
        assert_eq!((status, kinds(&first)), (StatusCode::OK, vec!["lifeline_lost".to_owned()]));
        let me = gateway.node().me.to_string();
        assert_eq!((&first["answered_by"], &first["nodes"][0]["incarnation"]), (&json!(me), &json!(me)));
        events.record(Event::LeaseLost);
        let path = format!("/v1/nodes/events?after={}", first["after"].as_str().expect("a cursor"));
        let (_, next) = get(&gateway, &path, &operator).await;
        assert_eq!((kinds(&next), &next["nodes"][0]["missed"]), (vec!["lease_lost".to_owned()], &json!(false)));
        for (path, named) in [("/v1/nodes/events?since=1", "since"), ("/v1/nodes/events?after=1", "after")] {
            let (status, problem) = get(&gateway, path, &operator).await;
            assert!(status.is_client_error() && problem["detail"].as_str().expect("text").contains(named), "{problem}");
        }
    }

    #[tokio::test]
    async fn a_node_that_is_silent_keeps_its_place_and_one_that_is_gone_does_not() {
        let gateway = testing::gateway(&Config::default());
        let operator = operator(&gateway);
        testing::see_a_peer(gateway.node());
        let (silent, gone) = (Incarnation(7), Incarnation(8));
        let after = cursor(&BTreeMap::from([(silent, 3), (gone, 4)]));
        let (_, page) = get(&gateway, &format!("/v1/nodes/events?after={after}"), &operator).await;
        let next = places(page["after"].as_str().expect("a cursor")).expect("its own");
        assert_eq!(next, BTreeMap::from([(silent, 3), (gateway.node().me, 0)]));
        assert_eq!(
            (&page["unanswered"][0]["name"], &page["unanswered"][0]["link"]),
            (&json!("peer"), &json!("unreachable"))
        );
    }

    #[test]
    fn a_cursor_comes_back_and_nothing_else_is_one() {
        let given = BTreeMap::from([(Incarnation(1), 0), (Incarnation(u128::MAX), u64::MAX)]);
        assert_eq!(places(&cursor(&given)), Ok(given));
        assert_eq!(places(""), Ok(BTreeMap::new()));
        let many = (0..100_u128).map(|number| format!("{number:032x}.1")).collect::<Vec<_>>().join(",");
        let hex = "0".repeat(32);
        for wrong in ["1", ",", "x.1", &format!("{hex}.-1"), &format!("{hex}."), &format!("+{}.1", &hex[1..]), &many] {
            assert_eq!(places(wrong).expect_err("must be refused").code, Code::InvalidRequest, "{wrong}");
        }
    }
}
