//! The seeded simulation.
