//! Request bodies, paths and query strings, checked: media type, size, nesting, unknown fields.
//!
//! Invariant: nothing that a client sent is silently ignored; an error names the field and the limit.

use axum::extract::{FromRequest, FromRequestParts, Request};
use conch_core::ids::{ConvRef, ConversationId};
use conch_core::json::is_deeper_than;
use conch_core::refusal::{Code, Refusal};
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, EXPECT};
use http::request::Parts;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::Deserialize;
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
        // White space between tokens does not count towards a body's limit, so a request may be larger than that.
        let limit = gateway.limits().message_bytes * 2 + ENVELOPE_BYTES;
        let text = json_text(gateway, request, limit).await?;
        Ok(Self(from_json(&text)?))
    }
}

/// The text of a JSON request body of at most `limit` bytes; its levels are counted.
///
/// # Errors
/// As [`unread_json`], and for too many levels.
pub(super) async fn json_text(gateway: &Gateway, request: Request, limit: usize) -> Result<String, Refusal> {
    let text = unread_json(request, limit).await?;
    let depth_limit = gateway.limits().body_depth + 2;
    if is_deeper_than(&text, depth_limit) {
        return Err(invalid(format!("the request body is nested deeper than {depth_limit} levels")));
    }
    Ok(text)
}

/// A request's JSON, of which nothing is looked at.
///
/// # Errors
/// Another media type, more than `limit` bytes, not UTF-8.
pub(super) async fn unread_json(request: Request, limit: usize) -> Result<String, Refusal> {
    let media_type = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = media_type.split(';').next().unwrap_or_default().trim();
    if !essence.eq_ignore_ascii_case("application/json") {
        let detail = "Content-Type: must be application/json";
        return Err(Refusal::new(Code::UnsupportedMediaType, detail));
    }
    let announced = request.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    // The listener bounds how long this may take.
    let waits = waits_for_continue(request.headers());
    let mut body = request.into_body();
    if announced.is_some_and(|bytes| bytes > limit as u64) {
        // Reading would ask a client for the body that it holds back.
        if !waits {
            discard(&mut body).await;
        }
        return Err(too_large(limit));
    }
    let bytes = match Limited::new(&mut body, limit).collect().await {
        Ok(collected) => collected.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => {
            discard(&mut body).await;
            return Err(too_large(limit));
        }
        Err(error) => return Err(invalid(format!("the request body could not be read: {error}"))),
    };
    String::from_utf8(bytes.into()).map_err(|_| invalid("the request body is not UTF-8".to_owned()))
}

/// Whether the client waits to be asked for the body (RFC 9110, 10.1.1).
fn waits_for_continue(headers: &HeaderMap) -> bool {
    headers.get(EXPECT).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
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
        Ok(Self(from_pairs(&kept)?))
    }
}

/// A value out of JSON text.
///
/// # Errors
/// `invalid_request`; names the field by its path, such as `members[2]`.
pub(super) fn from_json<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, Refusal> {
    serde_json::from_str(text).map_err(|error| {
        // Read again with a record of the way, which what is valid need not pay for.
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let traced = serde_path_to_error::deserialize::<_, T>(&mut deserializer);
        let path = traced.err().map(|error| error.path().to_string()).unwrap_or_default();
        match path.as_str() {
            // Of the whole: what is missing, or comes after it.
            "" | "." | "?" => invalid(error.to_string()),
            path => invalid(format!("{path}: {error}")),
        }
    })
}

/// A value out of the pairs of a query string.
///
/// # Errors
/// `invalid_request`; names the parameter.
fn from_pairs<T: DeserializeOwned>(pairs: &[&str]) -> Result<T, Refusal> {
    serde_urlencoded::from_str(&pairs.join("&")).map_err(|error| {
        // The parser does not say where it was. No parameter is mandatory, so the one at fault fails by itself, too.
        let failing = |pair: &&&str| serde_urlencoded::from_str::<T>(pair).is_err();
        match pairs.iter().find(failing).and_then(|pair| pair.split('=').next()) {
            Some(name) => invalid(format!("{name}: {error}")),
            None => invalid(format!("query: {error}")),
        }
    })
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

#[cfg(test)]
mod tests {
    use conch_core::ids::Subject;
    use serde_json::value::RawValue;

    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Page {
        after: Option<u64>,
        limit: Option<usize>,
        kinds: Option<String>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Body<'a> {
        kind: conch_core::conversation::ConversationKind,
        #[serde(default)]
        members: Vec<Subject>,
        page: Option<Page>,
        #[serde(borrow)]
        raw: Option<&'a RawValue>,
    }

    #[test]
    fn an_error_in_a_query_names_the_parameter() {
        let page = from_pairs::<Page>(&["after=7", "kinds=message%2Cevent"]).expect("valid");
        assert_eq!(page, Page { after: Some(7), limit: None, kinds: Some("message,event".to_owned()) });
        assert_eq!(from_pairs::<Page>(&[]).expect("valid"), Page::default());
        for (pairs, expected) in [
            (&["after=7", "limit=many"][..], "limit: invalid digit found in string"),
            (&["after=-1", "limit=1"], "after: invalid digit found in string"),
            (&["after="], "after: cannot parse integer from empty string"),
            (&["limit=99999999999999999999"], "limit: number too large to fit in target type"),
            (&["limit=1", "cursor=1"], "cursor: unknown field `cursor`, expected one of `after`, `limit`, `kinds`"),
            (&["limit=1", "limit=2"], "query: duplicate field `limit`"),
        ] {
            let refusal = from_pairs::<Page>(pairs).expect_err("must be refused");
            assert_eq!((refusal.code, refusal.detail.as_str()), (Code::InvalidRequest, expected));
        }
    }

    #[test]
    fn an_error_in_json_names_the_field() {
        let text = r#"{"kind":"channel","members":["a"],"page":{"after":1},"raw":{"b" : 1.50}}"#;
        let body = from_json::<Body<'_>>(text).expect("valid");
        assert_eq!(body.kind, conch_core::conversation::ConversationKind::Channel);
        assert_eq!((body.members.len(), body.page.and_then(|page| page.after)), (1, Some(1)));
        assert_eq!(body.raw.map(RawValue::get), Some(r#"{"b" : 1.50}"#));
        for (text, expected) in [
            (r#"{"kind":"group"}"#, "kind: unknown variant `group`, expected one of `channel`, `direct`, `session`"),
            (r#"{"kind":7}"#, "kind: "),
            (r#"{"kind":"channel","page":{"after":"7"}}"#, "page.after: invalid type: string \"7\", expected u64"),
            (r#"{"kind":"channel","members":["a",""]}"#, "members[1]: sub: is empty"),
            (r#"{"kind":"channel","colour":1}"#, "colour: unknown field `colour`"),
            ("{}", "missing field `kind`"),
            ("[]", "invalid length 0"),
            (r#"{"kind":"channel"} x"#, "trailing characters"),
        ] {
            let refusal = from_json::<Body<'_>>(text).expect_err("must be refused");
            assert_eq!(refusal.code, Code::InvalidRequest);
            assert!(refusal.detail.starts_with(expected), "{text}: {}", refusal.detail);
        }
    }
}
