//! Scenes that are played on purpose: some machines on one calm store, and some channels, one of which the first machine owns.

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
use conch_core::refusal::Refusal;
use conch_core::sequencer::Receipt;
use conch_server::events::{Event, WhyDead};
use conch_server::hub::HubLimits;
use conch_server::node::OwnerLimits;
use conch_server::rules::Rule as RoutingRule;
use conch_server::seams::Clock as _;
use conch_server::turn::agents::DEMO;
use conch_sim::coverage::Tally;
use conch_sim::dice::Dice;
use conch_sim::executor::{Executor, Limits, Process};
use conch_sim::history::History;
use conch_sim::machine::{Machine, NodeLimits, Proof, Removed, Running, Site};
use conch_sim::network::Network;
use conch_sim::outside::Outside;
use conch_sim::recorder::{Answer, Recorder};
use conch_sim::shared::Shared;
use conch_sim::trace::TraceMode;
use conch_sim::weather::Weather;
use conch_store::faulty::Call;
use conch_store::memory::{MemoryStore, Mutant};
use conch_store::{LeaseStore as _, LogStore as _, NewConversation, NodeRow};
use futures_util::future::{Either, select};

/// Conversations of a scene, where it does not need more.
const ROOMS: usize = 5;

/// Of one scene.
const LIMITS: Limits = Limits { steps: 4_000_000, time: Duration::from_secs(7_200) };

/// Some machines on one calm store, long enough together to judge each other; one channel, which the first one owns.
pub(crate) struct Scene {
    pub(crate) world: Process,
    pub(crate) site: Site,
    pub(crate) room: ConvRef,
    pub(crate) machines: Vec<Machine>,
    /// The node of each machine as it started.
    pub(crate) nodes: Vec<Running>,
}

/// Everything in place.
pub(crate) fn whole() -> Removed {
    Removed::default()
}

pub(crate) fn without(guards: &[Guard]) -> Removed {
    Removed { guards: guards.to_vec(), ..Removed::default() }
}

pub(crate) fn without_rule(rule: Rule) -> Removed {
    Removed { rule: Some(rule), ..Removed::default() }
}

pub(crate) fn without_routing(rule: RoutingRule) -> Removed {
    Removed { routing: vec![rule], ..Removed::default() }
}

/// What a scene is played on.
#[derive(Clone)]
pub(crate) struct Setting {
    /// Of each machine, its region.
    pub(crate) regions: Vec<&'static str>,
    /// Where the channel may be owned; empty: anywhere.
    pub(crate) allowed: Vec<&'static str>,
    pub(crate) home: &'static str,
    /// The home of the last channel, where it is another one.
    pub(crate) last_home: Option<&'static str>,
    /// Machines, the last ones, that are not started yet.
    pub(crate) late: usize,
    /// How many conversations.
    pub(crate) rooms: usize,
    /// Of all conversations.
    pub(crate) kind: ConversationKind,
    pub(crate) limits: NodeLimits,
    pub(crate) removed: Removed,
    /// Who answers, where they are sessions.
    pub(crate) agent: &'static str,
    /// Of all conversations.
    pub(crate) settings: Settings,
    /// A guard of the store that is off.
    pub(crate) mutant: Option<Mutant>,
}

impl Setting {
    /// Equal machines in one region.
    pub(crate) fn of(machines: usize, removed: Removed) -> Self {
        let limits =
            NodeLimits { timing: LeaseTiming::default(), owner: OwnerLimits::default(), hub: HubLimits::default() };
        Self {
            regions: vec!["local"; machines],
            allowed: Vec::new(),
            home: "local",
            last_home: None,
            late: 0,
            rooms: ROOMS,
            kind: ConversationKind::Channel,
            limits,
            removed,
            agent: DEMO,
            settings: Settings::default(),
            mutant: None,
        }
    }
}

/// Plays a scene and returns what it found.
pub(crate) fn play<T, F>(machines: usize, removed: Removed, scene: impl FnOnce(Scene) -> F + Send + 'static) -> T
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    play_in(Setting::of(machines, removed), scene)
}

