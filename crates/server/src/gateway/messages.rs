//! Messages and events: append, and history.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use conch_core::record::RecordKind;
use conch_core::refusal::{Code, Refusal};
use conch_core::sequencer::Outcome;
use http::{HeaderMap, StatusCode, header};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::errors::HttpError;
use super::input::{Json, Path, Query, conversation_ref};
use super::operations::{HistoryRequest, receipt_json};
use super::{Caller, Gateway};
use crate::auth::grants::Permission;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SendRequest {
    client_msg_id: Option<String>,
    body: Box<RawValue>,
    kind: Option<String>,
}

pub(super) async fn send(
    State(gateway): State<Gateway>,
    Caller(principal): Caller,
    Path(id): Path<String>,
    headers: HeaderMap,
    Json(request): Json<SendRequest>,
) -> Result<Response, HttpError> {
    let conversation = conversation_ref(&id)?;
    let kind = match request.kind.as_deref() {
        None | Some("message") => RecordKind::Message,
        Some("event") => RecordKind::Event,
        Some(other) => {
            let detail = format!("kind: {other:?} may not be sent; message and event may");
            return Err(Refusal::new(Code::UnprocessableRequest, detail).into());
        }
    };
    let client_msg_id = idempotency_key(&headers, request.client_msg_id)?;
    gateway.require(&principal, Permission::Send, &conversation).await?;
    let draft = gateway.draft(&principal, kind, &client_msg_id, &request.body)?;
    gateway.take_rate(&principal)?;
    let receipts = gateway.router().append(&conversation, vec![draft]).await?;
    let receipt = receipts.first().expect("one draft, one receipt");
    let status = match receipt.outcome {
        Outcome::Appended => StatusCode::CREATED,
        Outcome::Duplicate => StatusCode::OK,
    };
    Ok((status, [(header::CONTENT_TYPE, "application/json")], receipt_json(receipt)).into_response())
}

/// The key from the body or the `Idempotency-Key` header; both must agree.
pub(super) fn idempotency_key(headers: &HeaderMap, from_body: Option<String>) -> Result<String, Refusal> {
    let refuse = |detail: &str| Refusal::new(Code::UnprocessableRequest, detail);
    let mut values = headers.get_all("idempotency-key").iter();
    let from_header = match values.next() {
        Some(value) => Some(value.to_str().map_err(|_| refuse("Idempotency-Key: may hold only printable ASCII"))?),
        None => None,
    };
    if values.next().is_some() {
        return Err(refuse("Idempotency-Key: is there more than once"));
    }
    match (from_body, from_header) {
        (Some(body), Some(header)) if body != header => {
            Err(refuse("client_msg_id and Idempotency-Key: are both given and differ"))
        }
        (Some(key), _) => Ok(key),
        (None, Some(key)) => Ok(key.to_owned()),
        (None, None) => Err(refuse("client_msg_id: is missing (or Idempotency-Key)")),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HistoryQuery {
    after: Option<u64>,
    before: Option<u64>,
    limit: Option<usize>,
    kinds: Option<String>,
}

pub(super) async fn history(
    State(gateway): State<Gateway>,
    Caller(principal): Caller,
    Path(id): Path<String>,
    Query(query): Query<HistoryQuery>,
) -> Result<Response, HttpError> {
    let conversation = conversation_ref(&id)?;
    gateway.require(&principal, Permission::Read, &conversation).await?;
    let HistoryQuery { after, before, limit, kinds } = query;
    let json = gateway.history(&conversation, &HistoryRequest { after, before, limit, kinds }).await?;
    Ok(([(header::CONTENT_TYPE, "application/json")], json).into_response())
}
