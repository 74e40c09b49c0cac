//! Who catches up, and what is read for it.

use conch_store::faulty::{Call, Fault, FaultPlan, FaultyStore};
use conch_store::memory::MemoryStore;
use tokio::sync::watch;

use super::*;
use crate::cluster::heartbeat::{self, LeaseState};
use crate::config::Config;
use crate::rules::{Rule, Rules};
use crate::testing::{self, hit, hits};

/// Takes everything, and tells how many events of each name.
#[derive(Default)]
pub(super) struct Counting(Mutex<BTreeMap<String, usize>>);

impl sink::FrameSink for Counting {
    fn push(&self, frame: &Arc<crate::frame::Frame>) -> sink::Push {
        *self.0.lock().expect("no panic").entry(frame.event().to_owned()).or_default() += 1;
        sink::Push::Accepted
    }

    fn room(&self) -> futures_util::future::BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    fn end(&self, _reason: &Refusal) {}
}

impl Sink for Counting {
    fn joined(&self, _joined: &sink::Joined) {}
}

impl Counting {
    fn seen(&self, event: &str) -> usize {
        self.0.lock().expect("no panic").get(event).copied().unwrap_or_default()
    }
}

/// A gateway whose store has one message, in `c`, and all of whose reads for catching up are taken.
struct Waiting {
    node: Arc<Node>,
    hubs: Hubs,
    conversation: ConvRef,
    _lease: watch::Receiver<LeaseState>,
}

impl Waiting {
    async fn new() -> Self {
        Self::without(&[]).await
    }

    async fn without(rules: &[Rule]) -> Self {
        let mut config = Config::default();
        config.limits.catch_up_reads = 1;
        // The heart beats in real time, beside which the paused one flies.
        config.lease.ttl_ms = 600_000;
        let node = testing::paused_node(&config, testing::empty_store());
        let mut node = Arc::into_inner(node).expect("nobody else has it");
        node.rules = Rules::without(rules);
        let node = Arc::new(node);
        let lease = heartbeat::start(&node, String::new()).await.expect("registered");
        let conversation = testing::channel(&node, "c").await;
        let router = testing::router(&node);
        router.append(&conversation, vec![testing::message("k")]).await.expect("written");
        let hubs = Hubs::new(Arc::clone(&node), router, config.hub_limits());
        Self { node, hubs, conversation, _lease: lease }
    }

    async fn join(&self) -> (Session, Arc<Counting>) {
        let sink = Arc::new(Counting::default());
        let join = Join {
            sink: Arc::clone(&sink) as Arc<dyn Sink>,
            sub: "alice".parse().expect("valid"),
            name: None,
            after: Some(Seq(0)),
            log: None,
        };
        (self.hubs.join(&self.conversation, join).await.expect("joined"), sink)
    }

    fn reads(&self) -> u64 {
        self.node.metrics.catch_up_reads.get()
    }
}

