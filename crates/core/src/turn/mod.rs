//! Turns: the runs of an agent in a `session` conversation.
//!
//! Every input (a message or an event of somebody who is not the server) starts one turn, whose id is the input's seq, or
//! joins one. The journal of a turn is the conversation's own log: [`journal`] says which records, under which keys. The
//! [`TurnMachine`] folds the log and decides what is appended and run next; [`TurnCheckpoint`] is its state between
//! thaws. A runner that goes on with a turn finds what is done in its [`replay::Replay`]; what a model sees of the
//! conversation is [`context`], and what somebody who asks is shown of a turn [`overview`]; [`live`] holds what is streamed
//! beside the log; [`demo`] is the script of the agent that always exists.
//!
//! Deliberately absent: tasks, sleeping and the calls to a model or a tool. The shell's runner does those.

pub mod awaits;
pub mod budget;
pub mod cancel;
mod checkpoint;
pub mod context;
pub mod demo;
mod due;
pub mod journal;
pub mod live;
mod machine;
pub mod overview;
pub mod replaced;
pub mod replay;
pub mod result;
mod running;
mod step;

#[cfg(test)]
mod context_tests;
#[cfg(test)]
mod live_tests;
#[cfg(test)]
mod machine_tests;
#[cfg(test)]
mod overview_tests;

pub use checkpoint::{CHECKPOINT_MAX_BYTES, CHECKPOINT_VERSION, InvalidCheckpoint, RunningTurn, TurnCheckpoint};
pub use due::Due;
pub use machine::{
    Action, AgentIs, Begin, Gone, Input, JOIN_MAX_INPUTS, NotDone, Now, QUEUE_MAX_INPUTS, Setup, StartRunner,
    TurnMachine, TurnState,
};
pub use step::{OWN_NAME_MAX_BYTES, STEP_ID_MAX_BYTES, StepId};
