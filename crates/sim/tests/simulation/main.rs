//! The simulation's tests, in one binary.

mod scripted;
mod seeds;
mod sources;
