//! A record's body: compact JSON bytes, checked once, spliced into frames ever after and never re-encoded.
//!
//! Invariant: a [`Body`] is a JSON object without insignificant white space, at most [`Limits::bytes`] long and
//! [`Limits::depth`] deep, and every string in it is valid Unicode (no lone surrogate), so that any client can parse it.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use crate::json::is_deeper_than;

mod look;

use self::look::{Sort, Text, TextSort};

/// The limits a body from outside is held to.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Most bytes after compaction.
    pub bytes: usize,
    /// Deepest nesting of objects and arrays; the body itself is depth 1.
    pub depth: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes: 64 * 1024, depth: 32 }
    }
}

/// Why a body is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidBody {
    /// More bytes than the limit.
    #[error("body: is {bytes} bytes long; at most {limit} are allowed")]
    TooLarge {
        /// Its size after compaction.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// Nested deeper than the limit.
    #[error("body: is nested deeper than {limit} levels")]
    TooDeep {
        /// The limit.
        limit: usize,
    },
    /// Not JSON, or JSON that some clients cannot read.
    #[error("body: is not valid JSON: {0}")]
    NotJson(String),
    /// JSON, but not an object.
    #[error("body: must be a JSON object")]
    NotAnObject,
    /// A message without its text.
    #[error("body.text: must be a string")]
    NoText,
}

/// A checked, compacted JSON object.
#[derive(Clone, PartialEq, Eq)]
pub struct Body(Arc<str>);

impl Body {
    /// Checks and compacts what a client sent.
    ///
    /// # Errors
    /// As [`InvalidBody`] lists; the limits are inclusive.
    pub fn parse(raw: &str, limits: Limits) -> Result<Self, InvalidBody> {
        Self::looked_at(raw, limits).map(|(body, _)| body)
    }

    /// As [`Body::parse`], and the object has a string `text`, as every message has.
    ///
    /// # Errors
    /// As [`InvalidBody`] lists.
    pub fn parse_message(raw: &str, limits: Limits) -> Result<Self, InvalidBody> {
        match Self::looked_at(raw, limits)? {
            (body, Text::One(TextSort::String)) => Ok(body),
            (_, Text::Several) => Err(InvalidBody::NotJson("duplicate field `text`".to_owned())),
            (_, Text::One(_) | Text::None) => Err(InvalidBody::NoText),
        }
    }

    /// Checks and compacts, and says what `text` is.
    fn looked_at(raw: &str, limits: Limits) -> Result<(Self, Text), InvalidBody> {
        if is_deeper_than(raw, limits.depth) {
            return Err(InvalidBody::TooDeep { limit: limits.depth });
        }
        let compacted = compact(raw)?;
        if compacted.len() > limits.bytes {
            return Err(InvalidBody::TooLarge { bytes: compacted.len(), limit: limits.bytes });
        }
        match serde_json::from_str(&compacted) {
            Ok(Sort::Object(text)) => Ok((Self(compacted.into()), text)),
            Ok(Sort::String | Sort::Other) => Err(InvalidBody::NotAnObject),
            Err(error) => Err(InvalidBody::NotJson(error.to_string())),
        }
    }

    /// A body that the server itself composes.
    #[must_use]
    pub fn of(value: &serde_json::Value) -> Self {
        debug_assert!(value.is_object(), "a body is an object");
        Self(value.to_string().into())
    }

    /// A body as it comes back from the store, which holds only what passed [`Body::parse`].
    #[must_use]
    pub fn from_store(text: &str) -> Self {
        Self(text.into())
    }

    /// The compact JSON.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The body as a value, for those that look inside.
    #[must_use]
    pub fn to_value(&self) -> serde_json::Value {
        serde_json::from_str(&self.0).unwrap_or(serde_json::Value::Null)
    }

