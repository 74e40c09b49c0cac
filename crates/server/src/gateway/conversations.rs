//! Conversations: create, show, change, list mine.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use conch_core::conversation::{ConversationKind, Settings, TITLE_MAX_BYTES};
use conch_core::ids::{AgentName, ConvRef, ConversationId, Region, Subject};
use conch_core::refusal::{Code, Refusal};
use conch_core::time::Timestamp;
use conch_store::{ConversationInfo, ConversationPatch, Created, NewConversation};
use http::StatusCode;
use serde::{Deserialize, Serialize};

use super::errors::HttpError;
use super::input::{Json, Path, Query, conversation_ref};
use super::operations::{not_found, page_limit};
use super::{Caller, Gateway};
use crate::auth::grants::{Permission, Principal};
use crate::link::Notice;
use crate::people::SummaryJson;
use crate::router::Sighting;

/// Most regions of a conversation.
const REGIONS: usize = 16;
/// Most members named at a creation.
const FIRST_MEMBERS: usize = 100;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateRequest {
    kind: ConversationKind,
    #[serde(default)]
    regions: Vec<Region>,
    title: Option<String>,
    agent: Option<AgentName>,
    #[serde(default)]
    members: Vec<Subject>,
    #[serde(default)]
    settings: Settings,
}

#[derive(Serialize)]
struct OwnerJson<'a> {
    node: &'a str,
    epoch: u64,
}

#[derive(Serialize)]
struct ConversationJson<'a> {
    id: &'a ConversationId,
    kind: ConversationKind,
    regions: &'a [Region],
    title: Option<&'a str>,
    agent: Option<&'a AgentName>,
    settings: &'a Settings,
    created_at: Timestamp,
    head_seq: u64,
    log: String,
    owner: Option<OwnerJson<'a>>,
    connected: Option<usize>,
}

pub(super) async fn create(
    State(gateway): State<Gateway>,
    Caller(principal): Caller,
    Path(id): Path<String>,
    Json(request): Json<CreateRequest>,
) -> Result<Response, HttpError> {
    let conversation = conversation_ref(&id)?;
    gateway.require(&principal, Permission::Create, &conversation).await?;
    let new = new_conversation(&gateway, &principal, conversation.clone(), request)?;
    let created = make(&gateway, &new).await?;
    if let Created::Existing(_) = created {
        // Creating is not reading: what somebody else has made is shown to those alone who may read it.
        gateway.require(&principal, Permission::Read, &conversation).await?;
    }
    let (status, info) = match created {
        Created::New(info) => (StatusCode::CREATED, info),
        Created::Existing(info) if info.kind != new.kind => {
            let detail = format!("kind: the conversation exists and is a {}", info.kind);
            return Err(Refusal::new(Code::Conflict, detail).into());
        }
        Created::Existing(info) if info.regions != new.regions => {
            let detail = "regions: the conversation exists with other regions";
            return Err(Refusal::new(Code::Conflict, detail).into());
        }
        Created::Existing(info) => (StatusCode::OK, info),
    };
    Ok((status, conversation_json(&gateway, &conversation, &info).await?).into_response())
}

/// Creates a conversation, or finds the one that is there; its members are told of a new one.
async fn make(gateway: &Gateway, new: &NewConversation) -> Result<Created, HttpError> {
    let created = gateway.node().store.create_conversation(new).await?;
    if let Created::New(_) = created {
        for member in &new.members {
            gateway.people().membership(&new.conversation, member, crate::people::Change::Added);
            let (conversation, sub) = (new.conversation.id.clone(), member.clone());
            gateway.notices().tell(&Notice::MemberAdded { conversation, sub });
        }
    }
    Ok(created)
}

/// A session with an agent, whose creator is its member; or the conversation that is there already.
///
/// # Errors
/// There is no such agent; the store's refusal.
pub(super) async fn make_session(
    gateway: &Gateway,
    principal: &Principal,
    conversation: &ConvRef,
    agent: AgentName,
) -> Result<ConversationInfo, HttpError> {
    let request = CreateRequest {
        kind: ConversationKind::Session,
        regions: Vec::new(),
        title: None,
        agent: Some(agent),
        members: Vec::new(),
        settings: Settings::default(),
    };
    let new = new_conversation(gateway, principal, conversation.clone(), request)?;
    match make(gateway, &new).await? {
        Created::New(info) | Created::Existing(info) => Ok(info),
    }
}

