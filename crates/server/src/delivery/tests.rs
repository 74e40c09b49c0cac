//! Every order of what hubs hand over and of what connections take, against the invariants.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use conch_core::ids::{Generation, LogId, Seq};
use conch_core::time::Monotonic;
use futures_util::future::BoxFuture;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;

use super::Batch;
use super::sessions::{Done, Rest, Sessions};
use super::shard::{History, Member, Report, Reports, Shard, ShardLimits, Step};
use super::worker::{BREATH, Worker};
use crate::config::Config;
use crate::frame::{Address, Frame};
use crate::hub::SessionId;
use crate::hub::sink::{FrameSink, Joined, Push, Sink};
use crate::node::Node;
use crate::ops::{ProgressBoard, WorkerState};
use crate::rules::{Rule, Rules};
use crate::testing;
use conch_core::refusal::Refusal;

const LIMITS: ShardLimits = ShardLimits { frames: 8, bytes: 1 << 20 };

/// What a connection takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    All,
    /// As one that is half full.
    Records,
    None,
}

/// A connection that remembers the names of what it was shown.
struct Seen {
    room: Mutex<Room>,
    shown: Mutex<Vec<String>>,
    writes: Mutex<usize>,
}

impl Seen {
    fn new() -> Arc<Self> {
        Arc::new(Self { room: Mutex::new(Room::All), shown: Mutex::default(), writes: Mutex::default() })
    }

    fn shown(&self) -> Vec<String> {
        self.shown.lock().expect("no panic").clone()
    }
}

impl FrameSink for Seen {
    fn push(&self, frame: &Arc<Frame>) -> Push {
        let room = *self.room.lock().expect("no panic");
        let is_record = frame.class() == crate::frame::Class::Durable;
        if room == Room::None || (room == Room::Records && !is_record) {
            return Push::Behind;
        }
        *self.writes.lock().expect("no panic") += 1;
        self.shown.lock().expect("no panic").push(frame.json().to_owned());
        Push::Accepted
    }

    fn push_joined(&self, batch: &Batch) -> Push {
        if *self.room.lock().expect("no panic") != Room::All {
            return Push::Behind;
        }
        *self.writes.lock().expect("no panic") += 1;
        let frames = batch.shown.iter().map(|shown| shown.frame.json().to_owned());
        self.shown.lock().expect("no panic").extend(frames);
        Push::Accepted
    }

    fn room(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    fn end(&self, _reason: &Refusal) {}
}

impl Sink for Seen {
    fn joined(&self, _joined: &Joined) {}
}

fn address() -> Address {
    Address { topic: "conversation:c".into(), log: LogId::new("s", Generation(1)) }
}

fn record(seq: u64) -> Arc<Frame> {
    Arc::new(Frame::kept(&address(), "message", format!("r{seq}")))
}

fn live(name: &str) -> Arc<Frame> {
    Arc::new(Frame::live(&address(), "delta", name.to_owned()))
}

fn node(without: &[Rule]) -> Arc<Node> {
    let node = testing::node(&Config::default(), testing::empty_store());
    let mut node = Arc::into_inner(node).expect("nobody else has it");
    node.rules = Rules::without(without);
    Arc::new(node)
}

#[derive(Debug, Clone, Copy)]
enum Act {
    Add(u64),
    Remove(u64),
    Record,
    Live,
    Room(u64, Room),
    Window(u64),
    Pass(u64),
    StartOver,
    Overrun,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let session = 0_u64..40;
    let room = prop_oneof![3 => Just(Room::All), 1 => Just(Room::Records), 1 => Just(Room::None)];
    let act = prop_oneof![
        8 => session.clone().prop_map(Act::Add),
        3 => session.clone().prop_map(Act::Remove),
        8 => Just(Act::Record),
        4 => Just(Act::Live),
        2 => (session, room).prop_map(|(id, room)| Act::Room(id, room)),
        1 => prop_oneof![Just(0), Just(16), Just(50)].prop_map(Act::Window),
        6 => (0_u64..40).prop_map(Act::Pass),
        1 => Just(Act::StartOver),
        1 => Just(Act::Overrun),
    ];
    prop::collection::vec(act, 1..120)
}

/// A session as it has to be.
struct Expected {
    sink: Arc<Seen>,
    history: History,
    /// The records that it has to be shown, with the time at which they were handed over.
    records: Vec<(u64, u64)>,
}

struct World {
    sessions: Sessions,
    /// Sessions that are looked at in one go.
    budget: usize,
    now_ms: u64,
    window_ms: u64,
    seq: u64,
    history: History,
    members: BTreeMap<u64, Expected>,
}

impl World {
    fn new(without: &[Rule]) -> Self {
        let sessions = Sessions::new(node(without), LIMITS);
        Self { sessions, budget: 3, now_ms: 1_000, window_ms: 0, seq: 0, history: History(0), members: BTreeMap::new() }
    }