/// Lets the other tasks run for long enough to say that they have nothing left to do.
async fn settle() {
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn reads_over_their_limit_wait_and_are_counted() {
    let waiting = Waiting::new().await;
    let held = waiting.hubs.shared.reads.under_way.acquire().await.expect("it is open");
    let (_session, sink) = waiting.join().await;
    hit(&waiting.node, "reads").await;
    assert_eq!(sink.seen("message"), 0, "it waits");
    drop(held);
    settle().await;
    assert_eq!((sink.seen("caught_up"), sink.seen("message"), hits(&waiting.node, "reads")), (1, 1, 1));
}

/// How often the store was read for a session that left before its read's turn had come.
async fn reads_for_who_has_left(without: &[Rule]) -> u64 {
    let waiting = Waiting::without(without).await;
    let held = waiting.hubs.shared.reads.under_way.acquire().await.expect("it is open");
    let (first, _) = waiting.join().await;
    hit(&waiting.node, "reads").await;
    drop(first);
    settle().await;
    drop(held);
    settle().await;
    let reads = waiting.reads();
    // Nothing of it is left behind.
    let (_session, sink) = waiting.join().await;
    settle().await;
    assert_eq!((waiting.reads(), sink.seen("message")), (1, 1));
    reads
}

#[tokio::test(start_paused = true)]
async fn what_nobody_waits_for_any_more_is_not_read() {
    assert_eq!(reads_for_who_has_left(&[]).await, 0);
    assert_eq!(reads_for_who_has_left(&[Rule::UnwantedIsNotRead]).await, 1, "the rule is needed");
}

#[tokio::test(start_paused = true)]
async fn what_somebody_else_waits_for_is_read_although_its_reader_is_gone() {
    let waiting = Waiting::new().await;
    let held = waiting.hubs.shared.reads.under_way.acquire().await.expect("it is open");
    let (first, _) = waiting.join().await;
    hit(&waiting.node, "reads").await;
    let (_second, sink) = waiting.join().await;
    settle().await;
    drop(first);
    settle().await;
    drop(held);
    settle().await;
    assert_eq!((waiting.reads(), sink.seen("message"), hits(&waiting.node, "reads")), (1, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_anothers_read_waits_its_own_time() {
    let waiting = Waiting::new().await;
    let held = waiting.hubs.shared.reads.under_way.acquire().await.expect("it is open");
    let (_early, early) = waiting.join().await;
    hit(&waiting.node, "reads").await;
    tokio::time::sleep(Duration::from_secs(9)).await;
    let (_late, late) = waiting.join().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!((early.seen("resync"), late.seen("resync")), (1, 0), "ten seconds are over for one");
    drop(held);
    settle().await;
    assert_eq!((late.seen("message"), late.seen("resync")), (1, 0));
}

/// Holds one kind of call back until it is told to go on.
struct Gate {
    call: Call,
    open: watch::Sender<bool>,
}

impl FaultPlan for Gate {
    fn next(&self, call: Call) -> Fault {
        if call != self.call {
            return Fault::None;
        }
        let mut open = self.open.subscribe();
        Fault::DelayBefore(Box::pin(async move { drop(open.wait_for(|open| *open).await) }))
    }
}

/// Somebody joins with a position about which the store has to be asked, and the store takes its time.
async fn join_while_the_store_is_slow(call: Call, after: Seq) {
    let mut config = Config::default();
    config.limits.catch_up_records = 1;
    let gate = Arc::new(Gate { call, open: watch::Sender::new(false) });
    let memory = Arc::new(MemoryStore::new("test", Arc::new(|| 0)));
    let store = FaultyStore::new(memory, Arc::clone(&gate) as Arc<dyn FaultPlan>, Arc::new(|_| {}));
    let node = testing::node(&config, Arc::new(store));
    let _lease = heartbeat::start(&node, String::new()).await.expect("registered");
    let conversation = testing::channel(&node, "c").await;
    let router = testing::router(&node);
    for key in 0..5 {
        router.append(&conversation, vec![testing::message(&key.to_string())]).await.expect("written");
    }
    let hubs = Hubs::new(Arc::clone(&node), router.clone(), config.hub_limits());
    let join = |after| {
        let sink = Arc::new(Counting::default());
        let sub = "alice".parse().expect("valid");
        (Arc::clone(&sink), Join { sink: sink as Arc<dyn Sink>, sub, name: None, after, log: None })
    };
    let (watching, here) = join(None);
    let _here = hubs.join(&conversation, here).await.expect("joined");
    let (coming, comes) = join(Some(after));
    let joining = hubs.join(&conversation, comes);
    let mut joining = std::pin::pin!(joining);
    for key in 5..8 {
        assert!(futures_util::poll!(&mut joining).is_pending(), "the store has not answered");
        router.append(&conversation, vec![testing::message(&key.to_string())]).await.expect("written");
        settle().await;
        assert_eq!(watching.seen("message"), key - 4, "who is here does not wait for it");
    }
    gate.open.send_replace(true);
    let _came = joining.await.expect("joined");
    assert_eq!(coming.seen("resync"), 1);
}

#[tokio::test]
async fn who_is_here_does_not_wait_for_what_the_store_knows_of_who_comes() {
    join_while_the_store_is_slow(Call::CountAfter, Seq(0)).await;
    join_while_the_store_is_slow(Call::Range, Seq(100)).await;
}

/// Takes everything, and counts the calls.
#[derive(Default)]
struct Calls(Mutex<(usize, usize)>);

impl sink::FrameSink for Calls {
    fn push(&self, frame: &Arc<crate::frame::Frame>) -> sink::Push {
        let mut calls = self.0.lock().expect("no panic");
        calls.0 += 1;
        calls.1 += usize::from(frame.event() == "message");
        sink::Push::Accepted
    }

    fn push_joined(&self, batch: &crate::delivery::Batch) -> sink::Push {
        let mut calls = self.0.lock().expect("no panic");
        calls.0 += 1;
        calls.1 += batch.shown().iter().filter(|shown| shown.frame.event() == "message").count();
        sink::Push::Accepted
    }

    fn room(&self) -> futures_util::future::BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    fn end(&self, _reason: &Refusal) {}
}

impl Sink for Calls {
    fn joined(&self, _joined: &sink::Joined) {}
}

/// Coming back costs few writes, be it from the store or from the ring.
#[tokio::test(start_paused = true)]
async fn what_was_missed_is_shown_as_one() {
    let waiting = Waiting::new().await;
    let join = || {
        let sink = Arc::new(Calls::default());
        let sub = "bob".parse().expect("valid");
        let join = Join { sink: Arc::clone(&sink) as Arc<dyn Sink>, sub, name: None, after: Some(Seq(0)), log: None };
        (sink, join)
    };
    let router = &waiting.hubs.shared.router;
    for key in 0..50 {
        router.append(&waiting.conversation, vec![testing::message(&key.to_string())]).await.expect("written");
    }
    // Who is there is one more frame. All 51 are in the store alone.
    let (from_the_store, comes) = join();
    let _first = waiting.hubs.join(&waiting.conversation, comes).await.expect("joined");
    settle().await;
    let (calls, messages) = *from_the_store.0.lock().expect("no panic");
    assert_eq!(messages, 51);
    assert!(calls <= 3, "{calls}");
    // These fifty are in the ring, too.
    for key in 50..100 {
        router.append(&waiting.conversation, vec![testing::message(&key.to_string())]).await.expect("written");
    }
    let before = waiting.node.metrics.catch_ups.get();
    let (from_the_ring, mut comes) = join();
    comes.after = Some(Seq(51));
    let _second = waiting.hubs.join(&waiting.conversation, comes).await.expect("joined");
    settle().await;
    let (calls, messages) = *from_the_ring.0.lock().expect("no panic");
    assert_eq!((messages, waiting.node.metrics.catch_ups.get() - before), (50, 0));
    assert!(calls <= 2, "{calls}");
}
