//! Clients that send and watch all the while, and what becomes of their history.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use conch_cli::client::{ClientError, ConversationStream, HttpClient, Item, Problem, Start};
use conch_core::history::Event;
use conch_core::ids::{ClientMsgId, ConversationId, Epoch, LogId, Seq, Subject};
use conch_core::record::Record;
use serde::Deserialize;
use serde_json::Value;
use tokio::task::JoinHandle;

use super::channels::{SocketSender, watch_socket};
use super::rig::{Cluster, write};
use crate::node::{message, until, whole_log};

/// A writer gives up after this, which fails the test, if nothing else is planned.
const BUDGET: Duration = Duration::from_secs(40);
/// A node that does not answer for this long is left for another one.
const ANSWER: Duration = Duration::from_secs(3);
/// And is not asked again for this long, if there are others.
const AWAY: Duration = Duration::from_secs(4);
/// Before another node is tried.
const ELSEWHERE: Duration = Duration::from_millis(30);
/// Between two messages of a writer.
const PACE: Duration = Duration::from_millis(8);

/// How much is sent, and how.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) rooms: usize,
    /// Those that send over HTTP.
    pub(crate) writers: usize,
    /// Those that send over a WebSocket.
    pub(crate) sockets: usize,
    /// Between two messages of a writer.
    pub(crate) pace: Duration,
    /// A writer gives up after this, which fails the test.
    pub(crate) budget: Duration,
}

/// How a watcher watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Sse,
    WebSocket,
}

#[derive(Default)]
struct Told {
    events: Vec<Event>,
    /// The highest number that was acknowledged, by conversation.
    acked: BTreeMap<ConversationId, Seq>,
    /// Up to which number each observer was shown the log. After a resync it begins at the head, and may be shown no record.
    shown: BTreeMap<String, Seq>,
}

/// What happened, in the order in which it did.
#[derive(Clone)]
pub(crate) struct History {
    told: Arc<Mutex<Told>>,
    begun: Instant,
}

impl History {
    fn new() -> Self {
        Self { told: Arc::default(), begun: Instant::now() }
    }

    pub(crate) fn add(&self, event: impl FnOnce(u64) -> Event) {
        let mut told = self.told.lock().expect("nobody panicked");
        // Under the lock, so that times do not go back.
        let t_us = u64::try_from(self.begun.elapsed().as_micros()).expect("a short test");
        let event = event(t_us);
        match &event {
            Event::Acked { conversation, seq, .. } => {
                let highest = told.acked.entry(conversation.clone()).or_default();
                *highest = (*highest).max(*seq);
            }
            Event::Observed { observer, seq, .. } | Event::CaughtUp { observer, seq, .. } => {
                told.shown.insert(observer.clone(), *seq);
            }
            _ => {}
        }
        told.events.push(event);
    }

    /// The longest time without an ack in a conversation, from a moment to the newest ack.
    fn longest_pause(&self, room: &str, since: Instant) -> Duration {
        let told = self.told.lock().expect("nobody panicked");
        let begun_us = u64::try_from((since - self.begun).as_micros()).expect("a short test");
        let acks = told.events.iter().filter_map(|event| match event {
            Event::Acked { conversation, t_us, .. } if conversation.as_str() == room => Some(*t_us),
            _ => None,
        });
        let (_, longest_us) = acks
            .filter(|t_us| *t_us >= begun_us)
            .fold((begun_us, 0), |(before, longest), t_us| (t_us, longest.max(t_us - before)));
        Duration::from_micros(longest_us)
    }

    /// Writes down what happened so far.
    pub(crate) fn keep(&self, file: &Path) {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        write(file, &told.events.iter().map(Event::to_line).collect::<Vec<_>>());
    }

    /// The highest number that was acknowledged in a conversation.
    pub(crate) fn acked(&self, room: &str) -> Seq {
        let room: ConversationId = room.parse().expect("valid");
        self.told.lock().expect("nobody panicked").acked.get(&room).copied().unwrap_or(Seq(0))
    }

