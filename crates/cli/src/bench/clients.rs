//! The sessions of a fan-out: one process, one thread, as many sockets as asked. On each it joins the channel, then only
//! counts: a delivery costs one read, a look at two numbers, and no allocation.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use bytes::BytesMut;
use clap::Args;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::LocalSet;

use super::histogram::Histogram;
use super::{process, worker};
use crate::client::{Endpoint, FrameKind, Frames, PhoenixSocket, encode_client_frame, upgrade};
use crate::exit::Failure;

/// A heartbeat is sent this often; servers close sockets that are silent for a minute.
const HEARTBEAT: Duration = Duration::from_secs(25);
/// Bytes of the buffer that all sockets read into, one after the other.
const SCRATCH_BYTES: usize = 64 * 1024;
/// Sockets that connect at the same time.
const CONNECTING: usize = 64;
/// Ends of sessions that are shown; the others are only counted.
const ENDS_SHOWN: u64 = 3;
/// How long one connection and its join may take.
const JOIN_MAX: Duration = Duration::from_secs(30);

/// How clients are started.
#[derive(Debug, Args)]
pub(super) struct ClientsArgs {
    /// `host:port` of the server or of the bare sender.
    #[arg(long)]
    address: SocketAddr,
    /// How many sessions.
    #[arg(long)]
    sessions: usize,
    /// The channel; without it the sockets are bare.
    #[arg(long)]
    conversation: Option<String>,
    /// Spread the joins over this long, in milliseconds.
    #[arg(long, default_value_t = 0)]
    ramp_ms: u64,
    /// The loopback address to connect from: one address has fewer than 28,232 ports for one server.
    #[arg(long)]
    from: Option<std::net::IpAddr>,
    /// The token, by the environment.
    #[arg(long, env = "CONCH_TOKEN", hide_env_values = true)]
    token: Option<String>,
}

/// The answer when all have joined.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct AllJoined {
    /// How many.
    pub(super) sessions: usize,
}

/// A question: what was delivered since the last one that said `reset`?
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) enum Question {
    /// Only look.
    Look,
    /// Look, and start counting from nothing.
    Reset,
}

/// What was delivered.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Delivered {
    /// Messages, over all sessions.
    pub(super) deliveries: u64,
    /// Their bytes, frame headers included.
    pub(super) bytes: u64,
    /// Fewest of one session.
    pub(super) least: u64,
    /// Most of one session.
    pub(super) most: u64,
    /// Messages whose seq was not above the one before, or that could not be read.
    pub(super) out_of_order: u64,
    /// Sessions whose socket ended.
    pub(super) ended: u64,
    /// From the sender's clock to the read.
    pub(super) latency: Histogram,
}

/// What all sessions of this process share; one thread, so a cell is enough.
struct Shared {
    counts: Vec<u64>,
    totals: Delivered,
    scratch: Vec<u8>,
}

pub(super) async fn run(args: &ClientsArgs) -> Result<(), Failure> {
    let shared = Rc::new(RefCell::new(Shared {
        counts: vec![0; args.sessions],
        totals: Delivered::default(),
        scratch: vec![0; SCRATCH_BYTES],
    }));
    let local = LocalSet::new();
    local.run_until(serve_questions(args, &shared)).await
}

async fn serve_questions(args: &ClientsArgs, shared: &Rc<RefCell<Shared>>) -> Result<(), Failure> {
    join_all(args, shared).await?;
    worker::answer(&AllJoined { sessions: args.sessions })?;
    let (questions, mut asked) = tokio::sync::mpsc::channel(1);
    // Standard input blocks: it has a thread of its own.
    std::thread::spawn(move || {
        while let Ok(Some(question)) = worker::next_question::<Question>() {
            if questions.blocking_send(question).is_err() {
                return;
            }
        }
    });
    while let Some(question) = asked.recv().await {
        let mut shared = shared.borrow_mut();
        let mut delivered = shared.totals.clone();
        delivered.least = shared.counts.iter().copied().min().unwrap_or(0);
        delivered.most = shared.counts.iter().copied().max().unwrap_or(0);
        if matches!(question, Question::Reset) {
            shared.counts.fill(0);
            shared.totals = Delivered { ended: shared.totals.ended, ..Delivered::default() };
        }
        worker::answer(&delivered)?;
    }
    Ok(())
}

