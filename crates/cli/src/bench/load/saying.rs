//! What the load says of its own: signs of life, messages into the numbered channels, and live events.

use crate::bench::process;
use crate::bench::ramp::Growth;
use crate::bench::random::Random;

use super::pool::Pool;
use super::session::Phase;

/// Every session gives a sign of life in this time; servers close sockets that are silent for longer.
const LIFE_NS: u64 = 25_000_000_000;
/// Most messages, and most live events, that one look at the clock makes up for.
const BURST: u64 = 200;

/// What is to be said, and what was.
pub(super) struct Saying {
    /// Sessions that gave a sign, since the beginning.
    signs: u64,
    begun_ns: u64,
    messages: Pace,
    live: Pace,
    text: String,
    /// Keys of this process's messages begin with it.
    run: u64,
}

/// A rate that is being kept.
struct Pace {
    growth: Growth,
    begun_ns: u64,
    done: u64,
    /// The next of whatever takes turns.
    next: usize,
}

impl Pace {
    fn none() -> Self {
        Self { growth: Growth::steady(0.0), begun_ns: 0, done: 0, next: 0 }
    }

    fn start(&mut self, growth: Growth, now_ns: u64) {
        (self.growth, self.begun_ns, self.done) = (growth, now_ns, 0);
    }

    /// How many are due; they count as done.
    fn due(&mut self, now_ns: u64) -> u64 {
        let at_s = now_ns.saturating_sub(self.begun_ns) as f64 / 1e9;
        let due = (self.growth.due(at_s) as u64).saturating_sub(self.done).min(BURST);
        self.done += due;
        due
    }
}

impl Saying {
    pub(super) fn new(seed: u64) -> Self {
        let run = Random::new(seed ^ process::shared_now_ns()).next();
        Self { signs: 0, begun_ns: 0, messages: Pace::none(), live: Pace::none(), text: String::new(), run }
    }
}

impl Pool {
    /// Live events at this rate from now on.
    pub(super) fn live(&mut self, growth: Growth, now_ns: u64) {
        self.saying.live.start(growth, now_ns);
    }

    /// Messages into the numbered channels at this rate from now on.
    pub(super) fn send(&mut self, growth: Growth, bytes: usize, now_ns: u64) {
        self.saying.messages.start(growth, now_ns);
        self.saying.text = "x".repeat(bytes);
    }

    /// Says what is due.
    pub(super) fn say(&mut self, now_ns: u64) {
        self.give_signs(now_ns);
        for _ in 0..self.saying.messages.due(now_ns) {
            self.send_next(now_ns);
        }
        for _ in 0..self.saying.live.due(now_ns) {
            self.stir();
        }
    }

    /// Signs of life come evenly, so that those of thousands do not come together.
    fn give_signs(&mut self, now_ns: u64) {
        let Some(words) = self.ears.sign_of_life() else { return };
        if self.saying.begun_ns == 0 {
            self.saying.begun_ns = now_ns;
        }
        let count = self.sessions.len() as u64;
        let elapsed = now_ns - self.saying.begun_ns;
        let due = u128::from(count) * u128::from(elapsed) / u128::from(LIFE_NS);
        let due = u64::try_from(due).unwrap_or(u64::MAX);
        // After a pause once around is enough.
        self.saying.signs = self.saying.signs.max(due.saturating_sub(count));
        while self.saying.signs < due {
            let index = usize::try_from(self.saying.signs % count).expect("it is an index");
            self.saying.signs += 1;
            if self.sessions[index].phase == Phase::Joined {
                self.tell(index, words);
            }
        }
    }

    /// The next message, into the next channel, by the first session that has it.
    fn send_next(&mut self, now_ns: u64) {
        let pace = &mut self.saying.messages;
        let (number, of) = (pace.next, self.layout.of);
        if of == 0 {
            return;
        }
        pace.next = (number + 1) % of;
        let holder = self.layout.holder(number);
        if self.sessions.get(holder).is_none_or(|session| session.phase != Phase::Joined) {
            return;
        }
        let Saying { run, text, messages, .. } = &self.saying;
        let key = format!("{run:016x}-{}-{number}-{now_ns}", messages.done);
        let payload = format!(r#"{{"client_msg_id":"{key}","body":{{"sent_ns":{now_ns},"text":"{text}"}}}}"#);
        let words = self.ears.push(number + 1, 'm', "message", &payload);
        self.tell(holder, &words);
    }

    /// A live event of the next session, in its first channel: in turn typing, and a leave which is followed by a join, and so
    /// counts twice.
    fn stir(&mut self) {
        let count = self.sessions.len();
        let pace = &mut self.saying.live;
        let turn = pace.next;
        pace.next += 1;
        let index = (turn / 3).wrapping_mul(7_919) % count.max(1);
        let is_joined = self
            .sessions
            .get(index)
            .is_some_and(|session| session.phase == Phase::Joined && session.unanswered == 0 && session.behind == 0);
        // The second half of a leave and a join says nothing of its own.
        let what = turn % 3;
        if !is_joined || self.layout.width() == 0 || what == 2 {
            return;
        }
        let topic = self.layout.topic(index, 0);
        let words = match what {
            0 => self.ears.push(topic, 't', "typing", "{}"),
            _ => {
                self.sessions[index].unanswered += 1;
                self.places[index * self.layout.width()].is_left = true;
                self.ears.push(topic, 'l', "phx_leave", "{}")
            }
        };
        self.tally.live += if what == 0 { 1 } else { 2 };
        self.tell(index, &words);
    }
}
