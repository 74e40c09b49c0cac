//! `conch token`: a token, on standard output and nothing else there, so that it fits into `$(…)`.

use conch_server::auth::glob::Glob;
use conch_server::auth::grants::{Grant, RateLimit};
use conch_server::auth::token::Mint;
use serde_json::json;

use crate::args::{Can, TokenArgs};
use crate::exit::Failure;
use crate::local::{self, MintError};
use crate::output::Output;

pub(crate) fn run(args: &TokenArgs, output: &Output) -> Result<(), Failure> {
    let config = local::config_of_store(args.store.store.as_deref()).map_err(Failure::usage)?;
    let conversations: Glob =
        args.conversations.parse().map_err(|error| Failure::usage(format!("--conversations: {error}")))?;
    let can: Vec<_> = args.can.iter().filter_map(|can| can.permission()).collect();
    if args.can.contains(&Can::None) && !can.is_empty() {
        return Err(Failure::usage("--can: none stands alone"));
    }
    let grants = if can.is_empty() { Vec::new() } else { vec![Grant { conversations, can }] };
    let token = local::mint(&config, |now| Mint {
        sub: args.sub.to_string(),
        name: args.name.clone(),
        expires_at: local::after(now, args.ttl),
        grants,
        rate_limit: if args.unlimited_rate { RateLimit::Lifted } else { RateLimit::Default },
    })
    .map_err(|error| match error {
        MintError::Key(_) => Failure::other(error.to_string()),
        MintError::Claim(_) => Failure::usage(error.to_string()),
    })?;
    if output.asked_for_json {
        return output.json(&json!({ "token": token }));
    }
    output.line(&token)
}
