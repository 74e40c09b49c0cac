//! Which server a command speaks to, and as whom.

use crate::args::TargetArgs;
use crate::client::{Endpoint, HttpClient};
use crate::exit::Failure;
use crate::local;

/// The client that the arguments ask for. Without a token, on loopback, one is minted from the development secret.
pub(crate) fn client(args: &TargetArgs) -> Result<HttpClient, Failure> {
    let endpoint = Endpoint::new(&args.url, args.token.clone()).map_err(Failure::usage)?;
    let endpoint = match (&args.token, endpoint.is_loopback()) {
        (Some(token), _) if token.bytes().any(|byte| !byte.is_ascii_graphic()) => {
            return Err(Failure::usage("token: may hold only visible ASCII characters"));
        }
        (Some(_), _) => endpoint,
        (None, true) => endpoint.with_token(local::token_of_the_user(args.store.store.as_deref()).map_err(|why| {
            Failure::usage(format!("no token: give --token or CONCH_TOKEN; none could be minted here: {why}"))
        })?),
        (None, false) => return Err(Failure::usage("no token: give --token or CONCH_TOKEN")),
    };
    Ok(HttpClient::new(endpoint)?)
}
