//! What each fault does to a call, and to the store behind it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use conch_store::faulty::{BoxFuture, Call, Fault, FaultPlan, FaultyStore};
use conch_store::memory::MemoryStore;
use conch_store::{AppendOutcome, Armed, LogStore, StoreError};
use tokio::sync::oneshot;

use crate::memory::{ME, batch, claim, prepare, seqs, store, won};

/// Faults for the next appends; every other call is answered.
#[derive(Default)]
struct Planned {
    appends: Mutex<VecDeque<Fault>>,
}

impl FaultPlan for Planned {
    fn next(&self, call: Call) -> Fault {
        if call != Call::Append {
            return Fault::None;
        }
        self.appends.lock().expect("not poisoned").pop_front().unwrap_or(Fault::None)
    }
}

struct Rig {
    memory: MemoryStore,
    plan: Arc<Planned>,
    faulty: FaultyStore<MemoryStore>,
    late: Arc<Mutex<Vec<BoxFuture<()>>>>,
    armed: Armed,
}

impl Rig {
    async fn new() -> Self {
        let memory = store();
        prepare(&memory).await;
        let armed = won(&memory, claim(ME, None)).await;
        let plan = Arc::new(Planned::default());
        let late: Arc<Mutex<Vec<BoxFuture<()>>>> = Arc::default();
        let spawned = Arc::clone(&late);
        let spawner = Arc::new(move |task| spawned.lock().expect("not poisoned").push(task));
        let faulty = FaultyStore::new(Arc::new(memory.clone()), Arc::clone(&plan) as _, spawner);
        Self { memory, plan, faulty, late, armed }
    }

    fn plan(&self, fault: Fault) {
        self.plan.appends.lock().expect("not poisoned").push_back(fault);
    }

    async fn append(&self, key: &str) -> Result<Vec<AppendOutcome>, StoreError> {
        self.faulty.append(ME, vec![batch(self.armed, key)]).await
    }

    async fn count(&self) -> usize {
        seqs(&self.memory).await.len()
    }
}

/// A future that completes when the sender is used.
fn gate() -> (oneshot::Sender<()>, BoxFuture<()>) {
    let (open, opened) = oneshot::channel();
    (open, Box::pin(async move { drop(opened.await) }))
}

#[tokio::test]
async fn a_refusal_applies_nothing() {
    let rig = Rig::new().await;
    rig.plan(Fault::RefuseBefore(StoreError::Full("no room".to_owned())));
    assert_eq!(rig.append("k1").await, Err(StoreError::Full("no room".to_owned())));
    assert_eq!(rig.count().await, 0);
    rig.append("k1").await.expect("the plan is through");
    assert_eq!(rig.count().await, 1);
}

#[tokio::test]
async fn a_lost_reply_is_applied() {
    let rig = Rig::new().await;
    rig.plan(Fault::ApplyThenLoseReply);
    let error = rig.append("k1").await.expect_err("lost");
    assert!(error.is_ambiguous(), "{error}");
    assert_eq!(rig.count().await, 1);
}

#[tokio::test]
async fn a_late_write_lands_only_if_the_reign_still_stands() {
    for takeover in [None, Some(claim(ME, None))] {
        let rig = Rig::new().await;
        let (open, opened) = gate();
        rig.plan(Fault::ApplyLate(opened));
        let error = rig.append("k1").await.expect_err("lost");
        assert!(error.is_ambiguous(), "{error}");
        assert_eq!(rig.count().await, 0, "not applied yet");
        let expected = if takeover.is_some() { 0 } else { 1 };
        if let Some(mut request) = takeover {
            (request.seen_epoch, request.seen_owner) = (Some(rig.armed.epoch), Some(ME));
            won(&rig.memory, request).await;
        }
        open.send(()).expect("the task waits");
        let task = rig.late.lock().expect("not poisoned").pop().expect("the write was handed to the spawner");
        task.await;
        assert_eq!(rig.count().await, expected);
    }
}

#[tokio::test]
async fn delays_lie_before_or_after_the_application() {
    for (after, at_the_gate) in [(false, 0), (true, 1)] {
        let rig = Rig::new().await;
        let (open, opened) = gate();
        rig.plan(if after { Fault::DelayAfter(opened) } else { Fault::DelayBefore(opened) });
        let (outcome, ()) = tokio::join!(biased; rig.append("k1"), async {
            assert_eq!(rig.count().await, at_the_gate);
            open.send(()).expect("the call waits");
        });
        assert!(matches!(outcome.as_deref(), Ok([AppendOutcome::Landed { .. }])), "{outcome:?}");
        assert_eq!(rig.count().await, 1);
    }
}

#[tokio::test]
async fn a_read_that_fails_leaves_nothing_in_doubt() {
    struct Losing;
    impl FaultPlan for Losing {
        fn next(&self, call: Call) -> Fault {
            if call.is_lease() { Fault::ApplyLate(Box::pin(async {})) } else { Fault::ApplyThenLoseReply }
        }
    }
    let rig = Rig::new().await;
    let spawner = Arc::new(|_| unreachable!("a read is not made late"));
    let losing = FaultyStore::new(Arc::new(rig.memory.clone()), Arc::new(Losing), spawner);
    for error in
        [losing.log().await.expect_err("lost"), conch_store::LeaseStore::nodes(&losing).await.expect_err("lost")]
    {
        assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
    }
}