fn new_conversation(
    gateway: &Gateway,
    principal: &Principal,
    conversation: ConvRef,
    request: CreateRequest,
) -> Result<NewConversation, Refusal> {
    let refuse = |detail: String| Refusal::new(Code::UnprocessableRequest, detail);
    let CreateRequest { kind, regions, title, agent, mut members, settings } = request;
    check_title(title.as_deref())?;
    settings.check().map_err(|error| refuse(error.to_string()))?;
    if regions.len() > REGIONS {
        return Err(refuse(format!("regions: at most {REGIONS} are allowed")));
    }
    if members.len() > FIRST_MEMBERS {
        return Err(refuse(format!("members: at most {FIRST_MEMBERS} may be named at once")));
    }
    if let Some(reserved) = members.iter().find(|member| member.is_reserved()) {
        return Err(refuse(format!("members: {reserved} is reserved")));
    }
    match (kind, &agent) {
        (ConversationKind::Session, None) => return Err(refuse("agent: a session needs one".to_owned())),
        (ConversationKind::Session, Some(agent)) => check_agent(gateway, agent)?,
        (_, Some(_)) => return Err(refuse(format!("agent: a {kind} has none"))),
        (_, None) => {}
    }
    members.sort();
    members.dedup();
    let names_both = kind == ConversationKind::Direct && members.len() == 2;
    if !names_both && !members.contains(&principal.sub) {
        members.push(principal.sub.clone());
    }
    if kind == ConversationKind::Direct && members.len() != 2 {
        return Err(refuse("members: a direct conversation has exactly two".to_owned()));
    }
    let home = regions.first().unwrap_or(&gateway.node().region).clone();
    let creator = principal.sub.clone();
    Ok(NewConversation { conversation, kind, regions, home, title, agent, settings, creator, members })
}

fn check_title(title: Option<&str>) -> Result<(), Refusal> {
    let Some(title) = title else { return Ok(()) };
    if title.len() > TITLE_MAX_BYTES || title.chars().any(char::is_control) {
        let detail = format!("title: at most {TITLE_MAX_BYTES} bytes without control characters are allowed");
        return Err(Refusal::new(Code::UnprocessableRequest, detail));
    }
    Ok(())
}

/// Most agents that a refusal names.
const AGENTS_NAMED: usize = 20;

fn check_agent(gateway: &Gateway, agent: &AgentName) -> Result<(), Refusal> {
    if gateway.shared.agents.get(agent).is_some() {
        return Ok(());
    }
    let names: Vec<&str> = gateway.shared.agents.names().map(AgentName::as_str).take(AGENTS_NAMED).collect();
    let detail = format!("agent: there is no agent {agent}; there are: {}", names.join(", "));
    Err(Refusal::new(Code::UnprocessableRequest, detail))
}

async fn conversation_json(
    gateway: &Gateway,
    conversation: &ConvRef,
    info: &ConversationInfo,
) -> Result<axum::Json<serde_json::Value>, HttpError> {
    let head = info.head.as_ref();
    let owner = head.and_then(|head| {
        let node = head.owner_node.as_ref()?;
        Some(OwnerJson { node: node.as_str(), epoch: head.epoch.0 })
    });
    let log = gateway.node().store.log().await?;
    let connected = match gateway.hubs().sight(conversation).await {
        Sighting::Present(present) => Some(present.connected),
        Sighting::Nobody => None,
        Sighting::Unknown => gateway.hubs().connected(conversation),
    };
    let json = ConversationJson {
        id: &info.id,
        kind: info.kind,
        regions: &info.regions,
        title: info.title.as_deref(),
        agent: info.agent.as_ref(),
        settings: &info.settings,
        created_at: info.created_at,
        head_seq: head.map_or(0, |head| head.last_seq.0),
        log: log.to_string(),
        owner,
        connected,
    };
    Ok(axum::Json(serde_json::to_value(json).expect("string keys and plain values")))
}

