//! Clients on a WebSocket: one that sends, and one that watches, as `@conch/client` does it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use conch_cli::client::{Endpoint, HttpClient, Incoming, Joined, PhoenixSocket, Problem};
use conch_core::history::Event;
use conch_core::ids::{ConversationId, Epoch, Seq};
use conch_core::record::{Record, RecordKind};
use serde::Deserialize;
use serde_json::json;

use super::load::{History, Outcome};

/// Of silence, after which a socket says that it is there.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// Of silence, after which it is given up.
const SILENCE: Duration = Duration::from_secs(8);
/// Within which a node must have taken a join.
const JOIN: Duration = Duration::from_secs(5);
/// Before a socket is made anew.
const AGAIN: Duration = Duration::from_millis(250);

fn topic(room: &str) -> String {
    format!("conversation:{room}")
}

/// Sends on one socket, to the node that it was told last.
pub(super) struct SocketSender {
    clients: Vec<HttpClient>,
    open: Option<Open>,
}

struct Open {
    node: usize,
    socket: PhoenixSocket,
    joined: Vec<(String, Joined)>,
}

#[derive(Deserialize)]
struct Acked {
    seq: Seq,
    epoch: Epoch,
}

impl SocketSender {
    pub(super) fn new(clients: Vec<HttpClient>) -> Self {
        Self { clients, open: None }
    }

    /// One attempt. A caller that stops waiting leaves a socket behind on which an answer may still come: it is not used again.
    pub(super) async fn attempt(&mut self, node: usize, room: &str, key: &str) -> Outcome {
        let mut open = match self.open.take().filter(|open| open.node == node) {
            Some(open) => open,
            None => match PhoenixSocket::connect(self.clients[node].endpoint()).await {
                Ok(socket) => Open { node, socket, joined: Vec::new() },
                Err(_) => return Outcome::Unknown,
            },
        };
        let Some(outcome) = open.send(room, key).await else { return Outcome::Unknown };
        self.open = Some(open);
        outcome
    }
}

impl Open {
    /// `None`: the socket is of no more use.
    async fn send(&mut self, room: &str, key: &str) -> Option<Outcome> {
        let known = self.joined.iter().find(|(joined, _)| joined == room).map(|(_, joined)| joined.clone());
        let joined = match known {
            Some(joined) => joined,
            None => {
                let joined = self.socket.join(&topic(room), "{}", &mut |_| {}).await.ok()?;
                self.joined.push((room.to_owned(), joined.clone()));
                joined
            }
        };
        let body = json!({"client_msg_id": key, "body": {"text": key}}).to_string();
        let reference = self.socket.push(&joined, "message", &body).await.ok()?;
        loop {
            let incoming = self.socket.next().await.ok()?;
            if is_over(&incoming, room) {
                return None;
            }
            let Some(reply) = incoming.reply().filter(|_| incoming.reference == Some(reference)) else { continue };
            if reply.status == "ok" {
                let Acked { seq, epoch } = serde_json::from_str(reply.response.get()).expect("a seq and an epoch");
                return Some(Outcome::Acked(seq, epoch));
            }
            let problem: Problem = serde_json::from_str(reply.response.get()).expect("a refusal");
            return Some(Outcome::Refused(problem));
        }
    }
}

/// Whether the server says that a channel has ended.
fn is_over(incoming: &Incoming, room: &str) -> bool {
    incoming.topic == topic(room) && matches!(incoming.event.as_str(), "phx_close" | "phx_error")
}

/// Where a history of the store stands.
#[derive(Deserialize)]
pub(super) struct Position {
    log: String,
    head_seq: Seq,
    catchup: Option<String>,
}

/// What one who watches on a channel is shown.
pub(super) enum Shown {
    Record(Box<Record>),
    /// Everything up to here.
    CaughtUp(Seq),
    /// That what was shown so far is not to be gone on from.
    Resync(Position),
    /// What is not of the log.
    Nothing,
}

