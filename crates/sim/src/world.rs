//! One run of the simulation: machines, clients and trouble; then peace, and the question whether everything is right.
//!
//! In peace everything has to come back: a message must be acked in each conversation, and every observer must get to the
//! end of the log. Then the history is held against the invariants.

use std::sync::Arc;
use std::time::Duration;

use conch_core::conversation::{ConversationKind, Settings};
use conch_core::history::{Counts, Event};
use conch_core::ids::{ConvRef, ConversationId, Region, Seq, Subject};
use conch_core::record::{Record, RecordKind};
use conch_core::turn::journal;
use conch_server::seams::Clock as _;
use conch_server::turn::agents::DEMO;
use conch_store::memory::{MemoryStore, Mutant};
use conch_store::{Direction, LogStore as _, NewConversation, RangeQuery};
use tokio::sync::mpsc;

use crate::client::Lane;
use crate::coverage::{Coverage, Tally};
use crate::dice::Dice;
use crate::executor::{Executor, Limits, Process};
use crate::history::History;
use crate::machine::{Machine, Removed, Site};
use crate::network::{Network, Sea};
use crate::observer::Observer;
use crate::outside::Outside;
use crate::recorder::{Answer, Recorder};
use crate::scenario::Scenario;
use crate::shared::{Shared, lock, shared};
use crate::trace::{Trace, TraceMode};
use crate::trouble;
use crate::weather::Weather;

/// In peace, a message must be acked within this time.
const ACKED_WITHIN: Duration = Duration::from_secs(15);
/// In peace, an observer must get to the end of the log within this time.
const SHOWN_WITHIN: Duration = Duration::from_secs(60);
/// In peace, every turn that was waiting must have run within this time.
const TURNS_END_WITHIN: Duration = Duration::from_secs(400);
/// In peace, a node must have released everything within this time.
const SHUT_DOWN_WITHIN: Duration = Duration::from_secs(10);
/// Rows of one read of the final log.
const PAGE: usize = 500;

/// Which guard is off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// None: this is the product.
    Nothing,
    /// One of the store's.
    Store(Mutant),
    /// Commits are answered before they are applied.
    AckBeforeCommit,
}

/// How a run ended.
#[derive(Clone)]
pub struct Outcome {
    /// Its seed.
    pub seed: u64,
    /// What went wrong, in sentences; empty when all is well.
    pub failures: Vec<String>,
    /// What it went through.
    pub coverage: Coverage,
    /// How much was checked.
    pub counts: Counts,
    /// Polls.
    pub steps: u64,
    /// Simulated time.
    pub elapsed: Duration,
    /// What happened.
    pub trace: Trace,
    /// What clients sent and saw.
    pub history: History,
}

/// Plays a seed.
#[must_use]
pub fn run(seed: u64, sabotage: Sabotage, mode: TraceMode) -> Outcome {
    let limits = Limits { steps: 300_000, time: Duration::from_secs(1_800) };
    let executor = Executor::new(seed, limits, mode);
    let (history, tally) = (History::new(executor.clone()), Tally::default());
    let play = Play::new(&executor, history.clone(), tally.clone(), sabotage);
    let ended = executor.run(play.run());
    let report = history.check();
    let failures = match ended {
        Ok(failures) => failures.into_iter().chain(report.violations.iter().map(ToString::to_string)).collect(),
        // Without its end, a history cannot be judged.
        Err(stuck) => vec![format!("the run did not end: {stuck}")],
    };
    Outcome {
        seed,
        failures,
        coverage: tally.coverage(),
        counts: report.counts,
        steps: executor.steps(),
        elapsed: executor.elapsed(),
        trace: executor.trace(),
        history,
    }
}

struct Play {
    world: Process,
    site: Site,
    scenario: Scenario,
    dice: Dice,
    history: History,
    tally: Tally,
    conversations: Vec<ConvRef>,
    senders: Vec<Subject>,
    machines: Vec<Machine>,
    /// No process is started any more.
    closed: Shared<bool>,
}

