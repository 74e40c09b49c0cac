//! A single-threaded executor in simulated time that chooses by a seed.
//!
//! It stands in for the runtime, the clocks and the randomness behind `conch_server::seams`. At each step it draws one
//! of the runnable tasks and polls it; when none is runnable, time jumps to the next timer. Processes can be halted in
//! whole or in part, killed, and given clocks that jump or stop.
//!
//! Invariant: what happens is a function of the seed. The set of runnable tasks is ordered by task id, so the order in
//! which one poll wakes others (which `tokio::sync` may draw at random) has no influence.
//!
//! Deliberately absent: threads, real time, an IO driver. A task that blocks its thread blocks the simulation.

mod process;

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures_util::future::BoxFuture;

use self::process::ProcessState;
pub use self::process::{ClockStart, Halt, Process};
use crate::dice::Dice;
use crate::shared::lock;
use crate::trace::{Trace, TraceMode};

/// Most simulated time that passes at one poll, in nanoseconds: so time goes on even where nobody sleeps.
const POLL_MAX_NS: u64 = 5_000;

/// What a run may use up before it counts as stuck.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Most polls.
    pub steps: u64,
    /// Most simulated time.
    pub time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { steps: 2_000_000, time: Duration::from_secs(3_600) }
    }
}

/// Why a run did not reach its end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Stuck {
    /// Nothing is runnable and no timer is set.
    #[error("deadlock: no task is runnable and no timer is set; waiting: {0}")]
    Deadlock(String),
    /// More polls than the limit.
    #[error("{0} polls were not enough")]
    Steps(u64),
    /// More simulated time than the limit.
    #[error("{0:?} of simulated time were not enough")]
    Time(Duration),
    /// A task panicked.
    #[error("task {task} panicked: {message}")]
    Panicked {
        /// Its id and name.
        task: String,
        /// What it said.
        message: String,
    },
}

/// A task's number, counted from 0 in the order of spawning.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct TaskId(u64);

/// Whether a task shares its process's threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Thread {
    /// It runs beside the others.
    Shared,
    /// It has a thread of its own.
    Dedicated,
}

struct Task {
    process: usize,
    name: &'static str,
    thread: Thread,
    /// `None` while it is polled.
    future: Option<BoxFuture<'static, ()>>,
}

impl fmt::Display for TaskLabel<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} t{}", self.1, self.0.0)
    }
}

/// "process t-number", as the trace names a task.
struct TaskLabel<'a>(TaskId, &'a str);

pub(crate) struct State {
    now_ns: u64,
    steps: u64,
    next_task: u64,
    next_timer: u64,
    dice: Dice,
    tasks: BTreeMap<TaskId, Task>,
    processes: Vec<ProcessState>,
    trace: Trace,
}

pub(crate) struct Core {
    seed: u64,
    limits: Limits,
    state: Mutex<State>,
    /// The runnable tasks. A lock of its own, because wakers run at any place.
    runnable: Arc<Mutex<BTreeSet<TaskId>>>,
}

struct TaskWaker {
    id: TaskId,
    runnable: Arc<Mutex<BTreeSet<TaskId>>>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        lock(&self.runnable).insert(self.id);
    }
}

/// The executor; clones are the same one.
#[derive(Clone)]
pub struct Executor {
    core: Arc<Core>,
}

impl Executor {
    /// An executor at simulated time 0, with one process: the world.
    #[must_use]
    pub fn new(seed: u64, limits: Limits, mode: TraceMode) -> Self {
        let state = State {
            now_ns: 0,
            steps: 0,
            next_task: 0,
            next_timer: 0,
            dice: Dice::new(seed, 0),
            tasks: BTreeMap::new(),
            processes: vec![ProcessState::new("world", seed, 0, ClockStart::default())],
            trace: Trace::new(mode),
        };
        Self { core: Arc::new(Core { seed, limits, state: Mutex::new(state), runnable: Arc::default() }) }
    }

    /// The process that is never killed, whose clock is simulated time itself: harness, clients and the store run in it.
    #[must_use]
    pub fn world(&self) -> Process {
        Process::new(self.core.clone(), 0)
    }

    /// A new process. `name` shows in the trace.
    #[must_use]
    pub fn process(&self, name: &str, clock: ClockStart) -> Process {
        let mut state = lock(&self.core.state);
        let id = state.processes.len();
        state.processes.push(ProcessState::new(name, self.core.seed, id as u64, clock));
        let now_ns = state.now_ns;
        state.trace.line(now_ns, name, "starts");
        drop(state);
        Process::new(self.core.clone(), id)
    }

    /// The seed.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.core.seed
    }

    /// Simulated time since the start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(lock(&self.core.state).now_ns)
    }

    /// Polls so far.
    #[must_use]
    pub fn steps(&self) -> u64 {
        lock(&self.core.state).steps
    }

    /// The trace so far.
    #[must_use]
    pub fn trace(&self) -> Trace {
        lock(&self.core.state).trace.clone()
    }

    /// Runs `main` in the world to its end, and the other tasks as long as that takes. Afterwards every task is dropped.
    ///
    /// # Errors
    /// [`Stuck`] says why there is no end.
    pub fn run<T: Send + 'static>(&self, main: impl Future<Output = T> + Send + 'static) -> Result<T, Stuck> {
        let result = Arc::new(Mutex::new(None));
        let slot = result.clone();
        self.world().spawn("main", async move {
            let value = main.await;
            *lock(&slot) = Some(value);
        });
        let ended = loop {
            if let Some(value) = lock(&result).take() {
                break Ok(value);
            }
            if let Err(stuck) = self.core.step() {
                break Err(stuck);
            }
        };
        self.core.drop_everything();
        ended
    }
}

