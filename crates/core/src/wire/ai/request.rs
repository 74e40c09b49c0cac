//! What a client posts: the conversation as it has it, of which the last message counts.
//!
//! Invariant: of all messages but the last nothing is kept or looked at, however many a client sends along; nothing of the last
//! one that a person said is dropped silently. Other fields are a page's own and are ignored.

use std::fmt;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::ids::{AgentName, ClientMsgId, InvalidId};

/// The body of a post.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChatRequest {
    /// The conversation.
    pub id: String,
    /// Why it is posted.
    #[serde(default)]
    pub trigger: Trigger,
    /// Which message it is about.
    #[serde(default)]
    pub message_id: Option<String>,
    /// The agent of a conversation that is to be created.
    #[serde(default)]
    pub agent: Option<AgentName>,
    /// The last message; `None`: there is none.
    #[serde(default, rename = "messages", deserialize_with = "last_of")]
    pub last: Option<LastMessage>,
}

/// Why a client posts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trigger {
    /// Somebody said something.
    #[default]
    SubmitMessage,
    /// Somebody wants another answer.
    RegenerateMessage,
}

/// The last of the messages, unread.
#[derive(Debug)]
pub struct LastMessage {
    /// Its place, for errors.
    pub index: usize,
    /// Its JSON.
    pub json: Box<RawValue>,
}

/// A field that cannot be taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct InvalidChat {
    /// Which, within its message.
    pub field: String,
    /// Why not.
    pub problem: String,
}

/// A message as a client has it.
#[derive(Debug, Deserialize)]
pub struct SaidMessage {
    id: String,
    role: String,
    parts: Vec<SaidPart>,
}

#[derive(Debug, Deserialize)]
struct SaidPart {
    r#type: String,
    text: Option<String>,
}

/// What a person said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserText {
    /// The client's name for it, which is its idempotency key.
    pub id: ClientMsgId,
    /// What.
    pub text: String,
}

impl TryFrom<SaidMessage> for UserText {
    type Error = InvalidChat;
    fn try_from(said: SaidMessage) -> Result<Self, InvalidChat> {
        let refuse = |field: String, problem: &str| Err(InvalidChat { field, problem: problem.to_owned() });
        if said.role != "user" {
            return refuse("role".to_owned(), "the last message must be a user's");
        }
        let id = said
            .id
            .parse::<ClientMsgId>()
            .map_err(|InvalidId { problem, .. }| InvalidChat { field: "id".to_owned(), problem })?;
        let mut texts = Vec::new();
        for (index, part) in said.parts.into_iter().enumerate() {
            match (part.r#type.as_str(), part.text) {
                ("text", Some(text)) => texts.push(text),
                ("text", None) => return refuse(format!("parts[{index}].text"), "is missing"),
                _ => return refuse(format!("parts[{index}].type"), "only text is taken"),
            }
        }
        if texts.iter().all(String::is_empty) {
            return refuse("parts".to_owned(), "there is no text");
        }
        Ok(Self { id, text: texts.join("\n") })
    }
}

fn last_of<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<LastMessage>, D::Error> {
    struct Last;
    impl<'de> Visitor<'de> for Last {
        type Value = Option<LastMessage>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of messages")
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut messages: A) -> Result<Self::Value, A::Error> {
            let (mut count, mut last) = (0_usize, None);
            while let Some(json) = messages.next_element::<&'de RawValue>()? {
                last = Some((count, json));
                count += 1;
            }
            Ok(last.map(|(index, json)| LastMessage { index, json: json.to_owned() }))
        }
    }
    deserializer.deserialize_seq(Last)
}
