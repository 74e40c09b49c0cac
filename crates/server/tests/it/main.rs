//! A whole node over real sockets: every sentence of the wire contract that is built, as a test.

mod harness;

mod access;
mod agents;
mod bad_input;
mod chats;
mod chats_broken;
mod cluster;
mod conversations;
mod events;
mod limits;
mod link;
mod members;
mod messages;
mod operations;
mod phoenix;
mod sockets;
mod survey;
mod turn_calls;
mod turns;
