//! Identifiers, parsed once at the edge. A value of one of these types is valid; nothing downstream checks again.
//!
//! Limits are those of the wire contract (docs/PROTOCOL.md, "Identifiers").

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};

/// Longest conversation id, in bytes.
pub const CONVERSATION_ID_MAX_BYTES: usize = 128;
/// Longest client message id, in bytes.
pub const CLIENT_MSG_ID_MAX_BYTES: usize = 128;
/// Longest subject, in bytes.
pub const SUBJECT_MAX_BYTES: usize = 256;
/// Longest log id, in bytes.
pub const LOG_ID_MAX_BYTES: usize = 256;
/// Longest node or region name, in bytes.
pub const NAME_MAX_BYTES: usize = 64;

/// Why a text is not the identifier it should be. The message names the field and the limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct InvalidId {
    /// The field as it is called on the wire.
    pub field: &'static str,
    /// What is wrong, with the limit.
    pub problem: String,
}

impl InvalidId {
    fn new(field: &'static str, problem: impl Into<String>) -> Self {
        Self { field, problem: problem.into() }
    }
}

fn check_length(field: &'static str, text: &str, max_bytes: usize) -> Result<(), InvalidId> {
    if text.is_empty() {
        return Err(InvalidId::new(field, format!("is empty; 1 to {max_bytes} bytes are allowed")));
    }
    if text.len() > max_bytes {
        let problem = format!("is {} bytes long; at most {max_bytes} are allowed", text.len());
        return Err(InvalidId::new(field, problem));
    }
    Ok(())
}

/// An identifier that is text: the type, its parser's rule, and serde through the same parser.
macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $field:literal, $check:path) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;
            fn from_str(text: &str) -> Result<Self, InvalidId> {
                $check($field, text)?;
                Ok(Self(text.into()))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

fn conversation_rule(field: &'static str, text: &str) -> Result<(), InvalidId> {
    check_length(field, text, CONVERSATION_ID_MAX_BYTES)?;
    let allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b':' | b'-');
    if !text.bytes().all(allowed) {
        return Err(InvalidId::new(field, "may hold only A-Z a-z 0-9 . _ : -"));
    }
    Ok(())
}

fn client_msg_id_rule(field: &'static str, text: &str) -> Result<(), InvalidId> {
    check_length(field, text, CLIENT_MSG_ID_MAX_BYTES)?;
    if !text.bytes().all(|c| (0x20..0x7f).contains(&c)) {
        return Err(InvalidId::new(field, "may hold only printable ASCII"));
    }
    Ok(())
}

fn subject_rule(field: &'static str, text: &str) -> Result<(), InvalidId> {
    check_length(field, text, SUBJECT_MAX_BYTES)?;
    if text.chars().any(char::is_control) {
        return Err(InvalidId::new(field, "may not hold control characters"));
    }
    Ok(())
}

fn name_rule(field: &'static str, text: &str) -> Result<(), InvalidId> {
    check_length(field, text, NAME_MAX_BYTES)?;
    let allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-');
    if !text.bytes().all(allowed) {
        return Err(InvalidId::new(field, "may hold only A-Z a-z 0-9 . _ -"));
    }
    Ok(())
}

text_id!(
    /// A conversation's public name: 1 to 128 of `A-Z a-z 0-9 . _ : -`.
    ConversationId, "conversation", conversation_rule
);
text_id!(
    /// The idempotency key of one write, unique per conversation and sender: 1 to 128 printable ASCII characters.
    ClientMsgId, "client_msg_id", client_msg_id_rule
);
text_id!(
    /// Who acts: a token's `sub`, or a reserved system sender that starts with `@`. 1 to 256 bytes, no control characters.
    Subject, "sub", subject_rule
);
text_id!(
    /// A node's name, given by the operator. Owns nothing: ownership belongs to an [`Incarnation`].
    NodeName, "node", name_rule
);
text_id!(
    /// A region's name.
    Region, "region", name_rule
);
text_id!(
    /// An agent's name, a key of the configuration's `[agents]` table.
    AgentName, "agent", name_rule
);

impl Subject {
    /// True for the names that only the server may write under (`@start`, `@agent:demo`, …).
    #[must_use]
    pub fn is_reserved(&self) -> bool {
        self.0.starts_with('@')
    }

    /// The sender of an agent's answers, `@agent:NAME`.
    #[must_use]
    pub fn agent(name: &AgentName) -> Self {
        Self(format!("@agent:{name}").into())
    }

    /// A system sender such as `@start`; `name` is one of this crate's constants.
    #[must_use]
    pub fn system(name: &'static str) -> Self {
        debug_assert!(name.starts_with('@'), "system senders start with @");
        Self(name.into())
    }
}

/// The key of a conversation in the store: the first 128 bits of SHA-256 of its id, so that nobody has to mint it.
///
/// Two ids with one key are refused when the conversation is resolved (the id is compared), never mixed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConvKey(pub [u8; 16]);

