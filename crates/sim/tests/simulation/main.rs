//! The simulation's tests, in one binary.

mod cluster;
mod scripted;
mod seeds;
mod sources;
