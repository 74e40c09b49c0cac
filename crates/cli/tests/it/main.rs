//! The real process, from outside: what a person or a script sees of `conch`. Needs no network but loopback.

mod bench;
mod bench_turns;
mod cluster;
mod commands;
mod crashes;
mod disk;
mod flow;
mod hostile;
mod memory;
mod node;
mod operators;
mod refusals;
mod stops;
mod verify;
