//! The sockets of a load: opened, read, lost and opened again.
//!
//! Invariant: no session begins while [`UNDER_WAY_MAX`] are between their connection and their last join; an attempt that takes
//! longer than [`ATTEMPT_MAX_NS`] is one that failed. Failed ones are tried again at most [`TRIES_MAX`] times in a row.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::dialect::{Dialect, Ears};
use super::frames::{find, number_after};
use super::saying::Saying;
use super::session::{Layout, Phase, Place, Session};
use super::{Checked, Common, Delivered, LoadArgs, Reading};
use crate::bench::ramp::Rise;
use crate::bench::random::Random;
use crate::client::{FrameKind, encode_client_frame};
use crate::exit::Failure;

/// Sessions that connect or join at the same time.
const UNDER_WAY_MAX: usize = 256;
/// How long one attempt may take.
const ATTEMPT_MAX_NS: u64 = 30_000_000_000;
/// Failed attempts of a session in a row.
const TRIES_MAX: u32 = 100;
/// Bytes of the buffer that all sockets are read into, one after the other.
const SCRATCH_BYTES: usize = 256 * 1024;
/// Events of one wait.
const EVENTS: usize = 1_024;
/// Fewer events than this are a short batch.
const SHORT: usize = 64;
/// Between two looks at what is due.
const TICK_NS: u64 = 5_000_000;
/// Between two looks for attempts that take too long.
const SWEEP_NS: u64 = 1_000_000_000;
/// Longest answer to an upgrade.
const UPGRADE_BYTES_MAX: usize = 16 * 1024;
/// Joins of one session that are not answered: servers bound that.
const JOINS_MAX: usize = 32;
/// First and longest pause after a failed attempt that the server gave no directive for.
const BACKOFF_MS: (u64, u64) = (200, 5_000);

pub(super) struct Pool {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
    last_events: usize,
    addresses: Vec<SocketAddr>,
    openings: Vec<Vec<u8>>,
    from: Option<IpAddr>,
    ports: Ports,
    pub(super) dialect: Dialect,
    reading: Reading,
    jitter_ms: Option<u64>,
    pub(super) ears: Ears,
    pub(super) layout: Layout,
    pub(super) sessions: Vec<Session>,
    pub(super) places: Vec<Place>,
    /// By numbered channel.
    pub(super) acknowledged: Vec<u64>,
    pub(super) tally: Delivered,
    pub(super) saying: Saying,
    retries: BinaryHeap<Reverse<(u64, usize)>>,
    rise: (Rise, u64),
    started: usize,
    under_way: usize,
    pub(super) joined: usize,
    scratch: Vec<u8>,
    out: Vec<u8>,
    random: Random,
    ticked_ns: u64,
    swept_ns: u64,
}

