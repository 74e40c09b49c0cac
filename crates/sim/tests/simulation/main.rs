//! The simulation's tests, in one binary.

mod model;
mod scripted;
mod seeds;
mod sources;
