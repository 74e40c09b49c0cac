//! What gathers before it is written, and for whom.

use conch_core::conversation::{ConversationKind, Settings};
use conch_store::ConversationPatch;
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::*;
use crate::config::Config;
use crate::testing;

/// Tells when it was shown a message.
#[derive(Default)]
struct Timed(Mutex<Option<Instant>>);

impl sink::FrameSink for Timed {
    fn push(&self, frame: &Arc<crate::frame::Frame>) -> sink::Push {
        if frame.event() == "message" {
            *self.0.lock().expect("no panic") = Some(Instant::now());
        }
        sink::Push::Accepted
    }

    fn room(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    fn end(&self, _reason: &Refusal) {}
}

impl Sink for Timed {
    fn joined(&self, _joined: &sink::Joined) {}
}

struct World {
    node: Arc<Node>,
    router: Router,
    hubs: Hubs,
    conversation: ConvRef,
    sessions: Vec<(Session, Arc<Timed>)>,
    messages: usize,
    _lease: tokio::sync::watch::Receiver<crate::cluster::heartbeat::LeaseState>,
}

impl World {
    /// A conversation in which frames gather for 200 ms from three sessions on, and for 800 ms under pressure.
    async fn new(kind: ConversationKind) -> Self {
        // The heart beats in real time, beside which the paused one flies.
        let mut config = Config::default();
        config.lease.ttl_ms = 600_000;
        let node = testing::paused_node(&config, testing::empty_store());
        let lease = crate::cluster::heartbeat::start(&node, String::new()).await.expect("registered");
        let conversation = testing::create(&node, "c", kind).await;
        let settings = Settings { coalesce_ms: Some(200), coalesce_max_ms: Some(800), ..Settings::default() };
        let patch = ConversationPatch { title: None, agent: None, settings: Some(settings) };
        node.store.patch_conversation(&conversation, &patch).await.expect("the store answers").expect("it is there");
        let router = testing::router(&node);
        let coalesce = CoalesceLimits { sessions: 3, ..CoalesceLimits::default() };
        let hubs = Hubs::new(Arc::clone(&node), router.clone(), HubLimits { coalesce, ..HubLimits::default() });
        Self { node, router, hubs, conversation, sessions: Vec::new(), messages: 0, _lease: lease }
    }

    async fn join(&mut self, sessions: usize) {
        for _ in 0..sessions {
            let sink = Arc::new(Timed::default());
            let sub = "alice".parse().expect("valid");
            let join = Join { sink: Arc::clone(&sink) as Arc<dyn Sink>, sub, name: None, after: None, log: None };
            self.sessions.push((self.hubs.join(&self.conversation, join).await.expect("joined"), sink));
        }
    }

    /// After two seconds: when each session is shown a message, in milliseconds.
    async fn shown_after_ms(&mut self) -> Vec<u128> {
        tokio::time::sleep(Duration::from_secs(2)).await;
        self.messages += 1;
        let message = testing::message(&self.messages.to_string());
        self.router.append(&self.conversation, vec![message]).await.expect("written");
        let written = Instant::now();
        tokio::time::sleep(Duration::from_secs(2)).await;
        let shown = |sink: &Timed| sink.0.lock().expect("no panic").take().expect("it was shown");
        self.sessions.iter().map(|(_, sink)| (shown(sink) - written).as_millis()).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn frames_gather_for_a_crowd_alone() {
    let mut world = World::new(ConversationKind::Channel).await;
    // Any number of members changes nothing.
    for member in 0..100 {
        let sub = format!("member-{member}").parse().expect("valid");
        world.node.store.add_member(&world.conversation, &sub).await.expect("added");
    }
    world.join(2).await;
    assert!(world.shown_after_ms().await.iter().all(|ms| *ms < 5));
    world.join(30).await;
    let shown = world.shown_after_ms().await;
    assert!(shown.iter().all(|ms| *ms <= 201), "{shown:?}");
    let late = shown.iter().filter(|ms| **ms >= 100).count();
    assert!((8..=24).contains(&late), "spread over the window: {shown:?}");
    world.sessions.truncate(2);
    assert!(world.shown_after_ms().await.iter().all(|ms| *ms < 5), "the crowd has left");
}

#[tokio::test(start_paused = true)]
async fn pressure_makes_the_window_longer_up_to_its_most() {
    let mut world = World::new(ConversationKind::Channel).await;
    world.join(32).await;
    let pressed = Arc::clone(&world.node);
    let pressing = tokio::spawn(async move {
        loop {
            pressed.pressure.busy(0, Duration::from_millis(100));
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    tokio::time::sleep(Duration::from_secs(10)).await;
    let shown = world.shown_after_ms().await;
    assert!(shown.iter().all(|ms| *ms <= 801), "{shown:?}");
    assert!(shown.iter().any(|ms| *ms > 400), "{shown:?}");
    pressing.abort();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let shown = world.shown_after_ms().await;
    assert!(shown.iter().all(|ms| *ms <= 201), "it is over: {shown:?}");
}

#[tokio::test(start_paused = true)]
async fn what_two_say_to_each_other_does_not_gather() {
    let mut world = World::new(ConversationKind::Direct).await;
    world.join(5).await;
    assert!(world.shown_after_ms().await.iter().all(|ms| *ms < 5));
}
