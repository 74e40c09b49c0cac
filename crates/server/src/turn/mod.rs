//! Agents and the runs of their turns.
//!
//! What is appended when is decided by `conch_core::turn`'s machine in the owner's task; a [`runner`] does the work of one
//! turn beside it, and reaches the log through the owner alone (its [`runner::TurnPort`]).
//!
//! Deliberately absent: any state that outlives a turn. It is in the log.

pub mod agents;
pub mod model;
pub mod runner;

#[cfg(test)]
mod runner_tests;