/// Streams of the seed: the executor uses 0, process n uses n + 1; these are far above.
const SCENARIO_STREAM: u64 = 1 << 32;

impl Play {
    fn new(executor: &Executor, history: History, tally: Tally, sabotage: Sabotage) -> Self {
        let mut dice = Dice::new(executor.seed(), SCENARIO_STREAM);
        let scenario = Scenario::draw(&mut dice);
        let world = executor.world();
        world.note(format_args!("{scenario:?}"));
        let conversations: Vec<ConvRef> = (0..scenario.conversations)
            .map(|number| format!("room-{number}").parse::<ConversationId>().expect("valid").into())
            .collect();
        let senders = (0..scenario.senders).map(|number| format!("sender-{number}").parse().expect("valid")).collect();
        let clock = {
            let world = world.clone();
            Arc::new(move || world.wall().0)
        };
        let store = match sabotage {
            Sabotage::Store(mutant) => MemoryStore::mutated("sim", clock, mutant),
            Sabotage::Nothing | Sabotage::AckBeforeCommit => MemoryStore::new("sim", clock),
        };
        let answer = match sabotage {
            Sabotage::AckBeforeCommit => Answer::BeforeCommit(shared(fork(&mut dice))),
            Sabotage::Nothing | Sabotage::Store(_) => Answer::AfterCommit,
        };
        let recorder = Recorder::new(store, history.clone(), world.clone(), &conversations, tally.clone(), answer);
        let site = Site {
            executor: executor.clone(),
            recorder,
            limits: scenario.limits,
            proof: scenario.proof,
            network: Network::new(world.clone(), fork(&mut dice), tally.clone()),
            removed: Removed::default(),
            tally: tally.clone(),
            conversations: conversations.clone(),
            complaints: Shared::default(),
            metrics: Shared::default(),
            outside: Outside::default(),
        };
        let machines = (0..scenario.machines)
            .map(|number| {
                let region = region_name(number % scenario.regions);
                Machine::new(&format!("node-{number}"), &region, site.clone(), fork(&mut dice))
            })
            .collect();
        Self { world, site, scenario, dice, history, tally, conversations, senders, machines, closed: shared(false) }
    }

    /// The whole play. Returns what went wrong besides the history.
    async fn run(mut self) -> Vec<String> {
        self.create_conversations().await;
        self.supervise();
        let observers = self.observe();
        let chatter = self.chatter();
        let trouble = fork(&mut self.dice);
        trouble::cause(self.site.clone(), self.machines.clone(), trouble, self.scenario.trouble).await;
        self.make_peace();
        chatter.finished().await;
        let mut failures = self.last_words().await;
        failures.extend(self.wait_for_turns().await);
        failures.extend(self.wait_for(&observers).await);
        failures.extend(self.needless_resyncs());
        self.close().await;
        self.site.count_nodes();
        failures.append(&mut lock(&self.site.complaints));
        failures.extend(self.site.recorder.trespasses());
        self.write_down_the_end().await;
        failures
    }

    /// A position is void only in another history or too far behind; otherwise nobody may lose theirs.
    fn needless_resyncs(&self) -> Option<String> {
        let coverage = self.tally.coverage();
        let far_behind = self.scenario.limits.hub.catch_up_records as u64 <= coverage.claims + self.messages();
        let needless = coverage.resyncs > 0 && coverage.generations == 0 && !far_behind;
        needless.then(|| format!("{} resyncs, but the log is the same and nobody is far behind", coverage.resyncs))
    }

    /// Most messages that a conversation can hold.
    fn messages(&self) -> u64 {
        let lanes = self.scenario.senders * self.scenario.lanes;
        lanes as u64 * self.scenario.messages + 1
    }

    /// Ends every node in order.
    async fn close(&self) {
        *lock(&self.closed) = true;
        for machine in &self.machines {
            machine.shut_down(SHUT_DOWN_WITHIN).await;
        }
    }

