//! The clients of `bench append`: pushes over WebSockets, or a POST a message.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::task::JoinSet;

use super::super::histogram::Histogram;
use super::super::{Transport, progress};
use crate::client::{Endpoint, HttpClient, Joined, PhoenixSocket, Request};
use crate::exit::Failure;

/// How long the sends under way may take after a round has ended.
const DRAIN_MAX: Duration = Duration::from_secs(15);

/// How the sends travel.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub(super) transport: Transport,
    pub(super) connections: u32,
    /// Over all connections; with HTTP one a connection.
    pub(super) in_flight: u32,
    /// Sends a second over all sockets; none: as many as are acknowledged.
    pub(super) rate: Option<u32>,
}

/// What one sender saw in one round.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) acks: Histogram,
    pub(super) refused: u64,
}

/// All connections, kept over the rounds.
pub(super) struct Senders {
    senders: Vec<Sender>,
}

enum Sender {
    Socket { socket: PhoenixSocket, topics: Vec<Joined>, next: usize, window: usize, every: Option<Duration> },
    Post { client: HttpClient, names: Vec<String>, next: usize },
}

impl Senders {
    /// Opens `connections` of them, which share the conversations and, all together, `in_flight` sends under way.
    pub(super) async fn open(endpoint: &Endpoint, names: &[String], plan: Plan) -> Result<Self, Failure> {
        let mut senders = Vec::new();
        let (count, in_flight) = (plan.connections as usize, plan.in_flight as usize);
        for index in 0..count {
            let mine: Vec<String> = names.iter().skip(index).step_by(count).cloned().collect();
            if plan.transport == Transport::Http {
                let names = if mine.is_empty() { names.to_vec() } else { mine };
                senders.push(Sender::Post { client: HttpClient::new(endpoint.clone())?, names, next: 0 });
                continue;
            }
            let mut socket = PhoenixSocket::connect(endpoint).await?;
            let mut topics = Vec::new();
            for name in &mine {
                topics.push(socket.join(&format!("conversation:{name}"), "{}", &mut drop).await?);
            }
            // The sends under way are spread so that their sum is exact.
            let window = in_flight / count + usize::from(index < in_flight % count);
            let every = plan.rate.map(|rate| Duration::from_secs(1) * plan.connections / rate);
            if !topics.is_empty() && window > 0 {
                senders.push(Sender::Socket { socket, topics, next: 0, window, every });
            }
        }
        progress(&format!("{} connections are open", senders.len()));
        Ok(Self { senders })
    }

    /// Sends texts of so many bytes for this long, and waits for the last answers; what was seen, and the time it took.
    pub(super) async fn round(&mut self, bytes: u32, duration: Duration) -> Result<(Seen, Duration), Failure> {
        let text = "x".repeat(bytes as usize);
        let begun = Instant::now();
        let until = begun + duration;
        let mut tasks = JoinSet::new();
        for mut sender in self.senders.drain(..) {
            let text = text.clone();
            tasks.spawn(async move {
                let seen = sender.send_until(until, &text).await?;
                Ok::<_, Failure>((sender, seen))
            });
        }
        let mut all = Seen::default();
        while let Some(done) = tasks.join_next().await {
            let (sender, seen) = done.map_err(|error| Failure::other(error.to_string()))??;
            self.senders.push(sender);
            all.acks.merge(&seen.acks);
            all.refused += seen.refused;
        }
        Ok((all, begun.elapsed()))
    }
}

impl Sender {
    async fn send_until(&mut self, until: Instant, text: &str) -> Result<Seen, Failure> {
        match self {
            Self::Socket { socket, topics, next, window, every } => {
                let pace = Pace { every: *every, due: Instant::now() };
                push_until(socket, topics, next, *window, pace, until, text).await
            }
            Self::Post { client, names, next } => post_until(client, names, next, until, text).await,
        }
    }
}

/// When the next send of a socket is due.
struct Pace {
    /// Between two sends; none: at once.
    every: Option<Duration>,
    due: Instant,
}

impl Pace {
    /// When the send was due that may leave now, if one may.
    fn take(&mut self, now: Instant) -> Option<Instant> {
        let Some(every) = self.every else { return Some(now) };
        let due = self.due;
        (due <= now).then(|| {
            self.due += every;
            due
        })
    }

    /// Completes when the next one is due; never where there is no pace.
    async fn next(&self) {
        match self.every {
            Some(_) => tokio::time::sleep_until(self.due.into()).await,
            None => std::future::pending().await,
        }
    }
}

async fn push_until(
    socket: &mut PhoenixSocket,
    topics: &[Joined],
    next: &mut usize,
    window: usize,
    mut pace: Pace,
    until: Instant,
    text: &str,
) -> Result<Seen, Failure> {
    let mut seen = Seen::default();
    // Acks of one socket come nearly in order, so the search from the front is short.
    let mut under_way: VecDeque<(u64, Instant)> = VecDeque::with_capacity(window);
    let mut key = uuid::Uuid::now_v7().simple().to_string();
    let key_stem = key.len();
    loop {
        let mut now = Instant::now();
        while under_way.len() < window
            && now < until
            && let Some(due) = pace.take(now)
        {
            key.truncate(key_stem);
            key.push_str(&format!("-{next}"));
            let payload = format!(r#"{{"client_msg_id":"{key}","body":{{"text":"{text}"}}}}"#);
            let topic = &topics[*next % topics.len()];
            under_way.push_back((socket.queue(topic, "message", &payload), due));
            *next += 1;
            now = Instant::now();
        }
        let goes_on = pace.every.is_some() && now < until;
        if under_way.is_empty() && !goes_on {
            return Ok(seen);
        }
        socket.flush().await?;
        let answer = tokio::select! {
            answer = tokio::time::timeout(DRAIN_MAX, socket.next_reply()), if !under_way.is_empty() => answer,
            () = pace.next(), if goes_on && under_way.len() < window => continue,
        };
        let mut answer = Some(answer.map_err(|_| Failure::other("a push was not answered within 15 s"))??);
        // All answers that have come, before the next pushes: these leave in one write, as the answers came in one read.
        while let Some((reference, is_ok)) = answer {
            if let Some(at) = under_way.iter().position(|(sent, _)| *sent == reference)
                && let Some((_, sent)) = under_way.remove(at)
            {
                if is_ok { seen.acks.add(sent.elapsed()) } else { seen.refused += 1 }
            }
            answer = socket.reply_at_hand()?;
        }
    }
}

async fn post_until(
    client: &HttpClient,
    names: &[String],
    next: &mut usize,
    until: Instant,
    text: &str,
) -> Result<Seen, Failure> {
    let mut seen = Seen::default();
    while Instant::now() < until {
        let body = json!({"client_msg_id": uuid::Uuid::now_v7().to_string(), "body": {"text": text}});
        let request = Request::post(&["v1", "conversations", &names[*next % names.len()], "messages"], body);
        *next += 1;
        let sent = Instant::now();
        match client.attempt(&request).await {
            Ok(_) => seen.acks.add(sent.elapsed()),
            Err(crate::client::ClientError::Refused(_)) => seen.refused += 1,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(seen)
}
