//! Members, read cursors and presence.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use conch_core::ids::{ConvRef, Subject};
use conch_core::refusal::{Code, Refusal};
use conch_core::time::Timestamp;
use conch_store::MembershipChange;
use http::{StatusCode, header};
use serde::{Deserialize, Serialize};

use super::errors::HttpError;
use super::input::{Json, Path, Query, conversation_ref};
use super::operations::{not_found, page_limit};
use super::{Caller, Gateway};
use crate::auth::grants::{Permission, Principal};
use crate::link::Notice;
use crate::link::service::no_member;
use crate::people::Change;
use crate::router::Sighting;

/// Who may change a membership: an administrator; oneself, to leave; and oneself, to join what grants let one read and send to.
async fn require_change(
    gateway: &Gateway,
    principal: &Principal,
    conversation: &ConvRef,
    sub: &Subject,
    change: Change,
) -> Result<(), Refusal> {
    let own = principal.sub == *sub;
    match change {
        Change::Removed if own => Ok(()),
        Change::Added if own && may_join(principal, conversation) => Ok(()),
        _ => gateway.require(principal, Permission::Admin, conversation).await,
    }
}

/// A membership gives reading and sending, so joining by oneself takes grants of both.
fn may_join(principal: &Principal, conversation: &ConvRef) -> bool {
    [Permission::Read, Permission::Send].iter().all(|permission| principal.allows(*permission, &conversation.id))
}

async fn change(
    gateway: Gateway,
    principal: Principal,
    (id, sub): (String, String),
    change: Change,
) -> Result<Response, HttpError> {
    let (conversation, sub): (ConvRef, Subject) = (conversation_ref(&id)?, sub.parse()?);
    if sub.is_reserved() {
        return Err(Refusal::new(Code::UnprocessableRequest, "sub: names that start with @ are reserved").into());
    }
    require_change(&gateway, &principal, &conversation, &sub, change).await?;
    if change == Change::Removed && principal.sub == sub && !gateway.is_member(&principal, &conversation).await? {
        // It takes no permission to leave, so it must not tell whether there is anything to leave.
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let store = &gateway.node().store;
    let outcome = match change {
        Change::Added => store.add_member(&conversation, &sub).await?,
        Change::Removed => store.remove_member(&conversation, &sub).await?,
    };
    match outcome {
        MembershipChange::Unchanged => {}
        MembershipChange::Changed => {
            gateway.people().membership(&conversation, &sub, change);
            let (conversation_id, told) = (conversation.id.clone(), sub.clone());
            gateway.notices().tell(&match change {
                Change::Added => Notice::MemberAdded { conversation: conversation_id, sub: told },
                Change::Removed => Notice::MemberRemoved { conversation: conversation_id, sub: told },
            });
            if change == Change::Removed {
                gateway.hubs().expel(&conversation, &sub, no_member()).await;
            }
        }
        MembershipChange::NoConversation => return Err(not_found(&conversation).into()),
        MembershipChange::Direct => {
            let detail = "sub: a direct conversation has exactly two members, and they stay";
            return Err(Refusal::new(Code::Conflict, detail).into());
        }
    }
    let created = change == Change::Added && outcome == MembershipChange::Changed;
    Ok(if created { StatusCode::CREATED } else { StatusCode::NO_CONTENT }.into_response())
}

pub(super) async fn add(
    State(gateway): State<Gateway>,
    Caller(principal): Caller,
    Path(path): Path<(String, String)>,
) -> Result<Response, HttpError> {
    change(gateway, principal, path, Change::Added).await
}

pub(super) async fn remove(
    State(gateway): State<Gateway>,
    Caller(principal): Caller,
    Path(path): Path<(String, String)>,
) -> Result<Response, HttpError> {
    change(gateway, principal, path, Change::Removed).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MembersQuery {
    after: Option<Subject>,
    limit: Option<usize>,
}

#[derive(Serialize)]
struct MemberJson {
    sub: Subject,
    since: Timestamp,
}

#[derive(Serialize)]
struct MembersJson {
    members: Vec<MemberJson>,
    more: bool,
}

pub(super) async fn list(
    State(gateway): State<Gateway>,
    Caller(principal): Caller,
    Path(id): Path<String>,
    Query(query): Query<MembersQuery>,
) -> Result<Response, HttpError> {
    let conversation = conversation_ref(&id)?;
    gateway.require(&principal, Permission::Read, &conversation).await?;
    let limits = gateway.limits();
    let limit = page_limit(query.limit, limits.history_default, limits.history_limit)?;
    let members = gateway.node().store.members(&conversation, query.after.as_ref(), limit).await?;
    let (members, more) = members.ok_or_else(|| not_found(&conversation))?;
    let members = members.into_iter().map(|member| MemberJson { sub: member.sub, since: member.since }).collect();
    Ok(axum::Json(MembersJson { members, more }).into_response())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CursorRequest {
    seq: u64,
}

pub(super) async fn move_cursor(
    State(gateway): State<Gateway>,
    Caller(principal): Caller,
    Path(id): Path<String>,
    Json(CursorRequest { seq }): Json<CursorRequest>,
) -> Result<Response, HttpError> {
    let conversation = conversation_ref(&id)?;
    gateway.require(&principal, Permission::Read, &conversation).await?;
    let json = gateway.move_cursor(&principal, &conversation, seq).await?;
    Ok(([(header::CONTENT_TYPE, "application/json")], json).into_response())
}

pub(super) async fn presence(
    State(gateway): State<Gateway>,
    Caller(principal): Caller,
    Path(id): Path<String>,
) -> Result<Response, HttpError> {
    let conversation = conversation_ref(&id)?;
    gateway.require(&principal, Permission::Read, &conversation).await?;
    let json = match gateway.hubs().sight(&conversation).await {
        Sighting::Present(present) => present.json,
        Sighting::Unknown => r#"{"count":null,"present":null}"#.to_owned(),
        Sighting::Nobody if gateway.node().store.conversation(&conversation).await?.is_none() => {
            return Err(not_found(&conversation).into());
        }
        Sighting::Nobody => r#"{"count":0,"present":{}}"#.to_owned(),
    };
    Ok(([(header::CONTENT_TYPE, "application/json")], json).into_response())
}
