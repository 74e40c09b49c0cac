//! The simulation's tests, in one binary.

mod seeds;
mod sources;