    fn now(&self) -> Monotonic {
        Monotonic(self.now_ms * 1_000_000)
    }

    fn take(&mut self, step: Step) {
        self.sessions.hand_over([step]);
        while self.sessions.take(self.now(), &mut self.budget.clone(), &mut Done::default()) == Rest::More {}
        assert!(self.sessions.is_at_rest());
    }

    fn write(&mut self, now: Monotonic) -> Done {
        let mut done = Done::default();
        while self.sessions.write(now, &mut self.budget.clone(), &mut done) == Rest::More {}
        done
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Add(id) if !self.members.contains_key(&id) => {
                let sink = Seen::new();
                self.take(Step::Add(member(id, &sink, Seq(self.seq), self.history)));
                self.members.insert(id, Expected { sink, history: self.history, records: Vec::new() });
            }
            Act::Remove(id) => {
                self.take(Step::Remove(SessionId(id)));
                self.members.remove(&id);
            }
            Act::Record => {
                self.seq += 1;
                let (seq, now_ms) = (self.seq, self.now_ms);
                self.members.values_mut().for_each(|member| member.records.push((seq, now_ms)));
                self.take(Step::Show(record(seq), Some(Seq(seq))));
            }
            Act::Live => self.take(Step::Show(live("live"), None)),
            Act::Room(id, room) => {
                if let Some(member) = self.members.get(&id) {
                    *member.sink.room.lock().expect("no panic") = room;
                }
            }
            Act::Window(ms) => {
                self.window_ms = ms;
                self.take(Step::Window(Duration::from_millis(ms)));
            }
            Act::Pass(ms) => self.pass(ms),
            Act::StartOver => {
                self.history = History(self.history.0 + 1);
                let told = |member: &Expected| member.sink.shown().iter().filter(|name| *name == "r0").count();
                let before: BTreeMap<u64, usize> =
                    self.members.iter().map(|(id, member)| (*id, told(member))).collect();
                self.take(Step::StartOver(record(0), Seq(self.seq), self.history));
                for (id, member) in &mut self.members {
                    // What has been shown stays shown.
                    let records = member.sink.shown();
                    member.records.retain(|(seq, _)| records.contains(&format!("r{seq}")));
                    if told(member) > before[id] {
                        member.history = self.history;
                        member.records.push((0, self.now_ms));
                    }
                }
            }
            Act::Overrun => self.take(Step::Overrun),
            Act::Add(_) => {}
        }
        self.look_at_reports();
    }

    /// Time passes; the worker is woken whenever something is due.
    fn pass(&mut self, ms: u64) {
        let end = self.now_ms + ms;
        let mut now = self.now();
        while let Some(next) = self.write(now).next
            && next.0 <= end * 1_000_000
        {
            assert!(next > now, "time goes on");
            now = next;
        }
        self.now_ms = end;
    }

    fn look_at_reports(&mut self) {
        for report in self.sessions.take_reports() {
            match report {
                Report::Behind { id, position, history } => {
                    let member = self.members.remove(&id.0).expect("it is reported once, and not when it has left");
                    let records: Vec<_> = self.records_of(&member);
                    assert_eq!(history, member.history);
                    let expected: Vec<_> = member.records.iter().map(|(seq, _)| format!("r{seq}")).collect();
                    assert!(expected.starts_with(&records), "{records:?} of {expected:?}");
                    let last = records.iter().rev().find(|name| *name != "r0");
                    if let (Some(last), true) = (last, history == self.history) {
                        assert!(position >= Seq(last[1..].parse().expect("a number")), "{position} after {last}");
                    }
                }
                Report::MissedLive(id) => {
                    self.take(Step::Refresh(id, Some(live("snapshot"))));
                }
            }
        }
    }

    fn records_of(&self, member: &Expected) -> Vec<String> {
        member.sink.shown().into_iter().filter(|name| name.starts_with('r')).collect()
    }

