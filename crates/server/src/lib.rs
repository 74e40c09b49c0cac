//! The shell around `conch-core`: connections, tasks, clocks.

pub mod auth;
pub mod config;
pub mod seams;
pub mod turn;
