//! `conch serve`: hands the configuration to the server and reports how it ended.

use conch_server::config::Config;

use crate::args::ServeArgs;
use crate::exit::Failure;
use crate::local;

pub(crate) fn run(args: &ServeArgs) -> Result<(), Failure> {
    let config = local::config(args.config.clone(), super::config::flags(args)).map_err(Failure::usage)?;
    serve(&config)
}

/// The one place where the command meets the server's composition root.
fn serve(_config: &Config) -> Result<(), Failure> {
    Err(Failure::other("this build holds no server"))
}
