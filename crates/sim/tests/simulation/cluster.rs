//! Deaths and false evidence of death, played on purpose: each scene with everything in place, and again without the guard
//! that it is there to show.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use conch_core::body::Body;
use conch_core::conversation::{ConversationKind, Settings};
use conch_core::death::Guard;
use conch_core::heart::Rule;
use conch_core::ids::{ConvRef, ConversationId, Incarnation};
use conch_core::lease::LeaseTiming;
use conch_core::record::{Draft, RecordKind};
use conch_server::events::{Event, WhyDead};
use conch_server::hub::HubLimits;
use conch_server::node::OwnerLimits;
use conch_server::seams::Clock as _;
use conch_sim::coverage::Tally;
use conch_sim::dice::Dice;
use conch_sim::executor::{Executor, Halt, Limits, Process};
use conch_sim::history::History;
use conch_sim::machine::{Machine, NodeLimits, Proof, Removed, Running, Site};
use conch_sim::network::Network;
use conch_sim::recorder::{Answer, Recorder};
use conch_sim::shared::Shared;
use conch_sim::trace::TraceMode;
use conch_sim::weather::Weather;
use conch_store::memory::MemoryStore;
use conch_store::{LeaseStore as _, LogStore as _, NewConversation, NodeRow};
use futures_util::future::{Either, select};

/// Some machines on one calm store, long enough together to judge each other; one channel, which the first one owns.
struct Scene {
    world: Process,
    site: Site,
    room: ConvRef,
    machines: Vec<Machine>,
    /// The node of each machine as it started.
    nodes: Vec<Running>,
}

/// Everything in place.
fn whole() -> Removed {
    Removed::default()
}

fn without(guards: &[Guard]) -> Removed {
    Removed { guards: guards.to_vec(), rule: None }
}

fn without_rule(rule: Rule) -> Removed {
    Removed { guards: Vec::new(), rule: Some(rule) }
}

/// Plays a scene and returns what it found.
fn play<T, F>(machines: usize, removed: Removed, scene: impl FnOnce(Scene) -> F + Send + 'static) -> T
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let executor = Executor::new(1, Limits::default(), TraceMode::Digest);
    let (world, tally) = (executor.world(), Tally::default());
    let room: ConvRef = "room".parse::<ConversationId>().expect("valid").into();
    let clock = {
        let world = world.clone();
        Arc::new(move || world.wall().0)
    };
    let store = MemoryStore::new("sim", clock);
    let conversations = vec![room.clone()];
    let history = History::new(executor.clone());
    let recorder = Recorder::new(store, history, world.clone(), &conversations, tally.clone(), Answer::AfterCommit);
    let site = Site {
        executor: executor.clone(),
        recorder,
        limits: NodeLimits { timing: LeaseTiming::default(), owner: OwnerLimits::default(), hub: HubLimits::default() },
        proof: Proof::Lease,
        network: Network::new(executor.world(), Dice::new(1, 77), tally.clone()),
        removed,
        tally,
        conversations,
        complaints: Shared::default(),
        metrics: Shared::default(),
    };
    let found = Shared::<Option<T>>::default();
    let result = found.clone();
    let ended = executor.run(async move {
        let scene_of = Scene::open(world, site, room, machines).await;
        let value = scene(scene_of).await;
        *result.lock().expect("one thread") = Some(value);
    });
    assert_eq!(ended, Ok(()));
    found.lock().expect("one thread").take().expect("the scene ended")
}

impl Scene {
    async fn open(world: Process, site: Site, room: ConvRef, count: usize) -> Self {
        let new = NewConversation {
            conversation: room.clone(),
            kind: ConversationKind::Channel,
            regions: Vec::new(),
            home: "local".parse().expect("valid"),
            title: None,
            agent: None,
            settings: Settings::default(),
            creator: "alice".parse().expect("valid"),
            members: Vec::new(),
        };
        site.recorder.create_conversation(&new).await.expect("the memory store does not fail");
        let machines: Vec<Machine> = (0..count)
            .map(|number| {
                Machine::new(&format!("node-{number}"), "local", site.clone(), Dice::new(1, 99 + number as u64))
            })
            .collect();
        let mut nodes = Vec::new();
        for machine in &machines {
            machine.start();
            while machine.running().is_none() {
                world.sleep(Duration::from_millis(10)).await;
            }
            nodes.push(machine.running().expect("it was waited for"));
        }
        let scene = Self { world, site, room, machines, nodes };
        scene.wait(20_000).await;
        assert!(scene.say(0, "first").await, "a calm store takes it");
        scene
    }

