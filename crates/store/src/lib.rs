//! Where ownership and records are kept: two traits, and their backends.
//!
//! [`LeaseStore`] says who may write (node leases, and which incarnation owns which conversation at which epoch).
//! [`LogStore`] keeps what was written, and checks the fence in the write's own statement. One conformance suite
//! ([`conformance`]) holds every backend to the contracts written here.
//!
//! Deliberately absent: retries, caches and opinions about liveness. A backend answers what its database says.

pub mod conformance;
mod error;
pub mod etcd;
pub mod faulty;
mod lease;
mod log;
pub mod memory;
mod own_thread;
pub mod postgres;
mod size;
pub mod sqlite;

pub use error::StoreError;
pub use lease::{
    Armed, ClaimOutcome, ClaimRequest, Held, HeldLifeline, LeaseStore, Lifeline, Lifelines, LifelinesSeen, NodeRow,
    OwnerSeen, RESOLVE_MANY_MAX, Registration, Resolution, Resolved,
};
pub use log::{
    AppendOutcome, Batch, Checkpoint, ConversationInfo, ConversationPatch, Created, CursorOutcome, Direction,
    DueChange, DueMark, DueQuery, DueRow, DueWhy, Duplicate, Head, Landed, LogStore, Member, MembershipChange,
    NewConversation, Page, RangeQuery, Summary, SummaryPage, UNREAD_CAP,
};
pub use size::Size;

/// Both halves in one object, as every current backend offers them.
pub trait Store: LeaseStore + LogStore {}
impl<T: LeaseStore + LogStore> Store for T {}
