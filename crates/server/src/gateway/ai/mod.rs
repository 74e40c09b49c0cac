//! The endpoints that `useChat` of the Vercel AI SDK calls: `/ai/chat`, its stream, and its messages.
//!
//! Invariant: what is answered with a stream is in the log before, under the message's own id, so that a post that is sent
//! again finds its turn instead of starting another.
//!
//! Deliberately absent: a client's other messages. The log says what was said before.

mod stream;
mod turns;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use conch_core::conversation::ConversationKind;
use conch_core::ids::{AgentName, ClientMsgId, ConvRef, ConversationId, Seq};
use conch_core::record::{Draft, Record, RecordKind};
use conch_core::refusal::{Code, Refusal};
use conch_core::turn::cancel::{Regenerate, TurnAsk};
use conch_core::wire::ai::{
    self, ChatRequest, HISTORY_KINDS, LastMessage, SaidMessage, Trigger, UiMessage, UserText, turn_of_message,
};
use conch_store::{ConversationInfo, Direction, RangeQuery, StoreError};
use http::{StatusCode, header};
use serde::Deserialize;

use super::conversations::make_session;
use super::errors::HttpError;
use super::input::{Path, Query, conversation_ref, from_json, unread_json};
use super::operations::{not_found, page_limit};
use super::{Caller, Gateway, streams};
use crate::auth::grants::{Permission, Principal};
use crate::config::agents::ASSISTANT;
use crate::turn::agents::DEMO;
use crate::turn::lookup;

/// Messages of a history when the request does not say.
const MESSAGES_DEFAULT: usize = 100;
/// Most messages of a history.
const MESSAGES_MAX: usize = 500;
/// Records of one read for a history.
const HISTORY_PAGE: usize = 100;
/// Most records and bytes that a history is made from.
const HISTORY_MAX_RECORDS: usize = 5_000;
const HISTORY_MAX_BYTES: usize = 8 * 1024 * 1024;

/// Pages add parameters of their own; they are ignored, as fields of the body are.
#[derive(Deserialize)]
pub(super) struct ChatQuery {
    agent: Option<AgentName>,
}

#[derive(Deserialize)]
pub(super) struct MessagesQuery {
    limit: Option<usize>,
}

/// `POST /ai/chat`.
pub(super) async fn chat(
    State(gateway): State<Gateway>,
    Caller(principal): Caller,
    Query(query): Query<ChatQuery>,
    request: Request,
) -> Result<Response, HttpError> {
    let text = unread_json(request, gateway.limits().frame_bytes).await?;
    let request: ChatRequest = from_json(&text)?;
    let conversation: ConvRef = match request.id.parse::<ConversationId>() {
        Ok(id) => id.into(),
        Err(invalid) => return Err(unprocessable(format!("id: {}", invalid.problem)).into()),
    };
    let agent = match (query.agent, &request.agent) {
        (Some(asked), Some(posted)) if asked != *posted => {
            return Err(unprocessable("agent: the query and the body differ".to_owned()).into());
        }
        (asked, posted) => asked.or_else(|| posted.clone()),
    };
    let post = Post { gateway: &gateway, principal: &principal, conversation: &conversation };
    let asked = post.asked(&request)?;
    gateway.refuse_if_draining()?;
    let slot = streams::take_slot(&gateway)?;
    // Before anything is created: a caller who is too quick leaves no empty sessions behind.
    gateway.take_rate(&principal)?;
    post.session(agent).await?;
    let turn = post.turn(asked).await?;
    Ok(stream::open(&gateway, &principal, &conversation, turn, slot).await?)
}

/// `GET /ai/chat/{id}/stream`: the turn that runs, from its beginning.
pub(super) async fn resume(
    State(gateway): State<Gateway>,
    Caller(principal): Caller,
    Path(id): Path<String>,
) -> Result<Response, HttpError> {
    let conversation = conversation_ref(&id)?;
    let nothing = || StatusCode::NO_CONTENT.into_response();
    if readable(&gateway, &principal, &conversation).await?.is_none() {
        return Ok(nothing());
    }
    let Some(open) = turns::latest(&gateway, &conversation).await?.open else { return Ok(nothing()) };
    gateway.refuse_newcomers()?;
    let slot = streams::take_slot(&gateway)?;
    Ok(stream::open(&gateway, &principal, &conversation, open.turn, slot).await?)
}

