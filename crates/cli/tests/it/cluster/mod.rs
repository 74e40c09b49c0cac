//! A cluster of real processes on a real PostgreSQL server, and what befalls it. Each test is one incident, named by its
//! class of failure; what clients sent, were told and saw is held against the invariants at its end.
//!
//! One test runs at a time: they look at how long a takeover takes, and several clusters at once would starve each other.

mod beliefs;
mod bench_crowds;
mod bench_turns;
mod channels;
mod chaos;
mod database;
mod drains;
mod failover;
mod gate;
mod heartbeats;
mod herd;
mod leases;
mod links;
mod load;
mod metronome;
mod network;
mod owners;
mod pair;
mod rig;
mod sockets;
mod tools;
mod turns;
mod weather;
