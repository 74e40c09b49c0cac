//! A simulated process: its clock, its halts, its death, and the seams that its code is given.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use conch_core::time::{Monotonic, Timestamp};
use conch_server::seams::{Clock, Random, Seams, Spawn};
use futures_util::future::BoxFuture;

use super::{Core, Thread};
use crate::dice::Dice;
use crate::shared::lock;

/// Where a process's clocks stand when simulated time is 0.
#[derive(Debug, Clone, Copy)]
pub struct ClockStart {
    /// The boot-time clock, in nanoseconds.
    pub boot_ns: u64,
    /// The calendar, in milliseconds since 1970.
    pub wall_ms: i64,
}

impl Default for ClockStart {
    fn default() -> Self {
        // 2026-12-01T00:00:00Z, so that no test depends on 1970.
        Self { boot_ns: 0, wall_ms: 1_796_083_200_000 }
    }
}

/// What stands still in a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Halt {
    /// Every task; its clock goes on (a stopped process, a suspended machine).
    Process,
    /// Every task and its clock (a hypervisor's pause).
    Machine,
    /// All tasks but those on threads of their own (every thread of the runtime is blocked).
    SharedThreads,
    /// The tasks of this name (a wedged loop).
    Named(&'static str),
}

pub(crate) struct ProcessState {
    pub(crate) name: Arc<str>,
    pub(crate) alive: bool,
    /// Due time on the process's own clock, and a number that makes it unique.
    pub(crate) timers: BTreeMap<(Monotonic, u64), Waker>,
    random: Dice,
    /// Own clock minus simulated time, in nanoseconds.
    offset_ns: i128,
    wall_offset_ms: i64,
    /// Where the own clock stands still, in own nanoseconds.
    frozen_at: Option<Monotonic>,
    halts: BTreeSet<Halt>,
}

impl ProcessState {
    pub(super) fn new(name: &str, seed: u64, id: u64, start: ClockStart) -> Self {
        Self {
            name: name.into(),
            alive: true,
            timers: BTreeMap::new(),
            random: Dice::new(seed, id + 1),
            offset_ns: i128::from(start.boot_ns),
            wall_offset_ms: start.wall_ms,
            frozen_at: None,
            halts: BTreeSet::new(),
        }
    }

    fn now(&self, now_ns: u64) -> Monotonic {
        self.frozen_at.unwrap_or_else(|| Monotonic(clamp(i128::from(now_ns) + self.offset_ns)))
    }

    pub(super) fn lets_run(&self, name: &'static str, thread: Thread) -> bool {
        self.alive
            && !self.halts.iter().any(|halt| match halt {
                Halt::Process | Halt::Machine => true,
                Halt::SharedThreads => thread == Thread::Shared,
                Halt::Named(halted) => *halted == name,
            })
    }

    pub(super) fn next_timer_ns(&self) -> Option<u64> {
        if self.frozen_at.is_some() {
            return None;
        }
        let ((at, _), _) = self.timers.first_key_value()?;
        Some(clamp(i128::from(at.0) - self.offset_ns))
    }

    pub(super) fn take_due(&mut self, now_ns: u64) -> Vec<Waker> {
        if self.frozen_at.is_some() {
            return Vec::new();
        }
        let now = self.now(now_ns);
        let later = self.timers.split_off(&(now + Duration::from_nanos(1), 0));
        std::mem::replace(&mut self.timers, later).into_values().collect()
    }
}

fn clamp(ns: i128) -> u64 {
    u64::try_from(ns.max(0)).unwrap_or(u64::MAX)
}

/// A handle on a process; clones are the same one.
#[derive(Clone)]
pub struct Process {
    core: Arc<Core>,
    id: usize,
}

impl Process {
    pub(super) fn new(core: Arc<Core>, id: usize) -> Self {
        Self { core, id }
    }

    /// What the code that runs in this process is given.
    #[must_use]
    pub fn seams(&self) -> Seams {
        Seams { clock: Arc::new(self.clone()), spawner: Arc::new(self.clone()), random: Arc::new(self.clone()) }
    }