/// `GET /ai/chat/{id}/messages`: what a page begins with.
pub(super) async fn messages(
    State(gateway): State<Gateway>,
    Caller(principal): Caller,
    Path(id): Path<String>,
    Query(MessagesQuery { limit }): Query<MessagesQuery>,
) -> Result<Response, HttpError> {
    let conversation = conversation_ref(&id)?;
    let limit = page_limit(limit, MESSAGES_DEFAULT, MESSAGES_MAX)?;
    let mut messages = match readable(&gateway, &principal, &conversation).await? {
        Some(_) => history(&gateway, &principal, &conversation, limit).await?,
        None => Vec::new(),
    };
    messages.drain(..messages.len().saturating_sub(limit));
    let json = serde_json::to_string(&messages).expect("texts and numbers always serialise");
    Ok(([(header::CONTENT_TYPE, "application/json")], json).into_response())
}

/// The conversation, if the caller may read it. One that does not exist is an empty page to whoever may create it, for a page
/// asks before anything is said.
async fn readable(
    gateway: &Gateway,
    principal: &Principal,
    conversation: &ConvRef,
) -> Result<Option<ConversationInfo>, HttpError> {
    let Some(info) = gateway.node().store.conversation(conversation).await? else {
        if gateway.require(principal, Permission::Create, conversation).await.is_err() {
            gateway.require(principal, Permission::Read, conversation).await?;
        }
        return Ok(None);
    };
    gateway.require(principal, Permission::Read, conversation).await?;
    check_kind(&info)?;
    Ok(Some(info))
}

fn check_kind(info: &ConversationInfo) -> Result<(), Refusal> {
    if info.kind == ConversationKind::Session {
        return Ok(());
    }
    Err(unprocessable(format!("id: the conversation is a {}; only a session is a chat", info.kind)))
}

/// The newest messages, at least `limit` of them if there are and the bounds allow.
async fn history(
    gateway: &Gateway,
    principal: &Principal,
    conversation: &ConvRef,
    limit: usize,
) -> Result<Vec<UiMessage>, HttpError> {
    let _turn = gateway.shared.history_reads.acquire().await;
    let (mut records, mut bytes, mut direction) = (Vec::<Record>::new(), 0, Direction::Latest);
    loop {
        let kinds = HISTORY_KINDS.to_vec();
        let query = RangeQuery { conversation: conversation.clone(), direction, limit: HISTORY_PAGE, kinds };
        let page = gateway.node().store.range(&query).await?.ok_or_else(|| not_found(conversation))?;
        bytes += page.records.iter().map(|record| record.body.as_str().len()).sum::<usize>();
        let first = page.records.first().map(|record| record.seq);
        records.splice(0..0, page.records);
        let is_enough = records.len() >= HISTORY_MAX_RECORDS || bytes >= HISTORY_MAX_BYTES;
        match first {
            Some(first) if page.more && !is_enough && could_be(&records) < limit => {
                direction = Direction::Before(first)
            }
            _ => return Ok(ai::history(&records, &principal.sub)),
        }
    }
}

/// How many messages there are in these records, all of whose turns are among them.
fn could_be(records: &[Record]) -> usize {
    // A turn whose start is there may lack its input, and the first one is perhaps left out.
    let starts = records.iter().filter(|record| record.kind == RecordKind::TurnStarted).count();
    starts.saturating_sub(1) * 2
}

/// What a post asks for.
enum Asked {
    Said(Draft),
    /// Another answer to this, whatever answered it last.
    Again(Draft),
    /// Another one than this turn's.
    AgainOf(Seq),
}

struct Post<'a> {
    gateway: &'a Gateway,
    principal: &'a Principal,
    conversation: &'a ConvRef,
}