impl ConvKey {
    /// The key of an id.
    #[must_use]
    pub fn of(id: &ConversationId) -> Self {
        let digest = Sha256::digest(id.as_str().as_bytes());
        let mut key = [0; 16];
        key.copy_from_slice(&digest[..16]);
        Self(key)
    }
}

impl fmt::Debug for ConvKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0 {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// A conversation's id together with its key, computed once.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ConvRef {
    /// The public name.
    pub id: ConversationId,
    /// The store's key.
    pub key: ConvKey,
}

impl From<ConversationId> for ConvRef {
    fn from(id: ConversationId) -> Self {
        let key = ConvKey::of(&id);
        Self { id, key }
    }
}

/// A number that only grows, as the store keeps it (never above `i64::MAX`).
macro_rules! number_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// For the store's signed column. Numbers grow by additions bounded by blocks and generations, so that
            /// `i64::MAX` is out of reach; above it this saturates.
            #[must_use]
            pub fn to_i64(self) -> i64 {
                i64::try_from(self.0).unwrap_or(i64::MAX)
            }

            /// From the store's signed column; negative values do not occur and count as 0.
            #[must_use]
            pub fn from_i64(value: i64) -> Self {
                Self(u64::try_from(value).unwrap_or(0))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number_id!(
    /// A record's number in its conversation; the first is 1. 0 stands before every record.
    Seq
);
number_id!(
    /// The fencing token of a conversation's ownership. Rises at each change of owner, never falls.
    Epoch
);
number_id!(
    /// Counts what may have rewound the record store (a failover's timeline, a restored backup). 1 on a fresh store.
    Generation
);

impl Seq {
    /// The number after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// One registration of one process: a random UUID. A restarted node has another and owns nothing of its predecessor's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Incarnation(pub u128);

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = format!("{:032x}", self.0);
        write!(f, "{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
    }
}

impl fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One history of a record store: `<system id>.<generation>`. Positions are only good within one.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LogId(Arc<str>);

impl LogId {
    /// The log id of a store with this system id in this generation.
    #[must_use]
    pub fn new(system_id: &str, generation: Generation) -> Self {
        Self(format!("{system_id}.{generation}").into())
    }

    /// The text, opaque to clients.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The generation of the store that wrote it.
    #[must_use]
    pub fn generation(&self) -> Generation {
        let number = self.0.rsplit_once('.').and_then(|(_, generation)| generation.parse().ok());
        Generation(number.expect("every log id ends with a generation"))
    }
}

impl FromStr for LogId {
    type Err = InvalidId;
    fn from_str(text: &str) -> Result<Self, InvalidId> {
        check_length("log", text, LOG_ID_MAX_BYTES)?;
        match text.rsplit_once('.') {
            Some((system_id, generation)) if !system_id.is_empty() && generation.parse::<u64>().is_ok() => {
                Ok(Self(text.into()))
            }
            _ => Err(InvalidId::new("log", "must be a system id, a dot and a generation")),
        }
    }
}

impl fmt::Display for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for LogId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl Serialize for LogId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_refused_with_the_field_and_the_limit() {
        let cases: [(Result<(), InvalidId>, &str); 8] = [
            ("".parse::<ConversationId>().map(drop), "conversation: is empty; 1 to 128 bytes are allowed"),
            ("a b".parse::<ConversationId>().map(drop), "conversation: may hold only A-Z a-z 0-9 . _ : -"),
            ("é".parse::<ConversationId>().map(drop), "conversation: may hold only A-Z a-z 0-9 . _ : -"),
            (
                "x".repeat(129).parse::<ConversationId>().map(drop),
                "conversation: is 129 bytes long; at most 128 are allowed",
            ),
            ("a\nb".parse::<ClientMsgId>().map(drop), "client_msg_id: may hold only printable ASCII"),
            (
                "x".repeat(129).parse::<ClientMsgId>().map(drop),
                "client_msg_id: is 129 bytes long; at most 128 are allowed",
            ),
            ("a\u{7}".parse::<Subject>().map(drop), "sub: may not hold control characters"),
            ("n/1".parse::<NodeName>().map(drop), "node: may hold only A-Z a-z 0-9 . _ -"),
        ];
        for (result, message) in cases {
            assert_eq!(result.expect_err("must be refused").to_string(), message);
        }
        for good in ["a", "team:general", "A-Z_0.9", &"x".repeat(128)] {
            assert_eq!(good.parse::<ConversationId>().expect("valid").as_str(), good);
        }
    }

    #[test]
    fn the_key_is_the_head_of_sha_256() {
        let id: ConversationId = "abc".parse().expect("valid");
        assert_eq!(format!("{:?}", ConvKey::of(&id)), "ba7816bf8f01cfea414140de5dae2223");
    }
}
