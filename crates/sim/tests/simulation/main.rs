//! The simulation's tests, in one binary.

mod cluster;
mod faults;
mod model;
mod routing;
mod scene;
mod scripted;
mod seeds;
mod sources;
