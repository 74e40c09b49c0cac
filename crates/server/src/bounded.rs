//! Waiting at a bound, and counting that it was reached.
//!
//! Invariant: whoever waits because a channel is full or all permits are taken has been counted once.

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{AcquireError, Semaphore, SemaphorePermit, mpsc};

use crate::metrics::{Metrics, Queue};

/// The other side of a channel is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the receiver is gone")]
pub(crate) struct Gone;

/// Sends, waiting for room where there is none.
///
/// # Errors
/// When the receiver is gone.
pub(crate) async fn send<T>(to: &mpsc::Sender<T>, item: T, metrics: &Metrics, queue: Queue) -> Result<(), Gone> {
    match to.try_send(item) {
        Ok(()) => Ok(()),
        Err(TrySendError::Closed(_)) => Err(Gone),
        Err(TrySendError::Full(item)) => {
            metrics.limit_hit(queue);
            to.send(item).await.map_err(|_| Gone)
        }
    }
}

/// Takes a permit, waiting for one where there is none.
///
/// # Errors
/// When the semaphore is closed.
pub(crate) async fn acquire<'a>(
    permits: &'a Semaphore,
    metrics: &Metrics,
    queue: Queue,
) -> Result<SemaphorePermit<'a>, AcquireError> {
    if let Ok(permit) = permits.try_acquire() {
        return Ok(permit);
    }
    metrics.limit_hit(queue);
    permits.acquire().await
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn hits(metrics: &Metrics, queue: &str) -> String {
        let page = metrics.encode("").1;
        let name = format!("conch_limit_hits_total{{queue=\"{queue}\"}} ");
        page.lines().find_map(|line| line.strip_prefix(&name)).expect("every queue is there").to_owned()
    }

    #[tokio::test]
    async fn a_full_channel_is_counted_and_waited_for() {
        let metrics = Metrics::new();
        let (to, mut from) = mpsc::channel(1);
        assert_eq!(send(&to, 1, &metrics, Queue::HubCommands).await, Ok(()));
        assert_eq!(hits(&metrics, "hub_commands"), "0");
        let mut second = Box::pin(send(&to, 2, &metrics, Queue::HubCommands));
        assert_eq!(second.as_mut().now_or_never(), None);
        assert_eq!(hits(&metrics, "hub_commands"), "1");
        assert_eq!(from.recv().await, Some(1));
        assert_eq!(second.await, Ok(()));
        assert_eq!(from.recv().await, Some(2));
        drop(from);
        assert_eq!(send(&to, 3, &metrics, Queue::HubCommands).await, Err(Gone));
        assert_eq!(hits(&metrics, "hub_commands"), "1", "nobody waited");
    }

    #[tokio::test]
    async fn taken_permits_are_counted_and_waited_for() {
        let metrics = Metrics::new();
        let permits = Semaphore::new(1);
        let first = acquire(&permits, &metrics, Queue::Claims).await.expect("open");
        assert_eq!(hits(&metrics, "claims"), "0");
        let mut second = Box::pin(acquire(&permits, &metrics, Queue::Claims));
        assert!(second.as_mut().now_or_never().is_none());
        assert_eq!(hits(&metrics, "claims"), "1");
        drop(first);
        assert!(second.await.is_ok());
    }
}
