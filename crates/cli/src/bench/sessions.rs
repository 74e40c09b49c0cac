//! The sessions of a bench, in as many load processes as the limit on open files asks for.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::load::{Checked, Delivered, Dialect, Done, Question};
use super::process;
use super::worker::Worker;
use crate::exit::Failure;

/// Files that a process needs besides its sockets.
pub(super) const SPARE_FILES: u64 = 500;
/// Most sessions of one process: the limit on open files that a machine usually gives.
const SESSIONS_A_PROCESS: usize = 20_000;
/// How long an answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// How often it is asked whether something has come.
const POLL: Duration = Duration::from_millis(100);

/// What sessions are wanted.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    /// `host:port`; sessions go to them in turn.
    pub(super) addresses: Vec<String>,
    /// What they speak.
    pub(super) dialect: Dialect,
    /// How many.
    pub(super) sessions: usize,
    /// Their channel.
    pub(super) conversation: String,
    /// For the environment: arguments can be seen by others.
    pub(super) token: Option<String>,
    /// Further arguments of the load.
    pub(super) more: Vec<String>,
}

/// The processes.
pub(super) struct Sessions {
    workers: Vec<Worker>,
    shares: Vec<usize>,
}

impl Sessions {
    /// Starts the processes; nothing connects yet.
    pub(super) fn start(wanted: &Wanted) -> Result<Self, Failure> {
        // Each process connects from a loopback address of its own, which has ports enough for it.
        static SOURCES: AtomicUsize = AtomicUsize::new(0);
        let files = usize::try_from(process::open_files_max().saturating_sub(SPARE_FILES)).unwrap_or(usize::MAX);
        let count = wanted.sessions.div_ceil(SESSIONS_A_PROCESS.min(files.max(1))).max(1);
        let mut sessions = Self { workers: Vec::with_capacity(count), shares: Vec::with_capacity(count) };
        for index in 0..count {
            let share = wanted.sessions / count + usize::from(index < wanted.sessions % count);
            // Session k of all is at address k modulo their number.
            let mut addresses = wanted.addresses.clone();
            addresses.rotate_left(sessions.shares.iter().sum::<usize>() % wanted.addresses.len().max(1));
            let source = SOURCES.fetch_add(1, Ordering::Relaxed);
            let mut arguments: Vec<String> = [
                ("--address", addresses.join(",")),
                ("--dialect", wanted.dialect.name().to_owned()),
                ("--sessions", share.to_string()),
                ("--conversation", wanted.conversation.clone()),
                ("--from", format!("127.0.0.{}", 2 + source % 250)),
                ("--seed", (source + 1).to_string()),
            ]
            .into_iter()
            .flat_map(|(name, value)| [name.to_owned(), value])
            .collect();
            arguments.extend(wanted.more.iter().cloned());
            sessions.workers.push(Worker::start("load", &arguments, wanted.token.as_deref())?);
            sessions.shares.push(share);
        }
        Ok(sessions)
    }

    /// How many processes.
    pub(super) fn processes(&self) -> usize {
        self.workers.len()
    }

    /// Lets there be `sessions` of them, evenly over a time.
    pub(super) async fn connect(&mut self, sessions: usize, over: Duration) -> Result<(), Failure> {
        let total: usize = self.shares.iter().sum();
        let over_ms = u64::try_from(over.as_millis()).unwrap_or(u64::MAX);
        for (worker, share) in self.workers.iter_mut().zip(&self.shares) {
            let sessions = (sessions * share).div_ceil(total.max(1));
            worker.ask(&Question::Connect { sessions, over_ms }).await?;
            worker.answer::<Done>(ANSWER_MAX).await?;
        }
        Ok(())
    }

    /// Waits until so many have joined.
    pub(super) async fn until_joined(&mut self, sessions: usize, limit: Duration) -> Result<(), Failure> {
        let begun = Instant::now();
        loop {
            let seen = self.look(&Question::Look).await?;
            if seen.joined >= sessions {
                return Ok(());
            }
            if begun.elapsed() > limit {
                let why = seen.why.unwrap_or_else(|| "nothing was refused".to_owned());
                let text = format!("{} of {sessions} sessions joined within {limit:?}: {why}", seen.joined);
                return Err(Failure::other(text));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Asks with [`Question::Look`] or [`Question::Reset`].
    pub(super) async fn look(&mut self, question: &Question) -> Result<Delivered, Failure> {
        let mut all = Delivered::nothing();
        for worker in &mut self.workers {
            worker.ask(question).await?;
        }
        for worker in &mut self.workers {
            all.add(&worker.answer(ANSWER_MAX).await?);
        }
        Ok(all)
    }

    /// Asks with [`Question::Check`] or [`Question::CheckSent`].
    pub(super) async fn check(&mut self, question: &Question) -> Result<Checked, Failure> {
        let mut all = Checked::default();
        for worker in &mut self.workers {
            worker.ask(question).await?;
        }
        for worker in &mut self.workers {
            all.add(worker.answer(ANSWER_MAX).await?);
        }
        Ok(all)
    }

    /// Tells each process its part: what `part` makes of how many there are.
    pub(super) async fn tell(&mut self, part: impl Fn(f64) -> Question) -> Result<(), Failure> {
        let question = part(self.workers.len() as f64);
        for worker in &mut self.workers {
            worker.ask(&question).await?;
            worker.answer::<Done>(ANSWER_MAX).await?;
        }
        Ok(())
    }

    /// The processes' CPU time so far.
    pub(super) fn cpu(&self) -> Duration {
        // One that has ended is noticed when it is asked next.
        self.workers.iter().filter_map(Worker::pid).filter_map(|pid| process::cpu(pid).ok()).sum()
    }
}
