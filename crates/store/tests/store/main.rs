//! The suites that run every backend: one binary, a module a subject.

mod differential;
mod faulty;
mod memory;
mod sqlite;
