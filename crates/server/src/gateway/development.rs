//! The development login: a name becomes a token. It exists in development mode alone, which binds loopback alone.

use std::net::SocketAddr;

use axum::Extension;
use axum::extract::{ConnectInfo, State};
use axum::response::{IntoResponse, Response};
use conch_core::ids::Subject;
use conch_core::refusal::{Code, Refusal};
use conch_core::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::Gateway;
use super::errors::HttpError;
use super::input::Json;
use crate::auth::grants::{Grant, Permission, RateLimit};
use crate::auth::origin::Page;
use crate::auth::secret::Mode;
use crate::auth::token::Mint;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LoginRequest {
    name: String,
}

#[derive(Serialize)]
struct LoginJson {
    token: String,
    sub: Subject,
    expires_at: Timestamp,
}

pub(super) async fn login(
    State(gateway): State<Gateway>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    Extension(page): Extension<Page>,
    Json(LoginRequest { name }): Json<LoginRequest>,
) -> Result<Response, HttpError> {
    if gateway.shared.mode != Mode::Development || !peer.ip().to_canonical().is_loopback() {
        return Err(Refusal::new(Code::NotFound, "there is nothing at /dev/login").into());
    }
    if page == Page::Foreign {
        return Err(Refusal::new(Code::Forbidden, "Origin: a page of another site may not log in").into());
    }
    let sub = subject_of(&name)?;
    let now = gateway.node().seams.clock.wall();
    let expires_at = Timestamp(now.0.saturating_add_unsigned(gateway.shared.token_ttl_ms));
    let everything = Grant { conversations: "*".parse().expect("a star is a pattern"), can: Permission::ALL.to_vec() };
    let mint = Mint {
        sub: sub.to_string(),
        name: Some(name.trim().to_owned()),
        expires_at,
        grants: vec![everything],
        rate_limit: RateLimit::Default,
    };
    let token = gateway.shared.key.mint(&mint, now);
    let token = token.map_err(|error| Refusal::new(Code::UnprocessableRequest, error.to_string()))?;
    Ok(axum::Json(LoginJson { token, sub, expires_at }).into_response())
}

/// "Alice Liddell" becomes `alice-liddell`.
fn subject_of(name: &str) -> Result<Subject, Refusal> {
    let refuse = |detail: &str| Refusal::new(Code::UnprocessableRequest, detail);
    let name = name.trim();
    if name.is_empty() || name.len() > 64 {
        return Err(refuse("name: 1 to 64 bytes are allowed"));
    }
    let sub: String = name.to_lowercase().chars().map(|c| if c.is_whitespace() { '-' } else { c }).collect();
    let sub: Subject = sub.parse().map_err(|error: conch_core::ids::InvalidId| refuse(&error.to_string()))?;
    if sub.is_reserved() {
        return Err(refuse("name: may not start with @"));
    }
    Ok(sub)
}