/// The same on a given setting.
pub(crate) fn play_in<T, F>(setting: Setting, scene: impl FnOnce(Scene) -> F + Send + 'static) -> T
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let executor = Executor::new(1, LIMITS, TraceMode::Digest);
    let (world, tally) = (executor.world(), Tally::default());
    let room: ConvRef = "room".parse::<ConversationId>().expect("valid").into();
    let clock = {
        let world = world.clone();
        Arc::new(move || world.wall().0)
    };
    let store = match setting.mutant {
        Some(mutant) => MemoryStore::mutated("sim", clock, mutant),
        None => MemoryStore::new("sim", clock),
    };
    let rooms =
        (1..setting.rooms).map(|number| format!("room-{number}").parse::<ConversationId>().expect("valid").into());
    let conversations: Vec<ConvRef> = [room.clone()].into_iter().chain(rooms).collect();
    let history = History::new(executor.clone());
    let recorder = Recorder::new(store, history, world.clone(), &conversations, tally.clone(), Answer::AfterCommit);
    let site = Site {
        executor: executor.clone(),
        recorder,
        limits: setting.limits,
        proof: Proof::Lease,
        network: Network::new(executor.world(), Dice::new(1, 77), tally.clone()),
        removed: setting.removed.clone(),
        tally,
        conversations,
        complaints: Shared::default(),
        metrics: Shared::default(),
        outside: Outside::default(),
    };
    let found = Shared::<Option<T>>::default();
    let result = found.clone();
    let ended = executor.run(async move {
        let scene_of = Scene::open(world, site, room, setting).await;
        let value = scene(scene_of).await;
        *result.lock().expect("one thread") = Some(value);
    });
    assert_eq!(ended, Ok(()));
    found.lock().expect("one thread").take().expect("the scene ended")
}

/// Starts a machine and waits for its node.
async fn start(world: &Process, machine: &Machine) -> Running {
    machine.start();
    while machine.running().is_none() {
        world.sleep(Duration::from_millis(10)).await;
    }
    machine.running().expect("it was waited for")
}

impl Scene {
    pub(crate) async fn open(world: Process, site: Site, room: ConvRef, setting: Setting) -> Self {
        let new = NewConversation {
            conversation: room.clone(),
            kind: setting.kind,
            regions: setting.allowed.iter().map(|region| region.parse().expect("valid")).collect(),
            home: setting.home.parse().expect("valid"),
            title: None,
            agent: (setting.kind == ConversationKind::Session).then(|| setting.agent.parse().expect("valid")),
            settings: setting.settings.clone(),
            creator: "alice".parse().expect("valid"),
            members: Vec::new(),
        };
        for conversation in &site.conversations {
            let is_last = site.conversations.last() == Some(conversation);
            let home = setting.last_home.filter(|_| is_last).unwrap_or(setting.home).parse().expect("valid");
            let new = NewConversation { conversation: conversation.clone(), home, ..new.clone() };
            site.recorder.create_conversation(&new).await.expect("the memory store does not fail");
        }
        let machine = |(number, region): (usize, &&str)| {
            Machine::new(&format!("node-{number}"), region, site.clone(), Dice::new(1, 99 + number as u64))
        };
        let machines: Vec<Machine> = setting.regions.iter().enumerate().map(machine).collect();
        let mut nodes = Vec::new();
        for machine in &machines[..machines.len() - setting.late] {
            nodes.push(start(&world, machine).await);
        }
        let scene = Self { world, site, room, machines, nodes };
        scene.wait(20_000).await;
        assert!(scene.say(0, "first").await, "a calm store takes it");
        scene
    }

    /// Starts the node of a machine that has none, in the place of the one that it had.
    pub(crate) async fn start(&mut self, machine: usize) {
        let node = start(&self.world, &self.machines[machine]).await;
        match self.nodes.get_mut(machine) {
            Some(before) => *before = node,
            None => self.nodes.push(node),
        }
    }

