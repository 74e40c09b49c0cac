//! The node among nodes: its lease, and the observation of others.

pub mod apart;
pub mod claims;
mod due;
pub mod heartbeat;
pub mod membership;
mod news;
pub mod nodes;
#[cfg(test)]
mod starved_tests;

use std::time::Duration;

use crate::seams::Seams;

/// Waits for `work`, but no longer than `limit`; `None`: it was given up.
async fn within<T>(seams: &Seams, limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    // Both branches are cancel safe: nobody waits for `work` afterwards.
    tokio::select! {
        biased;
        done = work => Some(done),
        () = seams.sleep(limit) => None,
    }
}
