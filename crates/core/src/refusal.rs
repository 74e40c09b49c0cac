//! Refusals: every failure a client can see, with its stable code and, where a retry can help, a directive.
//!
//! Invariant: a refused write consumed nothing. The same key may be sent again, here or anywhere else.

use serde::{Deserialize, Serialize};

/// Declares the codes once, with their name on the wire, HTTP status and title.
macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $wire:literal, $status:literal, $title:literal;)*) => {
        /// A stable error code.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Code { $($(#[$doc])* $name,)* }

        impl Code {
            /// Every code.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];
            /// The name on the wire.
            #[must_use]
            pub fn as_str(self) -> &'static str { match self { $(Self::$name => $wire,)* } }
            /// The HTTP status.
            #[must_use]
            pub fn status(self) -> u16 { match self { $(Self::$name => $status,)* } }
            /// A short sentence for people, the same for every occurrence.
            #[must_use]
            pub fn title(self) -> &'static str { match self { $(Self::$name => $title,)* } }
        }
    };
}

codes! {
    /// Not the syntax that the contract asks for.
    InvalidRequest = "invalid_request", 400, "The request is not valid";
    /// The syntax is right, the content is not.
    UnprocessableRequest = "invalid_request", 422, "The request cannot be processed";
    /// No token, or not a good one.
    Unauthenticated = "unauthenticated", 401, "Authentication is required";
    /// A good token that does not grant this.
    Forbidden = "forbidden", 403, "Not allowed";
    /// No such thing, or none that this token may know of.
    NotFound = "not_found", 404, "Not found";
    /// The path exists, the method does not.
    MethodNotAllowed = "method_not_allowed", 405, "Method not allowed";
    /// The key was used with another body.
    IdempotencyKeyReused = "idempotency_key_reused", 409, "The idempotency key was used with another body";
    /// It exists with other properties.
    Conflict = "conflict", 409, "Conflict";
    /// A step is in the journal with another input or output.
    JournalMismatch = "journal_mismatch", 409, "The journal has another step of this name";
    /// Another run of the turn has taken over, or the turn has ended.
    StaleAttempt = "stale_attempt", 409, "The attempt is stale";
    /// More bytes than the limit.
    TooLarge = "too_large", 413, "Too large";
    /// Not JSON.
    UnsupportedMediaType = "unsupported_media_type", 415, "Unsupported media type";
    /// Too many in too short a time.
    RateLimited = "rate_limited", 429, "Rate limited";
    /// The request's headers are over the limit.
    HeadersTooLarge = "headers_too_large", 431, "Headers too large";
    /// Its owner is changing or unknown for now.
    ConversationUnavailable = "conversation_unavailable", 503, "The conversation is unavailable for the moment";
    /// A queue is at its limit.
    Overloaded = "overloaded", 503, "Overloaded";
    /// The store cannot be reached, or is full.
    StoreUnavailable = "store_unavailable", 503, "The store is unavailable";
    /// The node is shutting down.
    Draining = "draining", 503, "Draining";
}

/// The directive to send the same again: not before `after_ms`, and not for longer than `budget_ms` in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retry {
    /// Wait at least this long, in milliseconds.
    pub after_ms: u64,
    /// Give up, and show the failure, when this much time has passed since the first attempt, in milliseconds.
    pub budget_ms: u64,
}

impl Retry {
    /// The usual directive while ownership moves: soon, for up to 20 s.
    pub const SOON: Self = Self { after_ms: 250, budget_ms: 20_000 };
}

/// A refusal. Without `retry`: do not send it again, show it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {detail}", code.as_str())]
pub struct Refusal {
    /// What kind.
    pub code: Code,
    /// What exactly; names the field and the limit.
    pub detail: String,
    /// Whether and when to send it again.
    pub retry: Option<Retry>,
}

impl Refusal {
    /// A refusal that a retry cannot mend.
    #[must_use]
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into(), retry: None }
    }

    /// A refusal with a directive.
    #[must_use]
    pub fn retry(code: Code, detail: impl Into<String>, retry: Retry) -> Self {
        Self { code, detail: detail.into(), retry: Some(retry) }
    }
}
