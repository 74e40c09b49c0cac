//! Turns: starting one, looking at one, cancelling it, answering what it waits for.
//!
//! Invariant: what is asked is decided by the conversation's owner, wherever it is; what is looked at needs none.
//!
//! Deliberately absent: watching a turn, which is watching its conversation.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use conch_core::conversation::ConversationKind;
use conch_core::ids::{ClientMsgId, ConvRef, Epoch, Seq};
use conch_core::json::is_deeper_than;
use conch_core::record::RecordKind;
use conch_core::refusal::{Code, Refusal};
use conch_core::sequencer::{Outcome, Receipt};
use conch_core::time::Timestamp;
use conch_core::turn::awaits::AwaitId;
use conch_core::turn::cancel::{Cancel, CancelMode, Regenerate, Resolve, TurnAsk};
use http::{HeaderMap, StatusCode, header};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::errors::{HttpError, IntoRefusal};
use super::input::{Json, Path, conversation_ref};
use super::messages::idempotency_key;
use super::operations::not_found;
use super::{Caller, Gateway};
use crate::auth::grants::{Permission, Principal};
use crate::turn::lookup;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StartRequest {
    client_msg_id: Option<String>,
    input: Option<Box<RawValue>>,
    regenerate: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CancelRequest {
    mode: Option<CancelMode>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ResolveRequest {
    payload: Box<RawValue>,
}

/// What came of something that was asked: the record that says so.
#[derive(Serialize)]
pub(crate) struct Done {
    #[serde(skip_serializing_if = "Option::is_none")]
    turn: Option<Seq>,
    #[serde(skip_serializing_if = "Option::is_none")]
    r#await: Option<AwaitId>,
    seq: Seq,
    epoch: Epoch,
    at: Timestamp,
    duplicate: bool,
}

impl Done {
    /// The last of the receipts is that of what was asked for; others belong to the same commit.
    fn of(receipts: &[Receipt]) -> Self {
        let Receipt { seq, epoch, at, outcome } = *receipts.last().expect("what is asked is at least one record");
        Self { turn: None, r#await: None, seq, epoch, at, duplicate: outcome == Outcome::Duplicate }
    }

    /// Compact JSON.
    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string(self).expect("names and numbers always serialise")
    }
}

pub(super) async fn start(
    State(gateway): State<Gateway>,
    Caller(principal): Caller,
    Path(id): Path<String>,
    headers: HeaderMap,
    Json(request): Json<StartRequest>,
) -> Result<Response, HttpError> {
    let conversation = conversation_ref(&id)?;
    let key = idempotency_key(&headers, request.client_msg_id)?;
    let done = match (request.input, request.regenerate) {
        (Some(input), None) => gateway.start_turn(&principal, &conversation, &key, &input).await?,
        (None, Some(turn)) => gateway.regenerate_turn(&principal, &conversation, &key, Seq(turn)).await?,
        (given, _) => {
            let problem = if given.is_some() { "are both given" } else { "give one of them: a turn has an input" };
            let detail = format!("input and regenerate: {problem}");
            return Err(Refusal::new(Code::UnprocessableRequest, detail).into());
        }
    };
    let status = if done.duplicate { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, json(done.to_json())).into_response())
}

pub(super) async fn show(
    State(gateway): State<Gateway>,
    Caller(principal): Caller,
    Path((id, turn)): Path<(String, String)>,
) -> Result<Response, HttpError> {
    let (conversation, turn) = (conversation_ref(&id)?, turn_number(&turn)?);
    gateway.require(&principal, Permission::Read, &conversation).await?;
    Ok(json(gateway.turn_overview(&conversation, turn).await?).into_response())
}

pub(super) async fn cancel(
    State(gateway): State<Gateway>,
    Caller(principal): Caller,
    Path((id, turn)): Path<(String, String)>,
    Json(CancelRequest { mode }): Json<CancelRequest>,
) -> Result<Response, HttpError> {
    let (conversation, turn) = (conversation_ref(&id)?, turn_number(&turn)?);
    Ok(json(gateway.cancel_turn(&principal, &conversation, turn, mode).await?.to_json()).into_response())
}

pub(super) async fn resolve(
    State(gateway): State<Gateway>,
    Caller(principal): Caller,
    Path((id, wait)): Path<(String, String)>,
    Json(ResolveRequest { payload }): Json<ResolveRequest>,
) -> Result<Response, HttpError> {
    let conversation = conversation_ref(&id)?;
    let payload = gateway.payload(&payload)?;
    Ok(json(gateway.resolve_await(&principal, &conversation, &wait, payload).await?.to_json()).into_response())
}

fn json(text: String) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], text)
}

/// The turn that a path names.
fn turn_number(text: &str) -> Result<Seq, HttpError> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = if digits { text.parse().ok() } else { None };
    Ok(number.map(Seq).ok_or_else(|| Refusal::new(Code::UnprocessableRequest, "turn: must be its number"))?)
}