impl Core {
    pub(crate) fn spawn(&self, process: usize, name: &'static str, thread: Thread, future: BoxFuture<'static, ()>) {
        let mut state = lock(&self.state);
        if !state.processes[process].alive {
            drop(state);
            drop(future);
            return;
        }
        let id = TaskId(state.next_task);
        state.next_task += 1;
        state.tasks.insert(id, Task { process, name, thread, future: Some(future) });
        state.note(process, id, format_args!("{name} spawned"));
        drop(state);
        lock(&self.runnable).insert(id);
    }

    /// Polls one task, or jumps to the next timer.
    fn step(&self) -> Result<(), Stuck> {
        let mut state = lock(&self.state);
        let Some(id) = self.choose(&mut state) else {
            return self.jump(state);
        };
        state.steps += 1;
        if state.steps > self.limits.steps {
            return Err(Stuck::Steps(self.limits.steps));
        }
        let task = state.tasks.get_mut(&id).expect("the chosen task exists");
        let mut future = task.future.take().expect("no task is polled twice at once");
        let (name, process) = (task.name, task.process);
        state.note(process, id, name);
        drop(state);

        lock(&self.runnable).remove(&id);
        let waker = Waker::from(Arc::new(TaskWaker { id, runnable: self.runnable.clone() }));
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut Context::from_waker(&waker))));
        match polled {
            Err(panic) => {
                return Err(Stuck::Panicked { task: format!("t{} {name}", id.0), message: panic_message(&*panic) });
            }
            Ok(Poll::Ready(())) => {
                drop(future);
                let mut state = lock(&self.state);
                state.tasks.remove(&id);
                state.note(process, id, format_args!("{name} ended"));
            }
            Ok(Poll::Pending) => self.put_back(id, future),
        }
        self.pass_time();
        Ok(())
    }

    /// Puts a polled task back, unless its process was killed by that very poll.
    fn put_back(&self, id: TaskId, future: BoxFuture<'static, ()>) {
        let mut state = lock(&self.state);
        if let Some(task) = state.tasks.get_mut(&id) {
            task.future = Some(future);
            return;
        }
        drop(state);
        drop(future);
    }

    /// Draws one of the runnable tasks whose process lets them run.
    fn choose(&self, state: &mut State) -> Option<TaskId> {
        let mut runnable = lock(&self.runnable);
        runnable.retain(|id| state.tasks.contains_key(id));
        let eligible: Vec<TaskId> = runnable.iter().copied().filter(|id| state.may_run(*id)).collect();
        if eligible.is_empty() { None } else { Some(eligible[state.dice.index(eligible.len())]) }
    }

    fn jump(&self, mut state: MutexGuard<'_, State>) -> Result<(), Stuck> {
        let Some(next_ns) = state.next_timer_ns() else {
            return Err(Stuck::Deadlock(state.waiting()));
        };
        if Duration::from_nanos(next_ns) > self.limits.time {
            return Err(Stuck::Time(self.limits.time));
        }
        state.now_ns = state.now_ns.max(next_ns);
        drop(state);
        self.fire();
        Ok(())
    }

    /// A poll takes a little time, too.
    fn pass_time(&self) {
        let mut state = lock(&self.state);
        let passed = state.dice.below(POLL_MAX_NS);
        state.now_ns += passed;
        drop(state);
        self.fire();
    }

    /// Wakes the tasks whose timers are due. Wakers are called with no lock held.
    pub(crate) fn fire(&self) {
        let due = lock(&self.state).take_due();
        for waker in due {
            waker.wake();
        }
    }

    /// Drops the tasks of one process. Futures are dropped with no lock held: their destructors may come back here.
    pub(crate) fn drop_tasks(&self, process: usize) {
        let mut state = lock(&self.state);
        let ids: Vec<TaskId> =
            state.tasks.iter().filter(|(_, task)| task.process == process).map(|(id, _)| *id).collect();
        let dropped: Vec<Task> = ids.iter().filter_map(|id| state.tasks.remove(id)).collect();
        let timers = std::mem::take(&mut state.processes[process].timers);
        drop(state);
        drop(dropped);
        drop(timers);
    }

    fn drop_everything(&self) {
        let count = lock(&self.state).processes.len();
        for process in 0..count {
            lock(&self.state).processes[process].alive = false;
            self.drop_tasks(process);
        }
    }
}

impl State {
    fn note(&mut self, process: usize, id: TaskId, what: impl fmt::Display) {
        let name = self.processes[process].name.clone();
        self.trace.line(self.now_ns, TaskLabel(id, &name), what);
    }

    fn may_run(&self, id: TaskId) -> bool {
        self.tasks.get(&id).is_some_and(|task| self.processes[task.process].lets_run(task.name, task.thread))
    }

    /// When the earliest timer is due, in simulated nanoseconds.
    fn next_timer_ns(&self) -> Option<u64> {
        self.processes.iter().filter_map(|process| process.next_timer_ns()).min()
    }

    fn take_due(&mut self) -> Vec<Waker> {
        let now_ns = self.now_ns;
        self.processes.iter_mut().flat_map(|process| process.take_due(now_ns)).collect()
    }

    /// Names the tasks that wait, for the report of a deadlock.
    fn waiting(&self) -> String {
        let label =
            |(id, task): (&TaskId, &Task)| format!("{} t{} {}", self.processes[task.process].name, id.0, task.name);
        self.tasks.iter().map(label).collect::<Vec<_>>().join(", ")
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&'static str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "(no message)".to_owned())
}

#[cfg(test)]
mod tests;
