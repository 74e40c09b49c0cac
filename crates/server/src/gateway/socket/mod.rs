//! Phoenix Channels V2 over WebSocket: the upgrade, and what a socket is made of.
//!
//! After the upgrade the TCP stream is ours alone: frames that are shared by all sockets go to the kernel as they are
//! ([`outbox`]), and what comes in is read by the core's incremental reader without a buffer between messages.
//!
//! Deliberately absent: compression (it would be per socket) and TLS (it comes with its own write path).

mod channel;
mod connection;
mod outbox;
mod pushes;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use conch_core::refusal::{Code, Refusal, Retry};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use hyper::upgrade::Parts;
use hyper_util::rt::TokioIo;

use self::connection::Connection;
use super::Gateway;
use super::errors::HttpError;
use super::stall::Stalling;
use super::unread::Lent;
use crate::auth::extract::{self, PHOENIX_SUBPROTOCOL};
use crate::auth::grants::Principal;

/// `GET /socket/websocket`: checks everything before the upgrade, because afterwards a client believes that it is connected.
pub(super) async fn upgrade(State(gateway): State<Gateway>, mut request: Request) -> Response {
    let (accept, principal) = match admit(&gateway, &request) {
        Ok(admitted) => admitted,
        Err(refusal) => return HttpError(refusal).into_response(),
    };
    let Some(slot) = gateway.take_socket_slot() else {
        let retry = gateway.reconnect_retry();
        return HttpError(Refusal::retry(Code::Overloaded, "the node has its limit of sockets", retry)).into_response();
    };
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    if extract::offers_phoenix(request.headers()) {
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(PHOENIX_SUBPROTOCOL));
    }
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let upgraded = match upgrade.await {
            Ok(upgraded) => upgraded,
            Err(error) => return tracing::debug!(%error, "a socket was not upgraded"),
        };
        match upgraded.downcast::<TokioIo<Lent<Stalling>>>() {
            Ok(Parts { io, read_buf, .. }) => {
                let stream = io.into_inner().into_inner().into_inner();
                let connection = Connection::new(gateway, principal, stream, &read_buf, slot);
                // A task of its own: what the upgrade held (8 KiB that the HTTP half read into, among the rest) goes now,
                // and not with the socket.
                tokio::spawn(Box::new(connection).run());
            }
            Err(_) => tracing::error!("an upgraded connection is not a TCP stream"),
        }
    });
    response
}

fn admit(gateway: &Gateway, request: &Request) -> Result<(HeaderValue, Arc<Principal>), Refusal> {
    let accept = handshake(request.headers())?;
    let vsn = request.uri().query().unwrap_or_default().split('&').find_map(|pair| pair.strip_prefix("vsn="));
    if vsn != Some("2.0.0") {
        return Err(Refusal::new(Code::InvalidRequest, "vsn: must be 2.0.0"));
    }
    gateway.check_origin(request)?;
    gateway.refuse_newcomers()?;
    // A bad token is 403 here: stock clients treat every refusal before the upgrade alike.
    let principal = gateway
        .authenticate(request.headers(), request.uri())
        .map_err(|refusal| Refusal { code: Code::Forbidden, ..refusal })?;
    Ok((accept, Arc::new(principal)))
}

/// Checks the opening handshake (RFC 6455, 4.2.1) and computes its answer.
fn handshake(headers: &HeaderMap) -> Result<HeaderValue, Refusal> {
    let lists = |name: header::HeaderName, wanted: &str| {
        let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|token| token.trim().eq_ignore_ascii_case(wanted))
    };
    if !lists(header::CONNECTION, "upgrade") || !lists(header::UPGRADE, "websocket") {
        return Err(Refusal::new(Code::InvalidRequest, "Upgrade: must be websocket"));
    }
    if headers.get(header::SEC_WEBSOCKET_VERSION).is_none_or(|version| version != "13") {
        return Err(Refusal::new(Code::InvalidRequest, "Sec-WebSocket-Version: must be 13"));
    }
    let key = headers.get(header::SEC_WEBSOCKET_KEY).map(HeaderValue::as_bytes).unwrap_or_default();
    if STANDARD.decode(key).ok().is_none_or(|bytes| bytes.len() != 16) {
        return Err(Refusal::new(Code::InvalidRequest, "Sec-WebSocket-Key: must be 16 bytes in base64"));
    }
    let accept = tungstenite::handshake::derive_accept_key(key);
    HeaderValue::from_str(&accept).map_err(|_| Refusal::new(Code::InvalidRequest, "Sec-WebSocket-Key: is not valid"))
}

impl Gateway {
    /// The directive of a gateway that sheds: come back at a random moment of the jitter window.
    pub(super) fn reconnect_retry(&self) -> Retry {
        let jitter = self.node().seams.jitter(std::time::Duration::from_millis(self.reconnect_jitter_ms().max(1)));
        let after_ms = u64::try_from(jitter.as_millis()).unwrap_or(u64::MAX).max(250);
        Retry { after_ms, budget_ms: 120_000 }
    }
}