    /// Nobody was shown what they must not see, or in another order; what was handed over a window ago was shown.
    fn check(&self) {
        for (id, member) in &self.members {
            let shown = self.records_of(member);
            let expected: Vec<_> = member.records.iter().map(|(seq, _)| format!("r{seq}")).collect();
            assert!(expected.starts_with(&shown), "{id} was shown {shown:?} of {expected:?}");
            let late = |at_ms: u64| at_ms + self.window_ms < self.now_ms;
            let due = member.records.iter().filter(|(_, at_ms)| late(*at_ms)).count();
            assert!(shown.len() >= due, "{id} waits for a record longer than a window: {shown:?} of {expected:?}");
        }
    }
}

fn run(without: &[Rule], acts: &[Act]) {
    let mut world = World::new(without);
    for act in acts {
        world.act(*act);
        if let Act::Pass(_) = act {
            world.check();
        }
    }
    for member in world.members.values() {
        *member.sink.room.lock().expect("no panic") = Room::All;
    }
    world.act(Act::Pass(200));
    world.check();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn each_session_is_shown_what_was_handed_over_after_it_was_added(acts in acts()) {
        run(&[], &acts);
    }
}

/// A rule without which nothing else happens is no rule.
fn is_caught(rule: Rule) -> bool {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let strategy = acts();
    (0..2_000).any(|_| {
        let acts = strategy.new_tree(&mut runner).expect("it draws").current();
        std::panic::catch_unwind(|| run(&[rule], &acts)).is_err()
    })
}

#[test]
fn without_its_rules_it_is_caught() {
    assert_eq!([Rule::ShownFromAdding, Rule::MovedIsShown].map(is_caught), [true, true]);
}

/// A room of many, over one window in which several records come.
#[test]
fn a_window_is_one_write_for_each_session_spread_over_the_window() {
    let mut world = World::new(&[]);
    world.act(Act::Window(160));
    for id in 0..64 {
        world.act(Act::Add(id));
    }
    for _ in 0..5 {
        world.act(Act::Record);
    }
    let mut steps = Vec::new();
    for _ in 0..16 {
        let before: usize = world.members.values().filter(|member| !member.sink.shown().is_empty()).count();
        world.act(Act::Pass(10));
        let after: usize = world.members.values().filter(|member| !member.sink.shown().is_empty()).count();
        steps.push(after - before);
    }
    assert_eq!(steps, vec![4; 16], "a sixteenth after each sixteenth");
    assert!(world.members.values().all(|member| *member.sink.writes.lock().expect("no panic") == 1));
}

/// Takes reports for a hub.
#[derive(Default)]
struct Told(Mutex<Vec<Report>>);

impl Reports for Told {
    fn report(&self, reports: Vec<Report>) {
        self.0.lock().expect("no panic").extend(reports);
    }
}

/// A shard with one session that has everything up to 3, and a worker that does not run by itself.
struct Alone {
    node: Arc<Node>,
    shard: Arc<Shard>,
    sink: Arc<Seen>,
    told: Arc<Told>,
}

impl Alone {
    fn with(limits: ShardLimits) -> Self {
        Self::on(node(&[]), limits)
    }

    fn on(node: Arc<Node>, limits: ShardLimits) -> Self {
        let (worker, told) = (Worker::start(&node, 0), Arc::new(Told::default()));
        let shard = Shard::new(&worker, &node, limits, Arc::clone(&told) as _);
        let sink = Seen::new();
        shard.tell(Step::Add(member(1, &sink, Seq(3), History(0))));
        Self { node, shard, sink, told }
    }
}

fn member(id: u64, sink: &Arc<Seen>, position: Seq, history: History) -> Member {
    Member { id: SessionId(id), sink: Arc::clone(sink) as Arc<dyn Sink>, position, history, missed_live: false }
}

/// A hub that goes on while its worker does not run.
#[tokio::test]
async fn what_waits_for_a_worker_is_bounded() {
    let Alone { node, shard, sink, told } = Alone::with(LIMITS);
    for seq in 4..4 + 2 * LIMITS.frames as u64 {
        shard.tell(Step::Show(record(seq), Some(Seq(seq))));
    }
    shard.work(Monotonic(1), BREATH);
    assert_eq!(testing::hits(&node, "shard"), 1);
    let behind = Report::Behind { id: SessionId(1), position: Seq(3), history: History(0) };
    assert_eq!(*told.0.lock().expect("no panic"), [behind]);
    assert_eq!(sink.shown(), Vec::<String>::new(), "it reads on from where it was");
}