    /// The idempotency hash: 128 bits of SHA-256 over the record's kind and the compacted body. Two writes with one
    /// client message id are the same write exactly if these are equal.
    #[must_use]
    pub fn hash(&self, kind: crate::record::RecordKind) -> BodyHash {
        let mut hasher = Sha256::new();
        hasher.update(kind.as_str().as_bytes());
        hasher.update([0]);
        hasher.update(self.0.as_bytes());
        let mut hash = [0; 16];
        hash.copy_from_slice(&hasher.finalize()[..16]);
        BodyHash(hash)
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for Body {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let raw: &RawValue = serde_json::from_str(&self.0).map_err(serde::ser::Error::custom)?;
        raw.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Body {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        Ok(Self(raw.get().into()))
    }
}

/// See [`Body::hash`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BodyHash(pub [u8; 16]);

/// Drops white space outside strings. Says nothing yet about validity.
fn compact(raw: &str) -> Result<String, InvalidBody> {
    let mut compacted = String::with_capacity(raw.len());
    let (mut in_string, mut escaped, mut kept_from) = (false, false, 0);
    for (at, byte) in raw.bytes().enumerate() {
        match byte {
            b' ' | b'\t' | b'\n' | b'\r' if !in_string => {
                compacted.push_str(&raw[kept_from..at]);
                kept_from = at + 1;
            }
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ => {}
        }
    }
    compacted.push_str(&raw[kept_from..]);
    // White space inside a token ("tr ue") must not become valid by being dropped.
    if compacted.len() != raw.len() {
        serde_json::from_str::<&RawValue>(raw).map_err(|error| InvalidBody::NotJson(error.to_string()))?;
    }
    Ok(compacted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::RecordKind;

    #[test]
    fn bodies_are_compacted_but_not_re_encoded() {
        let limits = Limits::default();
        let body = Body::parse(" { \"b\" : 1.50 ,\n\"a\":\" x  y \\\" z\" } ", limits).expect("valid");
        assert_eq!(body.as_str(), r#"{"b":1.50,"a":" x  y \" z"}"#);
        let same = Body::parse(r#"{"b":1.50,"a":" x  y \" z"}"#, limits).expect("valid");
        assert_eq!(body.hash(RecordKind::Message), same.hash(RecordKind::Message));
        assert_ne!(body.hash(RecordKind::Message), same.hash(RecordKind::Event));
    }

    #[test]
    fn bad_bodies_are_named() {
        let limits = Limits { bytes: 32, depth: 3 };
        let error = |raw: &str| Body::parse(raw, limits).expect_err("must be refused").to_string();
        assert_eq!(error("[1]"), "body: must be a JSON object");
        assert_eq!(error(r#"{"a":[[[1]]]}"#), "body: is nested deeper than 3 levels");
        assert_eq!(
            error(&format!(r#"{{"a":"{}"}}"#, "x".repeat(30))),
            "body: is 38 bytes long; at most 32 are allowed"
        );
        assert!(error(r#"{"a":tr ue}"#).starts_with("body: is not valid JSON"));
        assert!(error(r#"{"a":1 2}"#).starts_with("body: is not valid JSON"));
        assert!(error(r#"{"a":"\ud800"}"#).starts_with("body: is not valid JSON"));
        assert!(error(r#"{"a":1}}"#).starts_with("body: is not valid JSON"));
        let message = |raw: &str| Body::parse_message(raw, limits);
        for raw in [r#"{"text":7}"#, r#"{"text":null}"#, r#"{"text":{}}"#, "{}", r#"{"a":{"text":"x"}}"#] {
            assert_eq!(message(raw), Err(InvalidBody::NoText), "{raw}");
        }
        let twice = InvalidBody::NotJson("duplicate field `text`".to_owned());
        assert_eq!(message(r#"{"text":7,"text":"x"}"#), Err(twice));
        assert!(message(r#"{"te\u0078t":"x"}"#).is_ok() && message(r#"{"a":[{"text":1}],"text":"x"}"#).is_ok());
    }

    #[test]
    fn every_string_and_number_is_one_that_clients_can_read() {
        let error = |raw: &str| Body::parse(raw, Limits::default()).expect_err("must be refused").to_string();
        for raw in [
            r#"{"a":[{"b":"\ud800"}]}"#,
            r#"{"\udfff":1}"#,
            r#"{"a":1e999}"#,
            r#"{"a":01}"#,
            r#"{"a":"\x"}"#,
            "{\"a\":\"\u{1}\"}",
            r#"{"a":[1,]}"#,
            r#"{"a" "b"}"#,
            "",
        ] {
            assert!(error(raw).starts_with("body: is not valid JSON"), "{raw}");
        }
        for raw in [r#"{"a":[true,null,-1,1.5e3,18446744073709551615,"\ud83d\ude00",[],{}]}"#, "{}"] {
            assert_eq!(Body::parse(raw, Limits::default()).expect("valid").as_str(), raw);
        }
        let text = "{ \"\u{e9} \u{1f600}\" : \"\u{2028} \\\" \" }";
        assert_eq!(
            Body::parse(text, Limits::default()).expect("valid").as_str(),
            "{\"\u{e9} \u{1f600}\":\"\u{2028} \\\" \"}"
        );
    }
}
