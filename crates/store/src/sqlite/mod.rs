//! The embedded default.
