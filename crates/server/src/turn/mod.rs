//! Agents and the runs of their turns.
//!
//! What is appended when is decided by `conch_core::turn`'s machine in the owner's task; a [`runner`] does the work of one
//! turn beside it, and reaches the log through the owner alone (its [`port::TurnPort`]). An [`agent::TurnAgent`] is what
//! answers, and [`context::TurnContext`] all that it has: so every kind of agent resumes, waits and is cancelled alike.
//!
//! Deliberately absent: any state that outlives a turn. It is in the log.

pub mod agent;
pub mod agents;
pub mod context;
pub mod demo;
pub mod lookup;
pub mod port;
pub mod runner;
pub mod schema;

#[cfg(test)]
mod runner_tests;
