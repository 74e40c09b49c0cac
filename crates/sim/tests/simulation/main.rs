//! The simulation's tests, in one binary.

mod balance;
mod cluster;
mod model;
mod routing;
mod scene;
mod scripted;
mod seeds;
mod sources;