impl Pool {
    pub(super) fn new(args: &LoadArgs) -> Result<Self, Failure> {
        let ears = Ears::new(args.dialect, &args.conversation);
        let layout =
            Layout { common: usize::from(args.common == Common::Joined), each: args.each.min(args.of), of: args.of };
        let opening = |address: &SocketAddr| ears.opening(&address.to_string(), &args.token).into_bytes();
        let failed = |error: Errno| Failure::other(format!("epoll: {error}"));
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?,
            events: Vec::with_capacity(EVENTS),
            last_events: 0,
            openings: args.address.iter().map(opening).collect(),
            addresses: args.address.clone(),
            from: args.from,
            ports: Ports(Ports::FIRST),
            dialect: args.dialect,
            reading: args.reading,
            jitter_ms: args.jitter_ms,
            ears,
            layout,
            sessions: (0..args.sessions).map(|index| Session::new(index % args.address.len())).collect(),
            places: vec![Place::default(); args.sessions * layout.width()],
            acknowledged: vec![0; args.of],
            tally: Delivered::default(),
            saying: Saying::new(args.seed),
            retries: BinaryHeap::new(),
            rise: (Rise::default(), 0),
            started: 0,
            under_way: 0,
            joined: 0,
            scratch: vec![0; SCRATCH_BYTES],
            out: Vec::new(),
            random: Random::new(args.seed),
            ticked_ns: 0,
            swept_ns: 0,
        })
    }

    /// Whether the last wait brought little.
    pub(super) fn was_short(&self) -> bool {
        self.last_events < SHORT
    }

    /// From now on evenly to so many sessions; never fewer than have begun.
    pub(super) fn connect(&mut self, sessions: usize, over_ms: u64, now_ns: u64) {
        let to = sessions.min(self.sessions.len());
        self.rise = (Rise { from: self.started, to, over_ns: over_ms * 1_000_000 }, now_ns);
    }

    /// Waits for events for a moment, and does what is due.
    pub(super) fn turn(&mut self, now_ns: u64) -> Result<(), Failure> {
        if now_ns.saturating_sub(self.ticked_ns) >= TICK_NS {
            self.ticked_ns = now_ns;
            self.tick(now_ns);
        }
        let mut events = std::mem::take(&mut self.events);
        let wait = Timespec { tv_sec: 0, tv_nsec: TICK_NS as _ };
        match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&wait)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(Failure::other(format!("epoll: {error}"))),
        }
        self.last_events = events.len();
        for event in events.drain(..) {
            let index = usize::try_from(event.data.u64()).expect("it was made from an index");
            match self.sessions[index].phase {
                Phase::Connecting => self.connected(index, now_ns),
                Phase::Waiting | Phase::Gone => {}
                Phase::Upgrading | Phase::Joining | Phase::Joined => self.readable(index),
            }
        }
        self.events = events;
        Ok(())
    }

    fn tick(&mut self, now_ns: u64) {
        // Who comes back does so when its time has come: a storm is not to be tamed by those who make it.
        while let Some(&Reverse((due_ns, index))) = self.retries.peek()
            && due_ns <= now_ns
        {
            self.retries.pop();
            self.open(index, now_ns);
        }
        let wanted = self.rise.0.wanted(now_ns.saturating_sub(self.rise.1));
        while self.under_way < UNDER_WAY_MAX && self.started < wanted {
            self.started += 1;
            self.open(self.started - 1, now_ns);
        }
        self.say(now_ns);
        if now_ns.saturating_sub(self.swept_ns) >= SWEEP_NS {
            self.swept_ns = now_ns;
            self.sweep(now_ns);
        }
    }

    fn sweep(&mut self, now_ns: u64) {
        for index in 0..self.started {
            let Session { phase, begun_ns, .. } = self.sessions[index];
            let is_under_way = matches!(phase, Phase::Connecting | Phase::Upgrading | Phase::Joining);
            if is_under_way && now_ns.saturating_sub(begun_ns) > ATTEMPT_MAX_NS {
                self.fail(index, now_ns, &format!("no answer within 30 s while {phase:?}"), None);
            }
        }
    }

    fn open(&mut self, index: usize, now_ns: u64) {
        self.under_way += 1;
        let session = &mut self.sessions[index];
        session.begun_ns = now_ns;
        session.phase = Phase::Connecting;
        let address = self.addresses[session.gateway % self.addresses.len()];
        match dial(address, self.from, &mut self.ports) {
            Ok(stream) => {
                let data = epoll::EventData::new_u64(index as u64);
                let added = epoll::add(&self.epoll, &stream, data, epoll::EventFlags::OUT);
                session.stream = Some(stream);
                if let Err(error) = added {
                    self.fail(index, now_ns, &format!("epoll: {error}"), None);
                }
            }
            Err(error) => self.fail(index, now_ns, &format!("a connection: {error}"), None),
        }
    }

    fn connected(&mut self, index: usize, now_ns: u64) {
        let session = &mut self.sessions[index];
        let Some(stream) = &session.stream else { return };
        let failed = match stream.take_error() {
            Ok(None) => None,
            Ok(Some(error)) | Err(error) => Some(error),
        };
        if let Some(error) = failed {
            return self.fail(index, now_ns, &format!("a connection: {error}"), None);
        }
        let data = epoll::EventData::new_u64(index as u64);
        if let Err(error) = epoll::modify(&self.epoll, stream, data, epoll::EventFlags::IN) {
            return self.fail(index, now_ns, &format!("epoll: {error}"), None);
        }
        session.phase = Phase::Upgrading;
        if self.openings[0].is_empty() {
            session.phase = Phase::Joining;
            return self.joined(index);
        }
        let opening = std::mem::take(&mut self.openings[session.gateway % self.addresses.len()]);
        self.write(index, &opening);
        let gateway = self.sessions[index].gateway % self.addresses.len();
        self.openings[gateway] = opening;
    }

    /// Reads what is there and hears it.
    fn readable(&mut self, index: usize) {
        let now_ns = crate::bench::process::shared_now_ns();
        let mut scratch = std::mem::take(&mut self.scratch);
        let read = match &self.sessions[index].stream {
            Some(stream) => (&mut &*stream).read(&mut scratch),
            None => Ok(0),
        };
        match read {
            Ok(0) => self.fail(index, now_ns, "the server closed it", None),
            Ok(read) => {
                self.tally.reads += 1;
                self.take(index, &scratch[..read], now_ns);
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => self.fail(index, now_ns, &error.to_string(), None),
        }
        self.scratch = scratch;
    }

    fn take(&mut self, index: usize, read: &[u8], now_ns: u64) {
        let session = &mut self.sessions[index];
        if session.partial.is_empty() && session.phase != Phase::Upgrading {
            let used = self.frames(index, read, now_ns);
            // What is left of a cut frame waits; a socket that failed has nothing left.
            if self.sessions[index].stream.is_some() {
                self.sessions[index].partial.extend_from_slice(&read[used..]);
            }
            return;
        }
        let mut bytes = std::mem::take(&mut session.partial);
        bytes.extend_from_slice(read);
        let mut used = 0;
        if self.sessions[index].phase == Phase::Upgrading {
            used = self.upgraded(index, &bytes, now_ns);
        }
        if self.sessions[index].phase != Phase::Upgrading && self.sessions[index].stream.is_some() {
            used += self.frames(index, &bytes[used..], now_ns);
        }
        if self.sessions[index].stream.is_some() && used < bytes.len() {
            bytes.drain(..used);
            self.sessions[index].partial = bytes;
        }
    }

    /// Looks for the whole answer to the upgrade; how many bytes it took.
    fn upgraded(&mut self, index: usize, bytes: &[u8], now_ns: u64) -> usize {
        let Some(end) = find(bytes, b"\r\n\r\n") else {
            if bytes.len() > UPGRADE_BYTES_MAX {
                self.fail(index, now_ns, "no end of the answer to the upgrade", None);
            }
            return 0;
        };
        if !bytes.starts_with(b"HTTP/1.1 101") {
            let line = bytes.split(|byte| *byte == b'\r').next().unwrap_or_default();
            let text = String::from_utf8_lossy(line).into_owned();
            let seconds = number_after(bytes, b"retry-after: ").or_else(|| number_after(bytes, b"Retry-After: "));
            let after_ms = number_after(bytes, b"\"after_ms\":").or(seconds.map(|seconds| seconds * 1_000));
            self.fail(index, now_ns, &text, after_ms);
            return 0;
        }
        let session = &mut self.sessions[index];
        (session.phase, session.next_join, session.unanswered, session.behind) = (Phase::Joining, 0, 0, 0);
        for _ in 0..JOINS_MAX {
            self.join_next(index);
        }
        end + 4
    }

    /// Joins the next of a session's channels, if one is left.
    pub(super) fn join_next(&mut self, index: usize) {
        let session = &mut self.sessions[index];
        if session.next_join >= self.layout.width() {
            return;
        }
        let slot = session.next_join;
        session.next_join += 1;
        self.join(index, slot);
    }

    /// Joins a channel, behind what the session has of it.
    pub(super) fn join(&mut self, index: usize, slot: usize) {
        let place = self.places[index * self.layout.width() + slot];
        let after = place.base.map(|_| place.last);
        let session = &mut self.sessions[index];
        session.unanswered += 1;
        session.behind += usize::from(after.is_some());
        let words = self.ears.join(self.layout.topic(index, slot), after);
        self.tell(index, &words);
    }

    /// A session has joined all its channels.
    pub(super) fn joined(&mut self, index: usize) {
        let session = &mut self.sessions[index];
        if session.phase != Phase::Joining {
            return;
        }
        (session.phase, session.tries) = (Phase::Joined, 0);
        self.under_way -= 1;
        self.joined += 1;
        if self.reading == Reading::Never
            && let Some(stream) = &session.stream
        {
            // It was added when it was opened; it is not looked at again.
            let _ = epoll::delete(&self.epoll, stream);
        }
    }

    /// The end of a socket, or of an attempt.
    pub(super) fn fail(&mut self, index: usize, now_ns: u64, why: &str, after_ms: Option<u64>) {
        let session = &mut self.sessions[index];
        if matches!(session.phase, Phase::Waiting | Phase::Gone) {
            return;
        }
        session.stream = None;
        session.partial = Vec::new();
        session.carried = Vec::new();
        session.gateway += 1;
        let was_joined = session.phase == Phase::Joined;
        session.phase = Phase::Waiting;
        self.tally.why = Some(why.to_owned());
        let delay_ms = if was_joined {
            self.joined -= 1;
            self.tally.ended += 1;
            if session.lost_ns == 0 {
                session.lost_ns = now_ns;
            }
            session.has_returned = true;
            self.random.below(self.jitter_ms.or(self.ears.jitter_ms).unwrap_or(0))
        } else {
            self.under_way -= 1;
            self.tally.refused += 1;
            session.tries += 1;
            let backoff = (BACKOFF_MS.0 << session.tries.min(10)).min(BACKOFF_MS.1);
            let least = after_ms.unwrap_or(backoff / 2);
            least + self.random.below(least.max(1))
        };
        let comes_back = self.dialect == Dialect::Conch || !was_joined;
        if !comes_back || session.tries > TRIES_MAX {
            session.phase = Phase::Gone;
            self.tally.gave_up += 1;
            return;
        }
        self.retries.push(Reverse((now_ns + delay_ms * 1_000_000, index)));
    }

    /// Says something in one frame.
    pub(super) fn tell(&mut self, index: usize, words: &str) {
        let mut out = std::mem::take(&mut self.out);
        out.clear();
        let kind = if self.ears.is_text() { FrameKind::Text } else { FrameKind::Binary };
        encode_client_frame(kind, words.as_bytes(), &mut out);
        self.write(index, &out);
        self.out = out;
    }

    /// The kernel takes what a client says whole: it is little. A server that does not read for so long has lost the client.
    pub(super) fn write(&mut self, index: usize, bytes: &[u8]) {
        let Some(stream) = &self.sessions[index].stream else { return };
        let (wrote, now_ns) = ((&mut &*stream).write(bytes), crate::bench::process::shared_now_ns());
        match wrote {
            Ok(wrote) if wrote == bytes.len() => {}
            Ok(_) => self.fail(index, now_ns, "the server took only a part of what it was told", None),
            Err(error) => self.fail(index, now_ns, &format!("it could not be written to: {error}"), None),
        }
    }

    /// What was delivered, and how the sessions are.
    pub(super) fn delivered(&self) -> Delivered {
        let mut delivered = self.tally.clone();
        delivered.joined = self.joined;
        delivered.away = self.sessions.iter().filter(|session| session.lost_ns != 0).count();
        let begun = self.sessions.iter().filter(|session| session.phase != Phase::Waiting);
        delivered.least = begun.clone().map(|session| session.count).min().unwrap_or(u64::MAX);
        delivered.most = begun.map(|session| session.count).max().unwrap_or(0);
        delivered.jitter_ms = self.jitter_ms.or(self.ears.jitter_ms);
        delivered
    }

    /// Starts counting from nothing. What sessions have of their channels stays.
    pub(super) fn reset(&mut self) {
        self.tally = Delivered::default();
        for session in &mut self.sessions {
            session.count = 0;
        }
    }

    /// Whether every session has all of these numbers of the common channel that came after its join.
    pub(super) fn check(&self, seqs: &[u64]) -> Checked {
        let mut checked = Checked::default();
        if self.layout.common == 0 {
            return checked;
        }
        for place in self.places.iter().step_by(self.layout.width()) {
            let Some(base) = place.base else { continue };
            let before = seqs.partition_point(|seq| *seq <= base);
            checked.count((seqs.len() - before) as u64, place.count);
        }
        checked
    }

    /// Whether every session has all of what this load was told is in its numbered channels.
    pub(super) fn check_sent(&self) -> Checked {
        let mut checked = Checked::default();
        for index in 0..self.started {
            for slot in self.layout.common..self.layout.width() {
                let number = self.layout.topic(index, slot) - 1;
                let place = self.places[index * self.layout.width() + slot];
                checked.count(self.acknowledged[number], place.count);
            }
        }
        checked
    }
}

/// Begins a connection, without waiting for it.
/// The next one after each call. An address that is this process's alone has all of them; letting the kernel look for a free one
/// takes it longer the more are taken.
#[derive(Debug)]
struct Ports(u16);

impl Ports {
    const FIRST: u16 = 10_000;

    fn next(&mut self) -> u16 {
        self.0 = self.0.checked_add(1).unwrap_or(Self::FIRST);
        self.0
    }
}

/// Binds to a free port; ports of sockets that have ended are taken for a while.
fn bind(socket: &OwnedFd, from: IpAddr, ports: &mut Ports) -> std::io::Result<()> {
    for _ in Ports::FIRST..u16::MAX {
        match rustix::net::bind(socket, &SocketAddr::new(from, ports.next())) {
            Err(Errno::ADDRINUSE) => {}
            bound => return Ok(bound?),
        }
    }
    Err(Errno::ADDRINUSE.into())
}

fn dial(address: SocketAddr, from: Option<IpAddr>, ports: &mut Ports) -> std::io::Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    if let Some(from) = from {
        bind(&socket, from, ports)?;
    }
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(TcpStream::from(socket)),
        Err(error) => Err(error.into()),
    }
}
