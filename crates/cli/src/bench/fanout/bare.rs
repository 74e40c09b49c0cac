//! The bare loop beside a fan-out: processes that do nothing but `send` the same bytes to as many sockets.

use std::time::{Duration, Instant};

use crate::bench::load::{Dialect, Question};
use crate::bench::process;
use crate::bench::sender::{Accepted, Listening, SendRound, Sent};
use crate::bench::sessions::{SPARE_FILES, Sessions, Wanted};
use crate::bench::worker::Worker;
use crate::exit::Failure;

/// How long the sockets may take to connect.
const CONNECT_MAX: Duration = Duration::from_secs(120);
/// How long an answer may take, besides the round.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// How long the last bytes of a round may take to arrive.
const ARRIVE_MAX: Duration = Duration::from_secs(30);
/// How often it is asked whether they have.
const POLL: Duration = Duration::from_millis(100);
/// A round may take so many times as long as its rate asks for.
const SLOWER_MAX: u64 = 10;

/// The senders with their sockets' other ends, which are ended first.
pub(super) struct Bare {
    sessions: Sessions,
    senders: Vec<Worker>,
}

impl Bare {
    /// As many sockets, from as many senders as the limit on open files asks for.
    pub(super) async fn start(sockets: usize) -> Result<Self, Failure> {
        let files = usize::try_from(process::open_files_max().saturating_sub(SPARE_FILES)).unwrap_or(usize::MAX);
        let count = sockets.div_ceil(files.max(1)).max(1);
        let (mut senders, mut addresses) = (Vec::new(), Vec::new());
        for index in 0..count {
            // Sessions go to the addresses in turn.
            let share = sockets / count + usize::from(index < sockets % count);
            let mut sender = Worker::start("bare-sender", &["--sockets".to_owned(), share.to_string()], None)?;
            addresses.push(sender.answer::<Listening>(ANSWER_MAX).await?.address);
            senders.push(sender);
        }
        let wanted = Wanted {
            addresses,
            dialect: Dialect::Bare,
            sessions: sockets,
            conversation: "bare".to_owned(),
            token: None,
            more: Vec::new(),
        };
        let mut sessions = Sessions::start(&wanted)?;
        sessions.connect(sockets, Duration::ZERO).await?;
        sessions.until_joined(sockets, CONNECT_MAX).await?;
        for sender in &mut senders {
            sender.answer::<Accepted>(ANSWER_MAX).await?;
        }
        Ok(Self { sessions, senders })
    }

    /// CPU of one send, in microseconds.
    pub(super) async fn round(&mut self, messages: u64, rate: u32, frame_bytes: u64) -> Result<f64, Failure> {
        let round = SendRound { messages, rate, frame_bytes: usize::try_from(frame_bytes).unwrap_or(usize::MAX) };
        for sender in &mut self.senders {
            sender.ask(&round).await?;
        }
        let limit = ANSWER_MAX + Duration::from_secs(messages * SLOWER_MAX / u64::from(rate.max(1)));
        let (mut sends, mut cpu_us) = (0, 0);
        for sender in &mut self.senders {
            let sent: Sent = sender.answer(limit).await?;
            sends += sent.sends;
            cpu_us += sent.cpu_us;
        }
        let begun = Instant::now();
        while self.sessions.look(&Question::Look).await?.deliveries < sends && begun.elapsed() < ARRIVE_MAX {
            tokio::time::sleep(POLL).await;
        }
        self.sessions.look(&Question::Reset).await?;
        Ok(cpu_us as f64 / sends.max(1) as f64)
    }
}
