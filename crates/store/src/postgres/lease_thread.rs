//! The node leases' own connections, on their own thread.
//!
//! Invariants: nothing that fills the caller's runtime or the pool delays a renewal; a renewal shares its connection only
//! with other calls about its own row, and never waits behind a look at the other nodes; a lost connection is dialled
//! again at the next call; a call waits for one dial and for one answer, each within its limit; a call whose caller has
//! given up before it was sent is never sent, so that an outage leaves no renewals behind.
//!
//! Deliberately absent: retries. The heartbeat decides what a failed beat means.

use std::future::Future;
use std::sync::Arc;

use super::error::CallError;
use super::session::{Dialer, Session, Slot};
use crate::StoreError;
use crate::own_thread::{Effect, Lane, OwnThread};

impl Effect {
    pub(super) fn judge(self, error: CallError) -> StoreError {
        match self {
            Self::Read => error.of_read(),
            Self::Write => error.of_write(),
        }
    }
}

/// The way to the thread. It ends when the last of these is dropped, and with it its connections.
#[derive(Clone)]
pub(super) struct LeaseThread {
    thread: OwnThread,
    dialer: Arc<Dialer>,
    heartbeat: Arc<Slot>,
    membership: Arc<Slot>,
}

impl LeaseThread {
    pub(super) fn start(dialer: Arc<Dialer>) -> std::io::Result<Self> {
        let thread = OwnThread::start("postgres-leases")?;
        let (heartbeat, membership) = (Arc::new(Slot::new("heartbeat")), Arc::new(Slot::new("membership")));
        Ok(Self { thread, dialer, heartbeat, membership })
    }

    pub(super) fn dialer(&self) -> &Arc<Dialer> {
        &self.dialer
    }

    /// Runs `work` on a lane's session, once there is one, whether or not the caller still waits.
    pub(super) async fn call<T, F, W>(&self, lane: Lane, effect: Effect, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(Arc<Session>) -> W + Send + 'static,
        W: Future<Output = Result<T, CallError>> + Send,
    {
        let slot = Arc::clone(match lane {
            Lane::Heartbeat => &self.heartbeat,
            Lane::Membership => &self.membership,
        });
        let dialer = Arc::clone(&self.dialer);
        let ready = async move { slot.get(&dialer).await };
        let work = move |session| async move { work(session).await.map_err(|error| effect.judge(error)) };
        self.thread.run_when(lane, effect, ready, work).await
    }

    /// Waits until it is `ready`, as long as the caller does, and then asks with it; what is asked changes nothing.
    pub(super) async fn ask<P, T, F, W>(
        &self,
        lane: Lane,
        ready: impl Future<Output = Result<P, StoreError>> + Send + 'static,
        work: F,
    ) -> Result<T, StoreError>
    where
        P: Send,
        T: Send + 'static,
        F: FnOnce(P) -> W + Send + 'static,
        W: Future<Output = Result<T, CallError>> + Send,
    {
        let work = move |ready| async move { work(ready).await.map_err(CallError::of_read) };
        self.thread.run_when(lane, Effect::Read, ready, work).await
    }
}
