//! The simulation's tests, in one binary.

mod cluster;
mod model;
mod scripted;
mod seeds;
mod sources;
