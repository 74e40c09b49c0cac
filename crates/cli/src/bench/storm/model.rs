//! A model of the return of many sessions to few gateways: no sockets, no clock, no chance but a seed's.
//!
//! Each gateway has one unit of work a second. Deliveries to the sessions that it has take a share of it; joins take what a
//! join costs, in the order of their arrival; where both wait, each gets half. It holds so many attempts in its queue; one over
//! that is refused, and comes back after a pause that grows. An attempt that waits longer than a client does is given up by its
//! client, but not by the queue, which does its work in vain: that is how a storm feeds itself. Deliveries that wait are late.
//!
//! Invariant: in each step every session is in exactly one place (waiting at home, in a queue, back), and work never exceeds
//! the capacity. Equal parameters give an equal course.

use std::collections::VecDeque;

use serde::Serialize;

use crate::bench::random::Random;

/// A step, in milliseconds.
pub(super) const STEP_MS: u64 = 10;
/// Pauses of a stock client after its first, second, … failure, in milliseconds; the last one from then on.
const PAUSES_MS: [u64; 9] = [10, 50, 100, 150, 200, 250, 500, 1_000, 2_000];
const LAST_PAUSE_MS: u64 = 5_000;
/// The course ends here at the latest.
const COURSE_MAX_MS: u64 = 600_000;

/// What is modelled.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Parameters {
    /// Sessions that lose their gateway at the same moment.
    pub(super) sessions: usize,
    /// Gateways that are left.
    pub(super) gateways: usize,
    /// Joins a second that one of them does while it does nothing else.
    pub(super) joins_per_second: f64,
    /// Thousandths of a gateway that deliveries to the sessions it has take.
    pub(super) delivering_permille: u32,
    /// Range reads a second that one of them does.
    pub(super) reads_per_second: f64,
    /// Sessions out of a thousand whose missing records are not in the ring, so that a read is needed.
    pub(super) ring_misses_permille: u64,
    /// Equal reads within this time are one; 0: each is its own.
    pub(super) shared_reads_ms: u64,
    /// Attempts that wait at one gateway at most.
    pub(super) queue: usize,
    /// How long a client waits for the answer to its join.
    pub(super) patience_ms: u64,
    /// The window over which they come back; 0: at once.
    pub(super) jitter_ms: u64,
    /// For what is drawn.
    pub(super) seed: u64,
}

/// A moment of the course.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Moment {
    pub(super) at_ms: u64,
    /// Sessions that are back.
    pub(super) back: usize,
    /// Attempts that wait at all gateways together.
    pub(super) queued: usize,
    /// How late deliveries are, at the gateway where they are latest, in milliseconds.
    pub(super) late_ms: f64,
}

/// How it went.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Course {
    /// When the last one was back; `None`: not within ten minutes.
    pub(super) all_back_ms: Option<u64>,
    /// Joins that were done, in vain or not.
    pub(super) joins: u64,
    /// Of these: those whose client had given up.
    pub(super) in_vain: u64,
    /// Attempts that were refused for a full queue.
    pub(super) refused: u64,
    /// Range reads.
    pub(super) reads: u64,
    /// Most attempts that waited at one gateway.
    pub(super) queued_max: usize,
    /// How late deliveries to those who never left were at the worst, in milliseconds.
    pub(super) late_max_ms: f64,
    #[serde(skip)]
    pub(super) moments: Vec<Moment>,
}