/// A flood of live events costs live events.
#[tokio::test]
async fn live_events_are_left_out_before_records() {
    let Alone { shard, sink, told, .. } = Alone::with(LIMITS);
    shard.tell(Step::Show(record(4), Some(Seq(4))));
    for _ in 0..2 * LIMITS.frames {
        shard.tell(Step::Show(live("live"), None));
    }
    shard.tell(Step::Show(record(5), Some(Seq(5))));
    shard.tell(Step::Show(live("live"), None));
    let done = shard.work(Monotonic(1), BREATH);
    assert_eq!(done.queued, conch_core::shed::Permille::ALL, "that it was full is not hidden");
    let records: Vec<_> = sink.shown().into_iter().filter(|name| name.starts_with('r')).collect();
    assert_eq!(records, ["r4", "r5"]);
    assert_eq!(*told.0.lock().expect("no panic"), [Report::MissedLive(SessionId(1))]);
}

/// A room of thousands is written piece by piece, whatever it is that everybody is shown, and what comes meanwhile waits for the rest.
#[tokio::test]
async fn a_large_room_is_written_to_piece_by_piece() {
    const SESSIONS: u64 = 1_000;
    let Alone { shard, sink, .. } = Alone::with(LIMITS);
    let others: Vec<_> = (2..=SESSIONS).map(|id| (id, Seen::new())).collect();
    for (id, sink) in &others {
        shard.tell(Step::Add(member(*id, sink, Seq(3), History(0))));
    }
    let shown = || others.iter().map(|(_, sink)| sink).chain([&sink]).map(|sink| sink.shown().len()).sum::<usize>();
    let many: Vec<Step> =
        (0..LIMITS.frames as u64).map(|number| Step::Show(record(5 + number), Some(Seq(5 + number)))).collect();
    let at_once: [(Vec<Step>, usize); 4] = [
        (vec![Step::Show(record(4), Some(Seq(4)))], 1),
        (many, LIMITS.frames),
        (
            vec![
                Step::Window(Duration::from_millis(50)),
                Step::Show(record(20), Some(Seq(20))),
                Step::Window(Duration::ZERO),
            ],
            1,
        ),
        (vec![Step::StartOver(record(0), Seq(20), History(1))], 1),
    ];
    for (steps, each) in at_once {
        steps.into_iter().for_each(|step| shard.tell(step));
        let before = shown();
        let (mut pieces, mut rest) = (0, Rest::More);
        while rest == Rest::More {
            let before = shown();
            rest = shard.work(Monotonic(1), 100).rest;
            assert!(shown() - before <= 100 * each, "a piece is so many sessions");
            pieces += 1;
        }
        assert_eq!(shown() - before, each * 1_000, "everybody is shown all of it");
        assert!(pieces >= 10, "{pieces}");
    }
    shard.tell(Step::Show(record(21), Some(Seq(21))));
    assert_eq!(shard.work(Monotonic(1), 100).rest, Rest::More);
    shard.tell(Step::Show(record(22), Some(Seq(22))));
    while shard.work(Monotonic(1), 100).rest == Rest::More {}
    for (id, sink) in &others {
        assert!(sink.shown().ends_with(&["r0".to_owned(), "r21".to_owned(), "r22".to_owned()]), "{id}");
    }
}

/// In a conversation whose frames do not gather it is the worker that is late.
#[tokio::test(start_paused = true)]
async fn what_waits_for_its_worker_is_late() {
    let paused = testing::paused_node(&Config::default(), testing::empty_store());
    let Alone { node, shard, .. } = Alone::on(paused, LIMITS);
    let late_after = |ms: u64| {
        shard.work(node.seams.now(), BREATH);
        shard.tell(Step::Show(live("live"), None));
        shard.work(node.seams.now() + Duration::from_millis(ms), BREATH).late.get()
    };
    assert_eq!([0, 1, 25, 60].map(late_after), [0, 20, 500, 1_000], "a share of the shortest window");
    shard.tell(Step::Window(Duration::from_millis(100)));
    shard.work(node.seams.now(), BREATH);
    assert_eq!(late_after(60), 0, "where they gather, the window says it");
}

