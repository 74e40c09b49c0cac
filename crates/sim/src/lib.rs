//! The seeded simulation of Conch: the server's own logic on a store that fails, in simulated time.
//!
//! One seed decides everything: which task runs next, when a call fails, when a process dies. The same seed gives the
//! same bytes ([`trace::Trace`]), so a failure is reproduced by its seed alone.
//!
//! Beside it, [`model`] goes through every order of events of ownership within bounds, without a server around it.
//!
//! Deliberately absent: real time, threads inside a run, sockets. What needs those is tested on real processes.

pub mod asker;
pub mod client;
pub mod coverage;
pub mod dice;
pub mod executor;
pub mod history;
pub mod machine;
pub mod model;
pub mod network;
pub mod observer;
pub mod outside;
pub mod recorder;
pub mod scenario;
pub mod shared;
pub mod trace;
pub mod trouble;
pub mod weather;
pub mod world;