    /// Up to which number an observer was shown the log.
    pub(crate) fn shown(&self, who: &str) -> Seq {
        self.told.lock().expect("nobody panicked").shown.get(who).copied().unwrap_or(Seq(0))
    }
}

/// What the clients met, beside their history.
#[derive(Default)]
pub(crate) struct Met {
    /// Writes that were acknowledged.
    pub(crate) acks: AtomicU64,
    /// Refusals, which all said when to come back.
    pub(crate) refusals: Mutex<Vec<String>>,
}

struct Watcher {
    name: String,
    room: String,
    node: usize,
    /// How often its connection was made anew.
    waits: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Watcher {
    fn wait_for(&self, history: &History, head: Seq) {
        until(&format!("{} to see {head}", self.name), || {
            assert!(!self.task.is_finished(), "{} has panicked", self.name);
            (history.shown(&self.name) >= head).then_some(())
        });
    }
}

/// Writers and watchers of some conversations.
pub(crate) struct Load {
    pub(crate) rooms: Vec<String>,
    pub(crate) met: Arc<Met>,
    reader: Vec<HttpClient>,
    history: History,
    plan: Plan,
    stop: Arc<AtomicBool>,
    writers: Vec<JoinHandle<()>>,
    /// Writers so far.
    names: usize,
    watchers: Vec<Watcher>,
}

impl Load {
    /// Conversations, so many writers that send to all of them through all nodes, and a watcher of each conversation at each
    /// node. The conversation `room-N` begins at node N, in turn.
    pub(crate) fn start(cluster: &Cluster, rooms: usize, writers: usize) -> Self {
        Self::planned(cluster, Plan { rooms, writers, sockets: 0, pace: PACE, budget: BUDGET })
    }

    /// The same as planned; where there are senders over a WebSocket, there are watchers over it too.
    pub(crate) fn planned(cluster: &Cluster, plan: Plan) -> Self {
        let token = cluster.token("watcher");
        let reader = cluster.clients(&token);
        let rooms: Vec<String> = (0..plan.rooms).map(|room| format!("room-{room}")).collect();
        for (index, room) in rooms.iter().enumerate() {
            let client = &reader[index % reader.len()];
            cluster.create(client, room);
            // Under one key, and again where a busy machine's node asks for it.
            until("the first ack", || cluster.runtime.block_on(client.attempt(&message(room, "first", "first"))).ok());
        }
        let mut load = Self {
            rooms,
            met: Arc::default(),
            reader,
            history: History::new(),
            plan,
            stop: Arc::default(),
            writers: Vec::new(),
            names: 0,
            watchers: Vec::new(),
        };
        let kinds: &[Kind] = if plan.sockets > 0 { &[Kind::Sse, Kind::WebSocket] } else { &[Kind::Sse] };
        for room in load.rooms.clone() {
            for (node, kind) in (0..cluster.places.len()).flat_map(|node| kinds.iter().map(move |kind| (node, *kind))) {
                load.watch(cluster, &room, node, kind);
            }
        }
        load.add_writers(cluster, plan.writers);
        for number in 0..plan.sockets {
            let name = format!("s{number}");
            let way = Way::Socket(SocketSender::new(cluster.clients(&cluster.token(&name))).into());
            load.write(cluster, Writer { way, ..load.writer(cluster, &name, number) });
        }
        load
    }

    pub(crate) fn add_writers(&mut self, cluster: &Cluster, writers: usize) {
        self.stop.store(false, Ordering::Relaxed);
        for number in self.names..self.names + writers {
            self.write(cluster, self.writer(cluster, &format!("w{number}"), number));
        }
        self.names += writers;
    }

    pub(crate) fn watch(&mut self, cluster: &Cluster, room: &str, node: usize, kind: Kind) {
        let name = format!("{kind:?} watcher of {room} at {}", cluster.places[node].name);
        let waits = Arc::new(AtomicU64::new(0));
        let (client, history) = (self.reader[node].clone(), self.history.clone());
        let (who, what, again) = (name.clone(), room.to_owned(), Arc::clone(&waits));
        let task = match kind {
            Kind::Sse => cluster.runtime.spawn(watch(client, who, what, history, again)),
            Kind::WebSocket => {
                cluster.runtime.spawn(watch_socket(client.endpoint().clone(), who, what, history, again))
            }
        };
        self.watchers.push(Watcher { name, room: room.to_owned(), node, waits, task });
    }