    async fn create_conversations(&mut self) {
        for (number, conversation) in self.conversations.clone().iter().enumerate() {
            let is_session = number < self.scenario.sessions;
            let home: Region = region_name(self.dice.index(self.scenario.regions)).parse().expect("a region's name");
            let is_strict = self.scenario.regions > 1 && self.dice.chance(400);
            let new = NewConversation {
                conversation: conversation.clone(),
                kind: if is_session { ConversationKind::Session } else { ConversationKind::Channel },
                regions: if is_strict { vec![home.clone()] } else { Vec::new() },
                home,
                title: None,
                agent: is_session.then(|| DEMO.parse().expect("an agent's name")),
                settings: Settings::default(),
                creator: self.senders[0].clone(),
                members: self.senders.clone(),
            };
            self.site.recorder.create_conversation(&new).await.expect("the memory store does not fail by itself");
        }
    }

    /// Starts machines, again and again: what an operator's supervisor does.
    fn supervise(&mut self) {
        for machine in self.machines.clone() {
            let (world, mut dice) = (self.world.clone(), fork(&mut self.dice));
            let closed = self.closed.clone();
            self.world.spawn("supervisor", async move {
                while !*lock(&closed) {
                    machine.start();
                    world.sleep(dice.between(Duration::from_millis(20), Duration::from_millis(2_000))).await;
                }
            });
        }
    }

    fn observe(&mut self) -> Vec<Observer> {
        let mut observers = Vec::new();
        for conversation in self.conversations.clone() {
            for number in 0..self.scenario.observers {
                let name = format!("observer-{}-{number}", conversation.id);
                let from = if self.dice.chance(700) { Some(Seq(0)) } else { None };
                let record = (self.history.clone(), self.tally.clone());
                let drive = (self.world.clone(), fork(&mut self.dice));
                let observer = Observer::new((name, conversation.clone()), from, self.machines.clone(), record, drive);
                let watching = observer.clone();
                self.world.spawn("observer", async move { watching.watch().await });
                observers.push(observer);
            }
        }
        observers
    }

    fn lane(&mut self, name: String, sender: Subject) -> Lane {
        let drive = (self.world.clone(), fork(&mut self.dice));
        Lane::new((name, sender), self.machines.clone(), self.history.clone(), self.tally.clone(), drive)
    }

    fn chatter(&mut self) -> WaitGroup {
        let group = WaitGroup::new();
        for sender in self.senders.clone() {
            for number in 0..self.scenario.lanes {
                let lane = self.lane(format!("{sender}-{number}"), sender.clone());
                let (conversations, messages, hold) =
                    (self.conversations.clone(), self.scenario.messages, group.hold());
                self.world.spawn("lane", async move {
                    lane.chatter(&conversations, messages).await;
                    drop(hold);
                });
            }
        }
        group
    }

    fn make_peace(&self) {
        self.world.note("peace");
        self.site.network.set_sea(Sea::Calm);
        for machine in &self.machines {
            *lock(&machine.weather) = Weather::Calm;
        }
    }

    /// One more message in each conversation must be acked.
    async fn last_words(&mut self) -> Vec<String> {
        let mut failures = Vec::new();
        for conversation in self.conversations.clone() {
            let lane = self.lane(format!("last-{}", conversation.id), self.senders[0].clone());
            let key = format!("last-{}", conversation.id).parse().expect("printable");
            if lane.send(&conversation, &key, ACKED_WITHIN).await.is_none() {
                failures.push(format!("{}: nothing was acked within {ACKED_WITHIN:?} of peace", conversation.id));
            }
        }
        failures
    }

