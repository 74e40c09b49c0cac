//! The `conch` command; everything is in the library beside it, so that tests can use the client.

use std::process::ExitCode;

fn main() -> ExitCode {
    conch_cli::main()
}
