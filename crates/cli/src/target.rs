//! Which server a command speaks to, and as whom.

use crate::args::TargetArgs;
use crate::client::{Endpoint, HttpClient};
use crate::exit::Failure;
use crate::local;

/// Most servers of one `--url`.
const SERVERS_MAX: usize = 16;

/// The client that the arguments ask for. Without a token, on loopback, one is minted with the key that is found here.
pub(crate) fn client(args: &TargetArgs) -> Result<HttpClient, Failure> {
    let urls: Vec<&str> = args.url.split(',').map(str::trim).collect();
    if urls.len() > SERVERS_MAX {
        return Err(Failure::usage(format!("url: {} servers; at most {SERVERS_MAX} are taken", urls.len())));
    }
    let endpoints: Result<Vec<Endpoint>, String> = urls.iter().map(|url| Endpoint::new(url, None)).collect();
    let endpoints = endpoints.map_err(Failure::usage)?;
    let token = match (&args.token, endpoints.iter().all(Endpoint::is_loopback)) {
        (Some(token), _) if token.bytes().any(|byte| !byte.is_ascii_graphic()) => {
            return Err(Failure::usage("token: may hold only visible ASCII characters"));
        }
        (Some(token), _) => token.clone(),
        (None, true) => local::token_of_the_user(args.store.store.as_deref()).map_err(|why| {
            Failure::usage(format!("no token: give --token or CONCH_TOKEN; none could be minted here: {why}"))
        })?,
        (None, false) => return Err(Failure::usage("no token: give --token or CONCH_TOKEN")),
    };
    let mut endpoints = endpoints.iter().map(|endpoint| endpoint.with_token(token.clone()));
    let first = endpoints.next().expect("a split text has at least one part");
    Ok(HttpClient::of_any(first, endpoints.collect())?)
}
