//! The memory store, for tests and the simulation.
