//! The shell around `conch-core`: connections, tasks, clocks.

pub mod seams;
pub mod turn;
