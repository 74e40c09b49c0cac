//! The shell around `conch-core`: connections, tasks, clocks.

pub mod auth;
pub mod config;
pub mod metrics;
pub mod ops;
pub mod seams;