/// An attempt in a gateway's queue.
#[derive(Debug, Clone, Copy)]
struct Attempt {
    session: usize,
    /// The session's count of attempts, by which one that was given up is told.
    number: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct Session {
    attempts: u32,
    failures: usize,
    is_back: bool,
}

#[derive(Debug, Default)]
struct Gateway {
    queue: VecDeque<Attempt>,
    /// Work for joins that is paid for and not done, in milliseconds.
    joins_ms: f64,
    /// Work of deliveries that waits, in milliseconds.
    deliveries_ms: f64,
    reads_left: f64,
    /// When the read that is shared was begun.
    read_at_ms: Option<u64>,
}

/// What happens to a session at a time.
#[derive(Debug, Clone, Copy)]
enum Event {
    Comes(usize),
    GivesUp(Attempt),
}

struct Model {
    parameters: Parameters,
    random: Random,
    sessions: Vec<Session>,
    gateways: Vec<Gateway>,
    /// By step.
    due: Vec<Vec<Event>>,
    course: Course,
    back: usize,
}

/// The whole course.
pub(super) fn run(parameters: Parameters) -> Course {
    let mut model = Model {
        parameters,
        random: Random::new(parameters.seed),
        sessions: vec![Session::default(); parameters.sessions],
        gateways: (0..parameters.gateways).map(|_| Gateway::default()).collect(),
        due: Vec::new(),
        course: Course {
            all_back_ms: None,
            joins: 0,
            in_vain: 0,
            refused: 0,
            reads: 0,
            queued_max: 0,
            late_max_ms: 0.0,
            moments: Vec::new(),
        },
        back: 0,
    };
    for session in 0..parameters.sessions {
        let at_ms = model.random.below(parameters.jitter_ms);
        model.schedule(at_ms, Event::Comes(session));
    }
    let mut at_ms = 0;
    while model.back < parameters.sessions && at_ms < COURSE_MAX_MS {
        model.step(at_ms);
        at_ms += STEP_MS;
    }
    model.course.all_back_ms = (model.back == parameters.sessions).then_some(at_ms);
    model.note(at_ms);
    model.course
}

impl Model {
    fn schedule(&mut self, at_ms: u64, event: Event) {
        let step = usize::try_from(at_ms / STEP_MS).expect("ten minutes have few steps");
        if step >= self.due.len() {
            self.due.resize(step + 1, Vec::new());
        }
        self.due[step].push(event);
    }

    fn step(&mut self, at_ms: u64) {
        let step = usize::try_from(at_ms / STEP_MS).expect("ten minutes have few steps");
        let due = self.due.get_mut(step).map(std::mem::take).unwrap_or_default();
        for event in due {
            match event {
                Event::Comes(session) => self.come(session, at_ms),
                Event::GivesUp(attempt) => {
                    let session = self.sessions[attempt.session];
                    if !session.is_back && session.attempts == attempt.number {
                        self.fail(attempt.session, at_ms);
                    }
                }
            }
        }
        for gateway in 0..self.gateways.len() {
            self.work(gateway, at_ms);
        }
        if at_ms.is_multiple_of(100) {
            self.note(at_ms);
        }
    }

    fn come(&mut self, session: usize, at_ms: u64) {
        let Parameters { queue, patience_ms, gateways, .. } = self.parameters;
        let gateway = usize::try_from(self.random.below(gateways as u64)).unwrap_or(0);
        self.sessions[session].attempts += 1;
        if self.gateways[gateway].queue.len() >= queue {
            self.course.refused += 1;
            return self.fail(session, at_ms);
        }
        let attempt = Attempt { session, number: self.sessions[session].attempts };
        let waiting = &mut self.gateways[gateway].queue;
        waiting.push_back(attempt);
        self.course.queued_max = self.course.queued_max.max(waiting.len());
        self.schedule(at_ms + patience_ms, Event::GivesUp(attempt));
    }

    fn fail(&mut self, session: usize, at_ms: u64) {
        let state = &mut self.sessions[session];
        // Whatever answers the last attempt answers nobody.
        state.attempts += 1;
        let pause = PAUSES_MS.get(state.failures).copied().unwrap_or(LAST_PAUSE_MS);
        state.failures += 1;
        // With a window the server's directive spreads these, too.
        let spread =
            if self.parameters.jitter_ms > 0 { self.random.below(pause.max(self.parameters.jitter_ms / 8)) } else { 0 };
        self.schedule(at_ms + (pause + spread).max(STEP_MS), Event::Comes(session));
    }

    fn work(&mut self, number: usize, at_ms: u64) {
        let Parameters { reads_per_second, delivering_permille, .. } = self.parameters;
        let gateway = &mut self.gateways[number];
        let step_ms = STEP_MS as f64;
        gateway.deliveries_ms += step_ms * f64::from(delivering_permille) / 1_000.0;
        gateway.reads_left = gateway.reads_left.min(1.0) + reads_per_second * step_ms / 1_000.0;
        // Joins get half while both wait, and else what deliveries leave. What is not used is not kept for later: an idle
        // second makes nobody faster.
        let share_ms = (step_ms / 2.0).max(step_ms - gateway.deliveries_ms);
        let cost_ms = 1_000.0 / self.parameters.joins_per_second;
        let granted_ms = gateway.joins_ms.min(cost_ms) + share_ms;
        gateway.joins_ms = granted_ms;
        self.joins(number, at_ms, cost_ms);
        let gateway = &mut self.gateways[number];
        let used_ms = (granted_ms - gateway.joins_ms).min(step_ms);
        gateway.deliveries_ms = (gateway.deliveries_ms - (step_ms - used_ms)).max(0.0);
        let late_ms = self.late_ms();
        self.course.late_max_ms = self.course.late_max_ms.max(late_ms);
    }