async fn join_all(args: &ClientsArgs, shared: &Rc<RefCell<Shared>>) -> Result<(), Failure> {
    let begun = tokio::time::Instant::now();
    let mut joining = tokio::task::JoinSet::new();
    for session in 0..args.sessions {
        if args.ramp_ms > 0 {
            let due_ms = args.ramp_ms * session as u64 / args.sessions as u64;
            tokio::time::sleep_until(begun + Duration::from_millis(due_ms)).await;
        }
        if joining.len() >= CONNECTING {
            finish_one(&mut joining, shared).await?;
        }
        let (address, from, conversation) = (args.address, args.from, args.conversation.clone());
        let token = args.token.clone();
        joining.spawn(async move {
            let joined = connect(address, from, conversation.as_deref(), token, session).await?;
            Ok::<_, Failure>((session, joined))
        });
    }
    while !joining.is_empty() {
        finish_one(&mut joining, shared).await?;
    }
    Ok(())
}

type Joining = tokio::task::JoinSet<Result<(usize, (TcpStream, Frames)), Failure>>;

async fn finish_one(joining: &mut Joining, shared: &Rc<RefCell<Shared>>) -> Result<(), Failure> {
    let Some(done) = joining.join_next().await else { return Ok(()) };
    let (session, (stream, frames)) = done.map_err(|error| Failure::other(error.to_string()))??;
    let shared = Rc::clone(shared);
    tokio::task::spawn_local(async move {
        let ended = listen(&shared, session, stream, frames).await;
        let so_far = {
            let mut shared = shared.borrow_mut();
            shared.totals.ended += 1;
            shared.totals.ended
        };
        if so_far <= ENDS_SHOWN {
            super::progress(&format!("session {session} ended: {ended}"));
        }
    });
    Ok(())
}

