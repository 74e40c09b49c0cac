//! WebSockets over several nodes: people who watch, are sent away, and come back elsewhere.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use conch_cli::client::{ClientError, Endpoint, Incoming, PhoenixSocket, Request};
use conch_core::history::Event;
use conch_core::ids::{ConversationId, Seq};
use serde_json::json;
use tokio::task::JoinHandle;

use super::channels::{Shown, shown};
use super::load::{History, Load, end_clean};
use super::metronome::Metronome;
use super::rig::Cluster;
use crate::node::{PATIENCE, until};

/// Before another node is tried.
const ELSEWHERE: Duration = Duration::from_millis(30);

/// How a person's socket ended.
#[derive(Debug, Clone)]
struct Parted {
    at: Instant,
    node: usize,
    why: String,
}

#[derive(Debug, Default)]
struct Whereabouts {
    /// Where the socket is joined.
    node: Option<usize>,
    parted: Vec<Parted>,
}

/// Somebody with a socket, who comes back at the next node when it ends.
struct Person {
    name: String,
    room: String,
    whereabouts: Arc<Mutex<Whereabouts>>,
    history: History,
    task: JoinHandle<()>,
}

impl Person {
    /// Joins at a node; afterwards at the next one, in turn.
    fn start(cluster: &Cluster, load: &Load, name: &str, room: &str, node: usize) -> Self {
        let token = cluster.token(name);
        let asked = Request::get(&["v1", "conversations", room]);
        let answer = cluster.runtime.block_on(cluster.client(node, &token).attempt(&asked)).expect("it is there");
        let endpoint = |listen: &String| Endpoint::new(&format!("http://{listen}"), Some(token.clone())).expect("good");
        let watch = Watch {
            endpoints: cluster.places.iter().map(|place| endpoint(&place.listen)).collect(),
            name: name.to_owned(),
            room: room.to_owned(),
            log: answer.body["log"].as_str().expect("a log").to_owned(),
            history: load.history(),
            whereabouts: Arc::default(),
        };
        let (whereabouts, history) = (Arc::clone(&watch.whereabouts), load.history());
        let task = cluster.runtime.spawn(watch.run(node));
        Self { name: name.to_owned(), room: room.to_owned(), whereabouts, history, task }
    }

    fn is_at(&self) -> Option<usize> {
        assert!(!self.task.is_finished(), "{} has panicked", self.name);
        self.whereabouts.lock().expect("nobody panicked").node
    }

    fn parted(&self) -> Vec<Parted> {
        self.whereabouts.lock().expect("nobody panicked").parted.clone()
    }

    /// Waits until it has seen what is acknowledged by now.
    fn sees_all(&self) {
        let head = self.history.acked(&self.room);
        until(&format!("{} to see {head}", self.name), || {
            assert!(!self.task.is_finished(), "{} has panicked", self.name);
            (self.history.shown(&self.name) >= head).then_some(())
        });
    }
}

impl Drop for Person {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What a person's task holds.
struct Watch {
    endpoints: Vec<Endpoint>,
    name: String,
    room: String,
    log: String,
    history: History,
    whereabouts: Arc<Mutex<Whereabouts>>,
}

impl Watch {
    async fn run(self, first: usize) {
        let mut last = Seq(0);
        for node in first.. {
            let node = node % self.endpoints.len();
            let Err(ended) = self.stay(node, &mut last).await;
            self.parts(node, &ended);
            tokio::time::sleep(ELSEWHERE).await;
        }
    }

    /// Notes the end of a socket. A node that is away or going is none that it was sent away from.
    fn parts(&self, node: usize, why: &ClientError) {
        let mut whereabouts = self.whereabouts.lock().expect("nobody panicked");
        if whereabouts.node.take().is_some() {
            whereabouts.parted.push(Parted { at: Instant::now(), node, why: why.to_string() });
        }
    }

    /// Watches at a node until the socket ends.
    async fn stay(&self, node: usize, last: &mut Seq) -> Result<std::convert::Infallible, ClientError> {
        let mut socket = PhoenixSocket::connect(&self.endpoints[node]).await?;
        let conversation: ConversationId = self.room.parse().expect("valid");
        let (observer, after) = (self.name.clone(), Some(*last));
        self.history.add(|t_us| Event::Joined { observer, conversation, after, t_us });
        let mut early = Vec::new();
        let topic = format!("conversation:{}", self.room);
        let asked = json!({"after": last.0, "log": self.log});
        socket.join(&topic, &asked.to_string(), &mut |incoming| early.push(incoming)).await?;
        self.whereabouts.lock().expect("nobody panicked").node = Some(node);
        for incoming in early {
            self.take(&incoming, last);
        }
        loop {
            let incoming = socket.next().await?;
            self.take(&incoming, last);
        }
    }

