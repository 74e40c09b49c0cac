//! The OpenAPI document says what the router takes, and nothing else.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use axum::extract::ConnectInfo;
use conch_core::conversation::ConversationKind;
use conch_core::record::RecordKind;
use conch_core::refusal::Code;
use conch_core::turn::overview::State;
use http::{Method, Request, StatusCode, header};
use serde_json::Value;
use tower::ServiceExt;

use super::*;
use crate::config::Config;
use crate::testing;

fn document() -> Value {
    serde_json::from_str(include_str!("openapi.json")).expect("the document is JSON")
}

fn methods() -> [Method; 5] {
    [Method::DELETE, Method::GET, Method::PATCH, Method::POST, Method::PUT]
}

/// Every call as "METHOD PATH".
fn described(document: &Value) -> BTreeSet<String> {
    let paths = document["paths"].as_object().expect("paths");
    let calls = paths.iter().flat_map(|(path, item)| {
        let described = methods().into_iter().filter(|method| item.get(method.as_str().to_lowercase()).is_some());
        described.map(move |method| format!("{method} {path}"))
    });
    calls.collect()
}

fn routed() -> BTreeSet<String> {
    let calls = ROUTES.iter().flat_map(|(path, methods)| methods.iter().map(move |method| format!("{method} {path}")));
    calls.collect()
}

#[test]
fn every_call_is_described_and_nothing_else() {
    assert_eq!(described(&document()), routed());
}

/// What the gateway answers to a request without a token.
async fn answer(gateway: &Gateway, method: &Method, path: &str) -> StatusCode {
    let parameters = [
        ("{id}", "c"),
        ("{sub}", "s"),
        ("{name}", "n"),
        ("{turn}", "1"),
        ("{await}", "1-m1"),
        ("{token}", "t"),
        ("{key}", "k"),
    ];
    let path = parameters.iter().fold(path.to_owned(), |path, (parameter, value)| path.replace(parameter, value));
    let peer: SocketAddr = "127.0.0.1:1".parse().expect("an address");
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, "localhost")
        .extension(ConnectInfo(peer))
        .body(axum::body::Body::empty())
        .expect("a request");
    gateway.service().oneshot(request).await.expect("infallible").status()
}

#[tokio::test]
async fn the_router_takes_exactly_the_routes() {
    let gateway = testing::gateway(&Config::default());
    let routed = routed();
    for (path, _) in ROUTES {
        for method in methods() {
            let status = answer(&gateway, &method, path).await;
            let taken = !matches!(status, StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_FOUND);
            assert_eq!(taken, routed.contains(&format!("{method} {path}")), "{method} {path}: {status}");
        }
    }
}

fn each_value(value: &Value, see: &mut impl FnMut(&str, &Value)) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                see(name, member);
                each_value(member, see);
            }
        }
        Value::Array(elements) => elements.iter().for_each(|element| each_value(element, see)),
        _ => {}
    }
}

#[test]
fn every_reference_leads_somewhere_and_every_component_is_used() {
    let document = document();
    let mut used = BTreeSet::new();
    each_value(&document, &mut |name, value| {
        if name == "$ref" {
            let reference = value.as_str().expect("a reference is text");
            let pointer = reference.strip_prefix('#').expect("references stay within the document");
            assert!(document.pointer(pointer).is_some(), "{reference}");
            used.insert(reference.to_owned());
        }
    });
    for group in ["parameters", "responses", "schemas"] {
        for name in document["components"][group].as_object().expect("a group").keys() {
            assert!(used.contains(&format!("#/components/{group}/{name}")), "{group}/{name} is used nowhere");
        }
    }
}

#[test]
fn every_call_names_its_parameters_and_itself() {
    let document = document();
    let mut names = BTreeSet::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        let parameters = item["parameters"].as_array().map(Vec::as_slice).unwrap_or_default();
        let named: Vec<_> = parameters.iter().filter_map(|parameter| parameter["$ref"].as_str()).collect();
        let in_path: Vec<_> = path.split(['{', '}']).skip(1).step_by(2).collect();
        let expected: Vec<_> = in_path.iter().map(|name| format!("#/components/parameters/{name}")).collect();
        assert_eq!(named, expected, "{path}");
        for operation in methods().iter().filter_map(|method| item.get(method.as_str().to_lowercase())) {
            let name = operation["operationId"].as_str().expect("an operationId").to_owned();
            assert!(names.insert(name), "{operation}");
        }
    }
}

#[test]
fn enumerations_are_those_of_the_code() {
    let document = document();
    let listed = |schema: &str| -> BTreeSet<String> {
        let names = document["components"]["schemas"][schema]["enum"].as_array().expect("an enumeration");
        names.iter().map(|name| name.as_str().expect("text").to_owned()).collect()
    };
    let owned = |names: Vec<&str>| -> BTreeSet<String> { names.into_iter().map(str::to_owned).collect() };
    assert_eq!(listed("Code"), owned(Code::ALL.iter().map(|code| code.as_str()).collect()));
    assert_eq!(listed("RecordKind"), owned(RecordKind::ALL.iter().map(|kind| kind.as_str()).collect()));
    let states = [
        State::Queued,
        State::Running,
        State::Waiting,
        State::Completed,
        State::Failed,
        State::Cancelled,
        State::Superseded,
    ];
    let states = states.map(|state| serde_json::to_value(state).expect("a name"));
    assert_eq!(listed("TurnState"), owned(states.iter().filter_map(Value::as_str).collect()));
    for kind in listed("ConversationKind") {
        assert!(kind.parse::<ConversationKind>().is_ok(), "{kind}");
    }
}

#[test]
fn every_status_is_one_that_its_codes_have() {
    let document = document();
    let statuses: BTreeSet<u16> = Code::ALL.iter().map(|code| code.status()).collect();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for operation in methods().iter().filter_map(|method| item.get(method.as_str().to_lowercase())) {
            for status in operation["responses"].as_object().expect("responses").keys() {
                let status: u16 = status.parse().expect("a status");
                assert!(status < 300 || statuses.contains(&status), "{path}: {status}");
            }
        }
    }
}