    async fn wait(&self, ms: u64) {
        self.world.sleep(Duration::from_millis(ms)).await;
    }

    /// Whether this node acks a message; it tries for five seconds by itself, and a dead one says nothing.
    async fn say(&self, node: usize, key: &str) -> bool {
        if !self.nodes[node].process.is_alive() {
            return false;
        }
        let body = Body::of(&serde_json::json!({ "text": key }));
        let (sender, id) = ("alice".parse().expect("valid"), key.parse().expect("valid"));
        let draft = Draft::new(RecordKind::Message, sender, id, body);
        let asked = self.nodes[node].router.append(&self.room, vec![draft]);
        match select(pin!(asked), self.world.sleep(Duration::from_secs(6))).await {
            Either::Left((answer, _)) => answer.is_ok(),
            Either::Right(((), _)) => false,
        }
    }

    async fn rows(&self) -> Vec<NodeRow> {
        self.site.recorder.nodes().await.expect("the memory store does not fail")
    }

    /// The nodes that are still registered as they started, by number.
    async fn registered(&self) -> Vec<usize> {
        let rows = self.rows().await;
        let is_there = |me: Incarnation| rows.iter().any(|row| row.registration.incarnation == me);
        (0..self.nodes.len()).filter(|node| is_there(self.nodes[*node].me)).collect()
    }

    async fn cut_lifeline(&self, node: usize) {
        let rows = self.rows().await;
        let row = rows.iter().find(|row| row.registration.incarnation == self.nodes[node].me).expect("registered");
        let key = row.registration.lifeline.expect("the memory store has lifelines");
        assert!(self.site.recorder.inner().cut_lifeline(key), "it was held");
    }

    fn weather(&self, node: usize, weather: Weather) {
        *self.machines[node].weather.lock().expect("one thread") = weather;
    }

    fn deaths_declared_by(&self, node: usize) -> Vec<WhyDead> {
        let events = self.nodes[node].node.events.after(0, 100).events;
        let why = events.into_iter().filter_map(|recorded| match recorded.event {
            Event::DeathDeclared { why, .. } => Some(why),
            _ => None,
        });
        why.collect()
    }

    fn is_frozen(&self, node: usize) -> bool {
        let moment = self.nodes[node].node.moment();
        moment.now >= moment.valid_until
    }

    /// Waits until `node` can write, and says how long that took, in milliseconds.
    async fn until_it_writes(&self, node: usize, key: &str) -> u128 {
        let from = self.world.now();
        while !self.say(node, key).await {
            self.wait(10).await;
        }
        self.world.now().since(from).as_millis()
    }
}

#[test]
fn a_killed_process_is_replaced_within_two_seconds() {
    // Whenever in the rhythm of looks it dies.
    for offset in [0, 100, 250, 400] {
        let (took, why) = play(2, whole(), move |scene| async move {
            scene.wait(offset).await;
            scene.nodes[0].process.kill();
            let took = scene.until_it_writes(1, "second").await;
            (took, scene.deaths_declared_by(1))
        });
        assert_eq!(why, vec![WhyDead::ProcessDied]);
        assert!(took <= 2_000, "{took} ms");
    }
}

#[test]
fn a_restart_under_the_same_address_is_evidence_too() {
    let (took, why) = play(2, whole(), |scene| async move {
        scene.nodes[0].process.kill();
        scene.machines[0].start();
        let took = scene.until_it_writes(1, "second").await;
        (took, scene.deaths_declared_by(1))
    });
    assert_eq!(why, vec![WhyDead::ProcessDied]);
    assert!(took <= 2_000, "{took} ms");
}

