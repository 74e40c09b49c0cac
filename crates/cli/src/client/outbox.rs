//! The outbox rule: the same request, with the same key, until it is answered or the directive's budget is spent.
//!
//! [`Schedule`] decides (time and randomness come in), [`deliver`] performs. A definite refusal ends it at once; only a
//! directive, or a connection that broke (a server being restarted), is waited out.

use std::time::{Duration, Instant};

use conch_core::refusal::Retry;

use super::{Answer, ClientError, HttpClient, Request};

/// First wait after a broken connection; doubled each time.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// Longest wait between attempts on a broken connection.
const LONGEST_WAIT: Duration = Duration::from_secs(2);
/// Shortest wait that a server may ask for; less would be a busy loop.
pub(super) const ASKED_WAIT_MIN: Duration = Duration::from_millis(50);
/// Longest budget that a server may give.
const ASKED_BUDGET_MAX: Duration = Duration::from_secs(600);
/// How often [`deliver`] reports that it is still waiting.
const TICK: Duration = Duration::from_millis(500);

/// Why an attempt failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failed {
    /// The server said when to come back.
    Directive(Retry),
    /// There was no answer.
    NoAnswer,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Send the same again after this long.
    Wait(Duration),
    /// The budget is spent: show the failure.
    GiveUp,
}

/// When to send again.
#[derive(Debug, Clone)]
pub struct Schedule {
    budget: Duration,
    no_answers: u32,
}

impl Schedule {
    /// A schedule whose budget holds until a directive replaces it. Counts from the first attempt.
    #[must_use]
    pub fn new(budget: Duration) -> Self {
        Self { budget, no_answers: 0 }
    }

    /// Decides after a failed attempt. `elapsed`: since the first attempt began; `random`: 64 random bits.
    pub fn after(&mut self, failed: Failed, elapsed: Duration, random: u64) -> Next {
        let wait = match failed {
            Failed::Directive(retry) => {
                self.budget = Duration::from_millis(retry.budget_ms).min(ASKED_BUDGET_MAX);
                self.no_answers = 0;
                Duration::from_millis(retry.after_ms).max(ASKED_WAIT_MIN)
            }
            Failed::NoAnswer => {
                let doublings = self.no_answers.min(8);
                self.no_answers += 1;
                (FIRST_WAIT * 2_u32.pow(doublings)).min(LONGEST_WAIT)
            }
        };
        // Half as much again at most, so that many clients told the same do not come back together.
        let span_ms = u64::try_from(wait.as_millis() / 2).unwrap_or(u64::MAX).max(1);
        let wait = wait + Duration::from_millis(random % span_ms);
        if elapsed + wait > self.budget { Next::GiveUp } else { Next::Wait(wait) }
    }
}

/// A report while a request waits for its next attempt.
#[derive(Debug)]
pub struct Waiting<'a> {
    /// Since the first attempt.
    pub elapsed: Duration,
    /// The last failure.
    pub reason: &'a str,
}

/// Sends a request until it is answered, refused for good, or the budget is spent. `report` is called about twice a
/// second meanwhile.
///
/// # Errors
/// As [`ClientError`], but never `Unreachable`: that becomes `Unavailable` when the budget is spent.
pub async fn deliver(
    client: &HttpClient,
    request: &Request,
    budget: Duration,
    report: &mut (dyn FnMut(Waiting<'_>) + Send),
) -> Result<Answer, ClientError> {
    let started = Instant::now();
    let mut schedule = Schedule::new(budget);
    loop {
        let error = match client.attempt(request).await {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        let (failed, detail, problem) = match error {
            ClientError::Refused(problem) => match problem.retry {
                Some(retry) => (Failed::Directive(retry), problem.to_string(), Some(Box::new(problem))),
                None => return Err(ClientError::Refused(problem)),
            },
            ClientError::Unreachable(detail) => (Failed::NoAnswer, detail, None),
            definite => return Err(definite),
        };
        match schedule.after(failed, started.elapsed(), random_bits()) {
            Next::Wait(wait) => wait_and_report(wait, started, &detail, report).await,
            Next::GiveUp => return Err(ClientError::Unavailable { waited: started.elapsed(), detail, problem }),
        }
    }
}

async fn wait_and_report(wait: Duration, started: Instant, reason: &str, report: &mut (dyn FnMut(Waiting<'_>) + Send)) {
    let until = tokio::time::Instant::now() + wait;
    loop {
        report(Waiting { elapsed: started.elapsed(), reason });
        let now = tokio::time::Instant::now();
        if now >= until {
            return;
        }
        tokio::time::sleep_until(until.min(now + TICK)).await;
    }
}

/// 64 bits, good enough to spread clients.
pub(super) fn random_bits() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().0
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIRECTIVE: Retry = Retry { after_ms: 400, budget_ms: 10_000 };

    #[test]
    fn a_directive_sets_the_wait_and_the_budget() {
        let mut schedule = Schedule::new(Duration::from_secs(1));
        assert_eq!(
            schedule.after(Failed::Directive(DIRECTIVE), Duration::from_secs(5), 0),
            Next::Wait(Duration::from_millis(400)),
            "the directive's budget replaces the default"
        );
        assert_eq!(schedule.after(Failed::Directive(DIRECTIVE), Duration::from_millis(9_700), 0), Next::GiveUp);
    }

    #[test]
    fn a_directive_is_followed_within_bounds() {
        let mut schedule = Schedule::new(Duration::from_secs(1));
        let eager = Failed::Directive(Retry { after_ms: 0, budget_ms: u64::MAX });
        assert_eq!(schedule.after(eager, Duration::ZERO, 0), Next::Wait(Duration::from_millis(50)));
        assert!(matches!(schedule.after(eager, Duration::from_secs(599), 0), Next::Wait(_)));
        assert_eq!(schedule.after(eager, Duration::from_secs(600), 0), Next::GiveUp);
        let never = Failed::Directive(Retry { after_ms: u64::MAX, budget_ms: u64::MAX });
        assert_eq!(schedule.after(never, Duration::ZERO, u64::MAX), Next::GiveUp);
    }

    #[test]
    fn jitter_adds_half_at_most() {
        for random in [0, 1, 199, 200, u64::MAX] {
            let mut schedule = Schedule::new(Duration::from_secs(1));
            let Next::Wait(wait) = schedule.after(Failed::Directive(DIRECTIVE), Duration::ZERO, random) else {
                panic!("gave up");
            };
            assert!((400..600).contains(&wait.as_millis()), "{wait:?}");
        }
    }

    #[test]
    fn broken_connections_back_off_within_the_default_budget() {
        let mut schedule = Schedule::new(Duration::from_secs(20));
        let waits: Vec<u128> = (0..7)
            .map(|_| match schedule.after(Failed::NoAnswer, Duration::ZERO, 0) {
                Next::Wait(wait) => wait.as_millis(),
                Next::GiveUp => panic!("gave up"),
            })
            .collect();
        assert_eq!(waits, [100, 200, 400, 800, 1_600, 2_000, 2_000]);
        assert_eq!(schedule.after(Failed::NoAnswer, Duration::from_secs(19), 0), Next::GiveUp);
    }

    #[test]
    fn a_budget_of_nothing_tries_once() {
        assert_eq!(Schedule::new(Duration::ZERO).after(Failed::NoAnswer, Duration::ZERO, 0), Next::GiveUp);
    }
}
