//! The link's protocol: what one node's connection to another carries (docs/adr/0009-link-protocol.md).
//!
//! A frame is its length in four bytes, most significant first, one byte that says what it is, and its fields. Numbers are
//! variable in length, texts carry their length, and a record's body is the text that it is everywhere else.
//!
//! Invariant: a frame that decodes encodes to the same value again; one that does not is refused with what is wrong with it,
//! whatever its bytes are, and before more than its limit was read.
//!
//! Deliberately absent: sockets, time, and the key of the proofs ([`transcript`] is only what they are made over).

mod encoding;
mod frame;
mod hello;
mod messages;
mod survey;
#[cfg(test)]
mod tests;
mod values;

pub use encoding::{DecodeError, Known};
pub use frame::{Frame, Opened, Reason, RequestId, StreamId, next_frame};
pub use hello::{FEATURES, Features, Hello, NONCE_BYTES, PROOF_BYTES, Proof, Side, VERSION, Version, transcript};
pub use messages::{FollowerReport, Handed, Hops, Notice, Request, Response};
pub use survey::{EventsPage, Owned, OwnedPage, OwnedQuery, Rest};

/// Most bytes of a frame before its sender has proved itself.
pub const HELLO_MAX_BYTES: usize = 1024;
/// Most bytes of any frame that a configuration may allow (64 MiB).
pub const FRAME_MAX_BYTES: usize = 64 * 1024 * 1024;
