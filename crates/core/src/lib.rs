//! The pure half of Conch: everything that *decides*.
//!
//! Who may write, which number is next, whether a message is a duplicate, when a turn is over, what is shed. State
//! machines take time and identifiers as input and return actions; the shell (crate `conch-server`) performs them.
//!
//! Deliberately absent: IO, sockets, an async runtime, a clock, randomness. `tests/purity.rs` fails when one of them
//! creeps in, because the simulation and the model checker run this very code.

pub mod balance;
pub mod body;
pub mod coalesce;
pub mod conversation;
pub mod death;
pub mod due;
pub mod head;
pub mod heart;
pub mod history;
pub mod ids;
pub mod invariant;
pub mod json;
pub mod lease;
pub mod limit;
pub mod placement;
pub mod presence;
pub mod record;
pub mod refusal;
pub mod ring;
pub mod schema;
pub mod sequencer;
pub mod shed;
pub mod time;
pub mod turn;
pub mod verify;
pub mod wire;