#[test]
fn a_stopped_process_is_replaced_when_its_lease_ran_out_and_ends_when_it_goes_on() {
    let (took, why, acked, alive) = play(2, whole(), |scene| async move {
        scene.nodes[0].process.halt(Halt::Process);
        let took = scene.until_it_writes(1, "second").await;
        scene.nodes[0].process.resume(Halt::Process);
        let acked = scene.say(0, "from beyond").await;
        scene.wait(10_000).await;
        (took, scene.deaths_declared_by(1), acked, scene.nodes[0].process.is_alive())
    });
    assert_eq!(why, vec![WhyDead::LeaseRanOut]);
    // From its last renewal it is a lease; the halt came up to a beat later.
    assert!((10_000..=16_000).contains(&took), "{took} ms");
    assert!(!acked, "what it is asked afterwards is not acked by it");
    assert!(!alive, "its renewal found no row");
}

/// A live node's lifeline ends and it cannot replace it at once. Returns who is left, and whether it froze meanwhile.
fn false_evidence(removed: Removed) -> (Vec<usize>, bool, bool) {
    play(2, removed, |scene| async move {
        scene.weather(0, Weather::LeasesCut);
        scene.cut_lifeline(0).await;
        scene.wait(1_500).await;
        let froze = scene.is_frozen(0);
        scene.weather(0, Weather::Calm);
        scene.wait(10_000).await;
        (scene.registered().await, froze, scene.say(0, "second").await)
    })
}

#[test]
fn false_evidence_of_death_freezes_a_node_and_kills_nobody() {
    assert_eq!(false_evidence(whole()), (vec![0, 1], true, true));
    let (left, ..) = false_evidence(without(&[Guard::SecondChannel]));
    assert_eq!(left, vec![1], "the guard is needed");
    let (_, froze, _) = false_evidence(without_rule(Rule::LossFreezes));
    assert!(!froze, "the rule is needed");
}

#[test]
fn a_node_whose_lifeline_was_replaced_at_once_goes_on() {
    let (left, acked, rows) = play(2, whole(), |scene| async move {
        let before = scene.rows().await;
        scene.cut_lifeline(0).await;
        scene.wait(100).await;
        let acked = scene.say(0, "second").await;
        scene.wait(5_000).await;
        (scene.registered().await, acked, (before, scene.rows().await))
    });
    assert_eq!((left, acked), (vec![0, 1], true));
    assert!(
        rows.0.iter().zip(&rows.1).any(|(before, after)| before.registration.lifeline != after.registration.lifeline),
        "the row names the new one"
    );
}

/// Two lifelines of three go at once, and the addresses refuse as well.
fn lost_together(removed: Removed) -> Vec<usize> {
    play(3, removed, |scene| async move {
        for node in [0, 1] {
            scene.weather(node, Weather::LeasesCut);
            scene.site.network.refuse(&scene.machines[node].addr());
            scene.cut_lifeline(node).await;
        }
        scene.wait(3_000).await;
        for node in [0, 1] {
            scene.weather(node, Weather::Calm);
            scene.site.network.mend(&scene.machines[node].addr());
        }
        scene.wait(20_000).await;
        scene.registered().await
    })
}

#[test]
fn lifelines_that_are_lost_together_are_the_stores_event() {
    assert_eq!(lost_together(whole()), vec![0, 1, 2]);
    assert_eq!(lost_together(without(&[Guard::LostAlone])), vec![2], "the guard is needed");
}

/// The database drops every session; observers start over with it.
fn all_sessions_lost(removed: Removed) -> Vec<usize> {
    play(3, removed, |scene| async move {
        for node in [0, 1] {
            scene.weather(node, Weather::LeasesCut);
            scene.site.network.refuse(&scene.machines[node].addr());
        }
        scene.site.recorder.inner().cut_all_lifelines();
        scene.wait(3_000).await;
        for node in [0, 1] {
            scene.weather(node, Weather::Calm);
            scene.site.network.mend(&scene.machines[node].addr());
        }
        scene.wait(20_000).await;
        scene.registered().await
    })
}

#[test]
fn a_crash_of_the_database_kills_nobody() {
    assert_eq!(all_sessions_lost(whole()), vec![0, 1, 2]);
    let removed = without(&[Guard::SameObserver, Guard::LostAlone]);
    assert_eq!(all_sessions_lost(removed), vec![2], "the guards are needed");
}

