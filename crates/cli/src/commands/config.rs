//! `conch config`: what is in effect, secrets hidden.

use conch_server::config::Flags;

use crate::args::ServeArgs;
use crate::exit::Failure;
use crate::local;
use crate::output::{Format, Output};

pub(crate) fn run(args: &ServeArgs, output: &Output) -> Result<(), Failure> {
    let config = local::config(args.config.clone(), flags(args)).map_err(Failure::usage)?;
    match output.format {
        Format::Human => output.write(&config.effective_toml()),
        Format::Json => output.json(&config),
    }
}

/// The flags of `serve` and `config`, as the configuration takes them.
pub(super) fn flags(args: &ServeArgs) -> Flags {
    Flags {
        node: args.node.clone(),
        region: args.region.clone(),
        listen: args.listen.clone(),
        ops_listen: args.ops_listen.clone(),
        store: args.store.clone(),
        log_format: args.log_format.clone(),
        log_level: args.log_level.clone(),
        set: args.set.clone(),
    }
}