    /// Joins for the work that was granted.
    fn joins(&mut self, number: usize, at_ms: u64, cost_ms: f64) {
        let Parameters { shared_reads_ms, ring_misses_permille, .. } = self.parameters;
        let gateway = &mut self.gateways[number];
        while gateway.joins_ms >= cost_ms
            && let Some(attempt) = gateway.queue.front().copied()
        {
            let is_wanted = self.sessions[attempt.session].attempts == attempt.number;
            if is_wanted && self.random.below(1_000) < ring_misses_permille {
                let is_shared = gateway.read_at_ms.is_some_and(|read| at_ms < read + shared_reads_ms);
                if !is_shared {
                    if gateway.reads_left < 1.0 {
                        break;
                    }
                    gateway.reads_left -= 1.0;
                    gateway.read_at_ms = Some(at_ms);
                    self.course.reads += 1;
                }
            }
            gateway.joins_ms -= cost_ms;
            gateway.queue.pop_front();
            self.course.joins += 1;
            if is_wanted {
                self.sessions[attempt.session].is_back = true;
                self.back += 1;
            } else {
                self.course.in_vain += 1;
            }
        }
    }

    /// How old the oldest delivery is that waits, at the gateway where that is worst. One step is no delay but the model's grain.
    fn late_ms(&self) -> f64 {
        let share = f64::from(self.parameters.delivering_permille) / 1_000.0;
        let waiting_ms = self.gateways.iter().map(|gateway| gateway.deliveries_ms).fold(0.0, f64::max);
        if share > 0.0 { waiting_ms / share } else { 0.0 }
    }

    fn note(&mut self, at_ms: u64) {
        let queued = self.gateways.iter().map(|gateway| gateway.queue.len()).sum();
        let moment = Moment { at_ms, back: self.back, queued, late_ms: self.late_ms() };
        self.course.moments.push(moment);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(jitter_ms: u64) -> Parameters {
        Parameters {
            sessions: 30_000,
            gateways: 3,
            joins_per_second: 1_500.0,
            delivering_permille: 600,
            reads_per_second: 100.0,
            ring_misses_permille: 50,
            shared_reads_ms: 100,
            queue: 20_000,
            patience_ms: 5_000,
            jitter_ms,
            seed: 1,
        }
    }

    #[test]
    fn the_same_seed_is_the_same_course() {
        assert_eq!(run(parameters(30_000)), run(parameters(30_000)));
        assert_ne!(run(parameters(30_000)).moments, run(Parameters { seed: 2, ..parameters(30_000) }).moments);
    }

    #[test]
    fn everybody_is_back_once_and_work_stays_within_the_capacity() {
        for jitter_ms in [0, 5_000, 30_000] {
            let course = run(parameters(jitter_ms));
            let end_ms = course.all_back_ms.expect("they are back");
            assert_eq!(course.moments.last().map(|moment| moment.back), Some(30_000));
            assert_eq!(course.joins - course.in_vain, 30_000, "{course:?}");
            let most = 3.0 * 1_500.0 * (end_ms + STEP_MS) as f64 / 1_000.0 + 3.0;
            assert!(course.joins as f64 <= most, "{} joins in {end_ms} ms", course.joins);
            assert!(course.moments.is_sorted_by_key(|moment| moment.back));
        }
    }

    #[test]
    fn a_window_saves_joins_in_vain_and_crowds() {
        let (at_once, spread) = (run(parameters(0)), run(parameters(30_000)));
        assert_eq!(spread.in_vain + spread.refused, 0);
        assert!(at_once.in_vain > 5_000, "{}", at_once.in_vain);
        assert!(at_once.late_max_ms > 1_000.0 && spread.late_max_ms < 100.0, "{at_once:?} and {spread:?}");
        assert!(at_once.queued_max > 10 * spread.queued_max.max(1), "{} and {}", at_once.queued_max, spread.queued_max);
    }

    #[test]
    fn equal_reads_are_one() {
        let shared = run(Parameters { ring_misses_permille: 1_000, ..parameters(30_000) });
        let apart = run(Parameters { ring_misses_permille: 1_000, shared_reads_ms: 0, ..parameters(30_000) });
        assert!(shared.reads < 1_000 && apart.reads == 30_000, "{} and {}", shared.reads, apart.reads);
        assert!(apart.all_back_ms.unwrap_or(u64::MAX) > shared.all_back_ms.expect("they are back"));
    }
}