#[test]
fn a_cut_network_is_no_evidence_of_death() {
    let left = play(2, whole(), |scene| async move {
        scene.weather(0, Weather::LeasesCut);
        scene.site.network.cut(&scene.machines[0].addr());
        scene.cut_lifeline(0).await;
        scene.wait(4_000).await;
        let left = scene.registered().await;
        scene.wait(16_000).await;
        (left, scene.registered().await)
    });
    assert_eq!(left, (vec![0, 1], vec![1]), "only when its lease has run out");
}

/// A suspended machine's clock goes on. Does the owner ack before it has renewed?
fn after_a_suspension(removed: Removed) -> bool {
    play(1, removed, |scene| async move {
        scene.nodes[0].process.halt(Halt::Named("heartbeat"));
        scene.nodes[0].process.jump_clock(Duration::from_secs(60));
        scene.say(0, "second").await
    })
}

#[test]
fn a_node_that_was_suspended_serves_nothing_before_it_has_renewed() {
    assert!(!after_a_suspension(whole()));
    assert!(after_a_suspension(without_rule(Rule::ValidityEnds)), "the rule is needed");
}

/// Somebody deletes a node's row. Is its process alive a beat later?
fn after_its_row_was_deleted(removed: Removed) -> bool {
    play(1, removed, |scene| async move {
        assert!(scene.site.recorder.expel(scene.nodes[0].me).await.expect("the memory store does not fail"));
        scene.wait(5_500).await;
        scene.nodes[0].process.is_alive()
    })
}

#[test]
fn a_lost_lease_ends_the_process_within_a_beat() {
    assert!(!after_its_row_was_deleted(whole()));
    assert!(after_its_row_was_deleted(without_rule(Rule::NoRowEnds)), "the rule is needed");
}

/// Renewals fail for a while, then the way is free again.
fn after_failed_renewals(removed: Removed) -> Vec<usize> {
    play(2, removed, |scene| async move {
        scene.weather(0, Weather::LeasesCut);
        scene.wait(6_000).await;
        scene.weather(0, Weather::Calm);
        scene.wait(40_000).await;
        scene.registered().await
    })
}

#[test]
fn an_error_does_not_end_the_heartbeat() {
    assert_eq!(after_failed_renewals(whole()), vec![0, 1]);
    assert_eq!(after_failed_renewals(without_rule(Rule::ErrorsPass)), vec![1], "the rule is needed");
}

/// Nobody reaches the store for longer than a lease, and nothing of the first one's is applied there; the second one gets
/// back to it a little earlier.
fn after_an_outage(removed: Removed) -> Vec<usize> {
    play(2, removed, |scene| async move {
        // The last beat before it is seen.
        scene.wait(2_000).await;
        [0, 1].into_iter().for_each(|node| scene.weather(node, Weather::Cut));
        scene.nodes[0].process.halt(Halt::Named("heartbeat"));
        scene.wait(40_000).await;
        scene.weather(1, Weather::Calm);
        scene.wait(3_000).await;
        scene.nodes[0].process.resume(Halt::Named("heartbeat"));
        scene.weather(0, Weather::Calm);
        scene.wait(40_000).await;
        scene.registered().await
    })
}

#[test]
fn an_outage_of_the_store_kills_nobody() {
    assert_eq!(after_an_outage(whole()), vec![0, 1]);
    // Either one is enough.
    let removed = without(&[Guard::HealthyForALease, Guard::UnreadForgets]);
    assert_eq!(after_an_outage(removed), vec![1], "the guards are needed");
}

/// The store's clock jumps far ahead, or back.
fn after_a_jump_of_the_stores_clock(by_ms: i64, removed: Removed) -> Vec<usize> {
    play(2, removed, move |scene| async move {
        scene.world.shift_calendar(by_ms);
        scene.wait(40_000).await;
        scene.registered().await
    })
}

#[test]
fn a_jump_of_the_stores_clock_kills_nobody() {
    for by_ms in [3_600_000, -3_600_000] {
        assert_eq!(after_a_jump_of_the_stores_clock(by_ms, whole()), vec![0, 1], "{by_ms}");
    }
    let left = after_a_jump_of_the_stores_clock(3_600_000, without(&[Guard::BeatStoodStill]));
    assert!(left.len() < 2, "the guard is needed");
}
