//! The `conch` command.

fn main() {}
