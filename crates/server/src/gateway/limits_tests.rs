//! Requests at the gateway's limits.

use std::convert::Infallible;
use std::net::SocketAddr;

use axum::body::Body;
use axum::extract::ConnectInfo;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{StatusCode, header};
use http_body_util::BodyExt;
use serde_json::Value;
use tower::ServiceExt;

use super::*;
use crate::config::Config;
use crate::testing;

async fn post(gateway: &Gateway, path: &str, body: Body) -> (StatusCode, Value) {
    let peer: SocketAddr = "127.0.0.1:1".parse().expect("an address");
    let request = Request::builder()
        .method(Method::POST)
        .uri(path)
        .header(header::HOST, "localhost")
        .header(header::CONTENT_TYPE, "application/json")
        .extension(ConnectInfo(peer))
        .body(body)
        .expect("a request");
    let response = gateway.service().oneshot(request).await.expect("infallible");
    let status = response.status();
    let bytes = response.into_body().collect().await.expect("infallible").to_bytes();
    (status, serde_json::from_slice(&bytes).expect("JSON"))
}

fn metric(gateway: &Gateway, line: &str) -> bool {
    gateway.node().metrics.encode("").1.lines().any(|found| found == line)
}

#[tokio::test(start_paused = true)]
async fn a_request_that_trickles_in_is_answered_in_time() {
    let mut config = Config::default();
    config.limits.request_timeout_ms = 7_000;
    let gateway = testing::gateway(&config);
    let begun = tokio::time::Instant::now();
    let trickle = stream::iter([Ok::<_, Infallible>(Bytes::from_static(b"{\"name\":"))]).chain(stream::pending());
    let (status, problem) = post(&gateway, "/dev/login", Body::from_stream(trickle)).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(problem["code"], "conversation_unavailable");
    assert!(problem["detail"].as_str().expect("text").contains("7000 ms"), "{problem}");
    assert!(problem["retry"]["after_ms"].is_u64(), "{problem}");
    let took = begun.elapsed().as_millis();
    assert!((7_000..7_100).contains(&took), "{took}");
    assert!(metric(&gateway, "conch_limit_hits_total{queue=\"request_time\"} 1"));
    assert!(metric(&gateway, "conch_refusals_total{code=\"conversation_unavailable\"} 1"));
}

#[tokio::test]
async fn a_development_token_lives_as_long_as_the_setting_says() {
    for ttl_ms in [60_000, 12 * 3_600_000] {
        let mut config = Config::default();
        config.auth.token_ttl_ms = ttl_ms;
        let gateway = testing::gateway(&config);
        let before = gateway.node().seams.clock.wall().0;
        let (status, login) = post(&gateway, "/dev/login", Body::from(r#"{"name":"Alice"}"#)).await;
        let after = gateway.node().seams.clock.wall().0;
        assert_eq!(status, StatusCode::OK, "{login}");
        let expires: conch_core::time::Timestamp =
            serde_json::from_value(login["expires_at"].clone()).expect("a timestamp");
        let ttl = i64::try_from(ttl_ms).expect("small");
        assert!((before + ttl..=after + ttl).contains(&expires.0), "{login}");
    }
}

#[tokio::test]
async fn sockets_and_streams_over_the_limit_are_counted() {
    let mut config = Config::default();
    (config.limits.sockets, config.limits.streams) = (1, 1);
    let gateway = testing::gateway(&config);
    let held = (gateway.take_socket_slot(), gateway.take_stream_slot());
    assert!(held.0.is_some() && held.1.is_some());
    assert!(metric(&gateway, "conch_limit_hits_total{queue=\"sockets\"} 0"));
    assert!(gateway.take_socket_slot().is_none() && gateway.take_stream_slot().is_none());
    for queue in ["sockets", "streams"] {
        assert!(metric(&gateway, &format!("conch_limit_hits_total{{queue=\"{queue}\"}} 1")), "{queue}");
    }
    drop(held);
    assert!(gateway.take_socket_slot().is_some() && gateway.take_stream_slot().is_some());
}

/// Asks for a socket, or for a stream as an EventSource does, with a good token.
async fn come(gateway: &Gateway, path: &str, headers: &[(http::HeaderName, &str)]) -> Response {
    let (_, login) = post(gateway, "/dev/login", Body::from(r#"{"name":"Alice"}"#)).await;
    let token = login["token"].as_str().expect("a token");
    let peer: SocketAddr = "127.0.0.1:1".parse().expect("an address");
    let mut request = Request::builder().uri(path).header(header::HOST, "localhost").extension(ConnectInfo(peer));
    request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    for (name, value) in headers {
        request = request.header(name, *value);
    }
    let request = request.body(Body::empty()).expect("a request");
    gateway.service().oneshot(request).await.expect("infallible")
}

#[tokio::test]
async fn under_too_much_load_nobody_new_is_let_in() {
    let gateway = testing::gateway(&Config::default());
    let socket = [
        (header::CONNECTION, "Upgrade"),
        (header::UPGRADE, "websocket"),
        (header::SEC_WEBSOCKET_VERSION, "13"),
        (header::SEC_WEBSOCKET_KEY, "AAAAAAAAAAAAAAAAAAAAAA=="),
    ];
    let socket_path = "/socket/websocket?vsn=2.0.0";
    let event_source = [(header::ACCEPT, "text/event-stream")];
    testing::press(gateway.node(), Rung::CatchUpSlows);
    assert_eq!(come(&gateway, socket_path, &socket).await.status(), StatusCode::SWITCHING_PROTOCOLS);
    testing::press(gateway.node(), Rung::NoNewcomers);
    let refused = come(&gateway, socket_path, &socket).await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(refused.headers().contains_key(header::RETRY_AFTER));
    for path in ["/v1/stream", "/v1/conversations/c/stream"] {
        assert_eq!(come(&gateway, path, &[]).await.status(), StatusCode::SERVICE_UNAVAILABLE);
        let told = come(&gateway, path, &event_source).await;
        assert_eq!(told.status(), StatusCode::OK, "an EventSource comes back only after this");
        let text = told.into_body().collect().await.expect("it ends").to_bytes();
        let text = std::str::from_utf8(&text).expect("text");
        assert!(text.contains("retry:") && text.contains("event: reconnect"), "{text}");
    }
    assert!(metric(&gateway, "conch_shed_total{what=\"newcomers\"} 5"));
}
