//! One suite that every backend passes.
