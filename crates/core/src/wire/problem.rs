//! RFC 9457 problem documents and channel errors: how a [`Refusal`] looks to a client, and how a client reads it.
//!
//! Invariant: both forms carry the same stable `code` and, exactly where a retry can help, the same `retry`.
//! Deliberately absent: HTTP itself, and which failure becomes which refusal.

use serde::{Deserialize, Serialize};

use crate::refusal::{Refusal, Retry};

/// The media type of a [`Problem`].
pub const CONTENT_TYPE: &str = "application/problem+json";

/// A problem document. Reading one is lenient: RFC 9457 makes every member optional and lets others be added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Problem {
    /// `urn:conch:problem:CODE`; `about:blank` when absent, as the RFC says.
    #[serde(rename = "type")]
    pub kind: String,
    /// A short sentence, the same for every occurrence.
    pub title: String,
    /// The HTTP status; 0 when absent.
    pub status: u16,
    /// The stable code; empty when absent (the document is not ours, say a proxy's).
    pub code: String,
    /// What exactly; names the field and the limit.
    pub detail: String,
    /// Whether and when to send it again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
}

impl Default for Problem {
    fn default() -> Self {
        Self {
            kind: "about:blank".to_owned(),
            title: String::new(),
            status: 0,
            code: String::new(),
            detail: String::new(),
            retry: None,
        }
    }
}

impl Problem {
    /// Reads a document that a server sent.
    ///
    /// # Errors
    /// Not a JSON object, or a member of the wrong type.
    pub fn parse(document: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(document)
    }

    /// Compact JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("strings and numbers always serialise")
    }
}

impl From<&Refusal> for Problem {
    fn from(refusal: &Refusal) -> Self {
        let code = refusal.code.as_str();
        Self {
            kind: format!("urn:conch:problem:{code}"),
            title: refusal.code.title().to_owned(),
            status: refusal.code.status(),
            code: code.to_owned(),
            detail: refusal.detail.clone(),
            retry: refusal.retry,
        }
    }
}

/// The `Retry-After` header's whole seconds: rounded up, at least 1, so that nobody comes back too early.
#[must_use]
pub fn retry_after_seconds(retry: Retry) -> u64 {
    retry.after_ms.div_ceil(1000).max(1)
}

/// The response of a channel's error reply: `{"code":…,"detail":…,"retry":…}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelError {
    /// The stable code.
    pub code: String,
    /// What exactly; names the field and the limit.
    #[serde(default)]
    pub detail: String,
    /// Whether and when to send it again.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub retry: Option<Retry>,
}

impl From<&Refusal> for ChannelError {
    fn from(refusal: &Refusal) -> Self {
        Self { code: refusal.code.as_str().to_owned(), detail: refusal.detail.clone(), retry: refusal.retry }
    }
}

impl ChannelError {
    /// Compact JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("strings and numbers always serialise")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::refusal::Code;

    #[test]
    fn a_refusal_becomes_a_document() {
        let refusal = Refusal::retry(Code::ConversationUnavailable, "its owner is changing", Retry::SOON);
        assert_eq!(
            Problem::from(&refusal).to_json(),
            concat!(
                r#"{"type":"urn:conch:problem:conversation_unavailable","#,
                r#""title":"The conversation is unavailable for the moment","status":503,"#,
                r#""code":"conversation_unavailable","detail":"its owner is changing","#,
                r#""retry":{"after_ms":250,"budget_ms":20000}}"#
            )
        );
        let final_one = Refusal::new(Code::NotFound, "conversation \"x\"");
        assert_eq!(
            Problem::from(&final_one).to_json(),
            concat!(
                r#"{"type":"urn:conch:problem:not_found","title":"Not found","status":404,"#,
                r#""code":"not_found","detail":"conversation \"x\""}"#
            )
        );
        assert_eq!(
            ChannelError::from(&refusal).to_json(),
            concat!(
                r#"{"code":"conversation_unavailable","detail":"its owner is changing","#,
                r#""retry":{"after_ms":250,"budget_ms":20000}}"#
            )
        );
        assert_eq!(ChannelError::from(&final_one).to_json(), r#"{"code":"not_found","detail":"conversation \"x\""}"#);
    }

    #[test]
    fn retry_after_is_rounded_up() {
        for (after_ms, seconds) in [(0, 1), (1, 1), (1000, 1), (1001, 2), (30_000, 30), (u64::MAX, u64::MAX / 1000 + 1)]
        {
            assert_eq!(retry_after_seconds(Retry { after_ms, budget_ms: 0 }), seconds);
        }
    }

    #[test]
    fn foreign_documents_are_read() {
        let problem = Problem::parse(br#"{"title":"Bad Gateway","status":502,"extra":[1]}"#).expect("readable");
        assert_eq!((problem.kind.as_str(), problem.status, problem.code.as_str()), ("about:blank", 502, ""));
        for document in [&b"<html>"[..], b"", b"7", br#"{"status":"x"}"#, br#"{"status":70000}"#] {
            assert!(Problem::parse(document).is_err());
        }
    }

    proptest! {
        #[test]
        fn documents_go_there_and_back(
            code in proptest::sample::select(Code::ALL),
            detail in ".*",
            times in proptest::option::of(any::<(u64, u64)>()),
        ) {
            let retry = times.map(|(after_ms, budget_ms)| Retry { after_ms, budget_ms });
            let refusal = Refusal { code, detail, retry };
            let problem = Problem::from(&refusal);
            prop_assert_eq!(&Problem::parse(problem.to_json().as_bytes()).expect("our own"), &problem);
            let error = ChannelError::from(&refusal);
            prop_assert_eq!(serde_json::from_str::<ChannelError>(&error.to_json()).expect("our own"), error);
        }

        #[test]
        fn no_bytes_panic(document in any::<Vec<u8>>()) {
            let _ = Problem::parse(&document);
        }
    }
}
