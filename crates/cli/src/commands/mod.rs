//! The commands, one module each; every one is `run(arguments, output)`.

pub(crate) mod canary;
pub(crate) mod check_history;
pub(crate) mod cluster;
pub(crate) mod config;
pub(crate) mod conversation;
pub(crate) mod history;
mod live;
pub(crate) mod nodes;
pub(crate) mod send;
pub(crate) mod serve;
pub(crate) mod tail;
pub(crate) mod token;
pub(crate) mod turn;
pub(crate) mod verify;

use std::time::Duration;

use crate::client::{Answer, HttpClient, Request, deliver};
use crate::exit::Failure;
use crate::output::Output;

/// Sends a request within the budget, and shows on a terminal that it waits.
async fn call(client: &HttpClient, request: &Request, budget: Duration, output: &Output) -> Result<Answer, Failure> {
    let shown = *output;
    let mut waited = false;
    let answer = deliver(client, request, budget, &mut |waiting| {
        waited = true;
        shown.waiting(&waiting);
    })
    .await;
    if waited {
        output.waiting_is_over();
    }
    Ok(answer?)
}