pub(super) async fn show(
    State(gateway): State<Gateway>,
    Caller(principal): Caller,
    Path(id): Path<String>,
) -> Result<Response, HttpError> {
    let conversation = conversation_ref(&id)?;
    gateway.require(&principal, Permission::Read, &conversation).await?;
    let info = gateway.node().store.conversation(&conversation).await?.ok_or_else(|| not_found(&conversation))?;
    Ok(conversation_json(&gateway, &conversation, &info).await?.into_response())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PatchRequest {
    /// Absent: as it is; null: none.
    #[serde(default, deserialize_with = "some_option")]
    title: Option<Option<String>>,
    /// Absent: as it is. There is no other way to leave it out: a session always has an agent, and settings.
    #[serde(default, deserialize_with = "some_option")]
    agent: Option<Option<AgentName>>,
    #[serde(default, deserialize_with = "some_option")]
    settings: Option<Option<Settings>>,
}

/// Tells what is null from what is not there.
fn some_option<'de, T: Deserialize<'de>, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// A value that may be left out, but not taken away.
fn not_null<T>(field: &str, value: Option<Option<T>>) -> Result<Option<T>, Refusal> {
    let refuse = || Refusal::new(Code::UnprocessableRequest, format!("{field}: may be left out, but not be null"));
    value.map(|value| value.ok_or_else(refuse)).transpose()
}

pub(super) async fn patch(
    State(gateway): State<Gateway>,
    Caller(principal): Caller,
    Path(id): Path<String>,
    Json(request): Json<PatchRequest>,
) -> Result<Response, HttpError> {
    let conversation = conversation_ref(&id)?;
    gateway.require(&principal, Permission::Admin, &conversation).await?;
    let PatchRequest { title, agent, settings } = request;
    let (agent, settings) = (not_null("agent", agent)?, not_null("settings", settings)?);
    check_title(title.as_ref().and_then(|title| title.as_deref()))?;
    if let Some(settings) = &settings {
        settings.check()?;
    }
    let store = &gateway.node().store;
    if let Some(agent) = &agent {
        check_agent(&gateway, agent)?;
        let info = store.conversation(&conversation).await?.ok_or_else(|| not_found(&conversation))?;
        if info.kind != ConversationKind::Session {
            let detail = format!("agent: a {} has none", info.kind);
            return Err(Refusal::new(Code::UnprocessableRequest, detail).into());
        }
    }
    let changes_turns = agent.is_some() || settings.is_some();
    let patch = ConversationPatch { title, agent, settings };
    let info = store.patch_conversation(&conversation, &patch).await?.ok_or_else(|| not_found(&conversation))?;
    if changes_turns {
        gateway.router().read_again(&conversation).await;
    }
    gateway.people().changed(&conversation);
    gateway.notices().tell(&Notice::ConversationChanged { conversation: conversation.id.clone() });
    if gateway.require(&principal, Permission::Read, &conversation).await.is_err() {
        // Changing is not reading.
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    Ok(conversation_json(&gateway, &conversation, &info).await?.into_response())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    after: Option<String>,
    limit: Option<usize>,
}

#[derive(Serialize)]
struct ListJson<'a> {
    conversations: Vec<SummaryJson<'a>>,
    more: bool,
    /// Pass it as `after` to get the next page.
    after: Option<String>,
}

pub(super) async fn list(
    State(gateway): State<Gateway>,
    Caller(principal): Caller,
    Query(query): Query<ListQuery>,
) -> Result<Response, HttpError> {
    let limits = gateway.limits();
    let limit = page_limit(query.limit, limits.history_default, limits.history_limit)?;
    let after = query.after.as_deref().map(parse_after).transpose()?;
    let page = gateway.node().store.summaries(&principal.sub, after.as_ref(), limit).await?;
    let last = page.summaries.last().filter(|_| page.more);
    let json = ListJson {
        conversations: page.summaries.iter().map(|summary| SummaryJson::of(summary, &page.log)).collect(),
        more: page.more,
        after: last.map(|summary| format!("{}:{}", summary.updated_at.0, summary.id)),
    };
    Ok(axum::Json(json).into_response())
}

fn parse_after(text: &str) -> Result<(Timestamp, ConversationId), Refusal> {
    let parsed = text.split_once(':').and_then(|(at, id)| Some((Timestamp(at.parse().ok()?), id.parse().ok()?)));
    parsed.ok_or_else(|| {
        Refusal::new(Code::UnprocessableRequest, "after: must be the `after` of the page before, as it was given")
    })
}