    /// Runs a task in this process.
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.core.spawn(self.id, name, Thread::Shared, Box::pin(task));
    }

    /// Ends the process: none of its tasks is polled again, all are dropped, and it never spawns another. May be called
    /// from one of its own tasks, which then ends at its next await.
    pub fn kill(&self) {
        {
            let mut state = lock(&self.core.state);
            let process = &mut state.processes[self.id];
            if !process.alive {
                return;
            }
            process.alive = false;
        }
        self.note("killed");
        self.core.drop_tasks(self.id);
    }

    /// Is it running? A halted process is.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        lock(&self.core.state).processes[self.id].alive
    }

    /// Would a listener of this process answer now?
    #[must_use]
    pub fn answers(&self) -> bool {
        lock(&self.core.state).processes[self.id].lets_run("link", Thread::Shared)
    }

    /// Is this a handle on the same process?
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.id == other.id
    }

    /// Stops (a part of) the process until [`Process::resume`] of the same halt.
    pub fn halt(&self, halt: Halt) {
        self.note(format_args!("halt {halt:?}"));
        let mut state = lock(&self.core.state);
        let now_ns = state.now_ns;
        let process = &mut state.processes[self.id];
        if process.halts.insert(halt) && halt == Halt::Machine {
            process.frozen_at = Some(process.now(now_ns));
        }
    }

    /// Lets it go on. Timers that came due meanwhile fire now.
    pub fn resume(&self, halt: Halt) {
        self.note(format_args!("resume {halt:?}"));
        {
            let mut state = lock(&self.core.state);
            let now_ns = state.now_ns;
            let process = &mut state.processes[self.id];
            if process.halts.remove(&halt) && halt == Halt::Machine {
                let frozen_at = process.frozen_at.take().expect("a halted machine's clock stands still");
                process.offset_ns = i128::from(frozen_at.0) - i128::from(now_ns);
            }
        }
        self.core.fire();
    }

    /// Moves the boot-time clock forward, as after a suspension that nobody noticed.
    pub fn jump_clock(&self, by: Duration) {
        self.note(format_args!("clock jumps {} ms", by.as_millis()));
        {
            let mut state = lock(&self.core.state);
            let process = &mut state.processes[self.id];
            let by_ns = i128::try_from(by.as_nanos()).unwrap_or(i128::MAX);
            match &mut process.frozen_at {
                Some(frozen_at) => *frozen_at = *frozen_at + by,
                None => process.offset_ns += by_ns,
            }
        }
        self.core.fire();
    }

    /// Sets the calendar forward or, with a negative number, back.
    pub fn shift_calendar(&self, by_ms: i64) {
        self.note(format_args!("calendar shifts {by_ms} ms"));
        lock(&self.core.state).processes[self.id].wall_offset_ms += by_ms;
    }

    /// Adds a line to the trace.
    pub fn note(&self, what: impl std::fmt::Display) {
        let mut state = lock(&self.core.state);
        let (now_ns, name) = (state.now_ns, state.processes[self.id].name.clone());
        state.trace.line(now_ns, name, what);
    }

    /// Completes after `duration` on this process's clock.
    pub fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let at = self.now() + duration;
        self.sleep_until(at)
    }
}

impl Clock for Process {
    fn now(&self) -> Monotonic {
        let state = lock(&self.core.state);
        state.processes[self.id].now(state.now_ns)
    }

    fn wall(&self) -> Timestamp {
        let state = lock(&self.core.state);
        let now_ms = i64::try_from(state.now_ns / 1_000_000).unwrap_or(i64::MAX);
        Timestamp(now_ms.saturating_add(state.processes[self.id].wall_offset_ms))
    }

    fn sleep_until(&self, at: Monotonic) -> BoxFuture<'static, ()> {
        Box::pin(Sleep { process: self.clone(), at, timer: None })
    }
}

impl Spawn for Process {
    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>) {
        self.core.spawn(self.id, name, Thread::Shared, task);
    }

    fn spawn_dedicated(&self, name: &'static str, task: BoxFuture<'static, ()>) {
        self.core.spawn(self.id, name, Thread::Dedicated, task);
    }
}

impl Random for Process {
    fn bits(&self) -> u64 {
        lock(&self.core.state).processes[self.id].random.bits()
    }
}

/// A timer on a process's clock. Cancel safe: dropping it removes the timer.
struct Sleep {
    process: Process,
    at: Monotonic,
    timer: Option<u64>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let core = self.process.core.clone();
        let mut state = lock(&core.state);
        let now_ns = state.now_ns;
        let id = self.process.id;
        if state.processes[id].now(now_ns) >= self.at {
            return Poll::Ready(());
        }
        let number = self.timer.unwrap_or(state.next_timer);
        if self.timer.is_none() {
            state.next_timer += 1;
            self.timer = Some(number);
        }
        let replaced = state.processes[id].timers.insert((self.at, number), context.waker().clone());
        drop(state);
        drop(replaced);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(number) = self.timer {
            let removed = lock(&self.process.core.state).processes[self.process.id].timers.remove(&(self.at, number));
            drop(removed);
        }
    }
}