impl Gateway {
    /// Starts a turn with a message, which is the same record as any other message.
    ///
    /// # Errors
    /// `forbidden`; names the field and the limit; `conflict` where there is no agent; as for a message.
    async fn start_turn(
        &self,
        principal: &Principal,
        conversation: &ConvRef,
        key: &str,
        input: &RawValue,
    ) -> Result<Done, Refusal> {
        self.require(principal, Permission::Run, conversation).await?;
        let draft = self.draft(principal, RecordKind::Message, key, input).map_err(as_input)?;
        if self.kind_of(conversation).await? != ConversationKind::Session {
            return Err(Refusal::new(Code::Conflict, "conversation: has no agent, and so no turns"));
        }
        self.take_rate(principal)?;
        let done = Done::of(&self.router().append(conversation, vec![draft]).await?);
        Ok(Done { turn: Some(done.seq), ..done })
    }

    /// Runs the last turn again.
    ///
    /// # Errors
    /// `forbidden`; names the field; what the owner says.
    pub(crate) async fn regenerate_turn(
        &self,
        principal: &Principal,
        conversation: &ConvRef,
        key: &str,
        turn: Seq,
    ) -> Result<Done, Refusal> {
        self.require(principal, Permission::Run, conversation).await?;
        let client_msg_id: ClientMsgId = key.parse().map_err(IntoRefusal::into_refusal)?;
        self.take_rate(principal)?;
        let name = principal.name.as_deref().map(Into::into);
        let ask = TurnAsk::Regenerate(Regenerate { turn, by: principal.sub.clone(), name, client_msg_id });
        let done = Done::of(&self.router().turn(conversation, ask).await?);
        Ok(Done { turn: Some(done.seq), ..done })
    }

    /// Cancels a turn, keeping what it said unless asked otherwise.
    ///
    /// # Errors
    /// `forbidden`; what the owner says.
    pub(crate) async fn cancel_turn(
        &self,
        principal: &Principal,
        conversation: &ConvRef,
        turn: Seq,
        mode: Option<CancelMode>,
    ) -> Result<Done, Refusal> {
        self.require(principal, Permission::Run, conversation).await?;
        self.take_rate(principal)?;
        let mode = mode.unwrap_or(CancelMode::Keep);
        let ask = TurnAsk::Cancel(Cancel { turn, mode, by: principal.sub.clone(), reason: None });
        let done = Done::of(&self.router().turn(conversation, ask).await?);
        Ok(Done { turn: Some(turn), ..done })
    }

    /// Resolves an await.
    ///
    /// # Errors
    /// `forbidden`; names the field, or the place in the payload that does not fit; what the owner says.
    pub(crate) async fn resolve_await(
        &self,
        principal: &Principal,
        conversation: &ConvRef,
        wait: &str,
        payload: Value,
    ) -> Result<Done, Refusal> {
        self.require(principal, Permission::Run, conversation).await?;
        let id: AwaitId = wait.parse().map_err(IntoRefusal::into_refusal)?;
        self.take_rate(principal)?;
        let ask = TurnAsk::Resolve(Resolve { id: id.clone(), payload, by: principal.sub.as_str().into() });
        let done = Done::of(&self.router().turn(conversation, ask).await?);
        Ok(Done { r#await: Some(id), ..done })
    }

    /// A payload within the limits of a body; it may be any JSON.
    ///
    /// # Errors
    /// Names the limit.
    pub(crate) fn payload(&self, raw: &RawValue) -> Result<Value, Refusal> {
        let limits = self.limits().body();
        if is_deeper_than(raw.get(), limits.depth) {
            let detail = format!("payload: is nested deeper than {} levels", limits.depth);
            return Err(Refusal::new(Code::InvalidRequest, detail));
        }
        let payload: Value = serde_json::from_str(raw.get())
            .map_err(|error| Refusal::new(Code::InvalidRequest, format!("payload: is not valid JSON: {error}")))?;
        let bytes = payload.to_string().len();
        if bytes > limits.bytes {
            let detail = format!("payload: is {bytes} bytes long; at most {} are allowed", limits.bytes);
            return Err(Refusal::new(Code::TooLarge, detail));
        }
        Ok(payload)
    }

    /// The JSON of what is known of a turn.
    async fn turn_overview(&self, conversation: &ConvRef, turn: Seq) -> Result<String, Refusal> {
        let is_session = self.kind_of(conversation).await? == ConversationKind::Session;
        let overview = {
            let _place = self.shared.history_reads.acquire().await;
            lookup::overview(&*self.node().store, conversation, turn).await.map_err(IntoRefusal::into_refusal)?
        };
        let overview = overview.filter(|_| is_session);
        let overview = overview.ok_or_else(|| Refusal::new(Code::NotFound, format!("turn: there is no {turn}")))?;
        Ok(serde_json::to_string(&overview).expect("names, numbers and valid bodies always serialise"))
    }

    async fn kind_of(&self, conversation: &ConvRef) -> Result<ConversationKind, Refusal> {
        let info = self.node().store.conversation(conversation).await.map_err(IntoRefusal::into_refusal)?;
        Ok(info.ok_or_else(|| not_found(conversation))?.kind)
    }
}

/// What is a message's `body` elsewhere is a turn's `input`.
fn as_input(refusal: Refusal) -> Refusal {
    match refusal.detail.strip_prefix("body") {
        Some(rest) => Refusal { detail: format!("input{rest}"), ..refusal },
        None => refusal,
    }
}