    /// Every input of a session gets exactly one turn with exactly one end (invariant 10), whoever died meanwhile.
    async fn wait_for_turns(&self) -> Vec<String> {
        let mut failures = Vec::new();
        for conversation in &self.conversations[..self.scenario.sessions] {
            let give_up = self.world.now() + TURNS_END_WITHIN;
            let unsettled = loop {
                let unsettled = unsettled_turns(&self.final_rows(conversation).await);
                if unsettled.is_empty() || self.world.now() >= give_up {
                    break unsettled;
                }
                self.world.sleep(Duration::from_millis(500)).await;
            };
            failures.extend(unsettled.into_iter().map(|detail| format!("{}: {detail}", conversation.id)));
        }
        failures
    }

    async fn wait_for(&self, observers: &[Observer]) -> Vec<String> {
        let give_up = self.world.now() + SHOWN_WITHIN;
        let mut failures = Vec::new();
        for observer in observers {
            let head = self.final_rows(observer.conversation()).await.last().map_or(Seq(0), |record| record.seq);
            while observer.position() < head && self.world.now() < give_up {
                self.world.sleep(Duration::from_millis(100)).await;
            }
            if observer.position() < head {
                let at = observer.position();
                failures.push(format!("{} stands at {at} and never gets to {head}", observer.name()));
            }
        }
        failures
    }

    async fn final_rows(&self, conversation: &ConvRef) -> Vec<Record> {
        let mut rows: Vec<Record> = Vec::new();
        loop {
            let after = rows.last().map_or(Seq(0), |record| record.seq);
            let query = RangeQuery {
                conversation: conversation.clone(),
                direction: Direction::After(after),
                limit: PAGE,
                kinds: Vec::new(),
            };
            let page = self.site.recorder.range(&query).await.expect("the memory store does not fail by itself");
            let page = page.expect("it was created");
            rows.extend(page.records);
            if !page.more {
                return rows;
            }
        }
    }

    async fn write_down_the_end(&self) {
        for conversation in &self.conversations {
            for record in self.final_rows(conversation).await {
                let Record { seq, epoch, sender, client_msg_id, .. } = record;
                let conversation = conversation.id.clone();
                self.history.add(|_| Event::Final { conversation, seq, epoch, sender, client_msg_id });
            }
            for sub in &self.senders {
                let summary = self.site.recorder.summary(sub, conversation).await;
                if let Some(summary) = summary.expect("the memory store does not fail by itself") {
                    let (sub, conversation, seq) = (sub.clone(), conversation.id.clone(), summary.cursor);
                    self.history.add(|_| Event::FinalCursor { sub, conversation, seq });
                }
            }
        }
    }
}

/// Inputs whose turn does not have one start and one end.
fn unsettled_turns(rows: &[Record]) -> Vec<String> {
    let count = |turn: Seq, wanted: fn(RecordKind) -> bool| {
        rows.iter().filter(|record| record.turn == Some(turn) && wanted(record.kind)).count()
    };
    let mut unsettled = Vec::new();
    for input in rows.iter().filter(|record| journal::is_input(record.kind, &record.sender)) {
        let (starts, ends) =
            (count(input.seq, |kind| kind == RecordKind::TurnStarted), count(input.seq, RecordKind::ends_turn));
        if (starts, ends) != (1, 1) {
            unsettled.push(format!("the turn of {} has {starts} starts and {ends} ends", input.seq));
        }
    }
    unsettled
}

fn region_name(number: usize) -> String {
    format!("region-{number}")
}

/// Another source, drawn from this one.
fn fork(dice: &mut Dice) -> Dice {
    Dice::new(dice.bits(), SCENARIO_STREAM)
}

/// Waits for tasks: each keeps a hold until it is done.
struct WaitGroup {
    hold: mpsc::Sender<()>,
    done: mpsc::Receiver<()>,
}

impl WaitGroup {
    fn new() -> Self {
        let (hold, done) = mpsc::channel(1);
        Self { hold, done }
    }

    fn hold(&self) -> mpsc::Sender<()> {
        self.hold.clone()
    }

    async fn finished(mut self) {
        drop(self.hold);
        // Nothing is ever sent: the channel ends with its last hold.
        let _ = self.done.recv().await;
    }
}