    fn take(&self, incoming: &Incoming, last: &mut Seq) {
        match shown(incoming) {
            Shown::Resync(_) => panic!("{}: there is one history", self.name),
            Shown::CaughtUp(seq) => {
                let (observer, conversation) = (self.name.clone(), self.room.parse().expect("valid"));
                self.history.add(|t_us| Event::CaughtUp { observer, conversation, seq, t_us });
            }
            Shown::Record(record) => {
                *last = record.seq;
                // As the streams of HTTP call it; there is one history.
                self.history.add(|t_us| Event::observed(&self.name, &record, "first", t_us));
            }
            Shown::Nothing => {}
        }
    }
}

/// Ends a node in order; how far apart those who watched there were sent away.
fn sent_away(cluster: &mut Cluster, people: &[Person], node: usize) -> Duration {
    let before: Vec<usize> = people.iter().map(|person| person.parted().len()).collect();
    let here: Vec<bool> = people.iter().map(|person| person.is_at() == Some(node)).collect();
    assert!(here.iter().filter(|here| **here).count() >= people.len() / 2, "there is somebody to send away");
    assert_eq!(cluster.take(node).terminate().code(), Some(0), "it ends in order");
    let mut moments = Vec::new();
    for ((person, before), _) in people.iter().zip(before).zip(here).filter(|(_, here)| *here) {
        until("it to come back elsewhere", || person.is_at().filter(|now| *now != node));
        let parted = &person.parted()[before..];
        assert!(
            parted.len() == 1 && parted[0].node == node && parted[0].why.ends_with("closed the socket with 1012"),
            "{}: {parted:?}",
            person.name
        );
        moments.push(parted[0].at);
    }
    let (first, last) = (moments.iter().min().expect("somebody"), moments.iter().max().expect("somebody"));
    *last - *first
}

#[test]
fn a_drain_sends_sockets_away_one_after_the_other_and_they_come_back_without_a_gap() {
    /// Far below the window of half a second and more, far above what a moment takes.
    const APART: Duration = Duration::from_millis(250);
    let mut cluster = Cluster::planned(3);
    for (place, jitter_ms) in cluster.places.iter_mut().zip([2_000, 0, 2_000]) {
        place.settings.push(format!("fanout.reconnect_jitter_ms={jitter_ms}"));
    }
    cluster.start_all();
    let load = Load::start(&cluster, 3, 3);
    let start = |number: usize| {
        Person::start(&cluster, &load, &format!("person-{number}"), &load.rooms[number % load.rooms.len()], 0)
    };
    let people: Vec<Person> = (0..30).map(start).collect();
    for person in &people {
        until("it to join", || person.is_at());
    }
    load.go_on(60);
    let staged = sent_away(&mut cluster, &people, 0);
    assert!(staged >= APART, "all within {staged:?}");
    load.go_on(60);
    for person in &people {
        person.sees_all();
    }
    // Without a window there are no stages.
    let metronome = Metronome::start();
    let at_once = sent_away(&mut cluster, &people, 1);
    assert!(at_once < staged + metronome.lost(), "{at_once:?}, and with a window {staged:?}");
    cluster.start(0);
    cluster.start(1);
    load.go_on(60);
    for person in &people {
        person.sees_all();
    }
    end_clean(load, &cluster, &[0, 1, 2]);
}

/// Reads a socket until something with this name comes.
async fn read_until(socket: &mut PhoenixSocket, wanted: &str) {
    let reading = async { while socket.next().await.expect("the socket goes on").event != wanted {} };
    tokio::time::timeout(PATIENCE, reading).await.unwrap_or_else(|_| panic!("no {wanted} within {PATIENCE:?}"));
}

/// A socket that has joined the conversation `desk` from its beginning.
async fn joined(cluster: &Cluster, node: usize, token: &str) -> PhoenixSocket {
    let url = format!("http://{}", cluster.places[node].listen);
    let endpoint = Endpoint::new(&url, Some(token.to_owned())).expect("a good URL");
    let mut socket = PhoenixSocket::connect(&endpoint).await.expect("connects");
    // What is shown is sent after the answer to the join.
    socket.join("conversation:desk", r#"{"after":0}"#, &mut |_| {}).await.expect("joins");
    socket
}

#[test]
fn an_event_on_one_node_shows_its_turn_on_sockets_of_the_others() {
    let mut cluster = Cluster::planned(3);
    for place in &mut cluster.places {
        place.settings.push("agents.demo.pace_ms=300".to_owned());
    }
    cluster.start_all();
    let token = cluster.token("person");
    let client = cluster.client(0, &token);
    cluster.runtime.block_on(async {
        let create = Request::put(&["v1", "conversations", "desk"], json!({"kind": "session", "agent": "demo"}));
        client.attempt(&create).await.expect("created");
        let mut watching = joined(&cluster, 1, &token).await;
        let body = json!({"client_msg_id": "hook-1", "kind": "event", "body": {"text": "What is 17 + 25?"}});
        let event = Request::post(&["v1", "conversations", "desk", "messages"], body);
        client.attempt(&event).await.expect("acknowledged");
        read_until(&mut watching, "event").await;
        read_until(&mut watching, "turn.started").await;
        read_until(&mut watching, "delta").await;
        // The page is loaded again, and another node answers: it sees the turn so far, and then its end.
        let mut again = joined(&cluster, 2, &token).await;
        read_until(&mut again, "turn.started").await;
        read_until(&mut again, "turn.snapshot").await;
        read_until(&mut again, "turn.completed").await;
        read_until(&mut watching, "turn.completed").await;
    });
}