impl Post<'_> {
    /// Everything is checked before anything is created.
    fn asked(&self, request: &ChatRequest) -> Result<Asked, Refusal> {
        let again_of = request.message_id.as_deref().and_then(turn_of_message);
        match (request.trigger, again_of) {
            (Trigger::RegenerateMessage, Some(turn)) => Ok(Asked::AgainOf(turn)),
            (Trigger::RegenerateMessage, None) => self.draft(request.last.as_ref()).map(Asked::Again),
            (Trigger::SubmitMessage, _) => self.draft(request.last.as_ref()).map(Asked::Said),
        }
    }

    fn draft(&self, last: Option<&LastMessage>) -> Result<Draft, Refusal> {
        let UserText { id, text } = last_said(last)?;
        let body = serde_json::value::to_raw_value(&serde_json::json!({ "text": text }));
        let body = body.expect("a text always serialises");
        self.gateway.draft(self.principal, RecordKind::Message, id.as_str(), &body)
    }

    /// The conversation is there, created if the caller may, and theirs to speak and listen in.
    async fn session(&self, agent: Option<AgentName>) -> Result<(), HttpError> {
        let Self { gateway, principal, conversation } = *self;
        let info = match gateway.node().store.conversation(conversation).await? {
            Some(info) => info,
            None => {
                gateway.require(principal, Permission::Create, conversation).await?;
                let agent = agent.clone().unwrap_or_else(|| self.default_agent());
                make_session(gateway, principal, conversation, agent).await?
            }
        };
        gateway.require(principal, Permission::Read, conversation).await?;
        check_kind(&info)?;
        match (agent, info.agent) {
            (Some(asked), Some(has)) if asked != has => {
                Err(Refusal::new(Code::Conflict, format!("agent: the conversation's is {has}")).into())
            }
            _ => Ok(()),
        }
    }

    fn default_agent(&self) -> AgentName {
        let shared = &self.gateway.shared;
        let assistant: AgentName = ASSISTANT.parse().expect("nine letters are a name");
        let is_there = shared.agents.get(&assistant).is_some();
        let otherwise = || if is_there { assistant } else { DEMO.parse().expect("four letters are a name") };
        shared.chat_agent.clone().unwrap_or_else(otherwise)
    }

    /// The turn that answers.
    async fn turn(&self, asked: Asked) -> Result<Seq, HttpError> {
        match asked {
            Asked::Said(draft) => self.say(draft).await,
            Asked::AgainOf(turn) => self.regenerate(turn).await,
            Asked::Again(draft) => {
                let store = &self.gateway.node().store;
                let Some(said) = store.find(self.conversation, &draft.sender, &draft.client_msg_id).await? else {
                    // It never arrived: pages offer "again" for a post that failed, too.
                    return self.say(draft).await;
                };
                let latest = turns::latest(self.gateway, self.conversation).await?;
                match latest.open {
                    // The same post, sent again.
                    Some(open) if open.turn == said.seq || open.regenerates.is_some() => Ok(open.turn),
                    Some(open) => self.regenerate(open.turn).await,
                    None => {
                        let last = latest.started.unwrap_or(said.seq);
                        let store = &**store;
                        self.regenerate(lookup::stands_for(store, self.conversation, last).await?).await
                    }
                }
            }
        }
    }

    async fn may(&self, permission: Permission) -> Result<(), Refusal> {
        self.gateway.require(self.principal, permission, self.conversation).await
    }

    async fn say(&self, draft: Draft) -> Result<Seq, HttpError> {
        self.may(Permission::Send).await?;
        let receipts = self.gateway.router().append(self.conversation, vec![draft]).await?;
        Ok(receipts.first().expect("one draft, one receipt").seq)
    }

    async fn regenerate(&self, turn: Seq) -> Result<Seq, HttpError> {
        let Self { gateway, principal, conversation } = *self;
        self.may(Permission::Run).await?;
        // Whoever asks again for another answer than this turn's gets the one that they got.
        let client_msg_id = self.regenerate_key(turn).await?;
        let name = principal.name.as_deref().map(Into::into);
        let again = Regenerate { turn, by: principal.sub.clone(), name, client_msg_id };
        let receipts = gateway.router().turn(conversation, TurnAsk::Regenerate(again)).await?;
        Ok(receipts.last().expect("the event's receipt is the last").seq)
    }

    /// Whoever asks again for another answer than this turn's gets the one that they got, unless that was rolled back.
    async fn regenerate_key(&self, turn: Seq) -> Result<ClientMsgId, StoreError> {
        let (store, conversation) = (&*self.gateway.node().store, self.conversation);
        let mut key = format!("regenerate-{turn}");
        loop {
            let client_msg_id: ClientMsgId = key.parse().expect("letters, hyphens and digits are a key");
            match store.find(conversation, &self.principal.sub, &client_msg_id).await? {
                Some(run) if lookup::is_rolled_back(store, conversation, run.seq).await? => {
                    key = format!("regenerate-{turn}-{}", run.seq);
                }
                _ => return Ok(client_msg_id),
            }
        }
    }
}

/// What a person said last.
fn last_said(last: Option<&LastMessage>) -> Result<UserText, Refusal> {
    let Some(LastMessage { index, json }) = last else {
        return Err(unprocessable("messages: there is none".to_owned()));
    };
    let said: SaidMessage = from_json(json.get())
        .map_err(|refusal| Refusal { detail: format!("messages[{index}]: {}", refusal.detail), ..refusal })?;
    UserText::try_from(said).map_err(|invalid| unprocessable(format!("messages[{index}].{invalid}")))
}

fn unprocessable(detail: String) -> Refusal {
    Refusal::new(Code::UnprocessableRequest, detail)
}