/// Sessions come and go, histories change, and the worker does not run.
#[tokio::test]
async fn what_comes_to_nothing_does_not_wait() {
    let Alone { shard, sink, told, .. } = Alone::with(LIMITS);
    let stays = Seen::new();
    shard.tell(Step::Add(member(2, &stays, Seq(3), History(0))));
    for round in 0..10_000 {
        let id = 3 + round % 500;
        shard.tell(Step::Add(member(id, &Seen::new(), Seq(3), History(0))));
        shard.tell(Step::Refresh(SessionId(id), Some(live("snapshot"))));
        shard.tell(Step::Remove(SessionId(id)));
        shard.tell(Step::Window(Duration::from_millis(round % 2)));
        if round % 100 == 0 {
            shard.tell(Step::StartOver(record(0), Seq(3), History(1)));
            shard.tell(Step::Show(record(4), Some(Seq(4))));
        }
        assert!(shard.waiting() < 3_000, "{} after {round}", shard.waiting());
    }
    shard.tell(Step::Window(Duration::ZERO));
    shard.tell(Step::Remove(SessionId(1)));
    while shard.work(Monotonic(1), BREATH).rest == Rest::More {}
    assert!(stays.shown().ends_with(&["r0".to_owned(), "r4".to_owned()]), "{:?}", stays.shown());
    assert!(stays.shown().iter().filter(|name| *name == "r0").count() <= 20, "a history that is over is not shown");
    assert!(sink.shown().len() <= stays.shown().len() && told.0.lock().expect("no panic").is_empty());
    shard.tell(Step::Show(record(5), Some(Seq(5))));
    shard.work(Monotonic(1), BREATH);
    assert!(stays.shown().ends_with(&["r4".to_owned(), "r5".to_owned()]));
    assert!(!sink.shown().contains(&"r5".to_owned()), "it has left");
}

/// Nobody hands anything over any more.
#[tokio::test(start_paused = true)]
async fn a_queue_that_was_taken_is_not_full_for_ever() {
    let paused = testing::paused_node(&Config::default(), testing::empty_store());
    let Alone { node, shard, .. } = Alone::on(paused, LIMITS);
    for seq in 4..4 + LIMITS.frames as u64 {
        shard.tell(Step::Show(record(seq), Some(Seq(seq))));
    }
    node.pressure.look(node.seams.now());
    let mut told = Vec::new();
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        node.pressure.look(node.seams.now());
        told.push(node.pressure.permille().get());
    }
    assert_eq!((told.iter().max(), told.last()), (Some(&1_000), Some(&0)), "{told:?}");
}

/// One record that is larger than all that may wait.
#[tokio::test]
async fn a_large_record_has_room() {
    let Alone { shard, sink, told, .. } = Alone::with(ShardLimits { frames: 8, bytes: 64 });
    shard.tell(Step::Show(record(4), Some(Seq(4))));
    shard.work(Monotonic(1), BREATH);
    assert_eq!(sink.shown(), ["r4"]);
    assert!(told.0.lock().expect("no panic").is_empty());
}

/// A short window is late by a wake-up, which is nothing.
#[test]
fn a_short_window_is_not_late_by_a_wake_up() {
    let mut world = World::new(&[]);
    world.act(Act::Window(1));
    world.act(Act::Add(1));
    world.act(Act::Record);
    world.now_ms += 2;
    let done = world.write(world.now());
    assert!(done.late.get() <= 40, "{done:?}");
}

/// Counts the calls of its worker.
#[derive(Default)]
struct Calls(tokio::sync::Notify);

impl super::Write for Calls {
    fn write(&self) {
        self.0.notify_one();
    }
}

#[tokio::test]
async fn who_is_scheduled_is_called() {
    let node = node(&[]);
    let workers = super::Workers::start(&node, 2);
    assert_ne!(workers.pin().number, workers.pin().number, "each in turn");
    let calls = Arc::new(Calls::default());
    workers.pin().schedule(Arc::clone(&calls) as _);
    calls.0.notified().await;
}

/// Stands still until it is told to go on.
struct Stuck(Mutex<std::sync::mpsc::Receiver<()>>);

impl super::Write for Stuck {
    fn write(&self) {
        self.0.lock().expect("no panic").recv().expect("it is told");
    }
}

async fn wait_for(board: &ProgressBoard, node: &Node, state: WorkerState) {
    while board.view(node.seams.now()).iter().all(|worker| worker.state != state) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_stands_still_is_wedged_until_it_goes_on() {
    let node = node(&[]);
    let workers = super::Workers::start(&node, 1);
    let board = ProgressBoard::new(Duration::from_millis(300));
    workers.report_to(&board, node.seams.now()).expect("there is room");
    let (go_on, told) = std::sync::mpsc::channel();
    workers.pin().schedule(Arc::new(Stuck(Mutex::new(told))) as _);
    wait_for(&board, &node, WorkerState::Wedged).await;
    assert_eq!(board.view(node.seams.now())[0].name, "delivery-0");
    go_on.send(()).expect("it waits");
    wait_for(&board, &node, WorkerState::Moving).await;
}
