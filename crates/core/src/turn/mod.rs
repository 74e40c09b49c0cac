//! Turns: the runs of an agent in a `session` conversation.
//!
//! Every input (a message or an event of somebody who is not the server) starts one turn, whose id is the input's seq.
//! The journal of a turn is the conversation's own log: [`journal`] says which records, under which keys. The
//! [`TurnMachine`] folds the log and decides what is appended and run next; [`TurnCheckpoint`] is its state between
//! thaws; [`live`] holds what is streamed beside the log; [`demo`] is the script of the agent that always exists.
//!
//! Deliberately absent: tasks, sleeping and the calls to a model or a tool. The shell's runner does those.

mod checkpoint;
pub mod demo;
pub mod journal;
pub mod live;
mod machine;
mod step;

#[cfg(test)]
mod live_tests;
#[cfg(test)]
mod machine_tests;

pub use checkpoint::{CHECKPOINT_MAX_BYTES, CHECKPOINT_VERSION, InvalidCheckpoint, RunningTurn, TurnCheckpoint};
pub use machine::{Action, Due, Input, QUEUE_MAX_INPUTS, TurnMachine, TurnState};
pub use step::{STEP_ID_MAX_BYTES, StepId};
