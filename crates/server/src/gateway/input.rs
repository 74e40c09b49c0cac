//! Request bodies, paths and query strings, checked: media type, size, nesting, unknown fields.
//!
//! Invariant: nothing that a client sent is silently ignored; an error names the field and the limit.

use axum::extract::{FromRequest, FromRequestParts, Request};
use conch_core::ids::{ConvRef, ConversationId};
use conch_core::json::is_deeper_than;
use conch_core::refusal::{Code, Refusal};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::request::Parts;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;

use super::Gateway;
use super::errors::HttpError;

/// Room around a message's body for the other fields of a request.
const ENVELOPE_BYTES: usize = 8 * 1024;
/// Most bytes of a refused body that are read all the same.
const DISCARDED_BYTES: usize = 4 * 1024 * 1024;

/// A JSON request body.
pub(super) struct Json<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<Gateway> for Json<T> {
    type Rejection = HttpError;

    async fn from_request(request: Request, gateway: &Gateway) -> Result<Self, HttpError> {
        let media_type = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let essence = media_type.split(';').next().unwrap_or_default().trim();
        if !essence.eq_ignore_ascii_case("application/json") {
            let detail = "Content-Type: must be application/json";
            return Err(Refusal::new(Code::UnsupportedMediaType, detail).into());
        }
        // White space between tokens does not count towards a body's limit, so a request may be larger than that.
        let limit = gateway.limits().message_bytes * 2 + ENVELOPE_BYTES;
        let announced =
            request.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        // A body that trickles in is cut off by the time limit that the listener sets for the whole request.
        let mut body = request.into_body();
        if announced.is_some_and(|bytes| bytes > limit as u64) {
            discard(&mut body).await;
            return Err(too_large(limit).into());
        }
        let bytes = match Limited::new(&mut body, limit).collect().await {
            Ok(collected) => collected.to_bytes(),
            Err(error) if error.is::<LengthLimitError>() => {
                discard(&mut body).await;
                return Err(too_large(limit).into());
            }
            Err(error) => return Err(invalid(format!("the request body could not be read: {error}")).into()),
        };
        let text = std::str::from_utf8(&bytes).map_err(|_| invalid("the request body is not UTF-8".to_owned()))?;
        let depth_limit = gateway.limits().body_depth + 2;
        if is_deeper_than(text, depth_limit) {
            return Err(invalid(format!("the request body is nested deeper than {depth_limit} levels")).into());
        }
        serde_json::from_str(text).map(Self).map_err(|error| invalid(error.to_string()).into())
    }
}

/// Reads what is left of a body that is refused, within a bound: a connection that is closed with unread bytes is reset,
/// and the reset takes the answer along.
async fn discard(body: &mut axum::body::Body) {
    let mut discarded = 0;
    while let Some(Ok(frame)) = body.frame().await {
        discarded += frame.data_ref().map_or(0, bytes::Bytes::len);
        if discarded > DISCARDED_BYTES {
            return;
        }
    }
}

/// A query string. Unknown parameters are refused, but for the token.
pub(super) struct Query<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequestParts<Gateway> for Query<T> {
    type Rejection = HttpError;

    async fn from_request_parts(parts: &mut Parts, _gateway: &Gateway) -> Result<Self, HttpError> {
        let query = parts.uri.query().unwrap_or_default();
        let kept: Vec<&str> =
            query.split('&').filter(|pair| !pair.is_empty() && !pair.starts_with("access_token=")).collect();
        let parsed = serde_urlencoded::from_str(&kept.join("&"));
        parsed.map(Self).map_err(|error| invalid(format!("query: {error}")).into())
    }
}

/// The parameters of a path.
pub(super) struct Path<T>(pub(super) T);

impl<T: DeserializeOwned + Send> FromRequestParts<Gateway> for Path<T> {
    type Rejection = HttpError;

    async fn from_request_parts(parts: &mut Parts, gateway: &Gateway) -> Result<Self, HttpError> {
        match axum::extract::Path::from_request_parts(parts, gateway).await {
            Ok(axum::extract::Path(parameters)) => Ok(Self(parameters)),
            Err(rejection) => Err(invalid(format!("path: {}", rejection.body_text())).into()),
        }
    }
}

/// The conversation that a path names.
///
/// # Errors
/// `invalid_request`: the id is not well-formed.
pub(super) fn conversation_ref(id: &str) -> Result<ConvRef, HttpError> {
    Ok(id.parse::<ConversationId>()?.into())
}

fn too_large(limit: usize) -> Refusal {
    Refusal::new(Code::TooLarge, format!("the request body is over {limit} bytes"))
}

fn invalid(detail: String) -> Refusal {
    Refusal::new(Code::InvalidRequest, detail)
}