    /// One that sends when it is told to.
    pub(crate) fn writer(&self, cluster: &Cluster, name: &str, number: usize) -> Writer {
        Writer {
            way: Way::Http(cluster.clients(&cluster.token(name))),
            name: name.to_owned(),
            rooms: self.rooms.clone(),
            number,
            history: self.history.clone(),
            met: Arc::clone(&self.met),
            plan: self.plan,
            away: Mutex::new(vec![None; cluster.places.len()]),
        }
    }

    fn write(&mut self, cluster: &Cluster, writer: Writer) {
        self.writers.push(cluster.runtime.spawn(writer.run(Arc::clone(&self.stop))));
    }

    /// The history so far; clones are the same one.
    pub(crate) fn history(&self) -> History {
        self.history.clone()
    }

    /// The longest time without an ack in a conversation, from a moment to the newest ack.
    pub(crate) fn longest_pause(&self, room: &str, since: Instant) -> Duration {
        self.history.longest_pause(room, since)
    }

    /// The store began this history, and what the one before had alone is lost.
    pub(crate) fn failed_over(&self, log: LogId) {
        self.history.add(|t_us| Event::Failover { log, t_us });
    }

    pub(crate) fn acks(&self) -> u64 {
        self.met.acks.load(Ordering::Relaxed)
    }

    /// Waits for so many acks more.
    pub(crate) fn go_on(&self, acks: u64) {
        let goal = self.acks() + acks;
        until("acks", || {
            assert!(!self.writers.iter().any(JoinHandle::is_finished), "a writer has panicked");
            (self.acks() >= goal).then_some(())
        });
    }

    /// Waits until all who watch at these nodes have seen what is acknowledged by now.
    pub(crate) fn all_see(&self, nodes: &[usize]) {
        for watcher in self.watchers.iter().filter(|watcher| nodes.contains(&watcher.node)) {
            let head = self.history.acked(&watcher.room);
            watcher.wait_for(&self.history, head);
        }
    }

    /// How often watchers at a node had to connect anew.
    pub(crate) fn reconnects(&self, node: usize) -> u64 {
        self.watchers
            .iter()
            .filter(|watcher| watcher.node == node)
            .map(|watcher| watcher.waits.load(Ordering::Relaxed))
            .sum()
    }

    /// Lets the writers finish what they have begun.
    pub(crate) fn finish_writing(&mut self, cluster: &Cluster) {
        self.stop.store(true, Ordering::Relaxed);
        for writer in self.writers.drain(..) {
            cluster.runtime.block_on(writer).expect("no writer panicked");
        }
    }

