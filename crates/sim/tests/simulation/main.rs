//! The simulation's tests, in one binary.

mod acts;
mod agents;
mod balance;
mod cluster;
mod faults;
mod following;
mod lacking;
mod load;
mod model;
mod routing;
mod scene;
mod scripted;
mod seeds;
mod sources;
mod storms;
mod turns;