    pub(crate) async fn wait(&self, ms: u64) {
        self.world.sleep(Duration::from_millis(ms)).await;
    }

    /// Whether this node acks a message; it tries for five seconds by itself, and a dead one says nothing.
    pub(crate) async fn say(&self, node: usize, key: &str) -> bool {
        self.send(node, key).await.is_some_and(|answer| answer.is_ok())
    }

    /// What this node answers to a message; `None`: nothing, for six seconds.
    pub(crate) async fn send(&self, node: usize, key: &str) -> Option<Result<Receipt, Refusal>> {
        self.send_to(&self.room, node, key).await
    }

    pub(crate) async fn send_to(&self, room: &ConvRef, node: usize, key: &str) -> Option<Result<Receipt, Refusal>> {
        if !self.nodes[node].process.is_alive() {
            return None;
        }
        let body = Body::of(&serde_json::json!({ "text": key }));
        let (sender, id) = ("alice".parse().expect("valid"), key.parse().expect("valid"));
        let draft = Draft::new(RecordKind::Message, sender, id, body);
        let asked = self.nodes[node].router.append(room, vec![draft]);
        match select(pin!(asked), self.world.sleep(Duration::from_secs(6))).await {
            Either::Left((answer, _)) => Some(answer.map(|receipts| receipts[0])),
            Either::Right(((), _)) => None,
        }
    }

    pub(crate) async fn rows(&self) -> Vec<NodeRow> {
        self.site.recorder.nodes().await.expect("the memory store does not fail")
    }

    /// The nodes that are still registered as they started, by number.
    pub(crate) async fn registered(&self) -> Vec<usize> {
        let rows = self.rows().await;
        let is_there = |me: Incarnation| rows.iter().any(|row| row.registration.incarnation == me);
        (0..self.nodes.len()).filter(|node| is_there(self.nodes[*node].me)).collect()
    }

    pub(crate) async fn cut_lifeline(&self, node: usize) {
        let rows = self.rows().await;
        let row = rows.iter().find(|row| row.registration.incarnation == self.nodes[node].me).expect("registered");
        let key = row.registration.lifeline.expect("the memory store has lifelines");
        assert!(self.site.recorder.inner().cut_lifeline(key), "it was held");
    }

    pub(crate) fn weather(&self, node: usize, weather: Weather) {
        *self.machines[node].weather.lock().expect("one thread") = weather;
    }

    /// One answer of the store to this call of this node is lost; what was asked is done.
    pub(crate) fn lose_an_answer(&self, node: usize, call: Call) {
        self.machines[node].orders.lock().expect("one thread").losing.push(call);
    }

    /// The store refuses this call of this node once.
    pub(crate) fn refuse_once(&self, node: usize, call: Call) {
        self.machines[node].orders.lock().expect("one thread").refusing.push(call);
    }

    /// Such calls of this node to the store take so long from now on.
    pub(crate) fn slow_down(&self, node: usize, call: Call, takes: Duration) {
        self.machines[node].orders.lock().expect("one thread").slow = Some((call, takes));
    }

    pub(crate) fn deaths_declared_by(&self, node: usize) -> Vec<WhyDead> {
        let events = self.nodes[node].node.events.after(0, 100).events;
        let why = events.into_iter().filter_map(|recorded| match recorded.event {
            Event::DeathDeclared { why, .. } => Some(why),
            _ => None,
        });
        why.collect()
    }

    pub(crate) fn is_frozen(&self, node: usize) -> bool {
        let moment = self.nodes[node].node.moment();
        moment.now >= moment.valid_until
    }

    /// Waits until `node` can write, and says how long that took, in milliseconds.
    pub(crate) async fn until_it_writes(&self, node: usize, key: &str) -> u128 {
        let from = self.world.now();
        while !self.say(node, key).await {
            self.wait(10).await;
        }
        self.world.now().since(from).as_millis()
    }
}