    /// In peace: ends the writing, waits until all who watch at these nodes have seen the end, and returns the history with the
    /// log that a node shows.
    pub(crate) fn end(mut self, cluster: &Cluster, nodes: &[usize]) -> Vec<String> {
        self.finish_writing(cluster);
        let mut last = Vec::new();
        let mut finals = Vec::new();
        for room in &self.rooms {
            let log = cluster.runtime.block_on(whole_log(&self.reader[nodes[0]], room));
            let right = |record: &Value| record["body"]["text"] == record["client_msg_id"];
            assert!(log.iter().all(right), "every body is the one that was sent under its key");
            let rows: Vec<Record> = log.iter().map(|record| Record::deserialize(record).expect("a record")).collect();
            last.push((room.clone(), rows.last().map_or(Seq(0), |record| record.seq)));
            finals.extend(rows.into_iter().map(|record| {
                let Record { conversation, seq, epoch, sender, client_msg_id, .. } = record;
                Event::Final { conversation, seq, epoch, sender, client_msg_id }.to_line()
            }));
        }
        for watcher in self.watchers.iter().filter(|watcher| nodes.contains(&watcher.node)) {
            let head = last.iter().find(|(room, _)| *room == watcher.room).expect("one of ours").1;
            watcher.wait_for(&self.history, head);
        }
        for watcher in &self.watchers {
            watcher.task.abort();
        }
        let told = self.history.told.lock().expect("nobody panicked");
        told.events.iter().map(Event::to_line).chain(finals).collect()
    }
}

/// The product's own checks, of a history and of the database.
pub(crate) struct Verdict {
    /// What `conch check-history` says is wrong.
    pub(crate) history: Vec<Value>,
    /// What `conch verify` says is wrong.
    pub(crate) store: Vec<Value>,
    /// All that `conch check-history` says.
    pub(crate) report: Value,
}

pub(crate) fn judge(cluster: &Cluster, history: &[String]) -> Verdict {
    let file = cluster.scratch.path().join("history.jsonl");
    write(&file, history);
    let checked = cluster.run(&["check-history", file.to_str().expect("UTF-8")]);
    assert!([0, 5].contains(&checked.code), "{checked:?}");
    let verified = cluster.run(&["verify", "--store", &cluster.store]);
    assert!([0, 5].contains(&verified.code), "{verified:?}");
    let (checked, verified) = (checked.line(), verified.line());
    assert!(checked["acks"].as_u64() > Some(0) && checked["shown"].as_u64() > Some(0), "there was load: {checked}");
    assert!(verified["records"].as_u64() > Some(0), "the database was read: {verified}");
    let violations = |report: &Value| report["violations"].as_array().expect("a list").clone();
    Verdict { history: violations(&checked), store: violations(&verified), report: checked }
}

/// Nothing was lost, doubled or reordered, and who watches at these nodes sees the end.
pub(crate) fn end_clean(load: Load, cluster: &Cluster, nodes: &[usize]) {
    let history = load.end(cluster, nodes);
    let verdict = judge(cluster, &history);
    assert_eq!((verdict.history, verdict.store), (Vec::new(), Vec::new()));
}

/// What became of one attempt.
pub(super) enum Outcome {
    Acked(Seq, Epoch),
    Refused(Problem),
    /// No answer.
    Unknown,
}

/// How a writer sends.
enum Way {
    /// By a client of each node.
    Http(Vec<HttpClient>),
    /// On one socket at a time.
    Socket(tokio::sync::Mutex<SocketSender>),
}

/// Sends, each message until its ack.
pub(crate) struct Writer {
    way: Way,
    name: String,
    rooms: Vec<String>,
    number: usize,
    history: History,
    met: Arc<Met>,
    plan: Plan,
    /// When each node did not answer.
    away: Mutex<Vec<Option<Instant>>>,
}

impl Writer {
    /// Whether a node is to be left out, as a load balancer would.
    fn is_away(&self, node: usize) -> bool {
        let away = self.away.lock().expect("nobody panicked");
        let recent = |since: &Option<Instant>| since.is_some_and(|since| since.elapsed() < AWAY);
        recent(&away[node]) && !away.iter().all(recent)
    }

    /// Sends until it is told to stop, and always until the ack.
    async fn run(self, stop: Arc<AtomicBool>) {
        for number in 0_usize.. {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            let room = &self.rooms[(self.number + number) % self.rooms.len()];
            self.send(room, &format!("{}-{number}", self.name), self.number + number / 2).await;
            tokio::time::sleep(self.plan.pace).await;
        }
    }