/// Reads a message of a channel.
pub(super) fn shown(incoming: &Incoming) -> Shown {
    #[derive(Deserialize)]
    struct CaughtUp {
        seq: Seq,
    }
    let payload = incoming.payload.get();
    match incoming.event.as_str() {
        "resync" => Shown::Resync(serde_json::from_str(payload).expect("a position")),
        "caught_up" => Shown::CaughtUp(serde_json::from_str::<CaughtUp>(payload).expect("a position").seq),
        event if event.parse::<RecordKind>().is_ok() => Shown::Record(serde_json::from_str(payload).expect("a record")),
        _ => Shown::Nothing,
    }
}

/// One who watches over sockets, each of which goes on behind the last one.
struct Viewer {
    observer: String,
    conversation: ConversationId,
    history: History,
    after: Seq,
    log: Option<String>,
}

/// Watches a conversation: what is one stream to its reader.
pub(super) async fn watch_socket(
    endpoint: Endpoint,
    observer: String,
    room: String,
    history: History,
    waits: Arc<AtomicU64>,
) {
    let conversation: ConversationId = room.parse().expect("valid");
    let (who, what) = (observer.clone(), conversation.clone());
    history.add(|t_us| Event::Joined { observer: who, conversation: what, after: Some(Seq(0)), t_us });
    let mut viewer = Viewer { observer, conversation, history, after: Seq(0), log: None };
    loop {
        // However it ended, the next one begins where it stood.
        let _ = viewer.view(&endpoint, &room).await;
        waits.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(AGAIN).await;
    }
}

impl Viewer {
    /// Until the socket, or the history that it shows, ends.
    async fn view(&mut self, endpoint: &Endpoint, room: &str) -> Option<()> {
        let payload = match &self.log {
            Some(log) => json!({"after": self.after, "log": log}),
            None => json!({"after": self.after}),
        };
        let mut early = Vec::new();
        let joining = async {
            let mut socket = PhoenixSocket::connect(endpoint).await.ok()?;
            let joined = socket.join(&topic(room), &payload.to_string(), &mut |incoming| early.push(incoming)).await;
            Some((socket, joined.ok()?))
        };
        let (mut socket, joined) = tokio::time::timeout(JOIN, joining).await.ok()??;
        let position: Position = serde_json::from_str(joined.response().get()).expect("an answer to a join");
        if position.catchup.as_deref() == Some("resync") {
            self.resync(position);
            return None;
        }
        self.log = Some(position.log);
        for incoming in early {
            self.take(&incoming, room)?;
        }
        let mut heard = Instant::now();
        loop {
            match tokio::time::timeout(HEARTBEAT, socket.next()).await {
                Ok(Ok(incoming)) => {
                    heard = Instant::now();
                    self.take(&incoming, room)?;
                }
                Ok(Err(_)) => return None,
                Err(_) if heard.elapsed() > SILENCE => return None,
                Err(_) => tokio::time::timeout(HEARTBEAT, socket.heartbeat()).await.ok()?.ok()?,
            }
        }
    }

    /// `None`: the socket is of no more use.
    fn take(&mut self, incoming: &Incoming, room: &str) -> Option<()> {
        if is_over(incoming, room) {
            return None;
        }
        match shown(incoming) {
            Shown::Resync(position) => {
                self.resync(position);
                return None;
            }
            Shown::CaughtUp(seq) => {
                let (observer, conversation) = (self.observer.clone(), self.conversation.clone());
                self.history.add(|t_us| Event::CaughtUp { observer, conversation, seq, t_us });
            }
            Shown::Record(record) if record.seq > self.after => {
                self.after = record.seq;
                let log = self.log.as_deref().expect("it has joined");
                self.history.add(|t_us| Event::observed(&self.observer, &record, log, t_us));
            }
            Shown::Record(_) | Shown::Nothing => {}
        }
        Some(())
    }

    fn resync(&mut self, Position { log, head_seq, .. }: Position) {
        (self.after, self.log) = (head_seq, Some(log.clone()));
        let (observer, conversation) = (self.observer.clone(), self.conversation.clone());
        self.history.add(|t_us| Event::Resync { observer, conversation, log, head_seq, t_us });
    }
}
