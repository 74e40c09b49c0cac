//! `conch bench fanout`: one channel, many sessions.
//!
//! Without `--gateways` in rounds on one node beside a bare loop, for what a delivery costs; with it as the incident that
//! everybody joins, on several nodes, for what those who are in it see.

mod bare;
mod beside;
mod incident;
mod rounds;

use super::FanoutArgs;
use crate::exit::Failure;
use crate::output::Output;

pub(super) async fn run(args: &FanoutArgs, output: &Output) -> Result<(), Failure> {
    match args.gateways {
        None => rounds::run(args, output).await,
        Some(gateways) => incident::run(args, gateways as usize, output).await,
    }
}

/// A payload with its frame's header.
fn framed(payload_bytes: u64) -> u64 {
    payload_bytes + if payload_bytes > 125 { 4 } else { 2 }
}