    /// The same under the same key until it is acknowledged: when and where a directive says, and at another node when one is away.
    pub(crate) async fn send(&self, room: &str, key: &str, first: usize) {
        let client = self.name.clone();
        let conversation: ConversationId = room.parse().expect("valid");
        let sender: Subject = self.name.parse().expect("valid");
        let client_msg_id: ClientMsgId = key.parse().expect("valid");
        let ids = || (client.clone(), conversation.clone(), sender.clone(), client_msg_id.clone());
        let begun = Instant::now();
        for node in first.. {
            let budget = self.plan.budget;
            assert!(begun.elapsed() < budget, "{key} was not acknowledged within {budget:?}: {:?}", self.met.refusals);
            let node = node % self.nodes();
            if self.is_away(node) {
                continue;
            }
            let (client, conversation, sender, client_msg_id) = ids();
            self.history.add(|t_us| Event::Invoked { client, conversation, sender, client_msg_id, t_us });
            let outcome = tokio::time::timeout(ANSWER, self.attempt(node, room, key)).await.unwrap_or(Outcome::Unknown);
            let (client, conversation, sender, client_msg_id) = ids();
            match outcome {
                Outcome::Acked(seq, epoch) => {
                    self.history.add(|t_us| Event::Acked {
                        client,
                        conversation,
                        sender,
                        client_msg_id,
                        seq,
                        epoch,
                        t_us,
                    });
                    self.met.acks.fetch_add(1, Ordering::Relaxed);
                    return;
                }
                Outcome::Refused(problem) => {
                    self.history.add(|t_us| Event::Refused { client, conversation, sender, client_msg_id, t_us });
                    let retry = problem.retry.unwrap_or_else(|| panic!("{key}: refused for good: {problem}"));
                    self.met.refusals.lock().expect("nobody panicked").push(problem.to_string());
                    tokio::time::sleep(Duration::from_millis(retry.after_ms)).await;
                }
                Outcome::Unknown => {
                    self.history.add(|t_us| Event::Unknown { client, conversation, sender, client_msg_id, t_us });
                    self.away.lock().expect("nobody panicked")[node] = Some(Instant::now());
                    tokio::time::sleep(ELSEWHERE).await;
                }
            }
        }
    }

    fn nodes(&self) -> usize {
        self.away.lock().expect("nobody panicked").len()
    }

    async fn attempt(&self, node: usize, room: &str, key: &str) -> Outcome {
        let clients = match &self.way {
            Way::Http(clients) => clients,
            Way::Socket(socket) => return socket.lock().await.attempt(node, room, key).await,
        };
        match clients[node].attempt(&message(room, key, key)).await {
            Ok(answer) => {
                let seq = Seq::deserialize(&answer.body["seq"]).expect("a seq");
                Outcome::Acked(seq, Epoch::deserialize(&answer.body["epoch"]).expect("an epoch"))
            }
            Err(ClientError::Refused(problem)) => Outcome::Refused(problem),
            Err(ClientError::Unreachable(_)) => Outcome::Unknown,
            Err(error) => panic!("{key}: {error}"),
        }
    }
}

/// Watches a conversation, on what is one stream to its reader.
async fn watch(client: HttpClient, observer: String, room: String, history: History, waits: Arc<AtomicU64>) {
    let conversation: ConversationId = room.parse().expect("valid");
    let mut stream = ConversationStream::new(client, &room, Start { after: Seq(0), log: None });
    let (who, what) = (observer.clone(), conversation.clone());
    history.add(|t_us| Event::Joined { observer: who, conversation: what, after: Some(Seq(0)), t_us });
    let mut in_log = "first".to_owned();
    loop {
        match stream.next().await.unwrap_or_else(|error| panic!("{observer}: {error}")) {
            Item::Record(record, _) => {
                history.add(|t_us| Event::observed(&observer, &record, &in_log, t_us));
            }
            Item::CaughtUp(seq) => {
                let (observer, conversation) = (observer.clone(), conversation.clone());
                history.add(|t_us| Event::CaughtUp { observer, conversation, seq, t_us });
            }
            Item::Resync { log, head_seq } => {
                in_log.clone_from(&log);
                stream.restart(Start { after: head_seq, log: Some(log.clone()) });
                let (observer, conversation) = (observer.clone(), conversation.clone());
                history.add(|t_us| Event::Resync { observer, conversation, log, head_seq, t_us });
            }
            Item::Waiting { .. } => {
                waits.fetch_add(1, Ordering::Relaxed);
            }
            Item::Live { .. } => {}
        }
    }
}