/// Connects, and joins if there is a channel.
async fn connect(
    address: SocketAddr,
    from: Option<std::net::IpAddr>,
    conversation: Option<&str>,
    token: Option<String>,
    session: usize,
) -> Result<(TcpStream, Frames), Failure> {
    let connecting = async {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        if let Some(from) = from {
            socket.bind((from, 0).into())?;
        }
        let mut stream = socket.connect(address).await?;
        stream.set_nodelay(true)?;
        let Some(conversation) = conversation else { return Ok((stream, Frames::default())) };
        let endpoint = Endpoint::new(&format!("http://{address}"), token).map_err(Failure::other)?;
        let path = PhoenixSocket::path(&endpoint);
        let mut frames = upgrade(&mut stream, &endpoint.authority(), &path).await?.map_err(Failure::other)?;
        let join = format!(r#"["1","1","conversation:{conversation}","phx_join",{{}}]"#);
        let mut frame = Vec::with_capacity(join.len() + 8);
        encode_client_frame(FrameKind::Text, join.as_bytes(), &mut frame);
        stream.write_all(&frame).await?;
        wait_for_join(&mut stream, &mut frames).await?;
        Ok((stream, frames))
    };
    match tokio::time::timeout(JOIN_MAX, connecting).await {
        Ok(joined) => {
            joined.map_err(|failure: Failure| Failure::other(format!("session {session}: {}", failure.message)))
        }
        Err(_) => Err(Failure::other(format!("session {session} had not joined within {JOIN_MAX:?}"))),
    }
}

async fn wait_for_join(stream: &mut TcpStream, frames: &mut Frames) -> Result<(), Failure> {
    loop {
        let taken = frames.next(|kind, payload| match kind {
            FrameKind::Text if payload.starts_with(br#"["1","1","#) => Some(Ok(contains(payload, br#""status":"ok""#))),
            FrameKind::Close => Some(Err("the socket was closed")),
            _ => None,
        })?;
        match taken {
            Some(Some(Ok(true))) => return Ok(()),
            Some(Some(Ok(false))) => return Err(Failure::other("the join was refused")),
            Some(Some(Err(why))) => return Err(Failure::other(why)),
            Some(None) => {}
            None => {
                if tokio::io::AsyncReadExt::read_buf(stream, frames.buffer()).await? == 0 {
                    return Err(Failure::other("the socket ended"));
                }
            }
        }
    }
}

/// Counts until the socket ends; says why it did.
async fn listen(shared: &Rc<RefCell<Shared>>, session: usize, stream: TcpStream, frames: Frames) -> String {
    match count(shared, session, stream, frames).await {
        Ok(()) => "the server closed it".to_owned(),
        Err(error) => error.to_string(),
    }
}

async fn count(
    shared: &Rc<RefCell<Shared>>,
    session: usize,
    mut stream: TcpStream,
    mut frames: Frames,
) -> std::io::Result<()> {
    let mut last_seq = 0;
    // Spread, so that the heartbeats of thousands do not come together.
    let first = HEARTBEAT.mul_f64((session % 1_000) as f64 / 1_000.0);
    let mut heartbeat = std::pin::pin!(tokio::time::sleep(first));
    loop {
        tokio::select! {
            // Both are cancel-safe: readiness and a timer hold nothing.
            ready = stream.readable() => ready?,
            () = &mut heartbeat => {
                let mut frame = Vec::new();
                encode_client_frame(FrameKind::Text, br#"[null,"2","phoenix","heartbeat",{}]"#, &mut frame);
                stream.write_all(&frame).await?;
                heartbeat.as_mut().reset(tokio::time::Instant::now() + HEARTBEAT);
                continue;
            }
        }
        let mut shared = shared.borrow_mut();
        let Shared { counts, totals, scratch } = &mut *shared;
        let read = match stream.try_read(scratch) {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        };
        frames.buffer().extend_from_slice(&scratch[..read]);
        let now_ns = process::shared_now_ns();
        while frames
            .next(|kind, payload| observe(kind, payload, now_ns, &mut last_seq, totals, &mut counts[session]))?
            .is_some()
        {}
        release(frames.buffer());
    }
}

/// A buffer that is empty again gives its memory back: tens of thousands of them would be the client's largest cost.
fn release(buffer: &mut BytesMut) {
    if buffer.is_empty() && buffer.capacity() > 4_096 {
        *buffer = BytesMut::new();
    }
}

fn observe(kind: FrameKind, payload: &[u8], now_ns: u64, last_seq: &mut u64, totals: &mut Delivered, count: &mut u64) {
    let is_message =
        kind == FrameKind::Text && payload.starts_with(b"[null,null,") && contains(payload, br#","message",{"#);
    if !is_message {
        return;
    }
    *count += 1;
    totals.deliveries += 1;
    totals.bytes += payload.len() as u64 + if payload.len() > 125 { 4 } else { 2 };
    match look_at(payload) {
        Some((seq, sent_ns)) if seq > *last_seq => {
            *last_seq = seq;
            totals.latency.add(Duration::from_nanos(now_ns.saturating_sub(sent_ns)));
        }
        _ => totals.out_of_order += 1,
    }
}

/// The seq and the time of sending of a message.
pub(super) fn look_at(payload: &[u8]) -> Option<(u64, u64)> {
    Some((number_after(payload, br#""seq":"#)?, number_after(payload, br#""sent_ns":"#)?))
}

fn number_after(payload: &[u8], key: &[u8]) -> Option<u64> {
    let at = find(payload, key)? + key.len();
    let digits = payload[at..].iter().take_while(|byte| byte.is_ascii_digit());
    digits.fold(None, |number, digit| Some(number.unwrap_or(0_u64).wrapping_mul(10) + u64::from(digit - b'0')))
}

fn contains(payload: &[u8], part: &[u8]) -> bool {
    find(payload, part).is_some()
}

fn find(payload: &[u8], part: &[u8]) -> Option<usize> {
    payload.windows(part.len()).position(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(payloads: &[&str]) -> (Delivered, u64) {
        let (mut totals, mut count, mut last) = (Delivered::default(), 0, 0);
        for payload in payloads {
            observe(FrameKind::Text, payload.as_bytes(), 5_000_000, &mut last, &mut totals, &mut count);
        }
        (totals, count)
    }

    #[test]
    fn messages_are_counted_and_their_order_checked() {
        let message = |seq: u64| {
            format!(r#"[null,null,"conversation:c","message",{{"seq":{seq},"body":{{"sent_ns":4000000}}}}]"#)
        };
        let (one, two) = (message(1), message(2));
        let (totals, count) = seen(&[&one, &two]);
        assert_eq!((totals.deliveries, totals.out_of_order, count), (2, 0, 2));
        assert!((totals.latency.percentiles().max_ms - 1.0).abs() < 1e-9);
        assert_eq!(seen(&[&two, &one]).0.out_of_order, 1);
        assert_eq!(seen(&[&one, &one]).0.out_of_order, 1);
        let other = r#"[null,null,"conversation:c","presence_diff",{"joins":{},"leaves":{}}]"#;
        let reply = r#"["1","1","conversation:c","phx_reply",{"status":"ok","response":{}}]"#;
        assert_eq!(seen(&[other, reply]).0.deliveries, 0);
    }
}
