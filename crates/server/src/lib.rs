//! The shell around `conch-core`: connections, tasks, clocks.

pub mod agents;
pub mod auth;
mod bounded;
pub mod canary;
pub mod cluster;
pub mod config;
pub mod cursors;
pub mod delivery;
pub mod events;
pub mod frame;
pub mod gateway;
pub mod hub;
pub mod link;
pub mod metrics;
#[cfg(feature = "mutants")]
mod mutants;
pub mod node;
pub mod ops;
pub mod owner;
pub mod people;
pub mod pressure;
pub mod router;
pub mod rules;
pub mod runtime;
pub mod seams;
pub mod serve;
pub mod stores;
pub mod turn;

#[cfg(test)]
mod testing;
